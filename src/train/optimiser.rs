//! In: a weight, its moments and its gradient in a graph; out: the nodes that give their next values, by the rule of an
//! [`Optimiser`]. Knows neither which parameters there are nor when a node runs.

use super::TrainError;
use super::options::{Setting, option};
use crate::graph::{AdamAttrs, Binary, Graph, GraphError, Op, Shape, TensorType, Unary, ValueId};
use std::fmt;

/// The input that gives each step its numbers: f32 (3), the learning rate and, for Adam, 1 − β1^t and 1 − β2^t at step
/// t, counted from 1. A trainer computes them in f64.
pub const SCALARS: &str = "optimiser.scalars";

/// How weights follow from gradients; g is a gradient, w a weight, λ the weight decay. As PyTorch's optimisers of the
/// same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimiser {
    /// b' = μ · b + g + λ · w and w' = w − lr · b', or with Nesterov w − lr · (g + λ · w + μ · b'). b begins at 0; without
    /// momentum there is none.
    Sgd {
        /// μ, at least 0.
        momentum: f32,
        /// Whether the step looks ahead.
        nesterov: bool,
        /// λ.
        weight_decay: f32,
    },
    /// See [`AdamAttrs`](crate::graph::AdamAttrs); decay is part of the gradient.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// ε.
        eps: f32,
        /// λ.
        weight_decay: f32,
    },
    /// Adam whose decay acts on the weight itself.
    AdamW {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// ε.
        eps: f32,
        /// λ.
        weight_decay: f32,
    },
}

impl Optimiser {
    /// Plain gradient descent.
    pub fn sgd() -> Self {
        Optimiser::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Adam with betas 0.9 and 0.999, ε 1e-8 and no decay.
    pub fn adam() -> Self {
        Optimiser::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }

    /// AdamW with betas 0.9 and 0.999, ε 1e-8 and this decay.
    pub fn adamw(weight_decay: f32) -> Self {
        Optimiser::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay }
    }

    /// Its name in files and errors: `sgd`, `adam` or `adamw`.
    pub fn name(&self) -> &'static str {
        match self {
            Optimiser::Sgd { .. } => "sgd",
            Optimiser::Adam { .. } => "adam",
            Optimiser::AdamW { .. } => "adamw",
        }
    }

    /// Whether its step is [`Op::Adam`].
    pub(super) fn is_adam(&self) -> bool {
        matches!(self, Optimiser::Adam { .. } | Optimiser::AdamW { .. })
    }

    /// λ of parameters that no group changes.
    pub fn weight_decay(&self) -> f32 {
        match *self {
            Optimiser::Sgd { weight_decay, .. }
            | Optimiser::Adam { weight_decay, .. }
            | Optimiser::AdamW { weight_decay, .. } => weight_decay,
        }
    }
}

/// The optimiser with its settings: `adamw: betas 0.9 0.95, eps 1e-8, decay 0.1`.
impl fmt::Display for Optimiser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Optimiser::Sgd { momentum, nesterov, .. } => {
                write!(f, "momentum {momentum}{}", if *nesterov { " nesterov" } else { "" })?;
            }
            Optimiser::Adam { beta1, beta2, eps, .. } | Optimiser::AdamW { beta1, beta2, eps, .. } => {
                write!(f, "betas {beta1} {beta2}, eps {eps:e}")?;
            }
        }
        write!(f, ", decay {}", self.weight_decay())
    }
}

/// A weight or a piece of one, with what its optimiser knows of it.
pub(super) struct Piece<'a> {
    pub name: &'a str,
    pub weight: ValueId,
    pub moments: &'a [ValueId],
    pub gradient: ValueId,
    pub setting: Setting,
    /// Whether Adam also gives the new weight in f16.
    pub narrow: bool,
    /// [`SCALARS`], the rate scaled as the setting says; of Adam with limits five of them, see [`AdamAttrs`].
    pub scalars: ValueId,
}

