//! Legalizes a region: expresses it in ops that the plugin implements as the op table specifies
//! them.
//!
//! Input: a region and the results to return. Output: a [`Plain`] function. Each op, in bodies too,
//! is replaced by what the `lower` column of its row gives. The lifted scalars are unpacked from
//! the packed vector at the start. An exact region gets fences ([`super::exact`]), and remaining
//! elements of 2 or 4 bits are carried in whole bytes ([`super::subbyte`]). After that the function
//! does not change: the printer prints it, and the verifier compares the text with it.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::ScalarPack;
use super::scalars::packed;
use crate::attr::Attrs;
use crate::canon::CanonRegion;
use crate::dtype::DType;
use crate::error::OpErrorKind;
use crate::ir::{Body, Graph, Node, OpCode, Ref, Refs, Signature};
use crate::literal::Scalar;
use crate::op::{Lowered, WorkaroundSet, attrs, unsigned};
use crate::shape::{Shape, TensorType};

/// A function in the form that is printed.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Its parameters are the tensor parameters of the region, then the packed scalars, if there
    /// are any. It returns the requested results.
    pub function: Body,
    /// For each op of the function, the node of the region that it was lowered from; `None` for ops
    /// that unpack scalars.
    pub origins: Vec<Option<usize>>,
}

/// The function for a region that returns the results `outputs` and takes its scalars in the layout
/// `pack`. The scalars in `fixed` become constants.
///
/// # Panics
/// If `outputs` contains a result that the region does not have.
#[must_use]
pub fn plain(region: &CanonRegion, outputs: &[u32], pack: &ScalarPack, fixed: &[(u32, Scalar)]) -> Plain {
    plain_without(WorkaroundSet::NONE, region, outputs, pack, fixed)
}

/// As [`plain`], without some workarounds.
///
/// # Panics
/// As [`plain`].
pub(super) fn plain_without(
    left_out: WorkaroundSet,
    region: &CanonRegion,
    outputs: &[u32],
    pack: &ScalarPack,
    fixed: &[(u32, Scalar)],
) -> Plain {
    let mut writer = Writer { left_out, ..Writer::new(Graph::with_capacity_of(region.graph())) };
    let params = params(region, pack, fixed, &mut writer);
    let mut origins = vec![None; writer.graph.nodes().len()];
    let mut results = Vec::with_capacity(region.graph().result_count());
    for (index, node) in region.graph().nodes().iter().enumerate() {
        writer.node(node, &params, &mut results);
        origins.resize(writer.graph.nodes().len(), Some(index));
    }
    let returns: Vec<Ref> = outputs.iter().map(|&output| results[output as usize]).collect();
    let function =
        Body::new(writer.graph, &returns).expect("bug: a region returns a value that it does not compute");
    Plain { function, origins }
}

/// The values of the region's parameters: parameters of the function, or unpacked scalars.
fn params(region: &CanonRegion, pack: &ScalarPack, fixed: &[(u32, Scalar)], writer: &mut Writer) -> Vec<Ref> {
    let types = region.graph().params().iter().zip(region.lifted());
    let tensor = |(ty, lifted): (&TensorType, &bool)| (!lifted).then(|| writer.graph.param(ty.clone()));
    let tensors: Vec<Option<Ref>> = types.map(tensor).collect();
    let packed: Vec<(Range<usize>, Ref)> = pack
        .arguments()
        .map(|range| {
            let ty = packed(range.len());
            (range, writer.graph.param(ty))
        })
        .collect();
    let mut slots = pack.slots().iter();
    let value = |(param, tensor): (u32, Option<Ref>)| {
        tensor.or_else(|| {
            let &(dtype, first) = slots.next()?;
            match fixed.iter().find(|(fixed, _)| *fixed == param) {
                Some((_, value)) => {
                    let value = attrs::constant(Arc::new(value.to_literal()));
                    Some(writer.op(OpCode::Constant, value, &[]))
                }
                None => {
                    let (range, words) = packed.iter().find(|(range, _)| range.contains(&first))?;
                    Some(writer.unpacked(*words, dtype, first - range.start))
                }
            }
        })
    };
    let values: Option<Vec<Ref>> = (0u32..).zip(tensors).map(value).collect();
    values.expect("bug: a lifted scalar has no place in the packed vector")
}

