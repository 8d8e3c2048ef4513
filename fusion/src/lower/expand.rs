//! Ops that XLA gets wrong, written as other ops that mean the same.
//!
//! Input: the graph of a region. Output: a graph of the same meaning ([`crate::interp`] gives the same results) and where
//! each result went. Pure. What stands here was observed with XLA's CPU backend (jaxlib 0.10.2, 2026-11):
//!
//! - A body that combines elements in a wider type than the operands have is refused by `scatter` and ignored by
//!   `reduce`, which returns data of the operand's type. The operands are converted first, as the specification says.
//! - `reduce_window` with negative padding can abort the process, and `select_and_scatter` selects other elements. The
//!   operands are padded by an op of its own.
//! - Dividing one constant integer by another aborts the process when the divisor has a zero, or -1 under the least
//!   value, since the constants are folded by the machine's division. The divisor is mended first.
//! - A stride of `slice` near 2^63 overflows, which gives an empty result or aborts the process.
//! - A `bool` is a byte in `bitcast_convert`, so that the result has another shape than declared.
//! - `rng_bit_generator` returns unsigned bits whatever type is declared.
//!
//! Where what comes back is not of the declared type, a buffer is read wrongly; that and an abort are why this is worth
//! its lines. Not here: what XLA refuses with an error, since a region that does not compile runs by other means.

use std::sync::Arc;

use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeClass};
use crate::graph::{Body, Graph, Node, Ref, Refs};
use crate::literal::Literal;
use crate::op::{Comparison, OpCode, Signature, attrs};
use crate::shape::{Shape, TensorType};

/// The graph with its ops replaced where they have to be, and what each of its results became.
pub(super) fn expand(graph: &Graph) -> (Graph, Vec<Ref>) {
    let mut out = Expanded { graph: Graph::new(), constant: Vec::new() };
    for ty in graph.params() {
        out.graph.param(ty.clone());
    }
    let mut made: Vec<Ref> = Vec::with_capacity(graph.result_count());
    for node in graph.nodes() {
        let operands: Refs = node
            .operands()
            .iter()
            .map(|&operand| match operand {
                Ref::Param(_) => operand,
                Ref::Result(index) => made[index as usize],
            })
            .collect();
        let results = out.replacement(node, &operands).unwrap_or_else(|| {
            let results = out.graph.push_signature(node.signature().clone(), operands.clone());
            out.mark();
            results
        });
        made.extend(results);
    }
    (out.graph, made)
}

struct Expanded {
    graph: Graph,
    /// For each result, whether it depends on no parameter, so that XLA may compute it while compiling.
    constant: Vec<bool>,
}

impl Expanded {
    /// Notes whether the newest results are constants.
    fn mark(&mut self) {
        let Some(node) = self.graph.nodes().last() else { return };
        let constant = node.operands().iter().all(|&operand| self.is_constant(operand));
        self.constant.resize(self.graph.result_count(), constant);
    }

    fn is_constant(&self, value: Ref) -> bool {
        match value {
            Ref::Param(_) => false,
            Ref::Result(index) => self.constant[index as usize],
        }
    }

    fn ty(&self, value: Ref) -> Option<TensorType> {
        self.graph.type_of(value).cloned()
    }

    /// Adds an op; `None` where a type would leave the limits, which leaves the op as it was.
    fn push(&mut self, op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[Ref]) -> Option<Refs> {
        let results = self.graph.push(op, attrs, bodies, operands).ok()?;
        self.mark();
        Some(results)
    }

