//! The map of the memory tier.
//!
//! Input: keys. Output: shared values. A guard of the map locks a part of it, so no guard leaves
//! this module: each call takes one, clones or moves out the value, and releases the guard before
//! the value is dropped.

use std::sync::Arc;

use dashmap::DashMap;
use fuseline_sync::LeafGuard;

use crate::key::Key;

/// See the module documentation.
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

    /// The value of a key, created if it is new, and whether it is new.
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

    /// Removes exactly this value. A new one of the same key is another object.
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
