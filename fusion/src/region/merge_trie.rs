//! Decides which units are merged into one region because they always follow each other.
//!
//! Content-defined cuts limit units to about a thousand ops ([`super::ContentChunking`]). One
//! unusual op then affects little, and repetitions within a step are compiled once. A whole step
//! runs faster, however. So if the program ends a step (a read, a flush) and has ended the same
//! sequence of units before, or if it repeats a sequence without user boundaries, the sequence is
//! *learned*. From then on, units that match the start of a learned sequence are held back. If the
//! whole sequence follows, they are sealed as one region. The region records where its units end,
//! so the units can run until the whole region has an executable.
//!
//! Units that are held back are recorded, not lost: a read, a flush, or a unit that does not
//! continue the sequence releases them. The only cost is that the device might have started
//! earlier.
//!
//! Invariants:
//! - MERGE-1: learned sequences are a function of the units and the user boundaries, and so of the
//!   recorded program.
//! - MERGE-2: one rotation of a repeated sequence is learned, the lowest by its hashes, whichever
//!   op came last when the repetition was detected.
//! - MERGE-3: a learned sequence has at least two units and at most as many ops as the budget
//!   allows.

use smallvec::SmallVec;

use super::Unit;

/// How often a sequence must occur between user boundaries before it is learned.
const MIN_OCCURRENCES: u32 = 2;

/// Minimum number of ops of a learned sequence without user boundaries; it contains several
/// repetitions of a shorter sequence. Launching a region costs as much as recording some hundred
/// ops.
const MIN_OPS: usize = 512;

/// Maximum number of remembered units of a stream without user boundaries: two iterations of the
/// longest sequence of the shortest units, with the default settings.
const MAX_UNITS: usize = 512;

/// Maximum number of nodes of the trie. Beyond that it is cleared and learned again.
const MAX_NODES: usize = 4_096;

/// Identity of a unit for merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnitFingerprint {
    /// The hash of its ops.
    pub(super) fingerprint: u64,
    pub(super) ops: usize,
}

impl Unit {
    /// Its identity for merging.
    pub(super) fn merge_fingerprint(&self) -> UnitFingerprint {
        UnitFingerprint { fingerprint: self.fingerprint, ops: self.ops }
    }
}

/// What to do with the unit that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeAction {
    /// Seal it, and each unit that is held back, as a region of its own.
    Alone,
    /// Hold it back with the others.
    Hold,
    /// Seal each unit that is held back; then hold this one back.
    ReleaseAndHold,
    /// Merge it with all units that are held back.
    Merge,
    /// Merge it with all units that are held back, if there are any. The result is a loop body
    /// without user boundaries.
    LoopBody,
}

type NodeIndex = u32;
const ROOT: NodeIndex = 0;

/// A prefix of learned sequences.
#[derive(Debug, Default)]
struct Node {
    children: SmallVec<[(u64, NodeIndex); 2]>,
    /// How often a user boundary followed it.
    requested: u32,
    /// It is a complete sequence that repeats without user boundaries.
    repeated: bool,
    /// A learned sequence continues from here.
    continues: bool,
    /// A learned sequence that ends at a user boundary continues from here.
    continues_to_request: bool,
    /// It was too large for a region.
    refused: bool,
}

/// The node that the units held back lead to.
#[derive(Clone, Copy, Debug)]
struct Walk {
    node: NodeIndex,
    /// Number of these units.
    units: usize,
}

/// The learned sequences of a stream.
#[derive(Debug)]
pub(super) struct MergeTrie {
    /// Maximum number of ops of a learned sequence.
    max_ops: usize,
    nodes: Vec<Node>,
    walk: Option<Walk>,
    /// Units since the last user boundary, or the latest of them.
    path: Vec<UnitFingerprint>,
    /// Ops since then.
    since: usize,
    /// Where in the path to look for repetitions.
    unexamined: usize,
    /// Maximum number of ops between two user boundaries so far, among sequences that can be
    /// learned.
    longest: usize,
}

impl MergeTrie {
    pub(super) fn new(max_ops: usize) -> MergeTrie {
        MergeTrie {
            max_ops,
            nodes: vec![Node::default()],
            walk: None,
            path: Vec::new(),
            since: 0,
            unexamined: 0,
            longest: 0,
        }
    }

    /// Whether no unit has ended since the last user boundary.
    pub(super) fn is_fresh(&self) -> bool {
        self.path.is_empty()
    }

    /// Ops of the units that have ended since the last user boundary.
    pub(super) fn since(&self) -> usize {
        self.since
    }

