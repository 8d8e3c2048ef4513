//! Where the time went: sums over spans, with advice.

use std::fmt;
use std::time::Duration;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::{Bytes, Site};
use rustc_hash::FxHashMap;

use super::Nanos;
use super::spans::{Cause, End, Pause, Range, Spans, Work};
use crate::error::Took;
use crate::event::Asked;
use crate::region::{RegionRef, Wait};

/// Maximum number of call sites and regions that are printed.
const PRINTED: usize = 8;

/// How the threads of the program spent their time, summed over those that waited for the engine at
/// least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spent {
    /// In the program, including recording.
    pub program: Duration,
    /// Waiting for compiles.
    pub compile: Duration,
    /// Waiting for the interpreter, which runs new regions.
    pub interpreter: Duration,
    /// Waiting for the device.
    pub device: Duration,
    /// Waiting for copies to the host.
    pub transfer: Duration,
    /// Waiting for other streams.
    pub input: Duration,
    /// Waiting because of the in-flight limit.
    pub in_flight: Duration,
    /// In the engine: keys, lookups, launches, waiting for a thread.
    pub engine: Duration,
}

/// The reads at one call site.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadsAt {
    /// The call site.
    pub site: Site,
    /// Number of reads.
    pub count: u64,
    /// Number of reads for which no thread waited: futures and callbacks.
    pub unwaited: u64,
    /// Total time of waiting.
    pub waited: Duration,
    /// Bytes that were copied.
    pub bytes: Bytes,
    /// Number of regions that these reads ended.
    pub ended: u64,
    /// Number of ops of these regions.
    pub ops: u64,
}

/// The times of the regions of one key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionTimes {
    /// The key.
    pub key: RegionKey,
    /// A short description of their ops.
    pub ops: String,
    /// Call site of the last op.
    pub site: Site,
    /// Number of executions as a whole.
    pub runs: u64,
    /// Total time on the device.
    pub device: Duration,
    /// Total time in the interpreter.
    pub interpreted: Duration,
    /// Total time of their compiles.
    pub compile: Duration,
    /// Time that streams waited for these regions.
    pub waited: Duration,
}

/// Where the time of a program, or of a part of it, went. The printed form includes advice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Time from the first event to the last, or of the step.
    pub took: Duration,
    /// Number of threads of the program that waited for the engine.
    pub threads: usize,
    /// Number of ops of the regions that ended.
    pub ops: u64,
    /// Number of regions that ended.
    pub regions: u64,
    /// Number of compiles that ended.
    pub compiles: u64,
    /// What the threads of the program did, in total.
    pub spent: Spent,
    /// Time in which devices were working.
    pub device_busy: Duration,
    /// Reads by call site, the longest waits first.
    pub reads: Vec<ReadsAt>,
    /// Regions by their time, the longest first.
    pub times: Vec<RegionTimes>,
    /// Warnings of the engine.
    pub warnings: Vec<String>,
    /// Number of earlier events that were dropped.
    pub left_out: u64,
}

/// A step of the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The name of its mark, or its number.
    pub name: String,
    /// Its start, relative to the beginning of the timeline.
    pub start: Duration,
    /// Where its time went.
    pub summary: Summary,
}

/// `1 region`, `2 regions`.
fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

impl Spent {
    fn add(&mut self, cause: Cause, nanos: Nanos) {
        *self.part(cause) += duration(nanos);
    }

    fn part(&mut self, cause: Cause) -> &mut Duration {
        match cause {
            Cause::Program => &mut self.program,
            Cause::Compile => &mut self.compile,
            Cause::Interpreter => &mut self.interpreter,
            Cause::Device => &mut self.device,
            Cause::Transfer => &mut self.transfer,
            Cause::Input => &mut self.input,
            Cause::InFlight => &mut self.in_flight,
            Cause::Engine => &mut self.engine,
        }
    }

    /// The sum of all parts.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.parts().iter().map(|&(_, time)| time).sum()
    }

    /// The parts, the largest first.
    fn parts(&self) -> Vec<(Cause, Duration)> {
        let mut spent = *self;
        let mut parts: Vec<_> = Cause::ALL.iter().map(|&cause| (cause, *spent.part(cause))).collect();
        parts.sort_by_key(|&(_, time)| std::cmp::Reverse(time));
        parts
    }
}

/// The spans that end in a range.
struct Parts<'a> {
    ends: &'a [End],
    work: &'a [Work],
    compiles: &'a [Work],
    waits: &'a [(RegionRef, Wait, Range)],
    pauses: &'a [Pause],
    unwaited: &'a [Pause],
}

