//! In: a model's choice of loss; out: its scalar in a graph that is being built. Knows graph's builder only.

use super::ModelError;
use crate::graph::{Builder, CrossEntropy, ValueId};
use std::fmt;

/// What a model is trained on; classes lie at axis 1, as in the seed, and the loss is the mean over all targets.
/// Others are written with [`Builder`]'s own losses on what a model's `forward` gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Cross entropy of the logits.
    #[default]
    CrossEntropy,
    /// The seed's: softmax, then cross entropy of its result, as if that were logits.
    Seed,
}

impl Loss {
    pub(super) fn build(self, b: &mut Builder, logits: ValueId, targets: ValueId) -> Result<ValueId, ModelError> {
        let options = CrossEntropy::default();
        Ok(b.scope("loss", |b| match self {
            Loss::CrossEntropy => b.cross_entropy(logits, targets, options),
            Loss::Seed => b.seed_loss(logits, targets, options),
        })?)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::CrossEntropy => "cross entropy",
            Loss::Seed => "softmax, then cross entropy",
        })
    }
}
