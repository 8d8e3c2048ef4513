//! Products: matrix multiplication and convolution.

use std::sync::LazyLock;

use fuseline_fusion::op::attrs::{self, ConvDimensionNumbers, ConvOptions, DotDimensionNumbers};
use fuseline_fusion::{Attrs, DType, OpCode, OpError, OpErrorKind, Shape, Site};
use fuseline_runtime::Result;
use fuseline_runtime::internals::RecordCall;
use smallvec::SmallVec;

use super::promote::{broadcast_shapes, common_dtype};
use super::{AttrsByType, Tensor, here};
use crate::handle::handles;

/// The attributes of the product of two matrices, which are always the same.
fn of_matrices(dtype: DType) -> &'static Attrs {
    static MADE: LazyLock<AttrsByType> = LazyLock::new(|| {
        let numbers = DotDimensionNumbers {
            lhs_batching: &[],
            rhs_batching: &[],
            lhs_contracting: &[1],
            rhs_contracting: &[0],
        };
        AttrsByType::new(|dtype| attrs::dot_general(numbers, dtype))
    });
    MADE.of(dtype)
}

/// Number of dimensions before those of the matrix or vector.
fn batch_rank(tensor: &Tensor) -> usize {
    tensor.rank().saturating_sub(2)
}

/// Whether lhs and rhs have each batch dimension of a matrix product with a size other than 1.
struct BatchAxes(SmallVec<[(bool, bool); 4]>);

impl BatchAxes {
    /// For the batch dimensions `of_lhs` and `of_rhs`, which broadcast to `batch`.
    fn of(batch: &Shape, of_lhs: &Shape, of_rhs: &Shape) -> BatchAxes {
        let has = |shape: &Shape, axis: usize| {
            let missing = batch.rank() - shape.rank();
            axis >= missing && shape.dim(axis - missing) != 1
        };
        BatchAxes((0..batch.rank()).map(|axis| (has(of_lhs, axis), has(of_rhs, axis))).collect())
    }

    fn count(&self, is_counted: impl Fn((bool, bool)) -> bool) -> usize {
        self.0.iter().filter(|&&owners| is_counted(owners)).count()
    }

    /// The positions in lhs and in rhs of the batch dimensions that both have.
    fn shared(&self) -> (SmallVec<[i64; 4]>, SmallVec<[i64; 4]>) {
        let (mut lhs, mut rhs) = (SmallVec::new(), SmallVec::new());
        let (mut of_lhs, mut of_rhs) = (0, 0);
        for &(in_lhs, in_rhs) in &self.0 {
            if in_lhs && in_rhs {
                lhs.push(of_lhs);
                rhs.push(of_rhs);
            }
            of_lhs += i64::from(in_lhs);
            of_rhs += i64::from(in_rhs);
        }
        (lhs, rhs)
    }

    /// The dimensions of the product in the order of the result. The product has the shared batch
    /// dimensions, then those of lhs and its rows, then those of rhs and its columns.
    fn order(&self, rows: usize, columns: usize) -> SmallVec<[i64; 8]> {
        let shared = self.count(|owners| owners == (true, true));
        let only_lhs = self.count(|owners| owners == (true, false));
        let only_rhs = self.count(|owners| owners == (false, true));
        let (mut at_shared, mut at_lhs, mut at_rhs) = (0, shared, shared + only_lhs + rows);
        let mut order: SmallVec<[i64; 8]> = SmallVec::new();
        for owners in &self.0 {
            let position = match owners {
                (true, true) => &mut at_shared,
                (true, false) => &mut at_lhs,
                (false, true) => &mut at_rhs,
                (false, false) => continue,
            };
            order.push(*position as i64);
            *position += 1;
        }
        order.extend((0..rows).map(|_| (shared + only_lhs) as i64));
        order.extend((0..columns).map(|_| (shared + only_lhs + rows + only_rhs) as i64));
        order
    }
}