impl Optimiser {
    /// What is kept for each weight, by the start of the states' names.
    pub fn moments(&self) -> &'static [&'static str] {
        match self {
            Optimiser::Sgd { momentum: 0.0, .. } => &[],
            Optimiser::Sgd { .. } => &["sgd.momentum"],
            Optimiser::Adam { .. } | Optimiser::AdamW { .. } => &["adam.m", "adam.v"],
        }
    }

    /// What its moments are averages by, on which every later step depends; nothing where a setting may change at any
    /// step.
    pub(crate) fn averages(&self) -> Option<String> {
        match self {
            Optimiser::Sgd { .. } => None,
            Optimiser::Adam { beta1, beta2, .. } | Optimiser::AdamW { beta1, beta2, .. } => {
                Some(format!("betas {beta1} {beta2}"))
            }
        }
    }

    /// The values of [`SCALARS`] at step t, counted from 1.
    pub fn scalars(&self, rate: f64, t: u64) -> [f32; 3] {
        // β as the graph has it, in f32
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(t as f64)) as f32;
        match *self {
            Optimiser::Sgd { .. } => [rate as f32, 1.0, 1.0],
            Optimiser::Adam { beta1, beta2, .. } | Optimiser::AdamW { beta1, beta2, .. } => {
                [rate as f32, correction(beta1), correction(beta2)]
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), TrainError> {
        let decay = self.weight_decay();
        option("weight_decay", decay, (0.0..=f32::MAX).contains(&decay), "a finite number, at least 0")?;
        match *self {
            Optimiser::Sgd { momentum, nesterov, .. } => {
                option("momentum", momentum, (0.0..=f32::MAX).contains(&momentum), "a finite number, at least 0")?;
                option("nesterov", nesterov, !nesterov || momentum > 0.0, "false where momentum is 0")
            }
            Optimiser::Adam { beta1, beta2, eps, .. } | Optimiser::AdamW { beta1, beta2, eps, .. } => {
                option("beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0 and less than 1")?;
                option("beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0 and less than 1")?;
                option("eps", eps, eps > 0.0 && eps <= f32::MAX, "a finite number above 0")
            }
        }
    }

    /// Appends a step of a weight: its new value, those of its moments, and the first in f16 where Adam gives it.
    pub(super) fn step(&self, g: &mut Graph, piece: &Piece) -> Result<Vec<ValueId>, GraphError> {
        let Piece { weight, moments, gradient, setting, scalars, .. } = *piece;
        let name = format!("{}.{}", self.name(), piece.name);
        match *self {
            Optimiser::Adam { beta1, beta2, eps, .. } | Optimiser::AdamW { beta1, beta2, eps, .. } => {
                let attrs = AdamAttrs {
                    beta1: beta1.into(),
                    beta2: beta2.into(),
                    eps: eps.into(),
                    weight_decay: setting.weight_decay.into(),
                    decoupled: matches!(self, Optimiser::AdamW { .. }),
                    narrow: piece.narrow,
                };
                let inputs = [&[weight], moments, &[gradient, scalars]].concat();
                let node = g.push(Op::Adam(attrs), inputs, name)?;
                Ok((0..g.node(node).outputs.len()).map(|output| ValueId { node, output }).collect())
            }
            Optimiser::Sgd { momentum, nesterov, .. } => {
                let mut push =
                    |op: Op, inputs: &[ValueId]| g.push(op, inputs.to_vec(), name.as_str()).map(ValueId::from);
                let scale = |c: f32| Op::Unary(Unary::Scale(c.into()));
                let (add, mul, sub) = (Op::Binary(Binary::Add), Op::Binary(Binary::Mul), Op::Binary(Binary::Sub));
                let mut direction = gradient;
                if setting.weight_decay != 0.0 {
                    let decay = push(scale(setting.weight_decay), &[weight])?;
                    direction = push(add.clone(), &[direction, decay])?;
                }
                let mut next = Vec::new();
                if let [moment] = *moments {
                    let kept = push(scale(momentum), &[moment])?;
                    let moment = push(add.clone(), &[kept, direction])?;
                    next.push(moment);
                    direction = match nesterov {
                        true => {
                            let ahead = push(scale(momentum), &[moment])?;
                            push(add, &[direction, ahead])?
                        }
                        false => moment,
                    };
                }
                let rate = push(Op::Slice { axis: 0, start: 0, len: 1 }, &[scalars])?;
                let rate = push(Op::Reshape(Shape::from([])), &[rate])?;
                let change = push(mul, &[direction, rate])?;
                next.insert(0, push(sub, &[weight, change])?);
                Ok(next)
            }
        }
    }
}

/// Appends [`SCALARS`] with the rate times a factor.
pub(super) fn scaled(g: &mut Graph, scalars: ValueId, rate_scale: f32) -> Result<ValueId, GraphError> {
    if rate_scale == 1.0 {
        return Ok(scalars);
    }
    let rest = g.shape(scalars).elements() - 1;
    let mut push = |op: Op, inputs: &[ValueId]| g.push(op, inputs.to_vec(), SCALARS).map(ValueId::from);
    let rate = push(Op::Slice { axis: 0, start: 0, len: 1 }, &[scalars])?;
    let rest = push(Op::Slice { axis: 0, start: 1, len: rest }, &[scalars])?;
    let rate = push(Op::Unary(Unary::Scale(rate_scale.into())), &[rate])?;
    push(Op::Concat(0), &[rate, rest])
}

/// The type of [`SCALARS`].
pub(super) fn scalars_type() -> TensorType {
    TensorType::new(crate::graph::DType::F32, [3])
}
