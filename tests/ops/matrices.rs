//! Linear algebra, sorting and tables against NumPy, and against the definitions of factors.

use std::collections::HashMap;

use fuseline::fft;
use fuseline::linalg::{self, Eigen, Svd};
use fuseline::nn;
use fuseline::{Complex, DType, Engine, Literal, Mode, Order, Result, Tensor, unchecked};

use crate::examples::random::Random;
use crate::support;
use crate::support::reference::{Case, cases};
use crate::support::{in_each_mode, on_all_tiers, refused};

fn call(case: &Case, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let one = |result: Result<Tensor>| Ok(vec![result?]);
    let two = |result: Result<(Tensor, Tensor)>| result.map(|(a, b)| vec![a, b]);
    let a = &x[0];
    let b = || &x[1];
    let axis = || case.int("axis");
    match case.name.as_str() {
        "det" => one(linalg::det(a)),
        "slogdet" => two(linalg::slogdet(a)),
        "inv" => one(linalg::inv(a)),
        "solve" => one(linalg::solve(a, b())),
        "eigvalsh" => one(Ok(linalg::eigh(a)?.values)),
        "trace" => one(linalg::trace(a)),
        "cholesky" => one(linalg::cholesky(a)),
        "cholesky_solve" => one(linalg::cholesky_solve(&linalg::cholesky(a)?, b())),
        "svdvals" => one(Ok(linalg::svd(a)?.s)),
        "pinv" => one(linalg::pinv(a)),
        "qr" => two(linalg::qr(a)),
        "qr_complete" => two(linalg::qr_complete(a)),
        "tril" => one(linalg::tril(a, case.int("diagonal"))),
        "triu" => one(linalg::triu(a, case.int("diagonal"))),
        "lstsq" => one(linalg::lstsq(a, b())),
        "norm" => one(linalg::norm(a, &case.ints("axes"))),
        "sort" => one(a.sort(axis(), Order::Ascending)),
        "argsort" => one(a.argsort(axis(), Order::Ascending)?.convert(DType::I64)),
        "median" => one(a.median(axis())),
        "quantile" => one(a.quantile(case.number("share"), axis())),
        "unique" => {
            let found = a.unique(case.outputs[0].ty().elems().get(), 0)?;
            let wide = |x: &Tensor| x.convert(DType::I64);
            Ok(vec![found.values, wide(&found.counts)?, wide(&found.places)?, wide(&found.inverse)?])
        }
        "mean" => one(a.mean(&case.ints("axes"))),
        "topk" => {
            let (values, places) = a.topk(case.int("k") as usize, axis())?;
            Ok(vec![values, places.convert(DType::I64)?])
        }
        // NumPy has no such function; some of the indices are out of range.
        "one_hot" => one(unchecked(|| a.one_hot(case.int("classes") as usize, DType::F64))),
        "embedding" => one(nn::embedding(a, b())),
        "take_along" => one(a.take_along(b(), axis())),
        "diagonal" => one(a.diagonal(case.int("first"), case.int("second"))),
        "tensordot" => one(a.tensordot(b(), &case.ints("lhs"), &case.ints("rhs"))),
        "rfft" => {
            let found = fft::rfft(a, case.int("count") as usize)?;
            Ok(vec![found.real()?, found.imag()?])
        }
        "fft" | "ifft" | "irfft" => {
            let (x, count) = ((a + (b() * Complex::new(0.0, 1.0))?)?, case.int("count") as usize);
            let found = match case.name.as_str() {
                "fft" => fft::fft(&x, count)?,
                "ifft" => fft::ifft(&x, count)?,
                _ => return Ok(vec![fft::irfft(&x, count, case.int("size") as usize)?]),
            };
            Ok(vec![found.real()?, found.imag()?])
        }
        other => panic!("no function is called {other}"),
    }
}