impl Plain {
    /// Rewrites the function. After `begin`, `node` writes each op with its new operands. For each
    /// result, it gives the value to return and the value that later ops use.
    pub(super) fn rewritten<T>(
        &self,
        begin: impl FnOnce(&mut Writer) -> T,
        mut node: impl FnMut(&mut Writer, &T, &Node, Refs) -> SmallVec<[(Ref, Ref); 2]>,
    ) -> Plain {
        let graph = self.function.graph();
        let mut writer = Writer::new(Graph::with_capacity_of(graph));
        let params: Vec<Ref> = graph.params().iter().map(|ty| writer.graph.param(ty.clone())).collect();
        let begun = begin(&mut writer);
        let mut origins = vec![None; writer.graph.nodes().len()];
        let (mut returned, mut used) = (Vec::new(), Vec::new());
        for (old, &origin) in graph.nodes().iter().zip(&self.origins) {
            let operands: Refs =
                old.operands().iter().map(|&operand| pick(operand, &params, &used)).collect();
            let (results, uses): (Vec<Ref>, Vec<Ref>) =
                node(&mut writer, &begun, old, operands).into_iter().unzip();
            returned.extend(results);
            used.extend(uses);
            origins.resize(writer.graph.nodes().len(), origin);
        }
        let returns: Vec<Ref> =
            self.function.returns().iter().map(|&value| pick(value, &params, &returned)).collect();
        let function = Body::new(writer.graph, &returns)
            .expect("bug: a function returns a value that it does not compute");
        Plain { function, origins }
    }

    /// Replaces each returned value by `map` of it. The ops that `map` writes belong to the last
    /// node of the region.
    pub(super) fn with_returns(mut self, mut map: impl FnMut(&mut Writer, Ref) -> Ref) -> Plain {
        let mut writer = Writer::new(self.function.graph().clone());
        let returns: Vec<Ref> =
            self.function.returns().iter().map(|&returned| map(&mut writer, returned)).collect();
        let last = self.origins.last().copied().flatten();
        self.origins.resize(writer.graph.nodes().len(), last);
        self.function = Body::new(writer.graph, &returns)
            .expect("bug: a function returns a value that it does not compute");
        self
    }
}

/// Rewrites a body: `node` writes each op with its new operands, and returns its results.
pub(super) fn rewritten_body(body: &Body, mut node: impl FnMut(&mut Writer, &Node, Refs) -> Refs) -> Body {
    let graph = body.graph();
    let mut writer = Writer::new(Graph::with_capacity_of(graph));
    let params: Vec<Ref> = graph.params().iter().map(|ty| writer.graph.param(ty.clone())).collect();
    let mut results = Vec::with_capacity(graph.result_count());
    for old in graph.nodes() {
        let operands = old.operands().iter().map(|&operand| pick(operand, &params, &results)).collect();
        results.extend(node(&mut writer, old, operands));
    }
    let returns: Vec<Ref> = body.returns().iter().map(|&value| pick(value, &params, &results)).collect();
    Body::new(writer.graph, &returns).expect("bug: a body returns a value that it does not compute")
}

/// The function under construction.
pub(super) struct Writer {
    pub(super) graph: Graph,
    /// The workarounds that the plugin does not need.
    left_out: WorkaroundSet,
}

impl Writer {
    pub(super) fn new(graph: Graph) -> Writer {
        Writer { graph, left_out: WorkaroundSet::NONE }
    }

