//! The interface for frameworks: ids, lifetimes, callbacks, misuse, and a small framework built on
//! it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use fuseline::embed::{Call, Session, StreamHandle, ValueHandle, swap_mode, take_last_error};
use fuseline::fusion::Scalar;
use fuseline::fusion::op::attrs;
use fuseline::fusion::program::Program;
use fuseline::pjrt::{AlignedBytes, bytes_of};
use fuseline::{
    DType, EngineConfig, Error, Event, Fault, FaultPoint, Literal, Mode, OpCode, Origin, Result, Shape, Site,
    Stage, TensorType,
};

use crate::support::{self, Log, on_all_tiers, warm_up};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// Runs a test on a session on every engine and in every tier, and checks for leaks.
fn on_sessions(config: impl Fn() -> EngineConfig, test: impl Fn(&Session, StreamHandle) -> Result<()>) {
    on_all_tiers(config, |engine| {
        let session = Session::on(engine.clone());
        let stream = session.open_stream()?;
        test(&session, stream)?;
        assert_eq!(session.live_values(), 0, "ids have leaked");
        session.close_stream(stream)
    });
}

fn f32s(dims: &[u64]) -> TensorType {
    TensorType::of(DType::F32, dims).unwrap()
}

fn vector(session: &Session, stream: StreamHandle, data: &[f32]) -> Result<ValueHandle> {
    session.upload(stream, &f32s(&[data.len() as u64]), bytes_of(data))
}

fn op(session: &Session, stream: StreamHandle, op: OpCode, operands: &[ValueHandle]) -> Result<ValueHandle> {
    Ok(session.record(stream, Call::new(op, operands))?.remove(0).id)
}

fn data(session: &Session, value: ValueHandle) -> Result<Vec<f32>> {
    Ok(session.read(value)?.to_vec::<f32>()?)
}

fn release(session: &Session, values: &[ValueHandle]) -> Result<()> {
    values.iter().try_for_each(|&value| session.release(value))
}

fn misuse(error: &Error, says: &str) {
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User));
}

// ----- values and ops -----

#[test]
fn results_and_their_types_are_there_at_once() {
    on_sessions(support::config, |session, stream| {
        let x = vector(session, stream, &[1.0, 4.0, 9.0])?;
        let made = session.record(stream, Call::new(OpCode::Sqrt, &[x]))?;
        assert_eq!((made.len(), &made[0].ty), (1, &f32s(&[3])));
        let wide = attrs::broadcast_in_dim(Shape::new(&[2, 3])?, &[1]);
        let operands = [made[0].id];
        let wide = session.record(stream, Call::new(OpCode::BroadcastInDim, &operands).with(wide))?.remove(0);
        assert_eq!(wide.ty, f32s(&[2, 3]));
        assert_eq!(session.ty(wide.id)?, wide.ty);
        let mut out = [0u8; 24];
        session.read_into(wide.id, &mut out)?;
        assert_eq!(out, bytes_of(&[1.0f32, 2.0, 3.0, 1.0, 2.0, 3.0]));
        release(session, &[x, made[0].id, wide.id])
    });
}

#[test]
fn constants_scalars_and_many_results() {
    let log = Log::default();
    let config = || support::config().event_sink(log.sink());
    on_sessions(config, |session, stream| {
        log.take();
        let two = session.constant(stream, Literal::scalar(2.0f32), Site::Unknown)?;
        let values: Vec<f32> = (0..3)
            .map(|i| {
                let half = session.scalar(stream, Scalar::new(0.5f32 + i as f32))?;
                let product = op(session, stream, OpCode::Multiply, &[two, half])?;
                let value = data(session, product)?[0];
                release(session, &[half, product])?;
                Ok(value)
            })
            .collect::<Result<_>>()?;
        assert_eq!(values, [1.0, 3.0, 5.0]);
        // The constant belongs to the first region and is an input of the others.
        let keys = log.keys();
        assert_eq!(keys.len(), 3);
        assert!(keys[0] != keys[1] && keys[1] == keys[2], "another scalar is no other region: {keys:?}");
        let state = session.upload(stream, &TensorType::of(DType::U64, &[2])?, bytes_of(&[1u64, 2]))?;
        let algorithm = fuseline::fusion::op::RngAlgorithm::ThreeFry;
        let call = Call::new(OpCode::RngBitGenerator, std::slice::from_ref(&state));
        let made = session
            .record(stream, call.with(attrs::rng_bit_generator(algorithm, DType::U32, Shape::new(&[4])?)))?;
        assert_eq!(made.iter().map(|made| made.ty.dtype()).collect::<Vec<_>>(), [DType::U64, DType::U32]);
        let all = session.read_all(&[made[0].id, made[1].id])?;
        assert_eq!((all[0].ty().dims(), all[1].ty().dims()), (&[2][..], &[4][..]));
        release(session, &[two, state, made[0].id, made[1].id])
    });
}