/// The tolerance against NumPy: a few units of the size of the numbers, more for functions that
/// divide by small numbers.
fn tolerance(case: &Case, expected: &Literal) -> f64 {
    if expected.dtype() != DType::F64 {
        return 0.0;
    }
    // Real and imaginary parts belong to the same numbers.
    let of: &[Literal] =
        if case.name.ends_with("fft") { &case.outputs } else { std::slice::from_ref(expected) };
    let all = of.iter().flat_map(|data| data.to_vec::<f64>().unwrap());
    let largest = all.filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
    match case.name.as_str() {
        "sort" | "unique" | "topk" | "one_hot" | "embedding" | "take_along" | "diagonal" | "tril"
        | "triu" => 0.0,
        "inv" | "solve" | "cholesky_solve" | "pinv" | "lstsq" => 1e-12 * largest,
        _ => 1e-13 * largest,
    }
}

fn difference(case: &Case, actual: &Literal, expected: &Literal) -> Option<String> {
    let limit = tolerance(case, expected);
    if limit == 0.0 || actual.ty() != expected.ty() {
        return case.difference(actual, expected, 0.0);
    }
    // Relative to the largest element, unlike case.difference.
    let (actual, expected) = (actual.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
    actual.iter().zip(&expected).enumerate().find_map(|(i, (a, e))| {
        let same = (a - e).abs() <= limit || a == e || (a.is_nan() && e.is_nan());
        (!same).then(|| {
            format!(
                "{} {}: element {i} is {a:?} instead of {e:?}, {:?}",
                case.name,
                case.settings,
                case.inputs[0].ty()
            )
        })
    })
}

#[test]
fn everything_is_as_in_numpy() {
    in_each_mode(|engine, mode| {
        let cases = cases(include_str!("../data/numpy.json"));
        assert!(cases.len() > 300, "there are {} cases", cases.len());
        // The plugin gets a part of the cases: without fusion every op of every shape is a module.
        let most = match mode {
            _ if engine.pjrt_device().is_none() => usize::MAX,
            Mode::Fused => 3,
            _ => 1,
        };
        let mut seen = HashMap::<&str, usize>::new();
        let mut recorded = Vec::new();
        for case in &cases {
            let count = seen.entry(&case.name).or_default();
            *count += 1;
            if *count > most {
                continue;
            }
            let x: Vec<Tensor> =
                case.inputs.iter().map(|input| engine.from_literal(input)).collect::<Result<_>>()?;
            recorded.push((case, call(case, &x)?));
        }
        let mut wrong = Vec::new();
        for (case, results) in recorded {
            assert_eq!(results.len(), case.outputs.len());
            for (result, expected) in results.iter().zip(&case.outputs) {
                wrong.extend(difference(case, &result.to_literal()?, expected));
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
        Ok(())
    });
}

// ----- definitions of factors -----

fn matrix(engine: &Engine, dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    let count = dims.iter().product::<usize>();
    let data: Vec<f64> = (0..count).map(|_| random.normal()).collect();
    engine.tensor(&data, dims).unwrap().convert(dtype).unwrap()
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.convert(DType::F64).unwrap().to_vec().unwrap()
}

#[track_caller]
fn close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (numbers(a), numbers(b));
    let largest = b.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        assert!((x - y).abs() <= tolerance * largest, "element {i}: {x} and {y}");
    }
}

/// `a^T a` is the identity.
#[track_caller]
fn orthonormal(a: &Tensor, tolerance: f64) {
    let product = a.swap_axes(-1, -2).unwrap().matmul(a).unwrap();
    let size = *a.dims().last().unwrap();
    let unit =
        linalg::eye(&a.on_stream(), a.dtype(), size, size).unwrap().broadcast_to(product.dims()).unwrap();
    close(&product, &unit, tolerance);
}

fn units(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-13 } else { 2e-5 }
}

