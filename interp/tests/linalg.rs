//! Fourier transforms, factorizations, normalization, and ops with sizes as operands, against their
//! definitions: every other executor is compared with the reference interpreter.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use fuseline_fusion::op::{FftType, RngDistribution, Transpose, attrs};
use fuseline_fusion::{Attrs, DType, Element, Literal, OpCode, Shape, Signature, TensorType};
use fuseline_interp::{self as interp, EvalError};
use fuseline_testgen::{Aim, Domain, Entropy as _, Seeded, fill};
use num_complex::Complex;

fn literal<T: Element>(dims: &[u64], data: &[T]) -> Arc<Literal> {
    Arc::new(Literal::from_slice(dims, data).expect("as many elements as the sizes say"))
}

fn eval(op: OpCode, attrs: Attrs, operands: &[Arc<Literal>]) -> Result<Vec<Literal>, EvalError> {
    let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
    let signature = Signature::infer(op, attrs, &[], &types).expect("the call fits");
    interp::call(&signature, operands)
}

/// The only result of a call.
fn run(op: OpCode, attrs: Attrs, operands: &[Arc<Literal>]) -> Literal {
    eval(op, attrs, operands).expect("runs").remove(0)
}

fn refused(op: OpCode, attrs: Attrs, operands: &[(DType, &[u64])]) -> String {
    let types: Vec<TensorType> =
        operands.iter().map(|(dtype, dims)| TensorType::of(*dtype, dims).expect("small")).collect();
    Signature::infer(op, attrs, &[], &types).expect_err("the call does not fit").to_string()
}

type C = Complex<f64>;

/// The elements as complex numbers, whatever their type.
fn numbers(data: &Literal) -> Vec<C> {
    let operand = Arc::new(data.clone());
    run(OpCode::Convert, attrs::convert(DType::C128), &[operand]).to_vec::<C>().expect("converted")
}

fn assert_near(what: &str, found: &[C], wanted: &[C], dtype: DType) {
    // A hundred roundings.
    let part = dtype.part().float_format().expect("a float").mantissa as i32;
    let most = 100.0 * f64::from(-part).exp2();
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (index, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((a - b).norm() <= most * (1.0 + b.norm()), "{what}: element {index} is {a}, not {b}");
    }
}

/// Elements of a matrix, by row and column.
fn at(matrix: &[C], size: usize, row: usize, column: usize) -> C {
    matrix[row * size + column]
}

const FACTORISED: [DType; 6] = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64, DType::C128];

/// A positive definite matrix with arbitrary data in the unused triangle.
fn half_known(seed: u64, dtype: DType, size: usize, lower: bool) -> (Arc<Literal>, Vec<C>) {
    let ty = TensorType::of(dtype, &[size as u64, size as u64]).expect("small");
    let whole = numbers(&fill(&mut Seeded::new(seed), &ty, Domain::PositiveDefinite, Aim::Portable));
    let known = |row: usize, column: usize| if lower { column <= row } else { column >= row };
    let half: Vec<C> = (0..size * size)
        .map(|index| if known(index / size, index % size) { whole[index] } else { C::new(99.0, 0.0) })
        .collect();
    let half = literal(&[size as u64, size as u64], &half);
    let real = || run(OpCode::Real, Attrs::none(), std::slice::from_ref(&half));
    let half = if dtype.is_complex() { half } else { Arc::new(real()) };
    (Arc::new(run(OpCode::Convert, attrs::convert(dtype), &[half])), whole)
}

#[test]
fn a_factor_times_its_adjoint_is_the_matrix() {
    for dtype in FACTORISED {
        for (seed, size) in (0..12).zip([0, 1, 2, 3, 4, 5, 7].into_iter().cycle()) {
            let lower = seed % 2 == 0;
            let (a, whole) = half_known(seed, dtype, size, lower);
            let factor = numbers(&run(OpCode::Cholesky, attrs::cholesky(lower), &[a]));
            let mut product = Vec::new();
            for row in 0..size {
                for column in 0..size {
                    let outside = if lower { column > row } else { column < row };
                    assert!(!outside || at(&factor, size, row, column) == C::default());
                    let term = |k: usize| match lower {
                        true => at(&factor, size, row, k) * at(&factor, size, column, k).conj(),
                        false => at(&factor, size, k, row).conj() * at(&factor, size, k, column),
                    };
                    product.push((0..size).map(term).sum::<C>());
                }
            }
            assert_near(&format!("{dtype}[{size}], lower: {lower}"), &product, &whole, dtype);
        }
    }
}

