//! Writing the padded region.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Dims, Hole, ShapeClass, Symbol, Unclassed, rules, splat};
use crate::attr::Attrs;
use crate::canon::CanonRegion;
use crate::dtype::{DType, DTypeClass};
use crate::error::OpError;
use crate::graph::{Graph, Node, Ref, Refs};
use crate::literal::{Literal, Scalar};
use crate::op::{Comparison, OpCode, attrs};
use crate::shape::{Shape, TensorType};

/// A region that computes another one, and all others of its class whose sizes have the same buckets.
#[derive(Debug)]
pub struct Padded {
    region: Arc<CanonRegion>,
    results: Vec<u32>,
    scalars: Vec<Scalar>,
    origins: Vec<usize>,
    sizes: Vec<(u64, u64)>,
    is_masked: bool,
}

impl Padded {
    /// The region to run. Its parameters are those of the original, in larger sizes, then [`Padded::scalars`].
    #[must_use]
    pub fn region(&self) -> &Arc<CanonRegion> {
        &self.region
    }

    /// For each result of the original region, the number of the result that has it.
    #[must_use]
    pub fn results(&self) -> &[u32] {
        &self.results
    }

    /// The values of the parameters that the original does not have: true sizes, and numbers that vary with them.
    #[must_use]
    pub fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    /// For each node, the node of the original that it stands for.
    #[must_use]
    pub fn origins(&self) -> &[usize] {
        &self.origins
    }

    /// The sizes that vary, each with what it is padded to.
    #[must_use]
    pub fn sizes(&self) -> &[(u64, u64)] {
        &self.sizes
    }

    /// Whether floats are summed over a size that varies, and so maybe in another order than without padding.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.is_masked
    }
}

/// The region padded, given the true and the padded size of each symbol.
pub(super) fn padded(
    class: &ShapeClass,
    region: &CanonRegion,
    sizes: Vec<u64>,
    padded: Vec<u64>,
) -> std::result::Result<Padded, Unclassed> {
    let old = region.graph();
    let mut writer = Writer {
        class,
        old,
        graph: Graph::with_capacity_of(old),
        padded,
        size_params: vec![None; sizes.len()],
        sizes,
        values: Vec::with_capacity(old.params().len() + old.result_count()),
        scalars: Vec::new(),
        is_masked: false,
    };
    for (ty, dims) in old.params().iter().zip(&class.dims) {
        let ty = writer.physical(ty, dims).map_err(|_| Unclassed::Unlike)?;
        let param = writer.graph.param(ty);
        writer.values.push(param);
    }
    let mut origins = Vec::with_capacity(old.nodes().len());
    for (index, node) in old.nodes().iter().enumerate() {
        let refused = Unclassed::NoRule { node: index, op: node.signature().op() };
        let results = rules::write(&mut writer, index, node).map_err(|_| refused)?;
        // A rule that is wrong about sizes is no rule.
        for (old, &new) in node.results().zip(&results) {
            let wanted = writer.physical_of(old).map_err(|_| refused)?;
            if writer.graph.type_of(new) != Some(&wanted) {
                return Err(refused);
            }
        }
        writer.values.extend(results);
        origins.resize(writer.graph.nodes().len(), index);
    }
    let Writer { graph, padded, sizes, values, scalars, is_masked, .. } = writer;
    let result = |value: &Ref| match value {
        Ref::Result(index) => *index,
        Ref::Param(_) => unreachable!("bug: a rule returns a parameter"),
    };
    let results = values[old.params().len()..].iter().map(result).collect();
    let lifted = region.lifted().iter().copied().chain(scalars.iter().map(|_| true)).collect();
    let region = Arc::new(CanonRegion::new(graph, lifted));
    let sizes = sizes.into_iter().zip(padded).collect();
    Ok(Padded { region, results, scalars, origins, sizes, is_masked })
}

/// Why an op cannot be padded: there is no rule, or the op table refuses what the rule says.
pub(super) struct NoRule;

impl From<OpError> for NoRule {
    fn from(_: OpError) -> NoRule {
        NoRule
    }
}

pub(super) type Result<T> = std::result::Result<T, NoRule>;

/// The padded region under construction.
pub(super) struct Writer<'a> {
    class: &'a ShapeClass,
    old: &'a Graph,
    graph: Graph,
    /// The true size of each symbol. Only values of scalars may depend on these (O2).
    sizes: Vec<u64>,
    padded: Vec<u64>,
    size_params: Vec<Option<Ref>>,
    /// What stands for each value of the region.
    values: Vec<Ref>,
    scalars: Vec<Scalar>,
    is_masked: bool,
}