#[test]
fn host_memory_is_shared_until_nobody_needs_it() {
    struct Told(AlignedBytes, mpsc::Sender<()>);
    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref()
        }
    }
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }
    on_sessions(support::config, |session, stream| {
        let (told, gone) = mpsc::channel();
        let bytes = AlignedBytes::copy_of(bytes_of(&[3.0f32; 100]));
        let x = session.upload_shared(stream, &f32s(&[100]), Told(bytes.clone(), told.clone()))?;
        let y = op(session, stream, OpCode::Negate, &[x])?;
        release(session, &[x])?;
        assert_eq!(data(session, y)?, [-3.0; 100]);
        session.synchronize(stream, None)?;
        gone.recv_timeout(Duration::from_secs(20)).expect("the memory is given back");
        // The same by pointer.
        let kept = bytes.clone();
        let memory = (kept.as_ref().as_ptr(), kept.as_ref().len());
        let told_again = told.clone();
        let back = move || {
            drop(kept);
            let _ = told_again.send(());
            panic!("a callback that panics");
        };
        // SAFETY: the closure owns the memory until it is called.
        let z = unsafe { session.upload_foreign(stream, &f32s(&[100]), memory, back) }?;
        assert_eq!(data(session, z)?, [3.0; 100]);
        release(session, &[y, z])?;
        session.synchronize(stream, None)?;
        gone.recv_timeout(Duration::from_secs(20)).expect("the memory is given back");
        // Refused memory is given back too.
        let error = session.upload_shared(stream, &f32s(&[99]), Told(bytes, told)).unwrap_err();
        assert!(error.to_string().contains("bytes"), "{error}");
        gone.recv_timeout(Duration::from_secs(20)).expect("the memory is given back");
        Ok(())
    });
}

#[test]
fn buffers_are_adopted_and_lent() {
    on_sessions(support::config, |session, stream| {
        let x = vector(session, stream, &[1.0, 2.0])?;
        let y = op(session, stream, OpCode::Negate, &[x])?;
        let Some(device) = session.engine().pjrt_device() else {
            let error = session.lend(y).unwrap_err();
            misuse(&error, "has no PJRT buffer");
            // SAFETY: an engine without a plugin does not look at the pointer.
            let error = unsafe { session.adopt_buffer(stream, std::ptr::null_mut()) }.unwrap_err();
            misuse(&error, "no PJRT buffers");
            return release(session, &[x, y]);
        };
        let lent = session.lend(y)?;
        // Other code of the same client makes a copy, which comes back as a value.
        let copy = lent.buffer()?.copy_to_device(device).map_err(Error::from)?;
        let raw = copy.as_ptr();
        std::mem::forget(copy);
        // SAFETY: the copy is alive and was just given up.
        let z = unsafe { session.adopt_buffer(stream, raw) }?;
        assert_eq!(session.ty(z)?, f32s(&[2]));
        release(session, &[y])?;
        assert_eq!(lent.buffer()?.to_host().map_err(Error::from)?, bytes_of(&[-1.0f32, -2.0]));
        let w = op(session, stream, OpCode::Add, &[z, x])?;
        release(session, &[z])?;
        assert_eq!(data(session, w)?, [0.0, 0.0]);
        let scalar = session.scalar(stream, Scalar::new(1.0f32))?;
        misuse(&session.lend(scalar).unwrap_err(), "a lifted scalar has no PJRT buffer");
        // SAFETY: null is refused without being looked at.
        let error = unsafe { session.adopt_buffer(stream, std::ptr::null_mut()) }.unwrap_err();
        misuse(&error, "null");
        // A buffer of another client still belongs to the caller.
        let other = support::config().build()?;
        let foreign = other.tensor(&[5.0f32], &[1])?;
        let theirs = Session::on(other);
        let held = theirs.upload(theirs.open_stream()?, &f32s(&[1]), bytes_of(&[5.0f32]))?;
        let lent_out = theirs.lend(held)?;
        // SAFETY: it is alive, and refused, so that its owner stays the owner.
        let error = unsafe { session.adopt_buffer(stream, lent_out.as_ptr()?) }.unwrap_err();
        misuse(&error, "is not on");
        assert_eq!(foreign.to_vec::<f32>()?, [5.0]);
        assert_eq!(theirs.read(held)?.to_vec::<f32>()?, [5.0]);
        release(session, &[x, w, scalar])
    });
}

