//! The engine's side of PyTorch's device `fuseline`.
//!
//! ```text
//! ATen call ─► shim (torch/csrc): types of the results, storages ─► abi ─► Call ─► a row of the table ─► recorded ops
//! ```
//!
//! Input: a call of an ATen overload, in its functional form, with the types that its results have
//! by PyTorch's own inference. Output: values, or that the overload has no lowering for such
//! arguments; then the shim computes it on the CPU, and counts that.
//!
//! Nothing here knows what a PyTorch tensor is. A storage is one value, whatever views there are of
//! it; reads and writes through views are in [`view`]. Adding an op is a line of a table in [`ops`]
//! and a function beside it.
//!
//! Invariants:
//! - TB1: a lowering returns as many values as there are result types, and exactly of those types;
//!   `Row::lower` is checked for it on every call.
//! - TB2: no panic and no error crosses the border as anything but a status and words (`abi`).
//! - TB3: everything is recorded on one stream, in the order of the calls, whatever thread they
//!   come from; what a thread calls while it records a graph goes there (`graph.rs`).

mod abi;
pub mod call;
mod device;
mod graph;
pub mod ops;
mod promote;
mod quick;
pub mod view;
