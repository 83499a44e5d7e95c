//! In: a command line; out: the viewer in a window of this system, with its files and devices.

use eframe::egui::{self, DroppedFileHandle};
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::{Files, LARGEST, Later};
use kiln_viewer::live::Worker;
use kiln_viewer::live::device::Device;
use kiln_viewer::live::panel::Live;
use std::fs::{File, OpenOptions};
use std::future::ready;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: kiln-viewer [TRACE.json ...]

Shows where the time of a run goes. Traces are written by `gptlite --trace OUT.json`, or by the panel Live. Of several
the last is shown, compared with the one before it.";

/// Shows the window until it is closed.
pub fn main() -> ExitCode {
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
            let files = Box::new(Disk { folder });
            style(&creation.egui_ctx);
            let mut viewer = Viewer::new(creation.storage, files, live);
            viewer.open(&paths, &creation.egui_ctx);
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

/// The bytes of a file, of one that is too large one more than may be.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST as u64 + 1).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Files of the system; what is written goes into a folder.
struct Disk {
    /// That folder.
    folder: PathBuf,
}

impl Files for Disk {
    fn read(&self, path: &str) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(read(Path::new(path))))
    }

    fn place(&self, path: &str) -> String {
        // where there is no folder to stand in, a path stays as it is
        std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string())
    }

    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(read(file.path())))
    }

    fn carry_out(&self, work: Later<()>) {
        pollster::block_on(work);
    }

    fn write(&self, stem: &str, extension: &str, bytes: &[u8]) -> Result<String, String> {
        for nth in 1..1000 {
            let name = if nth == 1 { format!("{stem}.{extension}") } else { format!("{stem}-{nth}.{extension}") };
            let path = self.folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(format!("{}: {e}", path.display())),
                Ok(mut file) => {
                    file.write_all(bytes).map_err(|e| format!("{}: {e}", path.display()))?;
                    return Ok(path.display().to_string());
                }
            }
        }
        Err(format!("{stem}.{extension} and its successors exist; remove some of them"))
    }
}
