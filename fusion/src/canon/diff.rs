//! The differences between two regions, to explain a cache miss.

use std::fmt;

use super::CanonRegion;
use crate::attr::AttrValue;
use crate::ir::{OpCode, Ref};
use crate::shape::TensorType;

/// One difference between two regions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The type of a parameter differs.
    Param {
        /// The parameter.
        index: usize,
        /// Its type in the known region.
        was: TensorType,
        /// Its type in the new one.
        is: TensorType,
    },
    /// A parameter became a lifted scalar, or ceased to be one.
    Lifted {
        /// The parameter.
        index: usize,
        /// Whether it is lifted in the new region.
        is: bool,
    },
    /// The numbers of parameters differ.
    ParamCount {
        /// In the known region.
        was: usize,
        /// In the new one.
        is: usize,
    },
    /// The ops differ, and this is the first that does.
    Op {
        /// Index of the node.
        node: usize,
        /// The op there in the known region, if it has that many.
        was: Option<OpCode>,
        /// The op there in the new one, if it has that many.
        is: Option<OpCode>,
    },
    /// An attribute of an op differs.
    Attribute {
        /// Index of the node.
        node: usize,
        /// The op.
        op: OpCode,
        /// Name of the attribute.
        name: &'static str,
        /// Its value in the known region.
        was: AttrValue,
        /// Its value in the new one.
        is: AttrValue,
    },
    /// A body of an op differs.
    Body {
        /// Index of the node.
        node: usize,
        /// The op.
        op: OpCode,
    },
    /// An operand of an op has another source.
    Operand {
        /// Index of the node.
        node: usize,
        /// The op.
        op: OpCode,
        /// Which operand.
        operand: usize,
        /// Its source in the known region.
        was: Ref,
        /// Its source in the new one.
        is: Ref,
    },
}

/// Lists how `is` differs from `was`, in the order of the encoding. The list is empty exactly if
/// the regions are equal. Only the first differing op is reported, because ops after it usually
/// differ as a consequence.
#[must_use]
pub fn diff(was: &CanonRegion, is: &CanonRegion) -> Vec<Difference> {
    let mut found = Vec::new();
    let (a, b) = (was.graph(), is.graph());
    for (index, (x, y)) in a.params().iter().zip(b.params()).enumerate() {
        if x != y {
            found.push(Difference::Param { index, was: x.clone(), is: y.clone() });
        }
        if was.lifted()[index] != is.lifted()[index] {
            found.push(Difference::Lifted { index, is: is.lifted()[index] });
        }
    }
    if a.params().len() != b.params().len() {
        found.push(Difference::ParamCount { was: a.params().len(), is: b.params().len() });
    }
    let nodes = a.nodes().len().max(b.nodes().len());
    for node in 0..nodes {
        let (x, y) = (a.nodes().get(node), b.nodes().get(node));
        let (Some(x), Some(y)) = (x, y) else {
            let op = |n: Option<&crate::Node>| n.map(|n| n.signature().op());
            found.push(Difference::Op { node, was: op(x), is: op(y) });
            break;
        };
        let (s, t) = (x.signature(), y.signature());
        if s.op() != t.op() {
            found.push(Difference::Op { node, was: Some(s.op()), is: Some(t.op()) });
            break;
        }
        let before = found.len();
        let op = s.op();
        for (i, (v, w)) in s.attrs().values().iter().zip(t.attrs().values()).enumerate() {
            if v != w {
                let name = s.def().attrs[i].name;
                found.push(Difference::Attribute { node, op, name, was: v.clone(), is: w.clone() });
            }
        }
        if s.bodies() != t.bodies() {
            found.push(Difference::Body { node, op });
        }
        for (operand, (&v, &w)) in x.operands().iter().zip(y.operands()).enumerate() {
            if v != w {
                found.push(Difference::Operand { node, op, operand, was: v, is: w });
            }
        }
        if x.operands().len() != y.operands().len() {
            found.push(Difference::Op { node, was: Some(op), is: Some(op) });
        }
        if found.len() > before {
            break;
        }
    }
    found
}

fn place(value: Ref) -> String {
    match value {
        Ref::Param(index) => format!("input {index}"),
        Ref::Result(index) => format!("result {index}"),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Param { index, was, is } => write!(f, "input {index}: {was} became {is}"),
            Difference::Lifted { index, is: true } => {
                write!(f, "input {index} became a lifted scalar")
            }
            Difference::Lifted { index, is: false } => {
                write!(f, "input {index} was a lifted scalar and became a tensor")
            }
            Difference::ParamCount { was, is } => write!(f, "{was} inputs became {is}"),
            Difference::Op { node, was: Some(was), is: Some(is) } if was == is => {
                write!(f, "op {node} ({is}) has a different number of operands")
            }
            Difference::Op { node, was: Some(was), is: Some(is) } => {
                write!(f, "op {node}: {was} became {is}")
            }
            Difference::Op { node, was: Some(was), is: None } => {
                write!(f, "the region ends before op {node} ({was})")
            }
            Difference::Op { node, was: None, is } => match is {
                Some(is) => write!(f, "the region continues with op {node} ({is})"),
                None => write!(f, "the region ends at op {node}"),
            },
            Difference::Attribute { node, op, name, was, is } => {
                let def = op.def().attrs.iter().find(|def| def.name == *name);
                let text = |value| def.map(|def| def.kind.text(value).to_string()).unwrap_or_default();
                match (text(was), text(is)) {
                    (was, is) if was == is => write!(f, "op {node} ({op}): {name} has a different value"),
                    (was, is) => write!(f, "op {node} ({op}): {name} {was} became {is}"),
                }
            }
            Difference::Body { node, op } => write!(f, "op {node} ({op}) has a different body"),
            Difference::Operand { node, op, operand, was, is } => {
                write!(f, "op {node} ({op}): operand {operand} was {}, is {}", place(*was), place(*is))
            }
        }
    }
}
