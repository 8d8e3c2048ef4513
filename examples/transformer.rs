//! Trains a small decoder-only transformer on synthetic tokens.
//!
//! `cargo run --release --example transformer`. The sequences repeat a few random tokens. After the
//! first period every token can be predicted by looking back one period, which the attention
//! learns. Forward pass, gradients and AdamW are plain tensor ops, recorded one by one. The example
//! prints the decreasing loss, what the engine compiled, and the time of a step in Fused and in
//! Strict mode.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

mod common;

use std::time::Instant;

use clap::Parser;
use common::random::Random;
use common::tape::{Tape, Var};
use common::{Device, block_on};
use fuseline::nn::{self, Adam, AdamState};
use fuseline::{Counters, Engine, EngineConfig, Mode, Tensor};

/// The number of different tokens.
const WORDS: usize = 16;
/// The period of a sequence, in tokens.
const PERIOD: usize = 8;
/// The number of tokens of a sequence that the network sees.
const LENGTH: usize = 31;
/// The width of a token's vector.
const WIDTH: usize = 64;
/// The number of attention heads.
const HEADS: usize = 4;
/// The number of sequences per step.
const BATCH: usize = 16;
/// The number of steps after which nothing should compile.
const WARM_STEPS: usize = 3;
const EPSILON: f64 = 1e-5;

/// Trains a small decoder-only transformer on synthetic tokens.
#[derive(Parser)]
struct Options {
    /// Steps of training in Fused.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..))]
    steps: u32,
    /// Steps in Strict, to compare.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..))]
    compare: u32,
    /// Where to compute.
    #[arg(long, value_enum, default_value = "auto")]
    device: Device,
}

/// Sizes of the parameters and their initial values (normally distributed with a deviation of 0.02,
/// ones, zeros).
const PARAMETERS: [(&[usize], Start); 16] = [
    (&[WORDS, WIDTH], Start::Normal),  // token vectors, also the head
    (&[LENGTH, WIDTH], Start::Normal), // place vectors
    (&[WIDTH], Start::One),            // layer norm before the attention
    (&[WIDTH], Start::Zero),
    (&[WIDTH, WIDTH], Start::Normal), // queries
    (&[WIDTH, WIDTH], Start::Normal), // keys
    (&[WIDTH, WIDTH], Start::Normal), // values
    (&[WIDTH, WIDTH], Start::Normal), // output of the attention
    (&[WIDTH], Start::One),           // layer norm before the MLP
    (&[WIDTH], Start::Zero),
    (&[WIDTH, 4 * WIDTH], Start::Normal), // MLP
    (&[4 * WIDTH], Start::Zero),
    (&[4 * WIDTH, WIDTH], Start::Normal),
    (&[WIDTH], Start::Zero),
    (&[WIDTH], Start::One), // layer norm before the head
    (&[WIDTH], Start::Zero),
];

#[derive(Clone, Copy)]
enum Start {
    Normal,
    One,
    Zero,
}

/// Attention of every position to itself and earlier positions. `x` and the result are
/// `[batch * length, width]`.
fn attention<'t>(x: &Var<'t>, weights: &[Var<'t>], mask: &Var<'t>) -> fuseline::Result<Var<'t>> {
    let [queries, keys, values, output] = weights else { unreachable!("attention has four weights") };
    // To [batch, heads, length, width of a head].
    let heads = |weight: &Var<'t>| {
        let split = x.matmul(weight)?.reshape(&[BATCH, LENGTH, HEADS, WIDTH / HEADS])?;
        split.transpose(&[0, 2, 1, 3])
    };
    let (q, k, v) = (heads(queries)?, heads(keys)?, heads(values)?);
    let scale = 1.0 / ((WIDTH / HEADS) as f64).sqrt();
    let scores = q.matmul(&k.transpose(&[0, 1, 3, 2])?)?.scale(scale)?.add(mask)?;
    let mixed = scores.softmax()?.matmul(&v)?.transpose(&[0, 2, 1, 3])?;
    mixed.reshape(&[BATCH * LENGTH, WIDTH])?.matmul(output)
}

/// Logits `[batch, length, words]` of the next token at each position.
fn forward<'t>(tokens: &Tensor, parameters: &[Var<'t>]) -> fuseline::Result<Var<'t>> {
    let [words, places, .., last_gamma, last_beta] = parameters else {
        unreachable!("there are as many parameters as in the table");
    };
    let p = parameters;
    let mask = words.tape().constant(&nn::causal_mask(words.value(), LENGTH)?);
    let x = words.embedding(tokens)?.add(places)?.reshape(&[BATCH * LENGTH, WIDTH])?;
    let x = x.add(&attention(&x.layer_norm(&p[2], &p[3], EPSILON)?, &p[4..8], &mask)?)?;
    let hidden = x.layer_norm(&p[8], &p[9], EPSILON)?.matmul(&p[10])?.add(&p[11])?.gelu()?;
    let x = x.add(&hidden.matmul(&p[12])?.add(&p[13])?)?;
    let x = x.layer_norm(last_gamma, last_beta, EPSILON)?;
    x.matmul(&words.transpose(&[1, 0])?)?.reshape(&[BATCH, LENGTH, WORDS])
}

struct Trainer {
    engine: Engine,
    parameters: Vec<AdamState>,
    data: Random,
    step: u32,
}

