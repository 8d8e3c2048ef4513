//! Regions and keys depend only on what is recorded, not on load, threads, memory or the order in
//! which handles are dropped. `FUSELINE_RUNS` sets the number of runs (default 1,000; on the plugin
//! two of each program, or a 500th of that); `FUSELINE_SEED` varies the programs. Several streams:
//! `tests/ops/programs.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fuseline::fusion::Bytes;
use fuseline::{Boundary, Engine, EngineConfig, Event, Fault, FaultPoint, Stream, Tensor};
use fuseline_testgen::{Entropy, Seeded};

use crate::support::{self, Log, number, plugin_for};

/// Programs, each of which runs repeatedly under different conditions.
const PROGRAMS: u64 = 10;

/// One op of a program. Operands count back from the latest value.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, usize),
    Mul(usize, usize),
    Tanh(usize),
    Scaled(usize, f64),
    Sum(usize),
}

/// A loop: its steps, the rounds with an extra step or a read in between, and the number of rounds
/// between reads.
struct Program {
    steps: Vec<Step>,
    odd: Vec<usize>,
    rounds: usize,
    reads_every: usize,
}

/// The number of latest values that a step can still use.
const REACH: usize = 6;

impl Program {
    fn new(seed: u64) -> Program {
        let mut entropy = Seeded::new(seed);
        let mut draw = |below: usize| entropy.draw(below as u32) as usize;
        let length = [30, 90, 250, 700][draw(4)];
        let steps = (0..length).map(|_| {
            let (a, b) = (draw(REACH), draw(REACH));
            match draw(9) {
                0..3 => Step::Add(a, b),
                3..5 => Step::Mul(a, b),
                5..7 => Step::Tanh(a),
                7 => Step::Scaled(a, 0.5),
                _ => Step::Sum(a),
            }
        });
        let steps = steps.collect();
        let rounds = (4_000 / length).clamp(8, 40);
        let odd = (0..draw(4)).map(|_| draw(rounds)).collect();
        Program { steps, odd, rounds, reads_every: [1, 3, rounds][draw(3)] }
    }
}

/// The conditions that vary from run to run.
struct Weather {
    entropy: Seeded,
    /// Handles that are kept for a while, if any.
    kept: Option<Vec<Tensor>>,
    /// The thread on which handles are dropped, if it is another one.
    away: Option<Sender<Tensor>>,
    /// The recording thread pauses once in this many ops.
    calm: u32,
}

impl Weather {
    /// Drops a handle that the program no longer needs.
    fn drop_one(&mut self, tensor: Tensor) {
        if let Some(away) = &self.away
            && self.entropy.draw(3) == 0
        {
            drop(away.send(tensor));
            return;
        }
        let Some(kept) = &mut self.kept else { return };
        kept.push(tensor);
        while self.entropy.draw(20) < kept.len() as u32 {
            let any = self.entropy.draw(kept.len() as u32) as usize;
            kept.swap_remove(any);
        }
    }

