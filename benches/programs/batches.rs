//! Training whose batch size changes every few steps, as at the end of an epoch or with bucketed
//! sequences. The step is that of `mlp`.

use fuseline::{Engine, Result, Tensor};

use super::mlp::{Batch, Net};
use super::{Params, Program, read};

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
    let batch = |&size: &usize| Batch::new(size, &widths).upload(engine);
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
