//! In: a graph as written; out: the same with composite ops in place of the ops that spell them out, each with a
//! gradient rule of its own, and a [`Report`]. Knows only graphs: no fused ops, no devices, no memory.
//!
//! [`lift`] runs, in order: softmax and layernorm, attention out of heads, parallel linears into one, slices that a
//! concat puts together again, positions looked up in a table, chains of linears into stacks.

mod attention;
mod linears;
mod norms;
mod positions;
mod slices;
mod stacks;

use crate::graph::{Graph, GraphError, NodeId, Op, ParamLayout, Report, StorageId, ValueId, dead_code};
use std::collections::BTreeSet;

type Pass = fn(&Graph, &LiftLimits, &mut Report) -> Result<Graph, GraphError>;

const PASSES: [Pass; 6] = [
    |graph, _, report| norms::norms(graph, report),
    |graph, _, report| attention::attention(graph, report),
    linears::linears,
    |graph, _, report| slices::slices(graph, report),
    |graph, _, report| positions::positions(graph, report),
    stacks::stacks,
];

/// What one lifted op may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiftLimits {
    /// Columns of the widest layers that become a stack; 0 for no stacks.
    pub stack_width: usize,
    /// Layers of a stack.
    pub stack_layers: usize,
    /// Bytes of all that the layers of a stack read.
    pub stack_bytes: usize,
    /// Bytes of the result of linears that become one.
    pub linear_bytes: usize,
    /// Bytes of the storage of their weights.
    pub packed_bytes: usize,
    /// Bytes of the rows that go into a stack, and out of it: its kernel binds them whole.
    pub bound_bytes: usize,
}

/// For a GPU with WebGPU's limits, and a graph that is not trained.
impl Default for LiftLimits {
    fn default() -> Self {
        LiftLimits {
            stack_width: 256,
            stack_layers: 64,
            stack_bytes: usize::MAX,
            linear_bytes: 256 << 20,
            packed_bytes: usize::MAX,
            bound_bytes: 128 << 20,
        }
    }
}

/// Lifts composite ops; runs before differentiation. Numbers change by rounding only: scores of an attention are no
/// longer stored, and a division by a constant becomes a factor.
///
/// # Errors
/// If `graph` is not valid.
pub fn lift(graph: &Graph) -> Result<(Graph, Report), GraphError> {
    lift_within(graph, &LiftLimits::default())
}

/// [`lift`] for a device and a use of the graph: what one op may hold is given.
///
/// # Errors
/// If `graph` is not valid.
pub fn lift_within(graph: &Graph, limits: &LiftLimits) -> Result<(Graph, Report), GraphError> {
    graph.verify()?;
    let mut report = Report::default();
    let mut graph = graph.clone();
    for pass in PASSES {
        // what a pass leaves without readers must not count as a reader in the next one
        graph = dead_code(&pass(&graph, limits, &mut report)?)?.0;
        graph.verify()?;
    }
    Ok((graph, report))
}

/// The scope a node stands in: its name without the last part.
fn scope(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(scope, _)| scope)
}

/// A name within a scope.
fn within(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// The storage that a value is.
fn storage(graph: &Graph, value: ValueId) -> Option<StorageId> {
    match graph.producer(value).op {
        Op::Parameter(id) => Some(id),
        _ => None,
    }
}

/// Parameters that may be put together with others: one node reads each, and no run updates it.
fn own_parameters(graph: &Graph) -> BTreeSet<StorageId> {
    let uses = graph.use_counts();
    // an update is one more, that must find it where it writes it
    let readers = |node: NodeId| uses[node.0][0] + usize::from(graph.is_state(node));
    graph.parameters().filter(|(_, node)| readers(*node) == 1).map(|(storage, _)| storage).collect()
}

/// The name, or the first of `name_2`, `name_3`, … that no storage has.
fn free_name(name: &str, layout: &ParamLayout) -> String {
    let plain = |s: &'static str| layout.iter().filter_map(move |(_, of)| of.name.strip_suffix(s));
    let names: BTreeSet<&str> = plain(".weight").chain(plain(".bias")).filter(|n| n.starts_with(name)).collect();
    let mut free = name.to_owned();
    let mut number = 2;
    while names.contains(free.as_str()) {
        free = format!("{name}_{number}");
        number += 1;
    }
    free
}