#[test]
fn factors_are_those_of_the_specification() {
    let a = literal(&[3, 3], &[1f32, 2.0, 3.0, 2.0, 20.0, 26.0, 3.0, 26.0, 70.0]);
    let factor = run(OpCode::Cholesky, attrs::cholesky(true), &[a]);
    assert_eq!(factor.to_vec::<f32>(), Ok(vec![1.0, 0.0, 0.0, 2.0, 4.0, 0.0, 3.0, 5.0, 6.0]));
    // Of two matrices, the one that is not positive definite has no factor.
    let pair = literal(&[2, 2, 2], &[4f64, 2.0, 2.0, 10.0, 1.0, 2.0, 2.0, 1.0]);
    let factors = run(OpCode::Cholesky, attrs::cholesky(false), &[pair]).to_vec::<f64>().expect("f64");
    assert_eq!(factors[..4], [2.0, 1.0, 0.0, 3.0]);
    assert!(factors[4..].iter().all(|x| x.is_nan()), "{factors:?}");
}

#[test]
fn a_solution_solves() {
    for dtype in FACTORISED {
        for choice in 0..48u64 {
            let flag = |bit: u32| choice >> bit & 1 == 1;
            let (left, lower, unit) = (flag(0), flag(1), flag(2));
            let transpose = Transpose::ALL[(choice >> 3) as usize % 3];
            let size = 1 + (choice % 5) as usize;
            let (a, whole) = half_known(choice, dtype, size, lower);
            let (rows, columns) = if left { (size, 2) } else { (2, size) };
            let ty = TensorType::of(dtype, &[rows as u64, columns as u64]).expect("small");
            let b = Arc::new(fill(&mut Seeded::new(choice + 1), &ty, Domain::Any, Aim::Portable));
            let attrs = attrs::triangular_solve(left, lower, unit, transpose);
            let x = numbers(&run(OpCode::TriangularSolve, attrs, &[a, b.clone()]));
            let triangle = |row: usize, column: usize| match row.cmp(&column) {
                std::cmp::Ordering::Equal if unit => C::new(1.0, 0.0),
                std::cmp::Ordering::Less if lower => C::default(),
                std::cmp::Ordering::Greater if !lower => C::default(),
                _ => at(&whole, size, row, column),
            };
            let factor = |row: usize, column: usize| match transpose {
                Transpose::No => triangle(row, column),
                Transpose::Transpose => triangle(column, row),
                Transpose::Adjoint => triangle(column, row).conj(),
            };
            let product: Vec<C> = (0..rows * columns)
                .map(|index| {
                    let (row, column) = (index / columns, index % columns);
                    let term = |k: usize| match left {
                        true => factor(row, k) * x[k * columns + column],
                        false => x[row * columns + k] * factor(k, column),
                    };
                    (0..size).map(term).sum()
                })
                .collect();
            let what = format!("{dtype}[{size}] left {left} lower {lower} unit {unit} {transpose:?}");
            assert_near(&what, &product, &numbers(&b), dtype);
        }
    }
}

/// The transform by its definition, over the last dimension.
fn transform(line: &[C], inverse: bool) -> Vec<C> {
    let size = line.len() as f64;
    let turn = if inverse { 1.0 } else { -1.0 } * std::f64::consts::TAU / size;
    let term = |j: usize| line.iter().enumerate().map(move |(k, x)| x * C::cis(turn * (j * k) as f64));
    (0..line.len()).map(|j| term(j).sum::<C>() / if inverse { size } else { 1.0 }).collect()
}