    /// Whether these units would be merged if a user boundary followed them now. Without units:
    /// whether a single unit would stay alone.
    pub(super) fn would_merge(&self, units: &[Unit]) -> bool {
        let Some((last, before)) = units.split_last() else { return self.child(ROOT, 0).is_none() };
        let mut node = ROOT;
        for (at, unit) in before.iter().enumerate() {
            let Some(child) = self.child(node, unit.fingerprint) else { return false };
            let known = &self.nodes[child as usize];
            let is_joined_already = at > 0 && known.repeated && !known.refused;
            if is_joined_already || !known.continues {
                return false;
            }
            node = child;
        }
        let end = self.child(node, last.fingerprint).map(|end| &self.nodes[end as usize]);
        !before.is_empty() && end.is_some_and(|end| !end.refused && end.requested >= MIN_OCCURRENCES)
    }

    /// A unit has ended at a soft boundary.
    pub(super) fn unit(&mut self, unit: UnitFingerprint) -> MergeAction {
        self.push(unit);
        let next = self.advance(unit, false);
        if next == MergeAction::LoopBody {
            self.unexamined = self.path.len();
            return next;
        }
        let is_repeated_alone = self.find_repetition();
        if is_repeated_alone && next == MergeAction::Alone { MergeAction::LoopBody } else { next }
    }

    /// An iteration with these units of a loop body was recorded without passing its ops through
    /// the builder.
    pub(super) fn iteration(&mut self, units: &[UnitFingerprint]) {
        units.iter().for_each(|&unit| self.push(unit));
        (self.unexamined, self.walk) = (self.path.len(), None);
    }

    /// A user boundary was reached; `unit` ends there, if there is an op since the last boundary.
    pub(super) fn boundary(&mut self, unit: Option<UnitFingerprint>) -> MergeAction {
        let next = match unit {
            Some(unit) => {
                self.push(unit);
                self.advance(unit, true)
            }
            None => self.next_action(true),
        };
        if self.path.len() > 1 && self.since <= self.max_ops {
            self.longest = self.longest.max(self.since);
            let path = std::mem::take(&mut self.path);
            self.learn(&path);
            self.path = path;
        }
        self.path.clear();
        (self.since, self.unexamined, self.walk) = (0, 0, None);
        next
    }

    /// The units held back were sealed for another reason.
    pub(super) fn release_held(&mut self) {
        self.walk = None;
    }

    /// The last merged sequence is too large.
    pub(super) fn refuse(&mut self, units: &[Unit]) {
        let node = units.iter().try_fold(ROOT, |node, unit| self.child(node, unit.fingerprint));
        if let Some(node) = node {
            self.nodes[node as usize].refused = true;
        }
    }

    fn push(&mut self, unit: UnitFingerprint) {
        self.since += unit.ops;
        self.path.push(unit);
        if self.path.len() > MAX_UNITS {
            let dropped = self.path.len() / 2;
            self.path.drain(..dropped);
            self.unexamined = self.unexamined.saturating_sub(dropped);
        }
    }

    fn child(&self, node: NodeIndex, fingerprint: u64) -> Option<NodeIndex> {
        let children = &self.nodes[node as usize].children;
        children.iter().find(|(other, _)| *other == fingerprint).map(|&(_, child)| child)
    }

    /// Continues the walk with a unit, or starts a new one.
    fn advance(&mut self, unit: UnitFingerprint, requested: bool) -> MergeAction {
        let held = self.walk;
        let on = held.and_then(|walk| {
            Some(Walk { node: self.child(walk.node, unit.fingerprint)?, units: walk.units + 1 })
        });
        self.walk = on.or_else(|| Some(Walk { node: self.child(ROOT, unit.fingerprint)?, units: 1 }));
        match self.next_action(requested) {
            // Only units that continue the walk may be merged with it.
            MergeAction::Hold if on.is_none() && held.is_some() => MergeAction::ReleaseAndHold,
            next => next,
        }
    }

    /// Whether the units held back form a learned sequence, or may become one.
    fn next_action(&mut self, requested: bool) -> MergeAction {
        let Some(walk) = self.walk else { return MergeAction::Alone };
        let node = &self.nodes[walk.node as usize];
        let is_learned =
            !node.refused && if requested { node.requested >= MIN_OCCURRENCES } else { node.repeated };
        if is_learned && walk.units > 1 {
            self.walk = None;
            return if requested { MergeAction::Merge } else { MergeAction::LoopBody };
        }
        if requested || !node.continues {
            self.walk = None;
            return MergeAction::Alone;
        }
        MergeAction::Hold
    }

