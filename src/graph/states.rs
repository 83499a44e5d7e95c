//! In: a graph with states; out: who reads them and who makes their new values, and the graph with readers first. Knows
//! nothing of what ops mean, but for views and concats.
//!
//! A state is read as of the start of a run. A node that makes its new value can write it where the state lies if all
//! that read the old one have run: so each reader comes before it. The new value may be a concat along dimension 0; then
//! each of its inputs, a part, is the new value of some rows.

use super::{Graph, GraphError, NodeId, Op, Rewriter, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// Elements of a state.
#[derive(Clone, Debug, PartialEq)]
struct Look {
    state: NodeId,
    elements: Range<usize>,
    /// Whether it is all of them in their order.
    whole: bool,
}

/// Who reads the states of a graph, and who makes their new values.
#[derive(Clone, Debug, Default)]
pub struct StateUses {
    /// States and the values that only look at one.
    looks: HashMap<ValueId, Look>,
    /// The nodes that read each state, views apart; one past the last node where an output or a state takes it.
    reads: HashMap<NodeId, Vec<NodeId>>,
    /// Values that nothing but an update reads, with the elements that they are the new values of.
    targets: HashMap<ValueId, Look>,
    /// The parts of each state's new value, in order; the value itself where it is no concat.
    parts: HashMap<NodeId, Vec<(ValueId, Range<usize>)>>,
}

impl StateUses {
    /// Of all states.
    pub fn of(graph: &Graph) -> StateUses {
        let mut uses = StateUses::default();
        let counts = graph.use_counts();
        let once = |v: ValueId| counts[v.node.0][v.output] == 1;
        for (state, value) in graph.updates() {
            let elements = 0..graph.shape((*state).into()).elements();
            uses.looks.insert((*state).into(), Look { state: *state, elements: elements.clone(), whole: true });
            let node = graph.producer(*value);
            let is_parts = node.op == Op::Concat(0) && once(*value);
            let parts = if is_parts { &node.inputs[..] } else { std::slice::from_ref(value) };
            let mut first = 0;
            for part in parts {
                let elements = first..first + graph.shape(*part).elements();
                first = elements.end;
                uses.parts.entry(*state).or_default().push((*part, elements.clone()));
                if once(*part) {
                    uses.targets.insert(*part, Look { state: *state, elements, whole: true });
                }
            }
            if is_parts {
                uses.targets.insert(*value, Look { state: *state, elements, whole: true });
            }
        }
        uses.walk(graph);
        uses
    }

    /// Finds views and readers.
    fn walk(&mut self, graph: &Graph) {
        let end = NodeId(graph.nodes().len());
        for (id, node) in graph.nodes() {
            if node.op.is_view()
                && let Some(look) = self.looks.get(&node.inputs[0]).cloned()
            {
                let view = match node.op {
                    Op::Slice { axis: 0, start, len } if look.whole => {
                        let row = look.elements.len() / graph.shape(node.inputs[0]).dims()[0].max(1);
                        let first = look.elements.start + start * row;
                        Look { elements: first..first + len * row, ..look }
                    }
                    Op::Reshape(_) | Op::Recompute(_) => look,
                    _ => Look { whole: false, ..look },
                };
                self.looks.insert(id.into(), view);
                continue;
            }
            // a concat that is never made reads nothing where it stands: parts that are other states' are copied at the end
            let own = self.is_parts(graph, id.into()).then(|| self.targets[&id.into()].state);
            let at = if own.is_some() { end } else { id };
            let looks = node.inputs.iter().filter_map(|v| self.looks.get(v));
            for look in looks.filter(|look| own != Some(look.state)) {
                self.reads.entry(look.state).or_default().push(at);
            }
        }
        let ends = graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1));
        for look in ends.filter_map(|v| self.looks.get(&v)) {
            self.reads.entry(look.state).or_default().push(end);
        }
    }

    /// The state and its elements that take a value which nothing but the update reads.
    pub fn target(&self, value: ValueId) -> Option<(NodeId, &Range<usize>)> {
        self.targets.get(&value).map(|look| (look.state, &look.elements))
    }

    /// Whether a concat along dimension 0 is the new value of a state and nothing else, and so need not be made.
    pub fn is_parts(&self, graph: &Graph, value: ValueId) -> bool {
        let Some(look) = self.targets.get(&value).filter(|_| graph.producer(value).op == Op::Concat(0)) else {
            return false;
        };
        self.parts[&look.state].iter().all(|(part, _)| *part != value)
    }

    /// The parts of a state's new value and the elements that they go to, in order.
    pub fn parts(&self, state: NodeId) -> &[(ValueId, Range<usize>)] {
        self.parts.get(&state).map_or(&[], Vec::as_slice)
    }

    /// Whether a part is what the state holds there already.
    pub fn stays(&self, state: NodeId, part: ValueId, elements: &Range<usize>) -> bool {
        self.looks.get(&part).is_some_and(|l| l.state == state && l.whole && l.elements == *elements)
    }

    /// The nodes that make a state's new value or a part of it, which nothing else reads.
    fn writers(&self, state: NodeId) -> impl Iterator<Item = NodeId> {
        self.parts(state).iter().filter(|(part, _)| self.targets.contains_key(part)).map(|(part, _)| part.node)
    }

    /// Whether each part of a state's new value can be written where it lies: the node that makes it reads those
    /// elements of the state, whole and once, `fits` them, and no other reads the state after the first of such nodes.
    pub fn in_place(&self, graph: &Graph, state: NodeId, fits: impl Fn(&Op, &Range<usize>) -> bool) -> bool {
        let mut writers = Vec::new();
        for (part, elements) in self.parts(state).iter().filter(|(p, e)| !self.stays(state, *p, e)) {
            let node = graph.producer(*part);
            let looks: Vec<&Look> =
                node.inputs.iter().filter_map(|v| self.looks.get(v)).filter(|l| l.state == state).collect();
            let reads = matches!(looks[..], [look] if look.whole && look.elements == *elements);
            if !reads || !self.targets.contains_key(part) || !fits(&node.op, elements) {
                return false;
            }
            writers.push(part.node);
        }
        let Some(first) = writers.iter().min() else { return false };
        let reads = self.reads.get(&state).map_or(&[][..], Vec::as_slice);
        reads.iter().all(|reader| reader < first || writers.contains(reader))
    }
}

