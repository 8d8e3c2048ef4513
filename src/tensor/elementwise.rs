//! Elementwise ops, generated from the op table's lists.

use std::panic::Location;
use std::sync::LazyLock;

use fuseline_fusion::op::{Comparison, attrs};
use fuseline_fusion::{Attrs, DType, OpCode, OpError, OpErrorKind, Site};
use fuseline_runtime::internals::RecordCall;
use fuseline_runtime::{Error, Result};

use super::promote::{Number, common_dtype, common_shape, promote_number};
use super::{AttrsByType, NO_ATTRS, Tensor, constant_like, here, scalar_as};
use crate::handle::handles;

/// Attributes of a comparison. They are made once instead of on each call.
fn comparison_attrs(direction: Comparison, dtype: DType) -> &'static Attrs {
    static MADE: LazyLock<[AttrsByType; Comparison::ALL.len()]> = LazyLock::new(|| {
        Comparison::ALL.map(|direction| AttrsByType::new(|dtype| attrs::compare_for(direction, dtype)))
    });
    MADE[direction as usize].of(dtype)
}

impl Tensor {
    /// Records a binary op on both operands in their common element type and shape.
    // Tries the trace cache first: an op that it expects on these operands needs no look at their
    // types.
    pub(super) fn binary(&self, rhs: &Tensor, at: &'static Location<'static>, op: OpCode) -> Result<Tensor> {
        match self.record_fast(op, &[self, rhs], &Site::Rust(at)) {
            Some(result) => Ok(result),
            None => self.binary_unusual(rhs, at, op),
        }
    }

    #[inline(never)]
    fn binary_unusual(&self, rhs: &Tensor, at: &'static Location<'static>, op: OpCode) -> Result<Tensor> {
        let (site, operands) = (Site::Rust(at), [self, rhs]);
        let call = RecordCall::new(op, &NO_ATTRS, handles(&operands), &site);
        match self.stream().record_same_type(&call, operands.map(Tensor::handle), Tensor::from_handle) {
            Some(result) => result,
            None => self.binary_promoted(op, &NO_ATTRS, rhs, &site),
        }
    }

    /// The same for operands that have different types, or an op that has attributes.
    #[inline(never)]
    pub(super) fn binary_promoted(
        &self,
        op: OpCode,
        attrs: &Attrs,
        rhs: &Tensor,
        site: &Site,
    ) -> Result<Tensor> {
        let [lhs, rhs] = Tensor::alike(op.name(), [("lhs", self), ("rhs", rhs)], site)?;
        lhs.record_call(&RecordCall::new(op, attrs, handles(&[&lhs, &rhs]), site))
    }

    /// Records an op of one operand.
    pub(super) fn unary(&self, at: &'static Location<'static>, op: OpCode) -> Result<Tensor> {
        match self.record_fast(op, &[self], &Site::Rust(at)) {
            Some(result) => Ok(result),
            None => self.unary_unusual(at, op),
        }
    }

    #[inline(never)]
    fn unary_unusual(&self, at: &'static Location<'static>, op: OpCode) -> Result<Tensor> {
        self.stream().record_slow(
            &RecordCall::new(op, &NO_ATTRS, handles(&[self]), &Site::Rust(at)),
            Tensor::from_handle,
        )
    }

    /// Records a binary op with a number, which is a lifted scalar.
    pub(super) fn binary_number(
        &self,
        op: OpCode,
        number: Number,
        reversed: bool,
        site: Site,
    ) -> Result<Tensor> {
        let converted;
        let (tensor, scalar) = match self.number_like(number) {
            Some(scalar) => (self, scalar),
            None => {
                let (tensor, scalar) = self.with_number(op.name(), number, &site)?;
                converted = tensor;
                (&converted, scalar)
            }
        };
        let scalar = scalar.stretched(tensor.shape(), tensor, &site)?;
        let operands = if reversed { [&scalar, tensor] } else { [tensor, &scalar] };
        tensor.record_plain(op, &operands, &site)
    }

    /// A number as a lifted scalar of this tensor's element type, if that is what both promote to.
    fn number_like(&self, number: Number) -> Option<Tensor> {
        let dtype = self.dtype();
        let stays = !dtype.is_complex() && promote_number(dtype, number.family()) == Some(dtype);
        stays.then(|| scalar_as(self, number, dtype)).flatten()
    }

