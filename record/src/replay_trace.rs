//! A run of recorded ops that follows a template: the value at each place, and when each was
//! released.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_fusion::ir::Ref;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Input, Mode, Operand, Operands, Results, TraceOp};
use fuseline_fusion::{Site, ValueId};

use crate::call::RecordCall;
use crate::handle::{Handle, TakeResults};
use crate::handle_count::TraceIndex;
use crate::limits::MAX_OTHERS;
use crate::template::{Sites, Template};
use crate::value::{Outcome, ValueCell, ValuePromise, ValueRef};

/// A value on a trace. Until the trace is closed, the reference belongs to the value's handles.
/// After the last handle was dropped it belongs to the trace, although `own` is still empty
/// ([`crate::handle_count`]).
struct TraceValue<O: Outcome> {
    cell: NonNull<ValueCell<O>>,
    /// The reference, once the value has been taken off the trace. Beyond the results of the trace,
    /// the reference to a cell that can be reused.
    own: Option<Arc<ValueCell<O>>>,
    /// For a value that has been taken off: the number of ops of the trace that had been recorded
    /// when the last handle was dropped, if it was dropped.
    released: Option<u32>,
}

// SAFETY: holds because `cell` is the address of a value, which is `Send` and `Sync`, and a
// reference to it exists wherever it is used (`TraceValue::close`).
unsafe impl<O: Outcome> Send for TraceValue<O> {}
// SAFETY: holds for the same reason.
unsafe impl<O: Outcome> Sync for TraceValue<O> {}

impl<O: Outcome> TraceValue<O> {
    fn new(cell: &Arc<ValueCell<O>>) -> TraceValue<O> {
        // A pointer from `Arc::as_ptr` is not null and may become an `Arc` again.
        let cell = NonNull::new(Arc::as_ptr(cell).cast_mut()).expect("bug: a value has a null address");
        TraceValue { cell, own: None, released: None }
    }

    /// Takes the value off the trace that began at `first`, unless that was done before. The trace
    /// then has a reference of its own and knows whether the last handle has been dropped.
    fn close(&mut self, first: u32) {
        if self.own.is_some() {
            return;
        }
        let cell = self.cell.as_ptr().cast_const();
        // SAFETY: holds because the value is on the trace, so a reference to it exists (HANDLE-2).
        let handles = unsafe { &*cell }.handles();
        let mut position = handles.drop_position();
        if position.is_none() {
            // SAFETY: holds for the same reason.
            unsafe { Arc::increment_strong_count(cell) };
            position = handles.detach();
            if position.is_some() {
                // The last handle was dropped between the two checks.
                // SAFETY: holds because the reference was given to the trace (HANDLE-1).
                drop(unsafe { Arc::from_raw(cell) });
            }
        }
        self.released = position.map(|position| position.since(first));
        // SAFETY: holds because this is the reference that was made above, or the one that was
        // given to the trace (HANDLE-1).
        self.own = Some(unsafe { Arc::from_raw(cell) });
    }

    /// The reference. The trace must be closed.
    fn own(&self) -> &Arc<ValueCell<O>> {
        self.own.as_ref().expect("bug: the trace of a value is still open")
    }
}

/// The address of a value, which identifies it.
#[inline(always)]
fn address<O>(cell: &Arc<ValueCell<O>>) -> usize {
    Arc::as_ptr(cell).addr()
}

/// Recorded ops that are equal to a prefix of a template.
pub struct ReplayTrace<O: Outcome> {
    template: Option<Arc<Template>>,
    /// Number of ops.
    ops: usize,
    /// Number of results.
    results: usize,
    /// The address of the value at each place of the template ([`Template::next`]); 0 if unknown.
    known: Vec<usize>,
    made: Vec<TraceValue<O>>,
    bound: Vec<TraceValue<O>>,
    /// Released values that are not on the trace, each with the number of ops recorded before.
    others: Vec<(u32, Arc<ValueCell<O>>)>,
    /// Call sites of the ops: those of the template, unless the ops were recorded elsewhere.
    sites: Sites,
    /// The position of the stream when the trace began. Dropped handles store positions.
    first: u32,
    /// The previous loop iteration, which is complete. It stays open until this one is complete
    /// too, because a value that is released meanwhile is no output of its region.
    before: Option<Box<ReplayTrace<O>>>,
}

