//! Functions that are recorded once and called as one op, or inlined.

use fuseline::{DType, Engine, Mode, OpCode, Result, Tensor, TensorType, nn, with_mode};

use crate::support::{self, close, engines_of_all_tiers, plugin, warm_up};

/// A network of two layers that contains an iota, a number, a sum and a tensor from outside.
fn network(x: &Tensor, weights: &Tensor, outside: &Tensor) -> Result<[Tensor; 2]> {
    let places = x.on_stream().iota(DType::F32, x.dims(), 1)?;
    let hidden = ((&x.matmul(weights)? + outside)? * 0.5)?.tanh()?;
    Ok([nn::softmax(&(&hidden * &places)?, -1)?, hidden.sum(&[0])?])
}

fn inputs(engine: &Engine) -> [Tensor; 3] {
    let of =
        |seed: u64| -> Vec<f32> { (0..16).map(|at| ((at * 7 + seed) % 11) as f32 / 11.0 - 0.4).collect() };
    [1, 2, 3].map(|seed| engine.tensor(&of(seed), &[4, 4]).unwrap())
}

#[test]
fn a_function_is_what_it_was_recorded_from() {
    for engine in engines_of_all_tiers(support::config) {
        let [x, weights, outside] = inputs(&engine);
        let expected = network(&x, &weights, &outside).unwrap().map(|value| value.to_vec::<f32>().unwrap());
        let trace = engine.stream().begin_function("test.network");
        let params = [&x, &weights].map(|tensor| trace.param(tensor.ty()).unwrap());
        let made = network(&params[0], &params[1], &outside).unwrap();
        let function = trace.end(&made).unwrap();
        assert_eq!(
            function.captures().len(),
            1,
            "numbers are constants, and the tensor from outside is kept"
        );
        drop(outside);
        for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
            for is_written_out in [false, true] {
                let results = with_mode(mode, || match is_written_out {
                    false => function.call(engine.stream(), &[&x, &weights]),
                    true => function.write_out(engine.stream(), &[&x, &weights]),
                });
                for (result, expected) in results.unwrap().iter().zip(&expected) {
                    close(&result.to_vec::<f32>().unwrap(), expected, 1e-6);
                }
            }
        }
    }
}

#[test]
fn a_call_is_one_op_and_one_executable() {
    let Some(engine) = plugin(support::config()) else { return };
    let [x, weights, outside] = inputs(&engine);
    let trace = engine.stream().begin_function("test.network");
    let params = [&x, &weights].map(|tensor| trace.param(tensor.ty()).unwrap());
    let function = trace.end(&network(&params[0], &params[1], &outside).unwrap()).unwrap();
    engine.synchronize().unwrap();
    let call = || {
        let results = function.call(engine.stream(), &[&x, &weights])?;
        engine.stream().flush();
        results[0].to_vec::<f32>().map(drop)
    };
    let start = engine.counters();
    warm_up(&engine, call).unwrap();
    let before = engine.counters();
    assert_eq!(before.since(&start).misses, 1);
    for _ in 0..3 {
        call().unwrap();
    }
    let did = engine.counters().since(&before);
    assert_eq!((did.ops, did.regions, did.executions, did.compiles), (3, 3, 3, 0));
    assert!(function.op().body().graph().nodes().iter().any(|node| node.signature().op() == OpCode::Iota));
}

/// The region of the ops of an inline function is that of the original calls, with numbers that are
/// lifted.
#[test]
fn an_inline_function_records_what_it_was_recorded_from() {
    let Some(engine) = plugin(support::config()) else { return };
    let [x, weights, outside] = inputs(&engine);
    let trace = engine.stream().begin_inline_function("test.network");
    let params = [&x, &weights, &outside].map(|tensor| trace.param(tensor.ty()).unwrap());
    let [a, b, c] = &params;
    let function = trace.end(&network(a, b, c).unwrap()).unwrap();
    assert!(!function.captures().is_empty() && function.captures().iter().all(Tensor::is_number));
    let direct = || network(&x, &weights, &outside).unwrap()[0].to_vec::<f32>();
    warm_up(&engine, || direct().map(drop)).unwrap();
    let wanted = direct().unwrap();
    let before = engine.counters();
    for _ in 0..3 {
        let results = function.write_out(engine.stream(), &[&x, &weights, &outside]).unwrap();
        assert_eq!(results[0].to_vec::<f32>().unwrap(), wanted);
    }
    let did = engine.counters().since(&before);
    assert_eq!((did.regions, did.compiles, did.misses), (3, 0, 0));
}