impl Parts<'_> {
    fn reads(&self) -> Vec<ReadsAt> {
        let mut sites: FxHashMap<&Site, ReadsAt> = FxHashMap::default();
        fn at<'a, 's>(sites: &'a mut FxHashMap<&'s Site, ReadsAt>, site: &'s Site) -> &'a mut ReadsAt {
            sites.entry(site).or_insert_with(|| ReadsAt {
                site: site.clone(),
                count: 0,
                unwaited: 0,
                waited: Duration::ZERO,
                bytes: Bytes(0),
                ended: 0,
                ops: 0,
            })
        }
        for pause in self.pauses.iter().chain(self.unwaited) {
            let reads = at(&mut sites, &pause.site);
            reads.count += 1;
            let (asked, _, bytes) = pause.read.unwrap_or((Asked::Wait, None, Bytes(0)));
            reads.bytes = reads.bytes.saturating_add(bytes);
            match asked {
                Asked::Async => reads.unwaited += 1,
                Asked::Read | Asked::Wait => reads.waited += duration(pause.range.len()),
            }
        }
        for end in self.ends {
            if let Some(site) = &end.asked {
                let reads = at(&mut sites, site);
                (reads.ended, reads.ops) = (reads.ended + 1, reads.ops + end.region.ops as u64);
            }
        }
        let mut reads: Vec<ReadsAt> = sites.into_values().collect();
        reads.sort_by_cached_key(|reads| (std::cmp::Reverse(reads.waited), reads.site.to_string()));
        reads
    }
}

impl Spans {
    /// Where the time of a range went; by default, of the whole.
    pub(super) fn summary(&self, range: Option<Range>) -> Summary {
        let range = range.unwrap_or(self.all);
        let mut spent = Spent::default();
        for pauses in self.of_thread.values() {
            let mut waited = 0;
            for pause in self.pauses_in(pauses, range) {
                for &(part, cause) in &pause.parts {
                    let nanos = part.within(range).map_or(0, Range::len);
                    spent.add(cause, nanos);
                    waited += nanos;
                }
            }
            spent.add(Cause::Program, range.len().saturating_sub(waited));
        }
        let parts = Parts {
            ends: self.within(&self.ends, |end| end.at, range),
            work: self.within(&self.work, |work| work.range.to, range),
            compiles: self.within(&self.compiles, |work| work.range.to, range),
            waits: self.within(&self.waits, |(_, _, range)| range.to, range),
            pauses: self.within(&self.pauses, |pause| pause.range.to, range),
            unwaited: self.within(&self.unwaited, |pause| pause.range.to, range),
        };
        let device = parts.work.iter().filter(|work| !work.interpreted).map(|work| work.range.len());
        Summary {
            took: duration(range.len()),
            threads: self.of_thread.len(),
            ops: parts.ends.iter().map(|end| end.region.ops as u64).sum(),
            regions: parts.ends.len() as u64,
            compiles: parts.compiles.len() as u64,
            spent,
            device_busy: duration(device.sum()),
            reads: parts.reads(),
            times: self.times(&parts),
            warnings: self
                .within(&self.warnings, |&(at, _)| at, range)
                .iter()
                .map(|(_, words)| words.to_string())
                .collect(),
            left_out: self.left_out,
        }
    }

    fn times(&self, parts: &Parts<'_>) -> Vec<RegionTimes> {
        let mut keys: FxHashMap<RegionKey, RegionTimes> = FxHashMap::default();
        let mut at = |key: RegionKey, add: &dyn Fn(&mut RegionTimes)| {
            add(keys.entry(key).or_insert_with(|| {
                let described = self.described.get(&key);
                RegionTimes {
                    key,
                    ops: described.map_or_else(String::new, |described| described.ops.clone()),
                    site: described.map_or(Site::Unknown, |described| described.last.clone()),
                    runs: 0,
                    device: Duration::ZERO,
                    interpreted: Duration::ZERO,
                    compile: Duration::ZERO,
                    waited: Duration::ZERO,
                }
            }));
        };
        for work in parts.work {
            let took = duration(work.range.len());
            at(work.region.key, &|times| {
                times.runs += 1;
                *if work.interpreted { &mut times.interpreted } else { &mut times.device } += took;
            });
        }
        for work in parts.compiles {
            at(work.region.key, &|times| times.compile += duration(work.range.len()));
        }
        for (region, _, range) in parts.waits {
            at(region.key, &|times| times.waited += duration(range.len()));
        }
        let mut times: Vec<RegionTimes> = keys.into_values().collect();
        times.sort_by_key(|times| {
            (std::cmp::Reverse(times.device + times.interpreted + times.compile), *times.key.as_bytes())
        });
        times
    }

