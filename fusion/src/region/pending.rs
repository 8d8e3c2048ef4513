//! The recorded ops of which no region has been made yet.
//!
//! Where a region ends may be decided long after its last op was recorded, so ops are kept here as they came, with operands that say
//! which value is meant, and turned into the graph of a region once, when its end is known ([`Window::take`]). So an op costs
//! the same wherever cuts lie: one hash look-up per operand and one insertion per result when it is recorded, and one step of a pass
//! without hashing when its region is made.
//!
//! The ops from a place on are the *unit* that is being recorded; ops before it are units whose end is known, and which are held back
//! because they may become one region with what follows ([`super::plan`]). Whoever decides where units end may *see* ops later
//! than they were recorded: a unit has the ops that were seen ([`Window::see`]).
//!
//! Invariants:
//! - K1: a value is known (`known`, `slots`) exactly while an op of the window mentions it.
//! - K2: `last` of a known value is the last op of the stream that mentions it. So what an op after a cut uses is seen without
//!   looking for it, which is what R2 and R3 of the module above need.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::token::Token;
use super::{
    Boundary, Input, Mention, Mentions, Mode, Operand, Output, PendingStats, Region, TraceOp, TraceResult,
    TraceValue as _,
};
use crate::graph::{Graph, Ref, Refs};
use crate::id::{Site, ValueId};
use crate::op::{Effect, Signature};
use crate::shape::Bytes;

/// The number of an op of the stream, counted from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

impl Place {
    /// How many ops lie between.
    fn since(self, earlier: Place) -> usize {
        (self.0 - earlier.0) as usize
    }
}

/// Where a known value is kept.
type Slot = u32;

/// An operand of an op of the window.
#[derive(Clone, Copy, Debug)]
struct Use {
    slot: Slot,
    lifted: bool,
    /// The last op that mentioned the value before, if one of the window does.
    before: Option<Place>,
}

#[derive(Debug)]
struct Recorded {
    signature: Arc<Signature>,
    uses: SmallVec<[Use; 3]>,
    results: SmallVec<[Slot; 1]>,
    site: Site,
}

#[derive(Debug)]
struct Known<R: TraceResult> {
    id: ValueId,
    /// The value, unless an op of the window makes it.
    value: Option<R::Value>,
    /// The duty to make it, if an op of the window does.
    promise: Option<R>,
    lifted: bool,
    /// The op that makes it, if that is or was in the window.
    made: Option<Place>,
    /// The last op that mentions it.
    last: Place,
    released: bool,
    /// What it is in the region with this number.
    region: u64,
    place: Ref,
}

impl<R: TraceResult> Known<R> {
    fn new(id: ValueId, last: Place, lifted: bool) -> Known<R> {
        Known {
            id,
            value: None,
            promise: None,
            lifted,
            made: None,
            last,
            released: false,
            region: 0,
            place: Ref::Param(0),
        }
    }
}

/// What an op computes, and how far ago its operands were mentioned.
#[derive(Clone, Debug)]
pub(super) struct Mentioned {
    signature: u64,
    /// For each operand how many ops ago it was mentioned, one more than that, or 0 if it was not; and whether it is lifted, in the lowest bit.
    uses: SmallVec<[u64; 3]>,
}

impl Mentioned {
    /// A hash of it, where what was mentioned more than `since` ops ago is an input, whichever it is.
    pub(super) fn token(&self, since: usize) -> u64 {
        token(self.signature, self.uses.iter().copied(), since)
    }
}

fn token(signature: u64, uses: impl Iterator<Item = u64>, since: usize) -> u64 {
    let mut token = Token::new(signature);
    uses.for_each(|word| token.add(if word >> 1 > 1 + since as u64 { word & 1 } else { word }));
    token.get()
}

/// What has become of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// No pending op knows the value: it can be freed at once.
    Now,
    /// A pending op reads or makes it: a region will return it as a dying input or a dead result (R3).
    WithRegion,
}

/// Recorded ops in order, from the first of which no region was made.
#[derive(Debug)]
pub(super) struct Window<R: TraceResult> {
    ops: VecDeque<Recorded>,
    /// The first op.
    start: Place,
    slots: Vec<Option<Known<R>>>,
    free: Vec<Slot>,
    known: FxHashMap<ValueId, Slot>,
    /// The first op of the unit.
    unit: Place,
    /// The first op that was not seen.
    unseen: Place,
    /// Tensors that the unit uses and does not make.
    inputs: usize,
    /// All that it makes.
    bytes: Bytes,
    /// Regions made so far.
    regions: u64,
}

impl<R: TraceResult> Window<R> {
    pub(super) fn new() -> Window<R> {
        Window {
            ops: VecDeque::new(),
            start: Place(0),
            unit: Place(0),
            unseen: Place(0),
            slots: Vec::new(),
            free: Vec::new(),
            known: FxHashMap::default(),
            inputs: 0,
            bytes: Bytes(0),
            regions: 0,
        }
    }

