//! In: each stage's own error; out: [`Error`], the one that the public API returns.

use crate::gpu::GpuError;
use crate::grad::GradError;
use crate::graph::{GraphError, IndexBound, Shape, TensorType};
use crate::model::{CheckpointError, ConfigError, ModelError, VocabularyError};
use crate::plan::PlanError;
use crate::select::SelectError;
use crate::train::TrainError;
use crate::tune::{TuneError, TuningError};
use std::fmt;
use thiserror::Error;

/// What a call of the library can fail with. Its `Debug` is its words as well, since that is what a `main` that returns it
/// prints.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph cannot be built or rewritten.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A gradient cannot be taken.
    #[error(transparent)]
    Grad(#[from] GradError),
    /// A model's sizes do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A checkpoint is malformed or does not fit the model.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A config file is malformed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A text holds what the vocabulary lacks.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// A graph cannot be trained as asked.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A loss is NaN or infinite.
    #[error(
        "step {step}: the loss is {loss} at learning rate {learning_rate:e}; lower the rate, clip gradients with \
         clip_norm, or leave such steps out with skip_non_finite"
    )]
    Loss {
        /// The step's number, from 0.
        step: u64,
        /// Its loss.
        loss: f32,
        /// The rate it learned at.
        learning_rate: f64,
    },
    /// An option of compiling cannot be so.
    #[error("{option} is {got}, expected {expected}")]
    Option {
        /// The field of the options.
        option: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// A node cannot run on this device.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A memory plan does not hold: a fault in kiln.
    #[error("the memory plan does not hold, which is a fault in kiln: {0}")]
    Plan(#[from] PlanError),
    /// The device fails.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// What was measured elsewhere cannot be used here.
    #[error("the tuning cannot be used: {0}; tune on this device, or leave it out")]
    Tuning(#[from] TuningError),
    /// A parameter that the graph reads is not given.
    #[error(
        "parameter \"{name}\" ({expected}) is not given; load a checkpoint that has it or initialise it{}",
        unused_names(unused)
    )]
    MissingParameter {
        /// Its name.
        name: String,
        /// Its type.
        expected: TensorType,
        /// Names that were given and that the graph does not have, if their source can list them: often the missing one
        /// under another name.
        unused: Vec<String>,
    },
    /// A given parameter has another shape, or a type that does not convert.
    #[error("parameter \"{name}\": expected {expected}, got {got}; {}", parameter_advice(expected, got))]
    ParameterType {
        /// Its name.
        name: String,
        /// What the graph declares.
        expected: TensorType,
        /// What came.
        got: TensorType,
    },
    /// An input, state or output of this name does not exist, or is missing.
    #[error("{kind} \"{name}\" {what}; the program's {kind}s are: {known}")]
    Name {
        /// Input, state or output.
        kind: &'static str,
        /// The name.
        name: String,
        /// What is wrong.
        what: &'static str,
        /// The names there are.
        known: String,
    },
    /// An input or a state's new value has another type than the graph declares.
    #[error("{kind} \"{name}\": the program was compiled for {expected}, got {got}; {}", input_advice(expected, got))]
    InputType {
        /// Input or state.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What the graph declares.
        expected: TensorType,
        /// What came.
        got: TensorType,
    },
    /// A training's input is no row of micro-batches.
    #[error(
        "input \"{name}\": a step of {micro_batches} micro-batches takes {expected}, got {got}; put {micro_batches} batches \
         of {} one after the other along a leading dimension",
        Shape::from(expected.shape.dims().get(1..).unwrap_or_default())
    )]
    MicroBatches {
        /// Its name.
        name: String,
        /// How many a step takes.
        micro_batches: usize,
        /// What the step declares.
        expected: TensorType,
        /// What came.
        got: TensorType,
    },
    /// A state's new value lies on another device.
    #[error(
        "state \"{name}\": the tensor is not on the program's device; upload it by the session that compiled the program, \
         or read it and write the state from the host"
    )]
    OtherDevice {
        /// The state's name.
        name: String,
    },
    /// An input indexes past the end.
    #[error("input \"{name}\": element {element} is {value}, but {bound}")]
    Index {
        /// Its name.
        name: String,
        /// Position of the value, row-major.
        element: usize,
        /// The value.
        value: i64,
        /// What it may be.
        bound: IndexBound,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The head of a list of names, as the end of a sentence; nothing if there are none.
fn unused_names(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let quoted: Vec<String> = names.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
    let more = names.len().saturating_sub(SHOWN);
    match (quoted.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; given but not in the graph: {}", quoted.join(", ")),
        (false, _) => format!("; given but not in the graph: {} and {more} more", quoted.join(", ")),
    }
}

/// What to do about a parameter of another type.
fn parameter_advice(expected: &TensorType, got: &TensorType) -> String {
    let turned: Vec<usize> = got.shape.dims().iter().rev().copied().collect();
    match expected.dtype.is_float() {
        _ if got.shape.rank() == 2 && turned == expected.shape.dims() && turned != got.shape.dims() => {
            "transpose it: a linear's weight is (out, in), as in PyTorch".into()
        }
        _ if got.shape != expected.shape => "give one of that shape, or build the graph for this one".into(),
        true => "give f32, f16 or bf16: only floats are cast".into(),
        false => format!("give {}: only floats are cast", expected.dtype),
    }
}

/// What to do about an input, or a state's new value, of another type.
fn input_advice(expected: &TensorType, got: &TensorType) -> String {
    let shape = "compile one for this shape, or pad";
    let dtype = format!("give {}, since nothing is cast on the way in", expected.dtype);
    match (expected.dtype == got.dtype, expected.shape == got.shape) {
        (true, _) => shape.into(),
        (false, true) => dtype,
        (false, false) => format!("{dtype}, and {shape}"),
    }
}

impl From<TuneError> for Error {
    fn from(error: TuneError) -> Error {
        match error {
            TuneError::Select(error) => Error::Select(error),
            TuneError::Gpu(error) => Error::Gpu(error),
        }
    }
}
