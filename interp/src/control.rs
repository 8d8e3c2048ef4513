//! Ops that run their bodies: loops, branches, sorting, and `map`.

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Elements, Store, to_int};
use fuseline_fusion::op::Effect;
use fuseline_fusion::{Body, Literal, OpCode, Signature};

use super::function::Function;
use super::index::{Walk, strides};
use super::{EvalCall, EvalError, JointCall, MAX_STEPS, check_steps, run_body, run_body_replicated};

/// The steps that an op of a loop's body counts for. Running it takes about as long as visiting
/// this many window elements.
const STEPS_PER_OP: u64 = 64;

/// The steps that one iteration of a loop counts for.
fn steps_of(bodies: &[Arc<Body>]) -> u64 {
    STEPS_PER_OP * (1 + bodies.iter().map(|body| body.graph().nodes().len() as u64).sum::<u64>())
}

fn owned(values: Vec<Arc<Literal>>) -> Vec<Literal> {
    values.into_iter().map(Arc::unwrap_or_clone).collect()
}

/// `while`.
///
/// # Errors
/// If a body fails, or the loop does not end within [`MAX_STEPS`].
pub(super) fn while_loop(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    bounded_loop(call, MAX_STEPS)
}

fn bounded_loop(call: &EvalCall<'_>, most: u64) -> Result<Vec<Literal>, EvalError> {
    let arithmetic = call.arithmetic.in_order();
    let (cond, body) = (call.body(0), call.body(1));
    let mut carried = call.operands.to_vec();
    let mut steps = 0;
    while Elements::of(&run_body(arithmetic, cond, &carried)?[0]).get(0) != 0 {
        steps += steps_of(call.signature.bodies());
        if steps > most {
            return Err(EvalError::TooLong { op: call.signature.def().name, steps: steps.into() });
        }
        carried = run_body(arithmetic, body, &carried)?;
    }
    Ok(owned(carried))
}

/// The branch that an operand selects. For `if` it is a `bool`. For `case`, an index out of range,
/// including a negative one, selects the last branch.
fn branch(signature: &Signature, selector: &Literal) -> usize {
    let index = to_int(selector.dtype(), Elements::of(selector).get(0));
    let last = signature.bodies().len() - 1;
    match signature.op() {
        OpCode::If => usize::from(index == 0),
        _ => usize::try_from(index).unwrap_or(last).min(last),
    }
}

/// `if` and `case`.
///
/// # Errors
/// If the branch fails.
pub(super) fn branches(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let branch = branch(call.signature, call.operand(0));
    Ok(owned(run_body(call.arithmetic.in_order(), call.body(branch), &call.operands[1..])?))
}

/// Checks that replicas which exchange data in a body take the same path.
fn agree<T: PartialEq>(call: &JointCall<'_>, choices: &[T]) -> Result<(), EvalError> {
    let is_common = || call.signature.effect() == Effect::Ordered || call.signature.exchanges();
    if choices.iter().any(|choice| *choice != choices[0]) && is_common() {
        return Err(EvalError::Diverged { op: call.signature.def().name });
    }
    Ok(())
}

