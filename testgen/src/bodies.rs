//! Bodies of `reduce` and similar ops, with initial values.

use std::sync::Arc;

use fuseline_fusion::op::{Comparison, attrs, extreme, neutral};
use fuseline_fusion::{Attrs, Body, DType, DTypeClass, Graph, OpCode, Ref, Shape, TensorType};

use super::control::either;
use super::grow::Ops;
use super::{Domain, SampleOperand, Sampler};

/// A body that combines two elements per operand into one, and an initial value for each.
pub(super) struct Combiner {
    pub(super) body: Arc<Body>,
    /// One per operand, with the operands' types.
    pub(super) inits: Vec<SampleOperand>,
}

/// Ops whose result does not depend on the order of elements, except for rounding.
pub(super) fn associative(dtype: DType) -> &'static [OpCode] {
    use OpCode::{Add, And, Maximum, Minimum, Multiply, Or, Xor};
    match dtype.class() {
        DTypeClass::Float => &[Add, Maximum, Minimum, Multiply],
        DTypeClass::Complex => &[Add, Multiply],
        _ => &[Add, Maximum, Minimum, Multiply, And, Or, Xor],
    }
}

impl Sampler<'_> {
    /// A body over operands of the given element types.
    pub(super) fn combiner(&mut self, dtypes: &[DType]) -> Option<Combiner> {
        let kinds = if self.portable() { 8 } else { 12 };
        match (self.below(kinds), dtypes) {
            (6 | 7, &[value, index]) if index.is_int() => arg_max(value, index),
            (6, &[dtype]) => self.graph_body(dtype),
            (7, &[dtype]) => greater_by_branch(dtype),
            (8 | 9, _) => self.lopsided(dtypes),
            (10.., _) => self.arbitrary(dtypes),
            _ => self.independent(dtypes),
        }
    }

    /// The types in which elements are combined: their own or wider ones.
    fn combined_types(&mut self, dtypes: &[DType]) -> Vec<DType> {
        dtypes.iter().map(|&dtype| self.widened(dtype)).collect()
    }

    /// One associative op per operand.
    fn independent(&mut self, dtypes: &[DType]) -> Option<Combiner> {
        let mut graph = Graph::new();
        let types = self.combined_types(dtypes);
        let params = pairs(&mut graph, &types);
        let (mut returns, mut inits) = (Vec::new(), Vec::new());
        for (&(lhs, rhs), (&from, &to)) in params.iter().zip(dtypes.iter().zip(&types)) {
            let op = self.one_of(associative(to))?;
            returns.extend(graph.push(op, Attrs::none(), &[], &[lhs, rhs]).ok()?);
            inits.push(if self.portable() || !self.rarely(3) {
                SampleOperand::Given(Arc::new(neutral(op, from)))
            } else {
                SampleOperand::Fresh(TensorType::scalar(from), Domain::Any)
            });
        }
        Some(Combiner { body: Arc::new(Body::new(graph, &returns)?), inits })
    }

    /// A body with ops that depend on the order and the side of operands, constants, and unused and
    /// repeated values.
    fn lopsided(&mut self, dtypes: &[DType]) -> Option<Combiner> {
        let mut graph = Graph::new();
        let types = self.combined_types(dtypes);
        let params = pairs(&mut graph, &types);
        let mut returns = Vec::new();
        for (&(lhs, rhs), &dtype) in params.iter().zip(&types) {
            let mut push = |op, attrs, operands: &[Ref]| {
                graph.push(op, attrs, &[], operands).ok().map(|results| results[0])
            };
            returns.push(match self.below(4) {
                0 => rhs,
                1 => lhs,
                2 if dtype != DType::Bool => push(OpCode::Subtract, Attrs::none(), &[rhs, lhs])?,
                _ => {
                    let one = neutral(OpCode::Multiply, dtype);
                    let one = push(OpCode::Constant, attrs::constant(Arc::new(one)), &[])?;
                    let sum = push(OpCode::Add, Attrs::none(), &[lhs, one])?;
                    let above = attrs::compare_for(Comparison::Gt, dtype);
                    let above = push(OpCode::Compare, above, &[sum, rhs])?;
                    push(OpCode::Select, Attrs::none(), &[above, rhs, sum])?
                }
            });
        }
        let inits = dtypes.iter().map(|&dtype| SampleOperand::Fresh(TensorType::scalar(dtype), Domain::Any));
        Some(Combiner { body: Arc::new(Body::new(graph, &returns)?), inits: inits.collect() })
    }

    /// A body of arbitrary ops.
    fn arbitrary(&mut self, dtypes: &[DType]) -> Option<Combiner> {
        let types = self.combined_types(dtypes);
        let returns: Vec<TensorType> = types.iter().map(|&dtype| TensorType::scalar(dtype)).collect();
        let graph = self.grown(&[returns.as_slice(), &returns].concat(), Ops::Any);
        let body = self.returning(graph, &returns)?;
        let inits = dtypes.iter().map(|&dtype| SampleOperand::Fresh(TensorType::scalar(dtype), Domain::Any));
        Some(Combiner { body, inits: inits.collect() })
    }

    /// A body with tensors and a nested body: it adds two elements with a `reduce` of both.
    fn graph_body(&mut self, dtype: DType) -> Option<Combiner> {
        let mut graph = Graph::new();
        let (lhs, rhs) = pairs(&mut graph, &[dtype])[0];
        let row = || attrs::reshape(Shape::new(&[1]).unwrap_or_default());
        let lhs = graph.push(OpCode::Reshape, row(), &[], &[lhs]).ok()?[0];
        let rhs = graph.push(OpCode::Reshape, row(), &[], &[rhs]).ok()?[0];
        let both = graph.push(OpCode::Concatenate, attrs::concatenate(0), &[], &[lhs, rhs]).ok()?[0];
        let zero = attrs::constant(Arc::new(neutral(OpCode::Add, dtype)));
        let zero = graph.push(OpCode::Constant, zero, &[], &[]).ok()?[0];
        let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(dtype)).ok()?);
        let sum = graph.push(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[both, zero]).ok()?;
        let inits = vec![SampleOperand::Given(Arc::new(neutral(OpCode::Add, dtype)))];
        Some(Combiner { body: Arc::new(Body::new(graph, &sum)?), inits })
    }

    /// The comparison of a `select_and_scatter`.
    pub(super) fn selector(&mut self, dtype: DType) -> Option<Arc<Body>> {
        let direction = self.one_of(&[Comparison::Ge, Comparison::Le, Comparison::Gt, Comparison::Lt])?;
        let mut graph = Graph::new();
        let (mut lhs, mut rhs) = pairs(&mut graph, &[dtype])[0];
        if dtype.is_complex() {
            // Complex numbers have no order, so their real parts are compared.
            for side in [&mut lhs, &mut rhs] {
                *side = graph.push(OpCode::Real, Attrs::none(), &[], &[*side]).ok()?[0];
            }
        }
        let dtype = dtype.part();
        let picked = graph.push(OpCode::Compare, attrs::compare_for(direction, dtype), &[], &[lhs, rhs]);
        Body::new(graph, &picked.ok()?).map(Arc::new)
    }

    /// The body of a scatter that writes: the update replaces the element.
    pub(super) fn overwrite(&mut self, dtypes: &[DType]) -> Option<Arc<Body>> {
        let mut graph = Graph::new();
        let returns: Vec<Ref> = pairs(&mut graph, dtypes).iter().map(|&(_, update)| update).collect();
        Body::new(graph, &returns).map(Arc::new)
    }
}

