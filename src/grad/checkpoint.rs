//! In: the names of a graph's nodes; out: the segments that the backward pass computes anew. Knows nothing of ops but
//! what they read.

use super::GradError;
use crate::graph::{Graph, NodeId, Op};
use std::collections::BTreeMap;

/// Which forward values are kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checkpoint {
    /// All that it reads.
    #[default]
    None,
    /// All but what norms make: each is computed anew, before the first that reads it, from the rows that it norms. These
    /// are kept for its own gradient, so that a norm takes no memory until then.
    Norms,
    /// Those that cross from one segment of so many blocks to another. What it reads of a segment's inside is computed
    /// anew, just before it comes there; of the last segment, with which it begins, all is kept.
    ///
    /// Blocks are found by the scopes `blocks.N` and `layers.N`. A number without parameters, such as an activation
    /// between the linears of a DNN, belongs to the one before. A stack of linears counts as its layers, and stays whole.
    Every(usize),
}

/// The scopes whose numbers count blocks.
const SCOPES: [&str; 2] = ["blocks", "layers"];

/// The segment that each node up to `last` is computed anew with; none where its values are kept.
pub(super) fn segments(graph: &Graph, last: NodeId, checkpoint: Checkpoint) -> Result<Vec<Option<usize>>, GradError> {
    let every = match checkpoint {
        Checkpoint::None => return Ok(Vec::new()),
        Checkpoint::Norms => {
            let norm = |op: &Op| matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_));
            let alone = |(id, node): (NodeId, &crate::graph::Node)| norm(&node.op).then_some(id.0);
            return Ok(graph.nodes().take(last.0 + 1).map(alone).collect());
        }
        Checkpoint::Every(0) => return Err(GradError::Every),
        Checkpoint::Every(every) => every,
    };
    // the scope of each node, and how many blocks a scope is
    let mut scopes: Vec<&str> = Vec::new();
    let mut number: BTreeMap<&str, usize> = BTreeMap::new();
    let mut blocks_in: Vec<usize> = Vec::new();
    let mut of_node: Vec<Option<usize>> = Vec::with_capacity(last.0 + 1);
    for (_, node) in graph.nodes().take(last.0 + 1) {
        // sources stay, and what is made of nothing costs nothing to keep
        let layers = match node.op {
            Op::LinearStack(_) => Some(graph.shape(node.inputs[1]).dims()[0]),
            _ => None,
        };
        let scope = if layers.is_some() { Some(node.name.as_str()) } else { block(&node.name) };
        let scope = scope.filter(|_| !node.inputs.is_empty());
        of_node.push(scope.map(|scope| {
            let at = *number.entry(scope).or_insert_with(|| {
                scopes.push(scope);
                blocks_in.push(0);
                scopes.len() - 1
            });
            let has_parameters = node.inputs.iter().any(|v| matches!(graph.producer(*v).op, Op::Parameter(_)));
            blocks_in[at] = blocks_in[at].max(layers.unwrap_or(usize::from(has_parameters)));
            at
        }));
    }
    if scopes.is_empty() {
        return Err(GradError::NoBlocks);
    }
    let mut blocks = 0;
    let mut segment_of = Vec::with_capacity(scopes.len());
    for (at, count) in blocks_in.into_iter().enumerate() {
        let count = if at == 0 { count.max(1) } else { count };
        // one of no blocks belongs to the last before it
        segment_of.push((if count == 0 { blocks - 1 } else { blocks }) / every);
        blocks += count;
    }
    let last_segment = segment_of.last().copied().unwrap_or(0);
    let segment = |scope: usize| Some(segment_of[scope]).filter(|s| *s != last_segment);
    Ok(of_node.into_iter().map(|scope| scope.and_then(segment)).collect())
}

/// `blocks.3` of `blocks.3.ffwd.net.0`.
fn block(name: &str) -> Option<&str> {
    let mut end = 0;
    let mut parts = name.split('.').peekable();
    while let Some(part) = parts.next() {
        end += part.len() + 1;
        if let Some(next) = parts.peek().filter(|_| SCOPES.contains(&part))
            && !next.is_empty()
            && next.bytes().all(|b| b.is_ascii_digit())
        {
            return Some(&name[..end + next.len()]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::block;

    #[test]
    fn blocks_are_numbered_scopes() {
        assert_eq!(block("blocks.3.ffwd.net.0"), Some("blocks.3"));
        assert_eq!(block("model.layers.12"), Some("model.layers.12"));
        assert_eq!(block("layers.x.0"), None);
        assert_eq!(block("lm_head"), None);
        assert_eq!(block("blocks"), None);
        assert_eq!(block("blocks."), None);
        assert_eq!(block("heads.0.layers.1.key"), Some("heads.0.layers.1"));
    }
}
