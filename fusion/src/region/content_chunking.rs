//! Content-defined chunking: region ends follow from the recorded ops, so a loop is cut at the same
//! positions in each iteration without being detected.
//!
//! After each op there is a *place* where a region may end. Its *score* is a function of the few
//! ops around it: first the bytes that cross it, then a hash of the ops before it. A region ends at
//! the place with the lowest score (the first among equals) at least [`Settings::least`] ops after
//! the last end, once [`Settings::ahead`] more places were seen without a better one. This is
//! local-minimum chunking (Bjørner, Blass, Gurevich, Content-dependent chunking for differential
//! compression, the local maximum approach, 2010) with a lower bound on the length, and decided
//! from one side, so that short loops get ends too.
//!
//! A value crosses a place if it is produced and used within [`Settings::horizon`] ops, last
//! mentioned before the place and next after it. Its bytes count, and count twice if XLA would fuse
//! both ops. Long-lived inputs, such as weights, are in memory anyway and do not count. The score
//! compares the number of binary digits of the byte count: nearly equal counts tie, and the hash
//! decides.
//!
//! Ops that set the program up precede its first step: zeros for an optimizer, masks. Together with
//! them the first step would be another region than the second, with a compile of its own
//! (`gpt2/width 768` of the benchmark: 2 seconds). So if a stream starts, or restarts after a hard
//! boundary, with at least [`Settings::setup`] ops that compute from numbers only, a region ends
//! after the last of them. Trailing ops that the next op needs are left to the next region, as in
//! `zeros * decay + gradient`. If every iteration of a loop starts like this, the two regions
//! always follow each other and are merged.
//!
//! Invariants:
//! - CHUNK-1: a score is a function of the ops within `horizon` after its place and `least` before:
//!   of their stable hashes, and of distances between mentions of a value. Ids, times, releases and
//!   earlier ends do not enter.
//! - CHUNK-2: two streams that continue with equal ops after different ends converge to equal ends:
//!   where a score is the lowest among `ahead` places before and after it, both end (unless one has
//!   just ended, or reaches a budget).

use std::collections::VecDeque;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::boundary::{Boundary, BoundaryRule, Cut, OperandDistance, PendingStats};
use super::token::Token;
use crate::ir::Signature;
use crate::op::Fusibility;

/// Lengths in ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    /// Minimum number of ops of a region that this rule ends.
    least: usize,
    /// Number of places after the best one that are seen before it is taken.
    ahead: usize,
    /// Maximum distance between two mentions of a value that crosses.
    horizon: usize,
    /// Number of ops that enter a hash. At most `least`, so that they are all in the region.
    hashed: usize,
    /// Minimum number of set-up ops that form a region by themselves.
    setup: usize,
}

/// With uniformly random scores, regions have about 400 ops (`least + 0.74 * ahead`). XLA compiles
/// them in about a tenth of a second. Calling the executable costs a tenth of recording them.
const SETTINGS: Settings = Settings { least: 32, ahead: 512, horizon: 64, hashed: 6, setup: 16 };

/// The score of a place; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Binary digits of the number of bytes that cross.
    crossing: u32,
    hash: u64,
}

/// The record of a pending op.
#[derive(Clone, Copy, Debug)]
struct PendingOp {
    token: u64,
    is_fused: bool,
    /// The crossing bytes after this op minus those before it, as far as known.
    change: i64,
}

/// How many ops ago the operands of an op were produced, without lifted scalars.
type Makers = SmallVec<[usize; 2]>;

/// The default rule of Fused mode.
#[derive(Debug)]
pub struct ContentChunking {
    settings: Settings,
    /// The pending ops.
    seen: VecDeque<PendingOp>,
    /// The score of the place after each pending op, for all places that are fully known.
    scores: VecDeque<Score>,
    /// The bytes that cross the last scored place.
    crossing: i64,
    /// The best scored place.
    best: Option<usize>,
    /// The pending ops, if all since the last hard boundary compute from numbers only.
    setup: Option<VecDeque<Makers>>,
}

impl Default for ContentChunking {
    fn default() -> ContentChunking {
        ContentChunking::new(SETTINGS)
    }
}

