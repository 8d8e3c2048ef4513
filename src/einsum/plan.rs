//! Chooses the order in which operands are multiplied.
//!
//! The number of multiplications of a product of two terms is the product of the sizes of all their
//! names. For few operands, dynamic programming over all subsets finds the best order: the best way
//! to multiply a subset is its best split into two. For more operands, a greedy search takes the
//! cheapest product each time.

use std::collections::BTreeSet;

use super::Name;

/// The names of a term.
pub(super) type Names = BTreeSet<Name>;

/// Maximum number of operands for which all orders are tried: 3^8 splits.
const EXHAUSTIVE: usize = 8;

/// Pairs of terms to be multiplied. Each refers to the list of terms at that time: both are taken
/// out, their product is put at the end. The first of a pair is before the second.
pub(super) struct Plan {
    pub(super) pairs: Vec<(usize, usize)>,
}

impl Plan {
    pub(super) fn of(terms: &[Names], result: &[Name], size: impl Fn(Name) -> f64) -> Plan {
        let cost = |names: &Names| names.iter().map(|&name| size(name)).product::<f64>();
        let pairs = match terms.len() {
            0 | 1 => Vec::new(),
            2 => vec![(0, 1)],
            count if count <= EXHAUSTIVE => exhaustive(terms, result, cost),
            _ => greedy(terms, result, cost),
        };
        Plan { pairs }
    }
}

/// The names that the product of some terms keeps: those that the other terms or the result have.
fn kept(inside: &Names, outside: impl Iterator<Item = Name>) -> Names {
    outside.filter(|name| inside.contains(name)).collect()
}

fn exhaustive(terms: &[Names], result: &[Name], cost: impl Fn(&Names) -> f64) -> Vec<(usize, usize)> {
    let subsets = 1usize << terms.len();
    let members = |set: usize| (0..terms.len()).filter(move |&term| set & (1 << term) != 0);
    // Of each subset: the names of its product, its cost, and the better half of its best split.
    let mut best: Vec<(Names, f64, usize)> = Vec::with_capacity(subsets);
    for set in 0..subsets {
        let inside: Names = members(set).flat_map(|term| terms[term].iter().copied()).collect();
        if set.count_ones() <= 1 {
            best.push((inside, 0.0, 0));
            continue;
        }
        let outside = members(!set & (subsets - 1)).flat_map(|term| terms[term].iter().copied());
        let names = kept(&inside, outside.chain(result.iter().copied()));
        let (mut least, mut half) = (f64::INFINITY, 0);
        let lowest = set & set.wrapping_neg();
        let mut part = (set - 1) & set;
        while part != 0 {
            // Each split once: the half with the first term.
            if part & lowest != 0 {
                let (a, b) = (&best[part], &best[set ^ part]);
                let total = a.1 + b.1 + cost(&a.0.union(&b.0).copied().collect());
                // With an empty dimension every cost is 0, and some split has to be taken.
                if total < least || half == 0 {
                    (least, half) = (total, part);
                }
            }
            part = (part - 1) & set;
        }
        best.push((names, least, half));
    }
    let mut pairs = Vec::new();
    let mut places: Vec<usize> = (0..terms.len()).map(|term| 1 << term).collect();
    split(subsets - 1, &best, &mut places, &mut pairs);
    pairs
}

/// Appends the products that make a subset; `places` are the subsets that the terms of the list
/// stand for.
fn split(set: usize, best: &[(Names, f64, usize)], places: &mut Vec<usize>, pairs: &mut Vec<(usize, usize)>) {
    let half = best[set].2;
    if half == 0 {
        return;
    }
    split(half, best, places, pairs);
    split(set ^ half, best, places, pairs);
    let at = |wanted: usize| places.iter().position(|&place| place == wanted).unwrap_or(0);
    let (a, b) = (at(half), at(set ^ half));
    take(a.min(b), a.max(b), set, places, pairs);
}

fn take<T>(i: usize, j: usize, product: T, terms: &mut Vec<T>, pairs: &mut Vec<(usize, usize)>) {
    pairs.push((i, j));
    terms.remove(j);
    terms.remove(i);
    terms.push(product);
}

