//! The engine's side of PyTorch's device `fuseline`.
//!
//! ```text
//! ATen call ─► shim (torch/csrc): types of the results, storages ─► abi ─► Call
//! Call ─► a row of the table ─► recorded ops
//! ```
//!
//! Input: a call of an ATen overload in its functional form, with the result types that PyTorch
//! infers. Output: values, or the fact that the overload has no lowering for such arguments. In
//! that case the shim lets the CPU compute the call and counts it.
//!
//! This crate does not know PyTorch's tensors. A storage is one value, whatever views there are of
//! it; [`view`] reads and writes through views. To add an op, add a row to a table in [`ops`] and a
//! function next to it.
//!
//! Invariants:
//! - TORCH-1: a lowering returns one value for each result type, of exactly that type. Every call
//!   of `Row::lower` is checked.
//! - TORCH-2: panics and errors cross the boundary only as a status and a message (`abi`).
//! - TORCH-3: all ops are recorded on one stream, in the order of the calls, whatever their thread.
//!   While a thread records a graph, its ops go to the graph (`graph.rs`).

mod abi;
pub mod call;
mod device;
mod graph;
mod lowering_cache;
pub mod ops;
mod promote;
mod quick;
pub mod view;
