//! The functions of `fuseline::nn` against plain loops over `f64`, and their errors for wrong
//! shapes.

use fuseline::nn::{self, Adam, AdamState, Attention};
use fuseline::{DType, Engine, Error, Mode, Origin, Result, Stage, Tensor, with_mode};

use crate::examples::random::Random;

const CLOSE: f64 = 1e-12;

/// Rows of random numbers, some of them so large that a naive computation overflows.
fn rows(count: usize, width: usize) -> Vec<Vec<f64>> {
    let mut random = Random::new(3);
    (0..count)
        .map(|row| {
            let offset = [0.0, 800.0, -800.0][row % 3];
            (0..width).map(|_| 3.0 * random.normal() + offset).collect()
        })
        .collect()
}

fn upload(engine: &Engine, rows: &[Vec<f64>]) -> Tensor {
    engine.tensor(&rows.concat(), &[rows.len(), rows[0].len()]).unwrap()
}

#[track_caller]
fn close(actual: &Tensor, expected: &[f64], tolerance: f64) {
    let actual = actual.to_vec::<f64>().unwrap();
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= tolerance * e.abs().max(1.0), "element {i} is {a}, expected {e}");
    }
}

/// A refused call: a recording error that is the program's fault, with this file as the call site.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.expect_err("the call does not fit");
    assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User), "{error}");
    assert!(error.to_string().contains("tests/ops/nn.rs"), "the place is not the caller's: {error}");
    error
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = row.iter().map(|x| (x - largest).exp()).sum();
    row.iter().map(|x| x - largest - total.ln()).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    log_softmax(row).into_iter().map(f64::exp).collect()
}

fn transposed(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (0..rows[0].len()).map(|j| rows.iter().map(|row| row[j]).collect()).collect()
}

// ----- activations -----

#[test]
fn relu_and_silu_and_gelu() -> Result<()> {
    let engine = Engine::reference();
    let x = [-30.0f64, -3.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 30.0];
    let t = engine.tensor(&x, &[3, 3])?;
    close(&nn::relu(&t)?, &x.map(|x| x.max(0.0)), 0.0);
    close(&nn::silu(&t)?, &x.map(|x| x / (1.0 + (-x).exp())), CLOSE);
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    close(&nn::gelu(&t)?, &x.map(gelu), CLOSE);

    assert_eq!(nn::relu(&engine.tensor(&[-2i32, 3], &[2])?)?.to_vec::<i32>()?, [0, 3]);
    assert!(nn::relu(&engine.tensor(&[f32::NAN], &[])?)?.item::<f32>()?.is_nan());
    let integers = engine.tensor(&[1i32], &[1])?;
    refused(nn::silu(&integers));
    refused(nn::gelu(&integers));
    Ok(())
}

// ----- softmax and cross-entropy -----

#[test]
fn softmax_along_either_dimension() -> Result<()> {
    let engine = Engine::reference();
    let data = rows(6, 5);
    let x = upload(&engine, &data);
    let by_row = |f: fn(&[f64]) -> Vec<f64>| data.iter().flat_map(|row| f(row)).collect::<Vec<_>>();
    let by_column = |f: fn(&[f64]) -> Vec<f64>| {
        let columns: Vec<Vec<f64>> = transposed(&data).iter().map(|column| f(column)).collect();
        transposed(&columns).concat()
    };
    close(&nn::softmax(&x, -1)?, &by_row(softmax), CLOSE);
    close(&nn::softmax(&x, 1)?, &by_row(softmax), CLOSE);
    close(&nn::softmax(&x, 0)?, &by_column(softmax), CLOSE);
    close(&nn::log_softmax(&x, -1)?, &by_row(log_softmax), CLOSE);
    close(&nn::log_softmax(&x, -2)?, &by_column(log_softmax), CLOSE);
    // One row of one element, and none at all.
    close(&nn::softmax(&engine.tensor(&[7.0f64], &[1, 1])?, 1)?, &[1.0], 0.0);
    assert_eq!(nn::softmax(&engine.tensor::<f64>(&[], &[0, 3])?, 1)?.dims(), [0, 3]);
    Ok(())
}

#[test]
fn softmax_refuses_dimensions_and_types() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[1.0f64, 2.0], &[2])?;
    for axis in [1, 2, -2, i64::MAX, i64::MIN] {
        refused(nn::softmax(&x, axis));
        refused(nn::log_softmax(&x, axis));
    }
    let scalar = engine.tensor(&[1.0f64], &[])?;
    refused(nn::softmax(&scalar, 0));
    refused(nn::softmax(&scalar, -1));
    refused(nn::softmax(&engine.tensor(&[1i32], &[1])?, 0));
    refused(nn::softmax(&engine.tensor(&[true], &[1])?, 0));
    Ok(())
}

