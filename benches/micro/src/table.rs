//! The figures as tables, for the terminal and for the report, and the changes.

use std::fmt;
use std::fmt::Write as _;

use fuseline_micro::op::{self, Class};
use fuseline_micro::region::{self, SIZES};
use serde::Serialize;

use crate::figures::{Baseline, Counts, Figure, Figures};
use crate::round_trip::{self, RUNNERS};
use crate::wait::{READS, STREAMS, THREADS};

/// The relative difference above which a count has changed: runs differ by about one in a thousand.
const SAME: f64 = 0.01;

/// A count that has changed.
#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    name: String,
    before: Option<f64>,
    now: Option<f64>,
}

impl Change {
    /// Whether it is higher now.
    pub(crate) fn grew(&self) -> bool {
        matches!((self.before, self.now), (Some(before), Some(now)) if now > before)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.before, self.now) {
            (Some(before), Some(now)) => {
                let change = (now / before - 1.0) * 100.0;
                write!(f, "{:<32} {before:>10.0} -> {now:>10.0} instructions ({change:+.1} %)", self.name)
            }
            (None, Some(now)) => write!(f, "{:<32} {:>10} -> {now:>10.0} instructions", self.name, "new"),
            (Some(before), None) => write!(f, "{:<32} {before:>10.0} -> {:>10}", self.name, "gone"),
            (None, None) => Ok(()),
        }
    }
}

/// The changes since the baseline.
pub(crate) fn changes(counts: &Counts, baseline: &Baseline) -> Vec<Change> {
    let mut names: Vec<&String> = counts.keys().chain(baseline.instructions.keys()).collect();
    names.sort();
    names.dedup();
    let changed = |name: &String| {
        let (before, now) = (baseline.instructions.get(name).copied(), counts.get(name).copied());
        let same =
            matches!((before, now), (Some(before), Some(now)) if (now - before).abs() <= SAME * before);
        (!same).then(|| Change { name: name.clone(), before, now })
    };
    names.into_iter().filter_map(changed).collect()
}

/// Figures in rows and columns.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    /// The heading of the rows, then those of the columns.
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<Figure>>)>,
}

/// Arranges the figures in tables.
pub(crate) fn tables(figures: &Figures) -> Vec<Table> {
    let figure = |name: String| figures.figures.get(&name).copied();
    let columns = |first: &str, others: &mut dyn Iterator<Item = String>| -> Vec<String> {
        std::iter::once(first.to_owned()).chain(others).collect()
    };
    let ops = Table {
        title: "Recording one op".to_owned(),
        columns: columns("class", &mut op::Stage::ALL.iter().map(|stage| stage.name().to_owned())),
        rows: Class::ALL
            .iter()
            .map(|class| {
                let cell = |stage: op::Stage| figure(format!("op/{}/{}", class.name(), stage.name()));
                (class.name().to_owned(), op::Stage::ALL.map(cell).to_vec())
            })
            .collect(),
    };
    let on =
        if figures.device.is_empty() { String::new() } else { format!(", executed on {}", figures.device) };
    let regions = Table {
        title: format!("One region, by number of ops{on}"),
        columns: columns("stage", &mut SIZES.iter().map(|&size| grouped(size as f64))),
        rows: region::Stage::ALL
            .iter()
            .map(|stage| {
                let cell = |size: usize| figure(format!("region/{}/{size}", stage.name()));
                (stage.name().to_owned(), SIZES.map(cell).to_vec())
            })
            .collect(),
    };
    let threads = Table {
        title: "Recording one op and dropping its handle, by number of threads".to_owned(),
        columns: columns("streams", &mut THREADS.iter().map(|&threads| grouped(threads as f64))),
        rows: STREAMS
            .iter()
            .map(|name| {
                (
                    (*name).to_owned(),
                    THREADS.map(|threads| figure(format!("threads/{name}/{threads}"))).to_vec(),
                )
            })
            .collect(),
    };
    let read = |name: &&str| ((*name).to_owned(), vec![figure(format!("read/{name}"))]);
    let reads = Table {
        title: "A read on the host".to_owned(),
        columns: columns("of", &mut std::iter::once("time".to_owned())),
        rows: READS.iter().map(read).collect(),
    };
    let round_trips = Table {
        title: format!("A region and the read of its result, by the engine and by PJRT alone{on}"),
        columns: columns("region", &mut RUNNERS.iter().map(|&runner| runner.to_owned())),
        rows: round_trip::NAMES
            .iter()
            .map(|name| {
                let cell = |runner: &str| figure(format!("round trip/{runner}/{name}"));
                ((*name).to_owned(), RUNNERS.map(cell).to_vec())
            })
            .collect(),
    };
    vec![ops, regions, threads, reads, round_trips]
}

/// All tables for the terminal: times, then instructions, as far as they exist.
pub(crate) fn render(tables: &[Table]) -> String {
    let mut out = String::new();
    for (unit, shown) in [("nanoseconds", time as Shown), ("instructions", count)] {
        for table in tables {
            let mut rows = String::new();
            for (name, figures) in &table.rows {
                let cells: Vec<Option<String>> =
                    figures.iter().map(|figure| figure.as_ref().and_then(shown)).collect();
                if cells.iter().any(Option::is_some) {
                    line(
                        &mut rows,
                        name,
                        cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned())),
                    );
                }
            }
            if !rows.is_empty() {
                let _ = writeln!(out, "{}: {unit}", table.title);
                line(&mut out, &table.columns[0], table.columns[1..].iter().cloned());
                out += &rows;
                out.push('\n');
            }
        }
    }
    out
}

type Shown = fn(&Figure) -> Option<String>;

fn time(figure: &Figure) -> Option<String> {
    figure.nanoseconds.map(|time| grouped(time.median))
}

fn count(figure: &Figure) -> Option<String> {
    figure.instructions.map(grouped)
}

fn line(out: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    let _ = write!(out, "{name:<18}");
    for cell in cells {
        let _ = write!(out, "{cell:>14}");
    }
    out.push('\n');
}

/// A number with commas between groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, f64)]) -> Counts {
        pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn what_changed_is_told_and_noise_is_not() {
        let baseline =
            Baseline::of(counts(&[("same", 1000.0), ("more", 1000.0), ("less", 1000.0), ("gone", 5.0)]));
        let now = counts(&[("same", 1004.0), ("more", 1020.0), ("less", 900.0), ("new", 3.0)]);
        let changes = changes(&now, &baseline);
        let told: Vec<(&str, bool)> =
            changes.iter().map(|change| (change.name.as_str(), change.grew())).collect();
        assert_eq!(told, [("gone", false), ("less", false), ("more", true), ("new", false)]);
        assert!(changes[2].to_string().contains("(+2.0 %)"), "{}", changes[2]);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,568"],
            [0.4, 999.0, 1e3, 1_234_567.8].map(grouped).each_ref().map(String::as_str)
        );
    }
}
