//! Why a step is slow: what the host waits for and where it reads, and warnings about the program.
//! For timelines see `tests/engine/timeline.rs`.

#[path = "../../benches/programs/mod.rs"]
#[allow(dead_code, reason = "shared with the tool")]
mod programs;

use std::time::Duration;

use fuseline::{
    Asked, Boundary, Bytes, Engine, EngineConfig, Event, FaultPoint, Mode, Result, Site, Tensor, Wait,
    with_mode,
};
use programs::Case;

use crate::support::{self, Gate, Log, block_on, on_engines, plugin, vector, wait_until};

/// The next line of this file, as call sites print it.
#[track_caller]
fn next_line() -> String {
    let place = std::panic::Location::caller();
    format!("{}:{}", place.file(), place.line() + 1)
}

fn reads(events: &[Event]) -> Vec<(String, Asked, Option<usize>, Bytes)> {
    let read = |event: &Event| match event {
        Event::HostRead { site, asked, region, bytes, .. } => {
            Some((site.to_string(), *asked, region.map(|region| region.ops), *bytes))
        }
        _ => None,
    };
    events.iter().filter_map(read).collect()
}

/// Boundary and call site of the read of each region.
fn ends(events: &[Event]) -> Vec<(Boundary, Option<String>)> {
    let end = |event: &Event| match event {
        Event::Sealed { boundary, asked, .. } => Some((*boundary, asked.as_ref().map(Site::to_string))),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

#[test]
fn a_read_is_told_with_its_place_and_the_region_that_it_ends() {
    let log = Log::default();
    on_engines(
        || support::config().event_sink(log.sink()),
        |engine| {
            let x = vector(engine, &[1.0, 2.0, 3.0, 4.0]);
            let chain = || ((&x + &x)? * &x)?.tanh();
            // Replayed from the third round on.
            for _ in 0..5 {
                log.take();
                let (y, z) = (chain()?, (&x - 1.0)?);
                let at = next_line();
                y.to_vec::<f32>()?;
                let again = next_line();
                z.to_vec::<f32>()?;
                let events = log.take();
                assert_eq!(ends(&events), [(Boundary::HostRead, Some(at.clone()))]);
                let read = |at: &str| (at.to_owned(), Asked::Read, Some(5), Bytes(16));
                assert_eq!(reads(&events), [read(&at), read(&again)]);
            }
            let y = chain()?;
            let at = next_line();
            y.wait()?;
            assert_eq!(reads(&log.take()), [(at, Asked::Wait, Some(3), Bytes(0))]);
            let y = chain()?;
            engine.stream().flush();
            let at = next_line();
            let read = y.read();
            engine.synchronize()?;
            block_on(read)?;
            let y = chain()?;
            let timed = next_line();
            y.to_literal_for(Duration::from_secs(100))?;
            let events = log.take();
            assert_eq!(ends(&events), [(Boundary::Flush, None), (Boundary::HostRead, Some(timed.clone()))]);
            assert_eq!(
                reads(&events),
                [(at, Asked::Async, Some(3), Bytes(16)), (timed, Asked::Read, Some(3), Bytes(16))]
            );
            let is_wait = |event: &&Event| match event {
                Event::Synchronized { site, .. } => site.to_string().contains("why.rs"),
                _ => false,
            };
            assert_eq!(events.iter().filter(is_wait).count(), 1);
            Ok(())
        },
    );
}

#[test]
fn what_a_region_waits_for_is_told_and_when_it_is_done() {
    let log = Log::default();
    let gate = Gate::new();
    // A region waits for its compile.
    let config = || support::compiled_first().inject_faults(gate.at_compiles()).event_sink(log.sink());
    on_engines(config, |engine| {
        log.take();
        let x = vector(engine, &[1.0; 8]);
        let y = (&x + &x)?;
        // The driver, which is not a call with a deadline, is there before the compile has ended.
        let shut = gate.shut();
        assert!(y.to_literal_for(Duration::ZERO).unwrap_err().is_timeout());
        assert!(engine.stream().synchronize_for(Duration::ZERO).unwrap_err().is_timeout());
        wait_until(engine, |counters| counters.compiles_asked > 0);
        // It starts to wait a few instructions later, which no event reports.
        std::thread::sleep(Duration::from_millis(200));
        drop(shut);
        y.wait()?;
        engine.synchronize()?;
        let events = log.take();
        let waits: Vec<Wait> = events
            .iter()
            .filter_map(|event| match event {
                Event::Waited { wait, .. } => Some(*wait),
                _ => None,
            })
            .collect();
        assert_eq!(waits, [Wait::Compile]);
        let done = || events.iter().filter(|event| matches!(event, Event::Completed { .. })).count();
        assert_eq!(done(), 1);
        // The first call timed out.
        assert_eq!(events.iter().filter(|event| event.name() == "synchronized").count(), 1);
        // The stream continues when its compile has ended.
        let place = |name| events.iter().position(|event| event.name() == name).unwrap();
        assert!(place("compile_finished") < place("waited") && place("waited") < place("launched"));
        // It is in the cache, and waits for nothing.
        (&x + &x)?.wait()?;
        assert!(log.take().iter().all(|event| event.name() != "waited"));
        Ok(())
    });
}

#[test]
fn what_is_interpreted_is_waited_for_too() {
    let log = Log::default();
    let gate = Gate::new();
    let held = gate.at(|point| matches!(point, FaultPoint::Execute { .. }));
    let config = EngineConfig::new().inject_faults(held).event_sink(log.sink());
    let Some(engine) = plugin(config) else { return };
    let x = vector(&engine, &[1.0; 8]);
    let y = (&x + &x).unwrap();
    let shut = gate.shut();
    assert!(y.to_literal_for(Duration::ZERO).unwrap_err().is_timeout());
    wait_until(&engine, |counters| counters.interpreted > 0);
    std::thread::sleep(Duration::from_millis(200));
    drop(shut);
    y.wait().unwrap();
    let events = log.take();
    let waited = |event: &Event| matches!(event, Event::Waited { wait: Wait::Interpreter, .. });
    assert!(
        events.iter().any(waited) && events.iter().any(|event| event.name() == "completed"),
        "{events:?}"
    );
}

// ----- warnings -----

fn warnings(log: &Log) -> Vec<Event> {
    let is_warning = |event: &Event| matches!(event, Event::HotReads { .. } | Event::Growth { .. });
    log.take().into_iter().filter(is_warning).collect()
}

#[test]
fn reads_in_a_hot_loop_are_told_once_with_their_place() {
    for replay in [true, false] {
        let log = Log::default();
        on_engines(
            || support::config().replay(replay).event_sink(log.sink()),
            |engine| {
                log.take();
                let x = vector(engine, &[1.0; 8]);
                let mut at = String::new();
                for _ in 0..200 {
                    let sum = (&x * &x)?.sum(&[0])?;
                    at = next_line();
                    assert_eq!(sum.item::<f32>()?, 8.0);
                }
                let told = warnings(&log);
                let [Event::HotReads { site, reads: 64, ops: 128.., .. }] = told.as_slice() else {
                    panic!("{told:?}")
                };
                assert_eq!(site.to_string(), at);
                let words = told[0].to_string();
                assert!(words.contains(&at) && words.contains("while_loop"), "{words}");
                Ok(())
            },
        );
    }
}

#[test]
fn a_read_in_each_large_step_is_no_hot_loop() {
    let log = Log::default();
    on_engines(
        || support::config().event_sink(log.sink()),
        |engine| {
            let mut x = vector(engine, &[1.0; 8]);
            for _ in 0..200 {
                for _ in 0..30 {
                    x = (&x * 0.5)?;
                }
                x.item_of_first()?;
            }
            assert!(warnings(&log).is_empty());
            Ok(())
        },
    );
}

trait First {
    fn item_of_first(&self) -> Result<f32>;
}

impl First for Tensor {
    fn item_of_first(&self) -> Result<f32> {
        Ok(self.to_vec::<f32>()?[0])
    }
}

#[test]
fn what_is_kept_of_each_step_is_told_once_with_its_place() {
    for replay in [true, false] {
        let log = Log::default();
        on_engines(
            || support::config().replay(replay).event_sink(log.sink()),
            |engine| {
                log.take();
                let mut x = vector(engine, &[1.0; 8]);
                let (mut losses, mut at) = (Vec::new(), String::new());
                for _ in 0..800 {
                    for _ in 0..30 {
                        x = (&x * 0.99)?;
                    }
                    at = next_line();
                    losses.push(x.sum(&[0])?);
                    x.wait()?;
                }
                let told = warnings(&log);
                let [Event::Growth { boundaries: 512, more: 500.., kept, .. }] = told.as_slice() else {
                    panic!("{told:?}")
                };
                assert_eq!(kept[0].site.to_string(), at);
                assert!(kept[0].values >= 500 && told[0].to_string().contains(&at), "{}", told[0]);
                Ok(())
            },
        );
    }
}

/// The same without requests in the loop.
#[test]
fn what_is_kept_of_each_round_is_told_where_nothing_is_asked_for() {
    for replay in [true, false] {
        let log = Log::default();
        let config = support::config().replay(replay).event_sink(log.sink());
        let engine = config.build_reference().unwrap();
        let mut x = vector(&engine, &[1.0; 8]);
        let (mut losses, mut at) = (Vec::new(), String::new());
        for _ in 0..9_000 {
            for _ in 0..100 {
                x = x.tanh().unwrap();
            }
            at = next_line();
            losses.push(x.sum(&[0]).unwrap());
        }
        engine.synchronize().unwrap();
        let told = warnings(&log);
        let [Event::Growth { boundaries: 512, kept, .. }] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(kept[0].site.to_string(), at);
    }
}

/// No warnings for a stream in Strict mode: each op is a region by choice.
#[test]
fn nothing_is_told_of_strict_regions() {
    let log = Log::default();
    let engine = support::config().event_sink(log.sink()).build_reference().unwrap();
    with_mode(Mode::Strict, || {
        let x = vector(&engine, &[1.0; 8]);
        let kept: Vec<Tensor> = (0..1_000).map(|_| (&x + &x).unwrap()).collect();
        kept.iter().for_each(|value| value.wait().unwrap());
    });
    assert!(warnings(&log).is_empty());
}

/// The measured programs: each reads or waits once in a step, except logistic regression. It asks
/// the host after each of its rounds of sixteen ops whether to stop. The warning is right, though a
/// program may choose this.
#[test]
fn the_measured_programs_have_no_faults_but_one() {
    // Ten windows of 64 boundaries.
    const STEPS: usize = 640;
    let log = Log::default();
    let Some(engine) = plugin(EngineConfig::new().event_sink(log.sink())) else { return };
    for name in ["mlp", "decode", "kmeans", "norms", "chain", "logistic"] {
        let case = Case::all().into_iter().find(|case| case.quick && case.name.starts_with(name)).unwrap();
        let run = |engine: &Engine| -> Result<()> {
            let mut program = case.make(engine)?;
            (0..STEPS).try_for_each(|_| program.step())
        };
        run(&engine).unwrap();
        match (name, warnings(&log).as_slice()) {
            ("logistic", [Event::HotReads { site, .. }]) => assert!(site.to_string().contains("logistic.rs")),
            ("logistic", other) => panic!("{other:?}"),
            (_, []) => {}
            (_, told) => panic!("{name}: {told:?}"),
        }
    }
}
