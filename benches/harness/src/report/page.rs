//! The page. It needs no network and no script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::case;
use super::compare;
use super::findings::{Headline, Kind, absences, headlines};
use super::goals::{figures, verdict};
use super::look::{Look, Medium, page_style};
use super::stages::{self, Stages};
use super::words::{bytes, count, list, sentence, three};
use crate::results::Report;

const STYLE: &str = include_str!("style.css");

/// The page. `stems` are the file names of the cases' plots.
pub(super) fn page(report: &Report, stems: &[String], stages: Option<&Stages>) -> String {
    let cases = report.cases.len();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Fuseline, measured" }
                style { (PreEscaped(page_style())) (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Fuseline beside JAX, PyTorch and NumPy" }
                p.soft.top {
                    (count(cases, "case")) " · the same work in the same run, " (count(report.settings.threads, "thread")) " each · "
                    (report.machine.cpu) " · " (report.finished)
                    @if !report.commit.is_empty() { " · commit " code { (short_commit(&report.commit)) } }
                }
                nav {
                    a href="#goals" { "Goals" } a href="#all" { "All cases" } a href="#none" { "What has no figure" } a href="#cases" { "Case by case" }
                    @if stages.is_some() { a href="#stages" { "Stage by stage" } }
                    a href="#how" { "How it was measured" }
                }
                @if report.interrupted {
                    p.banner { strong { "Interrupted." } " The run ended before everything was \
                                                          measured; missing cases are listed \
                                                          below." }
                }
                @if report.settings.quick {
                    p.banner { strong { "A quick run." } " It shows that everything runs; its \
                                                          figures have too few rounds to be \
                                                          quoted." }
                }
                p.claim {
                    "The time of a step in Fuseline's Fused mode, divided by its time with …"
                    span.soft { "Geometric mean of the ratios of all cases: below 1, Fuseline is \
                                 faster. Noisy ratios are not counted." }
                }
                ul.tiles { @for headline in &headlines(report) { (tile(headline)) } }
                h2 #goals { "Goals" }
                (goals(report))
                h2 #all { "All cases" }
                p.soft {
                    "The time of each contender for a steady step, as a multiple of the time of \
                     Fused: to the right of the line it is slower than Fused, to the left it is \
                     faster. Dots that would overlap are drawn below each other."
                }
                div.figure { (compare::chart(report, Medium::Page)) }
                p.files { a href="plots/comparison.svg" { "SVG" } " · " a href="plots/comparison.png" { "PNG" } }
                h2 #none { "What has no figure" }
                (without(report))
                h2 #cases { "Case by case" }
                p.soft {
                    "The charts show every step before the rounds, from the first one on, in which \
                     everything is compiled; both axes are logarithmic. The dotted line is the \
                     steady step, the upright one where it begins, the pale trace Fused."
                }
                @if report.cases.is_empty() { p { "No case was measured." } }
                @for (place, stem) in stems.iter().enumerate() { (case::panel(report, place, stem)) }
                @if let Some(stages) = stages {
                    h2 #stages { "Stage by stage" }
                    (stages::section(stages))
                }
                h2 #how { "How it was measured" }
                (method(report))
            }
        }
    };
    markup.into_string()
}

/// The first digits of a commit, and the `+` of a changed tree.
fn short_commit(commit: &str) -> String {
    let digits: String = commit.trim_end_matches('+').chars().take(10).collect();
    digits + if commit.ends_with('+') { "+" } else { "" }
}

fn tile(headline: &Headline) -> Markup {
    let look = Look::of(headline.id);
    html! {
        li.tile.none[headline.mean.is_none()] {
            span.of { (look.badge()) (headline.name) }
            @match headline.mean {
                Some(mean) => {
                    span.big { (three(mean.mean)) }
                    span.words { (speed(mean.mean)) }
                    span.rows {
                        span { (count(mean.cases, "case")) }
                        span { "from " (three(mean.low)) " to " (three(mean.high)) }
                        @if headline.noisy > 0 { span { (headline.noisy) " noisy, not counted" } }
                    }
                }
                None => {
                    span.big { "–" }
                    span.words { @if headline.missing.is_some() { "missing" } @else { "no figure" } }
                    span.rows {
                        @match &headline.missing {
                            Some(why) => (sentence(why)),
                            None if headline.noisy > 0 => { (count(headline.noisy, "case")) ", noisy, not counted" }
                            None => "0 cases",
                        }
                    }
                }
            }
        }
    }
}

/// A ratio of times as a speed-up.
fn speed(ratio: f64) -> String {
    match three(ratio).as_str() {
        "1.00" => "as fast".to_owned(),
        _ if ratio < 1.0 => format!("{} × as fast", three(1.0 / ratio)),
        _ => format!("{} × as long", three(ratio)),
    }
}

/// The goals for Fuseline.
fn goals(report: &Report) -> Markup {
    html! {
        p.soft {
            "The time of Fused divided by that of another contender: for a steady step, or for the \
             first ten steps of a new process with all compiles in them. Noisy ratios are not \
             counted."
        }
        div.scroll {
            table {
                thead {
                    tr {
                        th scope="col" { "measurement" }
                        th.left scope="col" { "figure" }
                        th.left scope="col" { "goal" }
                        th.left scope="col" { "" }
                        th scope="col" { "cases" } th scope="col" { "noisy" }
                    }
                }
                tbody {
                    @for figure in &figures(report) {
                        tr {
                            th scope="row" { (figure.what) }
                            td.left.strong { (figure.found.as_deref().unwrap_or("open")) }
                            td.left { (figure.goal.as_deref().unwrap_or("")) }
                            td.left { (verdict(figure)) }
                            td { (figure.cases) }
                            td { @if figure.noisy > 0 { (figure.noisy) } }
                        }
                    }
                }
            }
        }
    }
}

