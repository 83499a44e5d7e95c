//! In: a [`Golden`]; out: [`Measured`], what kiln computes of all that the golden has numbers for. Knows nothing of
//! tolerances.

use super::golden::{Golden, key};
use kiln::grad::{Checkpoint, Parameters, differentiate};
use kiln::graph::{DType, Graph, Shape};
use kiln::lift::lift;
use kiln::model::{Dnn, Gptlite, GptliteFile, Loss, ModelConfig};
use kiln::session::{CompileOptions, Mode, Program, Session};
use kiln::tensor::Tensor;
use kiln::train::{Optimiser, Schedule, TrainOptions};
use std::collections::BTreeMap;
use std::error::Error;

/// What of a model is run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// In which modes.
    pub modes: Vec<Mode>,
    /// How many of its prompts are continued.
    pub prompts: usize,
    /// Whether losses, gradients and training steps are computed beside the output.
    pub training: bool,
    /// What it is compiled with, the mode apart.
    pub options: CompileOptions,
}

impl Default for Selection {
    /// Everything, as written and fused.
    fn default() -> Self {
        let modes = vec![Mode::Recorded, Mode::Fused];
        Selection { modes, prompts: usize::MAX, training: true, options: CompileOptions::default() }
    }
}

/// Something computed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// How it was run.
    pub mode: Mode,
    /// Submits and dispatches.
    pub cost: Cost,
    /// What came.
    pub value: Value,
}

