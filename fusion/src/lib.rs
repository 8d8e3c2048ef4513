//! The analysis of programs: types, regions, keys and lowering. Nothing is executed here.
//!
//! This crate is pure: no threads, no I/O, no clock, no PJRT, no unsafe code. It is published for
//! the `fuseline` crate, which embedders use; its API follows that crate's needs.
//!
//! Each stage has a type that only the stage before it can construct:
//!
//! ```text
//! op call ─► ir::Signature ─► region::Region ─► canon::CanonRegion ─► lower::Module ─► lower::Verified
//!            (types checked)   (a run of ops)    (renamed, encoded,     (StableHLO)      (read back)
//!                                                  hashed)
//! ```
//!
//! [`ir`] has the types of calls and graphs, and [`op`] the op table, which checks calls.
//! [`program`] reads and writes program files, [`text`] reads StableHLO modules, and [`custom`]
//! makes ops of them. The crate knows no interpreter: `fuseline-interp` runs the same graphs in
//! plain Rust. [`arithmetic`] and [`subnormal`] describe what an interpreter has to know of a
//! device, [`element`] how elements are stored.
#![forbid(unsafe_code)]

pub mod arithmetic;
pub mod attr;
pub mod canon;
pub mod custom;
mod display;
pub mod dtype;
pub mod element;
pub mod encode;
pub mod error;
pub mod float;
pub mod groups;
pub mod handler;
pub mod id;
pub mod ir;
pub mod limits;
pub mod literal;
pub mod lower;
pub mod op;
mod printable;
pub mod program;
pub mod region;
pub mod shape;
pub mod shape_class;
pub mod subnormal;
pub mod text;

pub use attr::{AttrValue, Attrs};
pub use custom::CustomOp;
pub use dtype::{DType, DTypeClass, DTypeSet, Element, RealElement};
pub use error::{OpError, OpErrorKind};
pub use float::FloatFormat;
pub use groups::Groups;
pub use id::{RegionSeq, Site, StreamId, ValueId};
pub use ir::{Body, Graph, Node, OpCode, Ref, Signature};
pub use literal::{Literal, LiteralError, Scalar};
pub use op::OpDef;
#[doc(hidden)]
pub use printable::Printable;
pub use shape::{Bytes, Elems, Shape, ShapeError, TensorType};
