//! Splits a source file into tokens and comments, without a parser: enough to see what a file
//! names.
//!
//! Comments and string literals are separated from code, so a path in them does not count. The
//! supported languages are Rust and the C family, which share this part of their syntax.

/// A token or a line of a comment, with its line number, from 1.
///
/// A token is a word, a number, `::`, a literal with its quotes, or any other single character. A
/// raw identifier (`r#type`) is the word without its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

/// A file: its code, and its comments, one item for each line of a comment.
#[derive(Debug, Default)]
pub(crate) struct Source<'a> {
    pub(crate) tokens: Vec<Token<'a>>,
    pub(crate) comments: Vec<Token<'a>>,
}

/// The syntax of a file. Block comments nest in Rust and do not in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    Rust,
    C,
}

enum Kind {
    Space,
    Comment,
    Token,
}

/// Splits a file.
pub(crate) fn split(text: &str, syntax: Syntax) -> Source<'_> {
    let mut source = Source::default();
    let (mut at, mut line) = (0, 1);
    while at < text.len() {
        let (kind, length) = next(&text[at..], syntax);
        let piece = &text[at..at + length];
        match kind {
            Kind::Space => {}
            Kind::Comment => {
                let lines = piece.lines().enumerate();
                source.comments.extend(lines.map(|(index, text)| Token { line: line + index, text }));
            }
            Kind::Token => {
                let text = piece.strip_prefix("r#").filter(|_| !piece.ends_with(['"', '#'])).unwrap_or(piece);
                source.tokens.push(Token { line, text });
            }
        }
        line += piece.matches('\n').count();
        at += length;
    }
    source
}

/// The kind of the next part of a text that is not empty, and its length in bytes.
fn next(text: &str, syntax: Syntax) -> (Kind, usize) {
    let first = text.chars().next().map_or(0, char::len_utf8);
    if text.starts_with("//") {
        return (Kind::Comment, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (Kind::Comment, block_comment(text, syntax));
    }
    if text.starts_with(char::is_whitespace) {
        return (Kind::Space, first);
    }
    if text.starts_with("::") {
        return (Kind::Token, 2);
    }
    if text.starts_with('"') {
        return (Kind::Token, quoted(text, '"'));
    }
    if text.starts_with('\'') {
        return (Kind::Token, character_or_lifetime(text));
    }
    let word = word(text);
    let length = match (&text[..word], syntax) {
        ("", _) => first,
        ("r" | "br" | "cr", Syntax::Rust) => raw_string(text, word).unwrap_or(word),
        ("R", Syntax::C) => raw_c_string(text).unwrap_or(word),
        _ => word,
    };
    (Kind::Token, length)
}

/// The length of the word at the start of a text. All non-ASCII characters count as word
/// characters.
fn word(text: &str) -> usize {
    text.find(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

fn block_comment(text: &str, syntax: Syntax) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(found) = text[at..].find('/') {
        let slash = at + found;
        if slash > at && text[..slash].ends_with('*') {
            depth -= 1;
            if depth == 0 {
                return slash + 1;
            }
            at = slash + 1;
        } else if text[slash..].starts_with("/*") {
            depth = if syntax == Syntax::Rust { depth + 1 } else { 1 };
            at = slash + 2;
        } else {
            at = slash + 1;
        }
    }
    text.len()
}

/// The length of a quoted literal in which a backslash escapes the next character.
fn quoted(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == quote {
            return at + 1;
        }
        if c == '\\' {
            characters.next();
        }
    }
    text.len()
}

/// `'a'` is a character, `'a` a lifetime.
fn character_or_lifetime(text: &str) -> usize {
    let mut after = text[1..].chars();
    let first = after.next();
    if first == Some('\\') || after.next() == Some('\'') { quoted(text, '\'') } else { 1 + word(&text[1..]) }
}

/// The length of a raw string or raw identifier with a prefix of this length.
fn raw_string(text: &str, prefix: usize) -> Option<usize> {
    let rest = &text[prefix..];
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    if !rest[hashes..].starts_with('"') {
        let name = rest.strip_prefix('#').map_or(0, word);
        return (name > 0).then_some(prefix + 1 + name);
    }
    let (start, end) = (prefix + hashes + 1, format!("\"{}", "#".repeat(hashes)));
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The length of a raw string of C++: `R"x(...)x"`.
fn raw_c_string(text: &str) -> Option<usize> {
    let (delimiter, _) = text.strip_prefix("R\"")?.split_once('(')?;
    let end = format!("){delimiter}\"");
    Some(text.find(&end).map_or(text.len(), |at| at + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str, syntax: Syntax) -> Vec<&str> {
        split(text, syntax).tokens.iter().map(|token| token.text).collect()
    }

    #[test]
    fn code_is_told_from_comments_and_literals() {
        let rust: [(&str, &[&str]); 12] = [
            ("use crate::a_1;", &["use", "crate", "::", "a_1", ";"]),
            ("a // crate::b\nc", &["a", "c"]),
            ("a /* b /* c */ d */ e", &["a", "e"]),
            ("a /**/ b /*/ c */ d", &["a", "b", "d"]),
            ("\"a // \\\" b\" c", &["\"a // \\\" b\"", "c"]),
            ("r#\"a \" b\"# c", &["r#\"a \" b\"#", "c"]),
            ("br\"a\\\" c", &["br\"a\\\"", "c"]),
            ("r#type r", &["type", "r"]),
            ("'\"' 'a' '\\'' b'x' é", &["'\"'", "'a'", "'\\''", "b", "'x'", "é"]),
            ("&'a str", &["&", "'a", "str"]),
            ("0.5..=1", &["0", ".", "5", ".", ".", "=", "1"]),
            ("\"no end", &["\"no end"]),
        ];
        for (text, tokens) in rust {
            assert_eq!(code(text, Syntax::Rust), tokens, "{text}");
        }
        assert_eq!(code("a /* b /* c */ d", Syntax::C), ["a", "d"]);
        assert_eq!(code("R\"x(a)\" // )x\" b", Syntax::C), ["R\"x(a)\" // )x\"", "b"]);
    }

    #[test]
    fn tokens_and_comments_know_their_lines() {
        let source = split("/* a\n b */ c\n\"d\n\" e // f\n", Syntax::Rust);
        let lines = |tokens: &[Token<'static>]| {
            tokens.iter().map(|token| (token.line, token.text)).collect::<Vec<_>>()
        };
        assert_eq!(lines(&source.tokens), [(2, "c"), (3, "\"d\n\""), (4, "e")]);
        assert_eq!(lines(&source.comments), [(1, "/* a"), (2, " b */"), (4, "// f")]);
    }
}
