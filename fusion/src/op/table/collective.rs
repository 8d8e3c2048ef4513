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
    rule: "two scalars to one, of the operands' type or a wider one",
}]);

/// Defaults for the rows below. Exchanges are not side effects: all replicas run one program, so
/// they reach them in the same order wherever regions end, and eliminate the same unused ones.
const COLLECTIVE: OpDef = OpDef { operands: OPERANDS, fusibility: Fusibility::Opaque, ..ROW };

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::AllGather,
        name: "all_gather",
        summary: "The operands of all replicas of a group one after the other along one dimension.",
        rule: "The groups are of one size and name every replica once. Dimension `all_gather_dim` of each result is that of the operand times the size of a group.",
        attrs: &attrs::ALL_GATHER,
        replicas: Replicas::Together,
        infer: collective::all_gather,
        lower: legalize::all_gather,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::AllReduce,
        name: "all_reduce",
        summary: "The elements at the same place of all replicas of a group combined by the body.",
        rule: "The groups name every replica once. The operands' types are the body's or narrower ones of its family; the results have the operands' shapes and the body's type.",
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
        summary: "Part `i` of the operands of each replica sent to replica `i` of the group, which joins what it gets.",
        rule: "The groups are of one size, which is `split_count`, and name every replica once. Dimension `split_dimension` is divided by it, then `concat_dimension` multiplied.",
        attrs: &attrs::ALL_TO_ALL,
        replicas: Replicas::Together,
        infer: collective::all_to_all,
        lower: legalize::all_to_all,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::CollectiveBroadcast,
        name: "collective_broadcast",
        summary: "The operands of the first replica of each group; zeros on replicas without a group.",
        rule: "The groups name no replica twice. The results have the operands' types.",
        attrs: &attrs::COLLECTIVE_BROADCAST,
        replicas: Replicas::Together,
        infer: collective::collective_broadcast,
        lower: legalize::collective_broadcast,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::CollectivePermute,
        name: "collective_permute",
        summary: "The operand of the replica that sends to this one; zeros where none does.",
        rule: "No replica is twice a source or twice a target. The result has the operand's type.",
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
        summary: "An `all_reduce` of which replica `i` of a group gets part `i` along one dimension.",
        rule: "As `all_reduce` with groups of one size. Dimension `scatter_dimension` is divided by it.",
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
        rule: "A scalar of type u32.",
        operands: Operands::Fixed(&[]),
        dtypes: DTypeSet::of(&[DType::U32]),
        replicas: Replicas::Together,
        infer: collective::place,
        ..COLLECTIVE
    },
    OpDef {
        code: OpCode::PartitionId,
        name: "partition_id",
        summary: "The number of the partition, which is 0: replicas have one partition.",
        rule: "A scalar of type u32.",
        operands: Operands::Fixed(&[]),
        dtypes: DTypeSet::of(&[DType::U32]),
        infer: collective::place,
        ..COLLECTIVE
    },
];
