//! In: concats of slices; out: one slice, or the sliced value itself, where neighbours are put together again.
//! Knows nothing of where slices come from.

use crate::graph::{Graph, GraphError, Op, Report, Rewriter, ValueId};

/// A part of a concat: elements `start..start + len` of a value.
struct Run {
    of: ValueId,
    start: usize,
    len: usize,
    /// The part as written, while no other was joined to it.
    whole: Option<ValueId>,
}

/// Joins neighbouring slices of one value in every concat along the same axis.
pub(super) fn slices(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        let Op::Concat(axis) = node.op else {
            r.copy(id)?;
            continue;
        };
        let runs = runs(graph, axis, &node.inputs);
        if runs.len() == node.inputs.len() {
            r.copy(id)?;
            continue;
        }
        let mut parts = Vec::with_capacity(runs.len());
        for Run { of, start, len, whole } in &runs {
            parts.push(match whole {
                Some(value) => r.get(*value),
                None if *start == 0 && *len == graph.shape(*of).dims()[axis] => r.get(*of),
                None => r.new.push(Op::Slice { axis, start: *start, len: *len }, vec![r.get(*of)], &node.name)?.into(),
            });
        }
        let joined = match parts[..] {
            [one] => one,
            _ => r.new.push(Op::Concat(axis), parts, &node.name)?.into(),
        };
        r.set(id.into(), joined);
        report.add("slices", format!("{}: concat of {} parts → {}", node.name, node.inputs.len(), runs.len()));
    }
    r.finish()
}

fn runs(graph: &Graph, axis: usize, parts: &[ValueId]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for part in parts {
        let node = graph.producer(*part);
        let run = match node.op {
            Op::Slice { axis: a, start, len } if a == axis => {
                Run { of: node.inputs[0], start, len, whole: Some(*part) }
            }
            _ => Run { of: *part, start: 0, len: graph.shape(*part).dims()[axis], whole: Some(*part) },
        };
        match runs.last_mut() {
            Some(last) if last.of == run.of && last.start + last.len == run.start => {
                (last.len, last.whole) = (last.len + run.len, None);
            }
            _ => runs.push(run),
        }
    }
    runs
}
