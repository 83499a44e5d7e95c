//! In: a graph; out: [`Parts`], the values that are written where a concat has them, so that it need not copy them.
//! Knows of an op only whether its kernels can leave gaps between what they write.

use crate::graph::{DType, Graph, NodeId, Op, StateUses, ValueId};
use std::collections::HashMap;

/// Values that only a concat reads, and where it has them.
#[derive(Default)]
pub(super) struct Parts {
    places: HashMap<ValueId, (NodeId, usize, usize)>,
}

impl Parts {
    /// Where a binding holds so many bytes.
    pub fn of(graph: &Graph, states: &StateUses, binding: u64) -> Parts {
        let uses = graph.use_counts();
        let mut parts = Parts::default();
        for (id, node) in graph.nodes() {
            let Op::Concat(axis) = node.op else { continue };
            // what has no elements is not written at all
            let empty = node.inputs.iter().any(|v| graph.shape(*v).elements() == 0);
            if empty || states.is_parts(graph, id.into()) {
                continue;
            }
            // dk and dv are bound as one, from the first of a batch entry to the last
            let shape = graph.shape(id.into());
            let entries = if axis > 0 { shape.dims()[0].max(1) } else { 1 };
            let fits = (node.outputs[0].bytes() / entries) as u64 <= binding;
            let mut start = 0;
            for value in &node.inputs {
                let once = uses[value.node.0][value.output] == 1;
                if once && graph.ty(*value).dtype != DType::Bool && leaves_gaps(graph, *value, &node.inputs, fits) {
                    parts.places.insert(*value, (id, axis, start));
                }
                start += graph.shape(*value).dims()[axis];
            }
        }
        parts
    }

    /// The concat that a value is written for, its axis, and where along it the value starts.
    pub fn place(&self, value: ValueId) -> Option<(NodeId, usize, usize)> {
        self.places.get(&value).copied()
    }
}

/// Whether the kernels that make a value can write it among others of the same concat, a batch entry of which a binding
/// may hold.
fn leaves_gaps(graph: &Graph, value: ValueId, others: &[ValueId], fits: bool) -> bool {
    let node = graph.producer(value);
    // a product of no elements is zeros, which are written without gaps
    let full = node.inputs.iter().all(|v| graph.shape(*v).elements() > 0);
    match node.op {
        Op::Matmul { .. } | Op::Linear | Op::FusedMatmul { .. } => full,
        Op::Unary(_) | Op::Binary(_) | Op::Where | Op::MaskedFill(_) | Op::Elementwise(_) | Op::Cast(_) => true,
        // dq is another launch's than dk and dv: they run side by side as long as they write different tensors
        Op::AttentionGrad(_) if value.output == 0 => {
            full && !others.iter().any(|v| v.node == value.node && v.output > 0)
        }
        Op::AttentionGrad(_) => full && fits,
        // a single number, which needs no alignment
        Op::Reduce { .. } => full && node.outputs[0].shape.elements() == 1,
        _ => false,
    }
}
