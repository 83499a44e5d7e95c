//! In: names of files; out: their bytes, or what went wrong in words. The one seam between the viewer and the system's
//! files: a browser has another implementation than a desktop, and gives bytes later only.

use eframe::egui::DroppedFileHandle;
use std::pin::Pin;

/// What is done when it has come; a desktop has it at once.
pub type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// The largest file that is read, so that a wrong one does not fill the memory.
pub const LARGEST: usize = 1 << 30;

/// Where files are read and written.
pub trait Files {
    /// All bytes of a file, of one above [`LARGEST`] at least one more than that, or what went wrong in words that name the file.
    fn read(&self, path: &str) -> Later<Result<Vec<u8>, String>>;

    /// All bytes of a file that was dropped on the window, or what went wrong in words.
    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>>;

    /// What a file is called wherever one stands.
    fn place(&self, path: &str) -> String {
        path.to_owned()
    }

    /// Writes a new file whose name begins with `stem`, and says where it is.
    ///
    /// # Errors
    /// In words that name the file.
    fn write(&self, stem: &str, extension: &str, bytes: &[u8]) -> Result<String, String>;

    /// Does something now or, in a browser, when it gets to it.
    fn carry_out(&self, work: Later<()>);
}

/// A system without files.
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, path: &str) -> Later<Result<Vec<u8>, String>> {
        let refused = Err(format!("{path}: there are no files here"));
        Box::pin(std::future::ready(refused))
    }

    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>> {
        self.read(&file.path().display().to_string())
    }

    fn write(&self, stem: &str, extension: &str, _: &[u8]) -> Result<String, String> {
        Err(format!("{stem}.{extension}: there are no files here"))
    }

    fn carry_out(&self, work: Later<()>) {
        pollster::block_on(work);
    }
}
