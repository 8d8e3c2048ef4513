//! Tensors without operands: constants, sequences, random numbers.

use fuseline::fusion::element;
use fuseline::random::Generator;
use fuseline::{DType, Engine, Error, Event, Literal, Result, Scalar, Shape, Site, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::support::{self, on_all_tiers, refused};

#[test]
fn zeros_and_ones_are_those_of_every_type() -> Result<()> {
    let engine = Engine::reference();
    for dtype in DType::ALL {
        for (made, number) in [(engine.zeros(dtype, &[2, 3])?, 0.0), (engine.ones(dtype, &[2, 3])?, 1.0)] {
            assert_eq!((made.dtype(), made.dims()), (dtype, &[2, 3][..]));
            let expected = match number {
                0.0 => Literal::zeros(made.ty().clone()),
                number => engine.stream().splat(Literal::of_f64(dtype, number), &[2, 3])?.to_literal()?,
            };
            assert_eq!(made.to_literal()?.bytes(), expected.bytes(), "{dtype}");
        }
    }
    assert_eq!(engine.ones(DType::F64, &[2])?.to_vec::<f64>()?, [1.0, 1.0]);
    assert!(engine.ones(DType::Bool, &[])?.item::<bool>()?);
    assert!(engine.zeros(DType::I32, &[0, 4])?.to_vec::<i32>()?.is_empty());
    Ok(())
}

/// Sizes are `usize`, as in Rust's collections: literals, lengths and sizes of other tensors need
/// no cast.
#[test]
fn sizes_are_literals_lengths_and_sizes_of_tensors() -> Result<()> {
    let engine = Engine::reference();
    let data = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let rows = data.chunks(3).len();
    let x = engine.tensor(&data, &[rows, 3])?;
    let same: Vec<usize> = x.dims().to_vec();
    assert_eq!(
        (x.reshape(&[data.len()])?.dims(), engine.zeros(x.dtype(), &same)?.dims()),
        (&[6][..], &[2, 3][..])
    );
    assert_eq!(engine.zeros(x.dtype(), x.dims())?.reshape(&[x.dims()[0] * x.dims()[1]])?.rank(), 1);
    assert_eq!((&data[..x.dims()[1]], engine.scalar(1).dims()), (&[1.0, 2.0, 3.0][..], &[][..]));
    // Sizes of read data and of types belong to the record layer.
    let read = x.to_literal()?;
    assert_eq!((read.sizes(), x.shape().sizes(), x.ty().sizes()), (x.dims(), x.dims(), x.dims()));
    assert_eq!(Shape::try_from(x.dims())?, *x.shape());
    Ok(())
}

#[test]
fn identity_matrices_leave_what_they_multiply() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
        assert_eq!(engine.eye(DType::F32, 3)?.matmul(&x)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
        assert_eq!(engine.eye(DType::I8, 2)?.to_vec::<i8>()?, [1, 0, 0, 1]);
        assert_eq!(engine.eye(DType::Bool, 0)?.dims(), [0, 0]);
        Ok(())
    });
}

