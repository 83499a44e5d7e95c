//! In: the precision that was asked for and a device's matrix units; out: which products go to the units, and a line in
//! the report where they cannot.

use super::products::swap_last;
use super::selector::{Done, Selector};
use super::{Located, TensorId, TensorKind, Weight};
use crate::caps::MatmulPrecision;
use crate::graph::{DType, Graph, NodeId, Op, Shape, ValueId};
use crate::kernel::matmul::{Matmul, OnUnits};
use crate::kernel::units::{Exponents, Units};
use crate::kernel::{KernelError, View, exponents};

/// The exponents of an operand's rows, and the tensor that they are in.
#[derive(Clone, Debug)]
pub(super) struct FoundExponents {
    pub tensor: TensorId,
    pub found: Exponents,
}

impl FoundExponents {
    /// Stretched to more rows.
    pub fn stretched(&self, dims: &[usize]) -> FoundExponents {
        let found = Exponents { view: self.found.view.broadcast(dims), ..self.found.clone() };
        FoundExponents { found, ..self.clone() }
    }
}

/// A product that goes to matrix units.
pub(super) struct OfUnits {
    pub units: Units,
    /// Of f32 operands: of the left one's rows and the right one's columns.
    pub exponents: Option<[FoundExponents; 2]>,
}

impl OfUnits {
    /// As a product takes it whose operands have the exponents' dimensions.
    pub fn of_product(&self) -> OnUnits<'_> {
        let exponents = self.exponents.as_ref().map(|[a, b]| [&a.found, &b.found]);
        OnUnits { units: self.units, exponents }
    }
}

