//! One program for several sizes of a dimension.
//!
//! Input: choices and sizes. Output: a program for each size. The programs have the same ops on the
//! same operands, as a framework records them for batches or sequences of different lengths. An
//! executor may pad one of them to the shapes of another.

use fuseline_fusion::program::ProgramOp;

use super::{Entropy, ProgramOptions, ProgramSampler, Sampled, Seeded};

/// Programs of about `ops` ops, one for each size. An op is in all programs or in none. It is in
/// none if its samples differ in more than sizes and attributes, or if a size does not permit it.
#[must_use]
pub fn sample_sizes(
    options: ProgramOptions,
    entropy: &mut dyn Entropy,
    ops: usize,
    sizes: &[u64],
) -> Vec<Sampled> {
    let of_size = |&size: &u64| ProgramSampler::new(ProgramOptions { varying_size: Some(size), ..options });
    let mut samplers: Vec<ProgramSampler> = sizes.iter().map(of_size).collect();
    for _ in 0..4 * ops {
        if samplers.iter().all(|sampler| sampler.ops().len() >= ops) {
            break;
        }
        // All sizes get the same choices. The next op does not depend on how many were used.
        let seed = u64::from(entropy.draw(u32::MAX));
        let mut grown = samplers.clone();
        let are_grown = grown.iter_mut().all(|sampler| sampler.step(&mut Seeded::new(seed)).is_some());
        if are_grown && grown.windows(2).all(|pair| are_alike(&pair[0], &pair[1])) {
            samplers = grown;
        }
    }
    samplers.into_iter().map(ProgramSampler::finish).collect()
}

/// Whether the last ops of two programs are the same up to sizes and attributes.
fn are_alike(one: &ProgramSampler, other: &ProgramSampler) -> bool {
    let (Some(one), Some(other)) = (one.ops().last(), other.ops().last()) else { return false };
    let kinds = |op: &ProgramOp| -> Vec<_> {
        let types = op.signature.operands().iter().chain(op.signature.results());
        types.map(|ty| (ty.dtype(), ty.rank())).collect()
    };
    one.signature.op() == other.signature.op()
        && one.operands == other.operands
        && one.results == other.results
        && kinds(one) == kinds(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Aim;

    #[test]
    fn programs_of_all_sizes_have_the_same_ops() {
        let mut entropy = Seeded::new(1);
        let mut varying = 0;
        for _ in 0..50 {
            let all = sample_sizes(ProgramOptions::new(Aim::Portable), &mut entropy, 8, &[6, 7, 9]);
            let [first, rest @ ..] = &all[..] else { panic!("three sizes") };
            for other in rest {
                assert_eq!(first.program.ops.len(), other.program.ops.len());
                for (one, other) in first.program.ops.iter().zip(&other.program.ops) {
                    assert_eq!((one.signature.op(), &one.operands), (other.signature.op(), &other.operands));
                    varying += usize::from(one.signature.results() != other.signature.results());
                }
            }
        }
        assert!(varying > 200, "{varying} of 800 ops have another size");
    }
}
