//! In: a chain of linears of one square size with one activation between them; out: stacks, each a single op over storages
//! that pack the parameters of its layers. Knows nothing of how a stack is computed.

use super::{LiftLimits, free_name, own_parameters, scope, storage, within};
use crate::graph::{Activation, Graph, GraphError, NodeId, Op, Report, Rewriter, StorageId, Unary, ValueId};
use std::collections::BTreeMap;

const PASS: &str = "stacks";

/// Shorter chains are left as they are.
const LEAST_LAYERS: usize = 4;

/// Narrower layers are left as they are: they have too little work for the invocations of a workgroup.
const LEAST_WIDTH: usize = 64;

/// Widths are multiples of this, so that a layer's inner elements are dealt to several invocations.
const STEP: usize = 32;

/// A linear and what follows it.
#[derive(Clone, Copy)]
struct Layer {
    linear: NodeId,
    /// The node that makes the layer's value: the activation, or the linear itself.
    last: NodeId,
    /// The function that follows.
    function: Option<Unary>,
}

/// Makes stacks of chains of layers: each a linear over a square weight and maybe a bias, parameters that nothing else
/// reads, then the same activation; each value between layers is read by the next alone.
pub(super) fn stacks(graph: &Graph, limits: &LiftLimits, report: &mut Report) -> Result<Graph, GraphError> {
    let mut stacks: BTreeMap<NodeId, Vec<Layer>> = BTreeMap::new();
    let mut inside = vec![false; graph.nodes().len()];
    for chain in chains(graph) {
        let (first, name) = (chain[0], chain_name(graph, &chain));
        let ty = graph.ty(first.linear.into());
        let width = ty.shape.last();
        let what = format!("{name}: {} layers of {width}", chain.len());
        if first.function.is_some_and(|f| Activation::of(f).is_none()) {
            let function = first.function.map_or("", Unary::name);
            report.add(PASS, format!("{what} left as written: {function}'s slope does not follow from its value"));
            continue;
        }
        if width > limits.stack_width {
            let why = match limits.stack_width {
                0 => "on this device a kernel a layer is as fast".to_owned(),
                most => format!("this device carries rows of at most {most} through a stack"),
            };
            report.add(PASS, format!("{what} left as written: {why}"));
            continue;
        }
        if ty.bytes() > limits.bound_bytes {
            let (bytes, most) = (ty.bytes(), limits.bound_bytes);
            report.add(PASS, format!("{what} left as written: rows of {bytes} bytes, where a binding holds {most}"));
            continue;
        }
        let most = (limits.stack_bytes / ty.bytes().max(1)).min(limits.stack_layers);
        if most < LEAST_LAYERS {
            let bytes = ty.bytes();
            report.add(PASS, format!("{what} left as written: at {bytes} bytes a layer's rows, stacks would be short"));
            continue;
        }
        let count = chain.len().div_ceil(most);
        for i in 0..count {
            let part = &chain[i * chain.len() / count..(i + 1) * chain.len() / count];
            part.iter().for_each(|l| [l.linear, l.last].iter().for_each(|n| inside[n.0] = true));
            stacks.insert(part[part.len() - 1].last, part.to_vec());
        }
        let each = chain.len().div_ceil(count);
        report.add(PASS, format!("{what} → {count} of {each}, each in one kernel"));
    }
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes() {
        if let Some(layers) = stacks.get(&id) {
            stack(graph, &mut r, layers)?;
        } else if !inside[id.0] {
            r.copy(id)?;
        }
    }
    r.finish()
}

/// Chains that are long and wide enough.
fn chains(graph: &Graph) -> Vec<Vec<Layer>> {
    let (uses, consumers) = (graph.use_counts(), graph.consumers());
    let parameters = own_parameters(graph);
    let only_reader = |id: NodeId| match consumers[id.0][..] {
        [one] if uses[id.0][0] == 1 => Some(one),
        _ => None,
    };
    let layer = |linear: NodeId| {
        let node = graph.node(linear);
        if node.op != Op::Linear {
            return None;
        }
        let x = graph.shape(node.inputs[0]);
        let n = x.last();
        let square = x.rank() > 1 && x.elements() > 0 && graph.shape(node.inputs[1]).dims() == [n, n];
        let own = |v: &ValueId| storage(graph, *v).is_some_and(|s| parameters.contains(&s));
        let fits = square && n >= LEAST_WIDTH && n.is_multiple_of(STEP);
        if !fits || !node.inputs[1..].iter().all(own) {
            return None;
        }
        let after = only_reader(linear).map(|id| (id, &graph.node(id).op));
        Some(match after {
            Some((last, Op::Unary(f))) if !matches!(f, Unary::Scale(_)) => Layer { linear, last, function: Some(*f) },
            _ => Layer { linear, last: linear, function: None },
        })
    };
    let mut taken = vec![false; graph.nodes().len()];
    let mut chains = Vec::new();
    for (id, _) in graph.nodes() {
        if taken[id.0] {
            continue;
        }
        let Some(first) = layer(id) else { continue };
        let mut chain = vec![first];
        let mut last = first;
        while let Some(next) = only_reader(last.last).and_then(layer) {
            let like = |l: &Layer| (l.function, graph.node(l.linear).inputs.len());
            let (from, ty) = (graph.node(next.linear).inputs[0], graph.ty(next.linear.into()));
            if from != last.last.into() || like(&next) != like(&first) || ty != graph.ty(first.linear.into()) {
                break;
            }
            chain.push(next);
            last = next;
        }
        chain.iter().for_each(|l| taken[l.linear.0] = true);
        if chain.len() >= LEAST_LAYERS {
            chains.push(chain);
        }
    }
    chains
}

/// Puts one op in the place of several layers.
fn stack(graph: &Graph, r: &mut Rewriter, layers: &[Layer]) -> Result<(), GraphError> {
    let name = free_name(&chain_name(graph, layers), &r.new.layout);
    let inputs = &graph.node(layers[0].linear).inputs;
    let mut new_inputs = vec![r.get(inputs[0])];
    for (input, suffix) in (1..inputs.len()).zip(["weight", "bias"]) {
        let members: Vec<StorageId> =
            layers.iter().filter_map(|l| storage(graph, graph.node(l.linear).inputs[input])).collect();
        let stacked = r.new.layout.stack(&format!("{name}.{suffix}"), &members);
        new_inputs.push(r.new.push_parameter(stacked).into());
    }
    let activation = layers[0].function.and_then(Activation::of).unwrap_or(Activation::Identity);
    let node = r.new.push(Op::LinearStack(activation), new_inputs, name)?;
    for layer in layers {
        // nothing outside reads the values between layers
        r.set(layer.linear.into(), node.into());
        r.set(layer.last.into(), node.into());
    }
    Ok(())
}

/// `layers.0-30` for the layers `layers.0`, `layers.2`, … `layers.30`.
fn chain_name(graph: &Graph, layers: &[Layer]) -> String {
    let weight = |l: &Layer| {
        let storage = storage(graph, graph.node(l.linear).inputs[1]);
        storage.map_or(String::new(), |s| scope(&graph.layout.get(s).name).to_owned())
    };
    let (first, last) = (weight(&layers[0]), weight(&layers[layers.len() - 1]));
    let (outer, inner) = (scope(&first), first.rsplit('.').next().unwrap_or_default());
    let number = last.rsplit('.').next().unwrap_or_default();
    let numbered = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if scope(&last) == outer && numbered(inner) && numbered(number) {
        return within(outer, &format!("{inner}-{number}"));
    }
    format!("{first}.stack")
}
