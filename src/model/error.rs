//! In: what does not fit; out: [`ModelError`] and [`CheckpointError`], each naming what was expected and what came.
//! Knows only the types of values.

use crate::graph::{DType, GraphError, Shape, TensorType};
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// A model that cannot be built or initialised.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ModelError {
    /// A size that the model cannot have.
    #[error("{field} is {got}, expected {expected}")]
    Size {
        /// The config's field.
        field: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// More tokens than there are positions.
    #[error("sequence length is {seq}, expected 1 to block_size = {block_size}; crop the context to its last tokens")]
    Sequence {
        /// Tokens asked for.
        seq: usize,
        /// Rows of the position embedding.
        block_size: usize,
    },
    /// A value given to a model has another rank than it takes.
    #[error("{what} is {got}, expected {expected}")]
    Input {
        /// Which value.
        what: &'static str,
        /// Its dimensions by name.
        expected: &'static str,
        /// What it is.
        got: Shape,
    },
    /// Parameters of a type that models do not compute in.
    #[error("parameters are {got}, expected f32 or f16")]
    DType {
        /// What was asked for.
        got: DType,
    },
    /// A parameter that is compared is not there, or has another shape.
    #[error("parameter \"{name}\" is {}, expected {expected}", got.as_ref().map_or("missing".into(), Shape::to_string))]
    Parameter {
        /// Its name.
        name: String,
        /// What the layout declares.
        expected: Shape,
        /// What came, if it is there.
        got: Option<Shape>,
    },
    /// No rule says how a parameter is initialised.
    #[error(
        "parameter \"{name}\" {shape} has no rule of initialisation; expected an embedding table (V, E), \
         the weight or bias (E) of a norm named ln, ln1, …, a linear's weight (out, in), or a bias beside one"
    )]
    Init {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: Shape,
    },
    /// The graph refused an op.
    #[error(transparent)]
    Graph(Box<GraphError>),
}

impl From<GraphError> for ModelError {
    fn from(error: GraphError) -> Self {
        ModelError::Graph(Box::new(error))
    }
}

impl ModelError {
    pub(super) fn size(field: &'static str, expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        ModelError::Size { field, expected: expected.to_string(), got: got.to_string() }
    }
}

/// A checkpoint that cannot be read, or does not fit the model.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file cannot be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program was ended while it put two files in their places that belong together.
    #[error("{}: put aside by a save that was cut short, and of the same save as {other} beside it; rename it to {name}",
        path.display())]
    CutShort {
        /// What was put aside.
        path: PathBuf,
        /// What it was called.
        name: &'static str,
        /// The file that it belongs to.
        other: &'static str,
    },
    /// Not even the header's length is there.
    #[error("{}: a safetensors file starts with the header's length in 8 bytes, got {got} bytes in all", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length, bytes.
        got: u64,
    },
    /// The header claims to be larger than any reader of the format accepts.
    #[error(
        "{}: header length is {got} bytes, expected at most {limit}; this is no safetensors file, which has that length in \
         its first 8 bytes, or a damaged one: save the tensors as safetensors",
        path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// The claimed length, bytes.
        got: u64,
        /// The largest accepted, bytes.
        limit: u64,
    },
    /// The header ends after the file does.
    #[error("{}: header length is {header} bytes, got {file} bytes in all with the 8 of the length", path.display())]
    HeaderPastEnd {
        /// The file.
        path: PathBuf,
        /// The claimed length, bytes.
        header: u64,
        /// The file's length, bytes.
        file: u64,
    },
    /// The header contradicts the format, itself or the file's length. Every fault is listed.
    #[error("{}: the header is not valid:{}", path.display(), lines(faults))]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong, in the order of the tensors' names.
        faults: Vec<HeaderFault>,
    },
    /// The file is well formed, its tensors are not the model's.
    #[error("{}: does not fit the model:{}{}", path.display(), lines(misfits), unused_line(unused))]
    Misfits {
        /// The file.
        path: PathBuf,
        /// What the model needs and the file does not give.
        misfits: Vec<Misfit>,
        /// Names in the file that the model does not know: often the missing ones under another name.
        unused: Vec<String>,
    },
    /// The file's metadata are not what goes on from it expects.
    #[error("{}: \"{key}\" is {}, expected {expected}; {advice}", path.display(), got.as_deref().unwrap_or("missing"))]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: String,
        /// What it is, if it is there.
        got: Option<String>,
        /// What to do.
        advice: &'static str,
    },
    /// Bools are not written.
    #[error("{}: \"{name}\" is of bools, which take another size in files; cast it to i32", path.display())]
    Bool {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// One tensor was asked for and cannot be given.
    #[error("{}: {misfit}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Why.
        misfit: Misfit,
    },
}

