//! In: what a graph was evaluated on; out: [`ReferenceError`], naming what was expected and what came.

use crate::graph::{GraphError, Shape, TensorType};
use thiserror::Error;

/// A graph that cannot be evaluated on what was given.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ReferenceError {
    /// The graph breaks an invariant.
    #[error(transparent)]
    Graph(Box<GraphError>),
    /// An input or a parameter was not given.
    #[error("{kind} \"{name}\" is missing; expected {expected}")]
    Missing {
        /// Input or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Its type.
        expected: TensorType,
    },
    /// An input or a parameter has another type than the graph's.
    #[error("{kind} \"{name}\": expected {expected}, got {got}")]
    Type {
        /// Input or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The graph's type.
        expected: TensorType,
        /// What was given.
        got: TensorType,
    },
    /// A state's value has another shape than the graph's.
    #[error("state \"{name}\": expected {expected}, got {elements} elements of shape {got}")]
    State {
        /// The state's name.
        name: String,
        /// The graph's type.
        expected: TensorType,
        /// The shape that was given.
        got: Shape,
        /// How many elements were given.
        elements: usize,
    },
    /// A parameter does not lie within its storage.
    #[error("storage \"{storage}\" {shape}: parameter \"{part}\" {part_shape} at element {offset} is not within it")]
    Layout {
        /// The storage's name.
        storage: String,
        /// Its shape.
        shape: Shape,
        /// The parameter's name.
        part: String,
        /// Its shape.
        part_shape: Shape,
        /// Where it should start.
        offset: usize,
    },
    /// An index, position or length is out of range.
    #[error("{op} \"{node}\": {what} {index} (element {at}) is not within 0..{bound}")]
    Index {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// Index, position or length.
        what: &'static str,
        /// Its value.
        index: i64,
        /// Which element of the input holds it.
        at: usize,
        /// The smallest value that is too large.
        bound: usize,
    },
}

impl From<GraphError> for ReferenceError {
    fn from(error: GraphError) -> Self {
        ReferenceError::Graph(Box::new(error))
    }
}
