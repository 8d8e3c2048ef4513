//! The rules of `fuseline::nn::grad` and `fuseline::linalg::grad` against finite differences, in
//! f64 on the reference device, and against each other on every device and in every mode.

use std::sync::LazyLock;

use fuseline::linalg::{self, Triangular};
use fuseline::nn::grad::{self, Convolution};
use fuseline::nn::{self, Attention, CrossEntropy, Layout, Method, Pool, Reduction, Resize};
use fuseline::random::Generator;
use fuseline::{DType, Engine, Result, Tensor};

use crate::examples::random::Random;
use crate::support::{self, everywhere, on_all_tiers, refused};

/// One shared engine, because the rules capture its tensors.
fn engine() -> &'static Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(Engine::reference);
    &ENGINE
}

/// The step of the finite differences. The error is about its square, plus the rounding error of
/// about 1e-16 divided by it.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// Checks the rules of a function of tensors with these sizes, at random points. `rules` get the
/// operands and the gradient of the result, and return the gradients of the first operands. The
/// differentiated value is the sum of the result, weighted with fixed random numbers, so that
/// errors of different elements do not cancel.
#[track_caller]
fn check(
    shapes: &[&[usize]],
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    rules: impl Fn(&[Tensor], &Tensor) -> Result<Vec<Tensor>>,
) {
    let engine = engine();
    let mut random = Random::new(5);
    let mut draw = |count: usize| (0..count).map(|_| random.normal()).collect::<Vec<f64>>();
    let mut data: Vec<Vec<f64>> = shapes.iter().map(|dims| draw(dims.iter().product())).collect();
    let tensors = |data: &[Vec<f64>]| -> Vec<Tensor> {
        data.iter().zip(shapes).map(|(data, dims)| engine.tensor(data, dims).unwrap()).collect()
    };
    let operands = tensors(&data);
    let result = function(&operands).unwrap();
    let weights = engine.tensor(&draw(result.ty().elems().get()), result.dims()).unwrap();
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
    dims: &[usize],
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
    check_one(&[2, 5], nn::gelu_exact, |x, _, g| grad::gelu_exact(x, g));
}

