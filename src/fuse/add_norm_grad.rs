//! In: sums of a norm's gradient and another; out: one op that gives the sum. Knows nothing of where gradients come
//! from.

use super::FuseLimits;
use crate::graph::{Binary, Graph, GraphError, NodeId, Op, Report, Rewriter, ValueId};
use std::collections::BTreeMap;

/// Lets the gradient of a norm's rows that only an add reads add the other summand, which a residual around the norm
/// gives.
pub(super) fn add_norm_grad(graph: &Graph, limits: &FuseLimits, report: &mut Report) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut fusions: BTreeMap<NodeId, (NodeId, ValueId)> = BTreeMap::new();
    let mut taken = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().filter(|(_, n)| n.op == Op::Binary(Binary::Add)) {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let fits = |norm: ValueId, other: ValueId| {
            let gradient = graph.producer(norm);
            let arity = if gradient.op == Op::LayerNormGrad { 5 } else { 4 };
            matches!(gradient.op, Op::LayerNormGrad | Op::RmsNormGrad)
                && gradient.inputs.len() == arity
                && arity < limits.max_inputs
                && uses[norm.node.0][0] == 1
                && !taken[norm.node.0]
                && graph.ty(other) == graph.ty(norm)
        };
        if let Some((norm, other)) = [(b, a), (a, b)].into_iter().find(|(norm, other)| fits(*norm, *other)) {
            taken[norm.node.0] = true;
            fusions.insert(id, (norm.node, other));
        }
    }
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes() {
        let Some((norm, other)) = fusions.get(&id).copied() else {
            if !taken[id.0] {
                r.copy(id)?;
            }
            continue;
        };
        let node = graph.node(norm);
        let inputs = r.all(&[&node.inputs[..], &[other]].concat());
        let new = r.new.push(node.op.clone(), inputs, node.name.as_str())?;
        r.set(id.into(), new.into());
        report.add("add_norm_grad", format!("{}: gradient + residual in one kernel", node.name));
    }
    r.finish()
}
