//! What was recorded of a template: which values stand where, and when they were released.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_fusion::graph::Ref;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Input, Mode, Operand, Operands, Results, TraceOp};
use fuseline_fusion::{Site, ValueId};

use crate::call::RecordCall;
use crate::handle::{Handle, TakeResults};
use crate::handle_count::Number;
use crate::limits::MAX_OTHERS;
use crate::template::{Sites, Template};
use crate::value::{Outcome, ValueCell, ValuePromise, ValueRef};

/// A value on a tape. Until the tape is closed, the reference belongs to its handle, or, when the
/// last handle has been dropped, to the tape, without being here ([`super::handle_count`]).
struct Placed<O: Outcome> {
    cell: NonNull<ValueCell<O>>,
    /// The reference: when the value has been taken off the tape; and, beyond the results made, of
    /// a cell that can be used again.
    own: Option<Arc<ValueCell<O>>>,
    /// When it has been taken off: the number of ops that had been recorded when the last handle
    /// was dropped, from the tape's first on.
    released: Option<u32>,
}

// SAFETY: holds because `cell` is the address of a value, which is `Send` and `Sync`, and to which
// somebody has a reference where it is used (`Placed::close`).
unsafe impl<O: Outcome> Send for Placed<O> {}
// SAFETY: holds for the same reason.
unsafe impl<O: Outcome> Sync for Placed<O> {}

impl<O: Outcome> Placed<O> {
    fn new(cell: &Arc<ValueCell<O>>) -> Placed<O> {
        // What `Arc::as_ptr` gives may become a reference again; it is not null.
        let cell = NonNull::new(Arc::as_ptr(cell).cast_mut()).expect("bug: a value at no address");
        Placed { cell, own: None, released: None }
    }

    /// Takes the value off the tape that began at `first`, if that was not done before: gets a
    /// reference of its own, and finds out whether the last handle has gone.
    fn close(&mut self, first: u32) {
        if self.own.is_some() {
            return;
        }
        let cell = self.cell.as_ptr().cast_const();
        // SAFETY: holds because the value is on the tape, so somebody has a reference to it (H2).
        let handles = unsafe { &*cell }.handles();
        let mut stood = handles.given();
        if stood.is_none() {
            // SAFETY: holds for the same reason.
            unsafe { Arc::increment_strong_count(cell) };
            stood = handles.take_off();
            if stood.is_some() {
                // Dropped this very moment.
                // SAFETY: holds because the reference was given to the tape (H1).
                drop(unsafe { Arc::from_raw(cell) });
            }
        }
        self.released = stood.map(|stood| stood.since(first));
        // SAFETY: holds because that is the reference that was made above, or the one that was
        // given (H1).
        self.own = Some(unsafe { Arc::from_raw(cell) });
    }

    /// The reference. The tape has been closed.
    fn own(&self) -> &Arc<ValueCell<O>> {
        self.own.as_ref().expect("bug: a value of a tape that is not closed")
    }
}

/// What a value is compared by.
#[inline(always)]
fn address<O>(cell: &Arc<ValueCell<O>>) -> usize {
    Arc::as_ptr(cell).addr()
}

/// A run of ops that are those of a template from its first on.
pub struct ReplayTrace<O: Outcome> {
    template: Option<Arc<Template>>,
    /// Number of ops.
    ops: usize,
    /// Number of results.
    results: usize,
    /// The address of the value at each place of the template ([`Template::next`]), as far as it is
    /// known.
    known: Vec<usize>,
    made: Vec<Placed<O>>,
    bound: Vec<Placed<O>>,
    /// Values of others that were released meanwhile, with the number of ops then.
    others: Vec<(u32, Arc<ValueCell<O>>)>,
    /// The template's, unless the ops were recorded elsewhere.
    sites: Sites,
    /// Where the stream stood when the tape began; that is asked for when handles are dropped.
    first: u32,
    /// The round before this one, which is complete. Until this one is too, its values are not
    /// closed: what is released meanwhile is not needed behind it.
    before: Option<Box<ReplayTrace<O>>>,
}

/// An entry of the log that a tape stands for.
#[derive(Debug)]
pub enum TraceEntry<O: Outcome> {
    /// An op was recorded.
    Op(TraceOp<ValuePromise<O>>),
    /// The last handle on a value was dropped.
    Release(ValueId),
}