    /// Number of ops that are held back.
    pub(super) fn held(&self) -> usize {
        self.unit.since(self.start)
    }

    /// Whether no op is pending, of those that are held back neither.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Number of ops, those that are held back and those that were not seen included.
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// The size of the unit.
    pub(super) fn stats(&self) -> PendingStats {
        PendingStats { ops: self.unseen.since(self.unit), inputs: self.inputs, bytes: self.bytes }
    }

    /// Whether a pending op makes the value.
    pub(super) fn makes(&self, value: ValueId) -> bool {
        self.known(value).is_some_and(|known| known.promise.is_some())
    }

    fn known(&self, value: ValueId) -> Option<&Known<R>> {
        self.known.get(&value).and_then(|&slot| self.slots[slot as usize].as_ref())
    }

    /// The first op that was not seen.
    fn unseen(&self) -> Option<&Recorded> {
        self.ops.get(self.unseen.since(self.start))
    }

    /// How many inputs more the unit would have with the next op that was not seen, if there is one.
    pub(super) fn fresh(&self) -> Option<usize> {
        Some(self.unseen()?.uses.iter().filter(|operand| self.is_fresh(operand)).count())
    }

    /// Whether an operand of the unit is an input of it that nothing in it mentions before.
    fn is_fresh(&self, operand: &Use) -> bool {
        !operand.lifted && operand.before.is_none_or(|before| before < self.unit)
    }

