//! A request that crashed a process is not tried again for a while (DISK-4, DISK-5). The work of a
//! process that was killed or exited is not affected.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuseline_cache::Name;
use fuseline_cache::disk::{CRASHED, DiskCache, DiskConfig, Mark, SecretSource, Stage};
use rustix::io::Errno;

use support::faulty::{Call, Faulty, Plan};
use support::{Children, Root, as_child, child, is_there, record, role, wait_until};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The offset of the slots in a mark file; see `crash_marks.rs`.
const SLOTS_AT: usize = 40;
const SLOT: usize = 72;
const MOST: usize = 512;

fn name(request: &str) -> Name {
    record(request).name()
}

/// The quarantine key of a request; that of "a=quick" is that of "a".
fn suspect(request: &str) -> Name {
    let of = request.split('=').next().unwrap_or_default();
    record(&format!("suspect {of}")).name()
}

fn open(dir: &Path) -> DiskCache {
    let config = DiskConfig::new(dir.join("cache"), SecretSource::File(dir.join("state").join("cache.key")));
    DiskCache::open(config, support::Log::default().observer()).unwrap()
}

/// Both names in the layout of a slot.
fn names(request: &str) -> [u8; 64] {
    let mut names = [0; 64];
    names[..32].copy_from_slice(suspect(request).as_bytes());
    names[32..].copy_from_slice(name(request).as_bytes());
    names
}

/// A process that tries requests and ends as told; see [`tries`].
fn run(root: &Root, end: &str, tried: &[(Stage, &str)]) {
    let tried: Vec<String> = tried.iter().map(|(stage, request)| format!("{stage}:{request}")).collect();
    let mut children = Children::default();
    let mut command = child(&format!("try|{}|{end}|{}", root.dir.path().display(), tried.join(",")));
    // An intended crash should print nothing.
    command.stderr(std::process::Stdio::null());
    children.start(&mut command);
    if end == "kill" {
        let ready = root.dir.path().join("ready");
        wait_until("marks", || is_there(&ready));
        children.kill();
        fs::remove_file(ready).unwrap();
        return;
    }
    let status = children.wait()[0];
    assert_eq!(status.success(), matches!(end, "return" | "exit"), "{end}: {status}");
}

