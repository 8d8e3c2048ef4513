//! Conversions from and to the types of other crates, each behind its own feature.

#[cfg(feature = "ndarray")]
mod ndarray;
