//! The main chart: one row for each case, with each contender's time relative to Fuseline Fused.

use maud::{Markup, PreEscaped, html};

use super::axis::Log;
use super::findings::{Absence, FUSED, Kind, absence, name, parts, ratio, times};
use super::look::{Look, Medium, file_style};
use super::words::{px, short, three, time};
use crate::results::{CaseResult, Report};

const WIDTH: f64 = 1120.0;
/// Radius of a dot.
const RADIUS: f64 = 4.6;
/// The distance between two dots of a row that would overlap.
const LANE: f64 = 12.0;
/// Heights above and below the rows.
const FOOT: f64 = 44.0;
const LEGEND_ROW: f64 = 22.0;
/// The largest number of letters of a case's name.
const LETTERS: usize = 34;

/// A dot with its whisker: a time relative to that of Fused.
struct Dot {
    look: Look,
    name: String,
    low: f64,
    middle: f64,
    high: f64,
    noisy: bool,
    /// Lines below the middle of the row.
    lane: i32,
}

/// The contents of a row.
struct Row<'a> {
    case: &'a CaseResult,
    dots: Vec<Dot>,
    absent: Vec<(Look, String, Absence)>,
    top: f64,
    height: f64,
    /// The distance from the middle of the row to the middle of its dots.
    shift: f64,
    /// The number of its program: the rows of one program share a stripe.
    program: usize,
}

/// The chart as a stand-alone file.
pub(super) fn file(report: &Report) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", chart(report, Medium::File).into_string())
}

/// The chart.
pub(super) fn chart(report: &Report, medium: Medium) -> Markup {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for case in &report.cases {
        let program = match rows.last() {
            None => 0,
            Some(row) => row.program + usize::from(parts(&row.case.name).0 != parts(&case.name).0),
        };
        let (dots, absent) = (dots(report, case), absent(report, case));
        rows.push(Row { case, dots, absent, top: 0.0, height: 0.0, shift: 0.0, program });
    }
    let values = rows.iter().flat_map(|row| &row.dots).flat_map(|dot| [dot.low, dot.middle, dot.high]);
    let letters = report.cases.iter().map(|case| case.name.chars().count()).max().unwrap_or(0);
    let left = (letters.min(LETTERS) as f64 * 6.6 + 26.0).max(110.0);
    let most_absent = rows.iter().map(|row| row.absent.len()).max().unwrap_or(0);
    let right = if most_absent > 0 { 96.0 + (most_absent as f64 * 14.0).max(64.0) } else { 84.0 };
    let axis = Log::around(values, (0.6, 1.7), 1.18).along(left, WIDTH - right);
    let legend = legend(report, WIDTH - 20.0);
    let top = legend.height + 44.0;
    let mut bottom = top;
    for row in &mut rows {
        arrange(row, &axis);
        row.top = bottom;
        bottom += row.height;
    }
    let height = bottom + FOOT;
    let ticks = axis.ticks(14);
    let one = axis.at(1.0);
    html! {
        svg.plot.compare xmlns="http://www.w3.org/2000/svg" role="img" width=(px(WIDTH)) height=(px(height))
            viewBox=(format!("0 0 {} {}", px(WIDTH), px(height))) aria-label="Time of each \
                 contender relative to Fuseline Fused, by case"
        {
            @if medium == Medium::File {
                style { (PreEscaped(file_style())) }
                rect.back width=(px(WIDTH)) height=(px(height)) {}
            }
            g transform="translate(10 6)" { (legend.markup) }
            text.soft.small.end x=(px(one - 12.0)) y=(px(top - 28.0)) { "← faster than Fused" }
            text.soft.small x=(px(one + 12.0)) y=(px(top - 28.0)) { "slower than Fused →" }
            text.soft.small.end x=(px(WIDTH - right + 78.0)) y=(px(top - 10.0)) { "Fused, per step" }
            @if most_absent > 0 { text.soft.small x=(px(WIDTH - right + 98.0)) y=(px(top - 10.0)) { "no figure" } }
            // Stripes first, so that the grid lines are on top.
            @for row in &rows {
                @if row.program % 2 == 0 { rect.stripe x="0" y=(px(row.top)) width=(px(WIDTH)) height=(px(row.height)) {} }
            }
            @for pair in rows.windows(2).filter(|pair| pair[0].program == pair[1].program) {
                line.grid x1="0" x2=(px(WIDTH)) y1=(px(pair[1].top)) y2=(px(pair[1].top)) {}
            }
            @for &tick in &ticks {
                @let x = axis.at(tick);
                line.grid x1=(px(x)) x2=(px(x)) y1=(px(top - 4.0)) y2=(px(bottom + 4.0)) {}
                text.soft.small.mid x=(px(x)) y=(px(top - 10.0)) { (tick_words(tick)) }
                text.soft.small.mid x=(px(x)) y=(px(bottom + 18.0)) { (tick_words(tick)) }
            }
            text.soft.small.mid x=(px(f64::midpoint(left, WIDTH - right))) y=(px(bottom + 36.0)) {
                "time of a step relative to Fuseline Fused, logarithmic"
            }
            line.one x1=(px(one)) x2=(px(one)) y1=(px(top - 4.0)) y2=(px(bottom + 4.0)) {}
            @for (place, row) in rows.iter().enumerate() {
                (row_markup(row, place, left, WIDTH - right, &axis, medium))
            }
            @if rows.is_empty() { text.soft.mid x=(px(WIDTH / 2.0)) y=(px(top + 14.0)) { "No case was measured." } }
        }
    }
}

