//! Many processes on one folder, some of which are killed: entries are whole (DISK-6), each
//! artifact is made once, and nothing is left behind.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a test, on real threads"
)]

mod support;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use fuseline_cache::disk::{DiskCache, DiskConfig, JoinOutcome, SecretSource};
use fuseline_cache::{Name, Secret};

use support::faulty::{Call, Faulty, Plan};
use support::{
    Children, Random, Root, SECRET, child, is_genuine, is_there, record, role, sealer, version, wait_until,
};

/// A limit against hangs only.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asserts that every file with an entry's name is a whole entry.
fn assert_no_torn_entry(root: &Root) -> usize {
    let names = root.list("entries");
    for name in &names {
        let bytes = fs::read(root.folder("entries").join(name)).unwrap();
        let record = sealer().open(&Name::parse(name).expect("the name of an entry"), bytes);
        assert!(record.as_ref().is_ok_and(is_genuine), "{name}: {record:?}");
    }
    names.len()
}

/// After all processes are gone, one start and one sweep leave nothing unused.
fn assert_no_orphans(root: &Root) {
    let cache = root.open_given();
    assert!(cache.sweep().is_some());
    assert_eq!(root.list("temp"), Vec::<String>::new());
    assert_eq!(root.list("flights"), Vec::<String>::new());
    assert_eq!(root.list("marks").len(), 1, "its own");
    assert_eq!(root.list("quarantine"), Vec::<String>::new(), "nobody crashed");
    root.assert_quiet();
}

/// Kills writers of 1 MiB entries, three at a time.
fn kill_writers(rounds: usize, seed: u64) {
    let root = Root::new();
    let mut random = Random::new(seed);
    let (mut entries, mut orphans) = (0, 0);
    for round in 0.. {
        // On busy cores, writers may be killed before they have written anything; then there are
        // more rounds.
        if round >= rounds && entries > 0 && orphans > 0 {
            break;
        }
        assert!(
            round < rounds * 10,
            "{entries} entries, {orphans} half written: nobody was killed while writing"
        );
        let mut children = Children::default();
        for writer in 0..3 {
            let seed = seed * 1_000_000 + (round * 3 + writer) as u64;
            children.start(&mut child(&format!("write|{}|{seed}", root.dir.path().display())));
        }
        // They are running: each has marks from then on.
        wait_until("writers", || root.list_or_none("marks").len() == 3);
        std::thread::sleep(Duration::from_micros(random.next() % 40_000));
        children.kill();
        orphans += root.list("temp").len();
        entries += assert_no_torn_entry(&root);
        // A start judges the marks of the killed processes, and a sweep removes their unfinished
        // files.
        assert_no_orphans(&root);
    }
    println!("{} kills or more, {entries} entries seen, {orphans} left half written", rounds * 3);
}

#[test]
fn writers_that_are_killed_leave_whole_entries() {
    kill_writers(20, 1);
}

/// `cargo test -p fuseline-cache --test disk_processes -- --ignored thousand`, a minute or two.
#[test]
#[ignore = "soak: `cargo xtask soak disk-kills`"]
fn a_thousand_writers_that_are_killed_leave_whole_entries() {
    kill_writers(334, 2);
}

fn config(dir: &Path) -> DiskConfig {
    DiskConfig::new(dir.join("cache"), SecretSource::Given(Secret::new(SECRET)))
}

fn open(dir: &Path) -> DiskCache {
    DiskCache::open(config(dir), Arc::new(|told: &_| panic!("{told:?}"))).unwrap()
}

/// Stores until it is killed.
fn write(dir: &Path, seed: u64) {
    let (cache, mut random) = (open(dir), Random::new(seed));
    loop {
        let request = format!("{}", random.below(8));
        assert!(cache.store(&version(&request, 1 + random.next() % 100, 1 << 20)));
    }
}

/// Several processes need the same artifacts: one makes each, and the others wait for it.
#[test]
fn each_artifact_is_made_once_by_eight_processes() {
    let (root, mut children) = (Root::new(), Children::default());
    for process in 0..8 {
        children.start(&mut child(&format!("make|{}|{process}", root.dir.path().display())));
    }
    for status in children.wait() {
        assert!(status.success(), "{status}");
    }
    let log = fs::read_to_string(root.dir.path().join("made")).unwrap();
    let mut made: Vec<&str> = log.lines().collect();
    made.sort_unstable();
    let all = made.len();
    made.dedup();
    assert_eq!(made.len(), ARTIFACTS);
    // Each is made once, except when a process times out, which none does here.
    assert_eq!(all, ARTIFACTS, "made {all} times in all");
    assert_no_torn_entry(&root);
    assert_no_orphans(&root);
}

