//! In: what cannot be differentiated; out: [`GradError`], naming op and node, what came and what to do. Knows only types
//! of values.

use crate::graph::{DType, GraphError, TensorType};
use thiserror::Error;

/// A gradient that cannot be taken.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GradError {
    /// The graph is not valid, or a backward node does not fit: a fault in a rule.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// What is to be differentiated is not one number.
    #[error("loss \"{node}\" is {got}, expected f32 (); {}", to_loss(got))]
    Loss {
        /// The node that makes it.
        node: String,
        /// Its type.
        got: TensorType,
    },
    /// A gradient is asked of what has none.
    #[error("\"{node}\" is {got}, but only f32 and f16 values have gradients; ask for those it is computed from")]
    Type {
        /// The node that makes it.
        node: String,
        /// Its type.
        got: TensorType,
    },
    /// A gradient arrives where no rule takes it further.
    #[error("{op} \"{node}\": {what}")]
    NoRule {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// What has no gradient, and what to do.
        what: &'static str,
    },
    /// The graph lacks the output that is to be differentiated.
    #[error("output \"{name}\" is not in the graph; its outputs are: {known}")]
    Output {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A gradient is asked of a parameter that the graph lacks.
    #[error("parameter \"{name}\" is not in the graph; its parameters are: {known}")]
    Parameter {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Segments of no blocks.
    #[error("a checkpoint every 0 blocks: expected at least 1, or no checkpoints")]
    Every,
    /// A graph without numbered blocks.
    #[error(
        "no node is named \"blocks.N…\" or \"layers.N…\", so there is nothing to put checkpoints between; name a scope so, or use no checkpoints"
    )]
    NoBlocks,
}

/// What makes one f32 of a value.
pub(crate) fn to_loss(got: &TensorType) -> &'static str {
    match (got.shape.rank(), got.dtype) {
        (0, _) => "cast it to f32",
        (_, DType::F32) => "reduce it with sum or mean over all its axes",
        _ => "cast it to f32 and reduce it with sum or mean over all its axes",
    }
}