fn row_markup(row: &Row<'_>, place: usize, left: f64, right: f64, axis: &Log, medium: Medium) -> Markup {
    let middle = row.top + row.height / 2.0;
    let (program, sizes) = parts(&row.case.name);
    let sizes = short(sizes, LETTERS.saturating_sub(program.chars().count() + 1));
    let label = html! {
        text.end x=(px(left - 18.0)) y=(px(middle + 4.0)) {
            title { (row.case.name) ": " (row.case.about) }
            @if sizes.is_empty() { (short(program, LETTERS)) }
            @else { tspan.soft { (program) " / " } (sizes) }
        }
    };
    let fused = times(row.case, FUSED);
    html! {
        @if medium == Medium::Page { a href=(format!("#case-{}", place + 1)) { (label) } } @else { (label) }
        @if fused.is_none() {
            text.soft.small x=(px(axis.at(1.0) + 12.0)) y=(px(middle + 4.0)) { "nothing to compare with: Fused was not measured" }
        }
        @for dot in &row.dots {
            @let level = middle + row.shift + f64::from(dot.lane) * LANE;
            @let (low, high) = (axis.at(dot.low), axis.at(dot.high));
            g class=(dot.look.class()) {
                title {
                    (dot.name) ": " (three(dot.middle)) " × the time of Fused, quartiles " (three(dot.low)) " to " (three(dot.high))
                    @if dot.noisy { "; noisy, not a figure to quote" }
                }
                @if high - low > 2.0 * RADIUS {
                    line.whisker x1=(px(low)) x2=(px(high)) y1=(px(level)) y2=(px(level)) {}
                }
                (dot.look.mark((axis.at(dot.middle), level), RADIUS, dot.noisy))
            }
        }
        text.end x=(px(right + 78.0)) y=(px(middle + 4.0)) { @if let Some(fused) = fused { (time(fused.step.median)) } @else { "–" } }
        @for (number, (look, name, absence)) in row.absent.iter().enumerate() {
            @let x = right + 104.0 + number as f64 * 14.0;
            g class=(look.class()) {
                title { (name) " " (absence.kind.words()) ": " (absence.why) }
                g.faint[absence.kind != Kind::Failed] { (look.mark((x, middle), 4.0, false)) }
                @if absence.kind == Kind::Failed {
                    line.strike x1=(px(x - 5.0)) x2=(px(x + 5.0)) y1=(px(middle + 6.0)) y2=(px(middle - 6.0)) {}
                }
            }
        }
    }
}

/// `2×`, with as few digits as possible.
fn tick_words(tick: f64) -> String {
    let digits = (-tick.log10().floor()).max(0.0) as usize + usize::from((tick - 1.5).abs() < 1e-9);
    format!("{tick:.digits$}×")
}

fn dots(report: &Report, case: &CaseResult) -> Vec<Dot> {
    let mut dots = Vec::new();
    for contender in &report.contenders {
        let Some(ratio) = ratio(case, &contender.id) else { continue };
        let quartiles = ratio.quartiles;
        // Inverted: the results have Fused over the contender.
        let (low, middle, high) = (1.0 / quartiles.high, 1.0 / quartiles.median, 1.0 / quartiles.low);
        let fair = |value: f64| if value.is_finite() && value > 0.0 { value } else { middle };
        dots.push(Dot {
            look: Look::of(&contender.id),
            name: contender.name.clone(),
            low: fair(low),
            middle,
            high: fair(high),
            noisy: ratio.noisy,
            lane: 0,
        });
    }
    dots
}

