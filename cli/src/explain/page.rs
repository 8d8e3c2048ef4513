//! The page: the diagram and everything that the text says, for a browser. It needs no network.

use fuseline::fusion::Printable;
use fuseline::fusion::ir::Ref;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Explanation;
use super::kernels::{Basis, Kernels};
use super::picture::{COLOURS, diagram, style};
use crate::region_history::attributes;
use crate::text::count;

const PAGE_STYLE: &str = r#"
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .35rem 0; } .soft { color: var(--soft); } .alarm { color: var(--alarm); }
code, table, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.scroll { overflow: auto; border: 1px solid var(--line); border-radius: 10px; max-height: 85vh; }
.scroll svg { display: block; margin: 0 auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th { text-align: left; font-weight: 600; color: var(--soft); } th, td { padding: .2rem .8rem .2rem 0; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--line); }
section { border-top: 2px solid var(--line); margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.chip { display: inline-block; min-width: 1.7em; padding: 0 .4em; margin-right: .3em; border-radius: 4px; text-align: center;
  border: 1px solid var(--edge); }
.c0 { background: var(--k0); } .c1 { background: var(--k1); } .c2 { background: var(--k2); } .c3 { background: var(--k3); }
.c4 { background: var(--k4); } .c5 { background: var(--k5); } .c6 { background: var(--k6); } .c7 { background: var(--k7); }
.c8 { background: var(--k8); } .c9 { background: var(--k9); }
summary { cursor: pointer; color: var(--soft); margin: .5rem 0; } pre { overflow: auto; background: var(--panel);
  padding: .8rem; border-radius: 8px; }
"#;

/// The page.
pub(super) fn page(explanation: &Explanation) -> String {
    let regions = &explanation.first.regions;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (explanation.name) " explained" }
                style { (PreEscaped(style())) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                h1 { (explanation.name) }
                p.soft {
                    (explanation.size_words()) " on " (explanation.place) ", " (explanation.mode.name()) " mode, "
                    (count(regions.len(), "region"))
                }
                p { (sentence(&explanation.cold_words())) " " (sentence(&explanation.warm_words())) }
                @for region in explanation.warm_misses() {
                    p.alarm { (region.title()) " of the second run: " (region.source_words()) }
                }
                p.soft {
                    (explanation.basis_words()) " Ops of the same colour and letter run as one \
                                                 kernel; a dashed box is in none; a thick border \
                                                 marks an output of its region. Hold the pointer \
                                                 over a box to see types, call sites and reasons."
                }
                div.scroll { (diagram(explanation, false)) }
                @for index in 0..regions.len() { (section(explanation, index)) }
                h2 { "Where the time went, in both runs" }
                (PreEscaped(explanation.timeline.section()))
            }
        }
    };
    Printable(markup.into_string()).to_string()
}

fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn section(explanation: &Explanation, index: usize) -> Markup {
    let region = &explanation.first.regions[index];
    let kernels = &explanation.kernels[index];
    let contents = &region.contents;
    let graph = contents.canon().graph();
    let names = &explanation.names;
    let outputs = (0u32..).zip(contents.outputs()).filter(|(_, output)| output.live);
    html! {
        section {
            h2 { (region.title()) }
            dl {
                dt { "starts" } dd { (explanation.start(index)) }
                dt { "ends because" } dd { (region.end_words()) " (" code { (region.boundary.name()) } ")" }
                dt { "executable" } dd { (region.source_words()) }
                @if let Some(words) = region.compile_words() { dt { "compile" } dd { (words) } }
                dt { "key" } dd { code { (region.reference().key) } }
                dt { "inputs" }
                dd {
                    @for (param, (input, ty)) in (0u32..).zip(contents.inputs().iter().zip(graph.params())) {
                        div {
                            code { (names.get(input.value)) ": " (ty) }
                            @if input.lifted { span.soft { " a lifted scalar: its value is not part of the key" } }
                            @if region.donated.contains(&param) { span.soft { " dies here; its \
                                 memory is donated to an output" } }
                            @else if input.dies { span.soft { " dies here" } }
                        }
                    }
                    @if contents.inputs().is_empty() { span.soft { "none" } }
                }
                dt { "outputs" }
                dd {
                    @for (result, output) in outputs {
                        div {
                            code {
                                (names.get(output.value))
                                @if let Some(ty) = graph.type_of(Ref::Result(result)) { ": " (ty) }
                            }
                        }
                    }
                }
                @for words in &region.trouble { dt.alarm { "trouble" } dd.alarm { (words) } }
            }
            table {
                tr { th { "kernel" } th { "name" } th { "kind" } th { "ops" } }
                @for (number, kernel) in kernels.all.iter().enumerate() {
                    tr {
                        td { (chip(number)) }
                        td { (kernel.name) }
                        td { (kernel.kind) }
                        td { (kernel.nodes.len()) }
                    }
                }
            }
            @if kernels.basis == Basis::Estimated { p.soft { "Estimated from the op table." } }
            table {
                tr { th { "result" } th { "op" } th { "kernel" } th { "why" } th { "recorded at" } }
                @for (node, (op, site)) in graph.nodes().iter().zip(contents.sites()).enumerate() {
                    @let signature = op.signature();
                    @let attrs = attributes(signature.def(), signature.attrs());
                    tr {
                        td {
                            @for (value, ty) in op.results().zip(signature.results()) {
                                div { (names.in_region(contents, value)) ": " (ty) }
                            }
                        }
                        td {
                            (signature.op().name()) "("
                            @for (place, &operand) in op.operands().iter().enumerate() {
                                @if place > 0 { ", " }
                                (names.in_region(contents, operand))
                            }
                            ")"
                            @if !attrs.is_empty() { span.soft { " {" (attrs) "}" } }
                        }
                        td { @for &kernel in kernels.of_node(node) { (chip(kernel)) } }
                        td { (kernels.why(graph, node)) }
                        td { (site) }
                    }
                }
            }
            @if let Some((_, module)) = explanation.first.module_of(index) {
                details { summary { "StableHLO" } pre { (module.text()) } }
            }
        }
    }
}

fn chip(kernel: usize) -> Markup {
    html! { span class=(format!("chip c{}", kernel % COLOURS)) { (Kernels::letter(kernel)) } }
}
