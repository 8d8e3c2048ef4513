//! The diagram: regions as boxes, ops inside in the colour of their kernel, values as lines.

use std::collections::HashMap;

use fuseline::fusion::ValueId;
use fuseline::fusion::ir::Ref;
use maud::{Markup, PreEscaped, html};

use super::Explanation;
use super::kernels::Kernels;
use super::layout::{Layout, layout};
use crate::region_history::{attributes, typed};
use crate::text::count;

/// The number of colours; further kernels reuse them.
pub(super) const COLOURS: usize = 10;

/// The colours: name, value on a light page, value on a dark page.
const PALETTE: [(&str, &str, &str); 17] = [
    ("paper", "#ffffff", "#15171b"),
    ("ink", "#1c1e21", "#e7e9ed"),
    ("soft", "#667080", "#9aa4b2"),
    ("line", "#c3c9d2", "#3b424d"),
    ("panel", "#f5f6f8", "#1d2026"),
    ("edge", "#8a94a3", "#77818f"),
    ("alarm", "#b3261e", "#ff8a80"),
    ("k0", "#cfe3ff", "#1d4778"),
    ("k1", "#ffdcb8", "#7a4716"),
    ("k2", "#d0f0d3", "#1f5a2b"),
    ("k3", "#f6cfe0", "#73294c"),
    ("k4", "#e2d6fb", "#4b3691"),
    ("k5", "#fff0ae", "#665710"),
    ("k6", "#c5eff0", "#155a5c"),
    ("k7", "#f8d1c9", "#7b3222"),
    ("k8", "#dcebb8", "#4a5f16"),
    ("k9", "#d6dbe4", "#454d5b"),
];

/// The style of the diagram, with the names of colours.
const RULES: &str = r#"
svg.diagram { background: var(--paper); font: 12px ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
svg.diagram text { fill: var(--ink); }
svg.diagram .soft { fill: var(--soft); font-size: 10.5px; }
svg.diagram .region > rect { fill: var(--panel); stroke: var(--line); stroke-width: 1.2; }
svg.diagram .title { font-weight: 600; font-size: 13px; }
svg.diagram .op > rect { stroke: var(--edge); stroke-width: 1; fill: var(--paper); }
svg.diagram .op.none > rect { stroke-dasharray: 3 3; }
svg.diagram .op.out > rect { stroke: var(--ink); stroke-width: 2; }
svg.diagram .op > rect.stripe, svg.diagram .op.out > rect.stripe { stroke: var(--edge); stroke-width: .6; }
svg.diagram .in > rect { fill: var(--paper); stroke: var(--line); }
svg.diagram .in.scalar > rect { stroke-dasharray: 2 2; }
svg.diagram path { fill: none; stroke: var(--edge); stroke-width: 1.2; opacity: .8; }
svg.diagram path.between { stroke-dasharray: 5 4; stroke-width: 1.6; }
svg.diagram g:hover > rect { filter: brightness(1.08); stroke: var(--ink); }
svg.diagram .op.k0 > rect { fill: var(--k0); } svg.diagram .op.k1 > rect { fill: var(--k1); }
svg.diagram .op.k2 > rect { fill: var(--k2); } svg.diagram .op.k3 > rect { fill: var(--k3); }
svg.diagram .op.k4 > rect { fill: var(--k4); } svg.diagram .op.k5 > rect { fill: var(--k5); }
svg.diagram .op.k6 > rect { fill: var(--k6); } svg.diagram .op.k7 > rect { fill: var(--k7); }
svg.diagram .op.k8 > rect { fill: var(--k8); } svg.diagram .op.k9 > rect { fill: var(--k9); }
svg.diagram .op > rect.k0 { fill: var(--k0); } svg.diagram .op > rect.k1 { fill: var(--k1); }
svg.diagram .op > rect.k2 { fill: var(--k2); } svg.diagram .op > rect.k3 { fill: var(--k3); }
svg.diagram .op > rect.k4 { fill: var(--k4); } svg.diagram .op > rect.k5 { fill: var(--k5); }
svg.diagram .op > rect.k6 { fill: var(--k6); } svg.diagram .op > rect.k7 { fill: var(--k7); }
svg.diagram .op > rect.k8 { fill: var(--k8); } svg.diagram .op > rect.k9 { fill: var(--k9); }
"#;

/// The style of a page with the diagram: the colours are variables, which the page uses too.
pub(super) fn style() -> String {
    let set = |pick: fn(&(&str, &'static str, &'static str)) -> &'static str| -> String {
        PALETTE.iter().map(|colour| format!(" --{}: {};", colour.0, pick(colour))).collect()
    };
    let (light, dark) = (set(|colour| colour.1), set(|colour| colour.2));
    format!(
        ":root {{ color-scheme: light dark;{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n{RULES}"
    )
}

