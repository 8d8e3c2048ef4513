//! Words and numbers for people.

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use fuseline::fusion::Printable;

/// Adds a line to a text.
macro_rules! say {
    ($out:expr) => {{ $out.push('\n'); }};
    ($out:expr, $($arg:tt)*) => {{
        // Writing to a string cannot fail.
        let _ = std::fmt::Write::write_fmt($out, format_args!($($arg)*));
        $out.push('\n');
    }};
}

pub(crate) use say;

/// Writes a line to standard error. Errors are ignored.
pub(crate) fn note(words: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "{}", Printable(words)));
}

/// Escapes characters that could move a cursor or reverse text, with JSON escapes in a document.
pub(crate) fn printed(answer: &str, is_json: bool) -> String {
    match is_json {
        false => Printable(answer).to_string(),
        true => {
            let mut out = String::with_capacity(answer.len());
            for letter in answer.chars() {
                match letter {
                    letter if letter == '\n' || letter == ' ' || letter.is_ascii_graphic() => {
                        out.push(letter)
                    }
                    letter if Printable(letter).to_string().len() > letter.len_utf8() => {
                        let _ = fmt::Write::write_fmt(&mut out, format_args!("\\u{:04x}", letter as u32));
                    }
                    letter => out.push(letter),
                }
            }
            out
        }
    }
}

/// A time with three digits and a fitting unit.
pub(crate) fn time(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    match value {
        v if v >= 100.0 => format!("{v:.0} {unit}"),
        v if v >= 10.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

/// Milliseconds, for programs.
pub(crate) fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// `1 region`, `2 regions`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (nanos, words) in [
            (0, "0.00 µs"),
            (1_500, "1.50 µs"),
            (999_000, "999 µs"),
            (12_345_678, "12.3 ms"),
            (2_000_000_000, "2.00 s"),
        ] {
            assert_eq!(time(Duration::from_nanos(nanos)), words);
        }
    }

    #[test]
    fn answers_obey_no_terminal() {
        assert_eq!(printed("a\u{1b}]0;x\u{7}\tb\n", false), "a\\u{1b}]0;x\\u{7}\tb\n");
        let document = printed("{\"a\": \"\u{9b}\u{7f}\u{202e}ü\"}\n", true);
        assert_eq!(document, "{\"a\": \"\\u009b\\u007f\\u202eü\"}\n");
        let read: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        assert_eq!(read["a"], "\u{9b}\u{7f}\u{202e}ü");
    }

    #[test]
    fn nouns_agree_with_numbers() {
        assert_eq!((count(1, "op"), count(0, "op")), ("1 op".to_owned(), "0 ops".to_owned()));
    }
}
