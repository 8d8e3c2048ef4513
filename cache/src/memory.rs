//! The memory tier.
//!
//! A concurrent map from [`Key`] to entries, each with its own lock. The guards of the map, which
//! do not leave its module, and the entries' locks are held only for table operations. Artifacts
//! are dropped, waiters woken and results returned outside of them. Lock order: an entry's lock is
//! never held while the map is accessed; the clock's lock is never held with another.
//!
//! Cost of a hit: one shard lookup, one uncontended lock, one comparison of the canonical bytes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::entry::{EntryState, Pending, Variant};
use crate::key::Key;
use crate::outputs::OutputSet;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::table::Table;

/// The values of the cache.
pub trait Artifact: Send + Sync + 'static {
    /// Its memory in bytes; an estimate suffices.
    fn bytes(&self) -> u64;

    /// Number of its memory mappings, which are limited per process. An estimate suffices, but it
    /// must not change.
    fn mappings(&self) -> u64 {
        0
    }
}

/// Maximum contents of the cache. The limits may be reached but not exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of regions.
    pub entries: u64,
    /// Maximum number of bytes: artifacts and canonical bytes together.
    pub bytes: u64,
}

impl Default for Budget {
    /// 2,048 regions, 1 GiB.
    fn default() -> Self {
        Budget { entries: 2_048, bytes: 1 << 30 }
    }
}

/// Counters since the cache was created, and its current size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups that found a variant.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Entries evicted, for space or because nothing was left in them.
    pub evictions: u64,
    /// Current number of entries.
    pub entries: u64,
    /// Current bytes.
    pub bytes: u64,
    /// Current mappings of the artifacts ([`Artifact::mappings`]).
    pub mappings: u64,
}

struct Entry<A, E> {
    canonical: Box<[u8]>,
    /// Whether it was hit since the clock last passed.
    used: AtomicBool,
    state: Mutex<EntryState<A, E>>,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
    mappings: AtomicU64,
}

struct Shared<A, E> {
    table: Table<Entry<A, E>>,
    /// Keys in the order of the clock: each entry of the table once, and keys that have left it.
    clock: Mutex<VecDeque<Key>>,
    budget: Budget,
    counters: Counters,
}

/// A bounded in-memory cache with single flight. Clones share its contents.
pub struct MemoryCache<A, E>(Arc<Shared<A, E>>);

/// A variant that serves a lookup.
#[derive(Debug)]
pub struct Hit<A> {
    /// The artifact.
    pub artifact: Arc<A>,
    /// The outputs that it returns, which include the requested ones.
    pub outputs: OutputSet,
    /// Attempts have failed, and no execution was confirmed since: if this artifact runs, call
    /// [`MemoryCache::confirm`].
    pub is_unproven: bool,
}

/// Answer to [`MemoryCache::lookup`].
#[derive(Debug)]
#[must_use]
pub enum Lookup<A: Artifact, E: Send + Sync + 'static> {
    /// A variant that serves.
    Hit(Hit<A>),
    /// No variant serves and none is being compiled: the caller has to compile it.
    Claimed(Claim<A, E>),
    /// Another thread is compiling one.
    InFlight(Flight<A, E>),
    /// A recent compile failed.
    Failed(Arc<E>),
    /// The key belongs to other canonical bytes: the caller compiles without the cache.
    Collision,
}

/// What left the cache: an entry that was evicted, or its artifacts because memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its key.
    pub key: Key,
    /// The bytes that it held.
    pub bytes: u64,
}

/// The right and duty to compile one variant. Dropping it returns the right.
pub struct Claim<A: Artifact, E: Send + Sync + 'static> {
    shared: Arc<Shared<A, E>>,
    key: Key,
    entry: Arc<Entry<A, E>>,
    outputs: OutputSet,
    is_first: bool,
    done: bool,
}

/// A variant that another thread is compiling.
pub struct Flight<A: Artifact, E: Send + Sync + 'static> {
    entry: Arc<Entry<A, E>>,
    outputs: OutputSet,
}

