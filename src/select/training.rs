//! In: nodes of training: losses, gradients and steps of an optimiser; out: launches of their kernels.

use super::TensorId;
use super::selector::{Done, Selector};
use crate::graph::{AdamAttrs, NodeId};
use crate::kernel::adam;

impl Selector<'_> {
    /// Weights and moments that are states are stepped where they lie.
    pub(super) fn adam(&mut self, id: NodeId, attrs: &AdamAttrs) -> Done {
        let node = self.graph.node(id);
        let in_place = (0..3).all(|i| self.takes_state(id, i, node.inputs[i]));
        let mut tensors: Vec<TensorId> = Vec::new();
        for value in &node.inputs {
            tensors.push(self.dense(id, *value)?.tensor);
        }
        for output in 0..3 {
            if in_place {
                self.overwrite_state(id, output, node.inputs[output]);
            } else {
                tensors.push(self.output(id, output)?.tensor);
            }
        }
        let weights = node.outputs[0].shape.elements();
        let launches = adam::launches(attrs, self.graph.ty(node.inputs[3]).dtype, weights, in_place, self.caps)?;
        self.emit(id, "", launches, &tensors, None)
    }
}
