//! Parts of the examples that tests use or test.
#![allow(dead_code, reason = "a test uses a part")]

#[path = "../../examples/common/random.rs"]
pub(crate) mod random;
#[path = "../../examples/common/tape.rs"]
pub(crate) mod tape;
