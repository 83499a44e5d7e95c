//! In: what the readers of one value contribute to its gradient; out: their sum. Knows nothing of the readers.

use super::GradError;
use super::writer::{Value, Writer};
use crate::graph::{Op, Shape, TensorType, ValueId};

/// A gradient with respect to a whole value, or to a slice of it.
#[derive(Clone, Copy)]
pub(super) enum Contribution {
    Whole(ValueId),
    Slice { axis: usize, start: usize, value: ValueId },
}

/// The sum so far. Whole contributions are added as they come, so that but one is alive; slices wait for each other.
#[derive(Default)]
pub(super) struct Sum {
    whole: Option<ValueId>,
    layers: Vec<Layer>,
}

/// Slices along one axis that do not overlap, by their start.
struct Layer {
    axis: usize,
    slices: Vec<(usize, ValueId)>,
}

impl Layer {
    /// Where a slice goes if it overlaps none.
    fn place(&self, w: &Writer, axis: usize, start: usize, end: usize) -> Option<usize> {
        let at = self.slices.partition_point(|(s, _)| *s < start);
        let end_of = |(s, v): &(usize, ValueId)| s + w.graph.shape(*v).dims()[axis];
        let after_last = at.checked_sub(1).is_none_or(|i| end_of(&self.slices[i]) <= start);
        let before_next = self.slices.get(at).is_none_or(|(s, _)| end <= *s);
        (self.axis == axis && after_last && before_next).then_some(at)
    }
}

impl Sum {
    pub fn add(&mut self, w: &mut Writer, contribution: Contribution) -> Result<(), GradError> {
        match contribution {
            Contribution::Whole(value) => {
                self.whole = Some(match self.whole {
                    None => value,
                    Some(sum) => w.add(sum, value)?,
                });
            }
            Contribution::Slice { axis, start, value } => {
                let len = w.graph.shape(value).dims()[axis];
                if len == 0 {
                    return Ok(());
                }
                let free =
                    |l: &mut Layer| l.place(w, axis, start, start + len).map(|at| l.slices.insert(at, (start, value)));
                if self.layers.iter_mut().find_map(free).is_none() {
                    self.layers.push(Layer { axis, slices: vec![(start, value)] });
                }
            }
        }
        Ok(())
    }

    /// The gradient of a value of this type; `None` if nothing was contributed.
    pub fn total(self, w: &mut Writer, ty: &TensorType) -> Result<Option<ValueId>, GradError> {
        let mut sum = self.whole;
        for layer in &self.layers {
            let whole = concat(w, layer, ty)?;
            sum = Some(match sum {
                None => whole,
                Some(sum) => w.add(sum, whole)?,
            });
        }
        Ok(sum)
    }
}

/// The slices in order, zeros where there are none.
fn concat(w: &mut Writer, layer: &Layer, ty: &TensorType) -> Value {
    let axis = layer.axis;
    let mut parts = Vec::new();
    let mut end = 0;
    let zeros = |w: &mut Writer, len: usize| {
        let mut dims = ty.shape.dims().to_vec();
        dims[axis] = len;
        w.push(Op::Constant(0.0.into(), ty.dtype, Shape::from(dims)), &[])
    };
    for &(start, value) in &layer.slices {
        if start > end {
            parts.push(zeros(w, start - end)?);
        }
        parts.push(value);
        end = start + w.graph.shape(value).dims()[axis];
    }
    let size = ty.shape.dims()[axis];
    if end < size {
        parts.push(zeros(w, size - end)?);
    }
    match parts[..] {
        [whole] => Ok(whole),
        _ => w.push(Op::Concat(axis), &parts),
    }
}
