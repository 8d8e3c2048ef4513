//! Turns events into spans: what each thread, stream and device did from when to when.
//!
//! Waits of threads are divided by cause. While a thread waits for a value, its stream may wait for
//! a compile, or the device may be working. The rest is work of the engine, or the copy of the
//! data. If there are two causes at once, the wait of the stream takes precedence: the device could
//! not have gone on without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::{Bytes, Site, StreamId};
use rustc_hash::FxHashMap;

use super::{Described, Moment, Nanos, RegionId, What, place};
use crate::event::Asked;
use crate::region::{RegionRef, Wait};

/// The cause of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The program, including recording.
    Program,
    Compile,
    Interpreter,
    Device,
    /// A copy to the host.
    Transfer,
    /// A wait for another stream.
    Input,
    InFlight,
    /// Keys, lookups, launches, and waiting for a thread.
    Engine,
}

impl Cause {
    pub(super) const ALL: [Cause; 8] = [
        Cause::Program,
        Cause::Compile,
        Cause::Interpreter,
        Cause::Device,
        Cause::Transfer,
        Cause::Input,
        Cause::InFlight,
        Cause::Engine,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Cause::Program => "program",
            Cause::Compile => "compile",
            Cause::Interpreter => "interpreter",
            Cause::Device => "device",
            Cause::Transfer => "transfer",
            Cause::Input => "input",
            Cause::InFlight => "in_flight",
            Cause::Engine => "engine",
        }
    }

    pub(super) fn of(wait: Wait) -> Cause {
        match wait {
            Wait::Compile => Cause::Compile,
            Wait::Interpreter => Cause::Interpreter,
            Wait::Input => Cause::Input,
            Wait::InFlight => Cause::InFlight,
        }
    }
}

/// A time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
}

impl Range {
    /// The range of length `took` that ends at `at`.
    fn before(at: Nanos, took: Nanos) -> Range {
        Range { from: at.saturating_sub(took), to: at }
    }

    pub(super) fn len(self) -> Nanos {
        self.to.saturating_sub(self.from)
    }

    /// The intersection of two ranges.
    pub(super) fn within(self, other: Range) -> Option<Range> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from < to).then_some(Range { from, to })
    }
}

/// A wait of a thread of the program.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) thread: u32,
    pub(super) stream: StreamId,
    pub(super) site: Site,
    pub(super) range: Range,
    /// Divided by cause, without gaps.
    pub(super) parts: Vec<(Range, Cause)>,
    /// What was read. `None` for a wait for everything on the stream.
    pub(super) read: Option<(Asked, Option<RegionRef>, Bytes)>,
}

/// The end of a region.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Nanos,
    pub(super) region: RegionRef,
    /// The reason for the boundary, in words.
    pub(super) why: String,
    /// Call site of the read that ended the region, if one did.
    pub(super) asked: Option<Site>,
    /// How it obtained its executable, in words.
    pub(super) source: Option<String>,
}

/// A compile, an execution, or an interpreted execution.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) thread: u32,
    pub(super) region: RegionRef,
    pub(super) range: Range,
    /// Whether the interpreter ran it.
    pub(super) interpreted: bool,
}

/// All spans of a timeline.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) threads: Vec<Arc<str>>,
    pub(super) described: FxHashMap<RegionKey, Arc<Described>>,
    pub(super) all: Range,
    // All lists are ordered by the ends of their spans.
    pub(super) pauses: Vec<Pause>,
    /// The indices of the pauses of each thread. They do not overlap.
    pub(super) of_thread: BTreeMap<u32, Vec<usize>>,
    /// Reads for which no thread waited.
    pub(super) unwaited: Vec<Pause>,
    pub(super) ends: Vec<End>,
    pub(super) compiles: Vec<Work>,
    /// Why the latest region of a key missed the cache.
    pub(super) misses: FxHashMap<RegionKey, Arc<str>>,
    /// Work of the device and the interpreter, by completion.
    pub(super) work: Vec<Work>,
    /// The waits of streams.
    pub(super) waits: Vec<(RegionRef, Wait, Range)>,
    pub(super) warnings: Vec<(Nanos, Arc<str>)>,
    pub(super) marks: Vec<(Nanos, Arc<str>)>,
    pub(super) left_out: u64,
}

/// What delays the results of a stream. Each list is in order and without overlaps.
#[derive(Debug, Default)]
struct Busy {
    waits: Vec<(Range, Cause)>,
    device: Vec<(Range, Cause)>,
    interpreter: Vec<(Range, Cause)>,
}

impl Busy {
    fn layers(&self) -> [&Vec<(Range, Cause)>; 3] {
        [&self.waits, &self.device, &self.interpreter]
    }
}

