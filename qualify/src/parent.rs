//! The parent: distributes batches to workers, finds out which item ended a worker, and makes the
//! certificate.
//!
//! Each job has one worker and takes the next batch. If the worker dies, the job halves the batch
//! and tries both halves in fresh workers, until single items are to blame, and then single calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use fuseline::fusion::DTypeSet;
use fuseline::fusion::lower::Target;
use fuseline::fusion::op::Workaround;
use fuseline::pjrt::Value as OptionValue;
use fuseline::qualification::{Certificate, CertificateKey, Check, Finding, Level, Row, WorkaroundNeed};
use fuseline::{DType, OpCode};
use serde_json::{Value, json};

use crate::calls::{Call, Pair, pairs};
use crate::item::{Item, Unit};
use crate::plan::{Batch, batches, plain_batches, unit_calls, workarounds};
use crate::process::{End, Process};
use crate::worker::Setup;

/// What to qualify, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin; `None` for the first that is found.
    pub plugin: Option<PathBuf>,
    /// Options of the plugin's client, by name.
    pub client_options: Vec<(String, OptionValue)>,
    /// How much to try.
    pub level: Level,
    /// The number of workers; 0 for one per core, at most 8.
    pub jobs: usize,
    /// The longest time for a batch. After that its worker is ended, and the batch counts as
    /// crashed.
    pub limit: Duration,
    /// Files of conformance cases, in the program format.
    pub cases: Vec<PathBuf>,
    /// If it is not empty, only these ops are tried, and no random programs.
    pub only: Vec<OpCode>,
}

impl Options {
    /// The default options of a level: the first plugin that is found, a worker per core, and 60
    /// seconds (quick) or 240 seconds (full) for a batch.
    #[must_use]
    pub fn new(level: Level) -> Options {
        let limit = match level {
            Level::Quick => Duration::from_secs(60),
            Level::Full => Duration::from_secs(240),
        };
        let (client_options, cases, only) = (Vec::new(), Vec::new(), Vec::new());
        Options { plugin: None, client_options, level, jobs: 0, limit, cases, only }
    }

    fn jobs(&self) -> usize {
        match self.jobs {
            0 => std::thread::available_parallelism().map_or(1, |count| count.get().min(8)),
            jobs => jobs,
        }
    }
}

/// How far a qualification is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The number of items done.
    pub done: usize,
    /// The number of all items.
    pub all: usize,
    /// The item that was done last, and the finding if it is not right.
    pub last: Option<(String, &'a Finding)>,
}

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualifyError(String);

impl fmt::Display for QualifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QualifyError {}

/// The longest time for the description of a device.
const DESCRIBE: Duration = Duration::from_secs(60);

/// Qualifies a plugin. `worker` makes the command of a worker: a process that calls
/// [`serve`](crate::serve) on its standard input and output. `progress` is called for each item
/// after its batch.
///
/// # Errors
/// When no worker gets ready: no plugin is found, it cannot be loaded, it has no device, or its
/// process ends at once. A crash later is a finding.
pub fn qualify(
    options: &Options,
    worker: &(dyn Fn() -> Command + Sync),
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Certificate, QualifyError> {
    let (key, flushed) = describe(options, worker)?;
    let setup = setup(options, flushed);
    let pairs = pairs();
    let mut work = batches(options.level);
    if !options.only.is_empty() {
        work.iter_mut().for_each(|batch| batch.retain(|item| is_asked(item, &options.only, &pairs)));
        work.retain(|batch| !batch.is_empty());
    }
    work.extend(options.cases.iter().map(|path| vec![Item::Case(path.to_string_lossy().into_owned())]));
    let mut plain = match options.level {
        Level::Full => plain_batches(),
        Level::Quick => Vec::new(),
    };
    plain.iter_mut().for_each(|batch| {
        batch.retain(|item| options.only.is_empty() || is_asked(item, &options.only, &pairs));
    });
    plain.retain(|batch| !batch.is_empty());
    let all = work.iter().chain(&plain).map(Vec::len).sum();
    let mut campaign = Campaign { options, worker, pairs: &pairs, done: 0, all, progress };
    let (rows, checks) = collected(campaign.run(&work, &setup, None), &pairs);
    let setup = Setup { is_plain: true, ..setup };
    let needed = NeededWorkarounds::new(&pairs);
    let needs = needs(campaign.run(&plain, &setup, Some(&needed)), &pairs);
    Ok(Certificate::new(key, options.level, today(), rows, checks).with_workarounds(needs))
}

/// Batches that are tried in several workers at once.
struct Campaign<'a> {
    options: &'a Options,
    worker: &'a (dyn Fn() -> Command + Sync),
    pairs: &'a [Pair],
    /// The numbers of items done and of all items.
    done: usize,
    all: usize,
    progress: &'a mut dyn FnMut(&Progress<'_>),
}

