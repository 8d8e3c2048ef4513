//! Histories of the disk cache. Up to three processes open a folder, store, load, sweep, mark,
//! join, leave, are killed and crash. File system calls fail, are done in part, or are the last of
//! their process. Another process acts between two calls of a step, entries are damaged, and days
//! pass.
//!
//! A model keeps the set of records that each entry may hold: one record if no call failed. A load
//! returns a whole record that was stored under the request, or nothing if that is possible. Damage
//! is reported only for damaged entries, and is repaired. A sweep leaves no file of a process that
//! is gone, makes room, and removes the oldest entries that no process was making. At most one
//! process makes an artifact. Exactly the requests that crashed a process are in quarantine in
//! later ones.
//!
//! The calls are real ones on a folder in memory, made and removed for each input: about 0.7 ms an
//! execution. The tests provide fault injection and the clock (`cache/tests/support/`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{
    CRASHED, DiskCache, DiskConfig, Files as _, Flight, JoinOutcome, Mark, SecretSource, Stage, Swept, System,
};
use fuseline_cache::{Fingerprint, Key, Name, Record, SealedKind, Secret};
use fuseline_testgen::Entropy as _;
use rustix::io::Errno;

use super::bytes::Bytes;
use super::disk_support::Root;
use super::disk_support::faulty::{Call, Faulty, Plan};

/// The number of requests of a history.
const REQUESTS: usize = 3;
const PROCESSES: usize = 3;
const MAX_STEPS: usize = 24;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

const ERRNOS: [Errno; 8] = [
    Errno::IO,
    Errno::NOSPC,
    Errno::ACCESS,
    Errno::NOENT,
    Errno::MFILE,
    Errno::STALE,
    Errno::ROFS,
    Errno::NOLCK,
];

const CALLS: [Call; 16] = [
    Call::OpenDir,
    Call::MakeDir,
    Call::Create,
    Call::OpenOrCreate,
    Call::Open,
    Call::OpenToLock,
    Call::Stat,
    Call::StatAt,
    Call::Read,
    Call::Write,
    Call::WriteAt,
    Call::Rename,
    Call::Unlink,
    Call::List,
    Call::Touch,
    Call::TryLock,
];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Starts a process that is not running. With `true` it is read-only.
    Open(bool),
    /// Ends a process regularly.
    Close,
    /// Kills a process, or with `true` crashes it.
    Die(bool),
    /// Stores an artifact of this many bytes.
    Store(usize, usize),
    Load(usize),
    Remove(usize),
    /// Sweeps to the size limit, or with `true` to nothing.
    Sweep(bool),
    Mark(Stage, usize),
    Unmark,
    Join(usize),
    Leave,
    Wait(Duration),
    Damage(usize, u32, u32),
}

/// A step of another process just before a call of a step.
#[derive(Clone, Copy, Debug)]
struct Between {
    call: u64,
    process: usize,
    step: Step,
}

/// A step: its process, the behaviour of the file system, and a step of another process in between.
#[derive(Clone, Copy, Debug)]
struct Move {
    process: usize,
    step: Step,
    plan: Plan,
    between: Option<Between>,
}

fn pick<T: Copy>(how: &mut Bytes<'_>, items: &[T]) -> T {
    items[how.draw(items.len() as u32) as usize]
}

fn step(how: &mut Bytes<'_>) -> Step {
    let any = |how: &mut Bytes<'_>| how.draw(REQUESTS as u32) as usize;
    match how.draw(16) {
        0..=2 => Step::Store(any(how), pick(how, &[0, 200, 700, 5000])),
        3 | 4 => Step::Load(any(how)),
        5 => Step::Sweep(how.draw(4) == 3),
        6 => Step::Join(any(how)),
        7 => Step::Mark(pick(how, &[Stage::Make, Stage::Load, Stage::Run]), any(how)),
        8 => Step::Die(how.draw(2) == 1),
        9 => Step::Damage(any(how), how.draw(7), how.draw(1 << 16)),
        10 => Step::Leave,
        11 => Step::Unmark,
        12 => Step::Wait(pick(how, &[HOUR / 180, 2 * HOUR, DAY + HOUR, 11 * DAY, 100 * DAY])),
        13 => Step::Remove(any(how)),
        14 => Step::Close,
        _ => Step::Open(how.draw(8) == 7),
    }
}

