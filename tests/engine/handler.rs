//! Host functions that programs call: handlers, on the plugin through XLA's typed FFI.

use std::sync::atomic::{AtomicU64, Ordering};

use fuseline::fusion::op::attrs;
use fuseline::fusion::program::Program;
use fuseline::fusion::text::TextModule;
use fuseline::handler::{self, Config, Handler, HandlerCall, Target, TargetError};
use fuseline::{CustomOp, DType, Error, Literal, OpCode, TensorType};

use crate::support::{self, Log, in_each_mode, on_all_tiers, warm_up};

/// A handler made of two functions.
struct Of<R, F>(R, F, bool);

impl<R, F> Handler for Of<R, F>
where
    R: Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync,
    F: Fn(HandlerCall<'_>) -> Result<(), String> + Send + Sync,
{
    fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String> {
        self.0(operands, config)
    }

    fn run(&self, call: HandlerCall<'_>) -> Result<(), String> {
        self.1(call)
    }

    fn has_side_effect(&self) -> bool {
        self.2
    }
}

/// Registers a handler whose results have the operands' types.
fn same(
    name: &str,
    run: impl Fn(HandlerCall<'_>) -> Result<(), String> + Send + Sync + 'static,
) -> &'static Target {
    handler::register(name, Of(|operands: &[TensorType], _: &Config| Ok(operands.to_vec()), run, false))
        .unwrap()
}

fn copy(call: HandlerCall<'_>) -> Result<(), String> {
    for (result, operand) in call.results.iter_mut().zip(call.operands) {
        result.bytes.copy_from_slice(operand.bytes);
    }
    Ok(())
}

/// Row sums and the transpose: shapes other than the operand's, row-major whatever XLA would
/// choose.
fn register_rows() -> &'static Target {
    let rule = |operands: &[TensorType], _: &Config| match operands {
        [matrix] if matrix.rank() == 2 && matrix.dtype() == DType::F32 => {
            let dims = matrix.dims();
            let of = |dims: &[u64]| TensorType::of(DType::F32, dims).map_err(|error| error.to_string());
            Ok(vec![of(&dims[..1])?, of(&[dims[1], dims[0]])?])
        }
        _ => Err("it takes one matrix of f32".to_owned()),
    };
    let run = |call: HandlerCall<'_>| {
        let columns = call.operands[0].ty.dims()[1] as usize;
        let data = call.operands[0].to_vec::<f32>()?;
        let rows: Vec<&[f32]> = data.chunks(columns).collect();
        let sums: Vec<f32> = rows.iter().map(|row| row.iter().sum()).collect();
        let turned: Vec<f32> = (0..columns).flat_map(|at| rows.iter().map(move |row| row[at])).collect();
        call.results[0].write(&sums)?;
        Ok(call.results[1].write(&turned)?)
    };
    handler::register("test.rows", Of(rule, run, false)).unwrap()
}

