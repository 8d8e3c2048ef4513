//! Streams: program-ordered sequences of ops on one device.
//!
//! Any thread may record on a stream; the order of its log is the order of the program. A stream
//! may use values of other streams of its engine. The device-side work of the using stream then
//! waits for that of the producing stream, and no host thread waits.

pub mod checks;
mod handle;
pub(crate) mod read;
mod room;
pub(crate) mod trace;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, Operand, Operands, Results, TraceOp};
use fuseline_fusion::{Site, StreamId};
use fuseline_record::entry::{Fence, FenceOutcome};
use fuseline_record::handle::TakeResults;
use fuseline_record::handle_count::Dropped;
use fuseline_record::log::{Log, PushOutcome, Ticket};
use fuseline_record::memo::{self, InferredCall};
use fuseline_record::mode::{FUSED, mode_code, mode_of, scoped_mode};
use fuseline_record::trace_cache::ReplayOutcome;
use fuseline_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use fuseline_sync::fork::{is_forked, keep_in_child};
use fuseline_sync::schedule::actor::{Actor, Finished, Notified, Unwinding};
use fuseline_sync::{Mutex, Rank};
use smallvec::SmallVec;

pub use self::handle::TensorHandle;
use crate::counters::Stall;
use crate::engine::activity::CurrentActivity;
use crate::engine::deferred_free::DeferredFrees;
use crate::engine::in_flight::InFlight;
use crate::engine::read_sites::ReadSites;
use crate::engine::stream::checks::Checks;
use crate::engine::stream::trace::Trace;
use crate::engine::value::{ValueCell, ValuePromise, ValueRef};
use crate::engine::{EngineShared, Entry, RecordCall, Replay};
use crate::error::{Error, Result};
use crate::event::{Event, is_counted};
use crate::limits::{ENTRIES_PER_HINT, LARGE_RELEASE};
use crate::user_code::is_driving;

/// The reading side of a stream.
pub(crate) trait Drive: Send {
    /// Works until nothing is left, or until the rest waits for something that will notify the
    /// stream. With `is_reader` it stops as soon as the value being read is available, if that is
    /// before its region is launched. Returns whether there is more to do.
    fn run(&mut self, is_reader: bool, stream: &Arc<StreamShared>) -> bool;
}

/// One stream: its log, its driver and their state.
pub struct StreamShared {
    id: StreamId,
    log: Log<Entry>,
    /// Entries below this ticket are demanded, so the driver must not stop at one that is being
    /// written.
    demanded: AtomicU64,
    actor: Actor,
    /// Present until the stream ends. The stream of a body has none.
    driver: Mutex<Option<Box<dyn Drive>>>,
    in_flight: Arc<InFlight>,
    donated: DeferredFrees,
    activity: CurrentActivity,
    mode: AtomicU32,
    replay: Replay,
    read_sites: ReadSites,
    checks: Arc<Checks>,
    /// The body that ops go into instead of the log, which then stays empty.
    trace: Option<Arc<Trace>>,
    /// Dropped last, because this may be the last reference to the PJRT client.
    engine: Arc<EngineShared>,
}

/// The results of a recorded op.
pub type TensorHandles = SmallVec<[TensorHandle; 1]>;

impl StreamShared {
    pub(crate) fn new(id: StreamId, engine: Arc<EngineShared>, driver: Box<dyn Drive>) -> Arc<StreamShared> {
        StreamShared::with_trace(id, engine, Some(driver), None)
    }

    /// A stream whose ops go into a body.
    pub fn tracing(trace: Arc<Trace>) -> Arc<StreamShared> {
        let base = trace.base();
        StreamShared::with_trace(base.id, base.engine.clone(), None, Some(trace))
    }

