//! In: a graph; out: [`IndexBound`]s, what its integer inputs may hold where they index something.

use super::{Graph, NodeId, Op, ValueId};
use std::fmt;
use std::ops::Range;

/// Which values an integer input may hold: at least 0 and less than a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBound {
    /// Values are less than this.
    pub count: usize,
    /// What there is so many of.
    pub of: Indexed,
    /// The name of the node that reads it.
    pub reader: String,
    /// The elements that are read so, in order and apart; `None` where all are.
    pub elements: Option<Vec<Range<usize>>>,
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

/// The elements that are in one or the other, `None` being all.
fn joined(a: Option<Vec<Range<usize>>>, b: Option<Vec<Range<usize>>>, all: usize) -> Option<Vec<Range<usize>>> {
    let mut ranges: Vec<Range<usize>> = a?.into_iter().chain(b?).filter(|r| !r.is_empty()).collect();
    ranges.sort_by_key(|r| r.start);
    let mut apart: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match apart.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => apart.push(range),
        }
    }
    (apart.len() != 1 || apart[0] != (0..all)).then_some(apart)
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
            let Some((input, elements)) = self.moved_input(index) else { continue };
            let all = self.shape(input.into()).elements();
            match bounds.iter_mut().find(|(i, b)| *i == input && b.count == count && b.of == of) {
                Some((_, bound)) => bound.elements = joined(bound.elements.take(), elements, all),
                None => {
                    let elements = joined(Some(Vec::new()), elements, all);
                    bounds.push((input, IndexBound { count, of, reader: node.name.clone(), elements }));
                }
            }
        }
        bounds
    }

    /// The input that a value is, unchanged but for ops that only move elements, and which of its elements, if not all.
    /// None is known of a slice of what was turned or stretched before.
    fn moved_input(&self, value: ValueId) -> Option<(NodeId, Option<Vec<Range<usize>>>)> {
        let node = self.producer(value);
        if node.op == Op::Input {
            return Some((value.node, None));
        }
        if !node.op.is_view() {
            return None;
        }
        let Op::Slice { axis, start, len } = node.op else { return self.moved_input(node.inputs[0]) };
        let mut from = node.inputs[0];
        while let Op::Reshape(_) | Op::Recompute(_) = self.producer(from).op {
            from = self.producer(from).inputs[0];
        }
        // slices of slices are known along dimension 0, where they are one range
        let (input, elements) = self.moved_input(from)?;
        let first = match (&self.producer(from).op, elements.as_deref()) {
            (Op::Input, _) => 0,
            (Op::Slice { .. }, Some([range])) => range.start,
            _ => return None,
        };
        let dims = self.shape(node.inputs[0]).dims();
        let inner: usize = dims[axis + 1..].iter().product();
        let outer: usize = dims[..axis].iter().product();
        let at = |i: usize| first + (i * dims[axis] + start) * inner;
        Some((input, Some((0..outer).map(|i| at(i)..at(i) + len * inner).collect())))
    }
}