fn plan(how: &mut Bytes<'_>) -> Plan {
    if how.draw(3) < 2 {
        return Plan::Works;
    }
    match how.draw(8) {
        0 | 1 => Plan::At(how.draw(64).into(), pick(how, &ERRNOS)),
        2 | 3 => Plan::Dead(how.draw(64).into()),
        4 => Plan::SealedKind(pick(how, &CALLS), pick(how, &ERRNOS)),
        5 => Plan::All(pick(how, &ERRNOS)),
        6 => Plan::Short(1 + how.draw(200) as usize),
        _ => Plan::LocksNeedWriting,
    }
}

fn history(how: &mut Bytes<'_>) -> Vec<Move> {
    let mut moves = Vec::new();
    while moves.len() < MAX_STEPS && !how.is_empty() {
        let process = how.draw(PROCESSES as u32) as usize;
        let (step, plan) = (step(how), plan(how));
        let between = (how.draw(8) == 7).then(|| {
            let process = (process + 1 + how.draw(PROCESSES as u32 - 1) as usize) % PROCESSES;
            Between { call: how.draw(32).into(), process, step: self::step(how) }
        });
        moves.push(Move { process, step, plan, between });
    }
    moves
}

fn asked(request: usize) -> Record {
    Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::new([7; 32]),
        region: Key::new([1; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: None,
        request: vec![b'a' + request as u8; 1 + request],
        artifact: Vec::new(),
    }
}

/// A process: its cache, flights and marks.
struct Process {
    files: Arc<Faulty>,
    cache: Arc<DiskCache>,
    reads_only: bool,
    flights: Vec<(usize, Flight)>,
    marks: Vec<(usize, Mark)>,
    /// Requests whose marks may remain although they were dropped, because clearing failed.
    uncleared: BTreeSet<usize>,
    /// A store failed, so the next one may be skipped.
    pauses: bool,
    /// Until when each request is certainly in quarantine for it.
    blamed: [Option<Duration>; REQUESTS],
}

/// The marks that a crashed process may have left. Marks of processes that ended otherwise do not
/// count.
struct Dead {
    sure: Vec<usize>,
    maybe: BTreeSet<usize>,
    /// Another process may have judged it in part.
    was_judged: bool,
}

/// The possible contents of an entry: nothing, or the record with this number.
type Possible = BTreeSet<Option<usize>>;

struct World {
    root: Root,
    config: DiskConfig,
    names: [Name; REQUESTS],
    /// All records that were ever passed to a store.
    records: Vec<Record>,
    places: [Possible; REQUESTS],
    /// The entry's file may be damaged.
    damaged: [bool; REQUESTS],
    processes: [Option<Process>; PROCESSES],
    dead: Vec<Dead>,
    /// Until when each request is certainly in quarantine for processes that are opened now, as
    /// time passed.
    blamed: [Option<Duration>; REQUESTS],
    /// A process that may have marked it has crashed.
    may_be_blamed: [bool; REQUESTS],
    passed: Duration,
    /// A process has opened the folder.
    is_made: bool,
    /// `damaged` before the latest step.
    was_damaged: [bool; REQUESTS],
}

pub(super) fn run(data: &[u8]) {
    let mut how = Bytes::new(data);
    let root = Root::in_memory();
    let secret = match how.draw(4) {
        3 => SecretSource::File(root.key()),
        _ => SecretSource::Given(Secret::new([5; 32])),
    };
    let config = DiskConfig {
        secret,
        max_bytes: pick(&mut how, &[2 << 30, 1500, 600]),
        sync: how.draw(4) == 3,
        ..root.config()
    };
    let moves = history(&mut how);
    let mut world = World {
        names: std::array::from_fn(|request| asked(request).name()),
        records: Vec::new(),
        places: std::array::from_fn(|_| BTreeSet::from([None])),
        damaged: [false; REQUESTS],
        processes: std::array::from_fn(|_| None),
        dead: Vec::new(),
        blamed: [None; REQUESTS],
        may_be_blamed: [false; REQUESTS],
        passed: Duration::ZERO,
        is_made: false,
        was_damaged: [false; REQUESTS],
        config,
        root,
    };
    show(&moves);
    for &one in &moves {
        world.make(one);
    }
    world.ends_well();
    show(&[]);
}

thread_local! {
    static HISTORY: RefCell<Vec<Move>> = const { RefCell::new(Vec::new()) };
}

/// Prints the history in front of a failure. libFuzzer does not unwind, so the panic hook does it.
#[allow(clippy::print_stderr, reason = "in front of a panic")]
fn show(moves: &[Move]) {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HISTORY.with_borrow(|moves| moves.iter().for_each(|one| eprintln!("{one:?}")));
            hook(panic);
        }));
    });
    HISTORY.replace(moves.to_vec());
}