#[test]
fn placeholders_are_filled_later() {
    on_sessions(support::config, |session, stream| {
        let hole = session.placeholder(stream, &f32s(&[2]))?;
        let y = op(session, stream, OpCode::Negate, &[hole])?;
        session.flush(stream)?;
        assert!(!session.is_resolved(y)?);
        let error = session.wait(y, Some(Duration::from_millis(20))).unwrap_err();
        assert!(error.is_timeout());
        assert!(session.fill(hole, &[0; 3]).is_err(), "the length is checked");
        session.fill(hole, bytes_of(&[1.0f32, 2.0]))?;
        misuse(&session.fill(hole, &[0; 8]).unwrap_err(), "already filled");
        assert_eq!(data(session, y)?, [-1.0, -2.0]);
        // A placeholder that is never filled fails its dependents, and nothing else.
        let hole = { session.release(hole).and(session.placeholder(stream, &f32s(&[2])))? };
        let z = op(session, stream, OpCode::Negate, &[hole])?;
        let fine = op(session, stream, OpCode::Abs, &[y])?;
        session.release(hole)?;
        assert!(data(session, z).is_err());
        assert_eq!(data(session, fine)?, [1.0, 2.0]);
        assert!(!session.take_failures().is_empty());
        release(session, &[y, z, fine])
    });
}

// ----- lifetimes -----

