//! The appearance of contenders: a colour and a shape that are the same in every chart, and the
//! style of the charts.

use maud::{Markup, html};

use super::words::px;

/// Where a picture appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// In the page, which has the style and links to parts of the picture.
    Page,
    /// In a file of its own.
    File,
}

/// The colours: name, value on a light page, value on a dark page. The first eight of contenders
/// are Okabe and Ito's, which colour-blind people can distinguish, with the yellow darkened on
/// light pages and the blues lightened on dark ones.
const PALETTE: [(&str, &str, &str); 19] = [
    ("paper", "#ffffff", "#14161a"),
    ("ink", "#1b1d21", "#e8eaee"),
    ("soft", "#626b78", "#9aa4b2"),
    ("line", "#dfe3e8", "#2c323b"),
    ("grid", "#eceff2", "#23282f"),
    ("stripe", "#f7f8fa", "#191c21"),
    ("panel", "#f5f6f8", "#1b1e24"),
    ("alarm", "#b3261e", "#ff8a80"),
    ("k0", "#d55e00", "#f2711c"),
    ("k1", "#e69f00", "#e9a820"),
    ("k2", "#9c8f00", "#f0e442"),
    ("k3", "#0072b2", "#3a93d6"),
    ("k4", "#56b4e9", "#a5deff"),
    ("k5", "#009e73", "#1fbf92"),
    ("k6", "#cc79a7", "#df92bd"),
    ("k7", "#26292e", "#f4f5f7"),
    ("k8", "#7d8590", "#8c95a1"),
    ("k9", "#8a5a3c", "#c99b7d"),
    ("k10", "#5b4bb5", "#a79bf0"),
];

/// The style of the charts, with the names of colours. It uses only features that SVG renderers
/// outside browsers support: no shorthands.
const RULES: &str = r#"
svg.plot text { fill: var(--ink); font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans Condensed", "DejaVu Sans", sans-serif; font-size: 12px; }
svg.plot text.soft, svg.plot tspan.soft { fill: var(--soft); }
svg.plot text.small { font-size: 10.5px; }
svg.plot text.strong { font-weight: bold; }
svg.plot text.end { text-anchor: end; }
svg.plot text.mid { text-anchor: middle; }
svg.plot .back { fill: var(--paper); }
svg.plot .stripe { fill: var(--stripe); }
svg.plot .grid { stroke: var(--grid); stroke-width: 1; }
svg.plot .frame { stroke: var(--line); stroke-width: 1; fill: none; }
svg.plot .one { stroke: var(--k0); stroke-width: 1.5; }
svg.plot .mark { stroke: currentColor; fill: currentColor; stroke-width: 1.2; stroke-linejoin: round; }
svg.plot .hollow { fill: var(--paper); stroke-width: 1.6; }
svg.plot .faint { opacity: .35; }
svg.plot .whisker { stroke: currentColor; stroke-width: 1.5; opacity: .6; }
svg.plot .trace { stroke: currentColor; fill: none; stroke-width: 1.5; stroke-linejoin: round; }
svg.plot .steady { stroke: currentColor; stroke-width: 1; stroke-dasharray: 2 3; opacity: .75; }
svg.plot .upright { stroke: var(--soft); stroke-width: 1; }
svg.plot .strike { stroke: var(--alarm); stroke-width: 1.6; }
"#;

/// Number of colours.
const COLOURS: usize = 11;

/// The style of the page. The colours are variables, which the page's own rules use too.
pub(super) fn page_style() -> String {
    let set = |pick: fn(&(&str, &'static str, &'static str)) -> &'static str| -> String {
        PALETTE.iter().map(|colour| format!(" --{}: {};", colour.0, pick(colour))).collect()
    };
    let (light, dark) = (set(|colour| colour.1), set(|colour| colour.2));
    let contenders: String =
        (0..COLOURS).map(|colour| format!(".k{colour} {{ color: var(--k{colour}); }}\n")).collect();
    format!(
        ":root {{ color-scheme: light dark;{light} }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n{RULES}{contenders}"
    )
}

/// The style of a stand-alone picture. It has literal colours, since not every SVG viewer supports
/// variables. Viewers with a dark mode get the dark colours.
pub(super) fn file_style() -> String {
    let contenders: String =
        (0..COLOURS).map(|colour| format!("svg.plot .k{colour} {{ color: var(--k{colour}); }}\n")).collect();
    let rules = format!("{RULES}{contenders}");
    let (mut light, mut dark) = (rules.clone(), rules);
    for (name, on_light, on_dark) in PALETTE {
        let variable = format!("var(--{name})");
        light = light.replace(&variable, on_light);
        dark = dark.replace(&variable, on_dark);
    }
    format!("{light}@media (prefers-color-scheme: dark) {{{dark}}}\n")
}

