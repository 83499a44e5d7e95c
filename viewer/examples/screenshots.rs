//! In: `screenshots FIRST.json SECOND.json FOLDER`; out: pictures of the viewer and of each panel on these traces, drawn
//! without a window.

use eframe::egui::{self, Theme};
use egui_kittest::Harness;
use kiln::trace::Trace;
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::NoFiles;
use kiln_viewer::live::panel::Live;
use kiln_viewer::model::document::Document;
use kiln_viewer::model::selection::Selection;
use kiln_viewer::panels::Panel;
use kiln_viewer::state::{Settings, State};
use std::error::Error;
use std::path::Path;

/// Without the margin that the harness leaves.
fn save<T>(harness: &mut Harness<'_, T>, path: &Path) -> Result<(), Box<dyn Error>> {
    const MARGIN: u32 = 8;
    let image = harness.render()?;
    let (width, height) = (image.width() - 2 * MARGIN, image.height() - 2 * MARGIN);
    Ok(image::imageops::crop_imm(&image, MARGIN, MARGIN, width, height).to_image().save(path)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, folder] = &args[..] else {
        return Err("usage: screenshots FIRST.json SECOND.json FOLDER".into());
    };
    let mut documents = Vec::new();
    for path in [first, second] {
        let bytes = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
        let trace = Trace::from_json(&bytes).map_err(|e| format!("{path}: {e}"))?;
        let name = Path::new(path).file_name().map_or(path.clone(), |n| n.to_string_lossy().into_owned());
        documents.push(Document::new(name, trace));
    }
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    let open = |state: &mut State| documents.iter().for_each(|d| state.add(d.clone()));

    for (name, theme) in [("viewer", Theme::Dark), ("viewer_light", Theme::Light)] {
        let mut viewer = Viewer::new(None, Box::new(NoFiles), Live::without_backend());
        open(&mut viewer.state);
        let mut harness = Harness::builder()
            .with_size([1440.0, 900.0])
            .with_theme(theme)
            .with_context_setup(style)
            .wgpu()
            .build_ui_state(
                |ui, viewer: &mut Viewer| {
                    viewer.show(ui);
                },
                viewer,
            );
        harness.run_steps(6);
        save(&mut harness, &folder.join(format!("{name}.png")))?;
    }
    for panel in Panel::ALL {
        let mut state = State::new(Settings::default(), Live::without_backend());
        open(&mut state);
        let (width, height) = match panel {
            Panel::Timeline => (1200.0, 300.0),
            Panel::Roofline => (900.0, 520.0),
            _ => (1200.0, 460.0),
        };
        if panel == Panel::Graph {
            let after = &documents[1].trace.graph.after;
            let attention = after.iter().position(|n| n.op.starts_with("attention"));
            state.selection = attention.map_or(Selection::None, Selection::Node);
        }
        let mut harness = Harness::builder()
            .with_size([width, height])
            .with_theme(Theme::Dark)
            .with_context_setup(style)
            .wgpu()
            .build_ui(|ui| {
                egui::CentralPanel::default().show(ui, |ui| panel.show(ui, &mut state));
            });
        harness.run_steps(6);
        save(&mut harness, &folder.join(format!("{}.png", panel.title().to_lowercase())))?;
    }
    println!("pictures are in {}", folder.display());
    Ok(())
}
