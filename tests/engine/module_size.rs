//! Regions whose ops are lowered to more ops than a module may have, and executables that plan more
//! memory than the host has.

use fuseline::fusion::Bytes;
use fuseline::{Event, Fault, FaultPoint, Result};

use crate::support::{self, Log, plugin_for, vector};

#[test]
fn a_region_that_makes_too_large_a_module_runs_in_halves() -> Result<()> {
    let log = Log::default();
    let engine = support::config().event_sink(log.sink()).build_reference()?;
    let (order, x) = (vector(&engine, &[1.0, 2.0]), vector(&engine, &[0.5, 3.0]));
    let results = (0..1_000).map(|_| order.polygamma(&x)).collect::<Result<Vec<_>>>()?;
    let all: Vec<Vec<f32>> = results.iter().map(|result| result.to_vec()).collect::<Result<_>>()?;
    assert!(all.iter().all(|one| *one == all[0]) && (all[0][0] - 4.934_802).abs() < 1e-5, "{:?}", all[0]);
    let events = log.take();
    let failed = |event: &Event| matches!(event, Event::Fallback { .. } | Event::Poisoned { .. });
    assert!(!events.iter().any(failed), "{events:?}");
    let parts: Vec<(Vec<usize>, String)> = events
        .iter()
        .filter_map(|event| match event {
            Event::InParts { parts, why, .. } => Some((parts.clone(), why.clone())),
            _ => None,
        })
        .collect();
    // Each half fits: an op is lowered to more than a hundred.
    assert!(parts[0].0.len() == 2 && parts[0].0.iter().sum::<usize>() > 500, "{parts:?}");
    assert!(parts.iter().all(|(parts, _)| parts.len() == 2), "{parts:?}");
    assert!(parts[0].1.contains("lowered to more than 65536 ops"), "{}", parts[0].1);
    Ok(())
}

/// A plugin may take donated inputs away before it fails.
#[test]
fn what_plans_more_than_the_host_has_is_not_run() {
    let log = Log::default();
    let config = support::compiled_first().event_sink(log.sink()).inject_faults(|point| match point {
        FaultPoint::Compile { ops: 1 | 10 } => Some(Fault::oversized(Bytes(1 << 50))),
        _ => None,
    });
    let Some(engine) = plugin_for("plans beyond the memory of the host", config) else { return };
    let x = vector(&engine, &[4.0]);
    // The second time, the failure is cached.
    for _ in 0..2 {
        let error = x.sqrt().unwrap().to_vec::<f32>().unwrap_err();
        assert!(error.is_resource_exhausted(), "{error}");
        let text = error.to_string();
        for part in ["sqrt", "results and scratch take 1.0 PiB", "this machine has"] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }
    assert_eq!(x.to_vec::<f32>().unwrap(), [4.0]);
    assert!(!log.take().iter().any(|event| matches!(event, Event::Launched { .. })));
    let counters = engine.counters();
    assert_eq!((counters.compiles, counters.compile_failures), (0, 1), "{counters:?}");
    // A region of several ops runs in parts.
    let sum = (0..10).fold(x.clone(), |sum, _| sum.add(&x).unwrap());
    assert_eq!(sum.to_vec::<f32>().unwrap(), [44.0]);
    assert!(log.take().iter().any(|event| matches!(event, Event::InParts { .. })));
}
