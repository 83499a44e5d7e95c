//! In: the timeline of the open trace; out: lanes of spans with zoom and pan, what is hovered in words, and what was
//! clicked.

use super::{details, text_in};
use crate::colour;
use crate::model::selection::{Marks, Selection};
use crate::model::timeline::{Block, Lane, Span, View, What, marks, visible};
use crate::model::units;
use crate::state::{Open, State};
use eframe::egui::{self, Align2, Color32, FontId, Rect, Sense, Stroke, StrokeKind, Ui, pos2, vec2};
use std::borrow::Cow;

const GUTTER: f32 = 84.0;
const AXIS: f32 = 22.0;
const ROW: f32 = 20.0;
const LANE_GAP: f32 = 10.0;
/// Room for some letters and `…`.
const LABEL: f32 = 30.0;

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    toolbar(ui, state);
    let selection = state.selection.clone();
    let (fitting, chosen) = (state.fitting(), state.chosen().0);
    let filtered = !state.filter.trim().is_empty();
    let Some(open) = state.open.get_mut(state.current) else { return };
    let shown = open.timeline.lanes.iter().filter(|lane| is_shown(lane, open.view));
    let height = AXIS + shown.map(|lane| lane.rows.len().max(1) as f32 * ROW + LANE_GAP).sum::<f32>();
    let mut clicked = None;
    let source = egui::scroll_area::ScrollSource::SCROLL_BAR;
    egui::ScrollArea::vertical().scroll_source(source).auto_shrink([false, false]).show(ui, |ui| {
        let size = vec2(ui.available_width(), height.max(ui.available_height()));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let area = Rect::from_min_max(pos2(rect.left() + GUTTER, rect.top()), rect.max);
        let pointer = response.hover_pos().filter(|p| area.contains(*p));
        navigate(ui, &response, open, area, pointer);
        let painter =
            Painter { ui, open, layer: selection.layer(), chosen: &chosen, fitting: &fitting, filtered, area };
        let seen = ui.clip_rect().y_range();
        painter.axis();
        let mut y = rect.top() + AXIS;
        let mut hovered = None;
        for lane in open.timeline.lanes.iter().filter(|lane| is_shown(lane, open.view)) {
            let title = pos2(rect.left() + 4.0, y + ROW / 2.0);
            let colour = ui.visuals().text_color();
            ui.painter().text(title, Align2::LEFT_CENTER, &lane.title, FontId::proportional(12.0), colour);
            if lane.rows.is_empty() {
                let text = if open.document.trace.device.timestamps {
                    "no times: nothing was measured"
                } else {
                    "unavailable: this adapter gives no timestamps"
                };
                let at = pos2(area.left() + 6.0, y + ROW / 2.0);
                let weak = ui.visuals().weak_text_color();
                ui.painter().text(at, Align2::LEFT_CENTER, text, FontId::proportional(12.0), weak);
            }
            for (r, row) in lane.rows.iter().enumerate() {
                let place = Rect::from_min_size(pos2(area.left(), y), vec2(area.width(), ROW - 1.0));
                if seen.intersects(place.y_range())
                    && let Some(block) = painter.row(lane, r, row, place, pointer)
                {
                    hovered = Some((row[block.first], block.count));
                }
                y += ROW;
            }
            if lane.rows.is_empty() {
                y += ROW;
            }
            y += LANE_GAP;
            let line = Stroke::new(1.0, ui.visuals().widgets.noninteractive.bg_stroke.color);
            ui.painter().hline(rect.x_range(), y - LANE_GAP / 2.0, line);
        }
        if let Some(p) = pointer {
            let line = Stroke::new(1.0, ui.visuals().weak_text_color().gamma_multiply(0.5));
            ui.painter().vline(p.x, rect.y_range(), line);
        }
        if response.double_clicked()
            && let Some((span, _)) = hovered
        {
            open.view = View { begin: span.begin as f64, end: (span.end.max(span.begin + 1)) as f64 }.widened(0.1);
        } else if response.clicked() {
            clicked = Some(hovered.map_or(Selection::None, |(span, _)| select(open, span)));
        }
        if let Some((span, count)) = hovered {
            response.on_hover_ui_at_pointer(|ui| tooltip(ui, open, span, count));
        }
    });
    if let Some(selection) = clicked {
        state.selection = selection;
    }
}