    fn pause(&mut self) {
        if self.entropy.draw(self.calm) > 0 {
            return;
        }
        match self.entropy.draw(3) {
            0 => thread::yield_now(),
            1 => thread::sleep(Duration::from_micros(self.entropy.draw(200).into())),
            _ => {
                let until = Instant::now() + Duration::from_micros(self.entropy.draw(100).into());
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// Runs a program and returns what it read.
fn run(program: &Program, stream: &Stream, weather: &mut Weather) -> Vec<f32> {
    let mut read = Vec::new();
    let ones: Vec<Tensor> = (1..=REACH).map(|i| stream.tensor(&[i as f32 * 0.1; 8], &[8]).unwrap()).collect();
    let mut latest = ones.clone();
    for round in 0..program.rounds {
        let is_odd = program.odd.contains(&round);
        // When it is read, it may or may not have been computed.
        let mut early = None;
        for (index, step) in program.steps.iter().enumerate() {
            let at = |back: usize| &latest[latest.len() - 1 - back];
            let made = match *step {
                Step::Add(a, b) => at(a) + at(b),
                Step::Mul(a, b) => at(a) * at(b),
                Step::Tanh(a) => at(a).tanh(),
                Step::Scaled(a, by) => at(a) * by,
                Step::Sum(a) => at(a).sum(&[0]).and_then(|sum| sum.broadcast_in_dim(&[8], &[])),
            };
            latest.push(made.unwrap());
            early.get_or_insert_with(|| latest[REACH].clone());
            if is_odd && index == program.steps.len() / 2 {
                latest.push(latest[0].abs().unwrap());
            }
            while latest.len() > REACH {
                let done = latest.remove(0);
                weather.drop_one(done);
            }
            weather.pause();
        }
        if (round + 1) % program.reads_every == 0 {
            read.extend(early.map(|early| early.to_vec::<f32>().unwrap()[0]));
            latest.push(latest[0].abs().unwrap());
            read.push(latest[REACH].to_vec::<f32>().unwrap()[0]);
        }
        // Each round starts from the loop's initial value, so that rounds repeat.
        latest.clone_from(&ones);
    }
    read
}

/// Boundary, size and key of each region of a stream, in order. Regions that ran as their units or
/// in parts count as a whole, because that depends on compile times and memory.
fn told(events: &[Event], stream: &Stream) -> Vec<String> {
    let mut units = 0;
    let mut told = Vec::new();
    for event in events {
        match event {
            Event::RanUnmerged { region, units: parts } if region.stream == stream.id() => units += *parts,
            // A part that itself ran in parts has no further events.
            Event::InParts { region, parts, .. } if region.stream == stream.id() => units += parts.len(),
            Event::Sealed { region, boundary, .. } if region.stream == stream.id() => {
                if units > 0 {
                    units -= 1;
                } else if *boundary != Boundary::Fallback {
                    told.push(format!("{boundary:?} {} {}", region.ops, region.key));
                }
            }
            _ => {}
        }
    }
    told
}

/// Makes some executions of several ops run out of memory, more often the more ops they have. A
/// single op that runs out of memory a few times fails.
fn short_of_memory(config: EngineConfig, seed: u64, faults: &Arc<AtomicU64>) -> EngineConfig {
    let (mut entropy, faults) = (Seeded::new(seed), faults.clone());
    let entropy = Mutex::new(move || entropy.draw(2_000));
    config.inject_faults(move |point| match point {
        FaultPoint::Execute { ops } if ops > 1 && (entropy.lock().unwrap())() < 20 + ops as u32 => {
            faults.fetch_add(1, Ordering::Relaxed);
            Some(Fault::out_of_memory("no memory today"))
        }
        _ => None,
    })
}

/// The kind of engine for the runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Reference,
    Plugin,
    /// The plugin, with the default configuration and `reproducible`.
    DefaultEngine,
}

/// One run of a program under one set of conditions: what it read, and its regions. `None` without
/// a plugin. `faults` counts executions that ran out of memory.
fn observe(
    program: &Program,
    seed: u64,
    place: Place,
    faults: &Arc<AtomicU64>,
) -> Option<(Vec<f32>, Vec<String>)> {
    let mut entropy = Seeded::new(seed);
    let mut draw = |below: u32| entropy.draw(below);
    let log = Log::default();
    let config = match place {
        Place::DefaultEngine => EngineConfig::new().reproducible(true),
        Place::Reference => support::config(),
        // Two tiers round differently, and which of them runs depends on the time.
        Place::Plugin => support::optimized_only(),
    };
    let config = config
        .event_sink(log.sink())
        .replay(draw(4) > 0)
        .compile_threads(1 + draw(3) as usize)
        .drive_threads(1 + draw(2) as usize)
        .in_flight_limits([1, 4, 32][draw(3) as usize], [Bytes(64), Bytes(1 << 30)][draw(2) as usize]);
    let engine = match place {
        Place::Reference => {
            // Every op has the same bits there, whichever ops it is fused with.
            let config = if draw(3) == 0 { short_of_memory(config, seed, faults) } else { config };
            config.build_reference().unwrap()
        }
        Place::Plugin | Place::DefaultEngine => plugin_for("regions and keys on a plugin", config)?,
    };
    let loads = draw(3);
    let (away, dropped) = channel::<Tensor>();
    let mut weather = Weather {
        kept: (draw(2) > 0).then(Vec::new),
        away: (draw(2) > 0).then_some(away),
        calm: [40, 400, 10_000][draw(3) as usize],
        entropy: Seeded::new(seed ^ 0x5eed),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..loads).map(|_| load(engine.clone(), stop.clone())).collect();
    let dropper = thread::spawn(move || dropped.into_iter().for_each(drop));
    let stream = engine.new_stream();
    let read = run(program, &stream, &mut weather);
    stream.synchronize().unwrap();
    drop(weather);
    dropper.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    Some((read, told(&log.take(), &stream)))
}

/// Work of another stream of the engine on another thread.
fn load(engine: Engine, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || support::work_until(&engine, &stop))
}

/// Runs each of some programs `runs` times.
fn compare(programs: u64, runs: u64, place: Place) {
    let seed = number("FUSELINE_SEED").unwrap_or(0);
    let (mut regions, faults) = (0, Arc::new(AtomicU64::new(0)));
    for index in 0..programs {
        let program = Program::new(seed * PROGRAMS + index);
        let Some((read, wanted)) = observe(&program, 0, place, &faults) else { return };
        assert!(wanted.len() > 1, "program {index} is one region");
        for run in 1..runs {
            let Some((values, found)) = observe(&program, run, place, &faults) else { return };
            assert_eq!(values, read, "program {index}, run {run}");
            if let Some(at) = (0..wanted.len().max(found.len())).find(|&i| wanted.get(i) != found.get(i)) {
                panic!(
                    "program {index}, run {run}: region {at} is {:?}, and in the first run {:?}",
                    found.get(at),
                    wanted.get(at)
                );
            }
            regions += found.len();
        }
    }
    let faults = faults.load(Ordering::Relaxed);
    println!("{runs} runs of {programs} programs, {regions} regions, {faults} times no memory");
    assert!(place != Place::Reference || faults > 0, "there was always enough memory");
}

fn runs() -> u64 {
    number("FUSELINE_RUNS").unwrap_or(1_000)
}

#[test]
fn regions_and_keys_follow_from_the_record() {
    compare(PROGRAMS, runs() / PROGRAMS, Place::Reference);
}

/// Here regions are compiled, and merged regions replace their units at any time.
#[test]
fn so_they_do_on_a_plugin() {
    compare(PROGRAMS / 3, (runs() / 500).max(2), Place::Plugin);
}

/// The default engine interprets a region first and compiles it later. With `reproducible`, it
/// switches at the same execution in each run, so the bits are the same.
#[test]
fn so_they_do_on_the_default_engine() {
    compare(PROGRAMS / 5, (runs() / 500).max(2), Place::DefaultEngine);
}
