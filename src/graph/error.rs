//! In: what a builder was asked for; out: [`GraphError`], naming op, node, what was expected and what came.

use super::{DType, Shape, ValueId};
use thiserror::Error;

/// A graph that cannot be built.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GraphError {
    /// Two shapes do not go together.
    #[error("{op} \"{node}\": {what}: left {left}, right {right}{}", dimension(.dim))]
    Shapes {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// What is wrong.
        what: String,
        /// First shape.
        left: Shape,
        /// Second shape.
        right: Shape,
        /// Dimension of the result at which they differ.
        dim: Option<usize>,
    },
    /// An input has the wrong element type.
    #[error("{op} \"{node}\": input {input} is {got}, expected {expected}; insert a cast")]
    DType {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// Which input.
        input: usize,
        /// What it may be.
        expected: String,
        /// What it is.
        got: DType,
    },
    /// An attribute does not fit the input.
    #[error("{op} \"{node}\": {what}: expected {expected}, got {got}")]
    Attribute {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// Which attribute.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A wrong number of inputs.
    #[error("{op} \"{node}\": expected {expected} inputs, got {got}")]
    Arity {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// How many there may be.
        expected: String,
        /// How many there are.
        got: usize,
    },
    /// Two inputs, parameters, outputs or states share a name.
    #[error("{kind} \"{name}\" is declared twice; names of {kind}s are unique")]
    Duplicate {
        /// Input, parameter, output, state or update.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A value of another graph.
    #[error("{op} \"{node}\": {value} is no value of this graph; give it one that this graph's own calls returned")]
    Value {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// What it was given.
        value: ValueId,
    },
    /// A graph that a pass made breaks an invariant.
    #[error("graph is not valid at {op} \"{node}\": {what}")]
    Invalid {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// The invariant.
        what: String,
    },
}

fn dimension(dim: &Option<usize>) -> String {
    dim.map_or(String::new(), |d| format!(" (dimension {d})"))
}
