//! Rules on files that neither the compiler nor clippy checks.
//!
//! Each rule is a function of the [`Tree`] and one check of the run. An exception is an entry of a
//! rule's list, with its reason. An entry that excuses nothing is a finding too.

mod columns;
mod cycles;
mod dependencies;
mod documents;
mod labels;
mod modules;
mod paths;
mod sources;
mod tokens;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::tally::Tally;
use crate::host::Host;

/// The result of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// One line for each finding.
    Failed(Vec<String>),
}

impl Verdict {
    fn of(findings: Vec<String>) -> Verdict {
        if findings.is_empty() { Verdict::Passed } else { Verdict::Failed(findings) }
    }
}

/// A rule: its name and its function.
type Rule = (&'static str, fn(&Tree) -> Verdict);

const RULES: [Rule; 12] = [
    ("document-length", documents::document_length),
    ("architecture-files", documents::architecture_files),
    ("licences", documents::licences),
    ("lock-file", documents::lock_file),
    ("file-length", sources::file_length),
    ("columns", columns::columns),
    ("cycles", cycles::cycles),
    ("dependencies", dependencies::dependencies),
    ("labels", labels::labels),
    ("unsafe-code", sources::unsafe_code),
    ("machine-paths", paths::machine_paths),
    ("registry-hosts", paths::registry_hosts),
];

/// Checks every rule.
pub(crate) fn run(host: &Host) -> Tally {
    let tree = Tree::read(host).map_err(anyhow::Error::from);
    let tree = match tree.and_then(|tree| columns::bless(host, tree)) {
        Ok(tree) => tree,
        Err(error) => return Tally::failed("tidy", format!("the files: {error:#}")),
    };
    let mut tally = Tally::default();
    for (name, rule) in RULES {
        match rule(&tree) {
            Verdict::Passed => {
                println!("    PASS {name}");
                tally.pass();
            }
            Verdict::Failed(findings) => {
                println!("    FAIL {name}");
                tally.fail(name, findings.join("\n"));
            }
        }
    }
    tally
}

/// The files that are or would be committed: text by path below the workspace. `None` stands for a
/// file that is not text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: BTreeMap<String, Option<String>>,
}

impl Tree {
    fn read(host: &Host) -> std::io::Result<Tree> {
        let names = match git_files(host) {
            Some(names) => names,
            None => walk(&host.root)?,
        };
        let mut files = BTreeMap::new();
        for name in names {
            let path = host.root.join(&name);
            // A file that was just deleted, or a link, has no text of its own.
            if path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
                files.insert(name, String::from_utf8(fs::read(path)?).ok());
            }
        }
        Ok(Tree { files })
    }

    /// The text files, by path.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Tree {
        Tree { files: files.map(|(path, text)| (path.to_owned(), Some(text.to_owned()))).into() }
    }
}

/// Committed and new files, without ignored ones, according to git.
fn git_files(host: &Host) -> Option<Vec<String>> {
    let mut command = host.command("git");
    command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let names = String::from_utf8(output.stdout).ok()?;
    Some(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// All files, without hidden and build folders, for a checkout without git.
fn walk(root: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            let skipped = [".git", ".setup"].iter().any(|skip| name == *skip)
                || name.to_string_lossy().starts_with("target");
            if entry.file_type()?.is_dir() {
                if !skipped {
                    folders.push(path);
                }
            } else if let Some(path) = path.strip_prefix(root).ok().and_then(Path::to_str) {
                found.push(path.to_owned());
            }
        }
    }
    Ok(found)
}

/// An exception to a rule: a file, what it may contain, and why.
pub(crate) struct Exception {
    pub(crate) file: &'static str,
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
}

/// Searches every text file, except for exceptions. `find` returns the forbidden words of a line.
pub(crate) fn forbidden<'a>(
    tree: &'a Tree,
    exceptions: &[Exception],
    find: impl Fn(&'a str) -> Vec<&'a str>,
) -> Verdict {
    let mut findings = Vec::new();
    let mut excused = vec![false; exceptions.len()];
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            for word in find(line) {
                match exceptions.iter().position(|exception| exception.file == path && exception.what == word)
                {
                    Some(exception) => excused[exception] = true,
                    None => findings.push(format!("{path}:{}: {word}", index + 1)),
                }
            }
        }
    }
    for (exception, excused) in exceptions.iter().zip(excused) {
        if !excused && tree.files.contains_key(exception.file) {
            let Exception { file, what, why } = exception;
            findings.push(format!("{file} no longer holds {what}: remove the exception ({why})"));
        }
    }
    Verdict::of(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_the_same_with_and_without_git() {
        let host = Host::detect().expect("this machine");
        let Some(with) = git_files(&host) else {
            println!("skipped: no git checkout");
            return;
        };
        let without = walk(&host.root).expect("readable");
        for name in ["Cargo.toml", "xtask/src/main.rs", ".cargo/config.toml"] {
            assert!(with.iter().any(|file| file == name), "{name}");
            assert!(without.iter().any(|file| file == name), "{name}");
        }
        assert!(!without.iter().any(|file| file.starts_with("target/") || file.starts_with(".git/")));
    }

    #[test]
    fn an_exception_holds_for_its_word_in_its_file_only() {
        let find = |line: &'static str| line.split(' ').filter(|word| word.starts_with('!')).collect();
        let exceptions = [Exception { file: "a", what: "!x", why: "an example" }];
        let verdict = |files| forbidden(Box::leak(Box::new(Tree::of(files))), &exceptions, find);
        assert_eq!(verdict([("a", "!x here"), ("b", "nothing")]), Verdict::Passed);
        assert_eq!(verdict([("a", "!x"), ("b", "1\n!x")]), Verdict::Failed(vec!["b:2: !x".to_owned()]));
        assert_eq!(verdict([("a", "!x !y"), ("b", "")]), Verdict::Failed(vec!["a:1: !y".to_owned()]));
        let stale = verdict([("a", "nothing"), ("b", "")]);
        assert_eq!(
            stale,
            Verdict::Failed(vec!["a no longer holds !x: remove the exception (an example)".to_owned()])
        );
    }
}