impl Spans {
    pub(super) fn of(
        mut moments: Vec<Moment>,
        threads: Vec<Arc<str>>,
        described: FxHashMap<RegionKey, Arc<Described>>,
        left_out: u64,
    ) -> Spans {
        moments.sort_by_key(|moment| moment.at);
        let from = moments.iter().map(Moment::begin).min().unwrap_or(0);
        let to = moments.last().map_or(0, |moment| moment.at);
        let mut spans = Spans {
            threads,
            described,
            all: Range { from, to },
            pauses: Vec::new(),
            of_thread: BTreeMap::new(),
            unwaited: Vec::new(),
            ends: Vec::new(),
            compiles: Vec::new(),
            misses: FxHashMap::default(),
            work: Vec::new(),
            waits: Vec::new(),
            warnings: Vec::new(),
            marks: Vec::new(),
            left_out,
        };
        let busy = spans.take_work(&moments);
        spans.take_pauses(moments, &busy);
        for (index, pause) in spans.pauses.iter().enumerate() {
            spans.of_thread.entry(pause.thread).or_default().push(index);
        }
        spans
    }

    /// Collects the work of the engine and the devices.
    fn take_work(&mut self, moments: &[Moment]) -> BTreeMap<StreamId, Busy> {
        let mut busy: BTreeMap<StreamId, Busy> = BTreeMap::new();
        let mut places: FxHashMap<RegionId, usize> = FxHashMap::default();
        let mut interpreted: FxHashMap<RegionId, ()> = FxHashMap::default();
        let source =
            |ends: &mut Vec<End>, places: &FxHashMap<RegionId, usize>, region: &RegionRef, words: String| {
                if let Some(&index) = places.get(&place(region)) {
                    ends[index].source = Some(words);
                }
            };
        for Moment { at, thread, what } in moments {
            let (at, thread) = (*at, *thread);
            match what {
                What::Sealed { region, boundary, mode, asked } => {
                    places.insert(place(region), self.ends.len());
                    let why = format!("{boundary} ({} mode)", mode.name());
                    let asked = asked.clone();
                    self.ends.push(End { at, region: *region, why, asked, source: None });
                }
                What::Hit { region } => source(&mut self.ends, &places, region, "in the cache".to_owned()),
                What::Missed { region, why } => {
                    self.misses.insert(region.key, why.clone());
                    source(&mut self.ends, &places, region, format!("not in the cache: {why}"));
                }
                What::RanUnmerged { region, units } => {
                    let words = format!("runs as its {units} units until it is compiled");
                    source(&mut self.ends, &places, region, words);
                }
                What::Interpreted { region, padded } => {
                    interpreted.insert(place(region), ());
                    let how = if *padded {
                        "padded, because its size is new"
                    } else {
                        "interpreted, because it is new"
                    };
                    source(&mut self.ends, &places, region, how.to_owned());
                }
                What::Compiled { region, took } => {
                    let range = Range::before(at, *took);
                    self.compiles.push(Work { thread, region: *region, range, interpreted: false });
                }
                What::Completed { region, took } => {
                    let mut range = Range::before(at, *took);
                    let was_interpreted = interpreted.remove(&place(region)).is_some();
                    let busy = busy.entry(region.stream).or_default();
                    let (list, cause) = match was_interpreted {
                        true => (&mut busy.interpreter, Cause::Interpreter),
                        false => (&mut busy.device, Cause::Device),
                    };
                    // The regions of a stream run one after the other.
                    let before = list.last().map_or(0, |(range, _)| range.to);
                    range.from = range.from.clamp(before.min(range.to), range.to);
                    list.push((range, cause));
                    self.work.push(Work { thread, region: *region, range, interpreted: was_interpreted });
                }
                What::Waited { region, wait, took } => {
                    let range = Range::before(at, *took);
                    let busy = busy.entry(region.stream).or_default();
                    let before = busy.waits.last().map_or(0, |(range, _)| range.to);
                    let cut = Range { from: range.from.clamp(before.min(at), at), to: at };
                    busy.waits.push((cut, Cause::of(*wait)));
                    self.waits.push((*region, *wait, range));
                }
                What::Warning { words } => self.warnings.push((at, words.clone())),
                What::Mark { name } => self.marks.push((at, name.clone())),
                What::Read(_) | What::Synchronized { .. } => {}
            }
        }
        busy
    }