#[test]
fn transforms_are_sums_of_turned_elements() {
    for size in 1..10 {
        let ty = TensorType::of(DType::C128, &[size]).expect("small");
        let line = Arc::new(fill(&mut Seeded::new(size), &ty, Domain::Any, Aim::Portable));
        let length = [size as i64];
        for (kind, inverse) in [(FftType::Fft, false), (FftType::Ifft, true)] {
            let found = numbers(&run(OpCode::Fft, attrs::fft(kind, &length), std::slice::from_ref(&line)));
            assert_near(
                &format!("{kind:?} of {size}"),
                &found,
                &transform(&numbers(&line), inverse),
                DType::C128,
            );
        }
        let real = Arc::new(run(OpCode::Real, Attrs::none(), &[line]));
        let half = run(OpCode::Fft, attrs::fft(FftType::Rfft, &length), std::slice::from_ref(&real));
        let whole = transform(&numbers(&real), false);
        assert_near(
            &format!("Rfft of {size}"),
            &numbers(&half),
            &whole[..size as usize / 2 + 1],
            DType::C128,
        );
        let back = run(OpCode::Fft, attrs::fft(FftType::Irfft, &length), &[Arc::new(half)]);
        assert_near(&format!("Irfft of {size}"), &numbers(&back), &numbers(&real), DType::C128);
    }
}

/// Several dimensions: a round trip is the identity, and a wave along each is one element.
#[test]
fn transforms_of_several_dimensions_go_back() {
    for kinds in [(FftType::Fft, FftType::Ifft), (FftType::Rfft, FftType::Irfft)] {
        let dtype = if kinds.0 == FftType::Fft { DType::C128 } else { DType::F64 };
        let ty = TensorType::of(dtype, &[2, 3, 4, 5]).expect("small");
        let x = Arc::new(fill(&mut Seeded::new(7), &ty, Domain::Any, Aim::Portable));
        let there = run(OpCode::Fft, attrs::fft(kinds.0, &[3, 4, 5]), std::slice::from_ref(&x));
        let back = run(OpCode::Fft, attrs::fft(kinds.1, &[3, 4, 5]), &[Arc::new(there)]);
        assert_near(&format!("{kinds:?}"), &numbers(&back), &numbers(&x), dtype);
    }
    let turn = |k: usize, size: usize| C::cis(std::f64::consts::TAU * k as f64 / size as f64);
    let wave: Vec<C> = (0..12).map(|index| turn(2 * (index / 4), 3) * turn(index % 4, 4)).collect();
    let found = numbers(&run(OpCode::Fft, attrs::fft(FftType::Fft, &[3, 4]), &[literal(&[3, 4], &wave)]));
    let mut wanted = vec![C::default(); 12];
    wanted[2 * 4 + 1] = C::new(12.0, 0.0);
    assert_near("a wave", &found, &wanted, DType::C128);
    let empty = literal::<C>(&[3, 0], &[]);
    assert_eq!(run(OpCode::Fft, attrs::fft(FftType::Irfft, &[3, 0]), &[empty]).dims(), [3, 0]);
}

