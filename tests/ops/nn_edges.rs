//! Edge cases of the functions of `fuseline::nn`: fully masked rows, labels out of range, other
//! element types, and refused arguments. Other results are tested in `nn.rs` and `nn_reference.rs`.

use fuseline::nn::{
    self, Attention, CrossEntropy, Layout, Method, Pool, Reduction, Resize, RunningStatistics,
};
use fuseline::random::Generator;
use fuseline::{DType, Engine, EngineConfig, Result, Tensor};

use crate::support::{self, on_all_tiers, refused};

fn count_up(engine: &Engine, dims: &[usize]) -> Tensor {
    let data: Vec<f32> =
        (0..dims.iter().product::<usize>()).map(|i| ((i * 7) % 11) as f32 / 4.0 - 1.0).collect();
    engine.tensor(&data, dims).unwrap()
}

fn zeros(engine: &Engine, dtype: DType, dims: &[usize]) -> Tensor {
    engine.stream().zeros(dtype, dims).unwrap()
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.convert(DType::F64).unwrap().to_vec().unwrap()
}

// ----- element types -----

/// In a narrow type every function returns its `f32` result, rounded once: long sums do not
/// overflow or stall.
#[test]
fn narrow_floats_are_computed_in_f32() {
    on_all_tiers(support::config, |engine| {
        type Function = fn(&Tensor) -> Result<Tensor>;
        let functions: &[(&str, Function)] = &[
            ("softmax", |x| nn::softmax(x, -1)),
            ("log_softmax", |x| nn::log_softmax(x, 0)),
            ("logsumexp", |x| nn::logsumexp(x, &[0, 1])),
            ("masked_softmax", |x| nn::masked_softmax(x, None, -1)),
            ("sum", |x| x.sum(&[0])),
            ("mean", |x| x.mean(&[0, 1])),
            ("var", |x| x.var(&[1], 1)),
            ("cumsum", |x| x.cumsum(1)),
            ("mse", |x| nn::mse(x, &x.neg()?, Reduction::Mean)),
            ("layer_norm", |x| {
                let gamma = x.narrow(0, 0, 1)?.squeeze(0)?;
                nn::layer_norm(x, &gamma, &gamma, 1e-3)
            }),
            ("rms_norm", |x| nn::rms_norm(x, &x.narrow(0, 0, 1)?.squeeze(0)?, 1e-3)),
            ("avg_pool", |x| nn::avg_pool(&x.reshape(&[1, 1, 4, 6])?, &Pool::new(&[2, 3]))),
            ("adaptive_avg_pool", |x| {
                nn::adaptive_avg_pool(&x.reshape(&[1, 1, 4, 6])?, &[3, 4], Layout::ChannelsFirst)
            }),
            ("resize", |x| {
                let settings = Resize { method: Method::Cubic, ..Resize::default() };
                nn::resize(&x.reshape(&[1, 1, 4, 6])?, &[5, 9], settings)
            }),
            ("cosine", |x| nn::cosine_similarity(x, &x.reverse(&[0])?, -1, 1e-6)),
            ("quantile", |x| x.quantile(0.3, 0)),
        ];
        let wide = count_up(engine, &[4, 6]);
        let mut recorded = Vec::new();
        for &(name, function) in functions {
            for dtype in [DType::F16, DType::BF16] {
                // The inputs are exact in both types.
                let (narrow, wide) = (function(&wide.convert(dtype)?)?, function(&wide)?);
                assert_eq!(narrow.dtype(), dtype, "{name}");
                recorded.push((name, narrow, wide.convert(dtype)?));
            }
        }
        for (name, narrow, wide) in recorded {
            let unit = if narrow.dtype() == DType::F16 { 1e-3 } else { 8e-3 };
            for (a, b) in numbers(&narrow).into_iter().zip(numbers(&wide)) {
                // Devices may differ in the last bit of the f32, which can decide a tie.
                assert!(
                    (a - b).abs() <= unit * b.abs().max(1e-2),
                    "{name} as {}: {a} instead of {b}",
                    narrow.dtype()
                );
            }
        }
        // 4,096 ones in bf16: a sum in bf16 stops at 256.
        let ones = engine.full(1.0f32, &[4096])?.convert(DType::BF16)?;
        assert_eq!((numbers(&ones.sum(&[0])?), numbers(&ones.mean(&[0])?)), (vec![4096.0], vec![1.0]));
        let large = engine.full(60000.0f32, &[64])?.convert(DType::F16)?;
        assert_eq!(numbers(&large.mean(&[0])?), [f64::from(half(60000.0))]);
        Ok(())
    });
}

