//! Checks of values: indices within range, and other conditions on data that the host has not seen.
//!
//! A check is recorded next to the op that needs it, as ordinary ops whose result is one number per
//! check, the *flag*. So it is fused, keyed, replayed and cached like any op. The stream keeps the
//! flag with the expected condition, and a read looks at the flags first.
//!
//! ```text
//! take(x, i) ─► bits of i as u64 ─► max ─► flag ─► Checks ─┬─ read, wait ─► Error, or the data
//!           └─► gather                                     └─ many pending ─► copied to the host
//! ```
//!
//! Input: tensors and conditions on their elements. Output: an error that names the op, the line
//! and the element, at the next read; in Debug mode at the call.
//!
//! Invariants:
//! - CHECK-1: a check changes no value. An index out of range has the meaning that the op defines,
//!   with and without a check.
//! - CHECK-2: a read of a value reports the failed checks of everything that the value depends on,
//!   unless they were reported before. A check is recorded before its op, and regions are launched
//!   in the order of the record, so the flag of a check is available when the results of the op
//!   are.
//! - CHECK-3: a failed check is reported once.
//! - CHECK-4: flags do not accumulate: beyond [`MAX_PENDING`] the available ones are copied to the
//!   host
//!   and dropped. The number of those that are not available is limited by what a stream may have
//!   in its log and in flight.
//!
//! Deliberately absent: checks inside the bodies of loops and branches, which have no results of
//! their own.

mod verdict;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use fuseline_fusion::Site;
use fuseline_fusion::region::Mode;
use fuseline_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fuseline_sync::{Condvar, Mutex, Rank};
use smallvec::SmallVec;

use crate::device::DeviceError;
use crate::engine::EngineShared;
use crate::engine::stream::{StreamShared, TensorHandle};
use crate::engine::value::{Outcome, Producer, ValueCell};
use crate::error::{Error, Result};

/// Number of pending checks above which available flags are copied and dropped.
pub const MAX_PENDING: usize = 64;

/// Interval in checks at which that happens, because it costs a plugin call for each flag.
pub const COPY_INTERVAL: u64 = 16;

/// The limit with several replicas, where copying waits.
const MAX_PENDING_OF_REPLICAS: usize = 1_024;

/// A condition on the elements of a tensor.
#[derive(Clone, Debug)]
pub enum Rule {
    /// They are indices below `size`. The flag is the largest as `u64`, in which a negative one is
    /// large.
    Below {
        /// The size of the dimension.
        size: u64,
        /// Whether the indices are signed.
        is_signed: bool,
        /// The size was added to negative indices.
        is_wrapped: bool,
    },
    /// All are true. The flag is 1 if one is not.
    True(Cow<'static, str>),
}

/// A check, with its op and call site.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The op or method that the check is for.
    pub op: &'static str,
    /// Where it was called.
    pub site: Site,
    /// What the elements must satisfy.
    pub rule: Rule,
}

impl Expected {
    /// Describes the failure that a flag reports, if any.
    pub fn broken(&self, flag: u64) -> Option<String> {
        match &self.rule {
            Rule::Below { size, .. } if flag < *size => None,
            &Rule::Below { size, is_signed, is_wrapped } => {
                let index = match is_signed {
                    true if is_wrapped && (flag as i64) < 0 => i128::from(flag as i64) - i128::from(size),
                    true => i128::from(flag as i64),
                    false => i128::from(flag),
                };
                let first = if is_wrapped { -i128::from(size) } else { 0 };
                Some(match size {
                    0 => format!("the index {index} is out of range: there are no elements"),
                    _ => format!("the index {index} is out of range, which is {first} to {}", size - 1),
                })
            }
            Rule::True(_) if flag == 0 => None,
            Rule::True(rule) => Some(rule.clone().into_owned()),
        }
    }
}

/// A check that failed.
#[derive(Clone, Debug)]
struct OpErrorKind {
    expected: Expected,
    what: String,
    /// Launch number of its region in the stream.
    launched: u64,
}

