//! In: goldens' names and small sizes; out: their forward graphs, batches and expected numbers, and a trainer that runs
//! on the reference. Knows the public API alone.
#![allow(dead_code, reason = "each test binary uses its own part")]

use kiln::graph::{DROPOUT_COUNTER, DType, Graph, TensorType};
use kiln::lift::lift;
use kiln::model::{Checkpoint, Dnn, Gptlite, Loss, ModelConfig};
use kiln::reference::{Value, evaluate_all};
use kiln::tensor::Tensor;
use kiln::train::{Optimiser, SCALARS, Schedule, TrainOptions, training_step};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tensors by name.
pub type Named = BTreeMap<String, Tensor>;

/// Every golden that has ten steps of Adam.
pub const GOLDENS: [&str; 5] = ["gptlite_tiny", "gptlite_odd", "dnn_deep_small", "dnn_he", "dnn_wide_small"];

/// A golden: ten steps of Adam on one batch.
pub struct Golden {
    pub forward: Graph,
    pub params: Named,
    pub batch: Named,
    /// The loss before each step.
    pub losses: Vec<f64>,
    expected: Checkpoint,
}

fn path(name: &str, suffix: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens").join(format!("{name}.{suffix}"))
}

impl Golden {
    pub fn open(name: &str, loss: Loss) -> Golden {
        let expected = Checkpoint::open(path(name, "expected.safetensors")).unwrap();
        let (forward, input, dtype) = match ModelConfig::open(path(name, "json")).unwrap() {
            ModelConfig::Gptlite(f) => {
                let (batch, seq) = (f.batch.unwrap(), f.seq.unwrap());
                (Gptlite::new(f.config).build_training(batch, seq, loss).unwrap(), "tokens", DType::I32)
            }
            ModelConfig::Dnn(f) => {
                (Dnn::new(f.config).build_training(f.batch.unwrap(), loss).unwrap(), "input", DType::F32)
            }
        };
        let weights = Checkpoint::open(path(name, "weights.safetensors")).unwrap();
        let params = weights.load(&forward.layout).unwrap().tensors();
        let batch = Named::from([
            (input.to_owned(), expected.tensor("input", dtype).unwrap()),
            ("targets".to_owned(), expected.tensor("target", DType::I32).unwrap()),
        ]);
        let text = std::fs::read_to_string(path(name, "json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let key = if loss == Loss::Seed { "adam10_losses_seed" } else { "adam10_losses_ce" };
        let losses = json[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        Golden { forward, params, batch, losses, expected }
    }

    /// The furthest that a parameter is from where ten steps on the cross entropy take it, by the distance that it moves.
    pub fn furthest(&self, got: impl Fn(&str) -> Vec<f64>) -> (f64, String) {
        let mut furthest = (0.0, String::new());
        for (name, start) in &self.params {
            let expected = self.expected.tensor(&format!("adam10.{name}"), DType::F32).unwrap().to_f64();
            let (got, start) = (got(name), start.to_f64());
            let (moved, off) = (distance(&expected, &start), distance(&got, &expected));
            assert!(off.is_finite() && moved > 0.0, "{name}: moved {moved}, off {off}");
            if off / moved > furthest.0 {
                furthest = (off / moved, name.clone());
            }
        }
        furthest
    }
}

/// How far one vector is from another.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// How the goldens were trained.
pub fn golden_options() -> TrainOptions {
    TrainOptions {
        optimiser: Optimiser::Adam { beta1: 0.5, beta2: 0.5, eps: 1e-8, weight_decay: 0.0 },
        learning_rate: Schedule::constant(2e-4),
        ..TrainOptions::default()
    }
}

/// A training step on the reference, with the states that it leaves.
pub struct OnReference {
    pub graph: Graph,
    params: Named,
    pub states: BTreeMap<String, Value>,
    options: TrainOptions,
    step: u64,
}

impl OnReference {
    /// Lifted, or as written.
    pub fn new(forward: &Graph, params: &Named, options: &TrainOptions, lifted: bool) -> OnReference {
        let forward = if lifted { lift(forward).unwrap().0 } else { forward.clone() };
        let graph = training_step(&forward, options).unwrap_or_else(|e| panic!("{e}\n{forward}"));
        OnReference { graph, params: params.clone(), states: BTreeMap::new(), options: options.clone(), step: 0 }
    }

    /// One step; its outputs.
    pub fn step(&mut self, batch: &Named) -> BTreeMap<String, Value> {
        let mut inputs = batch.clone();
        let rate = self.options.learning_rate.at(self.step);
        let scalars = self.options.optimiser.scalars(rate, self.step + 1);
        inputs.insert(SCALARS.into(), Tensor::f32([3], &scalars));
        if let Some((_, counter)) = self.graph.inputs().find(|(_, n)| n.name == DROPOUT_COUNTER) {
            let shape = counter.outputs[0].shape.clone();
            let micro_batches = shape.elements() as u64 / 3;
            let seed = self.options.seed;
            let row = |i| [seed as u32, (seed >> 32) as u32, (self.step * micro_batches + i) as u32];
            let bytes = (0..micro_batches).flat_map(row).flat_map(u32::to_le_bytes).collect();
            inputs.insert(DROPOUT_COUNTER.into(), Tensor::from_bytes(TensorType::new(DType::U32, shape), bytes));
        }
        self.step += 1;
        let evaluation = evaluate_all(&self.graph, &self.params, &inputs, &self.states).unwrap();
        self.states = evaluation.states;
        evaluation.outputs
    }

    /// One step's loss.
    pub fn loss(&mut self, batch: &Named) -> f64 {
        self.step(batch)["loss"].data[0]
    }

    /// A parameter's values by its own name.
    pub fn parameter(&self, name: &str) -> Vec<f64> {
        for (_, storage) in self.graph.layout.iter() {
            if let (Some(part), Some(whole)) =
                (storage.parts.iter().find(|p| p.name == name), self.states.get(&storage.name))
            {
                return whole.data[part.offset..part.offset + part.shape.elements()].to_vec();
            }
        }
        self.params[name].to_f64()
    }
}
