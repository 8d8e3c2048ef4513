//! Reading StableHLO modules as text.
//!
//! Input: a text. Output: a [`TextModule`] with a checked function ([`Body`]), or a [`TextError`]
//! with line, column, the problem and what was expected. Pure. Every op goes through the op table,
//! so the result is as valid as a recorded program. An op that the table lacks is an error with its
//! name.
//!
//! # What is read
//!
//! - The generic form that the lowering prints and MLIR prints on request, `"stablehlo.add"(%a, %b)
//!   <{...}> : (types) -> types`, and the pretty form that JAX and MLIR print by default. One line
//!   per op defines its pretty form ([`syntax`](self)). The schemas of the op table define the
//!   attributes of both.
//! - Called functions are inlined and read again at each call, so the reader needs no program
//!   representation besides text and graph. Functions may come after their callers. Recursion is
//!   rejected.
//! - Regions that use values from around them: `if` and `case` take such a value as an additional
//!   operand, and their bodies as an additional parameter; a `while` carries it. A scalar constant
//!   is copied into the body of a `while`, or of an op that calls its body for elements, which can
//!   use no other value from outside.
//! - A splat constant becomes a scalar that is broadcast.
//!
//! # What is not
//!
//! Dynamic sizes, tokens, tuples, quantized types, data outside the text, several blocks in a
//! region and aliases of attributes are rejected as unsupported ([`TextError::unsupported`]).
//! Attributes of the dialects `jax`, `mhlo`, `sdy`, `tf` and `xla` are skipped, because they never
//! affect the computation; any other attribute that the table lacks is rejected. From
//! `tf.aliasing_output` the reader keeps the number of the result. Locations are skipped.
//!
//! # Hostile texts
//!
//! - TEXT-1: no text makes the reader panic. Nesting is limited: regions by
//!   [`crate::limits::MAX_BODY_DEPTH`], calls by 64, lists by the rank of a tensor.
//! - TEXT-2: allocations are at most a small multiple of the text's length plus some 8 MiB. Calls
//!   can multiply a text, so ops ([`crate::limits::MAX_GRAPH_OPS`]) and bytes of calls are counted.
//!   Each constant is kept once per position in the text.
//! - TEXT-3: the time is linear in the text and in the resulting ops, except for called functions,
//!   which are read again. Their text is counted at each call, and limited to 256 MiB in total.

mod attrs;
mod build;
mod dense;
mod error;
mod handler;
mod module;
mod op;
mod pretty;
mod scan;
mod syntax;
mod types;

use std::sync::Arc;

pub use error::{Problem, TextError};

use crate::ir::Body;
use crate::limits::MAX_GRAPH_OPS;

/// A module that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextModule {
    name: Option<String>,
    main: Arc<Body>,
    aliases: Vec<Option<u32>>,
    functions: usize,
}

impl TextModule {
    /// Reads a module.
    ///
    /// # Errors
    /// If the text is not a module of ops that the op table accepts; the error says where and why.
    pub fn parse(text: &str) -> Result<TextModule, TextError> {
        TextModule::read(text, MAX_GRAPH_OPS)
    }

    /// As [`TextModule::parse`], for text from the lowering. It has no calls, so its ops are not
    /// limited.
    pub(crate) fn parse_whole(text: &str) -> Result<TextModule, TextError> {
        TextModule::read(text, usize::MAX)
    }

    fn read(text: &str, most_ops: usize) -> Result<TextModule, TextError> {
        module::Reader::new(text, most_ops).module().map_err(|fault| TextError::new(text, *fault))
    }

    /// The module's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Its function: `main`, or the only function that is not private, with all calls inlined.
    #[must_use]
    pub fn main(&self) -> &Arc<Body> {
        &self.main
    }

    /// For each parameter of the function, the result that may reuse its memory.
    #[must_use]
    pub fn aliases(&self) -> &[Option<u32>] {
        &self.aliases
    }

    /// Number of functions in the text.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions
    }
}
