//! What an executable of a region is compiled for.

use fuseline_cache::OutputSet;
use fuseline_fusion::Scalar;
use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::Aliases;
use smallvec::SmallVec;

/// Lifted scalars that are compiled in, by parameter, ascending.
pub(crate) type SpecializedScalars = SmallVec<[(u32, Scalar); 2]>;

/// How much a compiler optimizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Without LLVM's optimizations.
    Baseline,
    /// All of the compiler's optimizations.
    #[default]
    Optimized,
}

/// Everything that an executable of a region depends on, except for the region and the environment.
#[derive(Clone, Debug, Default)]
pub struct CompileSpec {
    /// The results to return.
    pub outputs: OutputSet,
    /// Parameters that may be donated, ascending.
    pub(crate) donated: Vec<u32>,
    /// Lifted scalars that are compiled in as constants.
    pub constants: SpecializedScalars,
    /// How much the compiler optimizes.
    pub tier: Tier,
}

impl CompileSpec {
    /// The same in another tier.
    pub(crate) fn in_tier(&self, tier: Tier) -> CompileSpec {
        CompileSpec { tier, ..self.clone() }
    }

    /// The results in order, and the donated parameters that each may alias.
    pub fn aliases(&self, region: &CanonRegion) -> (Vec<u32>, Aliases) {
        let outputs: Vec<u32> = self.outputs.iter().collect();
        let aliases = Aliases::pair(region, &outputs, &self.donated);
        (outputs, aliases)
    }
}