impl ContentChunking {
    fn new(settings: Settings) -> ContentChunking {
        debug_assert!(settings.hashed <= settings.least && settings.least <= settings.horizon);
        ContentChunking {
            settings,
            seen: VecDeque::new(),
            scores: VecDeque::new(),
            crossing: 0,
            best: None,
            setup: Some(VecDeque::new()),
        }
    }

    /// Records the op's hash and its effect on the crossing bytes.
    fn see(&mut self, op: &Signature, operands: &[OperandDistance]) {
        let here = self.seen.len();
        let is_fused = is_fused(op);
        let mut token = Token::new(op.token());
        let mut change = 0;
        for (mention, ty) in operands.iter().zip(op.operands()) {
            let near = mention.last.filter(|&ago| ago <= self.settings.least - self.settings.hashed);
            token.add(near.map_or(0, |ago| ago as u64));
            let (Some(last), Some(made)) = (mention.last, mention.made) else { continue };
            if made > self.settings.horizon || last == 0 {
                continue;
            }
            let maker = here.checked_sub(made).and_then(|maker| self.seen.get(maker));
            let twice = is_fused && maker.is_some_and(|maker| maker.is_fused);
            let weight =
                i64::try_from(ty.bytes().0).unwrap_or(i64::MAX >> 16).min(i64::MAX >> 16) << u32::from(twice);
            // The value crosses the places after its last mention and before this op.
            match here.checked_sub(last) {
                Some(from) => self.seen[from].change = self.seen[from].change.saturating_add(weight),
                // Its last mention is before the last end, which is too recent for any place since
                // to have a score. It crosses all of them.
                None => self.crossing = self.crossing.saturating_add(weight),
            }
            change = i64::saturating_sub(change, weight);
        }
        self.seen.push_back(PendingOp { token: token.get(), is_fused, change });
    }

    /// The length of the set-up, if it has ended before the op that was just seen and is long
    /// enough.
    fn set_up(&mut self, operands: &[OperandDistance]) -> Option<usize> {
        let ops = self.setup.as_mut()?;
        let of_data = operands.iter().filter(|operand| !operand.lifted);
        let makers: Option<Makers> =
            of_data.clone().map(|operand| operand.made.filter(|&ago| ago <= ops.len())).collect();
        if let Some(makers) = makers {
            ops.push_back(makers);
            return None;
        }
        let ops = self.setup.take()?;
        let mut len = ops.len();
        let mut needed: FxHashSet<usize> =
            of_data.filter_map(|operand| len.checked_sub(operand.made?)).collect();
        while let Some(last) = len.checked_sub(1).filter(|last| needed.contains(last)) {
            needed.extend(ops[last].iter().filter_map(|&ago| last.checked_sub(ago)));
            len = last;
        }
        (len >= self.settings.setup).then_some(len)
    }

    /// Scores the places that are now fully known.
    fn score(&mut self) {
        for place in self.scores.len()..self.seen.len().saturating_sub(self.settings.horizon) {
            self.crossing = self.crossing.saturating_add(self.seen[place].change);
            let mut hash = Token::new(0);
            let first = (place + 1).saturating_sub(self.settings.hashed);
            self.seen.range(first..=place).for_each(|seen| hash.add(seen.token));
            let crossing = 64 - self.crossing.max(0).leading_zeros();
            self.scores.push_back(Score { crossing, hash: hash.get() });
            self.weigh(place);
        }
    }

    /// Makes a place the best one if its score is lower.
    fn weigh(&mut self, place: usize) {
        let is_better = self.best.is_none_or(|best| self.scores[place] < self.scores[best]);
        if place + 1 >= self.settings.least && is_better {
            self.best = Some(place);
        }
    }
}

impl BoundaryRule for ContentChunking {
    fn after(&mut self, op: &Signature, operands: &[OperandDistance], _pending: PendingStats) -> Option<Cut> {
        self.see(op, operands);
        let Settings { least, ahead, horizon, .. } = self.settings;
        if let Some(len) = self.set_up(operands) {
            return Some(Cut { len, reason: Boundary::Setup });
        }
        // Nothing is decided before, and most steps with a read end before.
        if self.seen.len() < least + ahead + horizon {
            return None;
        }
        self.score();
        let best = self.best?;
        (self.scores.len() > best + ahead).then_some(Cut { len: best + 1, reason: Boundary::Content })
    }

