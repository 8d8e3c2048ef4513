//! Commands and options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cache::args::{CACHE_HELP, CacheArgs};
use crate::options::{Contract, DeviceChoice, DeviceOptions, ModeChoice, client_option};

const EXIT_STATUS: &str = "\
Exit status:
  0  success
  1  a result differs from the expected one, a run failed, or no plugin can be used
  2  the command line or the program file is wrong";

/// Records eager tensor ops, fuses them, compiles them with XLA and runs them on any PJRT device.
#[derive(Debug, Parser)]
#[command(name = "fuseline", version, after_help = EXIT_STATUS, max_term_width = 100, infer_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program file, and compare its outputs with the expected ones
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Show the regions and kernels of a program, and the reasons for them
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainArgs),
    /// List the PJRT plugins and their problems, and run a test computation on the chosen one
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Compare every op of a plugin with the interpreter, and write a certificate
    #[command(after_help = QUALIFY_HELP)]
    Qualify(QualifyArgs),
    /// List the devices of the plugin that would be used
    #[command(after_help = DEVICES_HELP)]
    Devices(DevicesArgs),
    /// List the ops, or show everything about one
    #[command(after_help = OPS_HELP)]
    Ops(OpsArgs),
    /// Turn a StableHLO module, as JAX and other front ends print it, into a program file
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Measure programs step by step: a transformer, a ResNet block, optimisers, simulations
    #[command(after_help = BENCH_HELP)]
    Bench(BenchArgs),
    /// Manage the disk cache: compile ahead of time, list, verify, remove, export, import
    #[command(after_help = CACHE_HELP)]
    Cache(CacheArgs),
    /// Load one plugin and report on it; `doctor` probes each candidate in a process of its own
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// Try what `qualify` asks for on standard input, in a process that a plugin may crash
    #[command(hide = true)]
    QualifyWorker,
    /// Use up the memory of a device, and print what happens as JSON
    #[command(hide = true)]
    MemoryTrial(MemoryTrialArgs),
}

impl Command {
    /// Whether this process may load a plugin.
    pub(crate) fn loads_plugin(&self) -> bool {
        match self {
            Command::Run(args) => args.place.device != Some(DeviceChoice::Reference),
            Command::Explain(args) => args.place.device != Some(DeviceChoice::Reference),
            Command::Devices(args) => args.place.device != Some(DeviceChoice::Reference),
            Command::Bench(args) => args.place.device != Some(DeviceChoice::Reference),
            Command::MemoryTrial(args) => args.place.device != Some(DeviceChoice::Reference),
            Command::Cache(args) => args.command.loads_plugin(),
            Command::Doctor(_) | Command::Probe(_) | Command::QualifyWorker => true,
            // Its workers do.
            Command::Qualify(_) => false,
            Command::Ops(_) | Command::Import(_) => false,
        }
    }

    /// Whether the command prints JSON, with or without an option.
    pub(crate) fn prints_json(&self) -> bool {
        self.wants_json() || matches!(self, Command::Import(_) | Command::Probe(_) | Command::MemoryTrial(_))
    }

    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Run(args) => args.json,
            Command::Doctor(args) => args.json,
            Command::Devices(args) => args.json,
            Command::Ops(args) => args.json,
            Command::Bench(args) => args.json,
            Command::Qualify(args) => args.json,
            Command::Cache(args) => args.command.wants_json(),
            Command::QualifyWorker => false,
            Command::MemoryTrial(_) => true,
            Command::Explain(_) | Command::Import(_) | Command::Probe(_) => false,
        }
    }
}

const RUN_HELP: &str = "\
Examples:
  fuseline run step.json                          on the first usable plugin
  fuseline run step.json --device reference       on the reference interpreter, which needs no plugin
  fuseline run step.json --repeat 100             the first run compiles, the others hit the cache
  fuseline run step.json --mode debug             one op per region, synchronous and checked
  fuseline run step.json --dump stablehlo         the modules that the compiler gets
  fuseline run step.json --repeat 20 --timeline step.html    where the time goes, as text and as a page
  fuseline run step.json --json | jq .time        for scripts

Exit status:
  0  the program ran, and its outputs match the expected ones, if the file has any
  1  an output does not match, or the program could not be run
  2  the command line or the program file is wrong; errors in a file are printed as FILE:LINE:COLUMN: PLACE: PROBLEM";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The program, in the JSON program format (`-` reads it from standard input), or a StableHLO
    /// module (.mlir), whose function is applied to zeros
    #[arg(value_name = "PROGRAM.JSON")]
    pub(crate) program: PathBuf,
    /// How regions are formed
    #[arg(long, value_enum, default_value_t = ModeChoice::Fused)]
    pub(crate) mode: ModeChoice,
    /// How many times to run it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Also print what the engine did: modules and regions of the first run, events of all runs
    #[arg(long, value_enum)]
    pub(crate) dump: Option<Dump>,
    /// Also write a page that shows where the time of the runs went (.html)
    #[arg(long, value_name = "FILE", value_parser = html)]
    pub(crate) timeline: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) contract: Contract,
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
}