#[test]
fn factors_multiply_to_their_matrix() {
    on_all_tiers(support::config, |engine| {
        let shapes: &[&[usize]] = match engine.pjrt_device() {
            Some(_) => &[&[2, 5, 3]],
            None => &[&[1, 1], &[4, 4], &[7, 7], &[6, 3], &[3, 6], &[2, 3, 5, 2], &[9, 1], &[1, 5]],
        };
        for (seed, dims) in shapes.iter().enumerate() {
            for dtype in [DType::F32, DType::F64] {
                let (a, unit) = (matrix(engine, dtype, dims, seed as u64), units(dtype));
                let (q, r) = linalg::qr(&a)?;
                close(&q.matmul(&r)?, &a, unit);
                orthonormal(&q, unit);
                close(&linalg::triu(&r, 0)?, &r, 0.0);
                let (q, r) = linalg::qr_complete(&a)?;
                assert_eq!((q.dims()[q.rank() - 1], r.dims()), (dims[dims.len() - 2], *dims));
                close(&q.matmul(&r)?, &a, unit);
                orthonormal(&q, unit);

                let Svd { u, s, vt } = linalg::svd(&a)?;
                close(&u.mul(&s.unsqueeze(-2)?)?.matmul(&vt)?, &a, unit);
                orthonormal(&u, unit);
                orthonormal(&vt.swap_axes(-1, -2)?, unit);
                let falling = numbers(&s);
                assert!(falling.chunks(s.dims()[s.rank() - 1]).all(|s| s.is_sorted_by(|a, b| a >= b)));
                assert!(falling.iter().all(|&s| s >= 0.0));

                let square = a.swap_axes(-1, -2)?.matmul(&a)?;
                let symmetric = square.sub(&linalg::eye(engine.stream(), dtype, 1, 1)?)?;
                let Eigen { values, vectors } = linalg::eigh(&symmetric)?;
                orthonormal(&vectors, unit);
                let turned = vectors.mul(&values.unsqueeze(-2)?)?.matmul(&vectors.swap_axes(-1, -2)?)?;
                close(&turned, &symmetric, unit);
                assert!(numbers(&values).chunks(*values.dims().last().unwrap()).all(|w| w.is_sorted()));
            }
        }
        Ok(())
    });
}

/// Matrices of lower rank still have factors, which are orthonormal where they should be.
#[test]
fn matrices_of_lower_rank() -> Result<()> {
    let engine = Engine::reference();
    for (rows, columns, rank) in [(5, 4, 1), (4, 4, 2), (3, 6, 2), (6, 3, 0), (2, 2, 0)] {
        let (left, right) =
            (matrix(&engine, DType::F64, &[rows, rank], 1), matrix(&engine, DType::F64, &[rank, columns], 2));
        let a = left.matmul(&right)?;
        let Svd { u, s, vt } = linalg::svd(&a)?;
        close(&u.mul(&s.unsqueeze(-2)?)?.matmul(&vt)?, &a, 1e-13);
        orthonormal(&u, 1e-13);
        orthonormal(&vt.swap_axes(-1, -2)?, 1e-13);
        assert!(numbers(&s)[rank..].iter().all(|&s| s < 1e-14));
        let (q, r) = linalg::qr(&a)?;
        close(&q.matmul(&r)?, &a, 1e-13);
        orthonormal(&q, 1e-13);
    }
    // Equal rows of zeros and ones have equal eigenvalues.
    let ones = engine.full(1.0f64, &[5, 5])?;
    let Eigen { values, vectors } = linalg::eigh(&ones)?;
    close(&values, &engine.tensor(&[0.0, 0.0, 0.0, 0.0, 5.0], &[5])?, 1e-14);
    orthonormal(&vectors, 1e-14);
    close(
        &linalg::eigh(&engine.stream().zeros(DType::F64, &[3, 3])?)?.values,
        &engine.tensor(&[0.0; 3], &[3])?,
        0.0,
    );
    Ok(())
}

/// Jacobi's methods find small singular values to their own precision, not to that of the largest
/// one.
#[test]
fn small_singular_values_are_as_precise_as_large_ones() -> Result<()> {
    let engine = Engine::reference();
    let (q, _) = linalg::qr(&matrix(&engine, DType::F64, &[6, 4], 3))?;
    let sizes = engine.tensor(&[1e-3, 1e8, 1.0, 1e-12], &[4])?;
    let s = numbers(&linalg::svd(&q.mul(&sizes)?)?.s);
    for (found, expected) in s.iter().zip([1e8, 1.0, 1e-3, 1e-12]) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{s:?}");
    }
    Ok(())
}

