//! Groups of replicas that take part in a collective.

use std::fmt;

/// Pads rows that are shorter than the longest.
const NONE: i64 = -1;

/// A table of replica numbers with one row per group, like StableHLO's `replica_groups`. All rows
/// are as long as the longest group; shorter groups are padded with -1. The rules of the ops check
/// the numbers.
///
/// A table without entries is stored without rows, so equal tables compare equal.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Groups {
    columns: usize,
    ids: Box<[i64]>,
}

impl Groups {
    /// Pads the groups with -1 to equal lengths. Padding at the end of a given group does not count
    /// towards its length.
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

    /// Length of a row.
    #[inline]
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows, with padding.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.ids.chunks_exact(self.columns.max(1))
    }

    /// The rows, without padding at their ends.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &[i64]> {
        self.rows().map(members)
    }
}

/// A row without padding at its end.
fn members(row: &[i64]) -> &[i64] {
    let len = row.iter().rposition(|&id| id != NONE).map_or(0, |last| last + 1);
    &row[..len]
}

impl fmt::Debug for Groups {
    /// Writes the rows as StableHLO does.
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
