//! Collective ops, which the replicas of a program compute together.
//!
//! A program runs on replicas that are numbered from 0 and have one partition each. The ways in
//! which the specification forms process groups from `replica_groups` therefore coincide: they are
//! groups of replicas. A channel that requests groups of partitions (`cross_partition`) is
//! rejected.

use super::ROW;
use crate::dtype::{DType, DTypeSet};
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Bodies, BodyDef, Fusibility, OpDef, OperandGroup, Operands, Replicas, Rounding};
use crate::op::infer::collective;
use crate::op::legalize;

const OPERANDS: Operands = Operands::Groups(&[OperandGroup::Many("operands")]);
const COMPUTATION: Bodies = Bodies::Fixed(&[BodyDef {
    name: "computation",
    rule: "takes two scalars and returns one, of the operands' element type or a wider one",
}]);

/// Defaults for the rows below. Exchanges are not side effects: all replicas run one program, so
/// they reach them in the same order wherever regions end, and eliminate the same unused ones.
const COLLECTIVE: OpDef = OpDef { operands: OPERANDS, fusibility: Fusibility::Opaque, ..ROW };

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::AllGather,
        name: "all_gather",
        summary: "The operands of all replicas of a group, concatenated along one dimension.",
        rule: "All groups have the same size, and every replica is in exactly one. Dimension \
               `all_gather_dim` of each result is that of the operand, multiplied by the group \
               size.",
        attrs: &attrs::ALL_GATHER,
        replicas: Replicas::Together,
        infer: collective::all_gather,
        lower: legalize::all_gather,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::AllReduce,
        name: "all_reduce",
        summary: "The operands of all replicas of a group, combined element by element with the body.",
        rule: "Every replica is in exactly one group. The operands have the body's element type, \
               or a narrower one of the same kind. The results have the operands' shapes and the \
               body's element type.",
        attrs: &attrs::ALL_REDUCE,
        bodies: COMPUTATION,
        rounding: Rounding::Rounded,
        replicas: Replicas::Together,
        infer: collective::all_reduce,
        lower: legalize::all_reduce,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::AllToAll,
        name: "all_to_all",
        summary: "Each replica splits its operands and sends part `i` to replica `i` of its \
                  group. Each replica concatenates the parts that it receives.",
        rule: "All groups have `split_count` replicas, and every replica is in exactly one. In \
               the results, dimension `split_dimension` is divided by `split_count`, and then \
               `concat_dimension` is multiplied by it.",
        attrs: &attrs::ALL_TO_ALL,
        replicas: Replicas::Together,
        infer: collective::all_to_all,
        lower: legalize::all_to_all,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::CollectiveBroadcast,
        name: "collective_broadcast",
        summary: "The operands of the first replica of each group. Replicas outside of all groups get zeros.",
        rule: "Every replica is in at most one group. The results have the operands' types.",
        attrs: &attrs::COLLECTIVE_BROADCAST,
        replicas: Replicas::Together,
        infer: collective::collective_broadcast,
        lower: legalize::collective_broadcast,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::CollectivePermute,
        name: "collective_permute",
        summary: "The operand of the replica that sends to this one. A replica that no other \
                  sends to gets zeros.",
        rule: "Every replica is at most once a source and at most once a target. The result has \
               the operand's type.",
        operands: Operands::Fixed(&["operand"]),
        attrs: &attrs::COLLECTIVE_PERMUTE,
        replicas: Replicas::Together,
        infer: collective::collective_permute,
        lower: legalize::collective_permute,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::ReduceScatter,
        name: "reduce_scatter",
        summary: "An `all_reduce` whose result is split along one dimension. Replica `i` of a \
                  group gets part `i`.",
        rule: "The rule of `all_reduce` applies, and all groups have the same size. Dimension \
               `scatter_dimension` of the result is divided by the group size.",
        operands: Operands::Fixed(&["operand"]),
        attrs: &attrs::REDUCE_SCATTER,
        bodies: COMPUTATION,
        rounding: Rounding::Rounded,
        replicas: Replicas::Together,
        infer: collective::reduce_scatter,
        lower: legalize::reduce_scatter,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::ReplicaId,
        name: "replica_id",
        summary: "The number of the replica.",
        rule: "The result is a u32 scalar.",
        operands: Operands::Fixed(&[]),
        dtypes: DTypeSet::of(&[DType::U32]),
        replicas: Replicas::Together,
        infer: collective::place,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::PartitionId,
        name: "partition_id",
        summary: "The number of the partition. It is 0, because a replica has one partition.",
        rule: "The result is a u32 scalar.",
        operands: Operands::Fixed(&[]),
        dtypes: DTypeSet::of(&[DType::U32]),
        infer: collective::place,
        ..COLLECTIVE
    },
];