    fn with_trace(
        id: StreamId,
        engine: Arc<EngineShared>,
        driver: Option<Box<dyn Drive>>,
        trace: Option<Arc<Trace>>,
    ) -> Arc<StreamShared> {
        let config = engine.config();
        let in_flight = InFlight::new(config.max_regions_in_flight, config.max_bytes_in_flight);
        let in_flight = Arc::new(in_flight);
        // The stream of a body launches nothing.
        let is_real = trace.is_none() && !is_forked();
        if is_real {
            engine.add_in_flight(&in_flight);
        }
        let stream = Arc::new(StreamShared {
            id,
            log: Log::new(),
            demanded: AtomicU64::new(0),
            actor: Actor::new(),
            driver: Mutex::new(Rank::Driver, driver),
            in_flight,
            donated: DeferredFrees::new(),
            activity: CurrentActivity::new(),
            mode: AtomicU32::new(0),
            replay: Replay::new(config.replays && trace.is_none()),
            read_sites: ReadSites::new(),
            checks: Checks::new(engine.check_round().clone()),
            trace,
            engine,
        });
        if is_real {
            let kept: Weak<StreamShared> = Arc::downgrade(&stream);
            keep_in_child(kept);
        }
        stream
    }

    /// The number of the stream within the engine.
    #[inline]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The engine.
    #[inline]
    pub fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    #[inline]
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// The stream that has a log: this one, or the one below a tracing stream.
    #[inline]
    pub fn base(self: &Arc<Self>) -> &Arc<StreamShared> {
        self.trace.as_ref().map_or(self, |trace| trace.base())
    }

    /// The log.
    #[inline]
    pub fn log(&self) -> &Log<Entry> {
        &self.log
    }

    #[inline]
    pub(crate) fn replay(&self) -> &Replay {
        &self.replay
    }

    #[inline]
    pub(crate) fn read_sites(&self) -> &ReadSites {
        &self.read_sites
    }

    /// The pending checks.
    #[inline]
    pub fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    #[inline]
    pub(crate) fn donated(&self) -> &DeferredFrees {
        &self.donated
    }

    /// What the first unfinished region of the stream is doing.
    #[inline]
    pub(crate) fn activity(&self) -> &CurrentActivity {
        &self.activity
    }

    /// The entries below this ticket are demanded.
    pub(crate) fn demanded(&self) -> Ticket {
        // Relaxed: the thread that raises it notifies the actor afterwards, and that synchronises
        // with the driver.
        Ticket::from_raw(self.demanded.load(Ordering::Relaxed))
    }

    /// Whether the mode in force is [`Mode::Fused`].
    #[inline(always)]
    pub fn is_fused(&self) -> bool {
        let code = match scoped_mode() {
            Some(mode) => return mode == Mode::Fused,
            None => self.mode.load(Ordering::Relaxed),
        };
        (if code == 0 { self.engine.mode_code() } else { code }) == FUSED
    }

    /// The mode in force for an op that this thread records now.
    #[inline]
    pub fn mode(&self) -> Mode {
        scoped_mode()
            .or_else(|| mode_of(self.mode.load(Ordering::Relaxed)))
            .unwrap_or_else(|| self.engine.mode())
    }

    /// Sets the mode of ops recorded from now on. `None` means the engine's mode.
    pub fn set_mode(&self, mode: Option<Mode>) {
        self.mode.store(mode_code(mode), Ordering::Relaxed);
    }

    // ----- scheduling -----

    /// Schedules the stream on the driver pool, unless a thread is driving it already.
    pub(crate) fn notify(self: &Arc<Self>) {
        if self.actor.notify() == Notified::Enqueue {
            self.engine.threads().drive().push(self.clone());
        }
    }

    /// As [`StreamShared::notify`], from a thread on which the stream must not be dropped.
    pub(crate) fn notify_from_outside(this: Arc<Self>) {
        // Push the stream even if a thread is driving it: the thread of the pool finds out, and the
        // stream is dropped there.
        let _ = this.actor.notify();
        let pool = this.engine.threads().drive().clone();
        pool.push(this);
    }

    /// Drives the stream if it is still queued. Called by the pool.
    pub(crate) fn run_queued(self: &Arc<Self>) {
        if self.actor.start_queued() {
            self.run(false);
        }
    }

    /// Drives the stream on this thread if no other thread does. Another driving thread sees
    /// everything that was demanded so far.
    fn run_here(self: &Arc<Self>) {
        if self.actor.start() {
            self.run(true);
        }
    }

