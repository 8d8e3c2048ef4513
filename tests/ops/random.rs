//! Random numbers: the same everywhere for one state, and with the right distribution.

use fuseline::random::Generator;
use fuseline::{DType, Engine, Mode, Origin, Result, Tensor, nn, with_mode};

use crate::support::{self, engines_of_all_tiers, everywhere, on_all_tiers};

const COUNT: usize = 20_000;

fn generator(engine: &Engine) -> Generator {
    Generator::new(engine.stream(), 7).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.convert(DType::F64).unwrap().to_vec().unwrap()
}

/// Mean and variance.
fn moments(data: &[f64]) -> (f64, f64) {
    let mean = data.iter().sum::<f64>() / data.len() as f64;
    (mean, data.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / data.len() as f64)
}

/// Checks mean and variance: the error of a mean of `COUNT` draws is below five of its deviations.
#[track_caller]
fn distributed(data: &[f64], mean: f64, variance: f64) {
    let (found_mean, found_variance) = moments(data);
    let deviation = (variance / data.len() as f64).sqrt();
    assert!((found_mean - mean).abs() < 5.0 * deviation, "the mean is {found_mean}, not about {mean}");
    assert!(
        (found_variance / variance - 1.0).abs() < 0.1,
        "the variance is {found_variance}, not about {variance}"
    );
}

/// The cumulative distribution function of the normal distribution.
fn below(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// Checks a distribution by the Kolmogorov-Smirnov test; short floats within half a unit in their
/// last place.
#[track_caller]
fn fits(data: &[f64], distribution: impl Fn(f64) -> f64, dtype: DType) {
    let mut data = data.to_vec();
    data.sort_by(f64::total_cmp);
    let count = data.len() as f64;
    let far = (0u32..).zip(&data).map(|(place, &x)| {
        let share = distribution(x);
        (share - f64::from(place) / count).max(f64::from(place + 1) / count - share)
    });
    let far = far.fold(0.0, f64::max);
    let unit = match dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 0.0,
    };
    // Beyond 2.2 deviations has a probability of one in ten thousand.
    assert!(far < 2.2 / count.sqrt() + unit, "{dtype}: {far}");
}

/// One draw of each kind.
fn draw_all(generator: &mut Generator) -> Result<Vec<Tensor>> {
    let logits = generator.state().on_stream().zeros(DType::F64, &[3])?;
    Ok(vec![
        generator.bits(DType::U32, &[3, 5])?,
        generator.bits(DType::U64, &[7])?,
        generator.uniform(DType::F32, &[4, 4], 0.0, 1.0)?,
        generator.uniform(DType::F16, &[9], 0.0, 1.0)?,
        generator.uniform(DType::BF16, &[], 0.0, 1.0)?,
        generator.bernoulli(0.3, &[11])?,
        generator.randint(DType::I16, &[11], -5, 6)?,
        generator.permutation(9)?,
        generator.categorical(&logits, 0, &[6])?,
        generator.split()?.uniform(DType::F64, &[3], 0.0, 1.0)?,
        generator.fold_in(3)?.bits(DType::U32, &[2])?,
        generator.uniform(DType::F32, &[200], -1.3, 0.7)?,
        generator.uniform(DType::F64, &[100], -1.3, 0.7)?,
        generator.uniform(DType::F16, &[100], -1.3, 0.7)?,
        generator.normal(DType::F32, &[3, 100])?,
        generator.normal(DType::F64, &[100])?,
        generator.normal(DType::BF16, &[99])?,
        generator.normal_around(DType::F32, &[200], 0.3, 1.7)?,
        generator.normal_around(DType::F64, &[100], 0.3, 1.7)?,
        generator.normal_around(DType::F16, &[100], 0.3, 1.7)?,
        generator.truncated_normal(DType::F32, &[100], -0.5, 4.0)?,
        generator.truncated_normal(DType::F64, &[100], 5.0, 6.0)?,
        generator.exponential(DType::F32, &[200])?,
        generator.exponential(DType::F64, &[100])?,
        generator.gumbel(DType::F32, &[200])?,
        generator.gumbel(DType::F64, &[100])?,
        generator.cauchy(DType::F32, &[200], 0.0, 1.0)?,
        generator.cauchy(DType::F64, &[100], 0.5, 3.0)?,
        generator.log_normal(DType::F32, &[200], 0.2, 1.1)?,
        generator.log_normal(DType::F64, &[100], 0.2, 1.1)?,
        generator.geometric(&[100], 0.1)?,
    ])
}

