//! Boundaries without a request: loops are cut at the same places in every round, odd ops have
//! little effect, and neither names nor frees nor earlier ops matter.
#![allow(missing_docs, reason = "a test")]

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, RegionKey};
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{
    Boundary, Budgets, ContentChunking, Mode, Operand, Region, RegionBuilder, TraceOp,
};
use fuseline_fusion::{Attrs, DType, OpCode, Signature, Site, TensorType, ValueId};
use fuseline_testgen::{Entropy, Seeded};

/// An op of a loop body: what it computes, of which values of the round.
#[derive(Clone)]
struct BodyOp {
    signature: Arc<Signature>,
    operands: Vec<usize>,
}

/// Shapes of the values; ops combine values of one shape.
const SIZES: [u64; 4] = [8, 64, 64, 4_096];

/// Values that a round passes to the next, a few of each shape.
const CARRIED: usize = 8;

fn ty(kind: usize) -> TensorType {
    TensorType::of(DType::F32, &[SIZES[kind]]).expect("a small shape")
}

fn kind(value: usize, ops: &[BodyOp]) -> usize {
    match value.checked_sub(2 * CARRIED) {
        None => value % SIZES.len(),
        Some(op) => {
            SIZES.iter().position(|&size| ops[op].signature.results()[0].dims() == [size]).expect("a size")
        }
    }
}

fn random_op(entropy: &mut dyn Entropy, ops: &[BodyOp]) -> BodyOp {
    // Mostly of recent values, as in programs.
    let values = 2 * CARRIED + ops.len();
    let first = if ops.is_empty() || entropy.draw(4) == 0 {
        entropy.draw(values as u32) as usize
    } else {
        values - 1 - entropy.draw(ops.len().min(6) as u32) as usize
    };
    let own = kind(first, ops);
    let unary = [OpCode::Tanh, OpCode::Exponential, OpCode::Negate, OpCode::Sqrt];
    let binary = [OpCode::Add, OpCode::Multiply, OpCode::Maximum];
    let (op, operands) = if entropy.draw(3) == 0 {
        (unary[entropy.draw(4) as usize], vec![first])
    } else {
        let mut second = values - 1 - entropy.draw(values.min(40) as u32) as usize;
        while kind(second, ops) != own {
            second = entropy.draw(2 * CARRIED as u32) as usize;
        }
        (binary[entropy.draw(3) as usize], vec![first, second])
    };
    let types: Vec<TensorType> = operands.iter().map(|_| ty(own)).collect();
    let signature = Signature::infer(op, Attrs::none(), &[], &types).expect("elementwise");
    BodyOp { signature: Arc::new(signature), operands }
}

/// A body with this many ops. Values 0 to [`CARRIED`] come from the previous round; the next as
/// many are the same in all rounds.
fn body(seed: u64, ops: usize) -> Vec<BodyOp> {
    let mut entropy = Seeded::new(seed);
    let mut body = Vec::new();
    for _ in 0..ops {
        let op = random_op(&mut entropy, &body);
        body.push(op);
    }
    body
}

/// A recorder's state for a stream.
struct Recorder {
    builder: RegionBuilder,
    sealed: Vec<Region>,
    next: u64,
    carried: Vec<ValueId>,
    fixed: Vec<ValueId>,
    /// Values whose handles a slow garbage collector has not dropped yet.
    garbage: VecDeque<ValueId>,
    /// The largest number of them.
    slack: usize,
}

impl Recorder {
    fn new(first: u64, slack: usize) -> Recorder {
        let name = |index: usize| ValueId::from_raw(first + index as u64).expect("not zero");
        Recorder {
            builder: RegionBuilder::new(Box::new(ContentChunking::default()), Budgets::default()),
            sealed: Vec::new(),
            next: first + 2 * CARRIED as u64,
            carried: (0..CARRIED).map(name).collect(),
            fixed: (CARRIED..2 * CARRIED).map(name).collect(),
            garbage: VecDeque::new(),
            slack,
        }
    }

    fn release(&mut self, value: ValueId) {
        self.garbage.push_back(value);
        while self.garbage.len() > self.slack {
            let value = self.garbage.pop_front().expect("not empty");
            let _ = self.builder.release(value);
        }
    }

    fn round(&mut self, body: &[BodyOp]) {
        self.round_with(body, None);
    }

