//! In: matmul and linear nodes and the weights they read; out: launches of the matmul kernels, with weights stored
//! transposed and in pieces that one binding covers.

use super::selector::{Fault, Selector};
use super::{Located, TensorId, TensorKind, Weight};
use crate::graph::{Chain, DType, Node, NodeId, Op, StorageId, ValueId};
use crate::kernel::elementwise::Elementwise;
use crate::kernel::matmul::{Matmul, OnUnits};
use crate::kernel::{KernelError, View, fill};
use std::ops::Range;

/// Columns of a piece of a weight are a multiple of this where there is more than one, so that tiles stay whole.
const PIECE: usize = 128;

impl Selector<'_> {
    /// A weight that only linears read, each as its right operand, is stored transposed in pieces; any other as it is,
    /// and so is one that is trained, which is a state.
    pub(super) fn parameter(&mut self, id: NodeId, storage: StorageId) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let ty = &node.outputs[0];
        let value = ValueId::from(id);
        if self.graph.is_state(id) {
            let tensor = self.state(id)?;
            self.out.weights.push(Weight { tensor, storage, columns: None, exponents: false });
            return Ok(());
        }
        let is_weight = |op: &Op| {
            matches!(op, Op::Linear) || matches!(op, Op::FusedMatmul { transpose_a: false, transpose_b: true, .. })
        };
        let readers = &self.consumers[id.0];
        let as_weight =
            |n: &Node| is_weight(&n.op) && n.inputs.iter().enumerate().all(|(i, v)| (*v == value) == (i == 1));
        // each reader reads it once, so any further use is an output or an update
        let once = !readers.is_empty() && self.uses[id.0][0] == readers.len();
        if once && readers.iter().all(|r| self.reads_as_stack(*r, value)) {
            let tensor = self.tensor(node, ty, TensorKind::Weight)?;
            let weight = Weight { tensor, storage, columns: Some(0..ty.shape.last()), exponents: false };
            self.out.weights.push(weight.clone());
            self.transposed.insert(id, vec![weight]);
            return Ok(());
        }
        let linear_only = once && ty.shape.rank() == 2 && readers.iter().all(|r| as_weight(self.graph.node(*r)));
        if !linear_only {
            let tensor = self.tensor(node, ty, TensorKind::Weight)?;
            self.out.weights.push(Weight { tensor, storage, columns: None, exponents: false });
            self.set(value, Located { tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: false });
            return Ok(());
        }
        let (n, k) = (ty.shape.dims()[0], ty.shape.dims()[1]);
        let column = (k * ty.dtype.size()) as u64;
        let mut pieces = Vec::new();
        for columns in self.pieces(n, column) {
            let tensor = self.raw_tensor(node, column * columns.len() as u64, TensorKind::Weight)?;
            let weight = Weight { tensor, storage, columns: Some(columns), exponents: false };
            self.out.weights.push(weight.clone());
            pieces.push(weight);
        }
        self.transposed.insert(id, pieces);
        Ok(())
    }

    /// Columns of so many bytes, dealt to pieces that one binding covers.
    pub(super) fn pieces(&self, n: usize, column: u64) -> Vec<Range<usize>> {
        let limit = self.caps.max_binding_bytes.min(self.caps.max_buffer_bytes);
        let most = ((limit / column.max(1)) as usize).max(1);
        let most = if n <= most { n } else { (most / PIECE * PIECE).max(most.min(PIECE)) };
        (0..n).step_by(most.max(1)).map(|start| start..n.min(start + most)).collect()
    }

    /// `epilogue(a · b, extras…)`.
    pub(super) fn product(
        &mut self,
        id: NodeId,
        transpose_a: bool,
        transpose_b: bool,
        epilogue: &Chain,
        extras: &[ValueId],
    ) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let ty = &node.outputs[0];
        let dims = ty.shape.dims();
        let rank = dims.len();
        let mut a = self.locate(node.inputs[0]);
        if transpose_a {
            a.view = swap_last(&a.view);
        }
        let k = *a.view.dims.last().unwrap_or(&0);
        // a vector times a matrix has one row
        let row = rank == 1;
        let with_row = |view: View| if row { insert_row(&view) } else { view };
        let part = self.parts.place(id.into()).is_some();
        let in_place = extras.iter().position(|v| !part && self.graph.ty(*v) == ty && self.may_overwrite(*v));
        let located: Vec<Located> = extras.iter().map(|v| self.locate(*v)).collect();
        let out = self.output_or_part(id, 0)?;
        if ty.shape.elements() == 0 {
            return Ok(());
        }
        if k == 0 {
            return self.empty_sums(id, &out, epilogue, &located);
        }
        let c = with_row(out.view.clone());
        let pieces: Vec<(Located, Range<usize>)> = match self.transposed.get(&node.inputs[1].node).cloned() {
            Some(pieces) => {
                let dtype = self.graph.ty(node.inputs[1]).dtype;
                let place = |w: &Weight| {
                    let columns = w.columns.clone().expect("a weight stored transposed was pushed with its columns");
                    let view = View { offset: 0, dims: vec![k, columns.len()], strides: vec![columns.len(), 1] };
                    (Located { tensor: w.tensor, view, dtype, own: false }, columns)
                };
                pieces.iter().map(place).collect()
            }
            None => {
                let mut b = self.locate(node.inputs[1]);
                if transpose_b {
                    b.view = swap_last(&b.view);
                }
                let last = b.view.dims.len() - 1;
                let cut = |columns: Range<usize>| {
                    let view = b.view.slice(last, columns.start, columns.len());
                    (Located { view, ..b.clone() }, columns)
                };
                self.pieces(dims[rank - 1], (k * b.dtype.size()) as u64).into_iter().map(cut).collect()
            }
        };
        let last = c.dims.len() - 1;
        let bindings = 3 + extras.len() - usize::from(in_place.is_some());
        for (mut b, columns) in pieces {
            let cut = |view: &View| view.slice(last, columns.start, columns.len());
            let c = cut(&c);
            let mut parts: Vec<(TensorId, DType, View)> =
                located.iter().map(|l| (l.tensor, l.dtype, cut(&with_row(l.view.broadcast(dims))))).collect();
            let mut copied = false;
            let lead = c.dims[..c.dims.len() - 2].to_vec();
            let views = parts.iter().map(|(_, _, view)| view);
            let sizes = [Matmul::rows(&stretch_a(&a.view, &c.dims), &b.view, &c, views), columns.len(), k];
            let operands = [(node.inputs[0], &a), (node.inputs[1], &b)];
            let on_units = self.on_units(id, operands, sizes, bindings)?;
            let exponents = on_units
                .as_ref()
                .and_then(|u| u.exponents.as_ref())
                .map(|[ea, eb]| [ea.stretched(&c.dims[..last]), eb.stretched(&[&lead[..], &[columns.len()]].concat())]);
            let launches = loop {
                let av = stretch_a(&a.view, &c.dims);
                let bv = b.view.broadcast(&[&lead[..], &b.view.dims[b.view.dims.len() - 2..]].concat());
                let views: Vec<(DType, View)> = parts.iter().map(|(_, d, v)| (*d, v.clone())).collect();
                let matmul = Matmul {
                    dtype: a.dtype,
                    out: out.dtype,
                    a: &av,
                    b: &bv,
                    c: &c,
                    epilogue,
                    extras: &views,
                    in_place,
                    slice: None,
                    sums: None,
                    units: on_units.as_ref().map(|u| OnUnits {
                        units: u.units,
                        exponents: exponents.as_ref().map(|[ea, eb]| [&ea.found, &eb.found]),
                    }),
                };
                match matmul.launches(self.caps) {
                    Err(KernelError::Layout { operand: 0 }) => a = self.copy(id, &a)?,
                    // rows that lie apart can be cut
                    Err(KernelError::Binding { operand: 0, .. }) if !a.view.is_dense() => a = self.copy(id, &a)?,
                    // a piece whose columns lie far apart reaches further than its own bytes
                    Err(KernelError::Layout { operand: 1 } | KernelError::Binding { operand: 1, .. }) if !copied => {
                        (b, copied) = (self.copy(id, &b)?, true);
                    }
                    Err(KernelError::Layout { operand }) => {
                        let (tensor, dtype, view) = parts[operand - 2].clone();
                        let copy = self.copy(id, &Located { tensor, view, dtype, own: false })?;
                        parts[operand - 2] = (copy.tensor, dtype, copy.view);
                    }
                    other => break other?,
                }
            };
            let mut tensors = vec![a.tensor, b.tensor];
            tensors.extend(parts.iter().map(|p| p.0));
            tensors.push(out.tensor);
            tensors.extend(exponents.iter().flatten().map(|e| e.tensor));
            self.emit(id, "", launches, &tensors, in_place.map(|i| located[i].tensor))?;
        }
        Ok(())
    }
}

