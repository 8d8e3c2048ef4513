//! Copies values of several replicas to the host.

use std::sync::Arc;

use super::EngineShared;
use super::value::{Outcome, ValueCell};
use crate::device::{Buffer, DeviceError};

/// The data of each replica.
pub(crate) fn copy_replicas(
    engine: &EngineShared,
    buffer: &Buffer,
    replicas: usize,
) -> Result<Vec<Vec<u8>>, DeviceError> {
    let copy = |replica| engine.with_room(buffer.ty().bytes(), || engine.device().download(buffer, replica));
    (0..replicas).map(copy).collect()
}

/// The data of a launched value on each replica. Waits for it. `None` if there is no data, or not
/// in time.
pub(crate) fn copied(value: &Arc<ValueCell>, engine: &Arc<EngineShared>) -> Option<Vec<Vec<u8>>> {
    let replicas = engine.device().replicas();
    let copy = move |engine: &EngineShared, value: &ValueCell| match value.outcome().get() {
        Some(Outcome::Data { buffer, .. }) => copy_replicas(engine, buffer, replicas).ok(),
        _ => None,
    };
    match engine.deadline() {
        None => copy(engine, value),
        Some(deadline) => {
            let (owner, value) = (engine.clone(), value.clone());
            engine
                .threads()
                .run_with_deadline(deadline, move |hand_over| hand_over(copy(&owner, &value)))
                .flatten()
        }
    }
}