/// In one region with its neighbours, in the promised layouts, compiled once.
#[test]
fn a_handler_is_part_of_its_region() {
    let rows = register_rows();
    let log = Log::default();
    on_all_tiers(
        || support::config().event_sink(log.sink()),
        |engine| {
            let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
            let step = || {
                // XLA would make the result of a transpose column-major if it could choose.
                let turned = (&x + &x)?.transpose(&[1, 0])?;
                let made = engine.stream().call_handler(rows, &[&turned], Config::none())?;
                let sums = (&made[0] * 10.0)?;
                assert_eq!(sums.to_vec::<f32>()?, [100.0, 140.0, 180.0]);
                assert_eq!(made[1].to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
                Ok(())
            };
            let start = engine.counters();
            warm_up(engine, step)?;
            let before = engine.counters();
            assert_eq!(before.since(&start).misses, 1);
            log.take();
            (0..3).try_for_each(|_| step())?;
            assert_eq!(log.regions().iter().filter(|(_, ops)| *ops >= 4).count(), 3);
            let done = engine.counters().since(&before);
            assert_eq!((done.executions, done.compiles, engine.counters().fallbacks), (3, 0, 0));
            Ok(())
        },
    );
    let error = TensorType::of(DType::F64, &[2]).unwrap();
    let call = attrs::custom_call("test.rows", Config::none(), false);
    let error = fuseline::fusion::Signature::infer(OpCode::CustomCall, call, &[], &[error]).unwrap_err();
    assert!(error.to_string().contains("test.rows was given (f64[2])"), "{error}");
    assert!(error.to_string().contains("it takes one matrix of f32"), "{error}");
}

#[test]
fn elements_of_every_type_arrive() {
    let echo = same("test.echo", copy);
    in_each_mode(|engine, _| {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.bits() >= 8 || *dtype == DType::Bool) {
            for dims in [&[][..], &[5], &[2, 0], &[3, 2, 2]] {
                let ty = TensorType::of(dtype, dims)?;
                let count = ty.bytes().0 as usize;
                let byte = |index: usize| if dtype == DType::Bool { index % 2 } else { index * 37 % 251 };
                let data = Literal::from_bytes(ty, (0..count).map(|index| byte(index) as u8).collect())?;
                let x = engine.from_literal(&data)?;
                let back = engine.stream().call_handler(echo, &[&x, &x], Config::none())?;
                assert_eq!(back[1].to_literal()?, data, "{dtype}");
            }
        }
        Ok(())
    });
    let narrow = TensorType::of(DType::I4, &[2]).unwrap();
    let call = attrs::custom_call("test.echo", Config::none(), false);
    let error = fuseline::fusion::Signature::infer(OpCode::CustomCall, call, &[], &[narrow]).unwrap_err();
    assert!(error.to_string().contains("handlers support only elements of whole bytes"), "{error}");
}

/// The configuration of a call arrives unchanged, for every kind.
#[test]
fn what_a_call_says_arrives() {
    let all = || {
        Config::of([
            ("flag", true.into()),
            ("unset", false.into()),
            ("least", i64::MIN.into()),
            ("tenth", 0.1.into()),
            ("infinite", f64::NEG_INFINITY.into()),
            ("none", f64::NAN.into()),
            ("zero", (-0.0).into()),
            ("path", "a/b:c-d_2.e".into()),
            ("sizes", [3, -1, i64::MAX][..].into()),
            ("empty", [][..].into()),
        ])
    };
    let told = same("test.told", move |call| {
        if *call.config == all() { copy(call) } else { Err(format!("it was told {:?}", call.config)) }
    });
    in_each_mode(|engine, _| {
        let x = engine.tensor(&[1.0f32], &[1])?;
        let made = engine.stream().call_handler(told, &[&x], all())?;
        assert_eq!(made[0].to_vec::<f32>()?, [1.0]);
        Ok(())
    });
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls with an effect happen once each, in order, whether or not their results are used.
#[test]
fn effects_happen_in_order() {
    let append = handler::register(
        "test.append",
        Of(
            |operands: &[TensorType], _: &Config| Ok(operands.to_vec()),
            |call: HandlerCall<'_>| {
                let digit = call.config.int("digit").ok_or("it is told a digit")? as u64;
                CALLS
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |calls| Some(calls * 10 + digit))
                    .ok();
                copy(call)
            },
            true,
        ),
    )
    .unwrap();
    in_each_mode(|engine, _| {
        CALLS.store(0, Ordering::Relaxed);
        let x = engine.tensor(&[1.0f32], &[1])?;
        for digit in 1..=6 {
            let y = (&x + &x)?;
            drop(engine.stream().call_handler(append, &[&y], Config::of([("digit", digit.into())]))?);
        }
        engine.synchronize()?;
        assert_eq!(CALLS.load(Ordering::Relaxed), 123_456);
        Ok(())
    });
}

