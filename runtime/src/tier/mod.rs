//! Chooses the tier of a region: how it runs this time, and what is compiled meanwhile. The modules
//! below have what the choice is made from: estimates, and the history of regions.
//!
//! | tier | runs by | when |
//! |---|---|---|
//! | interpreter | the interpreter | a new region, until that has taken as long as a compile |
//! | [`Tier::Baseline`] | an executable without LLVM's optimizations | a region that a job waits for and that is long to compile (`baseline.rs`) |
//! | [`Tier::Optimized`] | an optimized executable | all others |
//! | padded | the optimized executable of a larger size | a region whose sizes vary (`padded_regions.rs`); chosen for its larger region as for any other |
//!
//! Input: the [`Situation`] of a region: its history in the interpreter tier, what the cache has,
//! and the configuration. Output: a [`Plan`]. [`choose`] is a pure function of its input; its table
//! of cases is the test below. `execute/job/prepare.rs` gathers the situation and carries out the
//! plan.
//!
//! The compile runs beside the interpreter. It starts at the second execution, or at the first if
//! the region is interpreted fewer than [`FEW_RUNS`] times because that takes long. So a region
//! that runs once, as in a first step that differs from the others by its set-up, is not compiled
//! and does not hold up other compiles. If the compile takes longer than these executions, the
//! interpreter goes on until the executable exists, so that no job waits for it. That costs at most
//! one execution more than waiting, which is a quarter of a compile or less. If an execution takes
//! longer, the job waits.
//!
//! Invariants:
//! - TIER-1: the least number of interpreted executions follows from the region and from the number
//!   of its sizes seen when it was new. The start of its compile follows from these executions. So
//!   what is compiled does not depend on time. With `EngineConfig::reproducible` no more executions
//!   are interpreted, so numbers are the same in each run. (If several streams record the same ops
//!   at several sizes, it depends on whose came first.)

pub(crate) mod baseline;
mod bounded_map;
pub(crate) mod cost;
pub(crate) mod host_eval;
pub(crate) mod interpreter;
pub(crate) mod miss_history;
pub(crate) mod padded_regions;
mod recompile_storm;
mod shape_split;

use crate::device::Tier;

/// Whether a job waits for a compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompilePriority {
    /// A region cannot run before the compile has ended.
    Foreground,
    /// The region runs by other means until then.
    Background,
}

/// Maximum number of interpreted executions of a region. It is small under shuttle, so that a small
/// scenario exceeds it.
pub(crate) const MAX_RUNS: u32 = if cfg!(shuttle) { 2 } else { 10 };

/// Below this number of executions the compile starts at the first, in case there is another.
pub(crate) const FEW_RUNS: u32 = 4;

/// One interpreted execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterpretedRun {
    /// The number of this execution, from 1.
    pub(crate) number: u32,
    /// How many are planned.
    pub(crate) of: u32,
}

impl InterpretedRun {
    /// The priority of a compile that starts beside this execution.
    fn compile_priority(self) -> CompilePriority {
        match self.of {
            ..=MAX_RUNS => CompilePriority::Foreground,
            _ => CompilePriority::Background,
        }
    }

    /// Whether the interpreter goes on until the compile ends. A region of which one execution
    /// takes more than a quarter of a compile waits instead.
    fn continues_until_compiled(self, is_reproducible: bool) -> bool {
        self.of >= FEW_RUNS.min(MAX_RUNS) && !is_reproducible
    }

    /// Whether the compile starts with this execution.
    pub(crate) fn starts_compile(self) -> bool {
        let at = match self.of {
            of if of < FEW_RUNS.min(MAX_RUNS) => 1,
            ..=MAX_RUNS => 2,
            // Half of the time is enough for most compiles, and most sizes are rarer than that.
            more => more / 2,
        };
        self.number == at
    }
}

/// What the interpreter tier knows of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// It is new, and may be interpreted this often; 0 if it is not interpreted.
    New { planned: u32 },
    /// This is one of the planned executions.
    Planned(InterpretedRun),
    /// All planned executions are over.
    Overdue(InterpretedRun),
}

/// What the cache has of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheState {
    /// An executable.
    Hit,
    /// An executable that is being compiled.
    Compiling,
    /// The failure of its compile.
    Failed,
    /// Another region with the same key.
    Collision,
    /// Nothing. The job holds the claim to compile it.
    Missing,
    /// Nothing in memory, and the store has an entry. The job holds the claim.
    Stored,
    /// It was not looked up, because an execution of the interpreter needs no answer.
    Unknown,
}

/// All that decides how a region runs. The default is a new region that is not interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Situation {
    pub(crate) history: History,
    pub(crate) cache: CacheState,
    /// The region was merged from units, which can run instead.
    pub(crate) is_merged: bool,
    /// `EngineConfig::reproducible`: nothing may depend on when a compile ends.
    pub(crate) is_reproducible: bool,
    /// Interpreting the region takes less time than loading its executable.
    pub(crate) is_interpreted_before_a_load: bool,
}

