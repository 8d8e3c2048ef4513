//! File system calls that fail, in every place and every way (DISK-9), and processes that end after
//! any of them (DISK-6).
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{DiskCache, DiskConfig, Files, JoinOutcome, Stage, System};
use fuseline_cache::{Name, Record};
use rustix::io::Errno;

use support::faulty::{Call, Faulty, Plan};
use support::{Root, is_root, is_there, record, role, skip, version};

/// Errors of the operating system. [`System`] retries after `EINTR`; above it, `EINTR` is one more
/// failure.
const ERRNOS: [Errno; 10] = [
    Errno::NOSPC,
    Errno::ROFS,
    Errno::ACCESS,
    Errno::IO,
    Errno::MFILE,
    Errno::NAMETOOLONG,
    Errno::NOENT,
    Errno::DQUOT,
    Errno::INTR,
    Errno::STALE,
];

/// Longer than any pause after a failed store.
const LONG: Duration = Duration::from_secs(3 * 3600);

/// A tier with something of every kind: two entries, an unfinished file, a flight of a process that
/// is gone, marks of a crashed process and of one that did not crash, a quarantine. [`restock`]
/// prepares it.
fn stock(root: &Root) {
    drop(root.open());
    restock(root);
}

fn restock(root: &Root) {
    let marks = |crashed: u8, stage: u8, name: &Name| {
        let mut bytes = vec![0; 112];
        (bytes[0], bytes[40]) = (crashed, stage);
        bytes[48..80].copy_from_slice(name.as_bytes());
        bytes[80..].copy_from_slice(name.as_bytes());
        bytes
    };
    let cache = root.open();
    assert!(cache.store(&record("a")) && cache.store(&record("b")));
    drop(cache);
    // A load touches it.
    let old = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    fs::File::open(root.entry(&record("a").name())).unwrap().set_modified(old).unwrap();
    fs::write(root.folder("temp").join("0".repeat(32)), "half of").unwrap();
    fs::write(root.folder("flights").join(record("x").name().to_string()), "").unwrap();
    fs::write(root.folder("marks").join("1".repeat(32)), marks(b'!', b'm', &record("dead").name())).unwrap();
    fs::write(root.folder("marks").join("2".repeat(32)), marks(0, b'l', &record("b").name())).unwrap();
    fs::write(root.folder("quarantine").join(record("q").name().to_string()), "l 1 99\n").unwrap();
}

/// Uses all functions of a tier. Whatever fails, the results are what was stored.
fn use_all(cache: &DiskCache, seen: &mut Vec<Record>) {
    let mut load = |request: &str| {
        let record = record(request);
        let found = cache.load(&record.request()).found();
        assert!(found.as_ref().is_none_or(|found| *found == record), "{request}: {found:?}");
        seen.extend(found);
    };
    for request in ["a", "b", "missing"] {
        load(request);
    }
    let mark = cache.mark(Stage::Make, &record("c").name(), &record("c").name());
    match cache.join(&record("c").request(), Duration::ZERO) {
        JoinOutcome::Ready(found) => assert_eq!(found, record("c")),
        JoinOutcome::Leader(_) | JoinOutcome::NoLock => drop(cache.store(&record("c"))),
    }
    drop(mark);
    load("c");
    cache.remove(&record("c").name());
    load("c");
    cache.sweep();
    let _ = cache.quarantine(&record("dead").name());
}

/// Opens a tier, if possible, and uses it.
fn session(root: &Root, files: &Arc<Faulty>, config: &DiskConfig) -> Vec<Record> {
    let mut seen = Vec::new();
    if let Ok(cache) = root.open_on(files.clone(), config.clone()) {
        use_all(&cache, &mut seen);
        use_all(&cache, &mut seen);
    }
    seen
}

/// No event was reported twice, and no damage at all.
fn told_once(root: &Root, what: &str) {
    let told = root.log.take();
    let troubles: Vec<&String> = told.iter().filter(|told| told.starts_with("trouble: ")).collect();
    let different: HashSet<&String> = troubles.iter().copied().collect();
    assert_eq!(troubles.len(), different.len(), "{what}: told twice: {troubles:?}");
    assert!(told.iter().all(|told| !told.starts_with("damaged")), "{what}: {told:?}");
}

