//! The state of one key.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::outputs::OutputSet;

/// Maximum number of variants of one entry. A loop needs one or two. More mean that the set of live
/// results keeps changing, and the union of all sets is better.
pub(crate) const MAX_VARIANTS: usize = 4;

/// Maximum number of variants of one entry that are compiled to return less than an existing one.
pub const MAX_NARROWED: u32 = 3;

/// Maximum number of failed attempts at one key, at compiling or at executing, before it is given
/// up.
const MAX_ATTEMPTS: u32 = 3;

/// Lookups that return the failure before the second attempt; eight times as many before each
/// further one. Lookups are counted instead of time, so that the behaviour of a program is a
/// function of the program.
const FIRST_RETRY: u32 = 64;

/// One executable of a region.
#[derive(Debug)]
pub(crate) struct Variant<A> {
    pub(crate) outputs: OutputSet,
    pub(crate) artifact: Arc<A>,
    pub(crate) bytes: u64,
    /// Lookups served, to choose which variant a new one replaces.
    pub(crate) uses: u64,
}

/// A compile in progress.
pub(crate) struct Pending {
    pub(crate) outputs: OutputSet,
    pub(crate) waiters: Vec<Box<dyn FnOnce() + Send>>,
}

/// Why there is currently no executable.
#[derive(Debug)]
pub(crate) struct Failure<E> {
    pub(crate) error: Arc<E>,
    lookups_left: u32,
}

/// The state of an entry; guarded by the entry's lock.
pub(crate) struct EntryState<A, E> {
    pub(crate) variants: SmallVec<[Variant<A>; 1]>,
    pub(crate) pending: SmallVec<[Pending; 1]>,
    pub(crate) failure: Option<Failure<E>>,
    /// Number of claims for variants that return less than an existing one.
    pub(crate) narrowed: u32,
    /// Failed attempts since an executable was last confirmed to run. A compile alone does not
    /// confirm, because the executable may not fit in memory.
    attempts: u32,
    /// The entry has left the table; its holders look up again.
    pub(crate) evicted: bool,
}

impl<A, E> EntryState<A, E> {
    pub(crate) fn new() -> EntryState<A, E> {
        EntryState {
            variants: SmallVec::new(),
            pending: SmallVec::new(),
            failure: None,
            narrowed: 0,
            attempts: 0,
            evicted: false,
        }
    }

    /// The variant that serves `outputs` with the fewest additional results.
    pub(crate) fn serving(&mut self, outputs: &OutputSet) -> Option<&mut Variant<A>> {
        self.variants
            .iter_mut()
            .filter(|variant| variant.outputs.includes(outputs))
            .min_by_key(|variant| variant.outputs.len())
    }

    /// The failure that answers this lookup, if any; counts the lookup.
    pub(crate) fn gave_up(&mut self) -> Option<Arc<E>> {
        let failure = self.failure.as_mut()?;
        if self.attempts >= MAX_ATTEMPTS {
            return Some(failure.error.clone());
        }
        failure.lookups_left = failure.lookups_left.checked_sub(1)?;
        Some(failure.error.clone())
    }

    /// The outputs to compile a new variant for: `outputs`, or the union with all existing and
    /// pending ones once the number of variants has reached its maximum.
    pub(crate) fn outputs_to_compile(&self, outputs: &OutputSet) -> OutputSet {
        let mut wanted = outputs.clone();
        if self.variants.len() + self.pending.len() >= MAX_VARIANTS {
            self.variants.iter().for_each(|variant| wanted.extend(&variant.outputs));
            self.pending.iter().for_each(|flight| wanted.extend(&flight.outputs));
        }
        wanted
    }

    /// Whether a variant for exactly `outputs` may be added; counts it.
    pub(crate) fn may_narrow(&mut self, outputs: &OutputSet) -> bool {
        let is_there = self.variants.iter().any(|variant| variant.outputs == *outputs)
            || self.pending.iter().any(|flight| flight.outputs == *outputs);
        let may = !is_there && self.narrowed < MAX_NARROWED;
        self.narrowed += u32::from(may);
        may
    }

    /// Adds a variant; returns the one it replaces, if any, which the caller drops without a lock.
    pub(crate) fn add(&mut self, variant: Variant<A>) -> Option<Variant<A>> {
        self.failure = None;
        if self.variants.len() < MAX_VARIANTS {
            self.variants.push(variant);
            return None;
        }
        // A variant that another one covers can go without a new compile.
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

    /// Makes all lookups that no variant serves return `error` from now on.
    pub(crate) fn refuse(&mut self, error: Arc<E>) {
        self.attempts = MAX_ATTEMPTS;
        self.failure = Some(Failure { error, lookups_left: 0 });
    }

    pub(crate) fn fail(&mut self, error: Arc<E>) {
        self.attempts = (self.attempts + 1).min(MAX_ATTEMPTS);
        let lookups_left = FIRST_RETRY * 8u32.pow(self.attempts - 1);
        self.failure = Some(Failure { error, lookups_left });
    }

    /// Whether attempts have failed and the current executable is not confirmed.
    pub(crate) fn is_unproven(&self) -> bool {
        self.attempts > 0 && self.failure.is_none()
    }

    /// An executable runs: resets the failed attempts.
    pub(crate) fn confirm(&mut self) {
        if self.failure.is_none() {
            self.attempts = 0;
        }
    }

    /// Whether dropping the entry would lose no information.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.variants.is_empty() && self.failure.is_none() && self.attempts == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the maximum, a variant has all requested outputs, including those of pending compiles.
    #[test]
    fn a_union_has_what_is_being_compiled() {
        let set = |outputs: &[u32]| outputs.iter().copied().collect::<OutputSet>();
        let mut state = EntryState::<(), ()>::new();
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
