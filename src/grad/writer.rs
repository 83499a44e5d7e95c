//! In: an op and its inputs; out: a node at the end of the graph, named for what it is part of. Knows nothing of
//! gradients.

use super::GradError;
use crate::graph::{Binary, Comparison, DType, Graph, Op, Reduction, Scalar, Shape, Unary, ValueId};
use std::collections::HashMap;

pub(super) type Value = Result<ValueId, GradError>;

/// Appends nodes to a graph.
pub(super) struct Writer<'g> {
    pub graph: &'g mut Graph,
    /// The name of the nodes that are appended next.
    pub name: String,
    scalars: HashMap<(Scalar, DType), ValueId>,
}

impl<'g> Writer<'g> {
    pub fn new(graph: &'g mut Graph) -> Self {
        Writer { graph, name: String::new(), scalars: HashMap::new() }
    }

    /// The first output of a new node.
    pub fn push(&mut self, op: Op, inputs: &[ValueId]) -> Value {
        Ok(self.graph.push(op, inputs.to_vec(), self.name.clone())?.into())
    }

    /// A constant without dimensions; each is made once.
    pub fn scalar(&mut self, number: f32, dtype: DType) -> Value {
        let key = (Scalar::from(number), dtype);
        if let Some(value) = self.scalars.get(&key) {
            return Ok(*value);
        }
        let op = Op::Constant(key.0, dtype, Shape::default());
        let value = self.graph.push(op, Vec::new(), "grad.constant")?.into();
        self.scalars.insert(key, value);
        Ok(value)
    }

    pub fn unary(&mut self, f: Unary, x: ValueId) -> Value {
        self.push(Op::Unary(f), &[x])
    }

    pub fn scale(&mut self, x: ValueId, factor: f32) -> Value {
        self.unary(Unary::Scale(factor.into()), x)
    }

    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Value {
        self.push(Op::Binary(f), &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Add, a, b)
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Sub, a, b)
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Mul, a, b)
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Div, a, b)
    }

    pub fn compare(&mut self, comparison: Comparison, a: ValueId, b: ValueId) -> Value {
        self.push(Op::Compare(comparison), &[a, b])
    }

    /// 0 where the mask holds, else x.
    pub fn zero_where(&mut self, mask: ValueId, x: ValueId) -> Value {
        self.push(Op::MaskedFill(0.0.into()), &[x, mask])
    }

    /// x where the mask holds, else 0.
    pub fn only_where(&mut self, mask: ValueId, x: ValueId) -> Value {
        let zero = self.scalar(0.0, self.graph.ty(x).dtype)?;
        self.push(Op::Where, &[mask, x, zero])
    }

    pub fn reshape(&mut self, x: ValueId, shape: &Shape) -> Value {
        if self.graph.shape(x) == shape { Ok(x) } else { self.push(Op::Reshape(shape.clone()), &[x]) }
    }

    pub fn broadcast(&mut self, x: ValueId, shape: &Shape) -> Value {
        if self.graph.shape(x) == shape { Ok(x) } else { self.push(Op::Broadcast(shape.clone()), &[x]) }
    }

    /// The sum over axes, which are dropped.
    pub fn sum(&mut self, x: ValueId, axes: Vec<usize>) -> Value {
        if axes.is_empty() {
            return Ok(x);
        }
        self.push(Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, &[x])
    }

    /// Undoes a broadcast of `shape`: the sum over the axes along which it was stretched.
    pub fn sum_to(&mut self, x: ValueId, shape: &Shape) -> Value {
        let dims = self.graph.shape(x).dims();
        let lead = dims.len() - shape.rank();
        let stretched = |axis: &usize| *axis < lead || shape.dims()[axis - lead] != dims[*axis];
        let axes = (0..dims.len()).filter(stretched).collect();
        let sum = self.sum(x, axes)?;
        self.reshape(sum, shape)
    }
}
