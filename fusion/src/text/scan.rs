//! Scans the text: whitespace, words, names, numbers.
//!
//! There is no tokenizer, because the meaning of a character depends on its position in the grammar
//! (the `x` in `tensor<2x3xf32>`). Each grammar rule reads what it can use. A scanner is a position
//! in the text; a copy saves the position.

use std::borrow::Cow;

use super::error::{Fault, Problem, Result};

/// A position in a text.
#[derive(Clone, Copy)]
pub(super) struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

fn is_in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Scanner<'t> {
        Scanner { text, at: 0 }
    }

    /// The byte offset after any whitespace.
    pub(super) fn place(&mut self) -> usize {
        self.space();
        self.at
    }

    fn bytes(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// The text since another position.
    pub(super) fn since(&self, start: usize) -> &'t str {
        &self.text[start..self.at]
    }

    /// Skips whitespace and comments.
    fn space(&mut self) {
        loop {
            match self.bytes() {
                [b' ' | b'\t' | b'\n' | b'\r', ..] => self.at += 1,
                [b'/', b'/', rest @ ..] => {
                    self.at += 2 + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    /// The next character after whitespace.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes().first().copied()
    }

    /// The character at the current offset.
    pub(super) fn peek_adjacent(&self) -> Option<u8> {
        self.bytes().first().copied()
    }

    /// Consumes a character at the current offset, if it matches.
    pub(super) fn take_adjacent(&mut self, wanted: u8) -> bool {
        let found = self.peek_adjacent() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    /// Consumes punctuation, if it is next.
    pub(super) fn eat(&mut self, wanted: &str) -> bool {
        self.space();
        let found = self.bytes().starts_with(wanted.as_bytes());
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    /// Consumes required punctuation.
    pub(super) fn expect(&mut self, wanted: &str) -> Result<()> {
        if self.eat(wanted) { Ok(()) } else { Err(self.expected(format!("`{wanted}`"))) }
    }

    /// Consumes a word, such as `tensor`, `func.func` or `i64`.
    pub(super) fn word(&mut self) -> Option<&'t str> {
        self.space();
        self.bytes().first().filter(|&&byte| starts_word(byte))?;
        Some(self.run(is_in_word))
    }

    /// Consumes this word, if it is next.
    pub(super) fn eat_word(&mut self, wanted: &str) -> bool {
        let mut ahead = *self;
        let found = ahead.word() == Some(wanted);
        if found {
            *self = ahead;
        }
        found
    }

    /// Consumes this required word.
    pub(super) fn expect_word(&mut self, wanted: &str) -> Result<()> {
        if self.eat_word(wanted) { Ok(()) } else { Err(self.expected(format!("`{wanted}`"))) }
    }

    /// Consumes a literal of a format: a word or punctuation.
    pub(super) fn eat_literal(&mut self, wanted: &str) -> bool {
        if wanted.bytes().all(is_in_word) { self.eat_word(wanted) } else { self.eat(wanted) }
    }

    /// Consumes the characters from the current offset on that `accepts` accepts.
    pub(super) fn run(&mut self, accepts: impl Fn(u8) -> bool) -> &'t str {
        let start = self.at;
        let bytes = self.bytes();
        self.at += bytes.iter().position(|&byte| !accepts(byte)).unwrap_or(bytes.len());
        &self.text[start..self.at]
    }

    /// Consumes the name after a sigil: letters, digits and `_ $ . -`.
    pub(super) fn suffix(&mut self, what: &str) -> Result<&'t str> {
        let name = self.run(|byte| is_in_word(byte) || byte == b'-');
        if name.is_empty() { Err(self.expected(what)) } else { Ok(name) }
    }

    /// Consumes the name of a value, without the `%`.
    pub(super) fn value_name(&mut self) -> Result<&'t str> {
        if self.eat("%") { self.suffix("the name of a value") } else { Err(self.expected("a value")) }
    }

    /// Consumes the name of a function, without the `@`.
    pub(super) fn symbol(&mut self) -> Result<Cow<'t, str>> {
        if !self.eat("@") {
            return Err(self.expected("a name with `@`"));
        }
        if self.peek_adjacent() == Some(b'"') {
            self.string()
        } else {
            Ok(Cow::Borrowed(self.suffix("a name")?))
        }
    }

    /// Consumes a quoted string.
    pub(super) fn string(&mut self) -> Result<Cow<'t, str>> {
        let start = self.place();
        self.skip_string()?;
        let raw = &self.text[start + 1..self.at - 1];
        if !raw.contains('\\') {
            return Ok(Cow::Borrowed(raw));
        }
        unescaped(raw).map(Cow::Owned).ok_or_else(|| {
            fault(start, Problem::Other("a string has an invalid escape, or is not UTF-8".into()))
        })
    }

    /// Skips a quoted string.
    fn skip_string(&mut self) -> Result<()> {
        let start = self.place();
        if !self.take_adjacent(b'"') {
            return Err(self.expected("a string"));
        }
        loop {
            self.run(|byte| !matches!(byte, b'"' | b'\\' | b'\n'));
            match self.peek_adjacent() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') if self.bytes().len() > 1 && self.bytes()[1].is_ascii() => self.at += 2,
                _ => {
                    return Err(fault(
                        start,
                        Problem::Other("a string is not terminated on its line".into()),
                    ));
                }
            }
        }
    }

    /// Consumes a decimal number.
    pub(super) fn integer(&mut self) -> Result<i64> {
        let start = self.place();
        self.take_adjacent(b'-');
        self.run(|byte| byte.is_ascii_digit());
        let digits = self.since(start);
        digits.parse().map_err(|_| {
            self.at = start;
            match digits.trim_start_matches('-') {
                "" => self.expected("an integer"),
                _ => self.expected("an integer of 64 bits"),
            }
        })
    }

    /// Skips a balanced pair of brackets, which must be next. `angles` counts angle brackets too,
    /// as in attributes and types, where they are always balanced.
    pub(super) fn skip_brackets(&mut self, angles: bool) -> Result<()> {
        let start = self.place();
        // Tracking the kinds of brackets would reject no more than the later parse does.
        let mut depth = 0usize;
        loop {
            match self.peek() {
                Some(b'(' | b'[' | b'{') => depth += 1,
                Some(b'<') if angles => depth += 1,
                Some(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
                Some(b'>') if angles => depth = depth.saturating_sub(1),
                Some(b'-') if self.bytes().starts_with(b"->") => self.at += 1,
                Some(b'"') => {
                    self.skip_string()?;
                    continue;
                }
                Some(_) => {}
                None => return Err(fault(start, Problem::Other("this bracket is not closed".into()))),
            }
            self.step();
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Skips the value of an attribute, up to the comma or bracket after it.
    pub(super) fn skip_value(&mut self) -> Result<()> {
        let start = self.place();
        loop {
            match self.peek() {
                Some(b',' | b')' | b']' | b'}' | b'>') => break,
                Some(b'(' | b'[' | b'{' | b'<') => self.skip_brackets(true)?,
                Some(b'"') => self.skip_string()?,
                Some(b'-') if self.bytes().starts_with(b"->") => self.at += 2,
                Some(_) => self.step(),
                None => break,
            }
        }
        if self.at == start { Err(self.expected("a value")) } else { Ok(()) }
    }

    /// Returns to an earlier position.
    pub(super) fn back_to(&mut self, place: usize) {
        self.at = place;
    }

    /// Advances by one character.
    fn step(&mut self) {
        self.at += self.text[self.at..].chars().next().map_or(0, char::len_utf8);
    }

    /// Reads bracketed items separated by commas.
    pub(super) fn list(
        &mut self,
        [open, close]: [&str; 2],
        mut item: impl FnMut(&mut Scanner<'t>) -> Result<()>,
    ) -> Result<()> {
        self.expect(open)?;
        if self.eat(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(",") {
                return Err(self.expected(format!("`,` or `{close}`")));
            }
        }
    }

    /// Skips a location, if there is one. It describes the origin of the program and does not
    /// affect the computation.
    pub(super) fn location(&mut self) -> Result<()> {
        if self.eat_word("loc") { self.skip_brackets(false) } else { Ok(()) }
    }

    /// The next item of the text, for messages.
    fn found(&mut self) -> String {
        const MOST: usize = 24;
        let mut ahead = *self;
        let Some(first) = ahead.peek() else { return "the end of the text".to_owned() };
        let start = ahead.at;
        ahead.step();
        if is_in_word(first) || matches!(first, b'%' | b'@' | b'#' | b'!' | b'^') {
            ahead.run(|byte| is_in_word(byte) || byte == b'#');
        }
        let token = ahead.since(start);
        match token.char_indices().nth(MOST) {
            Some((end, _)) => format!("`{}...`", &token[..end]),
            None => format!("`{token}`"),
        }
    }

    /// An error: something else was expected here.
    pub(super) fn expected(&mut self, what: impl Into<String>) -> Box<Fault> {
        let found = self.found();
        fault(self.place(), Problem::Expected { expected: what.into(), found })
    }
}

/// A problem at a position.
pub(super) fn fault(at: usize, problem: Problem) -> Box<Fault> {
    Box::new(Fault { at, problem })
}

/// A problem at a position, in words.
pub(super) fn other(at: usize, words: impl Into<String>) -> Box<Fault> {
    fault(at, Problem::Other(words.into()))
}

/// An unsupported feature at a position.
pub(super) fn unsupported(at: usize, words: impl Into<String>) -> Box<Fault> {
    fault(at, Problem::Unsupported(words.into()))
}

/// Resolves MLIR's escapes: `\\`, `\"`, `\n`, `\t` and two hexadecimal digits.
fn unescaped(raw: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                byte @ (b'\\' | b'"') => byte,
                b'n' => b'\n',
                b't' => b'\t',
                high => hex_digit(high)? << 4 | hex_digit(rest.next()?)?,
            },
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Value of a hexadecimal digit.
pub(super) fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