    /// Drives the stream. A thread that waits for a value (`is_reader`) stops when the value is
    /// there and leaves the rest to the pool.
    fn run(self: &Arc<Self>, is_reader: bool) {
        // A panic in the driver is a bug of the engine.
        let unwinding = Unwinding(&self.actor);
        let mut is_left = false;
        loop {
            if let Some(driver) = self.driver.lock().as_mut().filter(|_| !is_left) {
                is_left = driver.run(is_reader, self);
            }
            if self.actor.finish() == Finished::Idle {
                break;
            }
        }
        std::mem::forget(unwinding);
        if is_left {
            self.notify();
        }
    }

    /// Appends an entry to the log and notes the demand, if it is one. Only the trace cache calls
    /// this; other callers use [`Replay::submit`].
    #[inline(always)]
    pub(crate) fn append(self: &Arc<Self>, entry: Entry) {
        let is_demanded = entry.is_demanded();
        let ticket = self.push(entry);
        if is_demanded {
            self.demand(ticket);
        }
    }

    // Runs twice per op: when it is recorded and when its result is dropped.
    #[inline(always)]
    pub(crate) fn push(self: &Arc<Self>, entry: Entry) -> Ticket {
        // The driver may be waiting for this thread, so this thread must not wait for the driver.
        let PushOutcome { ticket, awaited } = match is_driving() {
            true => self.log.push_at_once(self.unless_fed(entry)),
            false => self.log.push_within(
                entry,
                |ticket, entry| {
                    // The driver makes room only when it has passed this ticket, so demand every
                    // entry before it that is still unwritten.
                    self.demand(ticket);
                    self.notify();
                    (self.engine().counters().stall(), self.patience(entry))
                },
                |entry| self.waits_on(entry),
                |entry| self.give_up(entry),
            ),
        };
        if awaited || ticket.is_every(ENTRIES_PER_HINT) {
            self.notify();
        }
        ticket
    }

    /// Makes the driver process everything up to and including `ticket`.
    fn demand(&self, ticket: Ticket) {
        self.demanded.fetch_max(ticket.next().to_raw(), Ordering::Relaxed);
    }

    /// From now on no thread of the engine drives the stream. The caller does, stage by stage.
    #[cfg(feature = "stages")]
    pub(crate) fn hold(&self) -> bool {
        self.actor.start()
    }

    // ----- what others ask of a stream -----

    /// Drops a handle on a value.
    #[inline]
    pub(crate) fn drop_handle(self: &Arc<Self>, value: Arc<ValueCell>) {
        match value.handles().drop_one(|| self.replay.at()) {
            // The reference now belongs to the trace (HANDLE-1 of `record::handle_count`).
            Dropped::MovedToTrace => std::mem::forget(value),
            Dropped::Shared => drop(value),
            Dropped::Last if self.trace.is_none() => self.release(value),
            Dropped::Last => {}
        }
    }

    /// Records that the last handle on a value was dropped.
    #[inline(never)]
    fn release(self: &Arc<Self>, value: Arc<ValueCell>) {
        if is_forked() {
            return std::mem::forget(value);
        }
        // The entry holds the memory until the driver processes it, and nothing else may notify the
        // driver.
        let is_large = value.outcome().get().is_some() && value.ty().bytes() >= LARGE_RELEASE;
        self.replay.submit(Entry::Release(value), self);
        if is_large {
            self.notify();
        }
    }

    /// Demands a value, so that it will be computed. Does not wait.
    pub fn need(self: &Arc<Self>, value: &Arc<ValueCell>, why: Boundary) {
        if self.trace.is_some() || is_forked() {
            return;
        }
        if value.needs_boundary() {
            if why == Boundary::HostRead {
                value.set_read();
            }
            self.replay.submit(Entry::Demand(value.clone(), why), self);
        }
        self.notify();
    }

    /// As [`StreamShared::need`], for a read of the host at `site`.
    pub(crate) fn need_for_host(self: &Arc<Self>, value: &Arc<ValueCell>, site: &Site) {
        self.note_read_site(value, site);
        self.need(value, Boundary::HostRead);
    }

    fn note_read_site(&self, value: &ValueCell, site: &Site) {
        if self.engine.is_observed() && self.trace.is_none() && value.needs_boundary() {
            self.read_sites.put(value.id(), site.clone());
        }
    }

