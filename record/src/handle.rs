//! The interface between the recorder and the tensors of a front end.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::value::{Outcome, ValueCell};

/// A counted handle on a value of a stream of type `S`. Dropping it notifies the stream.
pub trait Handle<S>: Clone {
    /// The outcome of the value.
    type Outcome: Outcome;

    /// The first handle on a new value, which is already counted.
    fn new(cell: Arc<ValueCell<Self::Outcome>>, stream: Arc<S>) -> Self;

    /// Another handle on a value that has at least one.
    fn another(cell: &Arc<ValueCell<Self::Outcome>>, stream: &Arc<S>) -> Self;

    /// The value.
    fn cell(&self) -> &Arc<ValueCell<Self::Outcome>>;

    /// The stream that the value belongs to.
    fn stream(&self) -> &Arc<S>;
}

/// A collection that receives the results of an op.
pub trait TakeResults<H> {
    /// Adds the next result.
    fn put(&mut self, handle: H);

    /// The results so far.
    fn taken(&self) -> &[H];
}

impl<H> TakeResults<H> for SmallVec<[H; 1]> {
    #[inline(always)]
    fn put(&mut self, handle: H) {
        self.push(handle);
    }

    fn taken(&self) -> &[H] {
        self
    }
}

/// For ops with one result.
impl<H> TakeResults<H> for Option<H> {
    #[inline(always)]
    fn put(&mut self, handle: H) {
        debug_assert!(self.is_none(), "bug: an op of one result has two");
        *self = Some(handle);
    }

    fn taken(&self) -> &[H] {
        self.as_slice()
    }
}
