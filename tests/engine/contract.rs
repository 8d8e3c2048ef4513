//! The engine's contract: equal results in all modes, boundaries with reasons, located failures.

mod run_ahead;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fuseline::handler::{self, Config, Handler, HandlerCall};
use fuseline::{
    Budgets, Bytes, DType, Engine, EngineConfig, Event, Fault, FaultPoint, HardOnly, Literal, Mode, OpCode,
    Result, Stage, Tensor, TensorType, Varies, Varying, with_mode,
};

use crate::support::{
    self, Log, block_on, close, on_all_tiers, on_engines, plugin, vector, wait_until, warm_up,
};

const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

#[test]
fn every_mode_gives_the_same_result() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let w = engine.tensor(&[0.05f32, -0.1, 0.2, 0.025, 0.15, -0.05], &[3, 2])?;
        for mode in MODES {
            let y = with_mode(mode, || -> Result<Tensor> {
                let y = (x.matmul(&w)? + 1.0)?.tanh()?;
                &y - &y.mean(&[1])?.unsqueeze(1)?
            })?;
            let t = [1.9f32, 0.8, 3.1, 0.425].map(f32::tanh);
            let means = [(t[0] + t[1]) / 2.0, (t[2] + t[3]) / 2.0];
            let expected = [t[0] - means[0], t[1] - means[0], t[2] - means[1], t[3] - means[1]];
            close(&y.to_vec::<f32>()?, &expected, 1e-5);
        }
        Ok(())
    });
}

#[test]
fn operators_broadcast_and_numbers_take_the_tensors_type() {
    on_all_tiers(support::config, |engine| {
        let m = engine.tensor(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?;
        let row = engine.tensor(&[10i32, 20, 30], &[3])?;
        let column = engine.tensor(&[100i32, 200], &[2, 1])?;
        let sum = (&(&m + &row)? + &column)?;
        assert_eq!(sum.to_vec::<i32>()?, [111, 122, 133, 214, 225, 236]);
        assert_eq!((2 * &m)?.to_vec::<i32>()?, [2, 4, 6, 8, 10, 12]);
        assert_eq!((1.0 - vector(engine, &[0.25]))?.to_vec::<f32>()?, [0.75]);
        assert_eq!((-&m)?.to_vec::<i32>()?, [-1, -2, -3, -4, -5, -6]);
        Ok(())
    });
}

#[test]
fn several_results_and_argmax() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[1.0f32, 7.0, 7.0, f32::NAN, 2.0, f32::NAN], &[2, 3])?;
        assert_eq!(x.argmax(1)?.to_vec::<i32>()?, [1, 0]);
        let state = engine.tensor(&[1u64, 2], &[2])?;
        let algorithm = fuseline::fusion::op::RngAlgorithm::ThreeFry;
        let (next, bits) = engine.stream().random_bits(algorithm, &state, DType::U32, &[4])?;
        let (_, again) = engine.stream().random_bits(algorithm, &state, DType::U32, &[4])?;
        let (_, other) = engine.stream().random_bits(algorithm, &next, DType::U32, &[4])?;
        assert_eq!(bits.to_vec::<u32>()?, again.to_vec::<u32>()?);
        assert_ne!(bits.to_vec::<u32>()?, other.to_vec::<u32>()?);
        Ok(())
    });
}

#[test]
fn an_embedding_lookup_takes_rows() {
    on_all_tiers(
        || support::config().check_indices(false),
        |engine| {
            let table = engine.tensor(&(0..12).map(|i| i as f32).collect::<Vec<_>>(), &[4, 3])?;
            let indices = engine.tensor(&[2i32, 0, 9, -1], &[2, 2])?;
            let rows = table.take(&indices, 0)?;
            assert_eq!(rows.dims(), [2, 2, 3]);
            // Indices out of range are clamped, as in `gather`.
            assert_eq!(rows.to_vec::<f32>()?, [6., 7., 8., 0., 1., 2., 9., 10., 11., 0., 1., 2.]);
            let hot = engine.tensor(&[1i32, 5], &[2])?.one_hot(3, DType::F32)?;
            assert_eq!(hot.to_vec::<f32>()?, [0., 1., 0., 0., 0., 0.]);
            Ok(())
        },
    );
}

