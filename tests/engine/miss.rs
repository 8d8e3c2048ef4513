//! Cache misses: existing executables are found, and misses have a reason.

use fuseline::{Event, Miss, Result, Tensor};

use crate::support::{self, Log, on_engines, vector, warm_up};

/// The reasons for the first region's misses since the previous call.
fn missed(log: &Log) -> Option<Miss> {
    log.take().into_iter().find_map(|event| match event {
        Event::Miss { why, .. } => Some(why),
        _ => None,
    })
}

#[test]
fn a_steady_loop_compiles_nothing_and_a_miss_is_explained() {
    let log = Log::default();
    on_engines(
        || support::config().event_sink(log.sink()),
        |engine| {
            let step = |x: &Tensor, rate: f64| -> Result<f32> { ((x * rate)? + 1.0)?.sum(&[0])?.item() };
            let x = vector(engine, &[1.0, 2.0]);
            warm_up(engine, || step(&x, 0.5).map(drop))?;
            let before = engine.counters();
            for i in 0..20 {
                // A schedule: the number is a lifted scalar, even if it has the value of the other
                // one, 0 or 1.
                let rate = f64::from(i % 3);
                assert_eq!(step(&x, rate)?, (3.0 * rate + 2.0) as f32);
            }
            let after = engine.counters().since(&before);
            assert_eq!((after.compiles, after.misses, after.hits), (0, 0, 20));
            log.take();
            // A region that is interpreted first is compiled when it comes again.
            let longer = vector(engine, &[1.0, 2.0, 3.0]);
            (0..2).try_for_each(|_| step(&longer, 0.5).map(drop))?;
            let why = missed(&log);
            let Some(Miss::Changed(changes)) = why else { panic!("{why:?}") };
            let text = changes[0].to_string();
            assert!(text.contains("input 1: f32[2] became f32[3]"), "{text}");
            assert!(text.contains("tests/engine/miss.rs:"), "{text}");
            Ok(())
        },
    );
}

/// Positions of dynamic slices and updates are lifted, both host numbers and results of ops.
#[test]
fn another_place_of_a_slice_compiles_nothing() {
    on_engines(support::config, |engine| {
        let x = engine.tensor(&(0u8..32).map(f32::from).collect::<Vec<_>>(), &[32])?;
        let one = engine.scalar(1i32);
        let step = |place: i32| -> Result<Vec<f32>> {
            let place = engine.scalar(place);
            let part = (x.dynamic_slice(&[&place], &[2])? * 2.0)?;
            x.dynamic_update_slice(&part, &[&(&place + &one)?])?.to_vec()
        };
        warm_up(engine, || step(0).map(drop))?;
        let before = engine.counters();
        for place in 0..30 {
            let read = step(place)?;
            let at = place as usize;
            let expected = [2.0 * place as f32, 2.0 * (place + 1) as f32];
            // A position out of range is clamped.
            let to = (at + 1).min(30);
            assert_eq!(read[to..to + 2], expected, "{place}");
        }
        let did = engine.counters().since(&before);
        assert_eq!((did.compiles, did.misses, did.hits), (0, 0, 30));
        Ok(())
    });
}

/// If a region has an op that the nearest known region lacks, the miss names both call sites.
#[test]
fn a_miss_of_new_ops_names_the_first_that_differs() {
    let log = Log::default();
    on_engines(
        || support::config().event_sink(log.sink()),
        |engine| {
            let x = vector(engine, &[1.0, 2.0]);
            let told = |odd: bool, more: bool| -> Result<String> {
                log.take();
                // A region that is interpreted first is compiled when it comes again.
                for _ in 0..2 {
                    let mut y = x.exp()?.neg()?;
                    if odd {
                        y = y.abs()?;
                    }
                    y = y.tanh()?;
                    if more {
                        y = y.ceil()?;
                    }
                    y.to_vec::<f32>()?;
                }
                Ok(missed(&log).expect("a miss").to_string())
            };
            assert_eq!(told(false, false)?, "its sequence of ops is new");
            let text = told(true, false)?;
            assert!(
                text.contains("3 of its 4 ops")
                    && text.contains("op 2 is abs, recorded at tests/engine/miss.rs:"),
                "{text}"
            );
            assert!(
                text.contains("where the known one has tanh, recorded at tests/engine/miss.rs:"),
                "{text}"
            );
            let text = told(false, true)?;
            assert!(text.contains("op 3 is ceil") && text.contains("where the known one ends"), "{text}");
            Ok(())
        },
    );
}

/// A region whose executable was evicted, and one compiled for other results, are distinguished
/// from a new one.
#[test]
fn a_miss_of_a_known_region_says_what_is_missing() {
    let log = Log::default();
    // Each step looks its executable up: an interpreted one would not.
    on_engines(
        || support::compiled_first().event_sink(log.sink()),
        |engine| {
            let step = |x: &Tensor, keep: bool| -> Result<Miss> {
                log.take();
                let y = (x * 0.5)?;
                let sum = y.sum(&[0])?;
                let kept = keep.then_some(y);
                sum.item::<f32>()?;
                drop(kept);
                Ok(missed(&log).expect("a miss"))
            };
            let (x, other) = (vector(engine, &[1.0, 2.0]), vector(engine, &[1.0, 2.0, 3.0]));
            assert!(matches!(step(&x, false)?, Miss::New));
            assert!(matches!(step(&x, true)?, Miss::Outputs));
            assert!(matches!(step(&other, false)?, Miss::Changed(_)));
            engine.clear_cache();
            // Not the difference from the previous region, which had another size.
            for again in [&x, &other] {
                let why = step(again, true)?;
                assert!(matches!(why, Miss::Gone), "{why}");
            }
            Ok(())
        },
    );
}
