//! Labels of invariants: each is defined once, and references have a definition.
//!
//! A definition is a list item in the header of a Rust or C++ file, `//! - LOG-1: ...` or
//! `// - LOG-1: ...`. A reference is a label in parentheses in a comment: `(LOG-1)`,
//! `(LOG-1, LOG-2)`.

use std::collections::BTreeMap;

use super::tokens::{Syntax, split};
use super::{Tree, Verdict};

/// The document that defines the invariants of several crates, as `- **ARCH-1** ...`.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// No label is defined twice, and every referenced label is defined.
pub(crate) fn labels(tree: &Tree) -> Verdict {
    let mut definitions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut references = Vec::new();
    for (path, text) in tree.texts() {
        if path == DOCUMENT {
            for (line, text) in text.lines().enumerate() {
                let Some(item) = text.strip_prefix("- **") else { continue };
                let Some(end) = label_at_start(item) else { continue };
                definitions.entry(&item[..end]).or_default().push(format!("{path}:{}", line + 1));
            }
        }
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
        if places.len() > 1 {
            findings.push(format!("{label} is defined {} times: {}", places.len(), places.join(", ")));
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

/// The labels in parentheses without other text: `(VALUE-1)`, `(VALUE-1, VALUE-2)`, `(VALUE-1 to
/// VALUE-3)`.
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
        assert_eq!(labels(&twice), failed(finding));
        assert_eq!(labels(&Tree::of([("a.rs", header)])), Verdict::Passed);
    }

    #[test]
    fn what_is_referred_to_exists() {
        let header = "//! - V1: holds.\n";
        let verdict = |text| labels(&Tree::of([("a.rs", header), ("b.rs", text)]));
        assert_eq!(verdict("// holds (V1)\nlet x = \"(V9)\";"), Verdict::Passed);
        assert_eq!(verdict("\n// holds (V1, V2)"), failed("b.rs:2: (V2) is defined nowhere"));
        let tree = Tree::of([(DOCUMENT, "- **ARCH-1** It holds.\n"), ("b.rs", "// holds (ARCH-1)\n")]);
        assert_eq!(labels(&tree), Verdict::Passed);
    }
}