const BENCH_HELP: &str = "\
A step ends when its result has arrived on the host, so its time is what a user waits for. The first
steps compile. A program is steady as soon as its steps compile nothing and take no longer than
later ones. `cargo xtask bench` compares with JAX, PyTorch and NumPy.

Examples:
  fuseline bench                                  every program, in Fused and Strict
  fuseline bench --list                           list the programs
  fuseline bench --only mlp --mode fused          one of them
  fuseline bench --device /path/to/plugin.so      on another device

Exit status:
  0  every program was measured
  1  a program could not be run
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Only programs whose names contain this
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Only this mode [default: fused and strict]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeChoice>,
    /// How long each program is measured, in seconds, after it has become steady
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) time: f64,
    /// Run each program in two processes that share a disk cache, one after the other, and compare
    /// their first steps
    #[arg(long)]
    pub(crate) restart: bool,
    /// Compile each region before it first runs, instead of interpreting it until its executable is
    /// ready
    #[arg(long)]
    pub(crate) compile_first: bool,
    /// List the programs instead
    #[arg(long)]
    pub(crate) list: bool,
    /// Print one JSON document, with the time of every step
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) contract: Contract,
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
    /// Only the program with this name, regardless of other options
    #[arg(long, value_name = "CASE", hide = true)]
    pub(crate) case: Option<String>,
    /// Serve requests of the harness on standard input with the program of this name
    #[arg(long, value_name = "CASE", hide = true, conflicts_with_all = ["only", "list", "json", "restart"])]
    pub(crate) serve: Option<String>,
    /// With `--serve`: run the executables of a steady step in a bare loop instead
    #[arg(long, hide = true, requires = "serve")]
    pub(crate) floor: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number from 0.001 to 3600".to_owned()),
    }
}

const EXPLAIN_HELP: &str = "\
The program runs twice: the first run compiles, and the second shows what it finds in the cache. The
kernels are read from the optimized program that XLA returns. If a plugin does not return it, and on
the reference interpreter, they are estimated from the op table, and the output says so.

Examples:
  fuseline explain step.json
  fuseline explain step.json --output step.html   a page with a diagram and a timeline, to open in a browser
  fuseline explain step.json --output step.svg    the diagram alone
  fuseline explain step.json --mode strict

Exit status:
  0  the program ran
  1  it could not be run, or the page could not be written
  2  the command line or the program file is wrong";

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The program, in the JSON program format (`-` reads it from standard input), or a StableHLO
    /// module (.mlir), whose function is applied to zeros
    #[arg(value_name = "PROGRAM.JSON")]
    pub(crate) program: PathBuf,
    /// Also write a page (.html) or a picture (.svg)
    #[arg(long, short, value_name = "FILE", value_parser = page)]
    pub(crate) output: Option<PathBuf>,
    /// How regions are formed
    #[arg(long, value_enum, default_value_t = ModeChoice::Fused)]
    pub(crate) mode: ModeChoice,
    #[command(flatten)]
    pub(crate) contract: Contract,
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
}

const DOCTOR_HELP: &str = "\
Plugins are searched in this order: --device, FUSELINE_PJRT_PLUGIN, PJRT_NAMES_AND_LIBRARY_PATHS,
installed Python packages (xla_plugins.*, jax_plugins.*, libtpu), and the folder of `cargo xtask
setup` (FUSELINE_SETUP_DIR). Each plugin is loaded in a process of its own, so that a crash or a
hang is reported like any other problem.

Exit status:
  0  the test computation on the chosen plugin succeeded
  1  no plugin can be used, or the test computation failed
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Path of a PJRT plugin to use before all others
    #[arg(long, value_name = "PLUGIN")]
    pub(crate) device: Option<PathBuf>,
}

const QUALIFY_HELP: &str = "\
Each op of the op table runs on each of its element types, with special values (NaN, infinities, zeros
of both signs, limits of the types), and its results are compared with those of the reference
interpreter. Everything runs in worker processes: a plugin that crashes or hangs is a finding. The
findings on an op and an element type are:
  right                within the documented rounding of the op
  rounds differently   further off, by at most 64 units in the last place (4096 of f64)
  refused              the plugin does not compile or run it; its message is quoted
  wrong                a result is wrong; an element is shown
  crashes              the worker's process ended, or did not answer in time

