//! Loom models of small logs: two slots a segment, two segments, at most four entries. Loom
//! explores all schedules with a few preemptions.

use std::sync::Arc;
use std::time::Instant;

use fuseline_sync::{Condvar, Mutex, Rank};

use super::{CAPACITY, Log};

/// Explores every schedule with at most two preemptions, or as many as `LOOM_MAX_PREEMPTIONS` says:
/// reliability studies find most bugs there, and a third makes the larger models fifty times
/// slower.
fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2));
    builder.check(f);
}

/// A stand-in for the scheduler: remembers that the consumer was notified.
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn new() -> Bell {
        Bell { rung: Mutex::new(Rank::Test, false), heard: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            rung = self.heard.wait(rung);
        }
        *rung = false;
    }
}

fn push(log: &Log<(u32, u32)>, bell: &Bell, entry: (u32, u32)) {
    if log.push(entry, |_| ()).awaited {
        bell.ring();
    }
}

/// Reads `count` entries, sleeping whenever the next one is not there, and checks that each
/// producer's entries are in order.
fn drain(log: &Log<(u32, u32)>, bell: &Bell, count: usize) -> Vec<(u32, u32)> {
    let mut seen = Vec::new();
    let mut reader = log.read();
    while seen.len() < count {
        match reader.pop() {
            Some(entry) => seen.push(entry),
            None if reader.await_next() => bell.wait(),
            None => {}
        }
    }
    assert!(reader.pop().is_none());
    for &(producer, number) in &seen {
        let mine: Vec<u32> = seen.iter().filter(|e| e.0 == producer).map(|e| e.1).collect();
        assert!(mine.contains(&number) && mine.is_sorted() && mine.windows(2).all(|w| w[0] < w[1]));
    }
    seen
}

