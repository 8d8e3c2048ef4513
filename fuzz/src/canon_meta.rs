//! Keys: regions that differ only in names have the same key, regions that compute something else
//! have different keys, and the bytes under a key have one reading.
//!
//! An input tests one of the three, with a few changes and a few other readings of each kind. The
//! property tests call the same functions and try hundreds. About 1 ms an execution.

use fuseline_testgen::Entropy as _;

use super::bytes::Bytes;
use super::draft::{every_change_is_told, has_one_reading};
use super::recording::{keeps_its_keys, sample};

pub(super) fn run(data: &[u8]) {
    let (mut program, mut how) = Bytes::halves(data);
    let ops = program.ops(8, &mut how);
    let program = sample(&mut program, ops);
    let what = how.draw(3);
    let found = match what {
        0 => keeps_its_keys(&program, &mut how).map(drop),
        1 => every_change_is_told(&program, &mut how, 1, |_| {}),
        _ => has_one_reading(&program, &mut how, 24),
    };
    if let Err(error) = found {
        panic!("{error} in {}", program.to_json());
    }
}
