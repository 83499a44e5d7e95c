//! In: a graph, a loss in it and values; out: backward nodes at the graph's end and the values' gradients. Knows of an op
//! only what its rule says.

use super::rules;
use super::saved::Saved;
use super::sum::{Contribution, Sum};
use super::writer::{Value, Writer};
use super::{Checkpoint, GradError};
use crate::graph::{DType, Graph, Node, NodeId, Op, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A node with the gradients of its outputs: what a rule is given, and where it leaves the gradients of the inputs.
pub(super) struct Local<'a, 'g> {
    /// The forward node.
    pub node: &'a Node,
    /// What the rule writes with.
    pub w: &'a mut Writer<'g>,
    id: NodeId,
    saved: &'a mut Saved,
    dy: &'a [Option<ValueId>],
    wanted: &'a [bool],
    given: Vec<(usize, Contribution)>,
}

impl Local<'_, '_> {
    /// Whether the gradient of an input is asked for.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted.get(input).is_some_and(|w| *w)
    }

    /// Names the nodes that follow after what they compute: `blocks.0.sa.proj.grad.dx`.
    pub fn begin(&mut self, what: &str) {
        self.w.name = format!("{}.grad.{what}", self.node.name);
    }

    /// The gradient of the first output; an error that says `what` to do if another output has one.
    pub fn dy_of_first(&self, what: &'static str) -> Value {
        match self.dy {
            [Some(dy), rest @ ..] if rest.iter().all(Option::is_none) => Ok(*dy),
            _ => Err(self.no_rule(what)),
        }
    }

    /// The gradient of the only output.
    pub fn dy(&self) -> Value {
        self.dy_of_first("only its first output carries a gradient")
    }

    /// A value that the forward node read.
    pub fn input(&mut self, input: usize) -> Value {
        self.saved.get(self.w.graph, self.node.inputs[input])
    }

    /// A value that the forward node made.
    pub fn output(&mut self, output: usize) -> Value {
        self.saved.get(self.w.graph, ValueId { node: self.id, output })
    }

    /// The value that a stack made. The next stack has stored it too, as what its first layer read: that is read in its
    /// place, so that no copy of its own is alive.
    pub fn output_as_a_stack_reads_it(&mut self) -> Value {
        let value = ValueId::from(self.id);
        let later = self.w.graph.nodes().skip(self.id.0 + 1);
        let next = later.filter(|(_, n)| matches!(n.op, Op::LinearStack(_)) && n.inputs[0] == value).map(|(id, _)| id);
        let kept = next.map(|node| ValueId { node, output: 1 }).find(|kept| self.saved.keeps(*kept));
        let Some(kept) = kept else { return self.output(0) };
        self.begin("y");
        let first = self.w.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[kept])?;
        self.w.reshape(first, &self.node.outputs[0].shape)
    }

    /// The type of an input.
    pub fn ty(&self, input: usize) -> TensorType {
        self.w.graph.ty(self.node.inputs[input]).clone()
    }

    /// A constant of the first output's type, without dimensions.
    pub fn scalar(&mut self, number: f32) -> Value {
        self.w.scalar(number, self.node.outputs[0].dtype)
    }

    /// Contributes to the gradient of an input.
    pub fn give(&mut self, input: usize, gradient: ValueId) {
        self.given.push((input, Contribution::Whole(gradient)));
    }

    /// Contributes to the gradient of a slice of an input.
    pub fn give_slice(&mut self, input: usize, axis: usize, start: usize, value: ValueId) {
        self.given.push((input, Contribution::Slice { axis, start, value }));
    }

    /// Contributes to the gradient of an input that the node broadcasts.
    pub fn give_summed(&mut self, input: usize, gradient: ValueId) -> Result<(), GradError> {
        let shape = self.ty(input).shape;
        let gradient = self.w.sum_to(gradient, &shape)?;
        self.give(input, gradient);
        Ok(())
    }

    /// The error of a gradient that cannot be taken.
    pub fn no_rule(&self, what: &'static str) -> GradError {
        GradError::NoRule { op: self.node.op.name(), node: self.node.name.clone(), what }
    }
}

