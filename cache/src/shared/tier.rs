//! State shared by the requesting threads and the thread that does the work.
//!
//! One lock. Nothing is called, awaited or sealed while it is held. All transitions of flights,
//! memories and breakers are methods here, so that the rules are in one place.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use object_store::path::Path;
use tokio::sync::{Notify, Semaphore};

use super::breaker::{Admission, Breaker};
use super::config::SharedConfig;
use super::flight::{Fetched, Flight};
use super::memo::Memo;
use super::report::{Counters, SharedEvent, SharedStats, add, count, micros};
use super::store::StoreLocation;
use super::trouble::{SharedDamage, Trouble, TroubleKind};
use crate::name::{Name, Request};
use crate::sealed::{Damage, FORMAT, Record, Sealer};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// Maximum number of names known to be absent, present or damaged; about 100 bytes each.
const REMEMBERED: usize = 1 << 14;

/// This many consecutive entries with another key are no accident.
const STRANGERS: u32 = 4;

/// An entry is given up after this many failures that may be its own fault.
pub(super) const ATTEMPTS: u32 = 4;

type Sink = Box<dyn Fn(SharedEvent) + Send + Sync>;

pub(crate) struct Tier {
    pub(super) place: StoreLocation,
    pub(super) sealer: Sealer,
    pub(super) config: SharedConfig,
    pub(super) counters: Counters,
    pub(super) turns: Semaphore,
    /// Signals that there may be something to write.
    pub(super) work: Notify,
    /// Signals that the thread is to end.
    pub(super) stop: Notify,
    /// The store does not support writes that fail if the object exists.
    pub(super) no_create: AtomicBool,
    state: Mutex<TierState>,
    changed: Condvar,
    sink: Sink,
}

struct TierState {
    flights: HashMap<Name, Shared>,
    next_handle: u64,
    misses: Memo<Instant>,
    present: Memo<()>,
    bad: Memo<Bad>,
    reads: Breaker,
    writes: Breaker,
    /// Consecutive entries that were sealed with another key.
    strangers: u32,
    /// Whether the store accepted or returned an entry, which proves the credentials.
    proven: bool,
    queue: VecDeque<Item>,
    queued_bytes: u64,
    /// Number of entries that are being written.
    in_hand: usize,
    full_told: bool,
    closed: bool,
    thread: Option<ThreadId>,
    stopped: bool,
}

/// A flight, and the number of its handles.
struct Shared {
    flight: Arc<Flight>,
    handles: u64,
}

/// The result of joining a read.
pub(super) enum JoinOutcome {
    /// An immediate answer.
    Answered(Fetched),
    /// A handle of a flight. With an admission the flight is new, and its read has to be started.
    Flight { flight: Arc<Flight>, handle: u64, admission: Option<Admission> },
}

/// A damaged entry.
#[derive(Clone, Copy)]
struct Bad {
    other_key: bool,
    healed: bool,
}

/// An entry in the write queue.
pub(super) struct Item {
    pub(super) record: Arc<Record>,
    pub(super) name: Name,
    pub(super) bytes: u64,
    pub(super) attempts: u32,
}

/// What a writer has to do next.
pub(super) enum Task {
    Write { item: Item, admission: Admission, heals: bool },
    WaitUntil(Instant),
    Wait,
}

/// How a read ended.
pub(super) enum Ended {
    Entry(Record),
    Absent,
    Bad(SharedDamage),
    Failed(Trouble),
    /// Reads were paused while it waited for its turn.
    Offline,
    /// No handles were left; whether the store had answered.
    Abandoned {
        answered: bool,
    },
}

/// How a write ended.
pub(super) enum Put {
    Written,
    AlreadyStored,
    Failed(Trouble),
}

/// What became of an entry that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offered {
    /// It will be written, unless newer entries displace it.
    Queued,
    /// It exists already, or is queued already.
    Known,
    /// This cache is read-only.
    ReadOnly,
    /// It is larger than the limit of an entry or of the queue.
    TooLarge,
    /// The cache is shut down.
    Closed,
}