#[test]
fn over_a_dimension() {
    for axis in [0, 1, -1] {
        check_one(&[2, 3, 2], |x| nn::softmax(x, axis), |_, y, g| grad::softmax(y, axis, g));
        check_one(&[2, 3, 2], |x| nn::log_softmax(x, axis), |_, y, g| grad::log_softmax(y, axis, g));
        check_one(&[2, 3, 2], |x| nn::logsumexp(x, &[axis]), |x, y, g| grad::logsumexp(x, y, &[axis], g));
        check_one(&[2, 3, 2], |x| x.sum(&[axis]), |x, _, g| grad::sum(x.dims(), &[axis], g));
    }
    check_one(&[2, 3, 2], |x| nn::logsumexp(x, &[0, 2]), |x, y, g| grad::logsumexp(x, y, &[0, 2], g));
    check_one(&[2, 3], |x| x.broadcast_to(&[4, 2, 3]), |x, _, g| grad::unbroadcast(x.dims(), g));
    check_one(&[1, 3], |x| x.broadcast_to(&[2, 3]), |x, _, g| grad::unbroadcast(x.dims(), g));
    check_one(&[], |x| x.broadcast_to(&[2, 3]), |x, _, g| grad::unbroadcast(x.dims(), g));
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
    let shapes: &[(&[usize], &[usize])] = &[
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
    check_one(&[3, 2], |t| nn::embedding(t, &indices), |t, _, g| grad::embedding(t.dims()[0], &indices, g));
    // Row-by-row additions into a table of this many rows. Most of its gradient is zero; some
    // elements are checked.
    let gradient = engine.tensor(&[1.0f64, 2.0, 3.0, 4.0], &[4, 1]).unwrap();
    let rows = engine.tensor(&[5i64, 1999, 5, 0], &[4]).unwrap();
    let sums = grad::embedding(2000, &rows, &gradient).unwrap();
    assert_eq!(sums.dims(), [2000, 1]);
    let sums = sums.to_vec::<f64>().unwrap();
    assert_eq!((sums[0], sums[5], sums[1999], sums.iter().sum::<f64>()), (4.0, 4.0, 2.0, 10.0));
}

#[test]
fn attentions() {
    for (heads, groups, causal) in [(2, 2, None), (4, 2, None), (2, 1, Some(0))] {
        let shapes: [&[usize]; 3] = [&[1, heads, 3, 2], &[1, groups, 3, 2], &[1, groups, 3, 4]];
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
    let check_conv = |image: &[usize], kernel: &[usize], conv: Convolution| {
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
    // The last rows and columns, which no window reaches, get no gradient.
    check_conv(&[1, 6, 6, 1], &[2, 2, 1, 1], Convolution { stride: vec![3, 3], ..plain });
    check_conv(&[2, 7, 1], &[2, 1, 2], Convolution { dilation: vec![3], ..Convolution::new(1) });
    let all = Convolution { dilation: vec![2], stride: vec![2], padding: vec![(1, 1)], groups: 1 };
    check_conv(&[2, 8, 1], &[3, 1, 2], all.clone());
    // Two groups of two features each, and one kernel per feature.
    check_conv(&[2, 8, 4], &[3, 2, 6], Convolution { groups: 2, ..all.clone() });
    check_conv(&[1, 8, 3], &[3, 1, 3], Convolution { groups: 3, ..all });
    check_conv(&[1, 3, 3, 3, 1], &[2, 2, 2, 1, 1], Convolution::new(3));

    let engine = engine();
    let x = engine.tensor(&[0.0f64; 4], &[1, 2, 2, 1]).unwrap();
    let error = Convolution::new(1).input_gradient(&[1, 2, 2, 1], &x, &x).unwrap_err();
    assert!(error.to_string().contains("one entry per spatial dimension"), "{error}");
}

// ----- space -----

/// Windows of all kinds, with the sizes on which they are checked.
fn pools() -> Vec<(Vec<usize>, Pool)> {
    let plain = Pool::new(&[2, 2]);
    let overlapping = Pool { stride: vec![1, 2], padding: vec![1, 0], ..Pool::new(&[3, 2]) };
    let uneven = Pool { ceil_mode: true, ..plain.clone() };
    let dilated = Pool { dilation: vec![2, 3], padding: vec![1, 1], ..plain.clone() };
    let all = Pool {
        stride: vec![2, 2],
        padding: vec![1, 1],
        dilation: vec![1, 2],
        ceil_mode: true,
        ..Pool::new(&[3, 2])
    };
    let bare = |pool: &Pool| Pool { count_padding: false, ..pool.clone() };
    let last = Pool { layout: Layout::ChannelsLast, ..all.clone() };
    vec![
        (vec![2, 2, 4, 6], plain),
        (vec![1, 2, 4, 5], overlapping.clone()),
        (vec![1, 1, 4, 5], bare(&overlapping)),
        (vec![1, 1, 5, 7], uneven.clone()),
        (vec![1, 1, 5, 7], bare(&uneven)),
        (vec![1, 2, 5, 6], dilated.clone()),
        (vec![1, 1, 5, 6], bare(&dilated)),
        (vec![1, 1, 6, 6], all.clone()),
        (vec![1, 1, 6, 6], bare(&all)),
        (vec![1, 6, 6, 2], last),
        (vec![2, 3, 7], Pool { stride: vec![3], ..Pool::new(&[2]) }),
        (vec![1, 1, 9], Pool { stride: vec![2], dilation: vec![4], ..Pool::new(&[2]) }),
        (vec![1, 1, 3, 3, 3], Pool { stride: vec![1, 1, 1], ..Pool::new(&[2, 2, 2]) }),
    ]
}

#[test]
fn windows() {
    for (dims, pool) in pools() {
        check_one(&dims, |x| nn::max_pool(x, &pool), |x, _, g| grad::max_pool(x, &pool, g));
        check_one(&dims, |x| nn::avg_pool(x, &pool), |x, _, g| grad::avg_pool(x.dims(), &pool, g));
    }
}

/// The first of equal elements gets the whole gradient, and padding gets none, even if all elements
/// are as low as possible.
#[test]
fn the_first_of_equal_maxima_gets_the_gradient() {
    everywhere(|engine| {
        let g = engine.tensor(&[1.0f32, 10.0], &[1, 1, 2])?;
        let low = f32::NEG_INFINITY;
        for dilation in [1, 2] {
            let size = 3 + dilation;
            let pool =
                Pool { padding: vec![1], dilation: vec![dilation], stride: vec![3], ..Pool::new(&[2]) };
            let x = engine.full(low, &[1, 1, size])?;
            let found = grad::max_pool(&x, &pool, &g)?.to_vec::<f32>()?;
            // The first window begins in the padding, the second one at element 2.
            let mut expected = vec![0.0; size];
            expected[dilation - 1] = 1.0;
            expected[2] += 10.0;
            assert_eq!(found, expected, "dilation {dilation}");
        }
        Ok(())
    });
}

#[test]
fn images_of_another_size() {
    for method in [Method::Nearest, Method::NearestExact, Method::Linear, Method::Cubic] {
        for align_corners in [false, true] {
            for (dims, sizes) in [([1, 2, 3, 4], [5, 2]), ([2, 1, 4, 3], [1, 3]), ([1, 1, 1, 2], [3, 7])] {
                let settings = Resize { method, align_corners, ..Resize::default() };
                let rule = |g: &Tensor| grad::resize(&dims, settings, g);
                check_one(&dims, |x| nn::resize(x, &sizes, settings), |_, _, g| rule(g));
            }
        }
        let settings = Resize { method, layout: Layout::ChannelsLast, ..Resize::default() };
        let rule = |x: &Tensor, g: &Tensor| grad::resize(x.dims(), settings, g);
        check_one(&[2, 3, 2], |x| nn::resize(x, &[4], settings), |x, _, g| rule(x, g));
    }
    for (dims, sizes) in [([1, 2, 4, 6], [2, 4]), ([1, 1, 3, 2], [5, 1]), ([2, 1, 3, 3], [3, 2])] {
        let function = |x: &Tensor| nn::adaptive_avg_pool(x, &sizes, Layout::ChannelsFirst);
        check_one(&dims, function, |_, _, g| grad::adaptive_avg_pool(&dims, Layout::ChannelsFirst, g));
    }
    let function = |x: &Tensor| nn::adaptive_avg_pool(x, &[3], Layout::ChannelsLast);
    check_one(&[1, 4, 2], function, |x, _, g| grad::adaptive_avg_pool(x.dims(), Layout::ChannelsLast, g));
}

// ----- noise -----

#[test]
fn what_was_dropped_gets_no_gradient() {
    let before = Generator::new(engine().stream(), 9).unwrap();
    for rate in [0.0, 0.3, 1.0] {
        check_one(
            &[4, 5],
            |x| nn::dropout(x, rate, &mut before.clone()),
            |_, _, g| grad::dropout(rate, &before, g),
        );
    }
}

// ----- linear algebra -----

/// Makes any matrix invertible.
fn invertible(x: &Tensor) -> Result<Tensor> {
    let size = x.dims()[x.rank() - 1];
    x.add(&(linalg::eye(&x.on_stream(), DType::F64, size, size)? * 4.0)?)
}

#[test]
fn systems_of_equations() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[3, 3], &[3, 2]),
        (&[3, 3], &[3]),
        (&[2, 3, 3], &[3]),
        (&[2, 1, 2, 2], &[3, 2, 1]),
        (&[2, 2], &[3, 2, 2]),
        (&[1, 1], &[1, 1]),
    ];
    for (a, b) in shapes {
        check(
            &[a, b],
            |x| linalg::solve(&invertible(&x[0])?, &x[1]),
            |x, g| {
                let a = invertible(&x[0])?;
                Ok(linalg::grad::solve(&a, b, &linalg::solve(&a, &x[1])?, g)?.to_vec())
            },
        );
    }
    for (lower, unit_diagonal, transpose) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
    {
        let system = Triangular { lower, unit_diagonal, transpose };
        for (a, b) in shapes.iter().filter(|(_, b)| b.len() > 1) {
            check(
                &[a, b],
                |x| linalg::triangular_solve(&invertible(&x[0])?, &x[1], system),
                |x, g| {
                    let a = invertible(&x[0])?;
                    let found = linalg::triangular_solve(&a, &x[1], system)?;
                    Ok(linalg::grad::triangular_solve(&a, b, &found, system, g)?.to_vec())
                },
            );
        }
    }
    for dims in [&[3, 3][..], &[2, 2, 2]] {
        check(
            &[dims],
            |x| linalg::inv(&invertible(&x[0])?),
            |x, g| Ok(vec![linalg::grad::inv(&linalg::inv(&invertible(&x[0])?)?, g)?]),
        );
    }
}

