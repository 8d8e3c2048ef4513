//! Executables of other processes: what a second engine finds of a first one's compiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuseline::{Bytes, Counters, Engine, EngineConfig, Event, Numerics, Result};

// A region that is interpreted, or padded to another one, has no executable to be found.
use crate::support::{self, Log, optimized_only as eager, place, vector};

/// An engine on the plugin, if there is one.
fn engine(root: &Path, log: &Log, config: EngineConfig) -> Option<Engine> {
    support::plugin(config.disk_cache(place(root)).event_sink(log.sink()))
}

/// A small program of two regions, whose result depends only on `x`.
fn program(engine: &Engine) -> Result<Vec<f32>> {
    let x = vector(engine, &[0.1, 0.2, 0.3]);
    let mut y = x.clone();
    for _ in 0..5 {
        y = ((&y * &x)? + &x)?.tanh()?;
    }
    let mut numbers = y.to_vec::<f32>()?;
    numbers.extend((y.exp()? * 2.0)?.to_vec::<f32>()?);
    Ok(numbers)
}

fn troubles(log: &Log) -> Vec<String> {
    let trouble = |event: &Event| match event {
        Event::CacheTrouble { what } => Some(what.clone()),
        _ => None,
    };
    log.take().iter().filter_map(trouble).collect()
}

#[test]
fn a_second_engine_compiles_nothing() {
    let root = tempfile::tempdir().unwrap();
    for config in [eager, || EngineConfig::new().numerics(Numerics::Exact)] {
        let log = Log::default();
        let Some(first) = engine(root.path(), &log, config()) else { return };
        let expected = program(&first).unwrap();
        let counters = first.counters();
        assert!(counters.compiles >= 2 && counters.loads == 0, "{counters:?}");
        drop(first);
        let second = engine(root.path(), &log, config()).unwrap();
        let numbers = program(&second).unwrap();
        let later = second.counters();
        assert_eq!(
            numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        assert_eq!((later.compiles, later.loads), (0, counters.compiles), "{later:?}");
        assert_eq!(troubles(&log), Vec::<String>::new());
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Runs the program on an engine of its own. Returns its result and the engine's counters.
fn run(root: &Path, log: &Log, config: EngineConfig) -> Option<(Vec<u32>, Counters)> {
    let engine = engine(root, log, config)?;
    let numbers = program(&engine).expect("the program runs");
    Some((bits(&numbers), engine.counters()))
}

fn entries(root: &Path) -> Vec<PathBuf> {
    let folder = root.join("cache/v1/entries");
    fs::read_dir(folder).map(|all| all.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
}

fn copy(from: &Path, to: &Path) {
    // With file modes, like `cp -a` and backups.
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// No path is part of a key.
#[test]
fn a_copied_folder_works_elsewhere() {
    let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = Log::default();
    let Some((expected, first)) = run(root.path(), &log, eager()) else { return };
    for part in ["cache", "state"] {
        copy(&root.path().join(part), &other.path().join(part));
    }
    let (numbers, second) = run(other.path(), &log, eager()).unwrap();
    assert_eq!((numbers, second.compiles, second.loads), (expected, 0, first.compiles));
    // Without the key the copy is useless.
    fs::remove_dir_all(other.path().join("state")).unwrap();
    log.take();
    let (_, third) = run(other.path(), &log, eager()).unwrap();
    assert_eq!((third.compiles, third.loads), (first.compiles, 0));
    assert!(troubles(&log).iter().all(|what| what.contains("another cache key")));
}

/// Everything that affects code makes another entry; nothing else does.
#[test]
fn another_environment_finds_nothing() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let Some((_, first)) = run(root.path(), &log, eager()) else { return };
    let others: [(&str, EngineConfig); 4] = [
        ("a flag", eager().compiler_flag("xla_llvm_disable_expensive_passes", true)),
        ("the numerics", eager().numerics(Numerics::Exact).compare_regions(false)),
        ("an option of the client", eager().client_option("cpu_device_count", 2i64)),
        ("the number of replicas", eager().replicas(2)),
    ];
    for (what, config) in others {
        let (_, counters) = run(root.path(), &log, config).unwrap();
        assert_eq!((counters.compiles, counters.loads), (first.compiles, 0), "{what}");
    }
    let same: [(&str, EngineConfig); 3] = [
        ("replay", eager().replay(false)),
        ("threads", eager().compile_threads(1).drive_threads(2)),
        ("a budget", eager().cache_budget(fuseline::Budget { entries: 7, bytes: 1 << 20 })),
    ];
    for (what, config) in same {
        let (_, counters) = run(root.path(), &log, config).unwrap();
        assert_eq!((counters.compiles, counters.loads), (0, first.compiles), "{what}");
    }
    assert_eq!(troubles(&log), Vec::<String>::new());
}

/// A variable that XLA reads is part of the environment. XLA reads it when the plugin is loaded, so
/// this needs processes.
#[test]
fn variables_of_the_compiler_count() {
    let root = tempfile::tempdir().unwrap();
    let counts = |flags: &str| child(root.path(), "one_process", &[("XLA_FLAGS", flags)]).wait_for_counts();
    let Some((compiles, _)) = counts("--xla_cpu_multi_thread_eigen=false") else { return };
    assert!(compiles > 0);
    assert_eq!(counts("--xla_cpu_multi_thread_eigen=true"), Some((compiles, 0)));
    assert_eq!(counts("--xla_cpu_multi_thread_eigen=false"), Some((0, compiles)));
    // The contents of a file of flags count.
    let file = root.path().join("flags");
    let counts = |flags: &str| {
        fs::write(&file, flags).unwrap();
        child(root.path(), "one_process", &[("XLA_FLAGS", file.to_str().unwrap())]).wait_for_counts()
    };
    assert_eq!(counts("--xla_cpu_multi_thread_eigen=false"), Some((compiles, 0)));
    assert_eq!(counts("--xla_cpu_multi_thread_eigen=true"), Some((compiles, 0)));
    assert_eq!(counts("--xla_cpu_multi_thread_eigen=false"), Some((0, compiles)));
}

/// Every entry, damaged in one place, costs a compile and is then stored again.
#[test]
fn damage_costs_a_compile_and_heals() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let Some((expected, first)) = run(root.path(), &log, eager()) else { return };
    assert!(
        entries(root.path()).len() as u64 > first.compiles,
        "with notes of the plugin and the environment"
    );
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.clear(),
        |bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        },
        |bytes| bytes.push(0),
    ];
    for damage in damages {
        for path in entries(root.path()) {
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
        }
        log.take();
        let (numbers, counters) = run(root.path(), &log, eager()).unwrap();
        assert_eq!((&numbers, counters.compiles, counters.loads), (&expected, first.compiles, 0));
        let troubles = troubles(&log);
        assert!(troubles.len() as u64 >= first.compiles, "{troubles:?}");
        assert!(troubles.iter().all(|what| what.contains("is removed")), "{troubles:?}");
        let (numbers, counters) = run(root.path(), &log, eager()).unwrap();
        assert_eq!((&numbers, counters.compiles, counters.loads), (&expected, 0, first.compiles));
    }
}

/// An entry under the name of another one is rejected.
#[test]
fn swapped_entries_are_found_out() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let Some((expected, first)) = run(root.path(), &log, eager()) else { return };
    let all = entries(root.path());
    let contents: Vec<Vec<u8>> = all.iter().map(|path| fs::read(path).unwrap()).collect();
    for (place, path) in all.iter().enumerate() {
        fs::write(path, &contents[(place + 1) % all.len()]).unwrap();
    }
    log.take();
    let (numbers, counters) = run(root.path(), &log, eager()).unwrap();
    assert_eq!((numbers, counters.compiles, counters.loads), (expected, first.compiles, 0));
    assert!(troubles(&log).iter().all(|what| what.contains("another name")));
}