/// Data of the wrong length is the caller's mistake, for every function, and never a failed
/// transfer.
#[test]
fn data_of_another_length_is_refused() {
    on_sessions(support::config, |session, stream| {
        let (ty, bytes) = (f32s(&[3]), vec![0; 8]);
        let says = "takes 12 elements or bytes of data, but 8 were given";
        let empty = session.placeholder(stream, &ty)?;
        let refused = [
            session.upload(stream, &ty, &bytes).unwrap_err(),
            session.upload_per_replica(stream, &ty, &[&bytes]).unwrap_err(),
            session.upload_shared(stream, &ty, bytes.clone()).unwrap_err(),
            session.fill(empty, &bytes).unwrap_err(),
        ];
        for error in &refused {
            assert_eq!((error.origin(), error.stage()), (Origin::User, Stage::Record), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        // It can still be filled.
        session.fill(empty, &[0; 12])?;
        release(session, &[empty])
    });
}

#[test]
fn ids_that_stand_for_nothing_are_errors() {
    on_sessions(support::config, |session, stream| {
        let x = vector(session, stream, &[1.0])?;
        session.retain(x)?;
        release(session, &[x, x])?;
        misuse(&session.release(x).unwrap_err(), "release: value 0x");
        misuse(&session.release(x).unwrap_err(), "was already released");
        // The slot is reused with another id.
        let y = vector(session, stream, &[2.0])?;
        assert_ne!(x, y);
        for wrong in [x, ValueHandle::from_raw(0), ValueHandle::from_raw(u64::MAX)] {
            let at = || Site::Host("train.py:9".into());
            let error = session.record(stream, Call::new(OpCode::Add, &[y, wrong]).at(at())).unwrap_err();
            misuse(&error, "add: value 0x");
            assert!(error.to_string().ends_with("(at train.py:9)"), "{error}");
            assert!(session.retain(wrong).is_err() && session.read(wrong).is_err());
            assert!(session.replace(wrong, y).is_err() && session.replace(y, wrong).is_err());
            assert!(session.on_ready(wrong, |_, _| ()).is_err() && session.lend(wrong).is_err());
            assert!(session.read_async(wrong, |_, _| ()).is_err() && session.fill(wrong, &[]).is_err());
            assert!(session.flush_values(&[y, wrong]).is_err() && session.version(wrong).is_err());
            assert!(session.ty(wrong).is_err() && session.wait(wrong, None).is_err());
        }
        let closed = session.open_stream()?;
        session.close_stream(closed)?;
        for wrong in [closed, StreamHandle::from_raw(7)] {
            assert!(session.record(wrong, Call::new(OpCode::Negate, &[y])).is_err());
            assert!(session.flush(wrong).is_err() && session.synchronize(wrong, None).is_err());
            assert!(session.close_stream(wrong).is_err() && session.set_stream_mode(wrong, None).is_err());
            assert!(
                vector(session, wrong, &[1.0]).is_err() && session.scalar(wrong, Scalar::new(1)).is_err()
            );
        }
        misuse(&session.read_into(y, &mut [0; 5]).unwrap_err(), "takes 4 bytes, but the output has 5");
        assert_eq!(data(session, y)?, [2.0]);
        release(session, &[y])
    });
}

#[test]
fn a_release_is_an_event_of_the_program() {
    let log = Log::default();
    on_sessions(
        || support::config().event_sink(log.sink()),
        |session, stream| {
            let x = vector(session, stream, &[1.0; 64])?;
            log.take();
            // Whether the middle value is an output depends on where it was released, not on when.
            for kept in [false, true] {
                let y = op(session, stream, OpCode::Negate, &[x])?;
                let z = op(session, stream, OpCode::Abs, &[y])?;
                if kept {
                    data(session, z)?;
                    release(session, &[y, z])?;
                } else {
                    release(session, &[y])?;
                    data(session, z)?;
                    release(session, &[z])?;
                }
                let sealed = log.take().into_iter().find_map(|event| match event {
                    Event::Sealed { outputs, .. } => Some(outputs),
                    _ => None,
                });
                assert_eq!(sealed, Some(if kept { 2 } else { 1 }));
            }
            release(session, &[x])
        },
    );
}

#[test]
fn threads_share_ids() {
    on_sessions(support::config, |session, stream| {
        let shared = vector(session, stream, &[1.0; 4])?;
        let threads: Vec<_> = (0..4)
            .map(|me| {
                let session = session.clone();
                session.retain(shared)?;
                Ok(std::thread::spawn(move || -> Result<()> {
                    for round in 0..200 {
                        let y = op(&session, stream, OpCode::Negate, &[shared])?;
                        let z = op(&session, stream, OpCode::Add, &[y, shared])?;
                        release(&session, &[y])?;
                        if round % 50 == me {
                            assert_eq!(data(&session, z)?, [0.0; 4]);
                        }
                        release(&session, &[z])?;
                    }
                    session.release(shared)
                }))
            })
            .collect::<Result<_>>()?;
        release(session, &[shared])?;
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    });
}

// ----- modes, flushes, callbacks -----

#[test]
fn modes_are_captured_when_an_op_is_recorded() {
    let log = Log::default();
    on_sessions(
        || support::config().event_sink(log.sink()),
        |session, stream| {
            let x = vector(session, stream, &[1.0])?;
            session.set_mode(Mode::Strict);
            assert_eq!(session.mode(stream)?, Mode::Strict);
            session.set_stream_mode(stream, Some(Mode::Debug))?;
            assert_eq!(session.mode(stream)?, Mode::Debug);
            let before = swap_mode(Some(Mode::Fused));
            log.take();
            let y = op(session, stream, OpCode::Negate, &[x])?;
            assert!(!session.is_resolved(y)?);
            assert_eq!(swap_mode(before), Some(Mode::Fused));
            let z = op(session, stream, OpCode::Abs, &[y])?;
            assert!(session.is_resolved(z)?, "Debug mode waits");
            assert_eq!(log.regions(), [("mode_change".to_owned(), 1), ("debug".to_owned(), 1)]);
            release(session, &[x, y, z])
        },
    );
}

#[test]
fn flushes_end_regions_and_do_not_wait() {
    let log = Log::default();
    on_sessions(
        || support::config().event_sink(log.sink()),
        |session, stream| {
            let x = vector(session, stream, &[1.0])?;
            log.take();
            let y = op(session, stream, OpCode::Negate, &[x])?;
            let z = op(session, stream, OpCode::Abs, &[y])?;
            session.flush_values(&[y, z])?;
            session.synchronize(stream, None)?;
            assert_eq!(log.regions(), [("flush".to_owned(), 2)]);
            let w = op(session, stream, OpCode::Negate, &[z])?;
            session.flush(stream)?;
            session.synchronize_all()?;
            assert_eq!(log.regions(), [("flush".to_owned(), 1)]);
            release(session, &[x, y, z, w])
        },
    );
}

#[test]
fn callbacks_say_ready_or_why_not() {
    let log = Log::default();
    let config = || {
        support::config().mode(Mode::Strict).event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Upload { bytes: 12 } => Some(Fault::new("no room")),
            _ => None,
        })
    };
    on_sessions(config, |session, stream| {
        log.take();
        let (sender, receiver) = mpsc::channel();
        let tell = |sender: &mpsc::Sender<_>| {
            let sender = sender.clone();
            move |value: ValueHandle, outcome: Result<()>| {
                sender.send((value, outcome.map_err(|error| error.to_string()))).unwrap();
            }
        };
        let x = vector(session, stream, &[1.0, 2.0])?;
        session.on_ready(x, tell(&sender))?;
        assert_eq!(receiver.recv().unwrap(), (x, Ok(())));
        let y = op(session, stream, OpCode::Negate, &[x])?;
        session.on_ready(y, tell(&sender))?;
        assert_eq!(receiver.recv().unwrap(), (y, Ok(())));
        let hole = session.placeholder(stream, &f32s(&[2]))?;
        let bad = op(session, stream, OpCode::Negate, &[hole])?;
        session.on_ready(bad, tell(&sender))?;
        session.release(hole)?;
        let (value, outcome) = receiver.recv().unwrap();
        assert_eq!(value, bad);
        assert!(outcome.unwrap_err().contains("given up"));
        // A read by callback. The callback may record, but must not wait.
        let (inner, recorded) = (session.clone(), sender.clone());
        session.read_async(y, move |value, data| {
            assert_eq!(data.unwrap().to_vec::<f32>().unwrap(), [-1.0, -2.0]);
            let error = inner.synchronize(stream, None).unwrap_err();
            assert!(error.to_string().contains("hand the work to another thread"), "{error}");
            let abs = op(&inner, stream, OpCode::Abs, &[value]).unwrap();
            recorded.send((abs, Ok(()))).unwrap();
        })?;
        let (abs, _) = receiver.recv().unwrap();
        assert_eq!(data(session, abs)?, [1.0, 2.0]);
        // Panics are contained.
        session.on_ready(y, |_, _| panic!("oh {}", "dear"))?;
        session.read_async(y, |_, _| panic!("no"))?;
        let w = op(session, stream, OpCode::Abs, &[y])?;
        session.on_ready(w, |_, _| panic!("later"))?;
        assert_eq!(data(session, w)?, [1.0, 2.0]);
        let mut messages = Vec::new();
        for _ in 0..2_000 {
            messages.extend(log.take().into_iter().filter_map(|event| match event {
                Event::Panicked { callback, message } => Some(format!("{callback}: {message}")),
                _ => None,
            }));
            if messages.len() == 3 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        messages.sort();
        assert_eq!(messages, ["read: no", "readiness: later", "readiness: oh dear"]);
        assert_eq!(session.counters().panics, 3);
        // Errors of transfers are errors of the call.
        let error = session.upload(stream, &f32s(&[3]), &[0; 12]).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
        release(session, &[x, y, bad, abs, w])
    });
}

// ----- errors -----

#[test]
fn errors_are_data_with_op_call_site_and_region() {
    let config = || {
        support::config().mode(Mode::Strict).inject_faults(|point| match point {
            FaultPoint::Compile { .. } => Some(Fault::new("no compiler today")),
            _ => None,
        })
    };
    on_sessions(config, |session, stream| {
        let x = vector(session, stream, &[1.0, 2.0])?;
        let _ = take_last_error();
        let _ = session.take_failures();
        let site = || Site::Host("train.py:12".into());
        let y = session.record(stream, Call::new(OpCode::Exponential, &[x]).at(site()))?.remove(0).id;
        let z = op(session, stream, OpCode::Negate, &[y])?;
        assert!(session.read(z).is_err());
        let last = take_last_error().unwrap();
        let failures = session.take_failures();
        assert_eq!(failures, std::slice::from_ref(&last), "once, however many values failed");
        assert_eq!((last.stage, last.origin, last.retryable), (Stage::Compile, Origin::Device, false));
        assert_eq!(last.op.as_deref(), Some("exponential"));
        assert_eq!(last.site.as_deref(), Some("train.py:12"));
        assert_eq!(last.region.unwrap().ops, 1);
        assert!(last.message.contains("no compiler today"), "{last}");
        assert!(take_last_error().is_none() && session.take_failures().is_empty(), "asked and forgotten");
        // A refused op is reported at once, to this thread only.
        let three = vector(session, stream, &[1.0, 2.0, 3.0])?;
        assert!(session.record(stream, Call::new(OpCode::Add, &[x, three]).at(site())).is_err());
        assert!(std::thread::spawn(take_last_error).join().unwrap().is_none());
        let last = take_last_error().unwrap();
        assert_eq!((last.op.as_deref(), last.site.as_deref()), (Some("add"), Some("train.py:12")));
        assert_eq!((last.stage, last.region), (Stage::Record, None));
        release(session, &[x, y, z, three])
    });
}

// ----- whole graphs -----

#[test]
fn a_trace_is_a_program_and_a_function() {
    on_sessions(support::config, |session, stream| {
        let trace = session.begin_trace()?;
        let before = session.counters().ops;
        let a = session.placeholder(trace, &f32s(&[2]))?;
        let b = session.placeholder(trace, &f32s(&[2]))?;
        let half = session.scalar(trace, Scalar::new(0.5f32))?;
        let wide = attrs::broadcast_in_dim(Shape::new(&[2])?, &[]);
        let wide = session.record(trace, Call::new(OpCode::BroadcastInDim, &[half]).with(wide))?.remove(0).id;
        let sum = op(session, trace, OpCode::Add, &[a, b])?;
        let mean = op(session, trace, OpCode::Multiply, &[sum, wide])?;
        assert_eq!(session.ty(mean)?, f32s(&[2]), "types are there at once");
        // Values of a trace have no data, and are valid in their trace only.
        misuse(&session.read(mean).unwrap_err(), "belongs to a trace");
        let x = vector(session, stream, &[1.0, 2.0])?;
        misuse(&op(session, stream, OpCode::Negate, &[mean]).unwrap_err(), "belongs to a trace");
        misuse(&op(session, trace, OpCode::Negate, &[x]).unwrap_err(), "not a value of this trace");
        misuse(&session.synchronize(trace, None).unwrap_err(), "is a trace, which does not execute");
        assert!(op(session, trace, OpCode::Concatenate, &[]).is_err(), "checked as always");
        misuse(&session.end_trace(trace, "mean", &[x]).unwrap_err(), "is not a value of this trace");
        let mean_of = session.end_trace(trace, "mean", &[mean])?;
        assert_eq!(session.counters().ops, before, "nothing ran");
        assert!(op(session, trace, OpCode::Negate, &[a]).is_err(), "the trace has ended");
        release(session, &[a, b, half, wide, sum, mean])?;

        // Called, and fused with the ops around it.
        let y = vector(session, stream, &[3.0, 6.0])?;
        let n = op(session, stream, OpCode::Negate, &[x])?;
        let made = session.call(stream, mean_of, &[n, y], Site::Host("train.py:3".into()))?.remove(0);
        assert_eq!(data(session, made.id)?, [1.0, 2.0]);
        assert_eq!(session.counters().regions, 1);
        let error = session.call(stream, mean_of, &[n], Site::Host("train.py:4".into())).unwrap_err();
        misuse(&error, "it takes 2 inputs, but 1 were given (at train.py:4)");

        // Saved, read again, registered as a user-defined op, called inside another trace.
        let text = session.program(mean_of)?.to_json();
        let program = Program::parse(&text)?;
        assert_eq!((program.ops.len(), program.outputs.len()), (3, 1));
        let outer = session.begin_trace()?;
        let p = session.placeholder(outer, &f32s(&[2]))?;
        let inside = session.call(outer, mean_of, &[p, p], Site::Unknown)?.remove(0).id;
        let outer_of = session.end_trace(outer, "outer", &[inside, p])?;
        let called = session.call(stream, outer_of, &[y], Site::Unknown)?;
        assert_eq!(data(session, called[0].id)?, [3.0, 6.0]);
        assert_eq!(data(session, called[1].id)?, [3.0, 6.0]);
        session.forget(mean_of)?;
        assert!(session.call(stream, mean_of, &[n, y], Site::Unknown).is_err());
        release(session, &[p, inside, called[0].id, called[1].id, x, y, n, made.id])
    });
}

// ----- a small framework -----

/// A strided view of a storage whose memory is one value, as in PyTorch: views share the storage,
/// and a write through one view is visible in all.
struct Storage {
    session: Session,
    stream: StreamHandle,
    value: ValueHandle,
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.session.release(self.value).unwrap();
    }
}

