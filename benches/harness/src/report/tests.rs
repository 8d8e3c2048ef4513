//! Tests the whole report on sample results.

use std::path::{Path, PathBuf};

use roxmltree::Document;

use super::*;
use crate::results::Run;

/// The page as XML: closes elements that HTML leaves open.
fn closed(page: &str) -> String {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut text = String::new();
    while let Some(place) = ["<meta", "<br"].iter().filter_map(|tag| rest.find(tag)).min() {
        let end = place + rest[place..].find('>').unwrap();
        text += &rest[..end];
        text += "/>";
        rest = &rest[end + 1..];
    }
    text + rest
}

fn words(document: &Document<'_>) -> String {
    document
        .descendants()
        .filter(|node| node.is_text())
        .filter_map(|node| node.text())
        .collect::<Vec<_>>()
        .join("\n")
}

fn page(report: &Report) -> String {
    page::page(report, &stems(report), None)
}

/// A folder of this test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("fuseline-report-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_page_names_everything() {
    let report = sample::report();
    let page = closed(&page(&report));
    let document = Document::parse(&page).unwrap();
    let words = words(&document);
    for contender in &report.contenders {
        assert!(words.contains(&contender.name), "{}", contender.name);
        for version in contender.versions.values() {
            assert!(words.contains(version), "{version}");
        }
    }
    for case in &report.cases {
        let heading =
            document.descendants().find(|node| node.has_tag_name("h3") && node.text() == Some(&case.name));
        assert!(heading.is_some(), "{}", case.name);
        for run in case.runs.values() {
            if let Run::LeftOut(why) | Run::Failed(why) = run {
                assert!(words.contains(why), "{why}");
            }
        }
    }
    for why in report.contenders.iter().filter_map(|contender| contender.missing.as_ref()) {
        assert!(words.contains(&words::sentence(why)), "{why}");
    }
    for said in [
        "not a figure to quote",
        "had not become steady",
        "unknown",
        "Interrupted",
        "the run was interrupted before",
    ] {
        assert!(words.contains(said), "{said}");
    }
}

#[test]
fn links_lead_somewhere() {
    let mut report = sample::report();
    // Rendering takes time. The last case has a name that is not a valid file name.
    report.cases.drain(2..23);
    let folder = Folder::new("links");
    write(&report, &folder.0).unwrap();
    let page = closed(&fs::read_to_string(folder.0.join("index.html")).unwrap());
    let document = Document::parse(&page).unwrap();
    let ids: HashSet<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    for target in document.descendants().filter_map(|node| node.attribute("href")) {
        match target.strip_prefix('#') {
            Some(id) => assert!(ids.contains(id), "{target}"),
            // The harness writes the results itself.
            None => {
                let is_result = ["results.json", "summary.json"].contains(&target);
                assert!(is_result || folder.0.join(target).is_file(), "{target}");
            }
        }
    }
    let plots = fs::read_dir(folder.0.join("plots")).unwrap().count();
    assert_eq!(plots, 2 * (1 + report.cases.len()));
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let page = page(&sample::report());
    let addresses: HashSet<&str> = page
        .match_indices("://")
        .map(|(place, _)| page[..place].rsplit(['"', '(', ' ']).next().unwrap_or(""))
        .collect();
    // The name of the SVG namespace is the only URL.
    assert_eq!(addresses, HashSet::from(["http"]));
    assert_eq!(page.matches("://").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    assert!(!page.contains("<script") && !page.contains("@import") && !page.contains("url("));
}

#[test]
fn each_plot_is_a_picture_of_its_own() {
    let report = sample::report();
    let compare = compare::file(&report);
    let document = Document::parse(&compare).unwrap();
    let words = words(&document);
    for contender in &report.contenders {
        assert!(words.contains(&contender.name), "{}", contender.name);
    }
    for case in &report.cases {
        assert!(words.contains(&case.name), "{}", case.name);
        let warm = warmup::file(&report, case);
        assert!(self::words(&Document::parse(&warm).unwrap()).contains(&case.name));
        assert!(!warm.contains("var("));
    }
    assert!(!compare.contains("href") && !compare.contains("var("));
}

#[test]
fn a_report_of_nothing_is_a_page_too() {
    for report in [sample::empty(), Report { cases: Vec::new(), ..sample::report() }] {
        let page = closed(&page(&report));
        let document = Document::parse(&page).unwrap();
        assert!(words(&document).contains("No case was measured."));
        let folder = Folder::new("empty");
        write(&report, &folder.0).unwrap();
        assert!(folder.0.join("plots/comparison.png").is_file());
    }
}

#[test]
fn numbers_that_make_no_sense_do_no_harm() {
    let mut report = sample::report();
    report.cases.truncate(2);
    let case = &mut report.cases[0];
    for (place, ratio) in case.ratios.iter_mut().enumerate() {
        ratio.pairs.clear();
        ratio.quartiles.median = [0.0, f64::NAN, f64::INFINITY, -1.0][place % 4];
        ratio.quartiles.low = 0.0;
    }
    if let Some(Run::Measured(times)) = case.runs.get_mut("numpy") {
        times.warm.clear();
        times.steady_from = Some(7);
        times.step.median = f64::NAN;
    }
    let page = page(&report);
    Document::parse(&closed(&page)).unwrap();
    assert!(!page.contains("NaN") && !page.contains("inf\""));
    let folder = Folder::new("odd");
    write(&report, &folder.0).unwrap();
}

#[test]
fn plots_of_alike_names_are_apart() {
    let mut report = sample::report();
    report.cases.truncate(3);
    report.cases[0].name = "mlp/a b".to_owned();
    report.cases[1].name = "mlp/a+b".to_owned();
    report.cases[2].name = "µ".to_owned();
    assert_eq!(stems(&report), ["warmup-mlp-a-b", "warmup-mlp-a-b-2", "warmup-"]);
}

/// `cargo test -p fuseline-harness -- --ignored` makes the page of the sample results, for
/// inspection.
#[test]
#[ignore = "writes target/sample-report, for looking at"]
fn sample_report() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sample-report");
    write(&sample::report(), &folder).unwrap();
    println!("{}", folder.join("index.html").display());
}

#[test]
fn the_page_has_the_stages_that_were_measured() {
    let folder = Folder::new("stages");
    fs::create_dir_all(&folder.0).unwrap();
    let figures = r#"{"taken": "today", "commit": "abc", "tables": [{"title": "One op", "columns": ["class", "rule", "drop"],
        "rows": [["dot", [{"nanoseconds": {"low": 1.0, "median": 1234.4, "high": 3.0}, "instructions": 56789.0}, null]],
                 ["left out", [null, {}]]]}]}"#;
    fs::write(folder.0.join("micro.json"), figures).unwrap();
    let report = sample::report();
    write(&report, &folder.0).unwrap();
    let page = fs::read_to_string(folder.0.join("index.html")).unwrap();
    assert!(page.contains("Stage by stage") && page.contains("One op"));
    assert!(page.contains("1\u{202f}234 ns") && page.contains("56\u{202f}789"));
    assert!(page.contains("quartiles 1 ns and 3 ns"));
    assert!(!page.contains("left out</th>"), "a row without figures");
}
