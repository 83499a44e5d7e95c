//! In: an op of training and the types of its inputs; out: the types of its outputs. The part of [`super::infer`] that
//! losses, gradients and optimisers need.

use super::infer::Ctx;
use super::{AdamAttrs, AttentionAttrs, CrossEntropyAttrs, DType, DropoutAttrs, GraphError, Shape, TensorType};

type Types = Result<Vec<TensorType>, GraphError>;

impl Ctx<'_> {
    fn same_shape(&self, input: usize, as_input: usize) -> Result<(), GraphError> {
        let (a, b) = (&self.inputs[as_input].shape, &self.inputs[input].shape);
        if a == b {
            return Ok(());
        }
        Err(self.shapes(format!("inputs {as_input} and {input} differ"), a, b, None))
    }

    /// Input `input` is of this type.
    fn is(&self, input: usize, dtype: DType, shape: &Shape, what: &str) -> Result<(), GraphError> {
        self.dtype(input, self.inputs[input].dtype == dtype, &dtype.to_string())?;
        let got = &self.inputs[input].shape;
        if got == shape {
            return Ok(());
        }
        Err(self.shapes(format!("{what} must be {shape}"), shape, got, None))
    }

    /// U32 (3): seed, low and high word, and step.
    pub fn counter(&self, input: usize) -> Result<(), GraphError> {
        self.is(input, DType::U32, &[3].into(), "the counter")
    }

    pub fn probability(&self, d: &DropoutAttrs) -> Result<(), GraphError> {
        if (0.0..1.0).contains(&d.p.get()) {
            return Ok(());
        }
        Err(self.attribute("p", "at least 0 and less than 1", d.p))
    }

    pub fn dropout(&self, d: &DropoutAttrs) -> Types {
        self.arity(2..=2)?;
        self.float(0)?;
        self.counter(1)?;
        self.probability(d)?;
        Ok(vec![self.inputs[0].clone()])
    }

    /// The shape of targets.
    fn classes(&self, a: &CrossEntropyAttrs) -> Result<Shape, GraphError> {
        self.float(0)?;
        self.axis(a.axis)?;
        if !(0.0..=1.0).contains(&a.label_smoothing.get()) {
            return Err(self.attribute("label_smoothing", "0 to 1", a.label_smoothing));
        }
        let mut dims = self.inputs[0].shape.dims().to_vec();
        if dims.remove(a.axis) == 0 {
            return Err(self.attribute("classes", "at least 1", 0));
        }
        let rows = Shape::from(dims);
        self.is(1, DType::I32, &rows, "targets")?;
        Ok(rows)
    }

    pub fn cross_entropy(&self, a: &CrossEntropyAttrs) -> Types {
        self.arity(2..=2)?;
        let rows = TensorType { dtype: DType::F32, shape: self.classes(a)? };
        Ok(vec![rows.clone(), rows])
    }

    pub fn cross_entropy_grad(&self, a: &CrossEntropyAttrs) -> Types {
        self.arity(4..=4)?;
        let rows = self.classes(a)?;
        self.is(2, DType::F32, &rows, "the log-sum-exp")?;
        self.is(3, DType::F32, &rows, "dloss")?;
        Ok(vec![self.inputs[0].clone()])
    }

    pub fn softmax_grad(&self, axis: usize) -> Types {
        self.arity(2..=2)?;
        self.float(0)?;
        self.axis(axis)?;
        self.same(1, 0)?;
        self.same_shape(1, 0)?;
        Ok(vec![self.inputs[0].clone()])
    }

    /// Inputs x, γ if `gamma`, `stats` row statistics, dy; outputs like x, or `params` vectors.
    pub fn norm_grad(&self, gamma: bool, stats: usize, params: Option<usize>) -> Types {
        let n = 1 + usize::from(gamma) + stats + 1;
        // what the gradient of rows is added to
        self.arity(n..=n + usize::from(gamma))?;
        self.float(0)?;
        let x = self.inputs[0];
        if x.shape.rank() == 0 {
            return Err(self.attribute("rank", "at least 1", 0));
        }
        if gamma {
            self.same(1, 0)?;
            self.over_last(1, "gamma")?;
        }
        let rows = Shape::from(&x.shape.dims()[..x.shape.rank() - 1]);
        for i in 0..stats {
            self.is(1 + usize::from(gamma) + i, DType::F32, &rows, "row statistics")?;
        }
        for i in n - 1..self.inputs.len() {
            self.same(i, 0)?;
            self.same_shape(i, 0)?;
        }
        Ok(match params {
            None => vec![x.clone()],
            Some(count) => vec![TensorType::new(x.dtype, [x.shape.last()]); count],
        })
    }

    pub fn embedding_grad(&self, rows: usize) -> Types {
        self.arity(2..=2)?;
        let dtype = self.float(0)?;
        self.dtype(1, self.inputs[1].dtype.is_integer(), "i32 or u32")?;
        let (dy, indices) = (&self.inputs[0].shape, &self.inputs[1].shape);
        if dy.rank() == 0 || &dy.dims()[..dy.rank() - 1] != indices.dims() {
            return Err(self.shapes("dy is (indices…, width)", dy, indices, None));
        }
        Ok(vec![TensorType::new(dtype, [rows, dy.last()])])
    }

    pub fn linear_grad(&self, bias: bool) -> Types {
        self.arity(2..=2)?;
        let dtype = self.float(0)?;
        self.same(1, 0)?;
        let (x, dy) = (&self.inputs[0].shape, &self.inputs[1].shape);
        let leading = |s: &Shape| s.dims()[..s.rank().saturating_sub(1)].to_vec();
        if x.rank() == 0 || dy.rank() == 0 || leading(x) != leading(dy) {
            return Err(self.shapes("x is (…, K) and dy (…, N)", x, dy, None));
        }
        let mut types = vec![TensorType::new(dtype, [dy.last(), x.last()])];
        types.extend(bias.then(|| TensorType::new(dtype, [dy.last()])));
        Ok(types)
    }

    pub fn attention_grad(&self, a: &AttentionAttrs) -> Types {
        let n = a.inputs();
        self.arity(n + 3..=n + 3)?;
        let forward = Ctx { inputs: &self.inputs[..n], ..*self }.attention(a)?;
        self.is(n, forward[0].dtype, &forward[0].shape, "out")?;
        self.is(n + 1, DType::F32, &forward[1].shape, "the log-sum-exp")?;
        self.is(n + 2, forward[0].dtype, &forward[0].shape, "dout")?;
        Ok(self.inputs[..3].iter().map(|t| (*t).clone()).collect())
    }

    pub fn adam(&self, a: &AdamAttrs) -> Types {
        self.arity(5..=5)?;
        let w = self.inputs[0];
        for (input, what) in [(0, "w"), (1, "m"), (2, "v")] {
            self.is(input, DType::F32, &w.shape, what)?;
        }
        self.float(3)?;
        self.same_shape(3, 0)?;
        let scalars = if self.inputs[4].shape.dims() == [5] { 5 } else { 3 };
        self.is(4, DType::F32, &[scalars].into(), "scalars")?;
        for (what, beta) in [("beta1", a.beta1), ("beta2", a.beta2)] {
            if !(0.0..1.0).contains(&beta.get()) {
                return Err(self.attribute(what, "at least 0 and less than 1", beta));
            }
        }
        let mut outputs = vec![w.clone(); 3];
        outputs.extend(a.narrow.then(|| TensorType { dtype: DType::F16, ..w.clone() }));
        Ok(outputs)
    }
}
