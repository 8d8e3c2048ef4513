//! Engines that are dropped at any moment, with work in flight: every waiter is notified once, and
//! no thread remains.
//!
//! In a program of its own, since threads are counted for the whole process.
#![cfg(target_os = "linux")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuseline::{Engine, FaultPoint, Mode, Result, Tensor, with_mode};
use fuseline_testgen::{Entropy as _, Seeded};

use crate::support::fakeplugin::wait_for;
use crate::support::{self, number, vector};

/// The number of threads of engines.
fn engine_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|thread| thread.ok());
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .filter(|name| name.starts_with("fuseline-"))
        .count()
}

/// The number of requests and of notifications.
#[derive(Default)]
struct Asked {
    callbacks: AtomicU64,
    called: AtomicU64,
}

/// Uses an engine for a while, and drops everything in some order.
fn work(engine: Engine, seed: u64, asked: &Arc<Asked>) {
    let mut random = Seeded::new(seed);
    let stream = if random.draw(2) == 0 { engine.stream().clone() } else { engine.new_stream() };
    let mut values = VecDeque::from([stream.tensor(&[1.0f32, -2.0], &[2]).unwrap()]);
    let mut reads = Vec::new();
    let mut engine = Some(engine);
    for _ in 0..random.draw(40) {
        let x = values[random.draw(values.len() as u32) as usize].clone();
        let mode = if random.draw(8) == 7 { Mode::Strict } else { Mode::Fused };
        let made: Result<Tensor> = with_mode(mode, || match random.draw(4) {
            0 => &x * 0.5,
            1 => x.tanh(),
            2 => &x + values.back().unwrap(),
            _ => x.abs(),
        });
        values.push_back(made.unwrap());
        match random.draw(10) {
            0 => drop(values.pop_front().filter(|_| values.len() > 1).or_else(|| Some(x.clone()))),
            1 => reads.push(x.read()),
            2 => {
                let asked = asked.clone();
                asked.callbacks.fetch_add(1, Ordering::Relaxed);
                x.on_ready(move |_| {
                    asked.called.fetch_add(1, Ordering::Relaxed);
                });
            }
            3 => stream.flush(),
            4 => assert_eq!(x.to_vec::<f32>().unwrap().len(), 2),
            5 => engine = None,
            _ => {}
        }
        if values.is_empty() {
            values.push_back(x);
        }
    }
    match random.draw(3) {
        0 => drop((engine, stream, values)),
        1 => drop((values, stream, engine)),
        _ => drop((stream, engine, values)),
    }
    for read in reads {
        match support::block_on(read) {
            Ok(data) => assert_eq!(data.to_vec::<f32>().unwrap().len(), 2),
            Err(error) => assert!(error.is_abandoned(), "{error}"),
        }
    }
}

fn engines_go(rounds: u64) {
    let asked = Arc::<Asked>::default();
    for round in 0..rounds {
        let slow = move |point| {
            if round % 3 == 0 && matches!(point, FaultPoint::Compile { .. } | FaultPoint::Execute { .. }) {
                std::thread::sleep(Duration::from_micros(100));
            }
            None
        };
        let config = support::config().replay(round % 2 == 0).inject_faults(slow);
        let engine = config.build_reference().unwrap();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (engine, asked) = (engine.clone(), &asked);
                scope.spawn(move || work(engine, round * 3 + worker, asked));
            }
            drop(engine);
        });
    }
    let start = Instant::now();
    let told = || asked.called.load(Ordering::Relaxed) == asked.callbacks.load(Ordering::Relaxed);
    while engine_threads() > 0 || !told() {
        let (threads, called) = (engine_threads(), asked.called.load(Ordering::Relaxed));
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{threads} threads are left, and {called} callbacks were called of {:?}",
            asked.callbacks
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{rounds} engines, {:?} callbacks", asked.callbacks);
    assert!(asked.callbacks.load(Ordering::Relaxed) > rounds);
}

#[test]
fn engines_go_with_work_in_flight() {
    // An engine has threads; otherwise the count would show nothing.
    let engine = Engine::reference();
    assert_eq!(vector(&engine, &[1.0]).neg().unwrap().to_vec::<f32>().unwrap(), [-1.0]);
    // A thread sets its name when it runs.
    wait_for(|| engine_threads() >= 4, || format!("{} threads", engine_threads()));
    drop(engine);
    engines_go(number("FUSELINE_ENGINES").unwrap_or(400));
}
