//! Compares the public API of the published crates with the files in `tests/api/`: a change of the
//! API is a change of these files.
//!
//! Input: rustdoc's JSON of each crate, which `public-api` reads. A file has a line for each item
//! that another crate can name, and for each trait that a type implements, including the auto
//! traits of stable Rust (`Send`, `UnwindSafe`, ...). It omits blanket implementations, which
//! belong to their traits, and items that are hidden from the documentation.
//!
//! Rustdoc's JSON is unstable. Only rustdoc itself runs with `RUSTC_BOOTSTRAP` (`ci/rustdoc`), so
//! it reuses what the other stages have built of other crates. Its output goes to a folder of its
//! own, next to the pages for people.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;

use super::cargo;
use super::tally::Tally;
use crate::host::Host;

/// The supported version of rustdoc's JSON. Each Rust has one; Rust 1.95 has this one.
const FORMAT: u32 = 57;

/// Where the files are, below the workspace.
const FOLDER: &str = "tests/api";

/// The variable that makes the stage write golden files instead of comparing them.
const BLESS: &str = "FUSELINE_BLESS";

/// Auto traits that only the standard library can name: they come and go with its version and
/// promise nothing.
const INTERNAL: [&str; 2] = ["core::marker::Freeze for ", "core::marker::UnsafeUnpin for "];

/// The largest number of lines of a difference in the summary.
const MAX_LINES: usize = 30;

/// The result of reading rustdoc's JSON of a crate.
enum Rendered {
    Api(Vec<String>),
    /// It has another format version.
    OtherFormat(u32),
}

/// Compares the API of each published crate with its file, or rewrites the files.
pub(crate) fn run(host: &Host) -> Tally {
    compare_all(host).unwrap_or_else(|error| Tally::failed("api", format!("{error:#}")))
}

fn compare_all(host: &Host) -> anyhow::Result<Tally> {
    let crates = cargo::published(host)?;
    let pages = document(host, &crates)?;
    let mut tally = Tally::default();
    for name in &crates {
        let rendered = render(&pages.join(format!("{}.json", name.replace('-', "_"))))?;
        let api = match rendered {
            Rendered::Api(api) => api,
            Rendered::OtherFormat(found) => {
                tally.skip(
                    name,
                    format!(
                        "no Rust 1.95: this rustdoc writes JSON format {found}, \
                                          but format {FORMAT} is needed: use that version of \
                                          Rust, or update the `public-api` crate of xtask"
                    ),
                );
                continue;
            }
        };
        let file = format!("{FOLDER}/{name}.txt");
        match check(&host.root.join(&file), &header(name), &api, host.var(BLESS).is_some()) {
            Ok(said) => {
                println!("    PASS {name}: {} lines, {said} {file}", api.len());
                tally.pass();
            }
            Err(why) => {
                println!("    FAIL {name}\n{why}");
                tally.fail(name, why);
            }
        }
    }
    Ok(tally)
}

/// Runs rustdoc to write JSON for these crates. Returns the folder.
fn document(host: &Host, crates: &[String]) -> anyhow::Result<std::path::PathBuf> {
    let target = host.target_dir().join("api");
    let pages = target.join("doc");
    // Removes the output of earlier runs, so that neither this stage nor cargo takes it for new.
    match fs::remove_dir_all(&pages) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("could not remove {}", pages.display()));
        }
        _ => {}
    }
    let mut command = host.cargo();
    command.env("RUSTDOC", host.root.join("ci/rustdoc"));
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json");
    if host.var("CARGO_BUILD_BUILD_DIR").is_none() {
        command.env("CARGO_BUILD_BUILD_DIR", host.target_dir());
    }
    command.args(["doc", "--locked", "--no-deps", "--lib", "--target-dir"]).arg(&target);
    command.args(crates.iter().flat_map(|name| ["--package", name]));
    let status = command.status().context("could not start cargo")?;
    anyhow::ensure!(status.success(), "`cargo doc` with rustdoc's JSON ended with {status}");
    Ok(pages)
}

/// The API in a file of rustdoc.
fn render(json: &Path) -> anyhow::Result<Rendered> {
    let text =
        fs::read_to_string(json).with_context(|| format!("rustdoc did not write {}", json.display()))?;
    let format = format_of(&text).with_context(|| format!("{} does not say its format", json.display()))?;
    if format != FORMAT {
        return Ok(Rendered::OtherFormat(format));
    }
    let api = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).build();
    let api = api.with_context(|| format!("{} could not be read", json.display()))?;
    let lines = api.items().map(ToString::to_string);
    Ok(Rendered::Api(lines.filter(|line| !INTERNAL.iter().any(|name| line.contains(name))).collect()))
}

