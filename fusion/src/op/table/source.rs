//! Ops that produce data without operands.

use super::ROW;
use crate::dtype::DTypeSet;
use crate::ir::OpCode;
use crate::op::attrs;
use crate::op::def::{Fusibility, OpDef, Operands, Rounding};
use crate::op::infer::source;
use crate::op::legalize;

pub(super) const ROWS: &[OpDef] = &[
    OpDef {
        code: OpCode::Constant,
        name: "constant",
        summary: "Constant data. It is part of the region's key.",
        rule: "The result has the data's type. The data has at most 64 KiB, because it is part of the key.",
        operands: Operands::Fixed(&[]),
        attrs: &attrs::CONSTANT,
        fusibility: Fusibility::Source,
        infer: source::constant,
        lower: legalize::constant,
        ..ROW
    },
    OpDef {
        code: OpCode::Iota,
        name: "iota",
        summary: "The numbers 0, 1, 2, ... along one dimension.",
        rule: "The result has the shape `shape` and the element type `dtype`. `iota_dimension` is \
               one of its dimensions.",
        operands: Operands::Fixed(&[]),
        attrs: &attrs::IOTA,
        dtypes: DTypeSet::NUMBER,
        fusibility: Fusibility::Source,
        infer: source::iota,
        lower: legalize::iota,
        ..ROW
    },
    OpDef {
        code: OpCode::RngBitGenerator,
        name: "rng_bit_generator",
        summary: "The next state of a counter-based random number generator, and uniformly distributed bits.",
        rule: "The state is u64 with 2 elements, or with 2 or 3 for PHILOX. The first result is \
               the next state, of the same type. The second has the shape `shape` and the element \
               type `dtype`, which has 8 to 64 bits.",
        operands: Operands::Fixed(&["initial_state"]),
        attrs: &attrs::RNG_BIT_GENERATOR,
        dtypes: DTypeSet::of(&[crate::DType::U64]),
        fusibility: Fusibility::Opaque,
        infer: source::rng_bit_generator,
        lower: legalize::rng_bit_generator,
        ..ROW
    },
    // Not an effect, although each run draws other numbers: nothing else can observe whether and
    // when it ran. A value must not be drawn twice; XLA never duplicates its `rng`, because it
    // changes a hidden state.
    OpDef {
        code: OpCode::Rng,
        name: "rng",
        summary: "Random numbers that the plugin draws from a distribution. Each run draws new ones.",
        rule: "`a` and `b` are scalars of the same type. They are the bounds of a uniform \
               distribution, or the mean and the standard deviation of a normal distribution of \
               floats. The result has their element type. The operand `shape` has one integer per \
               result dimension, equal to its recorded size.",
        operands: Operands::Fixed(&["a", "b", "shape"]),
        attrs: &attrs::RNG,
        // XLA's generator has no shorter floats and no complex numbers.
        dtypes: DTypeSet::INT_BOOL.or(DTypeSet::WIDE_FLOAT),
        fusibility: Fusibility::Opaque,
        rounding: Rounding::Rounded,
        infer: source::rng,
        lower: legalize::rng,
        ..ROW
    },
];