impl Tier {
    pub(super) fn new(config: SharedConfig, place: StoreLocation, sink: Sink) -> Tier {
        let backoff = config.backoff;
        Tier {
            place,
            sealer: Sealer::new(&config.secret),
            counters: Counters::default(),
            turns: Semaphore::new(config.max_reads.clamp(1, Semaphore::MAX_PERMITS)),
            work: Notify::new(),
            stop: Notify::new(),
            no_create: AtomicBool::new(false),
            state: Mutex::new(TierState {
                flights: HashMap::new(),
                next_handle: 0,
                misses: Memo::new(REMEMBERED),
                present: Memo::new(REMEMBERED),
                bad: Memo::new(REMEMBERED),
                reads: Breaker::new(backoff),
                writes: Breaker::new(backoff),
                strangers: 0,
                proven: false,
                queue: VecDeque::new(),
                queued_bytes: 0,
                in_hand: 0,
                full_told: false,
                closed: false,
                thread: None,
                stopped: false,
            }),
            changed: Condvar::default(),
            sink,
            config,
        }
    }

    /// The path of an entry.
    pub(super) fn path(&self, name: &Name) -> Path {
        self.place.prefix.clone().join(format!("v{FORMAT}")).join(name.to_string())
    }

    /// Reports events. The panic hook has reported a panic of the sink; the tier continues.
    fn report(&self, events: impl IntoIterator<Item = SharedEvent>) {
        for event in events {
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
        }
    }

