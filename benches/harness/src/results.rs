//! The results of a run: the document `results.json`, from which the page and the plots are made.
//!
//! Every time is in nanoseconds, and every sample is kept. A ratio is the time of Fuseline in Fused
//! mode over the time of another contender, for two consecutive blocks of steps: below 1, Fuseline
//! is faster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of this format; runs of other versions are not resumed.
pub(crate) const FORMAT: u32 = 2;

/// The whole document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// When the run began, and when its last result arrived: `2026-11-22 06:30 UTC`.
    pub(crate) started: String,
    pub(crate) finished: String,
    /// The commit of the measured tree, followed by `+` if the tree had changes. Empty outside a
    /// checkout.
    pub(crate) commit: String,
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    /// In display order.
    pub(crate) contenders: Vec<Contender>,
    pub(crate) cases: Vec<CaseResult>,
    /// Whether the run ended before everything was measured.
    pub(crate) interrupted: bool,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    /// The number of rounds. In each, every contender runs one block of steps.
    pub(crate) rounds: usize,
    /// How often the processes of a case are started anew; the rounds are shared among them.
    #[serde(default = "once")]
    pub(crate) sittings: usize,
    /// The approximate length of a block, in seconds.
    pub(crate) block_seconds: f64,
    /// The device: `cpu` or `cuda`.
    pub(crate) device: String,
    /// Threads that each contender may use.
    pub(crate) threads: usize,
    /// Variables of every contender, among them those that keep freed memory in the process.
    pub(crate) environment: BTreeMap<String, String>,
}

/// The default for results from before there were sittings.
fn once() -> usize {
    1
}

/// Where it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) system: String,
    /// The load average over one minute when the run began.
    pub(crate) load: f64,
}

/// A contender: a way to run the programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contender {
    /// `fuseline-fused`, `fuseline-strict`, `fuseline-debug`, `jax`, `jax-0.10`, `jax-eager`,
    /// `torch`, `torch-compile`, `torch-xla`, `numpy`, or `pjrt`: the executables of Fused's steady
    /// step in a bare loop.
    pub(crate) id: String,
    /// The display name: `jax.jit`.
    pub(crate) name: String,
    pub(crate) versions: BTreeMap<String, String>,
    /// Why it could not be measured at all; `None` if it could.
    pub(crate) missing: Option<String>,
    /// A remark, which the page shows after its versions.
    #[serde(default)]
    pub(crate) note: Option<String>,
}

/// A program with sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    /// `mlp/64-128-10`.
    pub(crate) name: String,
    /// A description, as a sentence.
    pub(crate) about: String,
    /// The number of steps after which results are compared, and their largest difference relative
    /// to 1 + the larger magnitude.
    pub(crate) check_steps: usize,
    pub(crate) tolerance: f64,
    /// By contender.
    pub(crate) runs: BTreeMap<String, Run>,
    /// Fuseline Fused over each other contender that was measured.
    pub(crate) ratios: Vec<Ratio>,
}

/// The result of one contender on one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Run {
    /// Its results are right, and these are its times.
    Measured(Box<Times>),
    /// The case has no version for it, for this reason.
    LeftOut(String),
    /// It could not run the case, or its results differ: the error. Its times do not count.
    Failed(String),
}

/// The measurements of a contender on a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The largest difference of its results from those of Fuseline Fused, relative to 1 + the
    /// larger magnitude; `None` without results.
    pub(crate) deviation: Option<f64>,
    /// Each step before the rounds, in order; the first one compiles.
    pub(crate) warm: Vec<u64>,
    /// The first steady one of them; `None` if it was not steady when the rounds began.
    pub(crate) steady_from: Option<usize>,
    /// Each step of each round.
    pub(crate) rounds: Vec<Vec<u64>>,
    /// Quartiles of the rounds' mean steps.
    pub(crate) step: Quartiles,
    /// The peak memory of its process, in KiB; `None` if the system does not report it.
    pub(crate) peak_kib: Option<u64>,
    /// For Fuseline only.
    pub(crate) engine: Option<Engine>,
}

/// The quartiles of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// The engine's work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Engine {
    /// Over the whole run.
    pub(crate) compiles: u64,
    pub(crate) compile_seconds: f64,
    pub(crate) executables: u64,
    /// The longest time that a recording call has waited, in nanoseconds; missing in older results.
    #[serde(default)]
    pub(crate) longest_wait: Option<u64>,
    /// During the rounds.
    pub(crate) steady_compiles: u64,
    /// Per step of the rounds.
    pub(crate) ops: f64,
    pub(crate) regions: f64,
    pub(crate) executions: f64,
    pub(crate) donations: f64,
    pub(crate) bytes_up: f64,
    pub(crate) bytes_down: f64,
}

/// Fuseline Fused over another contender, round by round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) to: String,
    pub(crate) pairs: Vec<f64>,
    pub(crate) quartiles: Quartiles,
    /// Whether the pairs vary so much that something else was running. The median must not be
    /// quoted then.
    pub(crate) noisy: bool,
}
