//! In: a [`Golden`] and [`Measured`]; out: a [`Verdict`] by the tolerance of its quantity. Computes nothing anew.

use super::golden::{Golden, key};
use super::run::{Measured, Value};
use kiln::MatmulPrecision;
use kiln::graph::DType;
use kiln::model::ModelConfig;
use kiln::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;

/// The largest errors that pass.
struct Tolerances {
    /// `‖out − ref‖ / ‖ref‖` of outputs.
    output: f64,
    /// `|loss − ref| / |ref|`.
    loss: f64,
    /// `‖gradient − ref‖ / ‖ref‖` of any parameter.
    gradient: f64,
    /// `‖parameter − ref‖ / ‖ref − start‖` of any parameter after ten steps; no step at all is off by 1.
    parameter: f64,
}

/// Layers of linears, of which more are deep.
const DEEP: usize = 16;

/// Highest and high are held to the same: high is as exact as f32. Medium rounds to 11 bits, which moves ReLUs of deep
/// networks to the other side of 0: gradients of 24 layers with He's initialisation are off by up to 0.3, all others by
/// up to 0.03. Adam makes of a gradient whose sign that turns a step in the other direction.
fn tolerances(precision: MatmulPrecision, model: &ModelConfig) -> Tolerances {
    let deep = matches!(model, ModelConfig::Dnn(file) if file.config.depth > DEEP);
    match precision {
        MatmulPrecision::Highest | MatmulPrecision::High => {
            Tolerances { output: 1e-5, loss: 1e-6, gradient: 1e-4, parameter: 1e-3 }
        }
        MatmulPrecision::Medium if deep => Tolerances { output: 5e-3, loss: 1e-3, gradient: 0.4, parameter: 0.6 },
        MatmulPrecision::Medium => Tolerances { output: 5e-3, loss: 1e-3, gradient: 0.05, parameter: 0.12 },
    }
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// How far a number or tensor is from what it must be.
    Error {
        /// Relative to its size, or to the way it went.
        error: f64,
        /// The largest that passes.
        tolerance: f64,
    },
    /// How far the worst of several tensors is.
    Worst {
        /// Its name.
        tensor: String,
        /// Among how many.
        of: usize,
        /// As of one tensor.
        error: f64,
        /// The largest that passes.
        tolerance: f64,
    },
    /// Whether a text was reproduced; else the first character that differs.
    Text(Option<usize>),
}

impl Verdict {
    /// Whether it is within tolerance. NaN is not.
    pub fn passes(&self) -> bool {
        match self {
            Verdict::Error { error, tolerance } | Verdict::Worst { error, tolerance, .. } => error <= tolerance,
            Verdict::Text(differs) => differs.is_none(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Error { error, tolerance } => write!(f, "{error:.2e} of {tolerance:.0e}"),
            Verdict::Worst { tensor, of, error, tolerance } => {
                write!(f, "{error:.2e} of {tolerance:.0e}, worst of {of}: {tensor}")
            }
            Verdict::Text(None) => f.write_str("text reproduced"),
            Verdict::Text(Some(at)) => write!(f, "text differs at character {at}"),
        }
    }
}

/// What was compared, and what came of it at a precision of products.
pub fn judge(
    golden: &Golden,
    measured: &Measured,
    precision: MatmulPrecision,
) -> Result<(String, Verdict), Box<dyn Error>> {
    let most = tolerances(precision, &golden.model);
    Ok(match &measured.value {
        Value::Output(output) => {
            let error = relative_error(output, &golden.tensor("output", DType::F32)?, None);
            ("output".into(), Verdict::Error { error, tolerance: most.output })
        }
        Value::Loss(loss, value) => {
            let field = format!("loss_{}", key(*loss));
            let error = furthest(&[*value], &golden.numbers(&field)?);
            (field, Verdict::Error { error, tolerance: most.loss })
        }
        Value::Gradients(loss, gradients) => {
            let field = format!("grad_{}", key(*loss));
            let verdict = worst(golden, &format!("{field}."), gradients, false, most.gradient)?;
            (field, verdict)
        }
        Value::Losses(loss, losses) => {
            let field = format!("adam10_losses_{}", key(*loss));
            let error = furthest(losses, &golden.numbers(&field)?);
            (field, Verdict::Error { error, tolerance: most.loss })
        }
        Value::Parameters(parameters) => ("adam10".into(), worst(golden, "adam10.", parameters, true, most.parameter)?),
        Value::Text { prompt, text } => {
            let ModelConfig::Gptlite(file) = &golden.model else { return Err("a text of no gptlite".into()) };
            let greedy = file.greedy.get(prompt).ok_or_else(|| format!("no text for {prompt:?}"))?;
            (format!("{prompt:?}"), Verdict::Text(first_difference(text, &greedy.text)))
        }
    })
}

/// The tensor that is furthest from the expected one of its name behind `prefix`. One that is missing on either side is
/// off by NaN.
fn worst(
    golden: &Golden,
    prefix: &str,
    got: &BTreeMap<String, Tensor>,
    from_start: bool,
    tolerance: f64,
) -> Result<Verdict, Box<dyn Error>> {
    let expected: BTreeSet<&str> = golden.names(prefix).into_iter().collect();
    let names: BTreeSet<&str> = got.keys().map(String::as_str).chain(expected.iter().copied()).collect();
    let of = names.len();
    let mut worst: Option<(&str, f64)> = None;
    for name in names {
        let error = match got.get(name) {
            Some(tensor) if expected.contains(name) => {
                let reference = golden.tensor(&format!("{prefix}{name}"), DType::F32)?;
                let start = if from_start { Some(golden.weights.tensor(name, DType::F32)?) } else { None };
                relative_error(tensor, &reference, start.as_ref())
            }
            _ => f64::NAN,
        };
        // NaN is worse than any number, and stays
        if worst.is_none_or(|(_, most)| !most.is_nan() && (error.is_nan() || error > most)) {
            worst = Some((name, error));
        }
    }
    let (tensor, error) = worst.unwrap_or(("none", f64::NAN));
    Ok(Verdict::Worst { tensor: tensor.to_owned(), of, error, tolerance })
}

/// `‖out − ref‖ / ‖ref − start‖` over all elements, without a start `‖out − ref‖ / ‖ref‖`; 0 where nothing differs, NaN
/// where a shape does, which never passes.
fn relative_error(out: &Tensor, reference: &Tensor, start: Option<&Tensor>) -> f64 {
    if out.shape() != reference.shape() || start.is_some_and(|s| s.shape() != reference.shape()) {
        return f64::NAN;
    }
    let (out, reference) = (out.to_f64(), reference.to_f64());
    let start = start.map_or_else(|| vec![0.0; reference.len()], Tensor::to_f64);
    let norm = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    match norm(&out, &reference) {
        0.0 => 0.0,
        off => off / norm(&reference, &start),
    }
}

/// The largest relative error of several numbers; NaN where there are more or fewer than expected.
fn furthest(got: &[f64], expected: &[f64]) -> f64 {
    if got.len() != expected.len() {
        return f64::NAN;
    }
    let errors = got.iter().zip(expected).map(|(g, e)| ((g - e) / e).abs());
    errors.fold(0.0, |most: f64, e| if e.is_nan() || most.is_nan() { f64::NAN } else { most.max(e) })
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
