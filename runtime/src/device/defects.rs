//! The ops that a plugin computes wrongly, and the search for them in a region.
//!
//! Input: a certificate. Output: [`Defects`], and for a region the ops that must not be compiled.
//! Pure.
//!
//! Invariant:
//! - DEFECT-1: an op that a certificate calls wrong or crashing on an element type is found in
//!   every region, at any depth of bodies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::attr::AttrValue;
use fuseline_fusion::ir::{Node, Ref};
use fuseline_fusion::{DType, Graph, OpCode, Signature};

use super::SpecializedScalars;
use crate::certificate::{Certificate, Finding, OperandKind, Row};

/// The ops that a plugin computes wrongly.
#[derive(Debug, Default)]
pub(crate) struct Defects {
    by_op: BTreeMap<OpCode, Vec<Defect>>,
}

/// An op that is wrong on an element type.
#[derive(Debug)]
struct Defect {
    dtype: DType,
    other: Option<DType>,
    /// Whether it is wrong only where the compiler folds constants.
    is_folding: bool,
    why: String,
}

/// An op of a region that must not be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefectiveOp {
    /// The index of its node in the region.
    pub(crate) node: usize,
    /// What is wrong with it.
    pub(crate) why: Arc<str>,
}

impl Defects {
    /// The ops that a certificate calls wrong or crashing.
    pub(crate) fn of(certificate: &Certificate) -> Defects {
        let mut by_op: BTreeMap<OpCode, Vec<Defect>> = BTreeMap::new();
        for row in certificate.rows() {
            let what = match &row.finding {
                Finding::Wrong { .. } => "computes it wrongly",
                Finding::Crashes { .. } => "crashes when it compiles or runs it",
                _ => continue,
            };
            by_op.entry(row.op).or_default().push(Defect::of(row, what, certificate.date()));
        }
        Defects { by_op }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_op.is_empty()
    }

    /// The number of ops and element types.
    pub(crate) fn len(&self) -> usize {
        self.by_op.values().map(Vec::len).sum()
    }

    /// The ops of a region that must not be compiled. `constants` are its scalars that are compiled
    /// in.
    pub(crate) fn find(&self, graph: &Graph, constants: &SpecializedScalars) -> Vec<DefectiveOp> {
        if self.is_empty() {
            return Vec::new();
        }
        let is_constant = |param: u32| constants.iter().any(|(constant, _)| *constant == param);
        let mut folding = ConstantFolding { is_constant: &is_constant, results: Vec::new() };
        let mut found = Vec::new();
        for (node, op) in graph.nodes().iter().enumerate() {
            let is_folded = folding.add(op);
            if let Some(defect) = self.in_call(op.signature(), is_folded) {
                found.push(DefectiveOp { node, why: defect.why.as_str().into() });
            }
        }
        found
    }

    /// The defect of a call, or of a call in one of its bodies.
    fn in_call(&self, signature: &Signature, is_folded: bool) -> Option<&Defect> {
        let defects = self.by_op.get(&signature.op()).map_or(&[][..], Vec::as_slice);
        let own =
            defects.iter().find(|defect| defect.concerns(signature) && (is_folded || !defect.is_folding));
        own.or_else(|| {
            signature.bodies().iter().find_map(|body| {
                // Within a body, any value may be folded.
                body.graph().nodes().iter().find_map(|node| self.in_call(node.signature(), true))
            })
        })
    }
}

impl Defect {
    fn of(row: &Row, what: &str, date: &str) -> Defect {
        let types = match row.other {
            Some(other) => format!("{} and {other}", row.dtype),
            None => row.dtype.to_string(),
        };
        let constants = if row.operand_kind == OperandKind::Constant { " of constants" } else { "" };
        let why = format!(
            "the plugin {what}: `{}`{constants} on {types}, according to its certificate of {date}",
            row.op.name()
        );
        Defect {
            dtype: row.dtype,
            other: row.other,
            is_folding: row.operand_kind == OperandKind::Constant,
            why,
        }
    }

    /// Whether a call has the types of the defect.
    fn concerns(&self, signature: &Signature) -> bool {
        let types = || signature.operands().iter().chain(signature.results()).map(|ty| ty.dtype());
        if types().next() != Some(self.dtype) {
            return false;
        }
        let Some(other) = self.other else { return true };
        let named = signature.attrs().values().iter().any(|value| *value == AttrValue::DType(other));
        named || signature.operands().iter().skip(1).any(|ty| ty.dtype() == other)
    }
}