#[derive(Clone)]
struct View {
    storage: Arc<Storage>,
    start: u64,
    len: u64,
    /// The version of the storage when an autograd system saved this.
    saved: u64,
}

impl View {
    fn new(session: &Session, stream: StreamHandle, elements: &[f32]) -> Result<View> {
        let value = vector(session, stream, elements)?;
        let storage = Arc::new(Storage { session: session.clone(), stream, value });
        Ok(View { storage, start: 0, len: elements.len() as u64, saved: 0 })
    }

    fn slice(&self, start: u64, len: u64) -> View {
        View { start: self.start + start, len, ..self.clone() }
    }

    /// The value of the view, with its own reference.
    fn read(&self) -> Result<ValueHandle> {
        let Storage { session, stream, value } = &*self.storage;
        let attrs = attrs::slice(&[self.start as i64], &[(self.start + self.len) as i64], &[1]);
        Ok(session.record(*stream, Call::new(OpCode::Slice, &[*value]).with(attrs))?.remove(0).id)
    }

    /// Writes through the view: replaces the storage's value by one with the change.
    fn write(&self, new: ValueHandle) -> Result<()> {
        let Storage { session, stream, value } = &*self.storage;
        let at = session.scalar(*stream, Scalar::new(self.start as i32))?;
        let whole = op(session, *stream, OpCode::DynamicUpdateSlice, &[*value, new, at])?;
        session.replace(*value, whole)?;
        release(session, &[at, whole, new])
    }

