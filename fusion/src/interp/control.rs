//! Ops that run their bodies as they are: loops, branches, sorting, and a function on each element.

use std::sync::Arc;

use super::function::Function;
use super::index::{Walk, strides};
use super::number::{Bits, Elements, Store, to_int};
use super::{EvalCall, EvalError, JointCall, MAX_STEPS, check_steps, run_body, run_body_replicated};
use crate::graph::Body;
use crate::literal::Literal;
use crate::op::{Effect, OpCode, Signature};

/// What an op of a loop's body counts for, in steps: running it takes about as long as visiting so many window elements.
const STEPS_PER_OP: u64 = 64;

/// What one step of a loop counts for.
fn steps_of(bodies: &[Arc<Body>]) -> u64 {
    STEPS_PER_OP * (1 + bodies.iter().map(|body| body.graph().nodes().len() as u64).sum::<u64>())
}

fn owned(values: Vec<Arc<Literal>>) -> Vec<Literal> {
    values.into_iter().map(Arc::unwrap_or_clone).collect()
}

/// `while`.
///
/// # Errors
/// When a body fails, or the loop does not come to an end within [`MAX_STEPS`].
pub fn while_loop(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    bounded_loop(call, MAX_STEPS)
}

fn bounded_loop(call: &EvalCall<'_>, most: u64) -> Result<Vec<Literal>, EvalError> {
    let (cond, body) = (call.body(0), call.body(1));
    let mut carried = call.operands.to_vec();
    let mut steps = 0;
    while Elements::of(&run_body(cond, &carried)?[0]).get(0) != 0 {
        steps += steps_of(call.signature.bodies());
        if steps > most {
            return Err(EvalError::TooLong { op: call.signature.def().name, steps: steps.into() });
        }
        carried = run_body(body, &carried)?;
    }
    Ok(owned(carried))
}

/// The branch that an operand selects: of `if`, where it is a `bool`, and of `case`, where an index without a branch, a
/// negative one too, selects the last.
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
/// When the branch fails.
pub fn branches(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let branch = branch(call.signature, call.operand(0));
    Ok(owned(run_body(call.body(branch), &call.operands[1..])?))
}

/// Checks that replicas which exchange data in a body agree on what they do.
fn agree<T: PartialEq>(call: &JointCall<'_>, choices: &[T]) -> Result<(), EvalError> {
    if call.signature.effect() == Effect::Ordered && choices.iter().any(|choice| *choice != choices[0]) {
        return Err(EvalError::Diverged { op: call.signature.def().name });
    }
    Ok(())
}

/// `while` on several replicas: one whose condition says no keeps its values while the others go on.
///
/// # Errors
/// As [`while_loop`], and when replicas that exchange data in a body take different numbers of steps.
pub fn while_in_step(call: &JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError> {
    let bodies = call.signature.bodies();
    let mut carried = call.operands.to_vec();
    let mut steps = 0;
    loop {
        let more = run_body_replicated(&bodies[0], &carried)?;
        let more: Vec<bool> = more.iter().map(|more| Elements::of(&more[0]).get(0) != 0).collect();
        agree(call, &more)?;
        if !more.contains(&true) {
            return Ok(carried.into_iter().map(owned).collect());
        }
        steps += steps_of(bodies) * carried.len() as u64;
        if steps > MAX_STEPS {
            return Err(EvalError::TooLong { op: call.signature.def().name, steps: steps.into() });
        }
        let next = run_body_replicated(&bodies[1], &carried)?;
        let each = carried.iter_mut().zip(next).zip(more);
        each.filter(|(_, more)| *more).for_each(|((carried, next), _)| *carried = next);
    }
}

/// `if` and `case` on several replicas: all go through each branch that one of them takes.
///
/// # Errors
/// When a branch fails, or replicas that exchange data in one take different branches.
pub fn branches_in_step(call: &JointCall<'_>) -> Result<Vec<Vec<Literal>>, EvalError> {
    let chosen: Vec<usize> =
        call.operands.iter().map(|operands| branch(call.signature, &operands[0])).collect();
    agree(call, &chosen)?;
    let captured: Vec<Vec<Arc<Literal>>> =
        call.operands.iter().map(|operands| operands[1..].to_vec()).collect();
    let mut results = vec![Vec::new(); chosen.len()];
    for (branch, body) in
        call.signature.bodies().iter().enumerate().filter(|(branch, _)| chosen.contains(branch))
    {
        let returned = run_body_replicated(body, &captured)?;
        let each = results.iter_mut().zip(returned).zip(&chosen);
        each.filter(|(_, chosen)| **chosen == branch)
            .for_each(|((result, returned), _)| *result = owned(returned));
    }
    Ok(results)
}

/// `sort`, stable whether that is asked for or not. What a comparator that contradicts itself makes of the order is left
/// open by the specification; here every comparator ends in some permutation of the elements.
///
/// # Errors
/// When the comparator fails, or there are too many elements to compare.
pub fn sort(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let ty = call.result();
    let axis = call.attr().int(0) as usize;
    let (dims, strides) = (ty.dims(), strides(ty.dims()));
    let (size, step) = (dims[axis] as usize, strides[axis] as usize);
    check_steps(call, &[dims, &[u64::from(dims[axis].max(2).ilog2())]])?;
    let mut comparator = Function::new(call.body(0));
    let inputs: Vec<Elements<'_>> = call.operands.iter().map(|operand| Elements::of(operand)).collect();
    let mut results: Vec<Store> = call.operands.iter().map(|operand| Store::of(operand)).collect();
    // The first elements of the slices: every place whose index along the axis is 0.
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

/// The places of a slice while it is sorted; kept from slice to slice.
#[derive(Default)]
struct Order {
    places: Vec<usize>,
    merged: Vec<usize>,
}

impl Order {
    /// The numbers below `size` in the order that `before` says, by merging runs from the bottom up: an element of the
    /// right run goes first only if it comes before the left one, which keeps equal ones as they were.
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
/// When the body fails.
pub fn map(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let mut function = Function::new(call.body(0));
    let inputs: Vec<Elements<'_>> = call.operands.iter().map(|operand| Elements::of(operand)).collect();
    let ty = call.result().clone();
    let results: Result<Vec<Bits>, EvalError> = (0..ty.elems().get())
        .map(|index| Ok(function.call(inputs.iter().map(|input| input.get(index)))?[0]))
        .collect();
    Ok(vec![Store::collect(ty, results?.into_iter()).finish()])
}
