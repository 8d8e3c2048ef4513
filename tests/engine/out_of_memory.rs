//! Out of memory: what is freed, retried and run in parts, and what finally fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use fuseline::handler::{self, Config, Handler, HandlerCall};
use fuseline::{
    Budgets, Bytes, Engine, EngineConfig, Error, Event, Fault, FaultPoint, Mode, Remedy, Result, Stage,
    Tensor, TensorType, mappings,
};

// What the interpreter fails on is compiled. The remedies here are for the plugin.
use crate::support::{self, Log, block_on, close, on_engines, plugin_for, vector, wait_until};

fn none_left() -> Option<Fault> {
    Some(Fault::out_of_memory("no memory today"))
}

/// A fault at the first `count` matching points.
fn first(
    count: usize,
    meant: impl Fn(FaultPoint) -> bool + Send + Sync,
) -> impl Fn(FaultPoint) -> Option<Fault> + Send + Sync {
    let left = AtomicUsize::new(count);
    move |point| {
        let less = |left: usize| left.checked_sub(1);
        let is_hit = meant(point) && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_hit { none_left() } else { None }
    }
}

/// Actions against a lack of memory, in order: number of frees, parts, number of failures.
fn done(events: &[Event]) -> (usize, Vec<Vec<usize>>, usize) {
    let remedies = |wanted: fn(&Remedy) -> bool| {
        let is = |event: &&Event| matches!(event, Event::OutOfMemory { remedy, .. } if wanted(remedy));
        events.iter().filter(is).count()
    };
    let parts = events.iter().filter_map(|event| match event {
        Event::InParts { parts, .. } => Some(parts.clone()),
        _ => None,
    });
    let freed = remedies(|remedy| matches!(remedy, Remedy::Freed { .. }));
    (freed, parts.collect(), remedies(|remedy| *remedy == Remedy::None))
}

fn is_poisoned(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Poisoned { .. }))
}

/// Ten ops; each output depends on all of them so far.
fn ten(x: &Tensor) -> Result<[Tensor; 2]> {
    let a = x.add(x)?.mul(x)?.sub(x)?.add(x)?;
    let b = a.mul(&a)?.add(x)?.sub(&a)?.mul(x)?;
    Ok([a.add(&b)?, b.neg()?])
}

/// The results of [`ten`] for one number.
fn of_ten(x: f32) -> [f32; 2] {
    let a = (x + x) * x - x + x;
    let b = (a * a + x - a) * x;
    [a + b, -b]
}

