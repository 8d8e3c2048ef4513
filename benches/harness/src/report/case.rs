//! The panel of a case: its warm-up, a table of the contenders, and warnings about figures.

use maud::{Markup, html};

use super::axis::Log;
use super::findings::{FUSED, Kind, absence, name, ratio, times};
use super::look::{Look, Medium};
use super::warmup;
use super::words::{bytes, count, list, px, scientific, sentence, three, time};
use crate::results::{CaseResult, Contender, Engine, Ratio, Report, Times};

/// The size of the small picture of a ratio's pairs.
const STRIP: (f64, f64) = (132.0, 18.0);
/// Columns of the table after the name.
const COLUMNS: usize = 9;

/// The panel of the case at a position in the report. `stem` is the name of its plot.
pub(super) fn panel(report: &Report, place: usize, stem: &str) -> Markup {
    let case = &report.cases[place];
    let missing: Vec<&str> = report
        .contenders
        .iter()
        .filter(|contender| contender.missing.is_some() && !case.runs.contains_key(&contender.id))
        .map(|contender| contender.name.as_str())
        .collect();
    let flags = flags(report, case);
    html! {
        article id=(format!("case-{}", place + 1)) {
            header {
                div { h3 { (case.name) } p.soft { (case.about) } }
                @if let Some(fused) = times(case, FUSED) {
                    div.lead { (time(fused.step.median)) " " span { "per step with Fuseline Fused" } }
                }
            }
            div.figure { (warmup::chart(report, case, Medium::Page)) }
            p.files { a href=(format!("plots/{stem}.svg")) { "SVG" } " · " a href=(format!("plots/{stem}.png")) { "PNG" } }
            div.scroll { (table(report, case)) }
            @if !flags.is_empty() { ul.flags { @for flag in &flags { li { (flag) } } } }
            (engines(report, case))
            @if !missing.is_empty() { p.soft { "Not on this machine: " (list(&missing)) "." } }
        }
    }
}

fn table(report: &Report, case: &CaseResult) -> Markup {
    let pairs = case.ratios.iter().flat_map(|ratio| ratio.pairs.iter().copied());
    let axis = Log::around(pairs, (0.8, 1.25), 1.1).along(5.0, STRIP.0 - 5.0);
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "contender" }
                    th scope="col" { "steady step" br; "median" }
                    th scope="col" { "quartiles" }
                    th scope="col" { "Fused" br; "over it" }
                    th scope="col" { "quartiles" }
                    th.left scope="col" { "pairs, line at 1" }
                    th scope="col" { "first step" }
                    th scope="col" { "until steady" }
                    th scope="col" { "peak memory" }
                    th scope="col" { "difference" br; "from Fused" }
                }
            }
            tbody {
                @for contender in &report.contenders {
                    @if let Some(times) = times(case, &contender.id) { (measured(case, contender, times, &axis)) }
                    @else if let Some(absence) = absence(report, case, contender) {
                        tr {
                            th scope="row" { (Look::of(&contender.id).badge()) (contender.name) }
                            td.why colspan=(COLUMNS) {
                                (absence.kind.words()) ": " (absence.why)
                            }
                        }
                    }
                }
            }
        }
    }
}

fn measured(case: &CaseResult, contender: &Contender, times: &Times, axis: &Log) -> Markup {
    let look = Look::of(&contender.id);
    let ratio = ratio(case, &contender.id);
    html! {
        tr {
            th scope="row" { (look.badge()) (contender.name) }
            td.strong { (time(times.step.median)) }
            td.soft { (span(time(times.step.low), time(times.step.high))) }
            @match ratio {
                Some(ratio) => {
                    td.strong.noisy[ratio.noisy] { @if ratio.noisy { "noisy " } (three(ratio.quartiles.median)) }
                    td.soft { (three(ratio.quartiles.low)) " – " (three(ratio.quartiles.high)) }
                    td.left { (strip(look, ratio, axis)) }
                }
                None if contender.id == FUSED => { td.soft { "1" } td {} td {} }
                None => { td.soft { "–" } td {} td {} }
            }
            td { (times.warm.first().map_or_else(|| "–".to_owned(), |&first| time(first as f64))) }
            td {
                @match times.steady_from {
                    Some(0) => "at once",
                    Some(from) => {
                        (count(from, "step")) ", " (time(times.warm.iter().take(from).sum::<u64>() as f64))
                    }
                    None => { "not within " (count(times.warm.len(), "step")) }
                }
            }
            td { (times.peak_kib.map_or_else(|| "unknown".to_owned(), |kib| bytes(kib as f64 * 1024.0))) }
            td {
                @if contender.id == FUSED { span.soft { "–" } }
                @else if let Some(deviation) = times.deviation {
                    @if deviation == 0.0 { "equal" } @else { (scientific(deviation)) }
                }
            }
        }
    }
}

/// `12.1 – 12.9 µs`: the unit appears once if it is the same.
fn span(low: String, high: String) -> String {
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} – {high}"),
        _ => format!("{low} – {high}"),
    }
}