const ARTIFACTS: usize = 12;

/// Gets all artifacts in its own order, and makes missing ones, which takes 50 ms each.
fn make(dir: &Path, process: usize) {
    let cache = open(dir);
    let mut log = fs::OpenOptions::new().append(true).create(true).open(dir.join("made")).unwrap();
    for step in 0..ARTIFACTS {
        // Pairs of processes want the same one at the same time; others come later.
        let record = version(&format!("{}", (step + process / 2 * 3) % ARTIFACTS), 0, 5000);
        if let Some(found) = cache.load(&record.request()).found() {
            assert_eq!(found, record);
            continue;
        }
        match cache.join(&record.request(), PATIENCE) {
            JoinOutcome::Ready(found) => assert_eq!(found, record),
            JoinOutcome::NoLock => panic!("not even in a minute"),
            JoinOutcome::Leader(flight) => {
                std::thread::sleep(Duration::from_millis(50));
                log.write_all(&[&record.request[..], b"\n"].concat()).unwrap();
                assert!(cache.store(&record));
                drop(flight);
            }
        }
    }
}

/// Eight processes load, make, store, remove and sweep on one folder that is too small for them.
/// One is killed from time to time.
fn share(time: Duration, seed: u64) {
    let root = Root::new();
    let mut random = Random::new(seed);
    let start = |process: usize, round: usize| {
        let mut command = child(&format!("share|{}|{process}|{round}", root.dir.path().display()));
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let mut children = Children((0..8).map(|process| start(process, 0)).collect());
    let (since, mut kills) = (Instant::now(), 0);
    while since.elapsed() < time {
        std::thread::sleep(Duration::from_millis(300));
        let victim = random.below(8);
        // It must still run: processes end by themselves only after an error.
        assert_eq!(children.0[victim].try_wait().unwrap(), None, "process {victim} of seed {seed}");
        children.0[victim].kill().unwrap();
        children.0[victim].wait().unwrap();
        kills += 1;
        children.0[victim] = start(victim, kills);
    }
    for (process, child) in children.0.iter_mut().enumerate() {
        assert_eq!(child.try_wait().unwrap(), None, "process {process} of seed {seed}");
    }
    fs::write(root.dir.path().join("stop"), "").unwrap();
    for status in children.wait() {
        assert!(status.success(), "{status}");
    }
    println!("{kills} kills, {} entries at the end", assert_no_torn_entry(&root));
    assert_no_orphans(&root);
}

#[test]
fn eight_processes_share_a_folder() {
    share(Duration::from_secs(4), 1);
}

/// `cargo test -p fuseline-cache --test disk_processes -- --ignored for_long`, ten minutes.
#[test]
#[ignore = "soak: `cargo xtask soak disk-folder`"]
fn eight_processes_share_a_folder_for_long() {
    share(Duration::from_secs(600), 2);
}

fn take_part(dir: &Path, process: u64, round: u64) {
    let config = DiskConfig { max_bytes: 400_000, ..config(dir) };
    let cache = DiskCache::open(config, Arc::new(|told: &_| panic!("{told:?}"))).unwrap();
    let mut random = Random::new(process * 1000 + round);
    let stop = dir.join("stop");
    while !stop.exists() {
        // Some requests that all processes share, some of its own.
        let request = match random.below(4) {
            0 => format!("{process}.{}", random.below(8)),
            _ => format!("{}", random.below(16)),
        };
        let wanted = version(&request, 1 + random.next() % 50, 20_000);
        match random.below(20) {
            0 => drop(cache.sweep()),
            1 => drop(cache.sweep_to(100_000)),
            2 => drop(cache.remove(&wanted.name())),
            3..6 => assert!(cache.store(&wanted)),
            6..8 => drop(cache.mark(fuseline_cache::disk::Stage::Run, &wanted.name(), &wanted.name())),
            _ => {
                let found = cache.load(&wanted.request()).found();
                assert!(found.as_ref().is_none_or(is_genuine), "{found:?}");
                if found.is_some() {
                    continue;
                }
                match cache.join(&wanted.request(), Duration::from_millis(random.next() % 100)) {
                    JoinOutcome::Ready(found) => assert!(is_genuine(&found)),
                    JoinOutcome::NoLock => {}
                    JoinOutcome::Leader(_flight) => {
                        std::thread::sleep(Duration::from_millis(random.next() % 5));
                        assert!(cache.store(&wanted));
                    }
                }
            }
        }
    }
}

/// A process that waits for a killed one takes over.
#[test]
fn the_flight_of_a_killed_process_is_taken_over() {
    let (root, mut children) = (Root::new(), Children::default());
    let cache = root.open_given();
    children.start(&mut child(&format!("hold|{}", root.dir.path().display())));
    let flying = root.dir.path().join("flying");
    wait_until("a flight", || is_there(&flying));
    let request = record("a");
    // It is missing, and a process is making it: waits end with their timeout.
    assert!(matches!(cache.join(&request.request(), Duration::ZERO), JoinOutcome::NoLock));
    assert!(matches!(cache.join(&request.request(), Duration::from_millis(30)), JoinOutcome::NoLock));
    // During a flight, no sweep removes its file, nor an entry with its name.
    assert!(cache.store(&request) && cache.store(&record("b")));
    let swept = cache.sweep_to(0).unwrap();
    assert_eq!((swept.orphans, swept.entries, swept.evicted), (0, 1, 1), "{swept:?}");
    assert!(cache.remove(&request.name()));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cache.join(&request.request(), PATIENCE));
        std::thread::sleep(Duration::from_millis(20));
        children.kill();
        assert!(matches!(waits.join().unwrap(), JoinOutcome::Leader(_)));
    });
    drop(cache);
    assert_no_orphans(&root);
}

