//! Canonical bytes that nobody wrote: refused, or the bytes of a region that lowers as any other
//! does.

use fuseline_fusion::canon::{FORMAT, decode};
use fuseline_fusion::lower::{Aliases, Numerics, lower};

/// Data of results that is still lowered: constants and the like are printed.
const MAX_TEXT: usize = 4_096;

pub(super) fn run(data: &[u8]) {
    // The first byte is the format, which a fuzzer need not find.
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
