//! In: ops that only move elements; out: views of their inputs, copies where a view cannot say it.

use super::selector::{Done, Selector, compute_type};
use super::{Located, TensorKind};
use crate::graph::{Chain, Node, NodeId, Op, Shape, TensorType, ValueId};
use crate::kernel::View;
use crate::kernel::elementwise::Elementwise;

impl Selector<'_> {
    /// Reshape, permute, slice, broadcast and recompute look at their input's tensor.
    pub(super) fn view(&mut self, id: NodeId, node: &Node) -> Done {
        let mut from = self.locate(node.inputs[0]);
        let shape = &node.outputs[0].shape;
        let view = match &node.op {
            Op::Permute(perm) => from.view.permute(perm),
            Op::Slice { axis, start, len } => from.view.slice(*axis, *start, *len),
            Op::Broadcast(shape) => from.view.broadcast(shape.dims()),
            Op::Recompute(_) => from.view.clone(),
            _ => match from.view.reshape(shape) {
                Some(view) => view,
                None => {
                    from = self.dense(id, node.inputs[0])?;
                    View::dense(shape)
                }
            },
        };
        self.set(id.into(), Located { tensor: from.tensor, view, dtype: from.dtype, own: false });
        Ok(())
    }

    /// Every input is copied to its place in the output, unless it was written there.
    pub(super) fn concat(&mut self, id: NodeId, axis: usize) -> Done {
        let node = self.graph.node(id);
        let out = self.concat_place(id)?;
        let mut start = 0;
        for value in &node.inputs {
            let from = self.locate(*value);
            let len = from.view.dims[axis];
            if self.parts.place(*value).is_some_and(|(concat, ..)| concat == id) {
                start += len;
                continue;
            }
            let to = Located { view: out.view.slice(axis, start, len), ..out.clone() };
            self.copy_into(id, &from, &to)?;
            start += len;
        }
        Ok(())
    }

    /// A dense copy of a view, in the order of its dimensions.
    pub(super) fn copy(&mut self, id: NodeId, from: &Located) -> Done<Located> {
        let node = self.graph.node(id);
        let shape = Shape::from(from.view.dims.clone());
        let tensor = self.tensor(node, &TensorType { dtype: from.dtype, shape: shape.clone() }, TensorKind::Temp)?;
        let to = Located { tensor, view: View::dense(&shape), dtype: from.dtype, own: false };
        self.copy_into(id, from, &to)?;
        Ok(to)
    }

    /// Copies a view onto another of the same sizes.
    pub(super) fn copy_into(&mut self, id: NodeId, from: &Located, to: &Located) -> Done {
        if to.view.elements() == 0 {
            return Ok(());
        }
        let chain = Chain { arity: 1, steps: Vec::new() };
        let inputs = [(from.dtype, from.view.clone())];
        let copy = Elementwise {
            chain: &chain,
            inputs: &inputs,
            out: (to.dtype, &to.view),
            compute: compute_type(from.dtype),
            in_place: None,
        };
        let launches = copy.launches(self.caps)?;
        self.emit(id, "copy", launches, &[from.tensor, to.tensor], None)
    }

    /// Where a value is as a dense tensor from its first byte, copied there by `reader` if need be.
    pub(super) fn dense(&mut self, reader: NodeId, value: ValueId) -> Done<Located> {
        let located = self.locate(value);
        if located.view.is_dense() && located.view.offset == 0 {
            return Ok(located);
        }
        if let Some(copy) = self.dense.get(&value) {
            return Ok(copy.clone());
        }
        let copy = self.copy(reader, &located)?;
        self.dense.insert(value, copy.clone());
        Ok(copy)
    }
}