Examples:
  fuseline qualify                                under a minute: the ops of common programs
  fuseline qualify --full --output cpu.json       every op on every type, random programs, donation, collectives
  fuseline qualify --plugin /path/to/plugin.so --html page.html
  fuseline qualify --full --only atan2,sort       everything about two ops
  fuseline qualify --json | jq .findings

Exit status:
  0  nothing is wrong and nothing crashes
  1  something does, or no plugin can be used
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct QualifyArgs {
    /// Path of the PJRT plugin [default: the first that is found, see `doctor`]
    #[arg(long, value_name = "PLUGIN", alias = "device")]
    pub(crate) plugin: Option<PathBuf>,
    /// The ops and element types of common programs, with a few calls each [default]
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every op on every element type, random programs, donation, subnormal numbers, collectives
    #[arg(long)]
    pub(crate) full: bool,
    /// Write the certificate to this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write a page (.html)
    #[arg(long, value_name = "FILE", value_parser = html)]
    pub(crate) html: Option<PathBuf>,
    /// Print the certificate, one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Also run the conformance cases in this folder, program files with expected outputs
    #[arg(long, value_name = "FOLDER")]
    pub(crate) conformance: Option<PathBuf>,
    /// Only these ops, and no random programs; no certificate is written
    #[arg(long, value_name = "OP,OP", value_delimiter = ',', value_parser = op, conflicts_with = "output")]
    pub(crate) only: Vec<fuseline::OpCode>,
    /// An option for the plugin's client, such as preallocate=false on CUDA; may be repeated.
    /// NAME:TYPE=VALUE sets the type too: bool, int, ints (visible_devices:ints=0,1), float, string
    #[arg(long = "client-option", value_name = "NAME=VALUE", value_parser = client_option)]
    pub(crate) options: Vec<(String, fuseline::pjrt::Value)>,
    /// How many worker processes run at once [default: one per core, at most 8]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) jobs: usize,
    /// After how many seconds without an answer a worker counts as hanging [default: 60, or 240
    /// with --full]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Give way to other processes: one worker, at the lowest priority
    #[arg(long)]
    pub(crate) background: bool,
}

const DEVICES_HELP: &str = "\
Examples:
  fuseline devices
  fuseline devices --json | jq '.devices[].kind'

Exit status:
  0  the devices were listed
  1  no plugin can be used; `fuseline doctor` says why
  2  the command line is wrong";

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Load the plugin in this process
    #[arg(long, hide = true)]
    pub(crate) here: bool,
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
}

const OPS_HELP: &str = "\
Examples:
  fuseline ops
  fuseline ops dot_general
  fuseline ops --json | jq '.[].op'
  fuseline ops --markdown > docs/ops.md

Exit status:
  0  the ops were listed
  2  the command line is wrong, or there is no op of that name";

#[derive(Debug, Args)]
pub(crate) struct OpsArgs {
    /// One op, with or without its dialect: `add`, `stablehlo.add`
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print the op reference of the documentation (Markdown)
    #[arg(long)]
    pub(crate) markdown: bool,
}

const IMPORT_HELP: &str = "\
The ops of the function are checked and written to the program file; calls are inlined. The inputs
are zeros: replace them in the file.

Examples:
  fuseline import step.mlir --output step.json
  fuseline import step.mlir | jq .n_ops
  fuseline run step.mlir                          run it without writing a file

Exit status:
  0  the program was written
  1  it could not be written
  2  the command line or the module is wrong; errors in a module are printed as FILE:LINE:COLUMN: PROBLEM";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The module, as text; its name ends in .mlir
    #[arg(value_name = "MODULE.MLIR", value_parser = module)]
    pub(crate) module: PathBuf,
    /// The program file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Path of the plugin
    pub(crate) plugin: PathBuf,
    /// Also run a test computation
    #[arg(long)]
    pub(crate) smoke: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryTrialArgs {
    #[command(flatten)]
    pub(crate) place: DeviceOptions,
}

fn op(text: &str) -> Result<fuseline::OpCode, String> {
    fuseline::OpCode::from_name(text)
        .ok_or_else(|| "there is no op of that name, see `fuseline ops`".to_owned())
}

fn module(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("mlir") => Ok(path),
        _ => Err("it should end in .mlir".to_owned()),
    }
}

fn html(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Ok(path),
        _ => Err("it should end in .html".to_owned()),
    }
}

fn page(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm" | "svg") => Ok(path),
        _ => Err("it should end in .html or .svg".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dump {
    /// The StableHLO module of each region
    Stablehlo,
    /// Each region: why it ends, its key, inputs, outputs and ops
    Regions,
    /// Each event of the engine
    Events,
    /// The elements of each output of the first run; for large outputs, those near the edges
    Outputs,
}

impl Dump {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Dump::Stablehlo => "stablehlo",
            Dump::Regions => "regions",
            Dump::Events => "events",
            Dump::Outputs => "outputs",
        }
    }
}
