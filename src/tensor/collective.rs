//! Exchanges between the replicas of an engine.
//!
//! All replicas run the same program, so each replica calls the same method, which is one op.
//! Without groups, all replicas exchange data; with groups, the replicas of each group do. On an
//! engine with one replica the methods work too and exchange nothing.

use std::sync::Arc;

use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, Body, Groups, OpCode};
use fuseline_runtime::internals::bug;
use fuseline_runtime::{Error, Result};

use super::array::axis_of;
use super::reduce::combiner;
use super::{Tensor, here};
use crate::handle::Tensors;

impl Tensor {
    /// The groups given, or one of all replicas.
    fn groups(&self, groups: Option<&Groups>) -> Groups {
        let all = || Groups::all(self.stream().engine().device().replicas() as u32);
        groups.cloned().unwrap_or_else(all)
    }

    /// The corresponding elements on all replicas of a group combined by `op` (`add`, `multiply`,
    /// `maximum`, `minimum`, and for bool and integers `and`, `or` and `xor`). Every replica gets
    /// the result.
    ///
    /// # Errors
    /// When the op does not take the element type, or the groups do not fit the engine's replicas.
    #[track_caller]
    pub fn all_reduce(&self, op: OpCode, groups: Option<&Groups>) -> Result<Tensor> {
        let site = here();
        let attrs = attrs::all_reduce(self.groups(groups));
        let body = combiner(op, self.dtype(), &site)?;
        self.record_with(OpCode::AllReduce, attrs, &[body], &[self], site)
    }

    /// As [`Tensor::all_reduce`], for several tensors of one element type in one exchange and any
    /// body of two scalars. The body should be associative, because the order of combination is
    /// unspecified.
    ///
    /// # Errors
    /// When there is no tensor, the body has another type, or the groups do not fit the engine's
    /// replicas.
    #[track_caller]
    pub fn all_reduce_many(tensors: &[&Tensor], body: Arc<Body>, groups: Option<&Groups>) -> Result<Tensors> {
        let site = here();
        let Some(first) = tensors.first() else {
            return Err(Error::misuse("all_reduce_many takes at least one tensor", site));
        };
        let attrs = attrs::all_reduce(first.groups(groups));
        first.record_all(OpCode::AllReduce, attrs, &[body], tensors, site)
    }

    /// The tensors of all replicas of a group, concatenated along dimension `axis`. Every replica
    /// gets the result.
    ///
    /// # Errors
    /// When the dimension does not exist, or the groups do not fit or are of several sizes.
    #[track_caller]
    pub fn all_gather(&self, axis: i64, groups: Option<&Groups>) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::AllGather, axis, self.rank(), &site)?;
        let attrs = attrs::all_gather(self.groups(groups), axis as i64);
        self.record(OpCode::AllGather, attrs, &[self], site)
    }

    /// As [`Tensor::all_reduce`], but each replica gets only its own part: the result is split
    /// along dimension `axis` into as many parts as a group has replicas.
    ///
    /// # Errors
    /// As [`Tensor::all_reduce`], and when the dimension does not exist or does not split into
    /// equal parts.
    #[track_caller]
    pub fn reduce_scatter(&self, op: OpCode, axis: i64, groups: Option<&Groups>) -> Result<Tensor> {
        let site = here();
        let axis = axis_of(OpCode::ReduceScatter, axis, self.rank(), &site)?;
        let attrs = attrs::reduce_scatter(self.groups(groups), axis as i64);
        let body = combiner(op, self.dtype(), &site)?;
        self.record_with(OpCode::ReduceScatter, attrs, &[body], &[self], site)
    }

    /// Each replica splits its tensor along dimension `split` into as many parts as its group has
    /// replicas, gives the first to the first replica of the group and so on, and joins what it
    /// gets along dimension `concat`.
    ///
    /// # Errors
    /// When a dimension does not exist or does not split into equal parts, or the groups do not fit
    /// or are of several sizes.
    #[track_caller]
    pub fn all_to_all(&self, split: i64, concat: i64, groups: Option<&Groups>) -> Result<Tensor> {
        let site = here();
        let axis = |axis| axis_of(OpCode::AllToAll, axis, self.rank(), &site).map(|axis| axis as i64);
        let attrs = attrs::all_to_all(self.groups(groups), axis(split)?, axis(concat)?);
        self.record(OpCode::AllToAll, attrs, &[self], site)
    }

    /// The tensor of another replica: for each pair of source and target, the target gets the
    /// tensor of the source. A replica that is no target gets zeros.
    ///
    /// # Errors
    /// When a replica does not exist, or occurs twice as a source or as a target.
    #[track_caller]
    pub fn collective_permute(&self, source_target_pairs: &[(i64, i64)]) -> Result<Tensor> {
        let attrs = attrs::collective_permute(source_target_pairs);
        self.record(OpCode::CollectivePermute, attrs, &[self], here())
    }

    /// The tensor of the first replica of each group. A replica in no group gets zeros. Without
    /// groups, all replicas get the tensor of replica 0.
    ///
    /// # Errors
    /// When a replica does not exist or occurs twice.
    #[track_caller]
    pub fn collective_broadcast(&self, groups: Option<&Groups>) -> Result<Tensor> {
        let attrs = attrs::collective_broadcast(self.groups(groups));
        self.record(OpCode::CollectiveBroadcast, attrs, &[self], here())
    }
}

impl crate::stream::Stream {
    /// The number of the replica, counted from 0, on each: a scalar of type `u32`.
    ///
    /// # Errors
    /// None; the signature is that of all ops.
    #[track_caller]
    pub fn replica_id(&self) -> Result<Tensor> {
        let mut results = self.record(OpCode::ReplicaId, Attrs::none(), &[], &[])?;
        results.pop().ok_or_else(|| bug!("replica_id has one result"))
    }
}
