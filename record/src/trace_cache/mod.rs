//! The trace cache: it recognizes calls that repeat a recorded region, and skips recording them.
//!
//! Between two requested boundaries, a program mostly records what it recorded between two earlier
//! ones. If the driver has sealed the same region twice, and the region was everything between two
//! requested boundaries, it becomes a [`Template`]. From then on each call is compared with the
//! next op of the template: op, attributes, bodies, and the operands by identity. If they match,
//! the template knows the types of the results. What remains is to hand out handles and to note
//! which values they are ([`ReplayTrace`]). At the boundary the trace goes into the log as one
//! entry. The driver makes a job of it without looking at its ops, because graph, canonical form
//! and key are the template's.
//!
//! The same works for a *loop iteration*: a region that the program repeats without requested
//! boundaries and that the driver has found to be a loop body (`fusion::region::loop_body`). The
//! driver knows which op begins an iteration, so it announces the next one by the position of the
//! stream ([`Replay::expect_loop`]). There a trace begins, and each complete trace is followed by
//! another. A trace goes into the log when the next one is complete too: what is released by then
//! is no output of its region. So two traces may be open at once; a value that the second one uses
//! is taken off the first.
//!
//! A call that is not the next op ends the trace. The trace goes into the log as it is, and the
//! driver takes its steps one by one: the recorded ops and releases, in order. It does the same
//! with a trace whose region would not be the template's, because another thread has appended
//! something before it. Where regions end, their keys, outputs and events are the same as without
//! the trace cache.
//!
//! Invariants:
//! - TRACE-1: a trace stands for its steps. The driver may always take them one by one instead,
//!   with the same outcome.
//! - TRACE-2: a trace is a region only between two requested boundaries, where the merge trie gives
//!   the same answers as when the template was made (`RegionBuilder::replay`), or where the builder
//!   expects exactly that loop body (`RegionBuilder::replay_round`).
//! - TRACE-3: a value is a result or parameter of a trace if the trace has its address in that
//!   place. The state of the value itself ([`handle_count`](crate::handle_count)) refers to the
//!   open trace of its stream, or to one of two.
//! - TRACE-4: a cell is reused only if the trace holds the only reference to it and no thread ever
//!   waited for it.
//! - TRACE-5: a value on a trace belongs to its handles until the last one is dropped, and then to
//!   the trace. A trace that is handed over is closed: it has references of its own.
//! - TRACE-6: entries of a stream that happen one after the other keep their order, whichever way
//!   they go (`combining_lock`). A deferred entry has its own handles on the values that it
//!   mentions. So the release of such a value, which does not pass through the lock, comes after
//!   the entry. The number of deferred entries is limited (`permits`).
//!
//! A template that did not match is skipped, for a number of times that doubles. All of these
//! decisions are a function of what is recorded.

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
use self::permits::{Permit, PermitOutcome, Permits};
use self::template_cache::TemplateCache;
use crate::call::RecordCall;
use crate::entry::{Entry, TraceEnd};
use crate::handle::{Handle, TakeResults};
use crate::limits::MAX_TRACES;
use crate::replay_trace::ReplayTrace;
use crate::stream::{OutcomeOf, Stream};
use crate::template::{LoopIteration, Sites, StreamPosition, Template};
use crate::value::ValueCell;

/// Whether a call was recorded on a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ReplayOutcome {
    /// It is not on a trace and still has to be recorded.
    No,
    /// It is on a trace.
    Yes,
    /// The number of traces in the log was at its limit for too long. The call may have been
    /// recorded or not; in both cases it fails.
    TooMany,
}

impl From<bool> for ReplayOutcome {
    fn from(is_recorded: bool) -> ReplayOutcome {
        if is_recorded { ReplayOutcome::Yes } else { ReplayOutcome::No }
    }
}

/// What the combining lock guards.
struct Session<S: Stream> {
    /// The open trace. There is one while the lock is in the state `Closed`.
    trace: Option<Box<ReplayTrace<OutcomeOf<S>>>>,
    /// Whether the trace began at a boundary, so that no pending op refers to a value that is not
    /// on the trace.
    is_clean: bool,
}

