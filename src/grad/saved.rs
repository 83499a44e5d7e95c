//! In: a forward value that a rule reads; out: the value as the backward pass has it: kept, or computed anew from what
//! is kept. Knows nothing of rules.

use super::GradError;
use super::checkpoint::{Checkpoint, segments};
use super::writer::Value;
use crate::graph::{Graph, NodeId, Op, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Which forward values are kept, and which were computed anew.
pub(super) struct Saved {
    /// The segment that each node is computed anew with.
    segment: Vec<Option<usize>>,
    /// Values that are read outside of their segment, and so kept.
    crossing: BTreeSet<ValueId>,
    again: BTreeMap<NodeId, NodeId>,
    entries: BTreeMap<(usize, ValueId), ValueId>,
}

impl Saved {
    /// For the nodes from `since` to `last`; those before are kept.
    pub fn new(graph: &Graph, since: NodeId, last: NodeId, checkpoint: Checkpoint) -> Result<Self, GradError> {
        let mut segment = segments(graph, last, checkpoint)?;
        segment.iter_mut().take(since.0).for_each(|s| *s = None);
        let of = |node: NodeId| segment.get(node.0).copied().flatten();
        let mut crossing = BTreeSet::new();
        // a norm alone is all that its readers read
        let between = if checkpoint == Checkpoint::Norms { 0 } else { graph.nodes().len() };
        for (id, node) in graph.nodes().take(between) {
            crossing.extend(node.inputs.iter().filter(|v| of(v.node).is_some() && of(v.node) != of(id)));
        }
        crossing.extend(graph.outputs().iter().map(|o| o.value));
        crossing.extend(graph.updates().iter().map(|u| u.1));
        Ok(Saved { segment, crossing, again: BTreeMap::new(), entries: BTreeMap::new() })
    }

    /// The segment of a value that is not kept.
    fn dropped(&self, value: ValueId) -> Option<usize> {
        let segment = self.segment.get(value.node.0).copied().flatten();
        segment.filter(|_| !self.crossing.contains(&value))
    }

    /// Whether a value is kept.
    pub fn keeps(&self, value: ValueId) -> bool {
        self.dropped(value).is_none()
    }

    /// The value, after the nodes that compute it anew if it is not kept.
    pub fn get(&mut self, graph: &mut Graph, value: ValueId) -> Value {
        let Some(segment) = self.dropped(value) else { return Ok(value) };
        let mut nodes = BTreeSet::new();
        let mut pending = vec![value.node];
        while let Some(id) = pending.pop() {
            if !self.again.contains_key(&id) && nodes.insert(id) {
                let inputs = graph.node(id).inputs.iter();
                pending.extend(inputs.filter(|v| self.dropped(**v).is_some()).map(|v| v.node));
            }
        }
        for id in nodes {
            let node = graph.node(id).clone();
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for v in node.inputs {
                inputs.push(match self.dropped(v) {
                    Some(_) => ValueId { node: self.again[&v.node], ..v },
                    None => self.entry(graph, segment, v)?,
                });
            }
            let again = graph.push(node.op, inputs, format!("{}.again", node.name))?;
            self.again.insert(id, again);
        }
        Ok(ValueId { node: self.again[&value.node], ..value })
    }

    /// A kept value as the nodes computed anew read it: behind an op that tells them from the first ones.
    fn entry(&mut self, graph: &mut Graph, segment: usize, value: ValueId) -> Value {
        let node = graph.producer(value);
        // a parameter, or what is made of nothing, tells no two nodes apart, and some kernels look at it
        if node.inputs.is_empty() && node.op != Op::Input {
            return Ok(value);
        }
        if let Some(entry) = self.entries.get(&(segment, value)) {
            return Ok(*entry);
        }
        let name = format!("{}.again", node.name);
        let entry = graph.push(Op::Recompute(segment), vec![value], name)?.into();
        self.entries.insert((segment, value), entry);
        Ok(entry)
    }
}