    /// Collects the waits of the program.
    fn take_pauses(&mut self, moments: Vec<Moment>, busy: &BTreeMap<StreamId, Busy>) {
        let none = Busy::default();
        for Moment { at, thread, what } in moments {
            match what {
                What::Read(read) => {
                    let range = Range::before(at, read.launch.saturating_add(read.data));
                    let launched = range.from.saturating_add(read.launch).min(at);
                    let busy = busy.get(&read.stream).unwrap_or(&none);
                    let layers = busy.layers();
                    let mut parts = cut(Range { to: launched, ..range }, &layers, Cause::Engine);
                    let rest = if read.asked == Asked::Wait { Cause::Device } else { Cause::Transfer };
                    parts.extend(cut(Range { from: launched, to: at }, &layers, rest));
                    let pause = Pause {
                        thread,
                        stream: read.stream,
                        site: read.site,
                        range,
                        parts,
                        read: Some((read.asked, read.region, read.bytes)),
                    };
                    let list = if read.asked == Asked::Async { &mut self.unwaited } else { &mut self.pauses };
                    list.push(pause);
                }
                What::Synchronized { stream, site, took } => {
                    let range = Range::before(at, took);
                    let busy = busy.get(&stream).unwrap_or(&none);
                    let parts = cut(range, &busy.layers(), Cause::Engine);
                    self.pauses.push(Pause { thread, stream, site, range, parts, read: None });
                }
                _ => {}
            }
        }
    }

    /// The items of a list that end in a range. An item at the end of a step belongs to it, an item
    /// at its beginning to the step before.
    pub(super) fn within<'a, T>(&self, list: &'a [T], end: impl Fn(&T) -> Nanos, range: Range) -> &'a [T] {
        let is_before = |at: Nanos| at < range.from || (at == range.from && range.from != self.all.from);
        let first = list.partition_point(|item| is_before(end(item)));
        let last = list.partition_point(|item| end(item) <= range.to);
        &list[first.min(last)..last]
    }

    /// The waits of a thread, in order.
    pub(super) fn pauses_of(&self, thread: u32) -> impl Iterator<Item = &Pause> {
        self.of_thread.get(&thread).into_iter().flatten().map(|&index| &self.pauses[index])
    }

    /// The waits that overlap a range.
    pub(super) fn pauses_in(&self, pauses: &[usize], range: Range) -> impl Iterator<Item = &Pause> {
        let first = pauses.partition_point(|&index| self.pauses[index].range.to <= range.from);
        let from_there = pauses[first..].iter().map(|&index| &self.pauses[index]);
        from_there.take_while(move |pause| pause.range.from < range.to)
    }
}

impl Moment {
    fn begin(&self) -> Nanos {
        let took = match &self.what {
            What::Compiled { took, .. }
            | What::Completed { took, .. }
            | What::Waited { took, .. }
            | What::Synchronized { took, .. } => *took,
            What::Read(read) => read.launch.saturating_add(read.data),
            _ => 0,
        };
        self.at.saturating_sub(took)
    }
}

/// Divides a range by cause, without gaps: each part has the cause of the first layer that covers
/// it, or else `rest`. Layers are in order and without overlaps.
fn cut(range: Range, layers: &[&Vec<(Range, Cause)>], rest: Cause) -> Vec<(Range, Cause)> {
    if range.len() == 0 {
        return Vec::new();
    }
    let Some((layer, below)) = layers.split_first() else { return vec![(range, rest)] };
    let mut parts = Vec::new();
    let mut from = range.from;
    let first = layer.partition_point(|(busy, _)| busy.to <= range.from);
    for (busy, cause) in layer[first..].iter().take_while(|(busy, _)| busy.from < range.to) {
        let Some(shared) = busy.within(range) else { continue };
        parts.extend(cut(Range { from, to: shared.from }, below, rest));
        parts.push((shared, *cause));
        from = shared.to;
    }
    parts.extend(cut(Range { from, to: range.to }, below, rest));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_cut_by_causes_without_gaps() {
        let range = |from, to| Range { from, to };
        let waits =
            vec![(range(0, 5), Cause::Compile), (range(20, 30), Cause::Input), (range(90, 99), Cause::Input)];
        let device = vec![(range(3, 8), Cause::Device), (range(25, 40), Cause::Device)];
        let parts = cut(range(2, 50), &[&waits, &device], Cause::Engine);
        assert_eq!(
            parts,
            [
                (range(2, 5), Cause::Compile),
                (range(5, 8), Cause::Device),
                (range(8, 20), Cause::Engine),
                (range(20, 30), Cause::Input),
                (range(30, 40), Cause::Device),
                (range(40, 50), Cause::Engine),
            ]
        );
        assert!(cut(range(4, 4), &[&waits], Cause::Engine).is_empty());
    }
}
