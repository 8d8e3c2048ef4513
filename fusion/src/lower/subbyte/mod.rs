//! Carries elements of 2 and 4 bits in whole bytes.
//!
//! Input: the [`Plain`] function of a region. Output: the same function, with *narrow* types, those
//! of 2 and 4 bits, only at its edges. Its parameters and results keep their types. A narrow
//! parameter is first converted to its *carrier*. A narrow result is converted back last, behind a
//! barrier. A function without narrow types is returned unchanged.
//!
//! | narrow | carrier | because |
//! |---|---|---|
//! | `i2`, `i4` | `i8` | it represents their numbers, and wraps modulo a multiple of their range |
//! | `u2`, `u4` | `u8` | the same |
//! | `f4E2M1FN` | `f32` | it represents its numbers, and XLA's CPU backend computes short floats in it; a float of 8 bits would round results twice |
//!
//! XLA's CPU backend (API 0.81) packs narrow elements. It aborts the process where it copies one
//! from one layout to another, as it does for some transposes and sorts and around other ops. It
//! loses the sign when it folds `i2` and `i4`, emits invalid code for the total order of
//! `f4E2M1FN`, and has no convolution of `u2`. The carriers have none of these problems.
//!
//! Invariants:
//! - SUBBYTE-1: a carried value is a number of the narrow type. After an op whose result may leave
//!   the range, other ops bring it back: integers wrap, floats are rounded to the nearest number,
//!   ties to even, as [`crate::FloatFormat`] specifies. [`stays_in_range`] lists the ops that need
//!   no correction. All others get one, so the default is correct for every op whose meaning does
//!   not depend on the width of its operands.
//! - SUBBYTE-2: an op whose meaning does depend on the width gets operands that preserve its
//!   meaning ([`Carrying::call`]).
//! - SUBBYTE-3: except for the conversions at the edges, no op of the function or its bodies has a
//!   narrow operand or result.

mod number;

use std::sync::Arc;

use smallvec::smallvec;

use super::legalized::{Plain, pick, used_captures};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::{DType, DTypeClass, DTypeSet};
use crate::error::{OpError, OpErrorKind};
use crate::ir::{Body, Graph, Node, OpCode, Ref, Refs, Signature};
use crate::literal::Literal;
use crate::op::{Fusibility, OpDef, Rounding, attrs};
use crate::shape::TensorType;

/// The function with its narrow values carried. If an op has no carried form, because its expansion
/// exceeds the limits, the function stays as it is.
#[must_use]
pub fn carried(plain: Plain) -> Plain {
    if !has_narrow(plain.function.graph()) {
        return plain;
    }
    carried_function(&plain).unwrap_or_else(|error| {
        debug_assert!(error.fault() == OpErrorKind::Limit, "bug: a widened op is rejected: {error}");
        plain
    })
}

/// Whether elements of a type have less than a byte.
#[must_use]
pub fn is_narrow(dtype: DType) -> bool {
    DTypeSet::NARROW.contains(dtype)
}

/// The type that carries elements of a type: the type itself, unless it is narrow.
#[must_use]
pub fn carrier(dtype: DType) -> DType {
    match dtype.class() {
        _ if !is_narrow(dtype) => dtype,
        DTypeClass::Signed => DType::I8,
        DTypeClass::Float => DType::F32,
        _ => DType::U8,
    }
}

/// Whether a call or its bodies have a narrow type.
#[must_use]
pub fn concerns(signature: &Signature) -> bool {
    let mut types = signature.operands().iter().chain(signature.results());
    types.any(|ty| is_narrow(ty.dtype())) || signature.bodies().iter().any(|body| has_narrow(body.graph()))
}

/// Whether a graph or its bodies have a narrow type.
#[must_use]
pub fn has_narrow(graph: &Graph) -> bool {
    graph.params().iter().any(|ty| is_narrow(ty.dtype()))
        || graph.nodes().iter().any(|node| concerns(node.signature()))
}

/// Whether an op maps numbers of the narrow type to numbers of the narrow type if computed in the
/// carrier.
///
/// Ops that move elements do. Ops with bodies return results of these or given elements. A float op
/// does if it does not round.
fn stays_in_range(def: &OpDef, narrow: DType) -> bool {
    let exact = def.rounding == Rounding::Exact;
    match def.fusibility {
        _ if !def.bodies.is_empty() => true,
        Fusibility::Movement | Fusibility::Indexing => true,
        // Barriers, and exchanges between replicas.
        Fusibility::Opaque => exact,
        Fusibility::Elementwise if narrow.is_float() => exact,
        Fusibility::Elementwise => matches!(
            def.code,
            OpCode::And
                | OpCode::Or
                | OpCode::Xor
                | OpCode::Maximum
                | OpCode::Minimum
                | OpCode::Select
                | OpCode::Clamp
                | OpCode::Sign
                | OpCode::Remainder
        ),
        _ => false,
    }
}

