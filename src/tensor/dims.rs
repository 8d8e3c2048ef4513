//! Makes types and literals of the record layer from `usize` sizes.

use fuseline_fusion::{DType, Element, Literal, Shape, TensorType};
use fuseline_runtime::Result;

/// The type of tensors of these sizes.
pub(crate) fn type_of(dtype: DType, dims: &[usize]) -> Result<TensorType> {
    Ok(TensorType::new(dtype, Shape::try_from(dims)?))
}

/// Data of these sizes.
pub(crate) fn literal<T: Element>(dims: &[usize], data: &[T]) -> Result<Literal> {
    Ok(Literal::from_slice(Shape::try_from(dims)?.dims(), data)?)
}