    /// The steps: from mark to mark, or between the waits of the call site that waits most often.
    pub(super) fn steps(&self) -> Vec<Step> {
        let step = |name: String, range: Range| Step {
            name,
            start: duration(range.from),
            summary: self.summary(Some(range)),
        };
        if !self.marks.is_empty() {
            let ends = self.marks.iter().skip(1).map(|&(at, _)| at).chain([self.all.to]);
            let steps = self.marks.iter().zip(ends);
            return steps
                .map(|((from, name), to)| step(name.to_string(), Range { from: *from, to }))
                .collect();
        }
        let mut ends: Vec<Nanos> = self.most_often().iter().map(|pause| pause.range.to).collect();
        ends.sort_unstable();
        let begins = std::iter::once(self.all.from).chain(ends.iter().copied());
        let steps = begins.zip(&ends).enumerate();
        steps.map(|(index, (from, &to))| step((index + 1).to_string(), Range { from, to })).collect()
    }

    /// The waits of the call site that waits most often, if it waits at least twice.
    fn most_often(&self) -> Vec<&Pause> {
        let mut sites: FxHashMap<&Site, Vec<&Pause>> = FxHashMap::default();
        for pause in &self.pauses {
            sites.entry(&pause.site).or_default().push(pause);
        }
        let most = sites.into_values().max_by_key(|pauses| {
            let waited: Nanos = pauses.iter().map(|pause| pause.range.len()).sum();
            (pauses.len(), waited)
        });
        most.filter(|pauses| pauses.len() > 1).unwrap_or_default()
    }
}

impl Cause {
    /// As in `61 % waiting for compiles`.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Cause::Program => "the program itself, and recording",
            Cause::Compile => "waiting for compiles",
            Cause::Interpreter => "waiting for the interpreter",
            Cause::Device => "waiting for the device",
            Cause::Transfer => "waiting for transfers to the host",
            Cause::Input => "waiting for other streams",
            Cause::InFlight => "waiting at the in-flight limit",
            Cause::Engine => "the engine: keys, look-ups, launches",
        }
    }
}

impl Summary {
    /// The causes with their shares of the threads' time, from 0 to 1, the largest first. Causes
    /// without time are left out.
    pub(super) fn shares(&self) -> Vec<(Cause, Duration, f64)> {
        let total = self.spent.total().as_secs_f64().max(f64::MIN_POSITIVE);
        let parts = self.spent.parts().into_iter().filter(|(_, time)| !time.is_zero());
        parts.map(|(cause, time)| (cause, time, time.as_secs_f64() / total)).collect()
    }

    /// What was done in that time.
    pub(super) fn done(&self) -> String {
        let (ops, regions) = (count(self.ops, "op"), count(self.regions, "region"));
        match self.compiles {
            0 => format!("{ops} in {regions}"),
            compiles => format!("{ops} in {regions}, {}", count(compiles, "compile")),
        }
    }

    /// Advice on the largest part, in one sentence.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let &(cause, time, _) = self.shares().first()?;
        let first = self.reads.first().map(|reads| reads.site.to_string()).unwrap_or_default();
        Some(match cause {
            Cause::Program => {
                let each = time.as_nanos() / u128::from(self.ops.max(1));
                format!(
                    "the program takes the largest part of the time: {} for each op that it \
                     records, although recording one takes only 0.1 to 0.3 µs; look at what it \
                     does between its ops",
                    Took(Duration::from_nanos(u64::try_from(each).unwrap_or(u64::MAX)))
                )
            }
            Cause::Compile => "compiles take the largest part of the time; a loop whose steps \
                               record the same ops on the same shapes compiles nothing after its \
                               first steps: if compiles go on, each region says how it differs \
                               from a known one"
                .to_owned(),
            Cause::Interpreter => "new regions take the largest part of the time, because they \
                                   are interpreted while they compile; they are fast from the \
                                   eleventh execution on"
                .to_owned(),
            Cause::Device => format!(
                "the device takes the largest part of the time, and the program waits for it, \
                 longest at {first}; read results one step later, so that the program records the \
                 next step meanwhile, and see the table of regions for the slow ones"
            ),
            Cause::Transfer => format!(
                "transfers to the host take the largest part of the time, longest at {first}; \
                 read less data (sums, maxima, the last rows), or read without waiting \
                 (Tensor::read)"
            ),
            Cause::Input => "streams wait for each other for the largest part of the time; a \
                             value used on the stream that computes it needs no wait"
                .to_owned(),
            Cause::InFlight => "the device is behind, which is normal; larger limits \
                                (EngineConfig::in_flight_limits) let the program run further ahead"
                .to_owned(),
            Cause::Engine => {
                let (regions, each) =
                    (count(self.regions, "region"), count(self.ops / self.regions.max(1), "op"));
                format!(
                    "launching {regions} of {each} each takes the largest part of the time; \
                     record more ops before each read; the longest reads are at {first}"
                )
            }
        })
    }
}

