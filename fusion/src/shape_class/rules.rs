//! How each op handles varying sizes, and what keeps padding from affecting the elements within the
//! true sizes (CLASS-1).
//!
//! A rule is correct if, for operands with any padding, the elements of the results within their
//! true sizes are those of the op on the true operands. The writer checks that sizes fit; the
//! comments here explain why elements do.

use super::writer::{NoRule, Result, Writer};
use super::{Dims, Symbol};
use crate::attr::{AttrValue, Attrs};
use crate::ir::{Node, OpCode, Ref, Refs};
use crate::op::{Comparison, ComparisonType, Fusibility, attrs, neutral};
use crate::shape::{Shape, TensorType};

/// Writes the padded form of a node; returns its results.
pub(super) fn write(writer: &mut Writer<'_>, index: usize, node: &Node) -> Result<Refs> {
    let signature = node.signature();
    let op = signature.op();
    match op {
        OpCode::Constant => constant(writer, index, node),
        OpCode::Slice => slice(writer, index, node),
        _ if writer.is_fixed(node) => writer.copy(node),
        // An element depends only on elements in the same position.
        _ if signature.def().fusibility == Fusibility::Elementwise && op != OpCode::BitcastConvert => {
            if signature.bodies().is_empty() {
                writer.copy(node)
            } else {
                Err(NoRule)
            }
        }
        // Elements of equal width keep their positions. Other widths add or remove a dimension,
        // whose size is fixed.
        OpCode::BitcastConvert | OpCode::Transpose | OpCode::OptimizationBarrier => writer.copy(node),
        OpCode::BroadcastInDim | OpCode::Iota => shaped(writer, node),
        OpCode::Reshape => reshape(writer, node),
        OpCode::Concatenate => concatenate(writer, node),
        OpCode::Pad => pad(writer, node),
        OpCode::Reverse => by_dimension(writer, node, signature.attrs().view().ints(0)),
        OpCode::DynamicSlice => dynamic_slice(writer, node),
        OpCode::DynamicUpdateSlice => dynamic_update_slice(writer, node),
        OpCode::Reduce => reduce(writer, node),
        OpCode::DotGeneral => dot_general(writer, node),
        OpCode::Sort => by_dimension(writer, node, &[signature.attrs().view().int(0)]),
        OpCode::Gather => gather(writer, node),
        // Each matrix is independent.
        OpCode::Cholesky | OpCode::TriangularSolve => matrices(writer, node),
        _ => Err(NoRule),
    }
}

/// The symbol of an axis of a value of the region.
fn symbol(writer: &Writer<'_>, value: Ref, axis: usize) -> Option<Symbol> {
    writer.dims(value)[axis]
}

fn result(node: &Node) -> Result<Ref> {
    node.results().next().ok_or(NoRule)
}

/// A varying constant becomes a broadcast scalar. A constant with different elements has a fixed
/// size and is copied.
fn constant(writer: &mut Writer<'_>, index: usize, node: &Node) -> Result<Refs> {
    let value = node.signature().attrs().view().dense(0).clone();
    let ty = writer.physical_of(result(node)?)?;
    if ty == *value.ty() && writer.is_fixed(node) && !writer.varies(index) {
        return writer.copy(node);
    }
    let scalar = writer.constant(index, &value)?;
    Ok(Refs::from_slice(&[writer.broadcast(scalar, ty.shape())?]))
}

/// Broadcasts and iotas: the leading elements are the same in a larger shape.
fn shaped(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let shape = writer.physical_of(result(node)?)?.shape().clone();
    let signature = node.signature();
    if signature.op() == OpCode::BroadcastInDim {
        let to = signature.attrs().view().ints(1);
        let (operand, repeated) = (node.operands()[0], result(node)?);
        for (axis, &to) in to.iter().enumerate() {
            // A size that is sometimes 1 would sometimes be repeated.
            if symbol(writer, operand, axis)
                .is_some_and(|from| symbol(writer, repeated, to as usize) != Some(from))
            {
                return Err(NoRule);
            }
        }
    }
    let is_shape = |value: &AttrValue| matches!(value, AttrValue::Shape(_));
    let values = signature.attrs().values().iter();
    let attrs: Attrs =
        values.map(|value| if is_shape(value) { shape.clone().into() } else { value.clone() }).collect();
    let operands = writer.operands(node);
    writer.call(node, attrs, &operands)
}

/// An element keeps its index along a symbol if the dimensions between symbols are regrouped among
/// themselves.
fn reshape(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let (from, to) = (node.operands()[0], result(node)?);
    let signature = node.signature();
    if between(writer.dims(from), &signature.operands()[0])
        != between(writer.dims(to), &signature.results()[0])
    {
        return Err(NoRule);
    }
    let shape = writer.physical_of(to)?.shape().clone();
    let operands = writer.operands(node);
    writer.call(node, attrs::reshape(shape), &operands)
}

