//! Collective ops.

use fuseline_fusion::op::attrs;
use fuseline_fusion::{AttrValue, Attrs, DType, Groups, TensorType};

use super::{Domain, Sample, SampleOperand, Sampler};

impl Sampler<'_> {
    /// The replicas in some order.
    fn shuffled(&mut self) -> Vec<i64> {
        self.permutation(self.replicas).into_iter().map(|id| id as i64).collect()
    }

    /// All replicas in groups of one size, and that size; choices of 0 make one group.
    fn equal_groups(&mut self) -> Option<(Groups, u64)> {
        let sizes: Vec<usize> =
            (1..=self.replicas).rev().filter(|&size| self.replicas.is_multiple_of(size)).collect();
        let size = self.one_of(&sizes)?;
        let ids = self.shuffled();
        Some((Groups::new(&ids.chunks(size).collect::<Vec<_>>()), size as u64))
    }

    /// The replicas in groups of any sizes.
    fn groups(&mut self, mut ids: Vec<i64>) -> Groups {
        let mut groups = Vec::new();
        while !ids.is_empty() {
            let size = ids.len() - self.below(ids.len());
            groups.push(ids.drain(..size).collect::<Vec<_>>());
        }
        Groups::new(&groups)
    }

    /// The attributes, occasionally with a channel at `place`, which changes nothing.
    fn with_channel(&mut self, attrs: Attrs, place: usize) -> Attrs {
        let mut values = attrs.values().to_vec();
        let flagged = place + 1 < values.len();
        let handle = self.below(if flagged { 3 } else { 2 }) as i64;
        if self.rarely(2) {
            let kind = self.below(2) as i64;
            values[place] = AttrValue::Struct(Box::new([(2 * handle - 2).into(), kind.into()]));
            if flagged && self.rarely(2) {
                values[place + 1] = (handle == 2).into();
            }
        }
        values.into_iter().collect()
    }

    /// One to three operands, of one element type or of several if `mixed`, and a dimension that
    /// all have.
    fn several(&mut self, mixed: bool) -> Option<(Vec<SampleOperand>, usize)> {
        let (first, ty) = self.operand(self.row_dtypes(), 1)?;
        let axis = self.below(ty.rank());
        let mut operands = vec![first];
        for _ in 0..self.below(4).saturating_sub(1) {
            let dtype = if mixed { self.dtype_of(self.row_dtypes())? } else { ty.dtype() };
            let dims = self.dims(axis as u32 + 1);
            operands.push(self.operand_of(dtype, &dims)?);
        }
        Some((operands, axis))
    }

    /// An operand whose size along `axis` is a multiple of `parts`.
    fn divisible(&mut self, dtype: DType, rank: u32, axis: usize, parts: u64) -> Option<SampleOperand> {
        let mut dims = self.dims(rank);
        dims[axis] *= parts;
        let ty = TensorType::of(dtype, &dims).ok()?;
        Some(self.operand_like(&ty, Domain::Any))
    }
}

pub(crate) fn all_gather(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operands, axis) = sampler.several(true)?;
    let (groups, _) = sampler.equal_groups()?;
    let attrs = attrs::all_gather(groups, axis as i64);
    Some(Sample::plain(operands, sampler.with_channel(attrs, 2)))
}

pub(crate) fn all_reduce(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let mut operands = Vec::new();
    for _ in 0..1 + sampler.below(4).saturating_sub(1) {
        let dims = sampler.dims(0);
        operands.push(sampler.operand_of(dtype, &dims)?);
    }
    let ids = sampler.shuffled();
    let attrs = attrs::all_reduce(sampler.groups(ids));
    let attrs = sampler.with_channel(attrs, 1);
    Some(Sample { operands, attrs, bodies: vec![sampler.combiner(&[dtype])?.body] })
}

pub(crate) fn all_to_all(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (groups, size) = sampler.equal_groups()?;
    let rank = 1 + sampler.below(3);
    let (split, concat) = (sampler.below(rank), sampler.below(rank));
    let mut operands = Vec::new();
    for _ in 0..1 + sampler.below(4).saturating_sub(1) {
        let dtype = sampler.dtype_of(sampler.row_dtypes())?;
        operands.push(sampler.divisible(dtype, rank as u32, split, size)?);
    }
    let attrs = attrs::all_to_all(groups, split as i64, concat as i64);
    Some(Sample::plain(operands, sampler.with_channel(attrs, 4)))
}

pub(crate) fn collective_broadcast(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operands, _) = sampler.several(true)?;
    let mut ids = sampler.shuffled();
    ids.truncate(ids.len() - sampler.below(ids.len()));
    let attrs = attrs::collective_broadcast(sampler.groups(ids));
    Some(Sample::plain(operands, sampler.with_channel(attrs, 1)))
}

pub(crate) fn collective_permute(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, _) = sampler.operand(sampler.row_dtypes(), 0)?;
    let mut pairs: Vec<(i64, i64)> = sampler.shuffled().into_iter().zip(sampler.shuffled()).collect();
    pairs.truncate(pairs.len() - sampler.below(pairs.len() + 1));
    let attrs = attrs::collective_permute(&pairs);
    Some(Sample::plain([operand], sampler.with_channel(attrs, 1)))
}

pub(crate) fn reduce_scatter(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (groups, size) = sampler.equal_groups()?;
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let rank = 1 + sampler.below(3);
    let axis = sampler.below(rank);
    let operand = sampler.divisible(dtype, rank as u32, axis, size)?;
    let attrs = sampler.with_channel(attrs::reduce_scatter(groups, axis as i64), 2);
    Some(Sample { operands: vec![operand], attrs, bodies: vec![sampler.combiner(&[dtype])?.body] })
}

pub(crate) fn place(_sampler: &mut Sampler<'_>) -> Option<Sample> {
    Some(Sample::plain([], Attrs::none()))
}
