//! Elementwise ops, generated from the op table's lists, and their broadcasting.

use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{Attrs, DType, Fault, OpCode, OpError, Scalar, Shape, Site};

use super::{Tensor, here};
use crate::error::{Error, Result};

/// The shape that both broadcast to: aligned at the last dimension, sizes equal or 1.
fn common_shape(op: OpCode, lhs: &Shape, rhs: &Shape, site: &Site) -> Result<Shape> {
    let rank = lhs.rank().max(rhs.rank());
    let at = |shape: &Shape, axis: usize| {
        let missing = rank - shape.rank();
        if axis < missing { 1 } else { shape.dim(axis - missing) }
    };
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        dims.push(match (at(lhs, axis), at(rhs, axis)) {
            (a, b) if a == b => a,
            (1, b) => b,
            (a, 1) => a,
            (a, b) => {
                let error = OpError::new(
                    op.name(),
                    Fault::Shape,
                    format!("lhs has shape {lhs} and rhs has shape {rhs}"),
                    format!("{a} and {b} do not broadcast: sizes must be equal, or one of them 1"),
                );
                let turned = rhs.rank() == 2 && lhs.dims().ends_with(&[rhs.dim(1), rhs.dim(0)]);
                let error = if turned { error.hint("did you mean to transpose rhs?") } else { error };
                return Err(Error::op(error, site.clone()));
            }
        });
    }
    Ok(Shape::new(&dims)?)
}

impl Tensor {
    /// Broadcasts to a shape that this one broadcasts to.
    pub(super) fn stretched(&self, shape: &Shape, site: &Site) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let missing = shape.rank() - self.rank();
        let map: Vec<i64> = (missing..shape.rank()).map(|axis| axis as i64).collect();
        let attrs = attrs::broadcast_in_dim(shape.clone(), &map);
        self.record(OpCode::BroadcastInDim, attrs, &[self], site.clone())
    }

    /// Records a binary op on both operands broadcast to their common shape.
    pub(super) fn binary(&self, op: OpCode, attrs: Attrs, rhs: &Tensor, site: Site) -> Result<Tensor> {
        if self.shape() == rhs.shape() {
            return self.record(op, attrs, &[self, rhs], site);
        }
        let shape = common_shape(op, self.shape(), rhs.shape(), &site)?;
        let (lhs, rhs) = (self.stretched(&shape, &site)?, rhs.stretched(&shape, &site)?);
        self.record(op, attrs, &[&lhs, &rhs], site)
    }

    /// Records a binary op with a number, which is a lifted scalar of this tensor's element type.
    pub(super) fn binary_number(
        &self,
        op: OpCode,
        number: f64,
        reversed: bool,
        site: Site,
    ) -> Result<Tensor> {
        // A complex number does not fit in a lifted scalar: its real part does, and is converted.
        let part = self.dtype().part();
        let scalar = Scalar::from_f64(part, number).expect("bug: a part of a number is complex");
        let mut scalar = Tensor::new(crate::value::ValueCell::scalar(scalar), self.stream().clone());
        if self.dtype() != part {
            scalar = self.record(OpCode::Convert, attrs::convert(self.dtype()), &[&scalar], site.clone())?;
        }
        let scalar = scalar.stretched_on(self, &site)?;
        let operands = if reversed { [&scalar, self] } else { [self, &scalar] };
        self.record(op, Attrs::none(), &operands, site)
    }

    /// A scalar broadcast to the shape of `like`, recorded on the stream of `like`.
    fn stretched_on(&self, like: &Tensor, site: &Site) -> Result<Tensor> {
        let attrs = attrs::broadcast_in_dim(like.shape().clone(), &[]);
        like.record(OpCode::BroadcastInDim, attrs, &[self], site.clone())
    }

    #[track_caller]
    fn comparison(&self, direction: Comparison, rhs: &Tensor) -> Result<Tensor> {
        self.binary(OpCode::Compare, attrs::compare_for(direction, self.dtype()), rhs, here())
    }
}

macro_rules! unary_methods {
    ($(($code:ident, $method:ident, $name:literal, $dtypes:ident, $numerics:ident, $summary:literal)),* $(,)?) => {
        /// Elementwise ops of one operand.
        impl Tensor {
            $(
                #[doc = $summary]
                #[doc = concat!("\n\nStableHLO: `", $name, "`.\n\n# Errors\nWhen the op does not take the element type.")]
                #[track_caller]
                #[allow(clippy::should_implement_trait, reason = "the operators exist too; these names are the op's")]
                pub fn $method(&self) -> Result<Tensor> {
                    self.record(OpCode::$code, Attrs::none(), &[self], here())
                }
            )*
        }
    };
}