/// The `f16` nearest to a number.
fn half(x: f32) -> f32 {
    // 60,000 is between 59,968 and 60,000 + 32 in steps of 32, and is itself one of them.
    (x / 32.0).round() * 32.0
}

#[test]
fn bools_are_counted_and_integers_stay() -> Result<()> {
    let engine = Engine::reference();
    let flags = engine.tensor(&[true, false, true, true], &[2, 2])?;
    assert_eq!(flags.sum(&[0, 1])?.item::<i32>()?, 3);
    assert_eq!(flags.prod(&[1])?.to_vec::<i32>()?, [0, 1]);
    assert_eq!(flags.cumsum(1)?.to_vec::<i32>()?, [1, 1, 1, 2]);
    let bytes = engine.tensor(&[200u8, 100], &[2])?;
    assert_eq!((bytes.sum(&[0])?.item::<u8>()?, bytes.cumsum(0)?.to_vec::<u8>()?), (44, vec![200, 44]));
    assert_eq!(bytes.cummax(0)?.to_vec::<u8>()?, [200, 200]);
    assert_eq!(bytes.argmin(0)?.item::<i32>()?, 1);
    Ok(())
}

#[test]
fn statistics_of_too_few_are_nan() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[2.0f32, 4.0], &[2])?;
    assert_eq!((x.var(&[0], 0)?.item::<f32>()?, x.var(&[0], 1)?.item::<f32>()?), (1.0, 2.0));
    for ddof in [2, 3, 100] {
        assert!(x.var(&[0], ddof)?.item::<f32>()?.is_nan());
    }
    assert!(zeros(&engine, DType::F32, &[0]).mean(&[0])?.item::<f32>()?.is_nan());
    assert_eq!(zeros(&engine, DType::F32, &[3, 0]).sum(&[1])?.to_vec::<f32>()?, [0.0; 3]);
    let nan = engine.tensor(&[1.0f32, f32::NAN, 0.0], &[3])?;
    assert_eq!((nan.argmin(0)?.item::<i32>()?, nan.argmax(0)?.item::<i32>()?), (1, 1));
    refused(engine.tensor(&[1i32], &[1])?.mean(&[1]), "dimension 1");
    refused(x.expand_dims(&[0, -3]), "appears twice");
    refused(x.expand_dims(&[2]), "dimension 2");
    Ok(())
}

// ----- fully masked rows -----

#[test]
fn rows_of_minus_infinity() {
    on_all_tiers(support::config, |engine| {
        let low = f32::NEG_INFINITY;
        let x = engine.tensor(&[1.0f32, low, low, low], &[2, 2])?;
        assert_eq!(nn::logsumexp(&x, &[1])?.to_vec::<f32>()?, [1.0, low]);
        assert_eq!(nn::logsumexp(&zeros(engine, DType::F32, &[2, 0]), &[1])?.to_vec::<f32>()?, [low, low]);
        assert_eq!(x.cumlogsumexp(1)?.to_vec::<f32>()?, [1.0, 1.0, low, low]);
        assert_eq!(nn::masked_softmax(&x, None, 1)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 0.0]);
        assert!(nn::softmax(&x, 1)?.to_vec::<f32>()?[2..].iter().all(|x| x.is_nan()));
        let mask = engine.tensor(&[false, true], &[2, 1])?;
        let y = engine.tensor(&[3.0f32, f32::NAN, 5.0, 5.0], &[2, 2])?;
        // Masked elements are ignored, NaN included.
        assert_eq!(nn::masked_softmax(&y, Some(&mask), 1)?.to_vec::<f32>()?, [0.0, 0.0, 0.5, 0.5]);
        Ok(())
    });
}

