//! Legalizes bodies that XLA cannot call into the steps of loops.
//!
//! XLA's CPU backend calls the bodies of `reduce` and similar ops from inside a kernel, once per
//! element, and can compile only scalar code there. It simplifies other bodies if it can, and
//! otherwise aborts the process: on a `while` or `case` that it cannot simplify, a `sort`, a
//! `scatter`, a `reduce` of two operands. The body of a `while` supports every op, so calls of such
//! bodies become its steps. They are slower, and run in the interpreter's order.

use std::sync::Arc;

mod ops;

pub(super) use ops::{map, reduce, reduce_window, scatter, select_and_scatter, sort};

use super::{Builder, Lowered};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{Body, Graph, OpCode, Ref};
use crate::op::attrs;
use crate::op::def::Fusibility;
use crate::op::enums::Comparison;
use crate::shape::{Shape, TensorType};

/// Whether a body is scalar code, including what its ops are lowered to.
#[must_use]
pub fn is_scalar_code(body: &Body) -> bool {
    fn graph_is(graph: &Graph, lowered: bool) -> bool {
        graph.nodes().iter().all(|node| {
            let signature = node.signature();
            let mut types = signature.operands().iter().chain(signature.results());
            let moves_nothing = matches!(
                signature.op(),
                OpCode::Constant
                    | OpCode::BroadcastInDim
                    | OpCode::Reshape
                    | OpCode::Transpose
                    | OpCode::BitcastConvert
                    | OpCode::OptimizationBarrier
            );
            let def = signature.def();
            let computes = def.fusibility == Fusibility::Elementwise && def.bodies.is_empty();
            (computes || moves_nothing)
                && types.all(|ty| ty.rank() == 0)
                && (lowered
                    || match (def.lower)(&signature.call()) {
                        Lowered::Itself | Lowered::As(_) => true,
                        Lowered::Body(body) => graph_is(body.graph(), true),
                        Lowered::Inline(body) => graph_is(body.graph(), false),
                    })
        })
    }
    graph_is(body.graph(), false)
}

impl Builder {
    pub(super) fn number(&mut self, value: i64) -> Result<Ref, OpError> {
        self.splat(value, DType::I64, &Shape::scalar())
    }

    fn compare(&mut self, direction: Comparison, lhs: Ref, rhs: Ref) -> Result<Ref, OpError> {
        self.op(OpCode::Compare, attrs::compare_for(direction, DType::I64), &[lhs, rhs])
    }

    pub(super) fn plain(&mut self, op: OpCode, operands: &[Ref]) -> Result<Ref, OpError> {
        self.op(op, Attrs::none(), operands)
    }

    pub(super) fn reshaped(&mut self, value: Ref, shape: &Shape) -> Result<Ref, OpError> {
        self.op(OpCode::Reshape, attrs::reshape(shape.clone()), &[value])
    }