    /// Records that a user boundary followed these units.
    fn learn(&mut self, units: &[UnitFingerprint]) {
        let Some(nodes) = self.insert(units) else { return };
        let (&last, before) = nodes.split_last().expect("bug: a sequence without units");
        let end = &mut self.nodes[last as usize];
        end.requested = end.requested.saturating_add(1);
        if end.requested >= MIN_OCCURRENCES {
            for &node in before {
                // Sequences that end at user boundaries take precedence over repetitions within.
                let node = &mut self.nodes[node as usize];
                (node.repeated, node.continues, node.continues_to_request) = (false, true, true);
            }
        }
    }

    /// Looks for two equal sequences at the end of the path. True if the last unit alone is
    /// repeated, which is not a sequence (MERGE-3).
    fn find_repetition(&mut self) -> bool {
        // Within the usual distance between user boundaries, the next boundary decides.
        if self.since <= (2 * MIN_OPS).max(self.longest + self.longest / 2) {
            return false;
        }
        let path = &self.path[self.unexamined..];
        let (mut ops, mut found) = (0, None);
        for units in 1..=path.len() / 2 {
            let (before, last) = path.split_at(path.len() - units);
            ops += last[0].ops;
            if ops > self.max_ops {
                break;
            }
            if ops >= MIN_OPS && before.ends_with(last) {
                found = Some(last.to_vec());
                break;
            }
        }
        let Some(mut units) = found else { return false };
        self.unexamined = self.path.len();
        if units.len() < 2 {
            return true;
        }
        let first = least_rotation(&units);
        units.rotate_left(first);
        let Some(nodes) = self.insert(&units) else { return false };
        let (&last, before) = nodes.split_last().expect("bug: a sequence without units");
        // Sequences that end at user boundaries take precedence. Of two with a common start, the
        // older one does.
        let is_taken = nodes.iter().any(|&node| self.nodes[node as usize].continues_to_request)
            || before.iter().any(|&node| self.nodes[node as usize].repeated)
            || self.nodes[last as usize].continues;
        if !is_taken {
            self.nodes[last as usize].repeated = true;
            before.iter().for_each(|&node| self.nodes[node as usize].continues = true);
        }
        false
    }

    /// The nodes of a sequence, which are created if missing. `None` if the trie has no room.
    fn insert(&mut self, units: &[UnitFingerprint]) -> Option<Vec<NodeIndex>> {
        if self.nodes.len() + units.len() > MAX_NODES {
            self.nodes.clear();
            self.nodes.push(Node::default());
            self.walk = None;
        }
        if units.len() >= MAX_NODES {
            return None;
        }
        let mut node = ROOT;
        let nodes = units.iter().map(|unit| {
            node = self.child(node, unit.fingerprint).unwrap_or_else(|| {
                let child = self.nodes.len() as NodeIndex;
                self.nodes.push(Node::default());
                self.nodes[node as usize].children.push((unit.fingerprint, child));
                child
            });
            node
        });
        Some(nodes.collect())
    }
}

