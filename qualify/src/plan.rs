//! What a qualification tries, in which order, and which of it shares a region.
//!
//! Input: a level. Output: batches of items. Everything is a function of the level and the op
//! table, so parent and workers agree about the meaning of an item.

use std::collections::BTreeSet;

use fuseline::fusion::op::{Evidence, Fusibility, Lowered, OPS, Workaround};
use fuseline::fusion::{DTypeSet, OpDef};
use fuseline::qualification::{Level, OperandKind};
use fuseline::{DType, OpCode};

use crate::calls::{Call, MOST, Pair, calls, dtype_attr, pairs, splats};
use crate::item::{Item, Unit};

/// The number of random programs.
pub const PROGRAMS: u64 = 500;

/// The number of pairs of one op in one region: most of a small compile is a fixed cost.
const TOGETHER: usize = 16;

/// The number of units in a region of the quick level. They are of several ops.
const TOGETHER_QUICK: usize = 24;

/// The number of programs in one region.
const PROGRAMS_TOGETHER: usize = 8;

/// The largest number of a pair's calls with constants, and of those whose operands are one number
/// each.
const CONSTANT: usize = 2;

/// The largest number of calls of a unit of the quick level.
const QUICK_CALLS: usize = 2;

/// The largest number of elements of an elementwise op's operand, at the quick level.
const QUICK_MOST: usize = 1 << 9;

/// The element types of the quick level: those of the programs in `benches/programs`, and a short
/// float.
const QUICK_TYPES: DTypeSet =
    DTypeSet::of(&[DType::F32, DType::BF16, DType::I32, DType::I64, DType::U64, DType::Bool]);

/// Items that a worker tries together.
pub type Batch = Vec<Item>;

/// Whether a pair is in the quick level: its types are [`QUICK_TYPES`], or it is the sample of the
/// other types of its op, or an elementwise op on a float of 8 bits, which compilers compute by
/// other code than longer ones.
fn is_quick(pair: &Pair) -> bool {
    if let Some(other) = pair.other {
        return QUICK_TYPES.contains(pair.dtype) && QUICK_TYPES.contains(other);
    }
    let types: Vec<DType> = pair.def.dtypes.and(DTypeSet::ANY).iter().collect();
    let rest: Vec<DType> = types.into_iter().filter(|dtype| !QUICK_TYPES.contains(*dtype)).collect();
    let sampled = rest.get(usize::from(pair.def.code.number()) % rest.len().max(1));
    let is_short = pair.dtype == DType::F8E4M3FN && pair.def.fusibility == Fusibility::Elementwise;
    QUICK_TYPES.contains(pair.dtype) || is_short || sampled == Some(&pair.dtype)
}

/// Whether a pair is tried with constants. Collectives of one replica are not folded.
fn is_folded(pair: &Pair, level: Level) -> bool {
    let is_sampled = match level {
        Level::Full => true,
        Level::Quick => {
            pair.def.fusibility == Fusibility::Elementwise
                && DTypeSet::of(&[DType::F32, DType::I32]).contains(pair.dtype)
        }
    };
    is_sampled && !pair.def.exchanges()
}

/// The batches of a level, without conformance cases: first the checks, then the calls.
#[must_use]
pub fn batches(level: Level) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let types: &[DType] = match level {
        Level::Quick => &[DType::F32],
        Level::Full => &[DType::F32, DType::F64, DType::BF16, DType::I32],
    };
    batches.extend(types.iter().map(|&dtype| vec![Item::Update(dtype)]));
    let divided: &[DType] = match level {
        Level::Quick => &[DType::F32],
        Level::Full => &[DType::F32, DType::F64],
    };
    batches.extend(divided.iter().map(|&dtype| vec![Item::Quotient(dtype)]));
    if level == Level::Full {
        let floats = DTypeSet::WIDE_FLOAT.iter().map(|dtype| vec![Item::Subnormal(dtype)]);
        batches.extend(floats);
        let exchange = OPS.iter().filter(|def| def.exchanges());
        let collectives = exchange.flat_map(collective_types);
        batches.extend(collectives.map(|(op, dtype)| vec![Item::Collective(op, dtype)]));
        let programs: Vec<Item> = (0..PROGRAMS).map(Item::Program).collect();
        batches.extend(programs.chunks(PROGRAMS_TOGETHER).map(<[Item]>::to_vec));
    }
    for operand_kind in [OperandKind::Uploaded, OperandKind::Constant] {
        batches.extend(unit_batches(level, operand_kind));
    }
    batches
}

