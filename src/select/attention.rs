//! In: attention and dropout nodes and the gradients of the former; out: launches of their kernels, with the workspace
//! of row statistics that a gradient takes.

use super::selector::{Fault, Selector};
use super::{Located, TensorId, TensorKind};
use crate::graph::{AttentionAttrs, DType, DropoutAttrs, NodeId, ValueId};
use crate::kernel::attention::Attention;
use crate::kernel::attention_grad::{AttentionGrad, Side};
use crate::kernel::attention_stats::AttentionStats;
use crate::kernel::{KernelError, Launch, View, dropout, fill};

impl Selector<'_> {
    /// Out and, where it is read, the log-sum-exp.
    pub(super) fn attention(&mut self, id: NodeId, attrs: &AttentionAttrs) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let lse = self.is_used(id, 1);
        let mut made = vec![self.output(id, 0)?];
        if lse {
            made.push(self.output(id, 1)?);
        }
        if made[0].view.elements() == 0 {
            return Ok(());
        }
        if self.graph.shape(node.inputs[1]).elements() == 0 {
            // no query sees a key
            for (out, value) in made.iter().zip([0.0, f32::NEG_INFINITY]) {
                self.constant(id, out, value)?;
            }
            return Ok(());
        }
        let mut operands = self.operands(id, attrs)?;
        let mask = self.mask(attrs, &operands);
        let units = self.units(operands[0].dtype);
        let launches = self.retry(id, &mut operands, |s, o| {
            let (q, k, v) = (&o[0].view, &o[1].view, &o[2].view);
            Attention { attrs: *attrs, dtype: o[0].dtype, q, k, v, mask: mask.as_ref(), lse, units }.launches(s.caps)
        })?;
        self.report_attention(id, &launches);
        let tensors: Vec<TensorId> = operands.iter().chain(&made).map(|l| l.tensor).collect();
        self.emit(id, "", launches, &tensors, None)
    }

    /// dq, and dk with dv, where they are read.
    pub(super) fn attention_grad(&mut self, id: NodeId, attrs: &AttentionAttrs) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let n = attrs.inputs();
        let (queries, keys) = (self.is_used(id, 0), self.is_used(id, 1) || self.is_used(id, 2));
        let mut made = Vec::new();
        for (output, used) in [queries, keys, keys].into_iter().enumerate() {
            made.push(if used { Some(self.output_or_part(id, output)?) } else { None });
        }
        if [0, 1].iter().any(|i| self.graph.shape(node.inputs[*i]).elements() == 0) {
            // there is no pair of a query and a key
            for out in made.iter().flatten() {
                self.constant(id, out, 0.0)?;
            }
            return Ok(());
        }
        let mut operands = self.operands(id, attrs)?;
        operands.push(self.locate(node.inputs[n]));
        operands.push(self.dense(id, node.inputs[n + 1])?);
        operands.push(self.locate(node.inputs[n + 2]));
        let sk = operands[1].view.dims[1];
        let mut bytes = 0;
        let stats = self.retry(id, &mut operands, |s, o| {
            let of = AttentionStats { attrs: *attrs, dtype: o[0].dtype, out: &o[n].view, dout: &o[n + 2].view, sk };
            bytes = of.bytes();
            of.launches(s.caps)
        })?;
        let workspace = self.raw_tensor(node, bytes as u64, TensorKind::Temp)?;
        let mask = self.mask(attrs, &operands);
        let units = self.units(operands[0].dtype);
        let mut sides = Vec::new();
        let place = |output: usize| made[output].as_ref().map(|l| (l.tensor.0, l.view.clone()));
        let results = [place(0), place(1), place(2)];
        for (side, what, used) in [(Side::Keys, "dk, dv", keys), (Side::Queries, "dq", queries)] {
            if used {
                let launches = self.retry(id, &mut operands, |s, o| {
                    let (q, k, v, dout) = (&o[0].view, &o[1].view, &o[2].view, &o[n + 2].view);
                    let (mask, results) = (mask.as_ref(), &results);
                    AttentionGrad { attrs: *attrs, dtype: o[0].dtype, q, k, v, dout, mask, results, units }
                        .launches(side, s.caps)
                })?;
                self.report_attention(id, &launches);
                sides.push((what, launches));
            }
        }
        // a gradient that nobody reads is bound by no launch
        let mut tensors: Vec<TensorId> = operands.iter().map(|l| l.tensor).collect();
        tensors.extend(made.iter().map(|l| l.as_ref().map_or(workspace, |l| l.tensor)));
        tensors.push(workspace);
        if !sides.is_empty() {
            self.emit(id, "statistics", stats, &tensors, None)?;
        }
        for (what, launches) in sides {
            self.emit(id, what, launches, &tensors, None)?;
        }
        Ok(())
    }

    /// Says where an attention of f32 operands was to be made by matrix units and is not.
    fn report_attention(&mut self, id: NodeId, launches: &[Launch<usize>]) {
        let on_units = launches.iter().all(|l| l.key.units().is_some());
        let dtype = self.graph.ty(self.graph.node(id).inputs[0]).dtype;
        if dtype == DType::F32 && self.units(dtype).is_some() && !on_units {
            self.report_product(id, "no form for the units fits its head size and the device's limits".into());
        }
    }

    /// x with elements dropped, in its own memory where nothing else reads it.
    pub(super) fn dropout(&mut self, id: NodeId, attrs: &DropoutAttrs) -> Result<(), Fault> {
        let node = self.graph.node(id);
        let (x, counter) = (self.dense(id, node.inputs[0])?, self.dense(id, node.inputs[1])?);
        let in_place = self.may_overwrite(node.inputs[0]).then_some(x.tensor);
        let out = self.output(id, 0)?;
        let elements = out.view.elements();
        if elements == 0 {
            return Ok(());
        }
        let launches = dropout::launches(out.dtype, attrs, elements, in_place.is_some(), self.caps)?;
        self.emit(id, "", launches, &[x.tensor, counter.tensor, out.tensor], in_place)
    }

    /// Where an attention's inputs are: lengths and counter dense, the others as they lie.
    fn operands(&mut self, id: NodeId, attrs: &AttentionAttrs) -> Result<Vec<Located>, Fault> {
        let inputs: Vec<ValueId> = self.graph.node(id).inputs[..attrs.inputs()].to_vec();
        let views = 3 + usize::from(attrs.mask);
        let place = |(i, v): (usize, ValueId)| if i < views { Ok(self.locate(v)) } else { self.dense(id, v) };
        inputs.into_iter().enumerate().map(place).collect()
    }

    /// The mask stretched to (B, H, Sq, Sk).
    fn mask(&self, attrs: &AttentionAttrs, operands: &[Located]) -> Option<View> {
        let (q, k) = (&operands[0].view.dims, &operands[1].view.dims);
        attrs.mask.then(|| operands[3].view.broadcast(&[q[0], attrs.heads, q[1], k[1]]))
    }

    fn constant(&mut self, id: NodeId, out: &Located, value: f32) -> Result<(), Fault> {
        let launches = fill::constant(out.dtype, value, out.view.elements(), self.caps)?;
        self.emit(id, "", launches, &[out.tensor], None)
    }

    /// The launches; an operand that the kernel cannot read as it lies, or that no binding covers so, is copied.
    fn retry(
        &mut self,
        id: NodeId,
        operands: &mut [Located],
        mut launches: impl FnMut(&Self, &[Located]) -> Result<Vec<Launch<usize>>, KernelError>,
    ) -> Result<Vec<Launch<usize>>, Fault> {
        loop {
            match launches(self, operands) {
                Err(KernelError::Layout { operand } | KernelError::Binding { operand, .. })
                    if operands.get(operand).is_some_and(|o| !o.view.is_dense()) =>
                {
                    operands[operand] = self.copy(id, &operands[operand].clone())?
                }
                other => return Ok(other?),
            }
        }
    }
}