#[test]
fn queries_that_see_no_key_get_zeros() {
    on_all_tiers(support::config, |engine| {
        let x = count_up(engine, &[1, 1, 3, 2]);
        let mask = engine.tensor(&[true, false, false, false, false, false, true, true, true], &[3, 3])?;
        let added = mask.select(&engine.scalar(0.0f32), &engine.scalar(f32::NEG_INFINITY))?;
        let mut results = Vec::new();
        for mask in [&mask, &added] {
            let (mixed, weights) =
                nn::attention(&x, &x, &x, Attention { mask: Some(mask), ..Attention::default() })?;
            results.push((mixed.to_vec::<f32>()?, weights.to_vec::<f32>()?));
        }
        for (mixed, weights) in &results {
            assert_eq!((&mixed[..2], &mixed[2..4]), (&x.to_vec::<f32>()?[..2], &[0.0, 0.0][..]));
            assert_eq!((&weights[..3], &weights[3..6]), (&[1.0, 0.0, 0.0][..], &[0.0; 3][..]));
            assert!((weights[6..].iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        // Queries before the first key: the offset is negative.
        let settings = Attention { causal: Some(-1), ..Attention::default() };
        let (mixed, weights) = nn::attention(&x, &x, &x, settings)?;
        assert_eq!(mixed.to_vec::<f32>()?[..2], [0.0, 0.0]);
        assert_eq!(weights.to_vec::<f32>()?[..6], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        // One query after two cached keys: it sees all three.
        let last = x.narrow(2, 2, 3)?;
        let whole = nn::attention(&x, &x, &x, Attention { causal: Some(0), ..Attention::default() })?.0;
        let step = nn::attention(&last, &x, &x, Attention { causal: Some(2), ..Attention::default() })?.0;
        for (a, b) in whole.to_vec::<f32>()?[4..].iter().zip(step.to_vec::<f32>()?) {
            assert!((a - b).abs() < 1e-6);
        }
        Ok(())
    });
}

#[test]
fn attention_in_narrow_floats_with_dropout() {
    on_all_tiers(support::config, |engine| {
        let x = count_up(engine, &[1, 4, 3, 2]).convert(DType::BF16)?;
        let k = x.narrow(1, 0, 2)?;
        let mut generator = Generator::new(engine.stream(), 1)?;
        let (mixed, weights) = nn::attention(&x, &k, &k, Attention::default())?;
        assert_eq!((mixed.dtype(), weights.dtype(), mixed.dims()), (DType::BF16, DType::BF16, x.dims()));
        let settings = Attention { dropout: Some((1.0, &mut generator)), ..Attention::default() };
        let (none, same) = nn::attention(&x, &k, &k, settings)?;
        assert_eq!((numbers(&none), numbers(&same)), (vec![0.0; 24], numbers(&weights)));
        let settings = Attention { dropout: Some((0.0, &mut generator)), ..Attention::default() };
        assert_eq!(numbers(&nn::attention(&x, &k, &k, settings)?.0), numbers(&mixed));
        Ok(())
    });
}

#[test]
fn attention_names_what_does_not_fit() -> Result<()> {
    let engine = Engine::reference();
    let of = |dims: &[usize]| zeros(&engine, DType::F32, dims);
    let plain = Attention::default;
    let q = of(&[1, 4, 3, 2]);
    refused(nn::attention(&q, &of(&[1, 3, 3, 2]), &of(&[1, 3, 3, 2]), plain()), "multiple");
    refused(nn::attention(&q, &of(&[1, 0, 3, 2]), &of(&[1, 0, 3, 2]), plain()), "multiple");
    refused(nn::attention(&q, &of(&[1, 4, 3, 2]), &of(&[1, 2, 3, 2]), plain()), "q is f32[1, 4, 3, 2]");
    refused(nn::attention(&of(&[4, 3, 2]), &q, &q, plain()), "batch, heads, positions, width");
    for dims in [&[4, 3][..], &[2, 1, 1, 1, 1], &[2, 1, 1, 1], &[1, 1, 1, 5]] {
        let mask = of(dims);
        refused(nn::attention(&q, &q, &q, Attention { mask: Some(&mask), ..plain() }), "the mask is");
    }
    Ok(())
}

// ----- labels -----

#[test]
fn labels_at_their_edges() -> Result<()> {
    let engine = EngineConfig::new().check_indices(false).build_reference()?;
    let logits = engine.tensor(&[1.0f64, 2.0, 3.0, 0.0, 0.0, 0.0], &[2, 3])?;
    let label = |data: &[i32]| engine.tensor(data, &[2]).unwrap();
    let each = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let losses = |labels: &Tensor, settings: &CrossEntropy<'_>| {
        nn::cross_entropy_with(&logits, labels, settings).unwrap().to_vec::<f64>().unwrap()
    };
    // A label out of range has no loss, but its sample counts.
    assert_eq!(losses(&label(&[3, -1]), &each), [0.0, 0.0]);
    let mean = nn::cross_entropy(&logits, &label(&[7, 1]))?.item::<f64>()?;
    assert!((mean - 3.0f64.ln() / 2.0).abs() < 1e-15);
    // Nothing is left: 0, and not 0 / 0.
    let ignoring = CrossEntropy { ignored: Some(1), ..CrossEntropy::default() };
    assert_eq!(losses(&label(&[1, 1]), &ignoring), [0.0]);
    // A label that the type cannot hold is no class.
    let bytes = engine.tensor(&[156u8, 2], &[2])?;
    let ignoring = CrossEntropy { ignored: Some(-100), ..each };
    assert!(losses(&bytes, &ignoring)[1] > 0.0);
    // More classes than the label type can count.
    let wide = zeros(&engine, DType::F32, &[1, 300]);
    assert!(
        (nn::cross_entropy(&wide, &engine.tensor(&[44u8], &[1])?)?.item::<f32>()? - 300f32.ln()).abs() < 1e-5
    );
    assert_eq!(engine.tensor(&[44u8], &[1])?.one_hot(300, DType::F32)?.sum(&[1])?.item::<f32>()?, 1.0);
    assert_eq!(engine.tensor(&[-1i8], &[1])?.one_hot(300, DType::I32)?.sum(&[1])?.item::<i32>()?, 0);
    // Probabilities of zero need no logarithm.
    let low = engine.tensor(&[0.0f32, f32::NEG_INFINITY], &[1, 2])?;
    let sure = engine.tensor(&[1.0f32, 0.0], &[1, 2])?;
    assert_eq!(nn::cross_entropy(&low, &sure)?.item::<f32>()?, 0.0);
    assert_eq!(
        nn::cross_entropy(&zeros(&engine, DType::F32, &[0, 3]), &zeros(&engine, DType::I32, &[0]))?
            .item::<f32>()?,
        0.0
    );
    Ok(())
}

#[test]
fn losses_refuse_shapes_that_only_broadcast() -> Result<()> {
    let engine = Engine::reference();
    let (x, row) = (zeros(&engine, DType::F32, &[2, 3]), zeros(&engine, DType::F32, &[3]));
    let mean = Reduction::Mean;
    refused(nn::mse(&x, &row, mean), "the predictions are f32[2, 3] and the targets f32[3]");
    refused(nn::mae(&x, &row, mean), "nothing is broadcast");
    refused(nn::huber(&x, &row, 1.0, mean), "nothing is broadcast");
    refused(nn::smooth_l1(&x, &row, 0.0, mean), "nothing is broadcast");
    refused(nn::hinge(&x, &row, mean), "nothing is broadcast");
    refused(nn::kl_div(&x, &row, mean), "nothing is broadcast");
    refused(nn::bce_with_logits(&x, &row, None, mean), "nothing is broadcast");
    refused(nn::cross_entropy(&x, &row), "probabilities must have the shape of the logits");
    let weights = CrossEntropy { weights: Some(&row), ..CrossEntropy::default() };
    let labels = zeros(&engine, DType::I32, &[3]);
    refused(
        nn::cross_entropy_with(&zeros(&engine, DType::F32, &[3, 4]), &labels, &weights),
        "one number per class",
    );
    refused(nn::nll(&x, &labels, &CrossEntropy::default()), "one label");
    refused(nn::cosine_similarity(&x, &row, 2, 1e-8), "dimension 2");
    Ok(())
}

// ----- layers -----

#[test]
fn norms_refuse_weights_that_do_not_fit() -> Result<()> {
    let engine = Engine::reference();
    let of = |dims: &[usize]| zeros(&engine, DType::F32, dims);
    let x = of(&[2, 4, 3]);
    refused(nn::layer_norm(&x, &of(&[3]), &of(&[4, 3]), 0.1), "the weights are f32[3] and f32[4, 3]");
    refused(nn::layer_norm(&x, &of(&[]), &of(&[]), 0.1), "last dimensions");
    refused(nn::rms_norm(&x, &of(&[4]), 0.1), "last dimensions");
    refused(nn::group_norm(&x, 3, 1, &of(&[4]), &of(&[4]), 0.1), "multiple of the number of groups");
    refused(nn::group_norm(&x, 0, 1, &of(&[4]), &of(&[4]), 0.1), "multiple of the number of groups");
    refused(nn::group_norm(&x, 1, 0, &of(&[2]), &of(&[2]), 0.1), "dimension 0 is the batch");
    refused(nn::group_norm(&x, 2, 1, &of(&[3]), &of(&[4]), 0.1), "one number per feature");
    let statistics = RunningStatistics { mean: of(&[4]), variance: of(&[4]) };
    refused(nn::batch_norm(&x, &statistics, &of(&[3]), &of(&[4]), 1, 0.1), "");
    refused(nn::batch_norm(&x, &statistics, &of(&[4]), &of(&[4]), 2, 0.1), "one number per feature");
    let short = RunningStatistics { mean: of(&[1]), variance: of(&[4]) };
    refused(
        nn::batch_norm_train(&x, &short, &of(&[4]), &of(&[4]), 1, 0.1, 0.1),
        "running statistics must be vectors",
    );
    refused(nn::glu(&x, 2), "even");
    Ok(())
}

#[test]
fn pools_of_integers_and_of_nan() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[3i8, -7, 9, -128, 0, 1], &[1, 1, 6])?;
        let mut pool = Pool::new(&[3]);
        pool.padding = vec![1];
        pool.stride = vec![2];
        assert_eq!(nn::max_pool(&x, &pool)?.to_vec::<i8>()?, [3, 9, 1]);
        let nan = engine.tensor(&[1.0f32, f32::NAN, 3.0, 4.0], &[1, 1, 4])?;
        let largest = nn::max_pool(&nan, &Pool::new(&[2]))?.to_vec::<f32>()?;
        assert!(largest[0].is_nan() && largest[1] == 4.0);
        // Padding is never a maximum.
        let low = engine.tensor(&[-5.0f32, -6.0], &[1, 1, 2])?;
        assert_eq!(nn::max_pool(&low, &pool)?.to_vec::<f32>()?, [-5.0]);
        Ok(())
    });
}

