//! Replay: recording what was recorded before, op by op, without recording it.
//!
//! What a program records between two boundaries that it asks for is mostly what it recorded
//! between two others before. So where the driver has sealed the same region twice, and nothing
//! else lay between those boundaries, the region is a [`Template`]. From then on a call is compared
//! with the op that the template has next: op, attributes, bodies, and the operands by identity. If
//! it is that op, its results have the types that the template says, and all that is left to do is
//! to hand out handles and to note which values they are ([`ReplayTrace`]). At the boundary the
//! tape goes into the log as one entry, and the driver makes a job of it without looking at its
//! ops: graph, canonical form and key are the template's.
//!
//! So it is with a *round*, a region that the program repeats without asking for boundaries and
//! that the driver has found to be expected (`fusion::region::loop_body`). Which op begins a round
//! the driver knows, so it invites the next one by its number ([`Replay::expect_loop`]). There the
//! ops go onto a tape, behind each complete tape comes another, and a tape goes into the log when
//! the one behind it is complete too: what is released by then is not needed behind it. So two
//! tapes may be under way; a value that the second one uses is taken off the first.
//!
//! A call that is not the next op ends the tape. What is on it goes into the log as it is, and the
//! driver takes its steps one by one: the ops and releases that were recorded, in their order. So
//! does a tape for which the region would not be the template's after all, because somebody else
//! has put something before it. Where regions end, their keys, outputs and events are the same as
//! without replay.
//!
//! Invariants:
//! - Q1: a tape stands for its steps: the driver may always take them one by one instead, with the
//!   same outcome.
//! - Q2: a tape is a region only from a boundary that the program asked for to the next, where the
//!   plans say what they said when it was made (`RegionBuilder::replay`), or where the builder
//!   expects just that round (`RegionBuilder::replay_round`).
//! - Q3: a value is a result or parameter of a tape if the tape knows its address in that place.
//!   What a value says of itself ([`handles`]) is about the tape of its stream that is not closed,
//!   or about the one of two that it is on.
//! - Q4: a cell is used again only if nobody but the tape has a reference to it and nobody ever
//!   waited for it.
//! - Q5: a value on a tape belongs to its handle until the last one is dropped, and to the tape
//!   from then on; a tape that is handed over is closed: it has references of its own.
//! - Q6: entries of a stream that happen one after the other keep their order, whichever way they
//!   go ([`lock`]). An entry that is left at the gate has handles of its own on what it mentions,
//!   so that the end of a life, which does not pass the gate, comes after it. Their number is
//!   limited ([`permits`]).
//!
//! Templates that do not fit are left out for a number of times that doubles; all of this is a
//! function of what is recorded.

mod combining_lock;
mod permits;
mod template_cache;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::canon::{CanonRegion, RegionKey};
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, LoopFingerprint, Mode, Unit};
use fuseline_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Condvar, Mutex, MutexGuard, Rank};
use smallvec::SmallVec;

use self::combining_lock::{CombiningLock, LockState};
use self::permits::{Got, Permit, Permits};
use self::template_cache::TemplateCache;
use crate::call::RecordCall;
use crate::entry::{End, Entry};
use crate::handle::{Handle, TakeResults};
use crate::limits::MAX_TRACES;
use crate::replay_trace::ReplayTrace;
use crate::stream::{OutcomeOf, Stream};
use crate::template::{LoopIteration, Sites, StreamPosition, Template};
use crate::value::ValueCell;

/// Whether a call was recorded on a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Replayed {
    /// It is still to be recorded.
    No,
    /// It is on a trace.
    Yes,
    /// It was, or it is not to be, and for too long there have been as many tapes under way as
    /// there may be.
    TooMany,
}

impl From<bool> for Replayed {
    fn from(is_recorded: bool) -> Replayed {
        if is_recorded { Replayed::Yes } else { Replayed::No }
    }
}

/// What is behind the gate.
struct Session<S: Stream> {
    /// There is one while the gate is closed.
    trace: Option<Box<ReplayTrace<OutcomeOf<S>>>>,
    /// What was recorded before the tape ended at a boundary, so that no pending op knows a value
    /// that is not on the tape.
    is_clean: bool,
}