/// One of the log entries that a trace stands for.
#[derive(Debug)]
pub enum TraceEntry<O: Outcome> {
    /// An op was recorded.
    Op(TraceOp<ValuePromise<O>>),
    /// The last handle on a value was dropped.
    Release(ValueId),
}

/// The parts of a region whose ops are those of a whole template.
#[derive(Debug)]
pub struct RecordedRegion<O: Outcome> {
    /// Its inputs, in the order of the parameters.
    pub inputs: Vec<Input<ValueRef<O>>>,
    /// The results that are still alive, by their index in the graph.
    pub live: Vec<(u32, ValuePromise<O>)>,
    /// Where each op was recorded.
    pub sites: Sites,
}

/// Whether two call sites are equal, as far as that is cheap to decide.
#[inline(always)]
fn is_same_site(one: &Site, other: &Site) -> bool {
    match (one, other) {
        (Site::Rust(one), Site::Rust(other)) => std::ptr::eq(*one, *other),
        (Site::Host(one), Site::Host(other)) => Arc::ptr_eq(one, other) || one == other,
        (Site::Static(one), Site::Static(other)) => std::ptr::eq(*one, *other) || one == other,
        (Site::Unknown, Site::Unknown) => true,
        _ => false,
    }
}

impl<O: Outcome> ReplayTrace<O> {
    /// Makes this an empty trace of a template.
    pub(crate) fn begin(&mut self, template: Arc<Template>) {
        debug_assert!(self.results == 0 && self.bound.is_empty(), "bug: a trace that is in use is reused");
        if self.was_for(&template) {
            self.known[..template.params()].fill(0);
        } else {
            self.made.clear();
            self.known.clear();
            self.known.resize(template.places(), 0);
        }
        self.ops = 0;
        self.first = 0;
        self.others.clear();
        self.sites = template.sites.clone();
        self.template = Some(template);
    }

    /// Sets the iteration that was recorded just before the first op of this one.
    pub(crate) fn follow(&mut self, before: Box<ReplayTrace<O>>) {
        self.first = before.at();
        self.before = Some(before);
    }

    /// Takes the previous iteration, if it has not been taken.
    pub(crate) fn take_before(&mut self) -> Option<Box<ReplayTrace<O>>> {
        self.before.take()
    }

    /// The position of the stream.
    #[inline(always)]
    pub(crate) fn at(&self) -> u32 {
        self.first.wrapping_add(self.ops as u32)
    }

    /// Switches to another template that begins with the ops recorded so far.
    pub(crate) fn switch_to(&mut self, template: Arc<Template>) {
        self.made.truncate(self.results);
        self.known.clear();
        self.known.extend(self.bound.iter().map(|bound| bound.cell.addr().get()));
        self.known.resize(template.params(), 0);
        self.known.extend(self.made.iter().map(|made| made.cell.addr().get()));
        self.known.resize(template.places(), 0);
        let mut sites = Vec::clone(&template.sites);
        sites[..self.ops].clone_from_slice(&self.sites[..self.ops]);
        self.sites = Arc::new(sites);
        self.template = Some(template);
    }

    /// Whether this trace was last used for the template, so that its spare cells have the right
    /// types.
    pub(crate) fn was_for(&self, template: &Arc<Template>) -> bool {
        self.template.as_ref().is_some_and(|own| Arc::ptr_eq(own, template))
    }

    /// The template that this trace follows.
    #[must_use]
    pub fn template(&self) -> &Arc<Template> {
        self.template.as_ref().expect("bug: a trace has no template")
    }

    /// The template, and how many of its ops and parameters are known.
    pub(crate) fn place(&self) -> (&Template, usize, usize) {
        (self.template(), self.ops, self.bound.len())
    }

