//! A training step for a multi-layer perceptron: forward, backward, and stochastic gradient descent
//! with momentum. Every step reads its loss.

use fuseline::{Engine, Result, Tensor};

use super::tape::{Tape, Var};
use super::{Params, Program, data, read};

const RATE: f64 = 0.05;
const MOMENTUM: f64 = 0.9;

/// Images and labels on the host.
pub(super) struct Batch {
    images: Vec<f32>,
    labels: Vec<i32>,
    dims: [usize; 2],
}

impl Batch {
    /// `size` images for the layers of these widths.
    pub(super) fn new(size: usize, widths: &[usize]) -> Batch {
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        Batch {
            images: data::uniform(1, size * first, 0.0, 1.0),
            labels: data::below(2, size, last),
            dims: [size, first],
        }
    }

    /// Images and labels on the device.
    pub(super) fn upload(&self, engine: &Engine) -> Result<(Tensor, Tensor)> {
        Ok((engine.tensor(&self.images, &self.dims)?, engine.tensor(&self.labels, &self.dims[..1])?))
    }
}

/// A perceptron and its optimizer state.
pub(super) struct Net {
    /// Weights and biases of each layer, and their momentum.
    parameters: Vec<(Tensor, Tensor)>,
}

impl Net {
    /// Before training.
    pub(super) fn new(engine: &Engine, widths: &[usize]) -> Result<Net> {
        let mut parameters = Vec::new();
        for (layer, pair) in widths.windows(2).enumerate() {
            let [from, to] = [pair[0], pair[1]];
            let most = (6.0 / (from + to) as f64).sqrt();
            let weights = data::uniform(10 + layer, from * to, -most, most);
            for (data, dims) in [(weights, vec![from, to]), (vec![0.0; to], vec![to])] {
                let start = engine.tensor(&vec![0.0f32; data.len()], &dims)?;
                parameters.push((engine.tensor(&data, &dims)?, start));
            }
        }
        Ok(Net { parameters })
    }

    /// One step on a batch; returns the loss.
    pub(super) fn train(&mut self, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|(value, _)| tape.leaf(value)).collect();
        let mut x = tape.constant(images);
        let layers = leaves.len() / 2;
        for (layer, pair) in leaves.chunks_exact(2).enumerate() {
            x = x.matmul(&pair[0])?.add(&pair[1])?;
            if layer + 1 < layers {
                x = x.relu()?;
            }
        }
        let loss = x.cross_entropy(labels)?;
        let gradients = tape.gradients(&loss, &leaves)?;
        for ((value, speed), gradient) in self.parameters.iter_mut().zip(gradients) {
            *speed = ((&*speed * MOMENTUM)? + gradient)?;
            *value = (&*value - (&*speed * RATE)?)?;
        }
        Ok(loss.value().clone())
    }

    /// The weights of the last layer.
    pub(super) fn last_layer(&self) -> &Tensor {
        &self.parameters[self.parameters.len() - 2].0
    }
}

struct Mlp {
    images: Tensor,
    labels: Tensor,
    net: Net,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let widths = params.ints("widths");
    let (images, labels) = Batch::new(params.int("batch"), &widths).upload(engine)?;
    Ok(Box::new(Mlp { images, labels, net: Net::new(engine, &widths)?, loss: f32::NAN }))
}

impl Program for Mlp {
    fn step(&mut self) -> Result<()> {
        self.loss = self.net.train(&self.images, &self.labels)?.item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("last layer", self.net.last_layer())])?;
        outputs.push(("loss", vec![self.loss]));
        Ok(outputs)
    }
}
