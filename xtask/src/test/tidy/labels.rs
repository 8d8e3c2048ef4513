//! Labels of invariants: each is defined once, and references have a definition.
//!
//! A definition is a list item in the header of a Rust or C++ file: `//! - V1: ...` or
//! `// - V1: ...`. A reference is a label in parentheses in a comment: `(V1)`, `(V1, V2)`.

use std::collections::BTreeMap;

use super::tokens::{Syntax, split};
use super::{Tree, Verdict};

/// Labels with several definitions, and their number. The numbers may become smaller.
const KNOWN: &[(&str, usize)] = &[
    ("A1", 2),
    ("A2", 2),
    ("A3", 2),
    ("B1", 4),
    ("B2", 4),
    ("C1", 3),
    ("C2", 3),
    ("D1", 3),
    ("D2", 2),
    ("E1", 3),
    ("E2", 3),
    ("E3", 2),
    ("F1", 3),
    ("F2", 3),
    ("F3", 3),
    ("G1", 3),
    ("G2", 3),
    ("H1", 2),
    ("H2", 2),
    ("H3", 2),
    ("I1", 2),
    ("I2", 2),
    ("I3", 2),
    ("I4", 2),
    ("I5", 2),
    ("I6", 2),
    ("K1", 2),
    ("K2", 2),
    ("M1", 2),
    ("M2", 2),
    ("M3", 2),
    ("N1", 2),
    ("N2", 2),
    ("N3", 2),
    ("O1", 3),
    ("O2", 2),
    ("O3", 2),
    ("P1", 4),
    ("P2", 4),
    ("P3", 3),
    ("R1", 3),
    ("R2", 3),
    ("R3", 3),
    ("S1", 2),
    ("S2", 2),
    ("ST1", 2),
    ("ST2", 2),
    ("ST3", 2),
    ("X1", 2),
    ("X2", 2),
];

/// No label is defined twice, except the known ones, and every referenced label is defined.
pub(crate) fn labels(tree: &Tree) -> Verdict {
    check(tree, KNOWN)
}

fn check(tree: &Tree, known: &[(&str, usize)]) -> Verdict {
    let mut definitions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut references = Vec::new();
    for (path, text) in tree.texts() {
        let Some(syntax) = syntax(path) else { continue };
        for comment in split(text, syntax).comments {
            let place = format!("{path}:{}", comment.line);
            if let Some(label) = definition(comment.text, syntax) {
                definitions.entry(label).or_default().push(place.clone());
            }
            references.extend(referred(comment.text).into_iter().map(|label| (label, place.clone())));
        }
    }
    let mut findings = Vec::new();
    for (label, places) in &definitions {
        let allowed = known.iter().find(|(known, _)| known == label).map_or(1, |(_, times)| *times);
        if places.len() > allowed {
            findings.push(format!("{label} is defined {} times: {}", places.len(), places.join(", ")));
        }
    }
    for (label, times) in known {
        let found = definitions.get(label).map_or(0, Vec::len);
        if found < *times {
            findings.push(format!("{label} is defined {found} times, and KNOWN has {times}: lower it"));
        }
    }
    let undefined = references
        .into_iter()
        .filter(|(label, _)| !definitions.contains_key(label))
        .map(|(label, place)| format!("{place}: ({label}) is defined nowhere"));
    findings.extend(undefined);
    Verdict::of(findings)
}

fn syntax(path: &str) -> Option<Syntax> {
    match path.rsplit_once('.')?.1 {
        "rs" => Some(Syntax::Rust),
        "c" | "cc" | "cpp" | "h" | "hpp" => Some(Syntax::C),
        _ => None,
    }
}

/// The label that a line of a comment defines.
fn definition(comment: &str, syntax: Syntax) -> Option<&str> {
    let marker = if syntax == Syntax::Rust { "//!" } else { "//" };
    let item = comment.strip_prefix(marker)?.trim_start().strip_prefix("- ")?;
    let (label, rest) = item.split_at(label_at_start(item)?);
    rest.starts_with([':', '.']).then_some(label)
}

/// The labels in parentheses without other text: `(V1)`, `(V1, V2)`, `(V1 to V3)`.
fn referred(comment: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    for (at, _) in comment.match_indices('(') {
        let Some(end) = comment[at..].find(')') else { continue };
        let words = comment[at + 1..at + end].split([',', ' ']).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.filter(|word| !["and", "to", "or"].contains(word)).collect();
        if words.iter().all(|word| label_at_start(word) == Some(word.len())) {
            labels.extend(words);
        }
    }
    labels
}

/// The length of the label at the start of a text: capital letters, an optional hyphen, and a
/// number.
fn label_at_start(text: &str) -> Option<usize> {
    let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
    let hyphen = usize::from(text[letters..].starts_with('-'));
    let digits = text[letters + hyphen..].bytes().take_while(u8::is_ascii_digit).count();
    (letters > 0 && digits > 0).then_some(letters + hyphen + digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(finding: &str) -> Verdict {
        Verdict::Failed(vec![finding.to_owned()])
    }

    #[test]
    fn definitions_and_references_are_told_from_other_text() {
        for (comment, label) in [
            ("//! - V1: it holds.", Some("V1")),
            ("//!   - LOG-12. It holds.", Some("LOG-12")),
            ("//! - DK1, DK2: elsewhere.", None),
            ("//! - V: it holds.", None),
            ("//! V1: it holds.", None),
            ("/// - V1: it holds.", None),
        ] {
            assert_eq!(definition(comment, Syntax::Rust), label, "{comment}");
        }
        assert_eq!(definition("// - V1: it holds.", Syntax::C), Some("V1"));
        let references: [(&str, &[&str]); 6] = [
            ("// Holds (V1), as does (LOG-2).", &["V1", "LOG-2"]),
            ("// Hold (V1, V2 and V3).", &["V1", "V2", "V3"]),
            ("// Hold (V1 to V3).", &["V1", "V3"]),
            ("// See V1 (of it), f(x1), (V1 here)", &[]),
            ("// (V1", &[]),
            ("// () ( )", &[]),
        ];
        for (comment, labels) in references {
            assert_eq!(referred(comment), labels, "{comment}");
        }
    }

    #[test]
    fn a_label_is_defined_once() {
        let header = "//! - V1: holds.\n";
        let twice = Tree::of([("a.rs", header), ("b.rs", header), ("c.md", header)]);
        let finding = "V1 is defined 2 times: a.rs:1, b.rs:1";
        assert_eq!(check(&twice, &[]), failed(finding));
        assert_eq!(check(&twice, &[("V1", 2)]), Verdict::Passed);
        let finding = "V1 is defined 2 times, and KNOWN has 3: lower it";
        assert_eq!(check(&twice, &[("V1", 3)]), failed(finding));
        assert_eq!(check(&Tree::of([("a.rs", header)]), &[]), Verdict::Passed);
    }

    #[test]
    fn what_is_referred_to_exists() {
        let header = "//! - V1: holds.\n";
        let verdict = |text| check(&Tree::of([("a.rs", header), ("b.rs", text)]), &[]);
        assert_eq!(verdict("// holds (V1)\nlet x = \"(V9)\";"), Verdict::Passed);
        assert_eq!(verdict("\n// holds (V1, V2)"), failed("b.rs:2: (V2) is defined nowhere"));
    }
}