fn toolbar(ui: &mut Ui, state: &mut State) {
    let Some(open) = state.open.get_mut(state.current) else { return };
    ui.horizontal(|ui| {
        let frames = open.timeline.frames.len();
        if ui.button("All").on_hover_text("everything, the compilation too (0)").clicked() {
            open.view = open.timeline.all();
        }
        ui.add_enabled_ui(frames > 0, |ui| {
            if ui.button("◀").on_hover_text("the frame before ([)").clicked() {
                go_to(open, open.frame.saturating_sub(1));
            }
            let label = if frames == 0 { "no frame".into() } else { format!("Frame {} of {frames}", open.frame + 1) };
            if ui.button(label).on_hover_text("show this frame (F)").clicked() {
                go_to(open, open.frame);
            }
            if ui.button("▶").on_hover_text("the frame after (])").clicked() {
                go_to(open, open.frame + 1);
            }
        });
        let document = &open.document;
        let (Some(frame), Some(times)) = (document.trace.frames.get(open.frame), document.frames.get(open.frame))
        else {
            return;
        };
        ui.separator();
        let figure = |ns: Option<u64>| units::maybe_time(ns.map(|ns| ns as f64));
        ui.label(format!(
            "GPU {}   kernels {}   gaps {}   encode {}   wall {}",
            figure(times.gpu),
            figure(times.busy),
            figure(times.gaps),
            units::time(frame.encode_ns as f64),
            units::time(frame.wall_ns as f64)
        ));
        let together: usize = frame.shared.iter().map(|(first, last)| last - first + 1).sum();
        if together > 0 {
            ui.weak(format!("{together} of {} timed in groups", frame.times.len())).on_hover_text(
                "To keep measuring cheap, short dispatches were timed together. What is underlined, and each figure with \
                 a ~, is a part of such a time, in the ratio of what each took by itself before.",
            );
        }
        if frame.profiling_split_passes {
            ui.weak("measured in a pass each").on_hover_text(
                "This adapter writes timestamps around passes only: measuring gave each dispatch a pass of its own, \
                 which it has not otherwise.",
            );
        }
    });
    ui.add_space(2.0);
}

/// Threads that compile kernels are shown while they do; the caller's and the device's lanes always.
fn is_shown(lane: &Lane, view: View) -> bool {
    lane.always || lane.rows.iter().any(|row| !visible(row, view, 1.0).is_empty())
}

fn go_to(open: &mut Open, frame: usize) {
    open.frame = frame.min(open.timeline.frames.len().saturating_sub(1));
    open.view = open.timeline.frame(open.frame);
}

/// Wheel zooms around the pointer, dragging and the sideways wheel pan; W, S, A, D as in Perfetto.
fn navigate(ui: &Ui, response: &egui::Response, open: &mut Open, area: Rect, pointer: Option<egui::Pos2>) {
    let width = area.width();
    if response.dragged() {
        open.view = open.view.moved(-response.drag_delta().x, width);
    }
    if let Some(p) = pointer {
        let (scroll, zoom) = ui.input(|i| (i.smooth_scroll_delta(), i.zoom_delta()));
        if scroll.x != 0.0 {
            open.view = open.view.moved(-scroll.x, width);
        }
        let factor = f64::from(zoom) * f64::from(scroll.y / 200.0).exp();
        if factor != 1.0 {
            open.view = open.view.zoomed(factor, p.x - area.left(), width);
        }
    }
    if ui.memory(|m| m.focused().is_some()) {
        return;
    }
    let x = pointer.map_or(width / 2.0, |p| p.x - area.left());
    let (dt, down) = ui.input(|i| {
        let keys = [egui::Key::W, egui::Key::S, egui::Key::A, egui::Key::D];
        (i.stable_dt.min(0.1), keys.map(|k| i.key_down(k) && i.modifiers.is_none()))
    });
    let zoom = f64::from(dt * 3.0).exp();
    match down {
        [true, ..] => open.view = open.view.zoomed(zoom, x, width),
        [_, true, ..] => open.view = open.view.zoomed(1.0 / zoom, x, width),
        [_, _, true, _] => open.view = open.view.moved(-dt * width, width),
        [_, _, _, true] => open.view = open.view.moved(dt * width, width),
        _ => {}
    }
    if down.contains(&true) {
        ui.ctx().request_repaint();
    }
    let pressed = |key| ui.input(|i| i.key_pressed(key) && i.modifiers.is_none());
    if pressed(egui::Key::F) {
        go_to(open, open.frame);
    }
    if pressed(egui::Key::Num0) {
        open.view = open.timeline.all();
    }
    if pressed(egui::Key::OpenBracket) {
        go_to(open, open.frame.saturating_sub(1));
    }
    if pressed(egui::Key::CloseBracket) {
        go_to(open, open.frame + 1);
    }
}

