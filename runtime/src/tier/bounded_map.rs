//! A bounded map that evicts the oldest entry.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// At most `room` entries by key. A key that is removed early keeps its place in the order, so the
/// map may hold slightly fewer.
pub(crate) struct BoundedFifoMap<K, V> {
    map: FxHashMap<K, V>,
    /// Keys in the order of insertion.
    order: VecDeque<K>,
    room: usize,
}

impl<K: Copy + Eq + Hash, V> BoundedFifoMap<K, V> {
    pub(crate) fn with_room(room: usize) -> BoundedFifoMap<K, V> {
        BoundedFifoMap { map: FxHashMap::default(), order: VecDeque::new(), room }
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.map.values()
    }

    /// Inserts a key that is not in the map.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.map.insert(key, value);
        self.order.push_back(key);
        if self.order.len() > self.room
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let mut recent = BoundedFifoMap::with_room(3);
        (0..5).for_each(|key| recent.insert(key, key * 10));
        assert_eq!(
            (0..5).map(|key| recent.get_mut(&key).copied()).collect::<Vec<_>>(),
            [None, None, Some(20), Some(30), Some(40)]
        );
        recent.remove(&3);
        assert_eq!(recent.get_mut(&3), None);
    }
}
