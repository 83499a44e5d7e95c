//! In: a model; out: how far outputs and gradients are from the f64 reference. Times nothing.
//!
//! A ReLU's gradient jumps at 0, and of the millions of ReLUs in a model some lie so near to 0 that f32 falls on the other
//! side than f64; in a deep model a single one moves all gradients before it by a thousandth. So the reference takes the
//! gradient on the device's side of every ReLU, and those where the sides differ are counted and must lie near 0.

use crate::args::{Args, ModeArg, PrecisionArg};
use crate::measure::counter;
use crate::models::Work;
use crate::row::write_json;
use crate::sizes::{Model, Scale, Sizes};
use kiln::MatmulPrecision;
use kiln::grad::{Checkpoint, Parameters, differentiate};
use kiln::graph::{
    Binary, DROPOUT_COUNTER, DType, Disposition, Graph, GraphError, NodeId, Op, Rewriter, TensorType, Unary,
};
use kiln::lift::lift;
use kiln::model::{Init, init};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;

type Tensors = BTreeMap<String, Tensor>;

/// Everything that a graph is given, by name.
pub fn inputs(work: &Work) -> Tensors {
    let batch = &work.batches[0];
    batch.given.iter().chain(&batch.resident).map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect()
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

/// Gradients in one mode beside the reference's.
pub struct Comparison {
    /// ReLUs.
    pub relus: usize,
    /// ReLUs on the other side of 0 than in f64.
    pub flipped: usize,
    /// The largest value of one of these, on either side, in terms of the largest of its layer.
    pub furthest: f64,
    /// The error of the loss and of each gradient.
    pub errors: Vec<(String, f64)>,
}

/// A model's training step at full depth and width with few rows, to be computed by device and reference.
pub struct Gradients {
    work: Work,
    params: Tensors,
    inputs: Tensors,
    names: Vec<String>,
    checkpoint: Checkpoint,
    /// What each ReLU gives in f64.
    relus: BTreeMap<String, Vec<f64>>,
}

impl Gradients {
    /// Of some parameters of a model.
    pub fn new(model: Model, kind: Init, checkpoint: Checkpoint) -> Result<Gradients, Box<dyn Error>> {
        let sizes = Sizes::of(model, Scale::Full).with_rows(model.few_rows());
        let work = sizes.train()?;
        let params = init(&work.graph.layout, kind, 0)?;
        let mut inputs = inputs(&work);
        if work.graph.inputs().any(|(_, node)| node.name == DROPOUT_COUNTER) {
            inputs.insert(DROPOUT_COUNTER.to_owned(), counter(0, 0));
        }
        let relus = evaluate(&watched(&work.graph)?, &params, &inputs)?;
        let relus = relus.into_iter().filter(|(name, _)| name != "loss").map(|(name, value)| (name, value.data));
        Ok(Gradients { relus: relus.collect(), names: sizes.some_parameters(), work, params, inputs, checkpoint })
    }

    /// Computes them on the device and compares.
    pub fn compare(
        &self,
        session: &Session,
        mode: Mode,
        precision: MatmulPrecision,
    ) -> Result<Comparison, Box<dyn Error>> {
        // as a trainer does it: the backward pass reads what lift finds, and is not lifted itself
        let graph = if mode == Mode::Fused { lift(&self.work.graph)?.0 } else { self.work.graph.clone() };
        let options = CompileOptions { lift: false, precision, ..CompileOptions::mode(mode) };
        let got = self.run(session, &options, &self.with_gradients(&graph)?)?;
        let sides = self.run(session, &options, &watched(&graph)?)?;

        let mut comparison = Comparison { relus: 0, flipped: 0, furthest: 0.0, errors: Vec::new() };
        let mut inputs = self.inputs.clone();
        for (name, exact) in &self.relus {
            let values = sides.get(name).ok_or_else(|| format!("the program has no output {name:?}"))?.to_f64();
            let largest = exact.iter().fold(0.0, |most: f64, v| most.max(*v));
            for (value, exact) in values.iter().zip(exact).filter(|(v, e)| (**v > 0.0) != (**e > 0.0)) {
                comparison.flipped += 1;
                comparison.furthest = comparison.furthest.max(value.max(*exact) / largest);
            }
            comparison.relus += exact.len();
            let side: Vec<f32> = values.iter().map(|v| f32::from(u8::from(*v > 0.0))).collect();
            inputs.insert(side_of(name), Tensor::f32(sides[name].shape().clone(), &side));
        }
        let reference = evaluate(&self.with_gradients(&on_given_sides(&self.work.graph)?)?, &self.params, &inputs)?;
        for (name, expected) in &reference {
            let got = got.get(name).ok_or_else(|| format!("the program has no output {name:?}"))?;
            let name = name.strip_prefix("grad.").unwrap_or(name);
            comparison.errors.push((name.to_owned(), error(&got.to_f64(), &expected.data)));
        }
        Ok(comparison)
    }

    fn with_gradients(&self, graph: &Graph) -> Result<Graph, Box<dyn Error>> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        Ok(differentiate(graph, "loss", Parameters::Named(&names), self.checkpoint)?)
    }

    fn run(&self, session: &Session, options: &CompileOptions, graph: &Graph) -> Result<Tensors, Box<dyn Error>> {
        let program = session.compile(graph, &self.params, options)?;
        let resident = |name: &str| self.work.batches[0].resident.iter().any(|(r, _)| *r == name);
        for (name, value) in &self.work.batches[0].resident {
            program.write_state(name, value)?;
        }
        let given = self.inputs.iter().filter(|(name, _)| !resident(name));
        Ok(program.run(&given.map(|(name, tensor)| (name.as_str(), tensor)).collect::<Vec<_>>())?)
    }
}