/// Each check of an inline function names the line that the function was written out at.
#[test]
fn an_inline_function_checks_indices() {
    let engine = fuseline::EngineConfig::new().check_indices(true).build_reference().unwrap();
    let trace = engine.stream().begin_inline_function("test.rows");
    let rows = trace.param(&TensorType::of(DType::F32, &[4]).unwrap()).unwrap();
    let places: Vec<Tensor> =
        (0..2).map(|_| trace.param(&TensorType::of(DType::I32, &[2]).unwrap()).unwrap()).collect();
    let taken = [rows.take(&places[0], 0).unwrap(), rows.take(&places[1], 0).unwrap()];
    let function = trace.end(&taken).unwrap();
    let rows = engine.tensor(&[0.0f32, 1.0, 2.0, 3.0], &[4]).unwrap();
    let right = engine.tensor(&[3i32, 0], &[2]).unwrap();
    let wrong = engine.tensor(&[0i32, 4], &[2]).unwrap();
    let taken = function.write_out(engine.stream(), &[&rows, &right, &right]).unwrap();
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[1].to_vec::<f32>().unwrap(), [3.0, 0.0]);
    let (taken, line) = (function.write_out(engine.stream(), &[&rows, &right, &wrong]).unwrap(), line!());
    let message = taken[1].to_vec::<f32>().unwrap_err().to_string();
    assert!(message.contains("the index 4 is out of range"), "{message}");
    assert!(message.contains(&format!("function.rs:{line}")), "{message}");
}

#[test]
fn what_is_written_out_ends_where_a_program_drops_it() {
    let engine = Engine::reference();
    let trace = engine.stream().begin_function("test.chain");
    let mut x = trace.param(&TensorType::of(DType::F32, &[64]).unwrap()).unwrap();
    for _ in 0..50 {
        x = x.tanh().unwrap();
    }
    let function = trace.end(&[x]).unwrap();
    let input = engine.full(0.5f32, &[64]).unwrap();
    engine.synchronize().unwrap();
    let before = engine.counters().live_values;
    let results = with_mode(Mode::Strict, || function.write_out(engine.stream(), &[&input])).unwrap();
    engine.synchronize().unwrap();
    assert_eq!(engine.counters().live_values, before + 1);
    drop(results);
}

#[test]
fn what_a_function_is_given_is_checked() {
    let engine = Engine::reference();
    let ty = TensorType::of(DType::F32, &[2]).unwrap();
    let trace = engine.stream().begin_function("test.twice");
    let x = trace.param(&ty).unwrap();
    let function = trace.end(&[(&x + &x).unwrap()]).unwrap();
    let wrong = engine.full(1.0f32, &[3]).unwrap();
    for call in [function.call(engine.stream(), &[&wrong]), function.write_out(engine.stream(), &[])] {
        let message = call.unwrap_err().to_string();
        assert!(message.contains("f32[2]"), "{message}");
    }
    // A value of a function that has ended.
    let message = (&x + &x).unwrap_err().to_string();
    assert!(message.contains("has ended"), "{message}");
    let message = engine
        .stream()
        .begin_function("test.read")
        .param(&ty)
        .unwrap()
        .to_vec::<f32>()
        .unwrap_err()
        .to_string();
    assert!(message.contains("has ended") || message.contains("no data"), "{message}");
    let message = engine.stream().begin_function("no name").end(&[]).unwrap_err().to_string();
    assert!(message.contains("name"), "{message}");
}
