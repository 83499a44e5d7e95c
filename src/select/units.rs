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

/// Looks at a value whose rows' exponents are to be found: one, or the rows of a matrix and its columns.
struct Missing {
    value: ValueId,
    tensor: TensorId,
    looks: Vec<View>,
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
        let (rows, columns) = (a.view.clone(), swap_last(&b.view));
        let mut looks = vec![(a_value, a, &rows)];
        let weight = self.weight_at(b);
        looks.extend(weight.is_none().then_some((b_value, b, &columns)));
        if !self.find_exponents(id, &looks)? {
            self.report_product(id, "no binding covers all of an operand".into());
            return Ok(None);
        }
        let of_a = self.exponents_of(a_value, a.tensor, &rows);
        let of_b = match weight {
            Some(weight) => self.weight_exponents(id, weight)?,
            None => self.exponents_of(b_value, b.tensor, &columns),
        };
        Ok(Some(OfUnits { units, exponents: Some([of_a, of_b]) }))
    }

    pub(super) fn report_product(&mut self, id: NodeId, why: String) {
        let (name, asked) = (&self.graph.node(id).name, self.precision);
        self.out.report.add("select", format!("{name}: precision {asked} asked for, but {why}: highest used"));
    }

    /// Has the exponents of the rows of looks (…, rows, K) at values, found once however many read them, all in one launch
    /// if a device binds as much, and with them those of a matrix's columns where a product sums over these; false where no
    /// binding covers a look.
    fn find_exponents(&mut self, id: NodeId, looks: &[(ValueId, &Located, &View)]) -> Done<bool> {
        let mut missing: Vec<Missing> = Vec::new();
        for (value, at, look) in looks {
            let look = look.merge_lead();
            let turned = swap_last(&look);
            let has = |v: &View| self.exponents.contains_key(&(*value, at.tensor, v.clone()));
            let same = |m: &Missing| (m.value, m.tensor) == (*value, at.tensor) && m.looks.contains(&look);
            if has(&look) || missing.iter().any(same) {
                continue;
            }
            let looks = match !has(&turned) && self.sums_both_ways(*value) {
                true if exponents::finds_both(&look, &turned) => vec![look, turned],
                true if exponents::finds_both(&turned, &look) => vec![turned, look],
                _ => vec![look],
            };
            missing.push(Missing { value: *value, tensor: at.tensor, looks });
        }
        let bindings: usize = missing.iter().map(|m| 1 + m.looks.len()).sum();
        let at_once = if bindings <= self.caps.max_storage_buffers as usize { missing.len() } else { 1 };
        for missing in missing.chunks(at_once.max(1)) {
            let wanted: Vec<&[View]> = missing.iter().map(|m| &m.looks[..]).collect();
            let (launch, found) = match exponents::launch(&wanted, self.caps) {
                Err(KernelError::Binding { .. }) => return Ok(false),
                other => other?,
            };
            let mut tensors: Vec<TensorId> = missing.iter().map(|m| m.tensor).collect();
            for (Missing { value, tensor: of, looks }, found) in missing.iter().zip(found) {
                for (look, found) in looks.iter().zip(found) {
                    let bytes = (found.parts * found.part * DType::U32.size()) as u64;
                    let tensor = self.raw_tensor(self.graph.node(id), bytes, TensorKind::Temp)?;
                    tensors.push(tensor);
                    self.exponents.insert((*value, *of, look.clone()), FoundExponents { tensor, found });
                }
            }
            self.emit(id, "exponents", vec![launch], &tensors, None)?;
        }
        Ok(true)
    }

    /// What was found of the rows of x, a look at a value that lies there.
    fn exponents_of(&self, value: ValueId, tensor: TensorId, x: &View) -> FoundExponents {
        let mut of = self.exponents[&(value, tensor, x.merge_lead())].clone();
        of.found.view = View::dense(&Shape::from(x.dims[..x.dims.len() - 1].to_vec()));
        of
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

    /// The weight, or the piece of one, that is stored transposed there.
    fn weight_at(&self, at: &Located) -> Option<Weight> {
        self.transposed.values().flatten().find(|w| w.tensor == at.tensor).cloned()
    }

    /// The exponents of the columns of a weight that is stored transposed: the host finds them when it fills the weight.
    fn weight_exponents(&mut self, id: NodeId, weight: Weight) -> Done<FoundExponents> {
        let of = weight.tensor;
        let columns = weight.columns.as_ref().map_or(0, |c| c.len());
        let tensor = match self.weights_exponents.get(&of) {
            Some(tensor) => *tensor,
            None => {
                let bytes = (columns * DType::U32.size()) as u64;
                let tensor = self.raw_tensor(self.graph.node(id), bytes, TensorKind::Weight)?;
                self.out.weights.push(Weight { tensor, exponents: true, ..weight });
                self.weights_exponents.insert(of, tensor);
                tensor
            }
        };
        let view = View { offset: 0, dims: vec![columns], strides: vec![1] };
        Ok(FoundExponents { tensor, found: Exponents { view, parts: 1, part: columns } })
    }

    /// Says once that a precision cannot be had, or only without matrix units.
    pub(super) fn report_units(&mut self) {
        if self.caps.units.is_some() {
            return;
        }
        if self.precision != MatmulPrecision::Highest && multiplies(self.graph, DType::F32) {
            let asked = self.precision;
            let what = format!("precision {asked} asked for, but the device has no f16 matrix units: highest used");
            self.out.report.add("select", what);
        }
        if multiplies(self.graph, DType::F16) {
            let what = "the device has no f16 matrix units: products of f16 operands are multiply-adds";
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

/// Whether a graph has products of operands of a type.
fn multiplies(graph: &Graph, dtype: DType) -> bool {
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
        multiplies && graph.ty(node.inputs[0]).dtype == dtype
    })
}
