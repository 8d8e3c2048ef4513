//! Reading StableHLO modules as text.
//!
//! Input: a text. Output: a [`TextModule`], whose function is a checked [`Body`], or a
//! [`TextError`] that says line, column, what is wrong and what was expected. Pure. Every op goes
//! through the op table, so what comes out is as good as what was recorded; what the table does not
//! have is an error that names it.
//!
//! # What is read
//!
//! - The generic form that the lowering prints and MLIR prints on request, `"stablehlo.add"(%a, %b)
//!   <{...}> : (types) -> types`, and the pretty form that JAX and MLIR print unless told
//!   otherwise. One line per op says what its pretty form is ([`syntax`](self)); the attributes of
//!   both are read by the schemas of the op table.
//! - Functions that are called are written out at each call; they are read again there, so that no
//!   other form of a program is needed than its text and its graph. Functions may stand after their
//!   callers. Recursion is refused.
//! - Regions that use values from around them: `if` and `case` take such a value as one more
//!   operand and their bodies as one more parameter; a `while` carries it; a scalar constant is
//!   copied into the body of a `while` or of an op that calls its body for elements, which can use
//!   nothing else from outside.
//! - A constant that is one element for all elements becomes a scalar that is broadcast.
//!
//! # What is not
//!
//! Sizes that are not known, tokens, tuples, quantised types, data outside the text, several blocks
//! in a region and aliases of attributes are refused as such ([`TextError::unsupported`]).
//! Attributes of the dialects `jax`, `mhlo`, `sdy`, `tf` and `xla` are skipped, because they never
//! say what is computed; any other that the table does not know is refused. Of `tf.
//! aliasing_output` it is kept which result it names. Locations are skipped.
//!
//! # Hostile texts
//!
//! - X1: no text makes the reader panic. Nesting is limited: regions by
//!   [`crate::limits::MAX_BODY_DEPTH`], calls by 64, lists by the rank of a tensor.
//! - X2: what is allocated is at most a small multiple of the text's length and some 8 MiB: calls
//!   can multiply a text, so ops ([`crate::limits::MAX_GRAPH_OPS`]) and bytes of calls are counted;
//!   constants are kept once per place of the text.
//!
//! - X3: the time is linear in the text and in the ops that come out, but for functions that are
//!   called and read again: their text is counted at each call, and limited to 256 MiB in all.

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

use crate::graph::Body;
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
    /// When the text is not a module of ops that the op table accepts; the error says where and
    /// why.
    pub fn parse(text: &str) -> Result<TextModule, TextError> {
        TextModule::read(text, MAX_GRAPH_OPS)
    }

    /// As [`TextModule::parse`], for a text of the lowering's, which has no calls and so no more
    /// ops than it writes out.
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

    /// Its function: `main`, or the only one that is not private, with all that it calls written
    /// out.
    #[must_use]
    pub fn main(&self) -> &Arc<Body> {
        &self.main
    }

    /// For each parameter of the function, the result that may be put into its memory.
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
