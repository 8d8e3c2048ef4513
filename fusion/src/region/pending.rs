//! Recorded ops that are not in a region yet.
//!
//! The end of a region may be decided long after its last op was recorded. So ops are kept as they
//! were recorded, with operands that identify values, and converted to the graph of a region once
//! its end is known ([`Window::take`]). The cost of an op does not depend on where cuts are: one
//! hash look-up per operand and one insertion per result when it is recorded, and one step of a
//! pass without hashing when its region is made.
//!
//! The ops from one position on are the *unit* in progress. Ops before it belong to units that have
//! ended and are held back, because they may be merged with later ones ([`super::merge_trie`]). The
//! rule that ends units may *see* ops later than they were recorded: a unit consists of the ops
//! that were seen ([`Window::see`]).
//!
//! Invariants:
//! - PENDING-1: a value is known (`known`, `slots`) exactly while a pending op mentions it.
//! - PENDING-2: `last` of a known value is the last op of the stream that mentions it. So the uses
//!   after a cut are known without a search, as R2 and R3 of the parent module require.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::token::Token;
use super::{
    Boundary, Input, Mentions, Mode, Operand, OperandDistance, Output, PendingStats, Region, TraceOp,
    TraceResult, TraceValue as _,
};
use crate::id::{Site, ValueId};
use crate::ir::{Effect, Graph, Ref, Refs, Signature};
use crate::shape::Bytes;

/// The number of an op in the stream, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpIndex(u64);

impl OpIndex {
    /// Distance in ops.
    fn since(self, earlier: OpIndex) -> usize {
        (self.0 - earlier.0) as usize
    }
}

/// Index of a known value.
type PendingIndex = u32;

/// An operand of a pending op.
#[derive(Clone, Copy, Debug)]
struct Use {
    slot: PendingIndex,
    lifted: bool,
    /// The previous op that mentions the value, if it is pending.
    before: Option<OpIndex>,
}

#[derive(Debug)]
struct Recorded {
    signature: Arc<Signature>,
    uses: SmallVec<[Use; 3]>,
    results: SmallVec<[PendingIndex; 1]>,
    site: Site,
}

#[derive(Debug)]
struct PendingValue<R: TraceResult> {
    id: ValueId,
    /// The value, unless a pending op produces it.
    value: Option<R::Value>,
    /// The promise to produce it, if a pending op does.
    promise: Option<R>,
    lifted: bool,
    /// The op that produces it, if it is or was pending.
    made: Option<OpIndex>,
    /// The last op that mentions it.
    last: OpIndex,
    released: bool,
    /// Its reference in the graph of region number `region`.
    region: u64,
    place: Ref,
}