/// Carries the whole function; its parameters and returns keep their types.
fn carried_function(plain: &Plain) -> Result<Plain, OpError> {
    let graph = plain.function.graph();
    let mut carrying = Carrying(Graph::with_capacity_of(graph));
    let given: Vec<Ref> = graph.params().iter().map(|ty| carrying.0.param(ty.clone())).collect();
    let mut params = Vec::with_capacity(given.len());
    for (&param, ty) in given.iter().zip(graph.params()) {
        params.push(carrying.in_type(param, carrier(ty.dtype()))?);
    }
    let mut origins = vec![None; carrying.0.nodes().len()];
    let mut is_returned = vec![false; graph.result_count()];
    for value in plain.function.returns() {
        if let Ref::Result(index) = *value {
            is_returned[index as usize] = true;
        }
    }
    let mut results = Vec::with_capacity(is_returned.len());
    // A returned value is converted next to the op that produces it, so that the text of a node is
    // contiguous.
    let mut returned = Vec::with_capacity(is_returned.len());
    for (node, &origin) in graph.nodes().iter().zip(&plain.origins) {
        carrying.node(node, &params, &mut results)?;
        for ty in node.signature().results() {
            let made = results[returned.len()];
            let is_end = is_returned[returned.len()] && is_narrow(ty.dtype());
            returned.push(if is_end { carrying.end(made, ty.dtype())? } else { made });
        }
        origins.resize(carrying.0.nodes().len(), origin);
    }
    let returns: Vec<Ref> =
        plain.function.returns().iter().map(|&value| pick(value, &given, &returned)).collect();
    Ok(Plain { function: carrying.body(&returns), origins })
}

/// Carries a body; its parameters and returns have carrier types.
fn carried_body(body: &Arc<Body>) -> Result<Arc<Body>, OpError> {
    let graph = body.graph();
    if !has_narrow(graph) {
        return Ok(body.clone());
    }
    let mut carrying = Carrying(Graph::with_capacity_of(graph));
    let mut params = Vec::with_capacity(graph.params().len());
    for ty in graph.params() {
        params.push(carrying.0.param(ty.with_dtype(carrier(ty.dtype()))));
    }
    let mut results = Vec::with_capacity(graph.result_count());
    for node in graph.nodes() {
        carrying.node(node, &params, &mut results)?;
    }
    let returns: Vec<Ref> = body.returns().iter().map(|&value| pick(value, &params, &results)).collect();
    Ok(Arc::new(carrying.body(&returns)))
}

/// A function under construction.
struct Carrying(Graph);

impl Carrying {
    fn body(self, returns: &[Ref]) -> Body {
        Body::new(self.0, returns).expect("bug: a function returns a value that it does not compute")
    }

    fn ty(&self, value: Ref) -> &TensorType {
        self.0.type_of(value).expect("bug: an operand has no producer")
    }

    fn dtype(&self, value: Ref) -> DType {
        self.ty(value).dtype()
    }