#[test]
fn elimination_swaps_rows_and_takes_complex_matrices() -> Result<()> {
    on_all_tiers(support::config, |engine| {
        let a = matrix(engine, DType::F64, &[2, 4, 4], 4);
        let linalg::Lu { factors, permutation, pivots, odd } = linalg::lu(&a)?;
        let unit = linalg::eye(engine.stream(), DType::F64, 4, 4)?;
        let product = linalg::tril(&factors, -1)?.add(&unit)?.matmul(&linalg::triu(&factors, 0)?)?;
        let order = permutation.unsqueeze(-1)?.broadcast_to(a.dims())?;
        close(&product, &a.take_along(&order, -2)?, 1e-14);
        assert!(numbers(&linalg::tril(&factors, -1)?).iter().all(|x| x.abs() <= 1.0));
        let (permutation, pivots) = (permutation.to_vec::<i32>()?, pivots.to_vec::<i32>()?);
        let orders = permutation.chunks(4).zip(pivots.chunks(4));
        for ((order, pivots), odd) in orders.zip(odd.to_vec::<bool>()?) {
            let mut exchanged = [0, 1, 2, 3];
            pivots.iter().enumerate().for_each(|(k, &pivot)| exchanged.swap(k, pivot as usize));
            assert_eq!(order, exchanged);
            let mut seen = order.to_vec();
            let inversions =
                (0..4).flat_map(|i| (i..4).map(move |j| (i, j))).filter(|&(i, j)| seen[i] > seen[j]).count();
            assert_eq!(inversions % 2 == 1, odd);
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3]);
        }

        let i = Complex::new(0.0f64, 1.0);
        let a = (&matrix(engine, DType::F64, &[3, 3], 5) + (matrix(engine, DType::F64, &[3, 3], 6) * i)?)?;
        let x = (&matrix(engine, DType::F64, &[3, 2], 7) * i)?;
        let found = linalg::solve(&a, &a.matmul(&x)?)?;
        for (a, b) in found.to_vec::<Complex<f64>>()?.into_iter().zip(x.to_vec::<Complex<f64>>()?) {
            assert!((a - b).norm() < 1e-13, "{a} instead of {b}");
        }
        Ok(())
    });
    Ok(())
}

#[test]
fn a_singular_matrix_is_no_error() -> Result<()> {
    let engine = Engine::reference();
    let a = engine.tensor(&[1.0f32, 2.0, 2.0, 4.0], &[2, 2])?;
    assert_eq!(linalg::det(&a)?.item::<f32>()?, 0.0);
    let (sign, size) = linalg::slogdet(&a)?;
    assert_eq!((sign.item::<f32>()?, size.item::<f32>()?), (0.0, f32::NEG_INFINITY));
    assert!(linalg::inv(&a)?.to_vec::<f32>()?.iter().all(|x| !x.is_finite()));
    let negative = engine.tensor(&[-1.0f32], &[1, 1])?;
    assert!(linalg::cholesky(&negative)?.item::<f32>()?.is_nan());
    // NaN does not keep a loop running.
    let nan = engine.full(f32::NAN, &[3, 3])?;
    assert!(linalg::eigh(&nan)?.values.to_vec::<f32>()?.iter().all(|x| x.is_nan()));
    assert!(linalg::svd(&nan)?.s.to_vec::<f32>()?.iter().all(|x| x.is_nan()));
    Ok(())
}

