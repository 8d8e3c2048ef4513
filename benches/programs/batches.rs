//! Training whose batch size changes every few steps, as at the end of an epoch or with bucketed
//! sequences. The step is that of `mlp`.

use fuseline::{Engine, Result, Tensor};

use super::mlp::Net;
use super::{Params, Program, data, read};

/// The number of steps with one size.
const STEPS: usize = 3;

struct Batches {
    net: Net,
    /// Images and labels.
    batches: Vec<(Tensor, Tensor)>,
    step: usize,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (widths, sizes) = (params.ints("widths"), params.ints("batches"));
    let (first, last) = (widths[0], widths[widths.len() - 1]);
    let batch = |&size: &usize| {
        let images = engine.tensor(&data::uniform(1, size * first, 0.0, 1.0), &[size, first])?;
        Ok((images, engine.tensor(&data::below(2, size, last), &[size])?))
    };
    Ok(Box::new(Batches {
        net: Net::new(engine, &widths)?,
        batches: sizes.iter().map(batch).collect::<Result<_>>()?,
        step: 0,
        loss: f32::NAN,
    }))
}

impl Program for Batches {
    fn step(&mut self) -> Result<()> {
        let (images, labels) = &self.batches[self.step / STEPS % self.batches.len()];
        self.loss = self.net.train(images, labels)?.item()?;
        self.step += 1;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("last layer", self.net.last_layer())])?;
        outputs.push(("loss", vec![self.loss]));
        Ok(outputs)
    }
}
