//! The contenders, which run the cases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cases::Case;
use crate::cli::{Device, Options, Peers};
use crate::peers;
use crate::results;

/// The contender that the others are compared with.
pub(crate) const FUSED: &str = "fuseline-fused";

/// The contender without results: the executables of Fused's steady step in a bare loop.
pub(crate) const FLOOR: &str = "pjrt";

/// How to start a contender's processes.
#[derive(Clone, Debug)]
enum Start {
    /// Run the tool, with options of its command `bench`.
    Fuseline(&'static [&'static str]),
    /// Run the worker in this Python environment.
    Python(PathBuf),
    /// Not available, for this reason.
    Missing(String),
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) id: &'static str,
    name: &'static str,
    start: Start,
    /// A remark, which the page shows after its versions.
    note: Option<String>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Contenders {
    all: Vec<Contender>,
    fuseline: PathBuf,
    plugin: Option<PathBuf>,
    device: Device,
    /// The cache of `torch.compile`, which lasts between runs.
    inductor: PathBuf,
    environment: BTreeMap<String, String>,
}

/// Fuseline's contenders, and those of the peers that set them up.
const OWN: [(&str, &str, &[&str]); 4] = [
    (FUSED, "Fuseline Fused", &["--mode", "fused"]),
    ("fuseline-strict", "Fuseline Strict", &["--mode", "strict"]),
    ("fuseline-debug", "Fuseline Debug", &["--mode", "debug"]),
    (FLOOR, "PJRT alone", &["--floor"]),
];
const PEERS: [(&str, &str, Peers); 7] = [
    ("jax", "jax.jit", Peers::Jax),
    ("jax-0.10", "jax.jit 0.10", Peers::Jax010),
    ("jax-eager", "JAX eager", Peers::Jax),
    ("torch-compile", "torch.compile", Peers::Torch),
    ("torch", "PyTorch eager", Peers::Torch),
    ("torch-xla", "PyTorch/XLA", Peers::TorchXla),
    ("numpy", "NumPy", Peers::Numpy),
];

impl Contender {
    /// Whether its first step takes many seconds: `torch.compile` runs a C++ compiler, and
    /// PyTorch/XLA traces each step anew.
    pub(crate) fn compiles_long(&self) -> bool {
        matches!(self.id, "torch-compile" | "torch-xla")
    }
}

/// Whether another requested group has the same version.
fn is_duplicate(group: Peers, options: &Options) -> bool {
    group == Peers::Jax010 && options.includes(Peers::Jax) && !peers::has_newest_jax(options)
}

impl Contenders {
    /// Sets up the requested peers. One that cannot be set up is included as missing.
    pub(crate) fn provide(options: &Options) -> anyhow::Result<Contenders> {
        let mut all: Vec<Contender> = OWN
            .iter()
            .map(|&(id, name, options)| Contender { id, name, start: Start::Fuseline(options), note: None })
            .collect();
        let mut pythons: BTreeMap<Peers, Result<PathBuf, String>> = BTreeMap::new();
        for (id, name, group) in PEERS {
            if !options.includes(group) || is_duplicate(group, options) {
                continue;
            }
            let python = pythons
                .entry(group)
                .or_insert_with(|| peers::provide(group, options).map_err(|error| format!("{error:#}")));
            let start = match python {
                Ok(python) => Start::Python(python.clone()),
                Err(why) => Start::Missing(why.clone()),
            };
            all.push(Contender { id, name, start, note: peers::note(group, options) });
        }
        let plugin = match (&options.plugin, options.device) {
            (Some(plugin), _) => Some(std::path::absolute(plugin)?),
            (None, Device::Cpu) => None,
            // This is needed even if JAX is not requested as a peer.
            (None, Device::Cuda) => {
                let python = peers::provide(Peers::Jax, options)?;
                Some(peers::cuda_plugin(&python)?)
            }
        };
        Ok(Contenders {
            all,
            fuseline: std::path::absolute(&options.fuseline)?,
            plugin,
            device: options.device,
            inductor: std::path::absolute(options.environments.join("inductor"))?,
            environment: options.settings().environment,
        })
    }

    /// The contenders that can run.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Contender> {
        self.all.iter().filter(|contender| !matches!(contender.start, Start::Missing(_)))
    }

    /// The position of a contender in the list.
    pub(crate) fn place(&self, contender: &Contender) -> Option<usize> {
        self.all.iter().position(|one| one.id == contender.id)
    }

    /// Descriptions for the report.
    pub(crate) fn descriptions(&self) -> Vec<results::Contender> {
        let describe = |contender: &Contender| results::Contender {
            id: contender.id.to_owned(),
            name: contender.name.to_owned(),
            versions: BTreeMap::new(),
            missing: match &contender.start {
                Start::Missing(why) => Some(why.clone()),
                _ => None,
            },
            note: contender.note.clone(),
        };
        self.all.iter().map(describe).collect()
    }

    /// The command of a contender's process for a case.
    pub(crate) fn command(&self, contender: &Contender, case: &Case) -> Command {
        let mut command = match &contender.start {
            Start::Python(python) => {
                let mut command = Command::new(python);
                command.arg(programs().join("../peers/worker.py"));
                command.args([contender.id, &case.program, &case.params.to_string(), self.device.name()]);
                command.env("TORCHINDUCTOR_CACHE_DIR", &self.inductor);
                command
            }
            Start::Fuseline(options) => {
                let mut command = Command::new(&self.fuseline);
                command.args(["bench", "--serve", &case.name]).args(*options);
                if let Some(plugin) = &self.plugin {
                    command.arg("--device").arg(plugin);
                }
                if self.device == Device::Cuda {
                    // As for JAX: the other processes of the case need memory too.
                    command.args(["--client-option", "preallocate=false"]);
                }
                command
            }
            Start::Missing(why) => {
                unreachable!("bug: {} is started although it is missing: {why}", contender.id)
            }
        };
        command.envs(&self.environment);
        command
    }
}

/// The library of a contender, in the form that program classes and exclusions use.
pub(crate) fn library(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

/// The folder of the programs: in the checkout that the harness was built in, or, on another
/// machine, in the current folder.
fn programs() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs");
    if built.is_dir() { built } else { PathBuf::from("benches/programs") }
}
