//! In: a graph and which of its nodes may run earlier than they stand; out: the same nodes with those as early as their
//! inputs allow. Knows nothing of what ops mean, but for those that only look at their input's elements.

use crate::graph::{Graph, GraphError, NodeId, Rewriter};
use std::collections::BTreeMap;

/// What a node waits for beside its inputs.
pub(super) type Waits = [Option<NodeId>; 2];

/// Moves nodes to directly after the last of their inputs and of the node that each waits for; what moves to one place
/// keeps its order. All others stay in theirs.
///
/// A gradient's memory is free once the optimiser has read it, so the optimiser reads it at once. `moved` holds for
/// each node that may move what it waits for beside its inputs: for one that overwrites a weight, the weight's last
/// reader.
pub(super) fn early(graph: &Graph, moved: &BTreeMap<NodeId, Waits>) -> Result<Graph, GraphError> {
    let mut at: Vec<usize> = Vec::with_capacity(graph.nodes().len());
    let mut fixed = 0;
    for (id, node) in graph.nodes() {
        let Some(waits) = moved.get(&id) else {
            fixed += 1;
            at.push(fixed);
            continue;
        };
        let before = node.inputs.iter().map(|v| v.node).chain(waits.iter().flatten().copied()).map(|n| at[n.0]);
        at.push(before.max().unwrap_or(0));
    }
    // what stays comes first at its own place
    let mut order: Vec<NodeId> = graph.nodes().map(|(id, _)| id).collect();
    order.sort_by_key(|id| (at[id.0], moved.contains_key(id), *id));
    let mut r = Rewriter::new(graph);
    for id in order {
        r.copy(id)?;
    }
    r.finish()
}

/// For each node the last that reads its value, itself or through ops that only look at its elements; the node itself
/// if nothing does.
pub(super) fn last_readers(graph: &Graph) -> Vec<NodeId> {
    let mut last: Vec<NodeId> = graph.nodes().map(|(id, _)| id).collect();
    for (id, node) in graph.nodes().rev() {
        let reader = if node.op.is_view() { last[id.0] } else { id };
        for v in &node.inputs {
            last[v.node.0] = last[v.node.0].max(reader);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, Builder, DType, Op, TensorType, Unary, ValueId};

    fn names(graph: &Graph) -> Vec<&str> {
        graph.nodes().map(|(_, n)| n.name.as_str()).collect()
    }

    fn push(g: &mut Graph, inputs: &[ValueId], name: &str) -> ValueId {
        let op = if inputs.len() == 1 { Op::Unary(Unary::Neg) } else { Op::Binary(Binary::Add) };
        g.push(op, inputs.to_vec(), name).unwrap().into()
    }

    #[test]
    fn a_node_moves_behind_its_inputs_and_what_it_waits_for() {
        let mut g = Builder::new();
        let ty = TensorType::new(DType::F32, [2]);
        let x = g.input("x", ty.clone()).unwrap();
        let w = g.input("w", ty).unwrap();
        let mut g = g.finish().unwrap();
        let a = push(&mut g, &[x], "a");
        let b = push(&mut g, &[a, w], "b");
        let c = push(&mut g, &[b], "c");
        let d = push(&mut g, &[c, w], "d");
        let new_w = push(&mut g, &[w, a], "new w");
        let sum = push(&mut g, &[new_w, b], "sum");
        g.push_output("d", d, Default::default()).unwrap();
        g.push_output("sum", sum, Default::default()).unwrap();
        // free to run once a is there
        let free = early(&g, &BTreeMap::from([(new_w.node, [None; 2]), (sum.node, [None; 2])])).unwrap();
        assert_eq!(names(&free), ["x", "w", "a", "new w", "b", "sum", "c", "d"]);
        // not before d has read w
        let last = last_readers(&g);
        assert_eq!(last[w.node.0], new_w.node, "every reader counts");
        let waits =
            early(&g, &BTreeMap::from([(new_w.node, [Some(a.node), Some(d.node)]), (sum.node, [None; 2])])).unwrap();
        assert_eq!(names(&waits), ["x", "w", "a", "b", "c", "d", "new w", "sum"]);
        waits.verify().unwrap();
        assert_eq!(waits.outputs().len(), 2);
    }

    #[test]
    fn who_reads_a_view_reads_the_value() {
        let mut b = Builder::new();
        let w = b.input("w", TensorType::new(DType::F32, [2, 3])).unwrap();
        let view = b.permute(w, &[1, 0]).unwrap();
        let early_reader = b.relu(w).unwrap();
        let late_reader = b.matmul(early_reader, view).unwrap();
        b.output("y", late_reader).unwrap();
        let last = last_readers(&b.finish().unwrap());
        assert_eq!(last[w.node.0], late_reader.node);
        assert_eq!(last[late_reader.node.0], late_reader.node);
    }
}
