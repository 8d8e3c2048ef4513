//! The log of one stream: a queue that any thread appends to without a lock and that one consumer
//! reads in order.
//!
//! # Order
//!
//! An append takes a *ticket*, a number that determines its place. One atomic counter hands out
//! tickets, so the order is total. An append that happens after another (in the same thread, or by
//! any synchronisation) has the larger ticket. The consumer sees entries in ticket order, always a
//! prefix.
//!
//! # Layout
//!
//! Tickets map to slots of segments, and segments to entries of a circular directory:
//!
//! ```text
//! ticket = (lap * SEGMENTS + segment) * SLOTS + slot
//! ```
//!
//! The first append that needs a segment allocates it. The consumer removes it after its last slot.
//! The log holds at most `SEGMENTS * SLOTS` entries; an append beyond that parks until the consumer
//! has made room. This is the back-pressure of last resort.
//!
//! A thread that the consumer may be waiting for must not park. [`Log::push_at_once`] puts an entry
//! that does not fit into a list beside the slots. Its *bound* is the ticket that would have been
//! next; the consumer takes it before the entry of that ticket.
//!
//! An append with a time limit ([`Log::push_within`]) stores its entry, with its ticket, in the
//! overflow list `room` when the limit expires. The consumer moves it to its slot as soon as there
//! is room.
//!
//! # States and transitions
//!
//! Slot: `EMPTY`, `AWAITED` or `WRITTEN`.
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `EMPTY -> WRITTEN`, `AWAITED -> WRITTEN` | the owner of the ticket, once, after writing the payload | swap, `Release` publishes the payload |
//! | `EMPTY -> AWAITED` | the consumer, when it needs an entry that is not written | compare-exchange, relaxed; failure means `WRITTEN` |
//! | `WRITTEN -> EMPTY` | the consumer, when it recycles the whole segment | plain store, published by the segment's next installation |
//!
//! Directory entry: null or a segment.
//!
//! | transition | who | ordering |
//! |---|---|---|
//! | `null -> segment` | whoever needs it first, producer or consumer | compare-exchange, `Release` publishes the empty slots, `Acquire` for the loser |
//! | `segment -> null` | the consumer, after it has taken all payloads | plain store, published by `head` |
//!
//! `head` is the first ticket whose segment has not been removed, a multiple of `SLOTS`. The
//! consumer stores it with `Release` after it has cleared the directory entry. Producers load it
//! with `Acquire`, or under the lock that the consumer holds for the store (`room`).
//!
//! # Safety argument
//!
//! - LOG-1: *A payload is written by exactly one thread and before it is read.* The ticket counter
//!   hands out each ticket once. The consumer reads a payload only after it saw `WRITTEN` with
//!   `Acquire`, which the owner stored with `Release` after the payload.
//! - LOG-2: *A producer reaches the right segment.* It uses a directory entry only after it saw,
//!   with `Acquire` or under `room`, that `ticket - capacity` is below `head`. Before that, the
//!   consumer had cleared the entry of the previous lap. So the producer sees null or the segment
//!   of its own lap. It cannot see the segment of the next lap, because the consumer would have to
//!   pass this ticket first.
//! - LOG-3: *A segment is not freed under a producer.* A producer's last access to a segment is the
//!   swap to `WRITTEN`. The consumer removes a segment only after it saw `WRITTEN` with `Acquire`
//!   in each of its slots.
//! - LOG-4: *No wake-up is lost.* A consumer that needs a slot that is not written exchanges
//!   `EMPTY` for `AWAITED`. Either that fails because the payload is there, or the producer's swap
//!   returns `AWAITED` and the producer wakes the consumer. Producers that wait for room check
//!   `head` under the lock that the consumer holds while it stores `head` and notifies. Before they
//!   wait, they make sure that the consumer awaits every slot up to theirs, because an earlier slot
//!   may be written only after the consumer has looked at it.
//! - LOG-5: *An entry in the list keeps its place.* Its bound is read from the ticket counter under
//!   the list's lock. So the bound is above the tickets of all appends that happened before, and
//!   bounds do not decrease along the list. An append that happens after it has a ticket not below
//!   the bound. A consumer that sees `WRITTEN` for that ticket also sees the list, which it checks
//!   before it takes a payload.
//! - LOG-6: *Everything is dropped once.* A payload leaves its slot by a read in `pop` or by
//!   `drop`, which visits the `WRITTEN` tickets from the consumer's place on.
//! - LOG-7: *A deferred ticket is filled before the consumer reaches it.* An entry is deferred
//!   under the lock that the consumer holds while it moves `head`, and only if there is still no
//!   room then. The consumer fills the slot when it moves `head` far enough, and cannot reach the
//!   ticket earlier.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Instant;

