//! Checks the dependencies between the crates of the workspace against the table in
//! ARCHITECTURE.md.
//!
//! The table has a row for each package, and its second column is exactly the package's normal
//! dependencies. Dependencies of tests and build scripts are not in it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use toml::{Table, Value};

use super::{Tree, Verdict};

const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Crates and their dependencies";

/// Packages for tests: others depend on them in tests only.
const TEST_PACKAGES: [&str; 3] = ["fuseline-abort", "fuseline-fakeplugin", "fuseline-mutants"];

/// Names of the packages that a package depends on, by its name.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// The table of dependencies and the manifests agree.
pub(crate) fn dependencies(tree: &Tree) -> Verdict {
    let found = match Packages::read(tree) {
        Ok(found) => found,
        Err(error) => return Verdict::Failed(vec![format!("{error:#}")]),
    };
    let mut findings = Vec::new();
    for (package, needs) in found.normal.iter().chain(&found.build) {
        let only_tests = |need: &&String| TEST_PACKAGES.contains(&need.as_str());
        if !TEST_PACKAGES.contains(&package.as_str()) {
            findings.extend(needs.iter().filter(only_tests).map(|need| {
                format!("{package} depends on {need}, which is for tests: make it a dev-dependency")
            }));
        }
    }
    match table(tree.text(DOCUMENT).unwrap_or_default()) {
        Some(table) => findings.extend(compare(&table, &found.normal)),
        None => findings.push(format!("{DOCUMENT} has no table under \"{HEADING}\"")),
    }
    Verdict::of(findings)
}

/// The differences between the table and the manifests.
fn compare(table: &Dependencies, found: &Dependencies) -> Vec<String> {
    let mut findings = Vec::new();
    for (package, needs) in found {
        let Some(allowed) = table.get(package) else {
            findings.push(format!("{DOCUMENT}: the table has no row for {package}"));
            continue;
        };
        findings.extend(needs.difference(allowed).map(|need| {
            format!("{package} depends on {need}, which the table in {DOCUMENT} does not allow")
        }));
        findings.extend(allowed.difference(needs).map(|need| {
            format!("{DOCUMENT}: the table lets {package} depend on {need}, which it does not need")
        }));
    }
    let unknown = table.keys().filter(|package| !found.contains_key(*package));
    findings.extend(
        unknown.map(|package| format!("{DOCUMENT}: the table has a row for {package}, which is no package")),
    );
    findings
}

/// Parses the table under the heading. Names are in backticks; other text in a cell is a remark.
fn table(text: &str) -> Option<Dependencies> {
    let section = text.lines().skip_while(|line| *line != HEADING).skip(1);
    let rows = section.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut table = Dependencies::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        if let [_, package, needs, ..] = cells[..]
            && let [package] = &names(package)[..]
        {
            table.insert(package.clone(), names(needs).into_iter().collect());
        }
    }
    (!table.is_empty()).then_some(table)
}

/// The dependencies between the packages of the workspace.
#[derive(Debug)]
struct Packages {
    normal: Dependencies,
    build: Dependencies,
}

impl Packages {
    fn read(tree: &Tree) -> anyhow::Result<Packages> {
        let root = manifest(tree, "Cargo.toml")?;
        let workspace =
            root.get("workspace").and_then(Value::as_table).context("Cargo.toml: no workspace")?;
        let members = workspace.get("members").and_then(Value::as_array).context("Cargo.toml: no members")?;
        let mut manifests = BTreeMap::new();
        for member in members.iter().filter_map(Value::as_str) {
            let file = if member == "." { "Cargo.toml".to_owned() } else { format!("{member}/Cargo.toml") };
            let manifest = manifest(tree, &file)?;
            let name =
                manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
            manifests.insert(name.with_context(|| format!("{file} names no package"))?.to_owned(), manifest);
        }
        let shared = workspace.get("dependencies").and_then(Value::as_table);
        let of_kind = |kind: &str| {
            let needs = |manifest: &Table| {
                let all = needs(manifest, kind, shared).into_iter();
                all.filter(|need| manifests.contains_key(need)).collect()
            };
            manifests.iter().map(|(name, manifest)| (name.clone(), needs(manifest))).collect()
        };
        Ok(Packages { normal: of_kind("dependencies"), build: of_kind("build-dependencies") })
    }
}