/// The symbols of a type, in order, each with the product of the fixed sizes before it, and at the
/// end the product of those after the last.
fn between(dims: &Dims, ty: &TensorType) -> Vec<(u64, Option<Symbol>)> {
    let (mut found, mut product) = (Vec::new(), 1);
    for (symbol, &size) in dims.iter().zip(ty.dims()) {
        match symbol {
            Some(_) => found.push((std::mem::replace(&mut product, 1), *symbol)),
            None => product *= size,
        }
    }
    found.push((product, None));
    found
}

/// Along a symbol, or from a varying start, this becomes a dynamic slice. Padding is added first
/// where the start would otherwise be clamped.
fn slice(writer: &mut Writer<'_>, index: usize, node: &Node) -> Result<Refs> {
    let (from, to) = (node.operands()[0], result(node)?);
    let view = node.signature().attrs().view();
    let (starts, limits, strides) = (view.ints(0), view.ints(1), view.ints(2));
    let rank = starts.len();
    let mut varying = Vec::new();
    for axis in 0..rank {
        if let Some(start) = writer.start(index, axis)? {
            varying.push((axis, start));
        }
    }
    if varying.is_empty() && writer.is_fixed(node) {
        return writer.copy(node);
    }
    let target = writer.physical_of(to)?;
    let mut value = writer.value(from);
    // Dimensions with a fixed start first.
    let (mut low, mut high) = (vec![0; rank], Vec::with_capacity(rank));
    for axis in 0..rank {
        if varying.iter().any(|&(varying, _)| varying == axis) {
            high.push(writer.ty(value).dims()[axis] as i64);
            continue;
        }
        low[axis] = starts[axis];
        let limit = match symbol(writer, to, axis) {
            None => limits[axis] as u64,
            // Along a symbol only a stride of 1 is known to be correct.
            Some(_) if strides[axis] != 1 => return Err(NoRule),
            Some(_) => starts[axis] as u64 + target.dims()[axis],
        };
        let missing = limit.saturating_sub(writer.ty(value).dims()[axis]);
        value = writer.widened(value, axis, 0, missing)?;
        high.push(limit as i64);
    }
    value = writer.op(OpCode::Slice, attrs::slice(&low, &high, strides), &[value])?;
    for (axis, start) in varying {
        let count = target.dims()[axis];
        if strides[axis] != 1 {
            return Err(NoRule);
        }
        // A fixed number of elements exists. Along a symbol the last ones may be past the end, and
        // then the start would be clamped.
        let behind = if symbol(writer, to, axis).is_some() { count } else { 0 };
        value = writer.widened(value, axis, 0, behind)?;
        value = writer.taken(value, axis, start, count)?;
    }
    Ok(Refs::from_slice(&[value]))
}

/// Along a symbol, each operand is written after the true elements of those before it.
fn concatenate(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let axis = node.signature().attrs().view().int(0) as usize;
    let to = result(node)?;
    let symbols: Vec<Option<Symbol>> =
        node.operands().iter().map(|&operand| symbol(writer, operand, axis)).collect();
    if symbols.iter().all(Option::is_none) && symbol(writer, to, axis).is_none() {
        return writer.copy(node);
    }
    let count = writer.physical_of(to)?.dims()[axis];
    let operands = writer.operands(node);
    let mut value = writer.fitted(operands[0], axis, count)?;
    let mut offset = extent(writer, operands[0], axis, symbols[0])?;
    for (&operand, &symbol) in operands.iter().zip(&symbols).skip(1) {
        value = match symbol {
            // It fits, because the true result contains it.
            None => {
                let mut operands = writer.at(value, axis, offset)?;
                operands.insert(1, operand);
                writer.op(OpCode::DynamicUpdateSlice, Attrs::none(), &operands)?
            }
            // With its padding it may not fit, and the start of an update would be clamped. So a
            // slice shifts the operand, and a mask selects its elements from its position on.
            Some(_) => {
                let wide = writer.widened(operand, axis, count, count)?;
                let all = writer.int(i32::try_from(count).map_err(|_| NoRule)?)?;
                let start = writer.op(OpCode::Subtract, Attrs::none(), &[all, offset])?;
                let moved = writer.taken(wide, axis, start, count)?;
                let shape = writer.ty(value).shape().clone();
                let is_behind = writer.places(&shape, axis, Comparison::Ge, offset)?;
                writer.op(OpCode::Select, Attrs::none(), &[is_behind, moved, value])?
            }
        };
        let more = extent(writer, operand, axis, symbol)?;
        offset = writer.op(OpCode::Add, Attrs::none(), &[offset, more])?;
    }
    // A single operand is returned unchanged so far, but rules must return a result of an op.
    if operands.len() == 1 {
        let shape: Shape = writer.ty(value).shape().clone();
        value = writer.op(OpCode::Reshape, attrs::reshape(shape), &[value])?;
    }
    Ok(Refs::from_slice(&[value]))
}