/// When calls work again, so does the tier.
fn works_again(root: &Root, files: &Arc<Faulty>, what: &str) {
    files.plan(Plan::Works);
    files.let_pass(LONG);
    let cache = root.open_on(files.clone(), root.config()).unwrap_or_else(|off| panic!("{what}: {off}"));
    assert!(cache.store(&record("again")), "{what}: {:?}", root.log.take());
    assert_eq!(cache.load(&record("again").request()).found(), Some(record("again")), "{what}");
    assert!(cache.mark(Stage::Run, &record("again").name(), &record("again").name()).is_some(), "{what}");
    assert!(matches!(cache.join(&record("new").request(), Duration::ZERO), JoinOutcome::Leader(_)), "{what}");
    assert!(cache.sweep().is_some(), "{what}");
    let dead = cache.quarantine(&record("dead").name());
    assert!(dead.is_some(), "{what}: what crashed is tried again");
    let left: Vec<String> = root.list("temp");
    assert!(left.is_empty() && root.list("flights").is_empty(), "{what}: {left:?}");
    assert_eq!(root.list("marks").len(), 1, "{what}: its own");
    drop(cache);
    root.log.take();
}

/// The calls of a session without failures.
fn calls_of_a_session(config: impl Fn(&Root) -> DiskConfig) -> Vec<Call> {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    stock(&root);
    let config = config(&root);
    let seen = session(&root, &files, &config);
    assert!(seen.contains(&record("a")) && seen.contains(&record("c")), "{seen:?}");
    files.calls()
}

fn synced(root: &Root) -> DiskConfig {
    DiskConfig { sync: true, ..root.config() }
}

/// Any single call fails, in any way.
#[test]
fn any_call_may_fail() {
    let calls = calls_of_a_session(synced);
    let kinds: HashSet<Call> = calls.iter().copied().collect();
    // Otherwise this would test less than it claims.
    for kind in
        [Call::Open, Call::OpenToLock, Call::Create, Call::Write, Call::WriteAt, Call::Sync, Call::Rename]
    {
        assert!(kinds.contains(&kind), "{kind:?} is not called");
    }
    for kind in [Call::Read, Call::Stat, Call::StatAt, Call::Unlink, Call::List, Call::Touch, Call::TryLock] {
        assert!(kinds.contains(&kind), "{kind:?} is not called");
    }
    let root = Root::in_memory();
    stock(&root);
    for errno in ERRNOS {
        for at in 0..calls.len() as u64 {
            let files = Faulty::new(Plan::At(at, errno));
            session(&root, &files, &synced(&root));
            let what = format!("{errno:?} at call {at}, {:?}", files.calls().get(at as usize));
            told_once(&root, &what);
            works_again(&root, &files, &what);
            restock(&root);
        }
    }
}

/// The same at the first use, when folders and secret are made.
#[test]
fn any_call_may_fail_where_nothing_is_there() {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    drop(root.open_on(files.clone(), root.config()).unwrap());
    let calls = files.calls();
    assert!(
        [Call::MakeRoot, Call::MakeDir, Call::SetMode, Call::Link].iter().all(|call| calls.contains(call))
    );
    for errno in ERRNOS {
        for at in 0..calls.len() as u64 {
            let what = format!("{errno:?} at call {at}");
            let (root, files) = (Root::in_memory(), Faulty::new(Plan::At(at, errno)));
            match root.open_on(files.clone(), root.config()) {
                Ok(cache) => drop(cache.store(&record("a"))),
                Err(off) => assert!(off.to_string().contains("/"), "{what}: {off}"),
            }
            told_once(&root, &what);
            files.plan(Plan::Works);
            let cache = root.open_on(files, root.config()).unwrap_or_else(|off| panic!("{what}: {off}"));
            assert!(cache.store(&record("b")), "{what}");
            drop(cache);
            assert_eq!(support::list(root.key().parent().unwrap()), ["cache.key"], "{what}");
        }
    }
}

