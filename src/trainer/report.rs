//! In: submitted steps; out: [`StepReport`], what each of them says about itself. Knows programs and their runs.

use crate::error::Error;
use crate::session::{Outputs, Run};
use crate::tensor::Tensor;

/// What a step says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number; the first step of a training is 0.
    pub step: u64,
    /// The loss before its update; the mean over micro-batches.
    pub loss: f32,
    /// The rate it learned at.
    pub learning_rate: f64,
    /// The norm of all gradients together, before they were scaled; only with
    /// [`TrainOptions::clip_norm`](crate::train::TrainOptions::clip_norm).
    pub grad_norm: Option<f32>,
    /// Whether weights and moments were left as they were, since loss or gradients were not finite.
    pub skipped: bool,
    /// What the loss was multiplied with for its gradients; only in f16.
    pub loss_scale: Option<f32>,
    /// The forward graph's other outputs.
    pub outputs: Outputs,
}

/// Steps in flight, all in one submit.
pub struct Steps<'a> {
    run: Run<'a>,
    /// Number and learning rate of each.
    rates: Vec<(u64, f64)>,
    skips: bool,
}

impl<'a> Steps<'a> {
    pub(super) fn new(run: Run<'a>, rates: Vec<(u64, f64)>, skips: bool) -> Self {
        Steps { run, rates, skips }
    }

    /// The run that holds them.
    pub fn run(&self) -> &Run<'a> {
        &self.run
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// If a loss is not a finite number, unless such steps are skipped; if the device fails.
    pub fn wait(self) -> Result<Vec<StepReport>, Error> {
        reports(self.rates, self.skips, self.run.wait_all()?)
    }

    /// Waits without blocking the caller's thread.
    ///
    /// # Errors
    /// See [`Steps::wait`].
    pub async fn finish(self) -> Result<Vec<StepReport>, Error> {
        reports(self.rates, self.skips, self.run.finish_all().await?)
    }
}

pub(super) fn reports(rates: Vec<(u64, f64)>, skips: bool, outputs: Vec<Outputs>) -> Result<Vec<StepReport>, Error> {
    let report = |((step, learning_rate), mut outputs): ((u64, f64), Outputs)| {
        let loss = scalar(&outputs.remove("loss").expect("a training step reads its loss back"));
        let grad_norm = outputs.remove("grad_norm").map(|t| scalar(&t));
        let skipped = outputs.remove("skipped").is_some_and(|t| t.bytes().iter().any(|b| *b != 0));
        let loss_scale = outputs.remove("loss_scale").map(|t| scalar(&t));
        StepReport { step, loss, learning_rate, grad_norm, skipped, loss_scale, outputs }
    };
    let reports: Vec<StepReport> = rates.into_iter().zip(outputs).map(report).collect();
    match reports.iter().find(|r| !r.loss.is_finite() && !skips) {
        Some(bad) => Err(Error::Loss { step: bad.step, loss: bad.loss, learning_rate: bad.learning_rate }),
        None => Ok(reports),
    }
}

fn scalar(tensor: &Tensor) -> f32 {
    tensor.to_f32()[0]
}
