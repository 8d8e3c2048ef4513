//! Runs calls on an engine and finds differences from the interpreter.

use std::collections::HashSet;
use std::sync::Arc;

use fuseline::fusion::Signature;
use fuseline::fusion::op::{Fusibility, Rounding, rounding_class};
use fuseline::interp::{self, Arithmetic};
use fuseline::qualification::OperandKind;
use fuseline::{Attrs, DType, Engine, Literal, Stage, Tensor, Tensors};
use fuseline_testgen::rounding;

use crate::calls::{Call, element};

use crate::judge::{Float, NEAR_ZERO, Rule, Verdict, steps};

/// A wrong element of a result.
#[derive(Clone, Debug)]
pub struct Case {
    /// For elementwise ops, the operands' elements at the same index: the number, or both parts of
    /// a complex one. Integers are converted to numbers.
    pub operands: Vec<Vec<Float>>,
    /// The found and the right result, in all parts; `None` for elements that are not floats.
    pub floats: Option<(Vec<Float>, Vec<Float>)>,
    /// Whether all elements of all operands are finite.
    pub has_finite_operands: bool,
    /// The difference, in units in the last place of the right result.
    pub steps: f64,
    /// Whether the found result is what the specification says, which keeps subnormal numbers, and
    /// the right one is what a device that flushes them computes.
    pub is_specified: bool,
    /// The result and the index of the element.
    pub place: (usize, usize),
    signature: Arc<Signature>,
    element: String,
}

/// The largest difference that still counts as rounding, in units in the last place: a relative
/// error of 8e-6 of `f32` and of 1e-12 of `f64`.
const MOST_STEPS: (f64, f64) = (64.0, 4096.0);

impl Case {
    /// The element: the found and the right result, and the operands.
    #[must_use]
    pub fn element(&self) -> &str {
        &self.element
    }

    /// Whether the found result is near the right one: off by at most 64 units in the last place,
    /// or 4096 of `f64`, and by at most a quarter of itself. So is a subnormal number in place of
    /// zero, and what the specification says, on a device that flushes subnormal numbers elsewhere.
    #[must_use]
    pub fn is_near(&self) -> bool {
        if self.is_about_subnormals() {
            return true;
        }
        let Some((found, right)) = &self.floats else { return false };
        // The distance from NaN is no number.
        if found.iter().chain(right).any(|part| !part.value().is_finite()) {
            return false;
        }
        let most = |part: &Float| {
            let most = if part.dtype == DType::F64 { MOST_STEPS.1 } else { MOST_STEPS.0 };
            most.min(0.25 / unit(part.dtype))
        };
        right.iter().all(|part| self.steps <= most(part))
    }
}

impl Case {
    /// Whether it shows only that the device keeps subnormal numbers here and flushes them
    /// elsewhere.
    #[must_use]
    pub fn is_about_subnormals(&self) -> bool {
        let is_tiny = |part: &Float| part.magnitude() == 0 || part.is_subnormal();
        let is_tiny = |parts: &[Float]| parts.iter().all(is_tiny);
        self.is_specified
            || self.floats.as_ref().is_some_and(|(found, right)| is_tiny(found) && is_tiny(right))
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}: {}", self.signature, self.signature.attrs(), self.element)
    }
}

/// The outcome of a call on the plugin.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The elements that differ.
    Ran(Vec<Case>),
    /// The plugin does not compile it, for this reason.
    Refused(String),
    /// The plugin compiles it, and does not run it or does not return its results.
    Failed(String),
}

/// The parts of an element; none for an integer.
fn parts(literal: &Literal, index: usize) -> Vec<Float> {
    Float::all(literal.dtype(), element(literal, index))
}

fn words(literal: &Literal, index: usize) -> String {
    let parts = parts(literal, index);
    if parts.is_empty() {
        let bytes = element(literal, index).iter().rev();
        return format!("0x{}", bytes.map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    parts.iter().map(|part| format!("{:e}", part.value())).collect::<Vec<_>>().join(" + i ")
}

/// The largest relative error of one rounding step of a type.
fn unit(dtype: DType) -> f64 {
    dtype.float_format().map_or(0.0, |format| f64::from(format.mantissa).exp2().recip())
}

/// The elements of a call's results that differ from what the interpreter computes with
/// `arithmetic`.
fn differences(call: &Call, found: &[Literal], arithmetic: Arithmetic) -> Vec<Case> {
    let right = |arithmetic| {
        interp::call_by(arithmetic, &call.signature, &call.operands).expect("the interpreter runs samples")
    };
    let mut cases = against(call, found, &right(arithmetic));
    if !cases.is_empty() && arithmetic.flushed != Arithmetic::REFERENCE.flushed {
        let specified = against(call, found, &right(Arithmetic::REFERENCE));
        let wrong: HashSet<(usize, usize)> = specified.iter().map(|case| case.place).collect();
        cases.iter_mut().for_each(|case| case.is_specified = !wrong.contains(&case.place));
    }
    cases
}

/// The elements of a call's results that differ from the right ones.
fn against(call: &Call, found: &[Literal], wanted: &[Literal]) -> Vec<Case> {
    let signature = &call.signature;
    let elementwise = signature.def().fusibility == Fusibility::Elementwise;
    let allowed = if elementwise {
        vec![Vec::new(); wanted.len()]
    } else {
        rounding(signature, &call.operands, wanted)
    };
    let mut numbers = call.operands.iter().flat_map(|data| Float::all(data.dtype(), data.bytes()));
    let has_finite_operands = numbers.all(|number| number.value().is_finite());
    let aligned: &[Arc<Literal>] = if elementwise { &call.operands } else { &[] };
    let mut cases = Vec::new();
    for (result, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.ty(), wanted.ty(), "{signature:?}");
        let pair = ResultPair::new(signature, (found, wanted), &allowed[result]);
        for index in 0..wanted.ty().elems().get() {
            let Some((steps, floats)) = pair.difference(index) else { continue };
            let of = if elementwise {
                aligned.iter().map(|data| words(data, index)).collect::<Vec<_>>().join(", ")
            } else {
                format!("{:?} by {:?}", call.operands, signature.bodies())
            };
            cases.push(Case {
                operands: aligned.iter().map(|data| parts(data, index)).collect(),
                floats,
                has_finite_operands,
                steps,
                is_specified: false,
                place: (result, index),
                signature: signature.clone(),
                element: format!(
                    "element {index} of result {result} is {} in place of {} ({steps:.1} steps), of {of}",
                    words(found, index),
                    words(wanted, index),
                ),
            });
        }
    }
    cases
}

/// A found result and the right one.
struct ResultPair<'a> {
    found: &'a Literal,
    wanted: &'a Literal,
    /// Their floats; none if the elements are integers.
    floats: [Vec<Float>; 2],
    rule: Rule,
    /// The allowed difference of each part of each element, for ops that are not elementwise.
    allowed: &'a [f64],
}

