//! What a worker is asked to try, as text.
//!
//! A line of items goes from the parent to the worker. An item is a word for the kind and its
//! operand: `uploaded 17`, `constants 17 2..4`, `program 9`, `update f32`.

use std::fmt;
use std::str::FromStr;

use fuseline::qualification::OperandKind;
use fuseline::{DType, OpCode};

/// One thing to try.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// The calls of a pair.
    Calls(Unit),
    /// The random program of this seed.
    Program(u64),
    /// A loop that updates a value of this type in place.
    Update(DType),
    /// Subnormal numbers of this type.
    Subnormal(DType),
    /// Quotients of many numbers of this type by one.
    Quotient(DType),
    /// A collective between two replicas.
    Collective(OpCode, DType),
    /// The conformance case in this file.
    Case(String),
}

/// The calls of a pair of the op table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// How the operands get to the device.
    pub operand_kind: OperandKind,
    /// The index of the pair in [`crate::calls::pairs`].
    pub pair: usize,
    /// The first call and the one after the last; `None` for all.
    pub range: Option<(usize, usize)>,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Calls(Unit { operand_kind, pair, range: None }) => {
                write!(f, "{} {pair}", operand_kind.name())
            }
            Item::Calls(Unit { operand_kind, pair, range: Some((from, to)) }) => {
                write!(f, "{} {pair} {from}..{to}", operand_kind.name())
            }
            Item::Program(seed) => write!(f, "program {seed}"),
            Item::Update(dtype) => write!(f, "update {}", dtype.mlir()),
            Item::Subnormal(dtype) => write!(f, "subnormal {}", dtype.mlir()),
            Item::Quotient(dtype) => write!(f, "quotient {}", dtype.mlir()),
            Item::Collective(op, dtype) => write!(f, "collective {} {}", op.name(), dtype.mlir()),
            Item::Case(path) => write!(f, "case {path}"),
        }
    }
}

/// A text that is no item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoItem(String);

impl fmt::Display for NoItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no item", self.0)
    }
}

impl std::error::Error for NoItem {}

impl FromStr for Item {
    type Err = NoItem;

    fn from_str(text: &str) -> Result<Item, NoItem> {
        parse(text).ok_or_else(|| NoItem(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Item> {
    let (kind, rest) = text.split_once(' ')?;
    if kind == "case" {
        return Some(Item::Case(rest.to_owned()));
    }
    let words: Vec<&str> = rest.split(' ').collect();
    if let Some(operand_kind) = OperandKind::from_name(kind) {
        let (pair, range) = match words[..] {
            [pair] => (pair, None),
            [pair, range] => {
                let (from, to) = range.split_once("..")?;
                (pair, Some((from.parse().ok()?, to.parse().ok()?)))
            }
            _ => return None,
        };
        return Some(Item::Calls(Unit { operand_kind, pair: pair.parse().ok()?, range }));
    }
    match (kind, &words[..]) {
        ("program", [seed]) => Some(Item::Program(seed.parse().ok()?)),
        ("update", [dtype]) => Some(Item::Update(DType::from_mlir(dtype)?)),
        ("subnormal", [dtype]) => Some(Item::Subnormal(DType::from_mlir(dtype)?)),
        ("quotient", [dtype]) => Some(Item::Quotient(DType::from_mlir(dtype)?)),
        ("collective", [op, dtype]) => {
            Some(Item::Collective(OpCode::from_name(op)?, DType::from_mlir(dtype)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_a_text() {
        let unit = |operand_kind, range| Item::Calls(Unit { operand_kind, pair: 17, range });
        for item in [
            unit(OperandKind::Uploaded, None),
            unit(OperandKind::Constant, Some((2, 4))),
            Item::Program(u64::MAX),
            Item::Update(DType::BF16),
            Item::Subnormal(DType::F8E8M0FNU),
            Item::Quotient(DType::F64),
            Item::Collective(OpCode::AllReduce, DType::C64),
            Item::Case("/a b/c.json".to_owned()),
        ] {
            assert_eq!(item.to_string().parse(), Ok(item.clone()), "{item}");
        }
        for text in ["", "uploaded", "uploaded x", "uploaded 1 2", "program", "update f33", "sing 1"] {
            assert!(text.parse::<Item>().is_err(), "{text}");
        }
    }
}