#[test]
fn regions_end_for_stated_reasons() {
    let budgets = Budgets { ops: 8, inputs: 4, bytes: Bytes(1 << 20), ..Budgets::default() };
    let log = Log::default();
    let config = || support::config().region_budgets(budgets).event_sink(log.sink());
    on_engines(config, |engine| {
        log.take();
        let x = vector(engine, &[1.0; 16]);
        let y = vector(engine, &[2.0; 16]);
        let chain = |mut z: Tensor, ops: usize| -> Result<Tensor> {
            for _ in 0..ops {
                z = z.add(&y)?;
            }
            Ok(z)
        };
        chain(x.clone(), 3)?.wait()?;
        assert_eq!(log.regions(), [("host_read".to_owned(), 3)]);
        let kept = chain(x.clone(), 2)?;
        engine.stream().flush();
        engine.synchronize()?;
        assert_eq!(log.regions(), [("flush".to_owned(), 2)]);
        drop(kept);
        chain(x.clone(), 20)?.wait()?;
        let budget = ("op_budget".to_owned(), 8);
        assert_eq!(log.regions(), [budget.clone(), budget, ("host_read".to_owned(), 4)]);
        // Five different inputs: the fifth does not fit.
        let others: Vec<Tensor> = (0..4).map(|i| vector(engine, &[i as f32; 16])).collect();
        let mut z = x.clone();
        for other in &others {
            z = z.add(other)?;
        }
        z.wait()?;
        assert_eq!(log.regions(), [("input_budget".to_owned(), 3), ("host_read".to_owned(), 1)]);
        // A result of a megabyte.
        let big = engine.full(1.0f32, &[512, 512])?;
        let kept = big.neg()?;
        kept.wait()?;
        assert_eq!(log.regions(), [("byte_budget".to_owned(), 1), ("byte_budget".to_owned(), 1)]);
        // A change of mode ends the region before it; Strict ends one at every op.
        let a = chain(x.clone(), 2)?;
        let b = with_mode(Mode::Strict, || chain(a.clone(), 2))?;
        chain(b, 1)?.wait()?;
        let strict = ("strict".to_owned(), 1);
        let expected = [("mode_change".to_owned(), 2), strict.clone(), strict, ("host_read".to_owned(), 1)];
        assert_eq!(log.regions(), expected);
        Ok(())
    });
}

#[test]
fn a_read_of_a_known_value_is_no_boundary() {
    let log = Log::default();
    on_all_tiers(
        || support::config().event_sink(log.sink()),
        |engine| {
            let x = vector(engine, &[1.0, 2.0]);
            let y = x.neg()?;
            assert_eq!(y.to_vec::<f32>()?, [-1.0, -2.0]);
            log.take();
            let z = y.abs()?;
            assert_eq!(y.to_vec::<f32>()?, [-1.0, -2.0]);
            assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
            assert_eq!(log.regions(), []);
            assert_eq!(z.abs()?.to_vec::<f32>()?, [1.0, 2.0]);
            assert_eq!(log.regions(), [("host_read".to_owned(), 2)]);
            Ok(())
        },
    );
}

/// A timeout that no clock reaches is none.
#[test]
fn one_may_wait_for_ever() {
    let engine = Engine::reference();
    let y = vector(&engine, &[1.0, 2.0]).neg().unwrap();
    engine.stream().synchronize_for(Duration::MAX).unwrap();
    assert_eq!(y.to_literal_for(Duration::MAX).unwrap().bytes().len(), 8);
}

/// A way to request a value.
type Reading<'a> = &'a dyn Fn(&Tensor) -> Result<()>;

