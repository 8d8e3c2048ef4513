//! What the threads that ask and the thread that does the work share.
//!
//! One lock; nothing is called, awaited or sealed while it is held. Everything that a flight, a memory or a breaker goes through
//! is a method here, so that the rules stand in one place.

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
use super::store::Place;
use super::trouble::{SharedDamage, Trouble, TroubleKind};
use crate::name::{Name, Request};
use crate::sealed::{Damage, FORMAT, Record, Sealer};
use crate::sync::{AtomicBool, Condvar, Mutex};

/// Names of entries known to be absent, present or damaged; about 100 bytes each.
const REMEMBERED: usize = 1 << 14;

/// So many entries in a row that were sealed with another key are no accident.
const STRANGERS: u32 = 4;

/// After so many failures that may be the entry's own, it is not tried again.
pub(super) const ATTEMPTS: u32 = 4;

type Sink = Box<dyn Fn(SharedEvent) + Send + Sync>;

pub(crate) struct Tier {
    pub(super) place: Place,
    pub(super) sealer: Sealer,
    pub(super) config: SharedConfig,
    pub(super) counters: Counters,
    pub(super) turns: Semaphore,
    /// There may be something to write.
    pub(super) work: Notify,
    /// The thread is to end.
    pub(super) stop: Notify,
    /// The store cannot put an object only if it is absent.
    pub(super) no_create: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    sink: Sink,
}

struct State {
    flights: HashMap<Name, Shared>,
    next_handle: u64,
    misses: Memo<Instant>,
    there: Memo<()>,
    bad: Memo<Bad>,
    reads: Breaker,
    writes: Breaker,
    /// Entries in a row that were sealed with another key.
    strangers: u32,
    /// The store took or gave an entry: the credentials are good.
    proven: bool,
    queue: VecDeque<Item>,
    queued_bytes: u64,
    /// Entries that are being written.
    in_hand: usize,
    full_told: bool,
    closed: bool,
    thread: Option<ThreadId>,
    stopped: bool,
}

/// A flight, and how many handles there are.
struct Shared {
    flight: Arc<Flight>,
    handles: u64,
}

/// What whoever asks for an entry gets.
pub(super) enum Joined {
    /// An answer at once.
    Answered(Fetched),
    /// A handle of a flight. With an admission the flight is new, and its read is to be started.
    Flight { flight: Arc<Flight>, handle: u64, admission: Option<Admission> },
}

/// A damaged entry.
#[derive(Clone, Copy)]
struct Bad {
    other_key: bool,
    healed: bool,
}

/// An entry to be written.
pub(super) struct Item {
    pub(super) record: Arc<Record>,
    pub(super) name: Name,
    pub(super) bytes: u64,
    pub(super) attempts: u32,
}

/// What there is to do for a writer.
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
    /// The store was found to be gone while it waited for its turn.
    Offline,
    /// Nobody waited any more; whether the store had answered.
    GivenUp {
        answered: bool,
    },
}

/// How a write ended.
pub(super) enum Put {
    Written,
    AlreadyThere,
    Failed(Trouble),
}

/// What became of an entry that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offered {
    /// It will be written, unless newer ones push it out of the queue.
    Queued,
    /// It is there, or waits already.
    Known,
    /// This cache only reads.
    ReadOnly,
    /// It is larger than an entry or the queue may be.
    TooLarge,
    /// The cache is shut down.
    Closed,
}