fn tries(dir: &Path, end: &str, tried: &str) {
    let cache = open(dir);
    // Finished requests, whose slots are reused.
    for request in ["over", "over too"] {
        drop(cache.mark(Stage::Load, &suspect(request), &name(request)).unwrap());
    }
    let mark = |text: &str| -> Mark {
        let (stage, request) = text.split_once(':').unwrap();
        let stage = [Stage::Make, Stage::Load, Stage::Run].into_iter().find(|it| it.to_string() == stage);
        cache.mark(stage.unwrap(), &suspect(request), &name(request)).unwrap()
    };
    let marks: Vec<Mark> = tried.split(',').filter(|text| !text.is_empty()).map(mark).collect();
    match end {
        "return" => {}
        "exit" => std::process::exit(0),
        "crash" => {
            // The same as a signal handler.
            let file = cache.crash_file().unwrap();
            assert_eq!(rustix::io::pwrite(&*file, CRASHED, 0).unwrap(), 1);
            std::process::abort();
        }
        // A crash that no handler sees.
        "abort" => std::process::abort(),
        _ => {
            fs::write(dir.join("ready"), "").unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    drop(marks);
}

fn stocked(requests: &[&str]) -> Root {
    let root = Root::new();
    let cache = root.open();
    for request in requests {
        assert!(cache.store(&record(request)));
    }
    root
}

const TRIED: [(Stage, &str); 3] = [(Stage::Make, "made"), (Stage::Load, "loaded"), (Stage::Run, "run")];

#[test]
fn what_a_process_crashed_on_is_in_quarantine() {
    let root = stocked(&["made", "loaded", "run", "over", "over too", "other"]);
    run(&root, "crash", &TRIED);
    let cache = root.open();
    let mut told = root.log.take();
    told.sort();
    let mut expected: Vec<String> =
        TRIED.iter().map(|(stage, request)| format!("quarantined: {}: {stage}", suspect(request))).collect();
    expected.sort();
    assert_eq!(told, expected);
    for (stage, request) in TRIED {
        let quarantine =
            cache.quarantine(&suspect(request)).unwrap_or_else(|| panic!("{request} is tried again"));
        assert_eq!((quarantine.stage, quarantine.deaths), (stage, 1), "{request}");
        assert!(quarantine.to_string().contains(&format!("{stage} crashed a process")), "{quarantine}");
        assert_eq!(cache.load(&record(request).request()).found(), None, "{request}");
    }
    for request in ["over", "over too", "other"] {
        assert_eq!(cache.quarantine(&suspect(request)), None, "{request} did nothing");
        assert_eq!(cache.load(&record(request).request()).found(), Some(record(request)));
    }
    assert_eq!(root.list("quarantine").len(), 3);
    assert_eq!(root.list("marks").len(), 1, "its own");
    // Later processes know it too, and do not count it again.
    let later = root.open();
    for (stage, request) in TRIED {
        let quarantine = later.quarantine(&suspect(request)).unwrap();
        assert_eq!((quarantine.stage, quarantine.deaths), (stage, 1), "{request}");
    }
    root.assert_quiet();
}

#[test]
fn a_process_that_was_killed_crashed_on_nothing() {
    const AT_HAND: [&str; 5] = ["made", "loaded", "run", "over", "other"];
    for end in ["kill", "abort", "exit"] {
        let root = stocked(&AT_HAND);
        run(&root, end, &TRIED);
        assert_eq!(root.list("marks").len(), 1, "{end}: what it was at is there to be read");
        let cache = root.open();
        assert!(root.list("quarantine").is_empty(), "{end}");
        for request in AT_HAND {
            assert_eq!(cache.quarantine(&suspect(request)), None, "{end} {request}");
            assert!(cache.load(&record(request).request()).found().is_some(), "{end} {request}");
        }
        assert_eq!(root.list("marks").len(), 1, "its own");
        root.assert_quiet();
    }
}

#[test]
fn a_process_that_ends_well_leaves_nothing() {
    let root = stocked(&["loaded"]);
    run(&root, "return", &TRIED);
    for folder in ["marks", "temp", "flights", "quarantine"] {
        assert_eq!(root.list(folder), Vec::<String>::new(), "{folder}");
    }
    assert_eq!(root.open().load(&record("loaded").request()).found(), Some(record("loaded")));
}

/// A crash without anything in progress has no consequences.
#[test]
fn a_crash_elsewhere_is_held_against_nobody() {
    let root = stocked(&["over", "other"]);
    run(&root, "crash", &[]);
    let cache = root.open();
    assert!(root.list("quarantine").is_empty());
    assert_eq!(cache.load(&record("over").request()).found(), Some(record("over")));
    root.assert_quiet();
}

/// A mark's name is in the file exactly as long as the mark lives.
#[test]
fn a_mark_is_in_the_file_as_long_as_it_lives() {
    let root = stocked(&[]);
    let cache = root.open();
    let file = root.folder("marks").join(&root.list("marks")[0]);
    let slots = || -> Vec<(u8, Vec<u8>)> {
        let bytes = fs::read(&file).unwrap();
        bytes
            .get(SLOTS_AT..)
            .unwrap_or_default()
            .chunks(SLOT)
            .map(|slot| (slot[0], slot[8..].to_vec()))
            .collect()
    };
    let of = |code: u8, request: &str| (code, names(request).to_vec());
    let free = (0, vec![0; 64]);
    assert_eq!(slots(), []);
    let a = cache.mark(Stage::Make, &suspect("a"), &name("a")).unwrap();
    let b = cache.mark(Stage::Run, &suspect("b"), &name("b")).unwrap();
    assert_eq!(slots(), [of(b'm', "a"), of(b'r', "b")]);
    drop(a);
    assert_eq!(slots(), [free.clone(), of(b'r', "b")]);
    let c = cache.mark(Stage::Load, &suspect("c"), &name("c")).unwrap();
    assert_eq!(slots(), [of(b'l', "c"), of(b'r', "b")], "slots are used again");
    // Neither their order of dropping matters, nor that the tier is dropped first.
    drop(cache);
    assert_eq!(slots().len(), 2, "there as long as there are marks");
    drop(b);
    assert_eq!(slots(), [of(b'l', "c"), free]);
    drop(c);
    assert!(root.list("marks").is_empty());
}

#[test]
fn there_is_room_for_so_many_marks() {
    let root = stocked(&[]);
    let cache = root.open();
    let file = root.folder("marks").join(&root.list("marks")[0]);
    let mut marks: Vec<Mark> = (0..MOST)
        .map(|at| cache.mark(Stage::Make, &suspect(&at.to_string()), &name(&at.to_string())).expect("a slot"))
        .collect();
    // A further mark is not made, which is no failure.
    assert!(cache.mark(Stage::Make, &suspect("more"), &name("more")).is_none());
    assert_eq!(fs::metadata(&file).unwrap().len() as usize, SLOTS_AT + MOST * SLOT);
    drop(marks.swap_remove(17));
    marks.push(cache.mark(Stage::Make, &suspect("more"), &name("more")).expect("a slot that is free again"));
    assert!(cache.mark(Stage::Make, &suspect("yet more"), &name("yet more")).is_none());
    // All of them are found, including the last ones.
    let copy = fs::read(&file).unwrap();
    drop(marks);
    for _ in 0..10_000 {
        drop(cache.mark(Stage::Run, &suspect("again"), &name("again")).expect("a slot"));
    }
    assert_eq!(fs::metadata(&file).unwrap().len() as usize, SLOTS_AT + MOST * SLOT, "it does not grow");
    drop(cache);
    fs::write(root.folder("marks").join("0".repeat(32)), [&CRASHED[..], &copy[1..]].concat()).unwrap();
    let next = root.open();
    assert!((0..MOST).filter(|at| *at != 17).all(|at| next.quarantine(&suspect(&at.to_string())).is_some()));
    assert!(next.quarantine(&suspect("more")).is_some() && next.quarantine(&suspect("17")).is_none());
    assert_eq!(root.log.take().len(), MOST);
}

/// Threads that mark at once get different slots.
#[test]
fn every_mark_has_a_slot_of_its_own() {
    let root = stocked(&[]);
    let cache = root.open();
    let file = root.folder("marks").join(&root.list("marks")[0]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, file) = (&cache, &file);
            scope.spawn(move || {
                for round in 0..300 {
                    let name = name(&format!("{thread} {round}"));
                    let _mark = cache.mark(Stage::Load, &name, &name).expect("a slot");
                    let bytes = fs::read(file).unwrap();
                    let times = bytes[SLOTS_AT..].chunks(SLOT).filter(|slot| {
                        slot[8..40] == name.as_bytes()[..] && slot[40..] == name.as_bytes()[..]
                    });
                    assert_eq!(times.count(), 1);
                }
            });
        }
    });
    assert!(fs::metadata(&file).unwrap().len() as usize <= SLOTS_AT + 8 * SLOT);
}

