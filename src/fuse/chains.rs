//! In: element-wise ops; out: chains, each one op over the values that its nodes read from outside. Knows nothing of
//! how a chain is printed or run.

use super::FuseLimits;
use super::steps::{Steps, is_condition, is_elementwise, is_float_cast};
use crate::graph::{Chain, Graph, GraphError, NodeId, Op, Report, Rewriter, TensorType, ValueId, infer};
use std::collections::{BTreeMap, BTreeSet};

struct Fusion {
    /// In order; the last is the chain's result.
    nodes: Vec<NodeId>,
    inputs: Vec<ValueId>,
    chain: Chain,
}

struct Planner<'a> {
    graph: &'a Graph,
    uses: Vec<Vec<usize>>,
    taken: Vec<bool>,
    max_inputs: usize,
}

/// Fuses element-wise ops with those of their operands that nothing else reads, from the last op backwards. An operand
/// that is stretched stays apart: in the chain it would be computed anew for each element.
pub(super) fn chains(graph: &Graph, limits: &FuseLimits, report: &mut Report) -> Result<Graph, GraphError> {
    let taken = vec![false; graph.nodes().len()];
    let mut planner = Planner { graph, uses: graph.use_counts(), taken, max_inputs: limits.max_inputs };
    let mut fusions = BTreeMap::new();
    for (id, _) in graph.nodes().rev() {
        if !planner.taken[id.0]
            && let Some(fusion) = planner.plan(id)
        {
            fusion.nodes.iter().for_each(|n| planner.taken[n.0] = true);
            fusions.insert(id, fusion);
        }
    }
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        let Some(Fusion { nodes, inputs, chain }) = fusions.get(&id) else {
            if !planner.taken[id.0] {
                r.copy(id)?;
            }
            continue;
        };
        r.replace(id, Op::Elementwise(chain.clone()), inputs.clone())?;
        let words: Vec<&str> = nodes.iter().map(|n| graph.node(*n).op.name()).collect();
        let constant = if nodes.len() == 1 { " with a constant" } else { "" };
        report.add("chains", format!("{}: {}{constant} in one kernel", node.name, words.join(" + ")));
    }
    r.finish()
}

impl Planner<'_> {
    /// The largest chain that ends in a node, if it is worth one.
    fn plan(&self, root: NodeId) -> Option<Fusion> {
        // a chain's type follows from its inputs: numbers among them add no shape, and casts may leave none of the type
        for (casts, constants) in [(true, true), (true, false), (false, true), (false, false)] {
            let node = self.graph.node(root);
            if !(is_elementwise(node) || casts && is_float_cast(self.graph, node)) {
                continue;
            }
            let Some(nodes) = self.grow(root, casts, constants) else { continue };
            let mut steps = Steps::new(self.graph, constants);
            for id in &nodes {
                steps.node(*id);
                if *id != root {
                    steps.store((*id).into());
                }
            }
            let ty = &node.outputs[0];
            if let Some(first) = steps.inputs.iter().position(|v| self.graph.ty(*v).dtype == ty.dtype) {
                steps.put_first(first);
            }
            let chain = steps.chain();
            let types: Vec<&TensorType> = steps.inputs.iter().map(|v| self.graph.ty(*v)).collect();
            let op = Op::Elementwise(chain.clone());
            let inferred = infer(&op, &node.name, &types, &self.graph.layout);
            let pays = !types.is_empty() && (nodes.len() > 1 || steps.has_numbers());
            if inferred.is_ok_and(|t| t[..] == node.outputs[..]) && pays {
                return Some(Fusion { nodes, inputs: steps.inputs, chain });
            }
        }
        None
    }

    /// The nodes of a chain that ends in `root`, in order.
    fn grow(&self, root: NodeId, casts: bool, constants: bool) -> Option<Vec<NodeId>> {
        let g = self.graph;
        let mut nodes = BTreeSet::from([root]);
        // how often the chain reads each value from outside
        let mut reads: BTreeMap<ValueId, usize> = BTreeMap::new();
        let add = |reads: &mut BTreeMap<ValueId, usize>, id: NodeId| {
            g.node(id).inputs.iter().for_each(|v| *reads.entry(*v).or_insert(0) += 1);
        };
        let fits = |reads: &BTreeMap<ValueId, usize>| {
            reads.keys().filter(|v| !(constants && g.fill(**v).is_some())).count() <= self.max_inputs
        };
        add(&mut reads, root);
        if !fits(&reads) {
            return None;
        }
        let mut refused = BTreeSet::new();
        let absorbed = |v: ValueId, reads: usize| {
            let node = g.producer(v);
            let kind = is_elementwise(node) || is_condition(g, node) || casts && is_float_cast(g, node);
            let alone = reads == self.uses[v.node.0][v.output] && !self.taken[v.node.0];
            kind && alone && g.shape(v) == &g.node(root).outputs[0].shape
        };
        while let Some(v) =
            reads.iter().rev().find(|(v, n)| !refused.contains(*v) && absorbed(**v, **n)).map(|(v, _)| *v)
        {
            let mut longer = reads.clone();
            longer.remove(&v);
            add(&mut longer, v.node);
            if fits(&longer) {
                reads = longer;
                nodes.insert(v.node);
            } else {
                refused.insert(v);
            }
        }
        Some(nodes.into_iter().collect())
    }
}
