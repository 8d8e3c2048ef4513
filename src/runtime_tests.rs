//! Tests of the runtime that record through tensors.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, mpsc};

use fuseline_fusion::TensorType;
use fuseline_runtime::internals::{
    COPY_INTERVAL, Cause, Device, DeviceError, EngineSetup, Later, MAX_PENDING, StreamShared,
};
use fuseline_runtime::{Event, Fault, FaultPoint, Remedy, Stage};
use fuseline_sync::atomic::{AtomicU32, Ordering};
use fuseline_sync::{Mutex, Rank};

use crate::engine::Engine;
use crate::{Bytes, DType, EngineConfig, Site};

type Ended = Box<dyn FnOnce() + Send>;

/// What a computation says that ran out of memory is passed on; what a copy says is acted upon.
#[test]
fn only_the_copy_is_tried_again() {
    let (send, told) = mpsc::channel();
    let config = EngineConfig::new().event_sink(move |event: &Event| {
        if let Event::OutOfMemory { remedy, .. } = event {
            let _ = send.send(*remedy);
        }
    });
    let engine = config.build_reference().unwrap();
    let fails = |stage| {
        let mut attempts = 0;
        let error = DeviceError { cause: Cause::Memory, ..DeviceError::new(stage, "none left") };
        let outcome = engine.shared().with_room(Bytes(4), || {
            attempts += 1;
            Err::<(), _>(error.clone())
        });
        (attempts, outcome.unwrap_err().message, told.try_iter().count())
    };
    assert_eq!(fails(Stage::Execute), (1, "none left".to_owned(), 0));
    let (attempts, message, told) = fails(Stage::Transfer);
    assert!((attempts, told) == (2, 2) && message.contains("4 B were asked for"), "{message}");
    assert_eq!(engine.counters().out_of_memory, 1);
}

/// MEMORY-2: a job that is short of memory waits for what another stream has in flight, and for
/// nothing else.
#[test]
fn what_is_in_flight_is_waited_for() {
    let ended = Arc::new(Mutex::new(Rank::Test, Vec::<Ended>::new()));
    let device = ended.clone();
    let later: Later = Arc::new(move |done| device.lock().push(done));
    let land = || std::mem::take(&mut *ended.lock()).into_iter().for_each(|done| done());
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let faults = move |point| match point {
        FaultPoint::Execute { .. } => {
            (counted.fetch_add(1, Ordering::Relaxed) == 1).then(|| Fault::out_of_memory("none left"))
        }
        FaultPoint::Upload { bytes: 8 } => {
            (counted.fetch_add(1, Ordering::Relaxed) == 3).then(|| Fault::out_of_memory("none left"))
        }
        _ => None,
    };
    let (send, told) = mpsc::channel();
    let config = EngineConfig::new().inject_faults(faults).event_sink(move |event: &Event| {
        if let Event::OutOfMemory { remedy, .. } = event {
            let _ = send.send(*remedy);
        }
    });
    let faults = config.settings().faults.clone();
    let setup = EngineSetup::on_reference(config.settings());
    let engine = Engine::on(config, Device::slow(faults, later), setup).unwrap();
    let x = engine.tensor(&[1.0f32], &[1]).unwrap();
    let flying = x.neg().unwrap();
    // Launched, and not done.
    assert_eq!(flying.to_vec::<f32>().unwrap(), [-1.0]);
    let other = engine.new_stream();
    let y = other.tensor(&[2.0f32], &[1]).unwrap();
    let short = y.neg().unwrap();
    other.flush();
    let Remedy::Freed { in_flight, .. } = told.recv().unwrap() else { panic!("nothing was freed") };
    assert_eq!((in_flight, short.is_resolved()), (1, false));
    // The driver is free: the other stream's ops go on.
    assert_eq!(x.abs().unwrap().to_vec::<f32>().unwrap(), [1.0]);
    assert!(!short.is_resolved() && asked.load(Ordering::Relaxed) == 3, "it did not wait");
    land();
    assert_eq!(short.to_vec::<f32>().unwrap(), [-2.0]);

    // An upload waits on its own thread.
    asked.store(3, Ordering::Relaxed);
    let ty = TensorType::of(DType::F32, &[2]).unwrap();
    let uploads = engine.clone();
    let (uploaded, arrived) = mpsc::channel();
    let upload = fuseline_sync::thread::spawn("upload".to_owned(), move || {
        let _ = uploaded.send(uploads.stream().upload(ty, &[0; 8]).map(|x| x.ty().bytes().0));
    });
    let Remedy::Freed { in_flight, .. } = told.recv().unwrap() else { panic!("nothing was freed") };
    assert_eq!((in_flight, asked.load(Ordering::Relaxed)), (1, 4));
    land();
    assert_eq!(arrived.recv().unwrap().unwrap(), 8);
    upload.unwrap().join().unwrap();
}

fn engine() -> Engine {
    EngineConfig::new().check_indices(true).build_reference().expect("the reference device needs nothing")
}

/// Waits until everything recorded has been computed, without examining checks.
fn settle(stream: &Arc<StreamShared>) {
    let fence = stream.place(&Site::Unknown).expect("the stream takes entries");
    (*fence).as_ref().wait(None);
}

/// CHECK-4.
#[test]
fn flags_that_nobody_asks_for_are_let_go() {
    let engine = engine();
    let stream = engine.stream().shared();
    let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3]).unwrap();
    let mut most = 0;
    for step in 0..2_000u64 {
        let index = if step == 700 { 9 } else { 1 };
        drop(x.take(&engine.tensor(&[index, 2], &[2]).unwrap(), 0).unwrap());
        if step % 10 == 9 {
            settle(stream);
        }
        most = most.max(stream.checks().pending());
    }
    assert!(most > MAX_PENDING / 2, "{most}: there is something to let go");
    assert!(most <= MAX_PENDING + 2 * COPY_INTERVAL as usize, "{most}");
    // A dropped flag is still reported, once.
    let y = (&x * 2.0).unwrap();
    let error = y.to_vec::<f32>().unwrap_err();
    assert!(error.to_string().contains("the index 9"), "{error}");
    y.wait().unwrap();
    assert_eq!(stream.checks().pending(), 0);
    settle(stream);
    assert_eq!(engine.counters().live_values, 1 + 1, "x and y");
}
