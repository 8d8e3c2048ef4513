//! The padded region under construction, and the ops that rules use.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Dims, ShapeClass, Symbol, VaryingField, splat};
use crate::attr::Attrs;
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::ir::{Graph, Node, OpCode, Ref, Refs};
use crate::literal::{Literal, Scalar};
use crate::op::{Comparison, attrs};
use crate::shape::{Shape, TensorType};

/// Why an op cannot be padded: it has no rule, or the op table rejects what the rule writes.
pub(super) struct NoRule;

impl From<OpError> for NoRule {
    fn from(_: OpError) -> NoRule {
        NoRule
    }
}

pub(super) type Result<T> = std::result::Result<T, NoRule>;

/// The padded region under construction.
pub(super) struct Writer<'a> {
    pub(super) class: &'a ShapeClass,
    pub(super) old: &'a Graph,
    pub(super) graph: Graph,
    /// The true size of each symbol. Only scalar values may depend on them (CLASS-2).
    pub(super) sizes: Vec<u64>,
    pub(super) padded: Vec<u64>,
    pub(super) size_params: Vec<Option<Ref>>,
    /// The padded value of each value of the region.
    pub(super) values: Vec<Ref>,
    pub(super) scalars: Vec<Scalar>,
    pub(super) is_masked: bool,
}

