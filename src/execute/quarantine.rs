//! Regions that crashed an earlier process, run without asking the plugin to compile them.
//!
//! What crashed is in quarantine (`stored.rs`): a region by itself, whatever it returns, so that another set of results, another donation or constants
//! are no reason to try it again. It still has a result:
//!
//! ```text
//! several ops ─► op by op; each by an executable that is there, or interpreted if that is quick, or compiled by itself
//! one op ──────► interpreted, however long that takes; an error if the interpreter cannot run it
//! ```
//!
//! An op that is part of what crashed may be what crashed. So it is compiled only where the interpreter would take longer than the compile; if it
//! crashes then, it is in quarantine itself from the next process on.
//!
//! Input: a job whose compile was refused for that, or a part of one. Output: its results, by the interpreter, on the thread that interprets cold
//! regions, with operands and results copied where the device has memory of its own.
//!
//! Invariants:
//! - J5: nothing is compiled, loaded or executed whose region is in quarantine.
//! - J6: only what the interpreter cannot run either fails, with both reasons.
//!
//! Numbers are the interpreter's: within the tolerance of the op table, but with `Numerics::Exact` not the bits that the device would give. The
//! event says so.

use std::sync::Arc;

use fuseline_cache::Lookup;
use fuseline_fusion::Literal;
use fuseline_interp as interp;

use super::EngineRegion;
use super::cold::{Interpreted, Param, Slot, compile_time, operand};
use super::job::{Job, State, Step, cache_key};
use crate::device::{Cause, DeviceError};
use crate::event::Event;
use crate::stream::StreamShared;
use crate::value::RegionInfo;

/// Whether a job is kept from the plugin's compiler.
#[derive(Clone, Debug, Default)]
pub(super) enum Shelter {
    #[default]
    None,
    /// It is one op of a region that is in quarantine.
    Part(Arc<DeviceError>),
    /// It is in quarantine.
    Itself(Arc<DeviceError>),
}

impl Job {
    /// How an op of a region in quarantine is run without a compile, if it is.
    pub(super) fn sheltered(&mut self, stream: &Arc<StreamShared>) -> Option<State> {
        let Shelter::Part(..) = self.shelter else { return None };
        let graph = self.info.canon.graph();
        if interp::estimate(graph).is_none_or(|once| once > compile_time(graph)) {
            self.shelter = Shelter::None;
            return None;
        }
        let key = cache_key(&self.info);
        match stream.engine().cache().lookup(&key, self.info.canon.bytes(), &self.needed) {
            // It was compiled by itself, and nothing happened.
            Lookup::Hit(hit) => {
                self.shelter = Shelter::None;
                Some(self.hit(key, hit, stream))
            }
            Lookup::Failed(error) if error.cause == Cause::Quarantined => Some(State::Known(error)),
            // A claim is given back.
            _ => Some(State::Sheltered),
        }
    }

    /// What becomes of a region whose compile was refused because it is in quarantine.
    pub(super) fn in_quarantine(
        mut self: Box<Self>,
        error: Arc<DeviceError>,
        stream: &StreamShared,
    ) -> Result<Box<Job>, Step> {
        if self.is_single() {
            self.shelter = Shelter::Itself(error);
            return Ok(self);
        }
        let message = format!("of region {}, {}", self.info.reference.key.short(), error.message);
        let part = DeviceError { message, ..DeviceError::clone(&error) };
        Err(Step::Sheltered(self.take_apart(error.message.clone(), stream), Shelter::Part(Arc::new(part))))
    }

    /// Has the op interpreted; its inputs are there.
    pub(super) fn take_shelter(&self, stream: &Arc<StreamShared>) -> Arc<Slot> {
        let engine = stream.engine();
        let region = self.info.reference;
        engine.counters().interpreted.add(1);
        engine.emit(|| {
            let why = match &self.shelter {
                Shelter::None => String::new(),
                Shelter::Itself(error) | Shelter::Part(error) => error.message.clone(),
            };
            Event::Quarantined { region, why }
        });
        self.interpret_by(interpreted, engine.shelter_pool(), stream)
    }

    /// What becomes of a job in shelter that the interpreter failed with; the job if it is compiled now.
    pub(super) fn without_shelter(
        mut self: Box<Self>,
        error: DeviceError,
        stream: &StreamShared,
    ) -> Result<Step, Box<Job>> {
        match std::mem::take(&mut self.shelter) {
            Shelter::Itself(why) => {
                let message = format!(
                    "{}, and the interpreter, which runs it instead, failed: {}",
                    why.message, error.message
                );
                Ok(self.fail_or_pass_on(&DeviceError { message, ..error }, stream))
            }
            Shelter::None | Shelter::Part(..) => {
                let region = self.info.reference;
                stream.engine().emit(|| Event::NotInterpreted { region, why: error.message });
                Err(self)
            }
        }
    }

    /// The ops of the region, which fell back to them.
    fn take_apart(self, why: String, stream: &StreamShared) -> Vec<EngineRegion> {
        let engine = stream.engine();
        engine.counters().fallbacks.add(1);
        let region = self.info.reference;
        engine.emit(|| Event::Fallback { region, why });
        self.into_region().split()
    }
}

/// The results of a region on each replica, computed on this thread from data that may be on its way.
fn interpreted(info: &RegionInfo, params: &[Param], outputs: &[u32], stream: &StreamShared) -> Interpreted {
    let engine = stream.engine();
    let device = engine.device();
    let data = |param: &Param, replica: usize| {
        operand(param, |buffer, ty| engine.with_room(ty.bytes(), || device.download(buffer, replica)))
    };
    let operands = |replica| params.iter().map(|param| data(param, replica)).collect();
    let operands = (0..device.replicas()).map(operands).collect::<Result<Vec<Vec<_>>, DeviceError>>()?;
    let results = device.interpret_each(info.canon.graph(), &operands, outputs)?;
    let upload = |each: &crate::device::Each<Arc<Literal>>| {
        let ty = each[0].ty();
        engine.with_room(ty.bytes(), || device.upload_each(ty, &mut each.iter().map(|data| data.bytes())))
    };
    results.iter().map(upload).collect()
}