    /// A round. Before the op `asks` the program requests a boundary.
    fn round_with(&mut self, body: &[BodyOp], asks: Option<usize>) {
        let mut values: Vec<ValueId> = self.carried.iter().chain(&self.fixed).copied().collect();
        for (at, op) in body.iter().enumerate() {
            if asks == Some(at) {
                self.builder.seal(Boundary::Flush, &mut self.sealed);
            }
            let result = ValueId::from_raw(self.next).expect("not zero");
            self.next += 1;
            let op_of = |operand: &usize| Operand::Tensor(values[*operand]);
            self.builder.push(
                TraceOp {
                    signature: op.signature.clone(),
                    operands: op.operands.iter().map(op_of).collect(),
                    results: [result].into_iter().collect(),
                    effect: Effect::Pure,
                    mode: Mode::Fused,
                    site: Site::Unknown,
                },
                &mut self.sealed,
            );
            values.push(result);
        }
        // The next round gets the last values of each shape; all others are freed.
        let mut carried = self.carried.clone();
        for (at, slot) in carried.iter_mut().enumerate() {
            let mut made =
                (2 * CARRIED..values.len()).rev().filter(|&value| kind(value, body) == at % SIZES.len());
            if let Some(value) = made.nth(at / SIZES.len()) {
                *slot = values[value];
            }
        }
        for value in values {
            if !carried.contains(&value) && !self.fixed.contains(&value) {
                self.release(value);
            }
        }
        self.carried = carried;
    }
}

fn canon(region: Region) -> CanonRegion {
    let lifted = region.inputs.iter().map(|input| input.lifted).collect();
    CanonRegion::new(region.graph, lifted)
}

fn key(region: Region) -> RegionKey {
    canon(region).key(&EnvFingerprint::of(b"a test"))
}

/// The regions of a stream: key, number of ops, and number of units merged into it.
fn told(sealed: Vec<Region>) -> Vec<(RegionKey, usize, usize)> {
    let of = |region: Region| {
        let (ops, units) = (region.sites.len(), region.units.len());
        (key(region), ops, units)
    };
    sealed.into_iter().map(of).collect()
}

fn rounds(body: &[BodyOp], rounds: usize) -> Vec<Region> {
    let mut recorder = Recorder::new(1, 0);
    (0..rounds).for_each(|_| recorder.round(body));
    recorder.sealed
}

/// The case that motivated the rule: loops of any length cause nothing new after four and a half
/// rounds or some thousand ops, with at most one executable for 256 ops plus two.
#[test]
fn loops_without_reads_settle() {
    for ops in [10, 17, 33, 57, 100, 256, 300, 511, 600, 795, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000] {
        for seed in 0..3 {
            let regions = told(rounds(&body(seed, ops), 8.max(20_000 / ops)));
            let (mut at, mut last, mut seen) = (0, 0, HashSet::new());
            for &(key, len, _) in &regions {
                at += len;
                if seen.insert(key) {
                    last = at;
                }
            }
            let what = format!("{ops} ops, seed {seed}: {} executables, the last at op {last}", seen.len());
            println!("{what}, of {at}");
            // A short loop has its initial region, the region that repeats, and the merged regions.
            assert!(seen.len() <= (2 + ops / 256).max(3), "{what}");
            assert!(last <= (9 * ops / 2).max(3_600), "{what}");
            // In the end the repeating region is the round, or several of them.
            let steady: Vec<usize> =
                regions.iter().map(|&(_, len, _)| len).rev().skip_while(|len| len % ops != 0).collect();
            assert!(steady.len() >= 2 && steady[0] == steady[1], "{what}: {steady:?}");
        }
    }
}

