//! The command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::machine;
use crate::results::Settings;

/// Measures Fuseline beside JAX, PyTorch and NumPy.
///
/// Peers are set up in Python environments under target/, from pinned packages; one that cannot be
/// set up is reported as missing. A run that was stopped goes on where it ended when it is started
/// again with the same options on the same commit.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", max_term_width = 100)]
pub(crate) struct Options {
    /// Fewer cases and shorter blocks: under 5 minutes once the peers are set up
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only cases whose names contain this
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// What to compare with
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub(crate) peers: Vec<Peers>,
    /// Where results go
    #[arg(long, value_name = "FOLDER", default_value = "bench-report")]
    pub(crate) output: PathBuf,
    /// A file for the results, besides the one in the folder
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Where everybody computes; NumPy knows the CPU only
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// The PJRT plugin that Fuseline runs on [default: the first that is found, on CUDA the one
    /// that JAX brings]
    #[arg(long, value_name = "PATH")]
    pub(crate) plugin: Option<PathBuf>,
    /// A Python that has the peers' packages, for a machine that cannot fetch them
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Measure all over again what an earlier run has measured
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Results of another run; which ratios have changed is said at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// Measure nothing, make the page again from the results that are there
    #[arg(long)]
    pub(crate) render: bool,
    /// The command-line tool
    #[arg(long, hide = true, default_value = "target/release/fuseline")]
    pub(crate) fuseline: PathBuf,
    /// Where environments for the peers are
    #[arg(long, hide = true, default_value = "target/peers")]
    pub(crate) environments: PathBuf,
}

/// What all contenders compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    Cpu,
    /// A CUDA device
    Cuda,
}

impl Device {
    /// As peers call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        }
    }
}

/// Peers that are set up together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Peers {
    /// Fuseline alone
    None,
    /// NumPy
    Numpy,
    /// JAX, eager and jit
    Jax,
    /// PyTorch, eager and torch.compile
    Torch,
    /// PyTorch/XLA
    TorchXla,
    /// All of them
    All,
}

impl Options {
    /// Whether some peers are asked for.
    pub(crate) fn asks_for(&self, peers: Peers) -> bool {
        self.peers.contains(&Peers::All) || self.peers.contains(&peers)
    }

    pub(crate) fn settings(&self) -> Settings {
        let (rounds, sittings, block_seconds) = if self.quick { (4, 1, 0.03) } else { (12, 2, 0.08) };
        Settings {
            quick: self.quick,
            rounds,
            sittings,
            block_seconds,
            threads: machine::cores(),
            device: self.device.name().to_owned(),
            environment: environment(self.device),
        }
    }
}

/// Variables that every contender runs with.
///
/// glibc returns large blocks to the system when they are freed and faults them in again when they
/// are next asked for: half of what op-by-op execution costs without a pool. Here freed memory
/// stays in the process, for all alike.
fn environment(device: Device) -> BTreeMap<String, String> {
    let mut variables = vec![
        // The largest that glibc takes.
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
        ("MALLOC_TOP_PAD_", "67108864"),
        ("JAX_PLATFORMS", device.name()),
        ("PJRT_DEVICE", "CPU"),
        ("TF_CPP_MIN_LOG_LEVEL", "1"),
        ("PYTHONWARNINGS", "ignore"),
    ];
    if device == Device::Cuda {
        // All processes of a case live on the one device; each would take three quarters of its
        // memory.
        variables.push(("XLA_PYTHON_CLIENT_PREALLOCATE", "false"));
        // JAX shortens f32 products to TF32 by default. Fuseline and PyTorch do not, and results
        // are compared.
        variables.push(("JAX_DEFAULT_MATMUL_PRECISION", "highest"));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
