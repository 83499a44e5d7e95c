//! In: stacks of linear layers and their gradients; out: launches of the kernel that carries rows through all layers,
//! with weights stored (layers, in, out) or copied so, or packed as matrices of the device's units, and of one batched
//! product for all layers' weights.

use super::selector::{Done, Selector};
use super::units::OfUnits;
use super::{Located, TensorId, TensorKind};
use crate::graph::{Activation, Chain, DType, NodeId, Op, Shape, ValueId};
use crate::kernel::linear_stack::{Backward, Forward, Weights, takes_units};
use crate::kernel::matmul::Matmul;
use crate::kernel::units::Units;
use crate::kernel::{View, fill, pack_weights};

/// The weights of a stack as matrices of a device's units.
struct Packed {
    layers: usize,
    units: Units,
    matrices: TensorId,
    /// What undoes the scales of f32 ones.
    factors: Option<TensorId>,
}

impl Selector<'_> {
    /// y and, where the backward pass reads it, what each layer reads.
    pub(super) fn linear_stack(&mut self, id: NodeId, activation: Activation) -> Done {
        let node = self.graph.node(id);
        let x = self.quads(id, node.inputs[0])?;
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
        let packed = self.packed_weights(id, node.inputs[1], rows, false)?;
        let dense = match packed {
            Some(_) => None,
            None => Some(self.stacked_weights(id, node.inputs[1])?),
        };
        let (w, of_w) = operand(&packed, dense.as_ref());
        let launches = Forward {
            activation,
            dtype: y.dtype,
            rows,
            x: &x.view,
            w,
            b: b.as_ref().map(|b| &b.view),
            keep: kept.is_some(),
        }
        .launches(self.caps)?;
        // positions of operands are fixed; what is not there is bound by no launch
        let at = |l: &Option<Located>| l.as_ref().map_or(x.tensor, |l| l.tensor);
        let tensors = [x.tensor, of_w[0], at(&b), y.tensor, at(&kept), of_w[1]];
        self.emit(id, "", launches, &tensors, None)
    }

    /// dx and the gradient of each layer's sums.
    pub(super) fn linear_stack_grad(&mut self, id: NodeId, activation: Activation) -> Done {
        let node = self.graph.node(id);
        let mut read: Vec<Located> = Vec::new();
        for value in &node.inputs[1..] {
            read.push(self.quads(id, *value)?);
        }
        let [kept, y, dy] = &read[..] else { unreachable!("inference has counted the inputs") };
        let (dx, dz) = (self.output(id, 0)?, self.output(id, 1)?);
        if dx.view.elements() == 0 {
            return Ok(());
        }
        let rows = node.outputs[0].shape.rows();
        let packed = self.packed_weights(id, node.inputs[0], rows, true)?;
        let dense = match packed {
            Some(_) => None,
            None => Some(self.quads(id, node.inputs[0])?),
        };
        let (w, of_w) = operand(&packed, dense.as_ref());
        let backward = Backward { activation, dtype: dx.dtype, rows, w, kept: &kept.view, y: &y.view, dy: &dy.view };
        let launches = backward.launches(self.caps)?;
        let tensors = [of_w[0], kept.tensor, y.tensor, dy.tensor, dx.tensor, dz.tensor, of_w[1]];
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
        let on_units = self.on_units(id, operands, sizes, 3 + usize::from(db.is_some()))?;
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

    /// Weights (L, out, in) as matrices for products with rows of inputs, or `backward` with rows of gradients; `None`
    /// where multiply-adds in f32 carry the rows.
    fn packed_weights(&mut self, id: NodeId, value: ValueId, rows: usize, backward: bool) -> Done<Option<Packed>> {
        let ty = self.graph.ty(value);
        let (layers, width, dtype) = (ty.shape.dims()[0], ty.shape.last(), ty.dtype);
        let Some(units) = self.units(dtype) else { return Ok(None) };
        if backward && units.split {
            self.report_product(id, "three products a number are no faster backwards than multiply-adds".into());
            return Ok(None);
        }
        if !takes_units(width, rows, dtype, units, self.caps) {
            if dtype == DType::F32 {
                self.report_product(id, format!("matrix units do not carry {rows} rows of {width}"));
            }
            return Ok(None);
        }
        let node = self.graph.node(id);
        let located = match self.stored_transposed(value) {
            Some(weight) => Located { view: weight.view.permute(&[0, 2, 1]), ..weight },
            None => self.locate(value),
        };
        let order = if backward { [0, 2, 1] } else { [0, 1, 2] };
        let launch = pack_weights::launch(&located.view.permute(&order), dtype, units, self.caps)?;
        let [matrices, factors] = pack_weights::packed_bytes(layers, width, dtype, units);
        let matrices = self.raw_tensor(node, matrices as u64, TensorKind::Temp)?;
        let factors = match factors {
            0 => None,
            bytes => Some(self.raw_tensor(node, bytes as u64, TensorKind::Temp)?),
        };
        self.emit(id, "pack", vec![launch], &[located.tensor, matrices, factors.unwrap_or(matrices)], None)?;
        Ok(Some(Packed { layers, units, matrices, factors }))
    }

    /// Weights (L, N, N) that the host stores as (L, in, out), seen so.
    fn stored_transposed(&self, value: ValueId) -> Option<Located> {
        let [weight] = &self.transposed.get(&value.node)?[..] else { return None };
        let ty = self.graph.ty(value);
        Some(Located { tensor: weight.tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: false })
    }

    /// Weights (L, N, N) as (L, in, out): stored so, or copied.
    fn stacked_weights(&mut self, id: NodeId, value: ValueId) -> Done<Located> {
        if let Some(weight) = self.stored_transposed(value) {
            return Ok(weight);
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

/// What a stack's launch reads its weights from, and the tensors of them and of their factors.
fn operand<'a>(packed: &Option<Packed>, dense: Option<&'a Located>) -> (Weights<'a>, [TensorId; 2]) {
    match (packed, dense) {
        (Some(p), _) => (Weights::Packed(p.layers, p.units), [p.matrices, p.factors.unwrap_or(p.matrices)]),
        (None, Some(w)) => (Weights::Dense(&w.view), [w.tensor; 2]),
        (None, None) => unreachable!("weights that are not packed are located"),
    }
}