/// All calls of a kind, or all calls, fail, from the start or once the tier is open. Then they work
/// again, for the same tier.
#[test]
fn calls_may_fail_for_long() {
    let kinds: HashSet<Call> = calls_of_a_session(synced).into_iter().collect();
    for errno in ERRNOS {
        let plans = kinds.iter().map(|kind| Plan::SealedKind(*kind, errno)).chain([Plan::All(errno)]);
        for plan in plans {
            let what = format!("{plan:?}");
            let root = Root::in_memory();
            stock(&root);
            let files = Faulty::new(plan);
            session(&root, &files, &synced(&root));
            told_once(&root, &what);
            files.plan(Plan::Works);
            // The marks that the failures left are judged here.
            let cache = root.open_on(files.clone(), synced(&root)).unwrap();
            let mut seen = Vec::new();
            root.log.take();
            files.plan(plan);
            for _ in 0..3 {
                use_all(&cache, &mut seen);
            }
            told_once(&root, &what);
            files.plan(Plan::Works);
            files.let_pass(LONG);
            seen.clear();
            use_all(&cache, &mut seen);
            assert!(seen.contains(&record("a")) && seen.contains(&record("c")), "{what}: {seen:?}");
            root.assert_quiet();
            drop(cache);
            works_again(&root, &files, &what);
        }
    }
}

/// Reads and writes of a few bytes at a time are no failure.
#[test]
fn calls_may_do_a_part_of_what_they_should() {
    for most in [1, 7, 31, 33, 100] {
        let root = Root::in_memory();
        let files = Faulty::new(Plan::Short(most));
        let cache = root.open_on(files.clone(), root.config()).unwrap();
        assert!(cache.store(&record("a")));
        drop(cache);
        stock(&root);
        let cache = root.open_on(files.clone(), root.config()).unwrap();
        assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")), "{most}");
        assert!(cache.quarantine(&record("dead").name()).is_some(), "{most}");
        assert_eq!(fs::read(root.entry(&record("a").name())).unwrap().len(), 176 + 1 + 200);
        let told = root.log.take();
        assert!(told.iter().all(|told| told.starts_with("quarantined")), "{told:?}");
        drop(cache);
        works_again(&root, &files, &format!("{most} bytes at a time"));
    }
}

/// A write of zero bytes is a failure, and is not retried forever.
#[test]
fn a_write_of_nothing_is_a_failure() {
    let root = Root::in_memory();
    let files = Faulty::new(Plan::Works);
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    files.plan(Plan::Short(0));
    assert!(!cache.store(&record("a")));
    assert_eq!(root.log.take().len(), 1);
    assert!(root.list("temp").is_empty());
}

/// After a failed store nothing is stored for a while. The pause gets longer, and ends.
#[test]
fn failed_stores_are_followed_by_pauses() {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    let second = Duration::from_secs(1);
    let mut term = 10 * second;
    for _ in 0..12 {
        files.plan(Plan::SealedKind(Call::Create, Errno::NOSPC));
        assert!(!cache.store(&record("a")));
        assert_eq!(files.calls(), [Call::Create], "tried once");
        files.plan(Plan::Works);
        files.let_pass(term - second);
        assert!(!cache.store(&record("a")), "stored before {term:?} were over");
        assert_eq!(files.calls(), [], "tried before {term:?} were over");
        files.let_pass(second);
        term = (term * 2).min(3600 * second);
    }
    assert_eq!(root.log.take().len(), 1, "the same failure");
    assert_eq!(cache.stats().failed_stores, 24);
    // Loads continue meanwhile. A successful store ends the pauses.
    assert!(cache.store(&record("a")));
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    files.plan(Plan::SealedKind(Call::Rename, Errno::NOSPC));
    assert!(!cache.store(&record("b")));
    files.plan(Plan::Works);
    files.let_pass(10 * second);
    assert!(cache.store(&record("b")));
    assert_eq!(root.log.take().len(), 1, "another call");
}