impl Selector<'_> {
    /// The units that products of operands of this stored type go to; `None` is multiply-adds in f32. What is stored in
    /// f16 is exact there, so that one product is as good as any precision asks for.
    pub(super) fn units(&self, dtype: DType) -> Option<Units> {
        let units = self.caps.units?;
        match (dtype, self.precision) {
            (DType::F16, _) | (DType::F32, MatmulPrecision::Medium) => Some(Units { units, split: false }),
            (DType::F32, MatmulPrecision::High) => Some(Units { units, split: true }),
            _ => None,
        }
    }

    /// Whether a product of a (…, M, K) and b (…, K, N), each the place of a value, goes to matrix units, and then the
    /// exponents of f32 operands, with launches that find them. `sizes` are M, N and K, `bindings` the storage buffers that
    /// it binds beside the exponents.
    pub(super) fn on_units(
        &mut self,
        id: NodeId,
        [(a_value, a), (b_value, b)]: [(ValueId, &Located); 2],
        sizes: [usize; 3],
        bindings: usize,
    ) -> Done<Option<OfUnits>> {
        let Some(units) = self.units(a.dtype) else { return Ok(None) };
        if !Matmul::takes_units(sizes, a.dtype, units, self.caps) {
            return Ok(None);
        }
        if a.dtype == DType::F16 {
            return Ok(Some(OfUnits { units, exponents: None }));
        }
        if bindings + 2 > self.caps.max_storage_buffers as usize {
            let limit = self.caps.max_storage_buffers;
            self.report_product(
                id,
                format!("it would bind {} buffers, of which the device takes {limit}", bindings + 2),
            );
            return Ok(None);
        }
        let of_a = self.exponents(id, a_value, a, &a.view)?;
        let of_b = match self.weight_exponents(id, b)? {
            Some(found) => Some(found),
            None => self.exponents(id, b_value, b, &swap_last(&b.view))?,
        };
        let (Some(of_a), Some(of_b)) = (of_a, of_b) else {
            self.report_product(id, "no binding covers all of an operand".into());
            return Ok(None);
        };
        Ok(Some(OfUnits { units, exponents: Some([of_a, of_b]) }))
    }

    pub(super) fn report_product(&mut self, id: NodeId, why: String) {
        let (name, asked) = (&self.graph.node(id).name, self.precision);
        self.out.report.add("select", format!("{name}: precision {asked} asked for, but {why}: highest used"));
    }

    /// The exponents of the rows of x (…, rows, K), a look at a value, found once however many read them; `None` where no
    /// binding covers it.
    fn exponents(&mut self, id: NodeId, value: ValueId, at: &Located, x: &View) -> Done<Option<FoundExponents>> {
        let look = x.merge_lead();
        if !self.exponents.contains_key(&(value, look.clone())) && !self.find_exponents(id, value, at, &look)? {
            return Ok(None);
        }
        let mut found = self.exponents[&(value, look)].clone();
        found.found.view = View::dense(&Shape::from(x.dims[..x.dims.len() - 1].to_vec()));
        Ok(Some(found))
    }

    /// Launches what finds the exponents of the rows of a look at a value, and with them those of a matrix's columns where
    /// a product sums over these; false where no binding covers it.
    fn find_exponents(&mut self, id: NodeId, value: ValueId, at: &Located, look: &View) -> Done<bool> {
        let turned = swap_last(look);
        let looks = if look.strides.last() == Some(&1) { [look.clone(), turned] } else { [turned, look.clone()] };
        let new = looks.iter().all(|l| !self.exponents.contains_key(&(value, l.clone())));
        let both = match new && self.sums_both_ways(value) {
            true => exponents::launch_both(&looks[0], self.caps),
            false => Ok(None),
        };
        let made = both.and_then(|both| match both {
            Some((launch, found)) => Ok((launch, looks.into_iter().zip(found).collect())),
            None => exponents::launch(look, self.caps).map(|(launch, found)| (launch, vec![(look.clone(), found)])),
        });
        let (launch, found): (_, Vec<_>) = match made {
            Err(KernelError::Binding { .. }) => return Ok(false),
            other => other?,
        };
        let mut tensors = vec![at.tensor];
        for (look, found) in found {
            let bytes = (found.parts * found.part * DType::U32.size()) as u64;
            let tensor = self.raw_tensor(self.graph.node(id), bytes, TensorKind::Temp)?;
            tensors.push(tensor);
            self.exponents.insert((value, look), FoundExponents { tensor, found });
        }
        self.emit(id, "exponents", vec![launch], &tensors, None)?;
        Ok(true)
    }

    /// Whether products sum over a matrix's rows and over its columns.
    fn sums_both_ways(&self, value: ValueId) -> bool {
        let ways = self.consumers[value.node.0].iter().flat_map(|reader| {
            let node = self.graph.node(*reader);
            let operands = node.inputs.iter().enumerate().filter(|(_, v)| **v == value);
            operands.filter_map(|(i, _)| along_rows(&node.op, i))
        });
        let ways: Vec<bool> = ways.collect();
        ways.contains(&true) && ways.contains(&false)
    }

    /// The exponents of the columns of a weight that is stored transposed: the host finds them when it fills the weight.
    fn weight_exponents(&mut self, id: NodeId, at: &Located) -> Done<Option<FoundExponents>> {
        let mut pieces = self.transposed.values().flatten();
        let Some(weight) = pieces.find(|w| w.tensor == at.tensor).cloned() else { return Ok(None) };
        let columns = weight.columns.as_ref().map_or(0, |c| c.len());
        let tensor = match self.weights_exponents.get(&at.tensor) {
            Some(tensor) => *tensor,
            None => {
                let bytes = (columns * DType::U32.size()) as u64;
                let tensor = self.raw_tensor(self.graph.node(id), bytes, TensorKind::Weight)?;
                self.out.weights.push(Weight { tensor, exponents: true, ..weight });
                self.weights_exponents.insert(at.tensor, tensor);
                tensor
            }
        };
        let view = View { offset: 0, dims: vec![columns], strides: vec![1] };
        Ok(Some(FoundExponents { tensor, found: Exponents { view, parts: 1, part: columns } }))
    }

    /// Says once that a precision cannot be had.
    pub(super) fn report_units(&mut self) {
        if self.precision != MatmulPrecision::Highest && self.caps.units.is_none() && multiplies(self.graph) {
            let asked = self.precision;
            let what = format!("precision {asked} asked for, but the device has no f16 matrix units: highest used");
            self.out.report.add("select", what);
        }
    }
}

/// Whether a product sums along the rows of an operand, which are contiguous where it is stored as it is, or along its
/// columns; `None` of what is no operand of a matrix product.
fn along_rows(op: &Op, input: usize) -> Option<bool> {
    match (op, input) {
        (Op::Linear, 0 | 1) => Some(true),
        (Op::Matmul { transpose_a, .. } | Op::FusedMatmul { transpose_a, .. }, 0) => Some(!transpose_a),
        (Op::Matmul { transpose_b, .. } | Op::FusedMatmul { transpose_b, .. }, 1) => Some(*transpose_b),
        (Op::LinearGrad { .. }, 0 | 1) => Some(false),
        _ => None,
    }
}

/// Whether a graph has products of f32 operands.
fn multiplies(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        let multiplies = matches!(
            node.op,
            Op::Matmul { .. }
                | Op::Linear
                | Op::FusedMatmul { .. }
                | Op::LinearGrad { .. }
                | Op::LinearStack(_)
                | Op::LinearStackGrad(_)
                | Op::LinearStackParamGrad
                | Op::Attention(_)
                | Op::AttentionGrad(_)
        );
        multiplies && graph.ty(node.inputs[0]).dtype == DType::F32
    })
}
