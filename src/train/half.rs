//! In: a forward graph in f32; out: the same with products, norms and what lies between them in f16. Weights stay f32 and
//! are cast where they are read. Knows which ops f16 harms; neither gradients nor devices.
//!
//! | computed in | ops |
//! | --- | --- |
//! | f16, with f32 sums | matmul, linear, stacks of linears, attention, embedding, layernorm, rmsnorm |
//! | f32 | softmax, cross entropy, sums and means, exp, log, roots, powers, quotients |
//! | the widest of its operands but weights | all other element-wise ops, concat |
//! | what it is given | ops that move or drop elements |
//! | f32 | masked fills and factors whose number is infinite in f16 |

use crate::graph::{Binary, DType, Graph, GraphError, Node, Op, Reduction, Rewriter, Scalar, Unary, ValueId};
use half::f16;
use std::collections::HashMap;

/// What an op's float operands become.
enum Width {
    Half,
    Single,
    Widest,
    Given,
}

fn width(op: &Op) -> Width {
    match op {
        Op::Matmul { .. }
        | Op::Linear
        | Op::LinearStack(_)
        | Op::Attention(_)
        | Op::Embedding
        | Op::LayerNorm(_)
        | Op::RmsNorm(_) => Width::Half,
        Op::Softmax(_) | Op::LogSoftmax(_) | Op::CrossEntropy(_) => Width::Single,
        Op::Reduce { kind: Reduction::Sum | Reduction::Mean, .. } => Width::Single,
        Op::Unary(Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::NormalCdf) => Width::Single,
        Op::Binary(Binary::Div | Binary::Pow) => Width::Single,
        Op::MaskedFill(number) | Op::Unary(Unary::Scale(number)) if overflows_f16(*number) => Width::Single,
        Op::Binary(_) | Op::Where | Op::Compare(_) | Op::Concat(_) => Width::Widest,
        _ => Width::Given,
    }
}

/// Whether f16 has infinity in place of a number.
fn overflows_f16(number: Scalar) -> bool {
    number.get().is_finite() && f16::from_f32(number.get()).is_infinite()
}

/// Casts so that a forward graph computes in f16 where that does no harm. Its outputs and states keep their types.
pub(super) fn half(graph: &Graph) -> Result<Graph, GraphError> {
    let mut casts = Casts { r: Rewriter::new(graph), made: HashMap::new() };
    for (id, node) in graph.nodes() {
        let mut inputs = casts.r.all(&node.inputs);
        let to = match width(&node.op) {
            Width::Half => Some(DType::F16),
            Width::Single => Some(DType::F32),
            Width::Widest => casts.widest(&inputs),
            Width::Given => None,
        };
        if let Some(to) = to {
            for input in &mut inputs {
                *input = casts.to(*input, to)?;
            }
        }
        let new = match &node.op {
            Op::Input | Op::Parameter(_) => {
                casts.r.copy(id)?;
                continue;
            }
            op => casts.r.new.push(op.clone(), inputs, node.name.clone())?,
        };
        for output in 0..node.outputs.len() {
            casts.r.set(ValueId { node: id, output }, ValueId { node: new, output });
        }
    }
    let ends = graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1));
    for value in ends {
        let (new, dtype) = (casts.r.get(value), graph.ty(value).dtype);
        let cast = casts.to(new, dtype)?;
        casts.r.set(value, cast);
    }
    casts.r.finish()
}

struct Casts<'a> {
    r: Rewriter<'a>,
    made: HashMap<(ValueId, DType), ValueId>,
}

impl Casts<'_> {
    fn ty(&self, value: ValueId) -> DType {
        self.r.new.ty(value).dtype
    }

    /// The wider type if values differ. A weight, a look at one and a constant that f16 holds take whatever type the
    /// others have.
    fn widest(&self, values: &[ValueId]) -> Option<DType> {
        let fixed = values.iter().filter(|v| is_float(self.ty(**v)) && !self.fits_f16(**v) && !self.is_weight(**v));
        let mut types: Vec<DType> = fixed.map(|v| self.ty(*v)).collect();
        types.dedup();
        match types[..] {
            [] => None,
            [one] => Some(one),
            _ => Some(DType::F32),
        }
    }

    fn fits_f16(&self, value: ValueId) -> bool {
        let Node { op, .. } = self.r.new.producer(value);
        matches!(op, Op::Constant(c, DType::F32, _) if f16::from_f32(c.get()).to_f32() == c.get())
    }

    fn is_weight(&self, value: ValueId) -> bool {
        let Node { op, inputs, .. } = self.r.new.producer(value);
        matches!(op, Op::Parameter(_)) || op.is_view() && self.is_weight(inputs[0])
    }

    /// The value in a float type, cast once however many read it.
    fn to(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, GraphError> {
        let from = self.ty(value);
        if from == dtype || !is_float(from) {
            return Ok(value);
        }
        if let Some(made) = self.made.get(&(value, dtype)) {
            return Ok(*made);
        }
        let name = format!("{}.{dtype}", self.r.new.producer(value).name);
        let made = match self.r.new.producer(value).op.clone() {
            Op::Constant(c, _, shape) => self.r.new.push(Op::Constant(c, dtype, shape), Vec::new(), name)?.into(),
            // a cast that only widened is taken back
            Op::Cast(_) if self.ty(self.r.new.producer(value).inputs[0]) == dtype && from == DType::F32 => {
                self.r.new.producer(value).inputs[0]
            }
            _ => self.r.new.push(Op::Cast(dtype), vec![value], name)?.into(),
        };
        self.made.insert((value, dtype), made);
        Ok(made)
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16)
}