impl Campaign<'_> {
    /// Tries batches in workers with this set-up. With `needed`, an item is tried only if it may
    /// show that another workaround is needed.
    fn run(&mut self, work: &[Batch], setup: &Setup, needed: Option<&NeededWorkarounds>) -> Findings {
        let (worker, pairs, limit) = (self.worker, self.pairs, self.options.limit);
        let next = AtomicUsize::new(0);
        let (send, receive) = mpsc::channel();
        let mut found: Findings = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs() {
                let (next, send) = (&next, send.clone());
                scope.spawn(move || {
                    let mut job = Job { setup, worker, pairs, limit, process: None, asked: 0, crashes: 0 };
                    while let Some(batch) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let tried = match needed {
                            None => job.tried(batch),
                            Some(needed) => needed.try_unsettled(&mut job, batch),
                        };
                        if send.send(tried).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for one in receive.into_iter().flatten() {
                self.done += 1;
                found.push(one);
                let shown = found.last().filter(|_| needed.is_none());
                let last = shown.and_then(|(item, finding)| Some((name(item, pairs), finding.as_ref()?)));
                (self.progress)(&Progress { done: self.done, all: self.all, last });
            }
        });
        found
    }
}

/// The workarounds that are known to be needed. One finding shows the need, so other items of the
/// same workaround are not tried.
struct NeededWorkarounds {
    of_pairs: Vec<BTreeSet<Workaround>>,
    /// By the number of the workaround.
    is_needed: Vec<AtomicBool>,
}