/// The style of a stand-alone diagram: with literal colours, since not every SVG viewer supports
/// variables.
fn plain_style() -> String {
    let (mut light, mut dark) = (RULES.to_owned(), RULES.to_owned());
    for (name, on_light, on_dark) in PALETTE {
        light = light.replace(&format!("var(--{name})"), on_light);
        dark = dark.replace(&format!("var(--{name})"), on_dark);
    }
    format!("{light}@media (prefers-color-scheme: dark) {{{dark}}}\n")
}

/// Widths of a character of the normal font and of the smaller one.
const CHARACTER: f64 = 7.3;
const SMALL: f64 = 6.4;
const MARGIN: f64 = 16.0;
/// Height of a region's title.
const TITLE: f64 = 52.0;

/// A box of a region: an input or an op.
struct Item {
    class: String,
    lines: [String; 2],
    tip: String,
    /// Colours of the kernels that compute it, when there are several.
    stripes: Vec<usize>,
}

impl Item {
    fn size(&self) -> (f64, f64) {
        let width = |text: &str, character: f64| text.chars().count() as f64 * character;
        let widest = width(&self.lines[0], CHARACTER).max(width(&self.lines[1], SMALL));
        (widest + 18.0, 38.0)
    }
}

/// A region with its items laid out.
struct Drawn {
    items: Vec<Item>,
    layout: Layout,
    title: [String; 2],
    tip: String,
    size: (f64, f64),
}

/// The picture as a stand-alone file.
pub(super) fn file(explanation: &Explanation) -> String {
    let drawn = diagram(explanation, true).into_string();
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{drawn}\n")
}

