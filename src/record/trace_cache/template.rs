//! What a stream is expected to record, because it has done so before.

use std::collections::VecDeque;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::graph::Ref;
use fuseline_fusion::region::{Boundary, LoopFingerprint, Unit};
use fuseline_fusion::{Attrs, Body, OpCode, Site, TensorType};

use super::trace::ReplayTrace;
use crate::stream::RecordCall;

/// Templates that a stream keeps, the latest ones used.
const MAX_TEMPLATES: usize = 16;

/// Keys of regions that were seen once.
const MAX_SEEN: usize = 32;

/// Tapes kept for use again: one for each of the regions that are usually under way.
const MAX_SPARE: usize = 4;

/// Most times that a template is left out after it did not fit.
const MAX_SKIPPED: u32 = 255;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamPosition {
    /// The number of ops.
    pub(crate) ops: u64,
    /// How often the program asked for something.
    pub(crate) asks: u64,
}

/// Where each op of a region was recorded.
pub(crate) type Sites = Arc<Vec<Site>>;

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
pub(crate) struct LoopId {
    pub(crate) print: LoopFingerprint,
    /// Why it ends where it does.
    pub(crate) boundary: Boundary,
}

/// A region that was all that the program recorded between two boundaries that it asked for, or a
/// round of what it repeats without.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) key: RegionKey,
    /// Which round, if it is one.
    pub(crate) round: Option<LoopId>,
    pub(crate) canon: Arc<CanonRegion>,
    /// Where its ops were recorded when it was made.
    pub(crate) sites: Sites,
    /// What it was joined from, if it was.
    pub(crate) units: Vec<Unit>,
    /// Each op.
    next: Vec<Next>,
    /// The operands of all ops, as places: first the parameters, then the results.
    operands: Vec<u32>,
    places: usize,
}

