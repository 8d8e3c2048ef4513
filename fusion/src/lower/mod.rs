//! StableHLO text for a region.
//!
//! Input: a [`CanonRegion`], which results to return and which inputs may be reused for them. Output: a [`Module`].
//! Pure.
//!
//! Every op is printed in MLIR's generic form, `"stablehlo.add"(%a, %b) <{...}> : (types) -> types`, with the attributes
//! of its schema, so that one printer serves the whole op table. Names of values are made here; attributes are numbers,
//! types, members of closed enumerations, and names that cannot leave the quotes they stand in
//! ([`crate::attr::is_name`]).
//!
//! The plugin is given text, not MLIR's bytecode, which it would read faster: of 1,000 ops (`benches/module.rs`) MLIR reads the
//! text in 3.6 ms and the bytecode in 1.4 ms, and XLA then compiles for 1,400 ms and more; compile times of the two forms, in
//! turns, differ by less than their spread (1,847 and 1,863 ms at best in one run, 1,448 and 1,414 in another). One form
//! that people and the verifier can read is worth those 0.2 %. Printing takes 7 ms and the verifier 18 ms for the same module,
//! 1.3 % of the compile. (2026-11-21, two busy cores, API 0.81; shares, not absolute times, are what to expect elsewhere.)
//!
//! Calling convention of a module's `main`:
//! - the tensor parameters of the region, in order;
//! - then, when the region has lifted scalars or fences, one `ui32` vector with all scalars packed and a zero, or one for each scalar
//!   ([`ScalarPack`]);
//! - returned are the asked-for results, in the order of their numbers.

mod columns;
mod exact;
mod fixed;
mod narrow;
mod plain;
mod scalars;
#[cfg(test)]
pub(crate) mod testing;
mod text;
mod verify;

use std::fmt;

pub use exact::unsteady_op;
pub use fixed::{Fixable, fixable};
pub use scalars::ScalarPack;
pub use verify::{Verified, VerifyError};

use crate::canon::CanonRegion;
use crate::graph::Body;
use crate::literal::Scalar;

/// Version of the lowering: part of the environment of every key, so that a change of the emitted code makes new keys.
pub const LOWERING: u32 = 8;

/// What a region keeps of the numbers that its ops would give one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// What the op table calls exact is exact. Floats may be rounded otherwise than op by op: a multiplication and an addition once
    /// instead of twice, a sum in another order, short floats between two ops not at all. The tolerance is that of
    /// [`crate::op::tolerance`], as a part of the largest magnitude in a result, for programs that do not cancel what they have rounded.
    #[default]
    Fast,
    /// Every result has the bits that it has when each op is an executable of its own.
    Exact,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        })
    }
}

