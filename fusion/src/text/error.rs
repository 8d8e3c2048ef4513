//! Errors in texts, with their positions.

use std::fmt;

use crate::error::OpError;
use crate::printable::Printable;

/// The problem of an invalid module text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The text does not match the grammar.
    Expected {
        /// The expected item, in words or as it would be written.
        expected: String,
        /// What the text has instead.
        found: String,
    },
    /// An op that the op table does not have.
    UnknownOp(String),
    /// An element type that the library does not have.
    UnknownDType(String),
    /// A feature of modules that this library does not support: dynamic sizes, tokens, resources.
    Unsupported(String),
    /// A rule rejects an op.
    Op(OpError),
    /// Anything else: an undefined value, contradictory types, a limit.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Expected { expected, found } => write!(f, "expected {expected}, found {found}"),
            Problem::UnknownOp(name) => write!(f, "op \"{}\" is not in the op table", Shown(name)),
            Problem::UnknownDType(name) => write!(f, "element type \"{}\" is not supported", Shown(name)),
            Problem::Unsupported(what) => write!(f, "{what}"),
            Problem::Op(error) => error.fmt(f),
            Problem::Other(what) => f.write_str(what),
        }
    }
}

/// A name from the text in a message, truncated if it is too long for a name.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// A problem at a position, before the text is available for the message.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) problem: Problem,
}

pub(super) type Result<T> = std::result::Result<T, Box<Fault>>;

/// Why a text is not a module that this library accepts: the problem, its position, and the line
/// with a mark under it.
#[derive(Clone, PartialEq, Eq)]
pub struct TextError(Box<Repr>);

#[derive(Clone, PartialEq, Eq)]
struct Repr {
    place: Option<TextPosition>,
    problem: Problem,
}

#[derive(Clone, PartialEq, Eq)]
struct TextPosition {
    line: usize,
    column: usize,
    /// The part of the line that is shown, and the number of characters before the position.
    quoted: String,
    indent: usize,
}

/// Maximum number of characters of a line that a message shows before the position, and after it.
const SHOWN: usize = 60;

impl TextError {
    pub(super) fn new(text: &str, fault: Fault) -> TextError {
        // Positions are at the start of a character. Any other would be shown slightly off.
        let mut at = fault.at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let (before, after) = text.split_at(at);
        let start = before.rfind('\n').map_or(0, |place| place + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let before = &before[start..];
        let column = before.chars().count() + 1;
        let skipped = before.char_indices().rev().nth(SHOWN - 1).map_or(0, |(place, _)| place);
        let after = after.lines().next().unwrap_or("");
        let end = after.char_indices().nth(SHOWN).map_or(after.len(), |(place, _)| place);
        let shown = |part: &str| part.replace(|character: char| character.is_control(), " ");
        let head = shown(&before[skipped..]);
        let indent = head.chars().count();
        let quoted = head + &shown(&after[..end]);
        let place = Some(TextPosition { line, column, quoted, indent });
        TextError(Box::new(Repr { place, problem: fault.problem }))
    }

    /// An op that is rejected although the text is well-formed.
    pub(crate) fn of_op(error: OpError) -> TextError {
        TextError(Box::new(Repr { place: None, problem: Problem::Op(error) }))
    }

    /// Line of the position, from 1; 0 if the text itself is well-formed.
    #[must_use]
    pub fn line(&self) -> usize {
        self.0.place.as_ref().map_or(0, |place| place.line)
    }

    /// Column of the position in characters, from 1; 0 if the text itself is well-formed.
    #[must_use]
    pub fn column(&self) -> usize {
        self.0.place.as_ref().map_or(0, |place| place.column)
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    /// The unsupported op, element type or feature, if that is the problem.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        match &self.0.problem {
            Problem::UnknownOp(name) => Some(format!("op {name}")),
            Problem::UnknownDType(name) => Some(format!("element type {name}")),
            Problem::Unsupported(what) => Some(what.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { place, problem } = &*self.0;
        let Some(TextPosition { line, column, quoted, indent }) = place else {
            return Printable(problem).fmt(f);
        };
        writeln!(f, "line {line}, column {column}: {}", Printable(problem))?;
        writeln!(f, "  | {}", Printable(quoted))?;
        write!(f, "  | {:indent$}^", "")
    }
}

impl fmt::Debug for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TextError({self})")
    }
}

impl std::error::Error for TextError {}