    // As `binary`: tries the trace cache before it looks at the types.
    fn comparison(
        &self,
        direction: Comparison,
        rhs: &Tensor,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let (site, operands) = (Site::Rust(at), [self, rhs]);
        let attrs = comparison_attrs(direction, self.dtype());
        let call = RecordCall::new(OpCode::Compare, attrs, handles(&operands), &site);
        match self.stream().record_fast(&call) {
            Some(result) => Ok(Tensor::from_handle(result)),
            None => self.comparison_unusual(direction, rhs, &site),
        }
    }

    #[inline(never)]
    fn comparison_unusual(&self, direction: Comparison, rhs: &Tensor, site: &Site) -> Result<Tensor> {
        let [lhs, rhs] = Tensor::alike(OpCode::Compare.name(), [("lhs", self), ("rhs", rhs)], site)?;
        let attrs = comparison_attrs(direction, lhs.dtype());
        lhs.record_call(&RecordCall::new(OpCode::Compare, attrs, handles(&[&lhs, &rhs]), site))
    }
}

macro_rules! unary_methods {
    ($dialect:ident; $(($code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal)),* $(,)?) => {
        /// Elementwise ops of one operand.
        impl Tensor {
            $(
                #[doc = $summary]
                #[doc = concat!("\n\n", stringify!($dialect), " op `", $name, "`.\n\n# Errors\nWhen the op does not take the element type.")]
                #[track_caller]
                #[allow(clippy::should_implement_trait, reason = "the operators exist too; these names are the op's")]
                pub fn $method(&self) -> Result<Tensor> {
                    self.unary(Location::caller(), OpCode::$code)
                }
            )*
        }
    };
}

macro_rules! binary_methods {
    ($dialect:ident; $(($code:ident, $method:ident, $name:literal, $dtypes:ident, $rounding:ident, $summary:literal)),* $(,)?) => {
        /// Elementwise ops of two operands; they promote and broadcast
        /// ([`promote`](crate::promote)).
        impl Tensor {
            $(
                #[doc = $summary]
                #[doc = concat!("\n\n", stringify!($dialect), " op `", $name, "`.\n\n# Errors\nWhen the op does not take the element type, or the operands do not promote or broadcast.")]
                #[track_caller]
                #[allow(clippy::should_implement_trait, reason = "the operators exist too; these names are the op's")]
                pub fn $method(&self, rhs: &Tensor) -> Result<Tensor> {
                    self.binary(rhs, Location::caller(), OpCode::$code)
                }
            )*
        }
    };
}

fuseline_fusion::for_each_unary_op!(unary_methods);
fuseline_fusion::for_each_binary_op!(binary_methods);
fuseline_fusion::for_each_chlo_unary_op!(unary_methods);
fuseline_fusion::for_each_chlo_binary_op!(binary_methods);