/// The outcome of a step.
enum Came {
    Nothing,
    Stored(bool),
    Loaded(Option<Record>),
    Swept(Option<Swept>),
    Marked(Option<Mark>),
    JoinOutcome(JoinOutcome),
}

/// The part of a step that the cache does.
fn act(cache: &DiskCache, step: Step, record: Option<&Record>, names: &[Name; REQUESTS]) -> Came {
    match (step, record) {
        (Step::Store(..), Some(record)) => Came::Stored(cache.store(record)),
        (Step::Load(request), _) => Came::Loaded(cache.load(&asked(request).request()).found()),
        (Step::Sweep(all), _) => Came::Swept(if all { cache.sweep_to(0) } else { cache.sweep() }),
        (Step::Mark(stage, request), _) => Came::Marked(cache.mark(stage, &names[request], &names[request])),
        (Step::Join(request), _) => Came::JoinOutcome(cache.join(&asked(request).request(), Duration::ZERO)),
        (Step::Remove(request), _) => {
            cache.remove(&names[request]);
            Came::Nothing
        }
        _ => Came::Nothing,
    }
}

/// A file in the folder of entries.
struct Aged {
    name: String,
    used: SystemTime,
    size: u64,
}

impl World {
    fn make(&mut self, one: Move) {
        match one.step {
            Step::Wait(time) => {
                self.passed += time;
                for process in self.processes.iter_mut().flatten() {
                    process.files.let_pass(time);
                    process.pauses &= time < HOUR;
                }
            }
            Step::Damage(request, what, at) => self.damage(request, what, at),
            Step::Open(reads_only) => {
                if self.processes[one.process].is_none() {
                    self.open(one.process, reads_only, one.plan);
                }
            }
            _ => self.act(one),
        }
        self.told_what_was();
    }

