//! Ops that produce data: constants, `iota`, random bits.
//!
//! The specification leaves the variant of a generator to the implementation. These are XLA's
//! variants, so that a program draws the same numbers everywhere.

use fuseline_fusion::element::{Bits, Elements, Store, float_from_int, from_int, mask, to_f64, to_int};
use fuseline_fusion::op::{RngAlgorithm, RngDistribution};
use fuseline_fusion::{DTypeClass, Literal};

use super::dynamic::integers;
use super::index::{Indices, strides};
use super::{EvalCall, EvalError};

/// `constant`.
///
/// # Errors
/// None.
pub(super) fn constant(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    Ok(vec![Literal::clone(call.attr().dense(0))])
}

/// `iota`.
///
/// # Errors
/// None.
pub(super) fn iota(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let ty = call.result().clone();
    let (dtype, axis) = (ty.dtype(), call.attr().int(2) as usize);
    let (stride, size) = (strides(ty.dims())[axis] as usize, ty.dims()[axis] as usize);
    let element = |index: usize| {
        let value = (index / stride % size) as i128;
        match dtype.class() {
            // The real part; the imaginary part is zero.
            DTypeClass::Float | DTypeClass::Complex => float_from_int(dtype.part(), value),
            _ => from_int(dtype, value),
        }
    };
    let count = ty.elems().get();
    Ok(vec![Store::collect(ty, (0..count).map(element)).finish()])
}

/// `rng`, if the distribution has a single value: integers from `a` to below `a + 1`, or no
/// deviation from the mean.
///
/// # Errors
/// If it has several values, because the plugin chooses among them, or the third operand gives
/// another shape.
pub(super) fn rng(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let (op, ty) = (call.signature.def().name, call.result());
    let shape = integers(call.operand(2));
    if !shape.iter().map(|&size| i128::from(size)).eq(ty.dims().iter().map(|&dim| i128::from(dim))) {
        return Err(EvalError::Sizes { op, given: format!("shape is {shape:?}"), recorded: ty.clone() });
    }
    let (a, b) = (Elements::of(call.operand(0)).get(0), Elements::of(call.operand(1)).get(0));
    let one = if call.attr().member(0) == RngDistribution::Normal as u8 {
        to_f64(ty.dtype(), b) == 0.0
    } else {
        ty.dtype().class() != DTypeClass::Float && to_int(ty.dtype(), a) + 1 == to_int(ty.dtype(), b)
    };
    if one || ty.elems().0 == 0 {
        return Ok(vec![Store::filled(ty.clone(), a).finish()]);
    }
    Err(EvalError::Unspecified { op, what: "which numbers it draws" })
}

/// `rng_bit_generator`: takes a key and a counter; returns the advanced counter and the bits.
///
/// # Errors
/// If the algorithm is left to the plugin.
pub(super) fn rng_bit_generator(call: &EvalCall<'_>) -> Result<Vec<Literal>, EvalError> {
    let state = Elements::of(call.operand(0));
    let state: Vec<u64> = (0..state.len()).map(|word| state.get(word) as u64).collect();
    let ty = &call.signature.results()[1];
    let wide = ty.dtype().bits() == 64;
    let (state, bits) = match call.attr().member(0) {
        code if code == RngAlgorithm::ThreeFry as u8 => threefry_bits(&state, ty.dims(), wide),
        code if code == RngAlgorithm::Philox as u8 => philox_bits(&state, ty.elems().get(), wide),
        _ => {
            return Err(EvalError::Unspecified {
                op: call.signature.def().name,
                what: "the algorithm DEFAULT",
            });
        }
    };
    // A short element is the low part of 32 bits.
    let bits = bits.into_iter().map(|bits| Bits::from(bits) & mask(ty.dtype()));
    let state = Store::collect(call.signature.results()[0].clone(), state.into_iter().map(Bits::from));
    Ok(vec![state.finish(), Store::collect(ty.clone(), bits).finish()])
}

/// The low and the high half.
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

const fn joined(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Threefry-2x32 with 20 rounds.
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    x
}

/// Philox-4x32 with 10 rounds.
fn philox(mut key: [u32; 2], counter: u128) -> [u32; 4] {
    let mut x = [counter as u32, (counter >> 32) as u32, (counter >> 64) as u32, (counter >> 96) as u32];
    for _ in 0..10 {
        let [low_a, high_a] = halves(u64::from(x[0]) * 0xd251_1f53);
        let [low_b, high_b] = halves(u64::from(x[2]) * 0xcd9e_8d57);
        x = [high_b ^ x[1] ^ key[0], low_b, high_a ^ x[3] ^ key[1], low_a];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    x
}

/// The next state and the bits of each element. 64-bit elements use consecutive counts in row-major
/// order. 32-bit elements share a count in pairs: neighbours along the first dimension of even
/// size, or else along the largest dimension, whose size is rounded up.
fn threefry_bits(state: &[u64], dims: &[u64], wide: bool) -> (Vec<u64>, Vec<u64>) {
    let (key, counter) = (halves(state[0]), state[1]);
    let draw = |count: u64| threefry(key, halves(counter.wrapping_add(count)));
    let mut bits = Vec::new();
    let draws;
    if wide {
        draws = dims.iter().product();
        bits.extend((0..draws).map(|count| {
            let [low, high] = draw(count);
            joined(low, high)
        }));
    } else if dims.is_empty() {
        draws = 1;
        bits.push(draw(0)[0].into());
    } else {
        let even = dims.iter().position(|dim| dim % 2 == 0);
        let largest = (0..dims.len()).rev().max_by_key(|&axis| dims[axis]);
        let axis = even.or(largest).unwrap_or(0);
        let mut halved = dims.to_vec();
        halved[axis] = dims[axis].div_ceil(2);
        draws = halved.iter().product();
        let strides = strides(&halved);
        let mut indices = Indices::below(dims);
        while let Some(index) = indices.advance() {
            let place = |(i, &at): (usize, &u64)| if i == axis { at / 2 } else { at } * strides[i] as u64;
            let count = index.iter().enumerate().map(place).sum();
            bits.push(draw(count)[(index[axis] % 2) as usize].into());
        }
    }
    (vec![state[0], counter.wrapping_add(draws)], bits)
}

/// The next state and the bits of each element, in row-major order, with four 32-bit or two 64-bit
/// elements per count. The counter has 128 bits. A state of two words holds its low half; the high
/// half is the key.
fn philox_bits(state: &[u64], elements: usize, wide: bool) -> (Vec<u64>, Vec<u64>) {
    let high = *state.get(2).unwrap_or(&state[0]);
    let counter = u128::from(high) << 64 | u128::from(state[1]);
    let per_draw = if wide { 2 } else { 4 };
    let draws = elements.div_ceil(per_draw);
    let mut bits = Vec::with_capacity(draws * per_draw);
    for count in 0..draws {
        let [a, b, c, d] = philox(halves(state[0]), counter.wrapping_add(count as u128));
        if wide {
            bits.extend([joined(a, b), joined(c, d)]);
        } else {
            bits.extend([a, b, c, d].map(u64::from));
        }
    }
    bits.truncate(elements);
    let next = counter.wrapping_add(draws as u128);
    let mut words = vec![state[0], next as u64];
    words.extend(state.get(2).map(|_| (next >> 64) as u64));
    (words, bits)
}