    fn add_(&self, other: &View) -> Result<()> {
        let session = &self.storage.session;
        let (a, b) = (self.read()?, other.read()?);
        let sum = op(session, self.storage.stream, OpCode::Add, &[a, b])?;
        self.write(sum)?;
        release(session, &[a, b])
    }

    fn save(&mut self) -> Result<()> {
        self.saved = self.storage.session.version(self.storage.value)?;
        Ok(())
    }

    fn was_changed(&self) -> Result<bool> {
        Ok(self.storage.session.version(self.storage.value)? != self.saved)
    }

    fn data(&self) -> Result<Vec<f32>> {
        let value = self.read()?;
        let data = data(&self.storage.session, value)?;
        self.storage.session.release(value)?;
        Ok(data)
    }
}

#[test]
fn a_framework_with_views_and_writes_in_place() {
    for mode in MODES {
        on_sessions(
            || support::config().mode(mode),
            |session, stream| {
                let mut base = View::new(session, stream, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
                let middle = base.slice(1, 4);
                let inner = middle.slice(1, 2);
                base.save()?;
                let ones = View::new(session, stream, &[1.0, 1.0])?;
                for _ in 0..3 {
                    inner.add_(&ones)?;
                }
                assert!(base.was_changed()?, "autograd can see that a saved value was written to");
                assert_eq!(base.data()?, [0.0, 1.0, 5.0, 6.0, 4.0, 5.0]);
                // Overlapping views: the source is read before the write.
                middle.slice(0, 2).add_(&middle.slice(1, 2))?;
                assert_eq!(base.data()?, [0.0, 6.0, 11.0, 6.0, 4.0, 5.0]);
                assert_eq!(middle.data()?, [6.0, 11.0, 6.0, 4.0]);
                // A value that was read before a write is unchanged.
                let old = base.read()?;
                base.slice(0, 1).add_(&ones.slice(0, 1))?;
                assert_eq!((data(session, old)?[0], base.data()?[0]), (0.0, 1.0));
                session.release(old)?;
                // Resizing a storage.
                let Storage { value, .. } = &*base.storage;
                let small = vector(session, stream, &[7.0])?;
                misuse(&session.replace(*value, small).unwrap_err(), "but the new value is");
                session.rebind(*value, small)?;
                session.release(small)?;
                assert_eq!(session.ty(*value)?, f32s(&[1]));
                drop((base, middle, inner, ones));
                Ok(())
            },
        );
    }
}

/// A loop of in-place writes reuses memory instead of allocating every version, if the device can.
#[test]
fn writes_in_place_reuse_memory() {
    on_sessions(support::config, |session, stream| {
        let x = vector(session, stream, &[1.0; 4096])?;
        let y = vector(session, stream, &[1.0; 4096])?;
        let mut writes = 0;
        let mut write = || {
            let sum = op(session, stream, OpCode::Add, &[x, y])?;
            session.replace(x, sum)?;
            session.release(sum)?;
            session.flush(stream)?;
            writes += 1;
            Ok(())
        };
        warm_up(session.engine(), &mut write)?;
        let before = session.counters();
        (0..10).try_for_each(|_| write())?;
        assert_eq!(data(session, x)?, vec![1.0 + writes as f32; 4096]);
        if session.engine().pjrt_device().is_some() {
            let did = session.counters().since(&before);
            assert!(did.donations >= 8, "{did:?}");
        }
        release(session, &[x, y])
    });
}

/// Several threads write to one storage: every write takes effect once, in some order.
#[test]
fn replacements_from_several_threads_are_not_lost() {
    on_sessions(support::config, |session, stream| {
        let x = vector(session, stream, &[0.0])?;
        let one = vector(session, stream, &[1.0])?;
        // The framework's own lock makes read-modify-write atomic; the ids are under test.
        let storage = Mutex::new(());
        let writes = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let guard = storage.lock().unwrap();
                        let sum = op(session, stream, OpCode::Add, &[x, one]).unwrap();
                        session.replace(x, sum).unwrap();
                        drop(guard);
                        session.release(sum).unwrap();
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Concurrent readers see whole values.
            scope.spawn(|| {
                let mut last = 0.0;
                while writes.load(Ordering::Relaxed) < 400 {
                    let now = data(session, x).unwrap()[0];
                    assert!(now >= last);
                    last = now;
                }
            });
        });
        assert_eq!(data(session, x)?, [400.0]);
        assert_eq!(session.version(x)?, 400);
        release(session, &[x, one])
    });
}

#[test]
fn sessions_values_outlive_the_rest() {
    let session = Session::reference(support::config()).unwrap();
    let stream = session.open_stream().unwrap();
    let x = vector(&session, stream, &[1.0]).unwrap();
    let y = op(&session, stream, OpCode::Negate, &[x]).unwrap();
    session.close_stream(stream).unwrap();
    assert_eq!(data(&session, y).unwrap(), [-1.0], "a closed stream's values stay good");
    let other = Session::on(session.engine().clone());
    assert!(other.read(y).is_err() || other.live_values() == 0, "ids belong to a session");
    assert_eq!(session.live_values(), 2);
    drop(session);
}
