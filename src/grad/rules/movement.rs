//! In: an op that moves elements and dy; out: dy moved back. Knows no arithmetic but the sums that undo a broadcast.

use super::Done;
use crate::grad::walk::Local;
use crate::graph::{Comparison, Op, Shape};

pub(super) fn reshape(c: &mut Local) -> Done {
    c.begin("dx");
    let (dy, shape) = (c.dy()?, c.ty(0).shape);
    let dx = c.w.reshape(dy, &shape)?;
    c.give(0, dx);
    Ok(())
}

pub(super) fn permute(c: &mut Local, perm: &[usize]) -> Done {
    c.begin("dx");
    let dy = c.dy()?;
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(to, from)| back[*from] = to);
    let dx = c.w.push(Op::Permute(back), &[dy])?;
    c.give(0, dx);
    Ok(())
}

pub(super) fn slice(c: &mut Local, axis: usize, start: usize) -> Done {
    let dy = c.dy()?;
    c.give_slice(0, axis, start, dy);
    Ok(())
}

pub(super) fn concat(c: &mut Local, axis: usize) -> Done {
    let dy = c.dy()?;
    let mut start = 0;
    for input in 0..c.node.inputs.len() {
        let len = c.ty(input).shape.dims()[axis];
        if c.wants(input) {
            c.begin(&format!("dx{input}"));
            let dx = c.w.push(Op::Slice { axis, start, len }, &[dy])?;
            c.give(input, dx);
        }
        start += len;
    }
    Ok(())
}

pub(super) fn broadcast(c: &mut Local) -> Done {
    c.begin("dx");
    let dy = c.dy()?;
    c.give_summed(0, dy)
}

/// dx (B, S, …) is dy (B, …) at row `position[b]`, else 0.
pub(super) fn pick_row(c: &mut Local) -> Done {
    c.begin("dx");
    let (dy, position) = (c.dy()?, c.input(1)?);
    let dims = c.ty(0).shape.dims().to_vec();
    let line = |axis: usize| {
        let mut line = vec![1; dims.len()];
        line[axis] = dims[axis];
        Shape::from(line)
    };
    let rows = c.w.push(Op::Arange(dims[1]), &[])?;
    let rows = c.w.reshape(rows, &Shape::from(&line(1).dims()[1..]))?; // (S, 1…)
    let position = c.w.reshape(position, &line(0))?; // (B, 1, 1…)
    let picked = c.w.compare(Comparison::Equal, position, rows)?; // (B, S, 1…)
    let mut row = dims.clone();
    row[1] = 1;
    let dy = c.w.reshape(dy, &row.into())?; // (B, 1, …)
    let dx = c.w.only_where(picked, dy)?;
    c.give(0, dx);
    Ok(())
}

pub(super) fn recompute(c: &mut Local) -> Done {
    let dy = c.dy()?;
    c.give(0, dy);
    Ok(())
}