#[test]
fn what_is_read_only_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let Some((expected, first)) = run(root.path(), &log, eager()) else { return };
    let names = |root: &Path| {
        let mut names = entries(root);
        names.sort();
        names
    };
    let before = names(root.path());
    let reader = |config: EngineConfig| config.disk_cache(place(root.path()).read_only(true));
    let engine = support::plugin(reader(eager())).unwrap();
    assert_eq!(bits(&program(&engine).unwrap()), expected);
    let x = vector(&engine, &[1.0, 2.0]);
    assert_eq!((&x - 1.0).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0]);
    let counters = engine.counters();
    assert_eq!((counters.loads, counters.compiles, counters.stores), (first.compiles, 1, 0));
    drop(engine);
    assert_eq!(names(root.path()), before);
}

/// A folder that cannot be a cache is reported once, and everything works without.
#[test]
fn without_a_usable_folder_there_is_none() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cache"), b"a file").unwrap();
    let log = Log::default();
    let Some((_, counters)) = run(root.path(), &log, eager()) else { return };
    assert!(counters.compiles > 0 && counters.stores == 0);
    let troubles = troubles(&log);
    assert_eq!(troubles.len(), 1, "{troubles:?}");
    assert!(troubles[0].starts_with("the disk cache is off: "), "{troubles:?}");
}