struct Painter<'a> {
    ui: &'a Ui,
    open: &'a Open,
    /// The layer that is selected as a whole.
    layer: Option<&'a str>,
    chosen: &'a Marks,
    fitting: &'a Marks,
    filtered: bool,
    area: Rect,
}

impl Painter<'_> {
    fn axis(&self) {
        let (ui, view, width) = (self.ui, self.open.view, self.area.width());
        // times count from the frame that is looked at
        let zero = self.open.timeline.frames.get(self.open.frame).map_or(0.0, |f| f.0 as f64);
        let (_, times) = marks(View { begin: view.begin - zero, end: view.end - zero }, width, 90.0);
        let weak = ui.visuals().weak_text_color();
        let grid = Stroke::new(1.0, ui.visuals().widgets.noninteractive.bg_stroke.color.gamma_multiply(0.6));
        for relative in times {
            let x = self.area.left() + view.x(relative + zero, width);
            ui.painter().vline(x, self.area.y_range(), grid);
            let text = if relative < 0.0 { format!("−{}", units::time(-relative)) } else { units::time(relative) };
            if x + 4.0 + text.len() as f32 * 6.0 < self.area.right() {
                let at = pos2(x + 4.0, self.area.top() + AXIS / 2.0);
                ui.painter().text(at, Align2::LEFT_CENTER, text, FontId::proportional(11.0), weak);
            }
        }
    }

    /// Draws a row and returns the block under the pointer.
    fn row(&self, lane: &Lane, r: usize, row: &[Span], place: Rect, pointer: Option<egui::Pos2>) -> Option<Block> {
        let (ui, view, width) = (self.ui, self.open.view, place.width());
        if lane.dispatch_row == Some(r) {
            self.gaps(lane, place);
        }
        let mut hovered = None;
        for block in visible(row, view, width) {
            let left = (place.left() + block.left).max(place.left());
            let right = (place.left() + block.right).min(place.right());
            // a hair's breadth between neighbours
            let inset = if right - left > 3.0 { 0.5 } else { 0.0 };
            let rect = Rect::from_min_max(pos2(left + inset, place.top()), pos2(right - inset, place.bottom()));
            let span = row[block.first];
            let last = row[block.first + block.count - 1];
            let (fill, bright) = self.look(span, last, r);
            let fill = if bright { fill } else { fill.gamma_multiply(0.25) };
            // corners of slivers cost more than they show
            ui.painter().rect_filled(rect, if rect.width() > 4.0 { 2.0 } else { 0.0 }, fill);
            if block.count == 1 && rect.width() >= LABEL {
                let colour = if bright { colour::text_on(fill) } else { ui.visuals().weak_text_color() };
                text_in(ui, rect, &self.label(span), colour, 11.5);
            }
            if block.count == 1
                && let What::Dispatch(f, i) = span.what
                && self.open.document.trace.frames[f as usize].timed_with(i as usize).is_some()
            {
                // its edges are no stamps
                let line = Stroke::new(2.0, colour::selected(ui.visuals()).gamma_multiply(0.7));
                ui.painter().hline(left..=right, place.bottom() - 1.0, line);
            }
            if self.is_selected(span, last) {
                let stroke = Stroke::new(2.0, colour::selected(ui.visuals()));
                ui.painter().rect_stroke(rect, 2.0, stroke, StrokeKind::Inside);
            }
            if pointer.is_some_and(|p| rect.expand2(vec2(1.0, 0.0)).contains(p)) {
                hovered = Some(block);
            }
        }
        hovered
    }

    /// Under the dispatches of each frame, so that uncovered time shows.
    fn gaps(&self, lane: &Lane, place: Rect) {
        let Some(frames) = lane.rows.first() else { return };
        for block in visible(frames, self.open.view, place.width()) {
            let left = (place.left() + block.left).max(place.left());
            let right = (place.left() + block.right).min(place.right());
            let rect = Rect::from_min_max(pos2(left, place.top()), pos2(right, place.bottom()));
            self.ui.painter().rect_filled(rect, 0.0, colour::gap(self.ui.visuals()));
        }
    }

    /// Colour of the first of some spans, and whether any fits the filter.
    fn look(&self, span: Span, last: Span, row: usize) -> (Color32, bool) {
        let (trace, visuals) = (&self.open.document.trace, self.ui.visuals());
        match span.what {
            What::Dispatch(_, i) => {
                let kernel = trace.kernel_of(&trace.dispatches[i as usize]);
                (colour::kernel(kernel), among(self.fitting, span, last))
            }
            What::Layer(..) => (colour::layer(visuals, row), !self.filtered),
            What::Frame(_) | What::Compile => (colour::layer(visuals, 0), !self.filtered),
            What::Stage(_) | What::Host(..) => (colour::host(visuals), !self.filtered),
        }
    }

    fn label(&self, span: Span) -> Cow<'_, str> {
        let trace = &self.open.document.trace;
        match span.what {
            What::Dispatch(_, i) => units::short(&trace.dispatches[i as usize].name).into(),
            What::Layer(_, l) => units::short(&self.open.timeline.layers[l as usize]).into(),
            What::Frame(f) => format!("frame {}", f + 1).into(),
            What::Compile => "compile".into(),
            What::Stage(i) => trace.compile[i as usize].name.as_str().into(),
            What::Host(f, i) => trace.frames[f as usize].host[i as usize].name.as_str().into(),
        }
    }

    /// Whether any of some spans is selected; of layers the first tells.
    fn is_selected(&self, first: Span, last: Span) -> bool {
        match first.what {
            What::Dispatch(..) => among(self.chosen, first, last),
            What::Layer(_, l) => self.layer == Some(self.open.timeline.layers[l as usize].as_str()),
            _ => false,
        }
    }
}

