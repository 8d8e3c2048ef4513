//! Sizes of dimensions on both sides of the record layer.
//!
//! Methods of tensors take and give `usize`, what lengths and indices of Rust's collections are.
//! The record layer ([`Shape`]) has `u64`, which a program file and a region key hold on every
//! machine. Both have 64 bits here, so a list of sizes is looked at as the one or the other and
//! never copied.

use fuseline_fusion::{DType, Element, Literal, LiteralError, Shape, ShapeError, TensorType};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("fuseline needs a target whose `usize` has 64 bits: sizes of dimensions have");

/// Sizes as the record layer has them.
#[inline]
pub(crate) fn recorded(dims: &[usize]) -> &[u64] {
    bytemuck::cast_slice(dims)
}

/// Sizes of the record layer as methods of tensors have them.
#[inline]
pub(crate) fn indexed(dims: &[u64]) -> &[usize] {
    bytemuck::cast_slice(dims)
}

/// The shape of these sizes, if they are one.
pub(crate) fn shape_of(dims: &[usize]) -> Result<Shape, ShapeError> {
    Shape::new(recorded(dims))
}

/// The type of tensors of these sizes, if they are a shape.
pub(crate) fn type_of(dtype: DType, dims: &[usize]) -> Result<TensorType, ShapeError> {
    TensorType::of(dtype, recorded(dims))
}

/// Data of these sizes.
pub(crate) fn literal<T: Element>(dims: &[usize], data: &[T]) -> Result<Literal, LiteralError> {
    Literal::from_slice(recorded(dims), data)
}
