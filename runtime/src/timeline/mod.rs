//! Timelines: events with their times, and where the time of a program goes.
//!
//! Input: the events of an engine, as its sink gets them. Output: a [`Summary`] of the whole or of
//! each step, and a page with a picture.
//!
//! A [`Timeline`] keeps the time and the thread of each event, and the little that a summary or a
//! picture needs. The ops and call sites of a region are kept once per key. An event takes about
//! 150 bytes. When the timeline is full it keeps the latest events and counts the others. A thread
//! is known as long as one of its events is kept.
//!
//! Times are taken when an event arrives. A span (a compile, a wait, a read) is one event at its
//! end with its duration, so a span is known only when it is over. Nothing in the engine depends on
//! a timeline.

mod page;
mod spans;
mod summary;

use std::collections::VecDeque;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use fuseline_fusion::canon::RegionKey;
use fuseline_fusion::region::{Boundary, Mode};
use fuseline_fusion::{Bytes, RegionSeq, Site, StreamId};
use fuseline_sync::{Mutex, Rank};
use rustc_hash::FxHashMap;

pub use self::summary::{ReadsAt, RegionTimes, Spent, Step, Summary};
use crate::event::{Asked, Event, EventSink, SealedRegion};
use crate::region::{RegionRef, Wait};

/// Default number of events that are kept: about 10 MB.
const ROOM: usize = 1 << 16;

/// Maximum number of keys whose ops are kept. Of further regions only numbers are reported.
const DESCRIBED: usize = 4_096;

/// Maximum number of kinds of ops that a description names.
const NAMED: usize = 6;

/// Nanoseconds since the timeline began.
type Nanos = u64;

/// A region of a stream.
type RegionId = (StreamId, RegionSeq);

fn place(region: &RegionRef) -> RegionId {
    (region.stream, region.seq)
}

/// The kept part of an event.
#[derive(Clone, Debug)]
enum What {
    Sealed {
        region: RegionRef,
        boundary: Boundary,
        mode: Mode,
        asked: Option<Site>,
    },
    Hit {
        region: RegionRef,
    },
    Missed {
        region: RegionRef,
        why: Arc<str>,
    },
    RanUnmerged {
        region: RegionRef,
        units: usize,
    },
    Compiled {
        region: RegionRef,
        took: Nanos,
    },
    /// With `padded`, run by the executable of its bucket, on the same thread.
    Interpreted {
        region: RegionRef,
        padded: bool,
    },
    Completed {
        region: RegionRef,
        took: Nanos,
    },
    Waited {
        region: RegionRef,
        wait: Wait,
        took: Nanos,
    },
    Read(Box<HostRead>),
    Synchronized {
        stream: StreamId,
        site: Site,
        took: Nanos,
    },
    Warning {
        words: Arc<str>,
    },
    Mark {
        name: Arc<str>,
    },
}

/// A read by the host.
#[derive(Clone, Debug)]
struct HostRead {
    stream: StreamId,
    site: Site,
    asked: Asked,
    region: Option<RegionRef>,
    bytes: Bytes,
    launch: Nanos,
    data: Nanos,
}

#[derive(Clone, Debug)]
struct Moment {
    at: Nanos,
    /// Number of the thread.
    thread: u32,
    what: What,
}

/// Describes the regions of a key.
#[derive(Debug)]
struct Described {
    /// `dot_general x2, tanh`.
    ops: String,
    /// Call sites of its first and last op when the key first came.
    first: Site,
    last: Site,
}

#[derive(Debug, Default)]
struct TimelineState {
    moments: VecDeque<Moment>,
    left_out: u64,
    threads: Threads,
    described: FxHashMap<RegionKey, Arc<Described>>,
}

/// The threads of the kept events.
#[derive(Debug, Default)]
struct Threads {
    numbers: FxHashMap<ThreadId, u32>,
    /// By number. Entries without events are free.
    all: Vec<KnownThread>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct KnownThread {
    id: ThreadId,
    name: Arc<str>,
    moments: usize,
}

impl Threads {
    /// Counts an event of the calling thread and returns its number.
    fn enter(&mut self) -> u32 {
        let thread = std::thread::current();
        let id = thread.id();
        if let Some(&number) = self.numbers.get(&id) {
            self.all[number as usize].moments += 1;
            return number;
        }
        let number = self.free.pop().unwrap_or(self.all.len() as u32);
        let name = thread.name().map_or_else(|| format!("thread {number}"), str::to_owned);
        let known = KnownThread { id, name: name.into(), moments: 1 };
        match self.all.get_mut(number as usize) {
            Some(place) => *place = known,
            None => self.all.push(known),
        }
        self.numbers.insert(id, number);
        number
    }

