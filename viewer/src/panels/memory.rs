//! In: the memory plan of the open trace; out: live bytes and slots over dispatches, who lives where, and what was
//! clicked.

use super::{details, hint, text_in};
use crate::colour;
use crate::model::memory::{Layout, layout, tenant_at};
use crate::model::selection::Selection;
use crate::model::units::{bytes, count, short};
use crate::state::State;
use eframe::egui::{Align2, FontId, Rect, RichText, Sense, Stroke, StrokeKind, Ui, pos2, vec2};
use kiln::trace::Trace;

const GUTTER: f32 = 84.0;

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    let marks = state.chosen().0;
    let Some(open) = state.open.get(state.current) else { return };
    let document = open.document.clone();
    let trace = &document.trace;
    let plan = state.memory.get(open.revision, || layout(trace, 0.12));
    summary(ui, trace, plan);
    if plan.tenants.is_empty() || trace.dispatches.is_empty() {
        return hint(ui, "No temporaries", "Nothing is made and used within a run of this program.");
    }
    let size = ui.available_size();
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    let chart_height = (rect.height() * 0.28).clamp(48.0, 140.0);
    let area = Rect::from_min_max(
        pos2(rect.left() + GUTTER, rect.top() + 14.0),
        pos2(rect.right() - 4.0, rect.bottom() - 20.0),
    );
    let chart = Rect::from_min_max(area.min, pos2(area.right(), area.top() + chart_height));
    let slots = Rect::from_min_max(pos2(area.left(), chart.bottom() + 12.0), area.max);
    let steps = trace.dispatches.len() as f32;
    let x = |dispatch: usize| area.left() + area.width() * dispatch as f32 / steps;
    live_chart(ui, plan, chart, &x);
    slot_names(ui, trace, plan, slots, rect.left());

    let pointer = response.hover_pos().filter(|p| area.contains(*p));
    let dispatch =
        pointer.map(|p| (((p.x - area.left()) / area.width() * steps) as usize).min(trace.dispatches.len() - 1));
    let hovered = pointer
        .zip(dispatch)
        .filter(|(p, _)| slots.contains(*p))
        .and_then(|(p, at)| tenant_at(plan, at, (p.y - slots.top()) / slots.height()));
    // the dispatch that makes a tensor
    let maker = |first: usize| first.min(trace.dispatches.len() - 1);
    // how far each slot is drawn: what ends within a pixel of it adds nothing
    let mut drawn = vec![f32::NEG_INFINITY; plan.places.len()];
    for tenant in &plan.tenants {
        let (top, bottom) = plan.places[tenant.slot];
        let (by, end) = (maker(tenant.first), x(tenant.end));
        let chosen = marks.holds(by);
        if end < drawn[tenant.slot] + 1.0 && !chosen && hovered != Some(*tenant) {
            continue;
        }
        drawn[tenant.slot] = end;
        let place = Rect::from_min_max(
            pos2(x(tenant.first), slots.top() + slots.height() * top),
            pos2(x(tenant.end).max(x(tenant.first) + 1.0), slots.top() + slots.height() * bottom),
        )
        .shrink(if x(1) - x(0) > 4.0 { 1.0 } else { 0.0 });
        let fill = colour::kernel(trace.kernel_of(&trace.dispatches[by]));
        let fill = if state.selection == Selection::None || chosen { fill } else { fill.gamma_multiply(0.35) };
        ui.painter().rect_filled(place, 2.0, fill);
        let tensor = &trace.memory.tensors[tenant.tensor];
        if place.width() >= 44.0 {
            text_in(ui, place, short(&tensor.name), colour::text_on(fill), 11.0);
        }
        if chosen || hovered == Some(*tenant) {
            let stroke = Stroke::new(1.5, colour::selected(ui.visuals()));
            ui.painter().rect_stroke(place, 2.0, stroke, StrokeKind::Inside);
        }
    }
    let axis = pos2(area.left(), area.bottom() + 4.0);
    let weak = ui.visuals().weak_text_color();
    let font = FontId::proportional(11.0);
    ui.painter().text(axis, Align2::LEFT_TOP, "first dispatch", font.clone(), weak);
    let last = format!("dispatch {}", trace.dispatches.len());
    ui.painter().text(pos2(area.right(), axis.y), Align2::RIGHT_TOP, last, font, weak);
    if let (Some(p), Some(at)) = (pointer, dispatch) {
        ui.painter().vline(p.x, rect.y_range(), Stroke::new(1.0, weak.gamma_multiply(0.5)));
        if response.clicked() {
            state.selection = Selection::Dispatch(hovered.map_or(at, |t| maker(t.first)));
        }
        response.on_hover_ui_at_pointer(|ui| match hovered {
            Some(tenant) => {
                let tensor = &trace.memory.tensors[tenant.tensor];
                ui.strong(&tensor.name);
                let name = |i: usize| trace.dispatches.get(i).map_or("the end of the run", |d| d.name.as_str());
                let (first, last) = (tenant.first, tensor.alive.map_or(tenant.end, |a| a.1));
                details::figures(
                    ui,
                    &[
                        ("size", bytes(tensor.bytes as f64)),
                        ("slot", format!("{} of {}", tenant.slot, bytes(trace.memory.slots[tenant.slot] as f64))),
                        ("from", name(first).to_owned()),
                        ("until", name(last).to_owned()),
                    ],
                );
            }
            None => {
                ui.strong(&trace.dispatches[at].name);
                ui.label(format!("{} live", bytes(plan.live[at] as f64)));
            }
        });
    }
}

