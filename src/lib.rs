//! Fused-eager op-trace JIT on PJRT.

pub mod pjrt;
mod record;
mod result;
mod sync;
