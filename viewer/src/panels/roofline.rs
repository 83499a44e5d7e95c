//! In: points of the open trace; out: a roofline plot, both axes logarithmic, whose points can be hovered and clicked.

use super::{details, hint, swatch};
use crate::colour;
use crate::model::roofline::{Point, Roofline, radius, ridge, roof, roofline};
use crate::model::selection::Selection;
use crate::model::units::{bytes_rate, count, flops_rate, part, percent, time};
use crate::state::State;
use eframe::egui::{self, Align2, RichText, Ui};
use egui_plot::{GridInput, GridMark, Line, LineStyle, Plot, PlotPoint, PlotPoints, Points, Text};
use kiln::trace::Peaks;

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    let Some(open) = state.open.get(state.current) else { return };
    let (document, revision) = (open.document.clone(), open.revision);
    let filter = state.filter.clone();
    let marks = state.chosen().0;
    let shown = state.roofline.get((revision, filter.clone()), || roofline(&document, &filter));
    if shown.points.is_empty() {
        let why = if document.total_ns.is_none() {
            "This trace has no times: its adapter gives no timestamps."
        } else {
            "No dispatch with FLOPs fits the filter."
        };
        return hint(ui, "Nothing to show", why);
    }
    let peaks = document.trace.device.peaks;
    legend(ui, shown, peaks);
    let log = |v: f64| v.max(1e-12).log10();
    let dark = ui.visuals().dark_mode;
    let (strong, weak) = (ui.visuals().strong_text_color(), ui.visuals().weak_text_color());
    let chosen = |p: &Point| p.dispatches.iter().any(|i| marks.holds(*i));
    let none = state.selection == Selection::None;

    let bounds = bounds(&shown.points, peaks);
    let response = Plot::new("roofline")
        .x_axis_label("FLOP / byte")
        .y_axis_label("FLOP / s")
        .x_grid_spacer(decades)
        .y_grid_spacer(decades)
        .x_axis_formatter(|mark, _| power(mark.value, ""))
        .y_axis_formatter(|mark, _| round_rate(mark.value))
        .y_axis_min_width(48.0)
        .default_x_bounds(bounds[0], bounds[1])
        .default_y_bounds(bounds[2], bounds[3])
        .grid_color(weak.gamma_multiply(0.6))
        .allow_boxed_zoom(false)
        .show_crosshair(false)
        .show_x(false)
        .show_y(false)
        .label_formatter(|_| None)
        .show(ui, |plot| {
            if let Some(peaks) = peaks {
                let bend = log(ridge(peaks));
                let (low, high) = (bounds[0] - 4.0, bounds[1] + 4.0);
                let left = log(peaks.bytes) + low;
                let line = vec![[low, left], [bend, log(peaks.flops)], [high, log(peaks.flops)]];
                plot.line(Line::new("roof", line).color(strong).width(1.5).allow_hover(false));
                let ridge_line = vec![[bend, bounds[2] - 4.0], [bend, log(peaks.flops)]];
                let dashed = LineStyle::dashed_loose();
                plot.line(Line::new("ridge", ridge_line).color(weak).width(1.0).style(dashed).allow_hover(false));
                let text = format!("{} measured", flops_rate(peaks.flops));
                let at = PlotPoint::new(bounds[1] - 0.04, log(peaks.flops) + 0.03);
                plot.text(label("peak", at, text, strong).anchor(Align2::RIGHT_BOTTOM));
                // left of a point well up on the slope, so that the text does not cross it
                let x = bend - (bend - bounds[0].max(bounds[2] - log(peaks.bytes))) * 0.3;
                let at = PlotPoint::new(x - 0.05, log(peaks.bytes) + x + 0.02);
                plot.text(
                    label("bandwidth", at, format!("{} measured", bytes_rate(peaks.bytes)), strong)
                        .anchor(Align2::RIGHT_BOTTOM),
                );
            }
            for (i, p) in shown.points.iter().enumerate() {
                let base = colour::kernel(&p.kernel);
                let alpha = if none || chosen(p) { 0.85 } else { 0.2 };
                let at = [log(p.intensity), log(p.rate)];
                let name = format!("point {i}");
                if !none && chosen(p) {
                    let ring = Points::new(format!("ring {i}"), vec![at]).radius(radius(p.share) + 2.5);
                    plot.points(
                        ring.color(if dark { egui::Color32::WHITE } else { egui::Color32::BLACK }).allow_hover(false),
                    );
                }
                let points = Points::new(name, PlotPoints::from(vec![at])).radius(radius(p.share));
                // a ring where the time is a part of what several took together
                plot.points(points.color(base.gamma_multiply(alpha)).filled(!p.parts).allow_hover(false));
            }
            plot.response().hover_pos().map(|pointer| {
                let distance = |p: &Point| {
                    plot.screen_from_plot(PlotPoint::new(log(p.intensity), log(p.rate))).distance(pointer)
                        - radius(p.share)
                };
                // the smallest under the pointer lies on top
                shown.points.iter().rposition(|p| distance(p) <= 1.0)
            })
        });
    let hovered = response.inner.flatten().and_then(|i| shown.points.get(i)).cloned();
    let clicked = response.response.clicked();
    if let Some(p) = &hovered {
        response.response.on_hover_ui_at_pointer(|ui| {
            details::dispatch(ui, &document, p.dispatches[0], None);
            let more = p.dispatches.len() - 1;
            if more > 0 {
                ui.weak(format!("and {more} more of the same cost, {} together", part(time(p.total_ns), p.parts)));
            }
        });
    }
    if clicked {
        state.selection = hovered.map_or(Selection::None, |p| p.selection());
    }
}