/// What a region is made of, if its ops are those of a whole template.
#[derive(Debug)]
pub struct Recorded<O: Outcome> {
    /// Its inputs, in the order of the parameters.
    pub inputs: Vec<Input<ValueRef<O>>>,
    /// The results that live on, by their number in the graph.
    pub live: Vec<(u32, ValuePromise<O>)>,
    /// Where each op was recorded.
    pub sites: Sites,
}

/// Whether two call sites are the same, where that is cheap to tell.
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
    /// Makes the tape one of no ops.
    pub(crate) fn begin(&mut self, template: Arc<Template>) {
        debug_assert!(self.results == 0 && self.bound.is_empty(), "bug: a tape is used again that is in use");
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

    /// Keeps the round that was recorded just before the first op of this one.
    pub(crate) fn follow(&mut self, before: Box<ReplayTrace<O>>) {
        self.first = before.at();
        self.before = Some(before);
    }

    /// The round before this one, if it has not been taken.
    pub(crate) fn take_before(&mut self) -> Option<Box<ReplayTrace<O>>> {
        self.before.take()
    }

    /// Where the stream stands.
    #[inline(always)]
    pub(crate) fn at(&self) -> u32 {
        self.first.wrapping_add(self.ops as u32)
    }

    /// Goes on by another template that begins like this one.
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

    /// Whether it was last used for this template: its spare cells have the right types.
    pub(crate) fn was_for(&self, template: &Arc<Template>) -> bool {
        self.template.as_ref().is_some_and(|own| Arc::ptr_eq(own, template))
    }

    /// The template that it follows.
    #[must_use]
    pub fn template(&self) -> &Arc<Template> {
        self.template.as_ref().expect("bug: a tape is for a template")
    }

    /// Where it stands: the template, and how many of its ops and parameters are known.
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

    /// Records a call, if it is the next op of the template, has one result, and is all that is
    /// usual: recorded at the same place, with a cell that can be used again. If not, nothing has
    /// changed. Returns the result with its handle.
    ///
    /// What a steady loop does for every op: no closures of any size and nothing that takes the
    /// address of the call, so that it becomes a part of the method that was called.
    #[inline(always)]
    pub(crate) fn record_fast<S, H: Handle<S, Outcome = O>>(
        &mut self,
        call: &RecordCall<'_, H>,
        stream: &Arc<S>,
    ) -> Option<Arc<ValueCell<O>>> {
        let template = self.template.as_ref()?;
        let (places, count) = template.next(self.ops, call)?;
        // Parameters become known only if the call is recorded: everything else comes before.
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

    /// The next result, if there is a cell for it, as the only one of the next op.
    #[inline(always)]
    fn take_next(&mut self) -> Option<Arc<ValueCell<O>>> {
        let cell = self.made.get_mut(self.results)?.own.take()?;
        self.results += 1;
        self.ops += 1;
        Some(cell)
    }

    /// Records a call, if it is the next op of the template. If not, nothing has changed.
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

    /// A handle on the next result, which is the one of the next op with this number.
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
        cell.handles().make(self.results as u32);
        self.known[place] = address(&cell);
        let made = Placed::new(&cell);
        match self.made.get_mut(self.results) {
            Some(slot) => *slot = made,
            None => self.made.push(made),
        }
        cell
    }

    /// Makes parameters of the operands of the op at this place that are parameters of it, and not
    /// known yet. False, and nothing has changed, if another operand is not what the op has there.
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
        let is_meant = operands.iter().zip(places).all(|(tensor, &place)| {
            let place = place as usize;
            self.known[place] == address(tensor.cell())
                || (place == self.bound.len()
                    && place < template.params()
                    && self.bind::<S, H>(&template, tensor, stream))
        });
        if !is_meant {
            for bound in self.bound.drain(before..) {
                self.known[before..template.params()].fill(0);
                // SAFETY: holds because the value is an operand of the call, which has its handle.
                let stood = unsafe { bound.cell.as_ref() }.handles().take_off();
                debug_assert_eq!(stood, None, "bug: an operand without a handle");
            }
        }
        is_meant
    }

    /// Makes a tensor the next parameter, if it can be that: it has the right type and is not on
    /// the tape already.
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
        if let Some(number) = cell.handles().number()
            && !self.before.as_mut().is_some_and(|before| before.let_go(number, cell))
        {
            return false;
        }
        cell.handles().bind(self.bound.len() as u32);
        self.known[self.bound.len()] = address(cell);
        self.bound.push(Placed::new(cell));
        true
    }

    /// Takes one value off the tape, because the round behind it uses it: so it lives on, and
    /// whether it is released is noted there. False if it is not on this tape.
    fn let_go(&mut self, number: Number, cell: &Arc<ValueCell<O>>) -> bool {
        let placed = match number {
            Number::Made(index) => self.made[..self.results].get_mut(index as usize),
            Number::Bound(index) => self.bound.get_mut(index as usize),
        };
        let is_cell = |placed: &&mut Placed<O>| std::ptr::eq(placed.cell.as_ptr(), Arc::as_ptr(cell));
        let Some(placed) = placed.filter(is_cell) else { return false };
        placed.close(self.first);
        true
    }

    /// Notes the release of a value that is not on the tape.
    pub(crate) fn note_release(&mut self, cell: Arc<ValueCell<O>>) {
        self.others.push((self.ops as u32, cell));
    }

    /// Whether so many values that are not on the tape were released that their memory should not
    /// wait for its end.
    pub(crate) fn is_crowded(&self) -> bool {
        self.others.len() >= MAX_OTHERS
    }

    /// Takes all values off the tape, and finds out which of them have been released.
    pub(crate) fn close(&mut self) {
        let values = self.made[..self.results].iter_mut().chain(&mut self.bound);
        values.for_each(|placed| placed.close(self.first));
    }

    /// The ids of all results, and whether they live on. The tape has been closed.
    pub fn outputs(&self) -> impl Iterator<Item = (ValueId, bool)> + '_ {
        self.made[..self.results].iter().map(|made| (made.own().id(), made.released.is_none()))
    }

    /// The ids of the parameters that have been released. The tape has been closed.
    pub fn dying(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.bound.iter().filter(|bound| bound.released.is_some()).map(|bound| bound.own().id())
    }

    /// The ids of other values that were released meanwhile.
    pub fn others(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.others.iter().map(|(_, cell)| cell.id())
    }

    /// Takes out what a region consists of. What is left are cells that can be used again.
    pub fn take_region(&mut self) -> Recorded<O> {
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
                // Nobody has a handle, but somebody waits, and is told that it was given up.
                made.own.take().map(ValuePromise::of);
            }
        }
        self.results = 0;
        self.others.clear();
        Recorded { inputs, live, sites: std::mem::take(&mut self.sites) }
    }

    /// Takes the tape apart into what was recorded, in order. `late` are values that were released
    /// after so many ops of the tape: at first those of the tape before, then, from its end on,
    /// those of this one.
    pub fn take_entries(&mut self, late: &mut Vec<(u32, ValueId)>) -> Vec<TraceEntry<O>> {
        let template = self.template().clone();
        let mut releases: Vec<(u32, ValueId)> = std::mem::take(late);
        releases.extend(self.others.drain(..).map(|(when, cell)| (when, cell.id())));
        releases.extend(self.bound.iter().filter_map(|bound| Some((bound.released?, bound.own().id()))));
        let made = self.made[..self.results].iter();
        releases.extend(made.filter_map(|made| Some((made.released?, made.own().id()))));
        // Stable: what was released between the same two ops.
        releases.sort_by_key(|&(when, _)| when);
        let mut releases = releases.into_iter().peekable();
        let mut steps = Vec::with_capacity(self.ops + releases.len());
        let cells: Vec<_> = self.made[..self.results].iter_mut().filter_map(|made| made.own.take()).collect();
        let mut results = 0;
        for (at, node) in template.canon.graph().nodes()[..self.ops].iter().enumerate() {
            while let Some((_, value)) = releases.next_if(|&(when, _)| when as usize <= at) {
                steps.push(TraceEntry::Release(value));
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
            steps.push(TraceEntry::Op(TraceOp {
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
                None | Some(0) => steps.push(TraceEntry::Release(value)),
                Some(after) => late.push((after as u32, value)),
            }
        }
        (self.ops, self.results) = (0, 0);
        self.bound.clear();
        steps
    }
}

impl<O: Outcome> Drop for ReplayTrace<O> {
    /// Whoever waits for a result is told that it was given up.
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
