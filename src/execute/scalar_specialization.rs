//! Launches executables with steady scalars as constants, as
//! [`ScalarProfile`](crate::device::ScalarProfile) decides.

use std::sync::Arc;

use super::compile::{Compile, MemoryFallback};
use super::job::Job;
use crate::device::{Executable, ExecutableOptions, SpecializationChoice, SpecializedScalars};
use crate::stream::StreamShared;

impl Job {
    /// Returns the executable to launch: a specialized one, or `general`.
    pub(super) fn specialised(
        &self,
        general: &Arc<Executable>,
        stream: &Arc<StreamShared>,
    ) -> Arc<Executable> {
        let Some(scalar_profile) = general.scalar_profile() else { return general.clone() };
        if !stream.engine().config().specialises_scalars() {
            return general.clone();
        }
        let scalar = |param: u32| self.inputs.get(param as usize)?.value.cell().as_scalar();
        match scalar_profile.choose(scalar) {
            SpecializationChoice::General => general.clone(),
            SpecializationChoice::Special(special) => {
                stream.engine().counters().specialised.add(1);
                special
            }
            SpecializationChoice::Compile(fixed) => {
                self.compile_fixed(general.clone(), fixed, stream);
                general.clone()
            }
        }
    }

    fn compile_fixed(&self, general: Arc<Executable>, fixed: SpecializedScalars, stream: &Arc<StreamShared>) {
        let compile = Compile {
            outputs: general.outputs().iter().copied().collect(),
            dying: general.reusable().iter().map(|&(_, param)| param).collect(),
            how: ExecutableOptions { fixed, quick: false },
            otherwise: MemoryFallback::Executable(general.memory()),
        };
        compile.start_beside(&self.info, stream, move |made, _| {
            let Some(scalar_profile) = general.scalar_profile() else { return };
            let (special, _tally) = made.ok().unzip();
            scalar_profile.compiled(special.map(Arc::new));
        });
    }
}
