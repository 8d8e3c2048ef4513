//! Defects: ops that this plugin computes wrong, refuses, or dies of.
//!
//! Input: a text (for the grammar see README.md). Unlike a fault plan, which counts calls, a defect
//! belongs to an op and an element type, wherever the op is in a module.

use std::sync::{Arc, LazyLock};

use fuseline_fusion::ir::{Node, Ref};
use fuseline_fusion::{Body, DType, Literal, OpCode};
use fuseline_interp::{Arithmetic, EvalError, call_by};

use crate::plan::{Failure, UNIMPLEMENTED};
use crate::registry::die;

/// The variable with the defects.
const VARIABLE: &str = "FUSELINE_FAKE_DEFECT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All results are zero.
    Wrong,
    /// All results are zero if all operands are constants.
    WrongFolded,
    /// It is not compiled.
    Refuse,
    /// The process ends by SIGABRT when it runs.
    Crash,
    /// It runs forever.
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Defect {
    kind: Kind,
    op: OpCode,
    /// The type of the first operand, or of the first result if there is none; `None` for all.
    dtype: Option<DType>,
}

/// The defects of the process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Defects {
    ops: Vec<Defect>,
    /// Whether results are written into the memory of arguments that the call keeps.
    donation: bool,
}

static DEFECTS: LazyLock<Defects> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    Defects::parse(&text).unwrap_or_else(|why| die(&format!("{VARIABLE}: {why}")))
});

/// The defects in the environment of the process, as it was at the first call.
pub(crate) fn defects() -> &'static Defects {
    &DEFECTS
}

impl Defects {
    fn parse(text: &str) -> Result<Defects, String> {
        let mut defects = Defects::default();
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            if rule == "donation" {
                defects.donation = true;
                continue;
            }
            let words: Vec<&str> = rule.split(':').collect();
            let [kind, op, dtype] = words[..] else { return Err(format!("`{rule}` is not KIND:OP:TYPE")) };
            let kind = match kind {
                "wrong" => Kind::Wrong,
                "wrong_folded" => Kind::WrongFolded,
                "refuse" => Kind::Refuse,
                "crash" => Kind::Crash,
                "hang" => Kind::Hang,
                other => return Err(format!("no defect is called {other}")),
            };
            let op = OpCode::from_name(op).ok_or_else(|| format!("no op is called {op}"))?;
            let dtype = match dtype {
                "*" => None,
                name => Some(DType::from_mlir(name).ok_or_else(|| format!("no type is called {name}"))?),
            };
            defects.ops.push(Defect { kind, op, dtype });
        }
        Ok(defects)
    }

    /// Whether results are written into the memory of arguments that the call keeps.
    pub(crate) fn breaks_donation(&self) -> bool {
        self.donation
    }

    /// Whether an op has a defect at all.
    pub(crate) fn is_in_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    fn of(&self, node: &Node) -> impl Iterator<Item = Kind> {
        let signature = node.signature();
        let first = signature.operands().first().or(signature.results().first()).map(|ty| ty.dtype());
        let op = signature.op();
        let is = move |defect: &&Defect| defect.op == op && (defect.dtype.is_none() || defect.dtype == first);
        self.ops.iter().filter(is).map(|defect| defect.kind)
    }

    /// Refuses a body with an op that is not compiled.
    pub(crate) fn check(&self, body: &Body) -> Result<(), Failure> {
        for node in body.graph().nodes() {
            if self.of(node).any(|kind| kind == Kind::Refuse) {
                let name = node.signature().op().name();
                return Err(Failure::new(UNIMPLEMENTED, format!("{name} is not supported, as planned")));
            }
            node.signature().bodies().iter().try_for_each(|body| self.check(body))?;
        }
        Ok(())
    }

    /// Runs a body as the interpreter does, with the defects of its ops. Bodies of its ops have no
    /// defects.
    pub(crate) fn run(
        &self,
        arithmetic: Arithmetic,
        body: &Body,
        params: &[Arc<Literal>],
    ) -> Result<Vec<Arc<Literal>>, EvalError> {
        let mut results: Vec<Arc<Literal>> = Vec::new();
        let mut is_constant: Vec<bool> = Vec::new();
        for node in body.graph().nodes() {
            let operands = pick(node.operands(), params, &results);
            let folded = node.operands().iter().all(|operand| match operand {
                Ref::Param(_) => false,
                Ref::Result(index) => is_constant[*index as usize],
            });
            let mut zero = false;
            for kind in self.of(node) {
                match kind {
                    Kind::Wrong => zero = true,
                    Kind::WrongFolded => zero |= folded,
                    Kind::Refuse => {}
                    Kind::Crash => die(&format!("{} crashes, as planned", node.signature().op().name())),
                    Kind::Hang => loop {
                        std::thread::park();
                    },
                }
            }
            for result in call_by(arithmetic, node.signature(), &operands)? {
                let result = if zero { Literal::zeros(result.ty().clone()) } else { result };
                results.push(Arc::new(result));
                is_constant.push(folded);
            }
        }
        Ok(pick(body.returns(), params, &results))
    }
}

fn pick(values: &[Ref], params: &[Arc<Literal>], results: &[Arc<Literal>]) -> Vec<Arc<Literal>> {
    let data = |value: &Ref| match *value {
        Ref::Param(index) => params[index as usize].clone(),
        Ref::Result(index) => results[index as usize].clone(),
    };
    values.iter().map(data).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defects_are_about_ops_and_types() {
        let defects = Defects::parse("wrong:atan2:f32; crash:sort:*;donation").expect("defects");
        let wrong = Defect { kind: Kind::Wrong, op: OpCode::Atan2, dtype: Some(DType::F32) };
        let crash = Defect { kind: Kind::Crash, op: OpCode::Sort, dtype: None };
        assert_eq!(defects, Defects { ops: vec![wrong, crash], donation: true });
        for text in ["wrong:atan2", "wrong:atam:f32", "wrong:atan2:f33", "late:atan2:f32", "donations"] {
            assert!(Defects::parse(text).is_err(), "{text}");
        }
    }
}
