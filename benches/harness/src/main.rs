//! Measures Fuseline against JAX, PyTorch and NumPy: the same programs, on the same machine, in the
//! same run.
//!
//! `cargo xtask bench` builds and runs this program. Input: the cases
//! (`benches/programs/cases.json`), the tool `fuseline`, and Python environments for the peers
//! ([`peers`]). Each contender runs a case in a process of its own ([`worker`]). All processes of a
//! case live at the same time, but one at a time works. Results are compared before any time counts
//! ([`check`]). Then blocks of steps alternate, one of Fuseline's and one of another contender's
//! ([`measure`]). Output: `results.json` ([`results`]) with every sample, written after each case,
//! and a page and plots made from it ([`report`]).
#![forbid(unsafe_code)]

mod against;
mod cases;
mod check;
mod cli;
mod contender;
mod machine;
mod measure;
mod peers;
mod report;
mod results;
mod stats;
#[path = "../../programs/steady.rs"]
mod steady;
mod store;
mod worker;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};

use cases::Case;
use cli::Options;
use contender::Contenders;
use results::{FORMAT, Report};

/// Whether the user has asked to stop.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            machine::say(format_args!("bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Measures what is missing. Returns whether nothing failed and the user did not stop it.
fn run(options: &Options) -> anyhow::Result<bool> {
    // Read first, because measuring takes long.
    let earlier = options.against.as_deref().map(store::read).transpose()?;
    if options.render {
        let file = ["results.json", "summary.json"].map(|name| options.output.join(name));
        let report = store::read(file.iter().find(|file| file.exists()).unwrap_or(&file[0]))?;
        return finish(options, &report, earlier.as_ref());
    }
    let cases = cases::chosen(options)?;
    std::fs::create_dir_all(&options.output)
        .with_context(|| format!("could not create {}", options.output.display()))?;
    ctrlc::set_handler(|| {
        // A second Ctrl-C exits at once.
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        machine::say(format_args!(
            "bench: stopping, finished measurements are kept (interrupt again to stop at once)"
        ));
    })
    .context("could not install a signal handler")?;
    let contenders = Contenders::provide(options)?;
    let mut report = Report {
        format: FORMAT,
        started: machine::now(),
        finished: machine::now(),
        commit: machine::commit(),
        settings: options.settings(),
        machine: machine::describe(),
        contenders: contenders.descriptions(),
        cases: Vec::new(),
        // Set until the end: a run that is killed can be resumed too.
        interrupted: true,
    };
    if !options.fresh {
        store::resume(options, &mut report);
    }
    let bar = ProgressBar::new(cases.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}").context("a template")?,
    );
    bar.enable_steady_tick(Duration::from_secs(1));
    bar.inc(report.cases.len() as u64);
    let todo: Vec<&Case> =
        cases.iter().filter(|case| report.cases.iter().all(|done| done.name != case.name)).collect();
    for case in todo {
        let result = measure::case(case, &contenders, options, &bar)?;
        let Some((result, versions)) = result else { break };
        // A hidden bar, as on no terminal, does not print lines.
        match bar.is_hidden() {
            true => machine::say(format_args!("{}", stats::line(&result))),
            false => bar.println(stats::line(&result)),
        }
        report.cases.push(result);
        for contender in &mut report.contenders {
            if let Some(found) = versions.get(&contender.id) {
                contender.versions.clone_from(found);
            }
        }
        report.finished = machine::now();
        store::write(options, &report)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.interrupted = report.cases.len() < cases.len();
    // In the order of the cases, wherever a resumed run began.
    report.cases.sort_by_key(|done| cases.iter().position(|case| case.name == done.name));
    store::write(options, &report)?;
    finish(options, &report, earlier.as_ref())
}

/// Makes the page and prints a summary. Returns whether nothing failed and the user did not stop
/// it.
fn finish(options: &Options, report: &Report, earlier: Option<&Report>) -> anyhow::Result<bool> {
    report::write(report, &options.output)?;
    for contender in &report.contenders {
        if let Some(why) = &contender.missing {
            machine::say(format_args!("bench: {} was not measured: {why}", contender.name));
        }
    }
    if let Some(earlier) = earlier {
        machine::say(format_args!("bench: {}", against::compare(earlier, report).trim_end()));
    }
    machine::say(format_args!("bench: {}", report::goals::lines(report).trim_end()));
    machine::say(format_args!("bench: {}", options.output.join("index.html").display()));
    Ok(!report.interrupted && stats::failures(report) == 0)
}