fn hold(dir: &Path) {
    let cache = open(dir);
    let JoinOutcome::Leader(_flight) = cache.join(&record("a").request(), Duration::ZERO) else {
        panic!("a flight")
    };
    fs::write(dir.join("flying"), "").unwrap();
    std::thread::sleep(PATIENCE);
}

/// A waiter gets what the other process made, and continues if that made nothing.
#[test]
fn who_waits_for_a_flight_gets_what_was_made() {
    let root = Root::new();
    let (one, other) = (root.open_given(), root.open_given());
    for makes in [true, false] {
        let record = record(&format!("{makes}"));
        let JoinOutcome::Leader(flight) = one.join(&record.request(), Duration::ZERO) else {
            panic!("a flight")
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.join(&record.request(), PATIENCE));
            std::thread::sleep(Duration::from_millis(10));
            if makes {
                assert!(one.store(&record));
            }
            drop(flight);
            match waits.join().unwrap() {
                JoinOutcome::Ready(found) => assert!(makes && found == record),
                JoinOutcome::Leader(_) => assert!(!makes),
                JoinOutcome::NoLock => panic!("not even in a minute"),
            }
        });
    }
    assert!(root.list("flights").is_empty());
    // A later request finds it without waiting, with or without a flight.
    assert!(matches!(one.join(&record("true").request(), Duration::ZERO), JoinOutcome::Ready(_)));
    assert!(root.list("flights").is_empty());
    root.assert_quiet();
}

