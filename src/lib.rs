//! Fused-eager op-trace JIT on PJRT.

mod sync;
