//! In: tensors by name; out: a safetensors file that PyTorch reads, whole or not at all. Knows file formats only.

use super::CheckpointError;
use crate::graph::DType;
use crate::tensor::Tensor;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// A file that is written beside its place and takes it with [`Draft::publish`]; else it is removed. So several files
/// that belong together are all written before the first appears.
pub(crate) struct Draft {
    draft: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Writes the tensors, and beside them words that PyTorch ignores, all the way to the disk.
    pub fn write(
        path: &Path,
        tensors: &BTreeMap<String, Tensor>,
        words: &BTreeMap<String, String>,
    ) -> Result<Draft, CheckpointError> {
        let draft = Draft { draft: beside(path, ".part"), path: path.to_owned() };
        let views = tensors.iter().map(|(name, tensor)| Ok((name.as_str(), view(path, name, tensor)?)));
        let views = views.collect::<Result<Vec<_>, CheckpointError>>()?;
        let words: HashMap<String, String> = words.clone().into_iter().collect();
        safetensors::serialize_to_file(views, Some(words), &draft.draft).map_err(|e| unwritten(path, e))?;
        // Windows writes a file's pages out for those alone who may write it
        let synced = fs::OpenOptions::new().write(true).open(&draft.draft).and_then(|file| file.sync_all());
        synced.map_err(|source| CheckpointError::Io { path: path.to_owned(), source })?;
        Ok(draft)
    }

    /// Puts the file in its place, over one that is there.
    pub fn publish(self) -> Result<(), CheckpointError> {
        let io = |source| CheckpointError::Io { path: self.path.clone(), source };
        fs::rename(&self.draft, &self.path).map_err(io)
    }

    /// Where [`Draft::publish_both`] puts what it replaces until both files are in their places.
    pub fn aside(path: &Path) -> PathBuf {
        beside(path, ".before")
    }

    /// Puts two files in their places that belong together; where the second fails, what the first replaced is back.
    pub fn publish_both(first: Draft, second: Draft) -> Result<(), CheckpointError> {
        let (place, before) = (first.path.clone(), Draft::aside(&first.path));
        let io = |source| CheckpointError::Io { path: place.clone(), source };
        let replaces = place.is_file();
        if replaces {
            fs::rename(&place, &before).map_err(io)?;
        }
        let published = first.publish().and_then(|()| second.publish());
        match (&published, replaces) {
            (Ok(()), true) => fs::remove_file(&before).map_err(io)?,
            (Err(_), true) => fs::rename(&before, &place).map_err(io)?,
            (Err(_), false) => fs::remove_file(&place).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(io(e)),
            })?,
            (Ok(()), false) => {}
        }
        published
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // once published it is no longer there
        let _ = fs::remove_file(&self.draft);
    }
}

/// The file of its name with an ending more.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Writes tensors to a safetensors file: under PyTorch's names they are a state dict, which
/// `load_state_dict(safetensors.torch.load_file(path))` takes as it is.
///
/// # Errors
/// If the file cannot be written or a tensor is of bools, which take another size in files.
pub fn save(path: impl AsRef<Path>, tensors: &BTreeMap<String, Tensor>) -> Result<(), CheckpointError> {
    let words = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    Draft::write(path.as_ref(), tensors, &words)?.publish()
}

fn view<'a>(path: &Path, name: &str, tensor: &'a Tensor) -> Result<TensorView<'a>, CheckpointError> {
    let dtype = match tensor.dtype() {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::Bool => {
            let (path, name) = (path.to_owned(), name.to_owned());
            return Err(CheckpointError::Bool { path, name });
        }
    };
    TensorView::new(dtype, tensor.shape().dims().to_vec(), tensor.bytes()).map_err(|e| unwritten(path, e))
}

fn unwritten(path: &Path, error: SafeTensorError) -> CheckpointError {
    let source = match error {
        SafeTensorError::IoError(source) => source,
        other => std::io::Error::other(other),
    };
    CheckpointError::Io { path: path.to_owned(), source }
}