fn greedy(terms: &[Names], result: &[Name], cost: impl Fn(&Names) -> f64) -> Vec<(usize, usize)> {
    let mut terms = terms.to_vec();
    let mut pairs = Vec::new();
    while terms.len() > 1 {
        let mut least: Option<(f64, usize, usize)> = None;
        for i in 0..terms.len() {
            for j in i + 1..terms.len() {
                let found = cost(&terms[i].union(&terms[j]).copied().collect());
                if least.is_none_or(|(before, ..)| found < before) {
                    least = Some((found, i, j));
                }
            }
        }
        let Some((_, i, j)) = least else { break };
        let inside: Names = terms[i].union(&terms[j]).copied().collect();
        let others = (0..terms.len()).filter(|&term| term != i && term != j);
        let outside = others.flat_map(|term| terms[term].iter().copied()).chain(result.iter().copied());
        let product = kept(&inside, outside.collect::<Vec<_>>().into_iter());
        take(i, j, product, &mut terms, &mut pairs);
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        text.chars().map(Name::Letter).collect()
    }

    /// The number of multiplications of a plan, counted by executing it.
    fn total(plan: &Plan, terms: &[Names], result: &[Name], size: impl Fn(Name) -> f64) -> f64 {
        let mut terms = terms.to_vec();
        let mut total = 0.0;
        for &(i, j) in &plan.pairs {
            assert!(i < j && j < terms.len());
            let rhs = terms.remove(j);
            let lhs = terms.remove(i);
            let inside: Names = lhs.union(&rhs).copied().collect();
            total += inside.iter().map(|&name| size(name)).product::<f64>();
            let outside: Vec<Name> = terms.iter().flatten().chain(result).copied().collect();
            terms.push(kept(&inside, outside.into_iter()));
        }
        assert_eq!(terms.len(), 1);
        total
    }

    /// The textbook example of a matrix chain, 10x30, 30x5 and 5x60: 4,500 multiplications instead
    /// of 27,000.
    #[test]
    fn a_chain_of_matrices_is_multiplied_in_the_best_order() {
        let terms = [names("ab"), names("bc"), names("cd")];
        let result = [Name::Letter('a'), Name::Letter('d')];
        let size = |name| match name {
            Name::Letter('a') => 10.0,
            Name::Letter('b') => 30.0,
            Name::Letter('c') => 5.0,
            _ => 60.0,
        };
        let plan = Plan::of(&terms, &result, size);
        assert_eq!(plan.pairs, [(0, 1), (0, 1)]);
        assert_eq!(total(&plan, &terms, &result, size), 4500.0);
    }

    /// Greedy plans are valid, and the best plans are never worse.
    #[test]
    fn plans_for_many_terms() {
        let letters: Vec<char> = ('a'..='k').collect();
        let chain: Vec<Names> =
            letters.windows(2).map(|pair| pair.iter().copied().map(Name::Letter).collect()).collect();
        let result = [Name::Letter('a'), Name::Letter('k')];
        let size = |name| match name {
            Name::Letter(letter) => f64::from((letter as u32 * 7) % 11 + 2),
            Name::Unnamed(_) => 1.0,
        };
        assert_eq!(chain.len(), 10);
        let plan = Plan::of(&chain, &result, size);
        total(&plan, &chain, &result, size);
        for count in 3..=EXHAUSTIVE {
            let terms = &chain[..count];
            let ends = [Name::Letter('a'), Name::Letter(letters[count])];
            let cost = |names: &Names| names.iter().map(|&name| size(name)).product::<f64>();
            let best = Plan { pairs: exhaustive(terms, &ends, cost) };
            let quick = Plan { pairs: greedy(terms, &ends, cost) };
            assert!(total(&best, terms, &ends, size) <= total(&quick, terms, &ends, size));
        }
    }

    #[test]
    fn empty_dimensions_do_not_stop_planning() {
        let terms = [names("ab"), names("bc"), names("cd")];
        let plan = Plan::of(&terms, &[Name::Letter('a')], |_| 0.0);
        assert_eq!(plan.pairs.len(), 2);
    }
}