/// Steps with more ops than a region may have: the read in each step keeps all boundaries in the
/// same places, whether or not the value is computed by then, and whichever thread requests it.
#[test]
fn a_loop_of_steps_over_budget_is_steady_too() {
    // Not merged: the loss has to be there before it is requested.
    let budgets = Budgets { ops: 16, joined_ops: 0, ..Budgets::default() };
    let log = Log::default();
    on_all_tiers(
        || support::config().region_budgets(budgets).event_sink(log.sink()),
        |engine| {
            let other = engine.new_stream();
            let step = |x: &Tensor, read: Reading<'_>| -> Result<Tensor> {
                let loss = x.sum(&[0])?;
                let mut next = x.clone();
                // Often enough that a budget ends the loss's region long before the read.
                for _ in 0..100 {
                    next = ((&next * 0.5)? + 0.25)?;
                }
                read(&loss)?;
                Ok(next)
            };
            let reads: [(&str, Reading<'_>); 4] = [
                ("host_read", &|loss| loss.wait()),
                ("host_read", &|loss| {
                    // The driver knows the log by now, so this ends. If not, the other reads test
                    // the same.
                    let start = Instant::now();
                    while !loss.is_resolved() && start.elapsed() < Duration::from_secs(10) {
                        std::thread::yield_now();
                    }
                    loss.item::<f32>().map(drop)
                }),
                ("host_read", &|loss| {
                    loss.on_ready(drop);
                    Ok(())
                }),
                ("cross_stream", &|loss| {
                    other.record(OpCode::Negate, fuseline::Attrs::none(), &[], &[loss]).map(drop)
                }),
            ];
            for (reason, read) in reads {
                let mut x = vector(engine, &[1.0, 2.0]);
                warm_up(engine, || step(&x, read).map(|next| x = next))?;
                let before = engine.counters();
                log.take();
                for _ in 0..5 {
                    x = step(&x, read)?;
                }
                engine.synchronize()?;
                assert_eq!(engine.counters().since(&before).compiles, 0, "{reason}");
                let ours = log.take().into_iter().filter_map(|event| match event {
                    Event::Sealed { region, boundary, .. } if region.stream == engine.stream().id() => {
                        Some((boundary.name().to_owned(), region.ops))
                    }
                    _ => None,
                });
                let budget = || ("op_budget".to_owned(), 16);
                // The sum and its initial value, then 100 times two ops and their scalars.
                let of_a_step = || (0..402 / 16).map(|_| budget()).chain([(reason.to_owned(), 402 % 16)]);
                let steps: Vec<_> = (0..5).flat_map(|_| of_a_step()).collect();
                assert_eq!(ours.collect::<Vec<_>>(), steps);
            }
            Ok(())
        },
    );
}

#[test]
fn a_region_that_nobody_needs_is_left_out() {
    on_engines(support::config, |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        drop(x.exp()?);
        engine.synchronize()?;
        let counters = engine.counters();
        assert_eq!((counters.skipped, counters.executions), (1, 0));
        Ok(())
    });
}

#[test]
fn dying_inputs_are_reused_and_living_ones_are_not() {
    let Some(engine) = plugin(support::config()) else { return };
    let step = |x: Tensor| -> Tensor { (&x * 0.5).unwrap() };
    let input = || vector(&engine, &[1024.0; 4096]);
    warm_up(&engine, || step(input()).wait()).unwrap();
    let before = engine.counters();
    let mut x = input();
    for _ in 0..5 {
        x = step(x);
        x.wait().unwrap();
    }
    let donations = || engine.counters().since(&before).donations;
    assert_eq!(donations(), 5, "each step reuses the memory of the one before");
    let y = (&x * 0.5).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[0], 16.0);
    assert_eq!(x.to_vec::<f32>().unwrap()[0], 32.0, "a value with a handle is not overwritten");
    assert_eq!(donations(), 5);
}

