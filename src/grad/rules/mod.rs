//! In: a node and the gradients of its outputs; out: the gradients of its inputs, as nodes. The one table of rules:
//! one match over every op, which knows nothing of the order in which nodes are walked.
//!
//! Each rule is one function; files group them by what the ops have in common. A rule asks for a forward value only
//! where it reads it, for it may have to be computed anew.

mod elementwise;
mod movement;
mod products;
mod rows;
mod stack;

use super::GradError;
use super::walk::Local;
use crate::graph::Op;

type Done = Result<(), GradError>;

const FUSED: &str = "a fused op has no gradient; differentiate the graph before it is fused";
const SECOND: &str = "a gradient has no gradient of its own; differentiate once, from a loss of forward values";
const MAGNITUDE: &str = "it is for looking at gradients; in a loss use absmax of each value";
const OPTIMISER: &str = "an optimiser's step has no gradient; take the loss from values before it";

/// Gives every input that is wanted its gradient.
pub(super) fn apply(c: &mut Local) -> Done {
    let node = c.node;
    match &node.op {
        // no inputs, or a result that carries no gradient
        Op::Input | Op::Parameter(_) | Op::Constant(..) | Op::Arange(_) | Op::CausalMask(..) => Ok(()),
        Op::Compare(_) | Op::Arg(..) => Ok(()),

        Op::Unary(f) => elementwise::unary(c, *f),
        Op::Binary(f) => elementwise::binary(c, *f),
        Op::Where => elementwise::select(c),
        Op::MaskedFill(_) => elementwise::masked_fill(c),
        Op::Cast(_) => elementwise::cast(c),
        Op::Dropout(attrs) => elementwise::dropout(c, *attrs),

        Op::Reshape(_) => movement::reshape(c),
        Op::Permute(perm) => movement::permute(c, perm),
        Op::Slice { axis, start, .. } => movement::slice(c, *axis, *start),
        Op::Concat(axis) => movement::concat(c, *axis),
        Op::Broadcast(_) => movement::broadcast(c),
        Op::PickRow => movement::pick_row(c),
        Op::Recompute(_) => movement::recompute(c),

        Op::Matmul { transpose_a, transpose_b } => products::matmul(c, *transpose_a, *transpose_b),
        Op::Linear => products::linear(c),
        Op::LinearStack(activation) => stack::linear_stack(c, *activation),
        Op::Attention(attrs) => products::attention(c, *attrs),

        Op::Softmax(axis) => rows::softmax(c, Op::SoftmaxGrad(*axis)),
        Op::LogSoftmax(axis) => rows::softmax(c, Op::LogSoftmaxGrad(*axis)),
        Op::LayerNorm(_) => rows::layernorm(c),
        Op::RmsNorm(_) => rows::rmsnorm(c),
        Op::Reduce { kind, axes, .. } => rows::reduce(c, *kind, axes),
        Op::Embedding => rows::embedding(c),
        Op::CrossEntropy(attrs) => rows::cross_entropy(c, *attrs),

        Op::CrossEntropyGrad(_)
        | Op::SoftmaxGrad(_)
        | Op::LogSoftmaxGrad(_)
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::RmsNormGrad
        | Op::RmsNormParamGrad
        | Op::EmbeddingGrad(_)
        | Op::LinearGrad { .. }
        | Op::LinearStackGrad(_)
        | Op::LinearStackParamGrad
        | Op::AttentionGrad(_) => Err(c.no_rule(SECOND)),
        Op::Adam(_) => Err(c.no_rule(OPTIMISER)),
        Op::Magnitude => Err(c.no_rule(MAGNITUDE)),
        Op::Elementwise(_) | Op::FusedMatmul { .. } | Op::AddLayerNorm(_) => Err(c.no_rule(FUSED)),
    }
}
