//! What was recorded of a template: which values stand where, and when they were released.

use std::ptr::NonNull;
use std::sync::Arc;

use fuseline_fusion::graph::Ref;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Input, Mode, Operand, Operands, Results, TraceOp};
use fuseline_fusion::{Site, TensorType, ValueId};

use super::template::{Sites, Template};
use crate::stream::{RecordCall, StreamShared, Tensors};
use crate::tensor::Tensor;
use crate::value::{Mark, ValueCell, ValuePromise, ValueRef};

/// The number of ops that had been recorded when a value was released.
type Released = Option<u32>;

/// A result of an op. Its handle, while there is one, owns the reference with which the cell was made; when the last handle is dropped,
/// that comes back here.
#[derive(Debug)]
struct Made {
    /// Which value it is.
    cell: NonNull<ValueCell>,
    /// The reference: of a value that has been released, and, beyond the results made, of a cell that can be used again.
    own: Option<Arc<ValueCell>>,
    released: Released,
}

// SAFETY: holds because `cell` is an address to compare with, and dereferenced only where an `Arc` of the same value, which is `Send` and
// `Sync`, is known to exist (`Made::reference`).
unsafe impl Send for Made {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Made {}

impl Made {
    fn new(cell: &Arc<ValueCell>) -> Made {
        Made { cell: address(cell), own: None, released: None }
    }

    /// A reference to the value.
    fn reference(&self) -> Arc<ValueCell> {
        match &self.own {
            Some(own) => own.clone(),
            None => {
                let cell = self.cell.as_ptr().cast_const();
                // SAFETY: holds because the value has not been released on this tape, so the reference that was handed out with its
                // handle exists: a handle has it, or an entry or item that whoever holds the gate, which is our caller, has not seen to.
                unsafe { Arc::increment_strong_count(cell) };
                // SAFETY: holds because that is the reference that the line above made.
                unsafe { Arc::from_raw(cell) }
            }
        }
    }
}

fn address(cell: &Arc<ValueCell>) -> NonNull<ValueCell> {
    NonNull::from(&**cell)
}

/// A parameter.
#[derive(Debug)]
struct Bound {
    value: ValueRef,
    released: Released,
}

/// A run of ops that are those of a template from its first on.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    template: Option<Arc<Template>>,
    /// Number of ops.
    ops: usize,
    /// Number of results.
    results: usize,
    made: Vec<Made>,
    bound: Vec<Bound>,
    /// Values of others that were released meanwhile, with the number of ops then.
    others: Vec<(u32, Arc<ValueCell>)>,
    /// The template's, unless the ops were recorded elsewhere.
    sites: Sites,
}

/// An entry of the log that a tape stands for.
pub(crate) enum Step {
    /// An op was recorded.
    Op(TraceOp<ValuePromise>),
    /// The last handle on a value was dropped.
    Release(ValueId),
}

/// What a region is made of, if its ops are those of a whole template.
pub(crate) struct Recorded {
    pub(crate) inputs: Vec<Input<ValueRef>>,
    /// The results that live on, by their number in the graph.
    pub(crate) live: Vec<(u32, ValuePromise)>,
    pub(crate) sites: Sites,
}

/// Whether two call sites are the same, where that is cheap to tell.
#[inline(always)]
fn is_same_site(one: &Site, other: &Site) -> bool {
    match (one, other) {
        (Site::Rust(one), Site::Rust(other)) => std::ptr::eq(*one, *other),
        (Site::Host(one), Site::Host(other)) => Arc::ptr_eq(one, other) || one == other,
        (Site::Unknown, Site::Unknown) => true,
        _ => false,
    }
}

impl Tape {
    /// Makes the tape one of no ops.
    pub(super) fn begin(&mut self, template: Arc<Template>) {
        if !self.was_for(&template) {
            self.made.clear();
        }
        (self.ops, self.results) = (0, 0);
        self.bound.clear();
        self.others.clear();
        self.sites = template.sites.clone();
        self.template = Some(template);
    }

    /// Goes on by another template that begins like this one.
    pub(super) fn turn_to(&mut self, template: Arc<Template>) {
        self.made.truncate(self.results);
        let mut sites = Vec::clone(&template.sites);
        sites[..self.ops].clone_from_slice(&self.sites[..self.ops]);
        self.sites = Arc::new(sites);
        self.template = Some(template);
    }

    /// Whether it was last used for this template: its spare cells have the right types.
    pub(super) fn was_for(&self, template: &Arc<Template>) -> bool {
        self.template.as_ref().is_some_and(|own| Arc::ptr_eq(own, template))
    }

    pub(crate) fn template(&self) -> &Arc<Template> {
        self.template.as_ref().expect("bug: a tape is for a template")
    }

