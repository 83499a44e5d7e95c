//! In: a product and dy; out: the gradients of its operands, products again. Knows no copies: an operand that has to be
//! transposed is read so.
//!
//! Where a node has parameters their gradients come first: what only they read is free before dx takes memory.

use super::Done;
use crate::grad::walk::Local;
use crate::grad::writer::Value;
use crate::graph::{AttentionAttrs, Op, Shape, ValueId};

/// With x (…, K), W (N, K) and dy (…, N): dW = dyᵀ x, db = Σ dy, dx = dy W.
pub(super) fn linear(c: &mut Local) -> Done {
    let dy = c.dy()?;
    if c.wants(1) {
        let bias = c.wants(2);
        let x = c.input(0)?;
        c.begin(if bias { "dw_db" } else { "dw" });
        let dw = c.w.push(Op::LinearGrad { bias }, &[x, dy])?;
        c.give(1, dw);
        if bias {
            c.give(2, ValueId { output: 1, ..dw });
        }
    } else if c.wants(2) {
        c.begin("db");
        c.give_summed(2, dy)?;
    }
    if c.wants(0) {
        c.begin("dx");
        let (w, shape) = (c.input(1)?, c.ty(0).shape);
        // a vector is a matrix of one row
        let dy = if shape.rank() == 1 { c.w.reshape(dy, &[1, c.ty(1).shape.dims()[0]].into())? } else { dy };
        let dx = product(c, dy, false, w, false)?;
        let dx = c.w.reshape(dx, &shape)?;
        c.give(0, dx);
    }
    Ok(())
}

fn product(c: &mut Local, a: ValueId, transpose_a: bool, b: ValueId, transpose_b: bool) -> Value {
    c.w.push(Op::Matmul { transpose_a, transpose_b }, &[a, b])
}

/// With A = a or aᵀ (M, K) and B = b or bᵀ (K, N): dA = dy Bᵀ and dB = Aᵀ dy, each transposed where its operand is.
pub(super) fn matmul(c: &mut Local, transpose_a: bool, transpose_b: bool) -> Done {
    let dy = c.dy()?;
    if c.wants(1) {
        let a = c.input(0)?;
        c.begin("db");
        let (a_shape, b_rank) = (c.ty(0).shape, c.ty(1).shape.rank());
        let (a, dy) = if b_rank == 2 && a_shape.rank() > 2 && !transpose_a {
            // one right operand for all: the batch is but more rows, summed over by the product
            let rows = |s: &Shape| Shape::from([s.rows(), s.last()]);
            let dy_rows = rows(c.w.graph.shape(dy));
            (c.w.reshape(a, &rows(&a_shape))?, c.w.reshape(dy, &dy_rows)?)
        } else {
            (a, dy)
        };
        let db =
            if transpose_b { product(c, dy, true, a, transpose_a)? } else { product(c, a, !transpose_a, dy, false)? };
        c.give_summed(1, db)?;
    }
    if c.wants(0) {
        let b = c.input(1)?;
        c.begin("da");
        let da =
            if transpose_a { product(c, b, transpose_b, dy, true)? } else { product(c, dy, false, b, !transpose_b)? };
        c.give_summed(0, da)?;
    }
    Ok(())
}

pub(super) fn attention(c: &mut Local, attrs: AttentionAttrs) -> Done {
    let dout =
        c.dy_of_first("its log-sum-exp carries no gradient; compute it with exp, sum and log where a loss needs it")?;
    if attrs.mask && c.wants(3) {
        return Err(c.no_rule(
            "its additive mask has no gradient; ask for none of what the mask is computed from, or write the attention \
             out with matmul and softmax",
        ));
    }
    let mut inputs = Vec::new();
    for input in 0..attrs.inputs() {
        inputs.push(c.input(input)?);
    }
    inputs.extend([c.output(0)?, c.output(1)?, dout]);
    c.begin("dq_dk_dv");
    let first = c.w.push(Op::AttentionGrad(attrs), &inputs)?;
    for input in 0..3 {
        if c.wants(input) {
            c.give(input, ValueId { output: input, ..first });
        }
    }
    Ok(())
}
