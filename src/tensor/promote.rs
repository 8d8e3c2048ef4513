//! Promotion and broadcasting: how the methods and operators of [`Tensor`] handle operands of
//! different types.
//!
//! Only this module promotes and broadcasts. It records `convert` and `broadcast_in_dim` ops before
//! the op itself. The record layer ([`Stream::record`](crate::Stream::record),
//! [`embed`](crate::embed)) takes operands as they are.
//!
//! # Element types
//!
//! The rule is JAX's ("Type promotion semantics", docs.jax.dev): the types form a lattice, and
//! operands are converted to the least type above all of theirs.
//!
//! ```text
//!            ┌─ u2        ┌─ i2
//!            ├─ u4        ├─ i4                    ┌─ f4, f8 types
//! bool ─ i* ─┼─ u8 ─ u16 ─ u32 ─ u64 ──┬── f* ─────┼─ bf16 ─┐
//!            │    ╲     ╲     ╲        │    │      └─ f16 ──┴─ f32 ─── f64
//!            └─ i8 ─ i16 ─ i32 ─ i64 ──┘    │                   ╲        ╲
//!                                           └─ c* ───────────── c64 ── c128
//! ```
//!
//! - Unsigned with signed integers go to the next wider signed type; `u64` with a signed one leaves
//!   the integers.
//! - `bf16` with `f16` gives `f32`: neither holds the other.
//! - Integers with floats give the float, however narrow.
//! - The integers below 8 bits, and the floats below 16, have nothing above them. With another type
//!   of their kind they are rejected; use [`convert`](Tensor::convert) to state what is meant.
//! - `i*`, `f*` and `c*` are Rust's numbers as operands ([`Number`]): they have a family but no
//!   width, so `x + 1.0` has the type of `x` if `x` is a float. If only the family is left, as in
//!   an `i32` tensor plus `1.0` or `u64` with `i64`, the type is the 32-bit one, as in JAX by
//!   default: `i32`, `f32`, `c64`.
//!
//! The op itself defines what it does with the promoted type: [`div`](Tensor::div) of integers
//! truncates, as Rust's does.
//!
//! # Shapes
//!
//! NumPy's rule: shapes are aligned at the last dimension, a missing dimension counts as 1, and of
//! two sizes that meet one must be 1 or both equal. A size of 1 stretches; also to 0.

use std::fmt;

use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, DType, DTypeClass, OpCode, OpError, OpErrorKind, Scalar, Shape, Site};
use fuseline_runtime::internals::{ValueCell, bug};
use fuseline_runtime::{Error, Result};
use num_complex::Complex;
use smallvec::SmallVec;

use super::Tensor;

/// The family of a number that has no element type of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weak {
    /// `i*`: an integer.
    Int,
    /// `f*`: a float.
    Float,
    /// `c*`: a complex number.
    Complex,
}

/// A node of the lattice.
#[derive(Clone, Copy)]
enum Node {
    Of(DType),
    Weak(Weak),
}

use Node::{Of, Weak as Any};

/// First bit of the weak nodes in a set of nodes; those of the element types are their codes.
const WEAK_BIT: u32 = 56;

impl Node {
    const fn bit(self) -> u32 {
        match self {
            Of(dtype) => dtype.code() as u32,
            Any(weak) => WEAK_BIT + weak as u32,
        }
    }

