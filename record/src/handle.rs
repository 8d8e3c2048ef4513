//! What the recorder needs to know of a front end's tensors.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::value::{Outcome, ValueCell};

/// A counted handle on a value of a stream of type `S`. Its drop tells the stream.
pub trait Handle<S>: Clone {
    /// What becomes of the value.
    type Outcome: Outcome;
    /// The handle that comes with a new value.
    fn new(cell: Arc<ValueCell<Self::Outcome>>, stream: Arc<S>) -> Self;

    /// Another handle on a value that has one.
    fn another(cell: &Arc<ValueCell<Self::Outcome>>, stream: &Arc<S>) -> Self;

    /// The value.
    fn cell(&self) -> &Arc<ValueCell<Self::Outcome>>;

    /// The stream that the value belongs to.
    fn stream(&self) -> &Arc<S>;
}

/// Takes the results of an op.
pub trait TakeResults<H> {
    /// Takes the next one.
    fn put(&mut self, handle: H);

    /// What has been put there.
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

/// For ops that have one result.
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
