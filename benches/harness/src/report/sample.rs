//! A sample report with everything that a real one may have, and plausible numbers.

use std::collections::BTreeMap;

use crate::results::{CaseResult, Contender, Engine, FORMAT, Machine, Ratio, Report, Run, Settings, Times};
use crate::stats;

/// A case name with characters that are special in HTML. The case has nothing to compare.
pub(super) const ODD: &str = "odd/<b> & \"c\"";
const ROUNDS: usize = 11;

/// Id, name, time of a step per op relative to the case, first step in nanoseconds, KiB.
const CONTENDERS: [(&str, &str, f64, f64, u64); 9] = [
    ("fuseline-fused", "Fuseline Fused", 1.0, 9e7, 210_000),
    ("fuseline-strict", "Fuseline Strict", 5.5, 4e7, 190_000),
    ("fuseline-debug", "Fuseline Debug", 9.0, 5e7, 195_000),
    ("jax", "jax.jit", 1.15, 1.3e8, 410_000),
    ("jax-eager", "JAX eager", 14.0, 3e8, 420_000),
    ("torch", "PyTorch eager", 3.1, 2e6, 380_000),
    ("torch-compile", "torch.compile", 1.4, 4.2e9, 650_000),
    ("torch-xla", "PyTorch/XLA", 2.0, 2e8, 0),
    ("numpy", "NumPy", 6.0, 4e5, 48_000),
];

/// Case, step of Fused in nanoseconds, ops.
const CASES: [(&str, f64, f64); 25] = [
    ("chain/50 ops on 16", 6.2e3, 50.0),
    ("chain/50 ops on 16k", 3.4e4, 50.0),
    ("chain/50 ops on 1M", 2.1e6, 50.0),
    ("chain/500 ops on 1M", 1.9e7, 500.0),
    ("mlp/64-128-10", 1.3e5, 61.0),
    ("mlp/784-512-512-10", 4.1e6, 88.0),
    ("mlp/784-2048-2048-10", 6.3e7, 88.0),
    ("conv/digits 8x8, batch 64", 9.4e5, 102.0),
    ("conv/32x32x3, batch 32", 2.2e7, 140.0),
    ("transformer/2 layers of 64", 2.6e6, 410.0),
    ("transformer/6 layers of 256", 1.1e8, 1190.0),
    ("attention/128 tokens", 8.0e5, 34.0),
    ("attention/1024 tokens", 3.6e7, 34.0),
    ("softmax/1k x 1k", 1.8e6, 5.0),
    ("layernorm/4k x 512", 2.4e6, 9.0),
    ("matmul/64", 2.0e4, 1.0),
    ("matmul/1024", 3.1e7, 1.0),
    ("reduce/16M to 1", 5.2e6, 1.0),
    ("stencil/512 x 512, 20 sweeps", 7.7e6, 160.0),
    ("nbody/1024 bodies", 1.2e7, 22.0),
    ("kmeans/64k points", 1.6e7, 18.0),
    ("scalars/a number from the host", 4.4e4, 12.0),
    ("shapes/a new length each step", 8.8e5, 20.0),
    ("branch/a value read each step", 6.1e4, 9.0),
    (ODD, 1.0e5, 3.0),
];

/// A deterministic sequence of numbers from 0 to 1.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    /// A number near 1; `spread` is the distance.
    fn about(&mut self, spread: f64) -> f64 {
        ((self.next() + self.next() + self.next() - 1.5) * spread).exp()
    }
}

fn times(dice: &mut Dice, id: &str, place: usize, first: f64, kib: u64, ops: f64, step: f64) -> Times {
    let fuseline = id.starts_with("fuseline");
    let steady_from = match (place, id) {
        (22, "jax" | "torch-compile") => None,
        (_, "numpy" | "torch") => Some(place % 2),
        (_, "fuseline-fused") => Some(3 + place % 5),
        _ => Some(1 + place % 3),
    };
    let warm = (0..40 + place * 9)
        .map(|number| {
            let compiles = number == 0 || steady_from.is_none_or(|from| number < from && number % 2 == 1);
            let extra = if compiles { first * dice.about(0.5) } else { 0.0 };
            (step * dice.about(0.3) + extra) as u64
        })
        .collect();
    let rounds: Vec<Vec<u64>> =
        (0..ROUNDS).map(|_| (0..6).map(|_| (step * dice.about(0.08)) as u64).collect()).collect();
    let engine = Engine {
        compiles: if id == "fuseline-fused" { 3 } else { ops as u64 },
        compile_seconds: first / 1e9,
        executables: if id == "fuseline-fused" { 2 } else { ops as u64 / 2 },
        longest_wait: Some(if place == 22 { 6_000_000 } else { 0 }),
        steady_compiles: if place == 22 { 11 } else { 0 },
        ops,
        regions: if id == "fuseline-fused" { 1.0 } else { ops },
        executions: if id == "fuseline-fused" { 1.0 } else { ops },
        donations: 2.37,
        bytes_up: 4096.0,
        bytes_down: 4.0,
    };
    Times {
        deviation: Some(if id == "jax" { 0.0 } else { dice.next() * 1e-6 }),
        warm,
        steady_from,
        step: stats::step(&rounds),
        rounds,
        peak_kib: (place != 5).then_some(kib + place as u64 * 7000),
        engine: fuseline.then_some(engine),
    }
}

