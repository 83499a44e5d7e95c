//! In: linear_grad nodes; out: launches of the matmul kernels for dW = dyᵀ · x, which sum dy's columns on the way; where
//! few tiles have a long inner dimension, in slices that sum_parts adds up.

use super::selector::{Fault, Selector};
use super::units::OfUnits;
use super::{Located, TensorKind};
use crate::graph::{Chain, DType, NodeId, Shape, ValueId};
use crate::kernel::matmul::{Matmul, OnUnits};
use crate::kernel::reduce::{self, ReduceKind};
use crate::kernel::sum_parts::{self, Sums};
use crate::kernel::units::{Exponents, Units};
use crate::kernel::{Config, KernelError, View, fill};

impl Selector<'_> {
    /// x (…, K), dy (…, N) → dW (N, K) and, with a bias, db (N).
    pub(super) fn linear_grad(&mut self, id: NodeId, bias: bool) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let (m, n) = (self.graph.shape(node.inputs[1]).rows(), self.graph.shape(node.inputs[1]).last());
        let db = if bias && self.is_used(id, 1) { Some(self.output(id, 1)?) } else { None };
        let dw = if db.is_none() || self.is_used(id, 0) { Some(self.output(id, 0)?) } else { None };
        if m == 0 {
            // sums of no rows
            for out in [dw, db].into_iter().flatten().filter(|out| out.view.elements() > 0) {
                let zeros = fill::constant(out.dtype, 0.0, out.view.elements(), self.caps)?;
                self.emit(id, "", zeros, &[out.tensor], None)?;
            }
            return Ok(());
        }
        match (dw.filter(|dw| dw.view.elements() > 0), db.filter(|db| db.view.elements() > 0)) {
            (Some(dw), db) => {
                let (x, dy) = (self.rows(id, node.inputs[0])?, self.rows(id, node.inputs[1])?);
                self.weight_product(id, &x, &dy, &dw, db.as_ref())
            }
            (None, Some(db)) => {
                // the weight is fixed, or has no columns
                let dy = self.dense(id, node.inputs[1])?;
                let (launches, workspace) = reduce::launches(ReduceKind::Sum, dy.dtype, [1, m, n], 0, self.caps)?;
                let mut tensors = vec![dy.tensor, db.tensor];
                if let Some(bytes) = workspace {
                    tensors.push(self.raw_tensor(node, bytes as u64, TensorKind::Temp)?);
                }
                self.emit(id, "", launches, &tensors, None)
            }
            (None, None) => Ok(()),
        }
    }

    /// Where a value (…, width) is as a matrix of rows that are contiguous.
    fn rows(&mut self, id: NodeId, value: ValueId) -> Result<Located, Fault> {
        let located = self.locate(value);
        if let Some(view) = located.view.rows() {
            return Ok(Located { view, ..located });
        }
        let dense = self.dense(id, value)?;
        let shape = self.graph.shape(value);
        Ok(Located { view: View::dense(&Shape::from(vec![shape.rows(), shape.last()])), ..dense })
    }

    /// How long slices of the rows of a gradient's operands should be.
    fn slice(
        &mut self,
        id: NodeId,
        [a, b]: [&View; 2],
        dtype: DType,
        units: Option<Units>,
        sums: bool,
    ) -> Option<usize> {
        let caps = self.caps;
        let own = Config::Slice(Matmul::slice(a, b, dtype, units, caps).unwrap_or(0));
        let problem = Matmul::slice_problem(a, b, dtype, units, sums);
        match self.choose(id, problem, own, || Matmul::slices(a, b, dtype, units, caps)) {
            Config::Slice(length) if length > 0 => Some(length),
            _ => None,
        }
    }

    /// dW = dyᵀ · x and db for x (M, K) and dy (M, N).
    fn weight_product(
        &mut self,
        id: NodeId,
        x: &Located,
        dy: &Located,
        dw: &Located,
        db: Option<&Located>,
    ) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let a = dy.view.permute(&[1, 0]);
        let (n, m, k) = (a.dims[0], a.dims[1], x.view.dims[1]);
        let identity = Chain::identity();
        let turned = Located { view: a.clone(), ..dy.clone() };
        let operands = [(node.inputs[1], &turned), (node.inputs[0], x)];
        let on_units = self.on_units(id, operands, [n, k, m], 3 + usize::from(db.is_some()))?;
        let exponents = on_units.as_ref().and_then(|u| u.exponents.as_ref());
        let units = on_units.as_ref().map(OfUnits::of_product);
        let slice = self.slice(id, [&a, &x.view], dy.dtype, units.map(|u| u.units), db.is_some());
        let whole = Matmul {
            dtype: dy.dtype,
            out: dw.dtype,
            a: &a,
            b: &x.view,
            c: &dw.view,
            epilogue: &identity,
            extras: &[],
            in_place: None,
            slice,
            sums: db.map(|db| &db.view),
            units,
        };
        let Some(slice) = whole.slice else {
            let mut tensors = vec![dy.tensor, x.tensor, dw.tensor];
            tensors.extend(db.map(|db| db.tensor));
            tensors.extend(exponents.iter().copied().flatten().map(|e| e.tensor));
            let launches = whole.launches(self.caps).map_err(as_inputs)?;
            return self.emit(id, "", launches, &tensors, None);
        };
        let slices = m.div_ceil(slice);
        let bytes = slices * DType::F32.size();
        for rows in self.pieces(n, (bytes * k) as u64) {
            let count = rows.len();
            let view = |dims: &[usize]| View::dense(&Shape::from(dims.to_vec()));
            let (c, sums) = (view(&[slices, count, k]), db.map(|_| view(&[slices, count])));
            let first = exponents.map(|[ea, _]| {
                let view = ea.found.view.slice(0, rows.start, count);
                Exponents { view, ..ea.found.clone() }
            });
            let exponents_of = first.as_ref().zip(exponents).map(|(ea, [_, eb])| [ea, &eb.found]);
            let parts = Matmul {
                out: DType::F32,
                a: &a.slice(0, rows.start, count),
                c: &c,
                sums: sums.as_ref(),
                units: units.map(|u| OnUnits { exponents: exponents_of, ..u }),
                ..whole
            };
            let launches = parts.launches(self.caps).map_err(as_inputs)?;
            let mut tensors = vec![self.raw_tensor(node, (bytes * count * k) as u64, TensorKind::Temp)?, dw.tensor];
            if let Some(db) = db {
                tensors.extend([self.raw_tensor(node, (bytes * count) as u64, TensorKind::Temp)?, db.tensor]);
            }
            let mut made = vec![dy.tensor, x.tensor, tensors[0]];
            made.extend(tensors.get(2));
            made.extend(exponents.iter().copied().flatten().map(|e| e.tensor));
            self.emit(id, "", launches, &made, None)?;
            let y = Sums { first: rows.start * k, count: count * k };
            let z = db.map(|_| Sums { first: rows.start, count });
            let sum = sum_parts::launch(slices, dw.dtype, y, z, self.caps)?;
            self.emit(id, "", vec![sum], &tensors, None)?;
        }
        Ok(())
    }
}

/// The product's operands dy and x as the node's inputs x and dy.
fn as_inputs(error: KernelError) -> KernelError {
    match error {
        KernelError::Binding { kernel, operand: operand @ 0..=1, what, wanted, limit } => {
            KernelError::Binding { kernel, operand: 1 - operand, what, wanted, limit }
        }
        other => other,
    }
}