    /// Discounts an event of the thread with this number.
    fn leave(&mut self, number: u32) {
        let known = &mut self.all[number as usize];
        known.moments -= 1;
        if known.moments == 0 {
            self.numbers.remove(&known.id);
            self.free.push(number);
        }
    }
}

struct Shared {
    start: Instant,
    room: usize,
    state: Mutex<TimelineState>,
}

/// Events with their times. Cheap to clone; the clones are one timeline. A timeline is for one
/// engine: regions are identified by stream and number, which start at 0 in each engine.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// use fuseline::{EngineConfig, Timeline};
///
/// let timeline = Timeline::new();
/// let engine = EngineConfig::new().event_sink(timeline.clone()).build_reference()?;
/// let x = engine.tensor(&[1.0f32, 2.0, 3.0], &[3])?;
/// for step in 0..3 {
///     timeline.mark(format!("step {step}"));
///     assert_eq!((&x * &x)?.sum(&[0])?.item::<f32>()?, 14.0);
/// }
/// let steps = timeline.steps();
/// assert_eq!(steps.len(), 3);
/// println!("{}", timeline.summary()); // where the time went, and what to do about it
/// # if false {
/// std::fs::write("timeline.html", timeline.page("three steps")).expect("a page");
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Timeline(Arc<Shared>);

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new()
    }
}

impl Timeline {
    /// Creates an empty timeline, which begins now and keeps the latest 65,536 events.
    #[must_use]
    pub fn new() -> Timeline {
        Timeline::with_room(ROOM)
    }

    /// As [`Timeline::new`], with room for this many events, at least one.
    #[must_use]
    pub fn with_room(events: usize) -> Timeline {
        let state = Mutex::new(Rank::Timeline, TimelineState::default());
        Timeline(Arc::new(Shared { start: Instant::now(), room: events.max(1), state }))
    }

    /// Marks the beginning of a step of the program, and the end of the one before. Steps apply to
    /// all threads of the program, so mark them on one thread.
    pub fn mark(&self, name: impl Into<String>) {
        self.put(What::Mark { name: name.into().into() }, None);
    }

    /// Where the whole time went.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.spans().summary(None)
    }

    /// Where the time of each step went, in order. Steps go from mark to mark ([`Timeline::mark`]),
    /// the last one to the latest event. Without marks, steps end at the waits of the call site
    /// that waits most often.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        self.spans().steps()
    }

    /// A page for a browser with a picture, the steps, host reads, regions and warnings. It loads
    /// nothing from a network.
    #[must_use]
    pub fn page(&self, title: &str) -> String {
        page::page(&self.spans(), title)
    }

    /// The content of [`Timeline::page`] as an element, to embed into another page. It takes its
    /// colors from the variables `--paper`, `--ink`, `--soft`, `--line`, `--panel` and `--alarm`,
    /// where the page defines them. At most one per page.
    #[must_use]
    pub fn section(&self) -> String {
        page::section(&self.spans())
    }

    /// Drops everything recorded so far. The clock goes on.
    pub fn clear(&self) {
        *self.0.state.lock() = TimelineState::default();
    }

    fn spans(&self) -> spans::Spans {
        let state = self.0.state.lock();
        let threads = state.threads.all.iter().map(|known| known.name.clone()).collect();
        let described = state.described.clone();
        let (moments, left_out) = (state.moments.iter().cloned().collect(), state.left_out);
        drop(state);
        spans::Spans::of(moments, threads, described, left_out)
    }

    fn put(&self, what: What, contents: Option<(&RegionRef, &SealedRegion)>) {
        // Before the lock, which may have to be waited for.
        let at = nanos(self.0.start.elapsed());
        let mut state = self.0.state.lock();
        let thread = state.threads.enter();
        if let Some((region, contents)) = contents
            && state.described.len() < DESCRIBED
            && !state.described.contains_key(&region.key)
        {
            state.described.insert(region.key, Arc::new(Described::of(contents)));
        }
        if state.moments.len() == self.0.room
            && let Some(oldest) = state.moments.pop_front()
        {
            state.threads.leave(oldest.thread);
            state.left_out += 1;
        }
        state.moments.push_back(Moment { at, thread, what });
    }
}

