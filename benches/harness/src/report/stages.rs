//! What an op and a region cost Fuseline itself, stage by stage, from `cargo xtask micro`.

use std::fs;
use std::path::Path;

use maud::{Markup, html};
use serde::Deserialize;

/// The contents of the file.
#[derive(Debug, Deserialize)]
pub(super) struct Stages {
    taken: String,
    commit: String,
    tables: Vec<Table>,
}

#[derive(Debug, Deserialize)]
struct Table {
    title: String,
    /// The heading of the rows, then those of the columns.
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<Figure>>)>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    nanoseconds: Option<Time>,
    instructions: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Time {
    low: f64,
    median: f64,
    high: f64,
}

/// The figures next to the results, if they were measured.
pub(super) fn read(folder: &Path) -> Option<Stages> {
    serde_json::from_str(&fs::read_to_string(folder.join("micro.json")).ok()?).ok()
}

/// The tables.
pub(super) fn section(stages: &Stages) -> Markup {
    html! {
        p.soft {
            "Medians for one op, one region, one read; below them the instruction counts of \
             Callgrind, which are the same in every run. Measured "
            (stages.taken) " at commit " code { (stages.commit) } "."
        }
        @for table in &stages.tables { (show(table)) }
    }
}

fn show(table: &Table) -> Markup {
    let is_empty = |figure: &Option<Figure>| {
        figure.as_ref().is_none_or(|figure| figure.nanoseconds.is_none() && figure.instructions.is_none())
    };
    html! {
        h4 { (table.title) }
        div.scroll {
            table {
                thead { tr { @for column in &table.columns { th scope="col" { (column) } } } }
                tbody {
                    @for (name, figures) in table.rows.iter().filter(|(_, figures)| !figures.iter().all(is_empty)) {
                        tr {
                            th scope="row" { (name) }
                            @for figure in figures {
                                @match figure { Some(figure) => (cell(figure)), None => td { "–" } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell(figure: &Figure) -> Markup {
    html! {
        td {
            @match &figure.nanoseconds {
                Some(time) => span title=(format!("quartiles {} and {}", nanoseconds(time.low), nanoseconds(time.high))) {
                    (nanoseconds(time.median))
                },
                None => "–",
            }
            @if let Some(count) = figure.instructions { br; span.soft { (grouped(count)) } }
        }
    }
}

/// A time between a few nanoseconds and some milliseconds, in a unit that the whole table shares.
/// Three decimals of a microsecond would be false precision, and none would hide small values.
fn nanoseconds(time: f64) -> String {
    format!("{} ns", grouped(time))
}

/// A number with spaces between groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}
