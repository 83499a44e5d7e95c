//! In: a graph as written; out: the same with composite ops in place of the ops that spell them out, each with a
//! gradient rule of its own, and a [`Report`]. Knows only graphs: no fused ops, no devices, no memory.
//!
//! [`lift`] runs, in order: softmax and layernorm, attention out of heads, parallel linears into one, slices that a
//! concat puts together again, positions looked up in a table.

mod attention;
mod linears;
mod norms;
mod positions;
mod slices;

use crate::graph::{Graph, GraphError, Report, dead_code};

type Pass = fn(&Graph, &mut Report) -> Result<Graph, GraphError>;

const PASSES: [Pass; 5] = [norms::norms, attention::attention, linears::linears, slices::slices, positions::positions];

/// Lifts composite ops; runs before differentiation. Numbers change by rounding only: scores of an attention are no
/// longer stored, and a division by a constant becomes a factor.
///
/// # Errors
/// If `graph` is not valid.
pub fn lift(graph: &Graph) -> Result<(Graph, Report), GraphError> {
    graph.verify()?;
    let mut report = Report::default();
    let mut graph = graph.clone();
    for pass in PASSES {
        // what a pass leaves without readers must not count as a reader in the next one
        graph = dead_code(&pass(&graph, &mut report)?)?.0;
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
