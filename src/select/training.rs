//! In: nodes of training: losses, gradients and steps of an optimiser; out: launches of their kernels.

use super::selector::{Done, Selector, around};
use super::{Located, TensorId, TensorKind};
use crate::graph::{AdamAttrs, CrossEntropyAttrs, DType, NodeId, Op, Shape};
use crate::kernel::{
    View, adam, cross_entropy, cross_entropy_grad, fill, magnitude, norm_grad, norm_param_grad, scatter, softmax_grad,
};

/// Logits as a kernel reads them: their tensor as (outer, n, inner).
struct Logits {
    tensor: TensorId,
    sizes: [usize; 3],
    /// How a tensor of that layout is seen as the logits are.
    view: View,
}

impl Selector<'_> {
    /// Weights and moments that are states, or rows of them, are stepped where they lie, and the weights in f16 made
    /// beside.
    pub(super) fn adam(&mut self, id: NodeId, attrs: &AdamAttrs) -> Done {
        let node = self.graph.node(id);
        let in_place = (0..3).all(|i| self.takes_state(id, i, node.inputs[i]));
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
        let new = if in_place { 3..node.outputs.len() } else { 0..3 };
        for output in new {
            tensors.push(self.output(id, output)?.tensor);
        }
        let weights = node.outputs[0].shape.elements();
        let sizes = [weights, self.graph.shape(node.inputs[4]).elements()];
        let mut launches = adam::launches(attrs, self.graph.ty(node.inputs[3]).dtype, sizes, in_place, self.caps)?;
        for operand in launches.iter_mut().flat_map(|l| &mut l.operands) {
            operand.offset += starts.get(operand.tensor).copied().unwrap_or(0);
        }
        self.emit(id, "", launches, &tensors, None)?;
        if attrs.narrow && !in_place {
            let (from, to) = (self.locate(id.into()), self.output(id, 3)?);
            self.copy_into(id, &from, &to)?;
        }
        Ok(())
    }

    /// The largest magnitude of all elements of the inputs.
    pub(super) fn magnitude(&mut self, id: NodeId) -> Done {
        let node = self.graph.node(id);
        let (mut types, mut tensors) = (Vec::new(), Vec::new());
        for value in &node.inputs {
            let elements = self.graph.shape(*value).elements();
            if elements > 0 {
                let dense = self.dense(id, *value)?;
                types.push((dense.dtype, elements));
                tensors.push(dense.tensor);
            }
        }
        let out = self.output(id, 0)?;
        if types.is_empty() {
            let zero = fill::constant(out.dtype, 0.0, 1, self.caps)?;
            return self.emit(id, "", zero, &[out.tensor], None);
        }
        tensors.push(out.tensor);
        let (launches, workspaces) = magnitude::launches(&types, self.caps)?;
        for elements in workspaces {
            tensors.push(self.raw_tensor(node, (elements * DType::F32.size()) as u64, TensorKind::Temp)?);
        }
        self.emit(id, "", launches, &tensors, None)
    }

    /// Logits whose classes lie side by side are read as they are, whatever their order of dimensions.
    fn logits(&mut self, id: NodeId, axis: usize) -> Done<Logits> {
        let value = self.graph.node(id).inputs[0];
        let located = self.locate(value);
        let rank = located.view.dims.len();
        let order: Vec<usize> = (0..rank).filter(|d| *d != axis).chain([axis]).collect();
        let last = located.view.permute(&order);
        if last.is_dense() && last.offset == 0 {
            let mut back: Vec<usize> = (0..rank - 1).collect();
            back.insert(axis, rank - 1);
            let n = last.dims[rank - 1];
            let view = View::dense(&Shape::from(last.dims.clone())).permute(&back);
            return Ok(Logits { tensor: located.tensor, sizes: [last.dims[..rank - 1].iter().product(), n, 1], view });
        }
        let shape = self.graph.shape(value);
        let (outer, n, inner) = around(shape, axis, 1);
        let view = View::dense(shape);
        Ok(Logits { tensor: self.dense(id, value)?.tensor, sizes: [outer, n, inner], view })
    }

    pub(super) fn cross_entropy(&mut self, id: NodeId, attrs: &CrossEntropyAttrs) -> Done {
        let node = self.graph.node(id);
        let logits = self.logits(id, attrs.axis)?;
        let labels = self.dense(id, node.inputs[1])?;
        let mut tensors = vec![logits.tensor, labels.tensor];
        for output in 0..2 {
            tensors.push(self.output(id, output)?.tensor);
        }
        let dtype = self.graph.ty(node.inputs[0]).dtype;
        let launches = cross_entropy::launches(attrs, dtype, logits.sizes, self.caps)?;
        self.emit(id, "", launches, &tensors, None)
    }

    /// The gradient lies as the logits do, and in their place where nothing reads them later.
    pub(super) fn cross_entropy_grad(&mut self, id: NodeId, attrs: &CrossEntropyAttrs) -> Done {
        let node = self.graph.node(id);
        let ty = &node.outputs[0];
        let Logits { tensor, sizes, view } = self.logits(id, attrs.axis)?;
        let in_place = self.may_overwrite_last(id, node.inputs[0], tensor);
        let mut tensors = vec![tensor];
        for value in &node.inputs[1..] {
            tensors.push(self.dense(id, *value)?.tensor);
        }
        let out = self.tensor(node, ty, TensorKind::Temp)?;
        tensors.push(out);
        let own = view.is_dense();
        self.set(id.into(), Located { tensor: out, view, dtype: ty.dtype, own });
        let launches = cross_entropy_grad::launches(attrs, ty.dtype, sizes, in_place, self.caps)?;
        self.emit(id, "", launches, &tensors, in_place.then_some(tensor))
    }

    pub(super) fn softmax_grad(&mut self, id: NodeId, axis: usize, log: bool) -> Done {
        let (outer, n, inner) = around(&self.graph.node(id).outputs[0].shape, axis, 1);
        self.rowwise(id, &[0, 1], |dtype, caps| softmax_grad::launches(dtype, log, outer, n, inner, caps))
    }

    /// dx of a layer norm or an RMS norm, added to another gradient where there is one.
    pub(super) fn norm_grad(&mut self, id: NodeId) -> Done {
        let node = self.graph.node(id);
        let rms = node.op == Op::RmsNormGrad;
        let (rows, width) = (node.outputs[0].shape.rows(), node.outputs[0].shape.last());
        let inputs: Vec<usize> = (0..node.inputs.len()).collect();
        let add = inputs.len() > if rms { 4 } else { 5 };
        self.rowwise(id, &inputs, |dtype, caps| norm_grad::launches([rms, add], dtype, rows, width, caps))
    }

    /// dγ, and dβ of a layer norm.
    pub(super) fn norm_param_grad(&mut self, id: NodeId) -> Done {
        let node = self.graph.node(id);
        let rms = node.op == Op::RmsNormParamGrad;
        let x = self.graph.ty(node.inputs[0]);
        let (rows, width) = (x.shape.rows(), x.shape.last());
        let mut tensors = Vec::new();
        for value in &node.inputs {
            tensors.push(self.dense(id, *value)?.tensor);
        }
        for output in 0..node.outputs.len() {
            let made = self.output(id, output)?.tensor;
            if rows == 0 {
                let zeros = fill::constant(x.dtype, 0.0, width, self.caps)?;
                self.emit(id, "", zeros, &[made], None)?;
            }
            tensors.push(made);
        }
        let (launches, workspace) = norm_param_grad::launches(rms, x.dtype, rows, width, self.caps)?;
        if workspace > 0 {
            tensors.push(self.raw_tensor(node, workspace as u64, TensorKind::Temp)?);
        }
        self.emit(id, "", launches, &tensors, None)
    }

    /// A table of zeros, to which rows are added.
    pub(super) fn embedding_grad(&mut self, id: NodeId, rows: usize) -> Done {
        let node = self.graph.node(id);
        let (dy, index) = (self.dense(id, node.inputs[0])?, self.dense(id, node.inputs[1])?);
        let (width, count) = (node.outputs[0].shape.last(), index.view.elements());
        let out = self.output(id, 0)?;
        let zeros = fill::constant(out.dtype, 0.0, rows * width, self.caps)?;
        self.emit(id, "zeros", zeros, &[out.tensor], None)?;
        let launches = scatter::launches(out.dtype, index.dtype, rows, width, count, self.caps)?;
        self.emit(id, "", launches, &[dy.tensor, index.tensor, out.tensor], None)
    }
}