/// What is computed of a model.
#[derive(Clone, Debug)]
pub enum Value {
    /// What the forward pass gives.
    Output(Tensor),
    /// A loss.
    Loss(Loss, f64),
    /// The gradient of each parameter.
    Gradients(Loss, Named),
    /// Losses of ten steps of Adam, each before its step.
    Losses(Loss, Vec<f64>),
    /// Parameters after ten steps on the cross entropy.
    Parameters(Named),
    /// A greedy continuation.
    Text {
        /// Of what.
        prompt: String,
        /// Prompt and continuation.
        text: String,
    },
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Submits and dispatches.
type Cost = (u64, usize);

/// A tensor and the input that takes it.
type Given = (&'static str, Tensor);

/// Tensors by name.
type Named = BTreeMap<String, Tensor>;

/// Computes everything that the golden has numbers for, mode by mode.
pub fn run(session: &Session, golden: &Golden, what: &Selection) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for &mode in &what.modes {
        let options = CompileOptions { mode, ..what.options.clone() };
        let mut push = |cost, value| all.push(Measured { mode, cost, value });
        if !golden.names("output").is_empty() {
            let (cost, output) = output(session, golden, &options)?;
            push(cost, Value::Output(output));
        }
        for loss in [Loss::CrossEntropy, Loss::Seed] {
            if !what.training {
                continue;
            }
            if golden.has(&format!("loss_{}", key(loss))) {
                let (cost, value, gradients) = gradients(session, golden, loss, &options)?;
                push(cost, Value::Loss(loss, value));
                push(cost, Value::Gradients(loss, gradients));
            }
            if golden.has(&format!("adam10_losses_{}", key(loss))) {
                let (cost, losses, parameters) = ten_steps(session, golden, loss, &options)?;
                push(cost, Value::Losses(loss, losses));
                if loss == Loss::CrossEntropy {
                    push(cost, Value::Parameters(parameters));
                }
            }
        }
        if let ModelConfig::Gptlite(file) = &golden.model {
            if file.greedy.is_empty() || what.prompts == 0 {
                continue;
            }
            let graph = Gptlite::new(file.config.clone()).build_next(file.config.block_size)?;
            let program = session.compile(&graph, &golden.weights.load(&graph.layout)?, &options)?;
            for (prompt, greedy) in file.greedy.iter().take(what.prompts) {
                let (text, submits) = continue_text(&program, file, prompt, greedy.text.chars().count())?;
                push((submits, program.dispatches()), Value::Text { prompt: prompt.clone(), text });
            }
        }
    }
    Ok(all)
}

/// What it costs, and the forward pass's result.
fn output(session: &Session, golden: &Golden, options: &CompileOptions) -> Result<(Cost, Tensor)> {
    let (port, input) = input(golden)?;
    let batch = input.shape().dims()[0];
    let graph = match &golden.model {
        ModelConfig::Gptlite(file) => Gptlite::new(file.config.clone()).build(batch, input.shape().last())?,
        ModelConfig::Dnn(file) => Dnn::new(file.config.clone()).build(batch)?,
    };
    let program = session.compile(&graph, &golden.weights.load(&graph.layout)?, options)?;
    let run = program.submit(&[(port, &input)])?;
    let cost = (run.submits(), program.dispatches());
    let output = run.wait()?.into_values().next().ok_or("the model has no output")?;
    Ok((cost, output))
}

/// The input with the name that the model has for it.
fn input(golden: &Golden) -> Result<Given> {
    Ok(match &golden.model {
        ModelConfig::Gptlite(_) => ("tokens", golden.tensor("input", DType::I32)?),
        ModelConfig::Dnn(_) => ("input", golden.tensor("input", DType::F32)?),
    })
}

/// The forward pass with its loss, and a batch for it.
fn training(golden: &Golden, loss: Loss) -> Result<(Graph, [Given; 2])> {
    let (port, input) = input(golden)?;
    let batch = input.shape().dims()[0];
    let graph = match &golden.model {
        ModelConfig::Gptlite(file) => {
            Gptlite::new(file.config.clone()).build_training(batch, input.shape().last(), loss)?
        }
        ModelConfig::Dnn(file) => Dnn::new(file.config.clone()).build_training(batch, loss)?,
    };
    Ok((graph, [(port, input), ("targets", golden.tensor("target", DType::I32)?)]))
}

/// What it costs, the loss, and the gradient of each parameter.
fn gradients(session: &Session, golden: &Golden, loss: Loss, options: &CompileOptions) -> Result<(Cost, f64, Named)> {
    let (forward, inputs) = training(golden, loss)?;
    // as a trainer does it: the backward pass reads what lift finds, and is not lifted itself
    let forward = match options.mode == Mode::Fused && options.lift {
        true => lift(&forward)?.0,
        false => forward,
    };
    let graph = differentiate(&forward, "loss", Parameters::All, Checkpoint::None)?;
    let options = CompileOptions { lift: false, ..options.clone() };
    let program = session.compile(&graph, &golden.weights.load(&graph.layout)?, &options)?;
    let run = program.submit(&inputs.each_ref().map(|(name, tensor)| (*name, tensor)))?;
    let cost = (run.submits(), program.dispatches());
    let mut outputs = run.wait()?;
    let value = outputs.remove("loss").ok_or("the model has no output \"loss\"")?.to_f64()[0];
    let gradients = outputs.into_iter().filter_map(|(n, t)| Some((n.strip_prefix("grad.")?.to_owned(), t)));
    Ok((cost, value, gradients.collect()))
}

/// What ten steps of Adam cost in one submit, their losses, and the parameters after them.
fn ten_steps(
    session: &Session,
    golden: &Golden,
    loss: Loss,
    options: &CompileOptions,
) -> Result<(Cost, Vec<f64>, Named)> {
    let (forward, inputs) = training(golden, loss)?;
    let train = TrainOptions {
        optimiser: Optimiser::Adam { beta1: 0.5, beta2: 0.5, eps: 1e-8, weight_decay: 0.0 },
        learning_rate: Schedule::constant(2e-4),
        ..TrainOptions::default()
    };
    let trainer = session.trainer(&forward, &golden.weights.load(&forward.layout)?, &train, options)?;
    let batch = inputs.each_ref().map(|(name, tensor)| (*name, tensor));
    let steps = trainer.submit_all(&[batch; 10])?;
    let cost = (steps.run().submits(), trainer.program().dispatches());
    let losses = steps.wait()?.iter().map(|report| f64::from(report.loss)).collect();
    Ok((cost, losses, trainer.parameters()?))
}

/// The greedy continuation of a prompt to a number of characters, and the submits that a step took.
fn continue_text(program: &Program, file: &GptliteFile, prompt: &str, length: usize) -> Result<(String, u64)> {
    let vocabulary = file.vocabulary.as_ref().ok_or("greedy texts need a \"vocab\"")?;
    let mut tokens = vocabulary.encode(prompt)?;
    let block = file.config.block_size;
    let mut submits = 0;
    while tokens.len() < length {
        let window = &tokens[tokens.len().saturating_sub(block)..];
        let mut padded = window.to_vec();
        padded.resize(block, 0);
        let position = Tensor::i32([1], &[window.len() as i32 - 1]);
        let padded = Tensor::i32(Shape::from([1, block]), &padded);
        let run = program.submit(&[("tokens", &padded), ("position", &position)])?;
        submits = run.submits();
        let next = run.wait()?.remove("next").ok_or("the model has no output \"next\"")?;
        tokens.push(next.to_f64()[0] as i32);
    }
    Ok((vocabulary.decode(&tokens)?, submits))
}
