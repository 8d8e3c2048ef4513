//! Full precision for products and convolutions of `f32`, on compilers that shorten operands by
//! default.
//!
//! Input: a [`Plain`] function. Output: the same function, in which each product and convolution of
//! `f32` without a precision requests the highest.
//!
//! At the default precision XLA computes products of `f32` with TF32 on NVIDIA's GPUs (10 bits of
//! mantissa) and with `bf16` on TPUs (7 bits). That exceeds the tolerance that
//! [`super::Numerics::Fast`] states for the type. On an H100 (JAX 0.11.2, 2026-11-26) the results
//! of four benchmark programs differed from PyTorch's by a relative 2e-4 to 9e-3 with the default
//! (`benches/gpu/run --quick`).

use std::sync::Arc;

use super::legalized::{Plain, Writer, rewritten_body, signed};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::DType;
use crate::ir::{Body, OpCode, Refs, Signature};

/// The member of the enumeration `precision` for full precision.
const HIGHEST: u8 = 2;

/// The function at the highest precision.
pub(super) fn highest(plain: Plain) -> Plain {
    if !plain.function.graph().any_op(&mut |signature| highest_attrs(signature).is_some()) {
        return plain;
    }
    plain.rewritten(
        |_| (),
        |writer, (), node, operands| {
            let results = write(writer, node.signature(), operands);
            results.into_iter().map(|result| (result, result)).collect()
        },
    )
}

/// Writes a call at the highest precision and returns its results.
fn write(writer: &mut Writer, signature: &Arc<Signature>, operands: Refs) -> Refs {
    if let Some(attrs) = highest_attrs(signature) {
        return Refs::from_slice(&[writer.op(signature.op(), attrs, &operands)]);
    }
    let bodies: Vec<Arc<Body>> = signature.bodies().iter().map(body).collect();
    let is_same = bodies.iter().zip(signature.bodies()).all(|(new, old)| Arc::ptr_eq(new, old));
    let signature = if is_same { signature.clone() } else { signed(signature.op(), signature, &bodies) };
    writer.graph.push_signature(signature, operands)
}

/// A body at the highest precision.
fn body(body: &Arc<Body>) -> Arc<Body> {
    if !body.graph().any_op(&mut |signature| highest_attrs(signature).is_some()) {
        return body.clone();
    }
    Arc::new(rewritten_body(body, |writer, node, operands| write(writer, node.signature(), operands)))
}

/// The attributes of a call with the highest precision. `None` for other ops, for types that are
/// not shortened, and if the program sets a precision or an algorithm.
fn highest_attrs(signature: &Signature) -> Option<Attrs> {
    // The positions of the precision and of the algorithm.
    let (precision, algorithm) = match signature.op() {
        OpCode::DotGeneral => (1, Some(2)),
        OpCode::Convolution => (8, None),
        _ => return None,
    };
    let is_absent = |place: usize| signature.attrs().values()[place] == AttrValue::Absent;
    let is_shortened = signature.operands().iter().any(|ty| ty.dtype().part() == DType::F32);
    if !is_shortened || !is_absent(precision) || !algorithm.is_none_or(is_absent) {
        return None;
    }
    let mut values = signature.attrs().values().to_vec();
    values[precision] = AttrValue::Enums([HIGHEST; 2].into_iter().collect());
    Some(values.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::CanonRegion;
    use crate::ir::Graph;
    use crate::lower::{Aliases, Numerics, Target, lower_for};
    use crate::op::attrs::{self, DotDimensionNumbers};
    use crate::shape::TensorType;

    /// The text of a product of two matrices with this precision.
    fn product(target: Target, dtype: DType, precision: AttrValue) -> String {
        let ty = TensorType::of(dtype, &[2, 2]).expect("small");
        let mut graph = Graph::new();
        let operands = [graph.param(ty.clone()), graph.param(ty)];
        let dims = DotDimensionNumbers { lhs_contracting: &[1], rhs_contracting: &[0], ..Default::default() };
        let mut values = attrs::dot_general(dims, dtype).values().to_vec();
        values[1] = precision;
        graph.push(OpCode::DotGeneral, values.into_iter().collect(), &[], &operands).expect("a product");
        let region = CanonRegion::new(graph, Box::new([false, false]));
        lower_for(target, &region, &[0], &Aliases::none(), Numerics::Fast, &[]).text().to_owned()
    }

    #[test]
    fn products_of_f32_ask_for_all_bits() {
        for (target, dtype, is_full) in [
            (Target::ACCELERATOR, DType::F32, true),
            (Target::ACCELERATOR, DType::C64, true),
            (Target::ACCELERATOR, DType::F64, false),
            (Target::ACCELERATOR, DType::BF16, false),
            (Target::ACCELERATOR, DType::I32, false),
            (Target::CPU, DType::F32, false),
            (Target::Any, DType::F32, false),
        ] {
            let text = product(target, dtype, AttrValue::Absent);
            assert_eq!(text.contains("HIGHEST"), is_full, "{target:?} {dtype}: {text}");
        }
    }

    #[test]
    fn a_precision_that_is_named_stays() {
        for (member, name) in [(0, "DEFAULT"), (1, "HIGH"), (2, "HIGHEST")] {
            let named = AttrValue::Enums([member; 2].into_iter().collect());
            let text = product(Target::ACCELERATOR, DType::F32, named);
            assert_eq!(text.matches(&format!("precision {name}>")).count(), 2, "{text}");
        }
    }
}
