//! The custom ops of an engine.

use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::{CustomOp, Site};
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Mutex, Rank};

use crate::error::{Error, Result};

/// The custom ops of an engine, by name.
pub struct CustomOps(Mutex<HashMap<String, Arc<CustomOp>>>);

impl CustomOps {
    pub(crate) fn new() -> CustomOps {
        CustomOps(Mutex::new(Rank::CustomOps, HashMap::new()))
    }

    pub fn add(&self, op: CustomOp) -> Result<Arc<CustomOp>> {
        Error::unless_forked(&Site::Unknown)?;
        let mut ops = self.0.lock();
        match ops.get(op.name()) {
            Some(known) if known.fingerprint() == op.fingerprint() => Ok(known.clone()),
            Some(known) => {
                let message = format!(
                    "register_op: the name {} is taken by another function, {known:?}, not {op:?}; choose another name",
                    op.name()
                );
                Err(Error::misuse(message, Site::Unknown))
            }
            None => {
                let op = Arc::new(op);
                ops.insert(op.name().to_owned(), op.clone());
                Ok(op)
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<Arc<CustomOp>> {
        if is_forked() { None } else { self.0.lock().get(name).cloned() }
    }
}

impl std::fmt::Debug for CustomOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.lock().values()).finish()
    }
}
