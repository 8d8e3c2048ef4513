//! Background compiles run at low priority; compiles that somebody waits for, and everything else,
//! do not.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use fuseline::{Engine, EngineConfig, Event};

use crate::support::{compiled_first, plugin, step, vector, wait_until};

/// A thread of this process.
#[derive(Clone, Debug)]
struct Thread {
    id: u64,
    name: String,
    nice: i64,
    /// Time on a core, in clock ticks of 10 ms.
    ticks: i64,
}

/// The values of proc(5) for a thread. `None` if it has ended.
fn thread_at(folder: &Path) -> Option<Thread> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let (head, tail) = stat.rsplit_once(") ")?;
    let (id, name) = head.split_once(" (")?;
    // The first field is the third of proc(5).
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |field: usize| fields[field - 3].parse::<i64>().unwrap();
    Some(Thread {
        id: id.parse().ok()?,
        name: name.to_owned(),
        nice: number(19),
        ticks: number(14) + number(15),
    })
}

fn threads() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| thread_at(&task.unwrap().path())).collect()
}

/// How much higher the nice values of a kind of threads are than this thread's.
fn nicer(kind: &str) -> Vec<i64> {
    let me = thread_at(Path::new("/proc/thread-self")).unwrap().nice;
    let found = threads().into_iter().filter(|thread| thread.name.starts_with(kind));
    found.map(|thread| thread.nice - me).collect()
}

#[test]
fn only_threads_for_what_nobody_waits_for_are_nice() {
    let engine = EngineConfig::new().compile_threads(3).build_reference().unwrap();
    let x = vector(&engine, &[2.0, 4.0]);
    let start = Instant::now();
    // A thread lowers its own priority when it starts.
    while nicer("fuseline-bg-com") != [10, 10] {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", threads());
        thread::yield_now();
    }
    assert_eq!(step(&x).unwrap(), [2.0, 3.0]);
    assert_eq!(nicer("fuseline-compil"), [0; 3]);
    assert_eq!(nicer("fuseline-drive"), [0]);
}

/// Matrix products whose compile is estimated at more than 50 ms, so there are two compiles.
fn products(engine: &Engine, side: usize) -> Vec<f32> {
    let x = engine.tensor(&vec![1.0f32; side * side], &[side, side]).unwrap();
    let mut y = x.clone();
    for _ in 0..6 {
        y = (y.matmul(&x).unwrap() / side as f64).unwrap();
    }
    y.sum(&[0]).unwrap().to_vec::<f32>().unwrap()
}

/// The compile that a program waits for runs on a thread of normal priority, and the one that
/// follows it does not.
#[test]
fn what_is_waited_for_is_compiled_at_normal_priority() {
    let compiled: Arc<Mutex<Vec<(bool, String)>>> = Arc::default();
    let sink = compiled.clone();
    // A region that is interpreted for as long as its compile takes has no baseline executable.
    let config = compiled_first().event_sink(move |event: &Event| {
        if let Event::CompileFinished { quick, .. } = event {
            let name = thread::current().name().unwrap().trim_end_matches(char::is_numeric).to_owned();
            sink.lock().unwrap().push((*quick, name));
        }
    });
    let Some(engine) = plugin(config) else { return };
    for _ in 0..2 {
        assert_eq!(products(&engine, 2), [2.0, 2.0]);
    }
    wait_until(&engine, |_| compiled.lock().unwrap().len() == 2);
    let expected = [(true, "fuseline-compile-".to_owned()), (false, "fuseline-bg-compile-".to_owned())];
    assert_eq!(*compiled.lock().unwrap(), expected);
}

/// The progress of a program during many background compiles, as a share of its progress without
/// them; and which threads compiled.
#[test]
#[ignore = "figures: `cargo test --release --test engine priority:: -- --ignored --nocapture`"]
fn a_loop_beside_compiles() {
    const SIDES: usize = 24;
    let Some(engine) = plugin(compiled_first()) else { return };
    let x = vector(&engine, &[1.0, 2.0]);
    // Records without a request.
    let rounds = |until: &dyn Fn() -> bool| {
        let (start, mut ops) = (Instant::now(), 0u64);
        while !until() {
            let mut y = x.clone();
            for _ in 0..50 {
                y = y.neg().unwrap();
            }
            drop(y.to_vec::<f32>().unwrap());
            ops += 50;
        }
        ops as f64 / start.elapsed().as_secs_f64()
    };
    let seconds = |length| {
        let start = Instant::now();
        move || start.elapsed() >= Duration::from_secs(length)
    };
    let _warm_up = rounds(&seconds(1));
    for storm in 0..5 {
        let sides = || (2 + storm * SIDES)..(2 + (storm + 1) * SIDES);
        sides().for_each(|side| drop(products(&engine, side)));
        let quiet = rounds(&seconds(2));
        sides().for_each(|side| drop(products(&engine, side)));
        let asked = engine.counters().compiles_asked;
        let before = threads();
        let start = Instant::now();
        let beside = rounds(&|| engine.counters().compiles >= asked);
        let took = start.elapsed();
        let mut worked: BTreeMap<(u64, String, i64), i64> = BTreeMap::new();
        for (threads, sign) in [(before, -1), (threads(), 1)] {
            for Thread { id, name, nice, ticks } in threads {
                *worked.entry((id, name, nice)).or_default() += sign * ticks;
            }
        }
        worked.retain(|_, ticks| *ticks > 2);
        println!(
            "{:.2} of {quiet:.0} ops/s beside compiles of {took:.2?}; ticks by thread and nice value: {worked:?}",
            beside / quiet
        );
    }
}
