//! Compiles: one for each key, and the effects of failures.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuseline::{Event, Mode, OpCode, Origin, Stage, with_mode};
use fuseline_testgen::Seeded;

use super::{COMPILE, EXECUTE, Graph, is_right, three, three_of};

use crate::support::fakeplugin::{FakePlugin, wait_for};
use crate::support::{Log, vector};

/// Many threads, each on its own stream, request the same new region at once.
fn one_key(plugin: &FakePlugin, threads: usize, rounds: usize) {
    let engine = plugin.config().build().unwrap();
    let (start, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    // Failures are reported at the end: a missing thread would keep the others at the barrier.
    let (wrong, mut compiled) = (AtomicUsize::new(0), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let stream = engine.new_stream();
                for round in 0..rounds {
                    // Another size is another key.
                    let data: Vec<f32> = (0..=round).map(|i| i as f32).collect();
                    let x = stream
                        .from_literal(&fuseline::Literal::from_slice(&[data.len() as u64], &data).unwrap());
                    let x = x.unwrap();
                    start.wait();
                    let found = three(&x).and_then(|y| y.to_vec::<f32>());
                    let is_right =
                        |found: Vec<f32>| found.iter().zip(&data).all(|(found, x)| *found == three_of(*x));
                    wrong.fetch_add(usize::from(!found.is_ok_and(is_right)), Ordering::SeqCst);
                    end.wait();
                }
            });
        }
        for _ in 0..rounds {
            let before = plugin.calls(COMPILE);
            start.wait();
            end.wait();
            compiled.push(plugin.calls(COMPILE) - before);
        }
    });
    assert_eq!((compiled, wrong.into_inner()), (vec![1; rounds], 0));
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.fallbacks), (rounds as u64, 0), "{counters:?}");
    assert_eq!(counters.executions, (threads * rounds) as u64);
    drop(engine);
    plugin.assert_clean();
}

#[test]
fn sixty_four_threads_that_want_one_new_region_compile_it_once() {
    let plugin = FakePlugin::alone();
    // Others come during the compile and after it.
    plugin.plan(&format!("{COMPILE}@every 2 = delay(3)"));
    one_key(&plugin, 64, 30);
    assert_eq!(plugin.fired(COMPILE), 15);
}

#[test]
#[ignore = "soak: `cargo xtask soak plugin-compiles`"]
fn ten_thousand_new_regions_are_compiled_once_each() {
    let plugin = FakePlugin::alone();
    for _ in 0..20 {
        one_key(&plugin, 64, 500);
    }
}

/// A region that never compiles runs op by op, and is tried three times in total, however often it
/// occurs.
#[test]
fn a_region_that_never_compiles_runs_op_by_op_and_is_tried_three_times() {
    let plugin = FakePlugin::alone();
    let log = Log::default();
    let engine = plugin.config().event_sink(log.sink()).build().unwrap();
    plugin.plan(&format!("{COMPILE}@size 2.. = fail(UNAVAILABLE, \"planned: no code today\")"));
    let x = vector(&engine, &[1.0, 2.0]);
    let rounds = 1_000;
    for _ in 0..rounds {
        is_right(&three(&x).unwrap(), &[1.0, 2.0]);
    }
    assert_eq!(plugin.fired(COMPILE), 3);
    let counters = engine.counters();
    assert_eq!((counters.compile_failures, counters.fallbacks, counters.poisoned), (3, rounds, 0));
    let events = log.take();
    let messages = events.iter().filter_map(|event| match event {
        Event::CompileFailed { message, .. } => Some(message.as_str()),
        _ => None,
    });
    let said = format!("{COMPILE}: UNAVAILABLE: planned: no code today");
    assert_eq!(messages.collect::<Vec<_>>(), [&said; 3]);
    assert!(events.iter().any(|event| matches!(event, Event::Fallback { why, .. } if *why == said)));
    // Other regions are not affected.
    plugin.heal();
    let other = three(&three(&x).unwrap()).unwrap();
    is_right(&other, &[three_of(1.0), three_of(2.0)]);
    assert_eq!(engine.counters().fallbacks, rounds);
    // A reported compile has its executable.
    drop((other, x, engine, events, log.take()));
    plugin.assert_clean();
}

/// A region whose first compiles fail runs as a whole later.
#[test]
fn a_region_that_compiles_after_some_failures_is_a_whole_again() {
    for (failures, fallbacks) in [(1, 1 + 64), (2, 1 + 64 + 1 + 512)] {
        let plugin = FakePlugin::alone();
        let engine = plugin.config().build().unwrap();
        plugin.plan(&format!("{COMPILE}@size 2..@1..{failures} = fail(INTERNAL, \"planned\")"));
        let x = vector(&engine, &[3.0]);
        let mut last = 0;
        for _ in 0..700 {
            let before = plugin.calls(EXECUTE);
            is_right(&three(&x).unwrap(), &[3.0]);
            last = plugin.calls(EXECUTE) - before;
        }
        assert_eq!(plugin.fired(COMPILE), failures);
        assert_eq!((engine.counters().fallbacks, last), (fallbacks, 1), "{failures} failures");
        drop((x, engine));
        plugin.assert_clean();
    }
}

