//! What is wrong with a text, and where.

use std::fmt;

use crate::error::OpError;
use crate::printable::Printable;

/// What is wrong with a text of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Something else stands where this was expected.
    Expected {
        /// What the grammar asks for, in words or as it would be written.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// An op that the op table does not have.
    UnknownOp(String),
    /// An element type that the library does not have.
    UnknownDType(String),
    /// Something that a module may say and this library has no form for: sizes that are not known,
    /// tokens, resources.
    Unsupported(String),
    /// An op is refused by its rule.
    Op(OpError),
    /// Anything else: a value that is not defined, types that contradict each other, a limit.
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

/// A name of the text in a message: not all of it where it is longer than names are.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// A problem at a place, while the text is being read.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) problem: Problem,
}

pub(super) type Result<T> = std::result::Result<T, Box<Fault>>;

/// Why a text is not a module that this library takes: what is wrong, where, and the line with a
/// mark under the place.
#[derive(Clone, PartialEq, Eq)]
pub struct TextError(Box<Repr>);

#[derive(Clone, PartialEq, Eq)]
struct Repr {
    place: Option<Place>,
    problem: Problem,
}

#[derive(Clone, PartialEq, Eq)]
struct Place {
    line: usize,
    column: usize,
    /// What of the line is shown, and how many characters of it stand before the place.
    quoted: String,
    indent: usize,
}

/// Most characters of a line that a message shows before the place, and after it.
const SHOWN: usize = 60;

impl TextError {
    pub(super) fn new(text: &str, fault: Fault) -> TextError {
        // A place is always at the start of a character; what is not would be shown a little off.
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
        let place = Some(Place { line, column, quoted, indent });
        TextError(Box::new(Repr { place, problem: fault.problem }))
    }

    /// An op that is refused although the text is right.
    pub(crate) fn of_op(error: OpError) -> TextError {
        TextError(Box::new(Repr { place: None, problem: Problem::Op(error) }))
    }

    /// Line of the place, from 1; 0 where it is not the text that is wrong.
    #[must_use]
    pub fn line(&self) -> usize {
        self.0.place.as_ref().map_or(0, |place| place.line)
    }

    /// Column of the place in characters, from 1; 0 where it is not the text that is wrong.
    #[must_use]
    pub fn column(&self) -> usize {
        self.0.place.as_ref().map_or(0, |place| place.column)
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    /// What the library does not support, when that is what is wrong: an op, an element type, a
    /// form of a module.
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
        let Some(Place { line, column, quoted, indent }) = place else { return Printable(problem).fmt(f) };
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