impl Writer<'_> {
    /// The dimensions of a value of the region.
    pub(super) fn dims(&self, value: Ref) -> &Dims {
        self.class.dims_of(self.old, value)
    }

    /// What stands for a value of the region.
    pub(super) fn value(&self, old: Ref) -> Ref {
        self.values[super::place(self.old, old)]
    }

    pub(super) fn operands(&self, node: &Node) -> Refs {
        node.operands().iter().map(|&operand| self.value(operand)).collect()
    }

    /// Whether an op has nothing to do with symbols.
    pub(super) fn is_fixed(&self, node: &Node) -> bool {
        let is_fixed = |value: Ref| self.dims(value).iter().all(Option::is_none);
        node.operands().iter().copied().all(is_fixed) && node.results().all(is_fixed)
    }

    fn physical(&self, ty: &TensorType, dims: &Dims) -> Result<TensorType> {
        let size =
            |(&size, symbol): (&u64, &Option<Symbol>)| symbol.map_or(size, |symbol| self.padded[symbol.0]);
        let dims: SmallVec<[u64; 6]> = ty.dims().iter().zip(dims).map(size).collect();
        TensorType::of(ty.dtype(), &dims).map_err(|_| NoRule)
    }

    /// The type of what stands for a value of the region.
    pub(super) fn physical_of(&self, old: Ref) -> Result<TensorType> {
        let ty = self.old.type_of(old).expect("bug: a value of the region");
        self.physical(ty, self.dims(old))
    }

    pub(super) fn ty(&self, new: Ref) -> &TensorType {
        self.graph.type_of(new).expect("bug: a value that was made")
    }

    /// One more lifted scalar.
    fn scalar(&mut self, value: Scalar) -> Ref {
        self.scalars.push(value);
        self.graph.param(TensorType::scalar(value.dtype()))
    }

    /// The true size of a symbol, `i32`.
    pub(super) fn size(&mut self, symbol: Symbol) -> Ref {
        if let Some(param) = self.size_params[symbol.0] {
            return param;
        }
        let param = self.scalar(Scalar::new(self.sizes[symbol.0] as i32));
        self.size_params[symbol.0] = Some(param);
        param
    }

    /// Where a slice starts, `i32`, if that varies.
    pub(super) fn start(&mut self, node: usize, axis: usize) -> Result<Option<Ref>> {
        if !self.class.holes.contains(&Hole::Start { node, axis }) {
            return Ok(None);
        }
        let start = self.old.nodes()[node].signature().attrs().view().ints(0)[axis];
        let start = i32::try_from(start).map_err(|_| NoRule)?;
        Ok(Some(self.scalar(Scalar::new(start))))
    }

    /// The value of a constant that is the same in all elements, as a scalar.
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
        self.class.holes.contains(&Hole::Constant { node })
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

    /// The op of a node with its own bodies, on these operands.
    pub(super) fn call(&mut self, node: &Node, attrs: Attrs, operands: &[Ref]) -> Result<Refs> {
        let signature = node.signature();
        let bodies: SmallVec<[_; 2]> = signature.bodies().iter().cloned().collect();
        Ok(self.graph.push(signature.op(), attrs, &bodies, operands)?)
    }

    /// A node as it is.
    pub(super) fn copy(&mut self, node: &Node) -> Result<Refs> {
        let operands = self.operands(node);
        self.call(node, node.signature().attrs().clone(), &operands)
    }

    /// A scalar in every place of a shape.
    pub(super) fn broadcast(&mut self, scalar: Ref, shape: &Shape) -> Result<Ref> {
        self.op(OpCode::BroadcastInDim, attrs::broadcast_in_dim(shape.clone(), &[]), &[scalar])
    }

    /// In each place of a shape, how its index along an axis compares with an `i32` scalar.
    pub(super) fn places(&mut self, shape: &Shape, axis: usize, how: Comparison, than: Ref) -> Result<Ref> {
        let iota = self.op(OpCode::Iota, attrs::iota(DType::I32, shape.clone(), axis as i64), &[])?;
        let than = self.broadcast(than, shape)?;
        self.op(OpCode::Compare, attrs::compare_for(how, DType::I32), &[iota, than])
    }

    /// The value with `instead`, a scalar, in all places behind the true size of an axis.
    pub(super) fn masked(
        &mut self,
        value: Ref,
        axis: usize,
        symbol: Symbol,
        instead: Literal,
    ) -> Result<Ref> {
        // Integers and `bool` are combined exactly, in whatever order.
        let class = self.ty(value).dtype().class();
        self.is_masked |= matches!(class, DTypeClass::Float | DTypeClass::Complex);
        let shape = self.ty(value).shape().clone();
        let size = self.size(symbol);
        let is_true = self.places(&shape, axis, Comparison::Lt, size)?;
        let instead = self.literal(instead)?;
        let instead = self.broadcast(instead, &shape)?;
        self.op(OpCode::Select, Attrs::none(), &[is_true, value, instead])
    }

    /// The value with so many zeros before and behind it along an axis.
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

    /// So many elements of a value along an axis, from a place that is an `i32` scalar; the place is right, there are so many.
    pub(super) fn taken(&mut self, value: Ref, axis: usize, start: Ref, count: u64) -> Result<Ref> {
        let ty = self.ty(value).clone();
        let mut sizes: Vec<i64> = ty.dims().iter().map(|&size| size as i64).collect();
        sizes[axis] = count as i64;
        let operands = self.at(value, axis, start)?;
        self.op(OpCode::DynamicSlice, attrs::dynamic_slice(&sizes), &operands)
    }

    /// A value followed by a place of it: `start` along one axis, 0 along the others.
    pub(super) fn at(&mut self, value: Ref, axis: usize, start: Ref) -> Result<Refs> {
        let zero = self.int(0)?;
        let rank = self.ty(value).rank();
        let place = (0..rank).map(|other| if other == axis { start } else { zero });
        Ok(std::iter::once(value).chain(place).collect())
    }

    /// The first elements of a value along an axis, or all of them and zeros.
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