/// A shape that can be filled or hollow and is distinct when small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Circle,
    Square,
    Diamond,
    Up,
    Down,
    Plus,
    Star,
    Hexagon,
    Cross,
    Bar,
    Left,
}

impl Shape {
    /// Corners around the centre, in units of the radius; none for a circle.
    fn corners(self) -> Vec<(f64, f64)> {
        let around = |corners: u32, turn: f64, radius: fn(u32) -> f64| {
            (0..corners)
                .map(|corner| {
                    let angle = turn + std::f64::consts::TAU * f64::from(corner) / f64::from(corners);
                    (radius(corner) * angle.sin(), -radius(corner) * angle.cos())
                })
                .collect()
        };
        let eighth = std::f64::consts::FRAC_PI_4;
        // A plus has twelve corners; its arms are twice `ARM` thick.
        const ARM: f64 = 0.38;
        let plus = [(-ARM, -1.1), (ARM, -1.1), (ARM, -ARM), (1.1, -ARM), (1.1, ARM), (ARM, ARM)];
        let plus = plus.into_iter().chain(plus.map(|(x, y)| (-x, -y)));
        match self {
            Self::Circle => Vec::new(),
            Self::Square => around(4, eighth, |_| 1.25),
            Self::Diamond => around(4, 0.0, |_| 1.25),
            Self::Up => around(3, 0.0, |_| 1.25),
            Self::Down => around(3, std::f64::consts::PI, |_| 1.25),
            Self::Plus => plus.collect(),
            Self::Star => around(10, 0.0, |corner| if corner % 2 == 0 { 1.4 } else { 0.62 }),
            Self::Hexagon => around(6, 0.0, |_| 1.1),
            Self::Cross => {
                let half = std::f64::consts::FRAC_1_SQRT_2;
                plus.map(|(x, y)| ((x - y) * half, (x + y) * half)).collect()
            }
            Self::Bar => vec![(-0.45, -1.2), (0.45, -1.2), (0.45, 1.2), (-0.45, 1.2)],
            Self::Left => around(3, -std::f64::consts::FRAC_PI_2, |_| 1.25),
        }
    }
}

/// Colour and shape of a contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    colour: usize,
    shape: Shape,
}

impl Look {
    /// The look of a contender by its id. Unknown contenders share one.
    pub(super) fn of(id: &str) -> Self {
        let (colour, shape) = match id {
            "fuseline-fused" => (0, Shape::Circle),
            "fuseline-strict" => (1, Shape::Square),
            "fuseline-debug" => (2, Shape::Diamond),
            "jax" => (3, Shape::Up),
            "jax-0.10" => (10, Shape::Left),
            "jax-eager" => (4, Shape::Down),
            "torch" => (5, Shape::Plus),
            "torch-compile" => (6, Shape::Star),
            "torch-xla" => (7, Shape::Hexagon),
            "numpy" => (8, Shape::Cross),
            _ => (9, Shape::Bar),
        };
        Self { colour, shape }
    }

    /// The class that sets the colour.
    pub(super) fn class(self) -> String {
        format!("k{}", self.colour)
    }

    /// The shape around a point. It inherits its colour.
    pub(super) fn mark(self, (x, y): (f64, f64), radius: f64, hollow: bool) -> Markup {
        let class = if hollow { "mark hollow" } else { "mark" };
        let corners: Vec<String> = self
            .shape
            .corners()
            .iter()
            .map(|(right, down)| format!("{:.1},{:.1}", x + right * radius, y + down * radius))
            .collect();
        html! {
            @if corners.is_empty() { circle class=(class) cx=(px(x)) cy=(px(y)) r=(px(radius)) {} }
            @else { polygon class=(class) points=(corners.join(" ")) {} }
        }
    }

    /// The shape as a small inline picture.
    pub(super) fn badge(self) -> Markup {
        html! {
            svg class=(format!("plot badge {}", self.class())) width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" {
                (self.mark((7.0, 7.0), 4.4, false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_contenders_look_alike() {
        let ids = [
            "fuseline-fused",
            "fuseline-strict",
            "fuseline-debug",
            "jax",
            "jax-0.10",
            "jax-eager",
            "torch",
            "torch-compile",
            "torch-xla",
            "numpy",
            "another",
        ];
        let looks: Vec<Look> = ids.iter().map(|id| Look::of(id)).collect();
        for (place, look) in looks.iter().enumerate() {
            for other in &looks[..place] {
                assert!(look.colour != other.colour && look.shape != other.shape);
            }
        }
    }

    #[test]
    fn a_file_has_no_variables() {
        assert!(!file_style().contains("var("));
        assert!(page_style().contains("var(--k9)"));
    }
}
