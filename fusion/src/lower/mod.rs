//! StableHLO text for a region.
//!
//! Input: a [`CanonRegion`], which results to return and which inputs may be reused for them. Output: a [`Module`].
//! Pure.
//!
//! Every op is printed in MLIR's generic form, `"stablehlo.add"(%a, %b) <{...}> : (types) -> types`, with the attributes
//! of its schema, so that one printer serves the whole op table. Nothing in a module comes from a user's string: names
//! are made here, attributes are numbers, types and members of closed enumerations.
//!
//! Calling convention of a module's `main`:
//! - the tensor parameters of the region, in order;
//! - then, when the region has lifted scalars, one `ui32` vector with all of them packed ([`ScalarPack`]);
//! - returned are the asked-for results, in the order of their numbers.

mod expand;
mod scalars;
mod text;

use std::fmt;

pub use scalars::ScalarPack;

use crate::canon::CanonRegion;

/// Version of the lowering: part of the environment of every key, so that a change of the emitted code makes new keys.
pub const LOWERING: u32 = 1;

/// Which inputs may be reused for which results. An executable compiled with an alias may still be run without using
/// it, so the choice is no part of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases(Vec<(u32, u32)>);

impl Aliases {
    /// No reuse.
    #[must_use]
    pub fn none() -> Aliases {
        Aliases::default()
    }

    /// Pairs the given candidates with returned results of the same type, each result once, in order.
    ///
    /// `outputs` are the returned results; `candidates` the parameters (by index in the region) that may be reused.
    #[must_use]
    pub fn pair(region: &CanonRegion, outputs: &[u32], candidates: &[u32]) -> Aliases {
        let graph = region.graph();
        let mut free: Vec<u32> = (0..outputs.len() as u32).collect();
        let mut pairs = Vec::new();
        for &param in candidates {
            if region.lifted()[param as usize] {
                continue;
            }
            let ty = &graph.params()[param as usize];
            let same =
                |&position: &u32| graph.type_of(crate::Ref::Result(outputs[position as usize])) == Some(ty);
            if let Some(place) = free.iter().position(same) {
                pairs.push((param, free.remove(place)));
            }
        }
        pairs.sort_unstable();
        Aliases(pairs)
    }

    /// Parameters that have an alias, ascending.
    pub fn params(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|&(param, _)| param)
    }

    fn of(&self, param: u32) -> Option<u32> {
        self.0.iter().find(|&&(p, _)| p == param).map(|&(_, output)| output)
    }
}

/// A StableHLO module, as text.
#[derive(Clone, PartialEq, Eq)]
pub struct Module(String);

impl Module {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lowers a region to a module that returns the results numbered in `outputs`.
///
/// # Panics
/// When `outputs` names a result that the region does not have.
#[must_use]
pub fn lower(region: &CanonRegion, outputs: &[u32], aliases: &Aliases) -> Module {
    Module(text::module(region, outputs, aliases))
}