/// Pairs of parameters for left and right elements of the given types.
fn pairs(graph: &mut Graph, dtypes: &[DType]) -> Vec<(Ref, Ref)> {
    let mut side =
        || -> Vec<Ref> { dtypes.iter().map(|&dtype| graph.param(TensorType::scalar(dtype))).collect() };
    let left = side();
    left.into_iter().zip(side()).collect()
}

/// The greater value, selected by a branch.
fn greater_by_branch(dtype: DType) -> Option<Combiner> {
    let mut graph = Graph::new();
    let (lhs, rhs) = pairs(&mut graph, &[dtype])[0];
    let above = attrs::compare_for(Comparison::Gt, dtype);
    let above = graph.push(OpCode::Compare, above, &[], &[lhs, rhs]).ok()?[0];
    let bodies = [either(dtype, 0)?, either(dtype, 1)?];
    let greater = graph.push(OpCode::If, Attrs::none(), &bodies, &[above, lhs, rhs]).ok()?;
    let inits = vec![SampleOperand::Given(Arc::new(extreme(dtype, false)))];
    Some(Combiner { body: Arc::new(Body::new(graph, &greater)?), inits })
}

/// The greater value with its index; ties go to the lower index.
fn arg_max(value: DType, index: DType) -> Option<Combiner> {
    let mut graph = Graph::new();
    let params = pairs(&mut graph, &[value, index]);
    let ((a, b), (i, j)) = (params[0], params[1]);
    let mut push =
        |op, attrs, operands: &[Ref]| graph.push(op, attrs, &[], operands).ok().map(|results| results[0]);
    let above = push(OpCode::Compare, attrs::compare_for(Comparison::Gt, value), &[a, b])?;
    let equal = push(OpCode::Compare, attrs::compare_for(Comparison::Eq, value), &[a, b])?;
    let before = push(OpCode::Compare, attrs::compare_for(Comparison::Lt, index), &[i, j])?;
    let tie = push(OpCode::And, Attrs::none(), &[equal, before])?;
    let first = push(OpCode::Or, Attrs::none(), &[above, tie])?;
    let best = push(OpCode::Select, Attrs::none(), &[first, a, b])?;
    let place = push(OpCode::Select, Attrs::none(), &[first, i, j])?;
    let inits = [extreme(value, false), extreme(index, true)];
    let inits = inits.into_iter().map(|init| SampleOperand::Given(Arc::new(init))).collect();
    Some(Combiner { body: Arc::new(Body::new(graph, &[best, place])?), inits })
}
