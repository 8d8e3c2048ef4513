//! What a region's key is made of, and what not: names, frees, interleavings and scalars' values change no key, and every
//! change of what is computed changes it. The encoding under the key has one reading.
//!
//! Programs are made from choices, so that a failure shrinks to a small one.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, can_lift, decode, diff};
use fuseline_fusion::lower::{Aliases, Numerics, lower};
use fuseline_fusion::op::{Aim, Effect, Entropy, OPS, ProgramOptions, ProgramSampler, Seeded};
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::region::{
    Boundary, BoundaryRule, Budgets, Cut, HardOnly, Mention, Mode, Operand, PendingStats, Region,
    RegionBuilder, TraceOp,
};
use fuseline_fusion::{Body, Graph, OpCode, Ref, Signature, Site, ValueId};
use proptest::test_runner::TestCaseError;
use support::{Attempt, choices, from, hostile_type, pick, place, runner, sampled};

fn sample(entropy: &mut dyn Entropy, ops: usize) -> Program {
    ProgramSampler::sample(ProgramOptions::new(Aim::Everything), entropy, ops).program
}

// ----- recording -----

/// A rule that cuts after every so many ops: it sees nothing but their number.
#[derive(Debug)]
struct Every(usize);

impl BoundaryRule for Every {
    fn after(&mut self, _op: &Signature, _operands: &[Mention], pending: PendingStats) -> Option<Cut> {
        (pending.ops >= self.0).then_some(Cut { len: self.0, reason: Boundary::OpBudget })
    }

    fn reset(&mut self) {}
}

/// How a program is recorded: everything that keys must not depend on, and where its regions end.
struct Recording<'a> {
    program: &'a Program,
    /// Inputs of rank 0 that are lifted scalars.
    lifted: &'a [ProgramId],
    /// Raw id of a value.
    name: &'a dyn Fn(ProgramId) -> u64,
    /// Ops per region; 0 for one region.
    every: usize,
    mode: Mode,
}

impl Recording<'_> {
    fn id(&self, value: ProgramId) -> ValueId {
        ValueId::from_raw((self.name)(value)).expect("names are not zero")
    }

    fn builder(&self) -> RegionBuilder {
        let rule: Box<dyn BoundaryRule> =
            if self.every == 0 { Box::new(HardOnly) } else { Box::new(Every(self.every)) };
        RegionBuilder::new(rule, Budgets::default())
    }

    fn op(&self, index: usize) -> TraceOp {
        let op = &self.program.ops[index];
        let operand = |&id: &ProgramId| {
            let value = self.id(id);
            if self.lifted.contains(&id) { Operand::Scalar(value) } else { Operand::Tensor(value) }
        };
        TraceOp {
            signature: op.signature.clone(),
            operands: op.operands.iter().map(operand).collect(),
            results: op.results.iter().map(|&id| self.id(id)).collect(),
            effect: op.signature.effect(),
            mode: self.mode,
            site: Site::Host(format!("{}:{index}", (self.name)(ProgramId(0))).into()),
        }
    }

    /// Records it alone; `after` may do something to the builder after each op.
    fn regions(&self, mut after: impl FnMut(usize, &mut RegionBuilder)) -> Vec<CanonRegion> {
        let (mut builder, mut sealed) = (self.builder(), Vec::new());
        for index in 0..self.program.ops.len() {
            builder.push(self.op(index), &mut sealed);
            after(index, &mut builder);
        }
        builder.seal(Boundary::Flush, &mut sealed);
        sealed.into_iter().map(canon).collect()
    }
}

fn canon(region: Region) -> CanonRegion {
    // R4.
    let is_ordered = |node: &fuseline_fusion::Node| node.signature().effect() == Effect::Ordered;
    let nodes = region.graph.nodes();
    assert!(nodes.len() == 1 || !nodes.iter().any(is_ordered), "an ordered op stands with others: {nodes:?}");
    assert_eq!(region.effect == Effect::Ordered, nodes.iter().any(is_ordered));
    let lifted = region.inputs.iter().map(|input| input.lifted).collect();
    CanonRegion::new(region.graph, lifted)
}

fn environment() -> EnvFingerprint {
    EnvFingerprint::of(b"plugin 1, device 0, flags none")
}

