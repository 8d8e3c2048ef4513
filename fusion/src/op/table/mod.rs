//! The op table: one row per op, in families.

mod collective;
mod composite;
mod contraction;
mod control;
mod dynamic;
#[macro_use]
mod elementwise;
mod chlo;
mod indexing;
mod linalg;
mod movement;
mod reduction;
mod source;

use super::code::OpCode;
use super::def::{Bodies, Dialect, Effect, Fusibility, OpDef, Operands, Replicas, Rounding};
use super::expand;
use super::rules;
use crate::dtype::DTypeSet;

/// Defaults for the rows below.
const ROW: OpDef = OpDef {
    code: OpCode::Abs,
    dialect: Dialect::Stablehlo,
    name: "",
    summary: "",
    rule: "The result has the operand's type.",
    operands: Operands::Fixed(&["operand"]),
    attrs: &[],
    bodies: Bodies::NONE,
    captures: None,
    dtypes: DTypeSet::ANY,
    fusibility: Fusibility::Elementwise,
    rounding: Rounding::Exact,
    effect: Effect::Pure,
    replicas: Replicas::Apart,
    infer: rules::elementwise::unary,
    lower: expand::itself,
};

/// A body that combines two elements into one.
const COMBINER: &str = "two scalars per operand to one, of the operand's type or a wider one";

/// The families, in the order of the table.
const FAMILIES: &[&[OpDef]] = &[
    elementwise::UNARY,
    elementwise::BINARY,
    elementwise::ROWS,
    source::ROWS,
    movement::ROWS,
    reduction::ROWS,
    contraction::ROWS,
    indexing::ROWS,
    control::ROWS,
    composite::ROWS,
    linalg::ROWS,
    dynamic::ROWS,
    chlo::UNARY,
    chlo::BINARY,
    chlo::ROWS,
    collective::ROWS,
];

const COUNT: usize = {
    let (mut count, mut i) = (0, 0);
    while i < FAMILIES.len() {
        count += FAMILIES[i].len();
        i += 1;
    }
    count
};

/// Every op the library knows.
pub static OPS: [OpDef; COUNT] = {
    let mut rows = [ROW; COUNT];
    let (mut next, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut i = 0;
        while i < FAMILIES[family].len() {
            rows[next] = FAMILIES[family][i];
            next += 1;
            i += 1;
        }
        family += 1;
    }
    rows
};
