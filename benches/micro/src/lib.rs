//! The work that is measured stage by stage: recording one op ([`op`]), and taking a region from
//! the log to its results ([`region`]).
//!
//! Two programs measure it: `micro` (`main.rs`) takes times, `counts.rs` counts instructions under
//! Callgrind. Both call the same functions here, which call the engine's own by
//! [`fuseline::stages`]. A stage works on a batch, so that what a clock or a loop costs does not
//! show; figures are for one op or one region.
#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a benchmark that cannot go on stops")]

pub mod op;
pub mod region;

use fuseline::{Budgets, Engine, EngineConfig, HardOnly};

/// The engine's settings: regions of any size that is measured.
#[must_use]
pub fn config() -> EngineConfig {
    let budgets = Budgets { ops: 4_096, ..Budgets::default() };
    EngineConfig::new()
        .interpret_cold_regions(false)
        .region_budgets(budgets)
        .boundary_rule(|| Box::new(HardOnly))
}

/// An engine on the reference interpreter: what it does is the same in each run, but for
/// executions.
#[must_use]
pub fn reference() -> Engine {
    config().build_reference().expect("threads can be started")
}
