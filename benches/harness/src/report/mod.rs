//! The report for people: a page and its plots. It depends on the results only, so it can be made
//! again at any time.
//!
//! `findings` draws conclusions, and `words` formats numbers. `look` gives each contender its
//! colour and its shape. `compare` is the chart of all cases, `warmup` that of one, and `case` the
//! rest of a case's panel. `stages` has the tables of `cargo xtask micro`, if its figures are with
//! the results. `goals` has the goals, and `page` combines everything. `picture` renders charts as
//! PNG. Nothing that was not measured is silently omitted: `findings::absence` has the reason.

mod axis;
mod case;
mod compare;
mod findings;
pub(crate) mod goals;
mod look;
mod page;
mod picture;
#[cfg(test)]
pub(crate) mod sample;
mod stages;
#[cfg(test)]
mod tests;
mod warmup;
mod words;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::results::Report;
use picture::Painter;

/// Writes `index.html`, and each chart as `plots/*.svg` and `plots/*.png`, into the folder, which
/// is created if necessary.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<()> {
    let plots = folder.join("plots");
    fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
    let painter = Painter::new();
    let plot = |stem: &str, svg: &str| -> Result<()> {
        let png = painter.png(svg).with_context(|| format!("plot {stem}"))?;
        put(&plots.join(format!("{stem}.svg")), svg.as_bytes())?;
        put(&plots.join(format!("{stem}.png")), &png)
    };
    let stems = stems(report);
    plot("comparison", &compare::file(report))?;
    for (case, stem) in report.cases.iter().zip(&stems) {
        plot(stem, &warmup::file(report, case))?;
    }
    let stages = stages::read(folder);
    put(&folder.join("index.html"), page::page(report, &stems, stages.as_ref()).as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// File names of the plots: the names of the cases, in letters that every file system and URL
/// accepts.
fn stems(report: &Report) -> Vec<String> {
    let mut taken = HashSet::new();
    report
        .cases
        .iter()
        .enumerate()
        .map(|(place, case)| {
            let plain: String = case
                .name
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
                .collect();
            let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
            let stem = format!("warmup-{}", words.join("-"));
            // The names differ only in letters that were replaced.
            if taken.insert(stem.clone()) { stem } else { format!("{stem}-{}", place + 1) }
        })
        .collect()
}