    /// The nodes directly above: the edges of the figure.
    const fn above(self) -> &'static [Node] {
        match self {
            Of(DType::Bool) => &[Any(Weak::Int)],
            Any(Weak::Int) => {
                &[Of(DType::U8), Of(DType::I8), Of(DType::U2), Of(DType::U4), Of(DType::I2), Of(DType::I4)]
            }
            Of(DType::U2 | DType::U4 | DType::I2 | DType::I4) => &[],
            Of(DType::U8) => &[Of(DType::I16), Of(DType::U16)],
            Of(DType::U16) => &[Of(DType::I32), Of(DType::U32)],
            Of(DType::U32) => &[Of(DType::I64), Of(DType::U64)],
            Of(DType::I8) => &[Of(DType::I16)],
            Of(DType::I16) => &[Of(DType::I32)],
            Of(DType::I32) => &[Of(DType::I64)],
            Of(DType::U64 | DType::I64) => &[Any(Weak::Float)],
            Any(Weak::Float) => &[
                Of(DType::BF16),
                Of(DType::F16),
                Any(Weak::Complex),
                Of(DType::F8E3M4),
                Of(DType::F8E4M3),
                Of(DType::F8E4M3FN),
                Of(DType::F8E4M3FNUZ),
                Of(DType::F8E4M3B11FNUZ),
                Of(DType::F8E5M2),
                Of(DType::F8E5M2FNUZ),
                Of(DType::F8E8M0FNU),
                Of(DType::F4E2M1FN),
            ],
            Of(DType::BF16 | DType::F16) => &[Of(DType::F32)],
            Of(DType::F32) => &[Of(DType::F64), Of(DType::C64)],
            Of(DType::F64 | DType::C64) => &[Of(DType::C128)],
            Any(Weak::Complex) => &[Of(DType::C64)],
            // Floats below 16 bits, and the widest types.
            Of(_) => &[],
        }
    }

    /// This node and everything above it, as a set of bits.
    const fn upwards(self) -> u64 {
        let mut set = 1 << self.bit();
        let above = self.above();
        let mut i = 0;
        while i < above.len() {
            set |= above[i].upwards();
            i += 1;
        }
        set
    }
}

/// Every node with what is above it.
const LATTICE: [(Node, u64); DType::ALL.len() + 3] = {
    let mut nodes = [(Of(DType::Bool), 0); DType::ALL.len() + 3];
    let mut i = 0;
    while i < nodes.len() {
        let node = match i {
            0 => Any(Weak::Int),
            1 => Any(Weak::Float),
            2 => Any(Weak::Complex),
            _ => Of(DType::ALL[i - 3]),
        };
        nodes[i] = (node, node.upwards());
        i += 1;
    }
    nodes
};

/// The set of nodes above each node, indexed by its bit.
static UPWARDS: [u64; 64] = {
    let mut sets = [0; 64];
    let mut i = 0;
    while i < LATTICE.len() {
        sets[LATTICE[i].0.bit() as usize] = LATTICE[i].1;
        i += 1;
    }
    sets
};

/// The least node above both, if there is one: the one below all common upper bounds.
fn join(a: Node, b: Node) -> Option<Node> {
    let (above_a, above_b) = (UPWARDS[a.bit() as usize], UPWARDS[b.bit() as usize]);
    // The join is the node whose own set of upper bounds equals the common upper bounds. Nearly
    // always one of the two operands is above the other.
    match above_a & above_b {
        bounds if bounds == above_a => Some(a),
        bounds if bounds == above_b => Some(b),
        bounds => LATTICE.iter().find(|&&(_, set)| set == bounds).map(|&(node, _)| node),
    }
}

/// The element type of a node: the 32-bit one if only a family is left.
fn settled(node: Node) -> DType {
    match node {
        Of(dtype) => dtype,
        Any(Weak::Int) => DType::I32,
        Any(Weak::Float) => DType::F32,
        Any(Weak::Complex) => DType::C64,
    }
}

/// The element type that operands of the two types are converted to; `None` if the user has to
/// convert them explicitly.
///
/// ```
/// use fuseline::DType;
/// use fuseline::promote::promote_types;
/// assert_eq!(promote_types(DType::U8, DType::I8), Some(DType::I16));
/// assert_eq!(promote_types(DType::BF16, DType::F16), Some(DType::F32));
/// assert_eq!(promote_types(DType::U64, DType::I64), Some(DType::F32));
/// ```
#[must_use]
pub fn promote_types(lhs: DType, rhs: DType) -> Option<DType> {
    if lhs == rhs { Some(lhs) } else { join(Of(lhs), Of(rhs)).map(settled) }
}