macro_rules! binary_methods {
    ($(($code:ident, $method:ident, $name:literal, $dtypes:ident, $numerics:ident, $summary:literal)),* $(,)?) => {
        /// Elementwise ops of two operands; shapes broadcast.
        impl Tensor {
            $(
                #[doc = $summary]
                #[doc = concat!("\n\nStableHLO: `", $name, "`.\n\n# Errors\nWhen the element types differ or the op does not take them, or the shapes do not broadcast.")]
                #[track_caller]
                #[allow(clippy::should_implement_trait, reason = "the operators exist too; these names are the op's")]
                pub fn $method(&self, rhs: &Tensor) -> Result<Tensor> {
                    self.binary(OpCode::$code, Attrs::none(), rhs, here())
                }
            )*
        }
    };
}

fuseline_fusion::for_each_unary_op!(unary_methods);
fuseline_fusion::for_each_binary_op!(binary_methods);

macro_rules! comparison_methods {
    ($(($method:ident, $direction:ident, $words:literal)),* $(,)?) => {
        /// Comparisons; the result is bool, shapes broadcast. Floats compare by IEEE 754: NaN is unequal to everything.
        impl Tensor {
            $(
                #[doc = concat!("Whether each element is ", $words, " that of `rhs`.")]
                #[doc = "\n\n# Errors\nWhen the element types differ or the shapes do not broadcast."]
                #[track_caller]
                pub fn $method(&self, rhs: &Tensor) -> Result<Tensor> {
                    self.comparison(Comparison::$direction, rhs)
                }
            )*
        }
    };
}

comparison_methods! {
    (equal, Eq, "equal to"),
    (not_equal, Ne, "not equal to"),
    (greater, Gt, "greater than"),
    (greater_equal, Ge, "greater than or equal to"),
    (less, Lt, "less than"),
    (less_equal, Le, "less than or equal to"),
}

impl Tensor {
    /// Whether each element is neither infinite nor NaN.
    ///
    /// # Errors
    /// When the elements are not floats.
    #[track_caller]
    pub fn is_finite(&self) -> Result<Tensor> {
        self.record(OpCode::IsFinite, Attrs::none(), &[self], here())
    }

    /// Where this tensor, of bool, is true the element of `on_true`, else that of `on_false`. Shapes broadcast.
    ///
    /// # Errors
    /// When this is no bool tensor, the element types differ or the shapes do not broadcast.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        let site = here();
        let shape = common_shape(OpCode::Select, on_true.shape(), on_false.shape(), &site)?;
        let shape = common_shape(OpCode::Select, &shape, self.shape(), &site)?;
        let pred = self.stretched(&shape, &site)?;
        let (on_true, on_false) = (on_true.stretched(&shape, &site)?, on_false.stretched(&shape, &site)?);
        self.record(OpCode::Select, Attrs::none(), &[&pred, &on_true, &on_false], site)
    }

    /// Each element raised to `min` and then lowered to `max`, which are scalars or have this shape.
    ///
    /// # Errors
    /// When the element types differ or the shapes do not fit.
    #[track_caller]
    pub fn clamp(&self, min: &Tensor, max: &Tensor) -> Result<Tensor> {
        self.record(OpCode::Clamp, Attrs::none(), &[min, self, max], here())
    }

    /// The same values in another element type. Floats become integers by rounding towards zero.
    ///
    /// # Errors
    /// When the size in bytes overflows.
    #[track_caller]
    pub fn convert(&self, dtype: DType) -> Result<Tensor> {
        self.record(OpCode::Convert, attrs::convert(dtype), &[self], here())
    }

    /// The same bits as another element type. Between types of different width the last dimension holds the parts.
    ///
    /// # Errors
    /// When the shape does not fit.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        self.record(OpCode::BitcastConvert, attrs::convert(dtype), &[self], here())
    }

    /// Each element rounded to a float with fewer exponent and mantissa bits.
    ///
    /// # Errors
    /// When the elements are not floats or the numbers of bits are out of range.
    #[track_caller]
    pub fn reduce_precision(&self, exponent_bits: i64, mantissa_bits: i64) -> Result<Tensor> {
        let attrs = attrs::reduce_precision(exponent_bits, mantissa_bits);
        self.record(OpCode::ReducePrecision, attrs, &[self], here())
    }
}