impl<R: TraceResult> PendingValue<R> {
    fn new(id: ValueId, last: OpIndex, lifted: bool) -> PendingValue<R> {
        PendingValue {
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

/// The computation of an op, and how long ago its operands were mentioned.
#[derive(Clone, Debug)]
pub(super) struct Mentioned {
    signature: u64,
    /// For each operand, in the upper bits: the distance in ops to its previous mention plus one,
    /// or 0 without one. In the lowest bit: whether it is lifted.
    uses: SmallVec<[u64; 3]>,
}

impl Mentioned {
    /// A stable hash. An operand that was last mentioned more than `since` ops ago counts as an
    /// anonymous input.
    pub(super) fn token(&self, since: usize) -> u64 {
        token(self.signature, self.uses.iter().copied(), since)
    }
}

fn token(signature: u64, uses: impl Iterator<Item = u64>, since: usize) -> u64 {
    let mut token = Token::new(signature);
    uses.for_each(|word| token.add(if word >> 1 > 1 + since as u64 { word & 1 } else { word }));
    token.get()
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// No pending op mentions the value: it can be freed at once.
    Now,
    /// A pending op reads or produces it: a region will return it as a dying input or a dead result
    /// (REGION-3).
    WithRegion,
}

/// Pending ops in recorded order.
#[derive(Debug)]
pub(super) struct Window<R: TraceResult> {
    ops: VecDeque<Recorded>,
    /// The first op.
    start: OpIndex,
    slots: Vec<Option<PendingValue<R>>>,
    free: Vec<PendingIndex>,
    known: FxHashMap<ValueId, PendingIndex>,
    /// The first op of the unit.
    unit: OpIndex,
    /// The first unseen op.
    unseen: OpIndex,
    /// Number of tensors that the unit uses and does not produce.
    inputs: usize,
    /// Bytes of all results of the unit.
    bytes: Bytes,
    /// Regions made so far.
    regions: u64,
}

impl<R: TraceResult> Window<R> {
    pub(super) fn new() -> Window<R> {
        Window {
            ops: VecDeque::new(),
            start: OpIndex(0),
            unit: OpIndex(0),
            unseen: OpIndex(0),
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

    /// Whether no op is pending, including those held back.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Number of ops, including those held back and unseen ones.
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// The size of the unit.
    pub(super) fn stats(&self) -> PendingStats {
        PendingStats { ops: self.unseen.since(self.unit), inputs: self.inputs, bytes: self.bytes }
    }

    /// Whether a pending op produces the value.
    pub(super) fn produces(&self, value: ValueId) -> bool {
        self.known(value).is_some_and(|known| known.promise.is_some())
    }

    fn known(&self, value: ValueId) -> Option<&PendingValue<R>> {
        self.known.get(&value).and_then(|&slot| self.slots[slot as usize].as_ref())
    }

    /// The first unseen op.
    fn unseen(&self) -> Option<&Recorded> {
        self.ops.get(self.unseen.since(self.start))
    }

    /// How many inputs the next unseen op would add to the unit; `None` if there is none.
    pub(super) fn fresh(&self) -> Option<usize> {
        Some(self.unseen()?.uses.iter().filter(|operand| self.is_fresh(operand)).count())
    }

    /// Whether an operand adds an input to the unit: no op of the unit mentions it before.
    fn is_fresh(&self, operand: &Use) -> bool {
        !operand.lifted && operand.before.is_none_or(|before| before < self.unit)
    }

    fn insert(&mut self, known: PendingValue<R>) -> PendingIndex {
        let id = known.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(known);
                slot
            }
            None => {
                self.slots.push(Some(known));
                self.slots.len() as PendingIndex - 1
            }
        };
        self.known.insert(id, slot);
        slot
    }

    /// Adds an op.
    pub(super) fn push(&mut self, op: TraceOp<R>) {
        let here = OpIndex(self.start.0 + self.ops.len() as u64);
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
                    let known = PendingValue::new(id, here, lifted);
                    (self.insert(PendingValue { value: Some(value), ..known }), None)
                }
            };
            uses.push(Use { slot, lifted, before });
        }
        debug_assert_eq!(op.results.len(), op.signature.results().len(), "one value per result");
        let results = op.results.into_iter().map(|promise| {
            let known = PendingValue::new(promise.id(), here, false);
            self.insert(PendingValue { promise: Some(promise), made: Some(here), ..known })
        });
        let results = results.collect();
        self.ops.push_back(Recorded { signature: op.signature, uses, results, site: op.site });
    }

    /// Moves the next unseen op into the unit; returns how long ago its operands were mentioned.
    pub(super) fn see(&mut self) -> Option<Mentions> {
        let op = self.ops.get(self.unseen.since(self.start))?;
        let ago = |place: OpIndex| self.unseen.since(place);
        let mentions = op.uses.iter().map(|operand| {
            let made = self.slots[operand.slot as usize].as_ref().and_then(|known| known.made);
            let last = operand.before.map(ago);
            OperandDistance { last, made: made.filter(|_| last.is_some()).map(ago), lifted: operand.lifted }
        });
        let mentions = mentions.collect();
        self.inputs += op.uses.iter().filter(|operand| self.is_fresh(operand)).count();
        let made = op.signature.results().iter().map(|ty| ty.bytes());
        self.bytes = made.fold(self.bytes, Bytes::saturating_add);
        self.unseen = OpIndex(self.unseen.0 + 1);
        Some(mentions)
    }

