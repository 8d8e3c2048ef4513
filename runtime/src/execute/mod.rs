//! Turns log entries into running regions.
//!
//! Input: the entries of one stream's log, in order. Output: values with data. Each stream has one
//! `Driver`. The thread that runs the stream's actor (`schedule`) works with it, one thread at a
//! time.
//!
//! ```text
//! log ─► RegionBuilder ─► job ─► canonical form, key ─► cache ─┬─ hit ───────────► launch ─► outcomes
//!                                                              ├─ new ───► interpreter ──────┘
//!                                                              ├─ claim ─► compile pool ─┘
//!                                                              └─ failed ─► op by op, or in parts
//! ```
//!
//! Invariants:
//! - EXEC-1: jobs are launched in the order of the log. A job that waits for its executable holds
//!   back the jobs behind it in its stream. Their compiles run meanwhile.
//! - EXEC-2: every promise of a region is settled: with data, with the failure that poisoned it, or
//!   by being dropped, which marks the value as abandoned.
//! - EXEC-3: a failure reaches exactly the values that depend on it. A region with a failed input
//!   is split, and its ops run one by one.
//! - EXEC-5: a merged region waits for no compile. Its units run until its executable exists.
//! - EXEC-4: a failure of a region as a whole (a compile, an execution) costs speed first: the
//!   region runs op by op. Only an op that fails by itself fails its results.
//!
//! The mode of an op was captured when it was recorded. The driver treats regions of all modes
//! alike.

mod compile;
mod diagnostics;
mod job;
mod memory;
mod panic_guarded_rule;
mod precompile;
#[cfg(feature = "stages")]
pub mod stages;

use std::collections::VecDeque;
use std::sync::Arc;

use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Mode, Region, RegionBuilder};
use fuseline_fusion::{RegionSeq, Site, ValueId};
use fuseline_record::entry::{Fence, FenceOutcome, FencePromise, TraceEnd};
use fuseline_record::template::StreamPosition;

pub use compile::guarded;
pub use precompile::{Ahead, compile_ahead};

use crate::engine::stream::{Drive, StreamShared};
use crate::engine::value::ValuePromise;
use crate::engine::{EngineShared, Entry, ReplayTrace, TraceEntry};
use crate::limits::MAX_QUEUED_REGIONS;
use crate::user_code::without_waiting;
use diagnostics::Diagnostics;
use job::{Job, Parts, Progress};
use panic_guarded_rule::boundary_rule;

/// A region whose results are promises of this engine.
pub(crate) type EngineRegion = Region<ValuePromise>;

/// A queued item that is waiting to be launched.
enum Work {
    Job(Box<Job>),
    Fence(FencePromise),
    /// Items behind this one wait for a position in another stream.
    WaitFor {
        fence: Arc<Fence>,
        /// The stream has subscribed to the fence.
        is_awaited: bool,
    },
}

/// The reading side of a stream.
pub(crate) struct Driver {
    builder: RegionBuilder<ValuePromise>,
    /// Regions that the builder has sealed and that are not yet jobs.
    sealed: Vec<EngineRegion>,
    /// Sealed work that is not launched, in order.
    queue: VecDeque<Work>,
    /// Regions sealed so far.
    seq: u64,
    /// Entries taken in so far.
    passed: StreamPosition,
    /// Values of the latest replayed trace that were released after its last op, each with the
    /// number of ops that followed.
    late: Vec<(u32, ValueId)>,
    /// Diagnostics, kept only while the engine is observed.
    watch: Diagnostics,
    /// Call site of the read that caused the boundary being handled, if a known read did.
    asked: Option<Site>,
}

/// Why [`Driver::launch`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launched {
    /// Nothing is left to launch.
    All,
    /// The first job waits for something that will notify the stream.
    Blocked,
}

/// Creates a stream of an engine, with its driver.
pub fn new_stream(engine: &Arc<EngineShared>) -> Arc<StreamShared> {
    StreamShared::new(engine.next_stream(), engine.clone(), Box::new(Driver::of(engine)))
}

impl Drive for Driver {
    fn run(&mut self, is_reader: bool, stream: &Arc<StreamShared>) -> bool {
        without_waiting(|| self.work(stream, is_reader))
    }
}

impl Driver {
    /// The driver of a new stream.
    fn of(engine: &EngineShared) -> Driver {
        let config = engine.config();
        let rule = boundary_rule(config, engine.telemetry());
        let builder = RegionBuilder::new(rule, config.budgets);
        let (sealed, queue) = (Vec::new(), VecDeque::new());
        let late = Vec::new();
        Driver {
            builder,
            sealed,
            queue,
            seq: 0,
            passed: StreamPosition::default(),
            late,
            watch: Diagnostics::default(),
            asked: None,
        }
    }

