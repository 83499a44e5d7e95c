//! In: several linears that read one value; out: one linear over a storage that packs their weights, and slices of its
//! result. Knows nothing of what the slices are for.

use super::{LiftLimits, free_name, own_parameters, scope, storage, within};
use crate::graph::{Graph, GraphError, NodeId, Op, Report, Rewriter, StorageId, ValueId};
use std::collections::BTreeMap;

const PASS: &str = "linears";

/// Packs parallel linears: the same x, all with or all without bias, each weight and bias a parameter that is read
/// nowhere else; as many as the limits allow.
pub(super) fn linears(graph: &Graph, limits: &LiftLimits, report: &mut Report) -> Result<Graph, GraphError> {
    let groups = groups(graph, limits, report);
    // the group's first node is where its linear goes
    let first: BTreeMap<NodeId, &Vec<NodeId>> = groups.iter().filter_map(|g| Some((*g.iter().min()?, g))).collect();
    let mut done = vec![false; graph.nodes().len()];
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes() {
        if let Some(group) = first.get(&id) {
            pack(graph, &mut r, group, report)?;
            group.iter().for_each(|m| done[m.0] = true);
        } else if !done[id.0] {
            r.copy(id)?;
        }
    }
    r.finish()
}

/// Groups of at least two, each in the order in which its outputs are read: so all queries of a block are neighbours.
fn groups(graph: &Graph, limits: &LiftLimits, report: &mut Report) -> Vec<Vec<NodeId>> {
    let parameters = own_parameters(graph);
    let mut first_reader = BTreeMap::new();
    for (id, node) in graph.nodes() {
        for (position, v) in node.inputs.iter().enumerate() {
            first_reader.entry(*v).or_insert((id, position));
        }
    }
    let mut groups: BTreeMap<(ValueId, bool), Vec<NodeId>> = BTreeMap::new();
    for (id, node) in graph.nodes().filter(|(_, n)| n.op == Op::Linear) {
        if node.inputs[1..].iter().all(|v| storage(graph, *v).is_some_and(|s| parameters.contains(&s))) {
            groups.entry((node.inputs[0], node.inputs.len() == 3)).or_default().push(id);
        }
    }
    let mut fitting: Vec<Vec<NodeId>> = Vec::new();
    for mut group in groups.into_values() {
        let last = (NodeId(usize::MAX), 0);
        group.sort_by_key(|id| (first_reader.get(&ValueId::from(*id)).copied().unwrap_or(last), *id));
        let parts = parts(graph, &group, limits);
        if parts.len() > 1 {
            let (name, count, most) =
                (&graph.node(group[0]).name, group.len(), limits.linear_bytes.min(limits.packed_bytes));
            let what =
                format!("{name}: {count} linears on one input in {} parts: a buffer holds {most} bytes", parts.len());
            report.add(PASS, what);
        }
        fitting.extend(parts);
    }
    fitting.retain(|group| group.len() > 1);
    fitting
}

/// Neighbours of a group whose results and whose weights are within the limits.
fn parts(graph: &Graph, group: &[NodeId], limits: &LiftLimits) -> Vec<Vec<NodeId>> {
    let mut parts: Vec<Vec<NodeId>> = Vec::new();
    let (mut results, mut weights) = (0usize, 0usize);
    for id in group {
        let node = graph.node(*id);
        let (result, weight) = (node.outputs[0].bytes(), graph.ty(node.inputs[1]).bytes());
        (results, weights) = (results.saturating_add(result), weights.saturating_add(weight));
        match parts.last_mut() {
            Some(part) if results <= limits.linear_bytes && weights <= limits.packed_bytes => part.push(*id),
            _ => {
                parts.push(vec![*id]);
                (results, weights) = (result, weight);
            }
        }
    }
    parts
}

fn pack(graph: &Graph, r: &mut Rewriter, group: &[NodeId], report: &mut Report) -> Result<(), GraphError> {
    let inputs = &graph.node(group[0]).inputs;
    let members = |input: usize| group.iter().filter_map(move |id| storage(graph, graph.node(*id).inputs[input]));
    let names: Vec<&str> = members(1).map(|s| graph.layout.get(s).name.as_str()).collect();
    let name = free_name(&packed_name(&names), &r.new.layout);
    let mut new_inputs = vec![r.get(inputs[0])];
    for (input, suffix) in (1..inputs.len()).zip(["weight", "bias"]) {
        let storages: Vec<StorageId> = members(input).collect();
        let packed = r.new.layout.pack(&format!("{name}.{suffix}"), &storages);
        new_inputs.push(r.new.push_parameter(packed).into());
    }
    let linear = r.new.push(Op::Linear, new_inputs, name.clone())?;
    let mut start = 0;
    for id in group {
        let shape = graph.shape((*id).into());
        let op = Op::Slice { axis: shape.rank() - 1, start, len: shape.last() };
        let slice = r.new.push(op, vec![linear.into()], graph.node(*id).name.clone())?;
        r.set((*id).into(), slice.into());
        start += shape.last();
    }
    report.add(PASS, format!("{name}: {} linears on one input → one", group.len()));
    Ok(())
}

/// `blocks.0.sa.qkv` for the heads of a block, else `PREFIX.packed` with the prefix that all weights share.
fn packed_name(weights: &[&str]) -> String {
    let heads: Option<Vec<(&str, &str)>> = weights.iter().map(|w| head_weight(w)).collect();
    if let Some(heads) = heads
        && heads.iter().all(|(block, _)| *block == heads[0].0)
    {
        let kinds = [("query", "q"), ("key", "k"), ("value", "v")];
        let letters = kinds.iter().filter(|(kind, _)| heads.iter().any(|(_, k)| k == kind)).map(|(_, letter)| *letter);
        return within(heads[0].0, &letters.collect::<String>());
    }
    let mut prefix: Vec<&str> = scope(weights[0]).split('.').collect();
    for weight in weights {
        let shared = prefix.iter().zip(scope(weight).split('.')).take_while(|(a, b)| *a == b).count();
        prefix.truncate(shared);
    }
    within(&prefix.join("."), "packed")
}

/// Block and kind of `BLOCK.heads.N.KIND.weight`.
fn head_weight(name: &str) -> Option<(&str, &str)> {
    let (rest, kind) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    let (rest, number) = rest.rsplit_once('.')?;
    let block = rest.strip_suffix("heads")?;
    let numbered = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (numbered && matches!(kind, "key" | "query" | "value")).then_some((block.strip_suffix('.').unwrap_or(block), kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_names() {
        let qkv = ["b.0.sa.heads.0.query.weight", "b.0.sa.heads.1.key.weight", "b.0.sa.heads.1.value.weight"];
        assert_eq!(packed_name(&qkv), "b.0.sa.qkv");
        assert_eq!(packed_name(&qkv[1..]), "b.0.sa.kv");
        assert_eq!(packed_name(&["heads.0.query.weight", "heads.1.query.weight"]), "q");
        assert_eq!(packed_name(&["m.left.up.weight", "m.left.gate.weight"]), "m.left.packed");
        assert_eq!(packed_name(&["m.left.weight", "m.leftmost.weight"]), "m.packed");
        assert_eq!(packed_name(&["up.weight", "gate.weight"]), "packed");
    }
}
