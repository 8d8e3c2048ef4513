//! Finds the position of a path such as `ops[3].operands[1]` in a JSON text.
//!
//! The JSON parser keeps no positions, and only error messages need one. So the text is scanned
//! again for an error, along the path. The text is expected to be valid JSON; if it is not, the
//! position is unknown.

/// Line and column (both from 1, columns in characters) of `path` in `text`; `None` if the path
/// does not exist.
pub(super) fn position(text: &str, path: &str) -> Option<(usize, usize)> {
    let mut scanner = Scanner { bytes: text.as_bytes(), at: 0 };
    scanner.space();
    for step in steps(path)? {
        match step {
            PathStep::Key(key) => scanner.enter_object(key)?,
            PathStep::Index(index) => scanner.enter_list(index)?,
        }
    }
    let before = text.get(..scanner.at)?;
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    Some((line, column))
}

/// One step of a path.
enum PathStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// Splits a path; the whole program is `program`.
fn steps(path: &str) -> Option<Vec<PathStep<'_>>> {
    let mut steps = Vec::new();
    if path == "program" {
        return Some(steps);
    }
    for part in path.split('.') {
        let mut pieces = part.split('[');
        steps.extend(pieces.next().filter(|key| !key.is_empty()).map(PathStep::Key));
        for index in pieces {
            steps.push(PathStep::Index(index.strip_suffix(']')?.parse().ok()?));
        }
    }
    Some(steps)
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Consumes one character and the whitespace after it.
    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)?;
        self.space();
        Some(())
    }

    /// Consumes a string; returns its raw contents, with escapes.
    fn string(&mut self) -> Option<&[u8]> {
        (self.peek()? == b'"').then(|| self.at += 1)?;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let end = self.at;
        self.at += 1;
        self.space();
        self.bytes.get(start..end)
    }

    /// Consumes a value. Counting brackets avoids recursion.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                _ => {
                    while !matches!(
                        self.peek(),
                        None | Some(b',' | b':' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r')
                    ) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                self.space();
                return Some(());
            }
        }
    }

    /// Moves to a member of an object. Of equal keys the last one counts, as in the parser.
    fn enter_object(&mut self, key: &str) -> Option<()> {
        self.take(b'{')?;
        let mut found = None;
        while self.peek()? != b'}' {
            let here = self.string()? == key.as_bytes();
            self.take(b':')?;
            if here {
                found = Some(self.at);
            }
            self.skip()?;
            if self.peek()? == b',' {
                self.take(b',')?;
            }
        }
        self.at = found?;
        Some(())
    }

    /// Moves to an entry of a list.
    fn enter_list(&mut self, index: usize) -> Option<()> {
        self.take(b'[')?;
        for _ in 0..index {
            self.skip()?;
            self.take(b',')?;
        }
        (self.peek()? != b']').then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::position;

    const TEXT: &str = "{\n  \"ops\": [ {\"a\\\"b\": \"]}\", \"operands\": []},\n    {\"operands\": [1,\n  22]}\n  ],\
                        \"ops2\": null, \"twice\": 1, \"twice\": [true]}\n";

    #[test]
    fn paths_lead_to_where_things_start() {
        for (path, wanted) in [
            ("program", Some((1, 1))),
            ("ops", Some((2, 10))),
            ("ops[0]", Some((2, 12))),
            ("ops[0].operands", Some((2, 39))),
            ("ops[1].operands[0]", Some((3, 19))),
            ("ops[1].operands[1]", Some((4, 3))),
            ("ops2", Some((5, 13))),
            ("twice[0]", Some((5, 41))),
            ("ops[2]", None),
            ("ops[0].operands[0]", None),
            ("nothing", None),
            ("ops[x]", None),
            ("twice.a", None),
        ] {
            assert_eq!(position(TEXT, path), wanted, "{path}");
        }
    }

    #[test]
    fn what_is_no_json_has_no_places() {
        for text in ["", "{", "{\"a\"", "{\"a\":", "{\"a\": [", "{\"a\": \"\\", "{\"a\": ]", "\u{0}"] {
            assert_eq!(position(text, "a[1]"), None, "{text:?}");
        }
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(position("{\"é\": 1, \"a\": 2}", "a"), Some((1, 15)));
    }
}