/// Whom a module is for, as far as that decides how something is said that can be said in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any compiler: what was recorded, as it was recorded.
    #[default]
    Any,
    /// XLA's CPU backend. With [`Numerics::Fast`], reductions of columns are taken apart, and scalars travel apart where that costs nothing.
    Cpu,
}

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

    /// Each parameter with the position of the result, among those returned, that may have its memory; ascending.
    #[must_use]
    pub fn pairs(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Pairs the given candidates with returned results of the same type, each once.
    ///
    /// `outputs` are the returned results; `candidates` the parameters (by index in the region) that may be reused. A result gets the memory of
    /// the parameter that was used last before it is made, so that it can be written in place: a state goes where the state before it was. What is
    /// left is paired in order; there the compiler has to copy, but the memory is as much.
    #[must_use]
    pub fn pair(region: &CanonRegion, outputs: &[u32], candidates: &[u32]) -> Aliases {
        let graph = region.graph();
        let mut last_uses = vec![None; graph.params().len()];
        for (index, node) in graph.nodes().iter().enumerate() {
            for operand in node.operands() {
                if let crate::Ref::Param(param) = *operand {
                    last_uses[param as usize] = Some(index);
                }
            }
        }
        let of_param = |param: u32| &graph.params()[param as usize];
        let mut left: Vec<u32> =
            candidates.iter().copied().filter(|&param| !region.lifted()[param as usize]).collect();
        let mut pairs = Vec::new();
        let mut free = Vec::new();
        for (position, &output) in (0u32..).zip(outputs) {
            let result = crate::Ref::Result(output);
            let (maker, ty) = (graph.maker(result), graph.type_of(result));
            let fits = |&place: &usize| {
                last_uses[left[place] as usize] <= maker && ty == Some(of_param(left[place]))
            };
            // Of those used last by the same op, the first.
            let latest = |&place: &usize| (last_uses[left[place] as usize], std::cmp::Reverse(place));
            match (0..left.len()).filter(fits).max_by_key(latest) {
                Some(place) => pairs.push((left.remove(place), position)),
                None => free.push((position, ty)),
            }
        }
        for param in left {
            if let Some(place) = free.iter().position(|&(_, ty)| ty == Some(of_param(param))) {
                pairs.push((param, free.remove(place).0));
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
pub struct Module {
    text: String,
    /// What the text says, if the printer is right; [`Module::verify`] finds out.
    function: Body,
    /// For each parameter of the function, the result that may be put into its memory.
    aliases: Vec<Option<u32>>,
    /// Where the text of each node starts, in bytes, and where that of the last one ends.
    starts: Vec<usize>,
}

impl Module {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The node of the region that a line of the text was printed for, counting lines from 1 as compilers do. `None` for
    /// lines of the frame: the signature, the unpacking of lifted scalars, the return.
    #[must_use]
    pub fn node_of_line(&self, line: usize) -> Option<usize> {
        let place = match line {
            0 => return None,
            1 => 0,
            _ => self.text.match_indices('\n').nth(line - 2)?.0 + 1,
        };
        let node = self.starts.partition_point(|&start| start <= place).checked_sub(1)?;
        (node + 1 < self.starts.len()).then_some(node)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Lowers a region to a module that returns the results numbered in `outputs`. For [`Numerics::Exact`] it has fences; what else there is
/// to that are options of the compiler.
///
/// # Panics
/// When `outputs` names a result that the region does not have.
#[must_use]
pub fn lower(region: &CanonRegion, outputs: &[u32], aliases: &Aliases, numerics: Numerics) -> Module {
    lower_for(Target::Any, region, outputs, aliases, numerics, &[])
}

/// As [`lower`], for one compiler and with the values of some lifted scalars, by parameter, ascending. The module is called as others of the region are, and gives
/// what they give if the scalars have these values.
///
/// # Panics
/// As [`lower`].
#[must_use]
pub fn lower_for(
    target: Target,
    region: &CanonRegion,
    outputs: &[u32],
    aliases: &Aliases,
    numerics: Numerics,
    fixed: &[(u32, Scalar)],
) -> Module {
    let pack = ScalarPack::of(target, region, numerics);
    let plain = plain::plain(region, outputs, &pack, fixed);
    let mut plain = narrow::carried(exact::exact(plain, &pack));
    if target == Target::Cpu && numerics == Numerics::Fast {
        plain = columns::in_windows(plain);
    }
    let tensors = (0..).zip(region.lifted()).filter(|(_, lifted)| !**lifted).map(|(param, _)| param);
    let mut reused: Vec<Option<u32>> = tensors.map(|param| aliases.of(param)).collect();
    // The packed scalars are read and not reused.
    reused.resize(plain.function.graph().params().len(), None);
    debug_assert_eq!(
        plain.function.graph().params(),
        pack.parameters(region),
        "what callers are told to give"
    );
    let (text, starts) = text::module(&plain, &reused, region.graph().nodes().len());
    Module { text, function: plain.function, aliases: reused, starts }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::Attrs;
    use crate::dtype::DType;
    use crate::graph::{Body, Graph, Ref};
    use crate::literal::Literal;
    use crate::op::{OpCode, attrs};
    use crate::shape::TensorType;

    #[test]
    fn lines_know_the_node_they_were_printed_for() {
        let ty = TensorType::of(DType::F32, &[4]).expect("small");
        let mut graph = Graph::new();
        let x = graph.param(ty.clone());
        let scalar = graph.param(TensorType::scalar(DType::F32));
        let zero = attrs::constant(Arc::new(Literal::scalar(0.0f32)));
        let zero = graph.push(OpCode::Constant, zero, &[], &[]).expect("a constant")[0];
        let body = Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("a body");
        let sum = graph
            .push(OpCode::Reduce, attrs::dimensions(&[0]), &[Arc::new(body)], &[x, zero])
            .expect("a sum")[0];
        graph.push(OpCode::Add, Attrs::none(), &[], &[sum, scalar]).expect("an add");
        let region = CanonRegion::new(graph, Box::new([false, true]));
        let module = lower(&region, &[2], &Aliases::none(), Numerics::Fast);
        let nodes: Vec<Option<usize>> =
            (0..=module.text().lines().count() + 1).map(|line| module.node_of_line(line)).collect();
        let first = nodes.iter().position(Option::is_some).expect("ops");
        for (number, line) in (1..).zip(module.text().lines()) {
            let wanted = match line {
                _ if line.contains("stablehlo.constant") => Some(0),
                _ if line.contains("stablehlo.reduce") => Some(1),
                _ if line.contains("stablehlo.add") && line.starts_with("    %") => Some(2),
                _ => continue,
            };
            assert_eq!(nodes[number], wanted, "{line}");
        }
        let last = nodes.iter().rposition(Option::is_some).expect("ops");
        // The body of the sum lies inside it, and nothing between the ops belongs to nobody.
        assert!(nodes[first..=last].iter().all(Option::is_some), "{nodes:?}");
        assert!(nodes[first..=last].is_sorted(), "{nodes:?}");
        assert!(nodes[..first].iter().chain(&nodes[last + 1..]).all(Option::is_none), "{nodes:?}");
    }

    /// Momentum: the speed is made before the value, and each lies where it lay, whichever parameter comes first.
    #[test]
    fn a_state_lies_where_it_lay() {
        let mut graph = Graph::new();
        let ty = TensorType::of(DType::F32, &[4]).unwrap();
        let [value, target, speed, other] = [0; 4].map(|_| graph.param(ty.clone()));
        let mut add = |a: Ref, b: Ref| graph.push(OpCode::Add, Attrs::none(), &[], &[a, b]).unwrap()[0];
        let gradient = add(value, target);
        let faster = add(speed, gradient);
        let moved = add(value, faster);
        add(moved, other);
        let (Ref::Result(faster), Ref::Result(moved)) = (faster, moved) else { panic!("they are results") };
        let region = CanonRegion::new(graph, Box::new([false; 4]));
        let pairs = |candidates: &[u32]| Aliases::pair(&region, &[faster, moved], candidates).0;
        // Parameters by number, outputs by place.
        assert_eq!(pairs(&[0, 2]), [(0, 1), (2, 0)]);
        // Used by neither before it is made: paired all the same, as what is left.
        assert_eq!(pairs(&[3]), [(3, 0)]);
        assert_eq!(pairs(&[0, 3]), [(0, 1), (3, 0)]);
        assert_eq!(pairs(&[]), []);
    }
}