/// The element type of an operand of type `dtype` and a number without a type of its own; `None` if
/// no type holds both.
///
/// ```
/// use fuseline::DType;
/// use fuseline::promote::{Weak, promote_number};
/// assert_eq!(promote_number(DType::F16, Weak::Float), Some(DType::F16));
/// assert_eq!(promote_number(DType::I8, Weak::Int), Some(DType::I8));
/// assert_eq!(promote_number(DType::I8, Weak::Float), Some(DType::F32));
/// ```
#[must_use]
pub fn promote_number(dtype: DType, number: Weak) -> Option<DType> {
    join(Of(dtype), Any(number)).map(settled)
}

/// The shape that all of the given ones broadcast to; `None` if there is none.
///
/// ```
/// use fuseline::Shape;
/// use fuseline::promote::broadcast_shapes;
/// let column = Shape::new(&[3, 1])?;
/// let row = Shape::new(&[4])?;
/// assert_eq!(broadcast_shapes(&[&column, &row]), Some(Shape::new(&[3, 4])?));
/// assert_eq!(broadcast_shapes(&[&row, &Shape::new(&[3])?]), None);
/// # Ok::<(), fuseline::Error>(())
/// ```
#[must_use]
pub fn broadcast_shapes(shapes: &[&Shape]) -> Option<Shape> {
    let mut dims: SmallVec<[u64; 6]> = SmallVec::new();
    for shape in shapes {
        let fresh = shape.rank().saturating_sub(dims.len());
        dims.insert_many(0, std::iter::repeat_n(1, fresh));
        let offset = dims.len() - shape.rank();
        for (common, &dim) in dims[offset..].iter_mut().zip(shape.dims()) {
            match (*common, dim) {
                (a, b) if a == b => {}
                (_, 1) => {}
                (1, b) => *common = b,
                _ => return None,
            }
        }
    }
    Shape::new(&dims).ok()
}

/// A number as an operand beside a tensor. It becomes a lifted scalar of the promoted type, so
/// another number compiles nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer; the promoted type must hold it.
    Int(i64),
    /// A float, rounded to the promoted type.
    Float(f64),
    /// A complex number, its parts rounded to those of the promoted type.
    Complex(Complex<f64>),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(value) => value.fmt(f),
            Number::Float(value) => value.fmt(f),
            Number::Complex(value) => value.fmt(f),
        }
    }
}

impl From<i64> for Number {
    fn from(value: i64) -> Number {
        Number::Int(value)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Float(value)
    }
}

impl From<Complex<f64>> for Number {
    fn from(value: Complex<f64>) -> Number {
        Number::Complex(value)
    }
}

impl Number {
    /// Its family.
    #[must_use]
    pub fn family(self) -> Weak {
        match self {
            Number::Int(_) => Weak::Int,
            Number::Float(_) => Weak::Float,
            Number::Complex(_) => Weak::Complex,
        }
    }

    /// The number as an element of a real type; `None` if it is an integer that the type does not
    /// hold, or either is complex.
    pub(crate) fn element(self, dtype: DType) -> Option<Scalar> {
        let value = match self {
            Number::Float(value) => return Scalar::from_f64(dtype, value),
            Number::Int(value) => value,
            Number::Complex(_) => return None,
        };
        let bits = dtype.bits();
        let (low, high) = match dtype.class() {
            DTypeClass::Unsigned => (0, i64::MAX >> 63u32.saturating_sub(bits)),
            DTypeClass::Signed => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
            _ => return Scalar::from_f64(dtype, value as f64),
        };
        match dtype {
            _ if value < low || value > high => None,
            // An `f64` does not hold every 64-bit integer.
            DType::I64 => Some(Scalar::new(value)),
            DType::U64 => Some(Scalar::new(value as u64)),
            _ => Scalar::from_f64(dtype, value as f64),
        }
    }
}