/// Missing contenders, and what was left out or failed, with the reasons.
fn without(report: &Report) -> Markup {
    let missing: Vec<_> = report
        .contenders
        .iter()
        .filter_map(|contender| Some((contender, contender.missing.as_deref()?)))
        .collect();
    let absences = absences(report);
    let flagged: Vec<(usize, usize)> = (0..report.cases.len())
        .map(|place| (place, case::flags(report, &report.cases[place]).len()))
        .filter(|&(_, flags)| flags > 0)
        .collect();
    html! {
        @if missing.is_empty() && absences.is_empty() { p { "Every contender was measured on every case." } }
        @else {
            div.scroll {
                table.reasons {
                    thead { tr { th scope="col" { "contender" } th.left scope="col" { "cases" } th.left scope="col" { "" } th.left scope="col" { "why" } } }
                    tbody {
                        @for (contender, why) in &missing {
                            tr {
                                th scope="row" { (Look::of(&contender.id).badge()) (contender.name) }
                                td.left { "all" } td.left { "missing" } td.why { (sentence(why)) }
                            }
                        }
                        @for known in &absences {
                            tr {
                                th scope="row" { (Look::of(&known.contender.id).badge()) (known.contender.name) }
                                td.left {
                                    @if known.cases.len() == report.cases.len() && known.cases.len() > 1 { "all" }
                                    @else { @for &place in &known.cases { div { (link(report, place)) } } }
                                }
                                td.left { @if known.absence.kind == Kind::Failed { strong { "failed" } } @else { (known.absence.kind.words()) } }
                                td.why { (sentence(&known.absence.why)) }
                            }
                        }
                    }
                }
            }
        }
        @if !flagged.is_empty() {
            h4 { "Figures with a warning" }
            p {
                @for (number, &(place, flags)) in flagged.iter().enumerate() {
                    @if number > 0 { ", " }
                    (link(report, place)) @if flags > 1 { " (" (flags) ")" }
                }
                ". The warnings are shown with their cases."
            }
        }
    }
}

fn link(report: &Report, place: usize) -> Markup {
    html! { a href=(format!("#case-{}", place + 1)) { (report.cases[place].name) } }
}

fn method(report: &Report) -> Markup {
    let settings = &report.settings;
    let machine = &report.machine;
    let names: Vec<&str> = report
        .contenders
        .iter()
        .filter(|contender| contender.missing.is_none())
        .map(|contender| contender.name.as_str())
        .collect();
    html! {
        dl {
            dt { "order" }
            dd {
                "Each contender runs in a process of its own. After the warm-up come " (count(settings.rounds, "round"))
                @if settings.quick { " (a quick run)" }
                @if settings.sittings > 1 { ", shared among " (settings.sittings) " sittings with new processes" }
                ", in each of which every other contender runs one block of steps of about "
                (three(settings.block_seconds))
                " s right beside a block of Fuseline's, which is first in one round and second in \
                 the next: what slows the machine for longer than two blocks slows both. "
                "A ratio compares two such blocks; its median and quartiles are taken over the rounds."
            }
            dt { "noisy" }
            dd {
                "A ratio whose pairs are so far apart that their median is not known to a tenth \
                 (1.57 interquartile ranges over the root of their number), or whose sittings are \
                 a tenth apart: something else was running, or a process was fast or slow by \
                 chance. It is drawn hollow and is not counted."
            }
            dt { "results" }
            dd { "The outputs of each contender are compared with those of Fused first. A \
                  contender whose outputs differ by more than the case allows has failed." }
            dt { "contenders" }
            dd { @if names.is_empty() { "none" } @else { (list(&names)) } }
            dt { "peers" }
            dd {
                "Pinned packages of the package index, in environments of their own. The PyTorch \
                 package is built for CUDA and does not start without the CUDA libraries that its \
                 loader needs, so these are installed for every device."
            }
            dt { "device" } dd { (settings.device) @if settings.device != "cpu" { ", except for NumPy" } }
            dt { "threads" } dd { (settings.threads) " for each contender" }
            dt { "environment" }
            dd {
                @if settings.environment.is_empty() { "no variables set" }
                @for (key, value) in &settings.environment { div { code { (key) "=" (value) } } }
            }
            dt { "machine" }
            dd {
                (machine.cpu) ", " (count(machine.cores, "core")) ", " (bytes(machine.memory_bytes as f64)) ", " (machine.system)
                "; load average " (three(machine.load)) " at the start"
            }
            dt { "versions" }
            dd {
                @for contender in &report.contenders {
                    @let versions: Vec<String> = contender.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
                    div {
                        (contender.name) ": "
                        @if contender.missing.is_some() { "missing" }
                        @else if versions.is_empty() { "unknown" }
                        @else { (list(&versions)) }
                        @if let Some(note) = &contender.note { "; " (note) }
                    }
                }
            }
            dt { "commit" }
            dd {
                @if report.commit.is_empty() { "not in a checkout" } @else { code { (report.commit) } }
                @if report.commit.ends_with('+') { ", with uncommitted changes" }
            }
            dt { "when" } dd { (report.started) " to " (report.finished) }
            dt { "samples" }
            dd {
                "Every step of every round is in " a href="results.json" { "results.json" } ", in nanoseconds; "
                a href="summary.json" { "summary.json" } " leaves these out, and keeps the ratios of all pairs."
            }
        }
    }
}
