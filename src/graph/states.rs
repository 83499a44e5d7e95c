//! In: a graph with states; out: who reads which of their elements and who makes their new values, and the graph with
//! readers first. Knows nothing of what ops mean, but for views and concats.
//!
//! A state is read as of the start of a run. A node that makes its new value can write it where the state lies if all
//! that read the old one have run: so each reader comes before it.

use super::{Graph, GraphError, NodeId, Op, Rewriter, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// Who reads the states of a graph, and who makes their new values.
#[derive(Clone, Debug, Default)]
pub struct StateUses {
    reads: HashMap<NodeId, Vec<(NodeId, Range<usize>)>>,
    targets: HashMap<ValueId, (NodeId, Range<usize>)>,
}

impl StateUses {
    /// Of all states.
    pub fn of(graph: &Graph) -> StateUses {
        let all = |id: NodeId| 0..graph.shape(id.into()).elements();
        // a view's elements, and whether they are all of that range and in its order
        let mut seen: HashMap<ValueId, (NodeId, Range<usize>, bool)> =
            graph.updates().iter().map(|(s, _)| ((*s).into(), (*s, all(*s), true))).collect();
        let mut uses = StateUses::default();
        for (id, node) in graph.nodes() {
            for (state, elements, _) in node.inputs.iter().filter_map(|v| seen.get(v)) {
                uses.reads.entry(*state).or_default().push((id, elements.clone()));
            }
            let Some((state, elements, whole)) = node.inputs.first().and_then(|v| seen.get(v)).cloned() else {
                continue;
            };
            let view = match &node.op {
                Op::Slice { axis: 0, start, len } if whole => {
                    let row = elements.len() / graph.shape(node.inputs[0]).dims()[0].max(1);
                    let first = elements.start + start * row;
                    (state, first..first + len * row, true)
                }
                Op::Reshape(_) | Op::Recompute(_) => (state, elements, whole),
                op if op.is_view() => (state, elements, false),
                _ => continue,
            };
            seen.insert(id.into(), view);
        }
        let end = NodeId(graph.nodes().len());
        let ends = graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1));
        for (state, elements, _) in ends.filter_map(|v| seen.get(&v)) {
            uses.reads.entry(*state).or_default().push((end, elements.clone()));
        }
        let counts = graph.use_counts();
        let once = |v: &ValueId| counts[v.node.0][v.output] == 1;
        for (state, value) in graph.updates().iter().filter(|(_, v)| once(v)) {
            uses.targets.insert(*value, (*state, all(*state)));
            let mut first = 0;
            for part in parts(graph, *value).unwrap_or_default() {
                let elements = first..first + graph.shape(*part).elements();
                first = elements.end;
                if once(part) {
                    uses.targets.insert(*part, (*state, elements));
                }
            }
        }
        uses
    }

    /// The state and its elements that take a value which nothing but the update reads.
    pub fn target(&self, value: ValueId) -> Option<(NodeId, &Range<usize>)> {
        self.targets.get(&value).map(|(state, elements)| (*state, elements))
    }

    /// Whether a concat along dimension 0 is the new value of a state and nothing else: then it need not be made, as
    /// each of its inputs is the new value of some rows.
    pub fn is_parts(&self, graph: &Graph, value: ValueId) -> bool {
        self.targets.contains_key(&value) && parts(graph, value).is_some()
    }

    /// The nodes that read any of these elements of a state, itself or by a view, in order; one past the last node where
    /// an output or another state takes them.
    pub fn readers(&self, state: NodeId, elements: &Range<usize>) -> impl Iterator<Item = NodeId> {
        let reads = self.reads.get(&state).map_or(&[][..], Vec::as_slice);
        let (start, end) = (elements.start, elements.end);
        reads.iter().filter(move |(_, read)| read.start < end && start < read.end).map(|(reader, _)| *reader)
    }
}

/// The inputs of a concat along dimension 0.
fn parts(graph: &Graph, value: ValueId) -> Option<&[ValueId]> {
    let node = graph.producer(value);
    (node.op == Op::Concat(0)).then_some(&node.inputs[..])
}

