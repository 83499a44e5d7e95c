//! In: a user's choices; out: [`TrainOptions`], and what they say about each parameter. Knows names and shapes alone.

use super::{LossScaling, Optimiser, Schedule, TrainError};
use crate::grad::Checkpoint;
use crate::graph::{Part, Shape};
use std::fmt;

/// How a training step is made.
///
/// ```
/// use kiln::train::{Group, Names, Optimiser, Schedule, TrainOptions};
/// let options = TrainOptions {
///     optimiser: Optimiser::adamw(0.1),
///     learning_rate: Schedule::constant(3e-4).warm_up(100).cosine(5000, 3e-5),
///     groups: vec![Group::no_decay(), Group::frozen(Names::within("token_embedding_table"))],
///     clip_norm: Some(1.0),
///     ..TrainOptions::default()
/// };
/// # assert_eq!(options.micro_batches, 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// How weights follow from gradients.
    pub optimiser: Optimiser,
    /// The learning rate of each step.
    pub learning_rate: Schedule,
    /// What differs for some parameters, in order: where several groups match a parameter, a later one overrides what
    /// it sets itself.
    pub groups: Vec<Group>,
    /// Micro-batches of a step, n, at least 1. With more than one every input gets a leading dimension n, gradients and
    /// losses are means over the micro-batches, and all are in one submit. States of the forward graph go from each to the
    /// next, and no gradient goes back through them. Each micro-batch counts the same, however many of its targets are
    /// ignored.
    pub micro_batches: usize,
    /// The largest norm of all gradients together; longer ones are scaled down to it, as PyTorch's `clip_grad_norm_`
    /// does. The sum of squares cannot overflow. `None` never scales.
    pub clip_norm: Option<f32>,
    /// Whether a step whose loss or gradients hold NaN or infinities leaves weights, moments and the forward graph's
    /// states as they are. Such steps count as steps, also in Adam's bias correction, and are reported.
    pub skip_non_finite: bool,
    /// Which activations are kept for the backward pass and which computed anew.
    pub checkpoint: Checkpoint,
    /// Gradients of linear weights larger than this many bytes are made, used and dropped in pieces, where nothing but
    /// the optimiser reads them.
    pub piece_bytes: usize,
    /// In what the forward and backward passes compute.
    pub precision: Precision,
    /// Seed of dropout, whose random numbers depend on it, on the step and on the place in the model.
    pub seed: u64,
}

impl Default for TrainOptions {
    /// Adam at a constant 1e-3, PyTorch's defaults; one micro-batch, no clipping, nothing skipped; norms computed anew.
    fn default() -> Self {
        TrainOptions {
            optimiser: Optimiser::adam(),
            learning_rate: Schedule::constant(1e-3),
            groups: Vec::new(),
            micro_batches: 1,
            clip_norm: None,
            skip_non_finite: false,
            checkpoint: Checkpoint::Norms,
            piece_bytes: 64 << 20,
            precision: Precision::F32,
            seed: 0,
        }
    }
}

/// In what a training step computes. Weights, moments and updates are f32 in both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Precision {
    /// All in f32.
    #[default]
    F32,
    /// Products, norms and the activations between them in f16 with f32 sums; softmax, losses and reductions in f32. The
    /// loss is scaled, and a step whose gradients overflow is skipped and counted, as with
    /// [`TrainOptions::skip_non_finite`]; it needs an adapter that has f16.
    F16(LossScaling),
}

/// Settings of some parameters that differ from the optimiser's.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Which parameters.
    pub names: Names,
    /// Factor on the learning rate.
    pub rate_scale: Option<f32>,
    /// λ in place of the optimiser's.
    pub weight_decay: Option<f32>,
    /// Whether they keep their values.
    pub frozen: Option<bool>,
}

impl Group {
    /// A group that changes nothing yet.
    pub fn of(names: Names) -> Self {
        Group { names, rate_scale: None, weight_decay: None, frozen: None }
    }

    /// Biases and the parameters of norms, all that have one dimension, do not decay.
    pub fn no_decay() -> Self {
        Group { weight_decay: Some(0.0), ..Group::of(Names::Vectors) }
    }

    /// Parameters that keep their values.
    pub fn frozen(names: Names) -> Self {
        Group { frozen: Some(true), ..Group::of(names) }
    }

