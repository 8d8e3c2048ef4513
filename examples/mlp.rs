//! Trains a multilayer perceptron to tell points inside a circle from points outside.
//! Run it by `cargo run --release --example mlp`; `docs/tutorial.md` explains it step by step.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use fuseline::nn::{self, CrossEntropy, grad};
use fuseline::{DType, EngineConfig, Event, Miss, Result, Tensor};

/// The loss of a batch, and its gradients with respect to the parameters.
fn loss(parameters: &[Tensor; 4], x: &Tensor, labels: &Tensor) -> Result<(Tensor, [Tensor; 4])> {
    let [w1, b1, w2, b2] = parameters;
    let hidden = nn::relu(&(x.matmul(w1) + b1)?)?;
    let logits = (hidden.matmul(w2) + b2)?;
    let loss = nn::cross_entropy(&logits, labels)?;

    let one = x.on_stream().scalar(1.0f32);
    let of_logits = grad::cross_entropy(&logits, labels, &CrossEntropy::default(), &one)?;
    let of_w2 = grad::matmul_rhs(&hidden, w2.dims(), &of_logits)?;
    let of_hidden = grad::relu(&hidden, &grad::matmul_lhs(hidden.dims(), w2, &of_logits)?)?;
    let of_w1 = grad::matmul_rhs(x, w1.dims(), &of_hidden)?;
    Ok((loss, [of_w1, of_hidden.sum(&[0])?, of_w2, of_logits.sum(&[0])?]))
}

fn main() -> Result<()> {
    let explain = |event: &Event| {
        if let Event::Miss { why: Miss::Changed(_), .. } = event {
            println!("{event}");
        }
    };
    let engine = EngineConfig::new().event_sink(explain).build()?;
    let mut random = engine.generator(1)?;
    let points = random.uniform(DType::F32, &[1000, 2], -1.0, 1.0)?;
    let inside = (&points * &points)?.sum(&[1])?.less(&engine.scalar(0.5f32))?.convert(DType::I32)?;
    let mut parameters = [
        random.normal(DType::F32, &[2, 32])?,
        engine.zeros(DType::F32, &[32])?,
        (random.normal(DType::F32, &[32, 2])? * 0.1)?,
        engine.zeros(DType::F32, &[2])?,
    ];
    let mut losses = Vec::new();
    for epoch in 0..20 {
        let (order, rate) = (random.permutation(1000)?, 1.0 / f64::from(1 + epoch));
        let mut total = 0.0;
        for start in (0..1000).step_by(128) {
            let batch = order.dynamic_slice(&[&engine.scalar(start)], &[128.min(1000 - i64::from(start))])?;
            let (x, labels) = (points.take(&batch, 0)?, inside.take(&batch, 0)?);
            let (loss, gradients) = loss(&parameters, &x, &labels)?;
            for (parameter, gradient) in parameters.iter_mut().zip(&gradients) {
                *parameter = (&*parameter - gradient * rate)?;
            }
            total += loss.item::<f32>()?;
        }
        println!("epoch {epoch:>2}: loss {:.4}", total / 8.0);
        losses.push(total / 8.0);
    }
    let counters = engine.counters();
    println!("{} ops in {} regions, {} compiled", counters.ops, counters.regions, counters.compiles);
    assert!(losses[19] < 0.5 * losses[0], "the loss did not fall: {losses:?}");
    Ok(())
}
