//! A training step for a GPT-2 block between its embedding and a head that shares the embedding's
//! table: causal attention and an MLP, each with a layer norm and a residual connection, then AdamW
//! over all parameters. Every step reads its loss.
//!
//! The tokens are random, in a few batches that take turns, so the loss never reaches zero.

use fuseline::nn::{self, Adam, AdamState};
use fuseline::{Engine, Result, Tensor};

use super::tape::{Tape, Var};
use super::{Params, Program, data, read};

const EPSILON: f64 = 1e-5;
/// The epsilon is far above the rounding error of a gradient, so that the first step is not the
/// sign of noise.
const SETTINGS: Adam =
    Adam { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };

struct Gpt2 {
    heads: usize,
    /// Tokens and next tokens of each batch.
    batches: Vec<(Tensor, Tensor)>,
    parameters: Vec<AdamState>,
    mask: Tensor,
    step: u32,
    loss: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (width, words) = (params.int("width"), params.int("words"));
    let (length, batch) = (params.int("length"), params.int("batch"));
    let mut parameters = Vec::new();
    let mut add = |data: &[f32], dims: &[usize]| -> Result<()> {
        parameters.push(AdamState::new(engine.tensor(data, dims)?)?);
        Ok(())
    };
    // Embeddings of tokens and of positions.
    for (seed, rows) in [(10, words), (11, length)] {
        add(&data::uniform(seed, rows * width, -0.03, 0.03), &[rows, width])?;
    }
    // Queries, keys and values; output of the attention; up and down projections of the MLP.
    let layers = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)];
    for (seed, (from, to)) in (12..).zip(layers) {
        add(&data::uniform(seed, from * to, -0.03, 0.03), &[from, to])?;
        add(&vec![0.0; to], &[to])?;
    }
    // Layer norms before the attention, before the MLP, before the head.
    for _ in 0..3 {
        add(&vec![1.0; width], &[width])?;
        add(&vec![0.0; width], &[width])?;
    }
    let batches = (0..params.int("batches")).map(|number| {
        let text = data::below(100 + number, batch * (length + 1), words);
        let lines = text.chunks_exact(length + 1);
        let tokens: Vec<i32> = lines.clone().flat_map(|line| &line[..line.len() - 1]).copied().collect();
        let next: Vec<i32> = lines.flat_map(|line| &line[1..]).copied().collect();
        Ok((engine.tensor(&tokens, &[batch, length])?, engine.tensor(&next, &[batch, length])?))
    });
    let batches = batches.collect::<Result<_>>()?;
    let mask = nn::causal_mask(&parameters[0].value, length)?;
    Ok(Box::new(Gpt2 { heads: params.int("heads"), batches, parameters, mask, step: 0, loss: f32::NAN }))
}

/// Attention of every position to itself and earlier positions.
fn attention<'t>(x: &Var<'t>, weights: &[Var<'t>], heads: usize, mask: &Var<'t>) -> Result<Var<'t>> {
    let &[batch, length, width] = x.dims() else { unreachable!("bug: {:?}", x.dims()) };
    let [qkv, qkv_bias, output, output_bias] = weights else { unreachable!("bug: {}", weights.len()) };
    let qkv = x.matmul(qkv)?.add(qkv_bias)?;
    // To [batch, heads, length, width of a head].
    let parts = qkv.split(2, 3)?;
    let of_heads =
        |part: usize| parts[part].reshape(&[batch, length, heads, width / heads])?.transpose(&[0, 2, 1, 3]);
    let (q, k, v) = (of_heads(0)?, of_heads(1)?, of_heads(2)?);
    let scale = 1.0 / ((width / heads) as f64).sqrt();
    let scores = q.matmul(&k.transpose(&[0, 1, 3, 2])?)?.scale(scale)?.add(mask)?;
    let mixed = scores.softmax()?.matmul(&v)?.transpose(&[0, 2, 1, 3])?;
    mixed.reshape(&[batch, length, width])?.matmul(output)?.add(output_bias)
}

/// Logits of the next token at each position.
fn forward<'t>(tokens: &Tensor, p: &[Var<'t>], heads: usize, mask: &Var<'t>) -> Result<Var<'t>> {
    let x = p[0].embedding(tokens)?.add(&p[1])?;
    let x = x.add(&attention(&x.layer_norm(&p[10], &p[11], EPSILON)?, &p[2..6], heads, mask)?)?;
    let hidden = x.layer_norm(&p[12], &p[13], EPSILON)?.matmul(&p[6])?.add(&p[7])?.gelu()?;
    let x = x.add(&hidden.matmul(&p[8])?.add(&p[9])?)?;
    x.layer_norm(&p[14], &p[15], EPSILON)?.matmul(&p[0].transpose(&[1, 0])?)
}

impl Program for Gpt2 {
    fn step(&mut self) -> Result<()> {
        let (tokens, next) = &self.batches[self.step as usize % self.batches.len()];
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|state| tape.leaf(&state.value)).collect();
        let loss = forward(tokens, &leaves, self.heads, &tape.constant(&self.mask))?.cross_entropy(next)?;
        let gradients = tape.gradients(&loss, &leaves)?;
        drop(leaves);
        self.step += 1;
        let states = std::mem::take(&mut self.parameters).into_iter().zip(&gradients);
        self.parameters = states
            .map(|(state, gradient)| nn::adam(state, gradient, self.step, &SETTINGS))
            .collect::<Result<_>>()?;
        self.loss = loss.value().item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        // The gradient of the position embeddings depends on all others.
        let mut outputs = read([("places", &self.parameters[1].value)])?;
        outputs.push(("loss", vec![self.loss]));
        Ok(outputs)
    }
}
