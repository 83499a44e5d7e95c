//! In: the gradients of a step; out: nodes that tell whether all are finite, how long they are together, and that scale
//! them down. Knows no optimisers.

use crate::graph::{
    Binary, Comparison, DType, Graph, GraphError, Op, Reduction, Scalar, Shape, TensorType, Unary, ValueId,
};

type Value = Result<ValueId, GraphError>;

/// What PyTorch adds to a norm before it divides by it.
const NORM_EPS: f32 = 1e-6;

/// All gradients of a step, looked at together.
pub(super) struct Limit<'a> {
    graph: &'a mut Graph,
    /// The largest magnitude of all, f32 (); NaN if any is NaN.
    largest: ValueId,
}

impl<'a> Limit<'a> {
    /// Appends the largest magnitude of several gradients.
    pub fn of(graph: &'a mut Graph, gradients: &[ValueId]) -> Result<Self, GraphError> {
        let largest = graph.push(Op::Magnitude, gradients.to_vec(), "grad.limit")?.into();
        Ok(Limit { graph, largest })
    }

    fn push(&mut self, op: Op, inputs: &[ValueId]) -> Value {
        Ok(self.graph.push(op, inputs.to_vec(), "grad.limit")?.into())
    }

    fn constant(&mut self, value: f32) -> Value {
        self.push(Op::Constant(Scalar::from(value), DType::F32, Shape::from([])), &[])
    }

    /// Whether the loss and all gradients are finite, bool ().
    pub fn finite(&mut self, loss: ValueId) -> Value {
        let largest = self.push(Op::Magnitude, &[self.largest, loss])?;
        let most = self.constant(f32::MAX)?;
        self.push(Op::Compare(Comparison::LessEqual), &[largest, most])
    }

    /// The norm of all gradients together: largest · √Σ(g / largest)², whose sum is at most the number of elements; ∞ if
    /// the largest is.
    pub fn norm(&mut self, gradients: &[ValueId]) -> Value {
        // gradients that are all 0 are divided by 1
        let [zero, one] = [self.constant(0.0)?, self.constant(1.0)?];
        let some = self.push(Op::Compare(Comparison::Less), &[zero, self.largest])?;
        let divisor = self.push(Op::Where, &[some, self.largest, one])?;
        let mut sum = zero;
        for gradient in gradients {
            let gradient = match self.graph.ty(*gradient).dtype {
                DType::F32 => *gradient,
                _ => self.push(Op::Cast(DType::F32), &[*gradient])?,
            };
            let part = self.push(Op::Binary(Binary::Div), &[gradient, divisor])?;
            let square = self.push(Op::Binary(Binary::Mul), &[part, part])?;
            let axes = (0..self.graph.shape(square).rank()).collect();
            let squares = self.push(Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, &[square])?;
            sum = self.push(Op::Binary(Binary::Add), &[sum, squares])?;
        }
        let root = self.push(Op::Unary(Unary::Sqrt), &[sum])?;
        let norm = self.push(Op::Binary(Binary::Mul), &[root, self.largest])?;
        // ∞ / ∞ is NaN; of NaN the comparisons say nothing: it is carried on
        let most = self.constant(f32::MAX)?;
        let infinite = self.push(Op::Compare(Comparison::Less), &[most, self.largest])?;
        self.push(Op::Where, &[infinite, self.largest, norm])
    }

    /// 1 / x.
    pub fn inverse(&mut self, x: ValueId) -> Value {
        let one = self.constant(1.0)?;
        self.push(Op::Binary(Binary::Div), &[one, x])
    }

    /// x times a factor, if there is one.
    pub fn times(&mut self, x: ValueId, factor: Option<ValueId>) -> Value {
        factor.map_or(Ok(x), |factor| self.push(Op::Binary(Binary::Mul), &[x, factor]))
    }

    /// The factor that makes gradients of this norm at most `most` long: min(1, most / (norm + 1e-6)).
    pub fn factor(&mut self, norm: ValueId, most: f32) -> Value {
        let [eps, one, most] = [self.constant(NORM_EPS)?, self.constant(1.0)?, self.constant(most)?];
        let divisor = self.push(Op::Binary(Binary::Add), &[norm, eps])?;
        let factor = self.push(Op::Binary(Binary::Div), &[most, divisor])?;
        self.push(Op::Binary(Binary::Min), &[factor, one])
    }
}

/// Appends `finite ? new : old`.
pub(super) fn keep_unless(graph: &mut Graph, finite: ValueId, new: ValueId, old: ValueId, name: &str) -> Value {
    let numbers = graph.ty(new).dtype != DType::Bool;
    let mut push = |op: Op, inputs: &[ValueId]| graph.push(op, inputs.to_vec(), name).map(ValueId::from);
    if numbers {
        return push(Op::Where, &[finite, new, old]);
    }
    // chosen as numbers
    let [zero, one] = [0.0, 1.0].map(|v: f32| Op::Constant(v.into(), DType::F32, Shape::from([])));
    let [zero, one] = [push(zero, &[])?, push(one, &[])?];
    let [new, old] = [push(Op::Where, &[new, one, zero])?, push(Op::Where, &[old, one, zero])?];
    let kept = push(Op::Where, &[finite, new, old])?;
    push(Op::Compare(Comparison::Less), &[zero, kept])
}

/// Appends the flag of a skipped step, 1 or 0, and the count of them: u32 (), a state.
pub(super) fn count_skipped(graph: &mut Graph, finite: ValueId) -> Value {
    let scalar = || TensorType::new(DType::U32, []);
    let count = graph.push_input(scalar(), "skipped");
    let mut word = |v: f32| graph.push(Op::Constant(v.into(), DType::U32, Shape::from([])), Vec::new(), "skipped");
    let [zero, one] = [word(0.0)?, word(1.0)?];
    let flag = graph.push(Op::Where, vec![finite, zero.into(), one.into()], "skipped")?;
    let next = graph.push(Op::Binary(Binary::Add), vec![count.into(), flag.into()], "skipped")?;
    graph.push_update(count, next.into())?;
    Ok(flag.into())
}