fn case(dice: &mut Dice, place: usize) -> CaseResult {
    let (name, fused, ops) = CASES[place];
    let mut runs = BTreeMap::new();
    let mut ratios = Vec::new();
    for (id, _, slower, first, kib) in CONTENDERS {
        // Work on large arrays is the same for all, so a contender's overhead per op counts less.
        let slower = 1.0 + (slower - 1.0) * (1e6 / (fused / ops * 20.0 + 1e5)).min(1.4);
        let step = if id == "fuseline-fused" { fused } else { fused * slower * dice.about(0.5) };
        let run = match (place, id) {
            (_, "torch-xla") => continue,
            (24, "numpy") => continue,
            (24, "fuseline-fused") => Run::Failed("the plugin <said> no & stopped".to_owned()),
            (7 | 8, "numpy") => Run::LeftOut("NumPy has no convolution".to_owned()),
            (21 | 22, "torch-compile") => Run::Failed(
                "results are 0.013 apart from those of Fused, where 1e-5 is allowed: y[3]".to_owned(),
            ),
            _ => Run::Measured(Box::new(times(dice, id, place, first, kib, ops, step))),
        };
        if place != 24 && id != "fuseline-fused" && matches!(run, Run::Measured(_)) {
            let noisy = dice.next() < 0.06 || (place, id) == (2, "jax");
            let spread = if noisy { 2.0 } else { 0.02 + 0.1 * dice.next() };
            let pairs: Vec<f64> = (0..ROUNDS).map(|_| fused / step * dice.about(spread)).collect();
            ratios.push(Ratio { to: id.to_owned(), quartiles: stats::quartiles(&pairs), pairs, noisy });
        }
        runs.insert(id.to_owned(), run);
    }
    CaseResult {
        name: name.to_owned(),
        about: "A step of training: forward, backward, SGD with momentum.".to_owned(),
        check_steps: 5,
        tolerance: 1e-4,
        runs,
        ratios,
    }
}

/// The report.
pub(crate) fn report() -> Report {
    let mut dice = Dice(7);
    let words = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let contenders = CONTENDERS
        .iter()
        .map(|&(id, name, ..)| Contender {
            id: id.to_owned(),
            name: name.to_owned(),
            versions: match id {
                "torch-xla" => BTreeMap::new(),
                _ if id.starts_with("torch") => words(&[("torch", "2.9.1"), ("python", "3.12.4")]),
                _ if id.starts_with("jax") => {
                    words(&[("jax", "0.8.1"), ("jaxlib", "0.8.1"), ("python", "3.12.4")])
                }
                "numpy" => words(&[("numpy", "2.3.5"), ("python", "3.12.4")]),
                _ => words(&[("fuseline", "0.1.0"), ("plugin", "xla cpu 0.8.1")]),
            },
            missing: (id == "torch-xla")
                .then(|| "no module named torch_xla <for> this Python & none to install".to_owned()),
            note: (id == "jax").then(|| "not the newest <JAX>".to_owned()),
        })
        .collect();
    Report {
        format: FORMAT,
        started: "2026-11-22 06:30 UTC".to_owned(),
        finished: "2026-11-22 07:12 UTC".to_owned(),
        commit: "a3f9c2a71d0be54c7788a3f9c2a71d0be54c7788+".to_owned(),
        settings: Settings {
            quick: false,
            rounds: ROUNDS,
            sittings: 1,
            block_seconds: 0.4,
            device: "cpu".to_owned(),
            threads: 2,
            environment: words(&[("MALLOC_TRIM_THRESHOLD_", "-1"), ("OMP_NUM_THREADS", "2")]),
        },
        machine: Machine {
            cpu: "AMD EPYC 9R14".to_owned(),
            cores: 2,
            memory_bytes: 8 << 30,
            system: "Linux 6.1, x86_64".to_owned(),
            load: 0.12,
        },
        contenders,
        cases: (0..CASES.len()).map(|place| case(&mut dice, place)).collect(),
        interrupted: true,
    }
}

/// A report of a run in which nothing was measured.
pub(super) fn empty() -> Report {
    let mut report = report();
    report.cases.clear();
    report.contenders.clear();
    report.commit.clear();
    report.settings.environment.clear();
    report
}