#[test]
fn factors_of_positive_matrices() {
    for dims in [&[1, 1][..], &[4, 4], &[2, 3, 3]] {
        // Far enough from 0 to stay positive. Only the lower triangle is read, so gradients above
        // it are zero.
        let positive = |x: &Tensor| {
            let size = dims[dims.len() - 1];
            x.add(&(linalg::eye(&x.on_stream(), DType::F64, size, size)? * 12.0)?)
        };
        check(
            &[dims],
            |x| linalg::cholesky(&positive(&x[0])?),
            |x, g| Ok(vec![linalg::grad::cholesky(&linalg::cholesky(&positive(&x[0])?)?, g)?]),
        );
    }
}

// ----- devices, modes and errors -----

/// Runs rules on fixed data in a type.
fn on(engine: &Engine, dtype: DType) -> Result<Vec<Tensor>> {
    let tensor = |dims: &[usize], seed: u64| {
        let mut random = Random::new(seed);
        let data: Vec<f64> = (0..dims.iter().product::<usize>()).map(|_| random.normal()).collect();
        engine.tensor(&data, dims).unwrap().convert(dtype).unwrap()
    };
    let mut found = Vec::new();
    for (dims, pool) in pools().into_iter().step_by(5) {
        let x = tensor(&dims, 1);
        let g = tensor(nn::max_pool(&x, &pool)?.dims(), 2);
        found.push(grad::max_pool(&x, &pool, &g)?);
        found.push(grad::avg_pool(&dims, &pool, &g)?);
    }
    let g = tensor(&[1, 2, 5, 3], 3);
    let cubic = Resize { method: Method::Cubic, ..Resize::default() };
    found.push(grad::resize(&[1, 2, 3, 4], cubic, &g)?);
    found.push(grad::adaptive_avg_pool(&[1, 2, 9, 7], Layout::ChannelsFirst, &g)?);
    found.push(grad::dropout(0.5, &Generator::new(engine.stream(), 1)?, &g)?);
    found.push(grad::gelu_exact(&g, &g)?);
    let a = (linalg::eye(engine.stream(), dtype, 3, 3)? * 9.0)?.add(&tensor(&[3, 3], 4))?;
    let (x, g) = (tensor(&[3, 2], 5), tensor(&[3, 2], 6));
    found.extend(linalg::grad::solve(&a, &[3, 2], &x, &g)?);
    let upper = Triangular { lower: false, unit_diagonal: false, transpose: true };
    found.extend(linalg::grad::triangular_solve(&a, &[3, 2], &x, upper, &g)?);
    let l = linalg::cholesky(&a)?;
    found.push(linalg::grad::cholesky(&l, &a)?);
    found.push(linalg::grad::inv(&linalg::inv(&a)?, &l)?);
    Ok(found)
}

