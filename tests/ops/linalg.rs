//! Factorizations, normalization, random numbers and run-time sizes, on the plugin: where XLA
//! differs from the specification, or where only limits are specified.

use fuseline::fusion::Shape;
use fuseline::fusion::op::{RngDistribution, attrs};
use fuseline::{Attrs, DType, Element, Engine, Mode, OpCode, Stream, Tensor, with_mode};

use crate::support;

fn plugins() -> Vec<Engine> {
    support::plugins_of_all_tiers("what XLA computes in its own way", support::config)
}

fn record(stream: &Stream, op: OpCode, attrs: Attrs, operands: &[&Tensor]) -> Vec<Tensor> {
    stream.record(op, attrs, &[], operands).unwrap().into_vec()
}

/// Draws numbers from a distribution.
fn drawn<T: Element>(stream: &Stream, kind: RngDistribution, a: T, b: T, count: u64) -> Vec<T> {
    let ends = [stream.tensor(&[a], &[]).unwrap(), stream.tensor(&[b], &[]).unwrap()];
    let size = stream.tensor(&[count as i64], &[1]).unwrap();
    let attrs = attrs::rng(kind, Shape::new(&[count]).unwrap());
    record(stream, OpCode::Rng, attrs, &[&ends[0], &ends[1], &size])[0].to_vec().unwrap()
}

/// Mean and variance.
fn moments(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = numbers.clone().count() as f64;
    let mean = numbers.clone().sum::<f64>() / count;
    (mean, numbers.map(|x| (x - mean) * (x - mean)).sum::<f64>() / count)
}

const DRAWS: u64 = 20_000;

/// Six standard errors of the mean of these numbers with this variance.
fn error_of_mean(variance: f64) -> f64 {
    6.0 * (variance / DRAWS as f64).sqrt()
}

#[test]
fn floats_are_drawn_between_their_ends_and_around_their_mean() {
    for engine in plugins() {
        let stream = engine.stream();
        macro_rules! check {
            ($($ty:ty, $from:expr, $to:expr, $step:expr);* $(;)?) => {$(
                let name = std::any::type_name::<$ty>();
                let uniform = drawn::<$ty>(stream, RngDistribution::Uniform, $from(-1.0), $from(3.0), DRAWS);
                let uniform: Vec<f64> = uniform.into_iter().map($to).collect();
                assert!(uniform.iter().all(|x| (-1.0..3.0).contains(x)), "{name}");
                // Rounding moves a number by at most one step.
                let (mean, variance) = moments(uniform.iter().copied());
                let wanted = 16.0 / 12.0;
                assert!((mean - 1.0).abs() < error_of_mean(wanted) + $step, "{name}: mean {mean}");
                assert!((variance / wanted - 1.0).abs() < 0.1, "{name}: variance {variance}");
                let normal = drawn::<$ty>(stream, RngDistribution::Normal, $from(5.0), $from(2.0), DRAWS);
                let normal: Vec<f64> = normal.into_iter().map($to).collect();
                let (mean, variance) = moments(normal.iter().copied());
                assert!((mean - 5.0).abs() < error_of_mean(4.0) + $step, "{name}: mean {mean}");
                assert!((variance / 4.0 - 1.0).abs() < 0.1, "{name}: variance {variance}");
                let within = normal.iter().filter(|x| (**x - 5.0).abs() < 2.0).count() as f64 / DRAWS as f64;
                assert!((within - 0.6827).abs() < 0.02 + $step, "{name}: {within} within one deviation");
            )*};
        }
        check! {
            f32, |x: f64| x as f32, f64::from, 0.0;
            f64, |x: f64| x, |x| x, 0.0;
            half::f16, half::f16::from_f64, |x: half::f16| x.to_f64(), 0.002;
            half::bf16, half::bf16::from_f64, |x: half::bf16| x.to_f64(), 0.02;
        }
    }
}

/// Short integers too, on which XLA's generator aborts.
#[test]
fn integers_are_drawn_between_their_ends() {
    for engine in plugins() {
        let stream = engine.stream();
        macro_rules! check {
            ($($ty:ty, $a:expr, $b:expr);* $(;)?) => {$(
                let numbers = drawn::<$ty>(stream, RngDistribution::Uniform, $a, $b, DRAWS);
                let count = ($b as i128 - $a as i128) as f64;
                for value in $a..$b {
                    let found = numbers.iter().filter(|&&number| number == value).count() as f64;
                    // Ten standard deviations of a count.
                    let wanted = DRAWS as f64 / count;
                    assert!((found - wanted).abs() < 10.0 * wanted.sqrt(), "{} {value}: {found}", stringify!($ty));
                }
                assert!(numbers.iter().all(|number| ($a..$b).contains(number)), "{}", stringify!($ty));
            )*};
        }
        check! {
            i8, -5, 5; i16, -300, -290; i32, -2, 9; i64, 1i64 << 40, (1i64 << 40) + 7;
            u8, 250, 255; u16, 0, 3; u32, 4_000_000_000, 4_000_000_004; u64, u64::MAX - 4, u64::MAX;
        }
        assert!(drawn(stream, RngDistribution::Uniform, false, true, 100).iter().all(|&drawn| !drawn));
    }
}

