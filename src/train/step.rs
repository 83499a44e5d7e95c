//! In: a forward graph and [`TrainOptions`]; out: the graph of a whole step. The assembly, from top to bottom: sources,
//! forward and backward passes, limits, optimiser, order. Knows no op's gradient.

use super::copies::narrow_copies;
use super::half::half;
use super::inline::Sources;
use super::limit::{Limit, count_skipped, keep_unless};
use super::optimiser::{Piece, SCALARS, scalars_type, scaled};
use super::order::{Waits, early, last_readers};
use super::pieces::{Gradient, cut, rows_of};
use super::scale::LossScale;
use super::trained::Trained;
use super::{Precision, TrainError, TrainOptions};
use crate::grad::gradients_since;
use crate::graph::{
    Binary, DType, Disposition, Graph, GraphError, NodeId, Op, Scalar, Shape, TensorType, Unary, ValueId, dead_code,
};
use std::collections::BTreeMap;

/// Appends to a forward graph, lifted or as written, whose output "loss" is an f32 scalar, the gradients of all trained
/// parameters and the optimiser.
///
/// The result has the forward graph's inputs, with a leading dimension for micro-batches if there are several, and
/// "optimiser.scalars" f32 (3), see [`SCALARS`]; its outputs, "loss" being the mean over micro-batches and any
/// other stacked over them; "grad_norm" f32 () if gradients are clipped; "skipped" u32 (), 1 or 0, if steps are skipped;
/// and "loss_scale" f32 () in f16. States are the trained parameters by their storages' names, their moments
/// (`adam.m.NAME`, `adam.v.NAME`, `sgd.momentum.NAME`), the count "skipped", and in f16 "loss_scale", "good_steps" and,
/// of Adam, copies of the parameters (`NAME.f16`).
///
/// # Errors
/// If there is no such loss, an option cannot be so, or an op has no gradient.
pub fn training_step(forward: &Graph, options: &TrainOptions) -> Result<Graph, TrainError> {
    options.check()?;
    let loss_at = loss_output(forward)?;
    let trained = Trained::all(forward, forward.outputs()[loss_at].value, options)?;
    own_names(forward)?;
    let (narrow, copies) = match options.precision {
        Precision::F32 => (None, BTreeMap::new()),
        Precision::F16(_) if options.optimiser.is_adam() => {
            let (narrow, copies) = narrow_copies(&half(forward)?, &trained)?;
            (Some(narrow), copies)
        }
        Precision::F16(_) => (Some(half(forward)?), BTreeMap::new()),
    };
    let forward = narrow.as_ref().unwrap_or(forward);
    let mut graph = Graph::default();
    graph.layout = forward.layout.clone();
    let mut sources = Sources::append(&mut graph, forward, options.micro_batches)?;
    let weight = |t: &Trained| Weight {
        parameter: sources.parameters[&t.storage],
        copy: copies.get(&t.storage).map(|copy| sources.parameters[copy]),
    };
    let weights: Vec<Weight> = trained.iter().map(weight).collect();
    let wrt: Vec<ValueId> = weights.iter().map(|w| w.copy.unwrap_or(w.parameter).into()).collect();
    let mut step = Step { graph, moved: BTreeMap::new() };

    let scale = match options.precision {
        Precision::F32 => None,
        Precision::F16(scaling) => Some(step.movable(NOTHING, |g| Ok(scaling.append(g)?))?),
    };
    let mut sums: Option<Vec<ValueId>> = None;
    let mut outputs: Vec<Vec<ValueId>> = Vec::new();
    for micro in 0..options.micro_batches {
        // what states took from the micro-batch before is given, as at the begin of a step
        let since = NodeId(step.graph.nodes().len());
        let mut values = sources.inline(&mut step.graph, forward, micro)?;
        let loss = step.mean_share(values[loss_at], options.micro_batches)?;
        values[loss_at] = loss;
        outputs.push(values);
        let loss = match &scale {
            None => loss,
            Some(scale) => step.graph.push(Op::Binary(Binary::Mul), vec![loss, scale.value], "loss.scaled")?.into(),
        };
        let mut gradients = gradients_since(&mut step.graph, loss, &wrt, options.checkpoint, since)?;
        if options.micro_batches > 1 {
            gradients = step.movable(NOTHING, |g| widened(g, gradients))?;
        }
        sums = Some(match sums {
            None => gradients,
            Some(sums) => step.movable(NOTHING, |g| add_all(g, &sums, &gradients))?,
        });
    }
    let gradients: Vec<ValueId> = sums.unwrap_or_default().into_iter().map(|v| narrowed(&step.graph, v)).collect();
    let outputs = step.outputs(forward, loss_at, &outputs)?;

    let last = last_readers(&step.graph);
    let waits: Vec<NodeId> = wrt.iter().map(|read| last[read.node.0]).collect();
    let scalars = step.movable(NOTHING, |g| Ok(g.push_input(scalars_type(), SCALARS).into()))?;
    let limits = step.movable(NOTHING, |g| limits(g, options, &trained, &gradients, outputs[loss_at], scale))?;
    step.movable(NOTHING, |g| sources.update(g, limits.finite))?;
    let scalars = match limits.needs_all() && options.optimiser.is_adam() {
        true => step.movable(NOTHING, |g| Ok(limits.scalars(g, scalars)?))?,
        false => scalars,
    };
    // a gradient that only its update reads may be made in pieces
    let bytes = if options.micro_batches > 1 || limits.needs_all() { usize::MAX } else { options.piece_bytes };
    let uses = step.graph.use_counts();
    let mut gradients: Vec<ValueId> = gradients;
    for large in [true, false] {
        for (i, trained) in trained.iter().enumerate() {
            let gradient = Gradient::of(&step.graph, &uses, gradients[i], bytes);
            if matches!(gradient, Gradient::Linear { .. }) != large {
                continue;
            }
            let whole = gradients[i];
            let all = Update { options, scalars, limits: &limits, bytes };
            // a new weight that may be dropped is not made before that is known
            let waits = [Some(waits[i]), limits.finite.map(|v| v.node)];
            let biases = step.movable(waits, |g| all.append(g, trained, &weights[i], gradient))?;
            if let Some(biases) = biases {
                // what the pieces give is in the place of what the whole gave
                let of_bias = ValueId { output: 1, ..whole };
                gradients.iter_mut().filter(|g| **g == of_bias).for_each(|g| *g = biases);
            }
        }
    }
    for (output, value) in forward.outputs().iter().zip(outputs) {
        // the trainer reads the loss of every step
        let disposition = if output.name == "loss" { Disposition::Read } else { output.disposition };
        step.graph.push_output(output.name.clone(), value, disposition)?;
    }
    for (name, value) in OUTPUTS.into_iter().zip([limits.norm, limits.skipped, limits.scale]) {
        if let Some(value) = value {
            step.graph.push_output(name, value, Disposition::Read)?;
        }
    }
    let graph = early(&step.graph, &step.moved)?;
    let (graph, _) = dead_code(&graph)?;
    graph.verify()?;
    Ok(graph)
}

