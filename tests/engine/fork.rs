//! Forks. In the child of a process that uses the library, every call on an engine returns an error
//! and never hangs. The child may drop everything and end, and its parent does not notice.
//!
//! Threads record, read and compile while the process forks at any moment. A child that does not
//! end in time is a failure.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuseline::embed::{Call, Session};
use fuseline::{Engine, EngineConfig, Mode, OpCode, Result, Tensor, with_mode};
use fuseline_testgen::Seeded;

use crate::support::{self, in_fork, plugin_for, vector};

/// What a child inherits.
struct Inherited {
    engine: Engine,
    session: Session,
    /// Being recorded; being computed; ready.
    values: [Tensor; 3],
    read: fuseline::Read,
    /// An engine with a single handle and work in progress.
    own: (Engine, Tensor),
    id: fuseline::embed::ValueHandle,
}

/// Receives the outcome of a value.
type Tell = Box<dyn FnOnce(Result<()>) + Send>;

/// Runs a function on another thread. It is not a thread of the standard library, whose start takes
/// a lock that a thread starting in the parent may hold forever after the fork.
fn on_thread(ask: impl FnOnce() -> bool + Send + 'static) -> bool {
    type Ask = Box<dyn FnOnce() -> bool + Send>;
    extern "C" fn begin(ask: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: that is what `on_thread` has let go of, and nobody else has it.
        let ask = unsafe { Box::from_raw(ask.cast::<Ask>()) };
        std::ptr::without_provenance_mut(usize::from(ask()))
    }
    let ask: Box<Ask> = Box::new(Box::new(ask));
    let (mut thread, mut answer) = (0, std::ptr::null_mut());
    let ask = Box::into_raw(ask).cast();
    // SAFETY: the function takes what it is given here, and the thread's number is a
    // local variable.
    let started = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), begin, ask) };
    assert_eq!(started, 0, "a thread starts");
    // SAFETY: the thread was started, and nobody else waits for it.
    let joined = unsafe { libc::pthread_join(thread, &raw mut answer) };
    joined == 0 && answer.addr() == 1
}

/// Uses everything. Returns the number of the first use with a wrong outcome, or 0.
fn use_all(all: Inherited) -> u8 {
    let Inherited { engine, session, values, read, own, id } = all;
    let [a, b, c] = &values;
    let stream = engine.stream();
    fn forked<T>(result: Result<T>) -> bool {
        result.is_err_and(|error| error.is_forked() && error.to_string().contains("forked"))
    }
    let told = |ask: fn(&Tensor, Tell), value: &Tensor| {
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        ask(value, Box::new(move |outcome| tell.store(forked(outcome), Ordering::SeqCst)));
        told.load(Ordering::SeqCst)
    };
    let other = engine.new_stream();
    // On a thread that the child has started.
    let value = a.clone();
    let is_late_told = on_thread(move || forked(value.abs()));
    let checks = [
        // The next call of a step that is replayed.
        forked(a + 1.0),
        forked(a + b),
        forked(a.neg()),
        forked(c * 2.0),
        forked(a.sum(&[0])),
        forked(with_mode(Mode::Strict, || c.abs())),
        forked(with_mode(Mode::Debug, || c.abs())),
        forked(a.to_vec::<f32>()),
        forked(b.to_literal()),
        forked(c.to_vec::<f32>()),
        forked(c.wait()),
        forked(b.to_literal_for(Duration::from_secs(1))),
        forked(a.read_replicas()),
        forked(support::block_on(read)),
        forked(support::block_on(c.read())),
        told(|value, callback| value.on_ready(callback), b),
        forked(engine.tensor(&[1.0f32], &[1])),
        forked(engine.tensor_per_replica(&[&[1.0f32]], &[1])),
        forked(engine.full(1.0f32, &[2])),
        forked(engine.scalar(1.0f32).neg()),
        forked(engine.synchronize()),
        forked(stream.synchronize()),
        forked(other.synchronize_for(Duration::from_secs(1))),
        forked(other.tensor(&[1.0f32], &[1])),
        forked(engine.capture("child", || Ok(Vec::new()))),
        forked(EngineConfig::new().build_reference()),
        forked(EngineConfig::new().build()),
        forked(own.1.to_vec::<f32>()),
        forked(own.0.synchronize()),
        forked(session.read(id)),
        forked(session.record(fuseline::embed::StreamHandle::from_raw(1), Call::new(OpCode::Negate, &[id]))),
        forked(session.release(id)),
        is_late_told,
    ];
    stream.flush();
    engine.clear_cache();
    let _ = (engine.counters(), session.counters(), format!("{engine:?} {a:?} {stream:?}"));
    drop((values, other));
    // The last handles.
    drop(own);
    drop(session);
    drop(engine);
    checks.iter().position(|&is_right| !is_right).map_or(0, |place| place as u8 + 1)
}

/// Forks. Returns the child's status, or `None` if it does not end.
fn fork(all: Inherited, exits: bool) -> Option<i32> {
    // SAFETY: the child calls only three things: the library, whose guarantee is what is tested;
    // the allocator, which the C library keeps usable in a child; and functions that start or end a
    // thread or the process.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    if child == 0 {
        let status = use_all(all).into();
        if exits {
            // Runs all exit handlers, but not through the standard library's function, which takes
            // the lock that `on_thread` avoids. SAFETY: nothing else ends the process at the same
            // time, because it has no other thread.
            unsafe { libc::exit(status) }
        }
        // SAFETY: the function may be called at any time.
        unsafe { libc::_exit(status) }
    }
    let (start, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: the pointer is to a local variable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        match ended {
            0 if start.elapsed() < Duration::from_secs(30) => std::thread::sleep(Duration::from_micros(200)),
            0 => {
                // SAFETY: the child has not been waited for, so that the number is
                // still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                return None;
            }
            _ => return Some(status),
        }
    }
}