/// Appends the backward nodes and returns the gradients, in the order of `wrt`: those of [`super::gradients_checkpointed`],
/// of what was appended since a node. Values that were there before are taken as given, but for those in `wrt`.
pub(crate) fn gradients_since(
    graph: &mut Graph,
    loss: ValueId,
    wrt: &[ValueId],
    checkpoint: Checkpoint,
    since: NodeId,
) -> Result<Vec<ValueId>, GradError> {
    let named = |graph: &Graph, v: ValueId| (graph.producer(v).name.clone(), graph.ty(v).clone());
    if *graph.ty(loss) != TensorType::new(DType::F32, []) {
        let (node, got) = named(graph, loss);
        return Err(GradError::Loss { node, got });
    }
    if let Some(v) = wrt.iter().find(|v| !carries(graph.ty(**v))) {
        let (node, got) = named(graph, *v);
        return Err(GradError::Type { node, got });
    }
    let asked: BTreeSet<ValueId> = wrt.iter().copied().collect();
    let needed = needed(graph, &asked, since, loss.node);
    let mut saved = Saved::new(graph, since, loss.node, checkpoint)?;
    let mut w = Writer::new(graph);
    let mut sums: BTreeMap<ValueId, Sum> = BTreeMap::new();
    let mut found: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    if needed[loss.node.0][loss.output] {
        let one = w.scalar(1.0, DType::F32)?;
        sums.entry(loss).or_default().add(&mut w, Contribution::Whole(one))?;
    }
    for id in (0..=loss.node.0).rev().map(NodeId) {
        let mut dy = vec![None; w.graph.node(id).outputs.len()];
        for (output, dy) in dy.iter_mut().enumerate() {
            let value = ValueId { node: id, output };
            let Some(sum) = sums.remove(&value) else { continue };
            let (name, ty) = named(w.graph, value);
            w.name = format!("{name}.grad");
            *dy = sum.total(&mut w, &ty)?;
            if let (true, Some(gradient)) = (asked.contains(&value), *dy) {
                found.insert(value, gradient);
            }
        }
        let node = w.graph.node(id).clone();
        let wanted: Vec<bool> = node.inputs.iter().map(|v| needed[v.node.0][v.output]).collect();
        if !dy.iter().any(Option::is_some) || !wanted.contains(&true) {
            continue;
        }
        let (given, dy, wanted) = (Vec::new(), &dy[..], &wanted[..]);
        let mut local = Local { node: &node, w: &mut w, id, saved: &mut saved, dy, wanted, given };
        rules::apply(&mut local)?;
        for (input, contribution) in local.given {
            let value = node.inputs[input];
            w.name = format!("{}.grad", w.graph.producer(value).name);
            sums.entry(value).or_default().add(&mut w, contribution)?;
        }
    }
    wrt.iter().map(|v| found.get(v).map_or_else(|| zeros(&mut w, *v), |g| Ok(*g))).collect()
}

/// What the loss does not depend on.
fn zeros(w: &mut Writer, value: ValueId) -> Value {
    w.name = format!("{}.grad", w.graph.producer(value).name);
    let ty = w.graph.ty(value).clone();
    w.push(Op::Constant(0.0.into(), ty.dtype, ty.shape), &[])
}

/// Whether values of a type have gradients.
pub(crate) fn carries(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16)
}

/// Whether each value up to a node depends on what is asked for, through values that have gradients and nodes since one.
fn needed(graph: &Graph, asked: &BTreeSet<ValueId>, since: NodeId, last: NodeId) -> Vec<Vec<bool>> {
    let mut needed: Vec<Vec<bool>> = Vec::with_capacity(last.0 + 1);
    for (id, node) in graph.nodes().take(last.0 + 1) {
        let reads = id >= since && node.inputs.iter().any(|v| needed[v.node.0][v.output]);
        let of = |(output, ty)| carries(ty) && (reads || asked.contains(&ValueId { node: id, output }));
        needed.push(node.outputs.iter().enumerate().map(of).collect());
    }
    needed
}