/// Of nodes that run as soon as their inputs are there.
const NOTHING: Waits = [None; 2];

/// The position of the output "loss", which is an f32 scalar.
fn loss_output(forward: &Graph) -> Result<usize, TrainError> {
    let Some(at) = forward.outputs().iter().position(|o| o.name == "loss") else {
        let found: Vec<&str> = forward.outputs().iter().map(|o| o.name.as_str()).collect();
        return Err(TrainError::NoLoss { found: if found.is_empty() { "none".into() } else { found.join(", ") } });
    };
    let got = forward.ty(forward.outputs()[at].value);
    if *got != TensorType::new(DType::F32, []) {
        return Err(TrainError::LossType { got: got.clone() });
    }
    Ok(at)
}

/// What a step reports, each under some options alone.
const OUTPUTS: [&str; 3] = ["grad_norm", "skipped", "loss_scale"];

/// States of a step under some options, 0 at the begin of a training; all others are called by a parameter.
pub(crate) const COUNTERS: [(&str, DType); 3] =
    [("skipped", DType::U32), ("loss_scale", DType::F32), ("good_steps", DType::F32)];

/// Whether a step may have a state of this name for itself.
pub(crate) fn is_counter(name: &str) -> bool {
    COUNTERS.iter().any(|(counter, _)| *counter == name)
}

