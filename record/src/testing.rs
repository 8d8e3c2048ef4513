//! An outcome and a handle for tests. Their values have no device and no stream.

#[cfg(not(any(loom, shuttle)))]
use std::sync::Arc;

use fuseline_fusion::Scalar;
#[cfg(not(any(loom, shuttle)))]
use fuseline_fusion::TensorType;
use fuseline_sync::once::Abandoned;

#[cfg(not(any(loom, shuttle)))]
use crate::handle::Handle;
use crate::value::{self, Outcome};

/// The outcome of a value in tests.
#[derive(Debug)]
pub(crate) enum TestOutcome {
    Scalar(Scalar),
    Abandoned,
}

/// A value in tests.
pub(crate) type ValueCell = value::ValueCell<TestOutcome>;

impl Abandoned for TestOutcome {
    fn abandoned() -> TestOutcome {
        TestOutcome::Abandoned
    }
}

impl Outcome for TestOutcome {
    type BodyPosition = ();

    fn of_scalar(scalar: Scalar) -> TestOutcome {
        TestOutcome::Scalar(scalar)
    }

    fn as_scalar(&self) -> Option<Scalar> {
        match self {
            TestOutcome::Scalar(scalar) => Some(*scalar),
            TestOutcome::Abandoned => None,
        }
    }

    fn body_position(&self) -> Option<&()> {
        None
    }
}

#[cfg(not(any(loom, shuttle)))]
/// A handle whose drop notifies nothing.
#[derive(Clone)]
pub(crate) struct TestHandle(Arc<ValueCell>, Arc<()>);

#[cfg(not(any(loom, shuttle)))]
impl TestHandle {
    /// A handle on a new value.
    pub(crate) fn pending(ty: TensorType) -> TestHandle {
        TestHandle(Arc::new(ValueCell::pending(ty)), Arc::new(()))
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Handle<()> for TestHandle {
    type Outcome = TestOutcome;

    fn new(cell: Arc<ValueCell>, stream: Arc<()>) -> TestHandle {
        TestHandle(cell, stream)
    }

    fn another(cell: &Arc<ValueCell>, stream: &Arc<()>) -> TestHandle {
        TestHandle(cell.clone(), stream.clone())
    }

    fn cell(&self) -> &Arc<ValueCell> {
        &self.0
    }

    fn stream(&self) -> &Arc<()> {
        &self.1
    }
}