fn label(name: &str, at: PlotPoint, text: String, colour: egui::Color32) -> Text {
    Text::new(name, at, RichText::new(text).size(11.5)).color(colour).allow_hover(false)
}

/// Left, right, bottom and top, powers of ten, with all points and the roof above them in it.
fn bounds(points: &[Point], peaks: Option<Peaks>) -> [f64; 4] {
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let x = || points.iter().map(|p| p.intensity.log10()).chain(peaks.map(|p| ridge(p).log10()));
    let roofs = || points.iter().filter_map(|p| peaks.map(|peaks| roof(peaks, p.intensity).log10()));
    let y = || points.iter().map(|p| p.rate.log10()).chain(roofs()).chain(peaks.map(|p| p.flops.log10()));
    [least(&mut x()) - 0.5, most(&mut x()) + 0.5, least(&mut y()) - 0.5, most(&mut y()) + 0.4]
}

/// A line at each power of ten, thin ones at two and five.
fn decades(input: GridInput) -> Vec<GridMark> {
    let (low, high) = (input.bounds.0.floor() as i64, input.bounds.1.ceil() as i64);
    if high - low > 60 {
        return Vec::new();
    }
    let mark = |value: f64, step_size: f64| GridMark { value, step_size };
    (low..=high)
        .flat_map(|n| [mark(n as f64, 1.0), mark(n as f64 + 2f64.log10(), 0.15), mark(n as f64 + 5f64.log10(), 0.15)])
        .filter(|m| (input.bounds.0..=input.bounds.1).contains(&m.value))
        .collect()
}

/// `200 G` at a mark of 1, 2 or 5 times a power of ten.
fn round_rate(mark: f64) -> String {
    let rate = flops_rate(10f64.powf(mark)).replace("FLOP/s", "");
    let (number, unit) = rate.trim().split_once(' ').unwrap_or((rate.trim(), ""));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// Only powers of ten are named.
fn power(value: f64, unit: &str) -> String {
    if (value - value.round()).abs() > 1e-6 {
        return String::new();
    }
    let number = 10f64.powf(value);
    if number >= 1.0 { format!("{number:.0}{unit}") } else { format!("{number}{unit}") }
}

fn legend(ui: &mut Ui, shown: &Roofline, peaks: Option<Peaks>) {
    let (without, ns, parts) = shown.without;
    ui.horizontal_wrapped(|ui| {
        for (kernel, share, parts) in &shown.kernels {
            swatch(ui, colour::kernel(kernel));
            ui.label(format!("{kernel} {}", part(percent(*share), *parts)));
            ui.add_space(6.0);
        }
        if without > 0 {
            let dispatches = count(without, "dispatch", "dispatches");
            ui.weak(format!("not shown: {dispatches} without FLOPs, {}", part(time(ns), parts)));
        }
        if shown.more > 0 {
            ui.weak(format!("not shown: {} that take less time", count(shown.more, "point", "points")));
        }
        if shown.points.iter().any(|p| p.parts) {
            ui.weak("rings: parts of times that several dispatches share");
        }
        if peaks.is_none() {
            ui.weak("The device's peaks were not measured: there is no roof.");
        }
    });
}
