//! Rules on documents and on files that every checkout has.

use super::{Tree, Verdict};

const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// The most lines that these documents may have.
const MAX_LINES: [(&str, usize); 2] = [("README.md", 150), (ARCHITECTURE, 300)];

/// File extensions by which a word counts as a file name.
const ENDINGS: [&str; 9] = [".rs", ".toml", ".md", ".lock", ".json", ".txt", ".c", ".h", ".supp"];

/// Names that the architecture document may mention although no such file is in the tree.
const ELSEWHERE: [(&str, &str); 2] = [
    ("model.rs", "a file of a user, in an example of a message"),
    ("pjrt_c_api.h", "the header of the PJRT API, which comes with pjrt-sys"),
];

/// Documents that everybody reads stay short.
pub(crate) fn document_length(tree: &Tree) -> Verdict {
    let mut findings = Vec::new();
    for (file, limit) in MAX_LINES {
        match tree.text(file).map(|text| text.lines().count()) {
            None => findings.push(format!("there is no {file}")),
            Some(lines) if lines > limit => {
                findings.push(format!("{file}: {lines} lines; the limit is {limit}"));
            }
            Some(_) => {}
        }
    }
    Verdict::of(findings)
}

/// Every file and folder that the architecture document names exists.
pub(crate) fn architecture_files(tree: &Tree) -> Verdict {
    let Some(text) = tree.text(ARCHITECTURE) else { return missing(ARCHITECTURE) };
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for name in names(line) {
            if !exists(tree, name) && !ELSEWHERE.iter().any(|(elsewhere, _)| *elsewhere == name) {
                findings.push(format!("{ARCHITECTURE}:{}: there is no {name}", index + 1));
            }
        }
    }
    Verdict::of(findings)
}

/// The licence is present, and every crate names it.
pub(crate) fn licences(tree: &Tree) -> Verdict {
    let mut findings = Vec::new();
    if tree.text("LICENSE").is_none_or(|text| text.trim().is_empty()) {
        findings.push("there is no LICENSE".to_owned());
    }
    for (path, text) in tree.texts().filter(|(path, _)| path.rsplit('/').next() == Some("Cargo.toml")) {
        let named =
            |line: &str| line.starts_with("license.workspace = true") || line.starts_with("license = ");
        if text.contains("[package]") && !text.lines().any(named) {
            findings.push(format!("{path} names no licence"));
        }
    }
    Verdict::of(findings)
}

/// The lock file with the versions of all dependencies is committed.
pub(crate) fn lock_file(tree: &Tree) -> Verdict {
    match tree.text("Cargo.lock") {
        Some(text) if text.contains("[[package]]") => Verdict::Passed,
        _ => Verdict::Failed(vec!["there is no Cargo.lock with packages".to_owned()]),
    }
}

fn missing(file: &str) -> Verdict {
    Verdict::Failed(vec![format!("there is no {file}")])
}

/// The words of a line that name files (by extension) or folders (by a trailing slash, in
/// backticks).
fn names(line: &str) -> impl Iterator<Item = &str> {
    let files = line
        .split(|c: char| !(c.is_ascii_alphanumeric() || "_-./*{".contains(c)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| ENDINGS.iter().any(|ending| word.len() > ending.len() && word.ends_with(ending)))
        .filter(|word| !word.contains(['*', '{']));
    let folders = line.split('`').skip(1).step_by(2).filter(|word| {
        word.ends_with('/') && word.len() > 1 && !word.contains(['*', '{', ' ', ':', '$', '~'])
    });
    files.chain(folders)
}

/// Whether the tree has a file with this path, or a file with this name in some folder, or such a
/// folder.
fn exists(tree: &Tree, name: &str) -> bool {
    let name = name.trim_start_matches("./");
    match name.strip_suffix('/') {
        Some(folder) => tree.files.keys().any(|path| {
            path.starts_with(name)
                || path.contains(&format!("/{name}"))
                || path.starts_with(&format!("{folder}/"))
        }),
        None => tree.files.keys().any(|path| {
            path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture(text: &str) -> Tree {
        Tree::of([
            (ARCHITECTURE, text),
            ("src/record/slab.rs", ""),
            ("src/lib.rs", ""),
            (".config/nextest.toml", ""),
        ])
    }

    #[test]
    fn files_and_folders_that_exist_may_be_named() {
        let text = "See `src/record/slab.rs`, slab.rs and lib.rs.\n`src/record/` and `record/` are folders, as are src/x/ \
                    and `~/.cache/`.\nA message says model.rs:40. All of `src/*.rs`, [config](.config/nextest.toml).\n";
        assert_eq!(architecture_files(&architecture(text)), Verdict::Passed);
    }

    #[test]
    fn names_that_rotted_are_found() {
        let text = "fine\nSee `src/slab.rs` and `src/cord/`, or ab.rs.\n";
        let found = ["src/slab.rs", "ab.rs", "src/cord/"]
            .map(|name| format!("ARCHITECTURE.md:2: there is no {name}"));
        assert_eq!(architecture_files(&architecture(text)), Verdict::Failed(found.to_vec()));
    }

    #[test]
    fn a_document_may_reach_its_limit_and_not_pass_it() {
        let lines = |count| "x\n".repeat(count);
        let verdict = |readme, architecture| {
            document_length(&Tree::of([
                ("README.md", &*lines(readme)),
                (ARCHITECTURE, &*lines(architecture)),
            ]))
        };
        assert_eq!(verdict(150, 300), Verdict::Passed);
        let findings = [
            "README.md: 151 lines; the limit is 150".to_owned(),
            "ARCHITECTURE.md: 301 lines; the limit is 300".to_owned(),
        ];
        assert_eq!(verdict(151, 301), Verdict::Failed(findings.to_vec()));
    }

    #[test]
    fn the_documents_are_there() {
        let missing = ["README.md", ARCHITECTURE].map(|file| format!("there is no {file}"));
        assert_eq!(architecture_files(&Tree::default()), Verdict::Failed(missing[1..].to_vec()));
        assert_eq!(document_length(&Tree::default()), Verdict::Failed(missing.to_vec()));
    }

    #[test]
    fn the_licence_is_there_and_named() {
        let good = [("LICENSE", "Apache"), ("a/Cargo.toml", "[package]\nlicense.workspace = true\n")];
        assert_eq!(licences(&Tree::of(good)), Verdict::Passed);
        let bad = [
            ("LICENSE", " \n"),
            ("a/Cargo.toml", "[package]\n# license = none\n"),
            ("Cargo.toml", "[workspace]\n"),
        ];
        let findings = vec!["there is no LICENSE".to_owned(), "a/Cargo.toml names no licence".to_owned()];
        assert_eq!(licences(&Tree::of(bad)), Verdict::Failed(findings));
    }

    #[test]
    fn the_lock_file_is_there() {
        assert_eq!(lock_file(&Tree::of([("Cargo.lock", "version = 4\n[[package]]\n")])), Verdict::Passed);
        assert!(matches!(lock_file(&Tree::of([("Cargo.lock", "version = 4\n")])), Verdict::Failed(_)));
        assert!(matches!(lock_file(&Tree::default()), Verdict::Failed(_)));
    }
}
