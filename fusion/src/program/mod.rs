//! Program files: the format of conformance cases, captured programs and bug reports.
//!
//! A program is one JSON object: values (inputs and constants with their data), ops in execution
//! order, the ids of the outputs and, optionally, the expected outputs and how closely they must
//! match. Ids are small integers, each defined once. [`Program::parse`] checks everything that can
//! be checked without running: every op goes through the op table and must have the declared result
//! types.
//!
//! A body can use its arguments and the constants of the program. The branches of `if` and `case`,
//! which capture values in StableHLO, take them as arguments here: one per operand after the first.
//!
//! An invalid file gives a [`ProgramError`] with the path (`ops[3].attrs.dimensions`) and the
//! problem. If the op table lacks an op or element type of the file, the error says so, and a test
//! can skip the file by that name.

mod check;
mod field;
mod function;
mod json;
mod locate;
mod parse;
mod tuple;
mod write;

use std::fmt;
use std::sync::Arc;

pub use check::{Check, Mismatch};

use crate::ir::{Body, OpCode, Signature};
use crate::literal::Literal;
use crate::printable::Printable;

/// Id of a value within one program file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub u32);

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// The role of a program value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Run-time data.
    Input,
    /// Data that may be compiled in.
    Const,
}

/// A value that comes with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramValue {
    /// Its id.
    pub id: ProgramId,
    /// Input or constant.
    pub role: Role,
    /// The data.
    pub data: Arc<Literal>,
}

/// One op of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOp {
    /// Op, attributes, bodies and types.
    pub signature: Arc<Signature>,
    /// The operands.
    pub operands: Vec<ProgramId>,
    /// The results, in the order of the signature's result types.
    pub results: Vec<ProgramId>,
}

/// A program that was read from a file, or can be written to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its name, for messages.
    pub name: String,
    /// Its origin, for messages; may be empty.
    pub source: String,
    /// For filtering: the main op or a group of programs; may be empty.
    pub class: String,
    /// Inputs and constants.
    pub values: Vec<ProgramValue>,
    /// The ops, in execution order.
    pub ops: Vec<ProgramOp>,
    /// The values to return.
    pub outputs: Vec<ProgramId>,
    /// The expected outputs: empty if unknown, else one per output.
    pub expected: Vec<Literal>,
    /// How to compare them; one per expected output.
    pub checks: Vec<Check>,
}

/// An error in a program file, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    place: String,
    problem: Problem,
    /// Line and column of a JSON syntax error.
    position: Option<(usize, usize)>,
}

/// The problem of an invalid program file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It is not JSON, or violates the format.
    Malformed(String),
    /// It uses an op that the op table does not have.
    UnknownOp(String),
    /// It uses an element type that the library does not have.
    UnknownDType(String),
    /// A rule rejects an op.
    Op(crate::OpError),
}

impl ProgramError {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> ProgramError {
        ProgramError::of(place, Problem::Malformed(problem.into()))
    }

    fn of(place: impl Into<String>, problem: Problem) -> ProgramError {
        ProgramError { place: place.into(), problem, position: None }
    }

    /// The location in the file: a path such as `ops[3].operands[1]`, or line and column for a JSON
    /// syntax error.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Line and column of the location, both from 1, in the text that was parsed. `None` if it
    /// cannot be found.
    #[must_use]
    pub fn position(&self, text: &str) -> Option<(usize, usize)> {
        self.position.or_else(|| locate::position(text, &self.place))
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The unsupported op or element type, if that is the problem.
    #[must_use]
    pub fn unsupported(&self) -> Option<String> {
        match &self.problem {
            Problem::UnknownOp(name) => Some(format!("op {name}")),
            Problem::UnknownDType(name) => Some(format!("element type {name}")),
            _ => None,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Printable(&self.place))?;
        match &self.problem {
            Problem::Malformed(what) => Printable(what).fmt(f),
            Problem::UnknownOp(name) => write!(f, "op {name:?} is not in the op table"),
            Problem::UnknownDType(name) => write!(f, "element type {name:?} is not supported"),
            Problem::Op(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ProgramError {}

impl Program {
    /// Reads a program.
    ///
    /// # Errors
    /// If the text is not a valid program; the error says where.
    pub fn parse(text: &str) -> Result<Program, ProgramError> {
        parse::program(text)
    }

    /// Writes the program as one line of JSON; [`Program::parse`] reads it back.
    #[must_use]
    pub fn to_json(&self) -> String {
        write::program(self).to_string()
    }

    /// Number of ops, including those in bodies.
    #[must_use]
    pub fn op_count(&self) -> usize {
        fn body_ops(body: &Body) -> usize {
            body.graph().nodes().iter().map(|node| op_count(node.signature())).sum()
        }
        fn op_count(signature: &Signature) -> usize {
            1 + signature.bodies().iter().map(|body| body_ops(body)).sum::<usize>()
        }
        self.ops.iter().map(|op| op_count(&op.signature)).sum()
    }

    /// The opcodes in use, in order of first use.
    #[must_use]
    pub fn opcodes(&self) -> Vec<OpCode> {
        let mut codes = Vec::new();
        for op in &self.ops {
            if !codes.contains(&op.signature.op()) {
                codes.push(op.signature.op());
            }
        }
        codes
    }
}