#[test]
fn empty_matrices_and_narrow_floats() -> Result<()> {
    let engine = Engine::reference();
    let empty = engine.stream().zeros(DType::F32, &[2, 0, 0])?;
    assert_eq!(linalg::det(&empty)?.to_vec::<f32>()?, [1.0, 1.0]);
    assert_eq!(linalg::eigh(&empty)?.values.dims(), [2, 0]);
    assert_eq!(linalg::inv(&empty)?.dims(), [2, 0, 0]);
    let none = engine.stream().zeros(DType::F32, &[3, 0])?;
    let Svd { u, s, vt } = linalg::svd(&none)?;
    assert_eq!((u.dims(), s.dims(), vt.dims()), (&[3, 0][..], &[0][..], &[0, 0][..]));
    let (q, r) = linalg::qr_complete(&none)?;
    assert_eq!((q.dims(), r.dims()), (&[3, 3][..], &[3, 0][..]));
    orthonormal(&q, 0.0);

    for dtype in [DType::F16, DType::BF16] {
        let a = matrix(&engine, dtype, &[3, 3], 8);
        let x = linalg::solve(&a, &linalg::inv(&a)?.convert(DType::F32)?)?;
        assert_eq!((linalg::inv(&a)?.dtype(), x.dtype()), (dtype, DType::F32));
        assert_eq!(linalg::svd(&a)?.u.dtype(), dtype);
        assert_eq!(linalg::det(&a)?.dtype(), dtype);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let engine = Engine::reference();
    let zeros = |dtype, dims: &[usize]| engine.stream().zeros(dtype, dims).unwrap();
    let (wide, vector) = (zeros(DType::F32, &[2, 3]), zeros(DType::F32, &[3]));
    let ints = zeros(DType::I32, &[3, 3]);
    refused(linalg::inv(&wide), "its last two dimensions must be equal");
    refused(linalg::qr(&vector), "a matrix needs at least two dimensions");
    refused(linalg::svd(&ints), "convert it to a float type");
    refused(linalg::solve(&zeros(DType::F32, &[3, 3]), &wide), "b must have as many rows as a");
    refused(linalg::solve(&zeros(DType::F32, &[2, 3, 3]), &zeros(DType::F32, &[5, 3, 1])), "broadcast");
    refused(linalg::lstsq(&wide, &vector), "b must have as many rows as a");
    refused(linalg::eigh(&zeros(DType::C64, &[2, 2])), "the elements must be floats");
    refused(linalg::trace(&wide), "equal");
    refused(wide.diagonal(0, 1), "two different dimensions of the same size");
    refused(wide.diagonal(1, 1), "two different dimensions of the same size");
    refused(wide.sort(2, Order::Ascending), "dimension 2");
    refused(zeros(DType::C64, &[2]).sort(0, Order::Ascending), "");
    refused(wide.topk(4, 1), "k is 4");
    refused(wide.quantile(1.5, 0), "from 0 to 1");
    refused(zeros(DType::F32, &[0]).median(0), "must not be empty");
    refused(ints.median(0), "floats");
    refused(
        ints.unique(2, 0.5),
        "0.5 was given as the padding value of i32; the element type must hold it exactly",
    );
    for fill in [f64::NAN, f64::INFINITY, 1e10, -0.5] {
        refused(ints.unique(2, fill), "must hold it exactly");
    }
    refused(ints.unique(2, 1 << 40), "1099511627776 was given as the padding value of i32");
    refused(vector.unique(2, Complex::new(0.0, 1.0)), "was given as the padding value of f32");
    refused(zeros(DType::U8, &[2]).unique(2, 256.0), "256 was given as the padding value of u8");
    refused(zeros(DType::C64, &[2]).unique(2, 0), "no order");
    refused(zeros(DType::Bool, &[2]).unique(2, 2), "2 was given as the padding value of bool");
    refused(wide.take_along(&ints, 1), "same sizes in all dimensions but 1");
    refused(fft::fft(&zeros(DType::I4, &[2]), 1), "cannot be promoted to complex");
    refused(fft::rfft(&zeros(DType::I32, &[2]), 1), "fft");
    refused(fft::fft(&vector, 2), "fft_length has 2 entries");
    refused(fft::fft(&vector, usize::MAX), "fft_length has 4 entries");
    refused(fft::irfft(&vector, 1, 9), "fft_length is 9");
    refused(wide.tensordot(&vector, &[0], &[0]), "dot_general");
    Ok(())
}

// ----- order -----

#[test]
fn descending_orders_are_stable_too() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[2.0f32, f32::NAN, 5.0, 2.0, f32::INFINITY, -0.0, 0.0], &[7])?;
        let (sorted, places) = x.sort_with_places(0, Order::Descending)?;
        assert_eq!(places.to_vec::<i32>()?, [1, 4, 2, 0, 3, 5, 6]);
        let sorted = sorted.to_vec::<f32>()?;
        assert!(sorted[0].is_nan());
        assert_eq!(sorted[1..], [f32::INFINITY, 5.0, 2.0, 2.0, 0.0, 0.0]);
        assert!(sorted[5].is_sign_negative() && sorted[6].is_sign_positive());

        let ints = engine.tensor(&[3u8, 9, 3, 255, 0, 9], &[2, 3])?;
        assert_eq!(ints.sort(1, Order::Descending)?.to_vec::<u8>()?, [9, 3, 3, 255, 9, 0]);
        assert_eq!(ints.sort(0, Order::Descending)?.to_vec::<u8>()?, [255, 9, 9, 3, 0, 3]);
        let (values, places) = ints.topk(2, 1)?;
        assert_eq!((values.to_vec::<u8>()?, places.to_vec::<i32>()?), (vec![9, 3, 255, 9], vec![1, 0, 0, 2]));
        let (values, places) = ints.topk(1, 0)?;
        assert_eq!((values.dims(), values.to_vec::<u8>()?), (&[1, 3][..], vec![255, 9, 9]));
        assert_eq!(places.to_vec::<i32>()?, [1, 0, 1]);
        Ok(())
    });
}

