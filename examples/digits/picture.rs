//! The picture of the comparison: loss curves, their differences, times per step.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Epoch;
use crate::compare::{Comparison, JUDGED_STEPS, Run};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours of the three modes, distinguishable with any colour vision (Okabe and Ito).
const COLORS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];
/// The modes' curves overlap: the first is drawn widest, the last thinnest.
const WIDTHS: [u32; 3] = [7, 4, 1];
const FONT: &str = "sans-serif";
const TITLE: (&str, u32) = (FONT, 20);
const TEXT: (&str, u32) = (FONT, 15);

/// Draws the picture into a file.
pub(crate) fn draw(path: &Path, comparison: &Comparison, epochs: &[Epoch]) -> anyhow::Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (1100, 820)).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, bottom) = root.split_vertically(420);
        let (left, right) = top.split_horizontally(550);
        losses(&left, comparison)?;
        progress(&right, epochs)?;
        let (left, right) = bottom.split_horizontally(550);
        differences(&left, comparison)?;
        times(&right, comparison)?;
        root.present()?;
    }
    std::fs::write(path, svg)?;
    Ok(())
}

fn name(run: &Run) -> String {
    let mut name = run.mode.name().to_owned();
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    name
}

fn steps(values: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    values.iter().enumerate().map(|(step, &value)| ((step + 1) as f64, value))
}

fn losses(area: &Area<'_>, comparison: &Comparison) -> anyhow::Result<()> {
    let count = comparison.runs.iter().map(|run| run.losses.len()).max().unwrap_or(1);
    let largest = comparison.runs.iter().flat_map(|run| run.losses.iter().copied()).fold(0.1, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Loss, the same steps in each mode", TITLE)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..count as f64, 0.0..largest * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("cross-entropy (nats)")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.1}"))
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for ((run, color), width) in comparison.runs.iter().zip(COLORS).zip(WIDTHS) {
        let style = color.stroke_width(width);
        chart
            .draw_series(LineSeries::new(steps(&run.losses), style))?
            .label(name(run))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.2))
        .label_font(TEXT)
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    Ok(())
}

fn progress(area: &Area<'_>, epochs: &[Epoch]) -> anyhow::Result<()> {
    let errors: Vec<f64> = epochs.iter().map(|epoch| (1.0 - epoch.accuracy) * 100.0).collect();
    let largest = errors.iter().copied().fold(5.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Training in Fused: held-out digits misclassified", TITLE)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..epochs.len() as f64 + 0.5, 0.0..largest * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc("misclassified (%)")
        .x_labels(epochs.len().min(12))
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    chart.draw_series(LineSeries::new(steps(&errors), COLORS[0].stroke_width(2)))?;
    chart.draw_series(steps(&errors).map(|at| Circle::new(at, 4, COLORS[0].filled())))?;
    if let Some(&last) = errors.last() {
        let text = format!("{last:.2} %");
        let style = TEXT.into_font().color(&BLACK);
        let at = (epochs.len() as f64, last);
        chart.draw_series([EmptyElement::at(at) + Text::new(text, (-28, -24), style)])?;
    }
    Ok(())
}

fn differences(area: &Area<'_>, comparison: &Comparison) -> anyhow::Result<()> {
    // Zero has no position on a logarithmic axis; it is drawn at the low end.
    const LEAST: f64 = 1e-8;
    let count = comparison.runs.iter().map(|run| run.losses.len()).max().unwrap_or(1);
    let all = comparison.runs.iter().flat_map(|run| comparison.differences(run));
    let largest = all.fold(2e-4, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("How far the losses are from those in Fused", TITLE)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..count as f64, (LEAST..largest * 2.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("absolute difference (0 at 1e-8)")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0e}"))
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    let limit = [(0.0, 1e-4), (JUDGED_STEPS as f64, 1e-4)];
    chart
        .draw_series(LineSeries::new(limit, RED.stroke_width(2)))?
        .label(format!("allowed in the first {JUDGED_STEPS} steps"))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 24, y)], RED.stroke_width(2)));
    for ((run, color), width) in comparison.runs.iter().zip(COLORS).zip([0, 3, 1]).skip(1) {
        let style = color.stroke_width(width);
        let points: Vec<f64> = comparison.differences(run).iter().map(|value| value.max(LEAST)).collect();
        chart
            .draw_series(LineSeries::new(steps(&points), style))?
            .label(name(run))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.2))
        .label_font(TEXT)
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    Ok(())
}

fn times(area: &Area<'_>, comparison: &Comparison) -> anyhow::Result<()> {
    let largest = comparison.runs.iter().map(Run::time).fold(0.001, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Time per step", TITLE)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..largest * 1.3, 0.0..comparison.runs.len() as f64)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds (median; the line spans all blocks of steps)")
        .disable_y_mesh()
        .y_labels(0)
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    let fused = comparison.runs[0].time();
    for (place, (run, color)) in comparison.runs.iter().zip(COLORS).enumerate() {
        // The first on top.
        let middle = (comparison.runs.len() - place) as f64 - 0.5;
        let time = run.time();
        let bar = Rectangle::new([(0.0, middle - 0.3), (time, middle + 0.3)], color.mix(0.75).filled());
        chart.draw_series([bar])?;
        let (least, most) =
            run.times.iter().fold((f64::MAX, 0.0), |(least, most), &time| (time.min(least), time.max(most)));
        let most = most.min(largest * 1.3);
        chart.draw_series([PathElement::new([(least, middle), (most, middle)], BLACK.stroke_width(2))])?;
        let style = TEXT.into_font().color(&BLACK);
        let text = match place {
            0 => format!("{}: {time:.2} ms", name(run)),
            _ => format!("{}: {time:.2} ms, {:.1} times that of Fused", name(run), time / fused),
        };
        // Above the bar, left-aligned, so that it fits whatever the length of the bar.
        chart.draw_series([EmptyElement::at((0.0, middle + 0.3)) + Text::new(text, (4, -18), style)])?;
    }
    Ok(())
}