    /// The op seen last, if it is still pending.
    pub(super) fn last_examined(&self) -> Option<&Arc<Signature>> {
        let at = self.unseen.since(self.start).checked_sub(1)?;
        Some(&self.ops[at].signature)
    }

    /// Marks the ops of the unit as unseen. No unit may be held back.
    pub(super) fn unsee(&mut self) {
        debug_assert_eq!(self.unit, self.start, "bug: units are held back");
        self.unseen = self.unit;
        (self.inputs, self.bytes) = (0, Bytes(0));
    }

    /// A stable hash of the op at position `at`: of its computation, and of the distances to
    /// previous mentions of its operands by ops from position `from` on.
    pub(super) fn token(&self, at: usize, from: usize) -> u64 {
        let op = &self.ops[at];
        token(op.signature.token(), self.words(at), at - from)
    }

    /// The op at position `at`, in the form that tokens are computed from.
    pub(super) fn mentioned(&self, at: usize) -> Mentioned {
        Mentioned { signature: self.ops[at].signature.token(), uses: self.words(at).collect() }
    }

    /// The mentions of the operands of the op at position `at`, as in [`Mentioned::uses`].
    fn words(&self, at: usize) -> impl Iterator<Item = u64> + '_ {
        let here = OpIndex(self.start.0 + at as u64);
        self.ops[at].uses.iter().map(move |operand| {
            let ago = operand.before.map_or(0, |before| 1 + here.since(before) as u64);
            ago << 1 | u64::from(operand.lifted)
        })
    }

    /// A stable hash of the first `len` ops of the unit: equal for equal ops in any position, and
    /// almost never for others.
    pub(super) fn fingerprint(&self, len: usize) -> u64 {
        let mut hash = Token::new(len as u64);
        let held = self.held();
        for (index, op) in self.ops.range(held..held + len).enumerate() {
            hash.add(op.signature.token());
            for operand in &op.uses {
                // An operand from before the unit counts as an anonymous input.
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
        self.unit = OpIndex(self.unit.0 + len as u64);
        self.count();
    }

    /// Recomputes inputs and bytes of the unit.
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

    /// Makes a region of the first `len` ops, starting with those held back. Results that later ops
    /// use stay live and become their inputs. A release goes to the last region that mentions the
    /// value (REGION-2, REGION-3).
    pub(super) fn take(&mut self, len: usize, boundary: Boundary, mode: Mode, effect: Effect) -> Region<R> {
        let len = len.min(self.ops.len());
        let end = OpIndex(self.start.0 + len as u64);
        self.regions += 1;
        let region = self.regions;
        let mut graph = Graph::with_capacity(self.known.len().min(2 * len), len);
        let mut inputs = Vec::new();
        let mut outputs = Vec::with_capacity(len);
        let mut sites = Vec::with_capacity(len);
        // Values that no later op mentions.
        let mut done: Vec<PendingIndex> = Vec::with_capacity(len);
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
                    let value = value.expect("bug: an input is neither computed nor passed in");
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
                let promise = known.promise.take().expect("bug: a value is computed twice");
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
            // No value is mentioned any more. Clearing is cheaper than removing one by one.
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
            spans_user_boundaries: false,
            round: None,
            boundary,
            mode,
            effect,
        }
    }
}

fn get<R: TraceResult>(slots: &mut [Option<PendingValue<R>>], slot: PendingIndex) -> &mut PendingValue<R> {
    slots[slot as usize].as_mut().expect("bug: an op of the window uses an unknown value")
}
