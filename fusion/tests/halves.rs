//! A region in two parts: the same ops in the same order, the same values, and every value held
//! exactly as long as it is needed.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fuseline_fusion::canon::can_lift;
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::region::{
    Boundary, Budgets, EagerMemory, HardOnly, Mode, Operand, Region, RegionBuilder, TraceOp,
};
use fuseline_fusion::{Literal, Site, ValueId};
use fuseline_interp as interp;
use fuseline_testgen::{Aim, Entropy, ProgramOptions, ProgramSampler};
use proptest::test_runner::TestCaseError;
use support::{choices, from, runner};

/// The data of held values.
type Data = BTreeMap<ValueId, Arc<Literal>>;

fn id(value: ProgramId) -> ValueId {
    ValueId::from_raw(u64::from(value.0) + 1).expect("not zero")
}

/// A program as regions, with values released at arbitrary points.
fn recorded(program: &Program, how: &mut dyn Entropy) -> Vec<Region> {
    let lifted: Vec<ProgramId> = program
        .values
        .iter()
        .filter(|value| can_lift(value.data.ty()) && how.draw(2) == 1)
        .map(|value| value.id)
        .collect();
    let mut builder = RegionBuilder::new(Box::new(HardOnly), Budgets::default());
    let mut sealed = Vec::new();
    let mut left: Vec<ProgramId> = program.values.iter().map(|value| value.id).collect();
    for (index, op) in program.ops.iter().enumerate() {
        let operand = |&value: &ProgramId| match lifted.contains(&value) {
            true => Operand::Scalar(id(value)),
            false => Operand::Tensor(id(value)),
        };
        let op = TraceOp {
            signature: op.signature.clone(),
            operands: op.operands.iter().map(operand).collect(),
            results: op.results.iter().map(|&value| id(value)).collect(),
            effect: op.signature.effect(),
            mode: Mode::Fused,
            site: Site::Host(index.to_string().into()),
        };
        builder.push(op, &mut sealed);
        left.extend(&program.ops[index].results);
        left.retain(|&value| {
            let is_used = program.ops[index + 1..].iter().any(|op| op.operands.contains(&value));
            let goes = !is_used && how.draw(2) == 1;
            if goes {
                let _ = builder.release(id(value));
            }
            !goes
        });
    }
    builder.seal(Boundary::Flush, &mut sealed);
    sealed
}

/// Runs a region on held values: takes its inputs, drops those that die, adds its outputs. `None`
/// if the interpreter refuses.
fn run(region: &Region, held: &mut Data) -> Result<Option<()>, TestCaseError> {
    let mut params = Vec::new();
    for input in &region.inputs {
        let Some(data) = held.get(&input.value) else {
            return Err(TestCaseError::fail(format!("{:?} is used after its end", input.value)));
        };
        params.push(data.clone());
    }
    let Ok(results) = interp::run(&region.graph, &params) else { return Ok(None) };
    for input in region.inputs.iter().filter(|input| input.dies) {
        held.remove(&input.value);
    }
    for (output, data) in region.outputs.iter().zip(results).filter(|(output, _)| output.live) {
        held.insert(output.value, data);
    }
    Ok(Some(()))
}

/// The ops of regions, with their operands and results.
fn ops(regions: &[Region]) -> Vec<String> {
    let mut ops = Vec::new();
    for region in regions {
        let name = |operand: &fuseline_fusion::Ref| match *operand {
            fuseline_fusion::Ref::Param(index) => region.inputs[index as usize].value,
            fuseline_fusion::Ref::Result(index) => region.outputs[index as usize].value,
        };
        for (node, site) in region.graph.nodes().iter().zip(&region.sites) {
            let operands: Vec<_> = node.operands().iter().map(name).collect();
            let results: Vec<_> = node.results().map(|result| name(&result)).collect();
            ops.push(format!("{site} {:?} {operands:?} {results:?}", node.signature()));
        }
    }
    ops
}

/// Splits every part in two until all are single ops, and compares each step with the whole.
/// Returns the number of splits.
fn check(whole: Region, held: &Data, wanted: &Data) -> Result<usize, TestCaseError> {
    let boundary = whole.boundary;
    let all = ops(std::slice::from_ref(&whole));
    let (mut parts, mut cuts) = (vec![whole], 0);
    loop {
        let mut now = held.clone();
        for part in &parts {
            if run(part, &mut now)?.is_none() {
                return Err(TestCaseError::fail("a part is refused, the whole was not"));
            }
        }
        if now != *wanted {
            return Err(TestCaseError::fail(format!("{cuts} cuts leave {now:?} held, not {wanted:?}")));
        }
        if ops(&parts) != all {
            return Err(TestCaseError::fail(format!("{cuts} cuts change the ops")));
        }
        if parts.last().is_some_and(|last| last.boundary != boundary) {
            return Err(TestCaseError::fail("the last part ends for another reason"));
        }
        let Some(place) = (0..parts.len()).find(|&place| parts[place].sites.len() > 1) else {
            return Ok(cuts);
        };
        let part = parts.remove(place);
        let len = part.sites.len();
        let middle = EagerMemory::of(&part.graph, &part).middle();
        let Ok(halves) = part.halve() else { return Err(TestCaseError::fail("two ops were not cut")) };
        let first = halves[0].sites.len();
        if middle != Some(first) || first.min(len - first) < len / 4 {
            return Err(TestCaseError::fail(format!("{len} ops were cut behind {first}")));
        }
        if halves[0].boundary != Boundary::Memory {
            return Err(TestCaseError::fail("the first half does not say why it ends"));
        }
        parts.splice(place..place, halves);
        cuts += 1;
    }
}

#[test]
fn halves_are_the_region() {
    let cuts = Cell::new(0);
    let outcome = runner(600).run(&(choices(300), choices(40), 1..24_usize), |(list, how, ops)| {
        let program = ProgramSampler::sample(ProgramOptions::new(Aim::Everything), &mut from(&list), ops);
        let program = program.program;
        let mut held: Data = program.values.iter().map(|value| (id(value.id), value.data.clone())).collect();
        for region in recorded(&program, &mut from(&how)) {
            let mut after = held.clone();
            if run(&region, &mut after)?.is_none() {
                return Ok(());
            }
            // B2.
            let ends = EagerMemory::of(&region.graph, &region);
            let tensors = region.inputs.iter().filter(|input| !input.lifted).map(|input| input.value);
            let made = region.outputs.iter().map(|output| output.value);
            let bytes = tensors.chain(made).filter_map(|value| Some(after.get(&value)?.ty().bytes().0));
            if ends.behind(region.sites.len()).map(|bytes| bytes.0) != Some(bytes.sum()) {
                return Err(TestCaseError::fail(format!("{ends:?} is not what is held")));
            }
            cuts.set(cuts.get() + check(region, &held, &after)?);
            held = after;
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(cuts.get() > 2_000, "only {} cuts were made", cuts.get());
}