impl EventSink for Timeline {
    fn event(&self, event: &Event) {
        let mut contents = None;
        let what = match event {
            Event::Sealed { region, boundary, mode, asked, contents: sealed, .. } => {
                contents = Some((region, sealed));
                What::Sealed { region: *region, boundary: *boundary, mode: *mode, asked: asked.clone() }
            }
            Event::Hit { region, .. } => What::Hit { region: *region },
            Event::Miss { region, why } => What::Missed { region: *region, why: why.to_string().into() },
            Event::RanUnmerged { region, units } => What::RanUnmerged { region: *region, units: *units },
            // A load takes the place of a compile.
            Event::CompileFinished { region, took, .. }
            | Event::Loaded { region, took, .. }
            | Event::Specialised { region, took, .. } => {
                What::Compiled { region: *region, took: nanos(*took) }
            }
            Event::Interpreted { region, .. } => What::Interpreted { region: *region, padded: false },
            Event::Padded { region, .. } => What::Interpreted { region: *region, padded: true },
            Event::Completed { region, took } => What::Completed { region: *region, took: nanos(*took) },
            Event::Waited { region, wait, took } => {
                What::Waited { region: *region, wait: *wait, took: nanos(*took) }
            }
            Event::HostRead { stream, site, asked, region, bytes, launch, data } => {
                What::Read(Box::new(HostRead {
                    stream: *stream,
                    site: site.clone(),
                    asked: *asked,
                    region: *region,
                    bytes: *bytes,
                    launch: nanos(*launch),
                    data: nanos(*data),
                }))
            }
            Event::Synchronized { stream, site, took } => {
                What::Synchronized { stream: *stream, site: site.clone(), took: nanos(*took) }
            }
            Event::RecompileStorm { .. }
            | Event::HotReads { .. }
            | Event::Growth { .. }
            | Event::FlagsRefused { .. }
            | Event::Unqualified { .. }
            | Event::CacheTrouble { .. }
            | Event::Stuck { .. }
            | Event::CompilesStopped { .. }
            | Event::CompileFailed { .. }
            | Event::Fallback { .. }
            | Event::OutOfMemory { .. }
            | Event::Oversized { .. }
            | Event::NotInterpreted { .. }
            | Event::Quarantined { .. }
            | Event::NotPadded { .. }
            | Event::Compared { difference: Some(_), .. }
            | Event::Poisoned { .. }
            | Event::Panicked { .. } => What::Warning { words: event.to_string().into() },
            // Nothing is kept of these.
            Event::Skipped { .. }
            | Event::OutputsPruned { .. }
            | Event::DonationExtended { .. }
            | Event::CompileStarted { .. }
            | Event::InParts { .. }
            | Event::Launched { .. }
            | Event::Lowered { .. }
            | Event::CheckRunning { .. }
            | Event::Compared { difference: None, .. }
            | Event::Evicted { .. }
            | Event::Throttled { .. } => return,
        };
        self.put(what, contents);
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        write!(f, "Timeline({} events, {} left out)", state.moments.len(), state.left_out)
    }
}

impl Described {
    fn of(contents: &SealedRegion) -> Described {
        let mut names: Vec<(&str, usize)> = Vec::new();
        for node in contents.canon().graph().nodes() {
            let name = node.signature().op().name();
            match names.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => names.push((name, 1)),
            }
        }
        let mut ops = String::new();
        for (i, (name, count)) in names.iter().take(NAMED).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            // Writing to a string cannot fail.
            let _ = match count {
                1 => write!(ops, "{comma}{name}"),
                _ => write!(ops, "{comma}{name} x{count}"),
            };
        }
        if names.len() > NAMED {
            ops.push_str(", ...");
        }
        let sites = contents.sites();
        let (first, last) = (sites.first().cloned(), sites.last().cloned());
        Described { ops, first: first.unwrap_or_default(), last: last.unwrap_or_default() }
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Sets marks on threads of their own, one after the other.
    fn mark_on_threads(timeline: &Timeline, threads: usize) {
        for step in 0..threads {
            let timeline = timeline.clone();
            let mark = move || timeline.mark(format!("{step}"));
            fuseline_sync::thread::spawn(format!("mark {step}"), mark)
                .expect("a thread")
                .join()
                .expect("no panic");
        }
    }

    #[test]
    fn threads_are_known_as_long_as_their_events() {
        let timeline = Timeline::with_room(10);
        mark_on_threads(&timeline, 100);
        let state = timeline.0.state.lock();
        assert!(state.threads.all.len() <= 11 && state.threads.numbers.len() == 10, "{:?}", state.threads);
        let of = |moment: &Moment| state.threads.all[moment.thread as usize].name.to_string();
        let names: Vec<String> = state.moments.iter().map(of).collect();
        assert_eq!(names, (90..100).map(|step| format!("mark {step}")).collect::<Vec<_>>());
        drop(state);
        timeline.clear();
        assert_eq!(timeline.0.state.lock().threads.all.len(), 0);
    }
}
