//! What a run of the harness finds: the document `results.json`, from which the page and the plots
//! are made.
//!
//! Every time is in nanoseconds and every sample is kept. A ratio is the time of Fuseline in Fused
//! mode over the time of another contender, of two blocks of steps that ran one after the other:
//! below 1, Fuseline is faster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Number of this format; another one is not resumed from.
pub(crate) const FORMAT: u32 = 2;

/// The whole document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// When the run began, and when its last result came: `2026-11-22 06:30 UTC`.
    pub(crate) started: String,
    pub(crate) finished: String,
    /// Commit of the measured tree, with `+` behind it where the tree had changes; empty outside of
    /// a checkout.
    pub(crate) commit: String,
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    /// In the order in which they are shown.
    pub(crate) contenders: Vec<Contender>,
    pub(crate) cases: Vec<CaseResult>,
    /// Whether the run ended before everything was measured.
    pub(crate) interrupted: bool,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    /// Rounds, in each of which every contender runs one block of steps.
    pub(crate) rounds: usize,
    /// Times that the processes of a case are started anew; the rounds are shared among them.
    #[serde(default = "once")]
    pub(crate) sittings: usize,
    /// How long a block is, about, in seconds.
    pub(crate) block_seconds: f64,
    /// What they compute on: `cpu` or `cuda`.
    pub(crate) device: String,
    /// Threads that each contender may use.
    pub(crate) threads: usize,
    /// Variables that every contender runs with, among them those that keep freed memory in the
    /// process.
    pub(crate) environment: BTreeMap<String, String>,
}

/// What results say that were kept before there were several.
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
    /// The load average over a minute when the run began.
    pub(crate) load: f64,
}

/// Something that runs the programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contender {
    /// `fuseline-fused`, `fuseline-strict`, `fuseline-debug`, `jax`, `jax-eager`, `torch`,
    /// `torch-compile`, `torch-xla`, `numpy`, and `pjrt`, the executables of Fused's steady step in
    /// a bare loop.
    pub(crate) id: String,
    /// For people: `jax.jit`.
    pub(crate) name: String,
    pub(crate) versions: BTreeMap<String, String>,
    /// Why it could not be measured at all; `None` if it could.
    pub(crate) missing: Option<String>,
}

/// A program with sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    /// `mlp/64-128-10`.
    pub(crate) name: String,
    /// What it does, in a sentence.
    pub(crate) about: String,
    /// Steps after which results are compared, and how far they may be apart, as a part of 1 + the
    /// larger magnitude.
    pub(crate) check_steps: usize,
    pub(crate) tolerance: f64,
    /// By contender.
    pub(crate) runs: BTreeMap<String, Run>,
    /// Fuseline Fused over each other contender that was measured.
    pub(crate) ratios: Vec<Ratio>,
}

/// One contender on one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Run {
    /// Its results are right, and these are its times.
    Measured(Box<Times>),
    /// The case has no version for it, for this reason.
    LeftOut(String),
    /// It could not run the case, or its results are not the others': what happened. Its times do
    /// not count.
    Failed(String),
}

/// What was measured of a contender on a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    /// How far its results are from those of Fuseline Fused, at most, as a part of 1 + the larger
    /// magnitude; `None` where there are none.
    pub(crate) deviation: Option<f64>,
    /// Each step before the rounds, in order; the first one compiles.
    pub(crate) warm: Vec<u64>,
    /// The first steady one of them; `None` if it had not become steady when the rounds began.
    pub(crate) steady_from: Option<usize>,
    /// Each step of each round.
    pub(crate) rounds: Vec<Vec<u64>>,
    /// Quartiles of the mean steps of the rounds.
    pub(crate) step: Quartiles,
    /// The most memory that its process held, in KiB; `None` where the system does not tell.
    pub(crate) peak_kib: Option<u64>,
    /// Of Fuseline only.
    pub(crate) engine: Option<Engine>,
}

/// Three numbers of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quartiles {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// What the engine did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Engine {
    /// Over the whole run.
    pub(crate) compiles: u64,
    pub(crate) compile_seconds: f64,
    pub(crate) executables: u64,
    /// The longest that a call that records an op has waited, in nanoseconds; older results do not
    /// say.
    #[serde(default)]
    pub(crate) longest_wait: Option<u64>,
    /// Over the rounds.
    pub(crate) steady_compiles: u64,
    /// For each step of the rounds.
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
    /// Whether the pairs are so far apart that something else was running: the median is then no
    /// figure to quote.
    pub(crate) noisy: bool,
}
