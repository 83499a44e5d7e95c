//! In: a forward graph that casts weights to f16, and the storages that are trained; out: the same graph over copies of
//! those weights in f16, for an optimiser that stores them beside the weights. Knows neither gradients nor optimisers.

use super::trained::Trained;
use crate::graph::{DType, Graph, GraphError, NodeId, Op, Rewriter, StorageId};
use std::collections::BTreeMap;

/// Gives each trained storage that is read in f16 alone a copy, and lets whatever reads the weight cast read that.
/// Returns the copy of each storage that has one; the storage's own node stays, read by nothing.
pub(super) fn narrow_copies(
    graph: &Graph,
    trained: &[Trained],
) -> Result<(Graph, BTreeMap<StorageId, StorageId>), GraphError> {
    let (uses, consumers) = (graph.use_counts(), graph.consumers());
    let is_cast = |id: &NodeId| graph.node(*id).op == Op::Cast(DType::F16);
    let mut r = Rewriter::new(graph);
    let (mut copies, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    for (id, node) in graph.nodes() {
        if let Op::Parameter(storage) = node.op {
            r.copy(id)?;
            // an output or an update is a use without a consumer
            let casts = uses[id.0][0] == consumers[id.0].len() && consumers[id.0].iter().all(is_cast);
            if casts && trained.iter().any(|t| t.storage == storage) {
                let copy = r.new.layout.copy(storage, DType::F16);
                nodes.insert(id, r.new.push_parameter(copy));
                copies.insert(storage, copy);
            }
            continue;
        }
        match node.inputs.first().and_then(|v| nodes.get(&v.node)) {
            Some(copy) => r.set(id.into(), (*copy).into()),
            None => {
                r.copy(id)?;
            }
        }
    }
    Ok((r.finish()?, copies))
}
