//! In: an op and the types of its inputs; out: the types of its outputs, or what does not fit and where.

use super::core::indexes;
use super::{AttentionAttrs, Chain, DType, GraphError, Op, ParamLayout, Ref, Scalar, Shape, Step, TensorType};

/// Sizes of a matrix product (batch, M, K) × (batch, K, N) after transposition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatmulDims {
    /// Broadcast batch dimensions.
    pub batch: Shape,
    /// Rows of the result.
    pub m: usize,
    /// Inner size.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

/// Sizes of a product of two shapes of rank ≥ 2; `Err` says what does not fit, and at which dimension.
pub fn matmul_dims(
    a: &Shape,
    b: &Shape,
    transpose_a: bool,
    transpose_b: bool,
) -> Result<MatmulDims, (String, Option<usize>)> {
    let (ra, rb) = (a.rank(), b.rank());
    if ra < 2 || rb < 2 {
        return Err(("both operands need at least two dimensions".into(), None));
    }
    let (m, ka) = if transpose_a { (a.dims()[ra - 1], a.dims()[ra - 2]) } else { (a.dims()[ra - 2], a.dims()[ra - 1]) };
    let (kb, n) = if transpose_b { (b.dims()[rb - 1], b.dims()[rb - 2]) } else { (b.dims()[rb - 2], b.dims()[rb - 1]) };
    if ka != kb {
        let dim = ra - if transpose_a { 2 } else { 1 };
        return Err(("inner sizes differ".into(), Some(dim)));
    }
    let batch = Shape::from(&a.dims()[..ra - 2])
        .broadcast(&Shape::from(&b.dims()[..rb - 2]))
        .map_err(|d| ("batch sizes differ".to_string(), Some(d)))?;
    Ok(MatmulDims { batch, m, k: ka, n })
}

pub(super) struct Ctx<'a> {
    pub op: &'static str,
    pub node: &'a str,
    pub inputs: &'a [&'a TensorType],
}

