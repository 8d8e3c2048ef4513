//! The templates of a stream, and the prediction of which one comes next.

use std::collections::VecDeque;
use std::sync::Arc;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::region::LoopFingerprint;

use crate::call::RecordCall;
use crate::replay_trace::ReplayTrace;
use crate::template::{StreamPosition, Template, TemplateName};
use crate::value::Outcome;

/// Number of templates that a stream keeps: the most recently used ones.
const MAX_TEMPLATES: usize = 16;

/// Number of keys that are kept of regions that were seen once.
const MAX_SINGLE_KEYS: usize = 32;

/// Number of traces kept for reuse: one for each region that is usually in progress.
const MAX_SPARE: usize = 4;

/// Maximum number of times that a template is skipped after it did not match.
const MAX_SKIPPED: u32 = 255;

#[derive(Debug)]
struct TemplateEntry {
    template: Arc<Template>,
    /// The template that followed it last time.
    next: Option<TemplateName>,
    /// The number of times to skip it, which doubles with each mismatch since the last match
    /// (`penalty`), and how many of them remain (`skip`).
    penalty: u32,
    skip: u32,
}

/// The templates of a stream.
#[derive(Debug)]
pub(crate) struct TemplateCache<O: Outcome> {
    /// The most recently used is last.
    known: Vec<TemplateEntry>,
    seen: VecDeque<TemplateName>,
    /// The template that was completed last.
    last: Option<TemplateName>,
    /// The loop body that the program records now, and a position where an iteration began.
    expected_loop: Option<(Arc<Template>, StreamPosition)>,
    #[allow(clippy::vec_box, reason = "they go into the log and come back as they are")]
    spare: Vec<Box<ReplayTrace<O>>>,
    /// Number of traces that were handed over and not returned yet.
    in_log: usize,
}

impl<O: Outcome> Default for TemplateCache<O> {
    fn default() -> TemplateCache<O> {
        TemplateCache {
            known: Vec::new(),
            seen: VecDeque::new(),
            last: None,
            expected_loop: None,
            spare: Vec::new(),
            in_log: 0,
        }
    }
}

