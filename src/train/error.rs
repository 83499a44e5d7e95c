//! In: what makes a graph unfit for training; out: [`TrainError`], with what to do. Knows graphs' errors alone.

use crate::grad::{GradError, to_loss};
use crate::graph::{DType, GraphError, TensorType};
use thiserror::Error;

/// A graph that cannot be trained as asked.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum TrainError {
    /// The graph has no output "loss".
    #[error(
        "the graph has no output \"loss\" to train on; its outputs are: {found}; build it with build_training, or name the scalar so"
    )]
    NoLoss {
        /// The outputs there are.
        found: String,
    },
    /// The output "loss" is no f32 scalar.
    #[error("output \"loss\" is {got}, expected f32 (); {}", to_loss(got))]
    LossType {
        /// Its type.
        got: TensorType,
    },
    /// An option cannot be so.
    #[error("{option} is {got}, expected {expected}")]
    Option {
        /// The field of the options.
        option: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// A group names no parameter of the graph.
    #[error("a group names parameters that the graph does not have: {missing}; it has: {found}")]
    Group {
        /// What is not there.
        missing: String,
        /// Parameters there are.
        found: String,
    },
    /// The loss is made of no parameter.
    #[error(
        "no parameter is trained: the loss is made of none; build it with b.parameter(…) for what is to be trained"
    )]
    NoParameters,
    /// All parameters are frozen.
    #[error("no parameter is trained: {parameters} parameters, all frozen; leave one out of the frozen groups")]
    NothingTrained {
        /// How many there are.
        parameters: usize,
    },
    /// A trained parameter is not f32.
    #[error(
        "parameter \"{name}\" is {got}, expected f32: training keeps weights in f32; freeze it or build the model in f32"
    )]
    ParameterType {
        /// Its storage's name.
        name: String,
        /// Its type.
        got: DType,
    },
    /// The forward graph updates a parameter itself.
    #[error("parameter \"{name}\" is updated by the forward graph itself; remove that update")]
    Updated {
        /// Its storage's name.
        name: String,
    },
    /// An output, input or parameter has a name that a step gives to one of its own.
    #[error("{kind} \"{name}\" has the name of a training step's own {own}; give it another in the forward graph")]
    OwnName {
        /// Output, input or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What has that name.
        own: &'static str,
    },
    /// A gradient does not exist.
    #[error(transparent)]
    Grad(#[from] GradError),
    /// The graph refused an op.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