impl Tier {
    pub(super) fn new(config: SharedConfig, place: Place, sink: Sink) -> Tier {
        let backoff = config.backoff;
        Tier {
            place,
            sealer: Sealer::new(&config.secret),
            counters: Counters::default(),
            turns: Semaphore::new(config.max_reads.clamp(1, Semaphore::MAX_PERMITS)),
            work: Notify::new(),
            stop: Notify::new(),
            no_create: AtomicBool::new(false),
            state: Mutex::new(State {
                flights: HashMap::new(),
                next_handle: 0,
                misses: Memo::new(REMEMBERED),
                there: Memo::new(REMEMBERED),
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

    /// Where an entry is.
    pub(super) fn path(&self, name: &Name) -> Path {
        self.place.prefix.clone().join(format!("v{FORMAT}")).join(name.to_string())
    }

    /// A sink that panics has said so by the panic hook; the tier goes on.
    fn tell(&self, events: impl IntoIterator<Item = SharedEvent>) {
        for event in events {
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
        }
    }

    /// Counts one more handle of the flight that answers a request, which may be a new one.
    pub(super) fn join(&self, request: &Request<'_>) -> Joined {
        let (name, now) = (request.name(), Instant::now());
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return Joined::Answered(Fetched::Offline);
        }
        if let Some(shared) = state.flights.get_mut(&name) {
            if shared.flight.request() != *request {
                // Two requests of one name. The other one may have it.
                drop(state);
                return Joined::Answered(Fetched::Miss);
            }
            shared.handles += 1;
            let flight = Arc::clone(&shared.flight);
            state.next_handle += 1;
            let handle = state.next_handle;
            drop(state);
            count(&self.counters.joined);
            return Joined::Flight { flight, handle, admission: None };
        }
        let since = state.misses.get(&name).copied();
        if since.is_some_and(|since| now.saturating_duration_since(since) < self.config.remember_misses) {
            drop(state);
            count(&self.counters.misses);
            count(&self.counters.misses_remembered);
            return Joined::Answered(Fetched::Miss);
        }
        if state.flights.len() >= self.config.max_waiting {
            drop(state);
            count(&self.counters.busy_answers);
            return Joined::Answered(Fetched::Busy);
        }
        let admission = state.reads.admit(now);
        if let Admission::No(_) = admission {
            drop(state);
            count(&self.counters.offline_answers);
            return Joined::Answered(Fetched::Offline);
        }
        let flight = Arc::new(Flight::new(request, name));
        state.flights.insert(name, Shared { flight: Arc::clone(&flight), handles: 1 });
        state.next_handle += 1;
        let handle = state.next_handle;
        drop(state);
        Joined::Flight { flight, handle, admission: Some(admission) }
    }

    /// A handle of a flight is dropped. With the last one the flight is given up, and the next to ask starts another.
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

    /// Whether a read that waited for its turn has nothing to hope for any more.
    pub(super) fn is_offline_for(&self, admission: Admission) -> bool {
        admission == Admission::Go && self.state.lock().reads.is_open()
    }

    /// A read ended: what it says about the store and the entry is remembered, and whoever waits is answered.
    pub(super) fn settle(&self, flight: &Arc<Flight>, admission: Admission, ended: Ended) {
        let now = Instant::now();
        let mut events = Vec::new();
        let mut state = self.state.lock();
        if state.flights.get(&flight.name).is_some_and(|shared| Arc::ptr_eq(&shared.flight, flight)) {
            state.flights.remove(&flight.name);
        }
        let ended = match ended {
            // Some stores refuse to say that there is nothing to whoever may not list.
            Ended::Failed(trouble) if state.proven && super::trouble::is_access_denied(&trouble) => {
                Ended::Absent
            }
            ended => ended,
        };
        let offline = match &ended {
            Ended::Entry(_) | Ended::Absent | Ended::GivenUp { answered: true } => None,
            Ended::Bad(SharedDamage::Answer(trouble)) | Ended::Failed(trouble) => Some(trouble.clone()),
            Ended::Bad(_) => None,
            Ended::GivenUp { answered: false } | Ended::Offline => {
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
                state.there.put(flight.name, ());
                Fetched::Hit(Arc::new(record))
            }
            Ended::Absent => {
                count(&self.counters.misses);
                state.there.remove(&flight.name);
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
            Ended::GivenUp { .. } | Ended::Offline => {
                count(&self.counters.cancelled);
                Fetched::Offline
            }
        };
        drop(state);
        self.tell(events);
        flight.answer(answer);
    }

    fn remember_damage(
        &self,
        state: &mut State,
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
        state.there.remove(&name);
        if matches!(why, SharedDamage::Entry(_) | SharedDamage::TooLong) && !state.bad.has(&name) {
            state.bad.put(name, Bad { other_key, healed: false });
        }
    }

    /// Takes an entry to be written later.
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
        if state.there.has(&name) || state.queue.iter().any(|item| item.name == name) {
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
            self.tell([SharedEvent::QueueFull]);
        }
        Offered::Queued
    }

    /// Puts an item into the queue; the oldest make room.
    fn push(&self, state: &mut State, item: Item) -> Vec<Item> {
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

    /// What a writer has to do next.
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

    /// A write ended.
    pub(super) fn settle_write(&self, mut item: Item, admission: Admission, heals: bool, put: Put) {
        let now = Instant::now();
        let (name, mut events, mut dropped) = (item.name, Vec::new(), Vec::new());
        let mut state = self.state.lock();
        state.in_hand -= 1;
        match put {
            Put::Written | Put::AlreadyThere => {
                if let Some(after) = state.writes.succeed(now) {
                    events.push(SharedEvent::WritesResumed { after });
                }
                state.misses.remove(&name);
                state.there.put(name, ());
                if let Put::AlreadyThere = put {
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
                // These may be the entry's own fault; the others are the store's, and may last.
                if matches!(why.kind, TroubleKind::Other | TroubleKind::TimedOut | TroubleKind::CutOff) {
                    item.attempts += 1;
                }
                if item.attempts >= ATTEMPTS {
                    count(&self.counters.not_written);
                    events.push(SharedEvent::NotWritten { name, why });
                } else if !state.closed {
                    // Behind the others, so that the next probe is with another one.
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
        self.tell(events);
    }

    /// A write was cut short by the end of the thread, or panicked.
    pub(super) fn drop_write(&self, admission: Admission) {
        let mut state = self.state.lock();
        state.in_hand -= 1;
        state.writes.abandon(admission);
        self.changed.notify_all();
        drop(state);
        count(&self.counters.dropped);
    }

    /// Waits until everything is written, writes are paused, or the time is over. Whether everything is written.
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

    /// Takes nothing any more, and has the thread end.
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

    /// Waits until the thread is gone, but not for longer than this, and not on that thread itself.
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