    /// Where it stands: the template, and how many of its ops and parameters are known.
    pub(super) fn place(&self) -> (&Template, usize, usize) {
        (self.template(), self.ops, self.bound.len())
    }

    /// Number of ops.
    pub(crate) fn ops(&self) -> usize {
        self.ops
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops == 0
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ops == self.template().ops()
    }

    /// Records a call, if it is the next op of the template. If not, nothing has changed.
    #[inline]
    pub(super) fn record(
        &mut self,
        call: &RecordCall<'_>,
        stream: &Arc<StreamShared>,
        results: &mut impl TakeResults,
    ) -> bool {
        let Some(template) = self.template.take() else { return false };
        let is_recorded = self.record_as(&template, call, stream, results);
        self.template = Some(template);
        is_recorded
    }

    #[inline]
    fn record_as(
        &mut self,
        template: &Template,
        call: &RecordCall<'_>,
        stream: &Arc<StreamShared>,
        results: &mut impl TakeResults,
    ) -> bool {
        let Some(node) = template.node_for(self.ops, call) else { return false };
        let bound = self.bound.len();
        for (&tensor, &place) in call.operands.iter().zip(node.operands()) {
            let is_meant = match place {
                Ref::Result(index) => self.made[index as usize].cell == address(tensor.cell()),
                Ref::Param(index) => match self.bound.get(index as usize) {
                    Some(bound) => Arc::ptr_eq(&bound.value.0, tensor.cell()),
                    None => self.bind(template, tensor, stream),
                },
            };
            if !is_meant {
                self.bound.truncate(bound);
                return false;
            }
        }
        if !is_same_site(&self.sites[self.ops], &call.site) {
            Arc::make_mut(&mut self.sites)[self.ops] = call.site.clone();
        }
        self.ops += 1;
        for ty in node.signature().results() {
            let spare = self.made.get_mut(self.results).and_then(|made| {
                made.released = None;
                made.own.take_if(|cell| Arc::strong_count(cell) == 1 && cell.renew())
            });
            let cell = spare.unwrap_or_else(|| self.make(ty));
            self.results += 1;
            results.put(Tensor::new(cell, stream.clone()));
        }
        true
    }

    /// A new cell for the next result.
    #[cold]
    fn make(&mut self, ty: &TensorType) -> Arc<ValueCell> {
        let cell = Arc::new(ValueCell::pending(ty.clone()));
        cell.set_mark(Mark::result(self.results));
        let made = Made::new(&cell);
        match self.made.get_mut(self.results) {
            Some(slot) => *slot = made,
            None => self.made.push(made),
        }
        cell
    }

    /// Makes a tensor the next parameter, if it can be that: it has the right type and is not on the tape already.
    fn bind(&mut self, template: &Template, tensor: &Tensor, stream: &Arc<StreamShared>) -> bool {
        let cell = tensor.cell();
        let (ty, is_lifted) = template.param(self.bound.len());
        if !Arc::ptr_eq(tensor.stream(), stream)
            || cell.ty() != ty
            || cell.as_scalar().is_some() != is_lifted
            || self.find(cell).is_some()
        {
            return false;
        }
        cell.set_mark(Mark::param(self.bound.len()));
        self.bound.push(Bound { value: ValueRef(cell.clone()), released: None });
        true
    }

    /// What a value is on the tape. A mark may be of another tape, so it is looked whether the value is there.
    fn find(&self, cell: &Arc<ValueCell>) -> Option<Ref> {
        let place = cell.mark().place()?;
        let found = match place {
            Ref::Param(index) => self.bound.get(index as usize).map(|bound| address(&bound.value.0)),
            Ref::Result(index) => self.made[..self.results].get(index as usize).map(|made| made.cell),
        };
        (found == Some(address(cell))).then_some(place)
    }

    /// Whether an op of the tape makes the value.
    pub(super) fn makes(&self, cell: &Arc<ValueCell>) -> bool {
        matches!(self.find(cell), Some(Ref::Result(_)))
    }

    /// The last handle on a value was dropped. Returns the value if it is not on the tape.
    #[inline]
    pub(super) fn release(&mut self, cell: Arc<ValueCell>) -> Option<Arc<ValueCell>> {
        let released = Some(self.ops as u32);
        match self.find(&cell) {
            Some(Ref::Result(index)) => {
                let made = &mut self.made[index as usize];
                (made.released, made.own) = (released, Some(cell));
            }
            Some(Ref::Param(index)) => self.bound[index as usize].released = released,
            None => return Some(cell),
        }
        None
    }

    /// Notes the release of a value that is not on the tape.
    pub(super) fn note_release(&mut self, cell: Arc<ValueCell>) {
        self.others.push((self.ops as u32, cell));
    }