    fn repeated(&mut self, value: Ref, shape: &Shape, axes: &[i64]) -> Result<Ref, OpError> {
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), axes), &[value])
    }

    /// Element `at` of a row.
    fn element(&mut self, row: Ref, at: Ref) -> Result<Ref, OpError> {
        let one = self.op(OpCode::DynamicSlice, attrs::dynamic_slice(&[1]), &[row, at])?;
        self.reshaped(one, &Shape::scalar())
    }

    /// The row with element `at` replaced.
    fn with_element(&mut self, row: Ref, at: Ref, element: Ref) -> Result<Ref, OpError> {
        let one = self.reshaped(element, &Shape::new(&[1]).unwrap_or_default())?;
        self.plain(OpCode::DynamicUpdateSlice, &[row, one, at])
    }

    /// For each position of a tensor, the sum of index times step over some dimensions.
    fn ramps(
        &mut self,
        shape: &Shape,
        steps: impl IntoIterator<Item = (usize, i64)>,
    ) -> Result<Ref, OpError> {
        let mut sum = self.splat(0i64, DType::I64, shape)?;
        for (axis, step) in steps {
            let index = self.op(OpCode::Iota, attrs::iota(DType::I64, shape.clone(), axis as i64), &[])?;
            let step = self.splat(step, DType::I64, shape)?;
            let ramp = self.plain(OpCode::Multiply, &[index, step])?;
            sum = self.plain(OpCode::Add, &[sum, ramp])?;
        }
        Ok(sum)
    }

    /// A loop over carried values.
    fn repeat_while(
        &mut self,
        carried: &[Ref],
        cond: impl FnOnce(&mut Builder, &[Ref]) -> Result<Ref, OpError>,
        step: impl FnOnce(&mut Builder, &[Ref]) -> Result<Vec<Ref>, OpError>,
    ) -> Result<Vec<Ref>, OpError> {
        let types: Vec<TensorType> = carried.iter().map(|&value| self.ty(value)).collect();
        let start = || -> (Builder, Vec<Ref>) {
            let mut graph = Graph::new();
            let params = types.iter().map(|ty| graph.param(ty.clone())).collect();
            (Builder(graph), params)
        };
        let (mut asks, params) = start();
        let go = cond(&mut asks, &params)?;
        let (mut does, params) = start();
        let next = step(&mut does, &params)?;
        let bodies = [Arc::new(asks.body(&[go])), Arc::new(does.body(&next))];
        Ok(self.0.push_lowered(OpCode::While, Attrs::none(), &bodies, carried)?.to_vec())
    }

    /// Runs a step `count` times on a state; a step gets its number, the state and the captured
    /// values.
    pub(super) fn repeat(
        &mut self,
        count: u64,
        state: &[Ref],
        captured: &[Ref],
        step: impl FnOnce(&mut Builder, Ref, &[Ref], &[Ref]) -> Result<Vec<Ref>, OpError>,
    ) -> Result<Vec<Ref>, OpError> {
        let first = self.number(0)?;
        let carried = [&[first], state, captured].concat();
        let cond = |graph: &mut Builder, params: &[Ref]| {
            let count = graph.number(count as i64)?;
            graph.compare(Comparison::Lt, params[0], count)
        };
        let body = |graph: &mut Builder, params: &[Ref]| {
            let (now, kept) = params[1..].split_at(state.len());
            let changed = step(graph, params[0], now, kept)?;
            let one = graph.number(1)?;
            let next = graph.plain(OpCode::Add, &[params[0], one])?;
            Ok([&[next], changed.as_slice(), kept].concat())
        };
        let last = self.repeat_while(&carried, cond, body)?;
        Ok(last[1..=state.len()].to_vec())
    }

    /// The value flattened to a row.
    fn flat(&mut self, value: Ref) -> Result<Ref, OpError> {
        let row = Shape::new(&[self.ty(value).elems().0])
            .expect("bug: the flattened shape of a valid value is rejected");
        self.reshaped(value, &row)
    }

    fn all_flat(&mut self, values: &[Ref]) -> Result<Vec<Ref>, OpError> {
        values.iter().map(|&value| self.flat(value)).collect()
    }

    /// Combines rows of values one after the other into the elements of rows of results.
    fn combined(&mut self, plan: &Plan<'_>) -> Result<Vec<Ref>, OpError> {
        let &Plan { body, ref results, ref values, targets, sources, has_gaps } = plan;
        let count = self.ty(targets).elems().0;
        if count == 0 || self.ty(results[0]).elems().0 == 0 {
            return Ok(results.clone());
        }
        let captured = [&[targets, sources.unwrap_or(targets)], values.as_slice()].concat();
        self.repeat(count, results, &captured, |graph, number, state, captured| {
            let target = graph.element(captured[0], number)?;
            let source = if sources.is_some() { graph.element(captured[1], number)? } else { number };
            let mut operands = Vec::new();
            for &row in state {
                operands.push(graph.element(row, target)?);
            }
            for &row in &captured[2..] {
                operands.push(graph.element(row, source)?);
            }
            let changed = if has_gaps {
                let zero = graph.number(0)?;
                let inside = graph.compare(Comparison::Ge, target, zero)?;
                let mut kept = Graph::new();
                let params: Vec<Ref> = operands.iter().map(|&value| kept.param(graph.ty(value))).collect();
                let kept = Builder(kept).body(&params[..state.len()]);
                let bodies = [body.clone(), Arc::new(kept)];
                graph.0.push_lowered(
                    OpCode::If,
                    Attrs::none(),
                    &bodies,
                    &[&[inside], operands.as_slice()].concat(),
                )?
            } else {
                graph.inline(body, &operands).into()
            };
            let each = state.iter().zip(changed);
            each.map(|(&row, element)| graph.with_element(row, target, element)).collect()
        })
    }
}

/// Which elements are combined, in which order.
struct Plan<'a> {
    body: &'a Arc<Body>,
    /// Rows with the results so far.
    results: Vec<Ref>,
    /// Rows with the values to combine into them.
    values: Vec<Ref>,
    /// For each step, the position in the results.
    targets: Ref,
    /// For each step, the position in the values; `None` if it is the number of the step.
    sources: Option<Ref>,
    /// Whether some steps have a negative target and are skipped.
    has_gaps: bool,
}