#[test]
fn one_state_gives_the_same_numbers_on_every_device_and_in_every_mode() {
    let mut all = Vec::new();
    // Only in Fused mode is anything interpreted.
    const MODES: &[Mode] = &[Mode::Fused, Mode::Strict, Mode::Debug];
    for (engine, modes) in engines_of_all_tiers(support::config).iter().zip([MODES, MODES, &MODES[..1]]) {
        for &mode in modes {
            let drawn = with_mode(mode, || draw_all(&mut generator(engine))).unwrap();
            all.push(drawn.iter().map(|tensor| tensor.to_literal().unwrap()).collect::<Vec<_>>());
        }
        // Together with ops on them, so that a compiler sees more than the draws.
        let drawn = draw_all(&mut generator(engine)).unwrap();
        let is_float = |tensor: &&Tensor| tensor.dtype().is_float();
        let used: Vec<Tensor> = drawn
            .iter()
            .filter(is_float)
            .map(|x| (&(x * 3.0).unwrap() + 1.0).unwrap().tanh().unwrap())
            .collect();
        all.push(drawn.iter().map(|tensor| tensor.to_literal().unwrap()).collect());
        used.iter().for_each(|tensor| drop(tensor.to_literal().unwrap()));
    }
    assert!(all.len() >= 3);
    for other in &all[1..] {
        assert_eq!(&all[0], other);
    }
}

/// Known answers from the paper's implementation (Random123's `kat_vectors`, `threefry2x32 20`).
#[test]
fn the_bits_are_those_of_threefry() {
    let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let answers = [
        ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
        ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
        ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
    ];
    everywhere(|engine| {
        for (key, counter, [low, high]) in answers {
            let state = engine.tensor(&[word(key[0], key[1]), word(counter[0], counter[1])], &[2])?;
            let bits = Generator::from_state(state)?.bits(DType::U64, &[1])?;
            assert_eq!(bits.to_vec::<u64>()?, [word(low, high)]);
        }
        Ok(())
    });
}

#[test]
fn a_state_that_is_kept_gives_its_numbers_again() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    generator.bits(DType::U32, &[10])?;
    let kept = generator.state().to_literal()?;
    let drawn: Vec<_> = draw_all(&mut generator)?.iter().map(|tensor| tensor.to_literal().unwrap()).collect();
    let mut restored = Generator::from_state(engine.from_literal(&kept)?)?;
    let again: Vec<_> = draw_all(&mut restored)?.iter().map(|tensor| tensor.to_literal().unwrap()).collect();
    assert_eq!(drawn, again);
    assert_eq!(generator.state().to_literal()?, restored.state().to_literal()?);

    for state in [engine.tensor(&[1u64], &[1])?, engine.tensor(&[1i64, 2], &[2])?] {
        let error = Generator::from_state(state).unwrap_err();
        assert!(error.to_string().contains("u64[2]"), "{error}");
    }
    Ok(())
}

#[test]
fn generators_that_come_from_one_differ() -> Result<()> {
    let engine = Engine::reference();
    let mut parent = generator(&engine);
    let folded: Vec<Generator> = (0..4).map(|number| parent.fold_in(number)).collect::<Result<_>>()?;
    let nested = parent.fold_in(0)?.fold_in(0)?;
    let before = parent.state().to_vec::<u64>()?;
    let mut children = vec![parent.split()?, parent.split()?];
    assert_ne!(parent.state().to_vec::<u64>()?, before);
    children.extend(folded);
    children.push(nested);
    children.push(parent);
    children.push(Generator::new(engine.stream(), 8)?);
    let mut bits: Vec<Vec<u64>> = Vec::new();
    for child in &mut children {
        bits.push(child.bits(DType::U64, &[4])?.to_vec()?);
    }
    let mut distinct = bits.concat();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4 * bits.len());
    // Drawing continues where it stopped: no number repeats.
    let mut generator = generator(&engine);
    let mut bits = generator.bits(DType::U64, &[100])?.to_vec::<u64>()?;
    bits.extend(generator.bits(DType::U64, &[100])?.to_vec::<u64>()?);
    bits.sort_unstable();
    bits.dedup();
    assert_eq!(bits.len(), 200);
    Ok(())
}