    /// Adds a handle to the flight of a request, which may be a new one.
    pub(super) fn join(&self, request: &Request<'_>) -> JoinOutcome {
        let (name, now) = (request.name(), Instant::now());
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return JoinOutcome::Answered(Fetched::Offline);
        }
        if let Some(shared) = state.flights.get_mut(&name) {
            if shared.flight.request() != *request {
                // Two different requests have the same name. The other one may have an entry.
                drop(state);
                return JoinOutcome::Answered(Fetched::Miss);
            }
            shared.handles += 1;
            let flight = Arc::clone(&shared.flight);
            state.next_handle += 1;
            let handle = state.next_handle;
            drop(state);
            count(&self.counters.joined);
            return JoinOutcome::Flight { flight, handle, admission: None };
        }
        let since = state.misses.get(&name).copied();
        if since.is_some_and(|since| now.saturating_duration_since(since) < self.config.remember_misses) {
            drop(state);
            count(&self.counters.misses);
            count(&self.counters.misses_remembered);
            return JoinOutcome::Answered(Fetched::Miss);
        }
        if state.flights.len() >= self.config.max_waiting {
            drop(state);
            count(&self.counters.busy_answers);
            return JoinOutcome::Answered(Fetched::Busy);
        }
        let admission = state.reads.admit(now);
        if let Admission::No(_) = admission {
            drop(state);
            count(&self.counters.offline_answers);
            return JoinOutcome::Answered(Fetched::Offline);
        }
        let flight = Arc::new(Flight::new(request, name));
        state.flights.insert(name, Shared { flight: Arc::clone(&flight), handles: 1 });
        state.next_handle += 1;
        let handle = state.next_handle;
        drop(state);
        JoinOutcome::Flight { flight, handle, admission: Some(admission) }
    }

    /// Drops a handle of a flight. The last one abandons the flight, and the next request starts
    /// another.
    pub(super) fn leave(&self, flight: &Arc<Flight>) {
        let mut state = self.state.lock();
        let Some(shared) = state.flights.get_mut(&flight.name) else { return };
        if !Arc::ptr_eq(&shared.flight, flight) {
            return;
        }
        shared.handles -= 1;
        if shared.handles > 0 {
            return;
        }
        state.flights.remove(&flight.name);
        drop(state);
        if !flight.is_answered() {
            flight.abandon();
        }
    }

    /// Whether a read that waited for its turn can be given up because reads are paused.
    pub(super) fn is_offline_for(&self, admission: Admission) -> bool {
        admission == Admission::Go && self.state.lock().reads.is_open()
    }

    /// Ends a read: records what it says about the store and the entry, and answers the waiters.
    pub(super) fn settle(&self, flight: &Arc<Flight>, admission: Admission, ended: Ended) {
        let now = Instant::now();
        let mut events = Vec::new();
        let mut state = self.state.lock();
        if state.flights.get(&flight.name).is_some_and(|shared| Arc::ptr_eq(&shared.flight, flight)) {
            state.flights.remove(&flight.name);
        }
        let ended = match ended {
            // Some stores deny access to absent objects if the client may not list them.
            Ended::Failed(trouble) if state.proven && super::trouble::is_access_denied(&trouble) => {
                Ended::Absent
            }
            ended => ended,
        };
        let offline = match &ended {
            Ended::Entry(_) | Ended::Absent | Ended::Abandoned { answered: true } => None,
            Ended::Bad(SharedDamage::Answer(trouble)) | Ended::Failed(trouble) => Some(trouble.clone()),
            Ended::Bad(_) => None,
            Ended::Abandoned { answered: false } | Ended::Offline => {
                state.reads.abandon(admission);
                drop(state);
                let counters = &self.counters;
                let is_offline = matches!(ended, Ended::Offline);
                count(if is_offline { &counters.offline_answers } else { &counters.cancelled });
                return flight.answer(Fetched::Offline);
            }
        };
        match offline {
            None => {
                if let Some(after) = state.reads.succeed(now) {
                    add(&self.counters.offline_micros, micros(after));
                    events.push(SharedEvent::Online { after });
                }
            }
            Some(why) => {
                let was_open = state.reads.is_open();
                if let Some(retry_in) = state.reads.fail(admission, now) {
                    if !was_open {
                        count(&self.counters.went_offline);
                    }
                    events.push(SharedEvent::Offline { why, retry_in });
                }
            }
        }
        let answer = match ended {
            Ended::Entry(record) => {
                count(&self.counters.hits);
                state.proven = true;
                state.strangers = 0;
                state.present.put(flight.name, ());
                Fetched::Hit(Arc::new(record))
            }
            Ended::Absent => {
                count(&self.counters.misses);
                state.present.remove(&flight.name);
                state.misses.put(flight.name, now);
                Fetched::Miss
            }
            Ended::Bad(why) => {
                count(&self.counters.damaged);
                self.remember_damage(&mut state, flight.name, &why, &mut events);
                Fetched::Damaged(why)
            }
            Ended::Failed(trouble) => {
                count(&self.counters.read_errors);
                Fetched::Failed(trouble)
            }
            Ended::Abandoned { .. } | Ended::Offline => {
                count(&self.counters.cancelled);
                Fetched::Offline
            }
        };
        drop(state);
        self.report(events);
        flight.answer(answer);
    }

    fn remember_damage(
        &self,
        state: &mut TierState,
        name: Name,
        why: &SharedDamage,
        events: &mut Vec<SharedEvent>,
    ) {
        events.push(SharedEvent::Damaged { name, why: why.clone() });
        let other_key = *why == SharedDamage::Entry(Damage::Mac);
        if other_key {
            state.strangers = state.strangers.saturating_add(1);
            if state.strangers == STRANGERS {
                events.push(SharedEvent::OtherKey);
            }
        }
        state.present.remove(&name);
        if matches!(why, SharedDamage::Entry(_) | SharedDamage::TooLong) && !state.bad.has(&name) {
            state.bad.put(name, Bad { other_key, healed: false });
        }
    }

    /// Queues an entry for writing.
    pub(super) fn offer(&self, record: Arc<Record>) -> Offered {
        if self.config.read_only {
            return Offered::ReadOnly;
        }
        let name = record.name();
        let bytes = (crate::sealed::HEADER + record.request.len() + record.artifact.len()) as u64;
        let mut state = self.state.lock();
        if state.closed {
            return Offered::Closed;
        }
        if state.present.has(&name) || state.queue.iter().any(|item| item.name == name) {
            return Offered::Known;
        }
        if bytes > self.config.max_entry.min(self.config.max_queued_bytes) || self.config.max_queued == 0 {
            drop(state);
            count(&self.counters.dropped);
            return Offered::TooLarge;
        }
        let dropped = self.push(&mut state, Item { record, name, bytes, attempts: 0 });
        let tell = !dropped.is_empty() && !std::mem::replace(&mut state.full_told, true);
        drop(state);
        add(&self.counters.dropped, dropped.len() as u64);
        self.work.notify_one();
        if tell {
            self.report([SharedEvent::QueueFull]);
        }
        Offered::Queued
    }

    /// Adds an item to the queue; returns the oldest ones that it displaces.
    fn push(&self, state: &mut TierState, item: Item) -> Vec<Item> {
        let mut dropped = Vec::new();
        while state.queue.len() >= self.config.max_queued
            || state.queued_bytes + item.bytes > self.config.max_queued_bytes
        {
            let Some(oldest) = state.queue.pop_front() else { break };
            state.queued_bytes -= oldest.bytes;
            dropped.push(oldest);
        }
        state.queued_bytes += item.bytes;
        state.queue.push_back(item);
        dropped
    }

    /// The next task of a writer.
    pub(super) fn next_task(&self) -> Task {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            return Task::Wait;
        }
        let admission = match state.writes.admit(now) {
            Admission::No(until) => return Task::WaitUntil(until),
            admission => admission,
        };
        let Some(item) = state.queue.pop_front() else { return Task::Wait };
        state.queued_bytes -= item.bytes;
        state.in_hand += 1;
        let stranger = state.strangers >= STRANGERS;
        let heals = state.bad.get(&item.name).is_some_and(|bad| !(bad.healed || bad.other_key && stranger));
        Task::Write { item, admission, heals }
    }

    /// Ends a write.
    pub(super) fn settle_write(&self, mut item: Item, admission: Admission, heals: bool, put: Put) {
        let now = Instant::now();
        let (name, mut events, mut dropped) = (item.name, Vec::new(), Vec::new());
        let mut state = self.state.lock();
        state.in_hand -= 1;
        match put {
            Put::Written | Put::AlreadyStored => {
                if let Some(after) = state.writes.succeed(now) {
                    events.push(SharedEvent::WritesResumed { after });
                }
                state.misses.remove(&name);
                state.present.put(name, ());
                if let Put::AlreadyStored = put {
                    count(&self.counters.already_there);
                } else {
                    state.proven = true;
                    count(&self.counters.written);
                    add(&self.counters.bytes_up, item.bytes);
                }
                if heals {
                    let other_key = state.bad.get(&name).is_some_and(|bad| bad.other_key);
                    state.bad.put(name, Bad { other_key, healed: true });
                    count(&self.counters.healed);
                    events.push(SharedEvent::Healed { name });
                }
            }
            Put::Failed(why) => {
                count(&self.counters.write_errors);
                if let Some(retry_in) = state.writes.fail(admission, now) {
                    events.push(SharedEvent::WritesPaused { why: why.clone(), retry_in });
                }
                // These may be the entry's own fault. The others are the store's, and may last.
                if matches!(why.kind, TroubleKind::Other | TroubleKind::TimedOut | TroubleKind::CutOff) {
                    item.attempts += 1;
                }
                if item.attempts >= ATTEMPTS {
                    count(&self.counters.not_written);
                    events.push(SharedEvent::NotWritten { name, why });
                } else if !state.closed {
                    // At the end of the queue, so that the next probe uses another entry.
                    dropped = self.push(&mut state, item);
                }
            }
        }
        if state.queue.is_empty() {
            state.full_told = false;
        }
        self.changed.notify_all();
        drop(state);
        add(&self.counters.dropped, dropped.len() as u64);
        self.work.notify_waiters();
        self.report(events);
    }

    /// A write was cut short because the thread ended or it panicked.
    pub(super) fn drop_write(&self, admission: Admission) {
        let mut state = self.state.lock();
        state.in_hand -= 1;
        state.writes.abandon(admission);
        self.changed.notify_all();
        drop(state);
        count(&self.counters.dropped);
    }

    /// Waits until everything is written, writes are paused, or the time is over. Returns whether
    /// everything is written.
    pub(super) fn flush(&self, end: Instant) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.queue.is_empty() && state.in_hand == 0 {
                return true;
            }
            if state.stopped || state.writes.is_open() || Instant::now() >= end {
                return false;
            }
            self.changed.wait_until(&mut state, end);
        }
    }

    /// Rejects new entries and ends the thread.
    pub(super) fn close(&self) {
        let queue = {
            let mut state = self.state.lock();
            state.closed = true;
            state.queued_bytes = 0;
            std::mem::take(&mut state.queue)
        };
        add(&self.counters.dropped, queue.len() as u64);
        self.stop.notify_one();
    }

    /// Waits until the thread has ended, for at most `most`, and not on that thread itself.
    pub(super) fn await_stop(&self, most: Duration) {
        let end = Instant::now() + most;
        let mut state = self.state.lock();
        while !state.stopped && state.thread != Some(std::thread::current().id()) && Instant::now() < end {
            self.changed.wait_until(&mut state, end);
        }
    }

    pub(super) fn thread_started(&self) {
        self.state.lock().thread = Some(std::thread::current().id());
    }

    pub(super) fn thread_stopped(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn stats(&self) -> SharedStats {
        let mut stats = self.counters.read();
        let state = self.state.lock();
        stats.is_offline = state.reads.is_open();
        stats.writes_paused = state.writes.is_open();
        stats.offline_for += state.reads.open_since().map_or(Duration::ZERO, |since| since.elapsed());
        stats.queued = (state.queue.len() + state.in_hand) as u64;
        stats.queued_bytes = state.queued_bytes;
        stats
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
