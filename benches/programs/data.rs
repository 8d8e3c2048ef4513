//! Numbers that are the same in Rust and in Python: element `i` of sequence `seed` is a hash of
//! both (the finalizer of SplitMix64, Steele, Lea, Flood 2014), so a whole tensor can be made at
//! once.

/// A hash of a sequence and a position.
fn bits(seed: usize, place: usize) -> u64 {
    let mut z = ((seed as u64) << 32).wrapping_add(place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers from `low` up to `high`, each rounded once.
pub(crate) fn uniform(seed: usize, count: usize, low: f64, high: f64) -> Vec<f32> {
    let number = |place| {
        let unit = (bits(seed, place) >> 40) as f64 / (1u64 << 24) as f64;
        (low + (high - low) * unit) as f32
    };
    (0..count).map(number).collect()
}

/// Integers from 0 to below `below`.
pub(crate) fn below(seed: usize, count: usize, below: usize) -> Vec<i32> {
    (0..count).map(|place| ((bits(seed, place) >> 33) % below as u64) as i32).collect()
}
