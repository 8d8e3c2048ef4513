//! Memory that the executables of the measured programs plan, compared with their ops one by one.
#![allow(clippy::disallowed_types, reason = "a test, on real threads")]

use std::sync::{Arc, Mutex};

use fuseline::{Bytes, EngineConfig, Event, MemoryPlan};

use super::programs::Case;

/// A compiled region.
struct Planned {
    ops: usize,
    memory: MemoryPlan,
    eager: Bytes,
}

/// The executables that a program compiles during some steps.
fn plans(case: &Case, steps: usize) -> fuseline::Result<Vec<Planned>> {
    let plans = Arc::new(Mutex::new(Vec::new()));
    let seen = plans.clone();
    let sink = move |event: &Event| {
        if let Event::CompileFinished { region, memory: Some(memory), eager, .. } = event {
            let planned = Planned { ops: region.ops, memory: *memory, eager: *eager };
            seen.lock().expect("no panic under it").push(planned);
        }
    };
    let engine = EngineConfig::new().interpret_cold_regions(false).quick_compiles(false);
    let engine = engine.event_sink(sink).build()?;
    let mut program = case.make(&engine)?;
    for _ in 0..steps {
        program.step()?;
    }
    engine.synchronize()?;
    drop((program, engine));
    Ok(std::mem::take(&mut *plans.lock().expect("no panic under it")))
}

/// Prints the table of docs/memory.md.
#[test]
#[ignore = "a table for people, of several minutes of compiles"]
fn table() -> fuseline::Result<()> {
    let mebi = |bytes: Bytes| format!("{:.3}", bytes.0 as f64 / f64::from(1 << 20));
    for case in Case::all() {
        let mut plans = plans(&case, 4)?;
        plans.sort_by_key(|plan| std::cmp::Reverse(plan.eager));
        for Planned { ops, memory, eager } in plans {
            println!(
                "| {} | {ops} | {} | {} | {} | {} | {} | {} | {:.2} |",
                case.name,
                mebi(memory.arguments),
                mebi(memory.outputs),
                mebi(memory.aliased),
                mebi(memory.temporaries),
                mebi(memory.peak()),
                mebi(eager),
                memory.peak().0 as f64 / eager.0 as f64
            );
        }
    }
    Ok(())
}
