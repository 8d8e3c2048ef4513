//! rec
pub(crate) mod log;
