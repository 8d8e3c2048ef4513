//! User-defined ops: functions exported by JAX, called like any other op, fused with their
//! neighbours, by handle and by name.

use std::sync::Arc;

use fuseline::embed::Session;
use fuseline::{
    CustomOp, DType, Engine, Error, Mode, OpCode, Origin, Result, Site, Stage, Tensor, TensorType, with_mode,
};

use crate::exported::{check, exported};
use crate::support::{self, Log, on_all_tiers, on_engines, plugin, warm_up};

/// `(x, y) -> (tanh(x * y), x)`.
const GATE: &str = "module @gate {
  func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
    %0 = call @times(%x, %y) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %1 = stablehlo.tanh %0 : tensor<3xf32>
    return %1, %x : tensor<3xf32>, tensor<3xf32>
  }
  func.func private @times(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.multiply %x, %y : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}";

fn gate() -> CustomOp {
    CustomOp::from_stablehlo("test.gate", GATE).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn functions_from_jax_are_ops_in_every_mode() {
    on_engines(support::config, |engine| are_ops(engine, &[Mode::Fused, Mode::Strict, Mode::Debug]));
    // Only in Fused mode is anything interpreted.
    if let Some(engine) = plugin(support::compiled_first()) {
        are_ops(&engine, &[Mode::Fused]).unwrap();
    }
}

fn are_ops(engine: &Engine, modes: &[Mode]) -> Result<()> {
    for function in exported() {
        let op = engine.register_op(CustomOp::from_stablehlo(&function.name, &function.text)?)?;
        for &mode in modes {
            let inputs: Vec<Tensor> =
                function.inputs.iter().map(|data| engine.from_literal(data)).collect::<Result<_>>()?;
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let results = with_mode(mode, || engine.stream().call(&op, &inputs))?;
            assert_eq!(results.len(), function.outputs.len());
            for (index, (result, wanted)) in results.iter().zip(&function.outputs).enumerate() {
                check(&result.to_literal()?, wanted)
                    .unwrap_or_else(|error| panic!("{}, {mode:?}, output {index}: {error}", function.name));
            }
        }
    }
    Ok(())
}

/// Neighbours before and after are in one region and one executable with the op, whatever it
/// consists of.
#[test]
fn an_op_fuses_with_its_neighbours() {
    let log = Log::default();
    let softmax = exported().into_iter().find(|function| function.name == "softmax").unwrap();
    on_all_tiers(
        || support::config().event_sink(log.sink()),
        |engine| {
            let op = CustomOp::from_stablehlo("jax.softmax", &softmax.text)?;
            let x = engine.from_literal(&softmax.inputs[0])?;
            let step = || {
                let y = (&x + &x)?;
                let y = engine.stream().call(&op, &[&(&y - &x)?])?.remove(0);
                let z = y.neg()?.neg()?;
                check(&z.to_literal()?, &softmax.outputs[0]).unwrap_or_else(|error| panic!("{error}"));
                Ok(())
            };
            let start = engine.counters();
            warm_up(engine, step)?;
            let before = engine.counters();
            assert_eq!(before.since(&start).misses, 1);
            log.take();
            (0..3).try_for_each(|_| step())?;
            assert_eq!(log.regions(), vec![("host_read".to_owned(), 5); 3]);
            let done = engine.counters().since(&before);
            assert_eq!((done.regions, done.compiles, done.misses, done.hits), (3, 0, 0, 3));
            assert_eq!((done.executions, engine.counters().fallbacks), (3, 0));
            Ok(())
        },
    );
}

fn refused(error: &Error, words: [&str; 2]) {
    let said = error.to_string();
    assert!(words.iter().all(|words| said.contains(words)), "{said} does not say {words:?}");
    assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User));
}

