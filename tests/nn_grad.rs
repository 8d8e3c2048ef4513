//! The rules of `fuseline::nn::grad` against finite differences, in f64 on the reference device.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[path = "../examples/common/random.rs"]
#[allow(dead_code, reason = "the test uses a part")]
mod random;

use std::sync::LazyLock;

use fuseline::nn::grad::{self, Convolution};
use fuseline::nn::{self, Attention, CrossEntropy, Reduction};
use fuseline::{DType, Engine, Result, Tensor};
use random::Random;

/// One engine for all, since its tensors are what the rules close over.
fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(Engine::reference);
    &ENGINE
}

/// Step of the finite differences. Their error is about its square, beside rounding of about 1e-16 divided by it.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// Checks the rules of a function of tensors with the given sizes, at random places. `rules` get the operands and the gradient
/// of the result, and return those of the first operands. What is differentiated is the sum of the result weighted with fixed
/// random numbers, so that no two elements' errors cancel.
#[track_caller]
fn check(
    shapes: &[&[u64]],
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    rules: impl Fn(&[Tensor], &Tensor) -> Result<Vec<Tensor>>,
) {
    let engine = engine();
    let mut random = Random::new(5);
    let mut draw = |count: u64| (0..count).map(|_| random.normal()).collect::<Vec<f64>>();
    let mut data: Vec<Vec<f64>> = shapes.iter().map(|dims| draw(dims.iter().product())).collect();
    let tensors = |data: &[Vec<f64>]| -> Vec<Tensor> {
        data.iter().zip(shapes).map(|(data, dims)| engine.tensor(data, dims).unwrap()).collect()
    };
    let operands = tensors(&data);
    let result = function(&operands).unwrap();
    let weights = engine.tensor(&draw(result.ty().elems().0), result.dims()).unwrap();
    let axes: Vec<i64> = (0..result.rank() as i64).collect();
    let gradients = rules(&operands, &weights).unwrap();
    assert!(!gradients.is_empty());
    for (operand, gradient) in gradients.iter().enumerate() {
        assert_eq!((gradient.dims(), gradient.dtype()), (shapes[operand], DType::F64), "operand {operand}");
        for (i, found) in gradient.to_vec::<f64>().unwrap().into_iter().enumerate() {
            let before = data[operand][i];
            let mut at = |offset: f64| {
                data[operand][i] = before + offset;
                let result = function(&tensors(&data)).unwrap();
                result.mul(&weights).unwrap().sum(&axes).unwrap().item::<f64>().unwrap()
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            data[operand][i] = before;
            let error = (found - expected).abs() / expected.abs().max(1.0);
            assert!(error < TOLERANCE, "operand {operand}, element {i}: {found}, by differences {expected}");
        }
    }
}

/// A function of one operand, whose rule gets the operand, the result and the gradient.
#[track_caller]
fn check_one(
    dims: &[u64],
    function: impl Fn(&Tensor) -> Result<Tensor>,
    rule: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) {
    let both = |x: &[Tensor], g: &Tensor| Ok(vec![rule(&x[0], &function(&x[0])?, g)?]);
    check(&[dims], |x| function(&x[0]), both);
}

#[test]
fn activations() {
    check_one(&[2, 5], nn::relu, |_, y, g| grad::relu(y, g));
    check_one(&[2, 5], nn::silu, |x, _, g| grad::silu(x, g));
    check_one(&[2, 5], nn::gelu, |x, _, g| grad::gelu(x, g));
}

#[test]
fn over_a_dimension() {
    for axis in [0, 1, -1] {
        check_one(&[2, 3, 2], |x| nn::softmax(x, axis), |_, y, g| grad::softmax(y, axis, g));
        check_one(&[2, 3, 2], |x| nn::log_softmax(x, axis), |_, y, g| grad::log_softmax(y, axis, g));
        check_one(&[2, 3, 2], |x| nn::logsumexp(x, &[axis]), |x, y, g| grad::logsumexp(x, y, &[axis], g));
        check_one(&[2, 3, 2], |x| x.sum(&[axis]), |x, _, g| grad::sum(g, x.dims(), &[axis]));
    }
    check_one(&[2, 3, 2], |x| nn::logsumexp(x, &[0, 2]), |x, y, g| grad::logsumexp(x, y, &[0, 2], g));
    check_one(&[2, 3], |x| x.broadcast_to(&[4, 2, 3]), |x, _, g| grad::unbroadcast(g, x.dims()));
    check_one(&[1, 3], |x| x.broadcast_to(&[2, 3]), |x, _, g| grad::unbroadcast(g, x.dims()));
    check_one(&[], |x| x.broadcast_to(&[2, 3]), |x, _, g| grad::unbroadcast(g, x.dims()));
}

#[test]
fn norms() {
    for axes in [&[-1][..], &[0], &[1, 2]] {
        let rule = |x: &Tensor, g: &Tensor| {
            let (normal, scale) = nn::normalize(x, axes, 1e-2)?;
            grad::normalize(&normal, &scale, axes, g)
        };
        check_one(&[2, 3, 2], |x| Ok(nn::normalize(x, axes, 1e-2)?.0), |x, _, g| rule(x, g));
    }
    let rms = |x: &[Tensor]| nn::rms_norm(&x[0], &x[1], 1e-2);
    check(&[&[3, 4], &[4]], rms, |x, g| Ok(vec![grad::rms_norm(&x[0], &x[1], 1e-2, g)?]));
}

#[test]
fn cross_entropies() {
    let engine = engine();
    let labels = engine.tensor(&[0i32, 2, -100, 1], &[4]).unwrap();
    let valid = engine.tensor(&[0u8, 2, 1, 1], &[4]).unwrap();
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        for label_smoothing in [0.0, 0.2] {
            let settings = CrossEntropy { reduction, label_smoothing, ..CrossEntropy::default() };
            let ignoring = CrossEntropy { ignored: Some(-100), ..settings };
            for (labels, settings) in [(&valid, settings), (&labels, ignoring)] {
                check_one(
                    &[4, 3],
                    |x| nn::cross_entropy_with(x, labels, &settings),
                    |x, _, g| grad::cross_entropy(x, labels, &settings, g),
                );
            }
        }
    }
    let weights = engine.tensor(&[1.0f64, 2.0, 3.0], &[3]).unwrap();
    let weighted = CrossEntropy { weights: Some(&weights), ..CrossEntropy::default() };
    let logits = engine.tensor(&[0.5f64; 12], &[4, 3]).unwrap();
    let error = grad::cross_entropy(&logits, &valid, &weighted, &engine.scalar(1.0f64)).unwrap_err();
    assert!(error.to_string().contains("equal weight"), "{error}");
}