    fn best(&mut self) -> Option<usize> {
        self.score();
        self.best.map(|best| best + 1)
    }

    fn cut(&mut self, len: usize) {
        if let Some(ops) = &mut self.setup {
            ops.drain(..len.min(ops.len()));
        }
        let scored = self.scores.len();
        let unscored = self.seen.range(scored.min(len)..len.min(self.seen.len()));
        self.crossing = unscored.fold(self.crossing, |sum, seen| sum.saturating_add(seen.change));
        self.seen.drain(..len.min(self.seen.len()));
        self.scores.drain(..len.min(scored));
        self.best = None;
        (0..self.scores.len()).for_each(|place| self.weigh(place));
    }

    fn reset(&mut self) {
        self.seen.clear();
        self.scores.clear();
        self.crossing = 0;
        self.best = None;
        self.setup = Some(VecDeque::new());
    }
}

/// Whether XLA fuses the op with its neighbours.
fn is_fused(op: &Signature) -> bool {
    matches!(op.def().fusibility, Fusibility::Source | Fusibility::Elementwise | Fusibility::Movement)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fuseline_testgen::Seeded;

    use super::*;
    use crate::attr::Attrs;
    use crate::dtype::DType;
    use crate::ir::OpCode;
    use crate::shape::{Bytes, TensorType};

    const SMALL: Settings = Settings { least: 8, ahead: 40, horizon: 12, hashed: 4, setup: 5 };

    /// A chain of ops, each on the result of the op before and, now and then, of an earlier one.
    struct Source {
        random: Seeded,
        signatures: Vec<Arc<Signature>>,
    }

    impl Source {
        fn new() -> Source {
            let of = |op, size| {
                let ty = TensorType::of(DType::F32, &[size]).unwrap();
                Arc::new(Signature::infer(op, Attrs::none(), &[], &[ty.clone(), ty]).unwrap())
            };
            let ops = [OpCode::Add, OpCode::Multiply, OpCode::Maximum, OpCode::Subtract];
            let all = ops.into_iter().flat_map(|op| [4, 64, 4_096].map(|size| of(op, size)));
            Source { random: Seeded::new(1), signatures: all.collect() }
        }

        fn draw(&mut self, bound: u64) -> u64 {
            self.random.next_u64() % bound
        }

        fn op(&mut self) -> (Arc<Signature>, [OperandDistance; 2]) {
            let index = self.draw(self.signatures.len() as u64) as usize;
            let ago = 1 + self.draw(6) as usize;
            let near = OperandDistance { last: Some(1), made: Some(1), lifted: false };
            let other = match self.draw(3) {
                0 => OperandDistance { last: None, made: None, lifted: false },
                _ => OperandDistance { last: Some(ago), made: Some(ago + 2), lifted: false },
            };
            (self.signatures[index].clone(), [near, other])
        }
    }

    /// The numbers of the ops after which a region ends.
    fn ends<'a>(ops: impl IntoIterator<Item = &'a (Arc<Signature>, [OperandDistance; 2])>) -> Vec<usize> {
        let mut rule = ContentChunking::new(SMALL);
        let (mut ends, mut pending, mut ended) = (Vec::new(), 0, 0);
        for (signature, mentions) in ops {
            pending += 1;
            let stats = PendingStats { ops: pending, inputs: 0, bytes: Bytes(0) };
            if let Some(cut) = rule.after(signature, mentions, stats) {
                let least = if cut.reason == Boundary::Setup { SMALL.setup } else { SMALL.least };
                assert!((least..=pending).contains(&cut.len));
                rule.cut(cut.len);
                pending -= cut.len;
                ended += cut.len;
                ends.push(ended);
            }
        }
        ends
    }

    #[test]
    fn regions_have_the_length_that_is_wanted() {
        let mut source = Source::new();
        let ops: Vec<_> = (0..40_000).map(|_| source.op()).collect();
        let ends = ends(&ops);
        let mean = 40_000.0 / ends.len() as f64;
        // 8 + 0.74 * 40
        assert!((30.0..50.0).contains(&mean), "{mean} ops");
    }

    /// CHUNK-2: the ops before an end are forgotten.
    #[test]
    fn streams_that_go_on_alike_end_alike() {
        let mut source = Source::new();
        let mut worst = 0;
        for prefix in 1..300 {
            let before: Vec<_> = (0..prefix).map(|_| source.op()).collect();
            let after: Vec<_> = (0..2_000).map(|_| source.op()).collect();
            let alone = ends(&after);
            let behind: Vec<usize> = ends(before.iter().chain(&after))
                .into_iter()
                .filter_map(|end| end.checked_sub(prefix))
                .collect();
            let first = alone.iter().find(|end| behind.contains(end)).expect("they meet");
            let tail = |ends: &[usize]| ends.iter().copied().filter(|end| end >= first).collect::<Vec<_>>();
            assert_eq!(tail(&alone), tail(&behind), "after {prefix} ops");
            worst = worst.max(*first);
        }
        assert!(worst < 800, "they met after {worst} ops");
    }

    /// A loop of any length is cut at the same places in every iteration.
    #[test]
    fn loops_are_cut_at_the_same_places_in_every_round() {
        let mut source = Source::new();
        for round in (1..60).chain([100, 333, 1_000]) {
            let body: Vec<_> = (0..round).map(|_| source.op()).collect();
            let ends = ends(body.iter().cycle().take(40 * round + 2_000));
            let late: Vec<usize> = ends.iter().copied().filter(|&end| end > 20 * round).collect();
            let mut places: Vec<usize> = late.iter().map(|end| end % round).collect();
            places.sort_unstable();
            places.dedup();
            // Iterations shorter than a region are cut once every few iterations.
            let most = 1 + round / SMALL.least;
            assert!(places.len() <= most && !late.is_empty(), "{round} ops: {places:?}");
            if round <= SMALL.ahead {
                assert_eq!(places.len(), 1, "{round} ops: {places:?}");
            }
        }
    }

    /// Ends are where few bytes cross: between chains of ops, not inside.
    #[test]
    fn ends_lie_where_little_crosses() {
        let mut source = Source::new();
        let own = OperandDistance { last: Some(1), made: Some(1), lifted: false };
        let fresh = OperandDistance { last: None, made: None, lifted: false };
        let mut ops = Vec::new();
        for _ in 0..300 {
            let len = 10 + source.draw(10);
            for at in 0..len {
                let (signature, _) = source.op();
                ops.push((signature, [if at == 0 { fresh } else { own }, fresh]));
            }
        }
        let starts: Vec<usize> = (0..ops.len()).filter(|&at| ops[at].1[0] == fresh).collect();
        let ends = ends(&ops);
        assert!(ends.len() > 50);
        for end in ends {
            assert!(starts.contains(&end), "{end} is in the middle of a chain");
        }
    }

    /// Ops that compute from numbers only are a region by themselves at the start of a program, but
    /// not later.
    #[test]
    fn what_sets_a_program_up_is_a_region() {
        let signature = &Source::new().signatures[0];
        let number = OperandDistance { last: None, made: None, lifted: true };
        let data = OperandDistance { lifted: false, ..number };
        let made = |ago| OperandDistance { last: Some(ago), made: Some(ago), lifted: false };
        let ends = |ops: &[[OperandDistance; 2]]| {
            let ops: Vec<_> = ops.iter().map(|&mentions| (signature.clone(), mentions)).collect();
            ends(&ops).first().copied()
        };
        let setup =
            [[number, number], [number, made(1)], [made(1), made(2)], [number, number], [made(4), number]];
        let step = [[data, number], [made(1), number]];
        // The last two are needed by the first op of the step.
        let of_zero = [[number, number], [made(1), made(4)], [made(1), data]];
        let again = [[number, number]; 7];
        assert_eq!(ends(&[&setup[..], &step, &again, &step].concat()), Some(5));
        assert_eq!(ends(&[&setup[..], &of_zero, &step].concat()), Some(5));
        assert_eq!(ends(&[&setup[1..], &of_zero, &step].concat()), None, "too few");
        assert_eq!(ends(&[&step[..], &setup, &again, &step].concat()), None, "not at the beginning");
        // Produced before the boundary.
        assert_eq!(ends(&[&[[made(1), number]][..], &setup, &step].concat()), None, "of data");
    }
}
