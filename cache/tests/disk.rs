//! The disk tier as a whole: one process finds what another has stored, and random histories agree
//! with a model.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use fuseline_cache::disk::{DiskCache, DiskConfig, DiskStats, JoinOutcome};
use fuseline_cache::{Fingerprint, Key, Name, Record, Request, SealedKind, Sealer, Secret};
use proptest::prelude::*;

use support::{Root, is_there, record, version};

#[test]
fn what_one_process_stores_another_finds() {
    let root = Root::new();
    let (cache, record) = (root.open(), record("a"));
    assert!(cache.load(&record.request()).found().is_none());
    assert!(!cache.may_have(&record.name()));
    assert!(cache.store(&record));
    let other = root.open();
    assert!(other.may_have(&record.name()));
    assert_eq!(other.load(&record.request()).found(), Some(record.clone()));
    assert_eq!(cache.load(&record.request()).found(), Some(record.clone()));
    assert!(cache.remove(&record.name()));
    assert!(!cache.remove(&record.name()));
    assert!(other.load(&record.request()).found().is_none());
    assert!(!other.may_have(&record.name()), "it has looked since");
    let bytes = fs::metadata(root.path()).map(|_| 176 + 1 + 200).unwrap();
    let stats = cache.stats();
    let expected = DiskStats {
        hits: 1,
        misses: 1,
        stores: 1,
        bytes_read: bytes,
        bytes_written: bytes,
        ..DiskStats::default()
    };
    assert_eq!(stats, expected);
    root.assert_quiet();
}

/// Entries of all kinds and sizes, with times at the limits of the format.
#[test]
fn every_record_is_found_as_it_was_stored() {
    let root = Root::new();
    let cache = root.open();
    let longest = Duration::from_micros(u64::MAX);
    for kind in [SealedKind::Artifact, SealedKind::NotWorthIt, SealedKind::Note] {
        for len in [0, 1, 511, 512, 100_000, 3 << 20] {
            for (made_in, loaded_in) in [
                (Duration::ZERO, None),
                (longest, Some(longest)),
                (Duration::from_micros(1), Some(Duration::from_micros(1))),
            ] {
                let record = Record { kind, made_in, loaded_in, ..version("a", 0, len) };
                assert!(cache.store(&record));
                assert_eq!(cache.load(&record.request()).found(), Some(record));
            }
        }
    }
    root.assert_quiet();
}

