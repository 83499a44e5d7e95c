//! In: a value and axes; out: what is left of it. Knows no other op.

use super::Value;
use super::movement::offsets;
use super::scalar::maximum;
use crate::graph::{Reduction, Shape};

/// The lines of a shape along an axis: the offset of each line's first element, elements a line, and their distance.
pub(super) fn lines(shape: &Shape, axis: usize) -> (impl Iterator<Item = usize>, usize, usize) {
    let len = shape.dims()[axis];
    let outer: usize = shape.dims()[..axis].iter().product();
    let inner: usize = shape.dims()[axis + 1..].iter().product();
    ((0..outer).flat_map(move |o| (0..inner).map(move |i| o * len * inner + i)), len, inner)
}

/// A reduction over axes, row-major over what is left.
pub(super) fn reduce(kind: Reduction, x: &Value, axes: &[usize]) -> Vec<f64> {
    let size = |(i, d): (usize, &usize)| if axes.contains(&i) { 1 } else { *d };
    let kept: Shape = x.shape.dims().iter().enumerate().map(size).collect::<Vec<_>>().into();
    let none = if kind == Reduction::Max { f64::NEG_INFINITY } else { 0.0 };
    let mut out = vec![none; kept.elements()];
    for (x, at) in x.data.iter().zip(offsets(x.shape.dims(), &kept.broadcast_strides(&x.shape))) {
        out[at] = match kind {
            Reduction::Sum | Reduction::Mean => out[at] + x,
            Reduction::Max => maximum(out[at], *x),
            Reduction::AbsMax => maximum(out[at], x.abs()),
        };
    }
    if kind == Reduction::Mean {
        let count: usize = axes.iter().map(|a| x.shape.dims()[*a]).product();
        out.iter_mut().for_each(|v| *v /= count as f64);
    }
    out
}

/// The largest magnitude of all elements of several values.
pub(super) fn magnitude(x: &[&Value]) -> f64 {
    x.iter().flat_map(|x| &x.data).fold(0.0, |largest, v| maximum(largest, v.abs()))
}

/// The index of the largest along an axis: the first NaN, else the first of equals.
pub(super) fn argmax(x: &Value, axis: usize) -> Vec<f64> {
    let (starts, len, step) = lines(&x.shape, axis);
    let best = |start: usize| {
        let at = |i: usize| x.data[start + i * step];
        let larger = |best: usize, i: usize| !at(best).is_nan() && (at(i).is_nan() || at(i) > at(best));
        (1..len).fold(0, |best, i| if larger(best, i) { i } else { best }) as f64
    };
    starts.map(best).collect()
}
