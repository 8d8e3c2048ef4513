//! A layer of attention that decodes token by token: a step appends the key and the value of one
//! token to what it keeps, and attends to all tokens so far, so that shapes grow with every step.
//! When the longest sequence is reached it starts with the next one. The result of a step is the
//! input of the next.

use fuseline::nn::{self, Attention};
use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

const EPSILON: f64 = 1e-5;

struct Decoder {
    /// From the input to queries, keys and values, and from what was attended to to the output.
    weights: [Tensor; 4],
    x: Tensor,
    /// The keys and values of no tokens.
    empty: Tensor,
    keys: Tensor,
    values: Tensor,
    /// What one token adds to the keys: `[batch, heads, 1, width of a head]`.
    token: [usize; 4],
    longest: usize,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (batch, heads, head) = (params.int("batch"), params.int("heads"), params.int("head"));
    let width = heads * head;
    let most = (3.0 / width as f64).sqrt();
    let weights = |seed| engine.tensor(&data::uniform(seed, width * width, -most, most), &[width, width]);
    let empty = engine.tensor::<f32>(&[], &[batch, heads, 0, head])?;
    Ok(Box::new(Decoder {
        weights: [weights(1)?, weights(2)?, weights(3)?, weights(4)?],
        x: engine.tensor(&data::uniform(5, batch * width, -1.0, 1.0), &[batch, width])?,
        keys: empty.clone(),
        values: empty.clone(),
        empty,
        token: [batch, heads, 1, head],
        longest: params.int("longest"),
    }))
}

impl Program for Decoder {
    fn step(&mut self) -> Result<()> {
        if self.keys.dims()[2] == self.longest {
            (self.keys, self.values) = (self.empty.clone(), self.empty.clone());
        }
        let [queries, keys, values, output] = &self.weights;
        let token = |weights: &Tensor| self.x.matmul(weights)?.reshape(&self.token);
        let query = token(queries)?;
        let keys = Tensor::concatenate(&[&self.keys, &token(keys)?], 2)?;
        let values = Tensor::concatenate(&[&self.values, &token(values)?], 2)?;
        let (attended, _) = nn::attention(&query, &keys, &values, Attention::default())?;
        let change = attended.reshape(self.x.dims())?.matmul(output)?;
        (self.x, _) = nn::normalize(&(&self.x + change)?, &[-1], EPSILON)?;
        (self.keys, self.values) = (keys, values);
        self.x.wait()
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        read([("x", &self.x), ("keys", &self.keys), ("values", &self.values)])
    }
}