/// The true size of an operand along an axis, `i32`.
fn extent(writer: &mut Writer<'_>, operand: Ref, axis: usize, symbol: Option<Symbol>) -> Result<Ref> {
    match symbol {
        Some(symbol) => Ok(writer.size(symbol)),
        None => {
            let size = writer.ty(operand).dims()[axis];
            writer.int(i32::try_from(size).map_err(|_| NoRule)?)
        }
    }
}

/// Along a symbol: low padding stays in front; high padding follows the true elements.
fn pad(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let (from, to) = (node.operands()[0], result(node)?);
    let view = node.signature().attrs().view();
    let (low, interior) = (view.ints(0), view.ints(2));
    let mut high = view.ints(1).to_vec();
    let target = writer.physical_of(to)?;
    let operands = writer.operands(node);
    let mut behind = Vec::new();
    for axis in 0..low.len() {
        let Some(size) = symbol(writer, from, axis) else {
            // Interior padding of a fixed size is at fixed positions.
            continue;
        };
        if low[axis] < 0 || view.ints(1)[axis] < 0 || interior[axis] != 0 {
            return Err(NoRule);
        }
        let has = low[axis] as u64 + writer.ty(operands[0]).dims()[axis];
        high[axis] = target.dims()[axis] as i64 - has as i64;
        behind.push((axis, size));
    }
    // Only padding is cut off.
    let mut value = operands[0];
    for &(axis, _) in &behind {
        if high[axis] < 0 {
            let count = writer.ty(value).dims()[axis] - high[axis].unsigned_abs();
            value = writer.fitted(value, axis, count)?;
            high[axis] = 0;
        }
    }
    value = writer.op(OpCode::Pad, attrs::pad(low, &high, interior), &[value, operands[1]])?;
    for (axis, size) in behind {
        let size = writer.size(size);
        let first = writer.int(i32::try_from(low[axis]).map_err(|_| NoRule)?)?;
        let end = writer.op(OpCode::Add, Attrs::none(), &[first, size])?;
        let shape = writer.ty(value).shape().clone();
        let is_padding = writer.places(&shape, axis, Comparison::Ge, end)?;
        let padding = writer.broadcast(operands[1], &shape)?;
        value = writer.op(OpCode::Select, Attrs::none(), &[is_padding, padding, value])?;
    }
    Ok(Refs::from_slice(&[value]))
}

/// An op on fixed axes that treats all positions of the other axes independently.
fn by_dimension(writer: &mut Writer<'_>, node: &Node, along: &[i64]) -> Result<Refs> {
    let fixed = |&operand: &Ref| along.iter().all(|&axis| symbol(writer, operand, axis as usize).is_none());
    if !node.operands().iter().all(fixed) {
        return Err(NoRule);
    }
    writer.copy(node)
}

fn matrices(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let is_fixed = |&operand: &Ref| {
        let dims = writer.dims(operand);
        dims.iter().rev().take(2).all(Option::is_none)
    };
    if !node.operands().iter().all(is_fixed) {
        return Err(NoRule);
    }
    writer.copy(node)
}

/// The start of a slice of `count` elements along an axis, clamped as the op does, but to the true
/// size.
fn moved_inside(writer: &mut Writer<'_>, start: Ref, size: Symbol, count: u64) -> Result<Ref> {
    let dtype = writer.ty(start).dtype();
    // A narrow index type may not represent the size.
    if dtype.bits() < 32 {
        return Err(NoRule);
    }
    let size = writer.size(size);
    let count = writer.int(i32::try_from(count).map_err(|_| NoRule)?)?;
    let last = writer.op(OpCode::Subtract, Attrs::none(), &[size, count])?;
    let last = writer.op(OpCode::Convert, attrs::convert(dtype), &[last])?;
    writer.op(OpCode::Minimum, Attrs::none(), &[start, last])
}

/// Starts are clamped to the true size. Along an axis that is taken as a whole, every start is 0.
fn dynamic_slice(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let (from, to) = (node.operands()[0], result(node)?);
    let target = writer.physical_of(to)?;
    let mut operands = writer.operands(node);
    let sizes: Vec<i64> = target.dims().iter().map(|&size| size as i64).collect();
    for axis in 0..sizes.len() {
        match (symbol(writer, from, axis), symbol(writer, to, axis)) {
            (Some(size), None) => {
                operands[1 + axis] = moved_inside(writer, operands[1 + axis], size, target.dims()[axis])?;
            }
            (from, to) if from == to => {}
            _ => return Err(NoRule),
        }
    }
    let value = writer.op(OpCode::DynamicSlice, attrs::dynamic_slice(&sizes), &operands)?;
    Ok(Refs::from_slice(&[value]))
}