/// The same program with handles dropped at other points has the same keys and results.
#[test]
fn when_handles_are_dropped_does_not_change_keys() {
    let log = Log::default();
    on_all_tiers(
        || support::config().event_sink(log.sink()),
        |engine| {
            let run = |keep: bool| -> Result<Vec<String>> {
                log.take();
                let x = vector(engine, &[1.0, 2.0]);
                let a = x.exp()?;
                let b = a.add(&x)?;
                let kept = keep.then(|| a.clone());
                drop(a);
                let c = b.mul(&x)?;
                c.wait()?;
                drop(kept);
                let keys = log.take().into_iter().filter_map(|event| match event {
                    Event::Sealed { region, .. } => Some(region.key.to_string()),
                    _ => None,
                });
                Ok(keys.collect())
            };
            assert_eq!(run(false)?, run(true)?);
            Ok(())
        },
    );
}

#[test]
fn values_can_be_read_as_futures_and_by_callback() {
    on_all_tiers(support::config, |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let y = x.add(&x)?;
        let mut read = pin!(y.read());
        let data = loop {
            match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(data) => break data?,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        assert_eq!(data.to_vec::<f32>()?, [2.0, 4.0]);
        let (send, receive) = mpsc::channel();
        let z = y.neg()?;
        z.on_ready(move |outcome| send.send(outcome.is_ok()).unwrap());
        assert!(receive.recv_timeout(Duration::from_secs(60)).unwrap());
        assert!(z.is_resolved());
        assert_eq!(z.to_literal_for(Duration::from_secs(60))?.to_vec::<f32>()?, [-2.0, -4.0]);
        Ok(())
    });
}

#[test]
fn waiting_in_a_callback_is_refused_and_hangs_nothing() {
    on_all_tiers(support::config, |engine| {
        let x = vector(engine, &[1.0]);
        let y = x.neg()?;
        let pending = x.exp()?;
        let (send, receive) = mpsc::channel();
        let inner = pending.clone();
        y.on_ready(move |_| {
            let _ = send.send(inner.to_vec::<f32>().map_err(|error| error.to_string()));
            panic!("callbacks may panic");
        });
        y.wait()?;
        let answer = receive.recv_timeout(Duration::from_secs(60)).unwrap();
        if let Err(text) = answer {
            assert!(text.contains("callback"), "{text}");
        }
        close(&pending.to_vec::<f32>()?, &[std::f32::consts::E], 1e-6);
        Ok(())
    });
}

#[test]
fn a_refused_op_says_what_the_rule_is_and_where() {
    let engine = Engine::reference();
    let a = engine.tensor(&[0.0f32; 6], &[2, 3]).unwrap();
    let b = engine.tensor(&[0.0f32; 8], &[2, 4]).unwrap();
    let error = a.matmul(&b).unwrap_err();
    let line = line!() - 1;
    let text = error.to_string();
    let rule = "dot_general: contracting dimension 1 of lhs is 3, but dimension 0 of rhs is 2";
    assert!(text.starts_with(rule), "{text}");
    assert!(text.ends_with(&format!("(at tests/engine/contract.rs:{line})")), "{text}");
    assert_eq!(error.stage(), Stage::Record);
    let error = a.add(&b).unwrap_err();
    assert!(error.to_string().contains("3 and 4 do not broadcast"), "{error}");
    let ints = engine.tensor(&[1i32; 6], &[2, 3]).unwrap();
    let error = ints.exp().unwrap_err();
    assert!(error.to_string().contains("convert it to a float first"), "{error}");
    let error = a.on_stream().record(OpCode::Add, fuseline::Attrs::none(), &[], &[&a, &ints]).unwrap_err();
    assert!(error.to_string().contains("same element type"), "{error}");
    // Nothing was lost: the engine still works.
    assert_eq!(a.sum(&[0, 1]).unwrap().item::<f32>().unwrap(), 0.0);
}

