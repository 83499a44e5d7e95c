//! In: stacks of linear layers and their gradients; out: launches of the kernel that carries rows through all layers,
//! with weights stored (layers, in, out) or copied so, and of one batched product for all layers' weights.

use super::selector::{Done, Selector};
use super::units::OfUnits;
use super::{Located, TensorId};
use crate::graph::{Activation, Chain, NodeId, Op, Shape, ValueId};
use crate::kernel::linear_stack::{Backward, Forward};
use crate::kernel::matmul::Matmul;
use crate::kernel::{View, fill};

impl Selector<'_> {
    /// y and, where the backward pass reads it, what each layer reads.
    pub(super) fn linear_stack(&mut self, id: NodeId, activation: Activation) -> Done {
        let node = self.graph.node(id);
        let x = self.quads(id, node.inputs[0])?;
        let w = self.stacked_weights(id, node.inputs[1])?;
        let b = match node.inputs.get(2) {
            Some(b) => Some(self.quads(id, *b)?),
            None => None,
        };
        let y = self.output(id, 0)?;
        let kept = if self.is_used(id, 1) { Some(self.output(id, 1)?) } else { None };
        if y.view.elements() == 0 {
            return Ok(());
        }
        let rows = node.outputs[0].shape.rows();
        let launches = Forward {
            activation,
            dtype: y.dtype,
            rows,
            x: &x.view,
            w: &w.view,
            b: b.as_ref().map(|b| &b.view),
            keep: kept.is_some(),
        }
        .launches(self.caps)?;
        // positions of operands are fixed; what is not there is bound by no launch
        let at = |l: &Option<Located>| l.as_ref().map_or(x.tensor, |l| l.tensor);
        let tensors = [x.tensor, w.tensor, at(&b), y.tensor, at(&kept)];
        self.emit(id, "", launches, &tensors, None)
    }

    /// dx and the gradient of each layer's sums.
    pub(super) fn linear_stack_grad(&mut self, id: NodeId, activation: Activation) -> Done {
        let node = self.graph.node(id);
        let mut read: Vec<Located> = Vec::new();
        for value in &node.inputs {
            read.push(self.quads(id, *value)?);
        }
        let [w, kept, y, dy] = &read[..] else { unreachable!("inference has counted the inputs") };
        let (dx, dz) = (self.output(id, 0)?, self.output(id, 1)?);
        if dx.view.elements() == 0 {
            return Ok(());
        }
        let rows = node.outputs[0].shape.rows();
        let backward =
            Backward { activation, dtype: dx.dtype, rows, w: &w.view, kept: &kept.view, y: &y.view, dy: &dy.view };
        let launches = backward.launches(self.caps)?;
        let tensors = [w.tensor, kept.tensor, y.tensor, dy.tensor, dx.tensor, dz.tensor];
        self.emit(id, "", launches, &tensors, None)
    }

    /// dW = dzᵀ · x and db, of all layers at once.
    pub(super) fn linear_stack_param_grad(&mut self, id: NodeId) -> Done {
        let node = self.graph.node(id);
        let shape = self.graph.shape(node.inputs[0]);
        let (layers, n) = (shape.dims()[0], shape.last());
        let dw = self.output(id, 0)?;
        let db = if self.is_used(id, 1) { Some(self.output(id, 1)?) } else { None };
        if shape.elements() == 0 {
            // sums of no rows
            for out in std::iter::once(&dw).chain(&db).filter(|out| out.view.elements() > 0) {
                let zeros = fill::constant(out.dtype, 0.0, out.view.elements(), self.caps)?;
                self.emit(id, "", zeros, &[out.tensor], None)?;
            }
            return Ok(());
        }
        let matrices = View::dense(&Shape::from([layers, shape.elements() / layers / n, n]));
        let (x, dz) = (self.dense(id, node.inputs[0])?, self.dense(id, node.inputs[1])?);
        let turned = matrices.permute(&[0, 2, 1]);
        let (of_dz, of_x) =
            (Located { view: turned.clone(), ..dz.clone() }, Located { view: matrices.clone(), ..x.clone() });
        let operands = [(node.inputs[1], &of_dz), (node.inputs[0], &of_x)];
        let sizes = [n, n, matrices.dims[1]];
        let on_units = self.on_units(id, operands, sizes, 3 + usize::from(db.is_some()), db.is_some())?;
        let exponents = on_units.as_ref().and_then(|u| u.exponents.as_ref());
        let product = Matmul {
            dtype: x.dtype,
            out: dw.dtype,
            a: &turned,
            b: &matrices,
            c: &dw.view,
            epilogue: &Chain::identity(),
            extras: &[],
            in_place: None,
            slice: None,
            sums: db.as_ref().map(|db| &db.view),
            units: on_units.as_ref().map(OfUnits::of_product),
        };
        let launches = product.launches(self.caps)?;
        let mut tensors: Vec<TensorId> = vec![dz.tensor, x.tensor, dw.tensor];
        tensors.extend(db.map(|db| db.tensor));
        tensors.extend(exponents.into_iter().flatten().map(|e| e.tensor));
        self.emit(id, "", launches, &tensors, None)
    }

    /// Whether a node reads a value as the weights of its stack and nothing else.
    pub(super) fn reads_as_stack(&self, reader: NodeId, value: ValueId) -> bool {
        let node = self.graph.node(reader);
        matches!(node.op, Op::LinearStack(_)) && node.inputs.iter().enumerate().all(|(i, v)| (*v == value) == (i == 1))
    }

    /// Weights (L, N, N) as (L, in, out): stored so, or copied.
    fn stacked_weights(&mut self, id: NodeId, value: ValueId) -> Done<Located> {
        let dtype = self.graph.ty(value).dtype;
        if let Op::Parameter(storage) = self.graph.producer(value).op
            && let Some([weight]) = self.transposed.get(&storage).map(Vec::as_slice)
        {
            let view = View::dense(self.graph.shape(value));
            return Ok(Located { tensor: weight.tensor, view, dtype, own: false });
        }
        let mut located = self.locate(value);
        located.view = located.view.permute(&[0, 2, 1]);
        self.copy(id, &located)
    }

    /// Where a value is dense and starts at a whole vec4.
    fn quads(&mut self, id: NodeId, value: ValueId) -> Done<Located> {
        let located = self.locate(value);
        if located.view.is_dense() && located.view.offset.is_multiple_of(4) {
            return Ok(located);
        }
        self.dense(id, value)
    }
}