/// Two draws return different numbers, in one region and in two, and a value that is read twice is
/// drawn once.
#[test]
fn each_draw_gives_other_numbers_and_each_value_has_one() {
    for engine in plugins() {
        let stream = engine.stream();
        let (a, b) = (stream.scalar(0f32), stream.scalar(1f32));
        let size = stream.tensor(&[64i64], &[1]).unwrap();
        let draw = || {
            let attrs = attrs::rng(RngDistribution::Uniform, Shape::new(&[64]).unwrap());
            record(stream, OpCode::Rng, attrs, &[&a, &b, &size]).remove(0)
        };
        for mode in [Mode::Fused, Mode::Strict, Mode::Debug] {
            with_mode(mode, || {
                let (x, y) = (draw(), draw());
                // Used by two ops and returned as well.
                let (twice, square) = ((&x + &x).unwrap(), (&x * &x).unwrap());
                let [x, y, twice, square] = [x, y, twice, square].map(|t| t.to_vec::<f32>().unwrap());
                assert_ne!(x, y, "{}", mode.name());
                assert_ne!(x, draw().to_vec::<f32>().unwrap(), "{}", mode.name());
                let agree = |x: &f32, double: f32, square: f32| double == x + x && square == x * x;
                assert!((0..64).all(|i| agree(&x[i], twice[i], square[i])), "{}", mode.name());
            });
        }
    }
}

/// XLA's own expansion returns a variance of 0 here.
#[test]
fn numbers_far_from_zero_keep_their_variance() {
    for engine in support::engines_of_all_tiers(support::config) {
        let stream = engine.stream();
        let x = stream.tensor(&[10_000f32, 10_001.0, 10_002.0, 10_003.0], &[4, 1]).unwrap();
        let (scale, offset) = (stream.tensor(&[1f32], &[1]).unwrap(), stream.tensor(&[0f32], &[1]).unwrap());
        let results =
            record(stream, OpCode::BatchNormTraining, attrs::batch_norm(0.0, 1), &[&x, &scale, &offset]);
        assert_eq!(results[1].to_vec::<f32>().unwrap(), [10_001.5]);
        assert_eq!(results[2].to_vec::<f32>().unwrap(), [1.25]);
        let normal = results[0].to_vec::<f32>().unwrap();
        for (found, centred) in normal.iter().zip([-1.5f32, -0.5, 0.5, 1.5]) {
            assert!((found - centred / 1.25f32.sqrt()).abs() < 1e-5, "{engine:?}: {normal:?}");
        }
    }
}

/// If one matrix of a batch has no factor, the others still have theirs, in every executor.
#[test]
fn a_matrix_without_a_factor_has_nan() {
    for engine in support::engines_of_all_tiers(support::config) {
        let stream = engine.stream();
        let a = stream.tensor(&[4f64, 2.0, 2.0, 10.0, 1.0, 2.0, 2.0, 1.0], &[2, 2, 2]).unwrap();
        let factors = record(stream, OpCode::Cholesky, attrs::cholesky(true), &[&a]).remove(0);
        let factors = factors.to_vec::<f64>().unwrap();
        for (found, wanted) in factors.iter().zip([2.0, 0.0, 1.0, 3.0]) {
            assert!((found - wanted).abs() < 1e-12, "{engine:?}: {factors:?}");
        }
        assert!(factors[4..].iter().all(|x| x.is_nan()), "{engine:?}: {factors:?}");
    }
}

/// Operands that contradict the record have no meaning, but the result has the recorded type, and
/// nothing is read or divided out of range. The interpreter refuses them.
#[test]
fn sizes_that_disagree_crash_nothing() {
    for engine in plugins() {
        let reference = Engine::reference();
        let amounts = [i64::MIN, -7, -1, 0, 1, 5, i64::MAX];
        let shape = Shape::new(&[5, 2]).unwrap();
        for &low in &amounts {
            for &interior in &amounts {
                let padded = |engine: &Engine| {
                    let stream = engine.stream();
                    let x = stream.tensor(&[1i32, 2, 3, 4, 5, 6], &[3, 2])?;
                    let fill = stream.tensor(&[-1i32], &[])?;
                    let low = stream.tensor(&[low, 0], &[2])?;
                    let (high, interior) =
                        (stream.tensor(&[9i64, 9], &[2])?, stream.tensor(&[interior, 0], &[2])?);
                    let operands = [&x, &fill, &low, &high, &interior];
                    stream.record(OpCode::DynamicPad, attrs::reshape(shape.clone()), &[], &operands)?[0]
                        .to_vec::<i32>()
                };
                let found = padded(&engine).unwrap();
                assert!(
                    found.len() == 10 && found.iter().all(|x| (-1..=6).contains(x)),
                    "{low} {interior}: {found:?}"
                );
                let refused = padded(&reference).unwrap_err().to_string();
                assert!(refused.contains("recorded with the result i32[5, 2]"), "{refused}");
            }
        }
        let stream = engine.stream();
        let x = stream.tensor(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
        for sizes in [[0i64, 0], [6, 1], [-1, i64::MAX]] {
            let sizes = stream.tensor(&sizes, &[2]).unwrap();
            let to = attrs::reshape(Shape::new(&[3, 2]).unwrap());
            let reshaped = record(stream, OpCode::DynamicReshape, to, &[&x, &sizes]).remove(0);
            assert_eq!((reshaped.dims(), reshaped.dtype()), (&[3, 2][..], DType::F32));
            assert_eq!(reshaped.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        }
    }
}
