//! Finds lifted scalars that are worth compiling in as constants.
//!
//! A lifted scalar is an argument, so a new value needs no compile. Some ops are much faster if the
//! compiler knows the number. Input: a region. Output: its scalars that may be worth specializing
//! ([`fixable`]), and the values that pay ([`Specializable::pays`]).
//!
//! Time with the scalar lifted, relative to compiled in, on XLA's CPU backend (API 0.81; chains of
//! 30 ops with a `sqrt` behind each, f32, 65,536 elements, best tenth of 60 blocks, 2026-11-23):
//! `maximum` with 0 1.74, division by 0.5 1.59, multiplication by 1 1.26, division of 1 1.18;
//! addition of 1 and 0.5, subtraction from 1, multiplication by 0.5 and -1, division of 0.5 between
//! 0.9 and 1.03. With 1,024 elements all but the multiplication by 1 are between 0.95 and 1.06. An
//! exponent of 2 turns `power` into one multiplication.

use crate::canon::CanonRegion;
use crate::dtype::{DType, DTypeClass};
use crate::ir::{Graph, Node, OpCode, Ref};
use crate::literal::Scalar;
use crate::shape::Elems;

/// Results with fewer elements do not get faster with a known number.
const MANY: Elems = Elems(4_096);

/// A use of a scalar that may be faster with a known value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The exponent of a power: integral and half-integral ones become products and roots.
    Exponent,
    /// A bound in a maximum, minimum or clamp: a known number needs no check for NaN.
    Bound,
    /// A divisor: division by a known integer, or by a power of two for floats, becomes a product.
    Divisor,
    /// A factor: multiplication by 1 disappears.
    Factor,
}

/// A lifted scalar that may be worth specializing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specializable {
    /// The parameter of the region.
    pub param: u32,
    uses: Vec<Use>,
}

impl Specializable {
    /// Whether specializing for this value pays.
    #[must_use]
    pub fn pays(&self, value: Scalar) -> bool {
        let number = number(value);
        let is = |wanted: &[f64]| number.is_some_and(|number| wanted.contains(&number));
        self.uses.iter().any(|usage| match usage {
            Use::Exponent => {
                number.is_some_and(|number| (number * 2.0).fract() == 0.0 && number.abs() <= 8.0)
            }
            Use::Bound => number.is_some_and(|number| !number.is_nan()),
            Use::Divisor if value.dtype().is_float() => number.is_some_and(is_power_of_two),
            Use::Divisor => !is(&[0.0]),
            Use::Factor => is(&[1.0]),
        })
    }
}

/// The value of a real scalar, to the precision of `f64`; `None` for `bool`.
fn number(value: Scalar) -> Option<f64> {
    let dtype = value.dtype();
    match dtype.float_format() {
        Some(format) => Some(format.decode(value.bits())),
        None if dtype == DType::Bool => None,
        None if dtype.class() == DTypeClass::Signed => {
            let unused = 64 - dtype.bits();
            Some(((value.bits() << unused) as i64 >> unused) as f64)
        }
        None => Some(value.bits() as f64),
    }
}

fn is_power_of_two(number: f64) -> bool {
    const FRACTION: u64 = (1 << 52) - 1;
    number.is_normal() && number.to_bits() & FRACTION == 0
}

/// The lifted scalars of a region that may be worth specializing, by parameter.
#[must_use]
pub fn fixable(region: &CanonRegion) -> Vec<Specializable> {
    let graph = region.graph();
    // For each result, the scalar that it copies.
    let mut copies: Vec<Option<u32>> = Vec::with_capacity(graph.result_count());
    let mut found: Vec<Specializable> = Vec::new();
    for node in graph.nodes() {
        let scalar = |operand: usize| match node.operands().get(operand) {
            Some(&Ref::Param(param)) => region.lifted()[param as usize].then_some(param),
            Some(&Ref::Result(result)) => copies[result as usize],
            None => None,
        };
        for &(operand, usage) in uses(node, graph) {
            if let Some(param) = scalar(operand) {
                match found.iter_mut().find(|known| known.param == param) {
                    Some(known) => known.uses.push(usage),
                    None => found.push(Specializable { param, uses: vec![usage] }),
                }
            }
        }
        let is_copy =
            matches!(node.signature().op(), OpCode::BroadcastInDim | OpCode::Reshape | OpCode::Convert);
        let copied = if is_copy { scalar(0) } else { None };
        copies.extend(node.signature().results().iter().map(|_| copied));
    }
    found
}