/// The batches of a full qualification that give ops to the plugin without the workarounds of the
/// lowering: the pairs that a workaround changes.
#[must_use]
pub fn plain_batches() -> Vec<Batch> {
    let all = pairs();
    let is_changed: Vec<bool> = all.iter().map(|pair| !workarounds(pair).is_empty()).collect();
    let mut batches = Vec::new();
    for operand_kind in [OperandKind::Uploaded, OperandKind::Constant] {
        for mut batch in unit_batches(Level::Full, operand_kind) {
            batch.retain(|item| matches!(item, Item::Calls(unit) if is_changed[unit.pair]));
            if !batch.is_empty() {
                batches.push(batch);
            }
        }
    }
    batches
}

/// The number of elements of the calls by which [`workarounds`] judges: the element type and the
/// attributes decide, not the size.
const SMALL: usize = 8;

/// The workarounds that change calls of a pair, and whose need shows in such calls.
#[must_use]
pub fn workarounds(pair: &Pair) -> BTreeSet<Workaround> {
    let of_call = |call: Call| {
        let call = call.signature.call();
        let is_changed = matches!((call.def.lower)(&call), Lowered::As(_) | Lowered::Body(_));
        Workaround::of(&call).filter(|workaround| is_changed && workaround.evidence() == Evidence::Calls)
    };
    calls(*pair, SMALL).into_iter().filter_map(of_call).collect()
}

/// The types with which a collective is tried.
fn collective_types(def: &OpDef) -> impl Iterator<Item = (OpCode, DType)> + use<> {
    let (code, dtypes) = (def.code, def.dtypes);
    let tried = [DType::F32, DType::I32].into_iter().filter(move |dtype| dtypes.contains(*dtype));
    tried.map(move |dtype| (code, dtype))
}

fn unit_batches(level: Level, operand_kind: OperandKind) -> Vec<Batch> {
    let all = pairs();
    let is_tried = |pair: &Pair| {
        (level == Level::Full || is_quick(pair))
            && (operand_kind == OperandKind::Uploaded || is_folded(pair, level))
    };
    let tried: Vec<usize> = (0..all.len()).filter(|&pair| is_tried(&all[pair])).collect();
    let item = |&pair: &usize| Item::Calls(Unit { operand_kind, pair, range: None });
    let same_op = |a: &usize, b: &usize| all[*a].def.code == all[*b].def.code;
    // Each call becomes hundreds of ops, so several types together exceed the limit of a graph.
    let is_large = |pair: usize| matches!(all[pair].def.code, OpCode::Polygamma | OpCode::Zeta);
    let mut batches = Vec::new();
    for same in
        tried.chunk_by(|a, b| same_op(a, b) || (level == Level::Quick && is_large(*a) == is_large(*b)))
    {
        let size = match level {
            _ if is_large(same[0]) => 1,
            Level::Full => TOGETHER,
            Level::Quick => TOGETHER_QUICK,
        };
        batches.extend(same.chunks(size).map(|units| units.iter().map(item).collect::<Batch>()));
    }
    batches
}