    /// Number of ops.
    pub fn ops(&self) -> usize {
        self.ops
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops == 0
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.ops == self.template().ops()
    }

    /// Records a call on the fast path: it is the next op of the template, has one result and the
    /// call site of the template, and a cell can be reused. Returns the result, which has a handle.
    /// Otherwise returns `None` and changes nothing.
    ///
    /// A steady loop takes this path for every op. It contains no large closures and nothing that
    /// takes the address of the call, so that it is inlined into the tensor method.
    #[inline(always)]
    pub(crate) fn record_fast<S, H: Handle<S, Outcome = O>>(
        &mut self,
        call: &RecordCall<'_, H>,
        stream: &Arc<S>,
    ) -> Option<Arc<ValueCell<O>>> {
        let template = self.template.as_ref()?;
        let (places, count) = template.next(self.ops, call)?;
        // Binding parameters is the last check, because it has effects.
        let has_spare = self.made.get(self.results)?.own.is_some();
        if count != 1 || !has_spare || !is_same_site(self.sites.get(self.ops)?, call.site) {
            return None;
        }
        for (tensor, &place) in call.operands.iter().zip(places) {
            if *self.known.get(place as usize)? != address(tensor.cell()) {
                return self
                    .bind_operands(self.ops, call.operands, stream)
                    .then(|| self.take_next())
                    .flatten();
            }
        }
        self.take_next()
    }

    /// Takes the cell of the next result, the only one of the next op, if there is a spare cell.
    #[inline(always)]
    fn take_next(&mut self) -> Option<Arc<ValueCell<O>>> {
        let cell = self.made.get_mut(self.results)?.own.take()?;
        self.results += 1;
        self.ops += 1;
        Some(cell)
    }

    /// Records a call if it is the next op of the template. Otherwise returns false and changes
    /// nothing.
    pub(crate) fn record<S, H: Handle<S, Outcome = O>>(
        &mut self,
        call: &RecordCall<'_, H>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<H>,
    ) -> bool {
        let Some(template) = &self.template else { return false };
        let Some((places, count)) = template.next(self.ops, call) else { return false };
        let mut operands = call.operands.iter().zip(places);
        if !operands.all(|(tensor, &place)| self.known.get(place as usize) == Some(&address(tensor.cell())))
            && !self.bind_operands(self.ops, call.operands, stream)
        {
            return false;
        }
        if !self.sites.get(self.ops).is_some_and(|site| is_same_site(site, call.site)) {
            Arc::make_mut(&mut self.sites)[self.ops] = call.site.clone();
        }
        (0..count).for_each(|index| results.put(self.hand_out(index, stream)));
        self.ops += 1;
        true
    }

    /// A handle on the next result of the trace, which is result `index` of the next op.
    fn hand_out<S, H: Handle<S, Outcome = O>>(&mut self, index: usize, stream: &Arc<S>) -> H {
        let spare = self.made.get_mut(self.results).and_then(|made| made.own.take());
        let cell = spare.unwrap_or_else(|| self.make(index));
        self.results += 1;
        H::new(cell, stream.clone())
    }

    /// A new cell for the next result.
    #[cold]
    fn make(&mut self, index: usize) -> Arc<ValueCell<O>> {
        let template = self.template();
        let place = template.params() + self.results;
        let ty = template.canon.graph().nodes()[self.ops].signature().results()[index].clone();
        let cell = Arc::new(ValueCell::pending(ty));
        cell.handles().set_result(self.results as u32);
        self.known[place] = address(&cell);
        let made = TraceValue::new(&cell);
        match self.made.get_mut(self.results) {
            Some(slot) => *slot = made,
            None => self.made.push(made),
        }
        cell
    }

