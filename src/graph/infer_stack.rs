//! In: a stack of linear layers or a part of its gradient, and the types of its inputs; out: the types of its outputs.
//! The part of [`super::infer`] that stacks need.

use super::infer::Ctx;
use super::{GraphError, Shape, TensorType};

type Types = Result<Vec<TensorType>, GraphError>;

impl Ctx<'_> {
    /// The weights, input `input`, are (L, N, N) for rows of so many columns; gives L.
    fn stacked(&self, input: usize, rows: &Shape) -> Result<usize, GraphError> {
        let w = &self.inputs[input].shape;
        match (w.dims(), rows.dims().last()) {
            ([layers, n, k], Some(width)) if n == width && k == width && *layers > 0 => Ok(*layers),
            _ => Err(self.shapes("weights are (layers, width, width) of rows (…, width)", w, rows, None)),
        }
    }

    pub fn linear_stack(&self) -> Types {
        self.arity(2..=3)?;
        self.float(0)?;
        let x = self.inputs[0];
        for input in 1..self.inputs.len() {
            self.same(input, 0)?;
        }
        let layers = self.stacked(1, &x.shape)?;
        if let Some(bias) = self.inputs.get(2)
            && bias.shape.dims() != [layers, x.shape.last()]
        {
            return Err(self.shapes("biases are (layers, width) like the weights", &bias.shape, &x.shape, None));
        }
        Ok(vec![x.clone(), TensorType::new(x.dtype, [&[layers], x.shape.dims()].concat())])
    }

    pub fn linear_stack_grad(&self) -> Types {
        self.arity(4..=4)?;
        self.float(0)?;
        for input in 1..4 {
            self.same(input, 0)?;
        }
        let [kept, y, dy] = [1, 2, 3].map(|input| &self.inputs[input].shape);
        let layers = self.stacked(0, y)?;
        if y != dy {
            return Err(self.shapes("y and dy differ", y, dy, None));
        }
        if kept.dims() != [&[layers], y.dims()].concat() {
            return Err(self.shapes("what the layers read is (layers, …) like y", kept, y, None));
        }
        Ok(vec![self.inputs[2].clone(), self.inputs[1].clone()])
    }

    pub fn linear_stack_param_grad(&self) -> Types {
        self.arity(2..=2)?;
        let dtype = self.float(0)?;
        self.same(1, 0)?;
        let (kept, dz) = (&self.inputs[0].shape, &self.inputs[1].shape);
        if kept.rank() < 2 || kept != dz {
            return Err(self.shapes("both are (layers, …, width)", kept, dz, None));
        }
        let (layers, width) = (kept.dims()[0], kept.last());
        Ok(vec![TensorType::new(dtype, [layers, width, width]), TensorType::new(dtype, [layers, width])])
    }
}
