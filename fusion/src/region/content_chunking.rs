//! Region ends that follow from what is recorded, so that a loop is cut at the same places in each of its rounds without anybody
//! looking for loops.
//!
//! After each op there is a *place* where a region may end. It has a *score*, which is a function of the few ops around it:
//! first how much crosses it, then a hash of the ops before it. A region ends at the place with the least score, the first of equals,
//! among those that are at least [`Settings::least`] ops after the last end, as soon as [`Settings::ahead`] more places have been seen and none
//! was better. This is local-minimum chunking (Bjørner, Blass, Gurevich, Content-dependent chunking for differential compression, the
//! local maximum approach, 2010) with a bound below, and decided from one side, so that short loops get ends too.
//!
//! What crosses a place are the bytes of values that are made and used within [`Settings::horizon`] ops, made or used last before it and next after it;
//! twice where both ops are ones that XLA would fuse. Inputs of long standing, like weights, are in memory anyway and count nothing.
//! Bytes are compared by their number of binary digits: what is nearly equal is equal, and the hash decides.
//!
//! Before a program's first step come ops that set it up: zeros for an optimiser, masks. With them the first step would be another region
//! than the second, and be compiled for itself (`gpt2/width 768` of the benchmark: 2 seconds). So where a stream begins, or begins again after a hard
//! boundary, with [`Settings::setup`] ops or more that compute from nothing but numbers, a region ends behind the last of them, those left out that the
//! next op needs (`zeros * decay + gradient`). If a loop begins each of its rounds so, the two regions always follow each other and are joined.
//!
//! Invariants:
//! - S1: a score is a function of the ops within `horizon` after its place and `least` before: of tokens, and of distances between mentions of
//!   a value. Ids, times and what is released do not enter, nor where earlier ends are.
//! - S2: two streams that go on alike, whose last ends differ, come to equal ends after some time: where a score is least among `ahead` places
//!   before and after it, both end (unless one has just ended, or reaches a budget).

use std::collections::VecDeque;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::boundary::{Boundary, BoundaryRule, Cut, Mention, PendingStats};
use super::token::Token;
use crate::op::{Fusibility, Signature};

/// How long regions are, in ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    /// Fewest ops of a region that ends here.
    least: usize,
    /// Places seen before the best is taken.
    ahead: usize,
    /// Ops between two mentions of a value that crosses.
    horizon: usize,
    /// Ops that go into a hash. No more than `least`, so that a region has them all.
    hashed: usize,
    /// Fewest ops at the beginning that compute from nothing but numbers and are a region by themselves.
    setup: usize,
}

/// With scores that are random numbers, regions have about 400 ops (`least + 0.74 * ahead`). XLA compiles them in about a tenth of a
/// second; calling the executable costs a tenth of recording them.
const SETTINGS: Settings = Settings { least: 32, ahead: 512, horizon: 64, hashed: 6, setup: 16 };

/// How good a place for an end is; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Binary digits of the number of bytes that cross.
    crossing: u32,
    hash: u64,
}

/// What is remembered of a pending op.
#[derive(Clone, Copy, Debug)]
struct Seen {
    token: u64,
    is_fused: bool,
    /// What crosses the place after this op more than the one before, as far as is known.
    change: i64,
}

/// How many ops before it the operands of an op were made, lifted ones left out.
type Makers = SmallVec<[usize; 2]>;

/// The default rule of Fused mode.
#[derive(Debug)]
pub struct ContentRule {
    settings: Settings,
    /// The pending ops.
    seen: VecDeque<Seen>,
    /// The score of the place after each pending op, for those of which all is known.
    scores: VecDeque<Score>,
    /// What crosses the last of them.
    crossing: i64,
    /// The best of them.
    best: Option<usize>,
    /// The pending ops, if all since the last hard boundary compute from nothing but numbers.
    setup: Option<VecDeque<Makers>>,
}

impl Default for ContentRule {
    fn default() -> ContentRule {
        ContentRule::new(SETTINGS)
    }
}

impl ContentRule {
    fn new(settings: Settings) -> ContentRule {
        debug_assert!(settings.hashed <= settings.least && settings.least <= settings.horizon);
        ContentRule {
            settings,
            seen: VecDeque::new(),
            scores: VecDeque::new(),
            crossing: 0,
            best: None,
            setup: Some(VecDeque::new()),
        }
    }