/// Each pair as a dot, and the median.
fn strip(look: Look, ratio: &Ratio, axis: &Log) -> Markup {
    let (width, height) = STRIP;
    let middle = height / 2.0;
    let one = axis.at(1.0);
    html! {
        svg class=(format!("plot {}", look.class())) width=(px(width)) height=(px(height)) viewBox=(format!("0 0 {} {}", px(width), px(height)))
            role="img" aria-label=(format!("{} from {} to {}", count(ratio.pairs.len(), "pair"), three(least(&ratio.pairs)), three(most(&ratio.pairs))))
        {
            line.frame x1="0" x2=(px(width)) y1=(px(middle)) y2=(px(middle)) {}
            line.one x1=(px(one)) x2=(px(one)) y1="1" y2=(px(height - 1.0)) {}
            g.faint { @for &pair in &ratio.pairs { circle.mark cx=(px(axis.at(pair))) cy=(px(middle)) r="2.2" {} } }
            (look.mark((axis.at(ratio.quartiles.median), middle), 4.0, ratio.noisy))
        }
    }
}

fn least(pairs: &[f64]) -> f64 {
    pairs.iter().copied().fold(f64::NAN, f64::min)
}

fn most(pairs: &[f64]) -> f64 {
    pairs.iter().copied().fold(f64::NAN, f64::max)
}

/// Warnings about figures of the case that could mislead.
pub(super) fn flags(report: &Report, case: &CaseResult) -> Vec<String> {
    let mut flags = Vec::new();
    for ratio in case.ratios.iter().filter(|ratio| ratio.noisy) {
        flags.push(format!(
            "Fused over {} is noisy: pairs spread over {} to {}, not a figure to quote.",
            name(report, &ratio.to),
            three(least(&ratio.pairs)),
            three(most(&ratio.pairs))
        ));
    }
    for contender in &report.contenders {
        let Some(times) = times(case, &contender.id) else {
            if let Some(absence) =
                absence(report, case, contender).filter(|absence| absence.kind == Kind::Failed)
            {
                let why = absence.why.trim().trim_end_matches('.');
                flags.push(format!("{} failed: {why}.", contender.name));
            }
            continue;
        };
        if times.steady_from.is_none() {
            flags.push(format!(
                "{} had not become steady after {}, when the rounds began: its steady step is the time at that point.",
                contender.name,
                count(times.warm.len(), "step")
            ));
        }
        if let Some(engine) = times.engine.as_ref().filter(|engine| engine.steady_compiles > 0) {
            flags.push(format!(
                "{} compiled {} in the rounds, so its steady step includes compiles.",
                contender.name,
                count(usize::try_from(engine.steady_compiles).unwrap_or(usize::MAX), "region")
            ));
        }
    }
    flags.into_iter().map(|flag| sentence(&flag)).collect()
}

/// The engine's work, in each measured mode.
fn engines(report: &Report, case: &CaseResult) -> Markup {
    let engines: Vec<(&Contender, &Engine)> = report
        .contenders
        .iter()
        .filter_map(|contender| Some((contender, times(case, &contender.id)?.engine.as_ref()?)))
        .collect();
    if engines.is_empty() {
        return html! {};
    }
    html! {
        h4 { "What the engine did" }
        div.scroll {
            table {
                thead {
                    tr {
                        th scope="col" { "mode" }
                        th scope="col" { "compiles" }
                        th scope="col" { "in compiles" }
                        th scope="col" { "executables" }
                        th scope="col" { "longest wait" br; "of a call" }
                        th scope="col" { "compiles" br; "in the rounds" }
                        th scope="col" { "ops" br; "a step" }
                        th scope="col" { "regions" br; "a step" }
                        th scope="col" { "executions" br; "a step" }
                        th scope="col" { "donations" br; "a step" }
                        th scope="col" { "to the device" br; "a step" }
                        th scope="col" { "from it" br; "a step" }
                    }
                }
                tbody {
                    @for (contender, engine) in &engines {
                        tr {
                            th scope="row" { (Look::of(&contender.id).badge()) (contender.name) }
                            td { (engine.compiles) }
                            td { (time(engine.compile_seconds * 1e9)) }
                            td { (engine.executables) }
                            td { (engine.longest_wait.map_or_else(|| "unknown".to_owned(), |wait| time(wait as f64))) }
                            td { (engine.steady_compiles) }
                            td { (rate(engine.ops)) }
                            td { (rate(engine.regions)) }
                            td { (rate(engine.executions)) }
                            td { (rate(engine.donations)) }
                            td { (bytes(engine.bytes_up)) }
                            td { (bytes(engine.bytes_down)) }
                        }
                    }
                }
            }
        }
    }
}

/// A number per step, without decimals if it is whole.
fn rate(number: f64) -> String {
    if number.fract() == 0.0 && number < 1e6 { format!("{number}") } else { three(number) }
}