/// Each failure of each call is reported, even errors without a name in the library.
#[test]
fn every_failure_is_told_once() {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    assert!(cache.store(&record("a")));
    for (told, errno) in
        [(1, Errno::IO), (1, Errno::MFILE), (0, Errno::IO), (1, Errno::NFILE), (0, Errno::MFILE)]
    {
        files.plan(Plan::SealedKind(Call::Open, errno));
        assert_eq!(cache.load(&record("a").request()).found(), None);
        assert_eq!(root.log.take().len(), told, "{errno:?}");
        // It may exist: no process should assume that it does not.
        assert!(cache.may_have(&record("a").name()));
    }
}

/// A crash that could not be written down is remembered, by this process and the next.
#[test]
fn a_full_disk_does_not_hide_a_crash() {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    stock(&root);
    for call in [Call::Create, Call::Write, Call::Rename] {
        files.plan(Plan::SealedKind(call, Errno::NOSPC));
        let cache = root.open_on(files.clone(), root.config()).unwrap();
        assert!(cache.quarantine(&record("dead").name()).is_some(), "{call:?}");
        assert!(is_there(&root.folder("marks").join("1".repeat(32))), "{call:?}");
        assert!(root.list("quarantine").iter().all(|name| *name != record("dead").name().to_string()));
    }
    files.plan(Plan::Works);
    let cache = root.open_on(files, root.config()).unwrap();
    assert_eq!(cache.quarantine(&record("dead").name()).unwrap().deaths, 1);
    assert!(!is_there(&root.folder("marks").join("1".repeat(32))));
}

/// Without locks every process works alone. Sweeps still make room, and only killed processes leave
/// files behind.
#[test]
fn without_locks_every_process_is_on_its_own() {
    let root = Root::in_memory();
    drop(root.open());
    let files = Faulty::new(Plan::SealedKind(Call::TryLock, Errno::NOLCK));
    for _ in 0..3 {
        let cache = root.open_on(files.clone(), root.config()).unwrap();
        assert!(cache.mark(Stage::Make, &record("a").name(), &record("a").name()).is_none());
        assert!(matches!(cache.join(&record("a").request(), Duration::from_secs(60)), JoinOutcome::NoLock));
        assert!(cache.store(&record("a")) && cache.store(&record("b")));
        assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
        assert!(cache.sweep_to(0).is_some_and(|swept| swept.evicted == 2));
        assert!(root.list("entries").is_empty());
        told_once(&root, "no locks");
    }
    assert_eq!(root.list("marks"), Vec::<String>::new());
}

/// Like on NFS, where only files open for writing can be locked.
#[test]
fn locks_are_taken_on_files_that_may_be_written_to() {
    let root = Root::in_memory();
    stock(&root);
    let files = Faulty::new(Plan::LocksNeedWriting);
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    assert!(cache.quarantine(&record("dead").name()).is_some());
    let JoinOutcome::Leader(flight) = cache.join(&record("c").request(), Duration::ZERO) else {
        panic!("a flight")
    };
    assert!(cache.store(&record("c")) && cache.store(&record("a")));
    let swept = cache.sweep_to(0).unwrap();
    assert_eq!((swept.orphans, swept.entries), (2, 1), "{swept:?}");
    drop(flight);
    assert_eq!(cache.sweep_to(0).unwrap().entries, 0);
    let told = root.log.take();
    assert!(told.iter().all(|told| told.starts_with("quarantined")), "{told:?}");
}

/// A file size limit (`ulimit -f`) does not end the process: it acts like a full disk, and when
/// there is room again the tier works.
#[test]
fn a_limit_of_file_sizes_ends_no_process() {
    for limit in [0, 1, 31, 40, 100, 300, 5000] {
        let root = Root::in_memory();
        let output =
            support::child(&format!("limit|{limit}|{}", root.dir.path().display())).output().unwrap();
        assert!(output.status.success(), "{limit}: {output:?}");
        let cache = root.open();
        assert!(cache.store(&record("a")), "{limit}");
        assert_eq!(support::list(root.key().parent().unwrap()), ["cache.key"], "{limit}");
        assert!(root.list("temp").is_empty(), "{limit}");
    }
}