/// Operands with their names, for messages.
pub(crate) type Operands<'a, const N: usize> = [(&'static str, &'a Tensor); N];

/// The element type common to the operands.
pub(crate) fn common_dtype<const N: usize>(
    op: &'static str,
    operands: Operands<'_, N>,
    site: &Site,
) -> Result<DType> {
    let mut common: Option<DType> = None;
    for (name, tensor) in operands {
        let dtype = tensor.dtype();
        let Some(before) = common else {
            common = Some(dtype);
            continue;
        };
        let Some(joined) = promote_types(before, dtype) else {
            let given = given(operands);
            let rule =
                format!("{before} and {dtype} have no common type: neither holds the values of the other");
            let error = OpError::new(op, OpErrorKind::DType, given, rule);
            let hint = format!("convert one of them, as in `{name}.convert(DType::{before:?})`");
            return Err(Error::op(error.hint(hint), site.clone()));
        };
        common = Some(joined);
    }
    common.ok_or_else(|| bug!("{op} has no operands"))
}

/// The shape common to the operands.
pub(crate) fn common_shape<const N: usize>(
    op: &'static str,
    operands: Operands<'_, N>,
    site: &Site,
) -> Result<Shape> {
    let shapes = operands.map(|(_, tensor)| tensor.shape());
    if shapes.iter().all(|shape| *shape == shapes[0]) {
        return Ok(shapes[0].clone());
    }
    match broadcast_shapes(&shapes) {
        Some(shape) => Ok(shape),
        None => Err(Error::op(misfit(op, operands), site.clone())),
    }
}

fn given<const N: usize>(operands: Operands<'_, N>) -> String {
    let each: Vec<String> =
        operands.iter().map(|(name, tensor)| format!("{name} is {}", tensor.ty())).collect();
    each.join(", ")
}

/// Why shapes do not broadcast, and what the user may have meant.
#[cold]
fn misfit<const N: usize>(op: &'static str, operands: Operands<'_, N>) -> OpError {
    let sizes = |tensor: &Tensor| tensor.shape().clone();
    for (i, (first, a)) in operands.iter().enumerate() {
        for (second, b) in &operands[i + 1..] {
            let pairs = a.dims().iter().rev().zip(b.dims().iter().rev());
            let clash = pairs.enumerate().find(|(_, (x, y))| x != y && **x != 1 && **y != 1);
            let Some((from_back, (x, y))) = clash else { continue };
            let (axis_a, axis_b) = (a.rank() - 1 - from_back, b.rank() - 1 - from_back);
            let rule = format!(
                "{x} and {y} do not broadcast, dimension {axis_a} of {first} and dimension {axis_b} of {second}: shapes are \
                 aligned at the last dimension, and sizes must be equal or one of them 1"
            );
            let error = OpError::new(op, OpErrorKind::Shape, given(operands), rule);
            return match likely_fix((*first, &sizes(a)), (*second, &sizes(b))) {
                Some(hint) => error.hint(hint),
                None => error,
            };
        }
    }
    // The only remaining reason is a product of sizes that is too large.
    OpError::new(
        op,
        OpErrorKind::Overflow,
        given(operands),
        "the common shape has more than 2^59 - 1 elements",
    )
}

