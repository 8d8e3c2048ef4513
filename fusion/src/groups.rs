//! Groups of replicas that take part in one collective.

use std::fmt;

/// What fills up a row that is shorter than the others.
const NONE: i64 = -1;

/// A table of replica numbers, one row per group, as StableHLO's `replica_groups`: rows are as long
/// as the longest one and end in -1 where a group is smaller. Which numbers make sense is the
/// business of each op's rule.
///
/// A table without entries is the one without rows, so equal tables have equal forms.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Groups {
    columns: usize,
    ids: Box<[i64]>,
}

impl Groups {
    /// The groups, filled up with -1 to equal lengths. What fills them up already makes none of
    /// them longer.
    #[must_use]
    pub fn new<G: AsRef<[i64]>>(groups: &[G]) -> Groups {
        let columns = groups.iter().map(|group| members(group.as_ref()).len()).max().unwrap_or(0);
        let row = |group: &G| {
            let group = members(group.as_ref());
            group.iter().copied().chain(std::iter::repeat_n(NONE, columns - group.len())).collect::<Vec<_>>()
        };
        Groups { columns, ids: groups.iter().flat_map(row).collect() }
    }

    /// One group of the replicas 0 to `count - 1`.
    #[must_use]
    pub fn all(count: u32) -> Groups {
        Groups { columns: count as usize, ids: (0..count).map(i64::from).collect() }
    }

    /// Entries of a row.
    #[inline]
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows, with what fills them up.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.ids.chunks_exact(self.columns.max(1))
    }

    /// The rows without what fills them up at the end.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.rows().map(members)
    }
}

/// A row without what fills it up at the end.
fn members(row: &[i64]) -> &[i64] {
    let len = row.iter().rposition(|&id| id != NONE).map_or(0, |last| last + 1);
    &row[..len]
}

impl fmt::Debug for Groups {
    /// The rows, as StableHLO writes them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rows()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_groups_are_filled_up_and_empty_ones_leave_no_table() {
        let groups = Groups::new(&[vec![2, 0, 1], vec![3]]);
        assert_eq!(format!("{groups:?}"), "[[2, 0, 1], [3, -1, -1]]");
        assert_eq!(groups.members().collect::<Vec<_>>(), [&[2, 0, 1][..], &[3]]);
        assert_eq!(Groups::new(&[vec![2, 0, 1], vec![3, -1, -1]]), groups);
        assert_eq!(Groups::all(3), Groups::new(&[[0, 1, 2]]));
        assert_eq!(Groups::new(&[vec![0, -1, -1], vec![1, -1]]), Groups::new(&[[0], [1]]));
        for none in [Groups::new::<Vec<i64>>(&[]), Groups::new(&[vec![], vec![]]), Groups::all(0)] {
            assert_eq!(none, Groups::default());
            assert_eq!((none.rows().len(), none.columns()), (0, 0));
        }
    }
}