/// An entry that was left at the gate, with handles on the values that it mentions: whoever left it
/// may drop theirs before it is seen to, and the end of their lives must not come before it.
struct DeferredEntry<S: Stream> {
    entry: Entry<OutcomeOf<S>>,
    mentions: Mentions<S>,
    permit: Permit,
}

/// Handles on what an entry mentions.
type Mentions<S> = SmallVec<[<S as Stream>::Handle; 2]>;

/// So many ops are never recorded.
const NOT_DUE: u64 = u64::MAX;

/// The replaying of one stream.
pub struct Replay<S: Stream> {
    is_on: bool,
    lock: CombiningLock<Session<S>, DeferredEntry<S>>,
    permits: Arc<Permits>,
    /// Where the tape stands, written by who holds the gate.
    at: AtomicU32,
    /// What went into the log, on tapes too, as in [`StreamPosition`]; where threads record at once
    /// it may be behind or ahead.
    ops: AtomicU64,
    asks: AtomicU64,
    /// After how many ops a round may begin ([`Replay::expect_loop`]).
    due: AtomicU64,
    /// Rounds on tapes have turned out to be none.
    is_off: AtomicBool,
    library: Mutex<TemplateCache<OutcomeOf<S>>>,
    /// So many tapes are under way that the program has to wait.
    is_crowded: AtomicBool,
    came_back: Condvar,
}

impl<S: Stream> fmt::Debug for Replay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay(is_on: {}, position: {})", self.is_on, self.at())
    }
}

impl<S: Stream> Replay<S> {
    /// Nothing is expected yet; if not `is_on`, nothing ever will be.
    pub fn new(is_on: bool) -> Replay<S> {
        Replay {
            is_on,
            lock: CombiningLock::new(Session::default()),
            permits: Permits::new(),
            at: AtomicU32::new(0),
            ops: AtomicU64::new(0),
            asks: AtomicU64::new(0),
            due: AtomicU64::new(NOT_DUE),
            is_off: AtomicBool::new(false),
            library: Mutex::new(Rank::TemplateCache, TemplateCache::default()),
            is_crowded: AtomicBool::new(false),
            came_back: Condvar::new(),
        }
    }

    // ----- the recording side -----

    /// Records a call if it is what is expected, has one result, and is recorded as it usually is
    /// ([`ReplayTrace::record_fast`]). If not, it is still to be recorded. Returns the result with
    /// its handle.
    #[inline(always)]
    pub fn record_fast(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
    ) -> Option<Arc<ValueCell<OutcomeOf<S>>>> {
        // A child of a fork is told where there is time for it.
        if self.lock.state() != LockState::Closed || is_forked() || !is_fit(call, &**stream) {
            return None;
        }
        let mut held = self.lock.hold(LockState::Closed)?;
        let mut made = None;
        if let Some(trace) = &mut held.inside().trace {
            made = trace.record_fast(call, stream);
            self.at.store(trace.at(), Ordering::Relaxed);
        }
        held.release(LockState::Closed, |session, entry| self.see_to(session, entry, stream));
        made
    }