/// The small change after which two shapes would broadcast, in words.
fn likely_fix(lhs: (&str, &Shape), rhs: (&str, &Shape)) -> Option<String> {
    for ((name, shape), other) in [(rhs, lhs.1), (lhs, rhs.1)] {
        let mut dims = shape.dims().to_vec();
        for missing in 1..=other.rank().saturating_sub(shape.rank()) {
            dims.push(1);
            let widened = Shape::new(&dims).ok()?;
            if broadcast_shapes(&[&widened, other]).is_some() {
                let call = ".unsqueeze(-1)?".repeat(missing);
                return Some(format!("did you mean `{name}{call}`, with shape {widened}?"));
            }
        }
    }
    for ((name, shape), other) in [(rhs, lhs.1), (lhs, rhs.1)] {
        if let &[rows, columns] = shape.dims() {
            let turned = Shape::new(&[columns, rows]).ok()?;
            if broadcast_shapes(&[&turned, other]).is_some() {
                return Some(format!("did you mean to transpose {name}?"));
            }
        }
    }
    if lhs.1.rank() == 1 && rhs.1.rank() == 1 {
        return Some(format!("for all pairs, make one a column: `{}.unsqueeze(-1)?`", lhs.0));
    }
    None
}

impl Tensor {
    /// This tensor as the given element type; itself if it has it.
    pub(super) fn as_dtype(&self, dtype: DType, on: &Tensor, site: &Site) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        on.record(OpCode::Convert, attrs::convert(dtype), &[self], site.clone())
    }

    /// This tensor broadcast to a shape that it broadcasts to; itself if it has it. Recorded on the
    /// stream of `on`.
    pub(super) fn stretched(&self, shape: &Shape, on: &Tensor, site: &Site) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let missing = shape.rank() - self.rank();
        let map: SmallVec<[i64; 6]> = (missing..shape.rank()).map(|axis| axis as i64).collect();
        let attrs = attrs::broadcast_in_dim(shape.clone(), &map);
        on.record(OpCode::BroadcastInDim, attrs, &[self], site.clone())
    }

    /// The operands in their common element type and shape, converted before they are repeated.
    pub(super) fn alike<const N: usize>(
        op: &'static str,
        operands: Operands<'_, N>,
        site: &Site,
    ) -> Result<[Tensor; N]> {
        let shape = common_shape(op, operands, site)?;
        let dtype = common_dtype(op, operands, site)?;
        let on = operands[0].1;
        let mut alike = operands.map(|(_, tensor)| tensor.clone());
        for tensor in &mut alike {
            *tensor = tensor.as_dtype(dtype, on, site)?.stretched(&shape, on, site)?;
        }
        Ok(alike)
    }

    /// A number as a lifted scalar beside this tensor, and the tensor in the common element type.
    pub(super) fn with_number(
        &self,
        op: &'static str,
        number: Number,
        site: &Site,
    ) -> Result<(Tensor, Tensor)> {
        let refused = |rule: String, hint: String| {
            let given = format!("the tensor is {} and the number {number:?}", self.ty());
            Error::op(OpError::new(op, OpErrorKind::DType, given, rule).hint(hint), site.clone())
        };
        let Some(dtype) = promote_number(self.dtype(), number.family()) else {
            let rule = format!("{} and a number of another family have no common type", self.dtype());
            return Err(refused(rule, "convert the tensor to the type that you need".to_owned()));
        };
        let tensor = self.as_dtype(dtype, self, site)?;
        let lift = |element: Option<Scalar>| {
            element.map(|element| Tensor::new(ValueCell::scalar(element), self.stream().clone()))
        };
        // A complex number does not fit in a lifted scalar: its parts do.
        let part = dtype.part();
        let scalar = match number {
            Number::Complex(Complex { re, im }) => {
                let (re, im) = (lift(Scalar::from_f64(part, re)), lift(Scalar::from_f64(part, im)));
                let parts = re.zip(im).ok_or_else(|| bug!("a part of a number is complex"))?;
                self.record(OpCode::Complex, Attrs::none(), &[&parts.0, &parts.1], site.clone())?
            }
            real => {
                let Some(scalar) = lift(real.element(part)) else {
                    let rule = format!("the number must fit into {dtype}, the element type of the tensor");
                    return Err(refused(rule, "convert the tensor to a wider type".to_owned()));
                };
                scalar.as_dtype(dtype, self, site)?
            }
        };
        Ok((tensor, scalar))
    }
}