/// Three rounds of a hundred have a different op.
#[test]
fn odd_ops_spoil_little() {
    for ops in [57, 300, 795, 3_000] {
        let plain = body(1, ops);
        let mut entropy = Seeded::new(7);
        let mut recorder = Recorder::new(1, 0);
        let mut known: HashSet<RegionKey> = HashSet::new();
        let (mut served, mut all) = (0, 0);
        for _ in 0..(200_000 / ops) {
            let mut round = plain.clone();
            if entropy.draw(100) < 3 {
                let at = entropy.draw(ops as u32) as usize;
                let other = random_op(&mut entropy, &round[..at]);
                if other.signature.results() == round[at].signature.results() {
                    round[at] = other;
                }
            }
            recorder.round(&round);
            for region in recorder.sealed.drain(..) {
                let ops = region.sites.len();
                all += ops;
                if !known.insert(key(region.clone())) {
                    served += ops;
                } else if !region.units.is_empty() {
                    let units = region.into_units().into_iter();
                    served += units
                        .map(|unit| (unit.sites.len(), key(unit)))
                        .filter(|(_, key)| !known.insert(*key))
                        .map(|(ops, _)| ops)
                        .sum::<usize>();
                }
            }
        }
        let part = 100.0 * served as f64 / all as f64;
        println!("{ops} ops: {part:.2} % of {all} ops were known, {} executables", known.len());
        assert!(part >= 95.0, "{ops} ops: {part:.2} %");
    }
}

/// Neither names nor the time of frees.
#[test]
fn names_and_collectors_change_nothing() {
    for ops in [40, 700, 2_500] {
        let body = body(3, ops);
        let record = |first, slack| {
            let mut recorder = Recorder::new(first, slack);
            (0..12).for_each(|_| recorder.round(&body));
            told(recorder.sealed)
        };
        let wanted = record(1, 0);
        assert!(wanted.len() > 3 || ops == 40);
        assert_eq!(wanted, record(1 << 40, 0));
        assert_eq!(wanted, record(7, 3_000));
    }
}

/// A value that the next round frees is no result of a round: a program that keeps values that long
/// has no more results than one that does not.
#[test]
fn frees_of_the_next_round_count() {
    for ops in [600, 700] {
        let body = body(4, ops);
        let live = |slack| {
            let mut recorder = Recorder::new(1, slack);
            (0..20).for_each(|_| recorder.round(&body));
            let rounds = recorder.sealed.iter().filter(|region| region.round.is_some());
            rounds.map(|region| region.outputs.iter().filter(|output| output.live).count()).collect()
        };
        let (at_once, late): (Vec<usize>, Vec<usize>) = (live(0), live(ops / 2));
        assert!(at_once.len() > 8, "{ops} ops: {} rounds", at_once.len());
        assert_eq!(at_once, late, "{ops} ops");
    }
}

/// Two rounds of nearly equal ops are distinguished by any op.
#[test]
fn a_round_is_sealed_only_if_each_op_is_the_expected_one() {
    let ops = 600;
    let plain = body(8, ops);
    for at in [0, 1, 299, 598, 599] {
        let mut odd = plain.clone();
        let mut entropy = Seeded::new(at as u64);
        while odd[at].signature == plain[at].signature && odd[at].operands == plain[at].operands {
            let other = random_op(&mut entropy, &plain[..at]);
            if other.signature.results() == plain[at].signature.results() {
                odd[at] = other;
            }
        }
        let mut recorder = Recorder::new(1, 0);
        (0..20).for_each(|_| recorder.round(&plain));
        let fingerprint = recorder.sealed.iter().find_map(|region| region.round);
        assert!(fingerprint.is_some_and(|fingerprint| recorder.builder.expects(fingerprint)));
        let before = recorder.sealed.len();
        recorder.round(&odd);
        recorder.round(&plain);
        assert!(!fingerprint.is_some_and(|fingerprint| recorder.builder.expects(fingerprint)), "op {at}");
        let keys: HashSet<RegionKey> = recorder.sealed[..before].iter().cloned().map(key).collect();
        let sealed: Vec<Region> = recorder.sealed.drain(before..).collect();
        // Sealed rounds are unchanged, and the odd one is not among them.
        assert!(
            sealed
                .iter()
                .filter(|region| region.round.is_some())
                .all(|region| keys.contains(&key(region.clone())))
        );
    }
}

/// Ops between two boundaries are accepted without inspection only if the expected round would not
/// have cut them.
#[test]
fn nothing_is_taken_unseen_where_a_round_is_expected() {
    let body = body(8, 600);
    let mut recorder = Recorder::new(1, 0);
    assert!(recorder.builder.replay(40, &[], Boundary::Flush));
    (0..20).for_each(|_| recorder.round(&body));
    let fingerprint = recorder.sealed.iter().find_map(|region| region.round);
    // More ops than a region may have precede this boundary, so the round is expected after it too.
    recorder.builder.seal(Boundary::Flush, &mut recorder.sealed);
    assert!(
        recorder.builder.pending() == 0
            && fingerprint.is_some_and(|fingerprint| recorder.builder.expects(fingerprint))
    );
    assert!(!recorder.builder.replay(40, &[], Boundary::Flush));
}

