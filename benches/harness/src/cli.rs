//! The command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::machine;
use crate::results::Settings;

/// Measures Fuseline beside JAX, PyTorch and NumPy.
///
/// Peers are set up in Python environments under target/, from pinned packages; one that cannot be
/// set up is reported as missing. A run that was stopped continues where it stopped when it is
/// started again with the same options on the same commit.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", max_term_width = 100)]
pub(crate) struct Options {
    /// Fewer cases and shorter blocks: under 5 minutes once the peers are set up
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only cases whose names contain this text
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Peers to compare with
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub(crate) peers: Vec<Peers>,
    /// Folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "bench-report")]
    pub(crate) output: PathBuf,
    /// Another file for the results
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Device of all contenders; NumPy only has the CPU
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// The PJRT plugin that Fuseline runs on [default: the first that is found, on CUDA the one of
    /// JAX]
    #[arg(long, value_name = "PATH")]
    pub(crate) plugin: Option<PathBuf>,
    /// A Python with the peers' packages, for a machine that cannot fetch them
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Measure everything again, even what an earlier run has measured
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Results of another run; changed ratios are printed at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// Measure nothing; write the page again from existing results
    #[arg(long)]
    pub(crate) render: bool,
    /// The command-line tool
    #[arg(long, hide = true, default_value = "target/release/fuseline")]
    pub(crate) fuseline: PathBuf,
    /// Folder of the peers' environments
    #[arg(long, hide = true, default_value = "target/peers")]
    pub(crate) environments: PathBuf,
}

/// The device of all contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    Cpu,
    /// A CUDA device
    Cuda,
}

impl Device {
    /// The peers' name of the device.
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
    /// JAX, eager and jit: on CPUs the newest version that a Python of this machine can run
    Jax,
    /// JAX 0.10, jit: in a full run, if `jax` is newer
    #[value(name = "jax-0.10")]
    Jax010,
    /// PyTorch, eager and torch.compile
    Torch,
    /// PyTorch/XLA
    TorchXla,
    /// All of them
    All,
}

impl Options {
    /// Whether these peers are requested.
    pub(crate) fn includes(&self, peers: Peers) -> bool {
        let with_all = peers != Peers::Jax010 || !self.quick && self.device == Device::Cpu;
        self.peers.contains(&Peers::All) && with_all || self.peers.contains(&peers)
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

/// Variables of every contender.
///
/// glibc returns large freed blocks to the system and faults them in again at the next allocation.
/// This is half of the cost of op-by-op execution without a memory pool. Here freed memory stays in
/// the process, for all contenders alike.
fn environment(device: Device) -> BTreeMap<String, String> {
    let mut variables = vec![
        // The largest value that glibc accepts.
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
        ("MALLOC_TOP_PAD_", "67108864"),
        ("JAX_PLATFORMS", device.name()),
        ("PJRT_DEVICE", "CPU"),
        ("TF_CPP_MIN_LOG_LEVEL", "1"),
        ("PYTHONWARNINGS", "ignore"),
    ];
    if device == Device::Cuda {
        // All processes of a case share the device, and each would take three quarters of its
        // memory.
        variables.push(("XLA_PYTHON_CLIENT_PREALLOCATE", "false"));
        // By default JAX rounds the operands of f32 products to TF32. Fuseline and PyTorch do not,
        // and results are compared.
        variables.push(("JAX_DEFAULT_MATMUL_PRECISION", "highest"));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
