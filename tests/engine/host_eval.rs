//! Values that follow from integers on the host are read without waiting for their region.

use std::sync::mpsc;
use std::time::Duration;

use fuseline::fusion::DType;
use fuseline::{Engine, EngineConfig, Tensor, TensorType};

use crate::support::{Gate, Shut, compiled_first, plugin, vector};

/// The time limit of a read that does not wait. A read that waits for the gate waits until the test
/// opens it.
const LONG: Duration = Duration::from_secs(60);

fn engine(gate: &Gate) -> Option<Engine> {
    // Nothing is small enough to be interpreted: regions without host evaluation are compiled, and
    // wait at the gate.
    plugin(EngineConfig::new().inject_faults(gate.at_compiles()))
}

/// So large that its region is compiled at once.
fn large(engine: &Engine) -> Tensor {
    engine.tensor(&vec![0.5f32; 1 << 22], &[1 << 11, 1 << 11]).unwrap()
}

/// Reads on another thread while the gate is shut. Gives up, opens the gate and returns `None`
/// after a while.
fn reads<T: fuseline::Element + Send + 'static>(value: &Tensor, shut: Shut<'_>) -> Option<Vec<T>> {
    let (sender, receiver) = mpsc::channel();
    let value = value.clone();
    let thread = std::thread::spawn(move || sender.send(value.to_vec::<T>().unwrap()).unwrap());
    let read = receiver.recv_timeout(LONG).ok();
    drop(shut);
    thread.join().unwrap();
    read
}

/// Whether the positions of `length` texts have no gap.
fn is_full(engine: &Engine, places: &Tensor) -> Tensor {
    let count = places.dims()[0];
    let expected = engine.stream().iota(DType::I64, &[count], 0).unwrap();
    places.equal(&expected).unwrap().all(&[0]).unwrap()
}

#[test]
fn a_mask_is_read_while_what_it_is_recorded_with_waits() {
    let gate = Gate::new();
    let Some(engine) = engine(&gate) else { return };
    let shut = gate.shut();
    let x = large(&engine);
    let places = engine.stream().iota(DType::I64, &[32], 0).unwrap();
    let product = x.matmul(&x).unwrap();
    let mask = is_full(&engine, &places);
    let next = mask.convert(DType::F32).unwrap().add(&vector(&engine, &[1.0])).unwrap();
    assert_eq!(reads::<bool>(&mask, shut), Some(vec![true]), "the read waited for its region");
    assert_eq!((engine.counters().host_evaluated, engine.counters().executions), (1, 0));
    // The region is unchanged, and so are its other results.
    assert_eq!(next.to_vec::<f32>().unwrap(), [2.0]);
    assert_eq!(product.to_vec::<f32>().unwrap()[0], 512.0);
    assert_eq!(mask.to_vec::<bool>().unwrap(), [true]);
}

#[test]
fn what_is_not_there_is_waited_for() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let (lengths, promised) = engine.stream().promised(TensorType::of(DType::I64, &[2]).unwrap());
    let longest = lengths.max(&[0]).unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        promised.keep(&[4i64.to_le_bytes(), 9i64.to_le_bytes()].concat()).unwrap();
    });
    assert_eq!(longest.to_vec::<i64>().unwrap(), [9]);
    thread.join().unwrap();
    assert_eq!(engine.counters().host_evaluated, 0);
}

#[test]
fn what_takes_floats_is_not_computed_twice() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let x = vector(&engine, &[1.0, 2.0]);
    let is_less = x.less(&x.add(&x).unwrap()).unwrap();
    assert_eq!(is_less.to_vec::<bool>().unwrap(), [true, true]);
    let sum = x.sum(&[0]).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0]);
    assert_eq!(engine.counters().host_evaluated, 0);
}

#[test]
fn a_steady_loop_that_reads_a_mask_compiles_nothing() {
    let Some(engine) = plugin(EngineConfig::new()) else { return };
    let mut x = vector(&engine, &[0.0, 0.5]);
    let mut misses = Vec::new();
    for round in 0..40i64 {
        x = x.sin().unwrap();
        let places = engine.stream().iota(DType::I64, &[8], 0).unwrap();
        let last = places.max(&[0]).unwrap();
        let count = (&last + round).unwrap();
        assert_eq!(count.to_vec::<i64>().unwrap(), [7 + round]);
        misses.push(engine.counters().misses);
    }
    assert_eq!(engine.counters().host_evaluated, 40);
    assert_eq!(misses[20], misses[39]);
    assert!(x.to_vec::<f32>().unwrap()[1] > 0.0);
}

#[test]
fn where_nothing_is_interpreted_the_device_computes_it() {
    let Some(engine) = plugin(compiled_first()) else { return };
    let places = engine.stream().iota(DType::I64, &[8], 0).unwrap();
    assert_eq!(is_full(&engine, &places).to_vec::<bool>().unwrap(), [true]);
    assert_eq!((engine.counters().host_evaluated, engine.counters().executions), (0, 1));
}
