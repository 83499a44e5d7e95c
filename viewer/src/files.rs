//! In: names of files; out: their bytes, or what went wrong in words. The one seam between the viewer and the system's
//! files: a browser has another implementation than a desktop.

/// Where files are read and written.
pub trait Files {
    /// All bytes of a file.
    ///
    /// # Errors
    /// In words that name the file.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// Writes a new file whose name begins with `stem`, and says where it is.
    ///
    /// # Errors
    /// In words that name the file.
    fn write(&self, stem: &str, extension: &str, bytes: &[u8]) -> Result<String, String>;
}

/// A system without files.
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        Err(format!("{path}: there are no files here"))
    }

    fn write(&self, stem: &str, extension: &str, _: &[u8]) -> Result<String, String> {
        Err(format!("{stem}.{extension}: there are no files here"))
    }
}