    /// Records a call if it is what is expected.
    #[inline(always)]
    pub fn record(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> Replayed {
        match self.lock.state() {
            LockState::Open if self.ops.load(Ordering::Relaxed) < self.due.load(Ordering::Relaxed) => {
                Replayed::No
            }
            state => self.record_expected(state, call, stream, results),
        }
    }

    #[inline(never)]
    fn record_expected(
        &self,
        state: LockState,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> Replayed {
        // It goes into a body, and is none of this stream's ops, though it may be called by a value
        // of this stream.
        if call.operands.iter().any(|tensor| tensor.cell().place().is_some()) {
            return Replayed::No;
        }
        match state {
            // It goes the way of all entries, and ends the tape there.
            _ if !is_fit(call, &**stream) => Replayed::No,
            LockState::Open => self.record_due(call, stream, results).into(),
            LockState::Closed => self.record_next(call, stream, results),
            from => self.record_first(from, call, stream, results),
        }
    }

    fn record_next(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> Replayed {
        let Some(mut held) = self.lock.hold(LockState::Closed) else { return Replayed::No };
        let session = held.inside();
        let is_next = session.trace.as_mut().is_some_and(|trace| trace.record(call, stream, results));
        let is_recorded = is_next
            || self.record_round(session, call, stream, results)
            || self.switch_template(session, call, stream, results);
        self.note_place(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        held.release(next, |session, entry| self.see_to(session, entry, stream));
        if self.is_crowded.load(Ordering::Relaxed) && !self.wait_for_tapes(stream) && is_recorded {
            return Replayed::TooMany;
        }
        is_recorded.into()
    }

    #[cold]
    fn record_first(
        &self,
        from: LockState,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> Replayed {
        if self.is_crowded.load(Ordering::Relaxed) && !self.wait_for_tapes(stream) {
            return Replayed::TooMany;
        }
        let Some(mut held) = self.lock.hold(from) else { return Replayed::No };
        let session = held.inside();
        let is_recorded = self.begin(session, from == LockState::Fresh, call, stream, results)
            || self.begin_round(session, call, stream, results);
        self.note_place(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        held.release(next, |session, entry| self.see_to(session, entry, stream));
        is_recorded.into()
    }

    /// Lets those who drop handles know where the tape stands.
    fn note_place(&self, session: &Session<S>) {
        if let Some(trace) = &session.trace {
            self.at.store(trace.at(), Ordering::Relaxed);
        }
    }

    /// Where the tape stands, for a value that is on it.
    #[inline(always)]
    pub fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }

    /// Begins a tape with a call.
    #[cold]
    fn begin(
        &self,
        session: &mut Session<S>,
        is_clean: bool,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let mut library = self.library.lock();
        for template in library.candidates(call) {
            let mut trace = library.trace(template);
            if trace.record(call, stream, results) {
                (session.trace, session.is_clean) = (Some(trace), is_clean);
                return true;
            }
            library.keep(trace);
        }
        false
    }

    /// Begins a tape with a call, if that is the first op of the round that is recorded.
    #[cold]
    fn record_due(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        self.lock.make_ready();
        let Some(mut held) = self.lock.hold(LockState::Ready) else { return false };
        let session = held.inside();
        let is_recorded = self.begin_round(session, call, stream, results);
        self.note_place(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        held.release(next, |session, entry| self.see_to(session, entry, stream));
        is_recorded
    }

    fn begin_round(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let mut library = self.library.lock();
        let now =
            StreamPosition { ops: self.ops.load(Ordering::Relaxed), asks: self.asks.load(Ordering::Relaxed) };
        let Some((template, since)) = library.expected_loop(now) else {
            self.due.store(NOT_DUE, Ordering::Relaxed);
            return false;
        };
        // If this is not where it begins, the next one does so many ops later.
        self.due.store(now.ops + template.ops() as u64 - since, Ordering::Relaxed);
        if since > 0 {
            return false;
        }
        let mut trace = library.trace(template);
        if !trace.record(call, stream, results) {
            library.keep(trace);
            return false;
        }
        self.forget_expected_loop(&mut library);
        // What is pending knows other values, and those of earlier rounds may be asked for.
        (session.trace, session.is_clean) = (Some(trace), false);
        true
    }

    fn forget_expected_loop(&self, library: &mut TemplateCache<OutcomeOf<S>>) {
        library.forget_expected_loop();
        self.due.store(NOT_DUE, Ordering::Relaxed);
        self.is_off.store(false, Ordering::Relaxed);
    }

    /// Records a call that comes after a round that is complete, as the first op of the next.
    #[cold]
    fn record_round(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let is_next =
            |trace: &ReplayTrace<OutcomeOf<S>>| trace.is_complete() && trace.template().round.is_some();
        if !session.trace.as_deref().is_some_and(is_next) || self.is_off.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut trace) = session.trace.take() else { return false };
        if let Some(before) = trace.take_before() {
            self.hand_over_round(before, End::Iteration, stream);
        }
        let mut next = self.library.lock().trace(trace.template().clone());
        next.follow(trace);
        session.trace.insert(next).record(call, stream, results)
    }

    /// Records a call that is not the next op of the template by another template that begins like
    /// it. If there is none, the tape ends.
    #[cold]
    fn switch_template(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let Some(trace) = session.trace.as_mut() else { return false };
        let others = match trace.template().round {
            None => self.library.lock().alternatives(trace, call),
            Some(_) => Vec::new(),
        };
        let template = trace.template().clone();
        for other in others {
            trace.switch_to(other);
            if trace.record(call, stream, results) {
                return true;
            }
            trace.switch_to(template.clone());
        }
        // What was a round for this thread only is none.
        let ends_rounds = !self.is_off.load(Ordering::Relaxed);
        self.hand_over_part(session, ends_rounds, stream);
        false
    }

    /// Puts an entry where it belongs: into the log, on the tape, or behind it.
    #[inline(always)]
    pub fn submit(&self, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) {
        self.submit_with(entry, &[], stream);
    }

    /// As [`Replay::submit`], for an op on `operands`.
    #[inline(always)]
    pub fn submit_with(&self, entry: Entry<OutcomeOf<S>>, operands: &[&S::Handle], stream: &Arc<S>) {
        match self.lock.state() {
            LockState::Closed => self.go_through(entry, operands, stream),
            state => {
                if state != LockState::Open && matches!(entry, Entry::Op(_)) {
                    self.lock.make_open();
                }
                match self.append(entry, stream) {
                    LockState::Ready if self.is_on => self.lock.make_ready(),
                    LockState::Fresh if self.is_on => self.lock.make_fresh(),
                    _ => {}
                }
            }
        }
    }

    #[inline(never)]
    fn go_through(&self, mut entry: Entry<OutcomeOf<S>>, operands: &[&S::Handle], stream: &Arc<S>) {
        let mut is_late = false;
        loop {
            if let Some(mut held) = self.lock.hold(LockState::Closed) {
                let next = self.accept(held.inside(), entry, stream);
                held.release(next, |session, entry| self.see_to(session, entry, stream));
                break;
            }
            // Somebody holds it, who sees to the entry, or has just opened it: no round of this
            // loop is without somebody's progress. The driver must not wait for one who may be
            // waiting for the driver, and a release may come from who holds the gate. Who asks
            // waits for the answer alone.
            let may_wait = !is_late
                && !matches!(entry, Entry::Release(_) | Entry::Demand(..) | Entry::Fence(_))
                && !S::is_driving();
            let permit = match self.permits.get(may_wait, || stream.room_deadline(), || stream.waits_longer())
            {
                Got::Permit(permit) => permit,
                Got::Waited => continue,
                Got::Late => {
                    is_late = true;
                    entry = match stream.give_up(entry) {
                        Entry::Dropped => return,
                        entry => entry,
                    };
                    continue;
                }
            };
            let mut mentions: Mentions<S> = operands.iter().map(|&tensor| tensor.clone()).collect();
            if let Entry::Demand(value, _) = &entry {
                // Who asks for it has a handle.
                mentions.push(S::Handle::another(value, stream));
            }
            match self.lock.leave(DeferredEntry { entry, mentions, permit }) {
                Ok(()) => return,
                Err(back) => entry = back.entry,
            }
            if self.lock.state() != LockState::Closed {
                let _ = self.append(entry, stream);
                return;
            }
        }
        if self.is_crowded.load(Ordering::Relaxed) {
            // Its next op is told.
            let _ = self.wait_for_tapes(stream);
        }
    }

    /// As [`Replay::accept`], for an entry that another thread left.
    #[cold]
    fn see_to(&self, session: &mut Session<S>, left: DeferredEntry<S>, stream: &Arc<S>) -> LockState {
        let DeferredEntry { entry, mentions, permit } = left;
        let is_demanded = entry.is_demanded();
        let next = self.accept(session, entry, stream);
        // Releases that follow from it are left in their turn.
        drop(mentions);
        drop(permit);
        if is_demanded {
            // Who left it has looked for somebody to work on the stream too early.
            stream.notify();
        }
        next
    }

    fn accept(&self, session: &mut Session<S>, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) -> LockState {
        let Some(trace) = session.trace.as_mut() else {
            return self.append(entry, stream);
        };
        // A step that ends sooner than the one that is expected may be known too.
        let is_end = match &entry {
            Entry::Demand(value, _) => value.handles().is_made(),
            Entry::Flush(_) | Entry::Fence(_) => true,
            _ => false,
        };
        // What comes between rounds is for the driver to think about.
        let is_round = trace.template().round.is_some();
        if is_end && !is_round && !trace.is_complete() && !trace.is_empty() {
            let ended = self.library.lock().ended(trace);
            if let Some(template) = ended {
                trace.switch_to(template);
            }
        }
        let is_complete = !is_round && trace.is_complete();
        match entry {
            // What is on the tape says so itself. A pending op that is not may know the value.
            Entry::Release(value) => {
                if session.is_clean {
                    return LockState::Closed;
                }
                trace.note_release(value);
                if trace.is_crowded() {
                    self.hand_over_part(session, true, stream);
                    return LockState::Open;
                }
                LockState::Closed
            }
            Entry::Demand(value, boundary) if is_complete && value.handles().is_made() => {
                self.hand_over(session, boundary, stream)
            }
            // Where nothing is pending but the tape, asking for what is not on it is no boundary
            // for the tape. The driver finds out whether it is one for an op that a thread has
            // recorded which saw the gate open a moment before.
            Entry::Demand(value, boundary) if session.is_clean && !value.handles().is_made() => {
                let _ = self.append(Entry::Demand(value, boundary), stream);
                LockState::Closed
            }
            Entry::Flush(boundary) if is_complete => self.hand_over(session, boundary, stream),
            Entry::Fence(promise) if is_complete => {
                let next = self.hand_over(session, Boundary::Flush, stream);
                let _ = self.append(Entry::Fence(promise), stream);
                next
            }
            Entry::Op(op) if is_complete && op.effect == Effect::Ordered && op.mode == Mode::Fused => {
                let next = self.hand_over(session, Boundary::Effect, stream);
                let _ = self.append(Entry::Op(op), stream);
                next
            }
            entry if trace.is_empty() && !is_round && !matches!(entry, Entry::Op(_)) => {
                let _ = self.append(entry, stream);
                LockState::Closed
            }
            entry => {
                // Asking for a value of a round is a boundary. Whether it is for others the driver
                // knows.
                let ends_rounds = !matches!(&entry, Entry::Demand(value, _) if !value.handles().is_made());
                self.hand_over_part(session, ends_rounds, stream);
                self.append(entry, stream)
            }
        }
    }

    /// Puts the whole tape into the log, with the boundary behind it, and begins the one that is
    /// expected then.
    fn hand_over(&self, session: &mut Session<S>, boundary: Boundary, stream: &Arc<S>) -> LockState {
        let Some(mut trace) = session.trace.take() else { return LockState::Open };
        trace.close();
        let mut library = self.library.lock();
        // If there are too many then, the next one is begun by the op that waits until there are
        // fewer.
        let may_go_on = library.away() + 1 < MAX_TRACES;
        let next = library.completed(trace.template()).filter(|_| may_go_on);
        session.trace = next.map(|template| library.trace(template));
        session.is_clean = true;
        self.note_place(session);
        self.send_away(library);
        self.append_tape(trace, End::Asked(boundary), stream);
        if session.trace.is_some() { LockState::Closed } else { LockState::Fresh }
    }

    /// Puts a round that is complete into the log. What comes behind it may be under way.
    fn hand_over_round(&self, mut trace: Box<ReplayTrace<OutcomeOf<S>>>, end: End, stream: &Arc<S>) {
        trace.close();
        let mut library = self.library.lock();
        library.completed_round(trace.template());
        self.send_away(library);
        self.append_tape(trace, end, stream);
        // Nobody asks for it, but the device may be idle.
        stream.notify();
    }

    /// Puts what is on the tape into the log, which is not what was expected. Rounds that are
    /// complete end there, if the driver will see an end there too; if not, they are not closed
    /// yet, and go as they are.
    fn hand_over_part(&self, session: &mut Session<S>, ends_rounds: bool, stream: &Arc<S>) {
        let Some(mut trace) = session.trace.take() else { return };
        if trace.template().round.is_some() {
            self.forget_expected_loop(&mut self.library.lock());
            let end = if ends_rounds { End::Iteration } else { End::Astray };
            if let Some(before) = trace.take_before() {
                self.hand_over_round(before, end, stream);
            }
            if trace.is_complete() {
                self.hand_over_round(trace, end, stream);
                return;
            }
        }
        trace.close();
        if trace.is_empty() {
            self.library.lock().keep(trace);
            return;
        }
        let mut library = self.library.lock();
        library.missed(trace.template());
        self.send_away(library);
        self.append_tape(trace, End::Astray, stream);
    }

    fn append_tape(&self, trace: Box<ReplayTrace<OutcomeOf<S>>>, end: End, stream: &Arc<S>) {
        self.ops.fetch_add(trace.ops() as u64, Ordering::Relaxed);
        let entry = Entry::Replayed(trace, end);
        self.asks.fetch_add(u64::from(entry.is_ask()), Ordering::Relaxed);
        stream.append(entry);
    }

    /// Puts an entry into the log; what that leaves the gate as.
    #[inline(always)]
    fn append(&self, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) -> LockState {
        let next = match entry {
            Entry::Flush(_) | Entry::Fence(_) => LockState::Fresh,
            Entry::Demand(..) => LockState::Ready,
            _ => LockState::Open,
        };
        if next != LockState::Open {
            self.asks.fetch_add(1, Ordering::Relaxed);
        } else if matches!(entry, Entry::Op(_)) {
            self.ops.fetch_add(1, Ordering::Relaxed);
        }
        stream.append(entry);
        next
    }

    /// Counts a tape that is about to be handed over: before that, since the driver may send it
    /// back at once.
    fn send_away(&self, mut library: MutexGuard<'_, TemplateCache<OutcomeOf<S>>>) {
        library.send_away();
        if library.away() >= MAX_TRACES {
            self.is_crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until fewer tapes are under way: they stand for many entries of the log each, whose
    /// number is limited. False if that takes longer than anybody waits.
    #[cold]
    fn wait_for_tapes(&self, stream: &Arc<S>) -> bool {
        // The driver may be waiting for this thread, so this thread must not wait for the driver.
        if S::is_driving() {
            return true;
        }
        stream.notify();
        let _stall = stream.stall();
        let mut until = stream.room_deadline();
        let mut library = self.library.lock();
        while library.away() >= MAX_TRACES {
            library = match until {
                None => self.came_back.wait(library),
                Some(until) if Instant::now() < until => self.came_back.wait_until(library, until),
                Some(_) => {
                    drop(library);
                    until = stream.waits_longer();
                    if until.is_none() {
                        return false;
                    }
                    self.library.lock()
                }
            };
        }
        self.is_crowded.store(false, Ordering::Relaxed);
        true
    }

    // ----- the driver's side -----

    /// Remembers a region that was all that lay between two boundaries that the program asked for,
    /// or was expected as a round. The template, if it is one now.
    pub fn note(
        &self,
        key: RegionKey,
        round: Option<LoopIteration>,
        canon: &Arc<CanonRegion>,
        sites: &Sites,
        units: &[Unit],
    ) -> Option<Arc<Template>> {
        let template = || Template::new(key, round, canon.clone(), sites.clone(), units.to_vec());
        self.is_on.then(|| self.library.lock().note(key, round.is_some(), template))?
    }

    /// Rounds of this template are recorded, of which one began at `start`. Where the next begins,
    /// so does a tape.
    pub fn expect_loop(&self, template: Arc<Template>, start: StreamPosition) {
        let mut library = self.library.lock();
        library.expect_loop(template, start);
        // That it is not there yet, and where it is, whoever records finds out.
        self.due.store(0, Ordering::Relaxed);
    }

    /// Behind a boundary that the program has asked for a round is expected that may be known. If
    /// it is, a tape begins there.
    pub fn expect_loop_again(&self, round: LoopFingerprint, start: StreamPosition) {
        let template = self.library.lock().of_round(round);
        if let Some(template) = template {
            self.expect_loop(template, start);
        }
    }

    /// A tape that went into the log as a round is none: others record at the same time, or what
    /// was expected is not any more.
    pub fn is_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// The driver has done with a tape.
    pub fn take_back(&self, trace: Box<ReplayTrace<OutcomeOf<S>>>) {
        let mut library = self.library.lock();
        library.take_back(trace);
        if self.is_crowded.load(Ordering::Relaxed) {
            self.came_back.notify_all();
        }
    }
}

/// Whether a call can be on a trace.
#[inline(always)]
fn is_fit<S: Stream>(call: &RecordCall<'_, S::Handle>, stream: &S) -> bool {
    call.effect == Effect::Pure && stream.may_replay()
}

impl<S: Stream> Default for Session<S> {
    fn default() -> Session<S> {
        Session { trace: None, is_clean: false }
    }
}