#[test]
fn cross_entropy_is_the_mean_over_all_labels() -> Result<()> {
    let engine = Engine::reference();
    let data = rows(4, 3);
    let labels = [2usize, 0, 1, 1];
    let expected: f64 =
        data.iter().zip(labels).map(|(row, label)| -log_softmax(row)[label]).sum::<f64>() / 4.0;
    let (x, y) = (upload(&engine, &data), engine.tensor(&labels.map(|label| label as i32), &[4])?);
    close(&nn::cross_entropy(&x, &y)?, &[expected], CLOSE);
    let (x, y) = (x.reshape(&[2, 2, 3])?, y.reshape(&[2, 2])?);
    close(&nn::cross_entropy(&x, &y)?, &[expected], CLOSE);
    // One sample without a batch.
    let one = engine.tensor(&data[0], &[3])?;
    close(&nn::cross_entropy(&one, &engine.tensor(&[2u8], &[])?)?, &[-log_softmax(&data[0])[2]], CLOSE);
    Ok(())
}

#[test]
fn cross_entropy_refuses_what_does_not_fit() -> Result<()> {
    let engine = Engine::reference();
    let logits = engine.tensor(&[0.5f64; 6], &[2, 3])?;
    let error = refused(nn::cross_entropy(&engine.tensor(&[1.0f64], &[])?, &engine.tensor(&[0i32], &[])?));
    assert!(error.to_string().contains("the logits are a scalar"), "{error}");
    refused(nn::cross_entropy(&logits, &engine.tensor(&[0i32, 1, 2], &[3])?));
    refused(nn::cross_entropy(&logits, &engine.tensor(&[0.0f32, 1.0], &[2])?));
    refused(nn::cross_entropy(&engine.tensor(&[1i32; 6], &[2, 3])?, &engine.tensor(&[0i32, 1], &[2])?));
    Ok(())
}

/// Labels that only broadcast to the batch would produce a number that is not the mean over the
/// batch.
#[test]
fn cross_entropy_does_not_broadcast_labels() -> Result<()> {
    let engine = Engine::reference();
    let logits = engine.tensor(&[0.5f64; 6], &[2, 3])?;
    refused(nn::cross_entropy(&logits, &engine.tensor(&[0i32], &[1])?));
    refused(nn::cross_entropy(&logits, &engine.tensor(&[0i32], &[])?));
    refused(nn::cross_entropy(&logits, &engine.tensor(&[0i32; 4], &[2, 2])?));
    Ok(())
}

// ----- layers -----

#[test]
fn layer_norm_has_mean_beta_and_deviation_gamma() -> Result<()> {
    let engine = Engine::reference();
    let data = rows(3, 4);
    let (gamma, beta, epsilon) = ([0.5, 1.0, 2.0, -1.0], [0.0, 1.0, -1.0, 3.0], 1e-5);
    let norm = |row: &[f64]| -> (Vec<f64>, f64) {
        let mean = row.iter().sum::<f64>() / 4.0;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 4.0;
        let scale = 1.0 / (variance + epsilon).sqrt();
        (row.iter().map(|x| (x - mean) * scale).collect(), scale)
    };
    let x = upload(&engine, &data);
    let (g, b) = (engine.tensor(&gamma, &[4])?, engine.tensor(&beta, &[4])?);
    let expected: Vec<f64> = data
        .iter()
        .flat_map(|row| {
            norm(row).0.into_iter().enumerate().map(|(i, x)| x * gamma[i] + beta[i]).collect::<Vec<_>>()
        })
        .collect();
    close(&nn::layer_norm(&x, &g, &b, epsilon)?, &expected, 1e-10);
    let (normal, scale) = nn::normalize(&x, &[-1], epsilon)?;
    assert_eq!((normal.dims(), scale.dims()), (&[3, 4][..], &[3, 1][..]));
    close(&normal, &data.iter().flat_map(|row| norm(row).0).collect::<Vec<_>>(), 1e-10);
    close(&scale, &data.iter().map(|row| norm(row).1).collect::<Vec<_>>(), 1e-10);

    refused(nn::layer_norm(&x, &engine.tensor(&[1.0f64; 3], &[3])?, &b, epsilon));
    refused(nn::layer_norm(&engine.tensor(&[1.0f64], &[])?, &g, &b, epsilon));
    refused(nn::layer_norm(&engine.tensor(&[1i32; 4], &[4])?, &g, &b, epsilon));
    // Weights of another width promote.
    let narrow = engine.tensor(&gamma.map(|x| x as f32), &[4])?;
    close(&nn::layer_norm(&x, &narrow, &b, epsilon)?, &expected, 1e-10);
    Ok(())
}