    /// Adds an op with one result and no body.
    fn one(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Option<Ref> {
        Some(self.push(op, attrs, &[], operands)?[0])
    }

    fn convert(&mut self, value: Ref, dtype: DType) -> Option<Ref> {
        if self.ty(value)?.dtype() == dtype {
            return Some(value);
        }
        self.one(OpCode::Convert, attrs::convert(dtype), &[value])
    }

    /// An integer in every element.
    fn splat(&mut self, ty: &TensorType, value: i8) -> Option<Ref> {
        let scalar = self.one(OpCode::Constant, attrs::constant(Arc::new(Literal::scalar(value))), &[])?;
        let scalar = self.convert(scalar, ty.dtype())?;
        self.one(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[scalar])
    }

    /// What stands for a node; `None` for the node itself.
    fn replacement(&mut self, node: &Node, operands: &[Ref]) -> Option<Refs> {
        let signature = node.signature();
        let bodies: Vec<Arc<Body>> = signature.bodies().iter().map(expand_body).collect();
        match signature.op() {
            OpCode::Reduce | OpCode::ReduceWindow | OpCode::Scatter | OpCode::SelectAndScatter => {
                let unchanged = bodies == signature.bodies();
                let (operands, bodies, converted) = self.converted(signature, operands, bodies)?;
                let view = signature.attrs().view();
                match signature.op() {
                    OpCode::ReduceWindow if is_negative(view.pairs(4)) => {
                        self.padded_window(signature, &operands, &bodies)
                    }
                    OpCode::SelectAndScatter if is_negative(view.pairs(2)) => {
                        self.trimmed_selection(signature, &operands, &bodies)
                    }
                    _ if unchanged && !converted => None,
                    op => self.push(op, signature.attrs().clone(), &bodies, &operands),
                }
            }
            OpCode::BitcastConvert => {
                let (from, to) = (signature.operands()[0].dtype(), signature.results()[0].dtype());
                match (from, to) {
                    (DType::Bool, DType::Bool) => None,
                    (DType::Bool, _) => self.joined_bits(signature, operands[0]),
                    (_, DType::Bool) => self.split_bits(signature, operands[0]),
                    _ => None,
                }
            }
            OpCode::RngBitGenerator => {
                let declared = &signature.results()[1];
                let drawn = unsigned(declared.dtype());
                if declared.dtype().class() == DTypeClass::Unsigned {
                    return None;
                }
                let mut values = signature.attrs().values().to_vec();
                values[1] = AttrValue::DType(drawn);
                let mut results = self.push(signature.op(), values.into_iter().collect(), &[], operands)?;
                results[1] =
                    self.one(OpCode::BitcastConvert, attrs::convert(declared.dtype()), &[results[1]])?;
                Some(results)
            }
            OpCode::Slice => {
                let view = signature.attrs().view();
                // A step past the end is a step past the end, however long.
                let most = signature.operands()[0].dims().iter();
                let most = most.map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX).max(1));
                let strides: Vec<i64> =
                    view.ints(2).iter().zip(most).map(|(&step, most)| step.min(most)).collect();
                if strides == view.ints(2) {
                    return None;
                }
                let attrs = attrs::slice(view.ints(0), view.ints(1), &strides);
                self.push(OpCode::Slice, attrs, &[], operands)
            }
            OpCode::Divide | OpCode::Remainder => {
                let folds = operands.iter().all(|&operand| self.is_constant(operand));
                let is_int = signature.operands()[0].dtype().is_int();
                if folds && is_int { self.mended_division(signature.op(), operands) } else { None }
            }
            _ => None,
        }
    }

    /// The operands of an op that combines elements, in the types that its last body combines; the bodies that only look
    /// at operands, to match; and whether anything changed.
    fn converted(
        &mut self,
        signature: &Signature,
        operands: &[Ref],
        mut bodies: Vec<Arc<Body>>,
    ) -> Option<(Refs, Vec<Arc<Body>>, bool)> {
        let combined: Vec<DType> = bodies.last()?.return_types().map(TensorType::dtype).collect();
        let count = combined.len();
        let mut converted = Refs::new();
        for (i, &operand) in operands.iter().enumerate() {
            converted.push(match signature.op() {
                OpCode::Scatter if i == count => operand,
                OpCode::Scatter if i > count => self.convert(operand, combined[(i - 1) % count])?,
                _ => self.convert(operand, combined[i % count])?,
            });
        }
        let changed = converted.as_slice() != operands;
        if changed && signature.op() == OpCode::SelectAndScatter {
            bodies[0] = Arc::new(narrowing(&bodies[0], combined[0])?);
        }
        Some((converted, bodies, changed))
    }

    /// A `reduce_window` over operands that are padded before.
    fn padded_window(
        &mut self,
        signature: &Signature,
        operands: &[Ref],
        bodies: &[Arc<Body>],
    ) -> Option<Refs> {
        let view = signature.attrs().view();
        let (low, high): (Vec<i64>, Vec<i64>) = view.pairs(4).iter().copied().unzip();
        let interior: Vec<i64> = view.ints(2).iter().map(|dilation| dilation - 1).collect();
        let (inputs, inits) = operands.split_at(operands.len() / 2);
        let mut padded = Refs::new();
        for (&input, &init) in inputs.iter().zip(inits) {
            padded.push(self.one(OpCode::Pad, attrs::pad(&low, &high, &interior), &[input, init])?);
        }
        padded.extend_from_slice(inits);
        let mut values = signature.attrs().values().to_vec();
        values[2] = AttrValue::from(vec![1; low.len()].as_slice());
        values[4] = AttrValue::from(vec![(0, 0); low.len()].as_slice());
        self.push(OpCode::ReduceWindow, values.into_iter().collect(), bodies, &padded)
    }

    /// A `select_and_scatter` over the part of the operand that negative padding leaves; the rest of the result has the
    /// initial value.
    fn trimmed_selection(
        &mut self,
        signature: &Signature,
        operands: &[Ref],
        bodies: &[Arc<Body>],
    ) -> Option<Refs> {
        let view = signature.attrs().view();
        let rank = signature.operands()[0].rank();
        let trim = |side: fn(&(i64, i64)) -> i64| -> Vec<i64> {
            view.pairs(2).iter().map(|pair| side(pair).min(0)).collect()
        };
        let (low, high, none) = (trim(|pair| pair.0), trim(|pair| pair.1), vec![0; rank]);
        let [operand, source, init] = *operands else { return None };
        let trimmed = self.one(OpCode::Pad, attrs::pad(&low, &high, &none), &[operand, init])?;
        let padding: Vec<(i64, i64)> =
            view.pairs(2).iter().map(|&(low, high)| (low.max(0), high.max(0))).collect();
        let attrs = attrs::select_and_scatter(view.ints(0), view.ints(1), &padding);
        let selected = self.push(OpCode::SelectAndScatter, attrs, bodies, &[trimmed, source, init])?;
        let back = |amounts: &[i64]| -> Vec<i64> { amounts.iter().map(|amount| -amount).collect() };
        let attrs = attrs::pad(&back(&low), &back(&high), &none);
        self.push(OpCode::Pad, attrs, &[], &[selected[0], init])
    }

    /// An integer division of constants that the machine's division can fold: 1 stands for a divisor of 0 or -1, and what
    /// the quotient is then is selected afterwards.
    fn mended_division(&mut self, op: OpCode, operands: &[Ref]) -> Option<Refs> {
        let [lhs, rhs] = *operands else { return None };
        let ty = self.ty(rhs)?;
        let (zero, one, ones) = (self.splat(&ty, 0)?, self.splat(&ty, 1)?, self.splat(&ty, -1)?);
        let equal = attrs::compare_for(Comparison::Eq, ty.dtype());
        let by_zero = self.one(OpCode::Compare, equal.clone(), &[rhs, zero])?;
        let by_ones = self.one(OpCode::Compare, equal, &[rhs, ones])?;
        let signed = ty.dtype().class() == DTypeClass::Signed;
        let odd = if signed { self.one(OpCode::Or, Attrs::none(), &[by_zero, by_ones])? } else { by_zero };
        let divisor = self.one(OpCode::Select, Attrs::none(), &[odd, one, rhs])?;
        let mut result = self.one(op, Attrs::none(), &[lhs, divisor])?;
        if op == OpCode::Divide && signed {
            let negated = self.one(OpCode::Negate, Attrs::none(), &[lhs])?;
            result = self.one(OpCode::Select, Attrs::none(), &[by_ones, negated, result])?;
        }
        let of_zero = if op == OpCode::Divide { ones } else { lhs };
        self.push(OpCode::Select, Attrs::none(), &[], &[by_zero, of_zero, result])
    }

    /// Numbers along the last dimension: the place of each bit.
    fn places(&mut self, bits: &TensorType, word: DType) -> Option<Ref> {
        let last = bits.rank().checked_sub(1)? as i64;
        self.one(OpCode::Iota, attrs::iota(word, bits.shape().clone(), last), &[])
    }

    /// `bitcast_convert` of `bool[.., n]` to elements of `n` bits: each bit moved to its place, then all of them joined.
    fn joined_bits(&mut self, signature: &Signature, operand: Ref) -> Option<Refs> {
        let (bits, to) = (&signature.operands()[0], signature.results()[0].dtype());
        let word = unsigned(to);
        let places = self.places(bits, word)?;
        let wide = self.convert(operand, word)?;
        let moved = self.one(OpCode::ShiftLeft, Attrs::none(), &[wide, places])?;
        let zero = self.splat(&TensorType::scalar(word), 0)?;
        let or = Arc::new(Body::binary(OpCode::Or, TensorType::scalar(word)).ok()?);
        let last = bits.rank() as i64 - 1;
        let joined = self.push(OpCode::Reduce, attrs::dimensions(&[last]), &[or], &[moved, zero])?;
        self.push(OpCode::BitcastConvert, attrs::convert(to), &[], &joined)
    }

    /// `bitcast_convert` of elements of `n` bits to `bool[.., n]`: a copy of the element for each bit, which is moved to
    /// the lowest place and singled out.
    fn split_bits(&mut self, signature: &Signature, operand: Ref) -> Option<Refs> {
        let (from, bits) = (&signature.operands()[0], &signature.results()[0]);
        let word = unsigned(from.dtype());
        let wide = bits.with_dtype(word).ok()?;
        let places = self.places(bits, word)?;
        let whole = self.one(OpCode::BitcastConvert, attrs::convert(word), &[operand])?;
        let axes: Vec<i64> = (0..from.rank() as i64).collect();
        let shape: Shape = bits.shape().clone();
        let copies = self.one(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape, &axes), &[whole])?;
        let moved = self.one(OpCode::ShiftRightLogical, Attrs::none(), &[copies, places])?;
        let one = self.splat(&wide, 1)?;
        let single = self.one(OpCode::And, Attrs::none(), &[moved, one])?;
        self.push(OpCode::Convert, attrs::convert(DType::Bool), &[], &[single])
    }
}

