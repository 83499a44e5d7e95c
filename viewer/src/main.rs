//! In: `kiln-viewer [TRACE.json ...]`; out: the viewer in a native window.

mod native;

use eframe::egui;
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::live::Worker;
use kiln_viewer::live::device::Device;
use kiln_viewer::live::panel::Live;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: kiln-viewer [TRACE.json ...]

Shows where the time of a run goes. Traces are written by `gptlite --trace OUT.json`, or by the panel Live. Of several
the last is shown, compared with the one before it.";

fn main() -> ExitCode {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.iter().any(|p| p == "-h" || p == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if let Some(flag) = paths.iter().find(|p| p.starts_with('-')) {
        eprintln!("error: unknown flag {flag}\n\n{USAGE}");
        return ExitCode::from(2);
    }
    let options = eframe::NativeOptions {
        viewport: egui::ViewportBuilder::default().with_inner_size([1440.0, 900.0]).with_min_inner_size([640.0, 400.0]),
        ..Default::default()
    };
    let made = eframe::run_native(
        "kiln-viewer",
        options,
        Box::new(move |creation| {
            let ctx = creation.egui_ctx.clone();
            let live = Live::new(Box::new(move || {
                let ctx = ctx.clone();
                Worker::start(Device::default, move || ctx.request_repaint())
            }));
            let folder = std::env::current_dir()?;
            let files = Box::new(native::Disk { folder });
            style(&creation.egui_ctx);
            let mut viewer = Viewer::new(creation.storage, files, live);
            for path in &paths {
                viewer.open(path);
            }
            Ok(Box::new(viewer))
        }),
    );
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: no window: {error}");
            ExitCode::FAILURE
        }
    }
}