impl NeededWorkarounds {
    fn new(pairs: &[Pair]) -> NeededWorkarounds {
        NeededWorkarounds {
            of_pairs: pairs.iter().map(workarounds).collect(),
            is_needed: Workaround::ALL.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// For each workaround that an item concerns, whether it is needed.
    fn flags(&self, item: &Item) -> impl Iterator<Item = &AtomicBool> {
        let unit = if let Item::Calls(unit) = item { Some(unit) } else { None };
        let workarounds = unit.into_iter().flat_map(|unit| &self.of_pairs[unit.pair]);
        workarounds.map(|workaround| &self.is_needed[*workaround as usize])
    }

    /// Tries the items of a batch that concern a workaround whose need is not known. The others
    /// have no finding.
    fn try_unsettled(&self, job: &mut Job<'_>, batch: &[Item]) -> Findings {
        let is_open = |item: &&Item| self.flags(item).any(|needed| !needed.load(Ordering::Relaxed));
        let (open, settled): (Vec<&Item>, Vec<&Item>) = batch.iter().partition(is_open);
        let open: Vec<Item> = open.into_iter().cloned().collect();
        let mut findings = if open.is_empty() { Vec::new() } else { job.tried(&open) };
        let not_right = |(_, finding): &&(Item, Option<Finding>)| {
            finding.as_ref().is_some_and(|finding| *finding != Finding::Right)
        };
        for (item, _) in findings.iter().filter(not_right) {
            self.flags(item).for_each(|needed| needed.store(true, Ordering::Relaxed));
        }
        findings.extend(settled.into_iter().map(|item| (item.clone(), None)));
        findings
    }
}

/// For each workaround, the worst finding on the plain ops that were tried.
fn needs(found: Findings, pairs: &[Pair]) -> Vec<WorkaroundNeed> {
    let mut worst: BTreeMap<Workaround, Finding> = BTreeMap::new();
    for (item, finding) in found {
        let (Item::Calls(unit), Some(finding)) = (item, finding) else { continue };
        for workaround in workarounds(&pairs[unit.pair]) {
            let known = worst.entry(workaround).or_insert(Finding::Right);
            if finding > *known {
                *known = finding.clone();
            }
        }
    }
    worst.into_iter().map(|(workaround, finding)| WorkaroundNeed { workaround, finding }).collect()
}

/// Whether an item is tried in a qualification of some ops only.
fn is_asked(item: &Item, only: &[OpCode], pairs: &[Pair]) -> bool {
    match item {
        Item::Calls(unit) => only.contains(&pairs[unit.pair].def.code),
        Item::Collective(op, _) => only.contains(op),
        Item::Program(_) => false,
        Item::Update(_) | Item::Subnormal(_) | Item::Quotient(_) | Item::Case(_) => true,
    }
}

fn setup(options: &Options, flushed: DTypeSet) -> Setup {
    Setup {
        plugin: options.plugin.clone(),
        client_options: options.client_options.clone(),
        level: options.level,
        flushed,
        is_plain: false,
    }
}

/// The key of the certificate, and the float types whose subnormal numbers the device flushes. If a
/// product crashes, they are those of XLA's backend for the platform.
fn describe(
    options: &Options,
    worker: &(dyn Fn() -> Command + Sync),
) -> Result<(CertificateKey, DTypeSet), QualifyError> {
    let start = || Process::start(worker(), &setup(options, DTypeSet::NONE));
    let failed = |end: End| QualifyError(end.words());
    let mut process = start().map_err(failed)?;
    let answer = process.ask("environment", DESCRIBE).map_err(failed)?;
    let parts = answer["environment"].as_array().into_iter().flatten();
    let parts = parts.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?)));
    let key = CertificateKey::of_parts(parts);
    let flushed = match process.ask("flushed", DESCRIBE) {
        Ok(answer) => {
            let names = answer["flushed"].as_array().into_iter().flatten().filter_map(Value::as_str);
            DTypeSet::of(&names.filter_map(DType::from_mlir).collect::<Vec<_>>())
        }
        Err(_) if key.platform == "cpu" => Target::CPU.flushed(),
        Err(_) => DTypeSet::NONE,
    };
    Ok((key, flushed))
}

/// A thread that has one worker at a time.
struct Job<'a> {
    setup: &'a Setup,
    worker: &'a (dyn Fn() -> Command + Sync),
    pairs: &'a [Pair],
    limit: Duration,
    process: Option<Process>,
    /// The number of batches that the process has answered.
    asked: usize,
    /// The number of items that ended a worker.
    crashes: usize,
}

/// The number of crashes after which a job separates no batches any more: the plugin cannot be
/// used, and each crash costs several starts.
const MOST_CRASHES: usize = 100;

/// The number of batches after which a fresh worker is started. Compilers keep some memory of each
/// module.
const RENEWED: usize = 100;

/// Items and their findings; none for an item with nothing to try.
type Findings = Vec<(Item, Option<Finding>)>;