#[test]
fn windows_that_do_not_fit_are_refused() -> Result<()> {
    let engine = Engine::reference();
    let x = zeros(&engine, DType::F32, &[1, 2, 5, 5]);
    let pool = Pool::new(&[2, 2]);
    refused(nn::max_pool(&x, &Pool::new(&[2])), "one entry per spatial dimension");
    refused(nn::max_pool(&x, &Pool::new(&[6, 2])), "has 5 elements, but a window spans 6");
    refused(nn::avg_pool(&x, &Pool { padding: vec![2, 0], ..pool.clone() }), "at most half of the size");
    refused(nn::avg_pool(&x, &Pool { stride: vec![0, 1], ..pool.clone() }), "at least 1");
    refused(nn::max_pool(&x, &Pool { dilation: vec![usize::MAX, 1], ..pool.clone() }), "below 2^31");
    refused(nn::max_pool(&x, &Pool { dilation: vec![5, 1], ..pool.clone() }), "a window spans 6");
    refused(nn::lp_pool(&x, 0.0, &pool), "must be positive");
    refused(nn::lp_pool(&x, f64::NAN, &pool), "must be positive");
    refused(nn::max_pool(&zeros(&engine, DType::F32, &[1, 2, 0, 5]), &pool), "0 elements");
    for sizes in [&[3][..], &[0, 3], &[2, 2, 2]] {
        refused(nn::adaptive_avg_pool(&x, sizes, Layout::ChannelsFirst), "one entry per spatial dimension");
        refused(nn::adaptive_max_pool(&x, sizes, Layout::ChannelsLast), "one entry per spatial dimension");
        refused(nn::resize(&x, sizes, Resize::default()), "one entry per spatial dimension");
    }
    let ints = zeros(&engine, DType::I32, &[1, 1, 4]);
    assert_eq!(nn::resize(&ints, &[8], Resize::default())?.dims(), [1, 1, 8]);
    Ok(())
}

/// A constant image stays constant under every resize.
#[test]
fn resized_constants_are_constants() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.full(0.1f32, &[1, 3, 7, 5])?;
    for method in [Method::Nearest, Method::NearestExact, Method::Linear, Method::Cubic] {
        for align_corners in [false, true] {
            for sizes in [[1, 1], [14, 10], [9, 2]] {
                let y = nn::resize(&x, &sizes, Resize { method, align_corners, ..Resize::default() })?;
                assert!(y.to_vec::<f32>()?.iter().all(|y| (y - 0.1).abs() < 1e-7), "{method:?} to {sizes:?}");
            }
        }
    }
    Ok(())
}