impl<A: Artifact, E: Send + Sync + 'static> MemoryCache<A, E> {
    /// An empty cache.
    #[must_use]
    pub fn new(budget: Budget) -> MemoryCache<A, E> {
        MemoryCache(Arc::new(Shared {
            table: Table::new(),
            clock: Mutex::new(VecDeque::new()),
            budget,
            counters: Counters::default(),
        }))
    }

    /// Looks for a variant of the region with these canonical bytes that returns at least
    /// `outputs`.
    pub fn lookup(&self, key: &Key, canonical: &[u8], outputs: &OutputSet) -> Lookup<A, E> {
        loop {
            let entry = self.entry(key, canonical);
            if *entry.canonical != *canonical {
                self.0.counters.misses.fetch_add(1, Ordering::Relaxed);
                return Lookup::Collision;
            }
            let mut state = entry.state.lock();
            if state.evicted {
                // The evicting thread is about to remove it; removing it here avoids waiting.
                drop(state);
                self.0.take_out(key, &entry);
                continue;
            }
            if let Some(variant) = state.serving(outputs) {
                variant.uses += 1;
                entry.used.store(true, Ordering::Relaxed);
                let (artifact, outputs) = (variant.artifact.clone(), variant.outputs.clone());
                let hit = Hit { artifact, outputs, is_unproven: state.is_unproven() };
                self.0.counters.hits.fetch_add(1, Ordering::Relaxed);
                return Lookup::Hit(hit);
            }
            self.0.counters.misses.fetch_add(1, Ordering::Relaxed);
            if let Some(flight) = state.pending.iter().find(|flight| flight.outputs.includes(outputs)) {
                let outputs = flight.outputs.clone();
                drop(state);
                return Lookup::InFlight(Flight { entry, outputs });
            }
            if let Some(error) = state.gave_up() {
                return Lookup::Failed(error);
            }
            let outputs = state.outputs_to_compile(outputs);
            let is_first = state.variants.is_empty() && state.pending.is_empty();
            state.pending.push(Pending { outputs: outputs.clone(), waiters: Vec::new() });
            drop(state);
            return Lookup::Claimed(Claim {
                shared: self.0.clone(),
                key: *key,
                entry,
                outputs,
                is_first,
                done: false,
            });
        }
    }

    /// The right and duty to compile a variant for exactly `outputs`, although one that returns
    /// more serves. `None` if that variant exists or is being compiled, after
    /// [`MAX_NARROWED`](crate::MAX_NARROWED) claims, and if the key has left the cache.
    pub fn claim_narrower(&self, key: &Key, canonical: &[u8], outputs: OutputSet) -> Option<Claim<A, E>> {
        let entry = self.0.table.get(key).filter(|entry| *entry.canonical == *canonical)?;
        let mut state = entry.state.lock();
        if state.evicted || !state.may_narrow(&outputs) {
            return None;
        }
        state.pending.push(Pending { outputs: outputs.clone(), waiters: Vec::new() });
        drop(state);
        Some(Claim { shared: self.0.clone(), key: *key, entry, outputs, is_first: false, done: false })
    }

    /// Replaces an artifact by an equivalent one. `None`, and the new one is dropped, if the old
    /// one has left the cache.
    pub fn replace(&self, key: &Key, old: &Arc<A>, new: A) -> Option<Vec<Evicted>> {
        let entry = self.0.table.get(key)?;
        let mut state = entry.state.lock();
        let variant = state.variants.iter_mut().find(|variant| Arc::ptr_eq(&variant.artifact, old))?;
        let (bytes, mappings) = (new.bytes(), new.mappings());
        let replaced = std::mem::replace(&mut variant.bytes, bytes);
        let old = std::mem::replace(&mut variant.artifact, Arc::new(new));
        drop(state);
        self.0.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.counters.bytes.fetch_sub(replaced, Ordering::Relaxed);
        self.0.counters.mappings.fetch_add(mappings, Ordering::Relaxed);
        self.0.counters.mappings.fetch_sub(old.mappings(), Ordering::Relaxed);
        drop(old);
        Some(self.0.shrink())
    }

    /// The entry of a key; creates it if it is new.
    fn entry(&self, key: &Key, canonical: &[u8]) -> Arc<Entry<A, E>> {
        if let Some(entry) = self.0.table.get(key) {
            return entry;
        }
        let (entry, made) = self.0.table.get_or_make(*key, || Entry {
            canonical: canonical.into(),
            used: AtomicBool::new(false),
            state: Mutex::new(EntryState::new()),
        });
        if made {
            self.0.counters.entries.fetch_add(1, Ordering::Relaxed);
            self.0.counters.bytes.fetch_add(canonical.len() as u64, Ordering::Relaxed);
            self.0.clock.lock().push_back(*key);
        }
        entry
    }

    /// Drops the artifacts that only the cache holds, because memory is short; returns what was
    /// dropped, by entry. Failures of keys are kept.
    pub fn drop_unused(&self) -> Vec<Evicted> {
        let keys: Vec<Key> = self.0.table.keys();
        keys.into_iter().filter_map(|key| self.0.drop_unused(&key)).collect()
    }

    /// Evicts entries in clock order until `mappings` mappings of artifacts are gone, or every
    /// other entry is being compiled; returns what was evicted. An artifact that is in use keeps
    /// its mappings until its last user drops it.
    pub fn free_mappings(&self, mappings: u64) -> Vec<Evicted> {
        let target = self.stats().mappings.saturating_sub(mappings);
        self.0.shrink_while(|shared| shared.counters.mappings.load(Ordering::Relaxed) > target)
    }

    /// Drops an artifact that failed. The key is retried as after a compile that failed with
    /// `error`, and given up after as many attempts, even if each compile succeeds. Returns the
    /// bytes that the artifact held, if it was there.
    pub fn discard(&self, key: &Key, canonical: &[u8], artifact: &Arc<A>, error: Arc<E>) -> Option<u64> {
        let entry = self.0.table.get(key).filter(|entry| *entry.canonical == *canonical)?;
        let mut state = entry.state.lock();
        let place = state.variants.iter().position(|variant| Arc::ptr_eq(&variant.artifact, artifact))?;
        let variant = state.variants.remove(place);
        state.fail(error);
        drop(state);
        self.0.forget(&variant);
        Some(variant.bytes)
    }

    /// Notes that an artifact of this key works: resets the failed attempts.
    pub fn confirm(&self, key: &Key, canonical: &[u8]) {
        let entry = self.0.table.get(key).filter(|entry| *entry.canonical == *canonical);
        if let Some(entry) = entry {
            entry.state.lock().confirm();
        }
    }

    /// Drops every entry that is not being compiled.
    pub fn clear(&self) {
        let keys: Vec<Key> = self.0.table.keys();
        for key in keys {
            self.0.evict(&key);
        }
        let mut clock = std::mem::take(&mut *self.0.clock.lock());
        clock.retain(|key| self.0.table.contains(key));
        self.0.clock.lock().append(&mut clock);
    }

    /// Counters and current size.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        Stats {
            hits: read(&counters.hits),
            misses: read(&counters.misses),
            evictions: read(&counters.evictions),
            entries: read(&counters.entries),
            bytes: read(&counters.bytes),
            mappings: read(&counters.mappings),
        }
    }

    /// The budget that it was created with.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.0.budget
    }
}