/// A slot that cannot be cleared is not reused, and a failed write is reported.
#[test]
fn a_slot_that_cannot_be_cleared_is_given_up() {
    let (root, files) = (Root::new(), Faulty::new(Plan::Works));
    let cache = root.open_on(files.clone(), root.config()).unwrap();
    let first = cache.mark(Stage::Make, &suspect("a"), &name("a")).unwrap();
    files.plan(Plan::SealedKind(Call::WriteAt, Errno::IO));
    drop(first);
    assert!(cache.mark(Stage::Make, &suspect("b"), &name("b")).is_none());
    assert_eq!(root.log.take().len(), 1);
    files.plan(Plan::Works);
    let _mark = cache.mark(Stage::Make, &suspect("c"), &name("c")).unwrap();
    let bytes = fs::read(root.folder("marks").join(&root.list("marks")[0])).unwrap();
    assert_eq!(bytes[SLOTS_AT + 8..SLOTS_AT + SLOT], names("a"));
}

/// A live process is not judged, nor are its marks removed, by starts or by sweeps.
#[test]
fn the_marks_of_a_live_process_are_its_own() {
    let root = stocked(&["loaded"]);
    let mut children = Children::default();
    let role = format!("try|{}|wait|{}:loaded", root.dir.path().display(), Stage::Load);
    children.start(&mut child(&role));
    let ready = root.dir.path().join("ready");
    wait_until("marks", || is_there(&ready));
    for _ in 0..3 {
        let cache = root.open();
        assert!(cache.sweep().is_some());
        assert_eq!(root.list("marks").len(), 2);
        assert_eq!(cache.load(&record("loaded").request()).found(), Some(record("loaded")));
    }
    children.kill();
    let cache = root.open();
    assert_eq!(root.list("marks").len(), 1);
    assert_eq!(cache.load(&record("loaded").request()).found(), Some(record("loaded")));
}