/// Refuses names that a step takes, with any options: so that none changes what a name means.
fn own_names(forward: &Graph) -> Result<(), TrainError> {
    if let Some(output) = forward.outputs().iter().find(|o| OUTPUTS.contains(&o.name.as_str())) {
        return Err(TrainError::OwnName { kind: "output", name: output.name.clone(), own: "output" });
    }
    for (_, node) in forward.nodes().filter(|(_, node)| node.op == Op::Input) {
        let own = match node.name.as_str() {
            SCALARS => "input",
            name if is_counter(name) => "state",
            name if forward.layout.iter().any(|(_, storage)| storage.name == name) => "state, a parameter's",
            _ => continue,
        };
        return Err(TrainError::OwnName { kind: "input", name: node.name.clone(), own });
    }
    match forward.layout.iter().find(|(_, storage)| is_counter(&storage.name)) {
        Some((_, storage)) => Err(TrainError::OwnName { kind: "parameter", name: storage.name.clone(), own: "state" }),
        None => Ok(()),
    }
}

/// The graph being made, and which of its nodes may run earlier than they stand.
struct Step {
    graph: Graph,
    moved: BTreeMap<NodeId, Waits>,
}

impl Step {
    /// Lets all nodes that `f` appends run as soon as their inputs are there and what they wait for has run.
    fn movable<T>(
        &mut self,
        waits: Waits,
        f: impl FnOnce(&mut Graph) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let first = self.graph.nodes().len();
        let made = f(&mut self.graph)?;
        self.moved.extend((first..self.graph.nodes().len()).map(|n| (NodeId(n), waits)));
        Ok(made)
    }

    /// A micro-batch's share of the mean loss, of which its gradients are shares of the mean gradients.
    fn mean_share(&mut self, loss: ValueId, micro_batches: usize) -> Result<ValueId, TrainError> {
        if micro_batches == 1 {
            return Ok(loss);
        }
        let share = Scalar::from((1.0 / micro_batches as f64) as f32);
        Ok(self.graph.push(Op::Unary(Unary::Scale(share)), vec![loss], "loss.share")?.into())
    }

    /// The forward graph's outputs over all micro-batches: the sum of the shares of the loss, all others stacked.
    fn outputs(&mut self, forward: &Graph, loss_at: usize, micro: &[Vec<ValueId>]) -> Result<Vec<ValueId>, TrainError> {
        if let [one] = micro {
            return Ok(one.clone());
        }
        let mut outputs = Vec::new();
        for (i, output) in forward.outputs().iter().enumerate() {
            let shares: Vec<ValueId> = micro.iter().map(|values| values[i]).collect();
            let name = output.name.clone();
            let value = self.movable(NOTHING, |g| match i == loss_at {
                true => sum(g, &shares, &name),
                false => stack(g, &shares, &name),
            })?;
            outputs.push(value);
        }
        Ok(outputs)
    }
}

fn sum(g: &mut Graph, values: &[ValueId], name: &str) -> Result<ValueId, TrainError> {
    let mut sum = values[0];
    for value in &values[1..] {
        sum = g.push(Op::Binary(Binary::Add), vec![sum, *value], name)?.into();
    }
    Ok(sum)
}

/// Gradients in f32, so that those of micro-batches add up there.
fn widened(g: &mut Graph, gradients: Vec<ValueId>) -> Result<Vec<ValueId>, TrainError> {
    let widen = |gradient: ValueId| match g.ty(gradient).dtype {
        DType::F16 => Ok(g.push(Op::Cast(DType::F32), vec![gradient], "grad.widen")?.into()),
        _ => Ok(gradient),
    };
    gradients.into_iter().map(widen).collect()
}

