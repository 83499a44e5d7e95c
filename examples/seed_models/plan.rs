//! In: the command line and a model; out: how it is compiled in a mode, tuned first if the mode says so.

use crate::args::{Args, ModeArg, PrecisionArg};
use crate::measure::Job;
use crate::models::Work;
use crate::sizes::{Model, Phase};
use crate::tuning;
use kiln::select::Overlap;
use kiln::session::{CompileOptions, Session, compile};
use kiln::tensor::Tensor;
use kiln::train::{LossScaling, Optimiser, Precision, Schedule, TrainOptions};
use kiln::trainer::compile_training;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

/// How a model is compiled in a mode.
pub struct Plan {
    options: CompileOptions,
    train: TrainOptions,
    pub tuning: Option<Tuned>,
}

/// What tuning took and found.
pub struct Tuned {
    pub seconds: f64,
    /// Of the launches that kernels' models choose, to those that were chosen; `None` if nothing was timed.
    pub ratio: Option<f64>,
}

/// Tunes it first, if the mode says so.
pub fn plan(args: &Args, session: &Session, model: Model, work: &Work, mode: ModeArg) -> Result<Plan, Box<dyn Error>> {
    let overlap = if args.one_by_one { Overlap::Never } else { Overlap::default() };
    let options = CompileOptions { precision: args.precision.into(), overlap, ..CompileOptions::mode(mode.into()) };
    let train = TrainOptions {
        optimiser: Optimiser::Adam { beta1: 0.5, beta2: 0.5, eps: 1e-8, weight_decay: 0.0 },
        learning_rate: Schedule::constant(2e-4),
        checkpoint: args.checkpoint(model),
        precision: match args.precision {
            PrecisionArg::Highest | PrecisionArg::High | PrecisionArg::Medium => Precision::F32,
            PrecisionArg::F16 => Precision::F16(LossScaling::default()),
        },
        // the deep model's activations outgrow f16 within a few steps
        skip_non_finite: args.precision == PrecisionArg::F16,
        ..TrainOptions::default()
    };
    if mode != ModeArg::Tuned {
        return Ok(Plan { options, train, tuning: None });
    }
    let (caps, begin) = (session.caps(), Instant::now());
    let compiled = match args.phase {
        Phase::Infer => compile(&work.graph, caps, &options)?,
        Phase::Train => compile_training(&work.graph, &train, caps, &options)?,
    };
    let (options, report) = tuning::tuned(session, &compiled, options, args.tune_log.as_deref())?;
    let (default, best) = report.totals();
    let ratio = (!best.is_zero()).then(|| default.as_secs_f64() / best.as_secs_f64());
    Ok(Plan { options, train, tuning: Some(Tuned { seconds: begin.elapsed().as_secs_f64(), ratio }) })
}

impl Plan {
    pub fn job(
        &self,
        args: &Args,
        session: &Session,
        work: Work,
        params: &BTreeMap<String, Tensor>,
    ) -> Result<Job, Box<dyn Error>> {
        match args.phase {
            Phase::Infer => Job::infer(session, work, params, &self.options),
            Phase::Train => Job::train(session, work, params, &self.train, &self.options),
        }
    }
}
