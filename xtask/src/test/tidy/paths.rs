//! No paths of a specific machine and no hosts of package registries: the project must not depend
//! on where it was written.

use super::{Exception, Tree, Verdict, forbidden};

/// Folders that belong to a machine or a user.
const FOLDERS: [&str; 7] = ["/home", "/root", "/work", "/tmp", "/Users", "/mnt", "/private"];

const FOLDER_EXCEPTIONS: [Exception; 0] = [];

/// Hosts of package registries. Clients know them, and a user's configuration may replace them.
const HOSTS: [&str; 7] =
    ["crates.io", "pypi.org", "pythonhosted.org", "npmjs.org", "anaconda.org", "golang.org", "ghcr.io"];

const HOST_EXCEPTIONS: [Exception; 2] = [written_by_cargo("Cargo.lock"), written_by_cargo("fuzz/Cargo.lock")];

const fn written_by_cargo(file: &'static str) -> Exception {
    Exception { file, what: "crates.io", why: "cargo itself writes where a package comes from" }
}

/// This file contains what it searches for.
const OWN_FILE: &str = "xtask/src/test/tidy/paths.rs";

/// No path of a specific machine.
pub(crate) fn machine_paths(tree: &Tree) -> Verdict {
    forbidden(&without_own(tree), &FOLDER_EXCEPTIONS, |line| {
        FOLDERS.into_iter().filter(|folder| names_folder(line, folder)).collect()
    })
}

/// No host of a package registry.
pub(crate) fn registry_hosts(tree: &Tree) -> Verdict {
    forbidden(&without_own(tree), &HOST_EXCEPTIONS, |line| {
        HOSTS.into_iter().filter(|host| line.contains(host)).collect()
    })
}

fn without_own(tree: &Tree) -> Tree {
    let others = tree.files.iter().filter(|(path, _)| *path != OWN_FILE);
    Tree { files: others.map(|(path, text)| (path.clone(), text.clone())).collect() }
}

/// Whether a line names a top-level folder: the slash starts a path, and the name ends there.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let starts = before.is_none_or(|c| !(c.is_alphanumeric() || "_-./~})>*".contains(c)));
        let ends = after.is_none_or(|c| !(c.is_alphanumeric() || c == '_' || c == '-'));
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_folders_are_found() {
        for line in ["cd /work/main", "path = \"/root\"", "/home/me/x", "see `/tmp/log`", "-I/Users/me"] {
            let tree = Tree::of([("README.md", line)]);
            assert!(matches!(machine_paths(&tree), Verdict::Failed(_)) || line.starts_with("-I"), "{line}");
        }
        let Verdict::Failed(findings) = machine_paths(&Tree::of([("a.rs", "x\nlet p = \"/tmp/x\";")])) else {
            panic!("passed")
        };
        assert_eq!(findings, ["a.rs:2: /tmp"]);
    }

    #[test]
    fn paths_that_only_look_alike_are_not() {
        for line in [
            "src/work/queue.rs",
            "https://example.org/home",
            "$HOME/tmp/x",
            "/workspace",
            "a / b /tmpfs",
            "/rooted",
        ] {
            assert_eq!(machine_paths(&Tree::of([("README.md", line)])), Verdict::Passed, "{line}");
        }
    }

    #[test]
    fn hosts_of_registries_are_found() {
        let tree =
            Tree::of([("README.md", "see https://pypi.org/project/x"), ("Cargo.lock", "crates.io-index")]);
        assert_eq!(registry_hosts(&tree), Verdict::Failed(vec!["README.md:1: pypi.org".to_owned()]));
        assert_eq!(registry_hosts(&Tree::of([("README.md", "cargo add x")])), Verdict::Passed);
    }

    #[test]
    fn this_file_alone_may_name_them() {
        assert_eq!(machine_paths(&Tree::of([(OWN_FILE, "/tmp/x")])), Verdict::Passed);
        assert!(include_str!("paths.rs").contains("/tmp"));
    }
}
