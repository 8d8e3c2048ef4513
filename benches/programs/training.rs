//! A training loop for the perceptron of `mlp.rs`. It takes several training steps, adds up their
//! losses on the device, and reads the sum at the end. The batch is on the device already, or each
//! step uploads it.
//!
//! One step of this program is the whole loop. Its time shows how well recording, uploads and
//! executions overlap.

use fuseline::{Engine, Result, Tensor};

use super::mlp::{Batch, Net};
use super::{Params, Program, read};

struct Training {
    engine: Engine,
    batch: Batch,
    /// The batch on the device, unless each step uploads it.
    resident: Option<(Tensor, Tensor)>,
    steps: usize,
    net: Net,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let widths = params.ints("widths");
    let batch = Batch::new(params.int("batch"), &widths);
    let resident = if params.int("upload") == 0 { Some(batch.upload(engine)?) } else { None };
    Ok(Box::new(Training {
        engine: engine.clone(),
        batch,
        resident,
        steps: params.int("steps"),
        net: Net::new(engine, &widths)?,
        loss: f32::NAN,
    }))
}

impl Program for Training {
    fn step(&mut self) -> Result<()> {
        let mut total: Option<Tensor> = None;
        for _ in 0..self.steps {
            let (images, labels) = match &self.resident {
                Some((images, labels)) => (images.clone(), labels.clone()),
                None => self.batch.upload(&self.engine)?,
            };
            let loss = self.net.train(&images, &labels)?;
            total = Some(match total {
                Some(total) => (total + loss)?,
                None => loss,
            });
        }
        let total = total.map(|total| total.item::<f32>()).transpose()?.unwrap_or_default();
        self.loss = total / self.steps as f32;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("last layer", self.net.last_layer())])?;
        outputs.push(("mean loss", vec![self.loss]));
        Ok(outputs)
    }
}
