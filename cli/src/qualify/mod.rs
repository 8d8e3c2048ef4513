//! `fuseline qualify`: what a plugin computes correctly, op by op.

mod page;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fuseline::EngineConfig;
use fuseline::fusion::op::Workaround;
use fuseline::qualification::{Certificate, Finding, Level, QualificationPolicy};
use fuseline_cache::disk::write_given;
use fuseline_qualify::{Options, Progress, qualify, serve};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Status;
use crate::cli::QualifyArgs;
use crate::failure::Failure;
use crate::report::write_page;
use crate::text::{note, say, time};

/// The largest number of findings of a kind that are printed.
const SHOWN: usize = 40;

pub(crate) fn run(args: &QualifyArgs, out: &mut String) -> Result<Status, Failure> {
    let level = if args.full { Level::Full } else { Level::Quick };
    let mut options = Options::new(level);
    options.plugin.clone_from(&args.plugin);
    options.client_options.clone_from(&args.options);
    options.jobs = args.jobs;
    options.only.clone_from(&args.only);
    if args.background {
        lower_priority();
        options.jobs = 1;
    }
    if let Some(limit) = args.limit {
        options.limit = Duration::from_secs(limit);
    }
    if let Some(folder) = &args.conformance {
        options.cases = cases(folder)?;
    }
    let program = std::env::current_exe().map_err(Failure::run)?;
    let worker = || {
        let mut command = Command::new(&program);
        command.arg("qualify-worker");
        command
    };
    let start = Instant::now();
    let bar = bar();
    let mut tenths = 0;
    let certificate = qualify(&options, &worker, &mut |progress| {
        show(&bar, progress);
        // Without a terminal there is no bar.
        let now = progress.done * 10 / progress.all.max(1);
        if let Some((name, finding)) = progress.last.as_ref().filter(|_| bar.is_hidden())
            && **finding != Finding::Right
        {
            // What was found so far is known even if this process is ended.
            let what = finding.evidence().map(|(_, what)| format!(": {what}")).unwrap_or_default();
            note(format_args!("fuseline: {name}: {}{what}", finding.kind()));
        }
        if bar.is_hidden() && now > tenths {
            tenths = now;
            note(format_args!(
                "fuseline: {} of {} tried, in {}",
                progress.done,
                progress.all,
                time(start.elapsed())
            ));
        }
    });
    bar.finish_and_clear();
    let certificate = certificate.map_err(Failure::run)?;
    if options.only.is_empty() {
        keep(&options, &certificate);
    }
    let text = certificate.to_json();
    if let Some(path) = &args.output {
        write_given(path, text.as_bytes())
            .map_err(|error| Failure::Run(format!("{} cannot be written: {error}", path.display())))?;
        note(format_args!("fuseline: wrote {}", path.display()));
    }
    if let Some(path) = &args.html {
        write_page(path, page::page(&certificate))?;
    }
    if args.json {
        out.push_str(&text);
    } else {
        words(&certificate, start.elapsed(), out);
    }
    Ok(if certificate.is_clean() { Status::Good } else { Status::Bad })
}

/// Gives way to every other process. Workers inherit that.
fn lower_priority() {
    // At the normal priority it takes longer for others, but works as well.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(19);
}

/// Keeps the certificate in the disk cache, where engines find it.
fn keep(options: &Options, certificate: &Certificate) {
    let mut config = EngineConfig::new().qualification(QualificationPolicy::Use);
    if let Some(plugin) = &options.plugin {
        config = config.plugin(plugin);
    }
    for (name, value) in &options.client_options {
        config = config.client_option(name, value.clone());
    }
    match config.build().and_then(|engine| engine.keep_certificate(certificate)) {
        Ok(()) => note(format_args!("fuseline: engines find the certificate in the disk cache")),
        Err(error) => note(format_args!("fuseline: the certificate is not kept for engines: {error}")),
    }
}

/// Serves as a worker. The answers go to standard output at once, as the parent waits for them.
pub(crate) fn work() -> Result<Status, Failure> {
    serve(io::stdin().lock(), io::stdout()).map_err(Failure::run)?;
    Ok(Status::Good)
}

/// The program files of a folder, sorted.
fn cases(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable =
        |error: io::Error| Failure::Input(format!("{} cannot be read: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Failure::Input(format!("{} has no program files (.json)", folder.display())));
    }
    paths.sort();
    Ok(paths)
}

/// A progress bar on standard error.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}").expect("a template");
    bar.set_style(style);
    bar
}

fn show(bar: &ProgressBar, progress: &Progress<'_>) {
    bar.set_length(progress.all as u64);
    bar.set_position(progress.done as u64);
    if let Some((name, finding)) = &progress.last {
        match finding {
            Finding::Right => bar.set_message(name.clone()),
            finding => bar.set_message(format!("{name}: {}", finding.kind())),
        }
    }
}

/// Writes key, counts and the findings that are not right, the worst first.
fn words(certificate: &Certificate, took: Duration, out: &mut String) {
    let key = certificate.key();
    say!(
        out,
        "{} qualification of platform {}, API {}, device {}, in {}",
        certificate.level().name(),
        key.platform,
        key.api_version,
        key.device_kind,
        time(took)
    );
    say!(out, "plugin {}", key.plugin);
    let counts = certificate.counts().map(|(kind, count)| format!("{count} {kind}"));
    say!(out, "{}", counts.join(", "));
    if !certificate.workarounds().is_empty() {
        let (all, tried) = (Workaround::ALL.len(), certificate.workarounds().len());
        let unneeded = certificate.unneeded_workarounds();
        say!(
            out,
            "{} of {all} workarounds are left out on this plugin, of {tried} whose need shows in calls: {unneeded}",
            unneeded.iter().count()
        );
    }
    let mut by_kind: BTreeMap<usize, Vec<(String, &Finding)>> = BTreeMap::new();
    for row in certificate.rows() {
        let other = row.other.map(|other| format!(" and {other}")).unwrap_or_default();
        let name = format!("{} of {}{other}, {}", row.op.name(), row.dtype, row.operand_kind.name());
        by_kind.entry(row.finding.severity()).or_default().push((name, &row.finding));
    }
    for check in certificate.checks() {
        by_kind.entry(check.finding.severity()).or_default().push((check.name.clone(), &check.finding));
    }
    for (kind, findings) in by_kind.iter().rev().filter(|(kind, _)| **kind > 0) {
        say!(out);
        say!(out, "{}:", Finding::KINDS[*kind]);
        for (name, finding) in findings.iter().take(SHOWN) {
            say!(out, "  {name}");
            if let Some((call, what)) = finding.evidence() {
                say!(out, "    {call}");
                say!(out, "    {what}");
            }
        }
        if findings.len() > SHOWN {
            say!(out, "  and {} more, see --json", findings.len() - SHOWN);
        }
    }
}
