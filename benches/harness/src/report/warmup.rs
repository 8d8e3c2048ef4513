//! The chart of a case: each contender's steps from the first one until they are steady.

use maud::{Markup, PreEscaped, html};

use super::axis::Log;
use super::findings::{FUSED, times};
use super::look::{Look, Medium, file_style};
use super::words::{px, short, time};
use crate::results::{CaseResult, Contender, Report, Times};

const WIDTH: f64 = 1120.0;
/// Space for the numbers on the left, and for the heading above a panel.
const LEFT_MARGIN: f64 = 58.0;
const HEAD: f64 = 24.0;
const PANEL: f64 = 104.0;
const GAP: f64 = 16.0;
/// The largest number of panels in a row.
const MAX_COLUMNS: usize = 5;
/// Steps up to this one are drawn as dots: they include the compiles.
const DOTS: usize = 12;

/// The chart as a stand-alone file.
pub(super) fn file(report: &Report, case: &CaseResult) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n",
        chart(report, case, Medium::File).into_string()
    )
}

/// The chart: a panel for each measured contender, all on one scale.
pub(super) fn chart(report: &Report, case: &CaseResult, medium: Medium) -> Markup {
    let measured: Vec<(&Contender, &Times)> = report
        .contenders
        .iter()
        .filter_map(|contender| Some((contender, times(case, &contender.id)?)))
        .collect();
    let rows = measured.len().div_ceil(MAX_COLUMNS).max(1);
    // As balanced as possible: 9 panels are 5 and 4, 6 are 3 and 3.
    let columns = measured.len().div_ceil(rows).max(3);
    let title = if medium == Medium::File { 34.0 } else { 0.0 };
    let height = title + rows as f64 * (HEAD + PANEL + GAP) + 6.0;
    let width = (WIDTH - LEFT_MARGIN - 8.0 - GAP * (columns as f64 - 1.0)) / columns as f64;

    let steps = measured.iter().map(|(_, times)| times.warm.len()).max().unwrap_or(1).max(2);
    let all = measured
        .iter()
        .flat_map(|(_, times)| times.warm.iter().map(|&step| step as f64).chain([times.step.median]));
    let least = measured.first().map_or((1.0, 10.0), |(_, times)| (times.step.median, times.step.median));
    let scale = Scale {
        steps: Log::around([steps as f64].into_iter(), (1.0, 2.0), 1.0),
        times: Log::around(all, least, 1.5),
        width,
    };
    let fused = times(case, FUSED);
    html! {
        svg.plot.warmup xmlns="http://www.w3.org/2000/svg" role="img" width=(px(WIDTH)) height=(px(height))
            viewBox=(format!("0 0 {} {}", px(WIDTH), px(height))) aria-label=(format!("Time of each step of {} from the first one on", case.name))
        {
            @if medium == Medium::File {
                style { (PreEscaped(file_style())) }
                rect.back width=(px(WIDTH)) height=(px(height)) {}
                text.strong x=(px(LEFT_MARGIN)) y="22" { (case.name) }
                text.soft.small.end x=(px(WIDTH - 8.0)) y="22" { "time of each step, from the first one on; both axes logarithmic" }
            }
            @for (place, (contender, times)) in measured.iter().enumerate() {
                @let (column, row) = (place % columns, place / columns);
                @let x = LEFT_MARGIN + column as f64 * (width + GAP);
                @let y = title + row as f64 * (HEAD + PANEL + GAP);
                @let last = place + columns >= measured.len();
                g transform=(format!("translate({} {})", px(x), px(y))) {
                    (panel(&scale, contender, times, fused, column == 0, last))
                }
            }
            @if measured.is_empty() { text.soft x=(px(LEFT_MARGIN)) y=(px(title + 40.0)) { "No contender was measured on this case." } }
        }
    }
}

/// The common scale of a chart's panels.
struct Scale {
    steps: Log,
    times: Log,
    width: f64,
}

