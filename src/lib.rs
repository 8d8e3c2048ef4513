//! Fused-eager op-trace JIT on PJRT.

pub mod pjrt;
mod sync;
