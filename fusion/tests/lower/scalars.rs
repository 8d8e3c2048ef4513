//! Scalars that are packed or compiled in do not change results.

use fuseline_fusion::Scalar;
use fuseline_fusion::lower::passes::{plain, taken_apart};
use fuseline_fusion::lower::{Aliases, Numerics, ScalarPack, Target, lower_for};
use fuseline_testgen::{Aim, ProgramOptions, sampled_region};

use super::{run, run_packed};

#[test]
fn scalars_apart_change_no_result() {
    let mut several = 0;
    for seed in 0..200 {
        let (region, operands) = sampled_region(ProgramOptions::new(Aim::Portable), seed, 12);
        let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
        let packed = ScalarPack::of(Target::CPU, &region, Numerics::Fast);
        let apart = taken_apart(packed.clone());
        assert_eq!(packed.arguments().count(), usize::from(!packed.is_empty()));
        assert_eq!(apart.arguments().count(), apart.slots().len());
        several += usize::from(apart.slots().len() > 1);
        let found = [packed, apart].map(|pack| {
            let function = plain(&region, &outputs, &pack, &[]);
            run_packed(&region, &pack, &function, std::slice::from_ref(&operands))
        });
        assert_eq!(found[0], found[1], "seed {seed}: {:?}", region.graph());
    }
    assert!(several > 20, "{several}");
}

/// A function with constants has the results of the one with arguments.
#[test]
fn fixed_scalars_change_no_result() {
    let mut fixed_some = 0;
    for seed in 0..200 {
        let (region, operands) = sampled_region(ProgramOptions::new(Aim::Portable), seed, 12);
        let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
        let pack = ScalarPack::of(Target::Any, &region, Numerics::Fast);
        let scalars = (0u32..).zip(&operands).zip(region.lifted()).filter(|(_, lifted)| **lifted);
        let scalars = scalars.map(|((param, data), _)| (param, Scalar::of(data).unwrap()));
        // Every other one, then all.
        let all: Vec<(u32, Scalar)> = scalars.collect();
        let some: Vec<(u32, Scalar)> = all.iter().copied().step_by(2).collect();
        fixed_some += usize::from(!some.is_empty());
        let found = [&[], some.as_slice(), &all].map(|fixed| {
            let function = plain(&region, &outputs, &pack, fixed);
            run(&region, Numerics::Fast, &function, std::slice::from_ref(&operands))
        });
        assert!(found[0] == found[1] && found[0] == found[2], "seed {seed}: {:?}", region.graph());
        lower_for(Target::CPU, &region, &outputs, &Aliases::none(), Numerics::Fast, &some).verify().unwrap();
    }
    assert!(fixed_some > 20, "{fixed_some}");
}