/// As [`dynamic_slice`]. An update of the whole axis contains its own padding.
fn dynamic_update_slice(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let (from, update) = (node.operands()[0], node.operands()[1]);
    let mut operands = writer.operands(node);
    for axis in 0..writer.dims(from).len() {
        match (symbol(writer, from, axis), symbol(writer, update, axis)) {
            (Some(size), None) => {
                let count = writer.ty(operands[1]).dims()[axis];
                operands[2 + axis] = moved_inside(writer, operands[2 + axis], size, count)?;
            }
            (from, update) if from == update => {}
            _ => return Err(NoRule),
        }
    }
    writer.call(node, Attrs::none(), &operands)
}

/// Along a symbol, padding is replaced by the identity element.
fn reduce(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let signature = node.signature();
    let axes = signature.attrs().view().ints(0);
    let mut operands = writer.operands(node);
    let inputs = operands.len() / 2;
    for (input, operand) in operands.iter_mut().take(inputs).enumerate() {
        let old = node.operands()[input];
        for &axis in axes {
            let Some(size) = symbol(writer, old, axis as usize) else { continue };
            let op = combiner(node).ok_or(NoRule)?;
            let dtype = writer.ty(*operand).dtype();
            // If the body converts its operands, the identity element would have another type.
            if signature.results()[0].dtype() != dtype {
                return Err(NoRule);
            }
            *operand = writer.masked(*operand, axis as usize, size, neutral(op, dtype))?;
        }
    }
    writer.call(node, signature.attrs().clone(), &operands)
}

/// The op that the body of a reduction computes, if it has an identity element.
fn combiner(node: &Node) -> Option<OpCode> {
    let [body] = node.signature().bodies() else { return None };
    match body.graph().nodes() {
        [only] => {
            let op = only.signature().op();
            let has_neutral = matches!(
                op,
                OpCode::Add
                    | OpCode::Multiply
                    | OpCode::Maximum
                    | OpCode::Minimum
                    | OpCode::And
                    | OpCode::Or
                    | OpCode::Xor
            );
            let is_of_both = is_both(only.operands()) && body.returns() == [Ref::Result(0)];
            (has_neutral && is_of_both).then_some(op)
        }
        // A maximum or minimum written with a comparison. With NaN the result depends on the order
        // (CLASS-1).
        [compare, select] => {
            let is_choice = compare.signature().op() == OpCode::Compare
                && select.signature().op() == OpCode::Select
                && is_both(compare.operands())
                && select.operands().split_first() == Some((&Ref::Result(0), compare.operands()))
                && body.returns() == [Ref::Result(1)];
            let attrs = compare.signature().attrs().view();
            // In the total order there are elements below -inf.
            if !is_choice || attrs.member(1) == ComparisonType::TotalOrder as u8 {
                return None;
            }
            match Comparison::ALL[usize::from(attrs.member(0))] {
                Comparison::Gt | Comparison::Ge => Some(OpCode::Maximum),
                Comparison::Lt | Comparison::Le => Some(OpCode::Minimum),
                Comparison::Eq | Comparison::Ne => None,
            }
        }
        _ => None,
    }
}

/// Whether these are the two scalars that a body combines, in either order.
fn is_both(operands: &[Ref]) -> bool {
    matches!(operands, [Ref::Param(0), Ref::Param(1)] | [Ref::Param(1), Ref::Param(0)])
}

/// Products over a symbol get zeros on both sides, because padding may be infinite. Rows, columns
/// and batches are independent.
fn dot_general(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    let signature = node.signature();
    let dims = signature.attrs().view().group(0);
    let mut operands = writer.operands(node);
    for (side, contracted) in [dims.ints(2), dims.ints(3)].into_iter().enumerate() {
        for &axis in contracted {
            let Some(size) = symbol(writer, node.operands()[side], axis as usize) else { continue };
            let dtype = writer.ty(operands[side]).dtype();
            // This type has no zero.
            if dtype == crate::dtype::DType::F8E8M0FNU {
                return Err(NoRule);
            }
            let zero = neutral(OpCode::Add, dtype);
            operands[side] = writer.masked(operands[side], axis as usize, size, zero)?;
        }
    }
    writer.call(node, signature.attrs().clone(), &operands)
}

/// Each index is independent. Indices in the padding are arbitrary, in any order. The operand has a
/// fixed size.
fn gather(writer: &mut Writer<'_>, node: &Node) -> Result<Refs> {
    if !writer.dims(node.operands()[0]).iter().all(Option::is_none) {
        return Err(NoRule);
    }
    let mut values = node.signature().attrs().values().to_vec();
    values[2] = false.into();
    let operands = writer.operands(node);
    writer.call(node, values.into_iter().collect(), &operands)
}
