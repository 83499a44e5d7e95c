//! In: a dispatch; out: all its figures in a small table, for hovering and for the status line.

use crate::colour;
use crate::model::document::Document;
use crate::model::units::{NONE, bytes, bytes_rate, flops, flops_rate, maybe_time, part, percent, time};
use eframe::egui::{RichText, Ui};

/// Name, kernel and figures of a dispatch; with a frame, its time there too.
pub fn dispatch(ui: &mut Ui, document: &Document, i: usize, frame: Option<usize>) {
    let Some(d) = document.trace.dispatches.get(i) else { return };
    let kernel = document.trace.kernel_of(d);
    ui.horizontal(|ui| {
        super::swatch(ui, colour::kernel(kernel));
        ui.label(RichText::new(&d.name).strong());
    });
    let stats = document.stats.get(i).copied().flatten();
    let rate = |amount: f64| stats.filter(|s| s.median > 0.0).map(|s| amount / s.median * 1e9);
    let [x, y, z] = d.grid;
    let frame = frame.and_then(|f| document.trace.frames.get(f));
    let divided = document.is_part(i);
    let mut rows: Vec<(&str, String)> = vec![("kernel", kernel.to_owned())];
    if let Some(frame) = frame {
        let taken = |i: usize| frame.times.get(i).copied().flatten().map(|(b, e)| e - b);
        let here = taken(i).map_or("unavailable".into(), |ns| time(ns as f64));
        rows.push(("time", part(here, frame.timed_with(i).is_some())));
        if let Some((first, last)) = frame.timed_with(i) {
            let all: u64 = (first..=last).filter_map(taken).sum();
            rows.push(("", format!("its part of {}, measured for {} dispatches", time(all as f64), last - first + 1)));
        }
    }
    if let Some(s) = stats.filter(|s| s.count > 1) {
        let of = format!(
            "{} of {} runs (least {}, p95 {})",
            part(time(s.median), divided),
            s.count,
            time(s.min as f64),
            time(s.p95 as f64)
        );
        rows.push(("median", of));
    } else if frame.is_none() {
        rows.push(("time", part(maybe_time(stats.map(|s| s.median)), divided)));
    }
    rows.push(("workgroups", format!("{x} × {y} × {z}")));
    rows.push(("work", format!("{}, {}", flops(d.flops), bytes(d.bytes))));
    let (f, b) = (rate(d.flops).map_or(NONE.into(), flops_rate), rate(d.bytes).map_or(NONE.into(), bytes_rate));
    rows.push(("rate", format!("{}, {}", part(f, divided), part(b, divided))));
    if let Some(share) = document.roofline_share(i) {
        rows.push(("of roofline", part(percent(share), divided)));
    }
    figures(ui, &rows);
}

/// Names and values, aligned.
pub fn figures(ui: &mut Ui, rows: &[(&str, String)]) {
    eframe::egui::Grid::new("figures").num_columns(2).spacing([12.0, 2.0]).show(ui, |ui| {
        for (name, value) in rows {
            ui.label(RichText::new(*name).weak());
            ui.label(value);
            ui.end_row();
        }
    });
}
