//! In: each stage's own error; out: [`Error`], the one that the public API returns.

use crate::gpu::GpuError;
use crate::grad::GradError;
use crate::graph::{GraphError, IndexBound, TensorType};
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
    #[error("parameter \"{name}\" ({expected}) is not given; load a checkpoint that has it or initialise it")]
    MissingParameter {
        /// Its name.
        name: String,
        /// Its type.
        expected: TensorType,
    },
    /// A given parameter has another shape.
    #[error("parameter \"{name}\": expected {expected}, got {got}")]
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
    #[error(
        "{kind} \"{name}\": the program was compiled for {expected}, got {got}; compile one for this shape, or pad"
    )]
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

impl From<TuneError> for Error {
    fn from(error: TuneError) -> Error {
        match error {
            TuneError::Select(error) => Error::Select(error),
            TuneError::Gpu(error) => Error::Gpu(error),
        }
    }
}
