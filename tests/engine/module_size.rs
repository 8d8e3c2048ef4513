//! Regions whose ops are lowered to more ops than a module may have.

use fuseline::{Event, Result};

use crate::support::{self, Log, vector};

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