impl Template {
    pub(crate) fn new(
        key: RegionKey,
        round: Option<LoopId>,
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
    pub(super) fn next(&self, at: usize, call: &RecordCall<'_>) -> Option<(&[u32], usize)> {
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
    pub(super) fn operands(&self, at: usize) -> &[u32] {
        let next = &self.next[at];
        &self.operands[next.first as usize..next.end as usize]
    }

    /// Number of parameters.
    pub(super) fn params(&self) -> usize {
        self.canon.graph().params().len()
    }

    /// Number of parameters and results.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Number of ops.
    #[inline(always)]
    pub(crate) fn ops(&self) -> usize {
        self.canon.graph().nodes().len()
    }

    /// Type of a parameter, and whether it is a lifted scalar.
    pub(crate) fn param(&self, index: usize) -> (&TensorType, bool) {
        (&self.canon.graph().params()[index], self.canon.lifted()[index])
    }

    /// Which one it is of a stream's.
    fn name(&self) -> Name {
        Name { key: self.key, is_round: self.round.is_some() }
    }

    /// Whether the first `ops` ops of both, over their first `params` parameters, are the same.
    fn begins_like(&self, other: &Template, ops: usize, params: usize) -> bool {
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
struct Name {
    key: RegionKey,
    is_round: bool,
}

#[derive(Debug)]
struct TemplateEntry {
    template: Arc<Template>,
    /// The one that came after it last.
    next: Option<Name>,
    /// How often it did not fit since it last did, as times to leave it out; and how many of them
    /// are left.
    penalty: u32,
    skip: u32,
}

/// The templates of a stream.
#[derive(Debug, Default)]
pub(crate) struct TemplateCache {
    /// The latest used last.
    known: Vec<TemplateEntry>,
    seen: VecDeque<Name>,
    /// The one that was completed last.
    last: Option<Name>,
    /// The round that is recorded just now, and where one began.
    expected_loop: Option<(Arc<Template>, StreamPosition)>,
    #[allow(clippy::vec_box, reason = "they go into the log and come back as they are")]
    spare: Vec<Box<ReplayTrace>>,
    /// Tapes that were handed over and have not come back.
    away: usize,
}

impl TemplateCache {
    /// Remembers a region. `template` is called when it was seen before and is no template yet. The
    /// template, if it is one now.
    pub(crate) fn note(
        &mut self,
        key: RegionKey,
        is_round: bool,
        template: impl FnOnce() -> Template,
    ) -> Option<Arc<Template>> {
        let name = Name { key, is_round };
        if self.touch(name) {
            return self.known.last().map(|known| known.template.clone());
        }
        match self.seen.iter().position(|&seen| seen == name) {
            None => {
                self.seen.push_back(name);
                if self.seen.len() > MAX_SEEN {
                    self.seen.pop_front();
                }
                None
            }
            Some(at) => {
                self.seen.remove(at);
                if self.known.len() == MAX_TEMPLATES {
                    self.known.remove(0);
                }
                let template = Arc::new(template());
                self.known.push(TemplateEntry {
                    template: template.clone(),
                    next: None,
                    penalty: 0,
                    skip: 0,
                });
                Some(template)
            }
        }
    }

    /// Makes a template the latest one used; false if it is not known.
    fn touch(&mut self, name: Name) -> bool {
        let Some(at) = self.known.iter().position(|known| known.template.name() == name) else {
            return false;
        };
        self.known[at..].rotate_left(1);
        true
    }

    /// The template of a round.
    pub(crate) fn of_round(&self, print: LoopFingerprint) -> Option<Arc<Template>> {
        let known =
            self.known.iter().find(|known| known.template.round.is_some_and(|round| round.print == print))?;
        Some(known.template.clone())
    }

    /// The round `template` is what is recorded, and one began at `start`.
    pub(crate) fn expect_loop(&mut self, template: Arc<Template>, start: StreamPosition) {
        self.expected_loop = Some((template, start));
    }

    /// The round that is recorded, and how many ops ago one has begun, if the program has asked for
    /// nothing since.
    pub(crate) fn expected_loop(&self, now: StreamPosition) -> Option<(Arc<Template>, u64)> {
        let (template, start) = self.expected_loop.as_ref()?;
        let ops = now.ops.wrapping_sub(start.ops) % template.ops() as u64;
        (start.asks == now.asks).then(|| (template.clone(), ops))
    }

    /// No round is recorded any more, or one is on a tape.
    pub(crate) fn forget_expected_loop(&mut self) {
        self.expected_loop = None;
    }

    /// Templates that may begin with a call: each that does and is not left out this time, the
    /// latest first.
    pub(crate) fn candidates(&mut self, call: &RecordCall<'_>) -> Vec<Arc<Template>> {
        let mut found = Vec::new();
        for known in self.known.iter_mut().rev().filter(|known| known.template.round.is_none()) {
            match known.skip {
                0 if known.template.next(0, call).is_some() => found.push(known.template.clone()),
                0 => {}
                _ => known.skip -= 1,
            }
        }
        found
    }

    /// Other templates that begin like this one and may go on with a call.
    pub(crate) fn alternatives(&self, trace: &ReplayTrace, call: &RecordCall<'_>) -> Vec<Arc<Template>> {
        let (_, ops, _) = trace.place();
        self.others(trace, |other| other.next(ops, call).is_some()).cloned().collect()
    }

    /// Another template, of which this tape has all ops and no other.
    pub(crate) fn ended(&self, trace: &ReplayTrace) -> Option<Arc<Template>> {
        let (_, ops, params) = trace.place();
        self.others(trace, |other| other.ops() == ops && other.params() == params).next().cloned()
    }

    /// Other templates of steps that begin like a tape and `fit`, the latest first.
    fn others<'a>(
        &'a self,
        trace: &'a ReplayTrace,
        fit: impl Fn(&Template) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Arc<Template>> {
        let (template, ops, params) = trace.place();
        self.known.iter().rev().map(|known| &known.template).filter(move |other| {
            other.name() != template.name()
                && other.round.is_none()
                && fit(other)
                && other.begins_like(template, ops, params)
        })
    }

    fn find(&mut self, name: Name) -> Option<&mut TemplateEntry> {
        self.known.iter_mut().find(|known| known.template.name() == name)
    }

    /// A template was recorded to its end; returns the one that is expected now.
    pub(crate) fn completed(&mut self, template: &Template) -> Option<Arc<Template>> {
        let name = template.name();
        if let Some(before) = self.last.replace(name)
            && let Some(before) = self.find(before)
        {
            before.next = Some(name);
        }
        let next = self.came_true(name)?.next.unwrap_or(name);
        let next = self.find(next)?;
        if next.skip > 0 {
            next.skip -= 1;
            return None;
        }
        Some(next.template.clone())
    }

    /// A round was recorded to its end. It says nothing of what is expected after a boundary that
    /// the program asks for.
    pub(crate) fn completed_round(&mut self, template: &Template) {
        let _ = self.came_true(template.name());
    }

    fn came_true(&mut self, name: Name) -> Option<&mut TemplateEntry> {
        self.touch(name);
        let known = self.find(name)?;
        (known.penalty, known.skip) = (0, 0);
        Some(known)
    }

    /// The program did something else than the template.
    pub(crate) fn missed(&mut self, template: &Template) {
        if let Some(known) = self.find(template.name()) {
            known.penalty = (2 * known.penalty + 1).min(MAX_SKIPPED);
            known.skip = known.penalty - 1;
        }
    }

    /// Number of tapes that were handed over and have not come back.
    pub(crate) fn away(&self) -> usize {
        self.away
    }

    /// A tape is handed over.
    pub(crate) fn send_away(&mut self) {
        self.away += 1;
    }

    /// A tape has come back.
    pub(crate) fn take_back(&mut self, trace: Box<ReplayTrace>) {
        self.away -= 1;
        self.keep(trace);
    }

    /// Keeps a tape that was not used.
    pub(crate) fn keep(&mut self, trace: Box<ReplayTrace>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(trace);
        }
    }

    /// An empty tape for a template, if possible one that was used for it.
    pub(crate) fn trace(&mut self, template: Arc<Template>) -> Box<ReplayTrace> {
        let fits = self.spare.iter().rposition(|trace| trace.was_for(&template));
        let spare = fits.or_else(|| self.spare.len().checked_sub(1)).map(|at| self.spare.swap_remove(at));
        let mut trace = spare.unwrap_or_default();
        trace.begin(template);
        trace
    }
}