fn manifest(tree: &Tree, file: &str) -> anyhow::Result<Table> {
    let text = tree.text(file).with_context(|| format!("there is no {file}"))?;
    text.parse().with_context(|| file.to_owned())
}

/// The packages in the tables of a kind, for any platform. The key is the package's name, unless
/// the dependency, or the workspace's dependency of that key, has `package = "..."`.
fn needs(manifest: &Table, kind: &str, shared: Option<&Table>) -> Vec<String> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = std::iter::once(manifest).chain(platforms.filter_map(|(_, platform)| platform.as_table()));
    let needs = tables.filter_map(|table| table.get(kind).and_then(Value::as_table)).flatten();
    let package = |value: &Value| value.get("package").and_then(Value::as_str).map(str::to_owned);
    needs
        .map(|(key, value)| {
            let inherited = value.get("workspace").and(shared).and_then(|shared| shared.get(key));
            package(value).or(inherited.and_then(package)).unwrap_or_else(|| key.clone())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace]\nmembers = [\".\", \"b\", \"fakeplugin\"]\n\
                             [workspace.dependencies]\nb = { path = \"b\", package = \"x-b\" }\n\
                             [package]\nname = \"a\"\n";
    const TABLE: &str = "# A\n\n| `z` | `y` |\n\n## Crates and their dependencies\n\n\
                         | package | depends on |\n|---|---|\n| `a` | `x-b` |\n| `x-b` | none |\n\
                         | `fuseline-fakeplugin` | `x-b`, see there |\n\n## Next\n\n| `q` | `a` |\n";

    fn verdict(a: &str, b: &str, table: &str) -> Verdict {
        let fakeplugin =
            "[package]\nname = \"fuseline-fakeplugin\"\n[dependencies]\nx-b = { path = \"../b\" }\n";
        dependencies(&Tree::of([
            ("Cargo.toml", &format!("{WORKSPACE}{a}")),
            ("b/Cargo.toml", &format!("[package]\nname = \"x-b\"\n{b}")),
            ("fakeplugin/Cargo.toml", fakeplugin),
            (DOCUMENT, table),
        ]))
    }

    #[test]
    fn the_table_says_what_the_manifests_say() {
        for a in [
            "[dependencies]\nb.workspace = true\nserde = \"1\"\n",
            "[dependencies.x-b]\npath = \"b\"\n",
            "[target.'cfg(unix)'.dependencies]\nother = { path = \"b\", package = \"x-b\" }\n",
            "[dependencies]\nx-b = \"1\"\n[dev-dependencies]\nfuseline-fakeplugin = { path = \"fakeplugin\" }\n",
        ] {
            assert_eq!(verdict(a, "", TABLE), Verdict::Passed, "{a}");
        }
    }

    #[test]
    fn what_differs_is_found() {
        let fine = "[dependencies]\nx-b = \"1\"\n";
        for (a, b, table, finding) in [
            (fine, "[dependencies]\na = \"1\"\n", TABLE, "x-b depends on a, which the table in"),
            ("", "", TABLE, "the table lets a depend on x-b, which it does not need"),
            (fine, "", &TABLE.replace("| `x-b` | none |\n", ""), "the table has no row for x-b"),
            (fine, "", &TABLE.replace("\n\n## Next", "\n| `c` | none |"), "a row for c, which is no package"),
            (fine, "", "## Crates and their dependencies\n", "has no table under"),
            (
                fine,
                "[build-dependencies]\nfuseline-fakeplugin = \"1\"\n",
                TABLE,
                "x-b depends on fuseline-fakeplugin, which is for tests",
            ),
        ] {
            let Verdict::Failed(findings) = verdict(a, b, table) else { panic!("passed: {finding}") };
            assert!(findings[0].contains(finding), "{finding}: {findings:?}");
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_read_is_a_finding() {
        let Verdict::Failed(findings) = verdict("[", "", TABLE) else { panic!("passed") };
        assert!(findings[0].starts_with("Cargo.toml: "), "{findings:?}");
        let missing = Verdict::Failed(vec!["there is no Cargo.toml".to_owned()]);
        assert_eq!(dependencies(&Tree::default()), missing);
    }
}
