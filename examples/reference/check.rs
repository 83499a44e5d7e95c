//! In: a folder of reference data; out: how far kiln's results are from it, fused and as written.

use kiln::graph::{DType, Shape};
use kiln::model::{Checkpoint, Dnn, Gptlite, GptliteFile, ModelConfig};
use kiln::session::{CompileOptions, Mode, Program, Session};
use kiln::tensor::Tensor;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Largest `‖out − ref‖ / ‖ref‖` that passes.
pub const TOLERANCE: f64 = 1e-5;

/// One quantity of one model in one mode.
#[derive(Debug)]
pub struct Row {
    /// The model's name.
    pub name: String,
    /// How it was run.
    pub mode: Mode,
    /// Submits and dispatches of a run.
    pub cost: (u64, usize),
    /// What is compared.
    pub quantity: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of a comparison.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// The relative error of a tensor.
    Error(f64),
    /// Whether a text was reproduced; else the first character that differs.
    Text(Option<usize>),
    /// Not compared, and why.
    Skipped(&'static str),
}

impl Verdict {
    /// Whether it is within tolerance. NaN is not.
    pub fn passes(&self) -> bool {
        match self {
            Verdict::Error(e) => *e <= TOLERANCE,
            Verdict::Text(differs) => differs.is_none(),
            Verdict::Skipped(_) => true,
        }
    }
}

/// Models in a folder: each NAME.json with weights and something to compare with.
pub fn find(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") && path.with_extension("weights.safetensors").is_file() {
            let has_texts = matches!(ModelConfig::open(&path)?, ModelConfig::Gptlite(g) if !g.greedy.is_empty());
            if has_texts || path.with_extension("expected.safetensors").is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What of a model is run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// In which modes.
    pub modes: Vec<Mode>,
    /// How many of its prompts are continued.
    pub prompts: usize,
    /// What it is compiled with, the mode apart.
    pub options: CompileOptions,
}

impl Default for Selection {
    /// Everything, as written and fused.
    fn default() -> Self {
        let modes = vec![Mode::Recorded, Mode::Fused];
        Selection { modes, prompts: usize::MAX, options: CompileOptions::default() }
    }
}

/// Runs one model.
pub fn check(session: &Session, config: &Path, what: &Selection) -> Result<Vec<Row>, Box<dyn Error>> {
    let name = config.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let weights = Checkpoint::open(config.with_extension("weights.safetensors"))?;
    let expected = config.with_extension("expected.safetensors");
    let expected = if expected.is_file() { Some(Checkpoint::open(expected)?) } else { None };
    let model = ModelConfig::open(config)?;
    let mut rows = Vec::new();
    for &mode in &what.modes {
        let options = CompileOptions { mode, ..what.options.clone() };
        let mut row = |cost, quantity: &str, verdict| {
            rows.push(Row { name: name.clone(), mode, cost, quantity: quantity.into(), verdict });
        };
        if let Some(expected) = &expected {
            let reference = tensor(expected, "output", DType::F32)?;
            let (graph, input, port) = match &model {
                ModelConfig::Gptlite(file) => {
                    let tokens = tensor(expected, "input", DType::I32)?;
                    let dims = tokens.shape().dims().to_vec();
                    (Gptlite::new(file.config.clone()).build(dims[0], dims[1])?, tokens, "tokens")
                }
                ModelConfig::Dnn(file) => {
                    let x = tensor(expected, "input", DType::F32)?;
                    (Dnn::new(file.config.clone()).build(x.shape().dims()[0])?, x, "input")
                }
            };
            let program = session.compile(&graph, &weights.load(&graph.layout)?, &options)?;
            let run = program.submit(&[(port, &input)])?;
            let cost = (run.submits(), program.dispatches());
            let outputs = run.wait()?;
            let output = outputs.values().next().ok_or("the model has no output")?;
            row(cost, "output", Verdict::Error(relative_error(output, &reference)));
            if expected.names().any(|n| n.starts_with("grad_")) {
                row(cost, "gradients", Verdict::Skipped("kiln does not train yet"));
            }
        }
        if let ModelConfig::Gptlite(file) = &model {
            if file.greedy.is_empty() || what.prompts == 0 {
                continue;
            }
            let graph = Gptlite::new(file.config.clone()).build_next(file.config.block_size)?;
            let program = session.compile(&graph, &weights.load(&graph.layout)?, &options)?;
            for (prompt, greedy) in file.greedy.iter().take(what.prompts) {
                let (text, submits) = continue_text(&program, file, prompt, greedy.text.chars().count())?;
                let differs = first_difference(&text, &greedy.text);
                row((submits, program.dispatches()), &format!("{prompt:?}"), Verdict::Text(differs));
            }
        }
    }
    Ok(rows)
}

fn tensor(file: &Checkpoint, name: &str, dtype: DType) -> Result<Tensor, Box<dyn Error>> {
    Ok(file.tensor(name, dtype)?)
}

/// `‖out − ref‖ / ‖ref‖` over all elements; NaN where a shape differs, which never passes.
pub fn relative_error(out: &Tensor, reference: &Tensor) -> f64 {
    if out.shape() != reference.shape() {
        return f64::NAN;
    }
    let (out, reference) = (out.to_f64(), reference.to_f64());
    let square = |x: f64| x * x;
    let difference: f64 = out.iter().zip(&reference).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = reference.iter().copied().map(square).sum();
    (difference / norm).sqrt()
}

/// The greedy continuation of a prompt to a number of characters, and the submits that a step took.
fn continue_text(
    program: &Program,
    file: &GptliteFile,
    prompt: &str,
    length: usize,
) -> Result<(String, u64), Box<dyn Error>> {
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

fn first_difference(a: &str, b: &str) -> Option<usize> {
    let (mut a, mut b) = (a.chars(), b.chars());
    let mut at = 0;
    loop {
        match (a.next(), b.next()) {
            (None, None) => return None,
            (x, y) if x == y => at += 1,
            _ => return Some(at),
        }
    }
}
