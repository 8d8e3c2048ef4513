//! The page of a certificate: a table of ops and element types, and the findings that are not
//! right.

use std::collections::{BTreeMap, BTreeSet};

use fuseline::qualification::{Certificate, Finding};
use fuseline::{DType, OpCode};
use maud::{DOCTYPE, Markup, html};

const STYLE: &str = "\
body { font: 14px/1.4 sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; } td, th { padding: 1px 5px; border: 1px solid #ddd; text-align: left; }
.right { background: #dff3df; } .rounds { background: #fff3c4; } .refused { background: #ddd; }
.wrong { background: #f6b8b8; } .crashes { background: #d080d0; } code { font-size: 12px; }";

/// The class and the letter of a finding.
fn cell(finding: &Finding) -> (&'static str, &'static str) {
    match finding {
        Finding::Right => ("right", "\u{b7}"),
        Finding::RoundsDifferently { .. } => ("rounds", "~"),
        Finding::Refused { .. } => ("refused", "r"),
        Finding::Wrong { .. } => ("wrong", "W"),
        Finding::Crashes { .. } => ("crashes", "C"),
    }
}

/// A page without scripts and without references to other files.
pub(crate) fn page(certificate: &Certificate) -> String {
    let title =
        format!("Qualification of {} (API {})", certificate.key().platform, certificate.key().api_version);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head { meta charset="utf-8"; title { (title) } style { (STYLE) } }
            body {
                h1 { (title) }
                p { "Level " (certificate.level().name()) ", " (certificate.date()) "." }
                table {
                    @for (name, value) in certificate.key().parts() { tr { th { (name) } td { code { (value) } } } }
                }
                h2 { "Findings" }
                table {
                    @for (kind, count) in certificate.counts() { tr { th { (kind) } td { (count) } } }
                }
                (evidence(certificate))
                h2 { "Checks" }
                table {
                    @for check in certificate.checks() {
                        @let (class, _) = cell(&check.finding);
                        tr { td { (check.name) } td { (check.cases) } td class=(class) { (check.finding.kind()) } }
                    }
                }
                h2 { "Ops and element types" }
                p { "The worst finding: \u{b7} right, ~ rounds differently, r refused, W wrong, C crashes." }
                (matrix(certificate))
            }
        }
    };
    page.into_string()
}

/// A row for each finding that is not right, the worst first.
fn evidence(certificate: &Certificate) -> Markup {
    let rows = certificate.rows().iter().map(|row| {
        let other = row.other.map(|other| format!(" and {other}")).unwrap_or_default();
        (format!("{} of {}{other}, {}", row.op.name(), row.dtype, row.operand_kind.name()), &row.finding)
    });
    let checks = certificate.checks().iter().map(|check| (check.name.clone(), &check.finding));
    let mut all: Vec<(String, &Finding)> =
        rows.chain(checks).filter(|(_, finding)| **finding != Finding::Right).collect();
    all.sort_by(|a, b| b.1.cmp(a.1));
    html! {
        table {
            @for (name, finding) in all {
                @let (class, _) = cell(finding);
                @if let Some((call, what)) = finding.evidence() {
                    tr {
                        td { (name) } td class=(class) { (finding.kind()) }
                        td { code { (call) } } td { (what) }
                    }
                }
            }
        }
    }
}

fn matrix(certificate: &Certificate) -> Markup {
    let mut worst: BTreeMap<OpCode, BTreeMap<DType, &Finding>> = BTreeMap::new();
    for row in certificate.rows() {
        let place = worst.entry(row.op).or_default().entry(row.dtype).or_insert(&row.finding);
        *place = (*place).max(&row.finding);
    }
    let types: BTreeSet<DType> = worst.values().flat_map(|types| types.keys().copied()).collect();
    html! {
        table {
            tr { th {} @for dtype in &types { th { (dtype) } } }
            @for (op, findings) in &worst {
                tr {
                    th { (op.name()) }
                    @for dtype in &types {
                        @match findings.get(dtype) {
                            Some(finding) => {
                                @let (class, letter) = cell(finding);
                                td class=(class) title=(finding.kind()) { (letter) }
                            }
                            None => { td {} }
                        }
                    }
                }
            }
        }
    }
}
