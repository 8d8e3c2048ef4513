//! What is known about one key.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::outputs::OutputSet;

/// Most variants of one entry. A loop needs one or two; more means that liveness flaps, and a union
/// serves better.
pub(crate) const MAX_VARIANTS: usize = 4;

/// Most variants of one entry that are made to return less than one that serves.
pub const MAX_NARROWED: u32 = 3;

/// Most attempts at one key, at a compile or at an execution, that may fail before it is given up.
const MAX_ATTEMPTS: u32 = 3;

/// Lookups answered with the failure before the second attempt; eight times as many before each
/// further one. Counted in lookups and not in time, so that what a program does is a function of
/// the program.
const FIRST_RETRY: u32 = 64;

/// One executable of a region.
#[derive(Debug)]
pub(crate) struct Variant<A> {
    pub(crate) outputs: OutputSet,
    pub(crate) artifact: Arc<A>,
    pub(crate) bytes: u64,
    /// Lookups served, for choosing what a new variant replaces.
    pub(crate) uses: u64,
}

/// A compile under way.
pub(crate) struct Pending {
    pub(crate) outputs: OutputSet,
    pub(crate) waiters: Vec<Box<dyn FnOnce() + Send>>,
}

/// Why there is no executable now.
#[derive(Debug)]
pub(crate) struct Failure<E> {
    pub(crate) error: Arc<E>,
    lookups_left: u32,
}

/// The state of an entry; guarded by the entry's lock.
pub(crate) struct State<A, E> {
    pub(crate) variants: SmallVec<[Variant<A>; 1]>,
    pub(crate) pending: SmallVec<[Pending; 1]>,
    pub(crate) failure: Option<Failure<E>>,
    /// Variants claimed to return less than others do.
    pub(crate) narrowed: u32,
    /// Attempts that failed since an executable was last said to run. That one was compiled says
    /// little: it may not fit when it runs.
    attempts: u32,
    /// The entry has left the table; whoever still holds it looks again.
    pub(crate) evicted: bool,
}

impl<A, E> State<A, E> {
    pub(crate) fn new() -> State<A, E> {
        State {
            variants: SmallVec::new(),
            pending: SmallVec::new(),
            failure: None,
            narrowed: 0,
            attempts: 0,
            evicted: false,
        }
    }

    /// The variant that serves `outputs` with the least surplus.
    pub(crate) fn serving(&mut self, outputs: &OutputSet) -> Option<&mut Variant<A>> {
        self.variants
            .iter_mut()
            .filter(|variant| variant.outputs.includes(outputs))
            .min_by_key(|variant| variant.outputs.len())
    }

    /// Whether a failure answers this lookup; counts it.
    pub(crate) fn gave_up(&mut self) -> Option<Arc<E>> {
        let failure = self.failure.as_mut()?;
        if self.attempts >= MAX_ATTEMPTS {
            return Some(failure.error.clone());
        }
        failure.lookups_left = failure.lookups_left.checked_sub(1)?;
        Some(failure.error.clone())
    }

    /// The outputs that a new variant for `outputs` should have: just those, or the union of all
    /// that was ever asked for once the number of variants has reached its cap.
    pub(crate) fn outputs_to_compile(&self, outputs: &OutputSet) -> OutputSet {
        let mut wanted = outputs.clone();
        if self.variants.len() + self.pending.len() >= MAX_VARIANTS {
            self.variants.iter().for_each(|variant| wanted.extend(&variant.outputs));
            self.pending.iter().for_each(|flight| wanted.extend(&flight.outputs));
        }
        wanted
    }

    /// Whether a variant for just `outputs` may be made besides those there are; counts it.
    pub(crate) fn may_narrow(&mut self, outputs: &OutputSet) -> bool {
        let is_there = self.variants.iter().any(|variant| variant.outputs == *outputs)
            || self.pending.iter().any(|flight| flight.outputs == *outputs);
        let may = !is_there && self.narrowed < MAX_NARROWED;
        self.narrowed += u32::from(may);
        may
    }

    /// Adds a variant; returns the one it replaces, if any, to be dropped when nothing is locked.
    pub(crate) fn add(&mut self, variant: Variant<A>) -> Option<Variant<A>> {
        self.failure = None;
        if self.variants.len() < MAX_VARIANTS {
            self.variants.push(variant);
            return None;
        }
        // One whose place another can take, so that nobody waits for it again.
        let is_dispensable = |place: &usize| {
            let outputs = &self.variants[*place].outputs;
            let others = self.variants.iter().enumerate().filter(|(other, _)| other != place);
            let mut others = others.map(|(_, other)| &other.outputs).chain([&variant.outputs]);
            others.any(|other| other.includes(outputs))
        };
        let uses = |place: &usize| (!is_dispensable(place), self.variants[*place].uses);
        let least = (0..self.variants.len()).min_by_key(uses)?;
        Some(std::mem::replace(&mut self.variants[least], variant))
    }

    /// Every lookup that no variant serves is answered with `error` from now on.
    pub(crate) fn refuse(&mut self, error: Arc<E>) {
        self.attempts = MAX_ATTEMPTS;
        self.failure = Some(Failure { error, lookups_left: 0 });
    }

    pub(crate) fn fail(&mut self, error: Arc<E>) {
        self.attempts = (self.attempts + 1).min(MAX_ATTEMPTS);
        let lookups_left = FIRST_RETRY * 8u32.pow(self.attempts - 1);
        self.failure = Some(Failure { error, lookups_left });
    }

    /// Whether attempts have failed, and of what is there now nothing is known.
    pub(crate) fn is_unproven(&self) -> bool {
        self.attempts > 0 && self.failure.is_none()
    }

    /// An executable runs: what failed before counts for nothing.
    pub(crate) fn confirm(&mut self) {
        if self.failure.is_none() {
            self.attempts = 0;
        }
    }

    /// Whether nothing would be forgotten with it.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.variants.is_empty() && self.failure.is_none() && self.attempts == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Past the cap a variant has what was ever asked for, also by compiles that are under way.
    #[test]
    fn a_union_has_what_is_being_compiled() {
        let set = |outputs: &[u32]| outputs.iter().copied().collect::<OutputSet>();
        let mut state = State::<(), ()>::new();
        let variant = |outputs| Variant { outputs, artifact: Arc::new(()), bytes: 0, uses: 0 };
        state.add(variant(set(&[0])));
        state.add(variant(set(&[1])));
        assert_eq!(state.outputs_to_compile(&set(&[4])), set(&[4]));
        for output in [2, 3] {
            state.pending.push(Pending { outputs: set(&[output]), waiters: Vec::new() });
        }
        assert_eq!(state.outputs_to_compile(&set(&[4])), set(&[0, 1, 2, 3, 4]));
    }
}