#[test]
fn sequences_have_the_numbers_type_and_end_before_the_limit() {
    on_all_tiers(support::config, |engine| {
        assert_eq!(engine.arange(0, 5)?.to_vec::<i32>()?, [0, 1, 2, 3, 4]);
        assert_eq!(engine.arange(-2.5f32, 1.0)?.to_vec::<f32>()?, [-2.5, -1.5, -0.5, 0.5]);
        assert!(engine.arange(5u8, 5)?.to_vec::<u8>()?.is_empty());
        assert!(engine.arange(5i64, -5)?.to_vec::<i64>()?.is_empty());
        assert_eq!(engine.arange_step(10i16, 0, -3)?.to_vec::<i16>()?, [10, 7, 4, 1]);
        assert_eq!(engine.arange_step(0u32, 10, 5)?.to_vec::<u32>()?, [0, 5]);
        assert_eq!(engine.arange_step(0.0f64, 1.0, 0.25)?.to_vec::<f64>()?, [0.0, 0.25, 0.5, 0.75]);
        // The whole range of a type, up to its end.
        let all = engine.arange(i8::MIN, i8::MAX)?.to_vec::<i8>()?;
        assert_eq!(all, (i8::MIN..i8::MAX).collect::<Vec<i8>>());
        let end = u64::MAX;
        assert_eq!(engine.arange(end - 2, end)?.to_vec::<u64>()?, [end - 2, end - 1]);
        let start = i64::MIN;
        assert_eq!(engine.arange_step(start, start + 9, 4)?.to_vec::<i64>()?, [start, start + 4, start + 8]);
        // Short floats are rounded once from the exact number: bf16 cannot represent 256 + i for
        // odd i.
        let short = engine.arange(bf16::from_f32(256.0), bf16::from_f32(264.0))?.to_vec::<bf16>()?;
        assert_eq!(short, (256..264).map(|i| bf16::from_f32(i as f32)).collect::<Vec<_>>());
        let half = engine.arange_step(f16::ZERO, f16::ONE, f16::from_f32(0.1))?.to_vec::<f16>()?;
        let step = f16::from_f32(0.1).to_f64();
        assert_eq!(
            half,
            (0..11).map(|i| f16::from_f64(f64::from(i) * step)).take(half.len()).collect::<Vec<_>>()
        );
        Ok(())
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Like a loop that counts in the type itself.
    #[test]
    fn integer_sequences_are_what_a_loop_counts(start in any::<i16>(), end in any::<i16>(), step in -900i16..900) {
        prop_assume!(step != 0);
        let engine = Engine::reference();
        let (mut expected, mut at) = (Vec::new(), i32::from(start));
        while (step > 0 && at < i32::from(end)) || (step < 0 && at > i32::from(end)) {
            expected.push(at as i16);
            at += i32::from(step);
        }
        prop_assert_eq!(engine.arange_step(start, end, step).unwrap().to_vec::<i16>().unwrap(), expected);
    }

    #[test]
    fn even_distances_have_their_ends_exactly(
        start in -1e30f32..1e30,
        end in -1e30f32..1e30,
        count in 2usize..40,
    ) {
        let engine = Engine::reference();
        let found = engine.linspace(start, end, count).unwrap().to_vec::<f32>().unwrap();
        prop_assert_eq!(found.len(), count);
        prop_assert_eq!((found[0], found[found.len() - 1]), (start, end));
        let step = (f64::from(end) - f64::from(start)) / (count - 1) as f64;
        for (i, &found) in found.iter().enumerate() {
            let exact = f64::from(start) + i as f64 * step;
            let scale = f64::from(start).abs().max(f64::from(end).abs());
            prop_assert!((f64::from(found) - exact).abs() <= 1e-7 * scale, "{i}: {found}, {exact}");
        }
    }
}

#[test]
fn even_distances_of_few_numbers() {
    on_all_tiers(support::config, |engine| {
        assert_eq!(engine.linspace(1.0f32, 2.0, 5)?.to_vec::<f32>()?, [1.0, 1.25, 1.5, 1.75, 2.0]);
        assert_eq!(engine.linspace(2.0f64, -2.0, 3)?.to_vec::<f64>()?, [2.0, 0.0, -2.0]);
        assert_eq!(engine.linspace(3.0f32, 9.0, 1)?.to_vec::<f32>()?, [3.0]);
        assert!(engine.linspace(3.0f32, 9.0, 0)?.to_vec::<f32>()?.is_empty());
        // Far from the start the end would be lost in rounding, so it is used as given.
        assert_eq!(engine.linspace(-1e30f64, 1.0, 3)?.to_vec::<f64>()?[2], 1.0);
        Ok(())
    });
}

#[test]
fn other_limits_compile_nothing() -> Result<()> {
    let engine = Engine::reference();
    let mut after_first = None;
    for start in [0, 1, 7, -3] {
        let numbers = engine.arange(start, start + 4)?.to_vec::<i32>()?;
        assert_eq!(numbers, (start..start + 4).collect::<Vec<i32>>());
        let step = start + 8;
        let spread = engine.arange_step(start, start + 3 * step, step)?.to_vec::<i32>()?;
        assert_eq!(spread, [start, start + step, start + 2 * step]);
        let at = f64::from(start);
        assert_eq!(engine.linspace(at, at + 2.0, 3)?.to_vec::<f64>()?, [at, at + 1.0, at + 2.0]);
        let misses = engine.counters().misses;
        assert_eq!(*after_first.get_or_insert(misses), misses, "from {start}");
    }
    Ok(())
}

#[test]
fn sequences_that_have_no_end_are_refused() -> Result<()> {
    let engine = Engine::reference();
    refused(engine.arange(false, true), "numbers of bool from 0 to below 1 by 1");
    refused(engine.arange_step(0, 4, 0), "the step must not be 0");
    refused(engine.arange_step(0.0f32, 4.0, 0.0), "from 0.0 to below 4.0 by 0.0");
    refused(engine.arange(0.0f32, f32::INFINITY), "they must be finite");
    refused(engine.arange(f64::NAN, 1.0), "they must be finite");
    refused(engine.linspace(0, 4, 3), "the limits must be finite floats");
    refused(engine.linspace(0.0f32, f32::NAN, 3), "the limits must be finite floats");
    for error in [
        engine.arange(0u64, u64::MAX),
        engine.arange(-1e300f64, 1e300),
        engine.linspace(0.0f32, 1.0, 1 << 60),
    ] {
        let error: Error = error.expect_err("no tensor has so many elements");
        assert!(error.to_string().contains("has more than 2^59 - 1 elements"), "{error}");
    }
    Ok(())
}

/// The call site of the ops that a method records is the line of its call.
#[test]
fn ops_are_recorded_at_the_line_of_the_call() -> Result<()> {
    let log = support::Log::default();
    let engine = support::config().event_sink(log.sink()).build_reference()?;
    let check = |tensor: Result<Tensor>, at: u32| {
        tensor.unwrap().wait().unwrap();
        let mut sites = Vec::new();
        for event in log.take() {
            if let Event::Sealed { contents, .. } = event {
                sites.extend_from_slice(contents.sites());
            }
        }
        assert!(!sites.is_empty(), "line {at}");
        for site in sites {
            let Site::Rust(location) = site else { panic!("{site:?} is no place in a program") };
            assert_eq!((location.file(), location.line()), (file!(), at));
        }
    };
    check(engine.zeros(DType::F32, &[2]), line!());
    check(engine.ones(DType::F32, &[2]), line!());
    check(engine.full(2.0f32, &[2]), line!());
    check(engine.eye(DType::F32, 2), line!());
    check(engine.arange(0.0f32, 4.0), line!());
    check(engine.arange_step(0i8, 4, 2), line!());
    check(engine.linspace(0.0f32, 1.0, 3), line!());
    check(engine.randn(DType::F32, &[2], 3), line!());
    Ok(())
}

#[test]
fn random_numbers_are_a_function_of_the_seed() {
    on_all_tiers(support::config, |engine| {
        let draw = |seed| engine.randn(DType::F32, &[50, 40], seed)?.to_vec::<f32>();
        let numbers = draw(1)?;
        assert_eq!(numbers, draw(1)?);
        assert_ne!(numbers, draw(2)?);
        // Draws of others in between change nothing, and a generator begins with the same numbers.
        let mut generator = engine.generator(1)?;
        assert_eq!(generator.normal(DType::F32, &[50, 40])?.to_vec::<f32>()?, numbers);
        assert_ne!(generator.normal(DType::F32, &[50, 40])?.to_vec::<f32>()?, numbers);
        assert_eq!(draw(1)?, numbers);
        let mut plain = Generator::new(engine.stream(), 1)?;
        assert_eq!(plain.normal(DType::F32, &[50, 40])?.to_vec::<f32>()?, numbers);
        // 2,000 numbers: mean and variance are within four of their deviations, 0.022.
        let mean = numbers.iter().sum::<f32>() / 2000.0;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 2000.0;
        assert!(mean.abs() < 0.09 && (variance - 1.0).abs() < 0.13, "{mean}, {variance}");
        refused(engine.randn(DType::I32, &[2], 0), "they must be f16, bf16, f32 or f64");
        Ok(())
    });
}

/// `Scalar`, the element of a lifted scalar, is exported at the crate's root.
#[test]
fn scalars_of_a_type_known_at_run_time_are_lifted() -> Result<()> {
    let engine = Engine::reference();
    let scalar = Scalar::from_f64(DType::BF16, 1.5).unwrap();
    let tensor: Tensor = engine.stream().lift(scalar);
    assert_eq!((tensor.dtype(), tensor.item::<bf16>()?), (DType::BF16, bf16::from_f32(1.5)));
    assert_eq!(element::to_f64(scalar.dtype(), scalar.bits().into()), 1.5);
    Ok(())
}