#[test]
fn other_seeds_limits_and_numbers_compile_nothing() -> Result<()> {
    let engine = Engine::reference();
    let mut misses = None;
    for step in 0..4u64 {
        let mut generator = Generator::new(engine.stream(), step)?.fold_in(step * step)?;
        let share = 0.25 * (step as f64 + 0.5);
        let x = generator.uniform(DType::F32, &[8], -1.0 - share, share)?;
        let kept = nn::dropout(&x, share, &mut generator)?;
        let whole = generator.randint(DType::I32, &[8], -(step as i64), 5 + step as i64)?;
        drop((kept.read(), whole.read()));
        engine.synchronize()?;
        let now = engine.counters().misses;
        assert_eq!(*misses.get_or_insert(now), now, "step {step}");
    }
    Ok(())
}

#[test]
fn uniform_numbers_fill_their_range() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    for (dtype, digits) in [(DType::F64, 53), (DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)] {
        let data = numbers(&generator.uniform(dtype, &[COUNT], 0.0, 1.0)?);
        assert!(data.iter().all(|x| (0.0..1.0).contains(x)), "{dtype}");
        // All are multiples of a power of two, so the mean is half of such a multiple below one
        // half.
        distributed(&data, 0.5 - 0.5f64.powi(digits + 1), 1.0 / 12.0);
        let mut buckets = [0u32; 16];
        for x in &data {
            buckets[(x * 16.0) as usize] += 1;
        }
        let expected = COUNT as f64 / 16.0;
        let chi: f64 = buckets.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        // 15 degrees of freedom: beyond 45 has a probability of one in ten thousand.
        assert!(chi < 45.0, "{dtype}: {buckets:?}");
    }
    let data = numbers(&generator.uniform(DType::F64, &[COUNT], -3.0, 5.0)?);
    assert!(data.iter().all(|x| (-3.0..5.0).contains(x)));
    distributed(&data, 1.0, 64.0 / 12.0);
    Ok(())
}