fn absent(report: &Report, case: &CaseResult) -> Vec<(Look, String, Absence)> {
    let mut absent = Vec::new();
    for contender in &report.contenders {
        if let Some(absence) = absence(report, case, contender) {
            absent.push((Look::of(&contender.id), name(report, &contender.id).to_owned(), absence));
        }
    }
    absent
}

/// Puts overlapping dots on lanes near the middle, and makes the row high enough.
fn arrange(row: &mut Row<'_>, axis: &Log) {
    row.dots.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    let mut taken: Vec<(i32, f64, f64)> = Vec::new();
    for dot in &mut row.dots {
        let x = axis.at(dot.middle);
        let from = axis.at(dot.low).min(x - RADIUS) - 3.0;
        let to = axis.at(dot.high).max(x + RADIUS) + 3.0;
        // Lanes 0, 1, -1, 2, -2, …: one is always free.
        let lanes = (0..).map(|number: i32| if number % 2 == 0 { -number / 2 } else { number / 2 + 1 });
        for lane in lanes {
            if !taken.iter().any(|&(other, low, high)| other == lane && low < to && from < high) {
                dot.lane = lane;
                taken.push((lane, from, to));
                break;
            }
        }
    }
    let least = row.dots.iter().map(|dot| dot.lane).min().unwrap_or(0);
    let most = row.dots.iter().map(|dot| dot.lane).max().unwrap_or(0);
    row.height = 26.0 + f64::from(most - least) * LANE;
    row.shift = -f64::from(most + least) / 2.0 * LANE;
}

/// The meaning of the shapes.
struct Legend {
    markup: Markup,
    height: f64,
}

fn legend(report: &Report, width: f64) -> Legend {
    let mut entries: Vec<(Markup, String)> = Vec::new();
    for contender in &report.contenders {
        let look = Look::of(&contender.id);
        let missing = contender.missing.is_some();
        let fused = contender.id == FUSED;
        let words = match (missing, fused) {
            (true, _) => format!("{} (missing)", contender.name),
            (_, true) => format!("{} (line at 1)", contender.name),
            _ => contender.name.clone(),
        };
        let mark =
            html! { g.faint[missing] { g class=(look.class()) { (look.mark((6.0, 8.0), RADIUS, false)) } } };
        entries.push((mark, words));
    }
    let example = Look::of("numpy");
    let class = example.class();
    entries.push((
        html! {
            g class=(class) { line.whisker x1="-4" x2="16" y1="8" y2="8" {} (Look::of("fuseline-fused").mark((6.0, 8.0), 4.0, false)) }
        },
        "  median and quartiles of the pairs".to_owned(),
    ));
    entries.push((
        html! { g class=(class) { (Look::of("fuseline-fused").mark((6.0, 8.0), RADIUS, true)) } },
        "hollow: noisy".to_owned(),
    ));
    entries.push((
        html! {
            g class=(class) {
                (Look::of("fuseline-fused").mark((6.0, 8.0), 4.0, false))
                line.strike x1="1" x2="11" y1="14" y2="2" {}
            }
        },
        "failed".to_owned(),
    ));
    entries.push((
        html! { g class=(class) { g.faint { (Look::of("fuseline-fused").mark((6.0, 8.0), 4.0, false)) } } },
        "left out or not measured".to_owned(),
    ));
    let (mut x, mut y) = (0.0, 0.0);
    let meanings = report.contenders.len();
    let mut placed = Vec::new();
    for (place, (mark, words)) in entries.into_iter().enumerate() {
        let wide = 28.0 + words.chars().count() as f64 * 6.7;
        if x > 0.0 && (x + wide > width || place == meanings) {
            (x, y) = (0.0, y + LEGEND_ROW);
        }
        placed.push((x + 4.0, y, mark, words));
        x += wide;
    }
    let markup = html! {
        @for (x, y, mark, words) in &placed {
            g transform=(format!("translate({} {})", px(*x), px(*y))) {
                (mark)
                text x=(if words.starts_with(' ') { "22" } else { "18" }) y="12" { (words.trim()) }
            }
        }
    };
    Legend { markup, height: y + LEGEND_ROW }
}
