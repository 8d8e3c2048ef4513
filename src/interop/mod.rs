//! Conversions from and to the types of other crates, each behind a feature of its own.

#[cfg(feature = "ndarray")]
mod ndarray;