/// `while` on several replicas. A replica whose condition is false keeps its values while the
/// others continue.
///
/// # Errors
/// As [`while_loop`], and if replicas that exchange data in a body take different numbers of steps.
pub(super) fn while_in_step(call: &JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError> {
    let (arithmetic, bodies) = (call.arithmetic.in_order(), call.signature.bodies());
    let mut carried = call.operands.to_vec();
    let mut steps = 0;
    loop {
        let more = run_body_replicated(arithmetic, &bodies[0], &carried)?;
        let more: Vec<bool> = more.iter().map(|more| Elements::of(&more[0]).get(0) != 0).collect();
        agree(call, &more)?;
        if !more.contains(&true) {
            return Ok(carried.into_iter().map(owned).collect());
        }
        steps += steps_of(bodies) * carried.len() as u64;
        if steps > MAX_STEPS {
            return Err(EvalError::TooLong { op: call.signature.def().name, steps: steps.into() });
        }
        let next = run_body_replicated(arithmetic, &bodies[1], &carried)?;
        let each = carried.iter_mut().zip(next).zip(more);
        each.filter(|(_, more)| *more).for_each(|((carried, next), _)| *carried = next);
    }
}

/// `if` and `case` on several replicas: all run each branch that one of them takes.
///
/// # Errors
/// If a branch fails, or replicas that exchange data in it take different branches.
pub(super) fn branches_in_step(call: &JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError> {
    let chosen: Vec<usize> =
        call.operands.iter().map(|operands| branch(call.signature, &operands[0])).collect();
    agree(call, &chosen)?;
    let captured: Vec<Vec<Arc<Literal>>> =
        call.operands.iter().map(|operands| operands[1..].to_vec()).collect();
    let mut results = vec![Vec::new(); chosen.len()];
    for (branch, body) in
        call.signature.bodies().iter().enumerate().filter(|(branch, _)| chosen.contains(branch))
    {
        let returned = run_body_replicated(call.arithmetic.in_order(), body, &captured)?;
        let each = results.iter_mut().zip(returned).zip(&chosen);
        each.filter(|(_, chosen)| **chosen == branch)
            .for_each(|((result, returned), _)| *result = owned(returned));
    }
    Ok(results)
}

/// `sort`, always stable. The specification leaves the result of an inconsistent comparator open;
/// here every comparator gives some permutation of the elements.
///
/// # Errors
/// If the comparator fails, or there are too many elements to compare.
pub(super) fn sort(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let ty = call.result();
    let axis = call.attr().int(0) as usize;
    let (dims, strides) = (ty.dims(), strides(ty.dims()));
    let (size, step) = (dims[axis] as usize, strides[axis] as usize);
    check_steps(call, &[dims, &[u64::from(dims[axis].max(2).ilog2())]])?;
    let mut comparator = Function::new(call.body(0), call.arithmetic);
    let inputs: Vec<Elements<'_>> = call.operands.iter().map(|operand| Elements::of(operand)).collect();
    let mut results: Vec<Store> = call.operands.iter().map(|operand| Store::of(operand)).collect();
    // The first elements of the slices: all positions with index 0 along the axis.
    let firsts = dims.iter().enumerate().map(|(at, &dim)| if at == axis { dim.min(1) } else { dim });
    let mut order = Order::default();
    for first in Walk::new(0, firsts, strides.iter().copied()) {
        let mut before = |left: usize, right: usize| {
            let pair = |input: &Elements<'_>| [left, right].map(|at| input.get(first + at * step));
            comparator.call(inputs.iter().flat_map(pair)).map(|found| found[0] != 0)
        };
        for (place, &from) in order.sorted(size, &mut before)?.iter().enumerate() {
            for (input, result) in inputs.iter().zip(&mut results) {
                result.set(first + place * step, input.get(first + from * step));
            }
        }
    }
    Ok(results.into_iter().map(Store::finish).collect())
}

/// The positions of a slice during sorting; reused for all slices.
#[derive(Default)]
struct Order {
    places: Vec<usize>,
    merged: Vec<usize>,
}

impl Order {
    /// The numbers below `size`, sorted by `before` with a bottom-up merge sort. An element of the
    /// right run goes first only if it is before the left one, so the sort is stable.
    fn sorted(
        &mut self,
        size: usize,
        before: &mut impl FnMut(usize, usize) -> Result<bool, EvalError>,
    ) -> Result<&[usize], EvalError> {
        self.places.clear();
        self.places.extend(0..size);
        let mut width = 1;
        while width < size {
            self.merged.clear();
            for run in self.places.chunks(2 * width) {
                let (mut left, mut right) = run.split_at(width.min(run.len()));
                while let ([a, left_rest @ ..], [b, right_rest @ ..]) = (left, right) {
                    if before(*b, *a)? {
                        self.merged.push(*b);
                        right = right_rest;
                    } else {
                        self.merged.push(*a);
                        left = left_rest;
                    }
                }
                self.merged.extend_from_slice(left);
                self.merged.extend_from_slice(right);
            }
            std::mem::swap(&mut self.places, &mut self.merged);
            width *= 2;
        }
        Ok(&self.places)
    }
}

/// `map`.
///
/// # Errors
/// If the body fails.
pub(super) fn map(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let mut function = Function::new(call.body(0), call.arithmetic);
    let inputs: Vec<Elements<'_>> = call.operands.iter().map(|operand| Elements::of(operand)).collect();
    let ty = call.result().clone();
    let results: Result<Vec<Bits>, EvalError> = (0..ty.elems().get())
        .map(|index| Ok(function.call(inputs.iter().map(|input| input.get(index)))?[0]))
        .collect();
    Ok(vec![Store::collect(ty, results?.into_iter()).finish()])
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::op::{Comparison, ComparisonType, attrs};
    use fuseline_fusion::{Attrs, Body, DType, Element, Graph, OpCode, Ref, Signature, TensorType};

    use super::*;
    use crate::Arithmetic;

    fn data<T: Element>(dims: &[u64], values: &[T]) -> Arc<Literal> {
        Arc::new(Literal::from_slice(dims, values).expect("as many values as places"))
    }

    fn body(params: &[TensorType], make: impl FnOnce(&mut Graph, &[Ref]) -> Vec<Ref>) -> Arc<Body> {
        let mut graph = Graph::new();
        let params: Vec<Ref> = params.iter().map(|ty| graph.param(ty.clone())).collect();
        let returns = make(&mut graph, &params);
        Arc::new(Body::new(graph, &returns).expect("the returns exist"))
    }

    fn push(graph: &mut Graph, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Ref {
        graph.push(op, attrs, &[], operands).expect("fits")[0]
    }

    fn constant(graph: &mut Graph, value: Literal) -> Ref {
        push(graph, OpCode::Constant, attrs::constant(Arc::new(value)), &[])
    }

    fn signature(op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[Arc<Literal>]) -> Signature {
        let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
        Signature::infer(op, attrs, bodies, &types).expect("fits")
    }

    fn run(op: OpCode, attrs: Attrs, bodies: &[Arc<Body>], operands: &[Arc<Literal>]) -> Vec<Literal> {
        crate::call(&signature(op, attrs, bodies, operands), operands).expect("runs")
    }

    /// A loop whose condition is always or never true.
    fn constant_loop(holds: bool) -> (Signature, [Arc<Literal>; 1]) {
        let operands = [data(&[2], &[1i8, 2])];
        let types = [operands[0].ty().clone()];
        let cond = body(&types, |graph, _| vec![constant(graph, Literal::scalar(holds))]);
        let step = body(&types, |graph, params| {
            vec![push(graph, OpCode::Add, Attrs::none(), &[params[0], params[0]])]
        });
        (signature(OpCode::While, Attrs::none(), &[cond, step], &operands), operands)
    }

    #[test]
    fn a_loop_ends_by_its_condition_or_at_the_limit() {
        let (never, operands) = constant_loop(false);
        let call = EvalCall { arithmetic: Arithmetic::REFERENCE, signature: &never, operands: &operands };
        assert_eq!(while_loop(&call).expect("runs")[0], *operands[0]);
        let (always, operands) = constant_loop(true);
        let call = EvalCall { arithmetic: Arithmetic::REFERENCE, signature: &always, operands: &operands };
        // One op in the condition, one in the body, and the step itself.
        let error = bounded_loop(&call, 10 * 3 * STEPS_PER_OP).expect_err("it has no end");
        assert_eq!(error, EvalError::TooLong { op: "while", steps: (11 * 3 * STEPS_PER_OP).into() });
    }

    #[test]
    fn an_index_without_a_branch_takes_the_last() {
        let branch = |value: u8| body(&[], move |graph, _| vec![constant(graph, Literal::scalar(value))]);
        for branches in 1..4_u8 {
            let bodies: Vec<Arc<Body>> = (0..branches).map(branch).collect();
            for (index, wanted) in
                [(0, 0), (1, 1), (2, 2), (3, 3), (-1, 9), (i32::MIN, 9), (i32::MAX, 9), (256, 9)]
            {
                let found = run(OpCode::Case, Attrs::none(), &bodies, &[data(&[], &[index])]);
                assert_eq!(found, [Literal::scalar(wanted.min(branches - 1))], "{index} of {branches}");
            }
        }
        for (pred, wanted) in [(true, 4u8), (false, 5)] {
            let bodies = [branch(4), branch(5)];
            let found = run(OpCode::If, Attrs::none(), &bodies, &[data(&[], &[pred])]);
            assert_eq!(found, [Literal::scalar(wanted)]);
        }
    }

    /// A comparator of the first of several operands.
    fn by_first(dtypes: &[DType], direction: Comparison, order: ComparisonType) -> Arc<Body> {
        let pair = |&dtype: &DType| [TensorType::scalar(dtype), TensorType::scalar(dtype)];
        let params: Vec<TensorType> = dtypes.iter().flat_map(pair).collect();
        body(&params, |graph, params| {
            vec![push(graph, OpCode::Compare, attrs::compare(direction, order), &params[..2])]
        })
    }

    #[test]
    fn sorting_goes_along_one_dimension_and_takes_the_other_operands_along() {
        let keys = data(&[2, 3, 2], &[3i32, 1, 1, 2, 2, 0, 5, 5, 5, 4, 4, 6]);
        let places: Vec<u16> = (0..12).collect();
        let operands = [keys, data(&[2, 3, 2], &places)];
        let dtypes = [DType::I32, DType::U16];
        let comparator = [by_first(&dtypes, Comparison::Lt, ComparisonType::Signed)];
        for (axis, keys, places) in [
            (0, [3, 1, 1, 2, 2, 0, 5, 5, 5, 4, 4, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            (1, [1, 0, 2, 1, 3, 2, 4, 4, 5, 5, 5, 6], [2, 5, 4, 1, 0, 3, 10, 9, 6, 7, 8, 11]),
            (2, [1, 3, 1, 2, 0, 2, 5, 5, 4, 5, 4, 6], [1, 0, 2, 3, 5, 4, 6, 7, 9, 8, 10, 11]),
        ] {
            let sorted = run(OpCode::Sort, attrs::sort(axis, true), &comparator, &operands);
            assert_eq!(sorted[0].to_vec::<i32>().expect("i32"), keys, "along {axis}");
            assert_eq!(sorted[1].to_vec::<u16>().expect("u16"), places, "along {axis}");
        }
        let empty = [data::<i32>(&[0, 4], &[]), data::<u16>(&[0, 4], &[])];
        for axis in 0..2 {
            assert_eq!(run(OpCode::Sort, attrs::sort(axis, true), &comparator, &empty)[1], *empty[1]);
        }
    }

    /// With any inconsistent comparator the elements stay the same; with a consistent one the sort
    /// is stable.
    #[test]
    fn a_sort_is_stable_and_a_permutation_by_any_comparator() {
        let values: Vec<f32> = (0..50u16)
            .map(|i| match i % 5 {
                0 => f32::NAN,
                1 => -0.0,
                2 => 0.0,
                _ => f32::from(i * 37 % 11) - 5.0,
            })
            .collect();
        let places: Vec<i64> = (0..50).collect();
        for count in [0, 1, 2, 3, 8, 31, 50] {
            let operands = [data(&[count as u64], &values[..count]), data(&[count as u64], &places[..count])];
            for order in [ComparisonType::Float, ComparisonType::TotalOrder] {
                for direction in Comparison::ALL {
                    let comparator = [by_first(&[DType::F32, DType::I64], direction, order)];
                    let sorted = run(OpCode::Sort, attrs::sort(0, false), &comparator, &operands);
                    let moved = sorted[1].to_vec::<i64>().expect("i64");
                    let mut back = moved.clone();
                    back.sort_unstable();
                    assert_eq!(back, places[..count], "{direction:?} {order:?}");
                    let key = |&place: &i64| values[place as usize];
                    if order == ComparisonType::TotalOrder && direction == Comparison::Lt {
                        let mut wanted = places[..count].to_vec();
                        wanted.sort_by(|a, b| key(a).total_cmp(&key(b)));
                        assert_eq!(moved, wanted);
                    }
                }
            }
        }
    }

    #[test]
    fn a_map_may_change_the_type_and_ignore_its_operands() {
        let operands = [data(&[2], &[1i8, -1]), data(&[2], &[0.5f32, 2.0])];
        let types = [TensorType::scalar(DType::I8), TensorType::scalar(DType::F32)];
        let convert = body(&types, |graph, params| {
            let wide = push(graph, OpCode::Convert, attrs::convert(DType::F32), &params[..1]);
            vec![push(
                graph,
                OpCode::Compare,
                attrs::compare_for(Comparison::Gt, DType::F32),
                &[wide, params[1]],
            )]
        });
        let found = run(OpCode::Map, attrs::dimensions(&[0]), &[convert], &operands);
        assert_eq!(found[0].to_vec::<bool>().expect("bool"), [true, false]);
        let seven = body(&types, |graph, _| vec![constant(graph, Literal::scalar(7u64))]);
        let found = run(OpCode::Map, attrs::dimensions(&[0]), &[seven], &operands);
        assert_eq!(found[0].to_vec::<u64>().expect("u64"), [7, 7]);
    }
}