    /// Parameters that learn at a multiple of the rate.
    pub fn scaled(names: Names, rate_scale: f32) -> Self {
        Group { rate_scale: Some(rate_scale), ..Group::of(names) }
    }
}

/// Which parameters a group is about, by the names that checkpoints give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Every one.
    All,
    /// Those of fewer than two dimensions: biases, norms.
    Vectors,
    /// Just these; each must exist.
    Exactly(Vec<String>),
    /// All of a module: `blocks.3` has `blocks.3.ln1.weight` and not `blocks.30.ln1.weight`. At least one must exist.
    Within(String),
    /// Those that end so, as `.bias`. At least one must exist.
    EndingIn(String),
}

impl Names {
    /// [`Names::Within`] of a module's name.
    pub fn within(module: impl Into<String>) -> Self {
        Names::Within(module.into())
    }

    /// [`Names::Exactly`] of some names.
    pub fn exactly<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Names::Exactly(names.into_iter().map(Into::into).collect())
    }

    /// Whether a parameter is one of them.
    pub fn has(&self, name: &str, shape: &Shape) -> bool {
        match self {
            Names::All => true,
            Names::Vectors => shape.rank() < 2,
            Names::Exactly(names) => names.iter().any(|n| n == name),
            Names::Within(module) => {
                name.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            Names::EndingIn(end) => name.ends_with(end.as_str()),
        }
    }
}

/// `within blocks.3`.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Names::All => f.write_str("all"),
            Names::Vectors => f.write_str("vectors"),
            Names::Exactly(names) => f.write_str(&names.join(", ")),
            Names::Within(module) => write!(f, "within {module}"),
            Names::EndingIn(end) => write!(f, "ending in {end}"),
        }
    }
}

/// What holds for one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub rate_scale: f32,
    pub weight_decay: f32,
    pub frozen: bool,
}

impl TrainOptions {
    /// Whether every option can be so; the error names the one that cannot.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        self.optimiser.check()?;
        if let Precision::F16(scaling) = self.precision {
            scaling.check()?;
        }
        let Schedule { rate, cosine, .. } = self.learning_rate;
        let minimum = cosine.map_or(0.0, |c| c.minimum);
        // a step has it in f32
        let fits = |rate: f64| (0.0..=f64::from(f32::MAX)).contains(&rate);
        option("learning_rate", rate, fits(rate), "a number that f32 holds, at least 0")?;
        option("learning_rate.minimum", minimum, fits(minimum), "a number that f32 holds, at least 0")?;
        option("micro_batches", self.micro_batches, self.micro_batches > 0, "at least 1")?;
        let clip = self.clip_norm.unwrap_or(1.0);
        option("clip_norm", clip, clip > 0.0 && clip <= f32::MAX, "a finite number above 0, or None")?;
        for group in &self.groups {
            let scale = group.rate_scale.unwrap_or(1.0);
            let scales = scale >= 0.0 && [rate, minimum].iter().all(|rate| fits(rate * f64::from(scale)));
            option("rate_scale", scale, scales, "a number, at least 0, whose product with the rate f32 holds")?;
            let decay = group.weight_decay.unwrap_or(0.0);
            option("weight_decay", decay, (0.0..=f32::MAX).contains(&decay), "a finite number, at least 0")?;
        }
        Ok(())
    }

    /// Whether steps change a parameter.
    pub(crate) fn trains(&self, parameter: &Part) -> bool {
        !self.setting(&parameter.name, &parameter.shape).frozen
    }

    /// What the optimiser and the groups say about a parameter.
    pub(super) fn setting(&self, name: &str, shape: &Shape) -> Setting {
        let mut setting = Setting { rate_scale: 1.0, weight_decay: self.optimiser.weight_decay(), frozen: false };
        for group in self.groups.iter().filter(|g| g.names.has(name, shape)) {
            setting.rate_scale = group.rate_scale.unwrap_or(setting.rate_scale);
            setting.weight_decay = group.weight_decay.unwrap_or(setting.weight_decay);
            setting.frozen = group.frozen.unwrap_or(setting.frozen);
        }
        setting
    }
}

/// An error unless the option can be so.
pub(super) fn option(
    option: &'static str,
    got: impl fmt::Display,
    fits: bool,
    expected: &'static str,
) -> Result<(), TrainError> {
    if fits {
        return Ok(());
    }
    Err(TrainError::Option { option, expected, got: got.to_string() })
}