#[test]
fn other_distributions_have_their_moments() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let data = numbers(&generator.exponential(dtype, &[COUNT])?);
        assert!(data.iter().all(|x| *x > 0.0 && x.is_finite()), "{dtype}");
        fits(&data, |x| 1.0 - (-x).exp(), dtype);
        distributed(&data, 1.0, 1.0);
        let data = numbers(&generator.cauchy(dtype, &[COUNT], 0.0, 1.0)?);
        fits(&data, |x| 0.5 + x.atan() / std::f64::consts::PI, dtype);
        let data = numbers(&generator.log_normal(dtype, &[COUNT], 0.5, 0.5)?);
        fits(&data, |x| below((x.ln() - 0.5) / 0.5), dtype);
        let data = numbers(&generator.gumbel(dtype, &[COUNT])?);
        assert!(data.iter().all(|x| x.is_finite()), "{dtype}");
        fits(&data, |x| (-(-x).exp()).exp(), dtype);
        distributed(&data, 0.577_215_664_901_532_9, std::f64::consts::PI.powi(2) / 6.0);
    }
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let data = numbers(&generator.normal(dtype, &[COUNT])?);
        assert!(data.iter().all(|x| x.is_finite()), "{dtype}");
        fits(&data, below, dtype);
        distributed(&data, 0.0, 1.0);
        let data = numbers(&generator.normal_around(dtype, &[COUNT], -3.0, 0.5)?);
        distributed(&data, -3.0, 0.25);
        let data = numbers(&generator.normal(dtype, &[COUNT])?);
        // The share beyond two deviations should be 4.55 percent.
        let far = data.iter().filter(|x| x.abs() > 2.0).count() as f64 / COUNT as f64;
        assert!((far - 0.0455).abs() < 0.01, "{dtype}: {far}");
        let data = numbers(&generator.truncated_normal(dtype, &[COUNT], -2.0, 2.0)?);
        assert!(data.iter().all(|x| (-2.0..=2.0).contains(x)), "{dtype}");
        distributed(&data, 0.0, 0.773_741_3);
        let data = numbers(&generator.truncated_normal(dtype, &[COUNT], 0.0, f64::INFINITY)?);
        assert!(data.iter().all(|x| *x >= 0.0 && x.is_finite()), "{dtype}");
        distributed(&data, (2.0 / std::f64::consts::PI).sqrt(), 1.0 - 2.0 / std::f64::consts::PI);
    }
    // Far from zero the distribution function is less precise, and only the nearer limit can be
    // checked.
    for (low, high) in [(8.0, 9.0), (-9.0, -8.0)] {
        let data = numbers(&generator.truncated_normal(DType::F64, &[COUNT], low, high)?);
        assert!(data.iter().all(|x| (low..=high).contains(x)));
        assert!(data.iter().all(|x| x.is_sign_positive() == (low > 0.0)));
    }
    let data = numbers(&generator.geometric(&[COUNT], 0.3)?);
    assert!(data.iter().all(|x| *x >= 1.0 && x.fract() == 0.0));
    distributed(&data, 1.0 / 0.3, 0.7 / 0.09);
    assert!(numbers(&generator.geometric(&[COUNT], 1.0)?).iter().all(|x| *x == 1.0));
    assert!(generator.geometric(&[1], 0.0).is_err() && generator.geometric(&[1], 1.5).is_err());
    assert!(generator.bernoulli(-1.0, &[1]).is_err() && generator.bernoulli(2.0, &[1]).is_err());
    for probability in [0.0, 0.2, 1.0] {
        let data = numbers(&generator.bernoulli(probability, &[COUNT])?);
        let p: f64 = probability.clamp(0.0, 1.0);
        if p * (1.0 - p) == 0.0 {
            assert!(data.iter().all(|&x| x == p));
        } else {
            distributed(&data, p, p * (1.0 - p));
        }
    }
    Ok(())
}

#[test]
fn random_integers_reach_both_limits_and_no_further() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let data = numbers(&generator.randint(dtype, &[COUNT], -3, 4)?);
        for value in -3..4 {
            let count = data.iter().filter(|&&x| x == f64::from(value)).count() as f64;
            assert!((count / COUNT as f64 - 1.0 / 7.0).abs() < 0.02, "{dtype}: {value} came {count} times");
        }
        assert!(data.iter().all(|x| (-3.0..4.0).contains(x)));
    }
    let bytes = generator.randint(DType::U8, &[COUNT], 250, 256)?.to_vec::<u8>()?;
    assert_eq!((bytes.iter().min(), bytes.iter().max()), (Some(&250), Some(&255)));
    let wide = generator.randint(DType::I64, &[COUNT], i64::MIN, i64::MAX)?.to_vec::<i64>()?;
    assert!(wide.iter().any(|&x| x < i64::MIN / 2) && wide.iter().any(|&x| x > i64::MAX / 2));

    for refused in [
        generator.randint(DType::U8, &[1], 0, 257),
        generator.randint(DType::U8, &[1], -1, 2),
        generator.randint(DType::I32, &[1], 3, 3),
        generator.randint(DType::F32, &[1], 0, 3),
        generator.uniform(DType::I32, &[1], 0.0, 3.0),
        generator.bits(DType::U16, &[1]),
        generator.normal(DType::I32, &[1]),
        generator.truncated_normal(DType::F32, &[1], 1.0, 1.0),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.origin(), Origin::User);
        assert!(error.to_string().contains("tests/ops/random.rs"), "{error}");
    }
    Ok(())
}

