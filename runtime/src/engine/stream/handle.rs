//! Counted handles on values.

use std::fmt;
use std::sync::Arc;

use fuseline_fusion::{TensorType, ValueId};
use fuseline_record::handle::Handle;

use super::StreamShared;
use crate::engine::value::{Outcome, ValueCell};

/// A handle on a value, with the stream that the value belongs to.
///
/// Cloning a handle is cheap and shares the value. Dropping the last handle notifies the stream.
pub struct TensorHandle {
    /// `None` only while the handle is being dropped.
    cell: Option<Arc<ValueCell>>,
    stream: Arc<StreamShared>,
}

impl Handle<StreamShared> for TensorHandle {
    type Outcome = Outcome;

    #[inline(always)]
    fn new(cell: Arc<ValueCell>, stream: Arc<StreamShared>) -> TensorHandle {
        TensorHandle { cell: Some(cell), stream }
    }

    #[inline]
    fn another(cell: &Arc<ValueCell>, stream: &Arc<StreamShared>) -> TensorHandle {
        TensorHandle::another(cell, stream)
    }

    #[inline(always)]
    fn cell(&self) -> &Arc<ValueCell> {
        self.cell()
    }

    #[inline(always)]
    fn stream(&self) -> &Arc<StreamShared> {
        self.stream()
    }
}

impl TensorHandle {
    /// The first handle on a new cell, which is already counted.
    #[inline]
    pub fn new(cell: Arc<ValueCell>, stream: Arc<StreamShared>) -> TensorHandle {
        TensorHandle { cell: Some(cell), stream }
    }

    /// Another handle on a value that has at least one.
    #[inline]
    pub fn another(cell: &Arc<ValueCell>, stream: &Arc<StreamShared>) -> TensorHandle {
        cell.handles().retain();
        TensorHandle::new(cell.clone(), stream.clone())
    }

    /// The value.
    #[inline]
    pub fn cell(&self) -> &Arc<ValueCell> {
        self.cell.as_ref().expect("bug: a handle is used after it was dropped")
    }

    /// The value, still counting this handle. [`StreamShared::drop_handle`] must be called with it.
    #[inline]
    pub(crate) fn into_cell(mut self) -> Arc<ValueCell> {
        self.cell.take().expect("bug: a handle is used after it was dropped")
    }

    /// Element type and shape of the value.
    #[inline]
    pub(crate) fn ty(&self) -> &TensorType {
        self.cell().ty()
    }

    /// The id of the value.
    #[inline]
    pub fn id(&self) -> ValueId {
        self.cell().id()
    }

    /// The stream that the value belongs to.
    #[inline]
    pub fn stream(&self) -> &Arc<StreamShared> {
        &self.stream
    }
}

impl Clone for TensorHandle {
    #[inline]
    fn clone(&self) -> TensorHandle {
        TensorHandle::another(self.cell(), &self.stream)
    }
}

impl Drop for TensorHandle {
    #[inline]
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.stream.drop_handle(cell);
        }
    }
}

impl fmt::Debug for TensorHandle {
    /// Prints id and type; does not wait for the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorHandle({:?} on {})", self.cell(), self.stream.id())
    }
}