    /// Gets a reference of each value that has a handle: from now on the tape does not depend on these, and nobody looks for them here.
    pub(super) fn close(&mut self) {
        for made in &mut self.made[..self.results] {
            if made.released.is_none() {
                let own = made.reference();
                own.clear_mark();
                made.own = Some(own);
            }
        }
        self.bound.iter().for_each(|bound| bound.value.0.clear_mark());
    }

    /// The ids of all results, and whether they live on. The tape has been closed.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (ValueId, bool)> + '_ {
        let made = self.made[..self.results].iter();
        made.filter_map(|made| Some((made.own.as_ref()?.id(), made.released.is_none())))
    }

    /// Takes out what a region consists of. What is left are cells that can be used again.
    pub(crate) fn take_region(&mut self) -> Recorded {
        let lifted = self.template().clone();
        let lifted = lifted.canon.lifted().iter();
        let inputs = self.bound.drain(..).zip(lifted);
        let inputs = inputs.map(|(bound, &lifted)| Input {
            value: bound.value,
            lifted,
            dies: bound.released.is_some(),
        });
        let inputs = inputs.collect();
        let mut live = Vec::new();
        for (index, made) in (0u32..).zip(&mut self.made[..self.results]) {
            if made.released.is_none() {
                live.extend(made.own.take().map(|cell| (index, ValuePromise::of(cell))));
            } else if made.own.as_ref().is_some_and(|cell| Arc::strong_count(cell) > 1) {
                // Nobody has a handle, but somebody waits, and is told that it was given up.
                made.own.take().map(ValuePromise::of);
            }
        }
        self.results = 0;
        self.others.clear();
        Recorded { inputs, live, sites: std::mem::take(&mut self.sites) }
    }

    /// Takes the tape apart into what was recorded, in order.
    pub(crate) fn take_steps(&mut self) -> Vec<Step> {
        let template = self.template().clone();
        let mut releases: Vec<(u32, ValueId)> = Vec::new();
        releases.extend(self.others.drain(..).map(|(when, cell)| (when, cell.id())));
        releases.extend(self.bound.iter().filter_map(|bound| Some((bound.released?, bound.value.0.id()))));
        let made = self.made[..self.results].iter();
        releases.extend(made.filter_map(|made| Some((made.released?, made.own.as_ref()?.id()))));
        // Stable: what was released between the same two ops.
        releases.sort_by_key(|&(when, _)| when);
        let mut releases = releases.into_iter().peekable();
        let mut steps = Vec::with_capacity(self.ops + releases.len());
        let cells: Vec<_> = self.made[..self.results].iter_mut().filter_map(|made| made.own.take()).collect();
        let mut results = 0;
        for (at, node) in template.canon.graph().nodes()[..self.ops].iter().enumerate() {
            while let Some((_, value)) = releases.next_if(|&(when, _)| when as usize <= at) {
                steps.push(Step::Release(value));
            }
            let operands = node.operands().iter().map(|place| match *place {
                Ref::Result(index) => Operand::Tensor(ValueRef(cells[index as usize].clone())),
                Ref::Param(index) => {
                    let value = self.bound[index as usize].value.clone();
                    match template.param(index as usize).1 {
                        true => Operand::Scalar(value),
                        false => Operand::Tensor(value),
                    }
                }
            });
            let operands: Operands<ValueRef> = operands.collect();
            let count = node.signature().results().len();
            let made = cells[results..results + count].iter().cloned().map(ValuePromise::of);
            let made: Results<ValuePromise> = made.collect();
            results += count;
            steps.push(Step::Op(TraceOp {
                signature: node.signature().clone(),
                operands,
                results: made,
                effect: Effect::Pure,
                mode: Mode::Fused,
                site: self.sites[at].clone(),
            }));
        }
        steps.extend(releases.map(|(_, value)| Step::Release(value)));
        (self.ops, self.results) = (0, 0);
        self.bound.clear();
        steps
    }
}

/// Where the handles on the results of a call go.
pub(crate) trait TakeResults {
    fn put(&mut self, tensor: Tensor);
}

impl TakeResults for Tensors {
    #[inline(always)]
    fn put(&mut self, tensor: Tensor) {
        self.push(tensor);
    }
}

/// For ops that have one result.
impl TakeResults for Option<Tensor> {
    #[inline(always)]
    fn put(&mut self, tensor: Tensor) {
        debug_assert!(self.is_none(), "bug: an op of one result has two");
        *self = Some(tensor);
    }
}

impl Drop for Tape {
    /// Whoever waits for a result is told that it was given up.
    fn drop(&mut self) {
        let made = self.made[..self.results].iter_mut();
        made.filter_map(|made| made.own.take()).for_each(|cell| drop(ValuePromise::of(cell)));
    }
}
