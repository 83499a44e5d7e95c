//! In: a safetensors file; out: [`Checkpoint`], its tensors read from a memory map, and [`Loaded`], those of a model.
//! Knows file formats and parameters' layout; neither graphs nor devices.

use super::header::faults;
use super::{CheckpointError, HeaderFault, Misfit, ParamSource};
use crate::graph::{DType, ParamLayout, Shape, TensorType, nearest_f16};
use crate::tensor::Tensor;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The largest header that the format's reference reader accepts, bytes.
const MAX_HEADER: u64 = 100_000_000;

/// A safetensors file, mapped and validated. Nothing of a tensor is read before it is asked for.
pub struct Checkpoint {
    path: PathBuf,
    map: Mmap,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

struct Entry {
    dtype: Dtype,
    shape: Shape,
    bytes: Range<usize>,
}

impl Checkpoint {
    /// Maps a file and validates its header. A malformed file is an error that names every fault; nothing of the size
    /// that it claims is allocated. The file must not be changed while the checkpoint lives.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref().to_owned();
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let map = map(&File::open(&path).map_err(io)?).map_err(io)?;
        let file = map.len() as u64;
        let Some((prefix, _)) = map.split_first_chunk::<8>() else {
            return Err(CheckpointError::Short { path, got: file });
        };
        let header = u64::from_le_bytes(*prefix);
        if header > MAX_HEADER {
            return Err(CheckpointError::HeaderTooLarge { path, got: header, limit: MAX_HEADER });
        }
        if header > file - 8 {
            return Err(CheckpointError::HeaderPastEnd { path, header, file });
        }
        let start = 8 + header as usize;
        let faults = faults(&map[8..start], file - start as u64);
        if !faults.is_empty() {
            return Err(CheckpointError::Header { path, faults });
        }
        let (_, metadata) = SafeTensors::read_metadata(&map).map_err(|error| CheckpointError::Header {
            path: path.clone(),
            faults: vec![HeaderFault::Other(error.to_string())],
        })?;
        let entry = |info: &safetensors::tensor::TensorInfo| Entry {
            dtype: info.dtype,
            shape: info.shape.clone().into(),
            bytes: start + info.data_offsets.0..start + info.data_offsets.1,
        };
        let entries = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
        let metadata = metadata.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Checkpoint { path, map, entries, metadata })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A word of the file's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// A word of the metadata that must be this; the error says what to do if it is not.
    pub(crate) fn expect(
        &self,
        key: &'static str,
        expected: &str,
        advice: &'static str,
    ) -> Result<(), CheckpointError> {
        if self.metadata(key) == Some(expected) {
            return Ok(());
        }
        let got = self.metadata.get(key).cloned();
        Err(CheckpointError::Metadata { path: self.path.clone(), key, expected: expected.into(), got, advice })
    }

    /// A number of the metadata, which may have to be at most some other.
    pub(crate) fn number(&self, key: &'static str, most: Option<u64>) -> Result<u64, CheckpointError> {
        let number = self.metadata(key).and_then(|word| word.parse().ok());
        number.filter(|n| most.is_none_or(|most| *n <= most)).ok_or_else(|| CheckpointError::Metadata {
            path: self.path.clone(),
            key,
            expected: most.map_or("a number".into(), |most| format!("a number up to {most}")),
            got: self.metadata.get(key).cloned(),
            advice: "take a file that a trainer saved",
        })
    }

    /// A tensor's shape.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        self.entries.get(name).map(|e| &e.shape)
    }

    /// Copies a tensor out, converted to F32 or F16 and rounded to nearest even where it must be. An integer tensor
    /// can be read as I32 or U32 if it is of just that type.
    pub fn tensor(&self, name: &str, dtype: DType) -> Result<Tensor, CheckpointError> {
        self.entry(name, dtype)
            .map(|entry| self.read(entry, dtype))
            .map_err(|misfit| CheckpointError::Tensor { path: self.path.clone(), misfit })
    }

    /// Fits the file to a model's parameters: every one must be there with its shape, else the error lists all that
    /// are not. Nothing is copied yet.
    pub fn load(&self, layout: &ParamLayout) -> Result<Loaded<'_>, CheckpointError> {
        let typed = layout.parameters().map(|(p, dtype)| (p.name.clone(), TensorType::new(dtype, p.shape.clone())));
        let wanted: BTreeMap<String, TensorType> = typed.collect();
        let fit = |(name, ty): (&String, &TensorType)| match self.entry(name, ty.dtype) {
            Ok(entry) if entry.shape != ty.shape => Some(Misfit::shape(name, ty, &entry.shape)),
            Ok(_) => None,
            Err(misfit) => Some(misfit),
        };
        let misfits: Vec<Misfit> = wanted.iter().filter_map(fit).collect();
        let others = self.entries.keys().filter(|name| !wanted.contains_key(*name)).cloned();
        let (skipped, unused) = others.partition(|name| is_mask_buffer(name));
        if !misfits.is_empty() {
            return Err(CheckpointError::Misfits { path: self.path.clone(), misfits, unused });
        }
        let dtypes = wanted.into_iter().map(|(name, ty)| (name, ty.dtype)).collect();
        Ok(Loaded { checkpoint: self, dtypes, unused, skipped })
    }

    /// [`Checkpoint::load`] of a file that must hold nothing else.
    pub(crate) fn load_all(&self, layout: &ParamLayout) -> Result<Loaded<'_>, CheckpointError> {
        let loaded = self.load(layout)?;
        let others = [&loaded.unused[..], &loaded.skipped].concat();
        if others.is_empty() {
            return Ok(loaded);
        }
        Err(CheckpointError::Misfits { path: self.path.clone(), misfits: Vec::new(), unused: others })
    }

    /// The entry, if it is there and converts.
    fn entry(&self, name: &str, dtype: DType) -> Result<&Entry, Misfit> {
        let entry = self.entries.get(name).ok_or_else(|| Misfit::Missing { name: name.to_owned() })?;
        if !converts(entry.dtype, dtype) {
            return Err(Misfit::DType { name: name.to_owned(), expected: dtype, got: entry.dtype.to_string() });
        }
        Ok(entry)
    }

    /// Copies an entry that converts.
    fn read(&self, entry: &Entry, dtype: DType) -> Tensor {
        let bytes = convert(&self.map[entry.bytes.clone()], entry.dtype, dtype);
        Tensor::from_bytes(TensorType::new(dtype, entry.shape.clone()), bytes)
    }
}