    /// Binds operands to the parameters of the template that are not known yet. Returns false and
    /// changes nothing if an operand is not the value that the op has at that place.
    #[inline(never)]
    fn bind_operands<S, H: Handle<S, Outcome = O>>(
        &mut self,
        at: usize,
        operands: &[&H],
        stream: &Arc<S>,
    ) -> bool {
        let template = self.template().clone();
        let places = template.operands(at);
        let before = self.bound.len();
        let is_match = operands.iter().zip(places).all(|(tensor, &place)| {
            let place = place as usize;
            self.known[place] == address(tensor.cell())
                || (place == self.bound.len()
                    && place < template.params()
                    && self.bind::<S, H>(&template, tensor, stream))
        });
        if !is_match {
            for bound in self.bound.drain(before..) {
                self.known[before..template.params()].fill(0);
                // SAFETY: holds because the value is an operand of the call, which holds a handle
                // on it.
                let position = unsafe { bound.cell.as_ref() }.handles().detach();
                debug_assert_eq!(position, None, "bug: an operand without a handle");
            }
        }
        is_match
    }

    /// Binds a tensor to the next parameter, if it has the right type and is not on the trace
    /// already.
    fn bind<S, H: Handle<S, Outcome = O>>(
        &mut self,
        template: &Template,
        tensor: &H,
        stream: &Arc<S>,
    ) -> bool {
        let cell = tensor.cell();
        let (ty, is_lifted) = template.param(self.bound.len());
        if !Arc::ptr_eq(tensor.stream(), stream) || cell.ty() != ty || cell.is_scalar() != is_lifted {
            return false;
        }
        if let Some(index) = cell.handles().trace_index()
            && !self.before.as_mut().is_some_and(|before| before.detach(index, cell))
        {
            return false;
        }
        cell.handles().bind(self.bound.len() as u32);
        self.known[self.bound.len()] = address(cell);
        self.bound.push(TraceValue::new(cell));
        true
    }

    /// Takes a value off this trace because the next iteration uses it. The value stays alive, and
    /// the next iteration notes its release. False if it is not on this trace.
    fn detach(&mut self, index: TraceIndex, cell: &Arc<ValueCell<O>>) -> bool {
        let value = match index {
            TraceIndex::Result(index) => self.made[..self.results].get_mut(index as usize),
            TraceIndex::Parameter(index) => self.bound.get_mut(index as usize),
        };
        let is_cell = |value: &&mut TraceValue<O>| std::ptr::eq(value.cell.as_ptr(), Arc::as_ptr(cell));
        let Some(value) = value.filter(is_cell) else { return false };
        value.close(self.first);
        true
    }

    /// Notes the release of a value that is not on the trace.
    pub(crate) fn note_release(&mut self, cell: Arc<ValueCell<O>>) {
        self.others.push((self.ops as u32, cell));
    }

    /// Whether the trace keeps so many released values of others that it should end to free their
    /// memory.
    pub(crate) fn is_crowded(&self) -> bool {
        self.others.len() >= MAX_OTHERS
    }

    /// Takes all values off the trace and finds out which of them have been released.
    pub(crate) fn close(&mut self) {
        let values = self.made[..self.results].iter_mut().chain(&mut self.bound);
        values.for_each(|value| value.close(self.first));
    }