    fn insert(&mut self, known: Known<R>) -> Slot {
        let id = known.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(known);
                slot
            }
            None => {
                self.slots.push(Some(known));
                self.slots.len() as Slot - 1
            }
        };
        self.known.insert(id, slot);
        slot
    }

    /// Adds an op.
    pub(super) fn push(&mut self, op: TraceOp<R>) {
        let here = Place(self.start.0 + self.ops.len() as u64);
        let mut uses = SmallVec::new();
        for operand in op.operands {
            let (value, lifted) = match operand {
                Operand::Tensor(value) => (value, false),
                Operand::Scalar(value) => (value, true),
            };
            let id = value.id();
            let (slot, before) = match self.known.get(&id) {
                Some(&slot) => (slot, Some(std::mem::replace(&mut get(&mut self.slots, slot).last, here))),
                None => {
                    let known = Known::new(id, here, lifted);
                    (self.insert(Known { value: Some(value), ..known }), None)
                }
            };
            uses.push(Use { slot, lifted, before });
        }
        debug_assert_eq!(op.results.len(), op.signature.results().len(), "one value per result");
        let results = op.results.into_iter().map(|promise| {
            let known = Known::new(promise.id(), here, false);
            self.insert(Known { promise: Some(promise), made: Some(here), ..known })
        });
        let results = results.collect();
        self.ops.push_back(Recorded { signature: op.signature, uses, results, site: op.site });
    }

    /// Takes the next op that was not seen into the unit; how its operands were mentioned before.
    pub(super) fn see(&mut self) -> Option<Mentions> {
        let op = self.ops.get(self.unseen.since(self.start))?;
        let ago = |place: Place| self.unseen.since(place);
        let mentions = op.uses.iter().map(|operand| {
            let made = self.slots[operand.slot as usize].as_ref().and_then(|known| known.made);
            let last = operand.before.map(ago);
            Mention { last, made: made.filter(|_| last.is_some()).map(ago), lifted: operand.lifted }
        });
        let mentions = mentions.collect();
        self.inputs += op.uses.iter().filter(|operand| self.is_fresh(operand)).count();
        let made = op.signature.results().iter().map(|ty| ty.bytes());
        self.bytes = made.fold(self.bytes, Bytes::saturating_add);
        self.unseen = Place(self.unseen.0 + 1);
        Some(mentions)
    }

    /// The op that was seen last, if it is still pending.
    pub(super) fn last_seen(&self) -> Option<&Arc<Signature>> {
        let at = self.unseen.since(self.start).checked_sub(1)?;
        Some(&self.ops[at].signature)
    }

    /// Forgets that the ops of the unit were seen. Nothing is held back.
    pub(super) fn unsee(&mut self) {
        debug_assert_eq!(self.unit, self.start, "bug: units are held back");
        self.unseen = self.unit;
        (self.inputs, self.bytes) = (0, Bytes(0));
    }

    /// A hash of the op at this place of the window: of what it computes, and of how far ago its operands were mentioned by ops from
    /// the place `from` on.
    pub(super) fn token(&self, at: usize, from: usize) -> u64 {
        let op = &self.ops[at];
        token(op.signature.token(), self.words(at), at - from)
    }

    /// The op at this place of the window, as far as tokens go.
    pub(super) fn mentioned(&self, at: usize) -> Mentioned {
        Mentioned { signature: self.ops[at].signature.token(), uses: self.words(at).collect() }
    }

    /// How far ago the operands of the op at this place were mentioned, as in [`Mentioned::uses`].
    fn words(&self, at: usize) -> impl Iterator<Item = u64> + '_ {
        let here = Place(self.start.0 + at as u64);
        self.ops[at].uses.iter().map(move |operand| {
            let ago = operand.before.map_or(0, |before| 1 + here.since(before) as u64);
            ago << 1 | u64::from(operand.lifted)
        })
    }

    /// A hash of the first `len` ops of the unit: equal for equal ones wherever they stand, and hardly ever for others.
    pub(super) fn print(&self, len: usize) -> u64 {
        let mut hash = Token::new(len as u64);
        let held = self.held();
        for (index, op) in self.ops.range(held..held + len).enumerate() {
            hash.add(op.signature.token());
            for operand in &op.uses {
                // What was mentioned before the unit is an input of it, whichever it is.
                let before = operand.before.filter(|&before| before >= self.unit);
                hash.add(before.map_or(0, |before| 1 + (self.unit.0 + index as u64) - before.0));
            }
        }
        hash.get()
    }

    /// Bytes of all results of the first `len` ops.
    pub(super) fn bytes_of(&self, len: usize) -> Bytes {
        let made = self.ops.range(..len).flat_map(|op| op.signature.results()).map(|ty| ty.bytes());
        made.fold(Bytes(0), Bytes::saturating_add)
    }

    /// Ends the unit after `len` ops and holds it back.
    pub(super) fn pass(&mut self, len: usize) {
        self.unit = Place(self.unit.0 + len as u64);
        self.count();
    }

    /// Counts anew what the ops of the unit are together.
    fn count(&mut self) {
        (self.inputs, self.bytes) = (0, Bytes(0));
        for op in self.ops.range(self.held()..self.unseen.since(self.start)) {
            self.inputs += op.uses.iter().filter(|operand| self.is_fresh(operand)).count();
            let made = op.signature.results().iter().map(|ty| ty.bytes());
            self.bytes = made.fold(self.bytes, Bytes::saturating_add);
        }
    }

    pub(super) fn release(&mut self, value: ValueId) -> Released {
        match self.known.get(&value) {
            None => Released::Now,
            Some(&slot) => {
                get(&mut self.slots, slot).released = true;
                Released::WithRegion
            }
        }
    }

    /// Makes a region of the first `len` ops, those that are held back first. What later ops use of it stays live and becomes an input
    /// of theirs; a release goes to the last region that knows the value (R2, R3).
    pub(super) fn take(&mut self, len: usize, boundary: Boundary, mode: Mode, effect: Effect) -> Region<R> {
        let len = len.min(self.ops.len());
        let end = Place(self.start.0 + len as u64);
        self.regions += 1;
        let region = self.regions;
        let mut graph = Graph::with_capacity(self.known.len().min(2 * len), len);
        let mut inputs = Vec::new();
        let mut outputs = Vec::with_capacity(len);
        let mut sites = Vec::with_capacity(len);
        // Values that no later op mentions.
        let mut done: Vec<Slot> = Vec::with_capacity(len);
        let is_all = len == self.ops.len();
        for op in self.ops.drain(..len) {
            let mut refs = Refs::new();
            for (operand, ty) in op.uses.iter().zip(op.signature.operands()) {
                let known = get(&mut self.slots, operand.slot);
                if known.region != region {
                    known.region = region;
                    known.place = graph.param(ty.clone());
                    let stays = known.last >= end;
                    let value = if stays { known.value.clone() } else { known.value.take() };
                    let value = value.expect("bug: an input is neither made nor given");
                    inputs.push(Input { value, lifted: known.lifted, dies: known.released && !stays });
                    if !stays {
                        done.push(operand.slot);
                    }
                }
                refs.push(known.place);
            }
            let places = graph.push_signature(op.signature, refs);
            for (&slot, place) in op.results.iter().zip(places) {
                let known = get(&mut self.slots, slot);
                known.region = region;
                known.place = place;
                let promise = known.promise.take().expect("bug: a value is made twice");
                let stays = known.last >= end;
                if stays {
                    known.value = Some(promise.value());
                } else {
                    done.push(slot);
                }
                outputs.push(Output { live: stays || !known.released, value: promise });
            }
            sites.push(op.site);
        }
        self.start = end;
        self.unseen = self.unseen.max(end);
        if is_all {
            // Nothing is mentioned any more: cheaper than one by one.
            self.slots.clear();
            self.free.clear();
            self.known.clear();
        } else {
            for slot in done {
                if let Some(known) = self.slots[slot as usize].take() {
                    self.known.remove(&known.id);
                    self.free.push(slot);
                }
            }
        }
        if self.unit < end {
            self.unit = end;
            self.count();
        }
        Region {
            graph,
            inputs,
            outputs,
            sites,
            units: Vec::new(),
            is_whole: false,
            round: None,
            boundary,
            mode,
            effect,
        }
    }
}

fn get<R: TraceResult>(slots: &mut [Option<Known<R>>], slot: Slot) -> &mut Known<R> {
    slots[slot as usize].as_mut().expect("bug: an op of the window mentions a value that is not known")
}