/// Lets every node that makes a state's new value, or a part of it, come after all others that read the old one; what
/// these need comes before them. All else keeps its order.
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
        let targets = values.filter(|v| ends && !uses.is_parts(graph, *v)).filter_map(|v| uses.target(v));
        let readers = targets.flat_map(|(state, _)| {
            let reads = uses.reads.get(&state).map_or(&[][..], Vec::as_slice);
            let others = reads.iter().copied().filter(|reader| reader.0 < count);
            let writers: Vec<NodeId> = uses.writers(state).collect();
            others.filter(|reader| !writers.contains(reader)).collect::<Vec<NodeId>>()
        });
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
    use crate::graph::{Builder, DType, TensorType, Unary};

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
        assert_eq!(names(&graph)[2..], ["other.relu", "view.permute", "read.add", "next.scale", "after.relu"]);
        Ok(())
    }

    #[test]
    fn parts_of_a_state_wait_for_its_readers_and_not_for_each_other() -> Result<(), GraphError> {
        let mut b = Builder::new();
        let ty = |rows| TensorType::new(DType::F32, [rows, 2]);
        let s = b.state("s", ty(4))?;
        let rows = |b: &mut Builder, name: &str, start| b.scope(name, |b| b.slice(s, 0, start, 2));
        let (first, second) = (rows(&mut b, "first", 0)?, rows(&mut b, "second", 2)?);
        let new_first = b.scope("new first", |b| b.unary(Unary::Neg, first))?;
        let new_second = b.scope("new second", |b| b.relu(second))?;
        let whole = b.concat(&[new_first, new_second], 0)?;
        b.update(s, whole)?;
        let late = b.scope("late", |b| b.relu(second))?;
        b.output("late", late)?;
        let graph = readers_first(&b.finish()?)?;
        let order = ["s", "first.slice", "second.slice", "late.relu", "new first.neg", "new second.relu", "concat"];
        assert_eq!(names(&graph), order);
        let uses = StateUses::of(&graph);
        let (state, whole) = graph.updates()[0];
        assert!(uses.is_parts(&graph, whole));
        assert_eq!(uses.target(graph.node(whole.node).inputs[1]), Some((state, &(4..8))));
        assert!(uses.in_place(&graph, state, |op, _| matches!(op, Op::Unary(_))));
        assert!(!uses.in_place(&graph, state, |_, elements| elements.start == 0));
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
