//! A program while compiles, executions and transfers fail as planned. Every value is either right
//! or has a reason, every handle is notified once, and afterwards the engine works.
//!
//! Each input has its own engine, as in `api_program`: about 1.3 ms an execution.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuseline::{Bytes as Size, EngineConfig, Fault, FaultPoint, Mode, with_mode};
use fuseline_testgen::Entropy as _;

use super::api_program::program;
use super::script::{describe, run_failing, script, streams};

/// The message of planned faults, and of everything that fails because of them.
const WORDS: &str = "planned for this input";

/// The faults at the first points of each kind.
struct Plan {
    /// For compiles, executions, uploads, downloads and other points: a bit for each of the first
    /// points.
    fails: [u32; 5],
    kind: u32,
    seen: [AtomicUsize; 5],
}

impl Plan {
    fn at(&self, point: FaultPoint) -> Option<Fault> {
        let place = match point {
            FaultPoint::Compile { .. } => 0,
            FaultPoint::Execute { .. } => 1,
            FaultPoint::Upload { .. } => 2,
            FaultPoint::Download { .. } => 3,
            _ => 4,
        };
        let number = self.seen[place].fetch_add(1, Ordering::Relaxed);
        let fails = number < 32 && self.fails[place] >> number & 1 == 1;
        let fault = || match (self.kind + number as u32) % 4 {
            0 | 1 => Fault::new(WORDS),
            2 => Fault::out_of_memory(WORDS),
            _ if place == 0 => Fault::oversized(Size(1 << 30)),
            _ => Fault::out_of_memory(WORDS),
        };
        fails.then(fault)
    }
}

pub(super) fn run(data: &[u8]) {
    let (sampled, mut how) = program(data, 8);
    let bits = |how: &mut super::bytes::Bytes<'_>| how.draw(u32::MAX);
    let few = |how: &mut super::bytes::Bytes<'_>| match how.draw(3) {
        0 => 0,
        1 => 1 << how.draw(12),
        _ => bits(how),
    };
    let fails = [few(&mut how), few(&mut how), few(&mut how), few(&mut how), few(&mut how)];
    let plan = Arc::new(Plan { fails, kind: how.draw(4), seen: Default::default() });
    let mode = [Mode::Fused, Mode::Fused, Mode::Strict, Mode::Debug][how.draw(4) as usize];
    let faults = {
        let plan = plan.clone();
        move |point| plan.at(point)
    };
    let config = EngineConfig::new().inject_faults(faults);
    let engine = config.build_reference().expect("the reference engine needs threads only");
    let streams = streams(&engine);
    let steps = script(&sampled, &mut how);
    let fail = |error: &str| -> ! {
        panic!("{mode:?}, {fails:x?}: {error}\n{}", describe(&sampled, &steps));
    };
    for _ in 0..2 {
        let mut judge = |error: fuseline::Error| {
            let text = error.to_string();
            if text.contains(WORDS) { Ok(()) } else { Err(text) }
        };
        if let Err(error) = with_mode(mode, || run_failing(&sampled, &steps, &streams, &mut judge)) {
            fail(&error);
        }
    }
    // Each handle is notified once, whatever happens to it.
    let told: Vec<Arc<AtomicUsize>> = (0..4).map(|_| Arc::default()).collect();
    let recorded = || -> fuseline::Result<Vec<fuseline::Tensor>> {
        let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
        let y = x.neg()?;
        let z = y.mul(&x)?;
        Ok(vec![x, y.clone(), z, y])
    };
    let mut asked = 0;
    match with_mode(mode, recorded) {
        Ok(tensors) => {
            for (tensor, told) in tensors.iter().zip(&told) {
                let told = told.clone();
                tensor.on_ready(move |_| {
                    told.fetch_add(1, Ordering::SeqCst);
                });
            }
            asked = 1;
        }
        Err(error) if error.to_string().contains(WORDS) => {}
        Err(error) => fail(&error.to_string()),
    }
    if let Err(error) = engine.synchronize() {
        fail(&format!("after the program: {error}"));
    }
    let counters = engine.counters();
    if counters.panics != 0 {
        fail(&format!("{counters:?}"));
    }
    for told in &told {
        let told = told.load(Ordering::SeqCst);
        if told != asked {
            fail(&format!("a handle was told {told} times"));
        }
    }
    // The plan is over, and so are its effects.
    for seen in &plan.seen {
        seen.store(32, Ordering::Relaxed);
    }
    let again =
        || engine.tensor(&[1.0f32, 2.0], &[2])?.add(&engine.tensor(&[3.0f32, 4.0], &[2])?)?.to_vec::<f32>();
    match again() {
        Ok(sums) => assert_eq!(sums, [4.0, 6.0]),
        Err(error) => fail(&format!("afterwards: {error}")),
    }
}