use crossbeam::utils::CachePadded;
use fuseline_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use fuseline_sync::{Condvar, Mutex, MutexGuard, Rank, UnsafeCell, ordering};

/// Slots of a segment. A segment of 32 slots is about one page.
const SLOTS: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 32 };

/// Entries of the directory.
const SEGMENTS: u64 = match () {
    () if cfg!(loom) => 2,
    () if cfg!(shuttle) => 8,
    () => 256,
};

/// Maximum number of entries in the log.
const CAPACITY: u64 = SLOTS * SEGMENTS;

const EMPTY: u32 = 0;
const AWAITED: u32 = 1;
const WRITTEN: u32 = 2;

/// Place of an entry in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// A ticket from a number that [`Ticket::to_raw`] gave.
    #[inline]
    pub fn from_raw(raw: u64) -> Ticket {
        Ticket(raw)
    }

    /// The number of this ticket.
    #[inline]
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The ticket after this one.
    #[inline]
    pub fn next(self) -> Ticket {
        Ticket(self.0 + 1)
    }

    /// Whether this is the last of a group of `n` tickets. The choice is the same in every run.
    #[inline]
    pub fn is_every(self, n: u64) -> bool {
        self.0 % n == n - 1
    }
}

struct LogSlot<T> {
    state: AtomicU32,
    payload: UnsafeCell<MaybeUninit<T>>,
}

struct Segment<T> {
    slots: [LogSlot<T>; SLOTS as usize],
    /// Represents the plain memory of the segment to model checkers, which do not see it. A thread
    /// with the pointer reads it; a thread that recycles or frees the segment writes it.
    memory: UnsafeCell<()>,
}

impl<T> Segment<T> {
    fn new() -> Segment<T> {
        let slot =
            |_| LogSlot { state: AtomicU32::new(EMPTY), payload: UnsafeCell::new(MaybeUninit::uninit()) };
        Segment { slots: std::array::from_fn(slot), memory: UnsafeCell::new(()) }
    }

    fn slot(&self, ticket: u64) -> &LogSlot<T> {
        self.memory.with(|_| ());
        &self.slots[(ticket % SLOTS) as usize]
    }
}

impl<T> Drop for Segment<T> {
    fn drop(&mut self) {
        self.memory.with_mut(|_| ());
    }
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PushOutcome {
    /// Place of the entry.
    pub ticket: Ticket,
    /// The consumer waits for this entry, so the caller has to schedule it.
    pub awaited: bool,
}

/// Entries whose append ran out of time, with their tickets. They are boxed to keep an idle log
/// small: usually there are none.
struct EntryList<T>(Vec<(u64, T)>);

/// A multi-producer, single-consumer log. See the module's documentation.
pub struct Log<T> {
    /// Next ticket.
    tail: CachePadded<AtomicU64>,
    /// First ticket whose segment has not been removed.
    head: CachePadded<AtomicU64>,
    directory: Box<[AtomicPtr<Segment<T>>; SEGMENTS as usize]>,
    /// A segment to use instead of allocating one, or null.
    spare: AtomicPtr<Segment<T>>,
    /// First ticket that has not been read. The thread that holds the lock is the consumer.
    place: Mutex<u64>,
    /// The consumer holds the lock while it moves `head`, and producers while they decide to wait
    /// for that. It guards the entries whose append ran out of time.
    room: Mutex<Option<Box<EntryList<T>>>>,
    room_freed: Condvar,
    /// Entries that did not fit and whose threads must not wait, each with its bound (LOG-5).
    late: Mutex<VecDeque<(u64, T)>>,
    /// Whether `late` may hold something.
    has_late: AtomicBool,
}

/// The consumer's end, held by one thread at a time.
pub struct Reader<'a, T> {
    log: &'a Log<T>,
    /// First ticket that has not been read.
    place: MutexGuard<'a, u64>,
}

