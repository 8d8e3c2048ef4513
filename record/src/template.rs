//! Templates: regions that a stream is expected to record again.

use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::ir::Ref;
use fuseline_fusion::region::{Boundary, LoopFingerprint, Unit};
use fuseline_fusion::{Attrs, Body, OpCode, Site, TensorType};

use crate::call::RecordCall;

/// A position in what a stream has recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamPosition {
    /// The number of ops.
    pub ops: u64,
    /// The number of entries that may be boundaries.
    pub requests: u64,
}

/// Where each op of a region was recorded.
pub type Sites = Arc<Vec<Site>>;

/// The part of an op that is compared with a call first, in a few words.
#[derive(Debug)]
struct OpPattern {
    op: OpCode,
    /// Whether the op has neither attributes nor bodies.
    is_plain: bool,
    results: u32,
    /// Where the operands begin in [`Template::operands`].
    first: u32,
    end: u32,
}

/// A loop body: what the program repeats without requested boundaries.
#[derive(Clone, Copy, Debug)]
pub struct LoopIteration {
    /// The fingerprint of the loop body.
    pub fingerprint: LoopFingerprint,
    /// The reason of the boundary at its end.
    pub boundary: Boundary,
}

/// A region that was everything between two requested boundaries (a *step*), or an iteration of a
/// loop body.
#[derive(Debug)]
pub struct Template {
    /// The key of the region.
    pub key: RegionKey,
    /// The loop body, if the region is an iteration of one.
    pub iteration: Option<LoopIteration>,
    /// The region in canonical form.
    pub canon: Arc<CanonRegion>,
    /// The call sites of its ops when the template was made.
    pub sites: Sites,
    /// The units that it was merged from, if it is a merged region.
    pub units: Vec<Unit>,
    /// One element for each op.
    next: Vec<OpPattern>,
    /// The operands of all ops. A place is the index of a parameter, or the number of parameters
    /// plus the index of a result.
    operands: Vec<u32>,
    places: usize,
}

impl Template {
    /// The template of a region.
    #[must_use]
    pub fn new(
        key: RegionKey,
        iteration: Option<LoopIteration>,
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
            OpPattern {
                op: signature.op(),
                is_plain: is_plain(signature.attrs(), signature.bodies()),
                results,
                first,
                end: operands.len() as u32,
            }
        });
        let next = next.collect();
        Template { key, iteration, sites, units, next, operands, places: places as usize, canon }
    }

    /// Compares a call with op `at`, except for the identity of the operands. If they agree,
    /// returns the places of the op's operands and the number of its results.
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

    /// Whether op `at` has these attributes and bodies.
    #[inline(never)]
    fn has(&self, at: usize, attrs: &Attrs, bodies: &[Arc<Body>]) -> bool {
        let signature = self.canon.graph().nodes()[at].signature();
        signature.attrs() == attrs && signature.bodies() == bodies
    }

    /// The places of the operands of op `at`.
    #[inline]
    pub(crate) fn operands(&self, at: usize) -> &[u32] {
        let next = &self.next[at];
        &self.operands[next.first as usize..next.end as usize]
    }

    /// Number of parameters.
    #[inline]
    pub(crate) fn params(&self) -> usize {
        self.canon.graph().params().len()
    }

    /// Number of parameters and results.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Number of ops.
    #[inline(always)]
    pub fn ops(&self) -> usize {
        self.canon.graph().nodes().len()
    }

    /// The type of a parameter, and whether it is a lifted scalar.
    #[inline]
    pub fn param(&self, index: usize) -> (&TensorType, bool) {
        (&self.canon.graph().params()[index], self.canon.lifted()[index])
    }

    /// Its name among the templates of a stream.
    pub(crate) fn name(&self) -> TemplateName {
        TemplateName { key: self.key, is_iteration: self.iteration.is_some() }
    }

    /// Whether the first `ops` ops and the first `params` parameters of both are equal.
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

/// The name of a template. A region may be both a step that ends at a requested boundary and a loop
/// iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TemplateName {
    pub(crate) key: RegionKey,
    pub(crate) is_iteration: bool,
}
