//! A training loop of the perceptron of `mlp.rs` as people write it: several steps, whose losses
//! are added up on the device, and one read at the end. The batch is on the device already, or is
//! uploaded for every step.
//!
//! A step of this program is all of that. So its time includes whatever recording, upload,
//! execution and read do not overlap.

use fuseline::{Engine, Result, Tensor};

use super::mlp::Net;
use super::{Params, Program, data, read};

struct Training {
    engine: Engine,
    /// The batch on the host, and its sizes.
    images: (Vec<f32>, [usize; 2]),
    labels: Vec<i32>,
    /// The batch on the device, unless it is uploaded for every step.
    resident: Option<(Tensor, Tensor)>,
    steps: usize,
    net: Net,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let batch = params.int("batch");
    let widths = params.ints("widths");
    let (first, last) = (widths[0], widths[widths.len() - 1]);
    let mut training = Training {
        engine: engine.clone(),
        images: (data::uniform(1, batch * first, 0.0, 1.0), [batch, first]),
        labels: data::below(2, batch, last),
        resident: None,
        steps: params.int("steps"),
        net: Net::new(engine, &widths)?,
        loss: f32::NAN,
    };
    if params.int("upload") == 0 {
        training.resident = Some(training.upload()?);
    }
    Ok(Box::new(training))
}

impl Training {
    fn upload(&self) -> Result<(Tensor, Tensor)> {
        let (images, dims) = &self.images;
        Ok((self.engine.tensor(images, dims)?, self.engine.tensor(&self.labels, &dims[..1])?))
    }
}

impl Program for Training {
    fn step(&mut self) -> Result<()> {
        let mut total: Option<Tensor> = None;
        for _ in 0..self.steps {
            let (images, labels) = match &self.resident {
                Some((images, labels)) => (images.clone(), labels.clone()),
                None => self.upload()?,
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