impl Default for Situation {
    fn default() -> Situation {
        Situation {
            history: History::New { planned: 0 },
            cache: CacheState::Missing,
            is_merged: false,
            is_reproducible: false,
            is_interpreted_before_a_load: false,
        }
    }
}

/// A compile to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompileStart {
    pub(crate) priority: CompilePriority,
    /// The lowest tier that may be compiled: [`Tier::Baseline`] if a quick compile may pay.
    pub(crate) tier: Tier,
}

/// How a region runs this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// By the executable that was found.
    Execute,
    /// By the interpreter. `is_until_compiled`: unless the compile in flight ends before that.
    /// Without a compile to start, one in flight that jobs may wait for soon is hastened if
    /// `hastens`.
    Interpret { run: InterpretedRun, compile: Option<CompileStart>, hastens: bool, is_until_compiled: bool },
    /// By the executable that is being compiled. Without a compile to start, one is in flight.
    AwaitCompile { compile: Option<CompileStart> },
    /// As the units that it was merged from.
    RunUnits { compile: Option<CompileStart> },
    /// By the fallback for the failure of its compile.
    FallBack,
}

impl CompileStart {
    fn foreground(tier: Tier) -> CompileStart {
        CompileStart { priority: CompilePriority::Foreground, tier }
    }

    fn background(tier: Tier) -> CompileStart {
        CompileStart { priority: CompilePriority::Background, tier }
    }
}

/// Chooses how a region runs.
pub(crate) fn choose(situation: Situation) -> Plan {
    let Situation { history, cache, is_merged, is_reproducible, .. } = situation;
    if let History::Planned(run) = history {
        return planned(run, cache, is_reproducible);
    }
    // Units of a merged region run until its optimized executable exists.
    let tier = if is_merged { Tier::Optimized } else { Tier::Baseline };
    let runs_units = is_merged && !is_reproducible;
    match cache {
        CacheState::Hit => Plan::Execute,
        CacheState::Compiling if runs_units => Plan::RunUnits { compile: None },
        CacheState::Failed | CacheState::Collision if is_merged => Plan::RunUnits { compile: None },
        CacheState::Compiling => match history {
            History::Overdue(run) if run.continues_until_compiled(is_reproducible) => {
                Plan::Interpret { run, compile: None, hastens: true, is_until_compiled: true }
            }
            _ => Plan::AwaitCompile { compile: None },
        },
        CacheState::Failed => Plan::FallBack,
        // Without a claim the executable is for this job only, and nothing replaces a baseline.
        CacheState::Collision => {
            Plan::AwaitCompile { compile: Some(CompileStart::foreground(Tier::Optimized)) }
        }
        CacheState::Missing | CacheState::Stored => match history {
            History::New { planned: of @ 1.. } => new(InterpretedRun { number: 1, of }, tier, situation),
            _ if runs_units => Plan::RunUnits { compile: Some(CompileStart::background(tier)) },
            _ => Plan::AwaitCompile { compile: Some(CompileStart::foreground(tier)) },
        },
        CacheState::Unknown => Plan::AwaitCompile { compile: None },
    }
}

/// The plan of a planned execution of the interpreter.
fn planned(run: InterpretedRun, cache: CacheState, is_reproducible: bool) -> Plan {
    let priority = run.compile_priority();
    // A job that waits after these executions wants a quick compile. If the interpreter goes on
    // instead, the compile need not be quick.
    let tier = match run.continues_until_compiled(is_reproducible) {
        true => Tier::Optimized,
        false => Tier::Baseline,
    };
    let starts = run.starts_compile() && matches!(cache, CacheState::Missing | CacheState::Stored);
    let compile = starts.then_some(CompileStart { priority, tier });
    // A compile that was started speculatively is needed.
    let hastens = compile.is_none() && priority == CompilePriority::Foreground;
    Plan::Interpret { run, compile, hastens, is_until_compiled: false }
}