#[test]
fn rules_are_the_same_on_every_device_and_in_every_mode() {
    let check = |engine: &Engine, dtype, unit| -> Result<()> {
        let numbers = |x: &Tensor| x.convert(DType::F64).unwrap().to_vec::<f64>().unwrap();
        let found = on(engine, dtype)?;
        for (i, (found, expected)) in found.iter().zip(on(self::engine(), dtype)?).enumerate() {
            assert_eq!(found.dtype(), dtype, "rule {i}");
            let expected = numbers(&expected);
            let largest = expected.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
            for (found, expected) in numbers(found).iter().zip(&expected) {
                let close = (found - expected).abs() <= unit * largest;
                assert!(close, "rule {i} in {dtype}: {found} and {expected}");
            }
        }
        Ok(())
    };
    everywhere(|engine| check(engine, DType::F32, 1e-5));
    for (dtype, unit) in [(DType::F64, 1e-13), (DType::BF16, 2e-2)] {
        on_all_tiers(support::config, |engine| check(engine, dtype, unit));
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused() {
    let zeros = |dtype, dims: &[usize]| engine().stream().zeros(dtype, dims).unwrap();
    let of = |dims: &[usize]| zeros(DType::F64, dims);
    let (x, pool) = (of(&[1, 1, 4, 4]), Pool::new(&[2, 2]));
    refused(grad::max_pool(&x, &pool, &x), "it must have the sizes of the result, [1, 1, 2, 2]");
    refused(
        grad::avg_pool(x.dims(), &pool, &of(&[1, 1, 2, 1])),
        "it must have the sizes of the result, [1, 1, 2, 2]",
    );
    refused(grad::avg_pool(&[1, 4, 4], &pool, &of(&[1, 2, 2])), "one entry per spatial dimension");
    refused(
        grad::resize(&[2, 1, 4, 4], Resize::default(), &x),
        "they may differ only in the spatial dimensions",
    );
    refused(grad::resize(&[1, 1, 4], Resize::default(), &x), "one entry per spatial dimension");
    refused(
        grad::resize(&[1, 1, 4, 4, 4], Resize::default(), &x),
        "they may differ only in the spatial dimensions",
    );
    let layout = Layout::ChannelsLast;
    refused(
        grad::adaptive_avg_pool(&[1, 4, 4, 3], layout, &x),
        "they may differ only in the spatial dimensions",
    );
    refused(grad::adaptive_avg_pool(&[1, 4, 0, 4], layout, &x), "none of them empty");
    refused(grad::dropout(1.5, &Generator::new(engine().stream(), 1).unwrap(), &x), "from 0 to 1");
    let (square, complex) = (of(&[2, 2]), zeros(DType::C128, &[2, 2]));
    refused(linalg::grad::inv(&of(&[2, 3]), &square), "equal");
    refused(linalg::grad::cholesky(&complex, &complex), "only real ones");
    refused(linalg::grad::inv(&complex, &complex), "only real ones");
    refused(linalg::grad::solve(&complex, &[2, 2], &square, &square), "only real ones");
    refused(linalg::grad::solve(&square, &[3, 2], &square, &of(&[3, 2])), "as many rows");
}