impl<O: Outcome> TemplateCache<O> {
    /// Notes a region. Calls `template` if the region was seen before and has no template yet.
    /// Returns the template, if there is one now.
    pub(crate) fn note(
        &mut self,
        key: RegionKey,
        is_iteration: bool,
        template: impl FnOnce() -> Template,
    ) -> Option<Arc<Template>> {
        let name = TemplateName { key, is_iteration };
        if self.touch(name) {
            return self.known.last().map(|known| known.template.clone());
        }
        match self.seen.iter().position(|&seen| seen == name) {
            None => {
                self.seen.push_back(name);
                if self.seen.len() > MAX_SINGLE_KEYS {
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

    /// Marks a template as the most recently used; false if it is not known.
    fn touch(&mut self, name: TemplateName) -> bool {
        let Some(at) = self.known.iter().position(|known| known.template.name() == name) else {
            return false;
        };
        self.known[at..].rotate_left(1);
        true
    }

    /// The template of a loop body.
    pub(crate) fn of_loop(&self, fingerprint: LoopFingerprint) -> Option<Arc<Template>> {
        let known = self.known.iter().find(|known| {
            known.template.iteration.is_some_and(|iteration| iteration.fingerprint == fingerprint)
        })?;
        Some(known.template.clone())
    }

    /// The program records iterations of `template`, one of which begins at `start`.
    pub(crate) fn expect_loop(&mut self, template: Arc<Template>, start: StreamPosition) {
        self.expected_loop = Some((template, start));
    }

    /// The expected loop body and the number of ops until an iteration begins, if the program has
    /// requested nothing since.
    pub(crate) fn expected_loop(&self, now: StreamPosition) -> Option<(Arc<Template>, u64)> {
        let (template, start) = self.expected_loop.as_ref()?;
        let ops = template.ops() as u64;
        let left = match now.ops.checked_sub(start.ops) {
            Some(since) => (ops - since % ops) % ops,
            None => start.ops - now.ops,
        };
        (start.requests == now.requests).then(|| (template.clone(), left))
    }

    /// Called when no iteration is expected any more, or when one is on a trace.
    pub(crate) fn forget_expected_loop(&mut self) {
        self.expected_loop = None;
    }

    /// The templates of steps that begin with a call and are not skipped this time, the most recent
    /// first.
    pub(crate) fn candidates<H>(&mut self, call: &RecordCall<'_, H>) -> Vec<Arc<Template>> {
        let mut found = Vec::new();
        for known in self.known.iter_mut().rev().filter(|known| known.template.iteration.is_none()) {
            match known.skip {
                0 if known.template.next(0, call).is_some() => found.push(known.template.clone()),
                0 => {}
                _ => known.skip -= 1,
            }
        }
        found
    }

    /// Other templates that share the prefix of a trace and may continue with a call.
    pub(crate) fn alternatives<H>(
        &self,
        trace: &ReplayTrace<O>,
        call: &RecordCall<'_, H>,
    ) -> Vec<Arc<Template>> {
        let (_, ops, _) = trace.place();
        self.others(trace, |other| other.next(ops, call).is_some()).cloned().collect()
    }

    /// Another template whose ops are exactly those of a trace.
    pub(crate) fn ended(&self, trace: &ReplayTrace<O>) -> Option<Arc<Template>> {
        let (_, ops, params) = trace.place();
        self.others(trace, |other| other.ops() == ops && other.params() == params).next().cloned()
    }

    /// Other templates of steps that share the prefix of a trace and `fit`, the most recent first.
    fn others<'a>(
        &'a self,
        trace: &'a ReplayTrace<O>,
        fit: impl Fn(&Template) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Arc<Template>> {
        let (template, ops, params) = trace.place();
        self.known.iter().rev().map(|known| &known.template).filter(move |other| {
            other.name() != template.name()
                && other.iteration.is_none()
                && fit(other)
                && other.begins_like(template, ops, params)
        })
    }

    fn find(&mut self, name: TemplateName) -> Option<&mut TemplateEntry> {
        self.known.iter_mut().find(|known| known.template.name() == name)
    }

    /// Notes that a template was recorded to its end. Returns the one that is expected next.
    pub(crate) fn completed(&mut self, template: &Template) -> Option<Arc<Template>> {
        let name = template.name();
        if let Some(before) = self.last.replace(name)
            && let Some(before) = self.find(before)
        {
            before.next = Some(name);
        }
        let next = self.matched(name)?.next.unwrap_or(name);
        let next = self.find(next)?;
        if next.skip > 0 {
            next.skip -= 1;
            return None;
        }
        Some(next.template.clone())
    }

    /// Notes that an iteration was recorded to its end. It predicts nothing about the step after a
    /// requested boundary.
    pub(crate) fn completed_iteration(&mut self, template: &Template) {
        let _ = self.matched(template.name());
    }

    fn matched(&mut self, name: TemplateName) -> Option<&mut TemplateEntry> {
        self.touch(name);
        let known = self.find(name)?;
        (known.penalty, known.skip) = (0, 0);
        Some(known)
    }

    /// Notes that the program left the template.
    pub(crate) fn missed(&mut self, template: &Template) {
        if let Some(known) = self.find(template.name()) {
            known.penalty = (2 * known.penalty + 1).min(MAX_SKIPPED);
            known.skip = known.penalty - 1;
        }
    }

    /// Number of traces that were handed over and not returned yet.
    pub(crate) fn in_log(&self) -> usize {
        self.in_log
    }

    /// Notes that a trace is handed over.
    pub(crate) fn count_in_log(&mut self) {
        self.in_log += 1;
    }

    /// Takes a trace that was returned.
    pub(crate) fn take_back(&mut self, trace: Box<ReplayTrace<O>>) {
        self.in_log -= 1;
        self.keep(trace);
    }

    /// Keeps a trace for reuse.
    pub(crate) fn keep(&mut self, trace: Box<ReplayTrace<O>>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(trace);
        }
    }

    /// An empty trace for a template, if possible one that was used for it before.
    pub(crate) fn trace(&mut self, template: Arc<Template>) -> Box<ReplayTrace<O>> {
        let fits = self.spare.iter().rposition(|trace| trace.was_for(&template));
        let spare = fits.or_else(|| self.spare.len().checked_sub(1)).map(|at| self.spare.swap_remove(at));
        let mut trace = spare.unwrap_or_default();
        trace.begin(template);
        trace
    }
}