/// There are never two at once, whatever happens to the lock file: flights end and begin all the
/// time, and sweeps remove what is left behind.
#[test]
fn of_many_one_has_the_flight() {
    let root = Root::new();
    let (flying, flights, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let (request, at_once) = (record("a"), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let cache = root.open_given();
                while !done.load(Ordering::SeqCst) {
                    cache.sweep();
                }
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                let cache = root.open_given();
                while flights.load(Ordering::SeqCst) < 1500 {
                    if let JoinOutcome::Leader(flight) =
                        cache.join(&request.request(), Duration::from_millis(1))
                    {
                        // Reported at the end: a thread that panics here would leave the others
                        // waiting.
                        at_once.fetch_max(flying.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        flights.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        flying.fetch_sub(1, Ordering::SeqCst);
                        drop(flight);
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
        }
    });
    assert_eq!(at_once.into_inner(), 1, "at once");
    root.assert_quiet();
}

/// A sweep opens the lock of a flight that ends then, and locks the unlinked file. It must leave
/// the current lock file.
#[test]
fn a_sweep_does_not_take_the_flight_that_came_after() {
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let makers = Arc::new(root.open_given());
    let sweeper = root.open_on(files.clone(), root.given()).unwrap();
    let JoinOutcome::Leader(first) = makers.join(&record("a").request(), Duration::ZERO) else {
        panic!("a flight")
    };
    // Between opening and locking the file, the flight ends and another one with the same name
    // begins.
    let (first, second) = (std::sync::Mutex::new(Some(first)), Arc::new(std::sync::Mutex::new(None)));
    let (cache, kept, opened) = (makers.clone(), second.clone(), AtomicBool::new(false));
    files.before(move |call| match call {
        Call::OpenToLock => opened.store(true, Ordering::SeqCst),
        Call::TryLock if opened.load(Ordering::SeqCst) => {
            if let Some(flight) = first.lock().unwrap().take() {
                drop(flight);
                *kept.lock().unwrap() = Some(cache.join(&record("a").request(), Duration::ZERO));
            }
        }
        _ => {}
    });
    assert_eq!(sweeper.sweep().expect("a sweep").orphans, 0);
    assert!(matches!(*second.lock().unwrap(), Some(JoinOutcome::Leader(_))));
    assert_eq!(root.list("flights"), [record("a").name().to_string()]);
    // So no other process gets it.
    assert!(matches!(makers.join(&record("a").request(), Duration::ZERO), JoinOutcome::NoLock));
}

/// An entry that is being written when a sweep looks, and is complete when the sweep reaches it.
#[test]
fn a_sweep_does_not_take_the_entry_that_is_complete_meanwhile() {
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let writer = root.open_on(files.clone(), root.given()).unwrap();
    let sweeper = Arc::new(root.open_given());
    // Before it is locked, a sweep does remove it, which costs another attempt.
    let (done, sweeps) = (AtomicBool::new(false), sweeper.clone());
    files.before(move |call| {
        if call == Call::TryLock && !done.swap(true, Ordering::SeqCst) {
            assert_eq!(sweeps.sweep().expect("a sweep").orphans, 1);
        }
    });
    assert!(writer.store(&record("a")), "stored all the same");
    // Once locked, it is left alone until it has its name.
    let sweeps = sweeper.clone();
    files.before(move |call| {
        if matches!(call, Call::Write | Call::Rename) {
            assert_eq!(sweeps.sweep().expect("a sweep").orphans, 0);
        }
    });
    assert!(writer.store(&record("b")));
    files.before(|_| {});
    // A sweep has opened it, and then it gets its name.
    let (named, goes_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let late = Faulty::new(Plan::Works);
    let late_sweeper = root.open_on(late.clone(), root.given()).unwrap();
    let (one, other) = (named.clone(), goes_on.clone());
    files.before(move |call| {
        if call == Call::Rename {
            one.wait();
            other.wait();
        }
    });
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stores = scope.spawn(|| writer.store(&record("c")));
        named.wait();
        let (complete, goes_on) = (root.entry(&record("c").name()), goes_on.clone());
        late.before(move |call| match call {
            Call::OpenToLock => opened.store(true, Ordering::SeqCst),
            Call::TryLock if opened.swap(false, Ordering::SeqCst) => {
                goes_on.wait();
                wait_until("an entry", || is_there(&complete));
                // The lock ends with the file, which is closed soon after.
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => {}
        });
        assert_eq!(late_sweeper.sweep().expect("a sweep").orphans, 0);
        assert!(stores.join().unwrap());
    });
    for request in ["a", "b", "c"] {
        assert_eq!(sweeper.load(&record(request).request()).found(), Some(record(request)));
    }
    root.assert_quiet();
}

/// A process that has opened an entry reads it whole, and never treats it as damaged, whatever
/// happens to its name.
#[test]
fn an_open_entry_is_read_to_its_end() {
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let (reader, writer) = (root.open_on(files.clone(), root.given()).unwrap(), Arc::new(root.open_given()));
    let (old, new) = (version("a", 1, 300_000), version("a", 2, 100));
    for at in [Call::Stat, Call::Read] {
        for what in ["replaced", "evicted"] {
            assert!(writer.store(&old));
            let (cache, other, once) = (writer.clone(), new.clone(), AtomicBool::new(false));
            files.before(move |call| {
                if call == at && !once.swap(true, Ordering::SeqCst) {
                    match what {
                        "replaced" => assert!(cache.store(&other)),
                        _ => assert_eq!(cache.sweep_to(0).expect("a sweep").evicted, 1),
                    }
                }
            });
            assert_eq!(reader.load(&old.request()).found().as_ref(), Some(&old), "{what} before {at:?}");
            files.before(|_| {});
            let left = reader.load(&old.request()).found();
            assert_eq!(left.as_ref(), (what == "replaced").then_some(&new), "{what} before {at:?}");
            root.assert_quiet();
        }
    }
}

/// The entry point of child processes; does nothing by itself.
#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let Some(role) = role() else { return };
    let dir = PathBuf::from(&role[1]);
    let number = |at: usize| role[at].parse::<u64>().unwrap();
    match &*role[0] {
        "write" => write(&dir, number(2)),
        "make" => make(&dir, number(2) as usize),
        "share" => take_part(&dir, number(2), number(3)),
        "hold" => hold(&dir),
        role => panic!("{role}"),
    }
}