macro_rules! comparison_methods {
    ($(($method:ident, $direction:ident, $words:literal)),* $(,)?) => {
        /// Comparisons; the result is bool; operands promote and broadcast. Floats compare by IEEE
        /// 754: NaN is unequal to everything.
        impl Tensor {
            $(
                #[doc = concat!("Whether each element is ", $words, " that of `rhs`.")]
                #[doc = "\n\n# Errors\nWhen the operands do not promote or broadcast."]
                #[track_caller]
                pub fn $method(&self, rhs: &Tensor) -> Result<Tensor> {
                    self.comparison(Comparison::$direction, rhs, Location::caller())
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
    /// Each element to a whole power, as products of squares (JAX's `integer_pow`): a square is one
    /// product, where [`Tensor::pow`] by a tensor is a transcendental function. The exponent is
    /// part of the region; 0 gives 1, for NaN too.
    ///
    /// # Errors
    /// When the exponent is negative and the elements are integers, or the elements are `bool`.
    #[track_caller]
    pub fn powi(&self, exponent: i32) -> Result<Tensor> {
        let dtype = self.dtype();
        let is_inexact = dtype.is_float() || dtype.is_complex();
        if dtype == DType::Bool || (exponent < 0 && !is_inexact) {
            let given = format!("the tensor is {} and the exponent {exponent}", self.ty());
            let rule = "the elements must be numbers, and floats or complex if the exponent is negative";
            let error = OpError::new("powi", OpErrorKind::DType, given, rule)
                .hint("convert the tensor to a float type");
            return Err(Error::op(error, here()));
        }
        let (mut power, mut square, mut left) = (None, self.clone(), exponent.unsigned_abs());
        while left > 0 {
            if left % 2 == 1 {
                power = Some(match power {
                    None => square.clone(),
                    Some(power) => square.mul(&power)?,
                });
            }
            left /= 2;
            if left > 0 {
                square = square.mul(&square)?;
            }
        }
        let one = || constant_like(self, 1.0);
        match power {
            None => one()?.broadcast_to(self.dims()),
            Some(power) if exponent < 0 => one()?.div(&power),
            Some(power) => Ok(power),
        }
    }

    /// Whether each element is finite, that is neither infinite nor NaN.
    ///
    /// # Errors
    /// When the elements are not floats.
    #[track_caller]
    pub fn is_finite(&self) -> Result<Tensor> {
        self.unary(Location::caller(), OpCode::IsFinite)
    }

    /// The real part of each element. The real part of a float is the float itself.
    ///
    /// # Errors
    /// When the elements are neither floats nor complex.
    #[track_caller]
    pub fn real(&self) -> Result<Tensor> {
        self.unary(Location::caller(), OpCode::Real)
    }

    /// The imaginary part of each element. The imaginary part of a float is 0.
    ///
    /// # Errors
    /// When the elements are neither floats nor complex.
    #[track_caller]
    pub fn imag(&self) -> Result<Tensor> {
        self.unary(Location::caller(), OpCode::Imag)
    }

    /// Complex numbers with the elements of `self` as real parts and those of `imag` as imaginary
    /// parts. The operands promote and broadcast.
    ///
    /// # Errors
    /// When the operands do not promote or broadcast, or are neither `f32` nor `f64`.
    #[track_caller]
    pub fn with_imag(&self, imag: &Tensor) -> Result<Tensor> {
        self.binary(imag, Location::caller(), OpCode::Complex)
    }

    /// The element of `on_true` where `self`, a bool tensor, is true, and of `on_false` elsewhere.
    /// `on_true` and `on_false` promote, and all three operands broadcast.
    ///
    /// # Errors
    /// When this is no bool tensor, or the operands do not promote or broadcast.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        let site = here();
        let name = OpCode::Select.name();
        let branches = [("on_true", on_true), ("on_false", on_false)];
        let dtype = common_dtype(name, branches, &site)?;
        let shape = common_shape(name, [("pred", self), branches[0], branches[1]], &site)?;
        let mut operands =
            [self.clone(), on_true.as_dtype(dtype, self, &site)?, on_false.as_dtype(dtype, self, &site)?];
        for operand in &mut operands {
            *operand = operand.stretched(&shape, self, &site)?;
        }
        let [pred, on_true, on_false] = &operands;
        self.record_plain(OpCode::Select, &[pred, on_true, on_false], &site)
    }

    /// Each element limited to the range from `min` to `max`. If `min` is above `max`, the result
    /// is `max`. The operands promote and broadcast.
    ///
    /// # Errors
    /// When the operands do not promote or broadcast.
    #[track_caller]
    pub fn clamp(&self, min: &Tensor, max: &Tensor) -> Result<Tensor> {
        let site = here();
        let operands = [("min", min), ("operand", self), ("max", max)];
        let (mut dtype, mut shape) = (self.dtype(), self.shape().clone());
        if operands.iter().any(|(_, tensor)| tensor.dtype() != dtype) {
            dtype = common_dtype(OpCode::Clamp.name(), operands, &site)?;
        }
        // The op itself accepts scalar limits.
        if operands.iter().any(|(_, tensor)| *tensor.shape() != shape && tensor.rank() > 0) {
            shape = common_shape(OpCode::Clamp.name(), operands, &site)?;
        }
        let mut limits = [min.as_dtype(dtype, self, &site)?, max.as_dtype(dtype, self, &site)?];
        if limits.iter().any(|limit| limit.rank() > 0) {
            for limit in &mut limits {
                *limit = limit.stretched(&shape, self, &site)?;
            }
        }
        let [min, max] = &limits;
        let operand = self.as_dtype(dtype, self, &site)?.stretched(&shape, self, &site)?;
        self.record_plain(OpCode::Clamp, &[min, &operand, max], &site)
    }

    /// Each element converted to another element type. Conversions from floats to integers round
    /// towards zero.
    ///
    /// # Errors
    /// When the size in bytes overflows.
    #[track_caller]
    pub fn convert(&self, dtype: DType) -> Result<Tensor> {
        self.record(OpCode::Convert, attrs::convert(dtype), &[self], here())
    }

    /// The bits of the elements read as another element type. If the types have different widths,
    /// the last dimension of the tensor of the narrower type holds the parts of an element.
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
