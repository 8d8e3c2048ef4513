//! A training step for an LSTM (Hochreiter and Schmidhuber, 1997): a loop over time with a target
//! for the last hidden state, then stochastic gradient descent. Every step reads its loss.

use fuseline::{Engine, Result, Tensor};

use super::tape::{Tape, Var};
use super::{Params, Program, data, read};

/// Large, because the loss is a mean over all elements of the state.
const RATE: f64 = 5.0;

struct Lstm {
    /// The input at each time, `[batch, input]`.
    inputs: Vec<Tensor>,
    target: Tensor,
    /// The initial hidden state and cell.
    start: Tensor,
    /// Weights of the input, weights of the hidden state, bias: the four gates side by side.
    parameters: Vec<Tensor>,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (input, hidden, batch) = (params.int("input"), params.int("hidden"), params.int("batch"));
    let most = 1.0 / (hidden as f64).sqrt();
    let weights =
        |seed, from| engine.tensor(&data::uniform(seed, from * 4 * hidden, -most, most), &[from, 4 * hidden]);
    let at = |time| engine.tensor(&data::uniform(100 + time, batch * input, -1.0, 1.0), &[batch, input]);
    let state = [batch, hidden];
    Ok(Box::new(Lstm {
        inputs: (0..params.int("length")).map(at).collect::<Result<_>>()?,
        target: engine.tensor(&data::uniform(1, batch * hidden, -0.5, 0.5), &state)?,
        start: engine.tensor(&vec![0.0f32; batch * hidden], &state)?,
        parameters: vec![
            weights(10, input)?,
            weights(11, hidden)?,
            engine.tensor(&vec![0.0f32; 4 * hidden], &[4 * hidden])?,
        ],
        loss: f32::NAN,
    }))
}

/// Hidden state and cell after one more input.
fn cell<'t>(
    x: &Var<'t>,
    hidden: &Var<'t>,
    cell: &Var<'t>,
    weights: &[Var<'t>],
) -> Result<(Var<'t>, Var<'t>)> {
    let [of_input, of_hidden, bias] = weights else { unreachable!("bug: {}", weights.len()) };
    let gates = x.matmul(of_input)?.add(&hidden.matmul(of_hidden)?)?.add(bias)?;
    let gates = gates.split(1, 4)?;
    let (enter, forget) = (gates[0].logistic()?, gates[1].logistic()?);
    let (fresh, leave) = (gates[2].tanh()?, gates[3].logistic()?);
    let cell = forget.mul(cell)?.add(&enter.mul(&fresh)?)?;
    Ok((leave.mul(&cell.tanh()?)?, cell))
}

impl Program for Lstm {
    fn step(&mut self) -> Result<()> {
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|value| tape.leaf(value)).collect();
        let mut state = (tape.constant(&self.start), tape.constant(&self.start));
        for x in &self.inputs {
            state = cell(&tape.constant(x), &state.0, &state.1, &leaves)?;
        }
        let error = state.0.add(&tape.constant(&self.target.neg()?))?;
        let loss = error.mul(&error)?.mean()?;
        let gradients = tape.gradients(&loss, &leaves)?;
        for (value, gradient) in self.parameters.iter_mut().zip(gradients) {
            *value = (&*value - (gradient * RATE)?)?;
        }
        self.loss = loss.value().item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("of hidden", &self.parameters[1]), ("bias", &self.parameters[2])])?;
        outputs.push(("loss", vec![self.loss]));
        Ok(outputs)
    }
}
