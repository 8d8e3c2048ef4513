//! Stress tests with real threads, for ThreadSanitizer and for the rare schedules of a long run.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Log;

/// Several producers and one consumer that falls behind now and then. No entry is lost, duplicated
/// or out of order.
#[test]
fn stress_producers_and_consumer() {
    const PRODUCERS: u64 = 3;
    let each: u64 = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
    let log = Arc::new(Log::new());
    let told = Arc::new((parking_lot::Mutex::new(0u64), parking_lot::Condvar::new()));
    let threads: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (log, told) = (log.clone(), told.clone());
            std::thread::spawn(move || {
                for number in 0..each {
                    let entry = Box::new((producer, number));
                    if log.push(entry, |_| ()).awaited {
                        *told.0.lock() += 1;
                        told.1.notify_one();
                    }
                }
            })
        })
        .collect();
    let mut next = [0u64; PRODUCERS as usize];
    let mut reader = log.read();
    let mut heard = 0;
    while next.iter().sum::<u64>() < PRODUCERS * each {
        match reader.pop() {
            Some(entry) => {
                let (producer, number) = *entry;
                assert_eq!(number, next[producer as usize], "producer {producer} out of order");
                next[producer as usize] += 1;
                if number % 9_973 == 0 {
                    std::thread::yield_now();
                }
            }
            None if reader.await_next() => {
                let mut count = told.0.lock();
                while *count == heard {
                    told.1.wait(&mut count);
                }
                heard = *count;
            }
            None => {}
        }
    }
    drop(reader);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A producer that is stuck in the middle of an append holds back the entries after its own. It
/// blocks no other producer until the log is full. Then producers wait, and no entry beyond the
/// capacity is kept. With `--release` and `--nocapture` the test prints how long an append takes
/// meanwhile.
#[test]
fn stress_a_stuck_producer_blocks_nobody() {
    let rounds = if cfg!(debug_assertions) { 2 } else { 200 };
    let mut took: Vec<u64> = (0..rounds).flat_map(|_| appends_beside_a_stuck_one()).collect();
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    println!(
        "figures: {} appends beside a producer that is parked mid-push: median {} ns, p99.9 {} ns, longest {} ns",
        took.len(),
        at(0.5),
        at(0.999),
        at(1.0)
    );
}

/// Fills a log while its first entry stays unwritten. Returns the time of each append in
/// nanoseconds.
fn appends_beside_a_stuck_one() -> Vec<u64> {
    const ROOM: u64 = super::CAPACITY;
    let log = Arc::new(Log::new());
    let done = Arc::new(AtomicBool::new(false));
    let stuck = {
        let (log, done) = (log.clone(), done.clone());
        // `push` has no point at which a test could stop it, so take and hold the ticket by hand.
        std::thread::spawn(move || {
            let ticket = log.tail.fetch_add(1, Ordering::Relaxed);
            while !done.load(Ordering::Acquire) {
                std::thread::park();
            }
            let segment = log.segment(ticket);
            // SAFETY: holds because the ticket was taken above and not used yet.
            let slot = unsafe { &*segment }.slot(ticket);
            // SAFETY: holds for the same reason.
            slot.payload.with_mut(|payload| unsafe { (*payload).write(u64::MAX) });
            slot.state.swap(super::WRITTEN, Ordering::Release);
        })
    };
    while log.tail.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    // None of them parks: `when_full` would be called.
    let append = |number| {
        let start = Instant::now();
        let _ = log.push(number, |_| panic!("there is room for {ROOM} entries, and {number} found none"));
        start.elapsed().as_nanos() as u64
    };
    let took = (1..ROOM).map(append).collect();
    assert!(log.read().pop().is_none(), "the prefix ends at the entry that is being written");
    let is_full = Arc::new(AtomicBool::new(false));
    let late = {
        let (log, is_full) = (log.clone(), is_full.clone());
        std::thread::spawn(move || {
            let _ = log.push(ROOM, |_| is_full.store(true, Ordering::Release));
        })
    };
    while !is_full.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    // The waiting producer keeps its entry: the log holds no more than its capacity.
    assert_eq!((log.tail.load(Ordering::Relaxed), log.head.load(Ordering::Relaxed)), (ROOM + 1, 0));
    assert!(log.directory.iter().all(|segment| !segment.load(Ordering::Relaxed).is_null()));
    assert_eq!(log.directory.len() as u64 * super::SLOTS, ROOM);
    done.store(true, Ordering::Release);
    stuck.thread().unpark();
    stuck.join().expect("the thread is well");
    let mut reader = log.read();
    assert_eq!(reader.pop(), Some(u64::MAX));
    for number in 1..ROOM {
        assert_eq!(reader.pop(), Some(number));
    }
    late.join().expect("the thread is well");
    assert_eq!(reader.pop(), Some(ROOM));
    took
}

/// Producers that must not wait, and one that may, overrun the consumer again and again. The
/// entries of each producer stay in order, whether they went to a slot or to the list beside the
/// slots.
#[test]
fn stress_entries_that_do_not_wait_keep_their_order() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 4 * super::CAPACITY;
    let log = Arc::new(Log::new());
    let threads: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let log = log.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let entry = Box::new((producer, number));
                    let _ = if producer == 0 { log.push(entry, |_| ()) } else { log.push_at_once(entry) };
                }
            })
        })
        .collect();
    let mut next = [0u64; PRODUCERS as usize];
    let mut reader = log.read();
    while next.iter().sum::<u64>() < PRODUCERS * EACH {
        let Some(entry) = reader.pop() else {
            // Long enough for the log to fill.
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        };
        let (producer, number) = *entry;
        assert_eq!(number, next[producer as usize], "producer {producer} out of order");
        next[producer as usize] += 1;
    }
    drop(reader);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