/// Which values a compiler can fold, because they are computed from constants only.
struct ConstantFolding<'a> {
    is_constant: &'a dyn Fn(u32) -> bool,
    results: Vec<bool>,
}

impl ConstantFolding<'_> {
    /// Adds a node. Returns whether the compiler can fold it.
    fn add(&mut self, node: &Node) -> bool {
        let is_known = |value: &Ref| match *value {
            Ref::Param(param) => (self.is_constant)(param),
            Ref::Result(result) => self.results.get(result as usize).copied().unwrap_or(false),
        };
        let is_folded = node.operands().iter().all(is_known);
        self.results.extend(node.signature().results().iter().map(|_| is_folded));
        is_folded
    }
}

impl fmt::Display for Defects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defects = self.by_op.values().flatten();
        f.write_str(&defects.map(|defect| defect.why.as_str()).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use fuseline_fusion::attr::Attrs;
    use fuseline_fusion::op::attrs;
    use fuseline_fusion::{Body, Literal, TensorType};

    use super::*;
    use crate::certificate::{CertificateKey, Level};

    fn defects(rows: &[(OpCode, DType, Option<DType>, OperandKind)]) -> Defects {
        let wrong = || Finding::Wrong { example: "1 in place of 0".into(), call: "a call".into() };
        let row =
            |&(op, dtype, other, operand_kind)| Row { op, dtype, other, operand_kind, finding: wrong() };
        let rows = rows.iter().map(row).collect();
        let key = CertificateKey::default();
        Defects::of(&Certificate::new(key, Level::Quick, "2026-11-28".into(), rows, Vec::new()))
    }

    fn nodes(defects: &Defects, graph: &Graph) -> Vec<usize> {
        defects.find(graph, &SpecializedScalars::default()).into_iter().map(|op| op.node).collect()
    }

    /// `tanh(a)`, `exp(tanh(a))`, and `tanh` of a constant.
    fn graph(dtype: DType) -> Graph {
        let mut graph = Graph::new();
        let x = graph.param(TensorType::scalar(dtype));
        let constant = Arc::new(Literal::zeros(TensorType::scalar(dtype)));
        let constant = graph.push(OpCode::Constant, attrs::constant(constant), &[], &[]).unwrap()[0];
        let y = graph.push(OpCode::Tanh, Attrs::none(), &[], &[x]).unwrap()[0];
        graph.push(OpCode::Exponential, Attrs::none(), &[], &[y]).unwrap();
        graph.push(OpCode::Tanh, Attrs::none(), &[], &[constant]).unwrap();
        graph
    }

    #[test]
    fn ops_are_found_by_element_type() {
        let found = defects(&[(OpCode::Tanh, DType::F32, None, OperandKind::Uploaded)]);
        assert_eq!(nodes(&found, &graph(DType::F32)), [1, 3]);
        assert_eq!(nodes(&found, &graph(DType::F64)), [0usize; 0]);
    }

    #[test]
    fn what_is_wrong_of_constants_is_right_of_inputs() {
        let found = defects(&[(OpCode::Tanh, DType::F32, None, OperandKind::Constant)]);
        assert_eq!(nodes(&found, &graph(DType::F32)), [3]);
    }

    #[test]
    fn both_types_of_a_conversion_count() {
        let mut graph = Graph::new();
        let x = graph.param(TensorType::scalar(DType::F32));
        graph.push(OpCode::Convert, attrs::convert(DType::F64), &[], &[x]).unwrap();
        graph.push(OpCode::Convert, attrs::convert(DType::I8), &[], &[x]).unwrap();
        let found = defects(&[(OpCode::Convert, DType::F32, Some(DType::I8), OperandKind::Uploaded)]);
        assert_eq!(nodes(&found, &graph), [1]);
    }

    #[test]
    fn bodies_are_searched() {
        let scalar = TensorType::scalar(DType::F32);
        let mut graph = Graph::new();
        let x = graph.param(TensorType::of(DType::F32, &[4]).unwrap());
        let zero = graph.param(scalar.clone());
        let sum = Arc::new(Body::binary(OpCode::Add, scalar).unwrap());
        graph.push(OpCode::Reduce, attrs::dimensions(&[0]), &[sum], &[x, zero]).unwrap();
        let found = defects(&[(OpCode::Add, DType::F32, None, OperandKind::Uploaded)]);
        assert_eq!(nodes(&found, &graph), [0]);
    }
}
