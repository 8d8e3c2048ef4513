//! Blocked summation, where sums may be taken in any order
//! ([`SumOrder::AnyOrder`](super::SumOrder)).
//!
//! A sum term by term accumulates as many rounding errors as there are terms; the vector
//! instructions of a compiled sum reduce them a little. Here each level adds [`BLOCK`] sums of the
//! level below, so a term is rounded `BLOCK` times per level, 96 times for a million terms (Higham,
//! The accuracy of floating point summation, 1993: "pairwise", with a wider base). Up to `BLOCK`
//! terms are added in order. All arithmetic is in the type of the terms, so a sum overflows where a
//! compiled one does.

/// Number of terms that are added one by one.
pub(super) const BLOCK: usize = 32;

/// Sums that advance in parallel, each over the same number of terms.
pub(super) struct Cascade<F> {
    /// Sums of at most [`BLOCK`] terms; sums of these; and so on. The values in a level without
    /// terms are not used.
    levels: Vec<Vec<f32>>,
    /// The number of terms at each place where rows begin.
    counts: Vec<usize>,
    add: F,
}

impl<F: Fn(f32, f32) -> f32> Cascade<F> {
    pub(super) fn new(places: usize, add: F) -> Cascade<F> {
        Cascade { levels: vec![vec![0.0; places]], counts: vec![0; places], add }
    }

    /// Adds one term to each of the places from `start` on, `step` apart. Rows that begin at the
    /// same place cover the same places.
    pub(super) fn add_row(&mut self, start: usize, step: usize, row: impl ExactSizeIterator<Item = f32>) {
        let count = self.counts[start];
        self.counts[start] += 1;
        let is_first = count.is_multiple_of(BLOCK);
        if is_first && count > 0 {
            self.carry(start, step, row.len(), count);
        }
        let Cascade { levels, add, .. } = self;
        let sums = levels[0][start..].iter_mut().step_by(step.max(1));
        match is_first {
            true => sums.zip(row).for_each(|(sum, term)| *sum = term),
            false => sums.zip(row).for_each(|(sum, term)| *sum = add(*sum, term)),
        }
    }

    /// Adds the sums of complete blocks to the level above, and continues upwards while that
    /// completes a block there.
    fn carry(&mut self, start: usize, step: usize, len: usize, count: usize) {
        let mut blocks = count / BLOCK;
        for level in 0.. {
            if self.levels.len() == level + 1 {
                self.levels.push(vec![0.0; self.counts.len()]);
            }
            let (below, above) = self.levels.split_at_mut(level + 1);
            let is_first = blocks % BLOCK == 1;
            for place in (start..).step_by(step.max(1)).take(len) {
                let (sum, block) = (&mut above[0][place], below[level][place]);
                *sum = if is_first { block } else { (self.add)(*sum, block) };
            }
            if !blocks.is_multiple_of(BLOCK) {
                return;
            }
            blocks /= BLOCK;
        }
    }

    /// The sums, of `terms` terms each.
    pub(super) fn finish(mut self, terms: usize) -> Vec<f32> {
        // The last block of the lowest level was not carried yet, complete or not.
        let mut blocks = terms.saturating_sub(1) / BLOCK;
        let mut sums = self.levels.remove(0);
        for level in self.levels {
            if !blocks.is_multiple_of(BLOCK) {
                sums.iter_mut().zip(level).for_each(|(sum, above)| *sum = (self.add)(above, *sum));
            }
            blocks /= BLOCK;
        }
        sums
    }
}

/// The sum of a row, by halving it down to [`BLOCK`] terms.
pub(super) fn of_row<T>(row: &[T], term: &impl Fn(&T) -> f32, add: &impl Fn(f32, f32) -> f32) -> f32 {
    if row.len() <= BLOCK {
        let (first, rest) = row.split_first().expect("bug: a sum without elements");
        return rest.iter().fold(term(first), |sum, next| add(sum, term(next)));
    }
    let half = (row.len() / 2).next_multiple_of(BLOCK);
    let (left, right) = row.split_at(half);
    add(of_row(left, term, add), of_row(right, term, add))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(a: f32, b: f32) -> f32 {
        a + b
    }

    /// Terms that are not sums of powers of two.
    fn terms(count: usize) -> Vec<f32> {
        (0..count).map(|at| 0.1 + (at % 7) as f32 / 3.0).collect()
    }

    /// Error of a sum, in units in its last place.
    fn ulps(sum: f32, terms: &[f32]) -> f64 {
        let exact: f64 = terms.iter().map(|&term| f64::from(term)).sum();
        let unit = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
        (f64::from(sum) - exact).abs() / unit
    }

    #[test]
    fn every_term_is_added_once() {
        // Integers, whose sums are exact in any order; the counts are near the ends of blocks.
        for count in
            [1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 1056, 1057, 2048, 2049, 32_768, 32_769, 33_825]
        {
            let mut cascade = Cascade::new(3, add);
            for at in 0..count {
                cascade.add_row(0, 2, [at as f32, 1.0].into_iter());
            }
            let sums = cascade.finish(count);
            let all = (count * (count - 1) / 2) as f64;
            assert!((f64::from(sums[0]) - all).abs() <= all * 1e-6, "{count}: {} and not {all}", sums[0]);
            assert_eq!((sums[1], sums[2]), (0.0, count as f32), "{count}");
            let row = vec![1.0f32; count];
            assert_eq!(of_row(&row, &|&x| x, &add), count as f32);
        }
    }

    #[test]
    fn few_terms_are_added_in_order() {
        for count in [1, 2, 17, 32] {
            let terms = terms(count);
            let in_order = terms.iter().copied().reduce(add).unwrap();
            let mut cascade = Cascade::new(1, add);
            terms.iter().for_each(|&term| cascade.add_row(0, 1, [term].into_iter()));
            assert_eq!((cascade.finish(count)[0], of_row(&terms, &|&x| x, &add)), (in_order, in_order));
        }
    }

    /// Summing in order is off by some hundred units. The bound here is 32 per level; the measured
    /// error is below one.
    #[test]
    fn many_terms_err_little() {
        let terms = terms(1 << 18);
        let mut cascade = Cascade::new(1, add);
        terms.iter().for_each(|&term| cascade.add_row(0, 1, [term].into_iter()));
        let in_order = terms.iter().copied().reduce(add).unwrap();
        assert!(ulps(in_order, &terms) > 50.0, "{}", ulps(in_order, &terms));
        for sum in [cascade.finish(terms.len())[0], of_row(&terms, &|&x| x, &add)] {
            assert!(ulps(sum, &terms) <= 4.0, "{}", ulps(sum, &terms));
        }
    }
}
