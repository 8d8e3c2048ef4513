//! Which units become one region, because they always follow each other.
//!
//! Units are cut where the ops around a place say so, at most about a thousand of them ([`super::ContentRule`]): short enough that one odd op
//! spoils little, and that what is repeated within a step is compiled once. What runs fastest is a whole step. So where the program ends
//! a step (a read, a flush) and has ended the same sequence of units before, or where it repeats a sequence without ever asking
//! for anything, the sequence becomes a *plan*. From then on units that begin as a plan does are held back, and if they turn out to be the plan
//! they are sealed as one region, which says where its units end: whoever has no executable for the whole can run the units meanwhile.
//!
//! What is held back is recorded, not lost: a read, a flush, or a unit that is not the plan's next lets go of it. Nothing was lost by that
//! but that the device might have begun earlier.
//!
//! Invariants:
//! - P1: plans are a function of the units and of where the program asked for boundaries, and so of what was recorded.
//! - P2: of a repeated sequence one rotation is a plan, the least by its hashes, whichever op was the last when the repetition was noticed.
//! - P3: a plan has at least two units and at most so many ops as the budget says.

use smallvec::SmallVec;

use super::Unit;

/// Times that a sequence has to be seen between boundaries that the program asked for.
const OFTEN: u32 = 2;

/// Fewest ops of a plan for what is repeated without such boundaries; shorter sequences are repeated in it. Handing over a
/// region costs as much as recording some hundred ops.
const FEWEST_OPS: usize = 512;

/// Most units that are remembered of a stream that does not ask for anything: two rounds of the longest plan of the shortest units, by
/// the defaults.
const MOST_UNITS: usize = 512;

/// Most nodes of the tree of plans; beyond that all are forgotten and learned again.
const MOST_NODES: usize = 4_096;

/// A unit, as far as plans go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Passed {
    /// The hash of its ops.
    pub(super) print: u64,
    pub(super) ops: usize,
}

impl Unit {
    /// As far as plans go.
    pub(super) fn passed(&self) -> Passed {
        Passed { print: self.print, ops: self.ops }
    }
}

/// What to do with the unit that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is a region, and so is each one that is held back.
    Alone,
    /// It is held back with the others.
    Hold,
    /// Those that are held back are regions; it is held back.
    HoldAnew,
    /// It is one region with all that are held back.
    Join,
    /// It is one region with all that are held back, or alone, and is what the program repeats without asking for anything.
    Round,
}

type NodeIndex = u32;
const ROOT: NodeIndex = 0;

/// A sequence of units with which plans begin.
#[derive(Debug, Default)]
struct Node {
    children: SmallVec<[(u64, NodeIndex); 2]>,
    /// Times that the program asked for a boundary after it.
    asked: u32,
    /// It is what is repeated.
    repeated: bool,
    /// A plan goes on from here.
    goes_on: bool,
    /// One that ends where the program asks for a boundary does.
    goes_on_to_asked: bool,
    /// It has turned out to be too large for a region.
    refused: bool,
}

/// Where the units that are held back lead.
#[derive(Clone, Copy, Debug)]
struct Walk {
    node: NodeIndex,
    /// Their number.
    units: usize,
}

/// The plans of a stream.
#[derive(Debug)]
pub(super) struct Plans {
    /// Most ops of a plan.
    most_ops: usize,
    nodes: Vec<Node>,
    walk: Option<Walk>,
    /// Units since the program last asked for a boundary, or the last of them.
    path: Vec<Passed>,
    /// Ops since then.
    since: usize,
    /// Where in the path to look for repetitions.
    fresh: usize,
    /// Most ops that were ever between two such boundaries, of those that make a plan.
    longest: usize,
}

impl Plans {
    pub(super) fn new(most_ops: usize) -> Plans {
        Plans {
            most_ops,
            nodes: vec![Node::default()],
            walk: None,
            path: Vec::new(),
            since: 0,
            fresh: 0,
            longest: 0,
        }
    }

    /// Whether no unit has ended since the program last asked for a boundary.
    pub(super) fn is_fresh(&self) -> bool {
        self.path.is_empty()
    }

    /// Ops of the units that have ended since then, or of what is left of them.
    pub(super) fn since(&self) -> usize {
        self.since
    }