/// The operands of an op whose value may be worth knowing.
fn uses(node: &Node, graph: &Graph) -> &'static [(usize, Use)] {
    let elements = node.operands().iter().filter_map(|&operand| graph.type_of(operand)).map(|ty| ty.elems());
    let is_large = elements.max().is_some_and(|elements| elements >= MANY);
    match node.signature().op() {
        OpCode::Power => &[(1, Use::Exponent)],
        OpCode::Maximum | OpCode::Minimum if is_large => &[(0, Use::Bound), (1, Use::Bound)],
        OpCode::Clamp if is_large => &[(0, Use::Bound), (2, Use::Bound)],
        OpCode::Divide | OpCode::Remainder if is_large => &[(1, Use::Divisor)],
        OpCode::Multiply if is_large => &[(0, Use::Factor), (1, Use::Factor)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attrs;
    use crate::op::attrs;
    use crate::shape::TensorType;

    /// A region of one op on `size` elements and a broadcast scalar.
    fn region(op: OpCode, dtype: DType, size: u64) -> CanonRegion {
        let mut graph = Graph::new();
        let ty = TensorType::of(dtype, &[size]).unwrap();
        let (x, scalar) = (graph.param(ty.clone()), graph.param(TensorType::scalar(dtype)));
        let spread = attrs::broadcast_in_dim(ty.shape().clone(), &[]);
        let spread = graph.push(OpCode::BroadcastInDim, spread, &[], &[scalar]).unwrap()[0];
        graph.push(op, Attrs::none(), &[], &[x, spread]).unwrap();
        CanonRegion::new(graph, Box::new([false, true]))
    }

    fn pays(op: OpCode, size: u64, value: f64) -> bool {
        let found = fixable(&region(op, DType::F32, size));
        let scalar = Scalar::from_f64(DType::F32, value).unwrap();
        found.iter().any(|found| found.param == 1 && found.pays(scalar))
    }

    #[test]
    fn what_helps_is_fixed() {
        for (op, size, value, wanted) in [
            (OpCode::Power, 4, 2.0, true),
            (OpCode::Power, 4, 2.1, false),
            (OpCode::Maximum, MANY.0, 0.0, true),
            (OpCode::Maximum, MANY.0 - 1, 0.0, false),
            (OpCode::Maximum, MANY.0, f64::NAN, false),
            (OpCode::Divide, MANY.0, -0.25, true),
            (OpCode::Divide, MANY.0, 3.0, false),
            (OpCode::Divide, MANY.0, 0.0, false),
            (OpCode::Multiply, MANY.0, 1.0, true),
            (OpCode::Multiply, MANY.0, 2.0, false),
            (OpCode::Add, MANY.0, 1.0, false),
        ] {
            assert_eq!(pays(op, size, value), wanted, "{op} {size} {value}");
        }
    }

    #[test]
    fn numbers_of_all_types() {
        let number = |dtype, value| number(Scalar::from_f64(dtype, value).unwrap());
        assert_eq!(number(DType::I8, -3.0), Some(-3.0));
        assert_eq!(number(DType::I64, -3.0), Some(-3.0));
        assert_eq!(number(DType::U16, 40_000.0), Some(40_000.0));
        assert_eq!(number(DType::BF16, 0.5), Some(0.5));
        assert_eq!(number(DType::Bool, 1.0), None);
        let found = fixable(&region(OpCode::Divide, DType::I32, MANY.0));
        assert!(found[0].pays(Scalar::new(7i32)) && !found[0].pays(Scalar::new(0i32)));
    }
}