#[test]
fn attention_looks_where_the_mask_lets_it() -> Result<()> {
    let engine = Engine::reference();
    let (batch, heads, length, width) = (2usize, 2usize, 3usize, 4usize);
    let mut random = Random::new(11);
    let count = batch * heads * length * width;
    let mut draw = || (0..count).map(|_| random.normal()).collect::<Vec<f64>>();
    let (q, k, v) = (draw(), draw(), draw());
    let dims = [batch, heads, length, width];
    let tensor = |data: &[f64]| engine.tensor(data, &dims).unwrap();
    for causal in [false, true] {
        let (mut mixed, mut weights) = (Vec::new(), Vec::new());
        for head in 0..batch * heads {
            let row = |data: &[f64], place: usize| {
                let start = (head * length + place) * width;
                data[start..start + width].to_vec()
            };
            for place in 0..length {
                let scores: Vec<f64> = (0..length)
                    .map(|other| {
                        let dot: f64 = row(&q, place).iter().zip(row(&k, other)).map(|(a, b)| a * b).sum();
                        let hidden = causal && other > place;
                        dot / (width as f64).sqrt() + if hidden { -1e9 } else { 0.0 }
                    })
                    .collect();
                let w = softmax(&scores);
                assert!(!causal || w[place + 1..].iter().all(|&w| w == 0.0));
                mixed.extend(
                    (0..width).map(|i| (0..length).map(|other| w[other] * row(&v, other)[i]).sum::<f64>()),
                );
                weights.extend(w);
            }
        }
        let (tq, tk, tv) = (tensor(&q), tensor(&k), tensor(&v));
        let mask = causal.then(|| nn::causal_mask(&tq, length)).transpose()?;
        let (m, w) = nn::attention(&tq, &tk, &tv, Attention { mask: mask.as_ref(), ..Attention::default() })?;
        assert_eq!(m.dims(), dims);
        assert_eq!(w.dims(), [batch, heads, length, length]);
        close(&m, &mixed, CLOSE);
        close(&w, &weights, CLOSE);
    }
    Ok(())
}

#[test]
fn attention_refuses_what_does_not_fit() -> Result<()> {
    let engine = Engine::reference();
    let of = |dims: &[usize]| engine.tensor(&vec![0.5f64; dims.iter().product::<usize>()], dims);
    let q = of(&[1, 2, 3, 4])?;
    refused(nn::attention(&q, &of(&[1, 2, 3, 5])?, &q, Attention::default()));
    refused(nn::attention(&q, &of(&[1, 1, 3, 4])?, &q, Attention::default()));
    refused(nn::attention(&q, &q, &of(&[1, 2, 4, 4])?, Attention::default()));
    refused(nn::attention(&q, &q, &q, Attention { mask: Some(&of(&[4, 3])?), ..Attention::default() }));
    for dims in [&[][..], &[4], &[3, 4], &[2, 3, 4], &[1, 1, 2, 3, 4]] {
        let x = of(dims)?;
        refused(nn::attention(&x, &x, &x, Attention::default()));
    }
    Ok(())
}

#[test]
fn causal_masks() -> Result<()> {
    let engine = Engine::reference();
    let like = engine.tensor(&[0.0f64], &[1])?;
    let mask = nn::causal_mask(&like, 3)?;
    assert_eq!(mask.dims(), [3, 3]);
    assert_eq!(mask.to_vec::<f64>()?, [0.0, -1e9, -1e9, 0.0, 0.0, -1e9, 0.0, 0.0, 0.0]);
    assert_eq!(nn::causal_mask(&like, 1)?.to_vec::<f64>()?, [0.0]);
    assert_eq!(nn::causal_mask(&like, 0)?.dims(), [0, 0]);
    // In a narrow type the number is an infinity, which masks as well.
    let narrow = nn::causal_mask(&like.convert(DType::F16)?, 2)?;
    assert_eq!(narrow.convert(DType::F64)?.to_vec::<f64>()?, [0.0, f64::NEG_INFINITY, 0.0, 0.0]);
    Ok(())
}

#[test]
fn embedding_takes_rows() -> Result<()> {
    let engine = Engine::reference();
    let data = rows(4, 3);
    let table = upload(&engine, &data);
    let expected = [&data[3], &data[0], &data[3], &data[1]].map(|row| row.as_slice()).concat();
    let rows = nn::embedding(&table, &engine.tensor(&[3i64, 0, 3, 1], &[2, 2])?)?;
    assert_eq!(rows.dims(), [2, 2, 3]);
    close(&rows, &expected, 0.0);
    assert_eq!(nn::embedding(&table, &engine.tensor(&[2u8], &[])?)?.dims(), [3]);
    assert_eq!(nn::embedding(&table, &engine.tensor::<i32>(&[], &[0])?)?.dims(), [0, 3]);

    refused(nn::embedding(&engine.tensor(&[1.0f64], &[])?, &engine.tensor(&[0i32], &[1])?));
    refused(nn::embedding(&table, &engine.tensor(&[0.0f32], &[1])?));
    refused(nn::embedding(&table, &engine.tensor(&[true], &[1])?));
    Ok(())
}

