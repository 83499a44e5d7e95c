//! In: a graph; out: the same with equal nodes computed once. Knows nothing of what ops mean.

use crate::graph::{Graph, GraphError, NodeId, Op, Report, Rewriter, ValueId};
use std::collections::{BTreeMap, HashMap};

/// Merges nodes of the same op on the same inputs; the first stays. Inputs are never merged.
pub(super) fn cse(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let mut seen: HashMap<(&Op, Vec<ValueId>), NodeId> = HashMap::new();
    let mut copies: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        if node.op == Op::Input {
            r.copy(id)?;
            continue;
        }
        let key = (&node.op, r.all(&node.inputs));
        match seen.get(&key) {
            Some(&first) => {
                for output in 0..node.outputs.len() {
                    r.set(ValueId { node: id, output }, ValueId { node: first, output });
                }
                *copies.entry(first).or_insert(1) += 1;
            }
            None => {
                let new = r.copy(id)?;
                seen.insert(key, new);
            }
        }
    }
    for (first, count) in copies {
        report.add("cse", format!("{}: {count} equal nodes → one", r.new.node(first).name));
    }
    r.finish()
}