#[test]
fn debug_mode_finds_the_op_that_makes_nan() {
    on_engines(
        || support::config().mode(Mode::Debug).check_finite(true),
        |engine| {
            let x = vector(engine, &[1.0, -1.0]);
            let y = x.add(&x)?;
            let error = y.sqrt().unwrap_err();
            let line = line!() - 1;
            assert!(error.is_non_finite());
            let text = error.to_string();
            assert!(
                text.contains("sqrt") && text.contains(&format!("tests/engine/contract.rs:{line}")),
                "{text}"
            );
            assert!(text.contains("1 NaN and 0 infinite"), "{text}");
            assert_eq!(y.to_vec::<f32>()?, [2.0, -2.0]);
            Ok(())
        },
    );
}

#[test]
fn a_region_that_does_not_compile_runs_op_by_op() {
    let log = Log::default();
    let config = || {
        support::config().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Compile { ops } if ops > 1 => Some(Fault::new("too many ops for today")),
            _ => None,
        })
    };
    does_not_compile(config, &log, "too many ops for today");
}

/// E8: threads that wait for it get the error.
#[test]
fn a_compiler_that_panics_is_one_that_fails() {
    let log = Log::default();
    let config = || {
        support::config().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Compile { ops } if ops > 1 => panic!("too many ops for today"),
            _ => None,
        })
    };
    does_not_compile(config, &log, "the compiler layer panicked");
}

/// Runs a region a hundred times: interpreted, and from then on op by op, for this reason.
fn does_not_compile(config: impl Fn() -> EngineConfig, log: &Log, reason: &str) {
    on_all_tiers(config, |engine| {
        log.take();
        let x = vector(engine, &[1.0, 4.0]);
        for _ in 0..100 {
            let y = (&x * &x)?.sqrt()?;
            let z = (&y + &x)?;
            assert_eq!(z.to_vec::<f32>()?, [2.0, 8.0]);
            assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0]);
            // The interpreter would go on until the compile has failed.
            wait_until(engine, |counters| counters.pending_compiles == 0);
        }
        let counters = engine.counters();
        assert!(counters.compile_failures <= 3, "the key is not retried for ever: {counters:?}");
        let events = log.take();
        let is_interpreted =
            |event: &&Event| matches!(event, Event::Interpreted { region, .. } if region.ops > 1);
        let is_fallback = |event: &&Event| matches!(event, Event::Fallback { why, .. } if why == reason);
        let interpreted = events.iter().filter(is_interpreted).count() as u64;
        let fallbacks = events.iter().filter(is_fallback).count() as u64;
        // Ten times when it is new, and ten times when its compile is tried again.
        assert!(interpreted == 0 || interpreted == 20, "{interpreted} times interpreted: {counters:?}");
        let expected = (100 - interpreted, 100 - interpreted, 0);
        assert_eq!((counters.fallbacks, fallbacks, counters.poisoned), expected);
        Ok(())
    });
}

#[test]
fn a_failure_poisons_exactly_what_depends_on_it() {
    let config = || {
        support::config().inject_faults(|point| match point {
            FaultPoint::Execute { ops: 2 } => Some(Fault::new("the device is on fire")),
            _ => None,
        })
    };
    on_all_tiers(config, |engine| {
        // Fails as a whole but works op by op: a fault costs speed, not a result.
        let x = vector(engine, &[1.0, 2.0]);
        let y = x.neg()?.abs()?;
        assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
        assert_eq!(engine.counters().fallbacks, 1);
        Ok(())
    });
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let config = move || {
        let counted = counted.clone();
        counted.store(0, Ordering::Relaxed);
        support::config().mode(Mode::Strict).inject_faults(move |point| match point {
            FaultPoint::Execute { .. } => {
                (counted.fetch_add(1, Ordering::Relaxed) == 1).then(|| Fault::new("the device is on fire"))
            }
            _ => None,
        })
    };
    on_all_tiers(config, |engine| {
        calls.store(0, Ordering::Relaxed);
        let x = vector(engine, &[1.0, 2.0]);
        let good = x.neg()?;
        engine.synchronize()?;
        let bad = x.exp()?;
        let line = line!() - 1;
        let dependant = bad.add(&good)?;
        let deeper = with_mode(Mode::Fused, || dependant.mul(&x))?;
        let independent = with_mode(Mode::Fused, || good.add(&x))?;
        let error = deeper.to_vec::<f32>().unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exponential") && text.contains(&format!("tests/engine/contract.rs:{line}")),
            "{text}"
        );
        assert!(text.contains("the device is on fire"), "{text}");
        assert_eq!(error.stage(), Stage::Execute);
        assert_eq!(error.region().unwrap().ops, 1);
        assert!(dependant.to_vec::<f32>().is_err() && bad.to_vec::<f32>().is_err());
        assert_eq!(independent.to_vec::<f32>()?, [0.0, 0.0]);
        assert_eq!(good.to_vec::<f32>()?, [-1.0, -2.0]);
        // Failures are not sticky.
        close(&x.exp()?.to_vec::<f32>()?, &[std::f32::consts::E, 7.389_056], 1e-6);
        Ok(())
    });
}

