//! Tables of ids.
//!
//! An id is a slot and a generation. A slot that is reused gets another generation, so a released
//! id never equals a later one. A slot whose generations run out is not reused.
//!
//! Slots are spread over shards by the thread that fills them. Each shard has a lock that is held
//! only for the work on one slot. Removed values are dropped outside of the lock, because dropping
//! them may call back into the table. So recording threads contend only where they use each other's
//! values.

use std::fmt;

use crossbeam::utils::CachePadded;
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Mutex, Rank, next_block};

const SHARD_BITS: u32 = 5;
const SLOT_BITS: u32 = 27;
const SHARDS: u64 = 1 << SHARD_BITS;

struct TableEntry<T> {
    generation: u32,
    references: u32,
    version: u64,
    value: Option<T>,
}

struct Shard<T> {
    slots: Vec<TableEntry<T>>,
    free: Vec<u32>,
}

/// Why an id is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It was never given out.
    Unknown,
    /// It was released.
    Released,
    /// The number of references or slots is exhausted.
    Full,
    /// It is valid in the process that this one was forked from.
    Forked,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missing::Unknown => "is not an id of this session",
            Missing::Released => "was already released",
            Missing::Forked => "belongs to the process that this one was forked from",
            Missing::Full => "has reached the maximum number of references",
        })
    }
}

/// A table of objects with ids. See the documentation of the module.
pub(super) struct Table<T> {
    shards: Box<[CachePadded<Mutex<Shard<T>>>]>,
}

fuseline_sync::thread_local! {
    /// The shard that this thread fills.
    static HOME: u64 = next_block() % SHARDS;
}

fn pack(generation: u32, slot: u32, shard: u64) -> u64 {
    (u64::from(generation) << 32) | (u64::from(slot) << SHARD_BITS) | shard
}

impl<T: Clone> Table<T> {
    pub(super) fn new() -> Table<T> {
        let shard =
            |_| CachePadded::new(Mutex::new(Rank::Ids, Shard { slots: Vec::new(), free: Vec::new() }));
        Table { shards: (0..SHARDS).map(shard).collect() }
    }

