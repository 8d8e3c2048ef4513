//! The op table: one row per op, grouped in families.

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

use std::fmt;

use super::def::{Bodies, Dialect, Fusibility, OpDef, Operands, Replicas, Rounding};
use super::infer;
use super::legalize;
use crate::dtype::DTypeSet;
use crate::ir::{Effect, OpCode};

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
    infer: infer::elementwise::unary,
    lower: legalize::itself,
};

/// A body that combines two elements into one.
const COMBINER: &str =
    "takes two scalars per operand and returns one, of the operand's element type or a wider one";

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

/// All ops of the library.
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

/// One more than the greatest op number.
const NUMBERS: usize = OpCode::ALL[OpCode::ALL.len() - 1] as usize + 1;

/// Rows of the op table by op number, so that a look-up is one load.
static ROWS: [Option<&OpDef>; NUMBERS] = {
    let mut rows = [None; NUMBERS];
    let mut i = 0;
    while i < OPS.len() {
        rows[OPS[i].code as usize] = Some(&OPS[i]);
        i += 1;
    }
    rows
};

/// CHLO names of ops that the specification has too, with the same meaning.
const IN_BOTH_DIALECTS: &[(&str, OpCode)] = &[("chlo.tan", OpCode::Tan), ("chlo.constant", OpCode::Constant)];

impl OpCode {
    /// The op's row in the op table.
    #[inline]
    #[must_use]
    pub fn def(self) -> &'static OpDef {
        ROWS[self as usize].expect("bug: an opcode has no row in the op table")
    }

    /// The op's name without the dialect (`dot_general`).
    #[inline]
    #[must_use]
    pub fn name(self) -> &'static str {
        self.def().name
    }

    /// The op's name with its dialect (`stablehlo.dot_general`), as in modules and program files.
    #[must_use]
    pub fn qualified(self) -> String {
        format!("{}.{}", self.def().dialect.prefix(), self.name())
    }

    /// The op with that name, with or without the dialect's prefix. If both dialects have it, this
    /// is the specification's.
    #[must_use]
    pub fn from_name(name: &str) -> Option<OpCode> {
        if let Some((_, code)) = IN_BOTH_DIALECTS.iter().find(|(both, _)| *both == name) {
            return Some(*code);
        }
        let (dialect, name) = match name.split_once('.') {
            Some((dialect, name)) => (Some(dialect), name),
            None => (None, name),
        };
        let fits =
            |def: &&OpDef| def.name == name && dialect.is_none_or(|dialect| dialect == def.dialect.prefix());
        OPS.iter().find(fits).map(|def| def.code)
    }
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_one_row_and_one_name() {
        assert_eq!(OPS.len(), OpCode::ALL.len());
        for &code in OpCode::ALL {
            assert_eq!(code.def().code, code);
            assert_eq!(OpCode::from_name(code.name()), Some(code));
            assert_eq!(OpCode::from_number(code.number().into()), Some(code));
        }
        assert_eq!(OpCode::from_name("stablehlo.add"), Some(OpCode::Add));
        assert_eq!(OpCode::from_name("chlo.add"), None);
        assert_eq!(OpCode::from_name("chlo.erf"), Some(OpCode::Erf));
        assert_eq!(OpCode::from_name("stablehlo.erf"), None);
        assert_eq!(OpCode::from_name("chlo.tan"), Some(OpCode::Tan));
    }
}