    fn op(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Result<Ref, OpError> {
        Ok(self.0.push_lowered(op, attrs, &[], operands)?[0])
    }

    /// Converts a value to an element type that represents its numbers, or wraps, rounds or clamps
    /// them as `convert` does.
    fn in_type(&mut self, value: Ref, to: DType) -> Result<Ref, OpError> {
        if self.dtype(value) == to {
            return Ok(value);
        }
        self.op(OpCode::Convert, attrs::convert(to), &[value])
    }

    /// The value to return. If the plugin knew it at compile time, it would become a constant in
    /// some layout and then be copied to the result's layout. The barrier hides it.
    fn end(&mut self, value: Ref, narrow: DType) -> Result<Ref, OpError> {
        let hidden = self.op(OpCode::OptimizationBarrier, Attrs::none(), &[value])?;
        self.in_type(hidden, narrow)
    }

    /// Writes the op of a node, in a function whose parameters and results so far have these
    /// values, and appends its results.
    fn node(&mut self, node: &Node, params: &[Ref], results: &mut Vec<Ref>) -> Result<(), OpError> {
        let operands: Refs = node.operands().iter().map(|&operand| pick(operand, params, results)).collect();
        let signature = node.signature();
        results.extend(if concerns(signature) {
            self.call(signature, operands)?
        } else {
            self.0.push_signature(signature.clone(), operands)
        });
        Ok(())
    }

    /// Writes a call with narrow types, on values that carry its operands.
    fn call(&mut self, signature: &Signature, mut operands: Refs) -> Result<Refs, OpError> {
        let (def, attr) = (signature.def(), signature.attrs().view());
        let narrow = signature.operands().first().map_or(DType::Bool, TensorType::dtype);
        match def.code {
            OpCode::Constant => return Ok(smallvec![self.constant(attr.dense(0))?]),
            OpCode::Convert => return Ok(smallvec![self.converted(operands[0], narrow, attr.dtype(0))?]),
            OpCode::BitcastConvert => return Ok(smallvec![self.cast(operands[0], narrow, attr.dtype(0))?]),
            // These ops read bits above those of the narrow type, which must be zero.
            OpCode::ShiftRightLogical | OpCode::CountLeadingZeros | OpCode::Popcnt => {
                operands[0] = self.with_zeros(operands[0], narrow)?;
            }
            OpCode::ShiftRightArithmetic => operands[0] = self.with_sign(operands[0], narrow)?,
            _ => {}
        }
        let bodies: Vec<Arc<Body>> =
            signature.bodies().iter().map(carried_body).collect::<Result<_, OpError>>()?;
        let attrs = carried_attrs(signature);
        let mut results = match def.captures {
            None => self.0.push_lowered(def.code, attrs, &bodies, &operands)?,
            Some(first) => {
                let (stated, captured) = operands.split_at(first);
                let (used, bodies) = used_captures(captured, &bodies);
                let operands: Refs = stated.iter().copied().chain(used).collect();
                self.0.push_lowered(def.code, attrs, &bodies, &operands)?
            }
        };
        if def.code == OpCode::CountLeadingZeros {
            let unused = f64::from(8 - narrow.bits());
            let unused = self.number(unused, results[0])?;
            results[0] = self.op(OpCode::Subtract, Attrs::none(), &[results[0], unused])?;
        }
        for (result, ty) in results.iter_mut().zip(signature.results()) {
            *result = match ty.dtype() {
                dtype if !is_narrow(dtype) => self.in_type(*result, dtype)?,
                dtype if stays_in_range(def, dtype) => *result,
                dtype => self.in_range(*result, dtype)?,
            };
        }
        Ok(results)
    }

    /// A constant with the same bytes in the carrier; the bytes of a narrow float are its bits.
    fn constant(&mut self, data: &Literal) -> Result<Ref, OpError> {
        let dtype = data.dtype();
        let byte = if dtype.class() == DTypeClass::Signed { DType::I8 } else { DType::U8 };
        let bytes = Literal::from_bytes(data.ty().with_dtype(byte), data.bytes().to_vec())
            .expect("bug: a narrow element takes a byte");
        let bytes = self.op(OpCode::Constant, attrs::constant(Arc::new(bytes)), &[])?;
        if dtype.is_float() { self.decoded(bytes) } else { Ok(bytes) }
    }

    /// Converts from or to a narrow type.
    fn converted(&mut self, value: Ref, from: DType, to: DType) -> Result<Ref, OpError> {
        match to.class() {
            _ if !is_narrow(to) || from == to => self.in_type(value, carrier(to)),
            DTypeClass::Float => {
                // Rounded once, from a type that represents the number.
                let wide = if from.part() == DType::F64 { DType::F64 } else { DType::F32 };
                let value = self.in_type(value, wide)?;
                self.in_range(value, to)
            }
            _ => {
                let value = self.in_type(value, carrier(to))?;
                // A float out of range is clamped, an integer wraps.
                let rounds = from.part().is_float();
                if rounds { self.clamped(value, to) } else { self.in_range(value, to) }
            }
        }
    }

    /// Reinterprets the bits as another narrow type of the same width.
    fn cast(&mut self, value: Ref, from: DType, to: DType) -> Result<Ref, OpError> {
        if from.bits() != to.bits() {
            // Only its expansion into shifts can be carried, which is omitted if it exceeds the
            // limits.
            let given = format!("a bitcast from {from} to {to} remains");
            return Err(OpError::new(
                "bitcast_convert",
                OpErrorKind::Limit,
                given,
                "it is lowered as shifts",
            ));
        }
        if from == to {
            return Ok(value);
        }
        let bits = match from.class() {
            DTypeClass::Float => self.encoded(value)?,
            DTypeClass::Signed => {
                let bits = self.op(OpCode::BitcastConvert, attrs::convert(DType::U8), &[value])?;
                self.with_zeros(bits, from)?
            }
            _ => value,
        };
        match to.class() {
            DTypeClass::Float => self.decoded(bits),
            DTypeClass::Signed => {
                let bits = self.op(OpCode::BitcastConvert, attrs::convert(DType::I8), &[bits])?;
                self.in_range(bits, to)
            }
            _ => Ok(bits),
        }
    }
}

/// The attributes with carriers for narrow types. A product of narrow floats accumulates in `f32`
/// even if its result is a shorter float, as XLA does for short floats.
fn carried_attrs(signature: &Signature) -> Attrs {
    let product = signature.def().fusibility == Fusibility::Contraction
        && signature.operands().iter().any(|ty| ty.dtype().is_float() && is_narrow(ty.dtype()));
    let value = |value: &AttrValue| match value {
        AttrValue::DType(dtype) if product && dtype.is_float() && dtype.size() < 4 => {
            AttrValue::DType(DType::F32)
        }
        AttrValue::DType(dtype) => AttrValue::DType(carrier(*dtype)),
        other => other.clone(),
    };
    signature.attrs().values().iter().map(value).collect()
}