/// A loop that requests a boundary at the same place of every eleventh round is cut there, and
/// after it into rounds, from the third time on.
#[test]
fn rounds_begin_where_the_program_asks() {
    for (ops, at) in [(600, 0), (600, 1), (700, 699), (1_100, 400), (2_300, 1_999), (2_300, 0)] {
        let body = body(6, ops);
        let mut recorder = Recorder::new(1, 0);
        let mut keys: HashSet<RegionKey> = HashSet::new();
        for round in 0..100 {
            recorder.round_with(&body, (round % 11 == 10).then_some(at));
            let regions = told(recorder.sealed.drain(..).collect());
            // The first two find the place; then the round is a new region, once.
            let is_settled = round > 3 * 11;
            for (key, len, _) in regions {
                let is_new = keys.insert(key);
                assert!(
                    !is_settled || (len == ops && !is_new),
                    "{ops} ops, {at}: {len} ops in round {round}"
                );
            }
        }
        let expected = recorder.builder.expects_next();
        assert!(expected.is_none(), "{ops} ops, {at}: something is pending");
    }
}

/// A prologue precedes the loop after each requested boundary. In the end every block is cut into
/// the same rounds, and the builder expects the first one behind the prologue.
#[test]
fn rounds_begin_behind_a_prologue() {
    for (ops, ahead) in [(600, 1), (600, 700), (700, 40), (1_100, 300)] {
        let (body, prologue) = (body(6, ops), body(9, ahead));
        let mut recorder = Recorder::new(1, 0);
        let mut keys: HashSet<RegionKey> = HashSet::new();
        for block in 0..10 {
            recorder.round_with(&prologue, Some(0));
            (0..11).for_each(|_| recorder.round(&body));
            recorder.builder.seal(Boundary::Flush, &mut recorder.sealed);
            let expected = recorder.builder.expects_next();
            let sealed: Vec<Region> = recorder.sealed.drain(..).collect();
            let rounds = sealed.iter().filter(|region| region.round.is_some()).count();
            let is_settled = block > 5;
            for (key, len, _) in told(sealed) {
                let is_new = keys.insert(key);
                assert!(!is_settled || !is_new, "{ops} ops behind {ahead}: {len} new ops in block {block}");
            }
            if is_settled {
                let begin = expected.map(|(_, begin)| begin);
                assert!(
                    begin.is_some_and(|begin| (ahead..ahead + 2 * ops).contains(&begin)),
                    "{ops} ops behind {ahead}: the next round begins after {begin:?}"
                );
                assert!(rounds >= 8, "{ops} ops behind {ahead}: {rounds} of 11 rounds");
            }
        }
    }
}

/// No op is lost when the length of the prologue changes.
#[test]
fn every_op_is_sealed_once_behind_another_prologue() {
    let (body, usual) = (body(6, 700), body(9, 40));
    for ahead in [0, 1, 39, 41, 900] {
        let other = self::body(11, ahead);
        let mut recorder = Recorder::new(1, 0);
        let mut block = |prologue: &[BodyOp]| {
            recorder.builder.seal(Boundary::Flush, &mut recorder.sealed);
            recorder.round(prologue);
            (0..11).for_each(|_| recorder.round(&body));
            recorder.builder.seal(Boundary::Flush, &mut recorder.sealed);
            let sealed: Vec<Region> = recorder.sealed.drain(..).collect();
            sealed.iter().map(|region| region.sites.len()).sum::<usize>()
        };
        (0..6).for_each(|_| assert_eq!(block(&usual), 40 + 11 * 700));
        (0..6).for_each(|_| assert_eq!(block(&other), ahead + 11 * 700));
    }
}

/// If a program requests boundaries at different places each time, rounds begin where the rule
/// says, and nothing is compiled for each place.
#[test]
fn rounds_are_not_turned_to_each_place() {
    let ops = 700;
    let body = body(6, ops);
    let mut recorder = Recorder::new(1, 0);
    for round in 0..400 {
        recorder.round_with(&body, (round % 9 == 8).then_some(37 * round % ops));
    }
    let regions = told(recorder.sealed);
    let rounds: HashSet<RegionKey> =
        regions.iter().filter(|(_, len, _)| *len == ops).map(|&(key, _, _)| key).collect();
    assert!(rounds.len() <= 2, "{} rounds", rounds.len());
}