#[test]
fn many_threads_record_on_one_stream() {
    on_all_tiers(support::config, |engine| {
        let x = vector(engine, &[1.0; 8]);
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (engine, x) = (engine.clone(), x.clone());
                std::thread::spawn(move || -> Result<()> {
                    let mut y = x.clone();
                    for i in 0..200 {
                        y = (&y + f64::from(thread))?;
                        if i % 50 == 49 {
                            assert_eq!(y.to_vec::<f32>()?, [1.0 + (i + 1) as f32 * thread as f32; 8]);
                        }
                    }
                    drop(engine);
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    });
}

#[test]
fn streams_use_each_others_values() {
    on_all_tiers(support::config, |engine| {
        let (a, b) = (engine.new_stream(), engine.new_stream());
        let x = a.tensor(&[1.0f32, 2.0], &[2])?;
        let mut on_a = x.neg()?;
        let mut on_b = b.record(OpCode::Abs, fuseline::Attrs::none(), &[], &[&on_a])?.remove(0);
        assert_eq!(on_b.on_stream().id(), b.id());
        for _ in 0..10 {
            let sum = fuseline::Attrs::none();
            on_a = a.record(OpCode::Add, sum.clone(), &[], &[&on_b, &x])?.remove(0);
            on_b = b.record(OpCode::Add, sum, &[], &[&on_a, &x])?.remove(0);
        }
        assert_eq!(on_b.to_vec::<f32>()?, [21.0, 42.0]);
        Ok(())
    });
}

#[test]
fn a_tensor_of_another_engine_is_refused() {
    let (a, b) = (Engine::reference(), Engine::reference());
    let (x, y) = (vector(&a, &[1.0]), vector(&b, &[2.0]));
    let error = x.add(&y).unwrap_err();
    assert!(error.to_string().contains("another engine"), "{error}");
}

#[test]
fn handles_may_go_in_any_order() {
    on_all_tiers(support::config, |engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let y = x.neg()?;
        let stream = engine.new_stream();
        let z = stream.tensor(&[3.0f32], &[1])?;
        drop(stream);
        let w = z.neg()?;
        drop(z);
        drop(x);
        assert_eq!(y.to_vec::<f32>()?, [-1.0, -2.0]);
        assert_eq!(w.to_vec::<f32>()?, [-3.0]);
        Ok(())
    });
    // Tensors outlive their engine.
    let y = {
        let engine = Engine::reference();
        vector(&engine, &[1.0]).neg().unwrap()
    };
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0]);
    // A stream with recorded ops that nobody reads goes away without an error.
    let engine = Engine::reference();
    let x = vector(&engine, &[1.0]);
    for _ in 0..1_000 {
        drop(x.neg().unwrap());
    }
    drop(x);
    drop(engine);
}

/// A slow identity.
struct Slow;