/// The plan of the first execution of a new region that the interpreter can run.
fn new(run: InterpretedRun, tier: Tier, situation: Situation) -> Plan {
    let is_stored = situation.cache == CacheState::Stored;
    let compile = match is_stored {
        // Another process has compiled it: load it, and interpret at most while it loads.
        true => Some(CompileStart::foreground(tier)),
        false => run.starts_compile().then_some(CompileStart::background(tier)),
    };
    if is_stored && !situation.is_interpreted_before_a_load {
        return Plan::AwaitCompile { compile };
    }
    Plan::Interpret { run, compile, hastens: false, is_until_compiled: false }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::CacheState::{Collision, Compiling, Failed, Hit, Missing, Stored, Unknown};
    use super::CompilePriority::{Background, Foreground};
    use super::Tier::{Baseline, Optimized};
    use super::*;

    const PLAIN: Situation = Situation {
        history: History::New { planned: 0 },
        cache: Missing,
        is_merged: false,
        is_reproducible: false,
        is_interpreted_before_a_load: true,
    };

    fn start(priority: CompilePriority, tier: Tier) -> Option<CompileStart> {
        Some(CompileStart { priority, tier })
    }

    fn interpret(run: InterpretedRun, compile: Option<CompileStart>) -> Plan {
        Plan::Interpret { run, compile, hastens: false, is_until_compiled: false }
    }

    fn wait(compile: Option<CompileStart>) -> Plan {
        Plan::AwaitCompile { compile }
    }

    /// A region that is not interpreted: the cache decides.
    #[test]
    fn a_region_is_compiled_once_and_executed() {
        for (cache, plan) in [
            (Hit, Plan::Execute),
            (Compiling, wait(None)),
            (Failed, Plan::FallBack),
            (Collision, wait(start(Foreground, Optimized))),
            (Missing, wait(start(Foreground, Baseline))),
            (Stored, wait(start(Foreground, Baseline))),
        ] {
            for is_reproducible in [false, true] {
                assert_eq!(choose(Situation { cache, is_reproducible, ..PLAIN }), plan, "{cache:?}");
            }
        }
    }

    /// Nobody waits for a merged region, except where nothing may depend on time.
    #[test]
    fn a_merged_region_runs_as_its_units_until_it_is_compiled() {
        let units = |compile| Plan::RunUnits { compile };
        for (cache, is_reproducible, plan) in [
            (Hit, false, Plan::Execute),
            (Compiling, false, units(None)),
            (Missing, false, units(start(Background, Optimized))),
            (Failed, false, units(None)),
            (Collision, false, units(None)),
            (Hit, true, Plan::Execute),
            (Compiling, true, wait(None)),
            (Missing, true, wait(start(Foreground, Optimized))),
            (Failed, true, units(None)),
            (Collision, true, units(None)),
        ] {
            let situation = Situation { cache, is_reproducible, is_merged: true, ..PLAIN };
            assert_eq!(choose(situation), plan, "{situation:?}");
        }
    }

    /// TIER-1. The executions of a region until the interpreter has taken as long as a compile.
    #[test]
    fn a_new_region_is_interpreted_and_compiled_beside_that() {
        let run = |number, of| InterpretedRun { number, of };
        let new = |planned, cache| Situation { history: History::New { planned }, cache, ..PLAIN };
        let planned =
            |number, of, cache| Situation { history: History::Planned(run(number, of)), cache, ..PLAIN };
        let hasten = |run| Plan::Interpret { run, compile: None, hastens: true, is_until_compiled: false };
        for (situation, plan) in [
            // Few executions: the compile starts with the first, in case there is another.
            (new(FEW_RUNS - 1, Missing), interpret(run(1, FEW_RUNS - 1), start(Background, Baseline))),
            (planned(2, FEW_RUNS - 1, Unknown), hasten(run(2, FEW_RUNS - 1))),
            // More of them: with the second.
            (new(MAX_RUNS, Missing), interpret(run(1, MAX_RUNS), None)),
            (planned(2, MAX_RUNS, Missing), interpret(run(2, MAX_RUNS), start(Foreground, Optimized))),
            (planned(2, MAX_RUNS, Compiling), hasten(run(2, MAX_RUNS))),
            (planned(3, MAX_RUNS, Unknown), hasten(run(3, MAX_RUNS))),
            // One of many sizes: half-way, in the background.
            (new(500, Missing), interpret(run(1, 500), None)),
            (planned(250, 500, Missing), interpret(run(250, 500), start(Background, Optimized))),
            (planned(251, 500, Unknown), interpret(run(251, 500), None)),
            // Executables of other jobs do not end the planned executions.
            (planned(3, MAX_RUNS, Hit), hasten(run(3, MAX_RUNS))),
            // In the store of an earlier process.
            (new(MAX_RUNS, Stored), interpret(run(1, MAX_RUNS), start(Foreground, Baseline))),
            (
                Situation { is_interpreted_before_a_load: false, ..new(MAX_RUNS, Stored) },
                wait(start(Foreground, Baseline)),
            ),
        ] {
            assert_eq!(choose(situation), plan, "{situation:?}");
        }
    }

    /// TIER-1. With reproducible numbers the job waits at once.
    #[test]
    fn the_interpreter_goes_on_while_the_compile_is_late() {
        let overdue = |number, of, cache, is_reproducible| Situation {
            history: History::Overdue(InterpretedRun { number, of }),
            cache,
            is_reproducible,
            ..PLAIN
        };
        let run = InterpretedRun { number: MAX_RUNS + 1, of: MAX_RUNS };
        let goes_on = Plan::Interpret { run, compile: None, hastens: true, is_until_compiled: true };
        for (situation, plan) in [
            (overdue(MAX_RUNS + 1, MAX_RUNS, Compiling, false), goes_on),
            (overdue(MAX_RUNS + 1, MAX_RUNS, Compiling, true), wait(None)),
            (overdue(FEW_RUNS, FEW_RUNS - 1, Compiling, false), wait(None)),
            (overdue(MAX_RUNS + 1, MAX_RUNS, Hit, false), Plan::Execute),
            (overdue(MAX_RUNS + 1, MAX_RUNS, Failed, false), Plan::FallBack),
            (overdue(MAX_RUNS + 1, MAX_RUNS, Missing, false), wait(start(Foreground, Baseline))),
        ] {
            assert_eq!(choose(situation), plan, "{situation:?}");
        }
    }
}