    /// Whether units like these would be one region if the program asked for a boundary behind them now; without units, whether one that
    /// is alone would be.
    pub(super) fn would_join(&self, units: &[Unit]) -> bool {
        let Some((last, before)) = units.split_last() else { return self.child(ROOT, 0).is_none() };
        let mut node = ROOT;
        for (at, unit) in before.iter().enumerate() {
            let Some(child) = self.child(node, unit.print) else { return false };
            let known = &self.nodes[child as usize];
            let is_joined_already = at > 0 && known.repeated && !known.refused;
            if is_joined_already || !known.goes_on {
                return false;
            }
            node = child;
        }
        let end = self.child(node, last.print).map(|end| &self.nodes[end as usize]);
        !before.is_empty() && end.is_some_and(|end| !end.refused && end.asked >= OFTEN)
    }

    /// A unit has ended for a reason of ours.
    pub(super) fn unit(&mut self, unit: Passed) -> Next {
        self.pass(unit);
        let next = self.follow(unit, false);
        if next == Next::Round {
            self.fresh = self.path.len();
            return next;
        }
        let is_repeated_alone = self.find_repetition();
        if is_repeated_alone && next == Next::Alone { Next::Round } else { next }
    }

    /// A round of what is repeated has gone by, of these units, without any of them having ended.
    pub(super) fn round(&mut self, units: &[Passed]) {
        units.iter().for_each(|&unit| self.pass(unit));
        (self.fresh, self.walk) = (self.path.len(), None);
    }

    /// The program has asked for a boundary; `unit` ends there, if there is an op since the last one.
    pub(super) fn boundary(&mut self, unit: Option<Passed>) -> Next {
        let next = match unit {
            Some(unit) => {
                self.pass(unit);
                self.follow(unit, true)
            }
            None => self.ends_here(true),
        };
        if self.path.len() > 1 && self.since <= self.most_ops {
            self.longest = self.longest.max(self.since);
            let path = std::mem::take(&mut self.path);
            self.learn(&path);
            self.path = path;
        }
        self.path.clear();
        (self.since, self.fresh, self.walk) = (0, 0, None);
        next
    }

    /// What was held back is let go for another reason.
    pub(super) fn let_go(&mut self) {
        self.walk = None;
    }

    /// The sequence that was joined last is too large.
    pub(super) fn refuse(&mut self, units: &[Unit]) {
        let node = units.iter().try_fold(ROOT, |node, unit| self.child(node, unit.print));
        if let Some(node) = node {
            self.nodes[node as usize].refused = true;
        }
    }

    fn pass(&mut self, unit: Passed) {
        self.since += unit.ops;
        self.path.push(unit);
        if self.path.len() > MOST_UNITS {
            let gone = self.path.len() / 2;
            self.path.drain(..gone);
            self.fresh = self.fresh.saturating_sub(gone);
        }
    }

    fn child(&self, node: NodeIndex, print: u64) -> Option<NodeIndex> {
        let children = &self.nodes[node as usize].children;
        children.iter().find(|(other, _)| *other == print).map(|&(_, child)| child)
    }

    /// Goes on with a unit, or begins with it.
    fn follow(&mut self, unit: Passed, asked: bool) -> Next {
        let held = self.walk;
        let on = held
            .and_then(|walk| Some(Walk { node: self.child(walk.node, unit.print)?, units: walk.units + 1 }));
        self.walk = on.or_else(|| Some(Walk { node: self.child(ROOT, unit.print)?, units: 1 }));
        match self.ends_here(asked) {
            // Only what goes on may join.
            Next::Hold if on.is_none() && held.is_some() => Next::HoldAnew,
            next => next,
        }
    }

    /// Whether what is held back is a plan, or may become one.
    fn ends_here(&mut self, asked: bool) -> Next {
        let Some(walk) = self.walk else { return Next::Alone };
        let node = &self.nodes[walk.node as usize];
        let is_plan = !node.refused && if asked { node.asked >= OFTEN } else { node.repeated };
        if is_plan && walk.units > 1 {
            self.walk = None;
            return if asked { Next::Join } else { Next::Round };
        }
        if asked || !node.goes_on {
            self.walk = None;
            return Next::Alone;
        }
        Next::Hold
    }

    /// Notes that the program asked for a boundary after these units.
    fn learn(&mut self, units: &[Passed]) {
        let Some(nodes) = self.insert(units) else { return };
        let (&last, before) = nodes.split_last().expect("bug: a plan without units");
        let end = &mut self.nodes[last as usize];
        end.asked = end.asked.saturating_add(1);
        if end.asked >= OFTEN {
            for &node in before {
                // What the program asks for says more than what repeats within.
                let node = &mut self.nodes[node as usize];
                (node.repeated, node.goes_on, node.goes_on_to_asked) = (false, true, true);
            }
        }
    }