    /// Runs a step, with the one in between, and updates the model.
    fn act(&mut self, one: Move) {
        // Most histories are about what happens after opening.
        if self.processes[one.process].is_none() {
            self.open(one.process, false, Plan::Works);
        }
        // A read-only process is not asked to remove.
        let is_absurd = |process: &Process| process.reads_only && matches!(one.step, Step::Remove(_));
        if self.processes[one.process].as_ref().is_none_or(is_absurd) {
            return;
        }
        let record = self.record(one.step);
        let (between, has_come) = self.prepare(one);
        let Some(mut process) = self.processes[one.process].take() else { return };
        let before = self.aged();
        process.files.plan(one.plan);
        let number = record.map(|number| &self.records[number]);
        let came = act(&process.cache, one.step, number, &self.names);
        match one.step {
            Step::Leave => drop((!process.flights.is_empty()).then(|| process.flights.remove(0))),
            Step::Unmark if !process.marks.is_empty() => {
                let (request, mark) = process.marks.remove(0);
                drop(mark);
                if one.plan != Plan::Works {
                    process.uncleared.insert(request);
                }
            }
            _ => {}
        }
        let calls = process.files.calls().len() as u64;
        process.files.before(|_| {});
        // A dead process does not observe the outcome.
        let dies = matches!(one.plan, Plan::Dead(from) if calls > from) || matches!(one.step, Step::Die(_));
        if !dies && !matches!(one.step, Step::Close) {
            process.files.plan(Plan::Works);
        }
        let between = between.filter(|_| has_come.load(Ordering::Relaxed));
        let is_sure = one.plan == Plan::Works && between.is_none();
        if let Some((step, record)) = between {
            self.may_have_done(step, record);
        }
        if is_sure {
            self.conclude(&mut process, one.step, record, &came, &before);
        } else {
            self.may_have_done(one.step, record);
            process.pauses |= matches!(came, Came::Stored(false));
            self.is_allowed(&process, one.step, &came);
        }
        match (came, one.step) {
            (Came::Marked(Some(mark)), Step::Mark(_, request)) => process.marks.push((request, mark)),
            (Came::JoinOutcome(JoinOutcome::Leader(flight)), Step::Join(request)) => {
                process.flights.push((request, flight))
            }
            _ => {}
        }
        match one.step {
            _ if dies => self.dies(process, matches!(one.step, Step::Die(true))),
            Step::Close => drop(process),
            _ => self.processes[one.process] = Some(process),
        }
    }

    /// Makes a new record for a store.
    fn record(&mut self, step: Step) -> Option<usize> {
        let Step::Store(request, len) = step else { return None };
        let number = self.records.len();
        let artifact = (0..len).map(|at| (at * 31 + number * 7) as u8).collect();
        let loaded_in = Some(Duration::from_micros(number as u64 + 1));
        self.records.push(Record { artifact, loaded_in, ..asked(request) });
        Some(number)
    }