/// The calls of a unit at a level. Empty if no call of the pair can be made.
#[must_use]
pub fn unit_calls(unit: Unit, all: &[Pair], level: Level) -> Vec<Call> {
    let Some(&pair) = all.get(unit.pair) else { return Vec::new() };
    let mut made = match (level, unit.operand_kind) {
        (Level::Quick, operand_kind) => {
            let calls = calls(pair, QUICK_MOST);
            let most = if operand_kind == OperandKind::Uploaded { QUICK_CALLS } else { 1 };
            spread(calls, most)
        }
        (Level::Full, OperandKind::Uploaded) => calls(pair, MOST),
        (Level::Full, OperandKind::Constant) => {
            let mut calls = spread(calls(pair, 1 << 10), CONSTANT);
            // A matrix of one number is singular, and whether that is detected depends on rounding.
            if pair.def.fusibility != Fusibility::Opaque {
                let splats: Vec<Call> = calls.iter().flat_map(splats).collect();
                calls.extend(splats);
            }
            calls
        }
    };
    if let Some((from, to)) = unit.range {
        made = made.into_iter().take(to).skip(from).collect();
    }
    made
}

/// At most `most` of the calls, evenly spread.
fn spread(calls: Vec<Call>, most: usize) -> Vec<Call> {
    let every = calls.len().div_ceil(most).max(1);
    calls.into_iter().step_by(every).collect()
}

/// Whether a pair may have no call at all: not every type can be a bitcast of every other, or the
/// sum of its products.
#[must_use]
pub fn may_have_no_call(pair: &Pair) -> bool {
    dtype_attr(pair.def).is_some() && pair.def.fusibility != Fusibility::Elementwise
}

/// The ops and element types that the calls of a level have.
#[must_use]
pub fn covered(level: Level) -> BTreeSet<(OpCode, DType)> {
    let all = pairs();
    let items = batches(level).into_iter().flatten();
    let pair = |item: Item| match item {
        Item::Calls(unit) => Some((all[unit.pair].def.code, all[unit.pair].dtype)),
        _ => None,
    };
    items.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_level_has_every_pair() {
        let all = pairs();
        let of = |operand_kind| {
            let items = batches(Level::Full).into_iter().flatten();
            items
                .filter(|item| matches!(item, Item::Calls(unit) if unit.operand_kind == operand_kind))
                .count()
        };
        assert_eq!(of(OperandKind::Uploaded), all.len());
        let folded = all.iter().filter(|pair| !pair.def.exchanges()).count();
        assert_eq!(of(OperandKind::Constant), folded);
    }

    /// A call that the lowering replaces has a reason (WORKAROUND-1).
    #[test]
    fn each_replacement_has_a_workaround() {
        for pair in pairs() {
            for call in calls(pair, SMALL) {
                let call = call.signature.call();
                if matches!((call.def.lower)(&call), Lowered::As(_) | Lowered::Body(_)) {
                    assert!(Workaround::of(&call).is_some(), "{pair}: {:?}", call.attrs);
                }
            }
        }
    }

    /// Each workaround whose need shows in calls is tried.
    #[test]
    fn each_workaround_is_tried() {
        let tried: BTreeSet<Workaround> = pairs().iter().flat_map(workarounds).collect();
        let shown = |workaround: &&Workaround| workaround.evidence() == Evidence::Calls;
        let wanted: BTreeSet<Workaround> = Workaround::ALL.iter().filter(shown).copied().collect();
        assert_eq!(tried, wanted);
    }

    #[test]
    fn the_quick_level_has_every_op() {
        let quick: BTreeSet<OpCode> = covered(Level::Quick).into_iter().map(|(op, _)| op).collect();
        let full: BTreeSet<OpCode> = covered(Level::Full).into_iter().map(|(op, _)| op).collect();
        assert_eq!(quick, full);
    }

    #[test]
    fn calls_are_the_same_each_time() {
        let all = pairs();
        for pair in (0..all.len()).step_by(97) {
            let unit = Unit { operand_kind: OperandKind::Uploaded, pair, range: None };
            let texts = || {
                unit_calls(unit, &all, Level::Quick)
                    .iter()
                    .map(|call| format!("{call:?}"))
                    .collect::<Vec<_>>()
            };
            assert_eq!(texts(), texts());
            let first = unit_calls(Unit { range: Some((0, 1)), ..unit }, &all, Level::Quick);
            assert_eq!(first.first().map(|call| format!("{call:?}")), texts().first().cloned());
        }
    }
}