/// Float tensors as f32, which holds every F16 and BF16 exactly.
impl ParamSource for Checkpoint {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        self.tensor(name, DType::F32).ok().map(Cow::Owned)
    }

    fn ty(&self, name: &str) -> Option<TensorType> {
        self.entry(name, DType::F32).ok().map(|entry| TensorType::new(DType::F32, entry.shape.clone()))
    }

    fn names(&self) -> Vec<String> {
        self.entries.keys().filter(|name| !is_mask_buffer(name)).cloned().collect()
    }
}

/// A checkpoint that fits a model. Each parameter is copied and converted to its storage's type when it is asked for.
pub struct Loaded<'a> {
    checkpoint: &'a Checkpoint,
    dtypes: BTreeMap<String, DType>,
    /// Names in the file that the model does not have; worth a warning.
    pub unused: Vec<String>,
    /// Buffers `*.tril`, the causal masks that the seed registers one a head: recognised, never copied.
    pub skipped: Vec<String>,
}

impl Loaded<'_> {
    /// A parameter in its storage's type; `None` if the model does not have it.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let dtype = *self.dtypes.get(name)?;
        let entry = self.checkpoint.entries.get(name)?;
        Some(self.checkpoint.read(entry, dtype))
    }

    /// All of the model's parameters, copied at once.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        self.dtypes.keys().filter_map(|name| Some((name.clone(), self.tensor(name)?))).collect()
    }
}

impl ParamSource for Loaded<'_> {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        self.tensor(name).map(Cow::Owned)
    }

    fn ty(&self, name: &str) -> Option<TensorType> {
        let entry = self.checkpoint.entries.get(name)?;
        Some(TensorType::new(*self.dtypes.get(name)?, entry.shape.clone()))
    }
}

fn is_mask_buffer(name: &str) -> bool {
    name == "tril" || name.ends_with(".tril")
}

#[allow(unsafe_code, reason = "a memory map is the only way to read gigabytes without a copy")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read as plain bytes, for which every pattern is valid, and its length is checked against the
    // header once and never changes. What remains is another process that changes the file meanwhile, which no reader
    // of a map can prevent: `Checkpoint::open` says so.
    unsafe { Mmap::map(file) }
}

fn converts(from: Dtype, to: DType) -> bool {
    match to {
        DType::F32 | DType::F16 => matches!(from, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16),
        DType::I32 => from == Dtype::I32,
        DType::U32 => from == Dtype::U32,
        DType::BF16 | DType::Bool => false,
    }
}

/// Little-endian elements of a type that [`converts`] to another. The file may place them at any address.
fn convert(bytes: &[u8], from: Dtype, to: DType) -> Vec<u8> {
    match (from, to) {
        (Dtype::F32, DType::F16) => each(bytes, |b: [u8; 4]| f16::from_f32(f32::from_le_bytes(b)).to_le_bytes()),
        (Dtype::F16, DType::F32) => each(bytes, |b: [u8; 2]| f16::from_le_bytes(b).to_f32().to_le_bytes()),
        (Dtype::BF16, DType::F32) => each(bytes, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32().to_le_bytes()),
        (Dtype::BF16, DType::F16) => {
            each(bytes, |b: [u8; 2]| f16::from_f32(bf16::from_le_bytes(b).to_f32()).to_le_bytes())
        }
        (Dtype::F64, DType::F32) => each(bytes, |b: [u8; 8]| (f64::from_le_bytes(b) as f32).to_le_bytes()),
        (Dtype::F64, DType::F16) => each(bytes, |b: [u8; 8]| nearest_f16(f64::from_le_bytes(b)).to_le_bytes()),
        _ => bytes.to_vec(),
    }
}

fn each<const N: usize, const M: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> [u8; M]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / N * M);
    for element in bytes.as_chunks::<N>().0 {
        out.extend_from_slice(&f(*element));
    }
    out
}