    /// As [`StreamShared::need_for_host`], for a thread that is about to wait for the value. It
    /// drives the stream itself, unless it has a deadline, because a call of the plugin may not
    /// return.
    pub(crate) fn need_now(self: &Arc<Self>, value: &Arc<ValueCell>, deadline: Option<Instant>, site: &Site) {
        if value.needs_boundary() {
            self.note_read_site(value, site);
            value.set_read();
            self.replay.submit(Entry::Demand(value.clone(), Boundary::HostRead), self);
        }
        if value.outcome().get().is_none() {
            self.run_by(deadline);
        }
    }

    /// Drives the stream on this thread, or notifies the pool if there is a deadline.
    fn run_by(self: &Arc<Self>, deadline: Option<Instant>) {
        match deadline {
            None => self.run_here(),
            Some(_) => self.notify(),
        }
    }

    /// Ends the pending region; does not wait.
    pub fn flush(self: &Arc<Self>, why: Boundary) {
        if self.trace.is_some() || is_forked() {
            return;
        }
        self.replay.submit(Entry::Flush(why), self);
        self.notify();
    }

    /// Waits until everything recorded so far has been computed.
    pub fn synchronize(self: &Arc<Self>, deadline: Option<Instant>, site: &Site) -> Result<()> {
        Error::unless_forked(site)?;
        may_wait()?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("synchronize", site.clone()));
        }
        let start = Instant::now();
        let deadline = deadline.or_else(|| self.engine.deadline());
        let (fence, promise) = Fence::new();
        self.replay.submit(Entry::Fence(promise), self);
        self.run_by(deadline);
        let fenced = (*fence).as_ref().wait(deadline);
        let took = start.elapsed();
        match fenced {
            Some(FenceOutcome::Done) => {
                self.engine.emit(|| Event::Synchronized { stream: self.id, site: site.clone(), took });
                self.checks.at_end(self)
            }
            Some(FenceOutcome::Abandoned) => Err(Error::abandoned()),
            None => Err(Error::timeout(took, format!("stream {}", self.id), self.activity.look())),
        }
    }

    /// A fence at the current position of the stream. It is reached when everything recorded so far
    /// has been computed. Does not wait.
    pub fn place(self: &Arc<Self>, site: &Site) -> Result<Arc<Fence>> {
        Error::unless_forked(site)?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("an event", site.clone()));
        }
        let (fence, promise) = Fence::new();
        self.replay.submit(Entry::Fence(promise), self);
        self.notify();
        Ok(fence)
    }

    /// Everything that is recorded from now on runs after another stream has reached this fence.
    /// Does not wait.
    pub fn run_after(self: &Arc<Self>, fence: Arc<Fence>, site: &Site) -> Result<()> {
        Error::unless_forked(site)?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("an event", site.clone()));
        }
        if (*fence).as_ref().get().is_none() {
            self.replay.submit(Entry::WaitFor(fence), self);
        }
        Ok(())
    }

    /// Records an op and puts its results into `results` at once. In Debug mode it returns when
    /// they are computed and checked.
    #[inline]
    pub fn record_into(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        results: &mut impl TakeResults<TensorHandle>,
    ) -> Result<()> {
        Error::unless_forked(call.site)?;
        match self.replay.record(call, self, results) {
            ReplayOutcome::Yes => Ok(()),
            ReplayOutcome::No => self.record_new(call, call.inferred(), results),
            ReplayOutcome::TooMany => Err(self.no_room(call.site)),
        }
    }

    /// As [`StreamShared::record_into`], for an op with one result. `wrap` makes the caller's type of
    /// its handle, here instead of behind the call, where it would copy the result.
    #[inline(always)]
    pub fn record_one<T>(
        self: &Arc<Self>,
        call: RecordCall<'_>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        match self.record_fast(&call) {
            Some(result) => Ok(wrap(result)),
            None => {
                #[expect(clippy::redundant_locals, reason = "a copy, so that the one above has no address")]
                let call = call;
                self.record_slow(&call, wrap)
            }
        }
    }

    /// Records an op with one result on the fast path of the trace cache, if it is the expected
    /// one. `None` means that it still has to be recorded.
    #[inline(always)]
    pub fn record_fast(self: &Arc<Self>, call: &RecordCall<'_>) -> Option<TensorHandle> {
        self.replay.record_fast(call, self).map(|cell| TensorHandle::new(cell, self.clone()))
    }

    /// Records an op with one result when the fast path did not apply.
    #[inline(never)]
    pub fn record_slow<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        self.record_single(call, || call.inferred(), wrap)
    }

    /// Records an op with one result and two operands, if the operands have the same type. `None`
    /// means that it still has to be recorded; the expected trace is unaffected.
    #[inline(never)]
    pub fn record_same_type<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        [lhs, rhs]: [&TensorHandle; 2],
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Option<Result<T>> {
        let known = call.inferred();
        // A memoized call proves that the types fit, so they need not be compared.
        if known.is_none() && lhs.ty() != rhs.ty() {
            return None;
        }
        Some(self.record_single(call, || known, wrap))
    }

    #[inline(always)]
    fn record_single<T>(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        known: impl FnOnce() -> Option<InferredCall>,
        wrap: impl Fn(TensorHandle) -> T,
    ) -> Result<T> {
        Error::unless_forked(call.site)?;
        let mut result = None;
        match self.replay.record(call, self, &mut result) {
            ReplayOutcome::Yes => {}
            ReplayOutcome::No => self.record_new(call, known(), &mut result)?,
            ReplayOutcome::TooMany => return Err(self.no_room(call.site)),
        }
        result.map(wrap).ok_or_else(|| crate::error::bug!("{} has no result", call.op))
    }

    #[inline(always)]
    fn record_new(
        self: &Arc<Self>,
        call: &RecordCall<'_>,
        known: Option<InferredCall>,
        made: &mut impl TakeResults<TensorHandle>,
    ) -> Result<()> {
        let &RecordCall { op, attrs, bodies, operands, effect, site } = call;
        let known = match known {
            Some(known) => known,
            None => {
                memo::by_types(op, attrs, bodies, operands).map_err(|error| Error::op(error, site.clone()))?
            }
        };
        let signature = &known.signature;
        if signature.is_joint()
            && let Err(error) = signature.check_replicas(self.engine.device().replicas())
        {
            return Err(Error::op(error, site.clone()));
        }
        let mut inputs = Operands::new();
        if self.trace.is_some() || !self.take_operands(operands, &mut inputs, site)? {
            let traced = trace::record(self, signature, operands, effect, site)?;
            traced.into_iter().for_each(|tensor| made.put(tensor));
            return Ok(());
        }
        let mode = self.mode();
        let effect = if signature.effect() == Effect::Ordered { Effect::Ordered } else { effect };
        let results = self.promise(&known, made);
        if self.engine.captures().is_on() {
            self.engine.captures().record(signature, operands, made.taken());
        }
        let signature = known.signature;
        let op = TraceOp { signature, operands: inputs, results, effect, mode, site: site.clone() };
        self.replay.submit_with(Entry::Op(op), operands, self);
        if self.was_given_up(made.taken().first()) {
            return Err(self.no_room(site));
        }
        match mode {
            Mode::Fused if effect == Effect::Pure => {}
            Mode::Fused | Mode::Strict => self.notify(),
            Mode::Debug => {
                may_wait()?;
                self.run_by(self.engine.deadline());
                for tensor in made.taken() {
                    tensor.check()?;
                }
            }
        }
        Ok(())
    }

    /// References to the operands of an op, for the log. False if an operand belongs to a body, and
    /// therefore the op.
    #[inline]
    pub(crate) fn take_operands(
        self: &Arc<Self>,
        operands: &[&TensorHandle],
        inputs: &mut Operands<ValueRef>,
        site: &Site,
    ) -> Result<bool> {
        for tensor in operands {
            let cell = tensor.cell();
            inputs.push(if cell.is_scalar() {
                Operand::Scalar(ValueRef::of(cell.clone()))
            } else if Arc::ptr_eq(tensor.stream(), self) || self.borrow(tensor, operands, site)? {
                Operand::Tensor(ValueRef::of(cell.clone()))
            } else {
                return Ok(false);
            });
        }
        Ok(true)
    }

    /// Creates handles on the results of an op and returns the promises to produce them.
    #[inline]
    pub(crate) fn promise(
        self: &Arc<Self>,
        known: &InferredCall,
        made: &mut impl TakeResults<TensorHandle>,
    ) -> Results<ValuePromise> {
        let mut results = Results::new();
        for (index, ty) in known.signature.results().iter().enumerate() {
            let (cell, promise) = ValueCell::promised_as(ty.clone(), known.type_token(index));
            results.push(promise);
            made.put(TensorHandle::new(cell, self.clone()));
        }
        results
    }

    /// Makes a tensor of another stream usable as an operand on this one. False if an operand
    /// belongs to a body, and therefore the op.
    #[cold]
    fn borrow(
        self: &Arc<Self>,
        tensor: &TensorHandle,
        operands: &[&TensorHandle],
        site: &Site,
    ) -> Result<bool> {
        if operands.iter().any(|operand| operand.cell().place().is_some()) {
            return Ok(false);
        }
        let (owner, cell) = (tensor.stream(), tensor.cell());
        if !Arc::ptr_eq(&owner.engine, &self.engine) {
            return Err(Error::misuse(
                "a tensor of another engine was used; read it to the host and upload it here",
                site.clone(),
            ));
        }
        self.checks.borrow(&owner.checks);
        if cell.needs_boundary() || cell.outcome().get().is_none() {
            owner.need(cell, Boundary::CrossStream);
        }
        Ok(true)
    }
}

