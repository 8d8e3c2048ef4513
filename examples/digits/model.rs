//! The network, its loss and its training step, written op by op.

use fuseline::nn::{self, Adam, AdamState};
use fuseline::{Engine, Result, Tensor};

use crate::common::random::Random;
use crate::common::tape::{Tape, Var};
use crate::data::{CLASSES, SIDE};

/// Name, sizes and number of inputs of each parameter, in the order of [`forward`]'s arguments.
const PARAMETERS: [(&str, &[usize], usize); 6] = [
    ("conv1.kernel", &[3, 3, 1, 8], 9),
    ("conv1.bias", &[8], 0),
    ("conv2.kernel", &[3, 3, 8, 16], 72),
    ("conv2.bias", &[16], 0),
    ("dense.weight", &[SIDE / 2 * (SIDE / 2) * 16, CLASSES], SIDE / 2 * (SIDE / 2) * 16),
    ("dense.bias", &[CLASSES], 0),
];

/// Two convolutions, a pooling layer and a dense layer: logits `[batch, 10]` of images `[batch, 8,
/// 8, 1]`.
fn forward<'t>(images: &Var<'t>, parameters: &[Var<'t>]) -> Result<Var<'t>> {
    let [kernel1, bias1, kernel2, bias2, weight, bias] = parameters else {
        unreachable!("there are as many parameters as in the table");
    };
    let hidden = images.conv2d(kernel1, 1, 1)?.add(bias1)?.relu()?;
    let hidden = hidden.conv2d(kernel2, 1, 1)?.add(bias2)?.relu()?.mean_pool(2)?;
    let flat = hidden.reshape(&[hidden.dims()[0], weight.dims()[0]])?;
    flat.matmul(weight)?.add(bias)
}

/// A network and its optimizer state.
pub(crate) struct Model {
    parameters: Vec<AdamState>,
    settings: Adam,
    step: u32,
}

impl Model {
    /// The network before training. The same seed gives the same one.
    pub(crate) fn new(engine: &Engine, seed: u64) -> Result<Model> {
        let mut random = Random::new(seed);
        let mut parameters = Vec::with_capacity(PARAMETERS.len());
        for (_, dims, inputs) in PARAMETERS {
            // He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015; biases start at 0.
            let scale = if inputs == 0 { 0.0 } else { (2.0 / inputs as f64).sqrt() };
            parameters.push(AdamState::new(engine.tensor(&random.normals(dims, scale), dims)?)?);
        }
        let settings = Adam { learning_rate: 5e-3, weight_decay: 1e-2, ..Adam::default() };
        Ok(Model { parameters, settings, step: 0 })
    }

    /// Names of the parameters and their values.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        PARAMETERS.iter().zip(&self.parameters).map(|((name, ..), state)| (*name, &state.value))
    }

    /// Runs one training step and returns the loss. Nothing is computed until a result is
    /// requested.
    pub(crate) fn train(&mut self, images: &Tensor, labels: &Tensor, rate: f64) -> Result<Tensor> {
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|state| tape.leaf(&state.value)).collect();
        let loss = forward(&tape.constant(images), &leaves)?.cross_entropy(labels)?;
        let gradients = tape.gradients(&loss, &leaves)?;
        let loss = loss.value().clone();
        drop(leaves);
        self.step += 1;
        let settings = Adam { learning_rate: self.settings.learning_rate * rate, ..self.settings };
        // Each state is moved out and replaced. No handle to the old one remains, so its memory is
        // reused.
        let states = std::mem::take(&mut self.parameters).into_iter().zip(&gradients);
        self.parameters = states
            .map(|(state, gradient)| nn::adam(state, gradient, self.step, &settings))
            .collect::<Result<_>>()?;
        Ok(loss)
    }

    /// The predicted digit of each image, `[batch]`.
    pub(crate) fn classify(&self, images: &Tensor) -> Result<Tensor> {
        let tape = Tape::new();
        let parameters: Vec<Var<'_>> =
            self.parameters.iter().map(|state| tape.constant(&state.value)).collect();
        forward(&tape.constant(images), &parameters)?.value().argmax(-1)
    }
}
