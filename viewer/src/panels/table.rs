//! In: the rows of the open trace; out: a table that can be ordered, grouped, copied and clicked.

use super::{hint, number, swatch};
use crate::colour;
use crate::model::table::{Column, Group, Row, csv, rows};
use crate::model::units::{NONE, maybe_time, part, percent, rate_in};
use crate::state::{Request, State};
use eframe::egui::{self, Align, Layout, RichText, Sense, Ui};
use egui_extras::{Column as Width, TableBuilder};

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    let Some(open) = state.open.get(state.current) else { return };
    let (document, revision) = (open.document.clone(), open.revision);
    let settings = &mut state.settings.table;
    let mut copy = false;
    let mut save = false;
    ui.horizontal(|ui| {
        ui.label("Group by");
        for (group, title) in
            [(Group::Kernel, "kernel"), (Group::Layer, "layer"), (Group::Part, "part"), (Group::Dispatch, "dispatch")]
        {
            ui.selectable_value(&mut settings.group, group, title);
        }
        ui.separator();
        copy = ui.button("Copy as CSV").clicked();
        save = ui.button("Save as CSV").clicked();
    });
    let key = (revision, settings.clone(), state.filter.clone());
    let filter = &state.filter;
    let shown = state.rows.get(key, || rows(&document, settings.group, filter, settings.order, settings.reversed));
    if copy {
        ui.ctx().copy_text(csv(shown));
    }
    if save {
        let bytes = csv(shown).into_bytes();
        state.requests.push(Request::Save { stem: "kiln-table".into(), extension: "csv", bytes });
    }
    if shown.is_empty() {
        return hint(ui, "Nothing fits the filter", "Esc in the filter's field shows all again.");
    }
    let peaks = document.trace.device.peaks.is_some();
    let mut clicked = None;
    let settings = &mut state.settings.table;
    let selection = &state.selection;
    let width = |width: f32| Width::initial(width).at_least(48.0).resizable(true).clip(true);
    egui::ScrollArea::horizontal().auto_shrink([false, false]).show(ui, |ui| {
        let mut table = TableBuilder::new(ui)
            .id_salt("table")
            .striped(true)
            .sense(Sense::click())
            .cell_layout(Layout::left_to_right(Align::Center))
            .column(Width::remainder().at_least(112.0).clip(true).resizable(true))
            .column(Width::initial(38.0).at_least(36.0).clip(true));
        for column in &Column::ALL[2..] {
            table = table.column(width(column.width()));
        }
        table
            .header(22.0, |mut header| {
                for column in Column::ALL {
                    header.col(|ui| heading(ui, settings, column));
                }
            })
            .body(|body| {
                body.rows(20.0, shown.len(), |mut line| {
                    let row = &shown[line.index()];
                    line.set_selected(selection.is(&row.selection));
                    for column in Column::ALL {
                        line.col(|ui| cell(ui, row, column, peaks));
                    }
                    if line.response().clicked() {
                        clicked = Some(row.selection.clone());
                    }
                });
            });
    });
    if let Some(selection) = clicked {
        state.selection = if state.selection.is(&selection) { Default::default() } else { selection };
    }
}

fn heading(ui: &mut Ui, settings: &mut crate::state::TableSettings, column: Column) {
    let here = settings.order == column;
    let arrow = match (here, settings.reversed != (column == Column::Name)) {
        (false, _) => "",
        (true, false) => " ▼",
        (true, true) => " ▲",
    };
    let text = RichText::new(format!("{}{arrow}", column.title())).strong();
    let layout = match column {
        Column::Name => Layout::left_to_right(Align::Center),
        _ => Layout::right_to_left(Align::Center),
    };
    ui.with_layout(layout, |ui| {
        if ui.add(egui::Label::new(text).sense(Sense::click()).extend().selectable(false)).clicked() {
            settings.reversed = here && !settings.reversed;
            settings.order = column;
        }
    });
}

fn cell(ui: &mut Ui, row: &Row, column: Column, peaks: bool) {
    let over = |rate: Option<f64>, unit: f64| rate.map_or(NONE.into(), |r| rate_in(r, unit));
    match column {
        Column::Name => {
            swatch(ui, colour::kernel(&row.kernel));
            ui.add(egui::Label::new(&row.name).truncate().selectable(false));
        }
        Column::Calls => number(ui, row.calls.to_string()),
        Column::Total => number(ui, part(maybe_time(row.total_ns), row.parts)),
        Column::Mean => number(ui, part(maybe_time(row.mean_ns()), row.parts)),
        Column::P95 => number(ui, part(maybe_time(row.p95_ns), row.divided)),
        Column::Share => bar(ui, row.share, row.parts, ui.visuals().selection.bg_fill.gamma_multiply(0.6)),
        Column::Flops => number(ui, part(over(row.flops_rate(), 1e9), row.parts)),
        Column::Bytes => number(ui, part(over(row.bytes_rate(), 1e9), row.parts)),
        Column::Roofline if peaks => {
            bar(ui, row.roofline(), row.parts, colour::better(ui.visuals()).gamma_multiply(0.4));
        }
        Column::Roofline => {
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| ui.weak(NONE))
                .response
                .on_hover_text("The device's peaks were not measured for this trace.");
        }
    }
}

/// A share as a number over a bar.
fn bar(ui: &mut Ui, share: Option<f64>, parts: bool, fill: egui::Color32) {
    let Some(share) = share else { return number(ui, NONE) };
    let mut rect = ui.max_rect().shrink2(egui::vec2(0.0, 3.0));
    rect.set_width(rect.width() * share.clamp(0.0, 1.0) as f32);
    ui.painter().rect_filled(rect, 2.0, fill);
    number(ui, part(percent(share), parts));
}
