//! In: fixed traces; out: each panel as pixels, held against the pictures beside this file. They are compared where
//! Mesa's lavapipe draws: another driver rounds edges otherwise. `UPDATE_SNAPSHOTS=1` draws them anew.

mod window;

use eframe::egui::{self, Theme, Vec2, vec2};
use egui_kittest::{Harness, SnapshotOptions};
use kiln_viewer::app::style;
use kiln_viewer::live::panel::Live;
use kiln_viewer::model::document::Document;
use kiln_viewer::model::selection::Selection;
use kiln_viewer::panels::Panel;
use kiln_viewer::sample;
use kiln_viewer::state::{Settings, State};
use window::{draws, pixels};

/// The samples, eager first.
fn state() -> State {
    let mut state = State::new(Settings::default(), Live::without_backend());
    state.add(Document::new("eager.json", sample::eager()));
    state.add(Document::new("fused.json", sample::trace()));
    state
}

fn snapshot(name: &str, panel: Panel, size: Vec2, theme: Theme, mut state: State) {
    if !draws() {
        return;
    }
    let mut harness =
        Harness::builder().with_size(size).with_theme(theme).with_context_setup(style).wgpu().build_ui(move |ui| {
            egui::CentralPanel::default().show(ui, |ui| panel.show(ui, &mut state));
        });
    harness.run_steps(4);
    pixels(&mut harness, name, &SnapshotOptions::new());
}

fn dark(panel: Panel, size: Vec2) {
    snapshot(&panel.title().to_lowercase(), panel, size, Theme::Dark, state());
}

#[test]
fn timeline() {
    dark(Panel::Timeline, vec2(1000.0, 300.0));
}

#[test]
fn timeline_with_a_selection_in_light() {
    let mut state = state();
    state.selection = Selection::Layer("blocks.0.sa".into());
    snapshot("timeline_selected", Panel::Timeline, vec2(1000.0, 300.0), Theme::Light, state);
}

#[test]
fn times_in_groups() {
    let mut trace = sample::trace();
    trace.frames[2].shared = vec![(3, 6)];
    let mut state = State::new(Settings::default(), Live::without_backend());
    state.add(Document::new("t.json", trace));
    snapshot("timeline_groups", Panel::Timeline, vec2(1000.0, 240.0), Theme::Dark, state);
}

#[test]
fn timeline_without_timestamps() {
    let mut trace = sample::trace();
    trace.device.timestamps = false;
    trace.frames.iter_mut().for_each(|f| f.times.iter_mut().for_each(|t| *t = None));
    let mut state = State::new(Settings::default(), Live::without_backend());
    state.add(Document::new("t.json", trace));
    snapshot("timeline_unavailable", Panel::Timeline, vec2(1000.0, 240.0), Theme::Dark, state);
}

#[test]
fn table() {
    dark(Panel::Table, vec2(900.0, 200.0));
}

#[test]
fn roofline() {
    dark(Panel::Roofline, vec2(700.0, 460.0));
}

#[test]
fn memory() {
    dark(Panel::Memory, vec2(800.0, 360.0));
}

#[test]
fn graph() {
    let mut state = state();
    state.selection = Selection::Node(2);
    snapshot("graph", Panel::Graph, vec2(1100.0, 440.0), Theme::Dark, state);
}

#[test]
fn compare() {
    dark(Panel::Compare, vec2(1000.0, 340.0));
}

#[test]
fn live() {
    dark(Panel::Live, vec2(800.0, 360.0));
}

#[test]
fn a_window_without_a_trace_says_what_to_do() {
    let state = State::new(Settings::default(), Live::without_backend());
    snapshot("empty", Panel::Timeline, vec2(700.0, 260.0), Theme::Dark, state);
}
