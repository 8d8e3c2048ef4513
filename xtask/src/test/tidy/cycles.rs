//! Modules of a crate do not depend on each other in a cycle.
//!
//! A module and one inside it may depend on each other: a parent uses its parts, and the parts use
//! what their parent provides to all. [`super::modules`] defines what counts as a dependency.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Edges, Modules};
use super::{Tree, Verdict};

/// A tolerated cycle: the file of the crate's root, and the modules in the cycle.
type Known = (&'static str, &'static [&'static str]);

/// The existing cycles. They may shrink, and none may be added.
const KNOWN: &[Known] = &[];

/// No modules of a crate form a cycle, except the known ones.
pub(crate) fn cycles(tree: &Tree) -> Verdict {
    check(tree, KNOWN)
}

fn check(tree: &Tree, known: &[Known]) -> Verdict {
    let mut findings = Vec::new();
    let roots: Vec<&str> = tree.texts().map(|(path, _)| path).filter(|path| is_root(path)).collect();
    for root in &roots {
        let modules = Modules::read(tree, root);
        findings.extend(modules.missing.iter().cloned());
        let edges = modules.edges();
        let cycles = cycles_of(&edges);
        let known: Vec<BTreeSet<&str>> = known
            .iter()
            .filter(|(file, _)| file == root)
            .map(|(_, modules)| modules.iter().copied().collect())
            .collect();
        for cycle in &cycles {
            if !known.iter().any(|known| cycle.is_subset(known)) {
                let names: Vec<&str> = cycle.iter().copied().collect();
                findings.push(format!("{root}: modules in a cycle: {}", names.join(", ")));
                let is_new = |name: &&str| !known.iter().flatten().any(|known| known == name);
                let new: Vec<&str> = names.iter().copied().filter(is_new).collect();
                findings.extend(shortest(&edges, cycle, if new.is_empty() { &names } else { &new }));
            }
        }
        for gone in known.iter().flatten().filter(|name| !cycles.iter().flatten().any(|cycle| cycle == *name))
        {
            findings.push(format!("{root}: {gone} is in no cycle any more: remove it from KNOWN"));
        }
    }
    for (root, _) in known.iter().filter(|(root, _)| !roots.contains(root)) {
        findings.push(format!("{root} is not there: remove it from KNOWN"));
    }
    Verdict::of(findings)
}

/// Whether a file is the root of a library or a program.
fn is_root(path: &str) -> bool {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let in_source = folder == "src" || folder.ends_with("/src");
    let is_program = folder == "src/bin" || folder.ends_with("/src/bin");
    in_source && ["lib.rs", "main.rs"].contains(&file) || is_program && file.ends_with(".rs")
}

/// The strongly connected components with more than one module.
fn cycles_of(edges: &Edges) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|from| (*from, reach(&next, from))).collect();
    let mut cycles: Vec<BTreeSet<&str>> = Vec::new();
    for (from, to) in &reached {
        if !to.contains(from) || cycles.iter().any(|cycle| cycle.contains(from)) {
            continue;
        }
        let returns = |to: &&&str| reached.get(**to).is_some_and(|back| back.contains(from));
        cycles.push(to.iter().filter(returns).copied().collect());
    }
    cycles
}

/// The modules that are reachable from one by at least one edge.
fn reach<'a>(next: &BTreeMap<&'a str, Vec<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        let new = next.get(module).into_iter().flatten().filter(|to| reached.insert(**to));
        open.extend(new.copied().collect::<Vec<_>>());
    }
    reached
}

