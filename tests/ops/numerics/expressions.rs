//! One expression for each way in which XLA computes across ops, and some that people write.

use fuseline::nn::{gelu, gelu_exact, layer_norm, log_softmax, rms_norm, silu, softmax, softplus};
use fuseline::{DType, Engine, Literal, Mode, Numerics, Result, Tensor, with_mode};
use fuseline_testgen::Seeded;

use super::{different, engine, uniform};

/// A function of four tensors of one shape; the last two have positive numbers.
type Expression = fn(&[Tensor; 4]) -> Result<Tensor>;

const F32: DType = DType::F32;
const BF16: DType = DType::BF16;

const EXPRESSIONS: &[(&str, DType, Expression)] = &[
    // Contraction: a product and a sum rounded once.
    ("a * b + c", F32, |[a, b, c, _]| (a * b)? + c),
    ("a * b - c", F32, |[a, b, c, _]| (a * b)? - c),
    ("a * a - b * b", F32, |[a, b, ..]| (a * a)? - &(b * b)?),
    ("a * b + p * q", F32, |[a, b, p, q]| (a * b)? + &(p * q)?),
    ("(a + b) * (a - b) - a * a", F32, |[a, b, ..]| (&(a + b)? * &(a - b)?)? - &(a * a)?),
    ("polynomial", F32, |[a, b, p, q]| (&((&((a * b)? + p)? * a)? + q)? * a)? + b),
    ("exp(a * b + c)", F32, |[a, b, c, _]| ((a * b)? + c)?.exp()),
    ("tanh(a * b - c)", F32, |[a, b, c, _]| ((a * b)? - c)?.tanh()),
    ("gelu", F32, |[a, ..]| gelu(a)),
    // Algebra across ops.
    ("exp(a) * exp(b)", F32, |[a, b, ..]| a.exp()? * &b.exp()?),
    ("a / exp(b)", F32, |[a, b, ..]| a / &b.exp()?),
    ("a / sqrt(p)", F32, |[a, _, p, _]| a / &p.sqrt()?),
    ("log(exp(a))", F32, |[a, ..]| a.exp()?.log()),
    ("(a / p) / q", F32, |[a, _, p, q]| (a / p)? / q),
    ("constants in a row", F32, |[a, ..]| (&(a * 1.3)? * 0.7)? * 2.1),
    ("sums of constants", F32, |[a, ..]| (&(a + 1.3)? + 0.7)? - 1.9),
    ("sqrt(p) * sqrt(q)", F32, |[_, _, p, q]| p.sqrt()? * &q.sqrt()?),
    ("p to the powers", F32, |[a, _, p, q]| p.pow(q)? * &p.pow(a)?),
    ("1 / rsqrt(p)", F32, |[_, _, p, _]| 1.0 / &p.rsqrt()?),
    // Kernels of a library with an exponential of its own.
    ("softmax", F32, |[a, ..]| softmax(a, 1)),
    ("log_softmax", F32, |[a, ..]| log_softmax(a, -1)),
    ("silu, softplus", F32, |[a, b, ..]| silu(a)? * &softplus(b)?),
    // Short floats between ops.
    ("a + b + c of bf16", BF16, |[a, b, c, _]| (a + b)? + c),
    ("a * b + c of bf16", BF16, |[a, b, c, _]| (a * b)? + c),
    ("softmax of bf16", BF16, |[a, ..]| softmax(a, 1)),
    // Sums fused with the ops that make their terms.
    ("sum of a * b", F32, |[a, b, ..]| (a * b)?.sum(&[1])),
    ("sum of exp(a) down the columns", F32, |[a, ..]| a.exp()?.sum(&[0])),
    ("layer_norm", F32, |[a, b, ..]| {
        let (scale, shift) = (b.narrow(0, 0, 1)?.squeeze(0)?, b.narrow(0, 1, 2)?.squeeze(0)?);
        layer_norm(a, &scale, &shift, 1e-5)
    }),
    ("rms_norm of bf16", BF16, |[a, b, ..]| rms_norm(a, &b.narrow(0, 0, 1)?.squeeze(0)?, 1e-5)),
    ("relu of a product of matrices", F32, |[a, b, c, _]| {
        ((&a.matmul(&b.transpose(&[1, 0])?)? * 0.1)?.matmul(c)? + c)?.maximum(a)
    }),
    // Algebra that fences do not prevent: the ops in between do not round.
    ("sum of a broadcast", F32, |[a, ..]| {
        a.narrow(0, 0, 1)?.broadcast_to(&[37, 66])?.sum(&[0])?.broadcast_to(&[52, 66])
    }),
    ("product of joined matrices", F32, |[a, b, c, d]| {
        let [wide, high] = [[a, b], [c, d]];
        Tensor::concatenate(&wide, 1)?.matmul(&Tensor::concatenate(&high, 1)?.transpose(&[1, 0])?)
    }),
    ("a matrix times ones", F32, |[a, ..]| a.matmul(&a.on_stream().full(1.0f32, &[66, 3])?)),
    ("products and negations", F32, |[a, b, c, _]| {
        a.neg()?.matmul(&b.transpose(&[1, 0])?.neg()?)?.matmul(&(c * -1.0)?)
    }),
    ("sums of sums", F32, |[a, ..]| a.reshape(&[13, 4, 66])?.sum(&[0])?.sum(&[0])),
    ("forces of all pairs", F32, |[a, _, p, _]| {
        let masses = p.narrow(1, 0, 1)?;
        let along: Vec<Tensor> = (0..3)
            .map(|axis| {
                let place = a.narrow(1, axis, axis + 1)?;
                place.transpose(&[1, 0])? - &place
            })
            .collect::<Result<_>>()?;
        let square = (((&along[0] * &along[0])? + &(&along[1] * &along[1])?)? + &(&along[2] * &along[2])?)?;
        let square = (&square + 0.01)?;
        let weight = (1.0 / &(&square * &square.sqrt()?)?)?;
        let forces = along.iter().map(|along| (along * &weight)?.matmul(&masses));
        let forces: Vec<Tensor> = forces.collect::<Result<_>>()?;
        let pairs = (&(&masses * &masses.transpose(&[1, 0])?)? / &square.sqrt()?)?.sum(&[0, 1])?;
        Tensor::concatenate(&forces.iter().collect::<Vec<_>>(), 1)? + &pairs.broadcast_to(&[52, 3])?
    }),
    // XLA emits an op differently inside a fusion.
    ("gelu_exact", F32, |[a, ..]| gelu_exact(a)),
    ("asinh(a * b) + c", F32, |[a, b, c, _]| (a * b)?.asinh()? + c),
];

