//! r
pub(crate) mod once;