impl Tensor {
    /// The matrix product: the last dimension of this with the last but one of `rhs`, all
    /// dimensions before those being batch dimensions, which broadcast. A vector counts as a matrix
    /// with one row on the left, one column on the right, and adds no dimension to the result.
    /// Element types promote.
    ///
    /// Broadcasting copies nothing: a batch dimension that only one operand has becomes a dimension
    /// of rows or columns of the product, and is moved to its place afterwards if necessary.
    ///
    /// # Errors
    /// When an operand is a scalar, the element types do not promote or the sizes do not fit.
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        let site = here();
        // The common case, in which nothing is promoted, broadcast or transposed.
        if self.rank() == 2 && rhs.rank() == 2 && self.dtype() == rhs.dtype() {
            let attrs = of_matrices(self.dtype());
            return self.record_call(&RecordCall::new(
                OpCode::DotGeneral,
                attrs,
                handles(&[self, rhs]),
                &site,
            ));
        }
        let operands = [("lhs", self), ("rhs", rhs)];
        let given = || format!("lhs is {}, rhs is {}", self.ty(), rhs.ty());
        if self.rank() == 0 || rhs.rank() == 0 {
            let rule = "a matrix product takes vectors, matrices and batches of matrices";
            let error = OpError::new("dot_general", OpErrorKind::Shape, given(), rule);
            return Err(Tensor::refuse(error.hint("did you mean `mul`?"), site));
        }
        let dtype = common_dtype("dot_general", operands, &site)?;
        let shapes = operands.map(|(_, tensor)| Shape::try_from(&tensor.dims()[..batch_rank(tensor)]));
        let [of_lhs, of_rhs] = shapes;
        let (of_lhs, of_rhs) = (of_lhs?, of_rhs?);
        let Some(batch) = broadcast_shapes(&[&of_lhs, &of_rhs]) else {
            let rule = format!(
                "the batch dimensions {of_lhs} and {of_rhs} do not broadcast: they are aligned at the last one, and sizes \
                 must be equal or one of them 1"
            );
            return Err(Tensor::refuse(OpError::new("dot_general", OpErrorKind::Shape, given(), rule), site));
        };
        let axes = BatchAxes::of(&batch, &of_lhs, &of_rhs);
        let lhs = self.as_dtype(dtype, self, &site)?.without_ones(&of_lhs, self, &site)?;
        let rhs = rhs.as_dtype(dtype, self, &site)?.without_ones(&of_rhs, self, &site)?;
        let (lhs_batching, rhs_batching) = axes.shared();
        let of_rhs = axes.count(|(_, in_rhs)| in_rhs);
        let numbers = DotDimensionNumbers {
            lhs_batching: &lhs_batching,
            rhs_batching: &rhs_batching,
            lhs_contracting: &[lhs.rank() as i64 - 1],
            rhs_contracting: &[of_rhs as i64],
        };
        let attrs = attrs::dot_general(numbers, dtype);
        let product = self.record(OpCode::DotGeneral, attrs, &[&lhs, &rhs], site.clone())?;

        let (rows, columns) = (usize::from(self.rank() > 1), usize::from(rhs.rank() > of_rhs + 1));
        let order = axes.order(rows, columns);
        let ordered = if order.iter().enumerate().all(|(to, &from)| to as i64 == from) {
            product
        } else {
            self.record(OpCode::Transpose, attrs::transpose(&order), &[&product], site.clone())?
        };
        if ordered.rank() == batch.rank() + rows + columns {
            return Ok(ordered);
        }
        // Dimensions of size 1 in both operands.
        let tail = &ordered.dims()[ordered.rank() - rows - columns..];
        ordered.reshape_at(&[batch.sizes(), tail].concat(), site)
    }

    /// This operand of a matrix product without the batch dimensions of size 1. Recorded on the
    /// stream of `on`.
    fn without_ones(&self, batch: &Shape, on: &Tensor, site: &Site) -> Result<Tensor> {
        if batch.dims().iter().all(|&dim| dim != 1) {
            return Ok(self.clone());
        }
        let kept = batch.sizes().iter().filter(|&&dim| dim != 1);
        let dims: SmallVec<[usize; 6]> = kept.chain(&self.dims()[batch.rank()..]).copied().collect();
        on.record(OpCode::Reshape, attrs::reshape(Shape::try_from(dims.as_slice())?), &[self], site.clone())
    }

    /// Products summed over any pairs of dimensions, for each index of any pairs of batch
    /// dimensions. The result has the batch dimensions, the rest of this, the rest of `rhs`.
    ///
    /// # Errors
    /// When the dimensions do not fit.
    #[track_caller]
    pub fn dot_general(&self, rhs: &Tensor, dims: DotDimensionNumbers<'_>) -> Result<Tensor> {
        self.dot_general_as(rhs, dims, self.dtype())
    }

    /// As [`Tensor::dot_general`], with a result of another element type, in which the products are
    /// summed, such as `f32` for `bf16` factors.
    ///
    /// # Errors
    /// When the dimensions do not fit, or the type does not contain that of the factors.
    #[track_caller]
    pub fn dot_general_as(
        &self,
        rhs: &Tensor,
        dims: DotDimensionNumbers<'_>,
        dtype: DType,
    ) -> Result<Tensor> {
        let attrs = attrs::dot_general(dims, dtype);
        self.record(OpCode::DotGeneral, attrs, &[self, rhs], here())
    }

    /// Products summed over pairs of dimensions, which disappear; the rest of this comes before the
    /// rest of `rhs`. Negative dimensions count from the back. Element types promote. NumPy's
    /// `tensordot`.
    ///
    /// # Errors
    /// When a dimension does not exist, or the lists or the sizes differ.
    #[track_caller]
    pub fn tensordot(&self, rhs: &Tensor, lhs_axes: &[i64], rhs_axes: &[i64]) -> Result<Tensor> {
        let site = here();
        let dtype = common_dtype("dot_general", [("lhs", self), ("rhs", rhs)], &site)?;
        let lhs_contracting = self.axes_of(lhs_axes, &site)?;
        let rhs_contracting = rhs.axes_of(rhs_axes, &site)?;
        let dims = DotDimensionNumbers {
            lhs_contracting: &lhs_contracting,
            rhs_contracting: &rhs_contracting,
            ..DotDimensionNumbers::default()
        };
        let (lhs, rhs) = (self.as_dtype(dtype, self, &site)?, rhs.as_dtype(dtype, self, &site)?);
        self.record(OpCode::DotGeneral, attrs::dot_general(dims, dtype), &[&lhs, &rhs], site)
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