#[test]
fn products() {
    let shapes: &[(&[u64], &[u64])] = &[
        (&[2, 3], &[3, 4]),
        (&[2, 2, 3], &[2, 3, 2]),
        (&[2, 2, 3], &[3, 2]),
        (&[2, 3], &[2, 3, 2]),
        (&[2, 1, 2, 3], &[3, 3, 2]),
        (&[3], &[3]),
        (&[3], &[3, 2]),
        (&[2, 3], &[3]),
        (&[3], &[2, 3, 2]),
        (&[2, 2, 3], &[3]),
    ];
    for (lhs, rhs) in shapes {
        check(
            &[lhs, rhs],
            |x| x[0].matmul(&x[1]),
            |x, g| Ok(vec![grad::matmul_lhs(lhs, &x[1], g)?, grad::matmul_rhs(&x[0], rhs, g)?]),
        );
    }
}

#[test]
fn tables_small_and_large() {
    let engine = engine();
    let indices = engine.tensor(&[1i32, 0, 2, 1], &[2, 2]).unwrap();
    check_one(&[3, 2], |t| nn::embedding(t, &indices), |t, _, g| grad::embedding(&indices, t.dims()[0], g));
    // A table of so many rows is added to row by row; most of its gradient is zeros, of which some are looked at.
    let gradient = engine.tensor(&[1.0f64, 2.0, 3.0, 4.0], &[4, 1]).unwrap();
    let rows = engine.tensor(&[5i64, 1999, 5, 0], &[4]).unwrap();
    let sums = grad::embedding(&rows, 2000, &gradient).unwrap();
    assert_eq!(sums.dims(), [2000, 1]);
    let sums = sums.to_vec::<f64>().unwrap();
    assert_eq!((sums[0], sums[5], sums[1999], sums.iter().sum::<f64>()), (4.0, 4.0, 2.0, 10.0));
}

#[test]
fn attentions() {
    for (heads, groups, causal) in [(2, 2, None), (4, 2, None), (2, 1, Some(0))] {
        let shapes: [&[u64]; 3] = [&[1, heads, 3, 2], &[1, groups, 3, 2], &[1, groups, 3, 4]];
        let forward = |x: &[Tensor]| {
            nn::attention(&x[0], &x[1], &x[2], Attention { causal, scale: Some(0.7), ..Attention::default() })
        };
        check(
            &shapes,
            |x| Ok(forward(x)?.0),
            |x, g| Ok(grad::attention([&x[0], &x[1], &x[2]], &forward(x)?.1, 0.7, g)?.to_vec()),
        );
    }
}

#[test]
fn convolutions_with_steps_padding_and_dilation() {
    let check_conv = |image: &[u64], kernel: &[u64], conv: Convolution| {
        check(
            &[image, kernel],
            |x| conv.apply(&x[0], &x[1]),
            |x, g| Ok(vec![conv.input_gradient(image, &x[1], g)?, conv.kernel_gradient(&x[0], kernel, g)?]),
        );
    };
    let plain = Convolution::new(2);
    check_conv(&[2, 4, 4, 2], &[3, 3, 2, 1], plain.clone());
    let mixed = Convolution { stride: vec![2, 1], padding: vec![(1, 0), (0, 2)], ..plain.clone() };
    check_conv(&[1, 5, 4, 1], &[2, 3, 1, 2], mixed);
    // The last rows and columns that no window reaches get no gradient.
    check_conv(&[1, 6, 6, 1], &[2, 2, 1, 1], Convolution { stride: vec![3, 3], ..plain });
    check_conv(&[2, 7, 1], &[2, 1, 2], Convolution { dilation: vec![3], ..Convolution::new(1) });
    let all = Convolution { dilation: vec![2], stride: vec![2], padding: vec![(1, 1)] };
    check_conv(&[2, 8, 1], &[3, 1, 2], all);
    check_conv(&[1, 3, 3, 3, 1], &[2, 2, 2, 1, 1], Convolution::new(3));

    let engine = engine();
    let x = engine.tensor(&[0.0f64; 4], &[1, 2, 2, 1]).unwrap();
    let error = Convolution::new(1).input_gradient(&[1, 2, 2, 1], &x, &x).unwrap_err();
    assert!(error.to_string().contains("one entry per dimension of space"), "{error}");
}
