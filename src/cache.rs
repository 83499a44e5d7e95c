//! In: bytes and a name; out: a file in the user's cache directory, there for the next start of any program. Knows
//! nothing of what is kept.
//!
//! A file is replaced by a rename, so that whoever reads it sees the old one or the new one, whole. Nothing here ends a
//! program: what cannot be read or written is an error that its caller tells of and does without.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The environment variable that names the directory where the user's own is meant. Empty, nothing is kept.
pub const VARIABLE: &str = "KILN_CACHE_DIR";

/// What whoever finds that nothing is kept can do.
pub(crate) const ADVICE: &str =
    "let KILN_CACHE_DIR or CompileOptions::cache name a directory that can be written, or none";

/// Where kernels that were compiled and choices that were measured are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// The directory that `KILN_CACHE_DIR` names, or kiln's in the user's cache directory.
    #[default]
    User,
    /// This one.
    At(PathBuf),
    /// Nowhere: every start begins anew.
    Off,
}

impl CacheDir {
    /// The directory; `None` where nothing is kept, or the system has no such place.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            CacheDir::Off => None,
            CacheDir::At(path) => Some(path.clone()),
            CacheDir::User => match std::env::var_os(VARIABLE) {
                Some(path) => (!path.is_empty()).then(|| path.into()),
                None => Some(directories::ProjectDirs::from("", "", "kiln")?.cache_dir().to_owned()),
            },
        }
    }
}

/// A file's name out of words that may hold anything: short, readable, and another for other words.
pub fn file_name(kind: &str, words: &[&str], ending: &str) -> String {
    let letters = |w: &str| -> String {
        let all = w.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        all.take(24).collect()
    };
    let readable = letters(words.first().copied().unwrap_or_default());
    let sum = crc32fast::hash(words.join("\0").as_bytes());
    format!("{kind}-{}-{sum:08x}.{ending}", readable.trim_matches('-'))
}

/// The bytes of a file; `None` if there is none.
///
/// # Errors
/// If it is there and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts bytes in a file's place by a rename, and makes its directory if need be.
///
/// # Errors
/// If the directory or the file cannot be made.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("the path names no file"))?;
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|e| e.error)
}

/// Changes a file by what is in it, one process at a time: those that find another at it wait. `change` is given what
/// is there, and its result takes its place.
///
/// # Errors
/// If the directory, the lock beside the file or the file cannot be made, or what is there cannot be read.
pub fn update(path: &Path, change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("the path names no file"))?;
    fs::create_dir_all(dir)?;
    let lock = File::create(path.with_extension("lock"))?;
    match lock.lock() {
        Ok(()) => {}
        // a file system that knows no locks: the rename still leaves no half a file
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            tracing::warn!(path = %path.display(), %error, "cannot lock; what another process adds now may be lost");
        }
        Err(error) => return Err(error),
    }
    replace(path, &change(read(path)?))
    // closing the file unlocks it
}

/// The first bytes of a sealed file.
const SEAL: &[u8; 8] = b"kilnseal";

/// Bytes with their CRC-32 in front.
pub fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.len() + 12);
    all.extend_from_slice(SEAL);
    all.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    all.extend_from_slice(bytes);
    all
}

/// What was sealed; `None` if a byte of it differs from what was.
pub fn unseal(all: &[u8]) -> Option<&[u8]> {
    let (sum, bytes) = all.strip_prefix(SEAL)?.split_first_chunk::<4>()?;
    (crc32fast::hash(bytes).to_le_bytes() == *sum).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_and_differ_with_any_word() {
        let name = |driver: &str| file_name("tuning", &["llvmpipe (LLVM 15.0.6, 256 bits)", driver], "json");
        assert!(name("1.2").starts_with("tuning-llvmpipe--llvm-15-0-6--2"), "{}", name("1.2"));
        assert_ne!(name("1.2"), name("1.3"));
        assert!(!file_name("a", &["../../etc"], "b").contains('/'));
    }

    #[test]
    fn a_sealed_file_that_was_changed_or_cut_is_not_opened() {
        let sealed = seal(b"pipelines");
        assert_eq!(unseal(&sealed), Some(&b"pipelines"[..]));
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(unseal(&bad), None, "byte {at}");
            assert_eq!(unseal(&sealed[..at]), None, "the first {at}");
        }
    }

    #[test]
    fn files_are_replaced_whole_and_updated_by_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/file");
        assert_eq!(read(&path).unwrap(), None);
        replace(&path, b"one").unwrap();
        update(&path, |old| [old.unwrap(), b" two".to_vec()].concat()).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"one two");
        // nothing is left beside the file and its lock
        let mut names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "file.lock"]);
    }

    #[test]
    fn updates_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let path = &path;
                scope.spawn(move || update(path, |old| [old.unwrap_or_default(), vec![i]].concat()).unwrap());
            }
        });
        let mut all = read(&path).unwrap().unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
