//! Measures Fuseline beside JAX, PyTorch and NumPy on the same work in the same run.

#[allow(dead_code, reason = "the measuring part, which calls it, is not here yet")]
mod report;
#[allow(dead_code, reason = "the measuring part, which makes it, is not here yet")]
mod results;

fn main() {}
