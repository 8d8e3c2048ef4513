//! Thousands of threads record on one engine, on its stream and on streams of their own; and the
//! memory of an idle stream.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use fuseline::{Engine, Stream};

use crate::alloc_support::live_bytes;
use crate::support::{self, vector};

/// One test at a time, because memory is counted for the whole process.
static ONE: Mutex<()> = Mutex::new(());

const STACK: usize = 64 << 10;

#[test]
fn many_threads_record_at_once() {
    threads_record_at_once(2_000);
}

/// `cargo test --test robustness many_threads:: -- --ignored`.
#[test]
#[ignore = "takes up to a minute on two cores"]
fn ten_thousand_threads_record_at_once() {
    threads_record_at_once(10_000);
}

fn threads_record_at_once(count: usize) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let engine = support::config().build_reference().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    // All threads are there before the first begins. At a barrier they would all contend for its
    // lock when it opens.
    let (start, right) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (engine, x, start, right) = (engine.clone(), x.clone(), start.clone(), right.clone());
            let run = move || {
                let number = number as f32;
                while !start.load(Ordering::Acquire) {
                    std::thread::park();
                }
                let shared = ((&x * f64::from(number)).unwrap() + 1.0).unwrap();
                let own = engine.new_stream();
                let y = own.tensor(&[number], &[1]).unwrap();
                let y = (y.neg().unwrap() - 1.0).unwrap();
                let is_right = shared.to_vec::<f32>().unwrap() == [number + 1.0, 2.0 * number + 1.0]
                    && y.to_vec::<f32>().unwrap() == [-number - 1.0];
                right.fetch_add(u32::from(is_right), Ordering::Relaxed);
            };
            Builder::new().stack_size(STACK).spawn(run).expect("a thread")
        })
        .collect();
    start.store(true, Ordering::Release);
    threads.iter().for_each(|thread| thread.thread().unpark());
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(right.load(Ordering::Relaxed) as usize, count);
    let counters = engine.counters();
    assert_eq!((counters.poisoned, counters.panics), (0, 0), "{counters:?}");
    println!("{counters:?}");
}

/// Bytes per object, when this many are made.
fn each<T>(number: usize, make: impl Fn() -> T) -> (i64, Vec<T>) {
    let mut all = Vec::with_capacity(number);
    let before = live_bytes();
    all.extend((0..number).map(|_| make()));
    ((live_bytes() - before) / number as i64, all)
}

#[test]
fn an_idle_stream_is_small() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let engine = Engine::reference();
    let (fresh, streams) = each(1_000, || engine.new_stream());
    let used = |stream: &Stream| {
        let x = stream.tensor(&[1.0f32], &[1]).unwrap();
        assert_eq!((x.neg().unwrap() + 1.0).unwrap().item::<f32>().unwrap(), 0.0);
    };
    used(&streams[0]);
    let before = live_bytes();
    streams[1..].iter().for_each(used);
    engine.synchronize().unwrap();
    let used = fresh + (live_bytes() - before) / (streams.len() as i64 - 1);
    println!("a stream takes {fresh} B, and {used} B when it has been used");
    // 4,083 bytes and the checks of the stream.
    assert!(fresh <= 4_352, "a stream that does nothing takes {fresh} B");
    drop(streams);
}