fn reads_ten(engine: &Engine) -> Result<()> {
    let x = vector(engine, &[1.0, 2.0]);
    let outputs = ten(&x)?;
    for (place, output) in outputs.iter().enumerate() {
        let wanted = [of_ten(1.0)[place], of_ten(2.0)[place]];
        close(&output.to_vec::<f32>()?, &wanted, 1e-6);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_runs_in_halves_until_it_does() {
    let log = Log::default();
    let config = || {
        support::compiled_first().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Execute { ops } if ops > 3 => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        log.take();
        reads_ten(engine)?;
        let events = log.take();
        let (freed, parts, failed) = done(&events);
        // The whole, and the halves with more than three ops, each after memory was freed.
        assert!(parts.iter().all(|parts| parts.len() == 2), "{parts:?}");
        assert_eq!(parts[0].iter().sum::<usize>(), 10, "{parts:?}");
        assert_eq!((freed, failed), (parts.len(), 0), "{parts:?}");
        assert!(parts.len() >= 3 && !is_poisoned(&events));
        let sizes = |events: &[Event]| -> Vec<usize> {
            let launched = events.iter().filter_map(|event| match event {
                Event::Launched { region, .. } => Some(region.ops),
                _ => None,
            });
            launched.collect()
        };
        let first_sizes = sizes(&events);
        assert_eq!(first_sizes.iter().sum::<usize>(), 10);
        assert!(first_sizes.iter().all(|&ops| ops <= 3) && first_sizes.len() <= 6, "{first_sizes:?}");

        // The parts are remembered and used at once, without another try. Outputs that a part did
        // not need before are compiled again.
        reads_ten(engine)?;
        let again = log.take();
        assert_eq!((done(&again).0, &done(&again).1, sizes(&again)), (0, &parts, first_sizes.clone()));
        let before = engine.counters();
        reads_ten(engine)?;
        let events = log.take();
        assert_eq!((done(&events).0, &done(&events).1, sizes(&events)), (0, &parts, first_sizes));
        let did = engine.counters().since(&before);
        assert_eq!((did.compiles, did.misses, did.out_of_memory), (0, 0, 0), "{did:?}");
        assert_eq!((did.partitioned, did.fallbacks), (parts.len() as u64, 0));
        Ok(())
    });
}

/// Memory that is available again a moment later costs a retry, and no executable.
#[test]
fn what_fits_after_memory_was_freed_runs_as_a_whole() {
    let log = Log::default();
    type Meant = fn(FaultPoint) -> bool;
    let points: [(Stage, Meant); 2] = [
        (Stage::Execute, |point| matches!(point, FaultPoint::Execute { ops: 10 })),
        (Stage::Compile, |point| matches!(point, FaultPoint::Compile { ops: 10 })),
    ];
    for (at, meant) in points {
        let config = || support::compiled_first().event_sink(log.sink()).inject_faults(first(1, meant));
        on_engines(config, |engine| {
            // Two unused executables when memory runs out.
            let x = vector(engine, &[1.0]);
            assert_eq!(x.neg()?.to_vec::<f32>()?, [-1.0]);
            assert_eq!(x.abs()?.to_vec::<f32>()?, [1.0]);
            log.take();
            let before = engine.counters();
            reads_ten(engine)?;
            let events = log.take();
            assert_eq!(done(&events), (1, Vec::new(), 0), "{at}");
            let freed = events.iter().find_map(|event| match event {
                Event::OutOfMemory { region, stage, asked, remedy } => {
                    Some((region.map(|region| region.ops), *stage, *asked, *remedy))
                }
                _ => None,
            });
            let (ops, stage, asked, remedy) = freed.unwrap();
            assert_eq!((ops, stage, asked), (Some(10), at, Bytes(16)));
            assert!(matches!(remedy, Remedy::Freed { executables: 2, in_flight: 0, .. }), "{remedy:?}");
            let did = engine.counters().since(&before);
            assert_eq!((did.executions, did.compiles, did.evictions, did.poisoned), (1, 1, 2, 0), "{did:?}");
            assert_eq!(engine.counters().cached_executables, 1);
            Ok(())
        });
    }
}

/// A region whose compile runs out of memory is halved, and the whole is retried now and then.
#[test]
fn what_does_not_compile_for_want_of_memory_runs_in_halves() {
    let log = Log::default();
    let config = || {
        support::compiled_first().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Compile { ops } if ops > 8 => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        log.take();
        for _ in 0..100 {
            reads_ten(engine)?;
        }
        let events = log.take();
        let (freed, parts, failed) = done(&events);
        assert_eq!((parts.len(), failed, is_poisoned(&events)), (100, 0, false));
        // Two tries at the first execution, and two after 64 more.
        assert_eq!((engine.counters().compile_failures, freed), (4, 2));
        assert_eq!(engine.counters().fallbacks, 0);
        Ok(())
    });
}

/// A region that compiles but does not run is tried as a whole at the first execution, after 64
/// more, after 512 more, and then no more.
#[test]
fn what_compiles_but_does_not_run_is_tried_three_times() {
    let log = Log::default();
    let config = || {
        support::compiled_first().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Execute { ops } if ops > 8 => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        log.take();
        for _ in 0..700 {
            reads_ten(engine)?;
        }
        let events = log.take();
        let whole = |event: &&Event| matches!(event, Event::CompileStarted { region } if region.ops > 8);
        assert_eq!(events.iter().filter(whole).count(), 3);
        let (freed, parts, failed) = done(&events);
        assert_eq!((freed, parts.len(), failed, is_poisoned(&events)), (3, 700, 0, false));
        Ok(())
    });
}

