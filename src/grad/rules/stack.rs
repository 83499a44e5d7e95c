//! In: a stack of linear layers and dy; out: the gradients of its input and of its packed parameters.

use super::Done;
use crate::grad::walk::Local;
use crate::graph::{Activation, Op, ValueId};

/// One op goes backwards through the layers and gives dx and dz, the gradient of every layer's sums; of dz and of what
/// the layers read another makes the gradients of all parameters.
pub(super) fn linear_stack(c: &mut Local, activation: Activation) -> Done {
    let dy = c.dy_of_first("only its result carries a gradient; take a loss from that")?;
    let (kept, y) = (c.output(1)?, c.output_as_a_stack_reads_it()?);
    let w = c.input(1)?;
    c.begin("dx_dz");
    let dx = c.w.push(Op::LinearStackGrad(activation), &[w, kept, y, dy])?;
    if c.wants(1) || c.wants(2) {
        c.begin("dw_db");
        let dw = c.w.push(Op::LinearStackParamGrad, &[kept, ValueId { output: 1, ..dx }])?;
        if c.wants(1) {
            c.give(1, dw);
        }
        if c.wants(2) {
            c.give(2, ValueId { output: 1, ..dw });
        }
    }
    if c.wants(0) {
        c.give(0, dx);
    }
    Ok(())
}