/// How far an element is off, in units in the last place, and its found and right parts.
type Difference = (f64, Option<(Vec<Float>, Vec<Float>)>);

impl<'a> ResultPair<'a> {
    fn new(
        signature: &Signature,
        (found, wanted): (&'a Literal, &'a Literal),
        allowed: &'a [f64],
    ) -> ResultPair<'a> {
        let elementwise = signature.def().fusibility == Fusibility::Elementwise;
        let rule = Rule {
            rounding: rounding_class(signature),
            steps: if elementwise { steps(wanted.dtype().part()) } else { 4 },
            absolute: NEAR_ZERO
                .iter()
                .find(|(near, ..)| *near == signature.op())
                .map_or(0.0, |&(_, most, _)| most),
        };
        let floats = [found, wanted].map(|data| Float::all(data.dtype(), data.bytes()));
        ResultPair { found, wanted, floats, rule, allowed }
    }

    /// How an element differs; `None` if it is right.
    fn difference(&self, index: usize) -> Option<Difference> {
        let dtype = self.wanted.dtype().part();
        let count = if self.wanted.dtype().is_complex() { 2 } else { 1 };
        let at = |which: usize| self.floats[which].get(index * count..(index + 1) * count);
        let (Some(found), Some(right)) = (at(0), at(1)) else {
            let is_other = element(self.found, index) != element(self.wanted, index);
            return is_other.then_some((f64::INFINITY, None));
        };
        let size = right.iter().map(|part| part.value().abs()).fold(0.0, f64::max);
        let mut rule = self.rule;
        let differs = (0..count).any(|part| {
            if let Some(&most) = self.allowed.get(index * count + part) {
                rule.absolute = most;
            } else if count == 2 && rule.rounding == Rounding::Rounded && size.is_finite() {
                // The parts of a complex number are rounded separately.
                rule.absolute = rule.steps as f64 * unit(dtype) * size;
            }
            rule.judge(found[part], right[part]) == Verdict::Wrong
        });
        let distance = |part: usize| (found[part].value() - right[part].value()).abs();
        let steps = (0..count).map(distance).fold(0.0, f64::max) / (unit(dtype) * size);
        differs.then(|| (steps, Some((found.to_vec(), right.to_vec()))))
    }
}

/// The plugin's own message, without the place of the op in the program.
pub(crate) fn cause(error: &fuseline::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Runs calls as one region, and each by itself if the plugin does not compile the region. The
/// right results are those of the interpreter with `arithmetic`.
///
/// # Panics
/// If the engine does not record a call.
pub fn run(
    engine: &Engine,
    calls: &[&Call],
    operand_kind: OperandKind,
    arithmetic: Arithmetic,
) -> Vec<Outcome> {
    let stream = engine.stream();
    let record = |call: &&Call| {
        let bring = |data: &Arc<Literal>| match operand_kind {
            OperandKind::Uploaded => stream.from_literal(data).expect("it is small"),
            OperandKind::Constant => stream.constant(Literal::clone(data)).expect("it is small"),
        };
        let operands: Vec<Tensor> = call.operands.iter().map(bring).collect();
        let operands: Vec<&Tensor> = operands.iter().collect();
        let signature = &call.signature;
        stream
            .record(signature.op(), Attrs::clone(signature.attrs()), signature.bodies(), &operands)
            .expect("the signature was inferred")
    };
    let recorded: Vec<_> = calls.iter().map(record).collect();
    let outcome = |(call, results): (&&Call, &Tensors)| match results
        .iter()
        .map(Tensor::to_literal)
        .collect::<Result<Vec<Literal>, _>>()
    {
        Ok(found) => Outcome::Ran(differences(call, &found, arithmetic)),
        Err(error) if error.stage() == Stage::Compile => Outcome::Refused(cause(&error)),
        Err(error) => Outcome::Failed(cause(&error)),
    };
    calls.iter().zip(&recorded).map(outcome).collect()
}