/// Requests that differ in any part never find each other's artifact.
#[test]
fn requests_that_differ_anywhere_do_not_find_each_other() {
    let root = Root::new();
    let cache = root.open();
    let one = record("a");
    assert!(cache.store(&one));
    let request = one.request();
    for other in [
        Request { region: Key::new([2; 32]), ..request },
        Request { environment: Fingerprint::of(b"there"), ..request },
        Request { bytes: b"b", ..request },
        Request { bytes: b"", ..request },
        Request { bytes: b"aa", ..request },
    ] {
        assert_eq!(cache.load(&other).found(), None, "{other:?}");
    }
    root.assert_quiet();
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Op {
    Store {
        request: u8,
        version: u8,
        len: u16,
    },
    Load(u8),
    Remove(u8),
    Join(u8),
    Sweep(u16),
    /// Changes a byte of an entry, or truncates it there.
    Damage {
        request: u8,
        at: u16,
        cut: bool,
    },
    /// Replaces an entry by another one.
    Swap(u8, u8),
    Reopen,
    /// The next steps use another tier on the same folder.
    Other,
    /// Removes the folder.
    RemoveAll,
}

fn op() -> impl Strategy<Value = Op> {
    let request = || 0u8..6;
    prop_oneof![
        6 => (request(), 0u8..4, 0u16..3000).prop_map(|(request, version, len)| Op::Store { request, version, len }),
        6 => request().prop_map(Op::Load),
        1 => request().prop_map(Op::Remove),
        1 => request().prop_map(Op::Join),
        1 => (0u16..8000).prop_map(Op::Sweep),
        2 => (request(), any::<u16>(), any::<bool>()).prop_map(|(request, at, cut)| Op::Damage { request, at, cut }),
        1 => (request(), request()).prop_map(|(one, other)| Op::Swap(one, other)),
        1 => Just(Op::Reopen),
        2 => Just(Op::Other),
        1 => Just(Op::RemoveAll),
    ]
}

/// The expected state: the entries, and which of them are damaged.
#[derive(Default)]
struct Model {
    entries: HashMap<Name, Record>,
    damaged: HashSet<Name>,
}

impl Model {
    /// Checks a load: it returns the record of the model, or nothing if there is none or it is
    /// damaged, and never anything else.
    fn load(&mut self, root: &Root, cache: &DiskCache, request: &Record) -> Result<(), TestCaseError> {
        let name = request.name();
        let expected = self.entries.get(&name).filter(|_| !self.damaged.contains(&name)).cloned();
        let found = cache.load(&request.request()).found();
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(cache.may_have(&name), found.is_some());
        let told = root.log.take();
        prop_assert_eq!(told.len(), usize::from(self.damaged.contains(&name)), "{:?}", told);
        if found.is_none() {
            // It was removed, if it was there.
            prop_assert!(!is_there(&root.entry(&name)));
            self.entries.remove(&name);
            self.damaged.remove(&name);
        }
        Ok(())
    }

    /// Whether a changed entry is damaged: a byte that is changed twice, or a file that returns to
    /// its place, is undamaged.
    fn judge(&mut self, root: &Root, name: Name) {
        let secret = fs::read(root.key()).unwrap().try_into().unwrap();
        let sealer = Sealer::new(&Secret::new(secret));
        let bytes = fs::read(root.entry(&name)).unwrap();
        let is_whole = |record: &Record| record.name() == name && sealer.seal(record) == bytes;
        if self.entries.get(&name).is_some_and(is_whole) {
            self.damaged.remove(&name);
        } else {
            self.damaged.insert(name);
        }
    }

    fn run(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        let root = Root::in_memory();
        let open = || root.open_with(DiskConfig { max_bytes: 1 << 20, ..root.config() }).unwrap();
        let (mut cache, mut other) = (open(), open());
        let of = |request: &u8| record(&request.to_string());
        for op in ops {
            match op {
                Op::Store { request, version: number, len } => {
                    let record = version(&request.to_string(), u64::from(*number), usize::from(*len));
                    prop_assert!(cache.store(&record));
                    prop_assert!(cache.may_have(&record.name()));
                    self.damaged.remove(&record.name());
                    self.entries.insert(record.name(), record);
                }
                Op::Load(request) => self.load(&root, &cache, &of(request))?,
                Op::Remove(request) => {
                    let name = of(request).name();
                    prop_assert_eq!(cache.remove(&name), self.entries.remove(&name).is_some());
                    self.damaged.remove(&name);
                }
                Op::Join(request) => {
                    let name = of(request).name();
                    let was = self.entries.get(&name).filter(|_| !self.damaged.contains(&name)).cloned();
                    match cache.join(&of(request).request(), Duration::ZERO) {
                        JoinOutcome::Ready(record) => prop_assert_eq!(Some(record), was),
                        JoinOutcome::Leader(_) => prop_assert_eq!(None, was),
                        JoinOutcome::NoLock => prop_assert!(false, "nobody else is there"),
                    }
                    prop_assert_eq!(root.log.take().len(), usize::from(self.damaged.contains(&name)));
                    if self.damaged.remove(&name) {
                        self.entries.remove(&name);
                    }
                }
                Op::Sweep(most) => {
                    let swept = cache.sweep_to(u64::from(*most)).unwrap();
                    prop_assert!(swept.bytes <= u64::from(*most), "{:?}", swept);
                    prop_assert_eq!(swept.entries + swept.evicted, self.entries.len());
                    prop_assert_eq!((swept.orphans, swept.expired), (0, 0));
                    self.entries.retain(|name, _| is_there(&root.entry(name)));
                    prop_assert_eq!(swept.entries, self.entries.len());
                    self.damaged.retain(|name| self.entries.contains_key(name));
                }
                Op::Damage { request, at, cut } => {
                    let path = root.entry(&of(request).name());
                    let Ok(mut bytes) = fs::read(&path) else { continue };
                    if !bytes.is_empty() {
                        let at = usize::from(*at) % bytes.len();
                        if *cut {
                            bytes.truncate(at)
                        } else {
                            bytes[at] = !bytes[at]
                        }
                        fs::write(&path, bytes).unwrap();
                    }
                    self.judge(&root, of(request).name());
                }
                Op::Swap(one, other) => {
                    let (from, to) = (of(one).name(), of(other).name());
                    if from != to && fs::rename(root.entry(&from), root.entry(&to)).is_ok() {
                        let moved = self.entries.remove(&from).expect("it is there");
                        self.damaged.remove(&from);
                        self.entries.insert(to, moved);
                        self.judge(&root, to);
                    }
                }
                Op::Reopen => {
                    drop(cache);
                    cache = open();
                    for request in 0..6 {
                        let name = of(&request).name();
                        prop_assert_eq!(cache.may_have(&name), self.entries.contains_key(&name));
                    }
                }
                Op::Other => std::mem::swap(&mut cache, &mut other),
                Op::RemoveAll => {
                    fs::remove_dir_all(root.path()).unwrap();
                    self.entries.clear();
                    self.damaged.clear();
                    // Each tier that finds it gone makes it again.
                    for cache in [&cache, &other] {
                        prop_assert!(cache.sweep().is_some());
                    }
                }
            }
            prop_assert_eq!(root.log.take(), Vec::<String>::new());
        }
        for request in 0..6 {
            self.load(&root, &cache, &of(&request))?;
            let record = of(&request);
            prop_assert!(cache.store(&record));
            prop_assert_eq!(other.load(&record.request()).found(), Some(record));
        }
        for folder in ["temp", "flights", "quarantine"] {
            prop_assert_eq!(root.list(folder), Vec::<String>::new(), "{}", folder);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// `PROPTEST_CASES` has no effect here: `much_of_any_history` is the long version.
    #[test]
    fn any_history_gives_what_was_stored_or_nothing(ops in prop::collection::vec(op(), 1..60)) {
        Model::default().run(&ops)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// `cargo test -p fuseline-cache --test disk -- --ignored much`, five minutes.
    #[test]
    #[ignore = "some minutes"]
    fn much_of_any_history(ops in prop::collection::vec(op(), 1..200)) {
        Model::default().run(&ops)?;
    }
}