/// Once it has run, earlier failures do not count: the next one counts as the first.
#[test]
fn what_has_run_is_believed_again() {
    let fits = Arc::new(AtomicBool::new(true));
    let is_short = fits.clone();
    let config = || {
        let is_short = is_short.clone();
        support::compiled_first().inject_faults(move |point| match point {
            FaultPoint::Execute { ops } if ops > 8 && !is_short.load(Ordering::Relaxed) => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        let before = engine.counters();
        for _ in 0..6 {
            fits.store(false, Ordering::Relaxed);
            reads_ten(engine)?;
            fits.store(true, Ordering::Relaxed);
            // 64 in parts, and one as a whole.
            for _ in 0..65 {
                reads_ten(engine)?;
            }
        }
        let did = engine.counters().since(&before);
        assert_eq!((did.partitioned, did.poisoned), (6 * 65, 0), "{did:?}");
        Ok(())
    });
}

fn is_exhausted(error: &Error, words: &[&str]) {
    assert!(error.is_resource_exhausted() && error.is_retryable(), "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn an_op_that_never_fits_fails_and_what_depends_on_it() {
    let log = Log::default();
    // Values of 400 bytes.
    let config = || {
        support::compiled_first().event_sink(log.sink()).inject_faults(|point| match point {
            FaultPoint::Execute { ops: 1 } => None,
            FaultPoint::Execute { .. } => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        reads_ten(engine)?;
        assert_eq!(engine.counters().poisoned, 0, "single ops fit");
        Ok(())
    });
    let config = || {
        let count = AtomicUsize::new(0);
        support::compiled_first().event_sink(log.sink()).inject_faults(move |point| match point {
            FaultPoint::Execute { ops: 1 } => {
                // The second op of the stream, whenever it is tried.
                let asked = count.fetch_add(1, Ordering::Relaxed);
                if (1..3).contains(&asked) { none_left() } else { None }
            }
            FaultPoint::Execute { .. } => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        log.take();
        let x = engine.tensor(&[1.0f32; 100], &[100])?;
        let good = x.neg()?;
        let bad = x.exp()?;
        let line = line!() - 1;
        let after = bad.add(&good)?;
        let other = good.abs()?;
        let error = after.to_vec::<f32>().unwrap_err();
        let place = format!("tests/engine/out_of_memory.rs:{line}");
        is_exhausted(
            &error,
            &["exponential", &place, "no memory today", "400 B were asked for", "hold 800 B"],
        );
        assert_eq!((error.stage(), error.region().unwrap().ops), (Stage::Execute, 1));
        is_exhausted(&bad.to_vec::<f32>().unwrap_err(), &["exponential"]);
        assert_eq!(other.to_vec::<f32>()?, [1.0; 100]);
        assert_eq!(good.to_vec::<f32>()?, [-1.0; 100]);
        assert_eq!(done(&log.take()).2, 1, "what depends on it is not tried");
        assert_eq!(engine.counters().poisoned, 2);
        // Failures are not sticky.
        close(&x.exp()?.to_vec::<f32>()?, &[std::f32::consts::E; 100], 1e-6);
        Ok(())
    });
}

/// A single op that ran out of memory is tried again each time, including its compile.
#[test]
fn a_single_op_is_always_tried() {
    let config = || {
        let compiles = first(2, |point| matches!(point, FaultPoint::Compile { .. }));
        let executions = first(2, |point| matches!(point, FaultPoint::Execute { .. }));
        support::config()
            .mode(Mode::Strict)
            .inject_faults(move |point| compiles(point).or_else(|| executions(point)))
    };
    on_engines(config, |engine| {
        let x = vector(engine, &[4.0]);
        is_exhausted(&x.sqrt()?.to_vec::<f32>().unwrap_err(), &["sqrt", "compiling"]);
        is_exhausted(&x.sqrt()?.to_vec::<f32>().unwrap_err(), &["sqrt", "executing"]);
        assert_eq!(x.sqrt()?.to_vec::<f32>()?, [2.0]);
        assert_eq!(engine.counters().out_of_memory, 4);
        Ok(())
    });
}

/// A region that the interpreter runs first is compiled in the background, where no memory is
/// freed. A lack of memory there does not count against the region: the thread that has to wait for
/// its executable frees memory and tries again.
#[test]
fn a_background_compile_that_ran_out_of_memory_is_tried_again() {
    let log = Log::default();
    type Record = fn(&Tensor) -> Result<Tensor>;
    // So large that the first execution starts the compile.
    let regions: [(usize, Record); 2] =
        [(1 << 20, |x| x.exp()), (1 << 20, |x| ten(x).and_then(|[a, b]| a.add(&b)))];
    for (size, record) in regions {
        let is_meant = move |point| matches!(point, FaultPoint::Compile { .. });
        let config = EngineConfig::new().quick_compiles(false).event_sink(log.sink());
        let config = config.inject_faults(first(2, is_meant));
        let Some(engine) = plugin_for("compiles in the background", config) else { return };
        let x = vector(&engine, &vec![0.5; size]);
        let expected = record(&x).unwrap().to_vec::<f32>().unwrap();
        wait_until(&engine, |counters| counters.compile_failures == 1);
        assert_eq!(engine.counters().interpreted, 1);
        while engine.counters().executions == 0 {
            close(&record(&x).unwrap().to_vec::<f32>().unwrap(), &expected, 1e-6);
        }
        let events = log.take();
        assert_eq!((done(&events), is_poisoned(&events)), ((1, Vec::new(), 0), false), "{size}");
        let counters = engine.counters();
        assert_eq!((counters.compiles, counters.compile_failures, counters.out_of_memory), (1, 2, 1));
    }
}

/// It is unknown how far an op with an effect has got, so it is not retried.
#[test]
fn an_effect_is_not_repeated() -> Result<()> {
    let log = Log::default();
    let faults = first(1, |point| matches!(point, FaultPoint::Execute { .. }));
    let engine = support::config().event_sink(log.sink()).inject_faults(faults).build_reference()?;
    let target = handler::register("test.tells", Tells).unwrap();
    let x = vector(&engine, &[3.0]);
    let tell = |x: &Tensor| -> Result<Tensor> {
        Ok(engine.stream().call_handler(target, &[x], Config::none())?[0].clone())
    };
    is_exhausted(&tell(&x)?.to_vec::<f32>().unwrap_err(), &["custom_call", "no memory today"]);
    assert_eq!(done(&log.take()), (0, Vec::new(), 1));
    assert_eq!(tell(&x)?.to_vec::<f32>()?, [3.0]);
    Ok(())
}

/// Copies its operand and has an observable effect.
struct Tells;

impl Handler for Tells {
    fn results(&self, operands: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn run(&self, call: HandlerCall<'_>) -> std::result::Result<(), String> {
        call.results[0].bytes.copy_from_slice(call.operands[0].bytes);
        Ok(())
    }

    fn has_side_effect(&self) -> bool {
        true
    }
}

/// Inputs for donation survive a retry of the region, and its execution in parts.
#[test]
fn inputs_survive() {
    for tries in [1, 2] {
        let faults = || first(tries, |point| matches!(point, FaultPoint::Execute { ops } if ops > 2));
        on_engines(
            || support::compiled_first().inject_faults(faults()),
            |engine| {
                let mut x = vector(engine, &[1.0, 2.0]);
                for _ in 0..5 {
                    x = ((&x * 3.0)? - &x)?.neg()?.neg()?;
                    engine.synchronize()?;
                }
                assert_eq!(x.to_vec::<f32>()?, [32.0, 64.0]);
                let counters = engine.counters();
                assert_eq!((counters.out_of_memory, counters.poisoned), (tries as u64, 0));
                let donates = engine.pjrt_device().is_some();
                assert_eq!(counters.donations > 0, donates, "{counters:?}");
                Ok(())
            },
        );
    }
}

/// The plugin does not get an op whose result exceeds the host's memory. The rest runs.
#[test]
fn what_no_host_has_is_not_computed() {
    let log = Log::default();
    // One region, whatever its size.
    let budgets = Budgets { bytes: Bytes(u64::MAX), ..Budgets::default() };
    let config = support::compiled_first().region_budgets(budgets).event_sink(log.sink());
    let Some(engine) = plugin_for("memory of the plugin", config) else { return };
    let x = vector(&engine, &[1.0, 2.0]);
    let state = (&x + 1.0).unwrap();
    engine.synchronize().unwrap();
    log.take();
    let huge = engine.full(1.0f32, &[1 << 43]).unwrap();
    let line = line!() - 1;
    let sum = (&huge + 1.0).unwrap().sum(&[0]).unwrap();
    // In the region that fails, the memory of `state` could be reused.
    let next = state.mul(&x).unwrap();
    drop(state);
    let error = huge.wait().unwrap_err();
    let place = format!("tests/engine/out_of_memory.rs:{line}");
    is_exhausted(&error, &["RESOURCE_EXHAUSTED", "broadcast_in_dim", &place, "32.0 TiB were asked for"]);
    assert_eq!(next.to_vec::<f32>().unwrap(), [2.0, 6.0]);
    drop(sum);
    let events = log.take();
    let (freed, parts, failed) = done(&events);
    assert!(freed == 0 && !parts.is_empty() && failed >= 1, "{freed} {parts:?} {failed}");
    let donated = |event: &Event| matches!(event, Event::Launched { donated, .. } if !donated.is_empty());
    assert!(events.iter().any(donated), "the state was not to be reused");
}

/// A handler that fails.
struct Fails;

impl Handler for Fails {
    fn results(&self, operands: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn run(&self, _: HandlerCall<'_>) -> std::result::Result<(), String> {
        Err("no memory today".to_owned())
    }
}

/// A failure that a device reports only after it accepted an execution reaches every reader of that
/// execution's values, and of their dependents, with the op that makes the value. It is not
/// retried; the stream continues.
#[test]
fn what_fails_on_the_device_is_told_where_it_is_asked_for() {
    let target = handler::register("test.fails_later", Fails).unwrap();
    let log = Log::default();
    let Some(engine) = support::plugin(support::compiled_first().event_sink(log.sink())) else { return };
    // Too much to be done within the call.
    let x = engine.tensor(&vec![1.0f32; 1 << 16], &[1 << 16]).unwrap();
    let made = engine.stream().call_handler(target, &[&x], Config::none()).unwrap();
    let failing = made[0].neg().unwrap();
    let line = line!() - 1;
    engine.stream().flush();
    let dependent = failing.abs().unwrap();
    let dependent_line = line!() - 1;
    engine.stream().flush();
    let independent = x.sum(&[0]).unwrap();
    engine.synchronize().unwrap();
    for (value, op, line) in [(&failing, "negate", line), (&dependent, "abs", dependent_line)] {
        let error = value.to_vec::<f32>().unwrap_err();
        let said = error.to_string();
        for words in ["no memory today", op, &format!("tests/engine/out_of_memory.rs:{line}")] {
            assert!(said.contains(words), "{said} does not say {words}");
        }
        assert_eq!((error.stage(), value.wait().is_err()), (Stage::Execute, true));
    }
    assert_eq!(independent.item::<f32>().unwrap(), 65_536.0);
    assert_eq!((&x + 1.0).unwrap().to_vec::<f32>().unwrap()[0], 2.0);
    let counters = engine.counters();
    assert_eq!(
        (counters.executions, counters.fallbacks, counters.poisoned, counters.out_of_memory),
        (4, 0, 0, 0)
    );
}

#[test]
fn transfers_are_tried_again() {
    let log = Log::default();
    let up = |point| matches!(point, FaultPoint::Upload { bytes: 12 });
    let down = |point| matches!(point, FaultPoint::Download { bytes: 12 });
    let data = [1.0f32, 2.0, 3.0];
    // Once: it goes unnoticed.
    let config = || {
        let (up, down) = (first(1, up), first(2, down));
        support::config().event_sink(log.sink()).inject_faults(move |point| up(point).or_else(|| down(point)))
    };
    on_engines(config, |engine| {
        log.take();
        let x = engine.tensor(&data, &[3])?;
        let _ = x.to_vec::<f32>().unwrap_err();
        assert_eq!(x.to_vec::<f32>()?, data);
        let stages: Vec<_> = log
            .take()
            .iter()
            .filter_map(|event| match event {
                Event::OutOfMemory { region: None, stage, asked, remedy } => {
                    Some((*stage, asked.0, *remedy == Remedy::None))
                }
                _ => None,
            })
            .collect();
        assert_eq!(
            stages,
            [(Stage::Transfer, 12, false), (Stage::Transfer, 12, false), (Stage::Transfer, 12, true)]
        );
        Ok(())
    });
    // Also in callbacks, where waiting is refused.
    on_engines(
        || support::config().inject_faults(first(1, down)),
        |engine| {
            let x = engine.tensor(&data, &[3])?;
            let read = x.read();
            let literal = block_on(read)?;
            assert_eq!(literal.to_vec::<f32>()?, data);
            assert_eq!(engine.counters().out_of_memory, 1);
            let y = x.neg()?;
            let again = engine.clone();
            let (send, receive) = mpsc::channel();
            y.on_ready(move |_| {
                let _ = send.send(again.tensor(&[5.0f32], &[1]).map(|x| x.dtype()));
            });
            y.wait()?;
            assert!(receive.recv().unwrap().is_ok());
            Ok(())
        },
    );
    // Always: an error with the requested size.
    on_engines(
        || support::config().inject_faults(move |point| (up(point) || down(point)).then(none_left).flatten()),
        |engine| {
            let kept = vector(engine, &[1.0; 100]);
            let error = engine.tensor(&data, &[3]).unwrap_err();
            is_exhausted(&error, &["no memory today", "12 B were asked for while 1 values hold 400 B"]);
            assert_eq!(error.stage(), Stage::Transfer);
            let x = kept.slice(&[0], &[3], &[1])?;
            is_exhausted(&x.to_vec::<f32>().unwrap_err(), &["12 B were asked for", "slice"]);
            is_exhausted(&block_on(x.read()).unwrap_err(), &["12 B were asked for", "slice"]);
            assert_eq!(engine.counters().poisoned, 0, "the value is there, its copy is not");
            Ok(())
        },
    );
}

/// A merged region that does not fit runs as its units, which have executables.
#[test]
fn what_was_joined_runs_in_units() {
    let log = Log::default();
    let config = || {
        let budgets = Budgets { ops: 16, ..Budgets::default() };
        support::compiled_first().region_budgets(budgets).event_sink(log.sink())
    };
    let config = || {
        config().inject_faults(|point| match point {
            FaultPoint::Execute { ops } if ops > 16 => none_left(),
            _ => None,
        })
    };
    on_engines(config, |engine| {
        log.take();
        let x = vector(engine, &[1.0, 2.0]);
        // Until the whole was compiled in the background and has run out of memory.
        let mut events = Vec::new();
        for step in 0.. {
            let mut next = x.clone();
            for _ in 0..20 {
                next = ((&next * 0.5)? + 0.25)?;
            }
            close(&next.sum(&[0])?.to_vec::<f32>()?, &[1.0], 1e-3);
            events.extend(log.take());
            if !done(&events).1.is_empty() || step > 20_000 {
                break;
            }
            std::thread::yield_now();
        }
        let (freed, parts, failed) = done(&events);
        assert_eq!((freed, parts.len(), failed), (1, 1, 0));
        assert!(parts[0].len() > 2 && parts[0].iter().all(|&ops| ops <= 16), "{parts:?}");
        assert!(!is_poisoned(&events));
        Ok(())
    });
}

/// Heat on a plate, with slices: XLA's scratch memory for it exceeds what the ops hold one by one.
fn sweep(plate: &Tensor, inside: &Tensor) -> Result<Tensor> {
    let side = plate.dims()[0] as i64;
    let at =
        |row: i64, column: i64| plate.slice(&[row, column], &[row + side - 2, column + side - 2], &[1, 1]);
    let sum = ((((at(1, 1)? + at(1, 0)?)? + at(1, 2)?)? + at(2, 1)?)? + at(0, 1)?)?;
    plate.dynamic_update_slice(&(0.2 * sum)?, &[inside, inside])
}

/// A region that plans much more memory than its ops runs as two halves, and compiles once.
#[test]
fn what_needs_much_more_than_its_ops_runs_in_halves() -> Result<()> {
    let log = Log::default();
    let config = || support::optimized_only().event_sink(log.sink());
    let Some(engine) = plugin_for("plans of the plugin", config().memory_slack(Bytes(0))) else {
        return Ok(());
    };
    let data: Vec<f32> = (0..256 * 256).map(|index| (index % 101) as f32).collect();
    let sweeps = |engine: &Engine| -> Result<Vec<f32>> {
        let mut plate = engine.tensor(&data, &[256, 256])?;
        for _ in 0..8 {
            plate = sweep(&plate, &engine.scalar(1i32))?;
        }
        plate.to_vec()
    };
    let plate = sweeps(&engine)?;
    let events = log.take();
    let planned = events.iter().find_map(|event| match event {
        Event::CompileFinished { region, memory: Some(memory), eager, .. } => {
            Some((region.ops, memory.peak(), *eager))
        }
        _ => None,
    });
    let (ops, peak, eager) = planned.expect("the plugin tells");
    if peak.0 <= eager.0 + eager.0 / 4 {
        println!("skipped: no plan larger than its ops: the plugin needs {peak}, and they hold {eager}");
        return Ok(());
    }
    let told = events.iter().find_map(|event| match event {
        Event::Oversized { region, memory, eager } => Some((region.ops, memory.peak(), *eager)),
        _ => None,
    });
    assert_eq!(told, Some((ops, peak, eager)));
    let (freed, parts, failed) = done(&events);
    assert_eq!((freed, failed, parts[0].iter().sum::<usize>()), (0, 0, ops));
    // It is split further only if that helps.
    assert!(parts.len() <= 3, "{parts:?}");
    let before = engine.counters();
    // More often than the retry interval of a failed compile.
    for _ in 0..70 {
        assert_eq!(sweeps(&engine)?, plate);
    }
    let did = engine.counters().since(&before);
    assert_eq!((did.compiles, did.partitioned, did.fallbacks), (0, 70 * parts.len() as u64, 0), "{did:?}");

    // Within the slack it is one region, with the same results.
    let engine = config().build()?;
    log.take();
    close(&sweeps(&engine)?, &plate, 1e-6);
    let events = log.take();
    assert!(!events.iter().any(|event| matches!(event, Event::Oversized { .. } | Event::InParts { .. })));
    Ok(())
}

/// The same on any device. A plan within the slack runs as a whole.
#[test]
fn what_plans_too_much_runs_in_halves() {
    let log = Log::default();
    for (scratch, is_cut) in [(15 << 20, false), (17 << 20, true)] {
        let config = || {
            support::compiled_first().event_sink(log.sink()).inject_faults(move |point| match point {
                FaultPoint::Compile { ops } if ops > 5 => Some(Fault::oversized(Bytes(scratch))),
                _ => None,
            })
        };
        on_engines(config, |engine| {
            log.take();
            for _ in 0..70 {
                reads_ten(engine)?;
            }
            let counters = engine.counters();
            assert_eq!(counters.partitioned >= 70, is_cut, "{counters:?}");
            assert_eq!((counters.fallbacks, counters.compile_failures, counters.poisoned), (0, 0, 0));
            let events = log.take();
            let whole =
                |event: &&Event| matches!(event, Event::CompileStarted { region } if region.ops == 10);
            assert_eq!(events.iter().filter(whole).count(), 1, "it is remembered");
            assert_eq!(events.iter().any(|event| matches!(event, Event::Oversized { .. })), is_cut);
            Ok(())
        });
    }
}

/// A region that is unique to this number.
fn numbered(engine: &Engine, number: usize) -> Result<()> {
    let data: Vec<f32> = (0..=number).map(|at| at as f32).collect();
    let x = engine.tensor(&data, &[data.len()])?;
    let found = x.neg()?.add(&x.abs()?)?.sub(&x)?.to_vec::<f32>()?;
    assert_eq!(found, data.iter().map(|x| -x).collect::<Vec<_>>());
    Ok(())
}

/// Executables leave the cache before the process reaches its limit of mappings, which here is a
/// few hundred more than it has. Each region has its own executable.
#[test]
fn executables_make_room_for_mappings() {
    let Some(engine) = support::plugin(support::optimized_only()) else { return };
    numbered(&engine, 0).unwrap();
    let Some(now) = mappings::count() else {
        println!("skipped: no /proc/self/maps here");
        return;
    };
    drop(engine);
    let limit = now + 300;
    let Some(engine) = support::plugin(support::optimized_only().max_mappings(limit)) else { return };
    let mut most = 0;
    for number in 0..120 {
        numbered(&engine, number).unwrap();
        most = most.max(mappings::count().unwrap());
    }
    let counters = engine.counters();
    println!("figures: {now} mappings, at most {most} of {limit}; {counters:?}");
    assert!(counters.evictions > 0 && counters.cached_executables < 120, "{counters:?}");
    assert!(counters.mappings > 0 && counters.cached_mappings > 0, "{counters:?}");
    // Those made since the last count may be beyond the limit.
    assert!(most < limit + 100, "{most} of {limit}");
}

/// Takes all mappings of the process but a few.
struct Taken {
    start: *mut libc::c_void,
    len: usize,
}

impl Taken {
    /// Takes all but about `left`.
    fn all_but(left: u64) -> Option<Taken> {
        const PAGE: usize = 4_096;
        let most = mappings::most() as usize;
        let len = 2 * most * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: nothing is at an address that the system chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let taken = Taken { start, len };
        // Each readable page among unreadable ones is two more mappings.
        let splits = (mappings::most().saturating_sub(left + mappings::count()?) / 2) as usize;
        for split in 0..splits {
            // SAFETY: the page is one of those that were mapped above.
            let page = unsafe { start.byte_add((2 * split + 1) * PAGE) };
            // SAFETY: nobody uses the page.
            let done = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ) };
            if done != 0 {
                break;
            }
        }
        Some(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: nobody uses what was mapped.
        let done = unsafe { libc::munmap(self.start, self.len) };
        assert_eq!(done, 0);
    }
}

/// A process with hardly any mapping left would be killed by the compiler. It frees executables,
/// retries and continues. If nothing helps, the op fails with what is missing, and the next one
/// works once there is room.
#[test]
fn without_a_mapping_executables_make_room() {
    let Some(engine) = support::plugin(support::optimized_only().max_mappings(u64::MAX)) else { return };
    for number in 0..4 {
        numbered(&engine, number).unwrap();
    }
    if mappings::count().is_none() || mappings::most() > 1 << 20 {
        println!("skipped: no limit on mappings that a test can reach");
        return;
    }
    // Room for about twenty executables beyond the needs of everything else.
    let taken = Taken::all_but(700).unwrap();
    for number in 4..60 {
        numbered(&engine, number).unwrap();
    }
    let counters = engine.counters();
    println!(
        "figures: 56 regions, {} times out of memory, {} evictions",
        counters.out_of_memory, counters.evictions
    );
    assert!(counters.out_of_memory > 0 && counters.evictions > 0, "{counters:?}");
    drop(taken);
    // Room for none, and no executable to free.
    engine.clear_cache();
    let taken = Taken::all_but(300).unwrap();
    let error = numbered(&engine, 60).unwrap_err();
    drop(taken);
    assert!(error.is_resource_exhausted() && error.to_string().contains("memory mappings"), "{error}");
    // As before.
    for number in 61..64 {
        numbered(&engine, number).unwrap();
    }
}