/// A folder that is removed while in use is created again.
#[test]
fn a_folder_that_is_deleted_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let Some(first) = engine(root.path(), &log, eager()) else { return };
    let expected = bits(&program(&first).unwrap());
    // The engine may add a file meanwhile.
    let removed = (0..1_000).any(|_| fs::remove_dir_all(root.path().join("cache")).is_ok());
    assert!(removed);
    first.clear_cache();
    assert_eq!(bits(&program(&first).unwrap()), expected);
    drop(first);
    let (numbers, counters) = run(root.path(), &log, eager()).unwrap();
    assert_eq!((numbers, counters.compiles), (expected, 0), "{:?}", troubles(&log));
}

/// A region that can be loaded is interpreted at most once; with `reproducible`, as often as if it
/// could not be loaded.
#[test]
fn what_can_be_loaded_is_not_interpreted_for_long() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let steps = |config: EngineConfig, steps: usize| {
        let engine = engine(root.path(), &log, config.quick_compiles(false))?;
        for _ in 0..steps {
            program(&engine).unwrap();
        }
        while engine.counters().pending_compiles > 0 {
            std::thread::yield_now();
        }
        Some(engine.counters())
    };
    let Some(first) = steps(EngineConfig::new(), 30) else { return };
    assert!(first.interpreted > 2 && first.compiles >= 2 && first.loads == 0, "{first:?}");
    let second = steps(EngineConfig::new(), 30).unwrap();
    assert_eq!((second.compiles, second.loads), (0, first.compiles), "{second:?}");
    assert!(second.interpreted <= first.compiles, "{second:?}");
    let [cold, warm] = ["a", "b"].map(|_| steps(EngineConfig::new().reproducible(true), 30).unwrap());
    assert_eq!(cold.interpreted, warm.interpreted);
    assert_eq!(warm.compiles, 0, "{warm:?}");
}

/// The cache shrinks when its entries are of little use, and reports it.
#[test]
fn room_is_made() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::default();
    let small = || eager().disk_cache(place(root.path()).max_size(Bytes(40_000)));
    let Some(engine) = support::plugin(small().event_sink(log.sink())) else { return };
    for size in 1..20 {
        let x = engine.tensor(&vec![1.0f32; size], &[size]).unwrap();
        assert_eq!((&x * 2.0).unwrap().to_vec::<f32>().unwrap(), vec![2.0; size]);
    }
    drop(engine);
    let size: u64 = entries(root.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(size <= 50_000, "{size} bytes");
    assert_eq!(troubles(&log), Vec::<String>::new());
}

// ----- processes -----

const ROOT: &str = "FUSELINE_TEST_ROOT";

struct Child(std::process::Child);

fn child(root: &Path, test: &str, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("disk_cache::{test}"), "--nocapture"])
        .env(ROOT, root)
        .stdout(Stdio::piped());
    command.envs(variables.iter().copied());
    Child(command.spawn().unwrap())
}

impl Child {
    /// The compiles and loads of the child; `None` if it had no plugin.
    fn wait_for_counts(self) -> Option<(u64, u64)> {
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counts = text.lines().find_map(|line| line.split_once("counts: ")).map(|(_, counts)| counts);
        let (compiles, loads) = counts?.split_once(' ')?;
        Some((compiles.parse().unwrap(), loads.trim().parse().unwrap()))
    }
}

/// In a child: runs a program of several regions and prints the engine's counters.
#[test]
fn one_process() {
    let Some(root) = std::env::var_os(ROOT) else { return };
    let log = Log::default();
    let Some(engine) = engine(Path::new(&root), &log, eager()) else { return };
    program(&engine).unwrap();
    for size in [5, 6, 7, 8] {
        let x = engine.tensor(&vec![1.0f32; size], &[size]).unwrap();
        let y = ((&x * 2.0).unwrap() - &x).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), vec![1.0; size]);
    }
    assert_eq!(troubles(&log), Vec::<String>::new());
    let counters = engine.counters();
    println!("counts: {} {}", counters.compiles, counters.loads);
}

/// Of several processes that start at once with an empty cache, one compiles each region.
#[test]
fn processes_share_what_they_compile() {
    let root = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..8).map(|_| child(root.path(), "one_process", &[])).collect();
    let counts: Option<Vec<(u64, u64)>> = children.into_iter().map(Child::wait_for_counts).collect();
    let Some(counts) = counts else { return };
    let regions = counts[0].0 + counts[0].1;
    assert!(counts.iter().all(|(compiles, loads)| compiles + loads == regions), "{counts:?}");
    let compiles: u64 = counts.iter().map(|(compiles, _)| compiles).sum();
    println!("{regions} regions, {compiles} compiles in 8 processes");
    // The goal is 1.2 for each region. Locks make it 1 unless a process waits longer than its
    // limit.
    assert!(compiles * 5 <= regions * 6, "{compiles} compiles of {regions} regions: {counts:?}");
}