fn is_negative(padding: &[(i64, i64)]) -> bool {
    padding.iter().any(|&(low, high)| low < 0 || high < 0)
}

/// The unsigned type of as many bits.
const fn unsigned(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}

fn expand_body(body: &Arc<Body>) -> Arc<Body> {
    let (graph, made) = expand(body.graph());
    if graph == *body.graph() {
        return body.clone();
    }
    let returns: Refs = body
        .returns()
        .iter()
        .map(|&value| match value {
            Ref::Param(_) => value,
            Ref::Result(index) => made[index as usize],
        })
        .collect();
    Body::new(graph, &returns).map_or_else(|| body.clone(), Arc::new)
}

/// The body for parameters of a wider type, which it starts by converting back: they come from its own type, so nothing
/// is lost.
fn narrowing(body: &Body, wide: DType) -> Option<Body> {
    let mut out = Expanded { graph: Graph::new(), constant: Vec::new() };
    let params: Vec<Ref> =
        body.graph().params().iter().map(|_| out.graph.param(TensorType::scalar(wide))).collect();
    let mut known: Vec<Ref> = Vec::new();
    for (&param, ty) in params.iter().zip(body.graph().params()) {
        known.push(out.convert(param, ty.dtype())?);
    }
    let mut made: Vec<Ref> = Vec::new();
    let resolve = |value: &Ref, made: &[Ref]| match *value {
        Ref::Param(index) => known[index as usize],
        Ref::Result(index) => made[index as usize],
    };
    for node in body.graph().nodes() {
        let operands: Refs = node.operands().iter().map(|value| resolve(value, &made)).collect();
        made.extend(out.graph.push_signature(node.signature().clone(), operands));
    }
    let returns: Vec<Ref> = body.returns().iter().map(|value| resolve(value, &made)).collect();
    Body::new(out.graph, &returns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp;
    use crate::op::{Aim, OpDef, ProgramOptions, ProgramSampler, Seeded};
    use std::collections::HashMap;

    /// Whether XLA gets the node wrong (see the module's list).
    fn is_trouble(node: &Node) -> bool {
        let signature = node.signature();
        let view = signature.attrs().view();
        let (from, to) = (signature.operands().first(), signature.results().last());
        let dtypes = (from.map(TensorType::dtype), to.map(TensorType::dtype));
        match signature.op() {
            OpCode::Reduce | OpCode::Scatter => {
                dtypes.0 != signature.results().first().map(TensorType::dtype)
            }
            OpCode::ReduceWindow => is_negative(view.pairs(4)),
            OpCode::SelectAndScatter => is_negative(view.pairs(2)) || dtypes.0 != dtypes.1,
            OpCode::Slice => view.ints(2).contains(&i64::MAX),
            OpCode::BitcastConvert => (dtypes.0 == Some(DType::Bool)) != (dtypes.1 == Some(DType::Bool)),
            OpCode::RngBitGenerator => dtypes.1.is_some_and(|bits| bits.class() != DTypeClass::Unsigned),
            _ => false,
        }
    }

    #[test]
    fn the_expanded_graph_computes_the_same_bits() {
        let accepts = |def: &OpDef| {
            matches!(
                def.code,
                OpCode::Reduce
                    | OpCode::ReduceWindow
                    | OpCode::Scatter
                    | OpCode::SelectAndScatter
                    | OpCode::Slice
                    | OpCode::BitcastConvert
                    | OpCode::RngBitGenerator
                    | OpCode::Divide
                    | OpCode::Remainder
                    | OpCode::Constant
                    | OpCode::Iota
            )
        };
        let mut seen: HashMap<OpCode, usize> = HashMap::new();
        for seed in 0..600 {
            let options = ProgramOptions { accepts, ..ProgramOptions::new(Aim::Everything) };
            let program = ProgramSampler::sample(options, &mut Seeded::new(seed), 10).program;
            let mut graph = Graph::new();
            let mut known: HashMap<_, Ref> = HashMap::new();
            for value in &program.values {
                known.insert(value.id, graph.param(value.data.ty().clone()));
            }
            for op in &program.ops {
                let operands = op.operands.iter().map(|id| known[id]).collect();
                let results = graph.push_signature(op.signature.clone(), operands);
                known.extend(op.results.iter().copied().zip(results));
            }
            let params: Vec<Arc<Literal>> = program.values.iter().map(|value| value.data.clone()).collect();
            let wanted = interp::run(&graph, &params).expect("runs");
            let (expanded, made) = expand(&graph);
            let results = interp::run(&expanded, &params).expect("runs");
            for (index, (wanted, place)) in wanted.iter().zip(made).enumerate() {
                let result = match place {
                    Ref::Param(param) => &params[param as usize],
                    Ref::Result(result) => &results[result as usize],
                };
                assert_eq!(result, wanted, "seed {seed}, result {index} of {graph:?}");
            }
            assert!(!expanded.nodes().iter().any(is_trouble), "seed {seed}: {expanded:?}");
            for node in graph.nodes().iter().filter(|node| is_trouble(node)) {
                *seen.entry(node.signature().op()).or_default() += 1;
            }
            let mended = expanded.nodes().len() > graph.nodes().len();
            let divides = |node: &&Node| node.signature().op() == OpCode::Divide;
            *seen.entry(OpCode::Divide).or_default() +=
                usize::from(mended && expanded.nodes().iter().any(|node| divides(&node)));
        }
        for (op, count) in &seen {
            assert!(*count >= 20, "{op} was in need of expansion {count} times only: {seen:?}");
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
    }

    /// The quotients that the machine does not have.
    #[test]
    fn constant_division_is_mended() {
        let mut graph = Graph::new();
        let mut constant = |data: &[i32]| {
            let data = Literal::from_slice(&[data.len() as u64], data).expect("fits");
            graph.push(OpCode::Constant, attrs::constant(Arc::new(data)), &[], &[]).expect("small")[0]
        };
        let lhs = constant(&[7, 7, 7, i32::MIN, i32::MIN]);
        let rhs = constant(&[2, 0, -1, -1, 0]);
        for (op, wanted) in
            [(OpCode::Divide, [3, -1, -7, i32::MIN, -1]), (OpCode::Remainder, [1, 7, 0, 0, i32::MIN])]
        {
            let mut graph = graph.clone();
            graph.push(op, Attrs::none(), &[], &[lhs, rhs]).expect("fits");
            let (expanded, made) = expand(&graph);
            let Some(&Ref::Result(place)) = made.last() else { panic!("a result") };
            let results = interp::run(&expanded, &[]).expect("runs");
            assert_eq!(results[place as usize].to_vec::<i32>().expect("i32"), wanted, "{op}");
            let divides = |node: &&Node| node.signature().op() == op;
            let node = expanded.nodes().iter().find(divides).expect("it still divides");
            let Ref::Result(divisor) = node.operands()[1] else { panic!("a result") };
            let divisor = results[divisor as usize].to_vec::<i32>().expect("i32");
            assert!(!divisor.contains(&0) && !divisor.contains(&-1), "{op} by {divisor:?}");
        }
    }
}