/// In Strict mode the failure belongs to the op: the plugin's message, with the op and the line
/// that recorded it.
#[test]
fn in_strict_mode_a_compile_that_fails_is_an_error_of_its_op() {
    let plugin = FakePlugin::alone();
    // One thread, so that compiles follow the order of the ops.
    let engine = plugin.config().mode(Mode::Strict).compile_threads(1).build().unwrap();
    plugin.plan(&format!("{COMPILE}@2 = fail(UNIMPLEMENTED, \"planned: no such kernel\")"));
    let x = vector(&engine, &[1.0, 2.0]);
    let before = x.add(&x).unwrap();
    let line = line!() + 1;
    let failing = x.tanh().unwrap();
    let after = failing.neg().unwrap();
    let beside = x.abs().unwrap();
    for value in [&failing, &after] {
        let error = value.to_vec::<f32>().unwrap_err();
        assert_eq!((error.stage(), error.origin()), (Stage::Compile, Origin::Device));
        assert_eq!(error.op_name(), Some(OpCode::Tanh.name()));
        assert_eq!(error.region().map(|region| region.ops), Some(1));
        let text = error.to_string();
        assert!(text.contains(&format!("{}:{line}, failed", file!())), "{text}");
        assert!(text.ends_with(&format!("{COMPILE}: UNIMPLEMENTED: planned: no such kernel")), "{text}");
    }
    assert_eq!(before.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(beside.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(plugin.fired(COMPILE), 1);
    // The engine still works, and so does the op when it is retried.
    plugin.heal();
    let mut tries = 0;
    while x.tanh().unwrap().to_vec::<f32>().is_err() {
        tries += 1;
        assert!(tries <= 64, "it is never tried again");
    }
    drop((x, before, failing, after, beside, engine));
    plugin.assert_clean();
}

/// Whichever compile of a program fails: in Fused mode a region of several ops runs op by op, so
/// only dependents of an op that is a region by itself are lost; in Strict mode the dependents of
/// the op.
fn any_compile(plugin: &FakePlugin, seeds: std::ops::Range<u64>) {
    let mut failed = [0, 0];
    for seed in seeds {
        let graph = Graph::sample(&mut Seeded::new(seed), 3 + (seed % 12) as usize);
        for (place, mode) in [Mode::Fused, Mode::Strict].into_iter().enumerate() {
            let log = Log::default();
            let engine = plugin.config().event_sink(log.sink()).build().unwrap();
            let mut compile = 1;
            loop {
                engine.clear_cache();
                log.take();
                plugin.plan(&format!("{COMPILE}@{compile} = fail(INTERNAL, \"planned\")"));
                let before = plugin.fired(COMPILE);
                let found = with_mode(mode, || graph.run(&engine));
                if plugin.fired(COMPILE) == before {
                    assert!(graph.lost(&found).is_empty(), "program {seed}: lost without a fault");
                    break;
                }
                let lost = graph.lost(&found);
                let alone = log.take().iter().any(|event| match event {
                    Event::Poisoned { region, why, .. } => {
                        region.ops == 1 && why.contains("INTERNAL: planned")
                    }
                    _ => false,
                });
                assert_eq!(
                    lost.is_empty(),
                    !alone,
                    "program {seed}, compile {compile} in {mode:?}: {lost:?}"
                );
                assert!(graph.is_closed(&lost), "program {seed}, compile {compile} in {mode:?}: {lost:?}");
                failed[place] += usize::from(!lost.is_empty());
                compile += 1;
            }
            drop(engine);
        }
        plugin.assert_clean();
    }
    println!("programs that lost something: {} in Fused, {} in Strict", failed[0], failed[1]);
    assert!(failed[1] > failed[0], "regions of several ops lose nothing");
}

#[test]
fn whichever_compile_of_a_program_fails() {
    any_compile(&FakePlugin::alone(), 0..40);
}

#[test]
#[ignore = "soak: cargo test --release --test pjrt plugin::of_many_programs -- --ignored"]
fn whichever_compile_of_many_programs_fails() {
    any_compile(&FakePlugin::alone(), 40..4_000);
}

/// A compile that hangs blocks its dependents and nothing else. (Waits without a deadline block;
/// for those with one see the engine's tests.)
#[test]
fn a_compile_that_hangs_holds_up_only_what_needs_it() {
    let plugin = FakePlugin::alone();
    let engine = plugin.config().build().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    is_right(&three(&x).unwrap(), &[1.0, 2.0]);
    plugin.plan(&format!("{COMPILE}@1 = hang"));
    let stuck = x.tanh().unwrap();
    let read = stuck.read();
    wait_for(|| plugin.hanging() == 1, || "nobody hangs".to_owned());
    let stream = engine.new_stream();
    let y = stream.from_literal(&fuseline::Literal::from_slice(&[2], &[5.0f32, 6.0]).unwrap()).unwrap();
    is_right(&three(&y).unwrap(), &[5.0, 6.0]);
    assert_eq!(y.exp().unwrap().to_vec::<f32>().unwrap(), [5f32.exp(), 6f32.exp()]);
    assert!(stuck.to_literal_for(std::time::Duration::from_millis(1)).unwrap_err().is_timeout());
    plugin.release();
    let data = crate::support::block_on(read).unwrap();
    assert_eq!(data.to_vec::<f32>().unwrap(), [1f32.tanh(), 2f32.tanh()]);
    assert_eq!((plugin.fired(COMPILE), plugin.hanging()), (1, 0));
    drop((x, stuck, y, stream, engine));
    plugin.assert_clean();
}
