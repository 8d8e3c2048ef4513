//! An attention layer that decodes token by token. A step appends the key and the value of one
//! token to its cache, and attends to all tokens so far, so shapes grow with every step. After the
//! longest sequence it starts a new one. The result of a step is the input of the next.

use fuseline::nn::{self, Attention};
use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

const EPSILON: f64 = 1e-5;

struct Decoder {
    /// Projections of the input to queries, keys and values, and of the attention to the output.
    weights: [Tensor; 4],
    x: Tensor,
    /// Empty keys and values.
    empty: Tensor,
    keys: Tensor,
    values: Tensor,
    /// The shape that one token adds to the keys: `[batch, heads, 1, width of a head]`.
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