/// Whether one of the dispatches from a span to another of its row is marked.
fn among(marks: &Marks, first: Span, last: Span) -> bool {
    match (first.what, last.what) {
        (What::Dispatch(f, a), What::Dispatch(g, b)) if f == g => marks.any(a.min(b) as usize, a.max(b) as usize),
        // the end of one frame, the begin of another, and all of those between
        (What::Dispatch(f, a), What::Dispatch(g, b)) => {
            marks.any(a as usize, usize::MAX)
                || marks.any(0, b as usize)
                || (f.abs_diff(g) > 1 && marks.any(0, usize::MAX))
        }
        _ => false,
    }
}

fn select(open: &Open, span: Span) -> Selection {
    match span.what {
        What::Dispatch(_, i) => Selection::Dispatch(i as usize),
        What::Layer(_, l) => Selection::Layer(open.timeline.layers[l as usize].clone()),
        _ => Selection::None,
    }
}

fn tooltip(ui: &mut Ui, open: &Open, span: Span, count: usize) {
    let length = units::time((span.end - span.begin) as f64);
    if count > 1 {
        ui.strong(format!("{count} spans"));
        ui.weak("zoom in to tell them apart");
        return;
    }
    let (trace, document) = (&open.document.trace, &open.document);
    match span.what {
        What::Dispatch(f, i) => details::dispatch(ui, document, i as usize, Some(f as usize)),
        What::Layer(_, l) => {
            ui.strong(&open.timeline.layers[l as usize]);
            ui.label(units::part(length, open.timeline.divided[l as usize]));
        }
        What::Frame(f) => {
            let (frame, times) = (&trace.frames[f as usize], &document.frames[f as usize]);
            ui.strong(format!("frame {}", f + 1));
            let time = |ns: Option<u64>| units::maybe_time(ns.map(|ns| ns as f64));
            details::figures(
                ui,
                &[
                    ("GPU", time(times.gpu)),
                    ("kernels", time(times.busy)),
                    ("gaps", time(times.gaps)),
                    ("encode", time(Some(frame.encode_ns))),
                    ("wall", time(Some(frame.wall_ns))),
                    ("submits", frame.submits.to_string()),
                    ("passes", frame.passes.to_string()),
                ],
            );
        }
        What::Compile => {
            ui.strong("compile");
            ui.label(length);
        }
        What::Stage(i) => {
            ui.strong(&trace.compile[i as usize].name);
            ui.label(length);
        }
        What::Host(f, i) => {
            ui.strong(&trace.frames[f as usize].host[i as usize].name);
            ui.label(length);
        }
    }
}
