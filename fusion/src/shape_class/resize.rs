//! Copies data of one size to another size.

use crate::shape::TensorType;

/// Copies the elements at positions that both types have; other elements of `to` are zero. The
/// types have the same element type and rank, and `bytes` has the length of `from`.
///
/// # Panics
/// If the types differ in element type or rank, or `bytes` is shorter than `from`.
#[must_use]
pub fn resized(bytes: &[u8], from: &TensorType, to: &TensorType) -> Vec<u8> {
    assert_eq!((from.dtype(), from.rank()), (to.dtype(), to.rank()), "one element type and rank");
    let size = from.dtype().size();
    let mut out = vec![0; to.bytes().0 as usize];
    if from.elems().0 == 0 || to.elems().0 == 0 {
        return out;
    }
    // The trailing dimensions of equal size, and the common part of the dimension before them, are
    // contiguous.
    let rank = from.rank();
    let equal = (0..rank).rev().take_while(|&axis| from.dims()[axis] == to.dims()[axis]).count();
    let split = (rank - equal).saturating_sub(1);
    let inner: usize =
        from.dims()[split + usize::from(split < rank)..].iter().product::<u64>() as usize * size;
    let both = |axis: usize| u64::min(from.dims()[axis], to.dims()[axis]) as usize;
    let piece = if split < rank { both(split) * inner } else { inner };
    let (steps_from, steps_to) = (steps(from, inner, split), steps(to, inner, split));
    let pieces: usize = (0..split).map(both).product();
    for index in 0..pieces {
        let (mut rest, mut at_from, mut at_to) = (index, 0, 0);
        for axis in (0..split).rev() {
            let place = rest % both(axis);
            rest /= both(axis);
            at_from += place * steps_from[axis];
            at_to += place * steps_to[axis];
        }
        out[at_to..at_to + piece].copy_from_slice(&bytes[at_from..at_from + piece]);
    }
    out
}

/// Strides in bytes of the dimensions before `split`, if the dimensions after it take `inner`
/// bytes.
fn steps(ty: &TensorType, inner: usize, split: usize) -> Vec<usize> {
    let mut steps = vec![0; split];
    let mut step = ty.dims().get(split).map_or(inner, |&size| size as usize * inner);
    for axis in (0..split).rev() {
        steps[axis] = step;
        step *= ty.dims()[axis] as usize;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn ty(dims: &[u64]) -> TensorType {
        TensorType::of(DType::I16, dims).unwrap()
    }

    fn element(dims: &[u64], index: &[u64]) -> usize {
        dims.iter().zip(index).fold(0, |at, (&size, &place)| at * size as usize + place as usize)
    }

    /// Checks that every common element is in its position, and every other one is zero.
    fn check(from: &[u64], to: &[u64]) {
        let count: u64 = from.iter().product();
        let data: Vec<i16> = (1..=count as i16).collect();
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        let out = resized(&bytes, &ty(from), &ty(to));
        assert_eq!(out.len() as u64, to.iter().product::<u64>() * 2);
        for flat in 0..to.iter().product::<u64>() {
            let (mut rest, mut index) = (flat, vec![0; to.len()]);
            for axis in (0..to.len()).rev() {
                index[axis] = rest % to[axis];
                rest /= to[axis];
            }
            let is_both = index.iter().zip(from).all(|(place, size)| place < size);
            let wanted = if is_both { data[element(from, &index)] } else { 0 };
            let at = flat as usize * 2;
            assert_eq!(i16::from_le_bytes([out[at], out[at + 1]]), wanted, "{from:?} to {to:?} at {index:?}");
        }
    }

    #[test]
    fn elements_stay_where_they_are() {
        for (from, to) in [
            (&[5][..], &[8][..]),
            (&[8], &[5]),
            (&[2, 3], &[2, 4]),
            (&[2, 3], &[4, 3]),
            (&[3, 5, 2], &[3, 8, 2]),
            (&[3, 8, 2], &[3, 5, 2]),
            (&[2, 3, 4, 5], &[4, 3, 6, 5]),
            (&[2, 3, 4, 5], &[1, 6, 2, 7]),
            (&[2, 3], &[2, 3]),
            (&[], &[]),
            (&[0, 3], &[2, 3]),
            (&[2, 3], &[0, 3]),
        ] {
            check(from, to);
        }
    }
}
