//! Keys: what is the same under other names has the same key, what computes something else has another, and the bytes under a
//! key have one reading.

use fuseline_fusion::op::Entropy as _;

use super::bytes::Bytes;
use super::draft::{every_change_is_told, has_one_reading};
use super::recording::{keeps_its_keys, sample};

pub(super) fn run(data: &[u8]) {
    let (mut program, mut how) = Bytes::halves(data);
    let ops = 1 + how.draw(12) as usize;
    let program = sample(&mut program, ops);
    let what = how.draw(3);
    let found = match what {
        0 => keeps_its_keys(&program, &mut how).map(drop),
        1 => every_change_is_told(&program, &mut how, |_| {}),
        _ => has_one_reading(&program, &mut how),
    };
    if let Err(error) = found {
        panic!("{error} in {}", program.to_json());
    }
}