/// A quantile exactly at an element is that element, even an infinite one. Between two numbers of
/// which one is infinite, all quantiles are infinite.
#[test]
fn quantiles_next_to_infinities() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[f64::INFINITY, 1.0, f64::NEG_INFINITY, 3.0, 2.0], &[5])?;
    for (share, expected) in [
        (0.0, f64::NEG_INFINITY),
        (0.1, f64::NEG_INFINITY),
        (0.25, 1.0),
        (0.5, 2.0),
        (0.75, 3.0),
        (0.8, f64::INFINITY),
    ] {
        assert_eq!(x.quantile(share, 0)?.item::<f64>()?, expected, "{share}");
    }
    assert!(x.narrow(0, 0, 1)?.quantile(1.0, 0)?.item::<f64>()? == f64::INFINITY);
    Ok(())
}

#[test]
fn distinct_elements_in_lists_of_other_sizes() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[4i8, 4, -1, 7, -1, 4], &[2, 3])?;
    let found = x.unique(5, -9)?;
    assert_eq!(found.values.to_vec::<i8>()?, [-1, 4, 7, -9, -9]);
    assert_eq!(found.counts.to_vec::<i32>()?, [2, 3, 1, 0, 0]);
    assert_eq!(found.places.to_vec::<i32>()?, [2, 0, 3, 6, 6]);
    assert_eq!((found.inverse.dims(), found.inverse.to_vec::<i32>()?), (&[2, 3][..], vec![1, 1, 0, 2, 0, 1]));
    assert_eq!(found.count.item::<i32>()?, 3);
    let few = x.unique(2, 0)?;
    assert_eq!((few.values.to_vec::<i8>()?, few.counts.to_vec::<i32>()?), (vec![-1, 4], vec![2, 3]));
    assert_eq!(few.count.item::<i32>()?, 3);
    // An integer is an integer however it is written, and floats are rounded.
    assert_eq!(x.unique(4, -9.0)?.values.to_vec::<i8>()?, [-1, 4, 7, -9]);
    assert_eq!(engine.tensor(&[1.0f32], &[1])?.unique(2, 0.1)?.values.to_vec::<f32>()?, [1.0, 0.1]);
    assert_eq!(engine.tensor(&[true], &[1])?.unique(2, 0)?.values.to_vec::<bool>()?, [true, false]);
    let large = engine.tensor(&[7u64], &[1])?.unique(2, i64::MAX)?;
    assert_eq!(large.values.to_vec::<u64>()?, [7, i64::MAX as u64]);
    let large = engine.tensor(&[7u64], &[1])?.unique(2, 2f64.powi(63))?;
    assert_eq!(large.values.to_vec::<u64>()?, [7, 1 << 63]);
    let none = engine.tensor::<f32>(&[], &[0, 2])?.unique(2, 1.5)?;
    assert_eq!((none.values.to_vec::<f32>()?, none.count.item::<i32>()?), (vec![1.5, 1.5], 0));
    assert_eq!(none.inverse.dims(), [0, 2]);
    Ok(())
}
