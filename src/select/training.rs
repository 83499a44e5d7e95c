//! In: nodes of training: losses, gradients and steps of an optimiser; out: launches of their kernels.

use super::TensorId;
use super::selector::{Done, Selector};
use crate::graph::{AdamAttrs, NodeId, ValueId};
use crate::kernel::adam;

impl Selector<'_> {
    /// Weights and moments that are states, or rows of them, are stepped where they lie.
    pub(super) fn adam(&mut self, id: NodeId, attrs: &AdamAttrs) -> Done {
        let node = self.graph.node(id);
        let in_place = (0..3).all(|i| self.takes_state(id, i, node.inputs[i]) && self.is_whole_quads(node.inputs[i]));
        let mut tensors: Vec<TensorId> = Vec::new();
        let mut starts = [0; 3];
        for (i, value) in node.inputs.iter().enumerate() {
            match starts.get_mut(i).filter(|_| in_place) {
                Some(start) => {
                    let located = self.overwrite_state(id, i, *value);
                    *start = (located.view.offset * located.dtype.size()) as u64;
                    tensors.push(located.tensor);
                }
                None => tensors.push(self.dense(id, *value)?.tensor),
            }
        }
        for output in (0..3).filter(|_| !in_place) {
            tensors.push(self.output(id, output)?.tensor);
        }
        let weights = node.outputs[0].shape.elements();
        let mut launches = adam::launches(attrs, self.graph.ty(node.inputs[3]).dtype, weights, in_place, self.caps)?;
        for operand in launches.iter_mut().flat_map(|l| &mut l.operands) {
            operand.offset += starts.get(operand.tensor).copied().unwrap_or(0);
        }
        self.emit(id, "", launches, &tensors, None)
    }

    /// Whether the part of a state that a value looks at can be bound by itself and written four elements at a time.
    fn is_whole_quads(&self, value: ValueId) -> bool {
        let located = self.locate(value);
        let (start, end) = (located.view.offset, located.view.offset + located.view.elements());
        let bytes = |elements: usize| (elements * located.dtype.size()) as u64;
        let at_the_end = bytes(end) == self.out.tensors[located.tensor.0].bytes;
        bytes(start).is_multiple_of(self.caps.storage_align) && (end.is_multiple_of(4) || at_the_end)
    }
}
