//! In: how losses are scaled; out: nodes that hold the scale as a state and adapt it. Knows neither gradients nor
//! optimisers.
//!
//! f16 has no number between 0 and 6e-8, where many gradients lie: of a loss that is multiplied they are multiplied too
//! (Micikevicius and others, "Mixed precision training", arXiv 1710.03740). A scale that is too large makes gradients
//! infinite: then the step is skipped and the scale halved.

use super::TrainError;
use super::options::option;
use crate::graph::{Binary, Comparison, DType, Graph, GraphError, NodeId, Op, Shape, TensorType, ValueId};

/// How a training in f16 scales its loss, as PyTorch's `GradScaler`, within 2⁻²⁴ and 2²⁴.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// The scale of the first step.
    pub initial: f32,
    /// After so many steps in a row that are finite it doubles.
    pub growth_steps: u32,
}

impl Default for LossScaling {
    /// 65536, doubled every 2000 steps.
    fn default() -> Self {
        LossScaling { initial: 65536.0, growth_steps: 2000 }
    }
}

/// Scales stay between these, 2⁻²⁴ and 2²⁴; PyTorch's have no bounds.
const LEAST: f32 = 1.0 / MOST;
const MOST: f32 = 16_777_216.0;

/// The scale of a step and the states that it comes from.
pub(super) struct LossScale {
    scale: NodeId,
    good: NodeId,
    /// Of this step, f32 ().
    pub value: ValueId,
    growth_steps: f32,
}

impl LossScaling {
    pub(super) fn check(&self) -> Result<(), TrainError> {
        let fits = (LEAST..=MOST).contains(&self.initial);
        option("initial", self.initial, fits, "a scale from 2^-24 to 2^24")?;
        let fits = (1..=1 << 24).contains(&self.growth_steps);
        option("growth_steps", self.growth_steps, fits, "1 to 16777216 steps")
    }

    /// Appends the states "loss_scale", which is 0 before the first step, and "good_steps".
    pub(super) fn append(&self, g: &mut Graph) -> Result<LossScale, GraphError> {
        let scalar = || TensorType::new(DType::F32, []);
        let (scale, good) = (g.push_input(scalar(), "loss_scale"), g.push_input(scalar(), "good_steps"));
        let [zero, initial] = [constant(g, 0.0)?, constant(g, self.initial)?];
        let is_set = push(g, Op::Compare(Comparison::Less), &[zero, scale.into()])?;
        let value = push(g, Op::Where, &[is_set, scale.into(), initial])?;
        Ok(LossScale { scale, good, value, growth_steps: self.growth_steps as f32 })
    }
}

impl LossScale {
    /// Appends what the scale is at the next step: half if this one is not finite, double after enough that were.
    pub(super) fn update(self, g: &mut Graph, finite: ValueId) -> Result<(), GraphError> {
        let [zero, one, half, two] = [constant(g, 0.0)?, constant(g, 1.0)?, constant(g, 0.5)?, constant(g, 2.0)?];
        let [least, most, enough] = [constant(g, LEAST)?, constant(g, MOST)?, constant(g, self.growth_steps)?];
        let more = push(g, Op::Binary(Binary::Add), &[self.good.into(), one])?;
        let grows = push(g, Op::Compare(Comparison::LessEqual), &[enough, more])?;
        let counted = push(g, Op::Where, &[grows, zero, more])?;
        let good = push(g, Op::Where, &[finite, counted, zero])?;
        let doubled = push(g, Op::Binary(Binary::Mul), &[self.value, two])?;
        let doubled = push(g, Op::Binary(Binary::Min), &[doubled, most])?;
        let kept = push(g, Op::Where, &[grows, doubled, self.value])?;
        let halved = push(g, Op::Binary(Binary::Mul), &[self.value, half])?;
        let halved = push(g, Op::Binary(Binary::Max), &[halved, least])?;
        let scale = push(g, Op::Where, &[finite, kept, halved])?;
        g.push_update(self.scale, scale)?;
        g.push_update(self.good, good)
    }
}

fn push(g: &mut Graph, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    Ok(g.push(op, inputs.to_vec(), "loss_scale")?.into())
}

fn constant(g: &mut Graph, value: f32) -> Result<ValueId, GraphError> {
    push(g, Op::Constant(value.into(), DType::F32, Shape::from([])), &[])
}