fn add_all(g: &mut Graph, a: &[ValueId], b: &[ValueId]) -> Result<Vec<ValueId>, TrainError> {
    a.iter().zip(b).map(|(a, b)| sum(g, &[*a, *b], "grad.sum")).collect()
}

/// Values of one shape along a new first dimension.
fn stack(g: &mut Graph, values: &[ValueId], name: &str) -> Result<ValueId, TrainError> {
    let mut rows = Vec::new();
    for value in values {
        let dims = [&[1], g.shape(*value).dims()].concat();
        rows.push(g.push(Op::Reshape(Shape::from(dims)), vec![*value], name)?.into());
    }
    Ok(g.push(Op::Concat(0), rows, name)?.into())
}

/// What holds for all updates of a step.
#[derive(Default)]
struct Limits {
    /// What every gradient is multiplied with.
    factor: Option<ValueId>,
    /// Whether the step counts.
    finite: Option<ValueId>,
    norm: Option<ValueId>,
    skipped: Option<ValueId>,
    /// What the loss was multiplied with.
    scale: Option<ValueId>,
}

fn limits(
    g: &mut Graph,
    options: &TrainOptions,
    trained: &[Trained],
    gradients: &[ValueId],
    loss: ValueId,
    scale: Option<LossScale>,
) -> Result<Limits, TrainError> {
    let skips = options.skip_non_finite || scale.is_some();
    if options.clip_norm.is_none() && !skips {
        return Ok(Limits::default());
    }
    // frozen rows have no gradient
    let mut parts = Vec::new();
    for (trained, gradient) in trained.iter().zip(gradients) {
        for (rows, setting) in &trained.rows {
            if !setting.frozen {
                parts.push(rows_of(g, *gradient, rows, "grad.limit")?);
            }
        }
    }
    let mut limit = Limit::of(g, &parts)?;
    let mut limits = Limits { scale: scale.as_ref().map(|s| s.value), ..Limits::default() };
    limits.factor = limits.scale.map(|scale| limit.inverse(scale)).transpose()?;
    if let Some(most) = options.clip_norm {
        let norm = limit.norm(&parts)?;
        let norm = limit.times(norm, limits.factor)?;
        let factor = limit.factor(norm, most)?;
        (limits.norm, limits.factor) = (Some(norm), Some(limit.times(factor, limits.factor)?));
    }
    if skips {
        let finite = limit.finite(loss)?;
        (limits.finite, limits.skipped) = (Some(finite), Some(count_skipped(g, finite)?));
        if let Some(scale) = scale {
            scale.update(g, finite)?;
        }
    }
    Ok(limits)
}

/// A gradient in f16 where it was only widened at its end.
fn narrowed(g: &Graph, gradient: ValueId) -> ValueId {
    match (&g.producer(gradient).op, &g.producer(gradient).inputs[..]) {
        (Op::Cast(DType::F32), [inner]) if g.ty(*inner).dtype == DType::F16 => *inner,
        _ => gradient,
    }
}

impl Limits {
    /// Whether all gradients are alive at once, until the last is there.
    fn needs_all(&self) -> bool {
        self.factor.is_some() || self.finite.is_some()
    }

    /// Appends the scalars of [`Op::Adam`] with a factor and whether the step counts.
    fn scalars(&self, g: &mut Graph, scalars: ValueId) -> Result<ValueId, GraphError> {
        let mut push = |op: Op, inputs: &[ValueId]| g.push(op, inputs.to_vec(), "limits").map(ValueId::from);
        let mut one = |v: f32| push(Op::Constant(v.into(), DType::F32, Shape::from([])), &[]);
        let [no, yes] = [one(0.0)?, one(1.0)?];
        let counts = self.finite.map_or(Ok(yes), |finite| push(Op::Where, &[finite, yes, no]))?;
        let mut all = vec![scalars];
        for value in [self.factor.unwrap_or(yes), counts] {
            all.push(push(Op::Reshape([1].into()), &[value])?);
        }
        push(Op::Concat(0), &all)
    }
}

