//! In: matrix products followed by element-wise ops; out: fused matmuls whose epilogue does the rest while the product
//! is in registers. Knows nothing of how a product is computed.

use super::FuseLimits;
use super::steps::{Steps, is_condition, is_elementwise};
use crate::graph::{Binary, Chain, Graph, GraphError, NodeId, Op, Report, Rewriter, Shape, ValueId};
use std::collections::BTreeMap;

/// A product with what follows it.
struct Fusion {
    product: NodeId,
    /// The product's own node, then what was absorbed, in order.
    nodes: Vec<NodeId>,
    /// Comparisons that the epilogue makes for itself.
    conditions: Vec<NodeId>,
    /// Values that the epilogue reads besides the product.
    extras: Vec<ValueId>,
    epilogue: Chain,
}

/// Fuses linears with a bias, and linears and matmuls with the element-wise ops that follow. Of two products that
/// could absorb one op the later does, since the other is computed by then.
pub(super) fn epilogues(graph: &Graph, limits: &FuseLimits, report: &mut Report) -> Result<Graph, GraphError> {
    let (uses, consumers) = (graph.use_counts(), graph.consumers());
    let mut taken = vec![false; graph.nodes().len()];
    let mut fusions: BTreeMap<NodeId, Fusion> = BTreeMap::new();
    for (id, node) in graph.nodes().rev() {
        if !matches!(node.op, Op::Linear | Op::Matmul { .. }) {
            continue;
        }
        let next = |value: ValueId| match consumers[value.node.0][..] {
            [one] if !taken[one.0] => {
                let reads = graph.node(one).inputs.iter().filter(|v| **v == value).count();
                (reads == uses[value.node.0][0]).then_some(one)
            }
            _ => None,
        };
        let alone = |value: ValueId| uses[value.node.0][value.output] == 1 && !taken[value.node.0];
        if let Some(fusion) = grow(graph, id, limits.max_inputs.saturating_sub(2), next, alone) {
            fusion.nodes.iter().chain(&fusion.conditions).for_each(|n| taken[n.0] = true);
            fusions.insert(fusion.nodes[fusion.nodes.len() - 1], fusion);
        }
    }
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes() {
        let Some(fusion) = fusions.get(&id) else {
            if !taken[id.0] {
                r.copy(id)?;
            }
            continue;
        };
        let node = graph.node(fusion.product);
        let (transpose_a, transpose_b) = match node.op {
            Op::Matmul { transpose_a, transpose_b } => (transpose_a, transpose_b),
            _ => (false, true),
        };
        let mut inputs = r.all(&node.inputs[..2]);
        inputs.extend(r.all(&fusion.extras));
        let op = Op::FusedMatmul { transpose_a, transpose_b, epilogue: fusion.epilogue.clone() };
        let new = r.new.push(op, inputs, &node.name)?;
        r.set(id.into(), new.into());
        report.add("epilogues", format!("{}: {} in one kernel", node.name, words(graph, fusion)));
    }
    r.finish()
}

/// Follows a product along single consumers; `None` if there is nothing to fuse.
fn grow(
    graph: &Graph,
    product: NodeId,
    max_extras: usize,
    next: impl Fn(ValueId) -> Option<NodeId>,
    alone: impl Fn(ValueId) -> bool,
) -> Option<Fusion> {
    let node = graph.node(product);
    let ty = &node.outputs[0];
    let mut value = ValueId::from(product);
    let mut steps = Steps::new(graph, true);
    steps.input(value);
    if let Some(bias) = node.inputs.get(2) {
        steps.sum(value, *bias, value);
    }
    if steps.inputs.len() > max_extras + 1 {
        return None;
    }
    let (mut nodes, mut conditions) = (vec![product], Vec::new());
    while let Some(id) = next(value) {
        let consumer = graph.node(id);
        if !is_elementwise(consumer) || consumer.outputs[0] != *ty {
            break;
        }
        let mut longer = steps.clone();
        longer.store(value);
        let compared: Vec<NodeId> = consumer
            .inputs
            .iter()
            .filter(|v| is_condition(graph, graph.producer(**v)) && alone(**v))
            .map(|v| v.node)
            .collect();
        compared.iter().for_each(|c| longer.node(*c));
        longer.node(id);
        if longer.inputs.len() > max_extras + 1 {
            break;
        }
        (steps, value) = (longer, id.into());
        nodes.push(id);
        conditions.extend(compared);
    }
    let epilogue = steps.chain();
    let extras = steps.inputs[1..].to_vec();
    (!epilogue.steps.is_empty()).then_some(Fusion { product, nodes, conditions, extras, epilogue })
}

/// `matmul + bias + relu`.
fn words(graph: &Graph, fusion: &Fusion) -> String {
    let product = graph.node(fusion.product);
    let mut words = vec!["matmul"];
    if product.inputs.len() == 3 {
        words.push("bias");
    }
    for pair in fusion.nodes.windows(2) {
        let node = graph.node(pair[1]);
        let other = node.inputs.iter().find(|v| v.node != pair[0]);
        words.push(match (&node.op, other) {
            (Op::Binary(Binary::Add), Some(v)) => added(graph, *v, &product.outputs[0].shape),
            (op, _) => op.name(),
        });
    }
    words.join(" + ")
}

/// What an added value is to a product.
fn added(graph: &Graph, value: ValueId, product: &Shape) -> &'static str {
    let shape = graph.shape(value);
    if graph.fill(value).is_some() {
        "add"
    } else if shape == product {
        "residual"
    } else if shape.dims() == [product.last()] {
        "bias"
    } else {
        "add"
    }
}
