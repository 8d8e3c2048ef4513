//! Sweeps remove entries in the order of their last use (DISK-8), and leave alone what is in use.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::fs;
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{DiskCache, DiskConfig, JoinOutcome, Swept};

use support::faulty::{Faulty, Plan};
use support::{Random, Root, is_there, record, version};

/// The length of the entries in these tests.
const LEN: u64 = 1000;

const HOUR: Duration = Duration::from_secs(3600);

fn entry(request: &str) -> fuseline_cache::Record {
    version(request, 0, LEN as usize - 176 - request.len())
}

fn open(root: &Root, max_bytes: u64) -> DiskCache {
    root.open_with(DiskConfig { max_bytes, max_age: 100 * HOUR, ..root.given() }).unwrap()
}

/// Stores an entry that was last used this many hours ago.
fn store(root: &Root, cache: &DiskCache, request: &str, hours_ago: i64) {
    assert!(cache.store(&entry(request)));
    let path = root.entry(&entry(request).name());
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN);
    set_used(root, request, hours_ago);
}

fn set_used(root: &Root, request: &str, hours_ago: i64) {
    let hours = HOUR * hours_ago.unsigned_abs() as u32;
    let used = if hours_ago < 0 { SystemTime::now() + hours } else { SystemTime::now() - hours };
    fs::File::open(root.entry(&entry(request).name())).unwrap().set_modified(used).unwrap();
}

/// Returns which of these entries exist.
fn left<'a>(root: &Root, requests: &[&'a str]) -> Vec<&'a str> {
    requests.iter().copied().filter(|request| is_there(&root.entry(&entry(request).name()))).collect()
}

#[test]
fn those_leave_that_were_not_used_for_longest() {
    let root = Root::new();
    let cache = open(&root, 10 * LEN);
    let all = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    // Neither in the order of their names nor in that of their stores.
    for (at, request) in all.iter().enumerate() {
        store(&root, &cache, request, 1 + (at as i64 * 5) % 12);
    }
    let swept = cache.sweep().unwrap();
    // Twelve are too many, and nine are nine tenths of the limit.
    assert_eq!(swept, Swept { evicted: 3, entries: 9, bytes: 9 * LEN, ..Swept::default() });
    let gone: Vec<&str> =
        all.iter().copied().filter(|request| !left(&root, &all).contains(request)).collect();
    // Used 12, 11 and 10 hours ago: at 7, 2 and 9.
    assert_eq!(gone, ["c", "h", "j"]);
    assert_eq!(cache.stats().evictions, 3);
    assert!(!cache.may_have(&entry("c").name()) && cache.may_have(&entry("a").name()));
    // Entries within the limit stay unless they are too old.
    assert_eq!(cache.sweep().unwrap(), Swept { entries: 9, bytes: 9 * LEN, ..Swept::default() });
    assert_eq!(cache.sweep_to(9 * LEN).unwrap().evicted, 0, "just so many");
    assert_eq!(cache.sweep_to(9 * LEN - 1).unwrap().evicted, 1);
    root.assert_quiet();
}

#[test]
fn those_that_are_too_old_leave_whether_or_not_there_is_room() {
    let root = Root::new();
    let cache = open(&root, 100 * LEN);
    for (request, hours) in [("a", 99), ("b", 101), ("c", 1000), ("d", 0)] {
        store(&root, &cache, request, hours);
    }
    let swept = cache.sweep().unwrap();
    assert_eq!(swept, Swept { expired: 2, entries: 2, bytes: 2 * LEN, ..Swept::default() });
    assert_eq!(left(&root, &["a", "b", "c", "d"]), ["a", "d"]);
}

/// A load is a use, although it is noted only now and then.
#[test]
fn what_is_loaded_stays_longer() {
    let root = Root::new();
    let cache = open(&root, 10 * LEN);
    for (request, hours) in [("a", 30), ("b", 20), ("c", 10)] {
        store(&root, &cache, request, hours);
    }
    assert!(cache.load(&entry("a").request()).found().is_some());
    assert_eq!(cache.sweep_to(2 * LEN + LEN / 2).unwrap().evicted, 1);
    assert_eq!(left(&root, &["a", "b", "c"]), ["a", "c"]);
    // Within the hour nothing is written.
    let modified = || fs::metadata(root.entry(&entry("a").name())).unwrap().modified().unwrap();
    let before = modified();
    assert!(cache.load(&entry("a").request()).found().is_some());
    assert_eq!(modified(), before);
    // A store is a use too, also of another version.
    set_used(&root, "a", 50);
    assert!(cache.store(&entry("a")));
    assert_eq!(cache.sweep_to(LEN + LEN / 2).unwrap().evicted, 1);
    assert_eq!(left(&root, &["a", "c"]), ["a"]);
}

