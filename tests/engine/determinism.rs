//! Regions and keys are a function of what is recorded: whatever the load, the threads, the memory
//! and the order in which handles are dropped. `FUSELINE_RUNS` sets the number of runs (1,000 if it
//! is not set; on the plugin two of each program, or a 500th of that), `FUSELINE_SEED` varies the
//! programs. Several streams: `tests/ops/programs.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fuseline::fusion::Bytes;
use fuseline::{Boundary, Engine, EngineConfig, Event, Fault, FaultPoint, Stream, Tensor};
use fuseline_testgen::{Entropy, Seeded};

use crate::support::{self, Log, number, plugin_for};

/// Each is run again and again under other conditions.
const PROGRAMS: u64 = 10;

/// One op of a program; operands count back from the latest value.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, usize),
    Mul(usize, usize),
    Tanh(usize),
    Scaled(usize, f64),
    Sum(usize),
}

/// A loop: its steps, the rounds that have one step more or a read in between, and after how many
/// rounds the program reads.
struct Program {
    steps: Vec<Step>,
    odd: Vec<usize>,
    rounds: usize,
    reads_every: usize,
}

/// Values that a step can still use.
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

/// What is different from run to run.
struct Weather {
    entropy: Seeded,
    /// Handles that are kept for a while, if they are.
    kept: Option<Vec<Tensor>>,
    /// Where handles are dropped, if that is another thread.
    away: Option<Sender<Tensor>>,
    /// How often the recording thread pauses: once in so many ops.
    calm: u32,
}

impl Weather {
    /// The program has no use for a handle any more.
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

/// Runs a program; what it read.
fn run(program: &Program, stream: &Stream, weather: &mut Weather) -> Vec<f32> {
    let mut read = Vec::new();
    let ones: Vec<Tensor> = (1..=REACH).map(|i| stream.tensor(&[i as f32 * 0.1; 8], &[8]).unwrap()).collect();
    let mut latest = ones.clone();
    for round in 0..program.rounds {
        let is_odd = program.odd.contains(&round);
        // By the time it is read it may have been computed, or not.
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
        // The loop starts each round from where it began, so that it repeats.
        latest.clone_from(&ones);
    }
    read
}

/// Boundary, size and key of each region of a stream, in order. Regions that ran as their units or
/// in parts count as a whole: whether they do depends on when a compile ends, and on memory.
fn told(events: &[Event], stream: &Stream) -> Vec<String> {
    let mut units = 0;
    let mut told = Vec::new();
    for event in events {
        match event {
            Event::RanUnmerged { region, units: parts } if region.stream == stream.id() => units += *parts,
            // Of a part that itself was run in parts there is no more to come.
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

/// Lets every so many executions of several ops find no memory, the more often the more ops they
/// have. (An op by itself that finds none a few times fails.)
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

/// What the runs are made on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Reference,
    Plugin,
    /// The plugin, with the default configuration and `reproducible`.
    DefaultEngine,
}

/// One run of a program in one kind of weather: what it read, and its regions. `None` where there
/// is no plugin. `faults` counts executions that found no memory.
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
        Place::Reference | Place::Plugin => support::config(),
    };
    let config = config
        .event_sink(log.sink())
        .replay(draw(4) > 0)
        .compile_threads(1 + draw(3) as usize)
        .drive_threads(1 + draw(2) as usize)
        .in_flight_limits([1, 4, 32][draw(3) as usize], [Bytes(64), Bytes(1 << 30)][draw(2) as usize]);
    let engine = match place {
        Place::Reference => {
            // Every op gives the same bits there, whichever it is fused with.
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

/// Work of another stream of the engine, on another thread.
fn load(engine: Engine, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || support::work_until(&engine, &stop))
}

/// So many runs of each of some programs.
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

/// Where regions are compiled, and whole ones take over from their units at any time.
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
