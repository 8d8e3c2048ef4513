//! Programs as files: the format of the conformance cases, of captured traces and of bug reports.
//!
//! A program is one JSON object: values (inputs and constants with their data), ops in execution order, the ids of the
//! outputs and, optionally, what the outputs should be and how closely. Ids are small integers, each defined once.
//! [`Program::parse`] checks everything that can be checked without running: every op goes through the op table and
//! must have the result types that the file declares.
//!
//! A region sees its arguments and the constants of the program. The branches of `if` and `case`, which capture values in
//! StableHLO, take them as arguments here: one per operand after the first.
//!
//! A file that is wrong gives a [`ProgramError`] that says where (`ops[3].attrs.dimensions`) and what; a file that uses
//! an op or element type which the op table does not have yet gives one that says so, so that a test can skip it by
//! name.

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

use crate::graph::Body;
use crate::literal::Literal;
use crate::op::{OpCode, Signature};
use crate::printable::Printable;

/// Id of a value within one program file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub u32);

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// What a program value stands for.
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

/// A program read from a file, or to be written to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its name, for messages.
    pub name: String,
    /// Where it comes from, for messages; may be empty.
    pub source: String,
    /// For filtering: the main op or a group of programs; may be empty.
    pub class: String,
    /// Inputs and constants.
    pub values: Vec<ProgramValue>,
    /// The ops, in execution order.
    pub ops: Vec<ProgramOp>,
    /// The values to return.
    pub outputs: Vec<ProgramId>,
    /// What the outputs should be; empty when not known, else one per output.
    pub expected: Vec<Literal>,
    /// How to compare them; one per expected output.
    pub checks: Vec<Check>,
}

/// What is wrong with a program file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    place: String,
    problem: Problem,
    /// Line and column of what is not JSON.
    position: Option<(usize, usize)>,
}

/// What is wrong with a program file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// It is not JSON, or not what the format asks for.
    Malformed(String),
    /// It uses an op that the op table does not have.
    UnknownOp(String),
    /// It uses an element type that the library does not have.
    UnknownDType(String),
    /// An op is refused by its rule.
    Op(crate::OpError),
}

impl ProgramError {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> ProgramError {
        ProgramError::of(place, Problem::Malformed(problem.into()))
    }

    fn of(place: impl Into<String>, problem: Problem) -> ProgramError {
        ProgramError { place: place.into(), problem, position: None }
    }

    /// Where in the file: a path such as `ops[3].operands[1]`, or line and column for bad JSON.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Line and column of the place, both from 1, in the text that was parsed. `None` when it cannot be found.
    #[must_use]
    pub fn position(&self, text: &str) -> Option<(usize, usize)> {
        self.position.or_else(|| locate::position(text, &self.place))
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The op or element type that is not supported, when that is what is wrong.
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
    /// When the text is not a valid program; the error says where.
    pub fn parse(text: &str) -> Result<Program, ProgramError> {
        parse::program(text)
    }

    /// Writes the program as one line of JSON; [`Program::parse`] reads it back.
    #[must_use]
    pub fn to_json(&self) -> String {
        write::program(self).to_string()
    }

    /// Number of ops, those inside bodies included.
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

    /// The opcodes used, in order of first use.
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
