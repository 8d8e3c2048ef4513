//! Rules on Rust sources.

use super::{Tree, Verdict};

/// The largest number of lines of a source file.
const MAX_LINES: usize = 800;

/// Crate roots that forbid unsafe code.
const SAFE_CRATES: [&str; 6] = [
    "fusion/src/lib.rs",
    "interp/src/lib.rs",
    "testgen/src/lib.rs",
    "cache/src/lib.rs",
    "qualify/src/lib.rs",
    "xtask/src/main.rs",
];

/// Places that may contain unsafe code: the lock-free parts (each with loom models), the calls into
/// plugins, the synchronization shim, pointers from embedders, which are all of `capi`, and tests,
/// some of which implement a plugin.
const UNSAFE_PLACES: [&str; 9] = [
    "capi/src/",
    "torch/engine/src/abi/",
    "src/embed/foreign.rs",
    // Slices of a transparent wrapper.
    "src/handle.rs",
    "record/src/",
    "pjrt/src/",
    // The bytes of an executable from a cache.
    "runtime/src/device/pjrt.rs",
    "sync/src/",
    "tests/",
];

/// No source file is too long.
pub(crate) fn file_length(tree: &Tree) -> Verdict {
    let sources = tree.texts().filter(|(path, _)| path.ends_with(".rs"));
    Verdict::of(
        sources
            .map(|(path, text)| (path, text.lines().count()))
            .filter(|(_, lines)| *lines > MAX_LINES)
            .map(|(path, lines)| format!("{path}: {lines} lines; the limit is {MAX_LINES}"))
            .collect(),
    )
}

/// Crates without unsafe code forbid it, and unsafe code stays in its places.
pub(crate) fn unsafe_code(tree: &Tree) -> Verdict {
    let mut findings = Vec::new();
    for root in SAFE_CRATES {
        match tree.text(root) {
            Some(text) if text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") => {}
            Some(_) => findings.push(format!("{root} lacks #![forbid(unsafe_code)]")),
            None => findings.push(format!("{root} is not there")),
        }
    }
    for (path, text) in tree.texts() {
        let safe = SAFE_CRATES.iter().any(|root| same_crate(root, path));
        if !path.ends_with(".rs") || safe || UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if words(code).any(|word| word == "unsafe") {
                findings.push(format!(
                    "{path}:{}: unsafe code outside {}",
                    index + 1,
                    UNSAFE_PLACES.join(", ")
                ));
            }
        }
    }
    Verdict::of(findings)
}

/// Whether a file is in the folder of a crate that forbids unsafe code.
fn same_crate(root: &str, path: &str) -> bool {
    path.split('/').next() == root.split('/').next()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: &str = "//! A crate.\n#![forbid(unsafe_code)]\n";

    fn safe_roots() -> Tree {
        Tree::of(SAFE_CRATES.map(|root| (root, SAFE)))
    }

    fn with(path: &str, text: &str) -> Tree {
        let mut tree = safe_roots();
        tree.files.insert(path.to_owned(), Some(text.to_owned()));
        tree
    }

    #[test]
    fn a_file_may_reach_the_limit_and_not_pass_it() {
        let long = "x\n".repeat(801);
        assert_eq!(file_length(&Tree::of([("a.rs", &long[2..]), ("b.md", &long)])), Verdict::Passed);
        let finding = "src/a.rs: 801 lines; the limit is 800".to_owned();
        assert_eq!(file_length(&Tree::of([("src/a.rs", &long)])), Verdict::Failed(vec![finding]));
    }

    #[test]
    fn safe_crates_must_forbid() {
        assert_eq!(unsafe_code(&safe_roots()), Verdict::Passed);
        let verdict =
            unsafe_code(&with("cache/src/lib.rs", "//! #![forbid(unsafe_code)]\n#![deny(unsafe_code)]"));
        assert_eq!(
            verdict,
            Verdict::Failed(vec!["cache/src/lib.rs lacks #![forbid(unsafe_code)]".to_owned()])
        );
        let mut tree = safe_roots();
        tree.files.remove("fusion/src/lib.rs");
        assert_eq!(unsafe_code(&tree), Verdict::Failed(vec!["fusion/src/lib.rs is not there".to_owned()]));
    }

    #[test]
    fn unsafe_code_stays_in_its_places() {
        let code = "fn f() {\n    // SAFETY: holds.\n    unsafe { g() }\n}\n";
        assert_eq!(unsafe_code(&with("pjrt/src/api.rs", code)), Verdict::Passed);
        let Verdict::Failed(findings) = unsafe_code(&with("src/engine.rs", code)) else { panic!("passed") };
        assert!(findings[0].starts_with("src/engine.rs:3: unsafe code outside"), "{findings:?}");
        let talk = "// unsafe in a comment\n#![deny(unsafe_op_in_unsafe_fn)]\n";
        assert_eq!(unsafe_code(&with("src/engine.rs", talk)), Verdict::Passed);
    }
}