impl Selector<'_> {
    /// A product without inner elements: 0 everywhere, then the epilogue.
    fn empty_sums(&mut self, id: NodeId, out: &Located, epilogue: &Chain, extras: &[Located]) -> Result<(), Fault> {
        let zeros = fill::constant(out.dtype, 0.0, out.view.elements(), self.caps)?;
        self.emit(id, "", zeros, &[out.tensor], None)?;
        if epilogue.steps.is_empty() {
            return Ok(());
        }
        let mut inputs = vec![(out.dtype, out.view.clone())];
        inputs.extend(extras.iter().map(|e| (e.dtype, e.view.broadcast(&out.view.dims))));
        let over_zeros = Elementwise {
            chain: epilogue,
            inputs: &inputs,
            out: (out.dtype, &out.view),
            compute: DType::F32,
            in_place: Some(0),
        };
        let launches = over_zeros.launches(self.caps)?;
        let mut tensors = vec![out.tensor];
        tensors.extend(extras.iter().map(|e| e.tensor));
        tensors.push(out.tensor);
        self.emit(id, "", launches, &tensors, None)
    }
}

/// The left operand, (…, M, K), with C's leading dimensions.
fn stretch_a(a: &View, c: &[usize]) -> View {
    let k = a.dims[a.dims.len() - 1];
    let mut target = c[..c.len() - 1].to_vec();
    target.push(k);
    a.broadcast(&target)
}

pub(super) fn swap_last(view: &View) -> View {
    let rank = view.dims.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 2, rank - 1);
    view.permute(&perm)
}

/// A vector as a matrix of one row.
fn insert_row(view: &View) -> View {
    let mut view = view.clone();
    view.dims.insert(0, 1);
    view.strides.insert(0, 0);
    view
}