impl Writer<'_> {
    /// The dimensions of a value of the original region.
    pub(super) fn dims(&self, value: Ref) -> &Dims {
        self.class.dims_of(self.old, value)
    }

    /// The padded value of a value of the original region.
    pub(super) fn value(&self, old: Ref) -> Ref {
        self.values[super::place(self.old, old)]
    }

    pub(super) fn operands(&self, node: &Node) -> Refs {
        node.operands().iter().map(|&operand| self.value(operand)).collect()
    }

    /// Whether no value of a node has a symbol.
    pub(super) fn is_fixed(&self, node: &Node) -> bool {
        let is_fixed = |value: Ref| self.dims(value).iter().all(Option::is_none);
        node.operands().iter().copied().all(is_fixed) && node.results().all(is_fixed)
    }

    pub(super) fn physical(&self, ty: &TensorType, dims: &Dims) -> Result<TensorType> {
        let size =
            |(&size, symbol): (&u64, &Option<Symbol>)| symbol.map_or(size, |symbol| self.padded[symbol.0]);
        let dims: SmallVec<[u64; 6]> = ty.dims().iter().zip(dims).map(size).collect();
        TensorType::of(ty.dtype(), &dims).map_err(|_| NoRule)
    }

    /// The padded type of a value of the original region.
    pub(super) fn physical_of(&self, old: Ref) -> Result<TensorType> {
        let ty = self.old.type_of(old).expect("bug: a value of the region");
        self.physical(ty, self.dims(old))
    }

    pub(super) fn ty(&self, new: Ref) -> &TensorType {
        self.graph.type_of(new).expect("bug: a value that was made")
    }

    /// Adds a lifted scalar.
    fn scalar(&mut self, value: Scalar) -> Ref {
        self.scalars.push(value);
        self.graph.param(TensorType::scalar(value.dtype()))
    }

    /// The true size of a symbol, as `i32`.
    pub(super) fn size(&mut self, symbol: Symbol) -> Ref {
        if let Some(param) = self.size_params[symbol.0] {
            return param;
        }
        let param = self.scalar(Scalar::new(self.sizes[symbol.0] as i32));
        self.size_params[symbol.0] = Some(param);
        param
    }

    /// The start of a slice, as `i32`, if it varies.
    pub(super) fn start(&mut self, node: usize, axis: usize) -> Result<Option<Ref>> {
        if !self.class.holes.contains(&VaryingField::Start { node, axis }) {
            return Ok(None);
        }
        let start = self.old.nodes()[node].signature().attrs().view().ints(0)[axis];
        let start = i32::try_from(start).map_err(|_| NoRule)?;
        Ok(Some(self.scalar(Scalar::new(start))))
    }

    /// The common element of a constant, as a scalar.
    pub(super) fn constant(&mut self, node: usize, value: &Literal) -> Result<Ref> {
        let element = splat(value).ok_or(NoRule)?;
        let ty = TensorType::scalar(value.dtype());
        let element = Literal::from_bytes(ty, element.to_vec()).map_err(|_| NoRule)?;
        match Scalar::of(&element) {
            Some(scalar) if self.varies(node) => Ok(self.scalar(scalar)),
            _ => self.literal(element),
        }
    }

    /// Whether the value of a constant varies.
    pub(super) fn varies(&self, node: usize) -> bool {
        self.class.holes.contains(&VaryingField::Constant { node })
    }

    pub(super) fn literal(&mut self, value: Literal) -> Result<Ref> {
        self.op(OpCode::Constant, attrs::constant(Arc::new(value)), &[])
    }

    pub(super) fn int(&mut self, value: i32) -> Result<Ref> {
        self.literal(Literal::scalar(value))
    }

    pub(super) fn op(&mut self, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Result<Ref> {
        Ok(self.graph.push(op, attrs, &[], operands)?[0])
    }

    /// Writes the op of a node, with its own bodies, on these operands.
    pub(super) fn call(&mut self, node: &Node, attrs: Attrs, operands: &[Ref]) -> Result<Refs> {
        let signature = node.signature();
        let bodies: SmallVec<[_; 2]> = signature.bodies().iter().cloned().collect();
        Ok(self.graph.push(signature.op(), attrs, &bodies, operands)?)
    }

    /// Copies a node unchanged.
    pub(super) fn copy(&mut self, node: &Node) -> Result<Refs> {
        let operands = self.operands(node);
        self.call(node, node.signature().attrs().clone(), &operands)
    }

    /// Broadcasts a scalar to a shape.
    pub(super) fn broadcast(&mut self, scalar: Ref, shape: &Shape) -> Result<Ref> {
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &[]), &[scalar])
    }

    /// Compares the index along an axis, at each position of a shape, with an `i32` scalar.
    pub(super) fn places(&mut self, shape: &Shape, axis: usize, how: Comparison, than: Ref) -> Result<Ref> {
        let iota = self.op(OpCode::Iota, attrs::iota(DType::I32, shape.clone(), axis as i64), &[])?;
        let than = self.broadcast(than, shape)?;
        self.op(OpCode::Compare, attrs::compare_for(how, DType::I32), &[iota, than])
    }

    /// Replaces the padding along an axis by the scalar `instead`.
    pub(super) fn masked(
        &mut self,
        value: Ref,
        axis: usize,
        symbol: Symbol,
        instead: Literal,
    ) -> Result<Ref> {
        // Integers and `bool` combine exactly in any order.
        let class = self.ty(value).dtype().class();
        self.is_masked |= matches!(class, DTypeClass::Float | DTypeClass::Complex);
        let shape = self.ty(value).shape().clone();
        let size = self.size(symbol);
        let is_true = self.places(&shape, axis, Comparison::Lt, size)?;
        let instead = self.literal(instead)?;
        let instead = self.broadcast(instead, &shape)?;
        self.op(OpCode::Select, Attrs::none(), &[is_true, value, instead])
    }

    /// Adds `low` zeros before and `high` zeros after a value along an axis.
    pub(super) fn widened(&mut self, value: Ref, axis: usize, low: u64, high: u64) -> Result<Ref> {
        if low == 0 && high == 0 {
            return Ok(value);
        }
        let ty = self.ty(value).clone();
        let zero = self.literal(Literal::zeros(TensorType::scalar(ty.dtype())))?;
        let amounts = |amount: u64| {
            let mut amounts = vec![0; ty.rank()];
            amounts[axis] = amount as i64;
            amounts
        };
        let padding = attrs::pad(&amounts(low), &amounts(high), &vec![0; ty.rank()]);
        self.op(OpCode::Pad, padding, &[value, zero])
    }

    /// Takes `count` elements along an axis from `start`, an `i32` scalar. The caller ensures that
    /// they exist.
    pub(super) fn taken(&mut self, value: Ref, axis: usize, start: Ref, count: u64) -> Result<Ref> {
        let ty = self.ty(value).clone();
        let mut sizes: Vec<i64> = ty.dims().iter().map(|&size| size as i64).collect();
        sizes[axis] = count as i64;
        let operands = self.at(value, axis, start)?;
        self.op(OpCode::DynamicSlice, attrs::dynamic_slice(&sizes), &operands)
    }

    /// A value followed by start indices: `start` along one axis, 0 along the others.
    pub(super) fn at(&mut self, value: Ref, axis: usize, start: Ref) -> Result<Refs> {
        let zero = self.int(0)?;
        let rank = self.ty(value).rank();
        let place = (0..rank).map(|other| if other == axis { start } else { zero });
        Ok(std::iter::once(value).chain(place).collect())
    }

    /// The first `count` elements of a value along an axis, padded with zeros if there are fewer.
    pub(super) fn fitted(&mut self, value: Ref, axis: usize, count: u64) -> Result<Ref> {
        let ty = self.ty(value).clone();
        let has = ty.dims()[axis];
        if has <= count {
            return self.widened(value, axis, 0, count - has);
        }
        let mut limits: Vec<i64> = ty.dims().iter().map(|&size| size as i64).collect();
        limits[axis] = count as i64;
        let (zeros, ones) = (vec![0; ty.rank()], vec![1; ty.rank()]);
        self.op(OpCode::Slice, attrs::slice(&zeros, &limits, &ones), &[value])
    }
}
