//! In: a lifted (and differentiated) graph; out: the same numbers from fewer, larger ops, and a [`FuseReport`]. Knows
//! neither WGSL nor workgroups; of a device only how many operands one op may have.
//!
//! [`fuse`] runs, in order: folding and common subexpressions until nothing changes, matmul epilogues, residual with
//! layernorm and their gradients, element-wise chains. Nodes that nothing reads any more are dropped after each.

mod add_layernorm;
mod add_norm_grad;
mod chains;
mod cse;
mod epilogues;
mod fold;
mod steps;

use crate::graph::{Graph, GraphError, Report, dead_code};

/// What was fused, in words.
pub type FuseReport = Report;

/// What one fused op may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseLimits {
    /// Operands that one op may read; with its output they are the storage buffers of a dispatch.
    pub max_inputs: usize,
}

/// WebGPU's eight storage buffers a dispatch.
impl Default for FuseLimits {
    fn default() -> Self {
        FuseLimits { max_inputs: 7 }
    }
}

/// Fuses a graph. Numbers stay the same, bit for bit where the device rounds each op alike: in f16 a chain rounds
/// where the graph as written stores.
///
/// # Errors
/// If `graph` is not valid.
pub fn fuse(graph: &Graph, limits: &FuseLimits) -> Result<(Graph, FuseReport), GraphError> {
    let mut report = Report::default();
    graph.verify()?;
    let (mut graph, _) = dead_code(graph)?;
    loop {
        let folded = live(fold::fold(&graph, &mut report)?)?;
        let merged = live(cse::cse(&folded, &mut report)?)?;
        let settled = merged == graph;
        graph = merged;
        if settled {
            break;
        }
    }
    graph = live(epilogues::epilogues(&graph, limits, &mut report)?)?;
    graph = live(add_layernorm::add_layernorm(&graph, limits, &mut report)?)?;
    graph = live(add_norm_grad::add_norm_grad(&graph, limits, &mut report)?)?;
    graph = live(chains::chains(&graph, limits, &mut report)?)?;
    Ok((graph, report))
}

/// The graph without dead nodes, verified: a pass that breaks an invariant is an error here, not later.
fn live(graph: Graph) -> Result<Graph, GraphError> {
    let (graph, _) = dead_code(&graph)?;
    graph.verify()?;
    Ok(graph)
}