/// An entry that was deferred to the lock holder. It has handles on the values that it mentions:
/// its thread may drop its own before the entry is handled, and the releases must come after the
/// entry.
struct DeferredEntry<S: Stream> {
    entry: Entry<OutcomeOf<S>>,
    mentions: Mentions<S>,
    permit: Permit,
}

/// Handles on the values that an entry mentions.
type Mentions<S> = SmallVec<[<S as Stream>::Handle; 2]>;

/// A number of ops that is never reached.
const NOT_DUE: u64 = u64::MAX;

/// The trace cache of one stream.
pub struct Replay<S: Stream> {
    is_on: bool,
    lock: CombiningLock<Session<S>, DeferredEntry<S>>,
    permits: Arc<Permits>,
    /// The position of the trace, written by the lock holder.
    at: AtomicU32,
    /// Number of ops that went into the log, also on traces, as in [`StreamPosition`]. While
    /// several threads record, it may be too low or too high.
    ops: AtomicU64,
    requests: AtomicU64,
    /// The number of ops after which an iteration may begin ([`Replay::expect_loop`]).
    due: AtomicU64,
    /// Whether traces of iterations turned out not to be regions.
    is_off: AtomicBool,
    templates: Mutex<TemplateCache<OutcomeOf<S>>>,
    /// Whether so many traces are in the log that the program has to wait.
    is_crowded: AtomicBool,
    returned: Condvar,
}

impl<S: Stream> fmt::Debug for Replay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay(is_on: {}, position: {})", self.is_on, self.at())
    }
}

impl<S: Stream> Replay<S> {
    /// An empty trace cache. If `is_on` is false, it stays empty.
    pub fn new(is_on: bool) -> Replay<S> {
        Replay {
            is_on,
            lock: CombiningLock::new(Session::default()),
            permits: Permits::new(),
            at: AtomicU32::new(0),
            ops: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            due: AtomicU64::new(NOT_DUE),
            is_off: AtomicBool::new(false),
            templates: Mutex::new(Rank::TemplateCache, TemplateCache::default()),
            is_crowded: AtomicBool::new(false),
            returned: Condvar::new(),
        }
    }

    // ----- the recording side -----

    /// Records a call on the fast path (`ReplayTrace::record_fast`), if it is expected and has
    /// one result. Returns the result, which has a handle. `None` means that the call still has to
    /// be recorded.
    #[inline(always)]
    pub fn record_fast(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
    ) -> Option<Arc<ValueCell<OutcomeOf<S>>>> {
        // In a forked child, the slow path reports the error.
        if self.lock.state() != LockState::Closed || is_forked() || !is_fit(call, &**stream) {
            return None;
        }
        let mut guard = self.lock.acquire(LockState::Closed)?;
        let mut result = None;
        if let Some(trace) = &mut guard.data().trace {
            result = trace.record_fast(call, stream);
            self.at.store(trace.at(), Ordering::Relaxed);
        }
        guard.release(LockState::Closed, |session, entry| self.handle_deferred(session, entry, stream));
        result
    }