/// The marks that a crashed process with these requests would have left.
fn crash(root: &Root, tried: &[(u8, &str)]) {
    let mut bytes = vec![0; SLOTS_AT];
    bytes[0] = CRASHED[0];
    for (code, request) in tried {
        let mut slot = [0; SLOT];
        slot[0] = *code;
        slot[8..].copy_from_slice(&names(request));
        bytes.extend(slot);
    }
    fs::write(root.folder("marks").join("c".repeat(32)), bytes).unwrap();
}

/// Each further death gets a longer term. The term ends, and is forgotten if there is no death for
/// long.
#[test]
fn quarantine_is_longer_each_time_and_ends() {
    let (root, files) = (stocked(&[]), Faulty::new(Plan::Works));
    let open = || root.open_on(files.clone(), root.config()).unwrap();
    let died = |days: u32, deaths: u32| {
        crash(&root, &[(b'm', "a")]);
        let cache = open();
        assert_eq!(cache.quarantine(&suspect("a")).unwrap().deaths, deaths);
        assert_eq!(root.log.take().len(), 1);
        files.let_pass(DAY * days - DAY / 24);
        assert!(cache.quarantine(&suspect("a")).is_some(), "over before {days} days are");
        assert!(open().quarantine(&suspect("a")).is_some(), "over for those that come later");
        files.let_pass(DAY / 12);
        assert!(cache.quarantine(&suspect("a")).is_none(), "not over after {days} days");
        assert!(open().quarantine(&suspect("a")).is_none(), "not over for those that come later");
        // The earlier term is remembered.
        assert!(open().sweep().is_some());
        assert_eq!(root.list("quarantine").len(), 1);
    };
    died(1, 1);
    died(8, 2);
    died(64, 3);
    died(64, 4);
    files.let_pass(root.config().max_age);
    assert!(open().sweep().is_some());
    assert!(root.list("quarantine").is_empty());
    died(1, 1);
    root.assert_quiet();
}

/// A time in the far future means that a clock was wrong, and has no effect.
#[test]
fn a_wrong_clock_keeps_nobody_in_quarantine_for_ever() {
    let (root, files) = (stocked(&[]), Faulty::new(Plan::Works));
    files.let_pass(DAY * 3650);
    crash(&root, &[(b'l', "a")]);
    assert!(root.open_on(files, root.config()).unwrap().quarantine(&suspect("a")).is_some());
    root.log.take();
    assert!(root.open().quarantine(&suspect("a")).is_none());
}

/// A process that died with several marks of one request died once, at the latest stage; every
/// entry of the request that was tried is removed.
#[test]
fn a_death_counts_once() {
    let root = stocked(&["a", "a=quick", "a=other", "b"]);
    crash(&root, &[(b'l', "a"), (b'r', "a=quick"), (b'm', "a"), (b'm', "b")]);
    let cache = root.open();
    for (request, is_left) in [("a", false), ("a=quick", false), ("a=other", true), ("b", false)] {
        assert_eq!(cache.load(&record(request).request()).found().is_some(), is_left, "{request}");
    }
    let quarantine = cache.quarantine(&suspect("a")).unwrap();
    assert_eq!((quarantine.stage, quarantine.deaths), (Stage::Run, 1));
    assert_eq!(cache.quarantine(&suspect("b")).unwrap().deaths, 1);
    assert_eq!(root.log.take().len(), 2);
}