/// The picture. `alone` adds the style.
pub(super) fn diagram(explanation: &Explanation, alone: bool) -> Markup {
    let regions: Vec<Drawn> =
        (0..explanation.first.regions.len()).map(|index| draw(explanation, index)).collect();
    // The region and the box that make each value.
    let mut makers: HashMap<ValueId, (usize, usize)> = HashMap::new();
    let mut between = Vec::new();
    for (index, region) in explanation.first.regions.iter().enumerate() {
        let contents = &region.contents;
        let params = contents.inputs().len();
        for (param, input) in contents.inputs().iter().enumerate() {
            if let Some(&(from, item)) = makers.get(&input.value) {
                between.push(((from, item), (index, param)));
            }
        }
        for (result, output) in (0u32..).zip(contents.outputs()) {
            if let Some(node) = contents.canon().graph().maker(Ref::Result(result)) {
                makers.insert(output.value, (index, params + node));
            }
        }
    }
    let sizes: Vec<(f64, f64)> = regions.iter().map(|region| region.size).collect();
    let mut edges: Vec<(usize, usize)> = between.iter().map(|(from, to)| (from.0, to.0)).collect();
    edges.sort_unstable();
    edges.dedup();
    let outer = layout(&sizes, &edges, (28.0, 44.0));
    let centre = |(region, item): (usize, usize)| {
        let (x, y) = outer.boxes[region];
        let drawn = &regions[region];
        let (left, top) = drawn.layout.boxes[item];
        let (width, height) = drawn.items[item].size();
        let x = x + drawn.inset() + left + width / 2.0;
        let y = y + TITLE + top;
        (x, y, y + height)
    };
    // Down from the op, between the regions on the way, to the box of the value.
    let route = |from: (usize, usize), to: (usize, usize)| {
        let ((x, _, y), (to_x, to_y, _)) = (centre(from), centre(to));
        let mut points = vec![(x, y)];
        if let Ok(edge) = edges.binary_search(&(from.0, to.0)) {
            points.push((x, outer.boxes[from.0].1 + sizes[from.0].1));
            let bends = &outer.edges[edge];
            points.extend(&bends[1..bends.len() - 1]);
            points.push((to_x, outer.boxes[to.0].1));
        }
        points.push((to_x, to_y));
        points
    };
    let (width, height) = (outer.width + 2.0 * MARGIN, outer.height + 2.0 * MARGIN);
    let shift = format!("translate({MARGIN} {MARGIN})");
    html! {
        svg.diagram xmlns="http://www.w3.org/2000/svg" role="img" width=(number(width)) height=(number(height))
            viewBox=(format!("0 0 {} {}", number(width), number(height)))
        {
            title { (explanation.name) ": " (count(regions.len(), "region")) }
            @if alone { style { (PreEscaped(plain_style())) } }
            g transform=(shift) {
                @for (drawn, &(x, y)) in regions.iter().zip(&outer.boxes) { (region(drawn, x, y)) }
                @for &(from, to) in &between {
                    path.between d=(curve(&route(from, to))) {}
                }
            }
        }
    }
}

impl Drawn {
    /// The distance of the items from the left edge. They are centred if the title is wider.
    fn inset(&self) -> f64 {
        (self.size.0 - self.layout.width) / 2.0
    }
}

