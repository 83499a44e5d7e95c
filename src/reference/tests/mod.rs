//! Known values of every op, the reports' cases, and what evaluation refuses.

mod cases;
mod ops;
mod run;
mod training;

use super::evaluate_nodes;
use crate::graph::{DType, Graph, Op, Shape, TensorType, ValueId};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// A graph under test with its inputs.
#[derive(Default)]
struct Case {
    graph: Graph,
    given: BTreeMap<String, Tensor>,
}

impl Case {
    fn input(&mut self, dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> ValueId {
        let ty = TensorType::new(dtype, shape);
        let name = format!("x{}", self.given.len());
        self.given.insert(name.clone(), Tensor::from_f64(ty.clone(), values));
        self.graph.push_input(ty, name).into()
    }

    fn f32(&mut self, shape: impl Into<Shape>, values: &[f64]) -> ValueId {
        self.input(DType::F32, shape, values)
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.graph.push(op, inputs.to_vec(), "t").unwrap().into()
    }

    fn get(&self, v: ValueId) -> Vec<f64> {
        evaluate_nodes(&self.graph, &BTreeMap::new(), &self.given).unwrap()[v.node.0][v.output].data.clone()
    }

    fn error(&self) -> String {
        evaluate_nodes(&self.graph, &BTreeMap::new(), &self.given).unwrap_err().to_string()
    }
}

/// One op on f32 inputs.
fn apply(op: Op, inputs: &[(&[usize], &[f64])]) -> Vec<f64> {
    let mut case = Case::default();
    let inputs: Vec<ValueId> = inputs.iter().map(|(shape, values)| case.f32(*shape, values)).collect();
    let out = case.op(op, &inputs);
    case.get(out)
}

/// Equal within a relative or absolute 1e-7, NaN to NaN and infinities exactly.
#[track_caller]
fn close(got: &[f64], expected: &[f64]) {
    let same =
        |g: f64, e: f64| g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= 1e-7 * e.abs().clamp(1.0, 1e30);
    let all = got.len() == expected.len() && got.iter().zip(expected).all(|(g, e)| same(*g, *e));
    assert!(all, "got {got:?}, expected {expected:?}");
}

/// Values in −1..1 that repeat after a long while.
fn noise(n: usize, seed: u32) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..n).map(|_| next()).collect()
}