/// One fault of a safetensors header. Offsets are in bytes from the end of the header.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum HeaderFault {
    /// Not JSON of the form that the format has.
    #[error("expected a JSON object of {{dtype, shape, data_offsets}} by tensor name: {0}")]
    Json(String),
    /// A name stands twice.
    #[error("tensor \"{tensor}\": declared twice, names are unique")]
    Duplicate {
        /// The name.
        tensor: String,
    },
    /// An element type that the format does not have.
    #[error("tensor \"{tensor}\": dtype \"{got}\" is unknown, expected one of the format's, as F32, F16, BF16 or F64")]
    DType {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        got: String,
    },
    /// The tensor ends before it begins.
    #[error("tensor \"{tensor}\": data_offsets are [{begin}, {end}], expected begin ≤ end")]
    Order {
        /// The tensor.
        tensor: String,
        /// First byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
    },
    /// The tensor ends after the file does.
    #[error("tensor \"{tensor}\": data_offsets end at {end}, the file holds {data} bytes of data")]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// Byte after the last.
        end: u64,
        /// Bytes after the header.
        data: u64,
    },
    /// The offsets do not span what the shape takes.
    #[error("tensor \"{tensor}\": {dtype} {shape} takes {expected} bytes, data_offsets span {got}")]
    Span {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: String,
        /// Its shape.
        shape: Shape,
        /// Bytes by dtype and shape.
        expected: u64,
        /// Bytes by offsets.
        got: u64,
    },
    /// The shape takes more bytes than can be counted.
    #[error("tensor \"{tensor}\": {dtype} {shape} takes more than 2^64 bits")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: String,
        /// Its shape.
        shape: Shape,
    },
    /// Bytes between two tensors, or bytes that two share.
    #[error(
        "tensor \"{tensor}\": begins at {got}, expected {expected}: tensors follow each other without gap or overlap"
    )]
    Gap {
        /// The later tensor.
        tensor: String,
        /// Where the one before ends.
        expected: u64,
        /// Where it begins.
        got: u64,
    },
    /// Bytes after the last tensor.
    #[error("the tensors end at {expected}, the file holds {got} bytes of data")]
    Trailing {
        /// Where the last tensor ends.
        expected: u64,
        /// Bytes after the header.
        got: u64,
    },
    /// A fault that only the format's own reader found.
    #[error("{0}")]
    Other(String),
}

/// Why a checkpoint's tensor cannot be a parameter.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Misfit {
    /// It is not in the file.
    #[error("missing \"{name}\"")]
    Missing {
        /// The parameter.
        name: String,
    },
    /// It has another shape.
    #[error("\"{name}\": expected {expected}, got {got}")]
    Shape {
        /// The parameter.
        name: String,
        /// The model's.
        expected: Shape,
        /// The file's.
        got: Shape,
    },
    /// It is not of a kind that converts.
    #[error("\"{name}\": cannot convert {got} to {expected}; F64, F32, F16 and BF16 convert to f32 and f16")]
    DType {
        /// The parameter.
        name: String,
        /// What was asked for.
        expected: DType,
        /// The file's, in the format's spelling.
        got: String,
    },
}

impl Misfit {
    pub(super) fn shape(name: &str, expected: &TensorType, got: &Shape) -> Self {
        Misfit::Shape { name: name.to_owned(), expected: expected.shape.clone(), got: got.clone() }
    }
}

/// One indented line each; of a long list its head, since a file of a million bad entries is one bad file.
fn lines<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 200;
    let mut text: String = items.iter().take(SHOWN).map(|i| format!("\n  {i}")).collect();
    if items.len() > SHOWN {
        text += &format!("\n  and {} more", items.len() - SHOWN);
    }
    text
}

fn unused_line(unused: &[String]) -> String {
    if unused.is_empty() {
        String::new()
    } else {
        format!("\n  in the file but not in the model: {}", unused.join(", "))
    }
}
