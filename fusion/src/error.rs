//! Errors of op calls: arity, attributes, element types, shapes, limits.
//!
//! An [`OpError`] addresses the person whose call was rejected. It always names the op, what was
//! given and what the rule is, and suggests a fix if there is an obvious one. The engine adds the
//! call site.

use std::fmt;

use crate::printable::Printable;

/// The kind of rule that a call broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpErrorKind {
    /// Wrong number of operands, bodies or results.
    Arity,
    /// An attribute is missing, of the wrong kind, or out of range.
    Attribute,
    /// An operand has an element type the op does not take.
    DType,
    /// Operand shapes do not fit together or do not fit the attributes.
    Shape,
    /// A size computed from the operands exceeds the limit.
    Overflow,
    /// A limit of [`crate::limits`] is exceeded.
    Limit,
    /// A body (such as the function inside a `reduce`) has another signature than the op requires.
    Body,
}

/// A rejected op call: the op, what was given, the rule, and a hint.
#[derive(Clone, PartialEq, Eq)]
pub struct OpError(Box<Repr>);

#[derive(Clone, PartialEq, Eq)]
struct Repr {
    op: &'static str,
    fault: OpErrorKind,
    given: String,
    rule: String,
    hint: Option<String>,
}

impl OpError {
    /// Builds an error for `op`: `given` is what arrived, `rule` what is required.
    #[must_use]
    pub fn new(
        op: &'static str,
        fault: OpErrorKind,
        given: impl Into<String>,
        rule: impl Into<String>,
    ) -> OpError {
        OpError(Box::new(Repr { op, fault, given: given.into(), rule: rule.into(), hint: None }))
    }

    /// Adds a suggestion for the user.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> OpError {
        self.0.hint = Some(hint.into());
        self
    }

    /// The op's name as in the op table.
    #[must_use]
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The kind of rule that was broken.
    #[must_use]
    pub fn fault(&self) -> OpErrorKind {
        self.0.fault
    }

    /// The suggested fix, if there is an obvious one.
    #[must_use]
    pub fn suggestion(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What was given may contain names that the user chose.
        write!(f, "{}: {}; {}", self.0.op, Printable(&self.0.given), Printable(&self.0.rule))?;
        if let Some(hint) = &self.0.hint {
            write!(f, "; {}", Printable(hint))?;
        }
        Ok(())
    }
}

impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpError({:?}, {self})", self.0.fault)
    }
}

impl std::error::Error for OpError {}
