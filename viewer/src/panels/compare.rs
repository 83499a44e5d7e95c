//! In: two open traces; out: what each part of the model costs in both, what changed the total most, and the fusions
//! that did it.

use super::{hint, number};
use crate::colour;
use crate::model::compare::{Part, compare};
use crate::model::selection::Selection;
use crate::model::units::{NONE, difference, factor, maybe_time, part};
use crate::state::State;
use eframe::egui::{self, Align, Label, Layout, RichText, Sense, Ui};
use egui_extras::{Column, TableBuilder};

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    if state.open.len() < 2 {
        return hint(
            ui,
            "Two traces are compared",
            "Open another: the same model in another mode, on another adapter, or from another day.",
        );
    }
    pickers(ui, state);
    let marks = state.chosen().0;
    let (Some(base), Some(current)) = (state.open.get(state.base), state.open.get(state.current)) else { return };
    let key = (base.revision, current.revision, state.settings.fold);
    let documents = [base.document.clone(), current.document.clone()];
    let fold = state.settings.fold;
    let shown = state.comparison.get(key, || compare(&documents[0], &documents[1], fold));
    ui.add_space(2.0);
    egui::Grid::new("compare_totals").num_columns(5).spacing([18.0, 3.0]).show(ui, |ui| {
        ui.label("");
        for heading in ["first", "second", "change", "speed-up"] {
            total(ui, |ui| drop(ui.weak(heading)));
        }
        ui.end_row();
        for (name, ns) in
            [("GPU, first begin to last end", shown.gpu), ("sum of kernels", shown.total), ("wall", shown.wall)]
        {
            let row = Part { ns, ..Part::default() };
            ui.label(name);
            total(ui, |ui| number(ui, maybe_time(ns[0])));
            total(ui, |ui| number(ui, maybe_time(ns[1])));
            total(ui, |ui| change(ui, &row));
            total(ui, |ui| number(ui, row.speed_up().map_or(NONE.into(), factor)));
            ui.end_row();
        }
    });
    if !shown.same_graph {
        ui.weak("The two were not compiled from the same graph: parts are matched by their names.");
    }
    ui.add_space(4.0);
    let most = shown.parts.iter().filter_map(Part::change).map(f64::abs).fold(0.0, f64::max);
    let mut clicked = None;
    let width = Column::initial(66.0).at_least(56.0).clip(true).resizable(true);
    let narrow = Column::initial(60.0).at_least(48.0).clip(true).resizable(true);
    TableBuilder::new(ui)
        .id_salt("compare")
        .striped(true)
        .sense(Sense::click())
        .cell_layout(Layout::left_to_right(Align::Center))
        .column(Column::initial(172.0).at_least(110.0).clip(true).resizable(true))
        .columns(width, 2)
        .column(Column::initial(88.0).at_least(70.0).clip(true).resizable(true))
        .column(narrow)
        .column(narrow)
        .column(Column::remainder().at_least(120.0).clip(true))
        .header(22.0, |mut header| {
            let left = ["part", "what was fused"];
            for title in ["part", "first", "second", "change", "speed-up", "calls", "what was fused"] {
                header.col(|ui| match left.contains(&title) {
                    true => {
                        ui.strong(title);
                    }
                    false => {
                        ui.with_layout(Layout::right_to_left(Align::Center), |ui| ui.strong(title));
                    }
                });
            }
        })
        .body(|body| {
            body.rows(20.0, shown.parts.len(), |mut line| {
                let row = &shown.parts[line.index()];
                line.set_selected(row.dispatches[1].iter().any(|i| marks.holds(*i)));
                line.col(|ui| {
                    ui.add(Label::new(row.title()).truncate().selectable(false));
                });
                for side in 0..2 {
                    // what one of the two does not have takes no time, not 0 ns
                    let ns = row.ns[side].filter(|_| row.calls[side] > 0);
                    line.col(|ui| number(ui, part(maybe_time(ns), row.divided[side])));
                }
                let divided = row.divided.contains(&true);
                line.col(|ui| bar(ui, row, most));
                line.col(|ui| number(ui, part(row.speed_up().map_or(NONE.into(), factor), divided)));
                line.col(|ui| number(ui, format!("{} → {}", row.calls[0], row.calls[1])));
                line.col(|ui| {
                    let text = row.findings.join("; ");
                    let colour = colour::better(ui.visuals());
                    ui.add(Label::new(RichText::new(&text).color(colour)).truncate().selectable(false))
                        .on_hover_text(text);
                });
                if line.response().clicked() {
                    clicked = Some(row.selection());
                }
            });
        });
    if let Some(selection) = clicked {
        state.selection = selection;
    }
}

/// A cell of the totals, whose numbers end at one line.
fn total(ui: &mut Ui, show: impl FnOnce(&mut Ui)) {
    let size = egui::vec2(76.0, ui.spacing().interact_size.y);
    ui.allocate_ui_with_layout(size, Layout::right_to_left(Align::Center), |ui| {
        ui.set_min_width(size.x);
        show(ui);
    });
}

fn pickers(ui: &mut Ui, state: &mut State) {
    let shown = state.current;
    let captions: Vec<String> = state.open.iter().map(|o| o.document.caption()).collect();
    let width = (ui.available_width() - 230.0).clamp(160.0, 420.0);
    egui::Grid::new("compare_pickers").num_columns(3).spacing([8.0, 4.0]).show(ui, |ui| {
        for (label, at) in [("first", &mut state.base), ("second", &mut state.current)] {
            let name = ui.label(label);
            let caption = captions.get(*at).map_or("", String::as_str);
            let picker = egui::ComboBox::from_id_salt(label).selected_text(caption).width(width).truncate();
            let picker = picker.show_ui(ui, |ui| {
                for (i, caption) in captions.iter().enumerate() {
                    ui.selectable_value(at, i, caption);
                }
            });
            picker.response.labelled_by(name.id);
            if label == "first" {
                ui.checkbox(&mut state.settings.fold, "equal layers as one");
                ui.end_row();
            }
        }
        if ui.button("⇄").on_hover_text("swap").clicked() {
            std::mem::swap(&mut state.base, &mut state.current);
        }
        ui.end_row();
    });
    if state.current != shown {
        // it was of the other trace
        state.selection = Selection::None;
    }
}

fn change(ui: &mut Ui, row: &Part) {
    let (text, colour) = match row.change() {
        None => (NONE.into(), ui.visuals().weak_text_color()),
        Some(0.0) => (difference(0.0), ui.visuals().weak_text_color()),
        Some(ns) if ns < 0.0 => (difference(ns), colour::better(ui.visuals())),
        Some(ns) => (difference(ns), colour::worse(ui.visuals())),
    };
    number(ui, RichText::new(part(text, row.divided.contains(&true))).color(colour));
}

/// A change as a number over a bar, which grows from the right.
fn bar(ui: &mut Ui, row: &Part, most: f64) {
    if let Some(ns) = row.change().filter(|_| most > 0.0) {
        let all = ui.max_rect().shrink2(egui::vec2(0.0, 3.0));
        let width = all.width() * (ns.abs() / most) as f32;
        let rect = egui::Rect::from_min_max(egui::pos2(all.right() - width, all.top()), all.max);
        let colour = if ns < 0.0 { colour::better(ui.visuals()) } else { colour::worse(ui.visuals()) };
        ui.painter().rect_filled(rect, 2.0, colour.gamma_multiply(0.25));
    }
    change(ui, row);
}