/// The examples of the specification, and numbers far from zero.
#[test]
fn normalisation_is_that_of_the_specification() {
    let operand = literal(&[2, 2, 2], &[1f64, 2.0, 3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    let pair = |a: f64, b: f64| literal(&[2], &[a, b]);
    let (ones, mean) = (pair(1.0, 1.0), pair(2.0, 3.0));
    let attrs = attrs::batch_norm(0.0, 2);
    let training = [operand.clone(), ones.clone(), ones.clone()];
    let results = eval(OpCode::BatchNormTraining, attrs.clone(), &training).expect("runs");
    let normal = vec![0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0];
    let vectors: Vec<Vec<f64>> = results.iter().map(|data| data.to_vec().expect("f64")).collect();
    assert_eq!(vectors, [normal.clone(), vec![2.0, 3.0], vec![1.0, 1.0]]);
    let inference = [operand.clone(), ones.clone(), ones.clone(), mean.clone(), ones.clone()];
    assert_eq!(run(OpCode::BatchNormInference, attrs.clone(), &inference).to_vec(), Ok(normal));
    let tenths = literal(&[2, 2, 2], &[0.1f64; 8]);
    let results =
        eval(OpCode::BatchNormGrad, attrs, &[operand, ones.clone(), mean, ones, tenths]).expect("runs");
    assert_near("grad_operand", &numbers(&results[0]), &[C::default(); 8], DType::F64);
    assert_near("grad_scale", &numbers(&results[1]), &[C::default(); 2], DType::F64);
    assert_near("grad_offset", &numbers(&results[2]), &[C::new(0.4, 0.0); 2], DType::F64);

    let far = literal(&[4, 1], &[10_000f32, 10_001.0, 10_002.0, 10_003.0]);
    let (one, zero) = (literal(&[1], &[1f32]), literal(&[1], &[0f32]));
    let results =
        eval(OpCode::BatchNormTraining, attrs::batch_norm(0.0, 1), &[far, one, zero]).expect("runs");
    assert_eq!(results[2].to_vec::<f32>(), Ok(vec![1.25]));
}

/// The gradients are those of the weighted sum of the outputs.
#[test]
fn gradients_are_differences_of_what_is_normalised() {
    let mut entropy = Seeded::new(3);
    let mut data = |dims: &[u64]| {
        let count: u64 = dims.iter().product();
        (0..count).map(|_| f64::from(entropy.draw(1000)) / 250.0 - 2.0).collect::<Vec<f64>>()
    };
    let (dims, features) = ([3, 2, 2], [2]);
    let (x, weights, scale, offset) = (data(&dims), data(&dims), data(&features), data(&features));
    let attrs = attrs::batch_norm(0.25, 1);
    let training = |x: &[f64], scale: &[f64], offset: &[f64]| {
        let operands = [literal(&dims, x), literal(&features, scale), literal(&features, offset)];
        eval(OpCode::BatchNormTraining, attrs.clone(), &operands).expect("runs")
    };
    let weighted = |x: &[f64], scale: &[f64], offset: &[f64]| -> f64 {
        let output = training(x, scale, offset)[0].to_vec::<f64>().expect("f64");
        output.iter().zip(&weights).map(|(y, w)| y * w).sum()
    };
    let results = training(&x, &scale, &offset);
    let statistics = [Arc::new(results[1].clone()), Arc::new(results[2].clone())];
    let [mean, variance] = statistics;
    let operands = [literal(&dims, &x), literal(&features, &scale), mean, variance, literal(&dims, &weights)];
    let gradients = eval(OpCode::BatchNormGrad, attrs.clone(), &operands).expect("runs");
    let moved = |data: &[f64], index: usize, by: f64| {
        let mut data = data.to_vec();
        data[index] += by;
        data
    };
    let difference = |at: &dyn Fn(f64) -> f64| (at(1e-5) - at(-1e-5)) / 2e-5;
    for (place, count) in [(0, 12), (1, 2), (2, 2)] {
        let found = gradients[place].to_vec::<f64>().expect("f64");
        assert_eq!(found.len(), count);
        for (index, found) in found.into_iter().enumerate() {
            let wanted = difference(&|by| match place {
                0 => weighted(&moved(&x, index, by), &scale, &offset),
                1 => weighted(&x, &moved(&scale, index, by), &offset),
                _ => weighted(&x, &scale, &moved(&offset, index, by)),
            });
            assert!((found - wanted).abs() < 1e-6, "{place} {index}: {found} not {wanted}");
        }
    }
}

/// Sizes that contradict the record are an error that names both.
#[test]
fn sizes_that_disagree_are_told() {
    let x = literal(&[2, 3], &[1f32; 6]);
    let to = attrs::reshape(Shape::new(&[3, 2]).expect("small"));
    let agrees = eval(OpCode::DynamicReshape, to.clone(), &[x.clone(), literal(&[2], &[3i64, 2])]);
    assert_eq!(agrees.expect("runs")[0].dims(), [3, 2]);
    for (sizes, said) in [
        ([6, 1], "output_shape is [6, 1], which gives f32[6, 1]"),
        ([7, 1], "output_shape is [7, 1], but reshape: f32[2, 3] has 6 elements"),
        ([-1, 6], "output_shape is [-1, 6], which is no shape"),
    ] {
        let error = eval(OpCode::DynamicReshape, to.clone(), &[x.clone(), literal(&[2], &sizes)]);
        let error = error.expect_err("disagrees").to_string();
        assert!(error.contains(said) && error.contains("recorded with the result f32[3, 2]"), "{error}");
    }
    let padded = attrs::reshape(Shape::new(&[4, 3]).expect("small"));
    let pad = |low: [i8; 2], interior: [u8; 2]| {
        let operands = [x.clone(), literal(&[], &[0f32]), literal(&[2], &low), literal(&[2], &[0i64, 0])];
        eval(OpCode::DynamicPad, padded.clone(), &[&operands[..], &[literal(&[2], &interior)]].concat())
    };
    assert!(pad([2, 0], [0, 0]).is_ok() && pad([1, 0], [1, 0]).is_ok());
    let error = pad([0, 0], [0, 0]).expect_err("disagrees").to_string();
    assert!(
        error.contains("edge_padding_low is [0, 0]") && error.contains("which gives f32[2, 3]"),
        "{error}"
    );
}

#[test]
fn what_is_drawn_is_known_where_there_is_one_number() {
    let shape = Shape::new(&[3]).expect("small");
    let draw = |kind, a: &Arc<Literal>, b: &Arc<Literal>, size: i32| {
        let operands = [a.clone(), b.clone(), literal(&[1], &[size])];
        eval(OpCode::Rng, attrs::rng(kind, shape.clone()), &operands)
    };
    let (four, five) = (Arc::new(Literal::scalar(4u8)), Arc::new(Literal::scalar(5u8)));
    let drawn = draw(RngDistribution::Uniform, &four, &five, 3).expect("one number");
    assert_eq!(drawn[0].to_vec::<u8>(), Ok(vec![4; 3]));
    let open = draw(RngDistribution::Uniform, &five, &four, 3).expect_err("no number");
    assert!(matches!(open, EvalError::Unspecified { .. }), "{open}");
    let disagrees = draw(RngDistribution::Uniform, &four, &five, 4).expect_err("another shape");
    assert!(matches!(disagrees, EvalError::Sizes { .. }), "{disagrees}");
    let (mean, none) = (Arc::new(Literal::scalar(1.5f32)), Arc::new(Literal::scalar(0f32)));
    let drawn = draw(RngDistribution::Normal, &mean, &none, 3).expect("one number");
    assert_eq!(drawn[0].to_vec::<f32>(), Ok(vec![1.5; 3]));
    assert!(draw(RngDistribution::Normal, &none, &mean, 3).is_err());
}

#[test]
fn refusals_say_what_to_do() {
    let shape = |dims: &[u64]| Shape::new(dims).expect("small");
    fn f32s(dims: &[u64]) -> (DType, &[u64]) {
        (DType::F32, dims)
    }
    let cases = [
        (
            refused(OpCode::Cholesky, attrs::cholesky(true), &[f32s(&[2, 3])]),
            "a has shape [2, 3]; it must have",
        ),
        (
            refused(
                OpCode::TriangularSolve,
                attrs::triangular_solve(true, true, false, Transpose::No),
                &[f32s(&[3, 3]), f32s(&[2, 3])],
            ),
            "did you mean left_side = false, or to transpose b?",
        ),
        (
            refused(OpCode::Fft, attrs::fft(FftType::Fft, &[4]), &[f32s(&[4])]),
            "did you mean RFFT, or to convert to complex?",
        ),
        (
            refused(OpCode::Fft, attrs::fft(FftType::Irfft, &[8]), &[(DType::C64, &[4])]),
            "fft_length is 8 for dimension 0 of size 4",
        ),
        (
            refused(
                OpCode::BatchNormTraining,
                attrs::batch_norm(0.1, 1),
                &[f32s(&[4, 3]), f32s(&[3]), f32s(&[4])],
            ),
            "offset has shape [4]; it must have one element per feature, but dimension 1 of the operand is 3",
        ),
        (
            refused(
                OpCode::DynamicReshape,
                attrs::reshape(shape(&[7])),
                &[f32s(&[2, 3]), (DType::I32, &[1])],
            ),
            "dynamic_reshape: f32[2, 3] has 6 elements, but shape [7] has 7",
        ),
        (
            refused(OpCode::DynamicIota, attrs::iota(DType::F32, shape(&[7]), 0), &[(DType::I32, &[2])]),
            "output_shape has shape [2]; it must have one element per dimension of the result, which is 1",
        ),
        (
            refused(OpCode::GetDimensionSize, attrs::get_dimension_size(-1), &[f32s(&[2, 3])]),
            "did you mean 1?",
        ),
    ];
    for (error, said) in cases {
        assert!(error.contains(said), "{error:?} does not say {said:?}");
    }
}
