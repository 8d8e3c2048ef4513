//! Properties of every call: a valid one runs and can be written, and an invalid one has a message
//! and never panics.
//!
//! Used by the property tests and the fuzz targets.

use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, can_lift, decode, diff};
use fuseline_fusion::lower::{Aliases, Numerics, lower};
use fuseline_fusion::op::{Lowered, Named, OpDef};
use fuseline_fusion::program::{Check, Program, ProgramId, ProgramOp, ProgramValue, Role};
use fuseline_fusion::{AttrValue, Literal, Signature};
use fuseline_interp::{self as interp, Arithmetic};
use fuseline_testgen::{Aim, Domain, Seeded, fill};

use super::hostile::{Attempt, Sampled, graph_of};

/// The call as a program that expects its results on the first replica.
fn program(call: &Sampled, results: Vec<Literal>) -> Program {
    let operands = &call.replicas[0];
    let count = operands.len() as u32;
    let value = |(index, data): (u32, &Arc<Literal>)| ProgramValue {
        id: ProgramId(index),
        role: if index % 2 == 0 { Role::Input } else { Role::Const },
        data: data.clone(),
    };
    let outputs: Vec<ProgramId> = (count..count + results.len() as u32).map(ProgramId).collect();
    Program {
        name: call.signature.op().name().to_owned(),
        values: (0..).zip(operands).map(value).collect(),
        ops: vec![ProgramOp {
            signature: call.signature.clone(),
            operands: (0..count).map(ProgramId).collect(),
            results: outputs.clone(),
        }],
        checks: vec![Check::Exact; outputs.len()],
        expected: results,
        outputs,
        ..Program::default()
    }
}

/// Checks the properties of a valid call.
pub fn holds(call: &Sampled) -> Result<(), String> {
    // M2, and O1: the results have the inferred types.
    let run = || {
        interp::call_replicated(Arithmetic::REFERENCE, &call.signature, &call.replicas)
            .map_err(|error| error.to_string())
    };
    let results = run()?;
    if results.iter().any(|each| !each.iter().map(Literal::ty).eq(call.signature.results())) {
        return Err(format!("the results are {results:?}"));
    }
    if run()? != results {
        return Err("run twice it gives other results".to_owned());
    }
    if let [operands] = call.replicas.as_slice()
        && interp::call(&call.signature, operands).as_ref() != Ok(&results[0])
    {
        return Err("as one replica it gives other results".to_owned());
    }
    call.signature.check_replicas(call.replicas.len()).map_err(|error| error.to_string())?;
    let program = program(call, results[0].clone());
    let text = program.to_json();
    let back = Program::parse(&text).map_err(|error| format!("{error} in {text}"))?;
    if back != program {
        return Err(format!("written and read it is another program: {text}"));
    }
    let graph = graph_of(&call.signature);
    let outputs: Vec<u32> = (0..graph.result_count() as u32).collect();
    let lifted = graph.params().iter().map(can_lift).collect();
    let region = CanonRegion::new(graph, lifted);
    let decoded = decode(region.bytes()).map_err(|error| error.to_string())?;
    if decoded != region || decoded.graph() != region.graph() || !diff(&region, &decoded).is_empty() {
        return Err("the canonical bytes decode to another region".to_owned());
    }
    // Lowering is total, and prints every op by its name or its replacement; an exchange of nothing
    // has no replacement.
    let module = lower(&region, &outputs, &Aliases::none(), Numerics::Fast);
    let nothing = matches!((call.signature.def().lower)(&call.signature.call()),
        Lowered::Inline(body) if body.graph().nodes().is_empty());
    let says_an_op = ["stablehlo.", "chlo."].iter().any(|dialect| module.text().contains(dialect));
    if (!nothing && !says_an_op) || lower(&decoded, &outputs, &Aliases::none(), Numerics::Fast) != module {
        return Err(format!("lowered to {module}"));
    }
    // The printed text reads back as the original.
    module.verify().map_err(|error| error.to_string())?;
    Ok(())
}

/// Whether no number in an attribute makes the interpreter's work large.
fn is_small_value(value: &AttrValue) -> bool {
    let small = |number: i64| number.unsigned_abs() <= 64;
    match value {
        AttrValue::Int(number) => small(*number),
        AttrValue::Ints(list) => list.iter().all(|&number| small(number)),
        AttrValue::Pairs(list) => list.iter().all(|&(low, high)| small(low) && small(high)),
        AttrValue::Struct(values) => values.iter().all(is_small_value),
        AttrValue::Groups(groups) => groups.rows().flatten().all(|&id| small(id)),
        _ => true,
    }
}

fn is_small(signature: &Signature) -> bool {
    let mut types = signature.operands().iter().chain(signature.results());
    types.all(|ty| ty.elems().0 <= 1 << 12) && signature.attrs().values().iter().all(is_small_value)
}

/// Checks the properties of a changed call: it is refused with a message, or is valid.
pub fn is_answered(def: &OpDef, attempt: &Attempt, seed: u64) -> Result<bool, String> {
    let signature = match attempt.infer() {
        Ok(signature) => Arc::new(signature),
        Err(error) => {
            let said = error.op() == def.name && error.to_string().len() > def.name.len() + 4;
            return if said { Ok(false) } else { Err(format!("refused with {error:?}")) };
        }
    };
    if is_small(&signature) {
        let mut entropy = Seeded::new(seed);
        let mut data = |ty| Arc::new(fill(&mut entropy, ty, Domain::Any, Aim::Everything));
        let replicas = match signature.named_replicas() {
            Some(Named::All(count) | Named::Some(count)) => count.clamp(1, 8),
            None => 1,
        };
        let operands: Vec<Vec<Arc<Literal>>> =
            (0..replicas).map(|_| signature.operands().iter().map(&mut data).collect()).collect();
        match interp::call_replicated(Arithmetic::REFERENCE, &signature, &operands) {
            Ok(_) => {}
            Err(interp::EvalError::Replicas(_)) if signature.check_replicas(replicas).is_err() => {}
            Err(
                interp::EvalError::Unspecified { .. }
                | interp::EvalError::TooLong { .. }
                | interp::EvalError::Sizes { .. },
            ) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let graph = graph_of(&signature);
    let outputs: Vec<u32> = (0..graph.result_count() as u32).collect();
    let lifted = vec![false; graph.params().len()].into();
    let region = CanonRegion::new(graph, lifted);
    let decoded = decode(region.bytes()).map_err(|error| error.to_string())?;
    if decoded.graph() != region.graph() {
        return Err("the canonical bytes decode to another region".to_owned());
    }
    lower(&region, &outputs, &Aliases::none(), Numerics::Fast).verify().map_err(|error| error.to_string())?;
    Ok(true)
}
