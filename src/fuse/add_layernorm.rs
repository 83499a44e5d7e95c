//! In: layernorms of a sum; out: one op that gives the sum and its norm. Knows nothing of where the sum comes from.

use super::FuseLimits;
use crate::graph::{Binary, Graph, GraphError, NodeId, Op, Report, Rewriter, Scalar, ValueId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy)]
struct Fusion {
    add: NodeId,
    norm: NodeId,
    eps: Scalar,
    inputs: [ValueId; 4], // a, b, γ, β
}

/// Fuses an add with the first layernorm that reads it; other readers get the sum from the fused op.
pub(super) fn add_layernorm(graph: &Graph, limits: &FuseLimits, report: &mut Report) -> Result<Graph, GraphError> {
    // a, b, γ, β in; sum, norm, mean, 1/deviation out
    let plan = if limits.max_inputs + 1 >= 8 { plan(graph) } else { BTreeMap::new() };
    let part: BTreeSet<NodeId> = plan.values().flat_map(|f| [f.add, f.norm]).collect();
    let mut hoisted = vec![false; graph.nodes().len()];
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes() {
        let Some(Fusion { add, norm, eps, inputs }) = plan.get(&id).copied() else {
            if !part.contains(&id) && !hoisted[id.0] {
                r.copy(id)?;
            }
            continue;
        };
        for v in inputs.iter().filter(|v| v.node > id) {
            if !hoisted[v.node.0] {
                r.copy(v.node)?;
                hoisted[v.node.0] = true;
            }
        }
        let name = &graph.node(norm).name;
        let node = r.new.push(Op::AddLayerNorm(eps), r.all(&inputs), name)?;
        r.set(add.into(), node.into());
        for output in 0..3 {
            r.set(ValueId { node: norm, output }, ValueId { node, output: output + 1 });
        }
        report.add("add_layernorm", format!("{name}: residual + layernorm in one kernel"));
    }
    r.finish()
}

/// The fusions by the node in whose place they go: the norm, or the add where the sum is read in between.
fn plan(graph: &Graph) -> BTreeMap<NodeId, Fusion> {
    let consumers = graph.consumers();
    let mut plan = BTreeMap::new();
    for (norm, node) in graph.nodes() {
        let Op::LayerNorm(eps) = node.op else { continue };
        let (sum, gamma, beta) = (node.inputs[0], node.inputs[1], node.inputs[2]);
        let (add, sum_node) = (sum.node, graph.node(sum.node));
        let readers = &consumers[add.0];
        let first_norm = readers.iter().find(|c| matches!(graph.node(**c).op, Op::LayerNorm(_)));
        // the sum can also be γ or β of a norm
        if sum_node.op != Op::Binary(Binary::Add) || first_norm != Some(&norm) || gamma == sum || beta == sum {
            continue;
        }
        let Some((a, b)) = operands(graph, sum) else { continue };
        let place = if readers.first() == Some(&norm) { norm } else { add };
        let available = |v: ValueId| v.node < place || matches!(graph.producer(v).op, Op::Parameter(_));
        if available(gamma) && available(beta) {
            plan.insert(place, Fusion { add, norm, eps, inputs: [a, b, gamma, beta] });
        }
    }
    plan
}

/// The operand that has the sum's shape, and the other, which repeats over leading dimensions if at all.
fn operands(graph: &Graph, sum: ValueId) -> Option<(ValueId, ValueId)> {
    let (a, b) = (graph.producer(sum).inputs[0], graph.producer(sum).inputs[1]);
    let dims = graph.shape(sum).dims();
    let fits =
        |whole: ValueId, part: ValueId| graph.shape(whole).dims() == dims && dims.ends_with(graph.shape(part).dims());
    [(a, b), (b, a)].into_iter().find(|(whole, part)| fits(*whole, *part))
}