impl fmt::Display for ReadsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.site, count(self.count, "time"))?;
        match (self.unwaited, self.waited) {
            (0, waited) => write!(f, ", {} waited", Took(waited))?,
            (unwaited, waited) if unwaited < self.count => {
                write!(f, ", {} waited, {unwaited} of them without waiting", Took(waited))?;
            }
            _ => f.write_str(", without waiting")?,
        }
        if self.bytes.0 > 0 {
            write!(f, ", {}", self.bytes)?;
        }
        if self.ended > 0 {
            let (ended, each) = (count(self.ended, "region"), count(self.ops / self.ended, "op"));
            write!(f, ", ended {ended} of {each} on average")?;
        }
        Ok(())
    }
}

impl fmt::Display for RegionTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.key.short(), self.ops, count(self.runs, "time"))?;
        for (what, time) in
            [("on the device", self.device), ("interpreted", self.interpreted), ("compiling", self.compile)]
        {
            if !time.is_zero() {
                write!(f, ", {} {what}", Took(time))?;
            }
        }
        write!(f, ", recorded up to {}", self.site)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Took(self.took), self.done())?;
        if self.threads > 1 {
            write!(f, ", on {} threads", self.threads)?;
        }
        for (cause, time, share) in self.shares() {
            write!(f, "\n  {:>5.1} %  {:>8}  {}", share * 100.0, Took(time).to_string(), cause.words())?;
        }
        if let Some(advice) = self.advice() {
            write!(f, "\n{advice}")?;
        }
        list(f, "host reads", &self.reads)?;
        list(f, "regions", &self.times)?;
        list(f, "warnings", &self.warnings)?;
        if self.left_out > 0 {
            write!(f, "\n{} earlier events are left out", self.left_out)?;
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, items: &[impl fmt::Display]) -> fmt::Result {
    if !items.is_empty() {
        write!(f, "\n{title}")?;
    }
    for item in items.iter().take(PRINTED) {
        write!(f, "\n  {item}")?;
    }
    match items.len().saturating_sub(PRINTED) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::canon::RegionKey;
    use fuseline_fusion::region::{Boundary, Mode};
    use fuseline_fusion::{RegionSeq, StreamId};

    use super::super::{HostRead, Moment, What};
    use super::*;
    use crate::region::Wait;

    /// A step of 100 ns that waits from 20 to 90 ns: until 80 for the given cause, and then for the
    /// device.
    fn step(wait: Option<Wait>) -> Summary {
        let stream = StreamId(0);
        let region = RegionRef { stream, seq: RegionSeq(0), key: RegionKey::from_bytes([1; 32]), ops: 4 };
        let moment = |at, thread, what| Moment { at, thread, what };
        let (boundary, mode) = (Boundary::HostRead, Mode::Fused);
        let mut moments = vec![
            moment(0, 0, What::Mark { name: "a step".into() }),
            moment(20, 0, What::Sealed { region, boundary, mode, asked: None }),
            moment(88, 2, What::Completed { region, took: 8 }),
        ];
        match wait {
            Some(wait) => moments.extend([
                moment(79, 1, What::Compiled { region, took: 50 }),
                moment(80, 0, What::Waited { region, wait, took: 60 }),
            ]),
            None => moments.push(moment(20, 0, What::Hit { region })),
        }
        let read = HostRead {
            stream,
            site: Site::Unknown,
            asked: Asked::Read,
            region: Some(region),
            bytes: Bytes(4),
            launch: 60,
            data: 10,
        };
        moments.push(moment(90, 0, What::Read(Box::new(read))));
        moments.push(moment(100, 0, What::Mark { name: "the next".into() }));
        let threads = ["program", "compile", "device"].map(Into::into).to_vec();
        Spans::of(moments, threads, FxHashMap::default(), 0).steps().swap_remove(0).summary
    }

    #[test]
    fn a_step_says_what_it_waited_for_and_what_to_do() {
        let nanos = Duration::from_nanos;
        let summary = step(Some(Wait::Compile));
        assert_eq!((summary.took, summary.threads, summary.compiles), (nanos(100), 1, 1));
        let Spent { program, compile, device, transfer, engine, .. } = summary.spent;
        let parts = [program, compile, device, transfer, engine].map(|time| time.as_nanos());
        assert_eq!(parts, [30, 60, 8, 2, 0]);
        let words = summary.to_string();
        for said in ["60.0 %", "waiting for compiles", "compiles take the largest part of the time"] {
            assert!(words.contains(said), "{said:?} is not in\n{words}");
        }
        let of = |wait| step(wait).advice().unwrap_or_default();
        assert!(
            of(Some(Wait::Interpreter)).starts_with("new regions take"),
            "{}",
            of(Some(Wait::Interpreter))
        );
        assert!(of(Some(Wait::Input)).starts_with("streams wait for each other"));
        assert!(of(Some(Wait::InFlight)).starts_with("the device is behind"));
        assert!(of(None).starts_with("launching 1 region of 4 ops each"), "{}", of(None));
    }
}