    /// Inserts an object with one reference, and returns its id, which is never 0.
    pub(super) fn insert(&self, value: T) -> Result<u64, Missing> {
        if is_forked() {
            return Err(Missing::Forked);
        }
        let shard = HOME.try_with(|home| *home).unwrap_or(0);
        let mut table = self.shards[shard as usize].lock();
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(table.slots.len()).ok().filter(|slot| slot >> SLOT_BITS == 0);
                let slot = slot.ok_or(Missing::Full)?;
                table.slots.push(TableEntry { generation: 0, references: 0, version: 0, value: None });
                slot
            }
        };
        let entry = &mut table.slots[slot as usize];
        entry.generation += 1;
        entry.references = 1;
        entry.version = 0;
        entry.value = Some(value);
        Ok(pack(entry.generation, slot, shard))
    }

    /// Calls `f` with the slot of a valid id.
    fn with<R>(
        &self,
        id: u64,
        f: impl FnOnce(&mut Shard<T>, u32) -> Result<R, Missing>,
    ) -> Result<R, Missing> {
        if is_forked() {
            return Err(Missing::Forked);
        }
        let (generation, slot) = ((id >> 32) as u32, (id as u32) >> SHARD_BITS);
        let mut shard = self.shards[(id % SHARDS) as usize].lock();
        let entry = shard.slots.get(slot as usize).ok_or(Missing::Unknown)?;
        if generation == 0 || entry.generation < generation {
            return Err(Missing::Unknown);
        }
        if entry.generation != generation || entry.value.is_none() {
            return Err(Missing::Released);
        }
        f(&mut shard, slot)
    }

    /// The object of an id.
    pub(super) fn get(&self, id: u64) -> Result<T, Missing> {
        self.with(id, |shard, slot| shard.slots[slot as usize].value.clone().ok_or(Missing::Released))
    }

    /// How often the object of an id was replaced.
    pub(super) fn version(&self, id: u64) -> Result<u64, Missing> {
        self.with(id, |shard, slot| Ok(shard.slots[slot as usize].version))
    }

    /// Adds a reference.
    pub(super) fn retain(&self, id: u64) -> Result<(), Missing> {
        self.with(id, |shard, slot| {
            let entry = &mut shard.slots[slot as usize];
            entry.references = entry.references.checked_add(1).ok_or(Missing::Full)?;
            Ok(())
        })
    }

    /// Removes a reference. Returns the object if that was the last.
    pub(super) fn release(&self, id: u64) -> Result<Option<T>, Missing> {
        self.with(id, |shard, slot| {
            let entry = &mut shard.slots[slot as usize];
            entry.references -= 1;
            if entry.references > 0 {
                return Ok(None);
            }
            let value = entry.value.take();
            if entry.generation < u32::MAX {
                shard.free.push(slot);
            }
            Ok(value)
        })
    }

    /// Replaces the object of an id, if `check` agrees. Returns the old object and the number of
    /// replacements.
    pub(super) fn replace<E>(
        &self,
        id: u64,
        value: T,
        check: impl FnOnce(&T) -> Result<(), E>,
    ) -> Result<Result<(T, u64), E>, Missing> {
        self.with(id, |shard, slot| {
            let entry = &mut shard.slots[slot as usize];
            let old = entry.value.as_mut().ok_or(Missing::Released)?;
            if let Err(error) = check(old) {
                return Ok(Err(error));
            }
            let old = std::mem::replace(old, value);
            entry.version += 1;
            Ok(Ok((old, entry.version)))
        })
    }

    /// Number of valid ids.
    pub(super) fn len(&self) -> usize {
        let live = |shard: &CachePadded<Mutex<Shard<T>>>| {
            shard.lock().slots.iter().filter(|slot| slot.value.is_some()).count()
        };
        if is_forked() { 0 } else { self.shards.iter().map(live).sum() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_given_back_is_told_from_its_successor() {
        let table = Table::new();
        let first = table.insert("a").unwrap();
        table.retain(first).unwrap();
        assert_eq!(table.release(first), Ok(None));
        assert_eq!(table.release(first), Ok(Some("a")));
        assert_eq!(table.release(first), Err(Missing::Released));
        let second = table.insert("b").unwrap();
        assert_eq!(first as u32, second as u32, "the slot is used again");
        assert_eq!(table.get(first), Err(Missing::Released));
        assert_eq!(table.retain(first), Err(Missing::Released));
        assert_eq!(table.get(second), Ok("b"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn numbers_that_are_no_ids_are_refused() {
        let table = Table::new();
        let id = table.insert(1).unwrap();
        for wrong in [0, 1, u64::MAX, id + (1 << 32), id ^ 31, id + (1 << 20)] {
            assert_eq!(table.get(wrong), Err(Missing::Unknown), "{wrong:#x}");
        }
    }

    #[test]
    fn what_an_id_stands_for_can_be_replaced() {
        let table = Table::new();
        let id = table.insert(1).unwrap();
        assert_eq!(table.replace(id, 2, |_| Ok::<_, ()>(())), Ok(Ok((1, 1))));
        assert_eq!(table.replace(id, 3, |old| Err(*old)), Ok(Err(2)));
        assert_eq!((table.get(id), table.version(id)), (Ok(2), Ok(1)));
        table.release(id).unwrap();
        assert_eq!(table.replace(id, 3, |_| Ok::<_, ()>(())), Err(Missing::Released));
    }

    #[test]
    fn generations_that_run_out_retire_the_slot() {
        let table = Table::new();
        let id = table.insert(1).unwrap();
        table.shards[(id % SHARDS) as usize].lock().slots[0].generation = u32::MAX;
        let last = id | (u64::from(u32::MAX) << 32);
        assert_eq!(table.release(last), Ok(Some(1)));
        let next = table.insert(2).unwrap();
        assert_ne!(next as u32, last as u32);
        assert_eq!(table.get(last), Err(Missing::Released));
    }
}
