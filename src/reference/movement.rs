//! In: elements and where to read them; out: the same elements in another order. Computes nothing.

use super::{ReferenceError, Value};
use crate::graph::{Node, Shape};
use std::borrow::Cow;

/// The offsets of all elements of a strided array, row-major.
pub(super) struct Offsets<'a> {
    dims: &'a [usize],
    strides: &'a [usize],
    index: Vec<usize>,
    at: usize,
    left: usize,
}

/// Walks over `dims`, moving by `strides`.
pub(super) fn offsets<'a>(dims: &'a [usize], strides: &'a [usize]) -> Offsets<'a> {
    Offsets { dims, strides, index: vec![0; dims.len()], at: 0, left: dims.iter().product() }
}

impl Iterator for Offsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        for d in (0..self.dims.len()).rev() {
            self.index[d] += 1;
            self.at += self.strides[d];
            if self.index[d] < self.dims[d] {
                break;
            }
            self.at -= self.index[d] * self.strides[d];
            self.index[d] = 0;
        }
        Some(at)
    }
}

/// The elements of a strided array, made dense.
fn gather(data: &[f64], start: usize, strides: &[usize], shape: &Shape) -> Vec<f64> {
    let mut out = Vec::with_capacity(shape.elements());
    if shape.elements() == 0 {
        return out;
    }
    let outer = shape.rank().saturating_sub(1);
    let (len, step) = (shape.last(), strides.last().copied().unwrap_or(1));
    for row in offsets(&shape.dims()[..outer], &strides[..outer]) {
        let row = start + row;
        match step {
            1 => out.extend_from_slice(&data[row..row + len]),
            _ => out.extend((0..len).map(|i| data[row + i * step])),
        }
    }
    out
}

/// A value stretched to a shape that it broadcasts to.
pub(super) fn stretch<'a>(x: &'a Value, shape: &Shape) -> Cow<'a, [f64]> {
    if x.shape == *shape {
        return Cow::Borrowed(&x.data);
    }
    Cow::Owned(gather(&x.data, 0, &x.shape.broadcast_strides(shape), shape))
}

pub(super) fn permute(x: &Value, perm: &[usize], shape: &Shape) -> Vec<f64> {
    let own = x.shape.strides();
    let strides: Vec<usize> = perm.iter().map(|p| own[*p]).collect();
    gather(&x.data, 0, &strides, shape)
}

pub(super) fn slice(x: &Value, axis: usize, start: usize, shape: &Shape) -> Vec<f64> {
    let strides = x.shape.strides();
    gather(&x.data, start * strides[axis], &strides, shape)
}

pub(super) fn concat(parts: &[&Value], axis: usize, shape: &Shape) -> Vec<f64> {
    let mut out = Vec::with_capacity(shape.elements());
    let outer: usize = shape.dims()[..axis].iter().product();
    for i in 0..outer {
        for part in parts {
            let run: usize = part.shape.dims()[axis..].iter().product();
            out.extend_from_slice(&part.data[i * run..(i + 1) * run]);
        }
    }
    out
}

/// An integer input's elements, each less than `bound`; the error names the first that is not.
pub(super) fn indices(x: &Value, bound: usize, what: &'static str, node: &Node) -> Result<Vec<usize>, ReferenceError> {
    let check = |(at, v): (usize, &f64)| {
        let index = *v as i64;
        usize::try_from(index).ok().filter(|i| *i < bound).ok_or_else(|| ReferenceError::Index {
            op: node.op.name(),
            node: node.name.clone(),
            what,
            index,
            at,
            bound,
        })
    };
    x.data.iter().enumerate().map(check).collect()
}

/// Rows of a table (V, E).
pub(super) fn embedding(table: &Value, index: &Value, node: &Node) -> Result<Vec<f64>, ReferenceError> {
    let (rows, width) = (table.shape.dims()[0], table.shape.dims()[1]);
    let index = indices(index, rows, "index", node)?;
    Ok(index.iter().flat_map(|i| &table.data[i * width..(i + 1) * width]).copied().collect())
}

/// Sums of rows of dy (…, E) by index, as a table of so many rows.
pub(super) fn embedding_grad(dy: &Value, index: &Value, rows: usize, node: &Node) -> Result<Vec<f64>, ReferenceError> {
    let width = dy.shape.last();
    let mut out = vec![0.0; rows * width];
    for (at, i) in indices(index, rows, "index", node)?.into_iter().enumerate() {
        out[i * width..(i + 1) * width].iter_mut().zip(&dy.data[at * width..]).for_each(|(sum, v)| *sum += v);
    }
    Ok(out)
}

/// Row `position[b]` of each x (B, S, …).
pub(super) fn pick_row(x: &Value, position: &Value, node: &Node) -> Result<Vec<f64>, ReferenceError> {
    let rows = x.shape.dims()[1];
    let width: usize = x.shape.dims()[2..].iter().product();
    let position = indices(position, rows, "position", node)?;
    let starts = position.iter().enumerate().map(|(b, p)| (b * rows + p) * width);
    Ok(starts.flat_map(|s| &x.data[s..s + width]).copied().collect())
}
