//! Arbitrary program files are refused with a position, or are programs that survive writing and
//! reading unchanged.

use fuseline_fusion::program::Program;

pub(super) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Program::parse(&text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(program) => {
            let written = program.to_json();
            let back = Program::parse(&written).unwrap_or_else(|error| panic!("{error} in {written}"));
            assert!(back == program, "written and read it is another program: {written}");
        }
    }
}
