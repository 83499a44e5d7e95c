//! The trainer on the adapter: against the reference and PyTorch, one submit for many steps, files, limits and texts of
//! errors.

#[path = "../device/mod.rs"]
mod device;
#[path = "../trained/mod.rs"]
mod trained;

mod files;
mod limits;
mod models;
mod steps;

use kiln::graph::{Builder, DType, Graph, TensorType, Unary, ValueId};
use kiln::session::{CompileOptions, Session};
use kiln::tensor::Tensor;
use kiln::train::{Schedule, TrainOptions};
use kiln::trainer::{StepReport, Trainer};
use std::collections::BTreeMap;
use trained::{Named, OnReference};

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

fn linear(b: &mut Builder, name: &str, x: ValueId, outputs: usize) -> ValueId {
    let inputs = b.shape(x).last();
    let weight = b.parameter(&format!("{name}.weight"), f32s(&[outputs, inputs])).unwrap();
    let bias = b.parameter(&format!("{name}.bias"), f32s(&[outputs])).unwrap();
    b.linear(x, weight, Some(bias)).unwrap()
}

/// A small network of tanh with squared errors.
fn network(rows: usize) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[rows, 5])).unwrap();
    let wanted = b.input("wanted", f32s(&[rows, 3])).unwrap();
    let y = linear(&mut b, "layers.0", x, 33);
    let y = b.unary(Unary::Tanh, y).unwrap();
    let y = linear(&mut b, "layers.1", y, 3);
    let loss = b.mse(y, wanted).unwrap();
    b.output("loss", loss).unwrap();
    b.finish().unwrap()
}

fn numbers(dims: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = (0..dims.iter().product()).map(f).collect();
    Tensor::from_f64(f32s(dims), &values)
}

fn params(graph: &Graph) -> Named {
    let value = |seed: usize, i: usize| ((seed * 31 + i * 7) as f64).sin() * 0.4;
    let parts = graph.layout.iter().flat_map(|(_, s)| &s.parts).enumerate();
    parts.map(|(seed, p)| (p.name.clone(), numbers(p.shape.dims(), |i| value(seed, i)))).collect()
}

/// The batch of a step.
fn batch(rows: usize, step: usize) -> Named {
    let x = numbers(&[rows, 5], |i| ((i + 11 * step) as f64 * 0.37).sin());
    let wanted = numbers(&[rows, 3], |i| ((i + step) as f64 * 0.61).cos());
    Named::from([("x".into(), x), ("wanted".into(), wanted)])
}

fn options() -> TrainOptions {
    let learning_rate = Schedule::constant(1e-2).warm_up(3).cosine(12, 1e-3);
    TrainOptions { learning_rate, ..TrainOptions::default() }
}

fn trainer(session: &Session, graph: &Graph, options: &TrainOptions) -> Trainer {
    session.trainer(graph, &params(graph), options, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn losses(reports: &[StepReport]) -> Vec<u32> {
    reports.iter().map(|r| r.loss.to_bits()).collect()
}

/// As bits, so that NaN is itself.
fn bytes(parameters: &Named) -> BTreeMap<&str, &[u8]> {
    parameters.iter().map(|(name, t)| (name.as_str(), t.bytes())).collect()
}

fn assert_parameters(what: &str, trainer: &Trainer, reference: &OnReference, tolerance: f64) {
    for (name, got) in trainer.parameters().unwrap() {
        device::assert_numbers(&format!("{what}: {name}"), &got.to_f64(), &reference.parameter(&name), tolerance);
    }
}
