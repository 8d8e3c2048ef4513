//! Adam steps over many small parameters, with gradients that cost next to nothing, to measure the
//! optimizer. Each parameter is pulled to two targets in turn, as by two batches that disagree, so
//! no gradient vanishes.

use fuseline::nn::{self, Adam, AdamState};
use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

/// Sides of the square parameters, used in turn.
const SIDES: [usize; 4] = [32, 24, 16, 8];

struct Training {
    states: Vec<AdamState>,
    /// Two for each parameter.
    targets: Vec<[Tensor; 2]>,
    step: u32,
    sum: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (mut states, mut targets) = (Vec::new(), Vec::new());
    for (place, &side) in (0..params.int("parameters")).zip(SIDES.iter().cycle()) {
        let square =
            |seed, low, high| engine.tensor(&data::uniform(seed, side * side, low, high), &[side, side]);
        states.push(AdamState::new(square(3 * place, -1.0, 1.0)?)?);
        targets.push([square(3 * place + 1, -1.0, 0.0)?, square(3 * place + 2, 0.0, 1.0)?]);
    }
    Ok(Box::new(Training { states, targets, step: 0, sum: f32::NAN }))
}

impl Program for Training {
    fn step(&mut self) -> Result<()> {
        self.step += 1;
        let batch = self.step as usize % 2;
        let settings = Adam::default();
        for (state, targets) in self.states.iter_mut().zip(&self.targets) {
            let gradient = (&state.value - &targets[batch])?;
            *state = nn::adam(state.clone(), &gradient, self.step, &settings)?;
        }
        self.sum = self.states[0].value.sum(&[0, 1])?.item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let flat = self.states.iter().map(|state| state.value.reshape(&[state.value.ty().elems().get()]));
        let flat: Vec<Tensor> = flat.collect::<Result<_>>()?;
        let all = Tensor::concatenate(&flat.iter().collect::<Vec<_>>(), 0)?;
        let mut outputs = read([("parameters", &all)])?;
        outputs.push(("sum", vec![self.sum]));
        Ok(outputs)
    }
}