/// A merged region equals its units, one after the other.
#[test]
fn joined_regions_come_apart_into_their_units() {
    for ops in [100, 900, 2_500] {
        let body = body(5, ops);
        let record = |joined_ops| {
            let mut recorder = Recorder::new(1, 0);
            let budgets = Budgets { joined_ops, ..Budgets::default() };
            recorder.builder = RegionBuilder::new(Box::new(ContentChunking::default()), budgets);
            (0..30).for_each(|_| recorder.round(&body));
            recorder.sealed
        };
        let (joined, alone) = (record(5_000), record(0));
        assert!(
            joined.iter().any(|region| region.units.len() > 1)
                && alone.iter().all(|region| region.units.is_empty())
        );
        let apart: Vec<Region> = joined.into_iter().flat_map(Region::into_units).collect();
        // A merged region is sealed later: no fewer values are freed by then.
        let is_equal = |(a, b): (&Region, &Region)| {
            a.inputs.len() == b.inputs.len()
                && a.inputs
                    .iter()
                    .zip(&b.inputs)
                    .all(|(a, b)| (a.value, a.lifted) == (b.value, b.lifted) && (a.dies || !b.dies))
                && a.outputs.len() == b.outputs.len()
                && a.graph == b.graph
                && a.boundary == b.boundary
        };
        let len = apart.len().min(alone.len());
        assert!(len > 10 && apart.iter().zip(&alone).all(is_equal));
    }
}

/// An op that computes the value `result` of `operand`, which may be a lifted scalar.
fn tanh(operand: Operand<ValueId>, result: u64, mode: Mode, effect: Effect) -> TraceOp {
    let signature = Signature::infer(OpCode::Tanh, Attrs::none(), &[], &[TensorType::scalar(DType::F32)]);
    TraceOp {
        signature: Arc::new(signature.expect("elementwise")),
        operands: [operand].into_iter().collect(),
        results: [ValueId::from_raw(result).expect("not zero")].into_iter().collect(),
        effect,
        mode,
        site: Site::Unknown,
    }
}

#[test]
fn another_mode_or_an_effect_ends_a_region() {
    let mut builder = RegionBuilder::new(Box::new(ContentChunking::default()), Budgets::default());
    let (mut sealed, mut next) = (Vec::new(), 1);
    let mut push = |mode: Mode, effect: Effect, sealed: &mut Vec<Region>| {
        let operand = Operand::Tensor(ValueId::from_raw(next).expect("not zero"));
        next += 1;
        builder.push(tanh(operand, next, mode, effect), sealed);
    };
    for (mode, effect, own, before) in [
        (Mode::Strict, Effect::Pure, Boundary::Strict, Boundary::ModeChange),
        (Mode::Fused, Effect::Ordered, Boundary::Effect, Boundary::Effect),
    ] {
        for _ in 0..2 {
            push(Mode::Fused, Effect::Pure, &mut sealed);
        }
        assert!(sealed.is_empty());
        push(mode, effect, &mut sealed);
        let found: Vec<_> =
            sealed.drain(..).map(|region| (region.graph.nodes().len(), region.boundary)).collect();
        assert_eq!(found, [(2, before), (1, own)]);
    }
}

/// Lifted scalars do not count against the limit of inputs of an iteration.
#[test]
fn an_iteration_may_have_many_numbers() {
    let budgets = Budgets { joined_inputs: 4, ops: 64, ..Budgets::default() };
    let mut builder = RegionBuilder::new(Box::new(ContentChunking::default()), budgets);
    let (mut sealed, mut next) = (Vec::new(), 1_000_000);
    for _ in 0..400 {
        for number in 0..50 {
            next += 1;
            let operand = Operand::Scalar(ValueId::from_raw(1 + number).expect("not zero"));
            builder.push(tanh(operand, next, Mode::Fused, Effect::Pure), &mut sealed);
        }
    }
    builder.seal(Boundary::Flush, &mut sealed);
    let iterations = sealed.iter().filter(|region| region.round.is_some()).count();
    assert!(iterations > 20, "{iterations} of {} regions", sealed.len());
}