impl<A: Artifact, E> Shared<A, E> {
    fn over_budget(&self) -> bool {
        self.counters.entries.load(Ordering::Relaxed) > self.budget.entries
            || self.counters.bytes.load(Ordering::Relaxed) > self.budget.bytes
    }

    /// Advances the clock until the cache is within its budget, or every entry is being compiled.
    fn shrink(&self) -> Vec<Evicted> {
        self.shrink_while(Shared::over_budget)
    }

    /// Advances the clock while `is_too_much` holds and an entry is not being compiled.
    fn shrink_while(&self, is_too_much: impl Fn(&Self) -> bool) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        // Two passes: the first may only take second chances, the second then evicts.
        let mut steps = self.clock.lock().len() * 2;
        while steps > 0 && is_too_much(self) {
            steps -= 1;
            let Some(key) = self.clock.lock().pop_front() else { break };
            let Some(entry) = self.table.get(&key) else { continue };
            if entry.used.swap(false, Ordering::Relaxed) {
                self.clock.lock().push_back(key);
                continue;
            }
            match self.evict(&key) {
                Some(bytes) => evicted.push(Evicted { key, bytes }),
                None => self.clock.lock().push_back(key),
            }
        }
        evicted
    }

    /// Accounts for a variant that has left its entry.
    fn forget(&self, variant: &Variant<A>) {
        self.counters.bytes.fetch_sub(variant.bytes, Ordering::Relaxed);
        self.counters.mappings.fetch_sub(variant.artifact.mappings(), Ordering::Relaxed);
    }

    /// Removes exactly this entry from the table. A new entry of the same key is another object.
    fn take_out(&self, key: &Key, entry: &Arc<Entry<A, E>>) {
        self.table.remove(key, entry);
    }

    /// Drops the artifacts of an entry that only the cache holds, and the entry if it holds no
    /// information.
    fn drop_unused(&self, key: &Key) -> Option<Evicted> {
        let entry = self.table.get(key)?;
        let mut state = entry.state.lock();
        // While the entry is locked, no thread can get a reference to an artifact that only the
        // cache holds.
        let (unused, used): (SmallVec<[_; 1]>, _) = std::mem::take(&mut state.variants)
            .into_iter()
            .partition(|it| Arc::strong_count(&it.artifact) == 1);
        state.variants = used;
        let is_empty = state.knows_nothing();
        drop(state);
        let bytes = unused.iter().map(|variant| variant.bytes).sum::<u64>();
        unused.iter().for_each(|variant| self.forget(variant));
        if unused.is_empty() {
            return None;
        }
        let rest = if is_empty { self.evict(key).unwrap_or(0) } else { 0 };
        Some(Evicted { key: *key, bytes: bytes + rest })
    }

    /// Removes an entry unless it is being compiled; returns its bytes.
    fn evict(&self, key: &Key) -> Option<u64> {
        let entry = self.table.get(key)?;
        let mut state = entry.state.lock();
        if state.evicted || !state.pending.is_empty() {
            return None;
        }
        state.evicted = true;
        let variants = std::mem::take(&mut state.variants);
        drop(state);
        self.take_out(key, &entry);
        let canonical = entry.canonical.len() as u64;
        let bytes = canonical + variants.iter().map(|variant| variant.bytes).sum::<u64>();
        self.counters.entries.fetch_sub(1, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(canonical, Ordering::Relaxed);
        variants.iter().for_each(|variant| self.forget(variant));
        self.counters.evictions.fetch_add(1, Ordering::Relaxed);
        Some(bytes)
    }
}

