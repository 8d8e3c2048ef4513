//! Products: matrix multiplication and convolution.

use fuseline_fusion::op::attrs::{self, ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline_fusion::{Fault, OpCode, OpError};

use super::{Tensor, here};
use crate::error::Result;

impl Tensor {
    /// The matrix product: the last dimension of this with the last but one of `rhs`, all dimensions before those being
    /// batch dimensions, which must be equal. A vector counts as a matrix with one row on the left, one column on the right.
    ///
    /// # Errors
    /// When the element types or the sizes do not fit.
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let site = here();
        if self.rank() == 0 || rhs.rank() == 0 {
            let given = format!("lhs is {}, rhs is {}", self.ty(), rhs.ty());
            let rule = "a matrix product takes vectors, matrices and batches of them";
            return Err(Tensor::refuse(OpError::new("dot_general", Fault::Shape, given, rule), site));
        }
        let batches = self.rank().saturating_sub(2).max(rhs.rank().saturating_sub(2));
        if batches > 0 && self.rank() != rhs.rank() {
            let given = format!("lhs is {}, rhs is {}", self.ty(), rhs.ty());
            let rule = "batches of matrices must have the same rank";
            let error = OpError::new("dot_general", Fault::Shape, given, rule);
            return Err(Tensor::refuse(error.hint("broadcast the smaller one first"), site));
        }
        let batch: Vec<i64> = (0..batches as i64).collect();
        let rhs_axis = rhs.rank().saturating_sub(2);
        let dims = DotDimensionNumbers {
            lhs_batching: &batch,
            rhs_batching: &batch,
            lhs_contracting: &[self.rank() as i64 - 1],
            rhs_contracting: &[rhs_axis as i64],
        };
        let attrs = attrs::dot_general(dims, self.dtype());
        self.record(OpCode::DotGeneral, attrs, &[self, rhs], site)
    }

    /// Products summed over any pairs of dimensions, for each index of any pairs of batch dimensions. The result has the
    /// batch dimensions, the rest of this, the rest of `rhs`.
    ///
    /// # Errors
    /// When the dimensions do not fit.
    #[track_caller]
    pub fn dot_general(&self, rhs: &Tensor, dims: DotDimensionNumbers<'_>) -> Result<Tensor> {
        let attrs = attrs::dot_general(dims, self.dtype());
        self.record(OpCode::DotGeneral, attrs, &[self, rhs], here())
    }

    /// A convolution with any layout, stride, padding, dilation and grouping.
    ///
    /// # Errors
    /// When the sizes do not fit.
    #[track_caller]
    pub fn convolution(
        &self,
        kernel: &Tensor,
        dims: &ConvDimensionNumbers,
        options: &ConvOptions,
    ) -> Result<Tensor> {
        let attrs = attrs::convolution(dims, options, self.dtype());
        self.record(OpCode::Convolution, attrs, &[self, kernel], here())
    }
}