/// The part of [`a_limit_of_file_sizes_ends_no_process`] in a child process with a file size limit.
fn within_limit(limit: u64, dir: &std::path::Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::io::Write as _;
    let log = support::Log::default();
    let open = || {
        let config = DiskConfig::new(
            dir.join("cache"),
            fuseline_cache::disk::SecretSource::File(dir.join("state").join("cache.key")),
        );
        DiskCache::open(config, log.observer())
    };
    let set = |current| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    };
    set(Some(limit));
    let too_large = |error: &std::io::Error| error.kind() == std::io::ErrorKind::FileTooLarge;
    match open() {
        Ok(cache) => {
            assert!(limit >= 32, "the secret has 32 bytes");
            let (small, large) = (version("b", 0, 50), version("c", 0, 1 << 20));
            let stored = [&small, &large].map(|record| cache.store(record));
            assert!(!stored[1] && stored[0] == (limit >= 176 + 1 + 50), "{limit}: {stored:?}");
            let is_marked = cache.mark(Stage::Make, &small.name(), &small.name()).is_some();
            assert_eq!(is_marked, limit >= 40 + 72, "{limit}");
        }
        Err(off) => {
            let fuseline_cache::disk::Reason::Io { error, .. } = &off.why else { panic!("{off:?}") };
            assert!(limit < 32 && too_large(error), "{limit}: {off}");
        }
    }
    set(None);
    let (page, full, long) = (dir.join("page"), dir.join("full"), vec![b'x'; 5001]);
    fs::write(&page, "before").unwrap();
    fs::write(&full, vec![b'x'; limit as usize]).unwrap();
    set(Some(limit));
    assert!(fuseline_cache::disk::write_given(&page, &long).is_err_and(|error| too_large(&error)));
    assert_eq!(fs::read(&page).unwrap(), b"before", "what was there is gone");
    // Appended to the data of another process.
    let appended = fuseline_cache::disk::Output::append(&full).unwrap().write_all(b"1");
    assert!(appended.is_err_and(|error| too_large(&error)));
    fs::File::options().write(true).open(&page).unwrap().set_len(0).unwrap();
    let mut lines = fuseline_cache::disk::Output::append(&page).unwrap();
    let written = (0..).map_while(|_| lines.write_all(b"12345678").ok()).take(1000).count() as u64;
    assert_eq!(written, (limit / 8).min(1000));
    set(None);
}

/// A forked process is another process: its drops remove nothing of its parent.
#[test]
fn a_forked_process_removes_nothing_of_its_parent() {
    let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    let JoinOutcome::Leader(flight) = cache.join(&record("a").request(), Duration::ZERO) else {
        panic!("a flight")
    };
    let (marks, flights) = (root.list("marks"), root.list("flights"));
    assert_eq!((marks.len(), flights.len()), (1, 1));
    files.fork();
    drop(flight);
    drop(cache);
    assert_eq!((root.list("marks"), root.list("flights")), (marks, flights));
}

/// DK6: the process ends after any call of a store.
#[test]
fn a_store_that_ends_anywhere_leaves_a_whole_entry_or_none() {
    for sync in [false, true] {
        for old in [None, Some(version("a", 1, 3000))] {
            let new = version("a", 2, 5000);
            let mut seen = HashSet::new();
            for at in 0.. {
                let (root, files) = (Root::in_memory(), Faulty::new(Plan::Works));
                let config = DiskConfig { sync, ..root.config() };
                let cache = root.open_on(files.clone(), config).unwrap();
                let bystander = version("b", 1, 100);
                assert!(cache.store(&bystander));
                assert!(old.as_ref().is_none_or(|old| cache.store(old)));
                files.plan(Plan::Dead(at));
                let JoinOutcome::Leader(flight) = cache.join(&version("a", 0, 0).request(), Duration::ZERO)
                else {
                    // There is an old one, or the process ended before the lock.
                    cache.store(&new);
                    drop(cache);
                    if files.calls().len() as u64 <= at {
                        break;
                    }
                    check_after_death(&root, &old, &new, &bystander, &mut seen);
                    continue;
                };
                cache.store(&new);
                drop((flight, cache));
                let calls = files.calls().len() as u64;
                check_after_death(&root, &old, &new, &bystander, &mut seen);
                if calls <= at {
                    break;
                }
            }
            assert_eq!(seen.len(), 2, "both outcomes are seen: {seen:?}");
        }
    }
}

