//! In: [`State`]; out: what each panel draws of it and what was clicked. What is drawn where is decided in `model`;
//! panels only paint it.

mod compare;
mod details;
mod graph;
mod memory;
mod roofline;
mod table;
mod timeline;

use crate::state::{Request, State};
use eframe::egui::{self, Align, Layout, RichText, Ui};

/// The panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Panel {
    /// Spans over time.
    Timeline,
    /// Figures by kernel, layer or dispatch.
    Table,
    /// Kernels under the hardware's limits.
    Roofline,
    /// Slots over dispatches.
    Memory,
    /// The graph before and after, and kernels' sources.
    Graph,
    /// Two traces.
    Compare,
    /// A model that runs now.
    Live,
}

impl Panel {
    /// All of them.
    pub const ALL: [Panel; 7] =
        [Panel::Timeline, Panel::Table, Panel::Roofline, Panel::Memory, Panel::Graph, Panel::Compare, Panel::Live];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Panel::Timeline => "Timeline",
            Panel::Table => "Table",
            Panel::Roofline => "Roofline",
            Panel::Memory => "Memory",
            Panel::Graph => "Graph",
            Panel::Compare => "Compare",
            Panel::Live => "Live",
        }
    }

    /// Draws it.
    pub fn show(self, ui: &mut Ui, state: &mut State) {
        let needs_trace = !matches!(self, Panel::Live);
        if needs_trace && state.open.is_empty() {
            return empty_window(ui, state);
        }
        match self {
            Panel::Timeline => timeline::show(ui, state),
            Panel::Table => table::show(ui, state),
            Panel::Roofline => roofline::show(ui, state),
            Panel::Memory => memory::show(ui, state),
            Panel::Graph => graph::show(ui, state),
            Panel::Compare => compare::show(ui, state),
            Panel::Live => crate::live::panel::show(ui, state),
        }
    }
}

/// A text in the middle of what is left of a panel.
pub(crate) fn hint(ui: &mut Ui, title: &str, what: &str) {
    ui.with_layout(Layout::top_down(Align::Center), |ui| {
        ui.add_space((ui.available_height() * 0.35).clamp(8.0, 200.0));
        ui.label(RichText::new(title).size(16.0).strong());
        ui.add_space(4.0);
        ui.label(RichText::new(what).weak());
    });
}

/// What every panel says while there is no trace.
fn empty_window(ui: &mut Ui, state: &mut State) {
    ui.with_layout(Layout::top_down(Align::Center), |ui| {
        ui.add_space((ui.available_height() * 0.3).clamp(8.0, 160.0));
        ui.label(RichText::new("No trace is open").size(16.0).strong());
        ui.add_space(4.0);
        ui.label(RichText::new("Drop a file here, run a model in the panel Live, or record a trace with").weak());
        ui.label(RichText::new("cargo run --release --example gptlite -- --trace t.json").monospace());
        ui.add_space(6.0);
        if ui.button("Show an example").clicked() {
            state.requests.push(Request::Example);
        }
    });
}

/// A number at the right of its cell.
pub(crate) fn number(ui: &mut Ui, text: impl Into<RichText>) {
    ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
        ui.add(egui::Label::new(text.into().monospace()).extend());
    });
}

/// A square of a kernel's colour.
pub(crate) fn swatch(ui: &mut Ui, colour: egui::Color32) {
    let (rect, _) = ui.allocate_exact_size(egui::vec2(10.0, 10.0), egui::Sense::hover());
    ui.painter().rect_filled(rect, 2.0, colour);
}

/// A text in a rectangle, cut with `…` where it is too long. Returns whether there was room for any of it.
pub(crate) fn text_in(ui: &Ui, rect: egui::Rect, text: &str, colour: egui::Color32, size: f32) -> bool {
    // room for some letters and `…`
    const LEAST: f32 = 30.0;
    if rect.width() < LEAST {
        return false;
    }
    let font = egui::FontId::proportional(size);
    let mut job = egui::text::LayoutJob::simple_singleline(text.to_owned(), font, colour);
    job.wrap = egui::text::TextWrapping::truncate_at_width(rect.width() - 6.0);
    let galley = ui.painter().layout_job(job);
    let at = egui::pos2(rect.left() + 3.0, rect.center().y - galley.size().y / 2.0);
    ui.painter().with_clip_rect(rect.intersect(ui.clip_rect())).galley(at, galley, colour);
    true
}