impl Trainer {
    fn new(device: Device, mode: Mode) -> fuseline::Result<Trainer> {
        let engine = device.build(EngineConfig::new().mode(mode))?;
        let mut random = Random::new(1);
        let mut parameters = Vec::new();
        for (dims, start) in PARAMETERS {
            let count = dims.iter().product::<usize>();
            let data = match start {
                Start::Normal => random.normals(dims, 0.02),
                Start::One => vec![1.0; count],
                Start::Zero => vec![0.0; count],
            };
            parameters.push(AdamState::new(engine.tensor(&data, dims)?)?);
        }
        Ok(Trainer { engine, parameters, data: Random::new(2), step: 0 })
    }

    /// Returns sequences and the next token at each position.
    fn batch(&mut self) -> fuseline::Result<(Tensor, Tensor)> {
        let length = LENGTH;
        let (mut tokens, mut next) = (Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let round: Vec<i32> = (0..PERIOD).map(|_| self.data.below(WORDS) as i32).collect();
            tokens.extend((0..length).map(|place| round[place % PERIOD]));
            // The loss counts only predictable tokens: from the second period on.
            next.extend((PERIOD - 1..length).map(|place| round[(place + 1) % PERIOD]));
        }
        let asked = LENGTH - PERIOD + 1;
        Ok((self.engine.tensor(&tokens, &[BATCH, LENGTH])?, self.engine.tensor(&next, &[BATCH, asked])?))
    }

    /// Runs one step and returns the loss, which is not computed yet.
    fn train(&mut self) -> fuseline::Result<Tensor> {
        let (tokens, next) = self.batch()?;
        let tape = Tape::new();
        let leaves: Vec<Var<'_>> = self.parameters.iter().map(|state| tape.leaf(&state.value)).collect();
        let logits = forward(&tokens, &leaves)?.narrow(1, PERIOD as i64 - 1, LENGTH as i64)?;
        let loss = logits.cross_entropy(&next)?;
        let gradients = tape.gradients(&loss, &leaves)?;
        let loss = loss.value().clone();
        drop((leaves, logits));
        self.step += 1;
        // The learning rate rises over the first steps. It is lifted, so another number compiles
        // nothing.
        let rate = 3e-3 * f64::from(self.step.min(20)) / 20.0;
        let settings = Adam { learning_rate: rate, weight_decay: 0.01, ..Adam::default() };
        let states = std::mem::take(&mut self.parameters).into_iter().zip(&gradients);
        self.parameters = states
            .map(|(state, gradient)| nn::adam(state, gradient, self.step, &settings))
            .collect::<Result<_, _>>()?;
        Ok(loss)
    }

    /// Runs some steps. Returns their losses and the milliseconds per step.
    fn steps(&mut self, count: usize) -> fuseline::Result<(Vec<f32>, f64)> {
        let start = Instant::now();
        let mut reads = Vec::with_capacity(count);
        for _ in 0..count {
            reads.push(self.train()?.read());
        }
        let mut losses = Vec::with_capacity(count);
        for read in reads {
            losses.extend(block_on(read)?.to_vec::<f32>()?);
        }
        self.engine.synchronize()?;
        Ok((losses, start.elapsed().as_secs_f64() * 1e3 / count.max(1) as f64))
    }
}

/// The median of some times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut fused = Trainer::new(options.device, Mode::Fused)?;
    let (mut losses, _) = fused.steps(WARM_STEPS)?;
    let warm = fused.engine.counters();
    println!(
        "The first {WARM_STEPS} steps: {} ops, {} compiles in {:.1} s.",
        warm.ops,
        warm.compiles,
        warm.compile_time.as_secs_f64()
    );
    let mut times = Vec::new();
    while losses.len() < options.steps as usize {
        let count = (options.steps as usize - losses.len()).min(25);
        let (more, time) = fused.steps(count)?;
        losses.extend(&more);
        times.push(time);
        let mean = more.iter().sum::<f32>() / more.len() as f32;
        println!("step {:>4}: loss {mean:.4}, {time:.2} ms per step", losses.len());
    }
    let steady: Counters = fused.engine.counters().since(&warm);
    let steps = (losses.len() - WARM_STEPS) as f64;
    println!(
        "Fused after step {WARM_STEPS}: {:.0} ops and {:.1} executions per step, {} compiles requested, {} misses.",
        steady.ops as f64 / steps,
        steady.executions as f64 / steps,
        steady.compiles_asked,
        steady.misses
    );

    let mut strict = Trainer::new(options.device, Mode::Strict)?;
    let (mut strict_losses, _) = strict.steps(WARM_STEPS)?;
    let mut strict_times = Vec::new();
    while strict_losses.len() < options.compare as usize {
        let (more, time) = strict.steps(10.min(options.compare as usize - strict_losses.len()))?;
        strict_losses.extend(more);
        strict_times.push(time);
    }
    let difference = losses.iter().zip(&strict_losses).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (fused_time, strict_time) = (median(times), median(strict_times));
    println!(
        "A step takes {fused_time:.2} ms in Fused and {strict_time:.2} ms in Strict ({:.1} times as long); over {} steps \
         the losses differ by at most {difference:.1e}.",
        strict_time / fused_time,
        strict_losses.len().min(losses.len())
    );

    let (first, last) = (losses[0], losses[losses.len() - 1]);
    anyhow::ensure!(last < first, "the loss did not fall: {first} at first, {last} at last");
    anyhow::ensure!(
        steady.compiles_asked == 0,
        "{} compiles were requested after step {WARM_STEPS}",
        steady.compiles_asked
    );
    anyhow::ensure!(difference < 1e-3, "the losses of Fused and Strict differ by {difference}");
    Ok(())
}