// ----- Adam -----

#[test]
fn adam_takes_the_steps_of_its_paper() -> Result<()> {
    let engine = Engine::reference();
    let settings = Adam { learning_rate: 0.1, beta1: 0.8, beta2: 0.9, epsilon: 1e-6, ..Adam::default() };
    for weight_decay in [0.0, 0.05] {
        let settings = Adam { weight_decay, ..settings };
        let (mut value, mut mean, mut square) = ([1.0, -2.0, 0.5], [0.0; 3], [0.0; 3]);
        let mut state = AdamState::new(engine.tensor(&value, &[3])?)?;
        for step in 1..=5 {
            let gradient = [0.3, -1.0, 1e-3].map(|g: f64| g * f64::from(step));
            for i in 0..3 {
                mean[i] = 0.8 * mean[i] + 0.2 * gradient[i];
                square[i] = 0.9 * square[i] + 0.1 * gradient[i] * gradient[i];
                let m = mean[i] / (1.0 - 0.8f64.powi(step));
                let v: f64 = square[i] / (1.0 - 0.9f64.powi(step));
                value[i] *= 1.0 - 0.1 * weight_decay;
                value[i] -= 0.1 * m / (v.sqrt() + 1e-6);
            }
            state = nn::adam(state, &engine.tensor(&gradient, &[3])?, step as u32, &settings)?;
            close(&state.value, &value, CLOSE);
            close(&state.mean, &mean, CLOSE);
            close(&state.square, &square, CLOSE);
        }
    }
    Ok(())
}

#[test]
fn adam_compiles_once_for_all_steps_and_rates() -> Result<()> {
    let engine = Engine::reference();
    let mut state = AdamState::new(engine.tensor(&[1.0f32; 4], &[4])?)?;
    let gradient = engine.tensor(&[0.5f32; 4], &[4])?;
    let mut warm = engine.counters();
    for step in 1..=20 {
        let settings = Adam { learning_rate: 0.1 / f64::from(step), weight_decay: 0.01, ..Adam::default() };
        state = nn::adam(state, &gradient, step, &settings)?;
        drop(state.value.read());
        engine.synchronize()?;
        if step == 2 {
            // The first step also makes the initial zeros of the running means.
            warm = engine.counters();
        }
    }
    let steady = engine.counters().since(&warm);
    assert_eq!((steady.misses, steady.hits), (0, 18));
    Ok(())
}

#[test]
fn adam_refuses_a_gradient_of_another_type() -> Result<()> {
    let engine = Engine::reference();
    let state = || AdamState::new(engine.tensor(&[1.0f64, 2.0], &[2]).unwrap()).unwrap();
    let settings = Adam::default();
    refused(nn::adam(state(), &engine.tensor(&[1.0f64; 3], &[3])?, 1, &settings));
    refused(nn::adam(state(), &engine.tensor(&[1.0f32; 2], &[2])?, 1, &settings));
    Ok(())
}

/// A gradient that broadcasts to the parameter, or the reverse, would silently change shapes.
#[test]
fn adam_does_not_broadcast() -> Result<()> {
    let engine = Engine::reference();
    let state = || AdamState::new(engine.tensor(&[1.0f64, 2.0], &[2]).unwrap()).unwrap();
    let settings = Adam::default();
    refused(nn::adam(state(), &engine.tensor(&[1.0f64], &[])?, 1, &settings));
    refused(nn::adam(state(), &engine.tensor(&[1.0f64], &[1])?, 1, &settings));
    refused(nn::adam(state(), &engine.tensor(&[1.0f64; 6], &[3, 2])?, 1, &settings));
    Ok(())
}

#[test]
fn every_mode_gives_the_same() -> Result<()> {
    let engine = Engine::reference();
    let data = rows(4, 3);
    let (x, y) = (upload(&engine, &data), engine.tensor(&[2i32, 0, 1, 1], &[4])?);
    let run = |mode| with_mode(mode, || nn::cross_entropy(&nn::gelu(&x)?, &y)?.item::<f64>());
    let fused = run(Mode::Fused)?;
    assert_eq!((fused, fused), (run(Mode::Strict)?, run(Mode::Debug)?));
    Ok(())
}