impl fuseline_record::stream::Stream for StreamShared {
    type Handle = TensorHandle;
    type Stall<'a> = Stall<'a>;

    #[inline(always)]
    fn is_driving() -> bool {
        is_driving()
    }

    #[inline(always)]
    fn may_replay(&self) -> bool {
        self.is_fused() && !self.engine.captures().is_on() && !is_counted()
    }

    #[inline(always)]
    fn append(self: &Arc<Self>, entry: Entry) {
        self.append(entry);
    }

    fn notify(self: &Arc<Self>) {
        self.notify();
    }

    fn stall(&self) -> Stall<'_> {
        self.engine.counters().stall()
    }

    fn room_deadline(&self) -> Option<Instant> {
        self.room_deadline()
    }

    fn waits_longer(&self) -> Option<Instant> {
        self.waits_longer()
    }

    fn give_up(&self, entry: Entry) -> Entry {
        self.give_up(entry)
    }
}

impl Drop for StreamShared {
    /// Drops unprocessed entries and with them buffers of the plugin. With a deadline, the thread
    /// waits for that no longer than the deadline.
    fn drop(&mut self) {
        self.checks.end();
        let is_elsewhere = is_driving() || fuseline_pjrt::inside_callback() || is_forked();
        let Some(deadline) = self.engine.deadline().filter(|_| !is_elsewhere && self.trace.is_none()) else {
            return;
        };
        if self.engine.device().pjrt().is_none() {
            return;
        }
        let log = std::mem::replace(&mut self.log, Log::new());
        let donated = std::mem::replace(&mut self.donated, DeferredFrees::new());
        let replay = std::mem::replace(&mut self.replay, Replay::new(false));
        let rest = (log, self.driver.lock().take(), replay, donated);
        // If the call does not return, keep the engine alive: its end would wait for that thread.
        let (engine, since) = (self.engine.clone(), Instant::now());
        let ended = self.engine.threads().run_with_deadline(deadline, move |hand_over| {
            drop(rest);
            drop(engine);
            hand_over(());
        });
        if ended.is_none() {
            self.engine.report_late(since.elapsed());
        }
    }
}

/// Fails on a thread that a driver may be waiting for, because such a thread must not wait.
#[inline]
pub fn may_wait() -> Result<()> {
    if is_driving() {
        return Err(Error::misuse(
            "an event sink, a callback or a handler waits for a stream, which in turn waits for it; hand the work to another thread",
            Site::Unknown,
        ));
    }
    Ok(())
}

impl fmt::Debug for StreamShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.id)
    }
}
