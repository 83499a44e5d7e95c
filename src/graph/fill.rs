//! In: a value of a graph; out: its one number, where every element is the same constant float. Knows nothing else.

use super::{DType, Graph, Op, ValueId};
use half::f16;

impl Graph {
    /// The number that every element of a float value has as it is stored, where that is known; looks through ops that
    /// only move elements.
    pub fn fill(&self, value: ValueId) -> Option<f32> {
        let node = self.producer(value);
        match node.op {
            Op::Constant(c, DType::F32, _) => Some(c.get()),
            Op::Constant(c, DType::F16, _) => Some(f16::from_f32(c.get()).to_f32()),
            Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => self.fill(node.inputs[0]),
            _ => None,
        }
    }
}