fn summary(ui: &mut Ui, trace: &Trace, plan: &Layout) {
    let memory = &trace.memory;
    let total = memory.total() as f64;
    ui.horizontal_wrapped(|ui| {
        ui.label(RichText::new(format!("{} planned", bytes(total))).strong());
        let slots = count(memory.slots.len(), "slot", "slots");
        let [weights, states, inputs] = plan.resident;
        let parts = [("weights", weights), ("states", states), ("inputs", inputs), (&slots, plan.slots)];
        let parts = parts.iter().filter(|(_, b)| *b > 0).map(|(name, b)| format!("{name} {}", bytes(*b as f64)));
        ui.label(format!("= {}", parts.collect::<Vec<_>>().join(" + ")));
        if memory.naive > 0 {
            let saved = 1.0 - total / memory.naive as f64;
            ui.weak(format!("each tensor on its own {} (−{:.0} %)", bytes(memory.naive as f64), saved * 100.0));
        }
    });
}

fn live_chart(ui: &Ui, plan: &Layout, chart: Rect, x: &dyn Fn(usize) -> f32) {
    let most = plan.live.iter().copied().max().unwrap_or(0).max(1) as f32;
    let y = |live: u64| chart.bottom() - chart.height() * live as f32 / most;
    let fill = ui.visuals().selection.bg_fill.gamma_multiply(0.45);
    // at most one bar a pixel
    let stride = plan.live.len().div_ceil(chart.width().max(1.0) as usize).max(1);
    for (i, lives) in plan.live.chunks(stride).enumerate() {
        let live = lives.iter().copied().max().unwrap_or(0);
        let (left, right) = (x(i * stride), x((i * stride + lives.len()).min(plan.live.len())));
        ui.painter().rect_filled(Rect::from_min_max(pos2(left, y(live)), pos2(right, chart.bottom())), 0.0, fill);
    }
    let (weak, strong) = (ui.visuals().weak_text_color(), ui.visuals().strong_text_color());
    ui.painter().hline(chart.x_range(), chart.bottom(), Stroke::new(1.0, weak.gamma_multiply(0.6)));
    let font = FontId::proportional(11.0);
    let left = chart.left() - 6.0;
    ui.painter().text(pos2(left, chart.top()), Align2::RIGHT_CENTER, bytes(f64::from(most)), font.clone(), weak);
    ui.painter().text(pos2(left, chart.bottom()), Align2::RIGHT_CENTER, "live", font.clone(), weak);
    if let Some(peak) = plan.peak {
        let at = pos2((x(peak) + x(peak + 1)) / 2.0, chart.top());
        ui.painter().vline(at.x, chart.y_range(), Stroke::new(1.5, strong));
        let anchor = if at.x > chart.center().x { Align2::RIGHT_BOTTOM } else { Align2::LEFT_BOTTOM };
        let text = format!("peak {}", bytes(plan.live[peak] as f64));
        ui.painter().text(at + vec2(0.0, -1.0), anchor, text, font, strong);
    }
}

fn slot_names(ui: &Ui, trace: &Trace, plan: &Layout, slots: Rect, left: f32) {
    let weak = ui.visuals().weak_text_color();
    for (i, (top, bottom)) in plan.places.iter().enumerate() {
        let (top, bottom) = (slots.top() + slots.height() * top, slots.top() + slots.height() * bottom);
        let row = Rect::from_min_max(pos2(slots.left(), top), pos2(slots.right(), bottom));
        ui.painter().rect_filled(row.shrink2(vec2(0.0, 1.0)), 0.0, ui.visuals().faint_bg_color);
        if bottom - top >= 12.0 {
            let text = format!("{i}: {}", bytes(trace.memory.slots[i] as f64));
            let at = pos2(left + 2.0, (top + bottom) / 2.0);
            ui.painter().text(at, Align2::LEFT_CENTER, text, FontId::proportional(11.0), weak);
        }
    }
}