/// Of several processes that start after a crash, one judges.
#[test]
fn a_crash_is_judged_once() {
    for _ in 0..10 {
        let root = stocked(&["a"]);
        crash(&root, &[(b'r', "a")]);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    drop(root.open());
                });
            }
        });
        assert_eq!(root.log.take().len(), 1);
        assert_eq!(root.open().quarantine(&suspect("a")).unwrap().deaths, 1);
        assert!(root.list("marks").is_empty());
    }
}

/// Invalid files among the marks and in the quarantine have no effect, and are removed.
#[test]
fn rubbish_is_no_mark_and_no_quarantine() {
    let root = stocked(&["a"]);
    let put =
        |folder: &str, name: &str, bytes: &[u8]| fs::write(root.folder(folder).join(name), bytes).unwrap();
    put("marks", "empty", b"");
    put("marks", "short", b"!");
    put("marks", "long", &[b'!'; 100_000]);
    put("marks", "stages", &[&[b'!'; SLOTS_AT][..], &[b'x'; SLOT], &[0; SLOT], &[b'm'; SLOT - 1]].concat());
    put("quarantine", &suspect("a").to_string(), b"m 1 99999999999999999999999999");
    put("quarantine", &suspect("b").to_string(), &[0xff; 1000]);
    put("quarantine", "no name", b"m 1 1");
    let cache = root.open();
    assert_eq!(cache.load(&record("a").request()).found(), Some(record("a")));
    assert!(cache.quarantine(&suspect("a")).is_none() && cache.quarantine(&suspect("b")).is_none());
    assert_eq!(root.list("marks").len(), 1, "its own");
    assert!(cache.sweep().is_some());
    let left: Vec<String> = root.list("quarantine");
    assert!(left.is_empty() || left == ["no name"], "{left:?}");
    root.assert_quiet();
}

/// A read-only process judges nobody, and knows the quarantine.
#[test]
fn who_may_only_read_knows_the_quarantine() {
    let root = stocked(&["a"]);
    crash(&root, &[(b'r', "a")]);
    drop(root.open());
    root.log.take();
    crash(&root, &[(b'r', "b")]);
    let cache = root.open_with(DiskConfig { read_only: true, ..root.config() }).unwrap();
    assert!(cache.quarantine(&suspect("a")).is_some() && cache.quarantine(&suspect("b")).is_none());
    assert!(is_there(&root.folder("marks").join("c".repeat(32))));
    root.assert_quiet();
}

/// R16 on a small scale: of a series of processes that would all die of one request, one dies.
#[test]
fn one_process_dies_of_one_thing() {
    let root = stocked(&[]);
    let mut deaths = 0;
    for _ in 0..5 {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        as_child(&mut command, &format!("naive|{}", root.dir.path().display()));
        deaths += usize::from(!command.output().unwrap().status.success());
    }
    assert_eq!(deaths, 1);
}

/// Crashes on a request that is not in quarantine.
fn naive(dir: &Path) {
    let cache = open(dir);
    if cache.quarantine(&suspect("trap")).is_none() {
        let _mark = cache.mark(Stage::Load, &suspect("trap"), &name("trap")).unwrap();
        rustix::io::pwrite(&*cache.crash_file().unwrap(), CRASHED, 0).unwrap();
        std::process::abort();
    }
}

/// The entry point of child processes; does nothing by itself.
#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let Some(role) = role() else { return };
    let dir = PathBuf::from(&role[1]);
    match &*role[0] {
        "try" => tries(&dir, &role[2], &role[3]),
        "naive" => naive(&dir),
        role => panic!("{role}"),
    }
}
