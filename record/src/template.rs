//! What a stream is expected to record, because it has done so before.

use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::graph::Ref;
use fuseline_fusion::region::{Boundary, LoopFingerprint, Unit};
use fuseline_fusion::{Attrs, Body, OpCode, Site, TensorType};

use crate::call::RecordCall;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamPosition {
    /// The number of ops.
    pub ops: u64,
    /// How often the program asked for something.
    pub asks: u64,
}

/// Where each op of a region was recorded.
pub type Sites = Arc<Vec<Site>>;

/// What a call has to be to be the op at a place of a template, as far as that fits a few words.
#[derive(Debug)]
struct Next {
    op: OpCode,
    /// It has neither attributes nor bodies.
    is_plain: bool,
    results: u32,
    /// Where its operands are in [`Template::operands`].
    first: u32,
    end: u32,
}

/// A round of what the program repeats without asking for boundaries.
#[derive(Clone, Copy, Debug)]
pub struct LoopIteration {
    /// Which loop body it is.
    pub print: LoopFingerprint,
    /// Why it ends where it does.
    pub boundary: Boundary,
}

/// A region that was all that the program recorded between two boundaries that it asked for, or a
/// round of what it repeats without.
#[derive(Debug)]
pub struct Template {
    /// The key of the region.
    pub key: RegionKey,
    /// Which round, if it is one.
    pub round: Option<LoopIteration>,
    /// The region in canonical form.
    pub canon: Arc<CanonRegion>,
    /// Where its ops were recorded when it was made.
    pub sites: Sites,
    /// What it was joined from, if it was.
    pub units: Vec<Unit>,
    /// Each op.
    next: Vec<Next>,
    /// The operands of all ops, as places: first the parameters, then the results.
    operands: Vec<u32>,
    places: usize,
}

impl Template {
    /// The template of a region.
    #[must_use]
    pub fn new(
        key: RegionKey,
        round: Option<LoopIteration>,
        canon: Arc<CanonRegion>,
        sites: Sites,
        units: Vec<Unit>,
    ) -> Template {
        let graph = canon.graph();
        let params = graph.params().len() as u32;
        let mut places = params;
        let mut operands = Vec::new();
        let next = graph.nodes().iter().map(|node| {
            let signature = node.signature();
            let first = operands.len() as u32;
            operands.extend(node.operands().iter().map(|operand| match *operand {
                Ref::Param(index) => index,
                Ref::Result(index) => params + index,
            }));
            let results = signature.results().len() as u32;
            places += results;
            Next {
                op: signature.op(),
                is_plain: is_plain(signature.attrs(), signature.bodies()),
                results,
                first,
                end: operands.len() as u32,
            }
        });
        let next = next.collect();
        Template { key, round, sites, units, next, operands, places: places as usize, canon }
    }

    /// The op at this place, if a call is one of it, whatever its operands are: the places of its
    /// operands, and the number of its results.
    #[inline(always)]
    pub(crate) fn next<H>(&self, at: usize, call: &RecordCall<'_, H>) -> Option<(&[u32], usize)> {
        let next = self.next.get(at)?;
        let operands = self.operands.get(next.first as usize..next.end as usize)?;
        let is_plain = is_plain(call.attrs, call.bodies);
        let is_called = next.op == call.op
            && operands.len() == call.operands.len()
            && next.is_plain == is_plain
            && (is_plain || self.has(at, call.attrs, call.bodies));
        is_called.then_some((operands, next.results as usize))
    }

    /// Whether the op at this place has the attributes and the bodies of a call.
    #[inline(never)]
    fn has(&self, at: usize, attrs: &Attrs, bodies: &[Arc<Body>]) -> bool {
        let signature = self.canon.graph().nodes()[at].signature();
        signature.attrs() == attrs && signature.bodies() == bodies
    }

    /// The places of the operands of an op.
    pub(crate) fn operands(&self, at: usize) -> &[u32] {
        let next = &self.next[at];
        &self.operands[next.first as usize..next.end as usize]
    }

    /// Number of parameters.
    pub(crate) fn params(&self) -> usize {
        self.canon.graph().params().len()
    }

    /// Number of parameters and results.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Number of ops.
    #[inline(always)]
    pub fn ops(&self) -> usize {
        self.canon.graph().nodes().len()
    }

    /// Type of a parameter, and whether it is a lifted scalar.
    pub fn param(&self, index: usize) -> (&TensorType, bool) {
        (&self.canon.graph().params()[index], self.canon.lifted()[index])
    }

    /// Which one it is of a stream's.
    pub(crate) fn name(&self) -> TemplateName {
        TemplateName { key: self.key, is_round: self.round.is_some() }
    }

    /// Whether the first `ops` ops of both, over their first `params` parameters, are the same.
    pub(crate) fn begins_like(&self, other: &Template, ops: usize, params: usize) -> bool {
        let (own, others) = (self.canon.graph(), other.canon.graph());
        own.nodes().len() >= ops
            && own.params().len() >= params
            && own.params()[..params] == others.params()[..params]
            && self.canon.lifted()[..params] == other.canon.lifted()[..params]
            && own.nodes()[..ops].iter().zip(others.nodes()).all(|(own, other)| {
                own.operands() == other.operands()
                    && (Arc::ptr_eq(own.signature(), other.signature())
                        || own.signature() == other.signature())
            })
    }
}

/// Whether a call has neither attributes nor bodies.
#[inline(always)]
fn is_plain(attrs: &Attrs, bodies: &[Arc<Body>]) -> bool {
    attrs.values().is_empty() && bodies.is_empty()
}

/// What a stream knows a template by: a region may be both a step that ends where the program says
/// so and a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TemplateName {
    pub(crate) key: RegionKey,
    pub(crate) is_round: bool,
}