/// The start of the least rotation of a sequence, the first among equals (Booth's problem; two
/// candidates are advanced past each other, as in Shiloach, Fast canonization of circular strings,
/// 1981).
fn least_rotation(units: &[UnitFingerprint]) -> usize {
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

    fn units(fingerprints: &[u64], ops: usize) -> Vec<UnitFingerprint> {
        fingerprints.iter().map(|&fingerprint| UnitFingerprint { fingerprint, ops }).collect()
    }

    /// Passes the units of a step, the last of which ends at a user boundary.
    fn step(merge_trie: &mut MergeTrie, units: &[UnitFingerprint]) -> Vec<MergeAction> {
        let (last, before) = units.split_last().unwrap();
        let mut actions: Vec<MergeAction> = before.iter().map(|&unit| merge_trie.unit(unit)).collect();
        actions.push(merge_trie.boundary(Some(*last)));
        actions
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
        let mut merge_trie = MergeTrie::new(5_000);
        let steady = units(&[1, 2, 3], 200);
        for _ in 0..2 {
            assert_eq!(step(&mut merge_trie, &steady), [MergeAction::Alone; 3]);
        }
        for _ in 0..3 {
            assert_eq!(
                step(&mut merge_trie, &steady),
                [MergeAction::Hold, MergeAction::Hold, MergeAction::Merge]
            );
        }
        // A different step that starts and ends like the learned one.
        assert_eq!(
            step(&mut merge_trie, &units(&[1, 5, 3], 200)),
            [MergeAction::Hold, MergeAction::Alone, MergeAction::Alone]
        );
        assert_eq!(
            step(&mut merge_trie, &units(&[5, 1, 2, 3], 200)),
            [MergeAction::Alone, MergeAction::Hold, MergeAction::Hold, MergeAction::Merge]
        );
        assert_eq!(
            step(&mut merge_trie, &units(&[1, 1, 2, 3], 200)),
            [MergeAction::Hold, MergeAction::ReleaseAndHold, MergeAction::Hold, MergeAction::Merge]
        );
        // The user boundary comes earlier.
        assert_eq!(step(&mut merge_trie, &units(&[1, 2], 200)), [MergeAction::Hold, MergeAction::Alone]);
        assert_eq!(
            step(&mut merge_trie, &steady),
            [MergeAction::Hold, MergeAction::Hold, MergeAction::Merge]
        );
    }

    #[test]
    fn what_repeats_without_boundaries_becomes_a_plan_of_one_phase() {
        let body = units(&[7, 3, 9, 4], 200);
        for offset in 0..4 {
            let mut merge_trie = MergeTrie::new(5_000);
            let actions: Vec<(u64, MergeAction)> = (0..40)
                .map(|index| {
                    let unit = body[(index + offset) % 4];
                    (unit.fingerprint, merge_trie.unit(unit))
                })
                .collect();
            // 3 has the lowest hash, so the learned rotation begins there.
            assert_eq!(
                actions[36..].iter().filter(|(_, next)| *next == MergeAction::LoopBody).count(),
                1,
                "{actions:?}"
            );
            for (fingerprint, next) in &actions[20..] {
                let wanted = if *fingerprint == 7 { MergeAction::LoopBody } else { MergeAction::Hold };
                assert_eq!(*next, wanted, "{fingerprint} in {actions:?}");
            }
        }
    }

    #[test]
    fn short_loop_bodies_are_merged_to_some_hundred_ops() {
        let mut merge_trie = MergeTrie::new(5_000);
        let actions: Vec<MergeAction> =
            (0..60).map(|_| merge_trie.unit(UnitFingerprint { fingerprint: 1, ops: 60 })).collect();
        let joined: Vec<usize> = (0..60).filter(|&at| actions[at] == MergeAction::LoopBody).collect();
        assert!(joined.len() >= 3, "{actions:?}");
        // Nine units of 60 ops are the first sequence with at least 512 ops.
        assert!(joined.windows(2).all(|pair| pair[1] - pair[0] == 9), "{joined:?}");
    }

    #[test]
    fn what_the_program_asks_for_goes_before_what_repeats_within() {
        let mut merge_trie = MergeTrie::new(5_000);
        let mut adam = units(&[1; 50], 52);
        adam.push(UnitFingerprint { fingerprint: 2, ops: 10 });
        for _ in 0..3 {
            let _ = step(&mut merge_trie, &adam);
        }
        let actions = step(&mut merge_trie, &adam);
        assert_eq!(actions.iter().filter(|&&next| next == MergeAction::Merge).count(), 1, "{actions:?}");
        assert_eq!(actions.last(), Some(&MergeAction::Merge));
    }

    #[test]
    fn a_sequence_that_is_refused_is_not_held_back_to_its_end_again() {
        let mut merge_trie = MergeTrie::new(5_000);
        let steady = units(&[1, 2], 200);
        (0..3).for_each(|_| drop(step(&mut merge_trie, &steady)));
        let joined = |&UnitFingerprint { fingerprint, ops }: &UnitFingerprint| Unit {
            ops,
            boundary: Boundary::Content,
            fingerprint,
        };
        merge_trie.refuse(&steady.iter().map(joined).collect::<Vec<_>>());
        assert_eq!(step(&mut merge_trie, &steady).last(), Some(&MergeAction::Alone));
    }

    #[test]
    fn plans_are_bounded() {
        let mut merge_trie = MergeTrie::new(5_000);
        for fingerprint in 0..20_000 {
            let _ = step(&mut merge_trie, &units(&[fingerprint, fingerprint + 1, fingerprint], 10));
            assert!(merge_trie.nodes.len() <= MAX_NODES);
        }
        for fingerprint in 0..20_000 {
            let _ = merge_trie.unit(UnitFingerprint { fingerprint, ops: 40 });
            assert!(merge_trie.path.len() <= MAX_UNITS);
        }
    }
}
