//! Escapes untrusted text for a terminal, a log or a page.
//!
//! Names, call sites and the messages of a plugin come from elsewhere. Printed without escapes,
//! they could move the cursor, change the title of a window or reverse the order of the text after
//! them. Every `Display` that includes such text goes through [`Printable`].

use std::fmt::{self, Write as _};

/// Displays a value with control characters escaped, except line ends and tabs, and with characters
/// that change the direction of text escaped too.
///
/// ```
/// use fuseline_fusion::Printable;
///
/// assert_eq!(Printable("a\u{1b}[2Jb\r\n").to_string(), "a\\u{1b}[2Jb\\r\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

/// As [`Printable`], with line ends and tabs escaped too, for text within a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InLine<T>(pub(crate) T);

/// Whether a character is escaped.
pub(crate) fn is_hidden(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns
}

/// A writer that escapes its input.
struct Escaping<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    /// Whether line ends and tabs are kept.
    keeps_lines: bool,
}

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let hidden = |letter: char| is_hidden(letter) && !(self.keeps_lines && matches!(letter, '\n' | '\t'));
        while let Some(place) = rest.find(hidden) {
            let (before, after) = rest.split_at(place);
            self.to.write_str(before)?;
            let mut letters = after.chars();
            // Characters with a short escape (`\r`, `\t`, `\n`) use it.
            for letter in letters.next().into_iter().flat_map(char::escape_default) {
                self.to.write_char(letter)?;
            }
            rest = letters.as_str();
        }
        self.to.write_str(rest)
    }
}

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, keeps_lines: true }, "{}", self.0)
    }
}

impl<T: fmt::Display> fmt::Display for InLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, keeps_lines: false }, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (text, lines, line) in [
            ("plain, ümlaut, 日本", "plain, ümlaut, 日本", "plain, ümlaut, 日本"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\u{9b}2Jb\u{7f}", "a\\u{9b}2Jb\\u{7f}", "a\\u{9b}2Jb\\u{7f}"),
            ("a\nb\tc\rd", "a\nb\tc\\rd", "a\\nb\\tc\\rd"),
            ("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}", "a\\u{202e}b\\u{2066}"),
            ("", "", ""),
        ] {
            assert_eq!(Printable(text).to_string(), lines);
            assert_eq!(InLine(text).to_string(), line);
        }
        // Several writes are escaped like one.
        assert_eq!(Printable(format_args!("{}{}", "\u{1b}", '\u{1b}')).to_string(), "\\u{1b}\\u{1b}");
    }
}
