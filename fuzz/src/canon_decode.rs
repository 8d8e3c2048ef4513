//! Arbitrary canonical bytes are refused, or are the bytes of a region that lowers like any other.

use fuseline_fusion::canon::{FORMAT, decode};
use fuseline_fusion::lower::{Aliases, Numerics, lower};

/// The largest size of results that are still lowered, because constants and the like are printed.
const MAX_TEXT: usize = 4_096;

pub(super) fn run(data: &[u8]) {
    // The first byte is the format version, which the fuzzer need not guess.
    let mut bytes = data.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first = FORMAT;
    }
    for bytes in [data, &bytes] {
        let Ok(region) = decode(bytes) else { continue };
        assert!(region.bytes() == bytes, "two spellings of {:?}: {bytes:?}", region.graph());
        if bytes.len() > MAX_TEXT {
            continue;
        }
        let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
        for numerics in [Numerics::Fast, Numerics::Exact] {
            let module = lower(&region, &outputs, &Aliases::none(), numerics);
            if let Err(error) = module.clone().verify() {
                panic!("{error} in {module}");
            }
        }
    }
}