#[test]
fn calls_of_other_types_are_refused_with_both() {
    on_all_tiers(support::config, |engine| {
        let (x, wide) = (engine.tensor(&[1.0f32; 3], &[3])?, engine.tensor(&[1.0f32; 4], &[4])?);
        let line = line!() + 1;
        let error = engine.stream().call(&gate(), &[&x, &wide]).unwrap_err();
        refused(&error, ["test.gate was called with (f32[3], f32[4])", "it takes (f32[3], f32[3])"]);
        assert_eq!(error.op_name(), Some("composite"));
        assert!(error.site().unwrap().to_string().contains(&format!("custom.rs:{line}")), "{error}");
        refused(
            &engine.stream().call(&gate(), &[&x]).unwrap_err(),
            ["(f32[3])", "it takes (f32[3], f32[3])"],
        );
        Ok(())
    });
}

#[test]
fn a_name_stands_for_one_function() {
    on_all_tiers(support::config, |engine| {
        let op = engine.register_op(gate())?;
        assert!(Arc::ptr_eq(&op, &engine.register_op(gate())?));
        assert!(Arc::ptr_eq(&op, &engine.custom_op("test.gate").unwrap()));
        let other = CustomOp::from_stablehlo("test.gate", &GATE.replace("tanh", "sine"))?;
        assert_ne!(op.fingerprint(), other.fingerprint());
        // Names of values and functions are not part of a function's identity.
        let same =
            CustomOp::from_stablehlo("test.gate", &GATE.replace("%0", "%zero").replace("@times", "@f"))?;
        assert_eq!(op.fingerprint(), same.fingerprint());
        refused(
            &engine.register_op(other).unwrap_err(),
            ["test.gate is taken by another function", "another name"],
        );
        let x = engine.tensor(&[0.5f32, 1.0, 2.0], &[3])?;
        assert_eq!(engine.stream().call(&op, &[&x, &x])?[1].to_vec::<f32>()?, [0.5, 1.0, 2.0]);
        Ok(())
    });
    for name in ["", "two words", "quote\"", "}"] {
        let error = CustomOp::from_stablehlo(name, GATE).unwrap_err();
        assert!(error.to_string().starts_with("composite: attribute name is"), "{error}");
        refused(&Error::from(error), ["composite", "a name of at most 128"]);
    }
}

/// By name, on streams, in traces, and as an op of the table.
#[test]
fn sessions_call_ops_by_name() {
    on_all_tiers(support::config, |engine| {
        let session = Session::on(engine.clone());
        let stream = session.open_stream()?;
        session.register_op(gate())?;
        let ty = TensorType::of(DType::F32, &[3])?;
        let x = session.upload(stream, &ty, fuseline::pjrt::bytes_of(&[0.5f32, -1.0, 2.0]))?;
        let wanted = [0.25f32.tanh(), 1.0f32.tanh(), 4.0f32.tanh()];
        let is_gate = |value| -> Result<bool> {
            let data = session.read(value)?.to_vec::<f32>()?;
            Ok(data.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6))
        };
        let site = || Site::Host("model.py:7".into());

        let made = session.call_op(stream, "test.gate", &[x, x], site())?;
        assert_eq!(made.iter().map(|made| made.ty.clone()).collect::<Vec<_>>(), [ty.clone(), ty.clone()]);
        assert!(is_gate(made[0].id)?);

        let trace = session.begin_trace()?;
        let input = session.placeholder(trace, &ty)?;
        let inner = session.call_op(trace, "test.gate", &[input, input], site())?;
        let function = session.end_trace(trace, "gated", &[inner[0].id])?;
        let program = session.program(function)?;
        assert_eq!(program.opcodes(), [OpCode::Composite]);
        let called = session.call(stream, function, &[x], site())?;
        assert!(is_gate(called[0].id)?);

        let error = session.call_op(stream, "test.gat", &[x, x], site()).unwrap_err();
        refused(&error, ["no op is registered as \"test.gat\"", "model.py:7"]);
        for value in
            [x, input].into_iter().chain([&made, &inner, &called].into_iter().flatten().map(|made| made.id))
        {
            session.release(value)?;
        }
        assert_eq!(session.live_values(), 0);
        session.forget(function)?;
        session.close_stream(stream)
    });
}
