//! The work that is measured stage by stage: recording one op ([`op`]), and taking a region from
//! the log to its results ([`region`]).
//!
//! Two programs measure it: `micro` (`main.rs`) takes times, and `counts.rs` counts instructions
//! under Callgrind. Both call the functions of this crate, which call the engine's own through
//! [`fuseline::stages`]. A stage works on a batch, so that the cost of a clock or a loop does not
//! show. Figures are for one op or one region.
#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a benchmark that cannot go on stops")]

pub mod op;
pub mod region;

use fuseline::{Budgets, Engine, EngineConfig, HardOnly};

/// Engine settings for regions of all measured sizes.
#[must_use]
pub fn config() -> EngineConfig {
    let budgets = Budgets { ops: 4_096, ..Budgets::default() };
    EngineConfig::new()
        .interpret_cold_regions(false)
        .region_budgets(budgets)
        .boundary_rule(|| Box::new(HardOnly))
}

/// An engine on the reference interpreter, whose work, except executions, is the same in each run.
#[must_use]
pub fn reference() -> Engine {
    config().build_reference().expect("threads can be started")
}