    /// Writes an op that cannot be rejected, because it follows from calls that were accepted.
    pub(super) fn op(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Ref {
        let made = self.graph.push_lowered(op, attrs, &[], operands);
        made.unwrap_or_else(|error| panic!("bug: the lowering emits an op that is rejected: {error}"))[0]
    }

    /// Writes a `case`. The operands are the index, then the captured values, which are the
    /// parameters of the branches.
    pub(super) fn branches(&mut self, bodies: &[Arc<Body>], operands: &[Ref]) -> Refs {
        let (index, captured) = operands.split_first().expect("bug: a branch is chosen without an index");
        let (used, bodies) = used_captures(captured, bodies);
        let operands: Refs = std::iter::once(*index).chain(used).collect();
        let types: Vec<TensorType> = operands.iter().map(|&operand| self.type_of(operand)).collect();
        let made = Signature::infer(OpCode::Case, Attrs::none(), &bodies, &types);
        let made =
            made.unwrap_or_else(|error| panic!("bug: the lowering emits an op that is rejected: {error}"));
        self.graph.push_signature(Arc::new(made), operands)
    }

    /// Unpacks the scalar that begins at word `first` of the packed vector.
    pub(super) fn unpacked(&mut self, packed: Ref, dtype: DType, first: usize) -> Ref {
        let wide = dtype.size() > 4;
        let (from, to) = (first as i64, first as i64 + if wide { 2 } else { 1 });
        let words = self.op(OpCode::Slice, attrs::slice(&[from], &[to], &[1]), &[packed]);
        if wide {
            return self.op(OpCode::BitcastConvert, attrs::convert(dtype), &[words]);
        }
        let word = self.op(OpCode::Reshape, attrs::reshape(Shape::scalar()), &[words]);
        if dtype == DType::Bool {
            return self.op(OpCode::Convert, attrs::convert(dtype), &[word]);
        }
        let unsigned = unsigned(dtype.bits());
        let narrow = match unsigned {
            DType::U32 => word,
            _ => self.op(OpCode::Convert, attrs::convert(unsigned), &[word]),
        };
        if dtype == unsigned {
            narrow
        } else {
            self.op(OpCode::BitcastConvert, attrs::convert(dtype), &[narrow])
        }
    }

    /// Lowers each op of a graph whose parameters have the values `params`; returns the results.
    fn graph(&mut self, graph: &Graph, params: &[Ref]) -> Vec<Ref> {
        let mut results = Vec::with_capacity(graph.result_count());
        graph.nodes().iter().for_each(|node| self.node(node, params, &mut results));
        results
    }

    /// Lowers a node and appends its results.
    fn node(&mut self, node: &Node, params: &[Ref], results: &mut Vec<Ref>) {
        let operands: Refs = node.operands().iter().map(|&operand| pick(operand, params, results)).collect();
        let signature = node.signature();
        match signature.lowered(self.left_out) {
            Lowered::Itself => results.extend(self.call(signature, operands)),
            Lowered::As(op) => {
                let other = signed(op, signature, signature.bodies());
                results.extend(self.call(&other, operands));
            }
            Lowered::Body(body) => {
                // The ops of an expansion are not expanded again, because it may use the very op
                // that it replaces.
                let mut made = Vec::with_capacity(body.graph().result_count());
                for node in body.graph().nodes() {
                    let inner =
                        node.operands().iter().map(|&operand| pick(operand, &operands, &made)).collect();
                    made.extend(self.call(node.signature(), inner));
                }
                results.extend(body.returns().iter().map(|&value| pick(value, &operands, &made)));
            }
            Lowered::Inline(body) => {
                let made = self.graph(body.graph(), &operands);
                results.extend(body.returns().iter().map(|&value| pick(value, &operands, &made)));
            }
        }
    }

    /// Writes a call unchanged, except that its bodies and their captures are lowered.
    fn call(&mut self, signature: &Arc<Signature>, operands: Refs) -> Refs {
        let captures = signature.def().captures;
        if captures.is_none() && signature.bodies().iter().all(|body| is_plain(body, self.left_out)) {
            return self.graph.push_signature(signature.clone(), operands);
        }
        let bodies: Vec<Arc<Body>> =
            signature.bodies().iter().map(|body| lowered_body(body, self.left_out)).collect();
        let Some(first) = captures else {
            return self.graph.push_signature(signed(signature.op(), signature, &bodies), operands);
        };
        capturing(&mut self.graph, signature, first, &bodies, &operands)
    }

    pub(super) fn type_of(&self, value: Ref) -> TensorType {
        self.graph.type_of(value).expect("bug: an operand has no producer").clone()
    }
}

/// The new value of an operand in a graph whose parameters and results so far have these values.
pub(super) fn pick(value: Ref, params: &[Ref], results: &[Ref]) -> Ref {
    match value {
        Ref::Param(index) => params[index as usize],
        Ref::Result(index) => results[index as usize],
    }
}

/// Appends a call with these bodies. Its operands from `first` on are captured values.
fn capturing(
    graph: &mut Graph,
    like: &Arc<Signature>,
    first: usize,
    bodies: &[Arc<Body>],
    operands: &[Ref],
) -> Refs {
    let (stated, captured) = operands.split_at(first);
    let (used, bodies) = used_captures(captured, bodies);
    let operands: Refs = stated.iter().copied().chain(used).collect();
    let type_of = |&operand: &Ref| graph.type_of(operand).expect("bug: an operand has no producer").clone();
    let types: Vec<TensorType> = operands.iter().map(type_of).collect();
    let made = Signature::infer(like.op(), like.attrs().clone(), &bodies, &types);
    let made = made.unwrap_or_else(|error| panic!("bug: the lowering emits an op that is rejected: {error}"));
    graph.push_signature(Arc::new(made), operands)
}

/// Drops unused captures, merges equal ones, and orders them by first use, also in nested bodies.
/// MLIR text has no list of captures; the uses in a body imply them.
pub(super) fn used_captures(captured: &[Ref], bodies: &[Arc<Body>]) -> (Vec<Ref>, Vec<Arc<Body>>) {
    let mut used: Vec<Ref> = Vec::new();
    let mut note = |value: &Ref| match value {
        Ref::Param(index) if !used.contains(&captured[*index as usize]) => {
            used.push(captured[*index as usize])
        }
        _ => {}
    };
    for body in bodies {
        body.graph().nodes().iter().flat_map(Node::operands).for_each(&mut note);
        body.returns().iter().for_each(&mut note);
    }
    let place = |value: Ref| match value {
        Ref::Param(index) => {
            let place = used.iter().position(|&outer| outer == captured[index as usize]);
            Ref::Param(place.expect("bug: a captured value was not registered") as u32)
        }
        result => result,
    };
    let body = |body: &Arc<Body>| {
        let mut graph = Graph::with_capacity_of(body.graph());
        for outer in &used {
            let index = captured.iter().position(|value| value == outer).unwrap_or_default();
            graph.param(body.graph().params()[index].clone());
        }
        for node in body.graph().nodes() {
            let operands: Refs = node.operands().iter().map(|&value| place(value)).collect();
            let signature = node.signature();
            match signature.def().captures {
                Some(first) if has_twice(&operands[first..]) => {
                    capturing(&mut graph, signature, first, signature.bodies(), &operands);
                }
                _ => {
                    graph.push_signature(signature.clone(), operands);
                }
            }
        }
        let returns: Vec<Ref> = body.returns().iter().map(|&value| place(value)).collect();
        Arc::new(Body::new(graph, &returns).expect("bug: a body returns a value that it does not compute"))
    };
    let bodies = bodies.iter().map(body).collect();
    (used, bodies)
}

fn has_twice(values: &[Ref]) -> bool {
    values.iter().enumerate().any(|(place, value)| values[..place].contains(value))
}

/// The same call with another op or other bodies. If that exceeds the limits, because lowered
/// bodies nest deeper, the call stays as it is.
pub(super) fn signed(op: OpCode, like: &Arc<Signature>, bodies: &[Arc<Body>]) -> Arc<Signature> {
    match Signature::infer(op, like.attrs().clone(), bodies, like.operands()) {
        Ok(signature) => Arc::new(signature),
        Err(error) => {
            debug_assert!(
                error.fault() == OpErrorKind::Limit,
                "bug: the lowering emits an op that is rejected: {error}"
            );
            like.clone()
        }
    }
}

/// Whether every op of a body, at any depth, is lowered as itself and captures nothing.
fn is_plain(body: &Body, left_out: WorkaroundSet) -> bool {
    body.graph().nodes().iter().map(|node| node.signature()).all(|signature| {
        signature.def().captures.is_none()
            && matches!(signature.lowered(left_out), Lowered::Itself)
            && signature.bodies().iter().all(|body| is_plain(body, left_out))
    })
}

fn lowered_body(body: &Arc<Body>, left_out: WorkaroundSet) -> Arc<Body> {
    if is_plain(body, left_out) {
        return body.clone();
    }
    let mut writer = Writer { left_out, ..Writer::new(Graph::with_capacity_of(body.graph())) };
    let params: Vec<Ref> = body.graph().params().iter().map(|ty| writer.graph.param(ty.clone())).collect();
    let results = writer.graph(body.graph(), &params);
    let returns: Vec<Ref> = body.returns().iter().map(|&value| pick(value, &params, &results)).collect();
    Arc::new(Body::new(writer.graph, &returns).expect("bug: a body returns a value that it does not compute"))
}