impl Ctx<'_> {
    pub fn arity(&self, expected: std::ops::RangeInclusive<usize>) -> Result<(), GraphError> {
        if expected.contains(&self.inputs.len()) {
            return Ok(());
        }
        let expected = match (*expected.start(), *expected.end()) {
            (least, usize::MAX) => format!("at least {least}"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        Err(GraphError::Arity { op: self.op, node: self.node.into(), expected, got: self.inputs.len() })
    }

    pub fn dtype(&self, input: usize, ok: bool, expected: &str) -> Result<DType, GraphError> {
        let got = self.inputs[input].dtype;
        if ok {
            return Ok(got);
        }
        Err(GraphError::DType { op: self.op, node: self.node.into(), input, expected: expected.into(), got })
    }

    /// The input is a float that a device computes with.
    pub fn float(&self, input: usize) -> Result<DType, GraphError> {
        self.dtype(input, matches!(self.inputs[input].dtype, DType::F32 | DType::F16), "f32 or f16")
    }

    fn numeric(&self, input: usize) -> Result<DType, GraphError> {
        let d = self.inputs[input].dtype;
        self.dtype(input, d.is_integer() || matches!(d, DType::F32 | DType::F16), "f32, f16, i32 or u32")
    }

    pub fn same(&self, input: usize, as_input: usize) -> Result<(), GraphError> {
        let want = self.inputs[as_input].dtype;
        self.dtype(input, self.inputs[input].dtype == want, &format!("{want} like input {as_input}")).map(|_| ())
    }

    pub fn shapes(&self, what: impl Into<String>, left: &Shape, right: &Shape, dim: Option<usize>) -> GraphError {
        GraphError::Shapes {
            op: self.op,
            node: self.node.into(),
            what: what.into(),
            left: left.clone(),
            right: right.clone(),
            dim,
        }
    }

    pub fn attribute(&self, what: &'static str, expected: impl ToString, got: impl ToString) -> GraphError {
        GraphError::Attribute {
            op: self.op,
            node: self.node.into(),
            what,
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    pub fn axis(&self, axis: usize) -> Result<(), GraphError> {
        let shape = &self.inputs[0].shape;
        if axis < shape.rank() {
            return Ok(());
        }
        Err(self.attribute("axis", format!("less than the rank of {shape}"), axis))
    }

    fn broadcast(&self, a: &Shape, b: &Shape) -> Result<Shape, GraphError> {
        a.broadcast(b).map_err(|d| self.shapes("shapes do not broadcast", a, b, Some(d)))
    }

    /// `small` broadcasts to exactly `to`.
    fn broadcasts_to(&self, small: &Shape, to: &Shape) -> Result<(), GraphError> {
        match small.broadcast(to) {
            Ok(s) if s == *to => Ok(()),
            Ok(_) => Err(self.shapes("the first does not broadcast to the second", small, to, None)),
            Err(d) => Err(self.shapes("the first does not broadcast to the second", small, to, Some(d))),
        }
    }

    /// A vector over the last dimension of input 0.
    pub fn over_last(&self, input: usize, what: &str) -> Result<(), GraphError> {
        let (x, v) = (&self.inputs[0].shape, &self.inputs[input].shape);
        if x.rank() >= 1 && v.dims() == [x.last()] {
            return Ok(());
        }
        Err(self.shapes(format!("{what} must be a vector of the last size"), x, v, x.rank().checked_sub(1)))
    }

    fn chain(&self, chain: &Chain) -> Result<(), GraphError> {
        let fits = chain.steps.iter().enumerate().all(|(i, s)| {
            s.args().iter().all(|r| match *r {
                Ref::Input(k) => k < chain.arity,
                Ref::Step(k) => k < i,
            })
        });
        if !fits || chain.steps.is_empty() && chain.arity == 0 {
            return Err(self.attribute("chain", "steps that read inputs and earlier steps", chain));
        }
        let compares = |r: Ref| matches!(r, Ref::Step(k) if matches!(chain.steps[k], Step::Compare(..)));
        let number = |r: Ref| match r {
            Ref::Input(k) => !chain.is_condition(k),
            step => !compares(step),
        };
        let conditions = chain.steps.iter().all(|s| match *s {
            Step::Select(cond, a, b) => (compares(cond) || matches!(cond, Ref::Input(_))) && number(a) && number(b),
            _ => s.args().iter().all(|r| number(*r)),
        });
        if !conditions || compares(chain.result()) {
            return Err(self.attribute("chain", "inputs and comparisons as conditions, and these nowhere else", chain));
        }
        Ok(())
    }

    /// Inputs of a chain are floats, but for conditions, which are Bool.
    fn chain_types(&self, chain: &Chain, offset: usize) -> Result<(), GraphError> {
        for i in offset..chain.arity {
            let input = i + self.inputs.len() - chain.arity;
            if chain.is_condition(i) {
                self.dtype(input, self.inputs[input].dtype == DType::Bool, "bool")?;
            } else {
                self.float(input)?;
            }
        }
        Ok(())
    }

    fn matmul(&self, ta: bool, tb: bool) -> Result<TensorType, GraphError> {
        let dtype = self.float(0)?;
        self.same(1, 0)?;
        let (a, b) = (&self.inputs[0].shape, &self.inputs[1].shape);
        let d = matmul_dims(a, b, ta, tb).map_err(|(what, dim)| self.shapes(what, a, b, dim))?;
        let mut dims = d.batch.dims().to_vec();
        dims.extend([d.m, d.n]);
        Ok(TensorType::new(dtype, dims))
    }

    /// (…, K) by (N, K) → (…, N).
    fn linear(&self) -> Result<TensorType, GraphError> {
        let dtype = self.float(0)?;
        self.same(1, 0)?;
        let (x, w) = (&self.inputs[0].shape, &self.inputs[1].shape);
        if w.rank() != 2 || x.rank() < 1 {
            return Err(self.shapes("the weight is (out, in)", x, w, None));
        }
        if x.last() != w.dims()[1] {
            let what = match w.dims() {
                &[k, n] if k == x.last() => format!("inner sizes differ, the weight is (out, in), here ({n}, {k})"),
                _ => "inner sizes differ".into(),
            };
            return Err(self.shapes(what, x, w, Some(x.rank() - 1)));
        }
        let mut dims = x.dims().to_vec();
        dims[x.rank() - 1] = w.dims()[0];
        Ok(TensorType::new(dtype, dims))
    }

    fn norm(&self, eps: Scalar) -> Result<(TensorType, TensorType), GraphError> {
        if !eps.is_epsilon() {
            return Err(self.attribute("eps", "a finite number of at least 0", eps));
        }
        self.float(0)?;
        let x = self.inputs[0];
        if x.shape.rank() == 0 {
            return Err(self.attribute("rank", "at least 1", 0));
        }
        for i in 1..self.inputs.len() {
            self.same(i, 0)?;
        }
        Ok((x.clone(), TensorType::new(DType::F32, &x.shape.dims()[..x.shape.rank() - 1])))
    }

    pub fn attention(&self, a: &AttentionAttrs) -> Result<Vec<TensorType>, GraphError> {
        let n = a.inputs();
        self.arity(n..=n)?;
        if let Some(dropout) = &a.dropout {
            self.counter(n - 1)?;
            self.probability(dropout)?;
        }
        // softmax of infinite scores is NaN
        if !a.scale.get().is_finite() {
            return Err(self.attribute("scale", "a finite number", a.scale));
        }
        let n = n - usize::from(a.dropout.is_some());
        let dtype = self.float(0)?;
        self.same(1, 0)?;
        self.same(2, 0)?;
        let (q, k, v) = (&self.inputs[0].shape, &self.inputs[1].shape, &self.inputs[2].shape);
        if q.rank() != 3 || k.rank() != 3 {
            return Err(self.shapes("q, k and v are (B, S, width)", q, k, None));
        }
        if k != v {
            return Err(self.shapes("k and v differ", k, v, None));
        }
        let ([b, sq, width], [kb, sk, kw]) =
            ([q.dims()[0], q.dims()[1], q.dims()[2]], [k.dims()[0], k.dims()[1], k.dims()[2]]);
        if b != kb || width != kw {
            return Err(self.shapes("q and k differ", q, k, Some(if b != kb { 0 } else { 2 })));
        }
        if a.heads == 0 || width % a.heads != 0 {
            return Err(self.attribute("heads", format!("a divisor of the width {width}"), a.heads));
        }
        if a.mask {
            self.same(3, 0)?;
            self.broadcasts_to(&self.inputs[3].shape, &[b, a.heads, sq, sk].into())?;
        }
        if a.lengths {
            self.dtype(n - 1, self.inputs[n - 1].dtype == DType::I32, "i32")?;
            let l = &self.inputs[n - 1].shape;
            if l.dims() != [b] {
                return Err(self.shapes("lengths are (B)", q, l, Some(0)));
            }
        }
        Ok(vec![TensorType::new(dtype, q.clone()), TensorType::new(DType::F32, [b, a.heads, sq])])
    }
}

/// The types of an op's outputs. An input's type is not inferred: see [`super::Graph::push_input`].
pub fn infer(op: &Op, node: &str, inputs: &[&TensorType], layout: &ParamLayout) -> Result<Vec<TensorType>, GraphError> {
    let c = Ctx { op: op.name(), node, inputs };
    let with = |dtype, shape: Shape| Ok(vec![TensorType { dtype, shape }]);
    match op {
        Op::Input => Err(GraphError::Invalid {
            op: c.op,
            node: node.into(),
            what: "an input's type is given, not inferred".into(),
        }),
        Op::Parameter(id) => {
            c.arity(0..=0)?;
            let Some((_, s)) = layout.iter().nth(id.0) else {
                return Err(c.attribute("storage", "one of the graph's layout", id.0));
            };
            with(s.dtype, s.shape.clone())
        }
        Op::Constant(_, dtype, shape) => {
            c.arity(0..=0)?;
            if *dtype == DType::BF16 {
                return Err(c.attribute("type", "a type that devices compute with", dtype));
            }
            with(*dtype, shape.clone())
        }
        Op::Arange(n) => {
            c.arity(0..=0)?;
            with(DType::I32, [*n].into())
        }
        Op::Matmul { transpose_a, transpose_b } => {
            c.arity(2..=2)?;
            Ok(vec![c.matmul(*transpose_a, *transpose_b)?])
        }
        Op::Linear => {
            c.arity(2..=3)?;
            let ty = c.linear()?;
            if inputs.len() == 3 {
                c.same(2, 0)?;
                if inputs[2].shape.dims() != [ty.shape.last()] {
                    return Err(c.shapes(
                        "the bias must be a vector of the output size",
                        &ty.shape,
                        &inputs[2].shape,
                        Some(ty.shape.rank() - 1),
                    ));
                }
            }
            Ok(vec![ty])
        }
        Op::LinearStack(_) => c.linear_stack(),
        Op::FusedMatmul { transpose_a, transpose_b, epilogue } => {
            c.arity(epilogue.arity + 1..=epilogue.arity + 1)?;
            c.chain(epilogue)?;
            if epilogue.arity == 0 || epilogue.is_condition(0) {
                return Err(c.attribute("epilogue", "the product as its first input, a number", epilogue));
            }
            // a linear is the product with a (N, K) right operand of rank 2; leading dimensions of x are rows
            let ty = if *transpose_b && inputs[1].shape.rank() == 2 && !transpose_a {
                c.linear()?
            } else {
                c.matmul(*transpose_a, *transpose_b)?
            };
            c.chain_types(epilogue, 1)?;
            for extra in &inputs[2..] {
                c.broadcasts_to(&extra.shape, &ty.shape)?;
            }
            Ok(vec![ty])
        }
        Op::Unary(_) => {
            c.arity(1..=1)?;
            let dtype = c.float(0)?;
            with(dtype, inputs[0].shape.clone())
        }
        Op::Binary(_) => {
            c.arity(2..=2)?;
            let dtype = c.numeric(0)?;
            c.same(1, 0)?;
            with(dtype, c.broadcast(&inputs[0].shape, &inputs[1].shape)?)
        }
        Op::Compare(_) => {
            c.arity(2..=2)?;
            c.numeric(0)?;
            c.same(1, 0)?;
            with(DType::Bool, c.broadcast(&inputs[0].shape, &inputs[1].shape)?)
        }
        Op::Where => {
            c.arity(3..=3)?;
            c.dtype(0, inputs[0].dtype == DType::Bool, "bool")?;
            let dtype = c.numeric(1)?;
            c.same(2, 1)?;
            let ab = c.broadcast(&inputs[1].shape, &inputs[2].shape)?;
            with(dtype, c.broadcast(&inputs[0].shape, &ab)?)
        }
        Op::MaskedFill(_) => {
            c.arity(2..=2)?;
            let dtype = c.float(0)?;
            c.dtype(1, inputs[1].dtype == DType::Bool, "bool")?;
            c.broadcasts_to(&inputs[1].shape, &inputs[0].shape)?;
            with(dtype, inputs[0].shape.clone())
        }
        Op::CausalMask(q, k) => {
            c.arity(0..=0)?;
            with(DType::Bool, [*q, *k].into())
        }
        Op::Softmax(axis) | Op::LogSoftmax(axis) => {
            c.arity(1..=1)?;
            let dtype = c.float(0)?;
            c.axis(*axis)?;
            with(dtype, inputs[0].shape.clone())
        }
        Op::LayerNorm(eps) => {
            c.arity(3..=3)?;
            let (y, row) = c.norm(*eps)?;
            c.over_last(1, "gamma")?;
            c.over_last(2, "beta")?;
            Ok(vec![y, row.clone(), row])
        }
        Op::RmsNorm(eps) => {
            c.arity(2..=2)?;
            let (y, row) = c.norm(*eps)?;
            c.over_last(1, "gamma")?;
            Ok(vec![y, row])
        }
        Op::AddLayerNorm(eps) => {
            c.arity(4..=4)?;
            let (y, row) = c.norm(*eps)?;
            c.broadcasts_to(&inputs[1].shape, &inputs[0].shape)?;
            let (a, b) = (&inputs[0].shape, &inputs[1].shape);
            let repeats: Vec<usize> = b.dims().iter().copied().skip_while(|d| *d == 1).collect();
            if b.elements() != 1 && !a.dims().ends_with(&repeats) {
                return Err(c.shapes("the second is one number or has the last dimensions of the first", a, b, None));
            }
            c.over_last(2, "gamma")?;
            c.over_last(3, "beta")?;
            Ok(vec![y.clone(), y, row.clone(), row])
        }
        Op::Embedding => {
            c.arity(2..=2)?;
            let dtype = c.float(0)?;
            c.dtype(1, indexes(inputs[1].dtype), "i32 or u32")?;
            let table = &inputs[0].shape;
            if table.rank() != 2 {
                return Err(c.shapes("the table is (rows, width)", table, &inputs[1].shape, None));
            }
            let mut dims = inputs[1].shape.dims().to_vec();
            dims.push(table.dims()[1]);
            with(dtype, dims.into())
        }
        Op::Reduce { axes, keepdim, .. } => {
            c.arity(1..=1)?;
            let dtype = c.float(0)?;
            if axes.windows(2).any(|w| w[0] >= w[1]) {
                return Err(c.attribute("axes", "sorted, without repeats", format!("{axes:?}")));
            }
            for a in axes {
                c.axis(*a)?;
            }
            let dims = inputs[0].shape.dims().iter().enumerate();
            let dims: Vec<usize> = if *keepdim {
                dims.map(|(i, d)| if axes.contains(&i) { 1 } else { *d }).collect()
            } else {
                dims.filter(|(i, _)| !axes.contains(i)).map(|(_, d)| *d).collect()
            };
            with(dtype, dims.into())
        }
        Op::Arg(_, axis) => {
            c.arity(1..=1)?;
            c.float(0)?;
            c.axis(*axis)?;
            if inputs[0].shape.dims()[*axis] == 0 {
                return Err(c.attribute("axis size", "at least 1", 0));
            }
            let mut dims = inputs[0].shape.dims().to_vec();
            dims.remove(*axis);
            with(DType::I32, dims.into())
        }
        Op::Reshape(shape) => {
            c.arity(1..=1)?;
            if shape.elements() != inputs[0].shape.elements() {
                return Err(c.shapes("numbers of elements differ", &inputs[0].shape, shape, None));
            }
            with(inputs[0].dtype, shape.clone())
        }
        Op::Permute(perm) => {
            c.arity(1..=1)?;
            let dims = inputs[0].shape.dims();
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..dims.len()) {
                return Err(c.attribute(
                    "permutation",
                    format!("each dimension of {} once", inputs[0].shape),
                    format!("{perm:?}"),
                ));
            }
            with(inputs[0].dtype, perm.iter().map(|p| dims[*p]).collect::<Vec<_>>().into())
        }
        Op::Slice { axis, start, len } => {
            c.arity(1..=1)?;
            c.axis(*axis)?;
            let mut dims = inputs[0].shape.dims().to_vec();
            if start.checked_add(*len).is_none_or(|end| end > dims[*axis]) {
                return Err(c.attribute(
                    "range",
                    format!("within 0..{}", dims[*axis]),
                    format!("{start}..{}", start.saturating_add(*len)),
                ));
            }
            dims[*axis] = *len;
            with(inputs[0].dtype, dims.into())
        }
        Op::Magnitude => {
            c.arity(1..=usize::MAX)?;
            (0..inputs.len()).try_for_each(|i| c.float(i).map(|_| ()))?;
            with(DType::F32, Shape::from([]))
        }
        Op::Concat(axis) => {
            c.arity(1..=usize::MAX)?;
            c.axis(*axis)?;
            let mut dims = inputs[0].shape.dims().to_vec();
            for (i, ty) in inputs.iter().enumerate().skip(1) {
                c.same(i, 0)?;
                let other = ty.shape.dims();
                if other.len() != dims.len() {
                    return Err(c.shapes(format!("input {i} has another rank"), &inputs[0].shape, &ty.shape, None));
                }
                if let Some(d) = (0..dims.len()).find(|d| d != axis && other[*d] != inputs[0].shape.dims()[*d]) {
                    return Err(c.shapes(
                        format!("input {i} differs off the axis"),
                        &inputs[0].shape,
                        &ty.shape,
                        Some(d),
                    ));
                }
                dims[*axis] = dims[*axis].saturating_add(other[*axis]);
            }
            with(inputs[0].dtype, dims.into())
        }
        Op::Broadcast(shape) => {
            c.arity(1..=1)?;
            c.broadcasts_to(&inputs[0].shape, shape)?;
            with(inputs[0].dtype, shape.clone())
        }
        Op::Cast(dtype) => {
            c.arity(1..=1)?;
            if *dtype == DType::BF16 {
                return Err(c.attribute("type", "a type that devices compute with", dtype));
            }
            with(*dtype, inputs[0].shape.clone())
        }
        Op::Attention(a) => c.attention(a),
        Op::PickRow => {
            c.arity(2..=2)?;
            c.dtype(1, inputs[1].dtype == DType::I32, "i32")?;
            let (x, p) = (&inputs[0].shape, &inputs[1].shape);
            if x.rank() < 2 || p.dims() != &x.dims()[..1] {
                return Err(c.shapes("x is (B, S, …) and positions are (B)", x, p, Some(0)));
            }
            if x.dims()[1] == 0 {
                return Err(c.attribute("rows", "at least 1", 0));
            }
            let mut dims = x.dims().to_vec();
            dims.remove(1);
            with(inputs[0].dtype, dims.into())
        }
        Op::Dropout(d) => c.dropout(d),
        Op::CrossEntropy(a) => c.cross_entropy(a),
        Op::CrossEntropyGrad(a) => c.cross_entropy_grad(a),
        Op::SoftmaxGrad(axis) | Op::LogSoftmaxGrad(axis) => c.softmax_grad(*axis),
        Op::LayerNormGrad => c.norm_grad(true, 2, None),
        Op::LayerNormParamGrad => c.norm_grad(false, 2, Some(2)),
        Op::RmsNormGrad => c.norm_grad(true, 1, None),
        Op::RmsNormParamGrad => c.norm_grad(false, 1, Some(1)),
        Op::EmbeddingGrad(rows) => c.embedding_grad(*rows),
        Op::LinearGrad { bias } => c.linear_grad(*bias),
        Op::LinearStackGrad(_) => c.linear_stack_grad(),
        Op::LinearStackParamGrad => c.linear_stack_param_grad(),
        Op::AttentionGrad(a) => c.attention_grad(a),
        Op::Adam(a) => c.adam(a),
        Op::Recompute(_) => {
            c.arity(1..=1)?;
            Ok(vec![inputs[0].clone()])
        }
        Op::Elementwise(chain) => {
            c.arity(chain.arity..=chain.arity)?;
            c.chain(chain)?;
            c.chain_types(chain, 0)?;
            let mut shape = Shape::default();
            for ty in inputs {
                shape = c.broadcast(&shape, &ty.shape)?;
            }
            let dtype = inputs.iter().map(|t| t.dtype).find(|d| *d != DType::Bool).unwrap_or(DType::F32);
            with(dtype, shape)
        }
    }
}
