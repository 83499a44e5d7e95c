//! In: an op over rows or lines and dy; out: the gradients of its operands, most by an op of their own. Knows nothing of
//! how such an op sums.

use super::Done;
use crate::grad::walk::Local;
use crate::graph::{Binary, Comparison, CrossEntropyAttrs, Op, Reduction, Shape, Unary, ValueId};

const STATISTICS: &str =
    "its row statistics carry no gradient; compute them with mean over the last axis where a loss needs them";

pub(super) fn softmax(c: &mut Local, op: Op) -> Done {
    let (dy, y) = (c.dy()?, c.output(0)?);
    c.begin("dx");
    let dx = c.w.push(op, &[y, dy])?;
    c.give(0, dx);
    Ok(())
}

pub(super) fn layernorm(c: &mut Local) -> Done {
    let dy = c.dy_of_first(STATISTICS)?;
    let (x, mean, rstd) = (c.input(0)?, c.output(1)?, c.output(2)?);
    if c.wants(1) || c.wants(2) {
        c.begin("dgamma_dbeta");
        let dgamma = c.w.push(Op::LayerNormParamGrad, &[x, mean, rstd, dy])?;
        for (input, output) in [(1, 0), (2, 1)] {
            if c.wants(input) {
                c.give(input, ValueId { output, ..dgamma });
            }
        }
    }
    if c.wants(0) {
        let gamma = c.input(1)?;
        c.begin("dx");
        let dx = c.w.push(Op::LayerNormGrad, &[x, gamma, mean, rstd, dy])?;
        c.give(0, dx);
    }
    Ok(())
}

pub(super) fn rmsnorm(c: &mut Local) -> Done {
    let dy = c.dy_of_first(STATISTICS)?;
    let (x, rstd) = (c.input(0)?, c.output(1)?);
    if c.wants(1) {
        c.begin("dgamma");
        let dgamma = c.w.push(Op::RmsNormParamGrad, &[x, rstd, dy])?;
        c.give(1, dgamma);
    }
    if c.wants(0) {
        let gamma = c.input(1)?;
        c.begin("dx");
        let dx = c.w.push(Op::RmsNormGrad, &[x, gamma, rstd, dy])?;
        c.give(0, dx);
    }
    Ok(())
}

/// Every element has a share of its sum; of a maximum or largest magnitude those that reach it share alike.
pub(super) fn reduce(c: &mut Local, kind: Reduction, axes: &[usize]) -> Done {
    c.begin("dx");
    let (dy, shape) = (c.dy()?, c.ty(0).shape);
    let size = |(axis, size): (usize, &usize)| if axes.contains(&axis) { 1 } else { *size };
    let kept: Shape = shape.dims().iter().enumerate().map(size).collect::<Vec<_>>().into();
    // without its leading dimensions a value broadcasts as it is
    let leading = axes.iter().copied().eq(0..axes.len());
    let dy = if leading { dy } else { c.w.reshape(dy, &kept)? };
    let dx = match kind {
        Reduction::Sum => c.w.broadcast(dy, &shape)?,
        Reduction::Mean => {
            let count: usize = axes.iter().map(|a| shape.dims()[*a]).product();
            let share = c.w.scale(dy, (1.0 / count.max(1) as f64) as f32)?;
            c.w.broadcast(share, &shape)?
        }
        Reduction::Max | Reduction::AbsMax => {
            let (x, y) = (c.input(0)?, c.output(0)?);
            let y = if leading { y } else { c.w.reshape(y, &kept)? };
            let one = c.scalar(1.0)?;
            let reached = c.w.compare(Comparison::Equal, x, y)?;
            let hits = c.w.only_where(reached, one)?;
            // each with its sign; 0 is its own opposite and has none
            let (hits, signed) = if kind == Reduction::Max {
                (hits, hits)
            } else {
                let opposite = c.w.unary(Unary::Neg, x)?;
                let reached = c.w.compare(Comparison::Equal, opposite, y)?;
                let opposite = c.w.only_where(reached, one)?;
                (c.w.binary(Binary::Max, hits, opposite)?, c.w.sub(hits, opposite)?)
            };
            let count = c.w.push(Op::Reduce { kind: Reduction::Sum, axes: axes.to_vec(), keepdim: true }, &[hits])?;
            let share = c.w.div(dy, count)?;
            // a line with a NaN has no hits: its share is infinite or NaN, and so 0 times it is NaN
            c.w.mul(signed, share)?
        }
    };
    c.give(0, dx);
    Ok(())
}

pub(super) fn embedding(c: &mut Local) -> Done {
    let (dy, indices) = (c.dy()?, c.input(1)?);
    let rows = c.ty(0).shape.dims()[0];
    c.begin("dtable");
    let dtable = c.w.push(Op::EmbeddingGrad(rows), &[dy, indices])?;
    c.give(0, dtable);
    Ok(())
}

pub(super) fn cross_entropy(c: &mut Local, attrs: CrossEntropyAttrs) -> Done {
    let dloss =
        c.dy_of_first("its log-sum-exp carries no gradient; compute it with exp, sum and log where a loss needs it")?;
    let (logits, targets, lse) = (c.input(0)?, c.input(1)?, c.output(1)?);
    c.begin("dlogits");
    let dlogits = c.w.push(Op::CrossEntropyGrad(attrs), &[logits, targets, lse, dloss])?;
    c.give(0, dlogits);
    Ok(())
}
