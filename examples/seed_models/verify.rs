//! In: a model; out: how far outputs and gradients are from the f64 reference. Times nothing.

use crate::measure::counter;
use crate::models::{Model, Work};
use kiln::grad::{Checkpoint, Parameters, differentiate};
use kiln::graph::{DROPOUT_COUNTER, Graph};
use kiln::lift::lift;
use kiln::model::{Init, init};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::error::Error;

/// Everything that a graph is given, by name.
pub fn inputs(work: &Work) -> BTreeMap<String, Tensor> {
    work.given.iter().chain(&work.resident).map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect()
}

/// `‖out − ref‖ / ‖ref‖`, where what f32 holds no normal number for counts as 0; 0 where nothing differs.
pub fn error(out: &[f64], reference: &[f64]) -> f64 {
    let held = |x: f64| if x.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { x };
    let pairs = || out.iter().zip(reference).map(|(a, b)| (held(*a), held(*b)));
    match pairs().map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt() {
        0.0 => 0.0,
        off => off / pairs().map(|(_, b)| b * b).sum::<f64>().sqrt(),
    }
}

/// How far the gradient of each of some parameters is, by mode: at full depth and width with few rows.
pub fn gradients(
    session: &Session,
    model: Model,
    kind: Init,
    checkpoint: Checkpoint,
    modes: &[Mode],
) -> Result<Vec<(Mode, String, f64)>, Box<dyn Error>> {
    let work = model.train(model.few_rows())?;
    let params = init(&work.graph.layout, kind, 0)?;
    let names = model.some_parameters();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let with_gradients = |graph: &Graph| differentiate(graph, "loss", Parameters::Named(&names), checkpoint);
    let mut inputs = inputs(&work);
    if work.graph.inputs().any(|(_, node)| node.name == DROPOUT_COUNTER) {
        inputs.insert(DROPOUT_COUNTER.to_owned(), counter(0, 0));
    }
    let reference = evaluate(&with_gradients(&work.graph)?, &params, &inputs)?;
    let mut rows = Vec::new();
    for &mode in modes {
        // as a trainer does it: the backward pass reads what lift finds, and is not lifted itself
        let graph = if mode == Mode::Fused { lift(&work.graph)?.0 } else { work.graph.clone() };
        let options = CompileOptions { lift: false, ..CompileOptions::mode(mode) };
        let program = session.compile(&with_gradients(&graph)?, &params, &options)?;
        for (name, value) in &work.resident {
            program.write_state(name, value)?;
        }
        let given = inputs.iter().filter(|(name, _)| !work.resident.iter().any(|(r, _)| r == name));
        let outputs = program.run(&given.map(|(name, tensor)| (name.as_str(), tensor)).collect::<Vec<_>>())?;
        for (name, expected) in &reference {
            let got = outputs.get(name).ok_or_else(|| format!("the program has no output {name:?}"))?;
            rows.push((mode, name.clone(), error(&got.to_f64(), &expected.data)));
        }
    }
    Ok(rows)
}
