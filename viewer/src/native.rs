//! In: paths of this system; out: [`Files`] on its disks.

use kiln_viewer::files::Files;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// Files of the system; what is written goes into a folder.
pub struct Disk {
    /// That folder.
    pub folder: PathBuf,
}

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        fs::read(path).map_err(|e| format!("{path}: {e}"))
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