    fn work(&mut self, stream: &Arc<StreamShared>, is_reader: bool) -> bool {
        let mut reader = stream.log().read();
        loop {
            // Entries first: sealing a region starts its compile, which then runs while earlier
            // ones are launched.
            while self.queue.len() < MAX_QUEUED_REGIONS {
                match reader.pop() {
                    Some(entry) => self.handle(entry, stream),
                    None => break,
                }
            }
            let is_answer = |work: &Work| matches!(work, Work::Job(job) if job.has_answered);
            if is_reader && self.queue.iter().any(is_answer) {
                return true;
            }
            let full = self.queue.len() >= MAX_QUEUED_REGIONS;
            match self.launch(stream) {
                Launched::Blocked if full => return false,
                // Launching made room: go on reading.
                _ if full => {}
                // Somebody waits for an entry that is being written right now: ask its writer to
                // notify the stream.
                _ if reader.place() < stream.demanded() => {
                    if reader.await_next() {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }

    fn handle(&mut self, entry: Entry, stream: &Arc<StreamShared>) {
        self.take_in(entry, stream);
        self.submit(stream);
    }

    /// Hands an entry to the builder, which seals the regions that the entry ends.
    fn take_in(&mut self, entry: Entry, stream: &Arc<StreamShared>) {
        self.passed.requests += u64::from(entry.is_boundary_request());
        match entry {
            Entry::Op(op) => self.take_entry(TraceEntry::Op(op), stream),
            Entry::Release(value) => self.take_entry(TraceEntry::Release(value.id()), stream),
            Entry::Trace(trace, end) => self.replay(trace, end, stream),
            Entry::Demand(value, boundary) => {
                let asked = asked_for(boundary, || [value.id()], stream);
                if self.builder.is_recent(value.id()) {
                    self.seal(boundary, asked, stream);
                }
            }
            Entry::Flush(boundary) => self.seal(boundary, None, stream),
            // It was counted when it was recorded.
            Entry::Dropped => self.passed.ops += 1,
            Entry::Fence(promise) => {
                self.seal(Boundary::Flush, None, stream);
                self.queue.push_back(Work::Fence(promise));
            }
            Entry::WaitFor(fence) => {
                self.seal(Boundary::CrossStream, None, stream);
                self.queue.push_back(Work::WaitFor { fence, is_awaited: false });
            }
        }
    }

    /// Ends the pending region at the program's request. `asked` is the call site of the read, if
    /// it was one.
    fn seal(&mut self, boundary: Boundary, asked: Option<Site>, stream: &Arc<StreamShared>) {
        self.builder.seal(boundary, &mut self.sealed);
        self.asked = asked;
        self.submit(stream);
        let asked = self.asked.take();
        if let Some((round, prologue)) = self.builder.expects_next() {
            let ops = self.passed.ops + prologue as u64;
            stream.replay().expect_loop_again(round, StreamPosition { ops, ..self.passed });
        }
        if stream.engine().is_observed() {
            self.watch.boundary(asked, stream);
        }
    }

    fn take_entry(&mut self, step: TraceEntry, stream: &StreamShared) {
        match step {
            TraceEntry::Op(op) => {
                stream.engine().counters().ops.add(1);
                self.passed.ops += 1;
                self.builder.push(op, &mut self.sealed);
            }
            TraceEntry::Release(value) => {
                // Either nobody needs the value any more, or the pending region holds its own
                // reference.
                let _ = self.builder.release(value);
            }
        }
    }

    /// Takes in a trace as one region, or else step by step (TRACE-1, TRACE-2 of
    /// `record::trace_cache`).
    fn replay(&mut self, mut trace: Box<ReplayTrace>, end: TraceEnd, stream: &Arc<StreamShared>) {
        let template = trace.template().clone();
        match (end, template.iteration) {
            (TraceEnd::Boundary(boundary), _)
                if self.builder.replay(trace.ops(), &template.units, boundary) =>
            {
                let asked = asked_for(boundary, || trace.outputs().map(|(value, _)| value), stream);
                self.launch_tape(&mut trace, boundary, asked.clone(), stream);
                if stream.engine().is_observed() {
                    self.watch.boundary(asked, stream);
                }
            }
            (TraceEnd::Iteration, Some(round)) if self.builder.is_at_round(round.fingerprint) => {
                let living = trace.outputs().filter(|&(_, live)| live).map(|(value, _)| value);
                self.builder.replay_round(trace.others(), trace.dying(), living, &mut self.sealed);
                // Iterations that were recorded op by op before.
                self.submit(stream);
                self.launch_tape(&mut trace, round.boundary, None, stream);
            }
            (TraceEnd::Boundary(boundary), _) => {
                let values = trace.outputs().map(|(value, _)| value).collect::<Vec<_>>();
                let asked = asked_for(boundary, || values, stream);
                self.take_entries(&mut trace, stream);
                self.seal(boundary, asked, stream);
            }
            (TraceEnd::Iteration | TraceEnd::Mismatch, _) => {
                if end == TraceEnd::Iteration {
                    stream.replay().is_off();
                }
                self.take_entries(&mut trace, stream);
            }
        }
        stream.replay().take_back(trace);
    }

    /// Makes a job of a trace that is a whole region.
    fn launch_tape(
        &mut self,
        trace: &mut ReplayTrace,
        boundary: Boundary,
        asked: Option<Site>,
        stream: &Arc<StreamShared>,
    ) {
        let counters = stream.engine().counters();
        counters.ops.add(trace.ops() as u64);
        counters.replayed.add(trace.ops() as u64);
        self.passed.ops += trace.ops() as u64;
        self.late.clear();
        let is_observed = stream.engine().is_observed();
        if is_observed {
            self.watch.sealed(trace.template().canon.graph());
        }
        let mut job = Job::replayed(trace, boundary, asked, next(&mut self.seq), stream);
        if job.is_skipped() {
            return;
        }
        if is_observed {
            self.watch.made(&job, stream);
        }
        job.answer(stream);
        job.prepare(stream);
        self.enqueue(job, stream);
    }

    fn take_entries(&mut self, trace: &mut ReplayTrace, stream: &Arc<StreamShared>) {
        for step in trace.take_entries(&mut self.late) {
            self.take_entry(step, stream);
            self.submit(stream);
        }
    }

    /// Makes jobs of the sealed regions and starts the compiles that they need.
    fn submit(&mut self, stream: &Arc<StreamShared>) {
        if self.sealed.is_empty() {
            return;
        }
        let mut sealed = std::mem::take(&mut self.sealed);
        for region in sealed.drain(..) {
            let is_pure = region.mode == Mode::Fused && region.effect == Effect::Pure;
            let (spans_user_boundaries, round) = (region.spans_user_boundaries && is_pure, region.round);
            let is_observed = stream.engine().is_observed();
            if is_observed {
                self.watch.sealed(&region.graph);
            }
            let mut job = Job::new(region, self.asked.clone(), next(&mut self.seq), stream);
            if !job.is_skipped() {
                job.prepare(stream);
                job.answer(stream);
                if is_observed {
                    self.watch.made(&job, stream);
                }
            }
            // A region that is skipped has a trace too: the program records it again and again.
            if spans_user_boundaries || round.is_some() {
                let template = job.note(round, stream);
                if let Some(template) =
                    template.filter(|_| round.is_some_and(|round| self.builder.expects(round)))
                {
                    // The pending ops belong to the next iterations.
                    let ops = self.passed.ops - self.builder.pending() as u64;
                    stream.replay().expect_loop(template, StreamPosition { ops, ..self.passed });
                }
            }
            if !job.is_skipped() {
                self.enqueue(job, stream);
            }
        }
        self.sealed = sealed;
    }

    /// Appends a prepared job to the queue, or the units of its merged region if those run instead.
    fn enqueue(&mut self, job: Box<Job>, stream: &Arc<StreamShared>) {
        match job.or_units(stream) {
            Ok(job) => self.queue.push_back(Work::Job(job)),
            Err(units) => {
                for unit in units {
                    let mut job = Job::new(unit, None, next(&mut self.seq), stream);
                    if !job.is_skipped() {
                        job.prepare(stream);
                        self.queue.push_back(Work::Job(job));
                    }
                }
            }
        }
    }

    /// Puts the parts of a region at the front of the queue, in order. Each part gets its own
    /// number.
    fn put_in_front(&mut self, parts: Parts, stream: &StreamShared) {
        let Parts { regions, part_of, quarantine } = parts;
        for region in regions.into_iter().rev() {
            let mut job = Job::new(region, None, next(&mut self.seq), stream);
            if !job.is_skipped() {
                job.part_of = part_of;
                job.quarantine = quarantine.clone();
                self.queue.push_front(Work::Job(job));
            }
        }
    }

    /// Launches from the front of the queue until a job or fence has to wait.
    fn launch(&mut self, stream: &Arc<StreamShared>) -> Launched {
        while let Some(work) = self.queue.pop_front() {
            match work {
                Work::Fence(promise) => match stream.in_flight().drained() {
                    true => drop(promise.resolve(FenceOutcome::Done)),
                    false => {
                        self.queue.push_front(Work::Fence(promise));
                        return Launched::Blocked;
                    }
                },
                Work::WaitFor { fence, is_awaited } => {
                    if (*fence).as_ref().get().is_some() {
                        continue;
                    }
                    if !is_awaited {
                        let waiting = stream.clone();
                        (*fence).as_ref().subscribe(move || StreamShared::notify_from_outside(waiting));
                    }
                    self.queue.push_front(Work::WaitFor { fence, is_awaited: true });
                    return Launched::Blocked;
                }
                Work::Job(job) => match job.advance(stream) {
                    Progress::Done => {}
                    Progress::Blocked(job) => {
                        self.queue.push_front(Work::Job(job));
                        return Launched::Blocked;
                    }
                    Progress::Parts(parts) => self.put_in_front(parts, stream),
                },
            }
        }
        Launched::All
    }
}

/// Returns the number of the next region.
fn next(seq: &mut u64) -> RegionSeq {
    *seq += 1;
    RegionSeq(*seq - 1)
}

/// The call site where the host read one of these values, if the boundary is a read and the engine
/// is observed.
fn asked_for<I: IntoIterator<Item = ValueId>>(
    boundary: Boundary,
    values: impl FnOnce() -> I,
    stream: &StreamShared,
) -> Option<Site> {
    let is_read = boundary == Boundary::HostRead && stream.engine().is_observed();
    is_read.then(|| stream.read_sites().take(values()))?
}