    /// Looks for two equal sequences at the end of the path. True if it is the last unit alone that is repeated, which is no plan (P3).
    fn find_repetition(&mut self) -> bool {
        // Within what is usual between two boundaries the next one decides.
        if self.since <= (2 * FEWEST_OPS).max(self.longest + self.longest / 2) {
            return false;
        }
        let path = &self.path[self.fresh..];
        let (mut ops, mut found) = (0, None);
        for units in 1..=path.len() / 2 {
            let (before, last) = path.split_at(path.len() - units);
            ops += last[0].ops;
            if ops > self.most_ops {
                break;
            }
            if ops >= FEWEST_OPS && before.ends_with(last) {
                found = Some(last.to_vec());
                break;
            }
        }
        let Some(mut units) = found else { return false };
        self.fresh = self.path.len();
        if units.len() < 2 {
            return true;
        }
        let first = least_rotation(&units);
        units.rotate_left(first);
        let Some(nodes) = self.insert(&units) else { return false };
        let (&last, before) = nodes.split_last().expect("bug: a plan without units");
        // Plans that end where the program asks for it come first, and of two that begin alike the one that was there.
        let is_taken = nodes.iter().any(|&node| self.nodes[node as usize].goes_on_to_asked)
            || before.iter().any(|&node| self.nodes[node as usize].repeated)
            || self.nodes[last as usize].goes_on;
        if !is_taken {
            self.nodes[last as usize].repeated = true;
            before.iter().for_each(|&node| self.nodes[node as usize].goes_on = true);
        }
        false
    }

    /// The nodes of a sequence, which are made if they are not there. `None` if there was no room for them.
    fn insert(&mut self, units: &[Passed]) -> Option<Vec<NodeIndex>> {
        if self.nodes.len() + units.len() > MOST_NODES {
            self.nodes.clear();
            self.nodes.push(Node::default());
            self.walk = None;
        }
        if units.len() >= MOST_NODES {
            return None;
        }
        let mut node = ROOT;
        let nodes = units.iter().map(|unit| {
            node = self.child(node, unit.print).unwrap_or_else(|| {
                let child = self.nodes.len() as NodeIndex;
                self.nodes.push(Node::default());
                self.nodes[node as usize].children.push((unit.print, child));
                child
            });
            node
        });
        Some(nodes.collect())
    }
}

/// Where the least rotation of a sequence begins, the first of equals (Booth's problem; two candidates are moved past each other, as in
/// Shiloach, Fast canonization of circular strings, 1981).
fn least_rotation(units: &[Passed]) -> usize {
    let len = units.len();
    let (mut one, mut other, mut equal) = (0, 1, 0);
    while one < len && other < len && equal < len {
        match units[(one + equal) % len].cmp(&units[(other + equal) % len]) {
            std::cmp::Ordering::Equal => {
                equal += 1;
                continue;
            }
            std::cmp::Ordering::Greater => one += equal + 1,
            std::cmp::Ordering::Less => other += equal + 1,
        }
        if one == other {
            other += 1;
        }
        equal = 0;
    }
    one.min(other)
}

#[cfg(test)]
mod tests {
    use fuseline_testgen::Seeded;

    use super::*;
    use crate::region::Boundary;

    fn units(prints: &[u64], ops: usize) -> Vec<Passed> {
        prints.iter().map(|&print| Passed { print, ops }).collect()
    }

    /// A step of units of which the last ends at a boundary that the program asks for.
    fn step(plans: &mut Plans, units: &[Passed]) -> Vec<Next> {
        let (last, before) = units.split_last().unwrap();
        let mut told: Vec<Next> = before.iter().map(|&unit| plans.unit(unit)).collect();
        told.push(plans.boundary(Some(*last)));
        told
    }

    #[test]
    fn rotations_are_the_least() {
        let mut source = Seeded::new(1);
        for round in 0..2_000 {
            let len = 1 + round % 9;
            let sequence: Vec<u64> = (0..len).map(|_| source.next_u64() % 3).collect();
            let found = units(&sequence, 1);
            let mut rotated = found.clone();
            rotated.rotate_left(least_rotation(&found));
            let all = (0..len).map(|by| {
                let mut other = found.clone();
                other.rotate_left(by);
                other
            });
            assert_eq!(Some(rotated), all.min(), "{sequence:?}");
        }
    }

