//! A bounded map from names; the oldest entry is dropped.

use std::collections::{HashMap, VecDeque};

use crate::name::Name;

#[derive(Debug)]
pub(crate) struct Memo<T> {
    most: usize,
    of: HashMap<Name, (T, u64)>,
    /// In insertion order, including stale positions of names that were inserted again or removed.
    order: VecDeque<(Name, u64)>,
    next: u64,
}

impl<T> Memo<T> {
    pub(crate) fn new(most: usize) -> Memo<T> {
        Memo { most, of: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    pub(crate) fn put(&mut self, name: Name, value: T) {
        self.next += 1;
        self.of.insert(name, (value, self.next));
        self.order.push_back((name, self.next));
        // Removing or reinserting a name leaves a stale position behind; positions are bounded too.
        while self.of.len() > self.most || self.order.len() > 2 * self.most.max(1) {
            let Some((name, put)) = self.order.pop_front() else { return };
            if self.of.get(&name).is_some_and(|(_, latest)| *latest == put) {
                self.of.remove(&name);
            }
        }
    }

    pub(crate) fn get(&self, name: &Name) -> Option<&T> {
        self.of.get(name).map(|(value, _)| value)
    }

    pub(crate) fn remove(&mut self, name: &Name) -> Option<T> {
        self.of.remove(name).map(|(value, _)| value)
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        self.of.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u8) -> Name {
        Name::new([number; 32])
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memo = Memo::new(3);
        for number in 0..5 {
            memo.put(name(number), number);
        }
        let kept: Vec<u8> = (0..5).filter(|number| memo.has(&name(*number))).collect();
        assert_eq!(kept, [2, 3, 4]);
        // Inserting it again makes it the newest.
        memo.put(name(2), 20);
        memo.put(name(9), 9);
        assert_eq!((memo.get(&name(2)), memo.get(&name(3))), (Some(&20), None));
        assert_eq!(memo.remove(&name(2)), Some(20));
        assert_eq!(memo.remove(&name(2)), None);
    }

    #[test]
    fn putting_and_removing_for_ever_takes_no_memory() {
        let mut memo = Memo::new(4);
        for round in 0..10_000u32 {
            memo.put(name((round % 2) as u8), round);
            if round % 3 == 0 {
                memo.remove(&name(0));
            }
            assert!(memo.order.len() <= 8 && memo.of.len() <= 4);
        }
        assert_eq!(memo.get(&name(1)), Some(&9999));
    }
}
