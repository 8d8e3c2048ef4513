//! The examples' tape: every gradient against finite differences, in f64 on the reference
//! interpreter.
#![allow(missing_docs, dead_code, clippy::unwrap_used, reason = "a test of a part of the examples")]

use fuseline::nn::{Layout, Method, Pool, Resize};
use fuseline::random::Generator;
use fuseline::{DType, Engine, Result, Tensor};

use crate::examples::random::Random;
use crate::examples::tape::{Tape, Var};

/// The step of the finite differences. The error is about its square, plus the rounding error of
/// about 1e-16 divided by it.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// Checks the gradients of `function` at random points. Its result may have any shape: the
/// differentiated value is its sum, weighted with fixed random numbers, so that errors of different
/// elements do not cancel.
#[track_caller]
fn check(shapes: &[&[usize]], function: impl for<'t> Fn(&[Var<'t>]) -> Result<Var<'t>>) {
    let engine = Engine::reference();
    let mut random = Random::new(7);
    let data: Vec<Vec<f64>> = shapes
        .iter()
        .map(|dims| (0..dims.iter().product::<usize>()).map(|_| random.normal()).collect())
        .collect();
    let weights: Vec<f64> = (0..4096).map(|_| random.normal()).collect();

    let value = |data: &[Vec<f64>], gradients: bool| -> Result<(f64, Vec<Tensor>)> {
        let tape = Tape::new();
        let mut leaves = Vec::new();
        for (dims, data) in shapes.iter().zip(data) {
            leaves.push(tape.leaf(&engine.tensor(data, dims)?));
        }
        let result = function(&leaves)?;
        let count = result.value().ty().elems().0 as usize;
        let weights = tape.constant(&engine.tensor(&weights[..count], result.dims())?);
        let axes: Vec<i64> = (0..result.dims().len() as i64).collect();
        let total = result.mul(&weights)?.sum(&axes)?;
        let found = if gradients { tape.gradients(&total, &leaves)? } else { Vec::new() };
        Ok((total.value().item()?, found))
    };

    let (_, gradients) = value(&data, true).unwrap();
    for (leaf, gradient) in gradients.iter().enumerate() {
        assert_eq!(gradient.dims(), shapes[leaf], "the gradient of input {leaf} has its shape");
        assert_eq!(gradient.dtype(), DType::F64);
        for (i, found) in gradient.to_vec::<f64>().unwrap().into_iter().enumerate() {
            let at = |offset: f64| {
                let mut data = data.clone();
                data[leaf][i] += offset;
                value(&data, false).unwrap().0
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let error = (found - expected).abs() / expected.abs().max(1.0);
            assert!(error < TOLERANCE, "input {leaf}, element {i}: {found}, by differences {expected}");
        }
    }
}

#[test]
fn sums_and_products_that_broadcast() {
    check(&[&[2, 3], &[2, 3]], |v| v[0].add(&v[1]));
    check(&[&[2, 3], &[3]], |v| v[0].add(&v[1]));
    check(&[&[1], &[2, 1, 3]], |v| v[0].add(&v[1]));
    check(&[&[2, 3], &[2, 1]], |v| v[0].mul(&v[1]));
    check(&[&[], &[4]], |v| v[0].mul(&v[1]));
}

#[test]
fn a_value_used_twice_adds_up_its_gradients() {
    check(&[&[3]], |v| v[0].mul(&v[0])?.add(&v[0]));
}

#[test]
fn numbers_shapes_and_sums() {
    check(&[&[2, 3]], |v| v[0].scale(-2.5));
    check(&[&[2, 6]], |v| v[0].reshape(&[3, 4]));
    check(&[&[2, 3, 4]], |v| v[0].transpose(&[1, 2, 0]));
    check(&[&[2, 5, 3]], |v| v[0].narrow(1, 1, 4));
    // One part is used twice and one not at all.
    check(&[&[2, 6]], |v| {
        let parts = v[0].mul(&v[0])?.split(1, 3)?;
        parts[2].mul(&parts[0])?.add(&parts[0])
    });
    check(&[&[2, 3, 4]], |v| v[0].sum(&[1]));
    check(&[&[2, 3, 4]], |v| v[0].sum(&[-1, 0]));
    check(&[&[2, 3]], |v| v[0].mean());
}

#[test]
fn activations() {
    check(&[&[20]], |v| v[0].relu());
    check(&[&[20]], |v| v[0].gelu());
    check(&[&[20]], |v| v[0].logistic());
    check(&[&[20]], |v| v[0].tanh());
}