fn fails(error: &Error, words: &[&str]) {
    let said = error.to_string();
    assert!(words.iter().all(|words| said.contains(words)), "{said} does not say {words:?}");
}

/// An error, a panic and an invalid value fail the dependents of the call, and nothing else.
#[test]
fn failures_are_told_and_stay_where_they_are() {
    let refuse = same("test.refuse", |call| match call.operands[0].to_vec::<f32>()?[0] {
        x if x < 0.0 => Err(format!("{x} is negative")),
        x if x > 100.0 => panic!("{x} is too much"),
        _ => copy(call),
    });
    let two = handler::register(
        "test.two",
        Of(
            |operands: &[TensorType], _: &Config| {
                Ok(vec![TensorType::of(DType::Bool, operands[0].dims()).unwrap()])
            },
            |call: HandlerCall<'_>| {
                call.results[0].bytes.fill(2);
                Ok(())
            },
            false,
        ),
    )
    .unwrap();
    in_each_mode(|engine, mode| {
        let call = |x: f32| {
            let x = engine.tensor(&[x], &[1])?;
            let y = engine.stream().call_handler(refuse, &[&x], Config::none())?;
            (&y[0] + &y[0])?.to_vec::<f32>()
        };
        assert_eq!(call(1.0)?, [2.0]);
        fails(&call(-1.0).unwrap_err(), &["test.refuse", "-1 is negative"]);
        fails(&call(101.0).unwrap_err(), &["test.refuse", "it panicked: 101 is too much"]);
        assert_eq!(call(2.0)?, [4.0], "{mode:?}");
        let x = engine.tensor(&[1.0f32], &[1])?;
        let made = engine.stream().call_handler(two, &[&x], Config::none());
        let error = made.and_then(|made| made[0].to_vec::<bool>()).unwrap_err();
        fails(&error, &["test.two: it wrote invalid data to result 0"]);
        Ok(())
    });
}

/// Only registered handlers can be called, from records, programs and texts.
#[test]
fn targets_are_those_that_are_registered() {
    let name = "test.nobody";
    let call = attrs::custom_call(name, Config::none(), false);
    let ty = TensorType::of(DType::F32, &[2]).unwrap();
    let error = fuseline::fusion::Signature::infer(OpCode::CustomCall, call, &[], &[ty]).unwrap_err();
    for words in ["custom_call", "no handler is registered as test.nobody", "handler::register"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    let text = |target: &str, extra: &str| {
        format!(
            "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
               %0 = stablehlo.custom_call @{target}(%x) {{{extra}}} : (tensor<2xf32>) -> tensor<2xf32>
               return %0 : tensor<2xf32>
             }}"
        )
    };
    let error = TextModule::parse(&text(name, "")).unwrap_err();
    assert!(error.to_string().contains("no handler is registered as test.nobody"), "{error}");
    let json = r#"{"values":[{"id":0,"role":"input","shape":[2],"dtype":"f32","data":"AACAPwAAAEA="}],"ops":[
        {"op":"stablehlo.custom_call","operands":[0],"results":[{"id":1,"shape":[2],"dtype":"f32"}],
         "attrs":{"call_target_name":"test.nobody","backend_config":{},"has_side_effect":false}}],"outputs":[1]}"#;
    let error = Program::parse(json).unwrap_err();
    assert!(error.to_string().contains("no handler is registered as test.nobody"), "{error}");

    same("test.known", copy);
    Program::parse(&json.replace(name, "test.known")).unwrap();
    for extra in [
        "",
        "api_version = 4 : i32, backend_config = {axis = 1 : i32, eps = 1.0e-5 : f32}, has_side_effect = false",
        "backend_config = \"\", operand_layouts = [dense<0> : tensor<1xindex>], mhlo.sharding = \"{replicated}\"",
    ] {
        let op = CustomOp::from_stablehlo("test.op", &text("test.known", extra));
        let op = op.unwrap_or_else(|error| panic!("{extra}: {error}"));
        assert_eq!(op.body().graph().nodes()[0].signature().op(), OpCode::CustomCall);
    }
    for (extra, words) in [
        ("api_version = 2 : i32", "an api_version other than 4"),
        ("backend_config = \"opaque\"", "in a format of the target"),
        ("called_computations = [@f]", "called_computations"),
        ("has_side_effect = true", "the handler test.known is registered with false"),
        ("backend_config = {axis = \"two words\"}", "handlers take names"),
        ("backend_config = {axis = 1, axis = 2}", "given twice"),
        ("nonsense = 1", "no attribute nonsense"),
    ] {
        let error = TextModule::parse(&text("test.known", extra)).unwrap_err();
        assert!(error.to_string().contains(words), "{extra}: {error}");
    }
    let matrix = text("test.known", "operand_layouts = [dense<[0, 1]> : tensor<2xindex>]");
    let error = TextModule::parse(&matrix.replace("<2xf32>", "<2x2xf32>")).unwrap_err();
    assert!(error.to_string().contains("layouts other than row-major"), "{error}");
}