    /// Sets up the step in between if it is possible. Returns it, and whether it has run.
    fn prepare(&mut self, one: Move) -> (Option<(Step, Option<usize>)>, Arc<AtomicBool>) {
        let has_come = Arc::new(AtomicBool::new(false));
        let (Some(between), Some(process)) = (one.between, &self.processes[one.process]) else {
            return (None, has_come);
        };
        let Some(other) = &self.processes[between.process] else { return (None, has_come) };
        let may = match between.step {
            Step::Store(..) | Step::Load(_) | Step::Sweep(_) | Step::Join(_) => true,
            Step::Remove(_) => !other.reads_only,
            _ => false,
        };
        if !may {
            return (None, has_come);
        }
        let (files, cache) = (process.files.clone(), other.cache.clone());
        let record = self.record(between.step);
        let given = record.map(|number| self.records[number].clone());
        let (names, flag, calls) = (self.names, has_come.clone(), AtomicU64::new(0));
        files.before(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) == between.call {
                flag.store(true, Ordering::Relaxed);
                // A flight ends at once.
                drop(act(&cache, between.step, given.as_ref(), &names));
            }
        });
        (Some((between.step, record)), has_come)
    }

    /// Updates the model for a step that may have had its effect, or a part of it.
    fn may_have_done(&mut self, step: Step, record: Option<usize>) {
        match step {
            Step::Store(request, _) => _ = self.places[request].insert(record),
            Step::Remove(request) => _ = self.places[request].insert(None),
            Step::Sweep(_) => self.places.iter_mut().for_each(|place| _ = place.insert(None)),
            _ => {}
        }
    }

    /// Checks the outcomes that are wrong whatever has failed.
    fn is_allowed(&mut self, process: &Process, step: Step, came: &Came) {
        match (step, came) {
            (Step::Load(request), Came::Loaded(Some(found))) => self.may_be(request, found),
            (Step::Join(request), Came::JoinOutcome(JoinOutcome::Ready(found))) => {
                self.may_be(request, found)
            }
            (Step::Join(request), Came::JoinOutcome(JoinOutcome::Leader(_))) => {
                assert!(!self.is_held(process, request), "two make it");
            }
            (Step::Store(..), Came::Stored(true)) => assert!(!process.reads_only, "stored"),
            _ => {}
        }
    }

    fn is_held(&self, process: &Process, request: usize) -> bool {
        let others = self.processes.iter().flatten();
        others.chain([process]).any(|process| process.flights.iter().any(|flight| flight.0 == request))
    }

    /// Checks that a found record is possible.
    fn may_be(&self, request: usize, found: &Record) {
        let place = &self.places[request];
        let is_known = place.iter().flatten().any(|&number| self.records[number] == *found);
        assert!(is_known, "found {:?}, and there may be {place:?}", found.loaded_in);
    }

    /// Checks the required outcome of a step in which no call failed and nothing came between.
    fn conclude(
        &mut self,
        process: &mut Process,
        step: Step,
        record: Option<usize>,
        came: &Came,
        before: &[Aged],
    ) {
        match (step, came) {
            (Step::Load(request), Came::Loaded(found)) => {
                self.is_found(process, request, found.as_ref());
                if !process.reads_only {
                    self.damaged[request] = false;
                    assert_eq!(
                        self.is_there(request),
                        found.is_some(),
                        "damage stays, or what is found is not there"
                    );
                }
                assert_eq!(process.cache.may_have(&self.names[request]), found.is_some());
            }
            (Step::Store(request, _), Came::Stored(stored)) => {
                let number = record.expect("a store has a record");
                let record = &self.records[number];
                let len = 176 + record.request.len() + record.artifact.len();
                let may = !process.reads_only && len as u64 <= self.config.max_bytes;
                assert!(!stored || may, "stored");
                assert!(*stored || !may || process.pauses, "not stored");
                if *stored {
                    process.pauses = false;
                    self.places[request] = BTreeSet::from([Some(number)]);
                    self.damaged[request] = false;
                }
            }
            (Step::Remove(request), _) => {
                self.places[request] = BTreeSet::from([None]);
                self.damaged[request] = false;
                assert!(!self.is_there(request), "it was removed");
            }
            (Step::Join(request), Came::JoinOutcome(joined)) => {
                let is_held = self.is_held(process, request);
                match joined {
                    JoinOutcome::NoLock => assert!(is_held || process.reads_only, "nobody makes it"),
                    JoinOutcome::Ready(found) => self.is_found(process, request, Some(found)),
                    JoinOutcome::Leader(_) => {
                        assert!(!is_held, "two make it");
                        self.is_found(process, request, None);
                        self.damaged[request] = false;
                    }
                }
            }
            (Step::Sweep(all), Came::Swept(swept)) => match swept {
                Some(swept) => {
                    self.is_swept(process, if all { 0 } else { self.config.max_bytes }, swept, before)
                }
                None => assert!(process.reads_only, "not swept"),
            },
            (Step::Mark(..), Came::Marked(mark)) => {
                assert!(mark.is_some() || process.cache.crash_file().is_none(), "not marked");
            }
            _ => {}
        }
        self.is_blamed(process);
    }

    fn is_found(&mut self, process: &Process, request: usize, found: Option<&Record>) {
        let place = &mut self.places[request];
        match found {
            Some(found) => {
                let records = &self.records;
                place.retain(|number| number.is_some_and(|number| records[number] == *found));
                assert!(!place.is_empty(), "found {:?}, which is not there", found.loaded_in);
            }
            None => {
                assert!(place.contains(&None), "{place:?} is not found, by {:?}", process.cache);
                *place = BTreeSet::from([None]);
            }
        }
    }

    fn is_there(&self, request: usize) -> bool {
        fs::symlink_metadata(self.root.entry(&self.names[request])).is_ok()
    }

    /// The files in the folder of entries.
    fn aged(&self) -> Vec<Aged> {
        let Ok(entries) = fs::read_dir(self.root.folder("entries")) else { return Vec::new() };
        let aged = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().expect("a name");
            let data = entry.metadata().expect("it is there");
            Aged { name, used: data.modified().expect("has a time"), size: data.len() }
        };
        entries.map(|entry| aged(entry.expect("it is there"))).collect()
    }

    fn is_swept(&mut self, process: &Process, most: u64, swept: &Swept, before: &[Aged]) {
        let temp = self.root.list("temp");
        assert!(temp.is_empty(), "a sweep leaves {temp:?}");
        let held = |name: &str| {
            (0..REQUESTS)
                .any(|request| self.names[request].to_string() == name && self.is_held(process, request))
        };
        let flights = self.root.list("flights");
        assert!(flights.iter().all(|name| held(name)), "a sweep leaves {flights:?}");
        let after = self.aged();
        let bytes: u64 = after.iter().map(|entry| entry.size).sum();
        assert_eq!((swept.entries, swept.bytes), (after.len(), bytes), "{swept:?}");
        let now = process.files.now();
        let is_old = |entry: &Aged| now.duration_since(entry.used).is_ok_and(|age| age > self.config.max_age);
        let total: u64 = before.iter().map(|entry| entry.size).sum();
        let goal = if total > most { most / 100 * 90 } else { most };
        let stays = |entry: &Aged| after.iter().any(|other| other.name == entry.name);
        let (stayed, left): (Vec<&Aged>, Vec<&Aged>) = before.iter().partition(|entry| stays(entry));
        for entry in &left {
            assert!(!held(&entry.name), "it left while it was made");
            assert!(is_old(entry) || total > most, "it left without a reason");
        }
        for entry in stayed.iter().filter(|entry| !held(&entry.name)) {
            assert!(!is_old(entry) && bytes <= goal, "it stayed, and {bytes} of {most} bytes with it");
            let older =
                |other: &&&Aged| (other.used, &other.name) > (entry.used, &entry.name) && !is_old(other);
            assert_eq!(left.iter().filter(older).count(), 0, "it stayed, and what was used later left");
        }
        for request in 0..REQUESTS {
            if !self.is_there(request) {
                self.places[request] = BTreeSet::from([None]);
                self.damaged[request] = false;
            }
        }
    }

    fn open(&mut self, place: usize, reads_only: bool, plan: Plan) {
        let files = Faulty::new(plan);
        files.let_pass(self.passed);
        let config = DiskConfig { read_only: reads_only, ..self.config.clone() };
        let opened = self.root.open_on(files.clone(), config);
        let calls = files.calls().len() as u64;
        let dies = matches!(plan, Plan::Dead(from) if calls > from);
        let is_sure = plan == Plan::Works;
        if !dies {
            files.plan(Plan::Works);
        }
        if !reads_only {
            self.judged(is_sure);
        }
        let cache = match opened {
            Ok(cache) => Arc::new(cache),
            Err(off) => {
                assert!(!is_sure || (reads_only && !self.is_made), "{off}");
                return;
            }
        };
        self.is_made |= !dies;
        let mut blamed = [None; REQUESTS];
        if is_sure && !reads_only {
            blamed = self.blamed;
            let others = self.processes.iter().flatten();
            let live = others.filter(|process| process.cache.crash_file().is_some()).count() + 1;
            assert_eq!(self.root.list("marks").len(), live, "marks of those that are there, and no others");
        }
        let (flights, marks, uncleared) = (Vec::new(), Vec::new(), BTreeSet::new());
        let process = Process { files, cache, reads_only, flights, marks, uncleared, pauses: false, blamed };
        if is_sure {
            self.is_blamed(&process);
        }
        if dies {
            self.dies(process, false);
        } else {
            self.processes[place] = Some(process);
        }
    }

    /// A process has judged the marks of dead processes.
    fn judged(&mut self, is_sure: bool) {
        for dead in &mut self.dead {
            for &request in &dead.maybe {
                self.places[request].insert(None);
            }
            for &request in &dead.sure {
                self.places[request].insert(None);
                if is_sure && !dead.was_judged {
                    self.places[request] = BTreeSet::from([None]);
                    self.damaged[request] = false;
                }
            }
            dead.was_judged = true;
        }
        if is_sure {
            self.dead.clear();
        }
    }

    /// Requests that crashed earlier processes are in quarantine, and no others.
    fn is_blamed(&self, process: &Process) {
        for request in 0..REQUESTS {
            let found = process.cache.quarantine(&self.names[request]);
            let is_sure = process.blamed[request].is_some_and(|until| self.passed + HOUR < until);
            assert!(!is_sure || found.is_some(), "{request} is tried again");
            assert!(found.is_none() || self.may_be_blamed[request], "{request} is not tried");
        }
    }

    /// The process is gone and did nothing more.
    fn dies(&mut self, process: Process, crashed: bool) {
        process.files.plan(Plan::Works);
        let crashed = crashed
            && process.cache.crash_file().is_some_and(|file| System.write_at(&file, CRASHED, 0).is_ok());
        process.files.plan(Plan::Dead(0));
        if crashed {
            let sure: Vec<usize> = process.marks.iter().map(|mark| mark.0).collect();
            let maybe = process.uncleared.clone();
            for &request in &sure {
                self.blamed[request] = self.blamed[request].max(Some(self.passed + DAY));
            }
            sure.iter().chain(&maybe).for_each(|&request| self.may_be_blamed[request] = true);
            self.dead.push(Dead { sure, maybe, was_judged: false });
        }
        // Its files are closed, but none is removed.
        drop(process);
    }

    /// Damages the file of an entry, as another program with access could.
    fn damage(&mut self, request: usize, what: u32, at: u32) {
        let path = self.root.entry(&self.names[request]);
        let Ok(bytes) = fs::read(&path) else { return };
        // The same file may have been set aside before; what is in its place now counts.
        if self.damaged[request] || bytes.is_empty() {
            return;
        }
        let at = at as usize % bytes.len();
        let aside = self.root.dir.path().join("aside");
        match what {
            0 => {
                let mut bytes = bytes;
                bytes[at] ^= 1 << (at % 8);
                fs::write(&path, bytes).expect("written");
            }
            1 => fs::write(&path, &bytes[..at]).expect("written"),
            2 => {
                let mut bytes = bytes;
                bytes[at..].fill(0);
                bytes.push(0);
                fs::write(&path, bytes).expect("written");
            }
            3 => {
                // Another entry, complete and sealed, under this name.
                let other = self.root.entry(&self.names[(request + 1) % REQUESTS]);
                let Ok(other) = fs::read(other) else { return };
                if other.get(16..48) == Some(&self.names[request].as_bytes()[..]) {
                    return;
                }
                fs::write(&path, other).expect("written");
            }
            4 => {
                fs::remove_file(&path).expect("removed");
                fs::create_dir(&path).expect("made");
            }
            5 => {
                let _ = fs::remove_file(&aside);
                fs::rename(&path, &aside).expect("renamed");
                symlink(&aside, &path).expect("linked");
            }
            _ => fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed"),
        }
        self.places[request] = BTreeSet::from([None]);
        self.damaged[request] = true;
    }

    /// Damage is reported only for damaged entries, and quarantine only for crashes.
    fn told_what_was(&mut self) {
        for told in self.root.log.take() {
            let about = (0..REQUESTS).find(|&request| told.contains(&self.names[request].to_string()));
            let Some(request) = about else { continue };
            if told.starts_with("quarantined") {
                assert!(self.may_be_blamed[request], "{told}");
            }
            if told.starts_with("damaged") {
                assert!(self.was_damaged[request], "{told}");
            }
        }
        self.was_damaged = self.damaged;
    }

    /// Whatever has happened, a new process finds the entries and can do everything.
    fn ends_well(&mut self) {
        for place in 0..PROCESSES {
            drop(self.processes[place].take());
        }
        self.open(0, false, Plan::Works);
        let (plan, between) = (Plan::Works, None);
        for request in 0..REQUESTS {
            for step in [Step::Load(request), Step::Store(request, 200), Step::Load(request)] {
                self.make(Move { process: 0, step, plan, between });
            }
        }
        for step in [Step::Join(0), Step::Sweep(false), Step::Mark(Stage::Run, 0), Step::Close] {
            self.make(Move { process: 0, step, plan, between });
        }
        assert_eq!(self.root.list("marks"), Vec::<String>::new());
    }
}