/// The expressions whose results differ.
fn differing(engine: &Engine) -> Vec<&'static str> {
    let mut differing = Vec::new();
    for &(name, dtype, expression) in EXPRESSIONS {
        let mut random = Seeded::new(31);
        let mut data = || uniform(engine, &mut random, &[52, 66], dtype).unwrap();
        let (a, b, c, d) = (data(), data(), data(), data());
        let operands = [a, b, (&c.abs().unwrap() + 0.1).unwrap(), (&d.abs().unwrap() + 0.1).unwrap()];
        engine.synchronize().unwrap();
        let run = |mode| -> Result<Literal> {
            with_mode(mode, || {
                let result = expression(&operands)?;
                engine.synchronize()?;
                result.to_literal()
            })
        };
        let [fused, strict] = [Mode::Fused, Mode::Strict]
            .map(|mode| run(mode).unwrap_or_else(|error| panic!("{name}: {error}")));
        let count = different(&fused, &strict);
        if count > 0 {
            println!("{name}: {count} of {} elements", fused.ty().elems().0);
            differing.push(name);
        }
    }
    differing
}

#[test]
fn expressions_are_exact() {
    let Some(exact) = engine(Numerics::Exact) else { return };
    assert_eq!(differing(&exact), [""; 0]);
    // The comparison can fail.
    let fast = differing(&engine(Numerics::Fast).expect("as before"));
    println!("with fast numerics {} of {} expressions differ", fast.len(), EXPRESSIONS.len());
    assert!(fast.contains(&"a * b + c"), "{fast:?}");
}