    /// Adds the op's part to what crosses, and its token.
    fn see(&mut self, op: &Signature, operands: &[Mention]) {
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
            // It crosses the places after the last mention and before this op.
            match here.checked_sub(last) {
                Some(from) => self.seen[from].change = self.seen[from].change.saturating_add(weight),
                // Mentioned before the last end, which is so near that no place since has a score: it crosses all of them.
                None => self.crossing = self.crossing.saturating_add(weight),
            }
            change = i64::saturating_sub(change, weight);
        }
        self.seen.push_back(Seen { token: token.get(), is_fused, change });
    }

    /// The length of what sets the program up, if that has ended before the op that was just seen and is long enough.
    fn set_up(&mut self, operands: &[Mention]) -> Option<usize> {
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

    /// Scores the places of which all is known by now.
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

    /// Takes a place if it is better than the best so far.
    fn weigh(&mut self, place: usize) {
        let is_better = self.best.is_none_or(|best| self.scores[place] < self.scores[best]);
        if place + 1 >= self.settings.least && is_better {
            self.best = Some(place);
        }
    }
}

impl BoundaryRule for ContentRule {
    fn after(&mut self, op: &Signature, operands: &[Mention], _pending: PendingStats) -> Option<Cut> {
        self.see(op, operands);
        let Settings { least, ahead, horizon, .. } = self.settings;
        if let Some(len) = self.set_up(operands) {
            return Some(Cut { len, reason: Boundary::Setup });
        }
        // Before that nothing is decided, and most steps that read something end before that.
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

/// Whether XLA computes the op together with its neighbours.
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
    use crate::op::OpCode;
    use crate::shape::{Bytes, TensorType};

    const SMALL: Settings = Settings { least: 8, ahead: 40, horizon: 12, hashed: 4, setup: 5 };

    /// Ops in a row, each of the one before and, now and then, of one before that.
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

        fn op(&mut self) -> (Arc<Signature>, [Mention; 2]) {
            let index = self.draw(self.signatures.len() as u64) as usize;
            let ago = 1 + self.draw(6) as usize;
            let near = Mention { last: Some(1), made: Some(1), lifted: false };
            let other = match self.draw(3) {
                0 => Mention { last: None, made: None, lifted: false },
                _ => Mention { last: Some(ago), made: Some(ago + 2), lifted: false },
            };
            (self.signatures[index].clone(), [near, other])
        }
    }

    /// The numbers of the ops after which a region ends.
    fn ends<'a>(ops: impl IntoIterator<Item = &'a (Arc<Signature>, [Mention; 2])>) -> Vec<usize> {
        let mut rule = ContentRule::new(SMALL);
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

    /// S2: what comes before is forgotten.
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

    /// A loop of any length, the shortest too, is cut at the same places in every round.
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
            // Rounds shorter than a region are cut once in so many of them.
            let most = 1 + round / SMALL.least;
            assert!(places.len() <= most && !late.is_empty(), "{round} ops: {places:?}");
            if round <= SMALL.ahead {
                assert_eq!(places.len(), 1, "{round} ops: {places:?}");
            }
        }
    }

    /// Ends lie where little crosses: between chains of ops, not within.
    #[test]
    fn ends_lie_where_little_crosses() {
        let mut source = Source::new();
        let own = Mention { last: Some(1), made: Some(1), lifted: false };
        let fresh = Mention { last: None, made: None, lifted: false };
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

    /// What computes from nothing but numbers, where a program begins, is a region by itself; not where it goes on.
    #[test]
    fn what_sets_a_program_up_is_a_region() {
        let signature = &Source::new().signatures[0];
        let number = Mention { last: None, made: None, lifted: true };
        let data = Mention { lifted: false, ..number };
        let made = |ago| Mention { last: Some(ago), made: Some(ago), lifted: false };
        let ends = |ops: &[[Mention; 2]]| {
            let ops: Vec<_> = ops.iter().map(|&mentions| (signature.clone(), mentions)).collect();
            ends(&ops).first().copied()
        };
        let setup =
            [[number, number], [number, made(1)], [made(1), made(2)], [number, number], [made(4), number]];
        let step = [[data, number], [made(1), number]];
        // The last two are a part of its first op.
        let of_zero = [[number, number], [made(1), made(4)], [made(1), data]];
        let again = [[number, number]; 7];
        assert_eq!(ends(&[&setup[..], &step, &again, &step].concat()), Some(5));
        assert_eq!(ends(&[&setup[..], &of_zero, &step].concat()), Some(5));
        assert_eq!(ends(&[&setup[1..], &of_zero, &step].concat()), None, "too few");
        assert_eq!(ends(&[&step[..], &setup, &again, &step].concat()), None, "not at the beginning");
        // Made before the boundary.
        assert_eq!(ends(&[&[[made(1), number]][..], &setup, &step].concat()), None, "of data");
    }
}