fn check_after_death(
    root: &Root,
    old: &Option<Record>,
    new: &Record,
    bystander: &Record,
    seen: &mut HashSet<bool>,
) {
    root.log.take();
    let next = root.open();
    let found = next.load(&new.request()).found();
    seen.insert(found.as_ref() == Some(new));
    assert!(found == *old || found.as_ref() == Some(new), "{found:?}");
    assert_eq!(next.load(&bystander.request()).found().as_ref(), Some(bystander));
    assert!(next.sweep().is_some());
    assert!(root.list("temp").is_empty() && root.list("flights").is_empty());
    assert_eq!(root.list("marks").len(), 1);
    assert!(next.store(new));
    assert_eq!(next.load(&new.request()).found().as_ref(), Some(new));
    root.assert_quiet();
}

/// The same for the very first opening: folders and secret.
#[test]
fn an_opening_that_ends_anywhere_is_followed_by_one_that_works() {
    for at in 0.. {
        let (root, files) = (Root::in_memory(), Faulty::new(Plan::Dead(at)));
        drop(root.open_on(files.clone(), root.config()));
        let calls = files.calls().len() as u64;
        root.log.take();
        let cache = root.open();
        assert!(cache.store(&record("a")), "call {at}");
        assert_eq!(support::list(root.key().parent().unwrap()), ["cache.key"], "call {at}");
        assert!(cache.sweep().is_some());
        assert_eq!(root.list("marks").len(), 1, "call {at}");
        assert_eq!(root.open().load(&record("a").request()).found(), Some(record("a")));
        root.assert_quiet();
        if calls <= at {
            break;
        }
    }
}

/// The same for judging a crash: if the judge ends, the next one judges.
#[test]
fn a_judge_that_ends_anywhere_does_not_hide_a_crash() {
    let mut deaths = HashSet::new();
    for at in 0.. {
        let (root, files) = (Root::in_memory(), Faulty::new(Plan::Dead(at)));
        stock(&root);
        drop(root.open_on(files.clone(), root.config()));
        let calls = files.calls().len() as u64;
        root.log.take();
        let cache = root.open();
        let quarantine = cache.quarantine(&record("dead").name());
        deaths.insert(quarantine.unwrap_or_else(|| panic!("call {at}: it is tried again")).deaths);
        assert_eq!(root.list("marks").len(), 1, "call {at}");
        if calls <= at {
            break;
        }
    }
    // An end between the two steps is the only case in which a death counts twice.
    assert!(deaths.contains(&1) && deaths.len() <= 2, "{deaths:?}");
}

/// The folder is removed while in use, whole or in part, and is created again.
#[test]
fn a_folder_that_was_removed_comes_back() {
    for what in ["", "v1", "v1/entries", "v1/temp", "v1/flights", "v1/quarantine"] {
        for first in ["store", "join", "sweep", "load"] {
            let root = Root::new();
            let cache = root.open();
            assert!(cache.store(&record("a")));
            fs::remove_dir_all(root.path().join(what)).unwrap();
            match first {
                "join" => {
                    let joined = cache.join(&record("b").request(), Duration::ZERO);
                    assert!(matches!(joined, JoinOutcome::Leader(_)), "{what}: {joined:?}");
                }
                "sweep" => {
                    assert!(cache.sweep().is_some(), "{what}");
                    // The folders that it needs are back, without a report.
                    assert!(is_there(&root.folder("flights")), "{what}");
                    let told = root.log.take();
                    assert!(told.iter().all(|told| !told.contains("lock the sweep")), "{what}: {told:?}");
                }
                "load" => drop(cache.load(&record("a").request())),
                _ => {}
            }
            assert!(cache.store(&record("a")), "{what} {first}: {:?}", root.log.take());
            assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")), "{what} {first}");
            let joined = cache.join(&record("b").request(), Duration::ZERO);
            assert!(matches!(joined, JoinOutcome::Leader(_)), "{what} {first}: {joined:?}");
            drop(joined);
            assert!(cache.sweep().is_some(), "{what} {first}");
            assert_eq!(root.open().load(&record("a").request()).found(), Some(record("a")), "{what} {first}");
        }
    }
}

