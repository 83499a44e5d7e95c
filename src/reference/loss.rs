//! In: logits and targets; out: cross entropies and their gradients. Knows no other op.

use super::reduce::lines;
use super::{ReferenceError, Value};
use crate::graph::{CrossEntropyAttrs, Node};

/// The class of each target, `None` where it is ignored.
fn classes(a: &CrossEntropyAttrs, x: &[&Value], node: &Node) -> Result<Vec<Option<usize>>, ReferenceError> {
    let bound = x[0].shape.dims()[a.axis];
    let check = |(at, target): (usize, &f64)| {
        let index = *target as i64;
        if a.ignore_index.is_some_and(|i| i64::from(i) == index) {
            return Ok(None);
        }
        let class = usize::try_from(index).ok().filter(|i| *i < bound);
        class.map(Some).ok_or_else(|| ReferenceError::Index {
            op: node.op.name(),
            node: node.name.clone(),
            what: "target",
            index,
            at,
            bound,
        })
    };
    x[1].data.iter().enumerate().map(check).collect()
}

/// Losses and log-sum-exps, one a row.
pub(super) fn cross_entropy(a: &CrossEntropyAttrs, x: &[&Value], node: &Node) -> Result<Vec<Vec<f64>>, ReferenceError> {
    let smoothing = f64::from(a.label_smoothing.get());
    let (starts, len, step) = lines(&x[0].shape, a.axis);
    let (mut losses, mut sums) = (Vec::new(), Vec::new());
    for (start, class) in starts.into_iter().zip(classes(a, x, node)?) {
        let line = || (0..len).map(|i| x[0].data[start + i * step]);
        let max = line().fold(f64::NEG_INFINITY, f64::max);
        let log = line().map(|v| (v - max).exp()).sum::<f64>().ln();
        let mean = if smoothing > 0.0 { line().map(|v| v - max - log).sum::<f64>() / len as f64 } else { 0.0 };
        let of = |class: usize| x[0].data[start + class * step] - max - log;
        losses.push(class.map_or(0.0, |c| -(1.0 - smoothing) * of(c) - smoothing * mean));
        sums.push(max + log);
    }
    Ok(vec![losses, sums])
}

/// dloss · (softmax − (1 − s) · onehot − s / C) for each row that is not ignored.
pub(super) fn cross_entropy_grad(a: &CrossEntropyAttrs, x: &[&Value], node: &Node) -> Result<Vec<f64>, ReferenceError> {
    let smoothing = f64::from(a.label_smoothing.get());
    let (starts, len, step) = lines(&x[0].shape, a.axis);
    let mut out = vec![0.0; x[0].data.len()];
    for (row, (start, class)) in starts.into_iter().zip(classes(a, x, node)?).enumerate() {
        let Some(class) = class else { continue };
        for i in 0..len {
            let at = start + i * step;
            let hot = if i == class { 1.0 - smoothing } else { 0.0 };
            let p = (x[0].data[at] - x[2].data[row]).exp();
            out[at] = x[3].data[row] * (p - hot - smoothing / len as f64);
        }
    }
    Ok(out)
}
