//! Logistic regression by gradient descent until convergence: the host reads the norm of the
//! gradient after every iteration and stops when it is small. Each step starts from the same
//! weights.

use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

const RATE: f64 = 5.0;
const DECAY: f64 = 0.05;
/// Midway between the norms of the last two gradients, so that rounding does not change the number
/// of iterations.
const SMALL: f32 = 1.2e-4;

struct Regression {
    rows: Tensor,
    labels: Tensor,
    start: Tensor,
    weights: Tensor,
    rounds: u32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (count, features) = (params.int("rows"), params.int("features"));
    let rows = data::uniform(1, count * features, -1.0, 1.0);
    let truth = data::uniform(2, features, -2.0, 2.0);
    let luck = data::uniform(3, count, -1.0, 1.0);
    let label = |(row, luck): (&[f32], &f32)| {
        let score: f64 = row.iter().zip(&truth).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        f32::from(score + f64::from(*luck) > 0.0)
    };
    let labels: Vec<f32> = rows.chunks_exact(features).zip(&luck).map(label).collect();
    let start = engine.tensor(&vec![0.0f32; features], &[features])?;
    Ok(Box::new(Regression {
        rows: engine.tensor(&rows, &[count, features])?,
        labels: engine.tensor(&labels, &[count])?,
        weights: start.clone(),
        start,
        rounds: 0,
    }))
}

impl Program for Regression {
    fn step(&mut self) -> Result<()> {
        let count = self.rows.dims()[0] as f64;
        (self.weights, self.rounds) = (self.start.clone(), 0);
        loop {
            let error = (self.rows.matmul(&self.weights)?.logistic()? - &self.labels)?;
            let gradient = ((error.matmul(&self.rows)? / count)? + (&self.weights * DECAY)?)?;
            self.weights = (&self.weights - (&gradient * RATE)?)?;
            self.rounds += 1;
            if (&gradient * &gradient)?.sum(&[0])?.sqrt()?.item::<f32>()? < SMALL {
                return Ok(());
            }
        }
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("weights", &self.weights)])?;
        outputs.push(("rounds", vec![self.rounds as f32]));
        Ok(outputs)
    }
}