/// A folder that replaces the old one is checked like the first.
#[test]
fn what_comes_in_place_of_a_folder_is_not_trusted() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    for link in [false, true] {
        let root = Root::new();
        let cache = root.open();
        assert!(cache.store(&record("a")));
        let trap = root.dir.path().join("trap");
        fs::create_dir(&trap).unwrap();
        fs::set_permissions(&trap, fs::Permissions::from_mode(if link { 0o700 } else { 0o777 })).unwrap();
        fs::remove_dir_all(root.path()).unwrap();
        match link {
            true => symlink(&trap, root.path()).unwrap(),
            false => fs::rename(&trap, root.path()).unwrap(),
        }
        assert!(!cache.store(&record("a")));
        assert_eq!(cache.load(&record("a").request()).found(), None);
        let at = if link { trap } else { root.path() };
        assert_eq!(support::list(&at), Vec::<String>::new());
        assert_eq!(root.log.take().len(), 1);
    }
}

/// Real file systems that are full or read-only, in a process with mounts of its own.
#[test]
fn real_file_systems_that_are_full_or_closed() {
    if !is_root() {
        return;
    }
    let place = Root::new();
    let mount = ["-m", "mount", "-t", "tmpfs", "tmpfs"];
    let can = Command::new("unshare").args(mount).arg(place.dir.path()).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skip("mounts of its own");
    }
    for (role, script) in [
        ("full", "mount -t tmpfs -o size=1m,mode=755 tmpfs \"$0\" && exec \"$@\""),
        ("closed", "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$@\""),
    ] {
        let root = Root::new();
        if role == "closed" {
            assert!(root.open().store(&record("a")));
        }
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(root.dir.path()).arg(std::env::current_exe().unwrap());
        support::as_child(&mut command, &format!("{role}|{}", root.dir.path().display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{role}: {output:?}");
        if role == "closed" {
            assert_eq!(root.open().load(&record("a").request()).found(), Some(record("a")));
        }
    }
}

/// On a disk of 1 MiB: small entries fit, large ones do not, and existing entries are always found.
fn full(cache: &DiskCache, log: &support::Log) {
    assert!(cache.store(&record("a")));
    assert!(!cache.store(&version("large", 1, 2 << 20)));
    let told = log.take();
    assert!(told.len() == 1 && told[0].contains("write an entry"), "{told:?}");
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert_eq!(cache.load(&version("large", 1, 0).request()).found(), None);
    // It pauses.
    assert!(!cache.store(&record("b")));
    assert!(log.take().is_empty());
    assert!(cache.sweep().is_some_and(|swept| swept.orphans == 0 && swept.entries == 1));
}

/// On a read-only disk: existing entries are found, and everything else fails without harm.
fn closed(cache: &DiskCache, log: &support::Log) {
    let told = log.take();
    assert!(told.len() == 1 && told[0].contains("make the marks"), "{told:?}");
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert!(!cache.store(&record("b")));
    assert!(matches!(cache.join(&record("b").request(), Duration::from_secs(60)), JoinOutcome::NoLock));
    assert!(cache.mark(Stage::Run, &record("a").name(), &record("a").name()).is_none());
    assert!(!cache.remove(&record("a").name()));
    cache.sweep_to(0);
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    let told = log.take();
    assert!(told.iter().all(|told| told.contains("Read-only")), "{told:?}");
}

/// The entry point of child processes; does nothing by itself.
#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let Some(role) = role() else { return };
    if let [limit, most, dir] = &role[..]
        && limit == "limit"
    {
        return within_limit(most.parse().unwrap(), std::path::Path::new(dir));
    }
    let (role, dir) = (&role[0], std::path::Path::new(&role[1]));
    let key = dir.join("state").join("cache.key");
    let config = DiskConfig::new(dir.join("cache"), fuseline_cache::disk::SecretSource::File(key));
    let log = support::Log::default();
    let files: Arc<dyn Files> = Arc::new(System);
    let cache = DiskCache::open_on(files, config, log.observer()).unwrap();
    match &**role {
        "full" => full(&cache, &log),
        "closed" => closed(&cache, &log),
        role => panic!("{role}"),
    }
}
