//! In: the gradient of a weight and how many bytes of it may be alive; out: the ranges of its rows and a gradient for
//! each, so that a large one is made, used and dropped piece by piece. Knows one op's gradient: the linear's.

use super::TrainError;
use super::trained::Trained;
use crate::graph::{Graph, Op, ValueId};
use std::ops::Range;

/// Rows of a piece are a multiple of this, so that tiles stay whole.
const ROWS: usize = 128;

/// A gradient, whole or to be made in pieces.
#[derive(Clone, Copy)]
pub(super) enum Gradient {
    Whole(ValueId),
    /// That of a linear of x and a result whose gradient is dy.
    Linear {
        x: ValueId,
        dy: ValueId,
        bias: bool,
    },
}

impl Gradient {
    /// In pieces if it is a linear's, larger than `bytes`, and nothing reads it yet.
    pub fn of(g: &Graph, uses: &[Vec<usize>], value: ValueId, bytes: usize) -> Gradient {
        let node = g.producer(value);
        match (&node.op, &node.inputs[..]) {
            (Op::LinearGrad { bias }, [x, dy])
                if value.output == 0 && uses[value.node.0][0] == 0 && g.ty(value).bytes() > bytes =>
            {
                Gradient::Linear { x: *x, dy: *dy, bias: *bias }
            }
            _ => Gradient::Whole(value),
        }
    }

    /// The gradient of some rows; for those of a linear also that of the same elements of its bias.
    pub fn rows(
        &self,
        g: &mut Graph,
        rows: &Range<usize>,
        name: &str,
    ) -> Result<(ValueId, Option<ValueId>), TrainError> {
        match *self {
            Gradient::Whole(value) => Ok((rows_of(g, value, rows, name)?, None)),
            Gradient::Linear { x, dy, bias } => {
                let name = format!("{name}.grad.piece");
                let axis = g.shape(dy).rank() - 1;
                let columns = Op::Slice { axis, start: rows.start, len: rows.len() };
                let dy = g.push(columns, vec![dy], name.as_str())?;
                let node = g.push(Op::LinearGrad { bias }, vec![x, dy.into()], name)?;
                Ok((node.into(), bias.then_some(ValueId { node, output: 1 })))
            }
        }
    }
}

/// Rows of a value, or all of it.
pub(super) fn rows_of(g: &mut Graph, value: ValueId, rows: &Range<usize>, name: &str) -> Result<ValueId, TrainError> {
    let all = g.shape(value).dims().first().is_none_or(|n| *rows == (0..*n));
    if all {
        return Ok(value);
    }
    Ok(g.push(Op::Slice { axis: 0, start: rows.start, len: rows.len() }, vec![value], name)?.into())
}

/// A trained storage's rows, cut where its gradient is made in pieces of at most `bytes`.
pub(super) fn cut(trained: &Trained, gradient: &Gradient, row_bytes: usize, bytes: usize) -> Trained {
    if matches!(gradient, Gradient::Whole(_)) {
        return trained.clone();
    }
    let most = bytes / row_bytes.max(1);
    let most = if most > ROWS { most / ROWS * ROWS } else { most.max(1) };
    let cut = trained.rows.iter().flat_map(|(rows, setting)| {
        rows.clone().step_by(most).map(move |start| (start..rows.end.min(start + most), *setting))
    });
    Trained { storage: trained.storage, rows: cut.collect() }
}