fn producers(counts: &[u32]) {
    let counts = counts.to_vec();
    model(move || {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        let threads: Vec<_> = (0u32..)
            .zip(&counts)
            .map(|(producer, &count)| {
                let (log, bell) = (log.clone(), bell.clone());
                loom::thread::spawn(move || {
                    (0..count).for_each(|number| push(&log, &bell, (producer, number)))
                })
            })
            .collect();
        let total: u32 = counts.iter().sum();
        assert_eq!(drain(&log, &bell, total as usize).len(), total as usize);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn loom_two_producers() {
    producers(&[1, 1]);
}

/// The third append of the two needs a second segment.
#[test]
fn loom_two_producers_across_a_segment() {
    producers(&[2, 1]);
}

/// More entries than the log holds: the producer waits for room, and the segments are reused.
#[test]
fn loom_a_full_log_lets_its_producer_in_again() {
    producers(&[CAPACITY as u32 + 1]);
}

/// Two threads append one entry each to a log of `entries` entries, which are all read.
fn two_producers_behind(entries: u32) {
    model(move || {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        for number in 0..entries {
            push(&log, &bell, (0, number));
        }
        let threads: Vec<_> = (1..3)
            .map(|producer| {
                let (log, bell) = (log.clone(), bell.clone());
                loom::thread::spawn(move || push(&log, &bell, (producer, 0)))
            })
            .collect();
        drain(&log, &bell, entries as usize + 2);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Both wait for room at the same time.
#[test]
fn loom_a_full_log_lets_both_producers_in_again() {
    two_producers_behind(CAPACITY as u32);
}

/// A segment that was read to its end goes to a producer of the next lap while another producer
/// still appends.
#[test]
fn loom_a_recycled_segment_is_empty() {
    two_producers_behind(2);
}

/// An append that happened before another one comes first, also when a different thread made it.
#[test]
fn loom_order_respects_happens_before() {
    model(|| {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        let (first_log, first_bell) = (log.clone(), bell.clone());
        let first = loom::thread::spawn(move || push(&first_log, &first_bell, (1, 0)));
        let (other_log, other_bell) = (log.clone(), bell.clone());
        let other = loom::thread::spawn(move || push(&other_log, &other_bell, (3, 0)));
        first.join().expect("no panic");
        push(&log, &bell, (2, 0));
        let seen = drain(&log, &bell, 3);
        let place = |producer| seen.iter().position(|e| e.0 == producer);
        assert!(place(1) < place(2));
        other.join().expect("no panic");
    });
}

/// Entries that nobody read are dropped once.
#[test]
fn loom_unread_entries_are_dropped_once() {
    model(|| {
        let entry = Arc::new(());
        let log = Arc::new(Log::new());
        let (other_log, other_entry) = (log.clone(), entry.clone());
        let other = loom::thread::spawn(move || {
            let _ = other_log.push(other_entry.clone(), |_| ());
            let _ = other_log.push(other_entry, |_| ());
        });
        let _ = log.push(entry.clone(), |_| ());
        drop(log.read().pop());
        other.join().expect("no panic");
        drop(log);
        assert_eq!(Arc::strong_count(&entry), 1);
    });
}

/// The log is full. An entry that must not wait keeps its place in the happens-before order, and no
/// entry is lost.
#[test]
fn loom_an_entry_beside_a_full_log_keeps_its_place() {
    model(|| {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        for number in 0..CAPACITY as u32 {
            push(&log, &bell, (0, number));
        }
        let (other_log, other_bell) = (log.clone(), bell.clone());
        let other = loom::thread::spawn(move || {
            if other_log.push_at_once((1, 0)).awaited {
                other_bell.ring();
            }
            push(&other_log, &other_bell, (1, 1));
        });
        let seen = drain(&log, &bell, CAPACITY as usize + 2);
        assert_eq!(seen[..CAPACITY as usize].iter().filter(|entry| entry.0 == 0).count(), CAPACITY as usize);
        other.join().expect("no panic");
    });
}

/// A log with room treats such an entry as any other.
#[test]
fn loom_an_entry_that_does_not_wait_meets_one_that_may() {
    model(|| {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        let (other_log, other_bell) = (log.clone(), bell.clone());
        let other = loom::thread::spawn(move || {
            if other_log.push_at_once((1, 0)).awaited {
                other_bell.ring();
            }
        });
        push(&log, &bell, (2, 0));
        drain(&log, &bell, 2);
        other.join().expect("no panic");
    });
}

/// As [`push`], with a deadline that has passed already.
fn leave(log: &Log<(u32, u32)>, bell: &Bell, entry: (u32, u32)) {
    if log.push_within(entry, |_, _| ((), Some(Instant::now())), |_| None, |entry| entry).awaited {
        bell.ring();
    }
}

/// The log is full and the append runs out of time. The entry keeps its place, and the consumer
/// finds it there whenever it makes room.
#[test]
fn loom_an_entry_that_was_left_keeps_its_place() {
    model(|| {
        let log = Arc::new(Log::new());
        let bell = Arc::new(Bell::new());
        for number in 0..CAPACITY as u32 {
            push(&log, &bell, (0, number));
        }
        let (other_log, other_bell) = (log.clone(), bell.clone());
        let other = loom::thread::spawn(move || {
            leave(&other_log, &other_bell, (1, 0));
            push(&other_log, &other_bell, (1, 1));
        });
        drain(&log, &bell, CAPACITY as usize + 2);
        other.join().expect("no panic");
    });
}

/// An entry whose append ran out of time and that is never read is dropped once.
#[test]
fn loom_what_was_left_is_dropped_once() {
    model(|| {
        let entry = Arc::new(());
        let log = Arc::new(Log::new());
        for _ in 0..CAPACITY {
            let _ = log.push(entry.clone(), |_| ());
        }
        let (other_log, other_entry) = (log.clone(), entry.clone());
        let other = loom::thread::spawn(move || {
            let _ = other_log.push_within(
                other_entry,
                |_, _| ((), Some(Instant::now())),
                |_| None,
                |entry| entry,
            );
        });
        let mut reader = log.read();
        for _ in 0..2 {
            drop(reader.pop());
        }
        drop(reader);
        other.join().expect("no panic");
        drop(log);
        assert_eq!(Arc::strong_count(&entry), 1);
    });
}