/// Lets every node that makes a state's new value, or a part of it, come after all that read the old one; what these
/// need comes before them. All else keeps its order.
pub fn readers_first(graph: &Graph) -> Result<Graph, GraphError> {
    if graph.updates().is_empty() {
        return Ok(graph.clone());
    }
    let uses = StateUses::of(graph);
    let count = graph.nodes().len();
    let counts = graph.use_counts();
    let before = |id: NodeId| {
        let node = graph.node(id);
        let values = (0..node.outputs.len()).map(|output| ValueId { node: id, output });
        // nothing waits for a node that makes nothing else, so that it can wait for any
        let ends = values.clone().all(|v| counts[id.0][v.output] == 0 || uses.target(v).is_some());
        // and a concat that is never made reads nothing
        let is_concat = |id: NodeId| graph.node(id).op == Op::Concat(0);
        let targets = values.filter(|_| ends && !is_concat(id)).filter_map(|v| uses.target(v));
        let readers = targets.flat_map(|(state, elements)| uses.readers(state, elements));
        let readers = readers.filter(|reader| *reader != id && reader.0 < count && !is_concat(*reader));
        node.inputs.iter().map(|v| v.node).chain(readers).collect::<Vec<NodeId>>()
    };
    let mut r = Rewriter::new(graph);
    let mut visits = vec![Visit::New; count];
    let mut pending: Vec<NodeId> = Vec::new();
    for (id, _) in graph.nodes() {
        pending.push(id);
        while let Some(&id) = pending.last() {
            match visits[id.0] {
                Visit::New => {
                    visits[id.0] = Visit::Open;
                    pending.extend(before(id).into_iter().rev().filter(|n| visits[n.0] == Visit::New));
                }
                Visit::Open => {
                    visits[id.0] = Visit::Done;
                    r.copy(id)?;
                    pending.pop();
                }
                Visit::Done => {
                    pending.pop();
                }
            }
        }
    }
    r.finish()
}

/// How far the walk is with a node.
#[derive(Clone, Copy, PartialEq)]
enum Visit {
    New,
    Open,
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, Builder, DType, TensorType};

    fn names(graph: &Graph) -> Vec<&str> {
        graph.nodes().map(|(_, n)| n.name.as_str()).collect()
    }

    #[test]
    fn a_state_s_new_value_waits_for_readers_and_for_what_they_need() -> Result<(), GraphError> {
        let mut b = Builder::new();
        let ty = TensorType::new(DType::F32, [2, 2]);
        let x = b.input("x", ty.clone())?;
        let s = b.state("s", ty)?;
        let next = b.scope("next", |b| b.scale(s, 2.0))?;
        b.update(s, next)?;
        let other = b.scope("other", |b| b.relu(x))?;
        let view = b.scope("view", |b| b.permute(s, &[1, 0]))?;
        let read = b.scope("read", |b| b.add(other, view))?;
        let after = b.scope("after", |b| b.relu(x))?;
        b.output("read", read)?;
        b.output("after", after)?;
        let graph = readers_first(&b.finish()?)?;
        graph.verify()?;
        assert_eq!(names(&graph)[2..], ["view.permute", "other.relu", "read.add", "next.scale", "after.relu"]);
        Ok(())
    }

    #[test]
    fn parts_of_a_state_wait_for_readers_of_their_own_rows() -> Result<(), GraphError> {
        let mut b = Builder::new();
        let ty = |rows| TensorType::new(DType::F32, [rows, 2]);
        let s = b.state("s", ty(4))?;
        let rows = |b: &mut Builder, name: &str, start| b.scope(name, |b| b.slice(s, 0, start, 2));
        let (first, second) = (rows(&mut b, "first", 0)?, rows(&mut b, "second", 2)?);
        let new_first = b.scope("new first", |b| b.binary(Binary::Add, first, first))?;
        let new_second = b.scope("new second", |b| b.relu(second))?;
        let whole = b.concat(&[new_first, new_second], 0)?;
        b.update(s, whole)?;
        let late = b.scope("late", |b| b.relu(second))?;
        b.output("late", late)?;
        let graph = readers_first(&b.finish()?)?;
        let order = ["s", "first.slice", "second.slice", "new first.add", "late.relu", "new second.relu", "concat"];
        assert_eq!(names(&graph), order);
        let uses = StateUses::of(&graph);
        let (state, whole) = graph.updates()[0];
        assert!(uses.is_parts(&graph, whole));
        assert_eq!(uses.target(graph.node(whole.node).inputs[1]), Some((state, &(4..8))));
        Ok(())
    }

    #[test]
    fn what_others_wait_for_waits_for_no_reader() -> Result<(), GraphError> {
        let mut b = Builder::new();
        let s = b.state("s", TensorType::new(DType::F32, [2]))?;
        let next = b.scale(s, 2.0)?;
        b.update(s, next)?;
        let sum = b.add(next, s)?;
        b.output("sum", sum)?;
        let graph = b.finish()?;
        assert_eq!(readers_first(&graph)?, graph);
        Ok(())
    }
}