impl Job<'_> {
    /// The findings on a batch, in its order.
    fn tried(&mut self, batch: &[Item]) -> Findings {
        match self.ask(batch) {
            Ok(findings) => batch.iter().cloned().zip(findings).collect(),
            Err(how) if self.crashes >= MOST_CRASHES => {
                let how = format!("{how} (not tried alone, after {MOST_CRASHES} crashes)");
                let crash = |item: &Item| Finding::Crashes { how: how.clone(), call: name(item, self.pairs) };
                batch.iter().map(|item| (item.clone(), Some(crash(item)))).collect()
            }
            Err(how) if batch.len() == 1 => {
                self.crashes += 1;
                let finding = self.blamed(&batch[0], how);
                vec![(batch[0].clone(), Some(finding))]
            }
            Err(how) => {
                let (left, right) = batch.split_at(batch.len() / 2);
                let mut tried = self.tried(left);
                tried.extend(self.tried(right));
                let has_crash =
                    tried.iter().any(|(_, finding)| matches!(finding, Some(Finding::Crashes { .. })));
                if !has_crash {
                    // No half crashes: the whole does, or did once. Somebody has to be blamed.
                    let call =
                        format!("{} items in one region, from {}", batch.len(), name(&batch[0], self.pairs));
                    tried[0].1 = Some(Finding::Crashes { how, call });
                }
                tried
            }
        }
    }

    /// Asks the worker, a fresh one if there is none. An error is the way in which the worker
    /// ended.
    fn ask(&mut self, batch: &[Item]) -> Result<Vec<Option<Finding>>, String> {
        let mut process = match self.process.take().filter(|_| self.asked < RENEWED) {
            Some(process) => process,
            None => {
                self.asked = 0;
                Process::start((self.worker)(), self.setup).map_err(End::words)?
            }
        };
        self.asked += 1;
        let texts: Vec<String> = batch.iter().map(Item::to_string).collect();
        let answer = process.ask(&json!(texts).to_string(), self.limit).map_err(End::words)?;
        let findings = answer["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
        if findings.len() != batch.len() {
            return Err("the answer of the worker has another length".to_owned());
        }
        self.process = Some(process);
        Ok(findings.iter().map(Finding::from_json).collect())
    }

    /// The finding on an item that ends a worker by itself: the first of its calls that does.
    fn blamed(&mut self, item: &Item, how: String) -> Finding {
        let Item::Calls(unit) = item else {
            return Finding::Crashes { how, call: name(item, self.pairs) };
        };
        let calls = unit_calls(*unit, self.pairs, self.setup.level);
        let (mut from, mut to, mut how) = (0, calls.len(), how);
        while to - from > 1 {
            let middle = from.midpoint(to);
            let half = |range| Item::Calls(Unit { range: Some(range), ..*unit });
            match self.ask(&[half((from, middle))]) {
                Err(other) => (to, how) = (middle, other),
                Ok(_) => match self.ask(&[half((middle, to))]) {
                    Err(other) => (from, how) = (middle, other),
                    // Only together, or once.
                    Ok(_) => break,
                },
            }
        }
        let call = calls.get(from).map(Call::to_string).unwrap_or_default();
        let others = if to - from > 1 {
            format!(" and {} others in one region", to - from - 1)
        } else {
            String::new()
        };
        Finding::Crashes { how, call: format!("{call}{others}") }
    }
}

/// What an item is about, in words.
fn name(item: &Item, pairs: &[Pair]) -> String {
    match item {
        Item::Calls(unit) => pairs
            .get(unit.pair)
            .map_or_else(|| item.to_string(), |pair| format!("{pair}, {}", unit.operand_kind.name())),
        Item::Program(seed) => format!("random program {seed}"),
        Item::Update(dtype) => format!("update in place of {dtype}"),
        Item::Subnormal(dtype) => format!("subnormal numbers of {dtype}"),
        Item::Quotient(dtype) => format!("quotients of {dtype} by one number"),
        Item::Collective(op, dtype) => format!("{} of {dtype} between replicas", op.name()),
        Item::Case(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
    }
}

/// The rows and checks of a certificate. Random programs are one check, and so are conformance
/// cases that are right.
fn collected(found: Findings, pairs: &[Pair]) -> (Vec<Row>, Vec<Check>) {
    let mut rows = Vec::new();
    let mut checks: BTreeMap<String, Check> = BTreeMap::new();
    for (item, finding) in found {
        let Some(finding) = finding else { continue };
        if let Item::Calls(unit) = item {
            let pair = &pairs[unit.pair];
            let (op, dtype, other, operand_kind) = (pair.def.code, pair.dtype, pair.other, unit.operand_kind);
            rows.push(Row { op, dtype, other, operand_kind, finding });
            continue;
        }
        let name = match &item {
            Item::Program(_) if finding == Finding::Right => "random programs".to_owned(),
            Item::Case(_) if finding == Finding::Right => "conformance cases".to_owned(),
            item => name(item, pairs),
        };
        let check = checks.entry(name.clone()).or_insert(Check { name, cases: 0, finding: Finding::Right });
        check.cases += 1;
        if finding > check.finding {
            check.finding = finding;
        }
    }
    (rows, checks.into_values().collect())
}

/// Today's date in UTC, `YYYY-MM-DD`.
fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date of a day since 1970-01-01 in the Gregorian calendar (Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, words) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_785, "2026-11-28")]
        {
            assert_eq!(date(days), words);
        }
    }
}