#[test]
fn matrix_products() {
    check(&[&[2, 3], &[3, 4]], |v| v[0].matmul(&v[1]));
    check(&[&[2, 2, 3, 4], &[2, 2, 4, 2]], |v| v[0].matmul(&v[1]));
}

#[test]
fn convolutions() {
    check(&[&[2, 5, 4, 2], &[3, 3, 2, 3]], |v| v[0].conv2d(&v[1], 1, 1));
    check(&[&[1, 5, 6, 1], &[3, 2, 1, 2]], |v| v[0].conv2d(&v[1], 1, 0));
    // With a stride, also if it does not divide the rest of the image.
    check(&[&[1, 8, 8, 2], &[3, 3, 2, 2]], |v| v[0].conv2d(&v[1], 2, 1));
    check(&[&[1, 7, 6, 1], &[2, 2, 1, 2]], |v| v[0].conv2d(&v[1], 3, 0));
}

#[test]
fn mean_pooling() {
    check(&[&[2, 4, 6, 2]], |v| v[0].mean_pool(2));
}

#[test]
fn pools_and_images_of_another_size() {
    let pool = Pool { stride: vec![1, 2], layout: Layout::ChannelsLast, ..Pool::new(&[2, 2]) };
    check(&[&[2, 4, 5, 2]], |v| v[0].max_pool(&pool));
    check(&[&[2, 4, 5, 2]], |v| v[0].avg_pool(&pool));
    let settings = Resize { method: Method::Linear, ..Resize::default() };
    check(&[&[1, 2, 3, 4]], |v| v[0].resize(&[5, 2], settings));
}

#[test]
fn dropout() {
    check(&[&[20]], |v| v[0].dropout(0.4, &mut Generator::new(&v[0].value().on_stream(), 3)?));
}

#[test]
fn softmax_and_cross_entropy() {
    check(&[&[3, 4]], |v| v[0].softmax());
    let engine = Engine::reference();
    let labels = engine.tensor(&[1i32, 0, 3], &[3]).unwrap();
    check(&[&[3, 4]], |v| {
        // The labels belong to another engine, so they go through the host.
        v[0].cross_entropy(&v[0].value().on_stream().from_literal(&labels.to_literal()?)?)
    });
}

#[test]
fn batch_norm() {
    check(&[&[2, 3, 5], &[5], &[5]], |v| v[0].normalize(&[0, 1], 1e-5)?.mul(&v[1])?.add(&v[2]));
}

#[test]
fn layer_norm() {
    check(&[&[2, 3, 5], &[5], &[5]], |v| v[0].layer_norm(&v[1], &v[2], 1e-5));
}

#[test]
fn embedding() {
    // One row twice, one never.
    check(&[&[4, 3]], |v| {
        let indices = v[0].value().on_stream().tensor(&[2i32, 0, 2, 3], &[2, 2])?;
        v[0].embedding(&indices)
    });
}

#[test]
fn attention_of_its_pieces() {
    check(&[&[1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3, 4]], |v| {
        let mask = fuseline::nn::causal_mask(v[0].value(), 3)?;
        let mask = v[0].tape().constant(&mask);
        let scores = v[0].matmul(&v[1].transpose(&[0, 1, 3, 2])?)?.scale(0.5)?.add(&mask)?;
        scores.softmax()?.matmul(&v[2])
    });
}

#[test]
fn what_the_loss_does_not_depend_on_has_a_gradient_of_zeros() -> Result<()> {
    let engine = Engine::reference();
    let tape = Tape::new();
    let used = tape.leaf(&engine.tensor(&[1.0f32, 2.0], &[2])?);
    let unused = tape.leaf(&engine.tensor(&[3.0f32], &[1])?);
    let data = tape.constant(&engine.tensor(&[5.0f32, 7.0], &[2])?);
    let loss = used.mul(&data)?.sum(&[0])?;
    let gradients = tape.gradients(&loss, &[used, unused])?;
    assert_eq!(gradients[0].to_vec::<f32>()?, [5.0, 7.0]);
    assert_eq!(gradients[1].to_vec::<f32>()?, [0.0]);
    // A loss that depends on no leaf.
    let alone = Tape::new();
    let leaf = alone.leaf(gradients.first().expect("two gradients"));
    let loss = alone.constant(&engine.tensor(&[1.0f32], &[])?);
    assert_eq!(alone.gradients(&loss, &[leaf])?[0].to_vec::<f32>()?, [0.0, 0.0]);
    Ok(())
}