/// Two machines that sweep alike remove the same entries.
#[test]
fn of_those_used_at_the_same_time_the_first_name_leaves_first() {
    let all: Vec<String> = (0..20).map(|at| at.to_string()).collect();
    let root = Root::new();
    let cache = open(&root, 100 * LEN);
    let then = SystemTime::now() - HOUR;
    for request in &all {
        store(&root, &cache, request, 1);
        fs::File::open(root.entry(&entry(request).name())).unwrap().set_modified(then).unwrap();
    }
    let mut names: Vec<String> = all.iter().map(|request| entry(request).name().to_string()).collect();
    names.sort();
    for taken in 1..20 {
        // Just so little that one has to go.
        let most = (20 - taken as u64) * LEN * 10 / 9 + 9;
        while root.list("entries").len() > 20 - taken {
            assert!(
                cache.sweep_to(most.min(root.list("entries").len() as u64 * LEN - 1)).unwrap().evicted > 0
            );
        }
        assert_eq!(root.list("entries"), names[names.len() - root.list("entries").len()..]);
    }
}

/// A time in the future does not keep an entry forever.
#[test]
fn what_is_from_the_future_was_used_now() {
    let root = Root::new();
    let cache = open(&root, 10 * LEN);
    store(&root, &cache, "future", -1000);
    store(&root, &cache, "now", 0);
    store(&root, &cache, "past", 1);
    assert_eq!(cache.sweep_to(2 * LEN + LEN / 2).unwrap().evicted, 1);
    assert_eq!(left(&root, &["future", "now", "past"]), ["future", "now"]);
    // A use corrects it.
    assert!(cache.load(&entry("future").request()).found().is_some());
    let modified = fs::metadata(root.entry(&entry("future").name())).unwrap().modified().unwrap();
    assert!(modified <= SystemTime::now());
    set_used(&root, "future", -1000);
    // It ages like all others, by the clock of the sweeping process.
    let files = Faulty::new(Plan::Works);
    files.let_pass(1101 * HOUR);
    let config = DiskConfig { max_age: 100 * HOUR, ..root.given() };
    let later = root.open_on(files, config).unwrap();
    assert_eq!(later.sweep().unwrap().expired, 2);
}

/// Of two in the future, neither is the later one.
#[test]
fn how_far_in_the_future_makes_no_difference() {
    let root = Root::new();
    let cache = open(&root, 10 * LEN);
    let mut requests = ["x", "y"];
    requests.sort_by_key(|request| entry(request).name());
    store(&root, &cache, requests[0], -2000);
    store(&root, &cache, requests[1], -1000);
    assert_eq!(cache.sweep_to(LEN + LEN / 2).unwrap().evicted, 1);
    assert_eq!(left(&root, &requests), [requests[1]]);
}

/// An entry that a process is about to make, or waits for, is not removed.
#[test]
fn flights_under_way_are_spared() {
    let root = Root::new();
    let (cache, other) = (open(&root, 10 * LEN), open(&root, 10 * LEN));
    for request in ["a", "b"] {
        let JoinOutcome::Leader(flight) = cache.join(&entry(request).request(), Duration::ZERO) else {
            panic!("a flight")
        };
        store(&root, &cache, request, 1000);
        if request == "a" {
            let swept = other.sweep_to(0).unwrap();
            assert_eq!(swept, Swept { entries: 1, bytes: LEN, ..Swept::default() });
            assert_eq!(root.list("flights"), [entry("a").name().to_string()]);
        }
        drop(flight);
    }
    let swept = other.sweep_to(0).unwrap();
    assert_eq!(swept, Swept { expired: 2, ..Swept::default() });
    root.assert_quiet();
}

#[test]
fn what_is_larger_than_all_room_is_not_stored() {
    let root = Root::new();
    let cache = open(&root, LEN - 1);
    assert!(!cache.store(&entry("a")));
    assert_eq!(root.list("entries").len() + root.list("temp").len(), 0);
    // This is no failure, and no reason to pause.
    assert!(cache.store(&record("small")));
    assert_eq!(cache.stats().failed_stores, 0);
    root.assert_quiet();
    let exact = open(&root, LEN);
    assert!(exact.store(&entry("a")));
    // Large entries of processes with higher limits are removed, and older ones too.
    assert_eq!(cache.sweep().unwrap(), Swept { evicted: 2, ..Swept::default() });
    assert!(cache.store(&record("small")));
    let nothing = open(&root, 0);
    assert!(!nothing.store(&record("small")));
    assert_eq!(nothing.sweep().unwrap(), Swept { evicted: 1, ..Swept::default() });
}