#[test]
fn classes_come_with_their_probabilities() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    let shares = [0.5f64, 0.25, 0.0, 0.25];
    let logits = engine.tensor(&shares.map(f64::ln), &[4])?;
    let drawn = generator.categorical(&logits, 0, &[COUNT])?;
    assert_eq!((drawn.dims(), drawn.dtype()), (&[COUNT][..], DType::I32));
    let drawn = drawn.to_vec::<i32>()?;
    for (class, share) in shares.into_iter().enumerate() {
        let count = drawn.iter().filter(|&&x| x as usize == class).count() as f64 / COUNT as f64;
        assert!((count - share).abs() < 0.02, "class {class}: {count} instead of {share}");
        assert!(share > 0.0 || count == 0.0);
    }
    // Along another dimension, where each row has its own weights.
    let rows = engine.tensor(&[0.0f32, -1e9, 0.0, -1e9, 0.0, 0.0], &[2, 3])?;
    let by_column = generator.categorical(&rows, 0, &[40])?;
    assert_eq!(by_column.dims(), [40, 3]);
    let by_column = by_column.to_vec::<i32>()?;
    assert!(by_column.chunks(3).all(|row| row[..2] == [0, 1]));
    assert!((0..2).all(|class| by_column.chunks(3).any(|row| row[2] == class)));
    Ok(())
}

#[test]
fn permutations_are_all_as_likely() -> Result<()> {
    let engine = Engine::reference();
    let mut generator = generator(&engine);
    let order = generator.permutation(1000)?.to_vec::<i32>()?;
    assert_ne!(order, (0..1000).collect::<Vec<_>>());
    let mut sorted = order;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    // Three numbers have six orders.
    let mut counts = std::collections::BTreeMap::new();
    let orders: Vec<Tensor> = (0..1200).map(|_| generator.permutation(3)).collect::<Result<_>>()?;
    for order in orders {
        *counts.entry(order.to_vec::<i32>()?).or_insert(0) += 1;
    }
    assert!(counts.len() == 6 && counts.values().all(|&count| (140..260).contains(&count)), "{counts:?}");

    let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let shuffled = generator.shuffle(&x, 1)?.to_vec::<f32>()?;
    let (top, bottom) = shuffled.split_at(3);
    assert!(top.iter().zip(bottom).all(|(a, b)| a + 3.0 == *b), "columns stay together: {shuffled:?}");
    assert_eq!(generator.permutation(0)?.dims(), [0]);
    assert!(generator.permutation(1 << 32).is_err());
    Ok(())
}

#[test]
fn a_loop_carries_a_generator() -> Result<()> {
    on_all_tiers(support::config, |engine| {
        let mut outside = generator(engine);
        let mut expected = engine.stream().zeros(DType::F32, &[4])?;
        for _ in 0..3 {
            expected = (&expected + &outside.uniform(DType::F32, &[4], 0.0, 1.0)?)?;
        }
        let start = (generator(engine), engine.stream().zeros(DType::F32, &[4])?);
        let (after, sum) = engine.stream().for_range(0..3, start, |_, (mut generator, sum)| {
            let more = generator.uniform(DType::F32, &[4], 0.0, 1.0)?;
            Ok((generator, sum.add(&more)?))
        })?;
        assert_eq!(sum.to_vec::<f32>()?, expected.to_vec::<f32>()?);
        assert_eq!(after.state().to_vec::<u64>()?, outside.state().to_vec::<u64>()?);
        Ok(())
    });
    Ok(())
}

#[test]
fn dropout_keeps_the_mean() {
    on_all_tiers(support::config, |engine| {
        let mut generator = generator(engine);
        let ones = engine.full(1.0f32, &[100, 200])?;
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let kept = numbers(&nn::dropout(&ones, rate, &mut generator)?);
            let factor = f64::from((1.0 / (1.0 - rate)) as f32);
            assert!(kept.iter().all(|&x| x == 0.0 || x == factor), "{rate}");
            let share = kept.iter().filter(|&&x| x == 0.0).count() as f64 / kept.len() as f64;
            assert!((share - rate).abs() < 0.02, "{share} instead of {rate}");
        }
        // Dropped elements are gone, whatever they were.
        let nan = engine.full(f32::NAN, &[4])?;
        assert_eq!(nn::dropout(&nan, 1.0, &mut generator)?.to_vec::<f32>()?, [0.0; 4]);
        for rate in [-0.1, 1.1, f64::NAN] {
            assert!(nn::dropout(&ones, rate, &mut generator).is_err());
        }
        Ok(())
    });
}