/// A shortest cycle through one of some modules: a line for each edge, with the position that makes
/// it.
fn shortest(edges: &Edges, cycle: &BTreeSet<&str>, through: &[&str]) -> Vec<String> {
    let ways = through.iter().filter_map(|start| {
        // Breadth-first search from `start` until it is reached again; `came` has the predecessors.
        let (mut came, mut open) = (BTreeMap::new(), VecDeque::from([*start]));
        while let Some(module) = open.pop_front() {
            for (from, to) in edges.keys().filter(|(from, _)| from == module) {
                if cycle.contains(to.as_str()) && !came.contains_key(to.as_str()) {
                    came.insert(to.as_str(), from.as_str());
                    open.push_back(to.as_str());
                }
            }
        }
        let mut way = vec![*start];
        while way.len() == 1 || way.last() != Some(start) {
            way.push(came.get(way.last()?)?);
        }
        way.reverse();
        Some(way)
    });
    let way = ways.min_by_key(Vec::len).unwrap_or_default();
    let line = |pair: &[&str]| {
        let place = edges.get(&(pair[0].to_owned(), pair[1].to_owned()))?;
        Some(format!("  {} names {} ({}:{})", pair[0], pair[1], place.file, place.line))
    };
    way.windows(2).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(lines: &[&str]) -> Verdict {
        Verdict::Failed(lines.iter().map(|line| (*line).to_owned()).collect())
    }

    #[test]
    fn a_cycle_fails_and_is_shown() {
        let crate_of = |a, b, c| {
            Tree::of([
                ("x/src/lib.rs", "mod a; mod b; mod c;"),
                ("x/src/a.rs", a),
                ("x/src/b.rs", b),
                ("x/src/c.rs", c),
            ])
        };
        let fine = crate_of("use crate::b;", "use crate::c;", "");
        assert_eq!(check(&fine, &[]), Verdict::Passed);
        let two = crate_of("use crate::b;", "\nuse super::a;", "use crate::a;");
        let wanted = [
            "x/src/lib.rs: modules in a cycle: a, b",
            "  a names b (x/src/a.rs:1)",
            "  b names a (x/src/b.rs:2)",
        ];
        assert_eq!(check(&two, &[]), failed(&wanted));
        let three = crate_of("use crate::b;", "use super::c;", "use crate::a;");
        let wanted = [
            "x/src/lib.rs: modules in a cycle: a, b, c",
            "  a names b (x/src/a.rs:1)",
            "  b names c (x/src/b.rs:1)",
            "  c names a (x/src/c.rs:1)",
        ];
        assert_eq!(check(&three, &[]), failed(&wanted));
    }

    #[test]
    fn parents_and_children_may_use_each_other() {
        let tree = Tree::of([
            ("x/src/main.rs", "mod a; use a::A; struct Root;"),
            ("x/src/a/mod.rs", "mod b; pub use b::A; use crate::Root;"),
            ("x/src/a/b.rs", "use super::super::Root; use crate::a; pub struct A;"),
        ]);
        assert_eq!(check(&tree, &[]), Verdict::Passed);
    }

    #[test]
    fn a_known_cycle_may_shrink_only() {
        let tree = |c| {
            Tree::of([
                ("src/lib.rs", "mod a; mod b; mod c;"),
                ("src/a.rs", "use crate::b;"),
                ("src/b.rs", "use crate::a; use crate::c;"),
                ("src/c.rs", c),
            ])
        };
        let known: Known = ("src/lib.rs", &["a", "b"]);
        assert_eq!(check(&tree(""), &[known]), Verdict::Passed);
        // The shown cycle goes through the new edge.
        let wanted = [
            "src/lib.rs: modules in a cycle: a, b, c",
            "  c names b (src/c.rs:1)",
            "  b names c (src/b.rs:1)",
        ];
        assert_eq!(check(&tree("use crate::b;"), &[known]), failed(&wanted));
        let wanted = failed(&["src/lib.rs: c is in no cycle any more: remove it from KNOWN"]);
        assert_eq!(check(&tree(""), &[("src/lib.rs", &["a", "b", "c"])]), wanted);
        let wanted = failed(&["y/src/lib.rs is not there: remove it from KNOWN"]);
        assert_eq!(check(&tree(""), &[known, ("y/src/lib.rs", &["a"])]), wanted);
    }

    #[test]
    fn roots_are_libraries_and_programs() {
        for path in ["src/lib.rs", "a/src/main.rs", "a/src/bin/b.rs"] {
            assert!(is_root(path), "{path}");
        }
        for path in ["a/src/b/lib.rs", "tests/main.rs", "src/a.rs", "lib.rs"] {
            assert!(!is_root(path), "{path}");
        }
    }
}
