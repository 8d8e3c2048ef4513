//! What ops compute: against the interpreter, the plugin, JAX, NumPy and PyTorch.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test, which says its figures")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test, on real threads")]

mod examples;
#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod create;
mod display;
mod einsum;
mod exhaustive;
mod imported;
mod linalg;
mod matrices;
mod ndarray;
mod nn;
mod nn_edges;
mod nn_grad;
mod nn_reference;
mod numerics;
mod operators;
mod pairs;
mod programs;
mod promote;
mod random;
mod tape;
mod tutorial;
mod varying_sizes;
