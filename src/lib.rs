//! Fused-eager op-trace JIT on PJRT.

mod record;
mod result;
mod sync;