/// The format version of a file of rustdoc, which is at its end.
fn format_of(json: &str) -> Option<u32> {
    let (_, rest) = json.rsplit_once("\"format_version\":")?;
    let digits = rest.trim_start();
    digits[..digits.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

/// The first line of a crate's file.
fn header(name: &str) -> String {
    format!("# The public API of {name}, default features. Written by {BLESS}=1 cargo xtask test api")
}

/// Compares a file with its expected contents, or writes it. Returns what was done or what differs.
fn check(file: &Path, header: &str, api: &[String], bless: bool) -> Result<&'static str, String> {
    let wanted: String = std::iter::once(header)
        .chain(api.iter().map(String::as_str))
        .fold(String::new(), |text, line| text + line + "\n");
    let kept = match fs::read_to_string(file) {
        Ok(kept) => kept,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{} could not be read: {error}", file.display())),
    };
    if kept == wanted {
        return Ok("as in");
    }
    if bless {
        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.and_then(|()| fs::write(file, wanted));
        return written
            .map(|()| "now in")
            .map_err(|error| format!("{} was not written: {error}", file.display()));
    }
    Err(explain(&kept, &wanted))
}

/// Describes the difference and what to do about it.
fn explain(kept: &str, wanted: &str) -> String {
    let changes = changes(kept, wanted);
    let count = |sign| changes.iter().filter(|change| change.starts_with(sign)).count();
    let mut text = match (count('-'), count('+')) {
        (0, 0) => "the lines are those of the committed file, in another order".to_owned(),
        (gone, new) => {
            format!("the public API differs from the committed file: {gone} removed (-), {new} added (+)")
        }
    };
    for change in changes.iter().take(MAX_LINES) {
        text += "\n  ";
        text += change;
    }
    if changes.len() > MAX_LINES {
        text += &format!("\n  and {} more", changes.len() - MAX_LINES);
    }
    text += &format!(
        "\nA removed line may break users of the crate. If all changes are intended: {BLESS}=1 \
         cargo xtask test api, and commit {FOLDER}/"
    );
    text
}

/// The lines that only one of two texts has, or has more often. Sorted, so that both versions of an
/// item are adjacent.
fn changes(kept: &str, wanted: &str) -> Vec<String> {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (text, step) in [(kept, -1), (wanted, 1)] {
        for line in text.lines() {
            *counts.entry(line).or_default() += step;
        }
    }
    let each = counts.into_iter().flat_map(|(line, count)| {
        let sign = if count < 0 { '-' } else { '+' };
        (0..count.unsigned_abs()).map(move |_| format!("{sign} {line}"))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_terminator('\n').map(str::to_owned).collect()
    }

    #[test]
    fn a_change_is_refused_until_it_is_written() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("api").join("a.txt");
        let before = lines("pub fn a::f(u8)\npub mod a\n");
        let why = check(&file, "# a", &before, false).expect_err("there is no file");
        assert!(why.contains("0 removed (-), 3 added (+)"), "{why}");
        assert_eq!(check(&file, "# a", &before, true), Ok("now in"));
        assert_eq!(check(&file, "# a", &before, false), Ok("as in"));
        let after = lines("pub fn a::f(u16)\npub mod a\n");
        let why = check(&file, "# a", &after, false).expect_err("it has changed");
        assert!(
            why.contains("1 removed (-), 1 added (+)\n  + pub fn a::f(u16)\n  - pub fn a::f(u8)\n"),
            "{why}"
        );
        assert!(why.contains("FUSELINE_BLESS=1 cargo xtask test api"), "{why}");
        assert_eq!(check(&file, "# a", &before, false), Ok("as in"), "a look changes nothing");
    }

    #[test]
    fn lines_that_are_there_twice_count_twice() {
        assert_eq!(changes("a\nb\nb\n", "b\na\nc\n"), ["- b", "+ c"]);
        let why = explain("a\nb\n", "b\na\n");
        assert!(why.starts_with("the lines are those of the committed file, in another order\n"), "{why}");
    }

    #[test]
    fn a_long_difference_is_cut() {
        let many: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let why = explain("", &many);
        assert!(why.contains("100 added (+)") && why.contains("\n  and 70 more\n"), "{why}");
    }

    #[test]
    fn another_format_is_told_and_not_read() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let json = folder.path().join("a.json");
        fs::write(&json, r#"{"index":{"\"format_version\":1,":0},"format_version":58}"#).expect("written");
        assert!(matches!(render(&json), Ok(Rendered::OtherFormat(58))));
        fs::write(&json, r#"{"index":{},"format_version":57}"#).expect("written");
        assert!(render(&json).is_err(), "it is no crate");
        fs::write(&json, "{}").expect("written");
        assert!(render(&json).is_err_and(|error| error.to_string().contains("does not say its format")));
    }

    #[test]
    fn the_published_crates_are_these() {
        let mut found = cargo::published(&Host::detect().expect("this machine")).expect("cargo metadata");
        found.sort();
        assert_eq!(
            found,
            [
                "fuseline",
                "fuseline-cache",
                "fuseline-fusion",
                "fuseline-interp",
                "fuseline-pjrt",
                "fuseline-record",
                "fuseline-runtime",
                "fuseline-sync"
            ]
        );
    }
}
