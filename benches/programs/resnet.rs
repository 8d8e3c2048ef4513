//! A training step for a small ResNet (He, Zhang, Ren and Sun, 2016): a convolution, two blocks of
//! which the second halves the image, the spatial mean and a linear layer, then stochastic gradient
//! descent with momentum. Every convolution is followed by batch normalization with the statistics
//! of the batch; there are no running statistics. Every step reads its loss.

use fuseline::{Engine, Result, Tensor};

use super::tape::{Tape, Var};
use super::{Params, Program, data, read};

const RATE: f64 = 0.02;
const MOMENTUM: f64 = 0.9;
const EPSILON: f64 = 1e-5;
const COLORS: usize = 3;

struct Resnet {
    /// `[batch, height, width, colors]`.
    images: Tensor,
    labels: Tensor,
    /// Kernel, gamma and beta of each convolution; weights and bias of the linear layer. Each with
    /// its momentum.
    parameters: Vec<(Tensor, Tensor)>,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (size, batch, classes) = (params.int("size"), params.int("batch"), params.int("classes"));
    let channels = params.ints("channels");
    let [narrow, wide] = [channels[0], channels[1]];
    let mut parameters = Vec::new();
    let mut add = |data: &[f32], dims: &[usize]| -> Result<()> {
        let start = engine.tensor(&vec![0.0f32; data.len()], dims)?;
        parameters.push((engine.tensor(data, dims)?, start));
        Ok(())
    };
    // Kernel size, features before and after: the stem, two in each block, the second block's
    // projection.
    let kernels = [
        (3, COLORS, narrow),
        (3, narrow, narrow),
        (3, narrow, narrow),
        (3, narrow, wide),
        (3, wide, wide),
        (1, narrow, wide),
    ];
    for (seed, (side, from, to)) in (10..).zip(kernels) {
        let inputs = side * side * from;
        let most = (6.0 / inputs as f64).sqrt();
        add(&data::uniform(seed, inputs * to, -most, most), &[side, side, from, to])?;
        add(&vec![1.0; to], &[to])?;
        add(&vec![0.0; to], &[to])?;
    }
    let most = 1.0 / (wide as f64).sqrt();
    add(&data::uniform(20, wide * classes, -most, most), &[wide, classes])?;
    add(&vec![0.0; classes], &[classes])?;
    let dims = [batch, size, size, COLORS];
    Ok(Box::new(Resnet {
        images: engine.tensor(&data::uniform(1, dims.iter().product(), -1.0, 1.0), &dims)?,
        labels: engine.tensor(&data::below(2, batch, classes), &[batch])?,
        parameters,
        loss: f32::NAN,
    }))
}

/// A convolution with "same" padding and a stride, followed by batch normalization.
fn conv_norm<'t>(x: &Var<'t>, p: &[Var<'t>], stride: i64) -> Result<Var<'t>> {
    let padding = p[0].dims()[0] as i64 / 2;
    x.conv2d(&p[0], stride, padding)?.normalize(&[0, 1, 2], EPSILON)?.mul(&p[1])?.add(&p[2])
}

/// Two convolutions with a residual connection, which is the identity or a projection.
fn block<'t>(x: &Var<'t>, p: &[Var<'t>], projection: Option<&[Var<'t>]>, stride: i64) -> Result<Var<'t>> {
    let hidden = conv_norm(x, &p[..3], stride)?.relu()?;
    let skip = match projection {
        Some(projection) => conv_norm(x, projection, stride)?,
        None => x.clone(),
    };
    conv_norm(&hidden, &p[3..], 1)?.add(&skip)?.relu()
}

fn forward<'t>(images: &Var<'t>, p: &[Var<'t>]) -> Result<Var<'t>> {
    let x = conv_norm(images, &p[..3], 1)?.relu()?;
    let x = block(&x, &p[3..9], None, 1)?;
    let x = block(&x, &p[9..15], Some(&p[15..18]), 2)?;
    let places = x.dims()[1] * x.dims()[2];
    x.sum(&[1, 2])?.scale(1.0 / places as f64)?.matmul(&p[18])?.add(&p[19])
}

impl Program for Resnet {
    fn step(&mut self) -> Result<()> {
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|(value, _)| tape.leaf(value)).collect();
        let loss = forward(&tape.constant(&self.images), &leaves)?.cross_entropy(&self.labels)?;
        let gradients = tape.gradients(&loss, &leaves)?;
        for ((value, speed), gradient) in self.parameters.iter_mut().zip(gradients) {
            *speed = ((&*speed * MOMENTUM)? + gradient)?;
            *value = (&*value - (&*speed * RATE)?)?;
        }
        self.loss = loss.value().item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        // The gradient of the first kernel depends on all others.
        let mut outputs = read([("stem", &self.parameters[0].0), ("head", &self.parameters[18].0)])?;
        outputs.push(("loss", vec![self.loss]));
        Ok(outputs)
    }
}
