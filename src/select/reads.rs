//! In: a graph; out: [`Reads`], who reads each value last. Knows of an op only whether it is a view.

use crate::graph::{Graph, NodeId, StateUses, ValueId};
use std::collections::HashMap;

/// Who reads a value last, a view of it included.
pub(super) struct Reads {
    /// The value that a chain of views looks at.
    root: HashMap<ValueId, ValueId>,
    /// By root, the last node; one past the end where an output or a state takes the value.
    last: HashMap<ValueId, NodeId>,
}

impl Reads {
    pub fn of(graph: &Graph, states: &StateUses) -> Reads {
        let end = NodeId(graph.nodes().len());
        let mut reads = Reads { root: HashMap::new(), last: HashMap::new() };
        for (id, node) in graph.nodes() {
            // parts of a state's new value are copied at the end
            let at = if states.is_parts(graph, id.into()) { end } else { id };
            for value in &node.inputs {
                let last = reads.last.entry(reads.root(*value)).or_insert(at);
                *last = at.max(*last);
            }
            if node.op.is_view() {
                reads.root.insert(id.into(), reads.root(node.inputs[0]));
            }
        }
        for value in graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1)) {
            reads.last.insert(reads.root(value), end);
        }
        reads
    }

    /// What a view looks at, the value itself where it is none.
    pub fn root(&self, value: ValueId) -> ValueId {
        self.root.get(&value).copied().unwrap_or(value)
    }

    /// Whether no node after this one, no output and no state reads a value or a view of it.
    pub fn ends_at(&self, id: NodeId, value: ValueId) -> bool {
        self.last.get(&self.root(value)) == Some(&id)
    }
}
