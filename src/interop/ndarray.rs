//! Arrays of the `ndarray` crate.
//!
//! Tensors are row-major and have a dynamic rank. Arrays may have any memory layout, and their rank
//! is part of the type. So the input is a view of any layout and dimension. The output is an
//! [`ArrayD`] in row-major order, which [`ArrayD::into_dimensionality`] turns into an array of
//! fixed rank.

use fuseline_fusion::{Element, Shape, Site};
use fuseline_runtime::{Error, Result};
use ndarray::{ArrayD, ArrayView, Dimension, IxDyn};

use crate::engine::Engine;
use crate::handle::Tensor;
use crate::stream::Stream;

impl Stream {
    /// A tensor with the elements and the shape of an array of any memory layout. The data is
    /// copied.
    ///
    /// Needs the feature `ndarray`.
    ///
    /// # Errors
    /// When the array has more dimensions than a tensor can have, or the device refuses (out of
    /// memory).
    pub fn from_array<T: Element, D: Dimension>(&self, array: ArrayView<'_, T, D>) -> Result<Tensor> {
        // Check the shape before anything is copied.
        Shape::try_from(array.shape())?;
        match array.as_slice() {
            Some(row_major) => self.tensor(row_major, array.shape()),
            None => self.tensor(&array.iter().copied().collect::<Vec<T>>(), array.shape()),
        }
    }
}

impl Engine {
    /// A tensor with the elements and the shape of an array of any memory layout. The data is
    /// copied.
    ///
    /// Needs the feature `ndarray`.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let array = ndarray::array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// // Every other column, turned around and transposed: no copy is needed before.
    /// let view = array.slice(ndarray::s![.., ..;-2]).reversed_axes();
    /// let x = engine.from_array(view)?;
    /// assert_eq!(x.dims(), [2, 2]);
    /// assert_eq!(x.to_vec::<f32>()?, [3.0, 6.0, 1.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the array has more dimensions than a tensor can have, or the device refuses (out of
    /// memory).
    pub fn from_array<T: Element, D: Dimension>(&self, array: ArrayView<'_, T, D>) -> Result<Tensor> {
        self.stream().from_array(array)
    }
}

impl Tensor {
    /// The elements as an array in row-major order. Waits until they have been computed.
    ///
    /// Needs the feature `ndarray`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = fuseline::Engine::reference();
    /// let x = engine.tensor(&[1i32, 2, 3, 4], &[2, 2])?;
    /// let array = (&x * &x)?.to_array::<i32>()?;
    /// assert_eq!(array, ndarray::array![[1, 4], [9, 16]].into_dyn());
    /// let matrix = array.into_dimensionality::<ndarray::Ix2>()?;
    /// assert_eq!(matrix[[1, 0]], 9);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], and when an empty tensor has sizes that no array can have.
    #[track_caller]
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        let site = Site::Rust(std::panic::Location::caller());
        let no_array =
            |why: String| Error::misuse(format!("{} cannot become an array: {why}", self.ty()), site.clone());
        ArrayD::from_shape_vec(IxDyn(self.dims()), self.to_vec()?)
            .map_err(|error| no_array(error.to_string()))
    }
}