fn panel(
    scale: &Scale,
    contender: &Contender,
    times: &Times,
    fused: Option<&Times>,
    first: bool,
    last: bool,
) -> Markup {
    let look = Look::of(&contender.id);
    let steps = scale.steps.along(8.0, scale.width - 8.0);
    // Below the text about the steady step.
    let levels = scale.times.along(HEAD + PANEL, HEAD + 16.0);
    let steady = levels.at(times.step.median);
    let heading = times
        .warm
        .first()
        .map_or_else(String::new, |&first| format!("{} → {}", time(first as f64), time(times.step.median)));
    // The other contender's name is shortened before the two overlap.
    let letters = ((scale.width - 30.0 - heading.chars().count() as f64 * 5.8) / 7.0).max(4.0) as usize;
    html! {
        title { (contender.name) ": first step and steady step " (heading) }
        g class=(look.class()) { (look.mark((7.0, 11.0), 4.0, false)) }
        text.strong x="17" y="15" { (short(&contender.name, letters)) }
        text.soft.small.end x=(px(scale.width)) y="15" { (heading) }
        @for tick in scale.times.ticks(6) {
            @let y = levels.at(tick);
            line.grid x1="0" x2=(px(scale.width)) y1=(px(y)) y2=(px(y)) {}
            @if first { text.soft.small.end x="-7" y=(px(y + 3.5)) { (round_time(tick)) } }
        }
        @for tick in scale.steps.ticks(7) {
            @let x = steps.at(tick);
            line.grid x1=(px(x)) x2=(px(x)) y1=(px(HEAD)) y2=(px(HEAD + PANEL)) {}
            @if last { text.soft.small.mid x=(px(x)) y=(px(HEAD + PANEL + 14.0)) { @if tick == 1.0 { "step 1" } @else { (tick) } } }
        }
        rect.frame x="0" y=(px(HEAD)) width=(px(scale.width)) height=(px(PANEL)) rx="3" {}
        @match times.steady_from {
            Some(from) => {
                @let x = steps.at(from as f64 + 1.0);
                line.upright x1=(px(x)) x2=(px(x)) y1=(px(HEAD)) y2=(px(HEAD + PANEL)) {}
                @let near_end = x > scale.width - 84.0;
                text.soft.small.end[near_end] x=(px(if near_end { x - 4.0 } else { x + 4.0 })) y=(px(HEAD + 13.0)) { "steady from " (from + 1) }
            }
            None => { text.soft.small.end x=(px(scale.width - 6.0)) y=(px(HEAD + 13.0)) { "not steady" } }
        }
        // Fused is drawn behind the others, for comparison.
        @if let Some(fused) = fused.filter(|_| contender.id != FUSED) {
            g class=(Look::of(FUSED).class()) { g.faint { path.trace d=(trace(&fused.warm, &steps, &levels)) {} } }
        }
        g class=(look.class()) {
            line.steady x1="0" x2=(px(scale.width)) y1=(px(steady)) y2=(px(steady)) {}
            path.trace d=(trace(&times.warm, &steps, &levels)) {}
            @for (step, &took) in times.warm.iter().take(DOTS).enumerate() {
                circle.mark cx=(px(steps.at(step as f64 + 1.0))) cy=(px(levels.at(took as f64))) r="1.8" {}
            }
        }
    }
}

/// The line through all steps. Steps at the same position are one stroke from minimum to maximum,
/// so a long warm-up does not make a long file and no slow step is lost.
fn trace(warm: &[u64], steps: &Log, levels: &Log) -> String {
    let mut columns: Vec<(f64, f64, f64)> = Vec::new();
    for (step, &took) in warm.iter().enumerate() {
        let (x, y) = (steps.at(step as f64 + 1.0), levels.at(took as f64));
        match columns.last_mut() {
            Some((at, top, bottom)) if x - *at < 1.0 => (*top, *bottom) = (top.min(y), bottom.max(y)),
            _ => columns.push((x, y, y)),
        }
    }
    let mut path = String::new();
    for (x, top, bottom) in columns {
        path += if path.is_empty() { "M" } else { "L" };
        path += &format!("{} {}", px(x), px(top));
        if bottom - top > 0.2 {
            path += &format!("L{} {}", px(x), px(bottom));
        }
    }
    path
}

/// The label of a tick: `10 µs`.
fn round_time(nanoseconds: f64) -> String {
    let words = time(nanoseconds);
    match words.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_warm_up_is_a_short_line() {
        let warm: Vec<u64> =
            (0..100_000).map(|step| if step == 50_000 { 1_000_000 } else { 1000 + step % 7 }).collect();
        let steps = Log::around([1e5].into_iter(), (1.0, 2.0), 1.0).along(0.0, 200.0);
        let levels = Log::around([1e6].into_iter(), (1e3, 1e3), 1.1).along(100.0, 0.0);
        let path = trace(&warm, &steps, &levels);
        assert!(path.len() < 10_000, "{}", path.len());
        // The slow step reaches up to its time.
        assert!(path.contains(&format!(" {}L", px(levels.at(1e6)))));
    }

    #[test]
    fn ticks_have_no_empty_digits() {
        assert_eq!(round_time(10_000.0), "10 µs");
        assert_eq!(round_time(100_000.0), "100 µs");
        assert_eq!(round_time(1_500_000.0), "1.5 ms");
    }
}