    /// Records a call if it is the expected one.
    #[inline(always)]
    pub fn record(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> ReplayOutcome {
        match self.lock.state() {
            LockState::Open if self.ops.load(Ordering::Relaxed) < self.due.load(Ordering::Relaxed) => {
                ReplayOutcome::No
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
    ) -> ReplayOutcome {
        // An op with an operand of a body goes into that body, not to this stream.
        if call.operands.iter().any(|tensor| tensor.cell().place().is_some()) {
            return ReplayOutcome::No;
        }
        match state {
            // The call is submitted like any entry, which ends the trace.
            _ if !is_fit(call, &**stream) => ReplayOutcome::No,
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
    ) -> ReplayOutcome {
        let Some(mut guard) = self.lock.acquire(LockState::Closed) else { return ReplayOutcome::No };
        let session = guard.data();
        let is_next = session.trace.as_mut().is_some_and(|trace| trace.record(call, stream, results));
        let is_recorded = is_next
            || self.record_iteration(session, call, stream, results)
            || self.switch_template(session, call, stream, results);
        self.publish_position(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        guard.release(next, |session, entry| self.handle_deferred(session, entry, stream));
        if self.is_crowded.load(Ordering::Relaxed) && !self.wait_for_traces(stream) && is_recorded {
            return ReplayOutcome::TooMany;
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
    ) -> ReplayOutcome {
        if self.is_crowded.load(Ordering::Relaxed) && !self.wait_for_traces(stream) {
            return ReplayOutcome::TooMany;
        }
        let Some(mut guard) = self.lock.acquire(from) else { return ReplayOutcome::No };
        let session = guard.data();
        let is_recorded = self.begin(session, from == LockState::Fresh, call, stream, results)
            || self.begin_iteration(session, call, stream, results);
        self.publish_position(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        guard.release(next, |session, entry| self.handle_deferred(session, entry, stream));
        is_recorded.into()
    }

    /// Publishes the position of the trace to threads that drop handles.
    fn publish_position(&self, session: &Session<S>) {
        if let Some(trace) = &session.trace {
            self.at.store(trace.at(), Ordering::Relaxed);
        }
    }

    /// The position of the trace, for the drop of a value that is on it.
    #[inline(always)]
    pub fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }

    /// Begins a trace with a call.
    #[cold]
    fn begin(
        &self,
        session: &mut Session<S>,
        is_clean: bool,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let mut templates = self.templates.lock();
        for template in templates.candidates(call) {
            let mut trace = templates.trace(template);
            if trace.record(call, stream, results) {
                (session.trace, session.is_clean) = (Some(trace), is_clean);
                return true;
            }
            templates.keep(trace);
        }
        false
    }

    /// Begins a trace with a call, if it is the first op of the expected loop body.
    #[cold]
    fn record_due(
        &self,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        self.lock.make_ready();
        let Some(mut guard) = self.lock.acquire(LockState::Ready) else { return false };
        let session = guard.data();
        let is_recorded = self.begin_iteration(session, call, stream, results);
        self.publish_position(session);
        let next = if is_recorded { LockState::Closed } else { LockState::Open };
        guard.release(next, |session, entry| self.handle_deferred(session, entry, stream));
        is_recorded
    }

    fn begin_iteration(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let mut templates = self.templates.lock();
        let now = StreamPosition {
            ops: self.ops.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        };
        let Some((template, left)) = templates.expected_loop(now) else {
            self.due.store(NOT_DUE, Ordering::Relaxed);
            return false;
        };
        // If no iteration begins here, the next one begins this many ops later.
        let until_next = if left > 0 { left } else { template.ops() as u64 };
        self.due.store(now.ops + until_next, Ordering::Relaxed);
        if left > 0 {
            return false;
        }
        let mut trace = templates.trace(template);
        if !trace.record(call, stream, results) {
            templates.keep(trace);
            return false;
        }
        self.forget_expected_loop(&mut templates);
        // Pending ops refer to other values, and values of earlier iterations may be demanded.
        (session.trace, session.is_clean) = (Some(trace), false);
        true
    }

    fn forget_expected_loop(&self, templates: &mut TemplateCache<OutcomeOf<S>>) {
        templates.forget_expected_loop();
        self.due.store(NOT_DUE, Ordering::Relaxed);
        self.is_off.store(false, Ordering::Relaxed);
    }

    /// Records a call that follows a complete iteration as the first op of the next one.
    #[cold]
    fn record_iteration(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let is_next =
            |trace: &ReplayTrace<OutcomeOf<S>>| trace.is_complete() && trace.template().iteration.is_some();
        if !session.trace.as_deref().is_some_and(is_next) || self.is_off.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut trace) = session.trace.take() else { return false };
        if let Some(before) = trace.take_before() {
            self.hand_over_iteration(before, TraceEnd::Iteration, stream);
        }
        let mut next = self.templates.lock().trace(trace.template().clone());
        next.follow(trace);
        session.trace.insert(next).record(call, stream, results)
    }

    /// Records a call that is not the next op of the template by switching to another template with
    /// the same prefix. If there is none, the trace ends.
    #[cold]
    fn switch_template(
        &self,
        session: &mut Session<S>,
        call: &RecordCall<'_, S::Handle>,
        stream: &Arc<S>,
        results: &mut impl TakeResults<S::Handle>,
    ) -> bool {
        let Some(trace) = session.trace.as_mut() else { return false };
        let others = match trace.template().iteration {
            None => self.templates.lock().alternatives(trace, call),
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
        // An iteration that was one only for this thread does not end a region.
        let ends_iterations = !self.is_off.load(Ordering::Relaxed);
        self.hand_over_part(session, ends_iterations, stream);
        false
    }

    /// Puts an entry into the log, on the trace, or behind the trace.
    #[inline(always)]
    pub fn submit(&self, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) {
        self.submit_with(entry, &[], stream);
    }

    /// As [`Replay::submit`], for an op on `operands`.
    #[inline(always)]
    pub fn submit_with(&self, entry: Entry<OutcomeOf<S>>, operands: &[&S::Handle], stream: &Arc<S>) {
        match self.lock.state() {
            LockState::Closed => self.submit_locked(entry, operands, stream),
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
    fn submit_locked(&self, mut entry: Entry<OutcomeOf<S>>, operands: &[&S::Handle], stream: &Arc<S>) {
        let mut is_late = false;
        loop {
            if let Some(mut guard) = self.lock.acquire(LockState::Closed) {
                let next = self.accept(guard.data(), entry, stream);
                guard.release(next, |session, entry| self.handle_deferred(session, entry, stream));
                break;
            }
            // Another thread holds the lock and will handle the entry, or has just released the
            // lock. So the loop is lock-free. A driver must not wait for a thread that may be
            // waiting for the driver. A release may come from the lock holder itself. A demand must
            // wait only for its answer.
            let may_wait = !is_late
                && !matches!(entry, Entry::Release(_) | Entry::Demand(..) | Entry::Fence(_))
                && !S::is_driving();
            let permit = match self.permits.get(may_wait, || stream.room_deadline(), || stream.waits_longer())
            {
                PermitOutcome::Permit(permit) => permit,
                PermitOutcome::Waited => continue,
                PermitOutcome::Late => {
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
                // The demanding thread holds a handle.
                mentions.push(S::Handle::another(value, stream));
            }
            match self.lock.defer(DeferredEntry { entry, mentions, permit }) {
                Ok(()) => return,
                Err(back) => entry = back.entry,
            }
            if self.lock.state() != LockState::Closed {
                let _ = self.append(entry, stream);
                return;
            }
        }
        if self.is_crowded.load(Ordering::Relaxed) {
            // If this times out, the next op reports it.
            let _ = self.wait_for_traces(stream);
        }
    }

    /// As [`Replay::accept`], for an entry that another thread deferred.
    #[cold]
    fn handle_deferred(
        &self,
        session: &mut Session<S>,
        deferred: DeferredEntry<S>,
        stream: &Arc<S>,
    ) -> LockState {
        let DeferredEntry { entry, mentions, permit } = deferred;
        let is_demanded = entry.is_demanded();
        let next = self.accept(session, entry, stream);
        // Releases that follow from this drop are deferred in turn.
        drop(mentions);
        drop(permit);
        if is_demanded {
            // The deferring thread notified the driver before the entry was in the log.
            stream.notify();
        }
        next
    }

    fn accept(&self, session: &mut Session<S>, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) -> LockState {
        let Some(trace) = session.trace.as_mut() else {
            return self.append(entry, stream);
        };
        // A step that ends earlier than the expected one may match another template.
        let is_end = match &entry {
            Entry::Demand(value, _) => value.handles().is_result(),
            Entry::Flush(_) | Entry::Fence(_) => true,
            _ => false,
        };
        // The driver handles entries between iterations.
        let is_iteration = trace.template().iteration.is_some();
        if is_end && !is_iteration && !trace.is_complete() && !trace.is_empty() {
            let ended = self.templates.lock().ended(trace);
            if let Some(template) = ended {
                trace.switch_to(template);
            }
        }
        let is_complete = !is_iteration && trace.is_complete();
        match entry {
            // Values on the trace note their own release. Another value may be used by a pending op
            // that is not on the trace.
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
            Entry::Demand(value, boundary) if is_complete && value.handles().is_result() => {
                self.hand_over(session, boundary, stream)
            }
            // If only the trace is pending, a demand for a value that is not on it is no boundary
            // for the trace. A thread that saw the lock open a moment before may have recorded
            // another op. The driver decides whether the demand is a boundary for that op.
            Entry::Demand(value, boundary) if session.is_clean && !value.handles().is_result() => {
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
            entry if trace.is_empty() && !is_iteration && !matches!(entry, Entry::Op(_)) => {
                let _ = self.append(entry, stream);
                LockState::Closed
            }
            entry => {
                // A demand for a value of an iteration is a boundary. For other values the driver
                // decides.
                let ends_iterations =
                    !matches!(&entry, Entry::Demand(value, _) if !value.handles().is_result());
                self.hand_over_part(session, ends_iterations, stream);
                self.append(entry, stream)
            }
        }
    }

    /// Puts the complete trace into the log, with the boundary that ends it, and begins the next
    /// expected one.
    fn hand_over(&self, session: &mut Session<S>, boundary: Boundary, stream: &Arc<S>) -> LockState {
        let Some(mut trace) = session.trace.take() else { return LockState::Open };
        trace.close();
        let mut templates = self.templates.lock();
        // At the limit of traces, the next op waits for room and then begins the trace.
        let may_go_on = templates.in_log() + 1 < MAX_TRACES;
        let next = templates.completed(trace.template()).filter(|_| may_go_on);
        session.trace = next.map(|template| templates.trace(template));
        session.is_clean = true;
        self.publish_position(session);
        self.count_in_log(templates);
        self.append_trace(trace, TraceEnd::Boundary(boundary), stream);
        if session.trace.is_some() { LockState::Closed } else { LockState::Fresh }
    }

    /// Puts a complete iteration into the log. The next one may be in progress.
    fn hand_over_iteration(&self, mut trace: Box<ReplayTrace<OutcomeOf<S>>>, end: TraceEnd, stream: &Arc<S>) {
        trace.close();
        let mut templates = self.templates.lock();
        templates.completed_iteration(trace.template());
        self.count_in_log(templates);
        self.append_trace(trace, end, stream);
        // There is no demand, but the device may be idle.
        stream.notify();
    }

    /// Puts a trace that left its template into the log. Complete iterations are marked as regions
    /// if `ends_iterations` says that the driver sees an end there too. Otherwise the driver takes
    /// their steps one by one.
    fn hand_over_part(&self, session: &mut Session<S>, ends_iterations: bool, stream: &Arc<S>) {
        let Some(mut trace) = session.trace.take() else { return };
        if trace.template().iteration.is_some() {
            self.forget_expected_loop(&mut self.templates.lock());
            let end = if ends_iterations { TraceEnd::Iteration } else { TraceEnd::Mismatch };
            if let Some(before) = trace.take_before() {
                self.hand_over_iteration(before, end, stream);
            }
            if trace.is_complete() {
                self.hand_over_iteration(trace, end, stream);
                return;
            }
        }
        trace.close();
        if trace.is_empty() {
            self.templates.lock().keep(trace);
            return;
        }
        let mut templates = self.templates.lock();
        templates.missed(trace.template());
        self.count_in_log(templates);
        self.append_trace(trace, TraceEnd::Mismatch, stream);
    }

    fn append_trace(&self, trace: Box<ReplayTrace<OutcomeOf<S>>>, end: TraceEnd, stream: &Arc<S>) {
        self.ops.fetch_add(trace.ops() as u64, Ordering::Relaxed);
        let entry = Entry::Trace(trace, end);
        self.requests.fetch_add(u64::from(entry.is_boundary_request()), Ordering::Relaxed);
        stream.append(entry);
    }

    /// Puts an entry into the log. Returns the state of the lock that follows.
    #[inline(always)]
    fn append(&self, entry: Entry<OutcomeOf<S>>, stream: &Arc<S>) -> LockState {
        let next = match entry {
            Entry::Flush(_) | Entry::Fence(_) => LockState::Fresh,
            Entry::Demand(..) => LockState::Ready,
            _ => LockState::Open,
        };
        if next != LockState::Open {
            self.requests.fetch_add(1, Ordering::Relaxed);
        } else if matches!(entry, Entry::Op(_)) {
            self.ops.fetch_add(1, Ordering::Relaxed);
        }
        stream.append(entry);
        next
    }

    /// Counts a trace before it is handed over, because the driver may return it at once.
    fn count_in_log(&self, mut templates: MutexGuard<'_, TemplateCache<OutcomeOf<S>>>) {
        templates.count_in_log();
        if templates.in_log() >= MAX_TRACES {
            self.is_crowded.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until fewer traces are in the log. Each stands for many log entries, so their number
    /// is limited. False if the deadline passes first.
    #[cold]
    fn wait_for_traces(&self, stream: &Arc<S>) -> bool {
        // The driver may be waiting for this thread, so this thread must not wait for the driver.
        if S::is_driving() {
            return true;
        }
        stream.notify();
        let _stall = stream.stall();
        let mut until = stream.room_deadline();
        let mut templates = self.templates.lock();
        while templates.in_log() >= MAX_TRACES {
            templates = match until {
                None => self.returned.wait(templates),
                Some(until) if Instant::now() < until => self.returned.wait_until(templates, until),
                Some(_) => {
                    drop(templates);
                    until = stream.waits_longer();
                    if until.is_none() {
                        return false;
                    }
                    self.templates.lock()
                }
            };
        }
        self.is_crowded.store(false, Ordering::Relaxed);
        true
    }

    // ----- the driver's side -----

    /// Notes a region that was everything between two requested boundaries, or an iteration of an
    /// expected loop body. Returns the template, if it is one now.
    pub fn note(
        &self,
        key: RegionKey,
        iteration: Option<LoopIteration>,
        canon: &Arc<CanonRegion>,
        sites: &Sites,
        units: &[Unit],
    ) -> Option<Arc<Template>> {
        let template = || Template::new(key, iteration, canon.clone(), sites.clone(), units.to_vec());
        self.is_on.then(|| self.templates.lock().note(key, iteration.is_some(), template))?
    }

    /// The program records iterations of this template, one of which began at `start`. A trace
    /// begins with the next iteration.
    pub fn expect_loop(&self, template: Arc<Template>, start: StreamPosition) {
        let mut templates = self.templates.lock();
        templates.expect_loop(template, start);
        // The next recording thread computes where the iteration begins.
        self.due.store(0, Ordering::Relaxed);
    }

    /// An iteration of a loop body is expected at `start`, after a requested boundary. `start` may
    /// lie ahead. If the loop body has a template, a trace begins there.
    pub fn expect_loop_again(&self, iteration: LoopFingerprint, start: StreamPosition) {
        let template = self.templates.lock().of_loop(iteration);
        if let Some(template) = template {
            self.expect_loop(template, start);
        }
    }

    /// Notes that a trace of an iteration turned out not to be a region: other threads record at
    /// the same time, or the expected loop body has changed.
    pub fn is_off(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Returns a trace that the driver has finished with.
    pub fn take_back(&self, trace: Box<ReplayTrace<OutcomeOf<S>>>) {
        let mut templates = self.templates.lock();
        templates.take_back(trace);
        if self.is_crowded.load(Ordering::Relaxed) {
            self.returned.notify_all();
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
