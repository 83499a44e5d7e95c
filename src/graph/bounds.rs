//! In: a graph; out: [`IndexBound`]s, what its integer inputs may hold where they index something.

use super::{Graph, NodeId, Op, ValueId};
use std::fmt;

/// Which values an integer input may hold: at least 0 and less than a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBound {
    /// Values are less than this.
    pub count: usize,
    /// What there is so many of.
    pub of: Indexed,
    /// The name of the node that reads it.
    pub reader: String,
}

/// What an integer input tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    /// Rows of a table, or positions.
    Rows,
    /// Classes, where one value may stand for none of them.
    Classes {
        /// That value.
        ignored: Option<i32>,
    },
}

impl IndexBound {
    /// Whether an input may hold this value.
    pub fn allows(&self, value: i64) -> bool {
        let ignored = matches!(self.of, Indexed::Classes { ignored: Some(i) } if i64::from(i) == value);
        ignored || usize::try_from(value).is_ok_and(|v| v < self.count)
    }
}

/// `"embedding" takes 0 to 2`, `"cross_entropy" has 3 classes and takes 0 to 2 or -100`.
impl fmt::Display for IndexBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" ", self.reader)?;
        match (self.of, self.count) {
            (Indexed::Classes { .. }, n) => write!(f, "has {n} classes and takes 0 to {}", n.saturating_sub(1))?,
            (Indexed::Rows, 0) => f.write_str("takes none, having no rows")?,
            (Indexed::Rows, n) => write!(f, "takes 0 to {}", n - 1)?,
        }
        match self.of {
            Indexed::Classes { ignored: Some(i) } => write!(f, " or {i}"),
            _ => Ok(()),
        }
    }
}

impl Graph {
    /// What each integer input may hold where it indexes something, by the first node that asks for it.
    pub fn index_bounds(&self) -> Vec<(NodeId, IndexBound)> {
        let mut bounds: Vec<(NodeId, IndexBound)> = Vec::new();
        for (_, node) in self.nodes() {
            let dim = |input: usize, axis: usize| self.shape(node.inputs[input]).dims()[axis];
            let (index, count, of) = match node.op {
                Op::Embedding => (node.inputs[1], dim(0, 0), Indexed::Rows),
                Op::EmbeddingGrad(rows) => (node.inputs[1], rows, Indexed::Rows),
                Op::PickRow => (node.inputs[1], dim(0, 1), Indexed::Rows),
                Op::CrossEntropy(a) | Op::CrossEntropyGrad(a) => {
                    (node.inputs[1], dim(0, a.axis), Indexed::Classes { ignored: a.ignore_index })
                }
                Op::Attention(a) if a.lengths => {
                    let last = a.inputs() - 1 - usize::from(a.dropout.is_some());
                    (node.inputs[last], dim(1, 1) + 1, Indexed::Rows)
                }
                _ => continue,
            };
            let Some(input) = self.moved_input(index) else { continue };
            if !bounds.iter().any(|(i, b)| *i == input && b.count == count && b.of == of) {
                bounds.push((input, IndexBound { count, of, reader: node.name.clone() }));
            }
        }
        bounds
    }

    /// The input that a value is, unchanged but for ops that only move elements.
    fn moved_input(&self, mut value: ValueId) -> Option<NodeId> {
        while self.producer(value).op.is_view() {
            value = self.producer(value).inputs[0];
        }
        (self.producer(value).op == Op::Input).then_some(value.node)
    }
}