#[test]
fn a_name_stands_for_one_handler() {
    same("test.once", copy);
    let again =
        handler::register("test.once", Of(|_: &[TensorType], _: &Config| Ok(Vec::new()), copy, false));
    let error = again.unwrap_err();
    assert_eq!(error, TargetError::Taken("test.once".to_owned()));
    fails(&error.into(), &["the handler name test.once is already taken", "another name"]);
    let unnamed =
        handler::register("two words", Of(|_: &[TensorType], _: &Config| Ok(Vec::new()), copy, false));
    fails(&unnamed.unwrap_err().into(), &["\"two words\" is not a valid handler name"]);
}

/// Functions of the plugin are left to it. One that it lacks is a compiler error, and the reference
/// device has none.
#[test]
fn functions_of_the_plugin_are_left_to_it() {
    let target =
        handler::allow("test.of_plugin", |operands: &[TensorType], _: &Config| Ok(operands.to_vec()))
            .unwrap();
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[1.0f32], &[1])?;
        let made = engine.stream().call_handler(target, &[&x], Config::of([("axis", 0.into())]))?;
        fails(&made[0].to_vec::<f32>().unwrap_err(), &["custom"]);
        Ok(())
    });
}

/// In a loop, and in a function that is called by name.
#[test]
fn handlers_are_called_from_bodies() {
    let half = same("test.half", |call| {
        let data: Vec<f32> = call.operands[0].to_vec::<f32>()?.iter().map(|x| x / 2.0).collect();
        Ok(call.results[0].write(&data)?)
    });
    in_each_mode(|engine, _| {
        let stream = engine.stream();
        let x = engine.tensor(&[8.0f32, 16.0], &[2])?;
        let y = stream
            .for_range(0..3, x, |_, x| Ok(stream.call_handler(half, &[&x], Config::none())?.remove(0)))?;
        assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
        Ok(())
    });
}

/// A handler that requests a value would wait for a region that waits for it. It is refused, and
/// the region continues.
#[test]
fn handlers_cannot_wait_for_streams() {
    let wait = same("test.wait", |call| {
        let engine = fuseline::Engine::reference();
        let waits = || (&engine.tensor(&[1.0f32], &[1])? * 2.0)?.to_vec::<f32>();
        let refused = waits().expect_err("it must not wait").to_string();
        if refused.contains("a handler waits for a stream") { copy(call) } else { Err(refused) }
    });
    in_each_mode(|engine, _| {
        let x = engine.tensor(&[3.0f32], &[1])?;
        let made = engine.stream().call_handler(wait, &[&x], Config::none())?;
        assert_eq!(made[0].to_vec::<f32>()?, [3.0]);
        Ok(())
    });
}