/// A sweep is due when enough was stored to make it worthwhile.
#[test]
fn a_sweep_is_due_after_some_stores() {
    let root = Root::new();
    let cache = open(&root, 64 * LEN);
    for at in 0..4 {
        assert!(!cache.is_sweep_due(), "{at}");
        assert!(cache.store(&entry(&at.to_string())));
    }
    assert!(cache.is_sweep_due());
    assert!(cache.sweep().is_some());
    assert!(!cache.is_sweep_due());
}

/// Only one process sweeps at a time; the second one continues with something else.
#[test]
fn one_sweeps_at_a_time() {
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let (cache, other) = (root.open_on(files.clone(), root.given()).unwrap(), root.open_given());
    assert!(cache.store(&record("a")));
    let both = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counts = both.clone();
    files.before(move |call| {
        if call == support::faulty::Call::StatAt {
            assert_eq!(other.sweep(), None);
            counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    assert_eq!(cache.sweep().unwrap().entries, 1);
    assert_eq!(both.load(std::sync::atomic::Ordering::SeqCst), 1);
    files.before(|_| {});
    assert!(cache.sweep().is_some());
    root.assert_quiet();
}

/// An entry that cannot be removed does not stop the others.
#[test]
fn a_sweep_goes_on_after_a_failure() {
    use rustix::io::Errno;
    use support::faulty::Call;
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let cache = root.open_on(files.clone(), root.given()).unwrap();
    for at in 0..5 {
        assert!(cache.store(&entry(&at.to_string())));
        fs::write(root.folder("temp").join(at.to_string()), "left behind").unwrap();
    }
    let of = |calls: &[Call], kind: Call, nth: usize| {
        calls.iter().enumerate().filter(|(_, call)| **call == kind).nth(nth).map(|(at, _)| at as u64).unwrap()
    };
    // Where its calls are: as in the same sweep of other files.
    files.plan(Plan::Works);
    assert_eq!(cache.sweep().unwrap().orphans, 5);
    let calls = files.calls();
    for at in 0..5 {
        fs::write(root.folder("temp").join(at.to_string()), "left behind").unwrap();
    }
    files.plan(Plan::At(of(&calls, Call::Unlink, 1), Errno::IO));
    let swept = cache.sweep_to(0).unwrap();
    assert_eq!((swept.orphans, swept.evicted, swept.entries), (4, 5, 0), "{swept:?}");
    assert_eq!(root.log.take().len(), 1);
    files.plan(Plan::Works);
    assert_eq!(cache.sweep().unwrap().orphans, 1);
}

/// Sizes whose sum overflows.
#[test]
fn sizes_that_cannot_be_added_are_much() {
    let root = Root::in_memory();
    let cache = open(&root, 10 * LEN);
    for at in 0..4 {
        assert!(cache.store(&entry(&at.to_string())));
        let path = root.entry(&entry(&at.to_string()).name());
        // As large as the file system permits, which may be all the space that there is.
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        if at < 3 && file.set_len(i64::MAX as u64).is_err() {
            return support::skip("files of 8 EiB");
        }
        file.set_modified(SystemTime::now() - HOUR * (4 - at)).unwrap();
    }
    let swept = cache.sweep().unwrap();
    assert_eq!(swept, Swept { evicted: 3, entries: 1, bytes: LEN, ..Swept::default() });
    root.assert_quiet();
}

/// Whatever is stored and swept, the limit holds after a sweep, and the last used entry exists.
#[test]
fn the_budget_is_kept() {
    let root = Root::in_memory();
    let (cache, mut random) = (open(&root, 50 * LEN), Random::new(4));
    for round in 0..200 {
        let record = version(&format!("{}", random.below(100)), random.next() % 9, random.below(5000));
        assert!(cache.store(&record));
        if cache.is_sweep_due() {
            let swept = cache.sweep().unwrap();
            assert!(swept.bytes <= 50 * LEN, "round {round}: {swept:?}");
            let sizes = |name: &String| fs::metadata(root.folder("entries").join(name)).unwrap().len();
            let names = root.list("entries");
            assert_eq!((swept.entries, swept.bytes), (names.len(), names.iter().map(sizes).sum()));
            assert_eq!(cache.load(&record.request()).found(), Some(record), "round {round}");
        }
    }
    assert!(cache.stats().evictions > 10);
    root.assert_quiet();
}