/// The nodes of a trained storage.
struct Weight {
    parameter: NodeId,
    /// What the forward pass reads in its place, where that reads it in f16 alone.
    copy: Option<NodeId>,
}

/// What all updates have in common.
struct Update<'a> {
    options: &'a TrainOptions,
    scalars: ValueId,
    limits: &'a Limits,
    /// The most of a gradient that is alive at once, where it can be made in pieces.
    bytes: usize,
}

impl Update<'_> {
    /// Appends the update of a storage, its moments and its copy in f16 if it has one, piece by piece where its rows
    /// differ or its gradient is made so. Returns the gradient of the bias that such pieces give.
    fn append(
        &self,
        g: &mut Graph,
        trained: &Trained,
        weight: &Weight,
        gradient: Gradient,
    ) -> Result<Option<ValueId>, TrainError> {
        let storage = g.layout.get(trained.storage);
        let (name, ty) = (storage.name.clone(), TensorType::new(storage.dtype, storage.shape.clone()));
        let row_bytes = ty.bytes() / ty.shape.dims().first().copied().unwrap_or(1).max(1);
        let optimiser = &self.options.optimiser;
        let mut states = vec![weight.parameter];
        for moment in optimiser.moments() {
            states.push(g.push_input(ty.clone(), format!("{moment}.{name}")));
        }
        let moments = 1..states.len();
        states.extend(weight.copy);
        // for each state its pieces
        let mut next: Vec<Vec<ValueId>> = vec![Vec::new(); states.len()];
        let mut biases = Vec::new();
        for (rows, setting) in &cut(trained, &gradient, row_bytes, self.bytes).rows {
            let mut old = Vec::new();
            for state in &states {
                old.push(rows_of(g, (*state).into(), rows, &name)?);
            }
            let (mut gradient, bias) = gradient.rows(g, rows, &name)?;
            biases.extend(bias);
            if setting.frozen {
                next.iter_mut().zip(old).for_each(|(next, old)| next.push(old));
                continue;
            }
            // Adam widens and limits what it reads by itself
            let apart = !optimiser.is_adam();
            if apart && g.ty(gradient).dtype == DType::F16 {
                gradient = g.push(Op::Cast(DType::F32), vec![gradient], "grad.widen")?.into();
            }
            if let (Some(factor), true) = (self.limits.factor, apart) {
                gradient = g.push(Op::Binary(Binary::Mul), vec![gradient, factor], "grad.clip")?.into();
            }
            let scalars = scaled(g, self.scalars, setting.rate_scale)?;
            let (moments, narrow) = (&old[moments.clone()], weight.copy.is_some());
            let piece = Piece { name: &name, weight: old[0], moments, gradient, setting: *setting, narrow, scalars };
            let mut new = optimiser.step(g, &piece)?;
            if let (Some(finite), true) = (self.limits.finite, apart) {
                for (new, old) in new.iter_mut().zip(&old) {
                    *new = keep_unless(g, finite, *new, *old, &format!("skip.{name}"))?;
                }
            }
            next.iter_mut().zip(new).for_each(|(next, new)| next.push(new));
        }
        for (state, pieces) in states.into_iter().zip(next) {
            let whole = concat(g, pieces, &name)?;
            g.push_update(state, whole)?;
        }
        Ok(if biases.is_empty() { None } else { Some(concat(g, biases, &name)?) })
    }
}

/// Values one after the other along dimension 0.
fn concat(g: &mut Graph, pieces: Vec<ValueId>, name: &str) -> Result<ValueId, TrainError> {
    match pieces[..] {
        [one] => Ok(one),
        _ => Ok(g.push(Op::Concat(0), pieces, name)?.into()),
    }
}