    /// The ids of all results, and whether they are still alive. The trace must be closed.
    pub fn outputs(&self) -> impl Iterator<Item = (ValueId, bool)> + '_ {
        self.made[..self.results].iter().map(|made| (made.own().id(), made.released.is_none()))
    }

    /// The ids of the parameters that have been released. The trace must be closed.
    pub fn dying(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.bound.iter().filter(|bound| bound.released.is_some()).map(|bound| bound.own().id())
    }

    /// The ids of released values that are not on the trace.
    pub fn others(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.others.iter().map(|(_, cell)| cell.id())
    }

    /// Takes the parts of the region. The cells that remain can be reused.
    pub fn take_region(&mut self) -> RecordedRegion<O> {
        let lifted = self.template().clone();
        let lifted = lifted.canon.lifted().iter();
        let inputs = self.bound.drain(..).zip(lifted);
        let inputs = inputs.filter_map(|(bound, &lifted)| {
            Some(Input { value: ValueRef::of(bound.own?), lifted, dies: bound.released.is_some() })
        });
        let inputs = inputs.collect();
        let mut live = Vec::new();
        for (index, made) in (0u32..).zip(&mut self.made[..self.results]) {
            if made.released.is_none() {
                live.extend(made.own.take().map(|cell| (index, ValuePromise::of(cell))));
            } else if !made
                .own
                .as_ref()
                .is_some_and(|cell| Arc::strong_count(cell) == 1 && cell.recycle(index))
            {
                // There is no handle, but a waiter. The dropped promise tells it that the value was
                // abandoned.
                made.own.take().map(ValuePromise::of);
            }
        }
        self.results = 0;
        self.others.clear();
        RecordedRegion { inputs, live, sites: std::mem::take(&mut self.sites) }
    }

    /// Splits the trace into the recorded ops and releases, in order. `late` holds values with the
    /// number of ops of this trace after which they were released: on entry those of the previous
    /// trace, on return those of this trace that were released after its end, counted from there.
    pub fn take_entries(&mut self, late: &mut Vec<(u32, ValueId)>) -> Vec<TraceEntry<O>> {
        let template = self.template().clone();
        let mut releases: Vec<(u32, ValueId)> = std::mem::take(late);
        releases.extend(self.others.drain(..).map(|(when, cell)| (when, cell.id())));
        releases.extend(self.bound.iter().filter_map(|bound| Some((bound.released?, bound.own().id()))));
        let made = self.made[..self.results].iter();
        releases.extend(made.filter_map(|made| Some((made.released?, made.own().id()))));
        // A stable sort keeps the order of releases between the same two ops.
        releases.sort_by_key(|&(when, _)| when);
        let mut releases = releases.into_iter().peekable();
        let mut entries = Vec::with_capacity(self.ops + releases.len());
        let cells: Vec<_> = self.made[..self.results].iter_mut().filter_map(|made| made.own.take()).collect();
        let mut results = 0;
        for (at, node) in template.canon.graph().nodes()[..self.ops].iter().enumerate() {
            while let Some((_, value)) = releases.next_if(|&(when, _)| when as usize <= at) {
                entries.push(TraceEntry::Release(value));
            }
            let operands = node.operands().iter().map(|place| match *place {
                Ref::Result(index) => Operand::Tensor(ValueRef::of(cells[index as usize].clone())),
                Ref::Param(index) => {
                    let value = ValueRef::of(self.bound[index as usize].own().clone());
                    match template.param(index as usize).1 {
                        true => Operand::Scalar(value),
                        false => Operand::Tensor(value),
                    }
                }
            });
            let operands: Operands<ValueRef<O>> = operands.collect();
            let count = node.signature().results().len();
            let made = cells[results..results + count].iter().cloned().map(ValuePromise::of);
            let made: Results<ValuePromise<O>> = made.collect();
            results += count;
            entries.push(TraceEntry::Op(TraceOp {
                signature: node.signature().clone(),
                operands,
                results: made,
                effect: Effect::Pure,
                mode: Mode::Fused,
                site: self.sites[at].clone(),
            }));
        }
        for (when, value) in releases {
            match (when as usize).checked_sub(self.ops) {
                None | Some(0) => entries.push(TraceEntry::Release(value)),
                Some(after) => late.push((after as u32, value)),
            }
        }
        (self.ops, self.results) = (0, 0);
        self.bound.clear();
        entries
    }
}

impl<O: Outcome> Drop for ReplayTrace<O> {
    /// Tells the waiters of all results that these were abandoned.
    fn drop(&mut self) {
        self.close();
        let made = self.made[..self.results].iter_mut();
        made.filter_map(|made| made.own.take()).for_each(|cell| drop(ValuePromise::of(cell)));
    }
}

impl<O: Outcome> Default for ReplayTrace<O> {
    fn default() -> ReplayTrace<O> {
        ReplayTrace {
            template: None,
            ops: 0,
            results: 0,
            known: Vec::new(),
            made: Vec::new(),
            bound: Vec::new(),
            others: Vec::new(),
            sites: Sites::default(),
            first: 0,
            before: None,
        }
    }
}

impl<O: Outcome> fmt::Debug for ReplayTrace<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayTrace({} ops)", self.ops)
    }
}
