//! In: lookups of rows 0, 1, … n−1 in a table; out: a slice of the table. Knows nothing of what the table is.

use crate::graph::{Graph, GraphError, Op, Report, Rewriter};

/// Replaces an embedding of an arange by the first rows of the table, or by the table itself.
pub(super) fn positions(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        let count = match node.op {
            Op::Embedding => match graph.producer(node.inputs[1]).op {
                Op::Arange(n) => Some((n, graph.shape(node.inputs[0]).dims()[0])),
                _ => None,
            },
            _ => None,
        };
        match count {
            Some((n, rows)) if n == rows => r.set(id.into(), r.get(node.inputs[0])),
            Some((n, rows)) if n < rows => {
                r.replace(id, Op::Slice { axis: 0, start: 0, len: n }, vec![node.inputs[0]])?;
            }
            _ => {
                r.copy(id)?;
                continue;
            }
        }
        report.add("positions", format!("{}: rows in order → the table's first rows", node.name));
    }
    r.finish()
}
