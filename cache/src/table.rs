//! The map of the memory tier.
//!
//! Input: keys. Output: what they stand for, shared. A guard of the map is a lock on a part of it,
//! so none leaves this module: each call takes one, clones or moves out what it finds, and lets go
//! of it before anything of that is dropped.

use std::sync::Arc;

use dashmap::DashMap;
use fuseline_sync::LeafGuard;

use crate::key::Key;

/// See the module's documentation.
pub(crate) struct Table<V>(DashMap<Key, Arc<V>>);

impl<V> Table<V> {
    pub(crate) fn new() -> Table<V> {
        Table(DashMap::new())
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<V>> {
        let _held = LeafGuard::new();
        self.0.get(key).map(|value| value.clone())
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        let _held = LeafGuard::new();
        self.0.contains_key(key)
    }

    /// What a key stands for, made where it is new, and whether it is.
    pub(crate) fn get_or_make(&self, key: Key, make: impl FnOnce() -> V) -> (Arc<V>, bool) {
        let mut is_new = false;
        let _held = LeafGuard::new();
        let make = || {
            is_new = true;
            Arc::new(make())
        };
        let value = self.0.entry(key).or_insert_with(make).clone();
        (value, is_new)
    }

    /// Takes out exactly this value: a new one of the same key is another object.
    pub(crate) fn remove(&self, key: &Key, value: &Arc<V>) {
        let held = LeafGuard::new();
        let removed = self.0.remove_if(key, |_, current| Arc::ptr_eq(current, value));
        drop(held);
        drop(removed);
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let _held = LeafGuard::new();
        self.0.iter().map(|entry| *entry.key()).collect()
    }
}
