//! In: ops that only move elements; out: views of their inputs, copies where a view cannot say it.

use super::Located;
use super::selector::{Fault, Selector};
use crate::graph::{Node, NodeId, Op};

impl Selector<'_> {
    /// Reshape, permute, slice, broadcast and recompute look at their input's tensor.
    pub(super) fn view(&mut self, id: NodeId, node: &Node) -> Result<(), Fault> {
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
                    crate::kernel::View::dense(shape)
                }
            },
        };
        self.set(id.into(), Located { tensor: from.tensor, view, dtype: from.dtype, own: false });
        Ok(())
    }

    /// Every input is copied to its place in the output, unless it was written there.
    pub(super) fn concat(&mut self, id: NodeId, axis: usize) -> Result<(), Fault> {
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
}