fn same(wanted: &[CanonRegion], found: &[CanonRegion], what: &str) -> Result<(), TestCaseError> {
    let environment = environment();
    let equal = wanted.len() == found.len()
        && wanted.iter().zip(found).all(|(a, b)| {
            a.key(&environment) == b.key(&environment)
                && a.bytes() == b.bytes()
                && a == b
                && a.skeleton() == b.skeleton()
                && diff(a, b).is_empty()
        });
    if equal { Ok(()) } else { Err(TestCaseError::fail(format!("{what}: {wanted:?} became {found:?}"))) }
}

/// Inputs that can be lifted, each lifted or not.
fn some_lifted(program: &Program, entropy: &mut dyn Entropy) -> Vec<ProgramId> {
    let scalars = program.values.iter().filter(|value| can_lift(value.data.ty()));
    scalars.filter(|_| entropy.draw(2) == 1).map(|value| value.id).collect()
}

#[test]
fn names_frees_and_interleavings_change_no_key() {
    let regions = Cell::new(0);
    let outcome = runner(1_000).run(&(choices(300), choices(40), 1..20_usize), |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        let mut how = from(&how);
        let lifted = some_lifted(&program, &mut how);
        let every = pick(&mut how, &[0, 1, 3]);
        let plain = |id: ProgramId| u64::from(id.0) + 1;
        let recording =
            Recording { program: &program, lifted: &lifted, name: &plain, every, mode: Mode::Fused };
        let wanted = recording.regions(|_, _| {});
        regions.set(regions.get() + wanted.len());

        // Other names, in another order: what a longer program before this one would leave behind.
        let (factor, offset) = (pick(&mut how, &[1, 3, 0x9e37_79b9_7f4a_7c15]), u64::from(how.draw(1 << 20)));
        let other = |id: ProgramId| (u64::from(id.0) + offset + 1).wrapping_mul(factor);
        let backward = |id: ProgramId| u64::MAX - u64::from(id.0);
        for name in [&other as &dyn Fn(ProgramId) -> u64, &backward] {
            same(&wanted, &Recording { name, ..recording }.regions(|_, _| {}), "renamed")?;
        }

        // Frees at random places: values that no later op uses, and values of nobody.
        let mut left: Vec<ProgramId> = program.values.iter().map(|value| value.id).collect();
        let freed = recording.regions(|index, builder| {
            left.extend(&program.ops[index].results);
            let later = &program.ops[index + 1..];
            left.retain(|&id| {
                let used = later.iter().any(|op| op.operands.contains(&id));
                let free = !used && how.draw(2) == 1;
                if free {
                    let _ = builder.release(recording.id(id));
                }
                !free
            });
            let _ = builder.release(ValueId::from_raw(u64::MAX / 2 + index as u64).expect("not zero"));
        });
        same(&wanted, &freed, "with frees")?;

        // The same program on another stream at the same time, op by op in some order.
        let mut builders = [recording.builder(), recording.builder()];
        let twin = Recording { name: &other, ..recording };
        let (mut sealed, mut next) = ([Vec::new(), Vec::new()], [0, 0]);
        while next != [program.ops.len(); 2] {
            let side =
                if next[0] == program.ops.len() || (next[1] < next[0] && how.draw(2) == 1) { 1 } else { 0 };
            let op = if side == 0 { recording.op(next[0]) } else { twin.op(next[1]) };
            builders[side].push(op, &mut sealed[side]);
            next[side] += 1;
        }
        for (mut builder, mut sealed) in builders.into_iter().zip(sealed) {
            builder.seal(Boundary::HostRead, &mut sealed);
            let found: Vec<CanonRegion> = sealed.into_iter().map(canon).collect();
            same(&wanted, &found, "interleaved")?;
        }

        // Whatever ends a region, it is the same region: one op in Strict mode, and one op after a cut.
        let strict = Recording { mode: Mode::Strict, every: 0, ..recording }.regions(|_, _| {});
        let single = Recording { every: 1, ..recording }.regions(|_, _| {});
        same(&single, &strict, "in Strict mode")
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(regions.get() > 1_000, "only {} regions were compared", regions.get());
}

// ----- lowering -----

/// The verifier accepts what is printed for any region, whatever results are asked for, whatever memory is reused, fast and exact.
#[test]
fn what_is_lowered_is_read_back_as_the_region() {
    let outcome = runner(1_000).run(&(choices(300), choices(40), 1..20_usize), |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        let mut how = from(&how);
        let lifted = some_lifted(&program, &mut how);
        let name = |id: ProgramId| u64::from(id.0) + 1;
        let every = pick(&mut how, &[0, 1, 3]);
        let recording =
            Recording { program: &program, lifted: &lifted, name: &name, every, mode: Mode::Fused };
        for region in recording.regions(|_, _| {}) {
            let outputs = 0..region.graph().result_count() as u32;
            let outputs: Vec<u32> = outputs.filter(|_| how.draw(4) != 3).collect();
            let params = 0..region.graph().params().len() as u32;
            let dying: Vec<u32> = params.filter(|_| how.draw(2) == 1).collect();
            let aliases = Aliases::pair(&region, &outputs, &dying);
            for numerics in [Numerics::Fast, Numerics::Exact] {
                let module = lower(&region, &outputs, &aliases, numerics);
                if let Err(error) = module.clone().verify() {
                    return Err(TestCaseError::fail(format!("{error} in {module}")));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

// ----- changes -----

/// A graph that can be changed and built again.
#[derive(Clone)]
struct Draft {
    params: Vec<fuseline_fusion::TensorType>,
    lifted: Vec<bool>,
    nodes: Vec<(Attempt, Vec<Ref>)>,
}

impl Draft {
    fn of(program: &Program, lifted: &[ProgramId]) -> Draft {
        let mut known: HashMap<ProgramId, Ref> = HashMap::new();
        let mut draft = Draft { params: Vec::new(), lifted: Vec::new(), nodes: Vec::new() };
        for value in &program.values {
            known.insert(value.id, Ref::Param(draft.params.len() as u32));
            draft.params.push(value.data.ty().clone());
            draft.lifted.push(lifted.contains(&value.id));
        }
        let mut results = 0;
        for op in &program.ops {
            let operands = op.operands.iter().map(|id| known[id]).collect();
            draft.nodes.push((Attempt::of(&op.signature), operands));
            for &id in &op.results {
                known.insert(id, Ref::Result(results));
                results += 1;
            }
        }
        draft
    }

    /// The region, if every op still fits the op table.
    fn region(&self) -> Option<CanonRegion> {
        if self.params.iter().zip(&self.lifted).any(|(ty, &lifted)| lifted && !can_lift(ty)) {
            return None;
        }
        let mut graph = Graph::new();
        for ty in &self.params {
            graph.param(ty.clone());
        }
        for (call, operands) in &self.nodes {
            graph.push(call.def.code, call.attrs.clone(), &call.bodies, operands).ok()?;
        }
        Some(CanonRegion::new(graph, self.lifted.clone().into()))
    }
}

/// What can be changed about a region.
const CHANGES: [&str; 9] = [
    "op",
    "attribute",
    "body",
    "operand",
    "parameter",
    "lifted",
    "op added",
    "op dropped",
    "parameter added",
];

/// Another body of the same type, or of another one.
fn changed_body(entropy: &mut dyn Entropy, body: &Body) -> Option<Body> {
    let returns = body.returns();
    if returns.is_empty() || entropy.draw(2) == 0 {
        // Another op inside.
        let mut graph = Graph::new();
        for ty in body.graph().params() {
            graph.param(ty.clone());
        }
        let target = place(entropy, body.graph().nodes().len());
        let other = pick(entropy, &OPS.iter().collect::<Vec<_>>());
        for (index, node) in body.graph().nodes().iter().enumerate() {
            let signature = node.signature();
            let op = if index == target { other.code } else { signature.op() };
            graph.push(op, signature.attrs().clone(), signature.bodies(), node.operands()).ok()?;
        }
        return Body::new(graph, returns);
    }
    let mut returns = returns.to_vec();
    let at = place(entropy, returns.len());
    returns[at] = Ref::Param(entropy.draw(body.graph().params().len() as u32));
    Body::new(body.graph().clone(), &returns)
}

/// Changes one thing; whether that can be done to this draft.
fn change(draft: &mut Draft, what: &str, entropy: &mut dyn Entropy) -> Option<()> {
    let param = place(entropy, draft.params.len());
    let node = place(entropy, draft.nodes.len());
    match what {
        "op" => draft.nodes.get_mut(node)?.0.def = pick(entropy, &OPS.iter().collect::<Vec<_>>()),
        "attribute" => draft.nodes.get_mut(node)?.0.change_attr(entropy),
        "body" => {
            let bodies = &mut draft.nodes.get_mut(node)?.0.bodies;
            let at = place(entropy, bodies.len());
            let changed = changed_body(entropy, bodies.get(at)?)?;
            bodies[at] = Arc::new(changed);
        }
        "operand" => {
            let before: usize = draft.nodes.get(..node)?.len();
            let operands = &mut draft.nodes.get_mut(node)?.1;
            let at = place(entropy, operands.len());
            *operands.get_mut(at)? = if before == 0 || entropy.draw(2) == 0 {
                Ref::Param(param as u32)
            } else {
                Ref::Result(entropy.draw(before as u32))
            };
        }
        "constant" => {
            let mut constants = draft.nodes.iter_mut().filter(|(call, _)| call.def.code == OpCode::Constant);
            constants.next()?.0.change_attr(entropy);
        }
        "element type" | "shape" => {
            let ty = draft.params.get_mut(param)?;
            let other = hostile_type(entropy, ty)?;
            let is_wanted =
                if what == "shape" { other.dtype() == ty.dtype() } else { other.shape() == ty.shape() };
            *ty = is_wanted.then_some(other)?;
        }
        "lifted" => {
            let lifted = draft.lifted.get_mut(param)?;
            *lifted = !*lifted;
        }
        "op added" => {
            let again = draft.nodes.get(node)?.clone();
            draft.nodes.push(again);
        }
        "op dropped" => {
            draft.nodes.pop()?;
        }
        _ => {
            draft.params.push(draft.params.get(param)?.clone());
            draft.lifted.push(false);
        }
    }
    Some(())
}

/// Whether two drafts say the same, told without the encoding.
fn is_same(a: &Draft, b: &Draft) -> bool {
    let same_call = |(x, p): &(Attempt, Vec<Ref>), (y, q): &(Attempt, Vec<Ref>)| {
        x.def.code == y.def.code && x.attrs == y.attrs && x.bodies == y.bodies && p == q
    };
    a.params == b.params
        && a.lifted == b.lifted
        && a.nodes.len() == b.nodes.len()
        && a.nodes.iter().zip(&b.nodes).all(|(x, y)| same_call(x, y))
}

#[test]
fn every_change_changes_the_key() {
    let counts: RefCell<HashMap<&str, u32>> = RefCell::default();
    let case = (choices(200), choices(600), 1..8_usize);
    let outcome = runner(600).run(&case, |(list, how, ops)| {
        let program = sample(&mut from(&list), ops);
        let mut how = from(&how);
        let lifted = some_lifted(&program, &mut how);
        let mut draft = Draft::of(&program, &lifted);
        if let Some(constant) = sampled(OpCode::Constant.def(), &mut how, Aim::Everything) {
            draft.nodes.push((Attempt::of(&constant.signature), Vec::new()));
        }
        let Some(region) = draft.region() else {
            return Err(TestCaseError::fail("a sampled program is refused"));
        };
        let environment = environment();
        for what in CHANGES {
            for _ in 0..6 {
                let mut changed = draft.clone();
                if change(&mut changed, what, &mut how).is_none() || is_same(&draft, &changed) {
                    continue;
                }
                let Some(other) = changed.region() else { continue };
                *counts.borrow_mut().entry(what).or_default() += 1;
                let told = region.key(&environment) != other.key(&environment)
                    && region.bytes() != other.bytes()
                    && region != other
                    && !diff(&region, &other).is_empty();
                if !told {
                    let (a, b) = (region.graph(), other.graph());
                    return Err(TestCaseError::fail(format!("{what} changed nothing: {a:?} and {b:?}")));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let counts = counts.into_inner();
    for what in CHANGES {
        assert!(counts.get(what).copied().unwrap_or(0) >= 50, "{what} was hardly changed: {counts:?}");
    }
}

/// The environment is as much a part of the key as the region.
#[test]
fn every_environment_has_keys_of_its_own() {
    let program = sample(&mut Seeded::new(3), 6);
    let region = Draft::of(&program, &[]).region().expect("a sampled program is accepted");
    let mut keys = HashMap::new();
    let description = b"plugin 1, device 0, flags none";
    let mut descriptions = vec![description.to_vec(), Vec::new(), [&description[..], b"\0"].concat()];
    for bit in 0..description.len() * 8 {
        let mut flipped = description.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        descriptions.push(flipped);
    }
    for description in descriptions {
        let environment = EnvFingerprint::of(&description);
        assert_eq!(environment, EnvFingerprint::of(&description));
        let earlier = keys.insert(region.key(&environment), description.clone());
        assert!(earlier.is_none(), "{earlier:?} and {description:?} have one key");
    }
}

// ----- encoding -----

/// Decoding these bytes does not panic, and does not give the region.
fn is_told_apart(region: &CanonRegion, bytes: &[u8]) -> Result<(), TestCaseError> {
    match decode(bytes) {
        Err(_) => Ok(()),
        Ok(other) if &other != region && other.graph() != region.graph() => Ok(()),
        // What is lifted stands beside the graph.
        Ok(other) if &other != region && other.lifted() != region.lifted() => Ok(()),
        Ok(other) => {
            let (graph, found) = (region.graph(), other.graph());
            Err(TestCaseError::fail(format!("{bytes:?} reads as {found:?}, which is {graph:?}")))
        }
    }
}

#[test]
fn canonical_bytes_have_one_reading() {
    let case = (choices(200), proptest::collection::vec(proptest::num::u32::ANY, 60), 0..8_usize);
    let outcome = runner(300).run(&case, |(list, noise, ops)| {
        let program = sample(&mut from(&list), ops);
        let mut noise = from(&noise);
        let lifted = some_lifted(&program, &mut noise);
        let Some(region) = Draft::of(&program, &lifted).region() else {
            return Err(TestCaseError::fail("a sampled program is refused"));
        };
        let bytes = region.bytes();
        let back = decode(bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        if back.graph() != region.graph() || back.lifted() != region.lifted() || back.bytes() != bytes {
            return Err(TestCaseError::fail(format!("{:?} decodes to {:?}", region.graph(), back.graph())));
        }
        for len in 0..bytes.len() {
            if decode(&bytes[..len]).is_ok() {
                return Err(TestCaseError::fail(format!("{len} of {} bytes are a region", bytes.len())));
            }
        }
        is_told_apart(&region, &[bytes, &[0]].concat())?;
        // LEB128 has longer spellings of every integer.
        for (at, &byte) in bytes.iter().enumerate().take(200) {
            let long = [&bytes[..at], &[byte | 0x80, 0], &bytes[at + 1..]].concat();
            is_told_apart(&region, &long)?;
        }
        // Every bit of a short encoding, and of a long one so many as there are in a short one.
        let flips = (bytes.len() * 8).min(512);
        for flip in 0..flips {
            let bit = if bytes.len() * 8 <= 512 { flip } else { place(&mut noise, bytes.len() * 8) };
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            is_told_apart(&region, &flipped)?;
        }
        for _ in 0..20 {
            // Several bytes at once, and parts out of place.
            let mut broken = bytes.to_vec();
            let (from, to) = (place(&mut noise, bytes.len()), place(&mut noise, bytes.len()));
            match noise.draw(3) {
                0 => broken[from] = noise.draw(256) as u8,
                1 => broken.swap(from, to),
                _ => broken = [&bytes[..from], &bytes[to..]].concat(),
            }
            if broken != bytes {
                is_told_apart(&region, &broken)?;
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn noise_is_no_region() {
    let bytes = proptest::collection::vec(proptest::num::u8::ANY, 0..64);
    let outcome = runner(20_000).run(&bytes, |mut bytes| {
        for format in [None, Some(fuseline_fusion::canon::FORMAT)] {
            if let (Some(first), Some(format)) = (bytes.first_mut(), format) {
                *first = format;
            }
            if let Ok(region) = decode(&bytes)
                && region.bytes() != bytes
            {
                return Err(TestCaseError::fail("two spellings"));
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