// SAFETY: holds because entries of type `T` are moved between threads by the protocol above, each
// owned by one thread at a time (LOG-1), and nothing else is shared but atomics and locks.
unsafe impl<T: Send> Send for Log<T> {}
// SAFETY: holds for the same reason; no `&T` is ever handed out.
unsafe impl<T: Send> Sync for Log<T> {}

impl<T> fmt::Debug for Log<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log(next ticket: {})", self.tail.load(Ordering::Relaxed))
    }
}

impl<T> fmt::Debug for Reader<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({:?})", self.log)
    }
}

impl<T> Default for Log<T> {
    fn default() -> Log<T> {
        Log::new()
    }
}

impl<T> Log<T> {
    /// An empty log.
    pub fn new() -> Log<T> {
        Log {
            tail: CachePadded::new(AtomicU64::new(0)),
            head: CachePadded::new(AtomicU64::new(0)),
            directory: Box::new(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()))),
            spare: AtomicPtr::new(ptr::null_mut()),
            place: Mutex::new(Rank::Reader, 0),
            room: Mutex::new(Rank::LogRoom, None),
            room_freed: Condvar::new(),
            late: Mutex::new(Rank::LateEntries, VecDeque::new()),
            has_late: AtomicBool::new(false),
        }
    }

    /// Makes this thread the consumer. Waits while another thread is.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> Reader<'_, T> {
        Reader { log: self, place: self.place.lock() }
    }

    /// Appends an entry. If the log is full, `when_full` is called with the entry's ticket before
    /// the thread parks. It must make sure that the consumer runs and awaits each unwritten entry
    /// before this one. Its result is dropped when there is room.
    #[cfg(all(test, not(shuttle)))]
    pub fn push<W>(&self, entry: T, when_full: impl FnOnce(Ticket) -> W) -> PushOutcome {
        self.push_within(entry, |ticket, _| (when_full(ticket), None), |_| None, |entry| entry)
    }

    /// As `push`, with a time limit. `when_full` also returns the deadline of the wait, if there is
    /// one. When it has passed, `waits_on` may extend it. Otherwise the append ends, and the
    /// consumer gets what `give_up` makes of the entry.
    #[inline(always)]
    pub fn push_within<W>(
        &self,
        entry: T,
        when_full: impl FnOnce(Ticket, &T) -> (W, Option<Instant>),
        waits_on: impl FnMut(&T) -> Option<Instant>,
        give_up: impl FnOnce(T) -> T,
    ) -> PushOutcome {
        // Relaxed is enough for the order: the modification order of one counter respects
        // happens-before.
        let ticket = self.tail.fetch_add(1, Ordering::Relaxed);
        if ticket >= self.head.load(ordering!(Acquire, "log_head_load")) + CAPACITY {
            return self.push_late(ticket, entry, when_full, waits_on, give_up);
        }
        self.fill(ticket, entry)
    }

    #[cold]
    #[inline(never)]
    fn push_late<W>(
        &self,
        ticket: u64,
        mut entry: T,
        when_full: impl FnOnce(Ticket, &T) -> (W, Option<Instant>),
        mut waits_on: impl FnMut(&T) -> Option<Instant>,
        give_up: impl FnOnce(T) -> T,
    ) -> PushOutcome {
        let (_waiting, mut until) = when_full(Ticket(ticket), &entry);
        let has_room = loop {
            if self.wait_for_room(ticket, until) {
                break true;
            }
            until = waits_on(&entry);
            if until.is_none() {
                break false;
            }
        };
        if !has_room {
            // Outside the lock, because this may run foreign code.
            entry = give_up(entry);
            let mut list = self.room.lock();
            // Relaxed: `head` is stored under this lock.
            if ticket >= self.head.load(Ordering::Relaxed) + CAPACITY {
                list.get_or_insert_with(|| Box::new(EntryList(Vec::new()))).0.push((ticket, entry));
                return PushOutcome { ticket: Ticket(ticket), awaited: true };
            }
        }
        self.fill(ticket, entry)
    }

    /// Appends an entry without parking. For threads that the consumer may be waiting for.
    pub fn push_at_once(&self, entry: T) -> PushOutcome {
        let mut ticket = self.tail.load(Ordering::Relaxed);
        while ticket < self.head.load(ordering!(Acquire, "log_head_load")) + CAPACITY {
            match self.tail.compare_exchange_weak(ticket, ticket + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.fill(ticket, entry),
                Err(now) => ticket = now,
            }
        }
        let mut late = self.late.lock();
        let bound = self.tail.load(Ordering::Relaxed);
        late.push_back((bound, entry));
        // Relaxed: a thread that has to find the entry has synchronised with this one, either by a
        // later append (LOG-5) or because this thread notifies it.
        self.has_late.store(true, Ordering::Relaxed);
        // The consumer takes this entry after all tickets below the bound, so a demand for this
        // entry is a demand for them.
        PushOutcome { ticket: Ticket(bound - 1), awaited: true }
    }

    /// Writes an entry to the slot of its ticket, which must be below `head + CAPACITY`.
    fn fill(&self, ticket: u64, entry: T) -> PushOutcome {
        let segment = self.segment(ticket);
        // SAFETY: holds because `segment` came from the directory for our ticket (LOG-2) and is not
        // freed before our swap below (LOG-3).
        let slot = unsafe { &*segment }.slot(ticket);
        // SAFETY: holds because this thread alone owns the ticket and the slot is not `WRITTEN`
        // yet, so no other thread touches the payload (LOG-1).
        slot.payload.with_mut(|payload| unsafe { (*payload).write(entry) });
        let before = slot.state.swap(WRITTEN, ordering!(Release, "log_publish"));
        debug_assert_ne!(before, WRITTEN, "bug: a ticket was used twice");
        PushOutcome { ticket: Ticket(ticket), awaited: before == AWAITED }
    }

    /// Waits for room for the entry of this ticket; false if the deadline passes first.
    fn wait_for_room(&self, ticket: u64, until: Option<Instant>) -> bool {
        let mut guard = self.room.lock();
        // Relaxed: `head` is stored under this lock.
        while ticket >= self.head.load(Ordering::Relaxed) + CAPACITY {
            guard = match until {
                None => self.room_freed.wait(guard),
                Some(until) if Instant::now() < until => self.room_freed.wait_until(guard, until),
                Some(_) => return false,
            };
        }
        true
    }

    /// The segment of a ticket below `head + CAPACITY`, allocated if there is none yet.
    fn segment(&self, ticket: u64) -> *mut Segment<T> {
        let entry = &self.directory[(ticket / SLOTS % SEGMENTS) as usize];
        let found = entry.load(ordering!(Acquire, "log_segment_load"));
        if found.is_null() { self.install(entry) } else { found }
    }

    #[cold]
    fn install(&self, entry: &AtomicPtr<Segment<T>>) -> *mut Segment<T> {
        let mut fresh = self.spare.swap(ptr::null_mut(), ordering!(Acquire, "log_spare_take"));
        if fresh.is_null() {
            fresh = Box::into_raw(Box::new(Segment::new()));
        }
        match entry.compare_exchange(
            ptr::null_mut(),
            fresh,
            ordering!(Release, "log_segment_install"),
            ordering!(Acquire, "log_segment_lost"),
        ) {
            Ok(_) => fresh,
            Err(theirs) => {
                self.store_spare(fresh);
                theirs
            }
        }
    }

    /// Keeps an unused segment, all of whose slots are `EMPTY`, for the next `install`.
    fn store_spare(&self, segment: *mut Segment<T>) {
        let old = self.spare.swap(segment, ordering!(AcqRel, "log_spare_store"));
        if !old.is_null() {
            // SAFETY: holds because a spare segment was made by `Box::into_raw`, is in no directory
            // entry, and the swap made us its only owner.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

impl<'a, T> Reader<'a, T> {
    /// Place of the next entry.
    pub fn place(&self) -> Ticket {
        Ticket(*self.place)
    }

    /// The next entry, if it has been written.
    pub fn pop(&mut self) -> Option<T> {
        let ticket = *self.place;
        let next = self.written(ticket);
        if self.log.has_late.load(Ordering::Relaxed)
            && let Some(entry) = self.pop_late(ticket)
        {
            return Some(entry);
        }
        let (entry, segment) = next?;
        // SAFETY: holds because only the consumer, which is this thread, removes segments from the
        // directory.
        let slot = unsafe { &*segment }.slot(ticket);
        // SAFETY: holds because `WRITTEN` was seen with `Acquire`, so the payload is there (LOG-1),
        // and the place moves past it below, so it is read once (LOG-6).
        let payload = slot.payload.with(|payload| unsafe { payload.cast::<T>().read() });
        *self.place = ticket + 1;
        if (ticket + 1).is_multiple_of(SLOTS) {
            self.retire(entry, segment, ticket + 1);
        }
        Some(payload)
    }

    /// The first entry of the list, if its place is before this ticket.
    #[cold]
    fn pop_late(&self, ticket: u64) -> Option<T> {
        let mut late = self.log.late.lock();
        if late.is_empty() {
            self.log.has_late.store(false, Ordering::Relaxed);
        }
        match late.front() {
            Some(&(bound, _)) if bound <= ticket => late.pop_front().map(|(_, entry)| entry),
            _ => None,
        }
    }

    /// The directory entry and the segment of this ticket, if its entry has been written.
    fn written(&self, ticket: u64) -> Option<(&'a AtomicPtr<Segment<T>>, *mut Segment<T>)> {
        let log = self.log;
        let entry = &log.directory[(ticket / SLOTS % SEGMENTS) as usize];
        let segment = entry.load(ordering!(Acquire, "log_pop_segment"));
        if segment.is_null() {
            return None;
        }
        // SAFETY: holds because only the consumer, which is this thread, removes segments from the
        // directory.
        let slot = unsafe { &*segment }.slot(ticket);
        (slot.state.load(ordering!(Acquire, "log_consume")) == WRITTEN).then_some((entry, segment))
    }

    /// Removes a segment that has been read to its end, and admits waiting producers.
    fn retire(&self, entry: &AtomicPtr<Segment<T>>, segment: *mut Segment<T>, head: u64) {
        entry.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: holds because every slot was `WRITTEN`, seen with `Acquire`, so no producer
        // touches the segment any more (LOG-3), and it is no longer in the directory.
        let recycled = unsafe { &*segment };
        recycled.memory.with_mut(|_| ());
        for slot in &recycled.slots {
            slot.state.store(EMPTY, Ordering::Relaxed);
        }
        self.log.store_spare(segment);
        let mut list = self.log.room.lock();
        self.log.head.store(head, ordering!(Release, "log_head_store"));
        self.log.room_freed.notify_all();
        let Some(all) = list.take() else { return };
        let (fits, late): (Vec<_>, Vec<_>) =
            all.0.into_iter().partition(|(ticket, _)| *ticket < head + CAPACITY);
        if !late.is_empty() {
            *list = Some(Box::new(EntryList(late)));
        }
        drop(list);
        for (ticket, entry) in fits {
            // No wake-up is needed: this thread is the consumer that awaits it.
            let _ = self.log.fill(ticket, entry);
        }
    }

    /// Requests a wake-up when the next entry is written. True means that its append will return
    /// [`PushOutcome::awaited`]. False means that the entry has been written already.
    pub fn await_next(&self) -> bool {
        let ticket = *self.place;
        // SAFETY: holds because only the consumer, which is this thread, removes segments from the
        // directory.
        let slot = unsafe { &*self.log.segment(ticket) }.slot(ticket);
        // Relaxed: no data is read after this. `pop` acquires the entry.
        match slot.state.compare_exchange(EMPTY, AWAITED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) | Err(AWAITED) => true,
            Err(_) => false,
        }
    }
}

impl<T> Drop for Log<T> {
    fn drop(&mut self) {
        // Without its lock: the dropping thread may be the reader of another log.
        let place = *self.place.get_mut();
        let end = self.tail.load(Ordering::Relaxed);
        for ticket in place..end.min(place + CAPACITY) {
            let segment = self.directory[(ticket / SLOTS % SEGMENTS) as usize].load(Ordering::Relaxed);
            if segment.is_null() {
                continue;
            }
            // SAFETY: holds because `&mut self` excludes other threads, and segments are freed
            // below.
            let slot = unsafe { &*segment }.slot(ticket);
            if slot.state.load(Ordering::Relaxed) == WRITTEN {
                // SAFETY: holds because the payload was written and, being at or past the place,
                // not read (LOG-6).
                slot.payload.with_mut(|payload| unsafe { payload.cast::<T>().drop_in_place() });
            }
        }
        for entry in self.directory.iter().chain([&self.spare]) {
            let segment = entry.load(Ordering::Relaxed);
            if !segment.is_null() {
                // SAFETY: holds because segments are made by `Box::into_raw` and each is in one
                // place only.
                drop(unsafe { Box::from_raw(segment) });
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stress_tests;
