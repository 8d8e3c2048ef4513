//! LSTM and GRU cells and their gradients, after the weight products: `[batch, gates * size]`.

use fuseline::Tensor;
use smallvec::SmallVec;

use super::networks::float;
use super::{fitted, number};
use crate::call::{Call, Result, Results, Row};

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[
    Row { name: "_thnn_fused_lstm_cell", lower: lstm },
    Row { name: "_thnn_fused_lstm_cell_backward_impl", lower: lstm_backward },
    Row { name: "_thnn_fused_gru_cell", lower: gru },
    Row { name: "_thnn_fused_gru_cell_backward", lower: gru_backward },
];

/// Splits the last dimension into equal parts.
fn parts<const COUNT: usize>(x: &Tensor) -> Result<[Tensor; COUNT]> {
    let axis = x.rank() as i64 - 1;
    let size = x.dims()[x.rank() - 1] as i64 / COUNT as i64;
    let part = |at: i64| Ok(x.narrow(axis, at * size, (at + 1) * size)?);
    let found = (0..COUNT as i64).map(part).collect::<Result<Vec<Tensor>>>()?;
    found.try_into().map_err(|_| {
        crate::call::Fault::Unsupported(format!(
            "the last dimension of {} cannot be split into {COUNT} parts",
            x.ty()
        ))
    })
}

fn joined(parts: &[&Tensor]) -> Result<Tensor> {
    Ok(Tensor::concatenate(parts, parts[0].rank() as i64 - 1)?)
}

/// The gates of one side, with their bias if there is one.
fn biased(call: &Call<'_>, gates: usize, bias: usize) -> Result<Tensor> {
    let gates = float(call, gates)?;
    if call.is_none(bias) {
        return Ok(gates);
    }
    Ok(gates.add(&float(call, bias)?.broadcast_to(gates.dims())?)?)
}

/// Results in their types. Only requested results have a type.
fn results<'a>(call: &Call<'_>, parts: impl IntoIterator<Item = &'a Tensor>) -> Result<Results> {
    parts.into_iter().zip(call.outs).map(|(part, ty)| fitted(part, ty)).collect()
}

/// `1 - x`.
fn rest(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    Ok(number(call, 1.0, x)?.sub(x)?)
}

/// The derivative of the logistic function, from its value.
fn slope(call: &Call<'_>, y: &Tensor) -> Result<Tensor> {
    Ok(rest(call, y)?.mul(y)?)
}

/// Arguments: gates of the input, gates of the state, the cell; biases of both. The last result is
/// the activated gates: input, forget, cell, output.
fn lstm(call: &Call<'_>) -> Result<Results> {
    let gates = biased(call, 0, 3)?.add(&biased(call, 1, 4)?)?;
    let [input, forget, cell, output] = parts(&gates)?;
    let (input, forget, output) = (input.logistic()?, forget.logistic()?, output.logistic()?);
    let cell = cell.tanh()?;
    let new = forget.mul(&float(call, 2)?)?.add(&input.mul(&cell)?)?;
    results(call, [&output.mul(&new.tanh()?)?, &new, &joined(&[&input, &forget, &cell, &output])?])
}

/// Arguments: gradients of the output and of the cell, either of which may be missing; the cell
/// before and after; the gates.
fn lstm_backward(call: &Call<'_>) -> Result<Results> {
    let (old, new) = (float(call, 2)?, float(call, 3)?);
    let [input, forget, cell, output] = parts(&float(call, 4)?)?;
    let none = call.stream.zeros(new.dtype(), new.dims())?;
    let given = |at: usize| if call.is_none(at) { Ok(none.clone()) } else { float(call, at) };
    let (of_out, of_cell) = (given(0)?, given(1)?);
    let shown = new.tanh()?;
    let through = of_out.mul(&output)?.mul(&rest(call, &shown.square()?)?)?.add(&of_cell)?;
    let gates = [
        through.mul(&cell)?.mul(&slope(call, &input)?)?,
        through.mul(&old)?.mul(&slope(call, &forget)?)?,
        through.mul(&input)?.mul(&rest(call, &cell.square()?)?)?,
        of_out.mul(&shown)?.mul(&slope(call, &output)?)?,
    ];
    let gates = joined(&gates.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
    results(call, [&gates, &through.mul(&forget)?, &gates.sum(&[0])?])
}

/// Arguments: gates of the input, gates of the state, the state; biases of both. The last result is
/// saved for the gradient: the reset and the update gate, the new candidate, the state, and the
/// state's part of the candidate.
fn gru(call: &Call<'_>) -> Result<Results> {
    let [input_reset, input_update, input_new] = parts(&biased(call, 0, 3)?)?;
    let [state_reset, state_update, state_new] = parts(&biased(call, 1, 4)?)?;
    let state = float(call, 2)?;
    let reset = input_reset.add(&state_reset)?.logistic()?;
    let update = input_update.add(&state_update)?.logistic()?;
    let new = input_new.add(&reset.mul(&state_new)?)?.tanh()?;
    let out = new.add(&update.mul(&state.sub(&new)?)?)?;
    results(call, [&out, &joined(&[&reset, &update, &new, &state, &state_new])?])
}

/// Arguments: the gradient of the state, and what the cell saved.
fn gru_backward(call: &Call<'_>) -> Result<Results> {
    let grad = float(call, 0)?;
    let [reset, update, new, state, state_new] = parts(&float(call, 1)?)?;
    let of_update = grad.mul(&state.sub(&new)?)?.mul(&slope(call, &update)?)?;
    let of_new = grad.mul(&rest(call, &update)?)?.mul(&rest(call, &new.square()?)?)?;
    let of_reset = of_new.mul(&state_new)?.mul(&slope(call, &reset)?)?;
    let of_input = joined(&[&of_reset, &of_update, &of_new])?;
    let of_state = joined(&[&of_reset, &of_update, &of_new.mul(&reset)?])?;
    let biases = [of_input.sum(&[0])?, of_state.sum(&[0])?];
    results(call, [&of_input, &of_state, &grad.mul(&update)?, &biases[0], &biases[1]])
}
