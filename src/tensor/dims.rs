//! Types and data of the record layer from sizes as methods of tensors take them.

use fuseline_fusion::{DType, Element, Literal, Shape, TensorType};

use crate::error::Result;

/// The type of tensors of these sizes.
pub(crate) fn type_of(dtype: DType, dims: &[usize]) -> Result<TensorType> {
    Ok(TensorType::new(dtype, Shape::try_from(dims)?))
}

/// Data of these sizes.
pub(crate) fn literal<T: Element>(dims: &[usize], data: &[T]) -> Result<Literal> {
    Ok(Literal::from_slice(Shape::try_from(dims)?.dims(), data)?)
}
