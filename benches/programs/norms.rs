//! The ops between the matrix products of a transformer: softmax, layer norm and GELU over the rows
//! of a matrix, for a few rounds.

use fuseline::{Engine, Result, Tensor, nn};

use super::{Params, Program, data, read};

/// The value of BERT: a softmax over a long row leaves a variance of about 1e-6, which it must not
/// dominate.
const EPSILON: f64 = 1e-12;

struct Norms {
    x: Tensor,
    /// Weights of each round's layer norm.
    weights: Vec<(Tensor, Tensor)>,
    last: Option<Tensor>,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (rows, width) = (params.int("rows"), params.int("width"));
    let vector = |seed, low, high| engine.tensor(&data::uniform(seed, width, low, high), &[width]);
    let round = |round| Ok((vector(10 + round, 0.1, 0.3)?, vector(20 + round, -0.5, 0.5)?));
    Ok(Box::new(Norms {
        x: engine.tensor(&data::uniform(1, rows * width, -2.0, 2.0), &[rows, width])?,
        weights: (0..params.int("rounds")).map(round).collect::<Result<_>>()?,
        last: None,
    }))
}

impl Program for Norms {
    fn step(&mut self) -> Result<()> {
        let mut x = self.x.clone();
        for (gamma, beta) in &self.weights {
            x = nn::softmax(&x, -1)?;
            x = nn::layer_norm(&x, gamma, beta, EPSILON)?;
            x = nn::gelu(&x)?;
        }
        x.wait()?;
        self.last = Some(x);
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let Some(last) = &self.last else { return Ok(Vec::new()) };
        read([("mean of columns", &last.mean(&[0])?), ("largest of rows", &last.max(&[1])?)])
    }
}