    #[test]
    fn a_step_that_was_seen_twice_is_one_region_from_the_third_on() {
        let mut plans = Plans::new(5_000);
        let steady = units(&[1, 2, 3], 200);
        for _ in 0..2 {
            assert_eq!(step(&mut plans, &steady), [Next::Alone; 3]);
        }
        for _ in 0..3 {
            assert_eq!(step(&mut plans, &steady), [Next::Hold, Next::Hold, Next::Join]);
        }
        // Another step, and one that begins like the plan, and ends so.
        assert_eq!(step(&mut plans, &units(&[1, 5, 3], 200)), [Next::Hold, Next::Alone, Next::Alone]);
        assert_eq!(
            step(&mut plans, &units(&[5, 1, 2, 3], 200)),
            [Next::Alone, Next::Hold, Next::Hold, Next::Join]
        );
        assert_eq!(
            step(&mut plans, &units(&[1, 1, 2, 3], 200)),
            [Next::Hold, Next::HoldAnew, Next::Hold, Next::Join]
        );
        // The program asks earlier.
        assert_eq!(step(&mut plans, &units(&[1, 2], 200)), [Next::Hold, Next::Alone]);
        assert_eq!(step(&mut plans, &steady), [Next::Hold, Next::Hold, Next::Join]);
    }

    #[test]
    fn what_repeats_without_boundaries_becomes_a_plan_of_one_phase() {
        let round = units(&[7, 3, 9, 4], 200);
        for offset in 0..4 {
            let mut plans = Plans::new(5_000);
            let told: Vec<(u64, Next)> = (0..40)
                .map(|index| {
                    let unit = round[(index + offset) % 4];
                    (unit.print, plans.unit(unit))
                })
                .collect();
            // 3 is the least, so the plan begins there.
            assert_eq!(told[36..].iter().filter(|(_, next)| *next == Next::Round).count(), 1, "{told:?}");
            for (print, next) in &told[20..] {
                let wanted = if *print == 7 { Next::Round } else { Next::Hold };
                assert_eq!(*next, wanted, "{print} in {told:?}");
            }
        }
    }

    #[test]
    fn short_rounds_are_joined_to_some_hundred_ops() {
        let mut plans = Plans::new(5_000);
        let told: Vec<Next> = (0..60).map(|_| plans.unit(Passed { print: 1, ops: 60 })).collect();
        let joined: Vec<usize> = (0..60).filter(|&at| told[at] == Next::Round).collect();
        assert!(joined.len() >= 3, "{told:?}");
        // Nine units of 60 ops are the first that have 512.
        assert!(joined.windows(2).all(|pair| pair[1] - pair[0] == 9), "{joined:?}");
    }

    #[test]
    fn what_the_program_asks_for_goes_before_what_repeats_within() {
        let mut plans = Plans::new(5_000);
        let mut adam = units(&[1; 50], 52);
        adam.push(Passed { print: 2, ops: 10 });
        for _ in 0..3 {
            let _ = step(&mut plans, &adam);
        }
        let told = step(&mut plans, &adam);
        assert_eq!(told.iter().filter(|&&next| next == Next::Join).count(), 1, "{told:?}");
        assert_eq!(told.last(), Some(&Next::Join));
    }

    #[test]
    fn a_sequence_that_is_refused_is_not_held_back_to_its_end_again() {
        let mut plans = Plans::new(5_000);
        let steady = units(&[1, 2], 200);
        (0..3).for_each(|_| drop(step(&mut plans, &steady)));
        let joined = |&Passed { print, ops }: &Passed| Unit { ops, boundary: Boundary::Content, print };
        plans.refuse(&steady.iter().map(joined).collect::<Vec<_>>());
        assert_eq!(step(&mut plans, &steady).last(), Some(&Next::Alone));
    }

    #[test]
    fn plans_are_bounded() {
        let mut plans = Plans::new(5_000);
        for print in 0..20_000 {
            let _ = step(&mut plans, &units(&[print, print + 1, print], 10));
            assert!(plans.nodes.len() <= MOST_NODES);
        }
        for print in 0..20_000 {
            let _ = plans.unit(Passed { print, ops: 40 });
            assert!(plans.path.len() <= MOST_UNITS);
        }
    }
}
