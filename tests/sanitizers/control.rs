//! What the thread sanitizer must report and what it must not, with `ci/tsan_shim.c`. The stage
//! `tsan` compiles this program by itself and runs each case, before it trusts the sanitizer.

use std::cell::UnsafeCell;
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::thread;
use std::time::Duration;

/// A number without synchronization of its own.
struct Plain(UnsafeCell<u64>);

// SAFETY: none. That threads exclude each other is what the cases are about.
unsafe impl Sync for Plain {}

impl Plain {
    fn new() -> Plain {
        Plain(UnsafeCell::new(0))
    }

    fn add(&self) {
        // SAFETY: in the cases that are right, the caller excludes other threads. In the others
        // this is the race to find.
        unsafe { *self.0.get() += 1 }
    }
}

/// Writes when it is dropped, to what it owns or to what it shares.
struct Writer<'a>(Option<&'a Plain>, Plain);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.1.add();
        if let Some(shared) = self.0 {
            shared.add();
        }
    }
}

/// Runs `f` on four threads, each with its number, and joins them. (The end of a scope also waits,
/// but by code in `std` that the sanitizer does not see.)
fn on_threads(f: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = (0..4).map(|me| scope.spawn(move || f(me))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Long enough that another thread contends for a lock that is held.
fn meanwhile() {
    thread::sleep(Duration::from_millis(2));
}

fn arc(shared: Option<&Plain>) {
    for _ in 0..50 {
        let one = Arc::new(Writer(None, Plain::new()));
        // Each thread drops a value of its own, and all share one.
        let own = [0; 4].map(|_| Mutex::new(Some(Arc::new(Writer(shared, Plain::new())))));
        let ones = [0; 4].map(|_| Mutex::new(Some(one.clone())));
        one.1.add();
        drop(one);
        on_threads(|me| {
            drop(own[me].lock().unwrap().take());
            drop(ones[me].lock().unwrap().take());
        });
    }
}

fn mutex(locks: &[Mutex<()>]) {
    let plain = Plain::new();
    on_threads(|me| {
        for _ in 0..10 {
            let held = locks[me % locks.len()].lock().unwrap();
            plain.add();
            meanwhile();
            drop(held);
        }
    });
}

fn rwlock() {
    let (lock, plain) = (RwLock::new(()), Plain::new());
    on_threads(|me| {
        for _ in 0..10 {
            if me == 0 {
                let held = lock.write().unwrap();
                plain.add();
                meanwhile();
                drop(held);
            } else {
                let held = lock.read().unwrap();
                // SAFETY: no thread writes while one has the lock to read.
                assert!(unsafe { *plain.0.get() } <= 10);
                meanwhile();
                drop(held);
            }
        }
    });
}

fn condvar(timeout: bool) {
    let (turn, changed, plain) = (Mutex::new(0), Condvar::new(), Plain::new());
    on_threads(|me| {
        for round in 0..10 {
            let mut held = turn.lock().unwrap();
            while *held != 4 * round + me {
                held = if timeout {
                    changed.wait_timeout(held, Duration::from_millis(1)).unwrap().0
                } else {
                    changed.wait(held).unwrap()
                };
            }
            plain.add();
            *held += 1;
            changed.notify_all();
        }
    });
}

/// Writes in the closure of a `OnceLock`, and reads or writes on the threads that get its value.
fn once(write: bool) {
    for _ in 0..20 {
        let lock = OnceLock::new();
        on_threads(|_| {
            let plain = lock.get_or_init(|| {
                let plain = Plain::new();
                plain.add();
                meanwhile();
                plain.add();
                plain
            });
            if write {
                plain.add();
            } else {
                // SAFETY: no thread writes after the closure.
                assert_eq!(unsafe { *plain.0.get() }, 2);
            }
        });
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("quiet_arc") => arc(None),
        Some("quiet_mutex") => mutex(&[Mutex::new(())]),
        Some("quiet_rwlock") => rwlock(),
        Some("quiet_condvar") => condvar(false),
        Some("quiet_condvar_timeout") => condvar(true),
        Some("race_in_a_drop_by_arc") => arc(Some(&Plain::new())),
        Some("race_under_two_mutexes") => mutex(&[Mutex::new(()), Mutex::new(())]),
        Some("quiet_once") => once(false),
        Some("race_after_a_once") => once(true),
        case => panic!("no such case: {case:?}"),
    }
}