fn relus(graph: &Graph) -> Vec<(NodeId, String)> {
    let relus = graph.nodes().filter(|(_, node)| node.op == Op::Unary(Unary::Relu));
    relus.map(|(id, node)| (id, node.name.clone())).collect()
}

/// The graph with what each ReLU gives as an output of its name.
fn watched(graph: &Graph) -> Result<Graph, GraphError> {
    let mut watched = graph.clone();
    for (id, name) in relus(graph) {
        watched.push_output(name, id.into(), Disposition::Read)?;
    }
    Ok(watched)
}

/// The graph with a product with an input of ones and zeros in each ReLU's place.
fn on_given_sides(graph: &Graph) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        if node.op == Op::Unary(Unary::Relu) {
            let ty = TensorType::new(DType::F32, node.outputs[0].shape.clone());
            let side = r.new.push_input(ty, side_of(&node.name));
            let x = r.get(node.inputs[0]);
            let product = r.new.push(Op::Binary(Binary::Mul), vec![x, side.into()], node.name.clone())?;
            r.set(id.into(), product.into());
        } else {
            r.copy(id)?;
        }
    }
    r.finish()
}

fn side_of(relu: &str) -> String {
    format!("{relu}.side")
}

/// How far a number or tensor is from the reference's.
#[derive(Serialize)]
struct Gradient {
    model: String,
    mode: String,
    precision: String,
    init: String,
    adapter: String,
    /// The parameter whose gradient it is, the loss, or the ReLUs.
    what: String,
    error: f64,
    passes: bool,
}

/// Prints how far each gradient is.
pub fn print_gradients(args: &Args, session: &Session) -> Result<(), Box<dyn Error>> {
    if args.precision == PrecisionArg::F16 {
        return Err(
            "--phase train --verify compares gradients in f32: expected --precision highest, high or medium, got f16, \
                    which scales its loss as it trains; leave --verify out to train in f16"
                .into(),
        );
    }
    if args.mode.contains(&ModeArg::Tuned) || args.tune {
        return Err(
            "--phase train --verify times nothing: expected --mode eager, recorded or fused, got tuned, whose \
                    candidates are compared with each other as they are timed"
                .into(),
        );
    }
    println!("{:<8} {:<8} {:<9} {:<54} error", "model", "init", "mode", "gradient of");
    let most = args.precision.tolerances();
    let mut rows = Vec::new();
    for model in &args.model {
        for (name, kind) in [("default", Init::Default), ("he", Init::He)] {
            let gradients = Gradients::new(*model, kind, args.checkpoint(*model))?;
            for mode in &args.mode {
                let mode = (*mode).into();
                let Comparison { relus, flipped, furthest, errors } =
                    gradients.compare(session, mode, args.precision.into())?;
                let (model, mode, init) = (model.to_string(), mode.to_string(), name.to_owned());
                let adapter = session.adapter().name.clone();
                let sides = format!("{flipped} of {relus} ReLUs on the other side of 0, by");
                let errors = errors.into_iter().map(|(name, e)| (name, e, most.gradient));
                for (what, error, most) in [(sides, furthest, most.side)].into_iter().chain(errors) {
                    let row = Gradient {
                        model: model.clone(),
                        mode: mode.clone(),
                        precision: format!("{:?}", args.precision).to_lowercase(),
                        init: init.clone(),
                        adapter: adapter.clone(),
                        what,
                        error,
                        passes: error <= most,
                    };
                    let mark = if row.passes { "" } else { "  FAILED" };
                    println!("{model:<8} {init:<8} {mode:<9} {:<54} {error:.2e}{mark}", row.what);
                    rows.push(row);
                }
            }
        }
    }
    write_json(args.json.as_deref(), &rows)?;
    match rows.iter().filter(|r| !r.passes).count() {
        0 => Ok(()),
        n => Err(format!("{n} numbers differ from the reference by more than {:e}", most.gradient).into()),
    }
}