impl<A, E> Entry<A, E> {
    /// Ends the flight for `outputs`; returns the callbacks of its waiters.
    fn land(state: &mut EntryState<A, E>, outputs: &OutputSet) -> Vec<Box<dyn FnOnce() + Send>> {
        match state.pending.iter().position(|flight| flight.outputs == *outputs) {
            Some(index) => state.pending.remove(index).waiters,
            None => Vec::new(),
        }
    }
}

impl<A: Artifact, E: Send + Sync + 'static> Claim<A, E> {
    /// The outputs to compile for: the requested ones, or more.
    #[must_use]
    pub fn outputs(&self) -> &OutputSet {
        &self.outputs
    }

    /// Whether the region had no variant and none was being compiled when this was claimed.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Stores the artifact and wakes the waiters; returns it and what was evicted for it.
    pub fn fulfil(self, artifact: A) -> (Hit<A>, Vec<Evicted>) {
        self.fulfil_and(artifact, || {})
    }

    /// As [`Claim::fulfil`], and calls `note` when the artifact becomes visible. The entry is
    /// locked, so `note` must be quick.
    pub fn fulfil_and(mut self, artifact: A, note: impl FnOnce()) -> (Hit<A>, Vec<Evicted>) {
        let artifact = Arc::new(artifact);
        let served = artifact.clone();
        let (bytes, mappings) = (artifact.bytes(), artifact.mappings());
        let variant = Variant { outputs: self.outputs.clone(), artifact, bytes, uses: 0 };
        let mut state = self.entry.state.lock();
        let replaced = state.add(variant);
        let hit = Hit { artifact: served, outputs: self.outputs.clone(), is_unproven: state.is_unproven() };
        let waiters = Entry::land(&mut state, &self.outputs);
        note();
        drop(state);
        self.done = true;
        self.shared.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.counters.mappings.fetch_add(mappings, Ordering::Relaxed);
        if let Some(replaced) = replaced {
            self.shared.forget(&replaced);
        }
        let evicted = self.shared.shrink();
        waiters.into_iter().for_each(|wake| wake());
        (hit, evicted)
    }

    /// Records a failed compile and wakes the waiters.
    pub fn fail(self, error: Arc<E>) -> Vec<Evicted> {
        self.end(|state| state.fail(error))
    }

    /// Records that the variant must not be compiled while the entry stays, and wakes the waiters.
    pub fn refuse(self, error: Arc<E>) -> Vec<Evicted> {
        self.end(|state| state.refuse(error))
    }

    fn end(mut self, note: impl FnOnce(&mut EntryState<A, E>)) -> Vec<Evicted> {
        let mut state = self.entry.state.lock();
        note(&mut state);
        let waiters = Entry::land(&mut state, &self.outputs);
        drop(state);
        self.done = true;
        let evicted = self.shared.shrink();
        waiters.into_iter().for_each(|wake| wake());
        evicted
    }
}

impl<A: Artifact, E: Send + Sync + 'static> Drop for Claim<A, E> {
    fn drop(&mut self) {
        if !self.done {
            let waiters = Entry::land(&mut self.entry.state.lock(), &self.outputs);
            waiters.into_iter().for_each(|wake| wake());
        }
    }
}

impl<A: Artifact, E: Send + Sync + 'static> Flight<A, E> {
    /// Calls `wake` once the flight has ended, for any reason; at once if it has already. The
    /// caller then looks up again.
    pub fn subscribe(self, wake: impl FnOnce() + Send + 'static) {
        let mut state = self.entry.state.lock();
        match state.pending.iter_mut().find(|flight| flight.outputs == self.outputs) {
            Some(flight) => flight.waiters.push(Box::new(wake)),
            None => {
                drop(state);
                wake();
            }
        }
    }
}

impl<A, E> Clone for MemoryCache<A, E> {
    fn clone(&self) -> Self {
        MemoryCache(self.0.clone())
    }
}

impl<A: Artifact, E: Send + Sync + 'static> fmt::Debug for MemoryCache<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryCache({:?})", self.stats())
    }
}

impl<A: Artifact, E: Send + Sync + 'static> fmt::Debug for Claim<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?}, {:?})", self.key, self.outputs)
    }
}

impl<A: Artifact, E: Send + Sync + 'static> fmt::Debug for Flight<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({:?})", self.outputs)
    }
}
