//! Recordings of programs: everything that keys must not depend on, and where regions end.
//!
//! Input: a program and choices. The properties here are used by the tests of keys and the fuzz
//! targets.

use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, diff};
use fuseline_fusion::lower::{Aliases, Numerics, lower};
use fuseline_fusion::op::Effect;
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::region::{
    Boundary, BoundaryRule, Budgets, Cut, HardOnly, Mode, Operand, OperandDistance, PendingStats, Region,
    RegionBuilder, TraceOp,
};
use fuseline_fusion::{Signature, Site, ValueId};
use fuseline_testgen::{Aim, Entropy, ProgramOptions, ProgramSampler};

use super::draft::{environment, some_lifted};
use super::hostile::pick;

pub fn sample(entropy: &mut dyn Entropy, ops: usize) -> Program {
    ProgramSampler::sample(ProgramOptions::new(Aim::Everything), entropy, ops).program
}

/// A rule that cuts after a fixed number of ops, which is all it sees.
#[derive(Debug)]
struct Every(usize);

impl BoundaryRule for Every {
    fn after(
        &mut self,
        _op: &Signature,
        _operands: &[OperandDistance],
        pending: PendingStats,
    ) -> Option<Cut> {
        (pending.ops >= self.0).then_some(Cut { len: self.0, reason: Boundary::OpBudget })
    }

    fn reset(&mut self) {}
}

/// How a program is recorded: everything that keys must not depend on, and where its regions end.
struct Recording<'a> {
    program: &'a Program,
    /// Inputs of rank 0 that are lifted scalars.
    lifted: &'a [ProgramId],
    /// The raw id of a value.
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

    /// Records the program alone. Calls `after` with the builder after each op.
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

fn same(wanted: &[CanonRegion], found: &[CanonRegion], what: &str) -> Result<(), String> {
    let environment = environment();
    let equal = wanted.len() == found.len()
        && wanted.iter().zip(found).all(|(a, b)| {
            a.key(&environment) == b.key(&environment)
                && a.bytes() == b.bytes()
                && a == b
                && a.skeleton() == b.skeleton()
                && diff(a, b).is_empty()
        });
    if equal { Ok(()) } else { Err(format!("{what}: {wanted:?} became {found:?}")) }
}

/// Checks that names, frees, interleavings and the mode change no region and no key. Returns the
/// number of regions.
pub fn keeps_its_keys(program: &Program, how: &mut dyn Entropy) -> Result<usize, String> {
    let lifted = some_lifted(program, how);
    let every = pick(how, &[0, 1, 3]);
    let plain = |id: ProgramId| u64::from(id.0) + 1;
    let recording = Recording { program, lifted: &lifted, name: &plain, every, mode: Mode::Fused };
    let wanted = recording.regions(|_, _| {});

    // Other names in another order, like those after a longer program.
    let (factor, offset) = (pick(how, &[1, 3, 0x9e37_79b9_7f4a_7c15]), u64::from(how.draw(1 << 20)));
    let other = |id: ProgramId| (u64::from(id.0) + offset + 1).wrapping_mul(factor);
    let backward = |id: ProgramId| u64::MAX - u64::from(id.0);
    for name in [&other as &dyn Fn(ProgramId) -> u64, &backward] {
        same(&wanted, &Recording { name, ..recording }.regions(|_, _| {}), "renamed")?;
    }

    // Frees at random points: values that no later op uses, and unknown values.
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

    // The same program on another stream at the same time, with the ops in any interleaving.
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

    // Whatever ends a region, the region is the same: one op in Strict mode, and one op after a
    // cut.
    let strict = Recording { mode: Mode::Strict, every: 0, ..recording }.regions(|_, _| {});
    let single = Recording { every: 1, ..recording }.regions(|_, _| {});
    same(&single, &strict, "in Strict mode")?;
    Ok(wanted.len())
}

/// Checks that the verifier accepts what is printed for the program's regions, with any results and
/// any aliasing, fast and exact.
pub fn is_read_back(program: &Program, how: &mut dyn Entropy) -> Result<(), String> {
    let lifted = some_lifted(program, how);
    let name = |id: ProgramId| u64::from(id.0) + 1;
    let every = pick(how, &[0, 1, 3]);
    let recording = Recording { program, lifted: &lifted, name: &name, every, mode: Mode::Fused };
    for region in recording.regions(|_, _| {}) {
        let outputs = 0..region.graph().result_count() as u32;
        let outputs: Vec<u32> = outputs.filter(|_| how.draw(4) != 3).collect();
        let params = 0..region.graph().params().len() as u32;
        let dying: Vec<u32> = params.filter(|_| how.draw(2) == 1).collect();
        let aliases = Aliases::pair(&region, &outputs, &dying);
        for numerics in [Numerics::Fast, Numerics::Exact] {
            let module = lower(&region, &outputs, &aliases, numerics);
            if let Err(error) = module.clone().verify() {
                return Err(format!("{error} in {module}"));
            }
        }
    }
    Ok(())
}