impl Handler for Slow {
    fn results(&self, operands: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn run(&self, call: HandlerCall<'_>) -> std::result::Result<(), String> {
        std::thread::sleep(Duration::from_millis(2));
        call.results[0].bytes.copy_from_slice(call.operands[0].bytes);
        Ok(())
    }
}

/// The regions and bytes of results in flight stay within the limits, however far the program is.
#[test]
fn back_pressure_bounds_what_is_in_flight() {
    const SIDE: usize = 64;
    let slow = handler::register("engine.slow", Slow).unwrap();
    // Each region has one result, of 16 KiB.
    for (regions, bytes) in [(2, Bytes(1 << 30)), (100, Bytes(40 << 10))] {
        let log = Log::default();
        let config = || support::config().in_flight_limits(regions, bytes).event_sink(log.sink());
        on_all_tiers(config, |engine| {
            // Enough work for a plugin to do it on its own thread.
            let half = engine.tensor(&vec![0.5f32; SIDE * SIDE], &[SIDE; 2])?;
            let mut made = Vec::new();
            for _ in 0..40 {
                let product = half.matmul(&half)?;
                let late = engine.stream().call_handler(slow, &[&product], Config::none())?;
                made.push((&late[0] * 0.25)?);
                drop((product, late));
                engine.stream().flush();
            }
            engine.synchronize()?;
            for y in made {
                assert_eq!(y.to_vec::<f32>()?, vec![4.0; SIDE * SIDE]);
            }
            let (mut in_flight, mut most, mut launched, mut throttled) = (0, 0, 0, 0);
            for event in log.take() {
                match event {
                    Event::Launched { .. } => {
                        launched += 1;
                        in_flight += 1;
                    }
                    Event::Completed { .. } => in_flight -= 1,
                    Event::Throttled { .. } => throttled += 1,
                    _ => {}
                }
                // The end of an execution may be reported before its launch.
                most = most.max(in_flight);
            }
            assert!(launched >= 40 && in_flight == 0, "{launched} launched, {in_flight} not done");
            assert!(most <= 2, "{most} at once");
            // The reference device is done at once.
            if engine.pjrt_device().is_some() {
                assert!(throttled > 0 && most == 2, "the limit was not reached: {throttled}, {most}");
            }
            Ok(())
        });
    }
}

#[test]
fn a_captured_program_runs_elsewhere() {
    on_all_tiers(support::config, |engine| {
        let x = vector(engine, &[1.0, 2.0, 3.0]);
        let outside = x.neg()?;
        let (outputs, program) = engine.capture("a small program", || {
            let y = (&outside * 0.5)?;
            let z = y.reduce_window(OpCode::Maximum, &[2], &[1], &[(0, 0)])?;
            Ok(vec![z, y])
        })?;
        assert_eq!(outputs.len(), 2);
        let text = program.to_json();
        let back = fuseline::fusion::program::Program::parse(&text)?;
        assert_eq!(back, program);
        let other = Engine::reference();
        let prepared = other.prepare(Arc::new(back))?;
        let results: Vec<Literal> = prepared.results()?;
        assert_eq!(prepared.compare(&results), Some(Vec::new()));
        assert_eq!(results[0].to_vec::<f32>()?, [-0.5, -1.0]);
        Ok(())
    });
}

#[test]
fn handles_are_small_and_everything_is_shareable() {
    fn shareable<T: Send + Sync + 'static>() {}
    shareable::<Engine>();
    shareable::<Tensor>();
    shareable::<fuseline::Stream>();
    shareable::<fuseline::Error>();
    shareable::<fuseline::Read>();
    assert_eq!(size_of::<Tensor>(), 16);
    assert_eq!(size_of::<Result<Tensor>>(), 16);
}

#[test]
fn a_recompile_storm_is_told_once_with_what_varies() {
    let log = Log::default();
    // Sizes that vary are padded or interpreted, so that there is no storm.
    on_engines(
        || support::optimized_only().event_sink(log.sink()),
        |engine| {
            log.take();
            let storms = || -> Vec<Event> {
                log.take().into_iter().filter(|event| matches!(event, Event::RecompileStorm { .. })).collect()
            };
            // A loop whose data grows. The first time is new, not changed.
            for size in 1..=8 {
                let x = engine.tensor(&vec![1.0f32; size * 3], &[3, size])?;
                assert_eq!((&x * &x)?.neg()?.to_vec::<f32>()?.len(), size * 3);
            }
            assert_eq!(storms().len(), 0);
            for size in 9..=30 {
                let x = engine.tensor(&vec![1.0f32; size * 3], &[3, size])?;
                (&x * &x)?.neg()?.wait()?;
            }
            let told = storms();
            let [Event::RecompileStorm { misses: 8, varying, .. }] = told.as_slice() else {
                panic!("{told:?}")
            };
            let [Varying { what: Varies::Dimension { input: 0, axis: 1 }, latest, site }] =
                varying.as_slice()
            else {
                panic!("{varying:?}");
            };
            assert_eq!(latest, &["6", "7", "8", "9"]);
            assert!(site.to_string().contains("tests/engine/contract.rs:"), "{site}");
            assert!(told[0].to_string().contains("pad it"), "{}", told[0]);

            // Positions that are part of the program.
            let x = vector(engine, &[0.0; 40]);
            for from in 0..20 {
                x.narrow(0, from, from + 4)?.neg()?.wait()?;
            }
            let told = storms();
            let [Event::RecompileStorm { varying, .. }] = told.as_slice() else { panic!("{told:?}") };
            assert!(
                varying
                    .iter()
                    .all(|varying| matches!(varying.what, Varies::Attribute { op: OpCode::Slice, .. })),
                "{varying:?}"
            );
            assert!(told[0].to_string().contains("dynamic_slice"), "{}", told[0]);
            Ok(())
        },
    );
}

/// A compile is counted only once its executable can be found: waiters rely on that.
#[test]
fn what_is_counted_as_compiled_is_there() {
    let known = Arc::new(Mutex::new(None::<Engine>));
    let (send, counted) = mpsc::channel();
    let engine = known.clone();
    let sink = move |event: &Event| {
        // Reported by the compiling thread, before it hands over the executable.
        if let (Event::CompileFinished { .. }, Some(engine)) = (event, &*engine.lock().unwrap()) {
            let _ = send.send(engine.counters().compiles);
        }
    };
    // Each region is compiled at its first run.
    on_engines(
        || support::optimized_only().event_sink(sink.clone()),
        |engine| {
            *known.lock().unwrap() = Some(engine.clone());
            let x = vector(engine, &[1.0]);
            for round in 0..3u64 {
                // A different region each time.
                (0..=round).try_fold(x.clone(), |x, _| x.neg())?.wait()?;
                assert_eq!(counted.recv().unwrap(), round);
                assert_eq!(engine.counters().compiles, round + 1);
            }
            *known.lock().unwrap() = None;
            Ok(())
        },
    );
}

/// Reports the thread on which the engine drops it.
struct Tell(mpsc::Sender<std::thread::Thread>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current());
    }
}

/// An engine is dropped on the program's threads or its own, even with requested data in flight.
#[test]
fn an_engine_does_not_go_on_a_thread_of_the_plugin() {
    let me = std::thread::current().id();
    for _ in 0..3 {
        let (send, gone) = mpsc::channel();
        let tell = Tell(send);
        let config = support::config().boundary_rule(move || {
            let _owned = &tell;
            Box::new(HardOnly)
        });
        let Some(engine) = plugin(config) else { return };
        let size = 1 << 24;
        let x = engine.tensor(&vec![1.0f32; size], &[size]).unwrap();
        let y = x.neg().unwrap();
        y.wait().unwrap();
        let read = y.read();
        drop((x, y, engine));
        let thread = gone.recv_timeout(Duration::from_secs(60)).unwrap();
        let is_own = thread.name().is_some_and(|name| name.starts_with("fuseline-"));
        assert!(thread.id() == me || is_own, "it went on {thread:?}");
        assert!(block_on(read).unwrap().to_vec::<f32>().unwrap().iter().all(|&element| element == -1.0));
    }
}