fn draw(explanation: &Explanation, index: usize) -> Drawn {
    let region = &explanation.first.regions[index];
    let kernels = &explanation.kernels[index];
    let contents = &region.contents;
    let graph = contents.canon().graph();
    let names = &explanation.names;
    let mut items = Vec::new();
    for (param, (input, ty)) in (0u32..).zip(contents.inputs().iter().zip(graph.params())) {
        let name = names.get(input.value);
        let mut tip = format!("input {}", typed(&name, ty));
        if input.lifted {
            tip += "\na lifted scalar: its value is not part of the key";
        }
        if region.donated.contains(&param) {
            tip += "\ndies here; its memory is donated to an output";
        } else if input.dies {
            tip += "\ndies here";
        }
        let class = if input.lifted { "in scalar" } else { "in" };
        let lines = [name, ty.to_string()];
        items.push(Item { class: class.to_owned(), lines, tip, stripes: Vec::new() });
    }
    let params = items.len();
    let mut edges = Vec::new();
    for (node, (op, site)) in graph.nodes().iter().zip(contents.sites()).enumerate() {
        let signature = op.signature();
        let results: Vec<String> = op.results().map(|value| names.in_region(contents, value)).collect();
        let types: Vec<String> = signature.results().iter().map(ToString::to_string).collect();
        let live = op.results().any(|value| match value {
            Ref::Result(result) => contents.outputs()[result as usize].live,
            Ref::Param(_) => false,
        });
        let mut tip = format!("{} = {}", results.join(", "), signature.op().name());
        let attrs = attributes(signature.def(), signature.attrs());
        if !attrs.is_empty() {
            tip += &format!(" {{{attrs}}}");
        }
        for (&operand, ty) in op.operands().iter().zip(signature.operands()) {
            tip += &format!("\nreads {}", typed(&names.in_region(contents, operand), ty));
        }
        for (name, ty) in results.iter().zip(&types) {
            tip += &format!("\nmakes {name}: {ty}{}", if live { ", an output of the region" } else { "" });
        }
        tip += &format!("\nrecorded at {site}\n{}", kernels.why(graph, node));
        let mut class = match kernels.of_node(node).first() {
            Some(kernel) => format!("op k{}", kernel % COLOURS),
            None => "op none".to_owned(),
        };
        if live {
            class += " out";
        }
        let letters: Vec<String> =
            kernels.of_node(node).iter().map(|&kernel| Kernels::letter(kernel)).collect();
        let label = match letters.is_empty() {
            true => signature.op().name().to_owned(),
            false => format!("{} · {}", signature.op().name(), letters.join(" ")),
        };
        let second = format!("{}: {}", results.join(", "), types.join(", "));
        let stripes = match kernels.of_node(node) {
            [_] => Vec::new(),
            several => several.iter().map(|kernel| kernel % COLOURS).collect(),
        };
        items.push(Item { class, lines: [label, second], tip, stripes });
        for &operand in op.operands() {
            let from = match operand {
                Ref::Param(param) => param as usize,
                Ref::Result(_) => params + graph.maker(operand).unwrap_or_default(),
            };
            edges.push((from, params + node));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    let sizes: Vec<(f64, f64)> = items.iter().map(Item::size).collect();
    let inner = layout(&sizes, &edges, (14.0, 26.0));
    let reference = region.reference();
    let title = [
        format!(
            "{} · {} · {}",
            region.title(),
            count(reference.ops, "op"),
            count(kernels.all.len(), "kernel")
        ),
        format!("ends: {} · key {}", region.boundary.name(), reference.key.short()),
    ];
    let mut tip =
        format!("{}\nends because {}\nexecutable: {}", reference, region.boundary, region.source_words());
    if let Some(words) = region.compile_words() {
        tip += &format!("\ncompile: {words}");
    }
    let wide = title.iter().map(|line| line.chars().count()).max().unwrap_or(0) as f64 * (CHARACTER + 0.7);
    let size = (inner.width.max(wide) + 2.0 * MARGIN, inner.height + TITLE + MARGIN);
    Drawn { items, layout: inner, title, tip, size }
}

fn region(drawn: &Drawn, x: f64, y: f64) -> Markup {
    let inset = drawn.inset();
    html! {
        g.region transform=(format!("translate({} {})", number(x), number(y))) {
            rect width=(number(drawn.size.0)) height=(number(drawn.size.1)) rx="8" { title { (drawn.tip) } }
            text.title x=(MARGIN) y="20" { (drawn.title[0]) }
            text.soft x=(MARGIN) y="36" { (drawn.title[1]) }
            g transform=(format!("translate({} {TITLE})", number(inset))) {
                @for points in &drawn.layout.edges { path d=(curve(points)) {} }
                @for (item, &(left, top)) in drawn.items.iter().zip(&drawn.layout.boxes) {
                    @let (width, height) = item.size();
                    g class=(item.class) transform=(format!("translate({} {})", number(left), number(top))) {
                        title { (item.tip) }
                        rect width=(number(width)) height=(number(height)) rx="5" {}
                        @for (place, colour) in item.stripes.iter().enumerate() {
                            @let each = (width - 10.0) / item.stripes.len() as f64;
                            rect class=(format!("stripe k{colour}")) x=(number(5.0 + place as f64 * each)) y=(number(height - 4.0))
                                width=(number(each)) height="4" {}
                        }
                        text x="9" y="16" { (item.lines[0]) }
                        text.soft x="9" y="30" { (item.lines[1]) }
                    }
                }
            }
        }
    }
}

/// A smooth line down through the points.
fn curve(points: &[(f64, f64)]) -> String {
    let Some(&(x, y)) = points.first() else { return String::new() };
    let mut path = format!("M{} {}", number(x), number(y));
    for pair in points.windows(2) {
        let ((from_x, from_y), (to_x, to_y)) = (pair[0], pair[1]);
        let middle = f64::midpoint(from_y, to_y);
        path += &format!(
            "C{} {} {} {} {} {}",
            number(from_x),
            number(middle),
            number(to_x),
            number(middle),
            number(to_x),
            number(to_y)
        );
    }
    path
}

/// Formats a number with at most one decimal.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