/// The state of the flags of an entry.
enum Reading {
    Pending,
    /// They are being copied to the host.
    Started,
    /// One for each check on each replica. Empty if they could not be computed or copied, which
    /// poisons everything that depends on them.
    There(Vec<u64>),
    /// They were examined, and failures were reported.
    Told,
}

/// Flags that have not been examined. The entry holds a handle on their value until it leaves the
/// list.
pub(crate) struct Entry {
    number: u64,
    /// One `u64` element for each check.
    flags: Arc<ValueCell>,
    expected: SmallVec<[Expected; 1]>,
    reading: Mutex<Reading>,
}

/// Which checks to examine.
#[derive(Clone, Copy)]
enum UpTo {
    /// Those of regions launched up to this one.
    Launch(u64),
    /// Those recorded before this number.
    Number(u64),
    /// All recorded checks.
    End,
}

#[derive(Default)]
struct CheckState {
    /// By ascending number.
    pending: VecDeque<Arc<Entry>>,
    next: u64,
    /// The first failed check that is not pending any more and was not reported.
    found: Option<(u64, OpErrorKind)>,
    /// For other streams: the number of their checks when this stream used their values.
    others: Vec<(Arc<Checks>, u64)>,
}

/// A region that is being launched. Dropping this means that its results are handed out.
pub(crate) struct Launch<'a> {
    checks: &'a Checks,
    pub(crate) number: u64,
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        let mut handed_out = self.checks.handed_out.lock();
        *handed_out = self.number.max(*handed_out);
        drop(handed_out);
        self.checks.is_handed_out.notify_all();
    }
}

/// The state of a stream. Most streams have no checks and allocate none.
struct LazyState(Option<Box<CheckState>>);

/// The state before the first check.
static EMPTY: CheckState = CheckState { pending: VecDeque::new(), next: 0, found: None, others: Vec::new() };

impl Deref for LazyState {
    type Target = CheckState;