fn step(x: &Tensor) -> Result<Tensor> {
    ((x * 0.5)? + 1.0)?.tanh()
}

/// Forks repeatedly while other threads use the engine, on their own streams and on the engine's.
fn forks_under_load(make: impl Fn() -> Engine, forks: u32) {
    let engine = &make();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let x = vector(engine, &[1.0, -2.0, 3.0]);
    let expected = step(&x).unwrap().to_vec::<f32>().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (x, expected, stop, rounds) = (&x, &expected, &stop, &rounds);
            scope.spawn(move || {
                let own = engine.new_stream();
                let near = own.tensor(&[1.0f32, -2.0, 3.0], &[3]).unwrap();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let x = if round % 2 == 0 { x } else { &near };
                    support::close(&step(x).unwrap().to_vec::<f32>().unwrap(), expected, 1e-5);
                    // A new region, which is compiled.
                    let size = 1 + (round * 3 + worker) % 500;
                    let y = own.tensor(&vec![1.0f32; size], &[size]).unwrap().neg().unwrap();
                    assert_eq!(y.to_vec::<f32>().unwrap(), vec![-1.0; size]);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = Seeded::new(7);
            let session = Session::on(engine.clone());
            let id = {
                let stream = session.open_stream().unwrap();
                let ty = x.ty().clone();
                session.upload(stream, &ty, x.to_literal().unwrap().bytes()).unwrap()
            };
            for turn in 0..forks {
                use fuseline_testgen::Entropy as _;
                std::thread::sleep(Duration::from_micros(u64::from(random.draw(2_000))));
                // In the middle of a replayed step, or not.
                let there = step(&x).unwrap();
                there.wait().unwrap();
                let computed = step(&there).unwrap();
                let read = computed.read();
                let recorded = (&x * 0.5).unwrap();
                let own = make();
                let own = (own.clone(), vector(&own, &[1.0]).neg().unwrap());
                if turn % 3 > 0 {
                    own.0.stream().flush();
                }
                let values = [recorded.clone(), computed, there];
                let all =
                    Inherited { engine: engine.clone(), session: session.clone(), values, read, own, id };
                let status = fork(all, turn % 2 == 0);
                assert_eq!(
                    status,
                    Some(0),
                    "child {turn}: none has not ended, 256 times the number of what was wrong"
                );
                // The ops that it was in the middle of.
                let y = (&recorded + 1.0).unwrap().tanh().unwrap();
                support::close(&y.to_vec::<f32>().unwrap(), &expected, 1e-5);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    let counters = engine.counters();
    println!("{engine:?}: {forks} forks in {} rounds of others, {counters:?}", rounds.into_inner());
    assert_eq!((counters.poisoned, counters.panics), (0, 0));
}

#[test]
fn children_are_told() {
    forks_under_load(|| support::config().build_reference().unwrap(), 100);
}

#[test]
fn children_of_a_process_with_a_plugin_are_told() {
    if plugin_for("forks of a process with a plugin", EngineConfig::new()).is_none() {
        return;
    }
    forks_under_load(|| EngineConfig::new().build().unwrap(), 20);
}

/// The next call of a replayed step skips most checks of other calls, but not this one.
#[test]
fn a_child_in_the_middle_of_a_replayed_step_is_told() {
    let engine = support::config().build_reference().unwrap();
    let x = vector(&engine, &[1.0, -2.0, 3.0]);
    // The same program position in parent and child.
    #[inline(never)]
    fn abs(of: &Tensor) -> Result<Tensor> {
        of.abs()
    }
    // Calls without scalars, which would report the fork themselves.
    let neg = || x.neg();
    let step = || abs(&neg()?)?.tanh();
    let replayed = || engine.counters().replayed;
    let is_steady = |_: &u32| {
        let before = replayed();
        step().unwrap().wait().unwrap();
        replayed() >= before + 3
    };
    assert!((0..200).any(|turn| is_steady(&turn)), "the step is not replayed");
    // The fast path reuses the cells of an earlier step, which are recycled some time after it.
    for _ in 0..20 {
        assert!((0..200).any(|turn| is_steady(&turn)), "the step is not replayed any more");
        std::thread::sleep(Duration::from_millis(2));
        let before = replayed();
        let first = neg().unwrap();
        let status = in_fork(|| i32::from(!abs(&first).is_err_and(|error| error.is_forked())));
        assert_eq!(status, 0, "the child was not told");
        // In the parent the same call is replayed, and so is the rest.
        let last = abs(&first).unwrap().tanh().unwrap().to_vec::<f32>().unwrap();
        support::close(&last, &step().unwrap().to_vec::<f32>().unwrap(), 0.0);
        assert!(replayed() >= before + 3, "it would not have been replayed");
    }
}

/// A process that has dropped its engines has children that may open some. Runs alone, because
/// other tests of this process have engines.
#[test]
fn a_child_may_have_the_first_engine() {
    if std::env::var_os("NEXTEST").is_none() && !std::env::args().any(|argument| argument == "--exact") {
        println!("skipped: no process of its own: other tests share this one, and may have engines");
        return;
    }
    drop(Engine::reference());
    let status = in_fork(|| {
        let engine = EngineConfig::new().build_reference();
        let sum = engine.and_then(|engine| (vector(&engine, &[1.0]) + 1.0)?.item::<f32>());
        i32::from(!matches!(sum, Ok(2.0)))
    });
    assert_eq!(status, 0);
}

/// `cargo test --test engine fork:: -- --ignored`.
#[test]
#[ignore = "soak: `cargo xtask soak forks`"]
fn soak_children_are_told() {
    forks_under_load(|| support::config().build_reference().unwrap(), 1_000);
}