    fn deref(&self) -> &CheckState {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl DerefMut for LazyState {
    fn deref_mut(&mut self) -> &mut CheckState {
        self.0.get_or_insert_default()
    }
}

/// The checks of a stream.
pub struct Checks {
    /// Whether there ever was a check, on this stream or on one whose values it uses.
    is_used: AtomicBool,
    /// Counts the reported failures. After each, indices that were cached as valid are checked
    /// again.
    round: Arc<AtomicU32>,
    /// Number of regions that the stream has launched.
    launches: AtomicU64,
    /// The latest launch whose results have all been handed out.
    handed_out: Mutex<u64>,
    is_handed_out: Condvar,
    state: Mutex<LazyState>,
}

fuseline_sync::thread_local! {
    static UNCHECKED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`, in which methods of tensors do not check indices, regardless of
/// `EngineConfig::check_indices` and the mode. It is for
/// indices that are valid, and for those that are meant to be out of range.
/// `Tensor::check_indices` and `Tensor::check_all` still check.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::EngineConfig::new().check_indices(true).build_reference()?;
/// let classes = engine.tensor(&[1i32, -1], &[2])?;
/// let hot = fuseline::unchecked(|| classes.one_hot(2, fuseline::DType::F32))?;
/// assert_eq!(hot.to_vec::<f32>()?, [0.0, 1.0, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub fn unchecked<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = UNCHECKED.try_with(|unchecked| unchecked.set(self.0));
        }
    }
    let _restore = Restore(UNCHECKED.with(|unchecked| unchecked.replace(true)));
    f()
}

/// Whether the calling thread is in [`unchecked`].
pub fn is_unchecked() -> bool {
    UNCHECKED.try_with(Cell::get).unwrap_or(false)
}

/// Registers flags, one for each expected condition, for the next read. In Debug mode examines them
/// now.
pub fn expect(flags: TensorHandle, expected: SmallVec<[Expected; 1]>) -> Result<()> {
    if let Some(place) = flags.cell().place() {
        // The caller of the function gets them.
        place.trace().check(place, expected);
        return Ok(());
    }
    let stream = flags.stream().clone();
    let is_now = stream.mode() == Mode::Debug;
    let entry = Entry {
        number: 0,
        flags: flags.into_cell(),
        expected,
        reading: Mutex::new(Rank::Reading, Reading::Pending),
    };
    if !is_now {
        stream.checks().push(entry, &stream);
        return Ok(());
    }
    let found = entry.look(stream.engine());
    let fault = found.and_then(|flags| entry.fault_of(&flags));
    stream.drop_handle(entry.flags);
    match fault {
        None => Ok(()),
        Some(fault) => Err(fault.into_error(false, &stream.checks().round)),
    }
}

impl OpErrorKind {
    /// With `is_late` the op has already run, and so have ops on its results.
    fn into_error(self, is_late: bool, round: &AtomicU32) -> Error {
        round.fetch_add(1, Ordering::Relaxed);
        let OpErrorKind { expected: Expected { op, site, .. }, what, .. } = self;
        Error::failed_check(op, site, what, is_late)
    }
}

impl Entry {
    /// Describes the first failed check of the entry.
    fn fault_of(&self, flags: &[u64]) -> Option<OpErrorKind> {
        let each = flags.chunks_exact(self.expected.len());
        each.flat_map(|flags| self.expected.iter().zip(flags)).find_map(|(expected, &flag)| {
            let what = expected.broken(flag)?;
            Some(OpErrorKind { expected: expected.clone(), what, launched: self.launched().unwrap_or(0) })
        })
    }

    /// The launch number of its region; `None` if it was not launched. Failed flags come first.
    fn launched(&self) -> Option<u64> {
        match self.flags.outcome().get()? {
            Outcome::Data { maker, .. } => Some(maker.as_ref().map_or(0, |maker| maker.region.launched())),
            _ => Some(0),
        }
    }

    fn is_due(&self, up_to: UpTo) -> bool {
        let Some(launched) = self.launched() else { return false };
        match up_to {
            UpTo::Launch(last) => launched <= last,
            UpTo::Number(end) => self.number < end,
            UpTo::End => true,
        }
    }

    /// Returns the flags, after waiting for their data. `None` if there is no data; empty if
    /// failures were reported.
    fn look(&self, engine: &Arc<EngineShared>) -> Option<Vec<u64>> {
        // Two statements, so that no lock is held while waiting.
        let known = match &*self.reading.lock() {
            Reading::There(flags) => Some(flags.clone()),
            Reading::Told => Some(Vec::new()),
            Reading::Pending | Reading::Started => None,
        };
        known.or_else(|| Some(numbers(crate::engine::copy::copied(&self.flags, engine)?.iter())))
    }

    /// Copies the flags to the host without waiting, and calls `arrived` when they are available.
    fn start(self: Arc<Self>, engine: &Arc<EngineShared>, arrived: impl FnOnce(&Entry) + Send + 'static) {
        if !matches!(self.flags.outcome().get(), Some(Outcome::Data { .. })) {
            *self.reading.lock() = Reading::There(Vec::new());
            return arrived(&self);
        }
        let flags = self.flags.clone();
        engine.download_async(&flags, move |bytes: std::result::Result<Vec<u8>, DeviceError>| {
            let mut reading = self.reading.lock();
            if !matches!(*reading, Reading::Told) {
                *reading = Reading::There(numbers(bytes.iter()));
            }
            drop(reading);
            arrived(&self);
        });
    }

    /// Failures of the entry have been reported.
    fn set_told(&self) {
        *self.reading.lock() = Reading::Told;
    }
}

fn numbers<'a>(copies: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u64> {
    let words = copies.flat_map(|bytes| bytes.as_chunks::<8>().0);
    words.map(|&bytes| u64::from_le_bytes(bytes)).collect()
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checks")
    }
}

impl Checks {
    /// `round` is shared by the engine.
    pub(crate) fn new(round: Arc<AtomicU32>) -> Arc<Checks> {
        let state = Mutex::new(Rank::Checks, LazyState(None));
        Arc::new(Checks {
            is_used: AtomicBool::new(false),
            round,
            launches: AtomicU64::new(0),
            handed_out: Mutex::new(Rank::Checks, 0),
            is_handed_out: Condvar::new(),
            state,
        })
    }

    /// Whether there is anything to examine. A read comes after the recording of the checks that
    /// its value depends on.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Numbers the region that is about to be launched, from 1 on. The driver keeps the returned
    /// launch until the results of the region are handed out.
    pub(crate) fn begin_launch(&self) -> Launch<'_> {
        Launch { checks: self, number: self.launches.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Waits until all results of a launched region are handed out, because its flags may come
    /// after the value that is read. The driver itself, and callbacks that it calls meanwhile, do
    /// not wait.
    fn await_launch(&self, number: u64) {
        if crate::user_code::is_driving() {
            return;
        }
        // A number from another stream may be arbitrary.
        let number = number.min(self.launches.load(Ordering::Relaxed));
        let mut handed_out = self.handed_out.lock();
        while *handed_out < number {
            handed_out = self.is_handed_out.wait(handed_out);
        }
    }

    fn push(&self, mut entry: Entry, stream: &Arc<StreamShared>) {
        self.is_used.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        entry.number = state.next;
        state.next += 1;
        state.pending.push_back(Arc::new(entry));
        let is_time = state.pending.len() > MAX_PENDING && state.next.is_multiple_of(COPY_INTERVAL);
        drop(state);
        if is_time {
            self.clear(stream);
        }
    }

    /// Values of another stream are used on this one, so its failed checks are reported here too.
    pub(crate) fn borrow(&self, other: &Arc<Checks>) {
        if !other.is_used() {
            return;
        }
        let mut marks = {
            let state = other.state.lock();
            let mut marks = state.others.clone();
            marks.push((other.clone(), state.next));
            marks
        };
        marks.retain(|(checks, _)| !std::ptr::eq(&raw const **checks, self));
        self.is_used.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        for (checks, mark) in marks {
            match state.others.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &checks)) {
                Some((_, known)) => *known = mark.max(*known),
                None => state.others.push((checks, mark)),
            }
        }
    }

    /// The stream ends. Streams that use its values have noted its checks.
    pub(crate) fn end(&self) {
        let others = std::mem::take(&mut self.state.lock().others);
        drop(others);
    }

    /// The round for [`ValueCell::is_known_below`].
    pub fn round(&self) -> u32 {
        self.round.load(Ordering::Relaxed)
    }

    /// Number of pending checks.
    #[cfg(any(test, feature = "testing"))]
    pub fn pending(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Drops examined entries.
    fn remove(&self, is_done: impl Fn(&Arc<Entry>) -> bool, stream: Option<&Arc<StreamShared>>) {
        let mut done = Vec::new();
        self.state.lock().pending.retain(|entry| {
            let is_done = is_done(entry);
            done.extend(is_done.then(|| entry.flags.clone()));
            !is_done
        });
        // Each was launched, so no trace refers to it. The handle of another stream's entry ends
        // with the value.
        if let Some(stream) = stream {
            done.into_iter().for_each(|flags| stream.drop_handle(flags));
        }
    }

    /// Examines the available flags, and copies others where possible (CHECK-4).
    #[cold]
    fn clear(&self, stream: &Arc<StreamShared>) {
        let engine = stream.engine();
        let due: Vec<_> = {
            let state = self.state.lock();
            state.pending.iter().filter(|entry| entry.is_due(UpTo::End)).cloned().collect()
        };
        if engine.device().replicas() > 1 {
            // Only the data of the first replica arrives without waiting.
            if due.len() > MAX_PENDING_OF_REPLICAS && !crate::user_code::is_driving() {
                let half = &due[..due.len() / 2];
                for entry in half {
                    let flags = entry.look(engine).unwrap_or_default();
                    *entry.reading.lock() = Reading::There(flags);
                }
            }
        } else {
            for entry in &due {
                let mut reading = entry.reading.lock();
                let is_new = matches!(*reading, Reading::Pending);
                if is_new {
                    *reading = Reading::Started;
                }
                drop(reading);
                if is_new {
                    entry.clone().start(engine, |_| ());
                }
            }
        }
        let is_looked_at =
            |entry: &Arc<Entry>| matches!(*entry.reading.lock(), Reading::There(_) | Reading::Told);
        let done: Vec<_> = due.into_iter().filter(is_looked_at).collect();
        for entry in &done {
            let fault = entry.look(engine).and_then(|flags| entry.fault_of(&flags));
            if let Some(fault) = fault {
                self.state.lock().found.get_or_insert((entry.number, fault));
            }
        }
        let is_done = |entry: &Arc<Entry>| done.iter().any(|done| Arc::ptr_eq(done, entry));
        self.remove(is_done, Some(stream));
    }

    /// Returns an error if a check failed that the value depends on and was not reported. `maker`
    /// computed the value. Waits for the flags, which are available when the value is.
    #[inline]
    pub(crate) fn before_data(&self, maker: Option<&Producer>, stream: &Arc<StreamShared>) -> Result<()> {
        match maker {
            Some(maker) if self.is_used() => {
                let launched = maker.region.launched();
                self.await_launch(launched);
                self.look(UpTo::Launch(launched), stream)
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if any recorded check failed and was not reported. Everything recorded has
    /// been computed.
    pub(crate) fn at_end(&self, stream: &Arc<StreamShared>) -> Result<()> {
        if self.is_used() { self.look(UpTo::End, stream) } else { Ok(()) }
    }

    #[cold]
    fn look(&self, up_to: UpTo, stream: &Arc<StreamShared>) -> Result<()> {
        let engine = stream.engine();
        let mut first = self.first_fault(up_to, engine, Some(stream));
        for (other, mark) in self.others() {
            let fault = other.first_fault(UpTo::Number(mark), engine, None);
            first = first.or(fault);
        }
        first.map_or(Ok(()), |fault| Err(fault.into_error(true, &self.round)))
    }

    fn others(&self) -> Vec<(Arc<Checks>, u64)> {
        self.state.lock().others.clone()
    }

    /// The first failed check that was not reported.
    fn first_fault(
        &self,
        up_to: UpTo,
        engine: &Arc<EngineShared>,
        stream: Option<&Arc<StreamShared>>,
    ) -> Option<OpErrorKind> {
        let (mut first, due) = self.due(up_to);
        for entry in &due {
            let fault = entry.look(engine).and_then(|flags| entry.fault_of(&flags));
            first = first.or(fault);
            entry.set_told();
        }
        self.remove(|entry| due.iter().any(|due| Arc::ptr_eq(due, entry)), stream);
        first
    }

    /// The failure that was found before, and the entries to examine.
    fn due(&self, up_to: UpTo) -> (Option<OpErrorKind>, Vec<Arc<Entry>>) {
        let mut state = self.state.lock();
        let due = state.pending.iter().filter(|entry| entry.is_due(up_to)).cloned().collect();
        let is_found = |(number, fault): &mut (u64, OpErrorKind)| match up_to {
            UpTo::Launch(last) => fault.launched <= last,
            UpTo::Number(end) => *number < end,
            UpTo::End => true,
        };
        (state.found.take_if(is_found).map(|(_, fault)| fault), due)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_read_as_what_was_expected() {
        let below = |size, is_signed, is_wrapped| Expected {
            op: "op",
            site: Site::Unknown,
            rule: Rule::Below { size, is_signed, is_wrapped },
        };
        assert_eq!(below(3, true, false).broken(2), None);
        assert!(below(3, true, false).broken(3).unwrap().contains("index 3 is"));
        assert!(below(3, true, false).broken(u64::MAX).unwrap().contains("index -1 is"));
        assert!(below(3, false, false).broken(u64::MAX).unwrap().contains("index 18446744073709551615 is"));
        // -4 and 3 more.
        assert!(
            below(3, true, true)
                .broken(u64::MAX)
                .unwrap()
                .contains("index -4 is out of range, which is -3 to 2")
        );
        assert!(below(3, true, true).broken(5).unwrap().contains("index 5 is"));
        assert!(below(0, true, false).broken(0).unwrap().contains("there are no elements"));
    }
}
