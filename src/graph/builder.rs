//! In: a model's calls, one an op; out: a [`Graph`]. Every call infers its result's type and names what does not fit.

use super::{
    Activation, AttentionAttrs, Binary, Comparison, CrossEntropyAttrs, DType, Disposition, DropoutAttrs, Extreme,
    Graph, GraphError, Op, Reduction, Scalar, Shape, TensorType, Unary, ValueId,
};

type Value = Result<ValueId, GraphError>;

/// Builds a graph op by op.
///
/// ```
/// use kiln::graph::{Builder, DType, TensorType};
/// let mut b = Builder::new();
/// let x = b.input("x", TensorType::new(DType::F32, [2, 3]))?;
/// let w = b.parameter("w", TensorType::new(DType::F32, [4, 3]))?;
/// let y = b.linear(x, w, None)?;
/// let y = b.relu(y)?;
/// b.output("y", y)?;
/// assert_eq!(b.finish()?.shape(y).dims(), [2, 4]);
/// # Ok::<(), kiln::graph::GraphError>(())
/// ```
#[derive(Default)]
pub struct Builder {
    graph: Graph,
    scope: Vec<String>,
}

impl Builder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names of nodes made in `f` start with `name` and a dot.
    pub fn scope<T>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(name.to_owned());
        let result = f(self);
        self.scope.pop();
        result
    }

    /// A name within the current scope: `blocks.0.ln1.weight`.
    pub fn path(&self, name: &str) -> String {
        let mut path = self.scope.join(".");
        if !path.is_empty() && !name.is_empty() {
            path.push('.');
        }
        path + name
    }

    /// A value's type.
    ///
    /// # Panics
    /// If the value is another graph's.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// A value's shape.
    ///
    /// # Panics
    /// If the value is another graph's.
    pub fn shape(&self, value: ValueId) -> &Shape {
        self.graph.shape(value)
    }

    fn push(&mut self, op: Op, inputs: &[ValueId]) -> Value {
        // a linear without a scope of its own is told apart by its weight's name
        let name = match (&op, inputs) {
            (Op::Linear, [_, w, ..]) if self.graph.has(*w) => {
                self.graph.producer(*w).name.trim_end_matches(".weight").to_owned()
            }
            _ => self.path(op.name()),
        };
        Ok(self.graph.push(op, inputs.to_vec(), name)?.into())
    }

    /// A value given at each run.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Value {
        if self.graph.nodes().any(|(_, n)| n.op == Op::Input && n.name == name) {
            return Err(GraphError::Duplicate { kind: "input", name: name.into() });
        }
        Ok(self.graph.push_input(ty, name).into())
    }

    /// The input of this name, if it is declared.
    pub fn find_input(&self, name: &str) -> Option<ValueId> {
        self.graph.nodes().find(|(_, n)| n.op == Op::Input && n.name == name).map(|(id, _)| id.into())
    }

    /// A value that stays on the device between runs: zero at first, read as of the start of a run. Give it its next
    /// value with [`Builder::update`].
    pub fn state(&mut self, name: &str, ty: TensorType) -> Value {
        self.input(name, ty)
    }

    /// At the end of each run the state takes this value. A state that takes its own is an input that stays on the
    /// device and is written only when it changes.
    pub fn update(&mut self, state: ValueId, value: ValueId) -> Result<(), GraphError> {
        self.graph.push_update(state.node, value)
    }

    /// A parameter, named within the current scope.
    pub fn parameter(&mut self, name: &str, ty: TensorType) -> Value {
        let name = self.path(name);
        if self.graph.layout.iter().any(|(_, s)| s.name == name) {
            return Err(GraphError::Duplicate { kind: "parameter", name });
        }
        let id = self.graph.layout.add(&name, ty.dtype, ty.shape);
        Ok(self.graph.push_parameter(id).into())
    }

    /// Every element is `value`.
    pub fn constant(&mut self, value: f32, ty: TensorType) -> Value {
        self.push(Op::Constant(value.into(), ty.dtype, ty.shape), &[])
    }

    /// `0, 1, … n-1`, I32.
    pub fn arange(&mut self, n: usize) -> Value {
        self.push(Op::Arange(n), &[])
    }

    /// `a · b` over broadcast batch dimensions.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Value {
        self.matmul_transposed(a, false, b, false)
    }

    /// `a · b` with operands that may be stored transposed in their last two dimensions.
    pub fn matmul_transposed(&mut self, a: ValueId, transpose_a: bool, b: ValueId, transpose_b: bool) -> Value {
        self.push(Op::Matmul { transpose_a, transpose_b }, &[a, b])
    }

    /// `x · weightᵀ + bias`, weight (out, in) as PyTorch stores it.
    pub fn linear(&mut self, x: ValueId, weight: ValueId, bias: Option<ValueId>) -> Value {
        let mut inputs = vec![x, weight];
        inputs.extend(bias);
        self.push(Op::Linear, &inputs)
    }

    /// [`Op::LinearStack`] over x (…, N), weights (L, N, N) and biases (L, N).
    pub fn linear_stack(
        &mut self,
        x: ValueId,
        weights: ValueId,
        biases: Option<ValueId>,
        activation: Activation,
    ) -> Value {
        let mut inputs = vec![x, weights];
        inputs.extend(biases);
        self.push(Op::LinearStack(activation), &inputs)
    }

    /// An element-wise function.
    pub fn unary(&mut self, f: Unary, x: ValueId) -> Value {
        self.push(Op::Unary(f), &[x])
    }

    /// `x * c`.
    pub fn scale(&mut self, x: ValueId, c: f32) -> Value {
        self.unary(Unary::Scale(c.into()), x)
    }

    /// `max(x, 0)`.
    pub fn relu(&mut self, x: ValueId) -> Value {
        self.unary(Unary::Relu, x)
    }

    /// GELU by the error function.
    pub fn gelu_erf(&mut self, x: ValueId) -> Value {
        self.unary(Unary::GeluErf, x)
    }

    /// GELU by the tanh approximation.
    pub fn gelu_tanh(&mut self, x: ValueId) -> Value {
        self.unary(Unary::GeluTanh, x)
    }

    /// An element-wise function of two, broadcast.
    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Value {
        self.push(Op::Binary(f), &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Value {
        self.binary(Binary::Div, a, b)
    }

    /// `cond ? a : b`.
    pub fn select(&mut self, cond: ValueId, a: ValueId, b: ValueId) -> Value {
        self.push(Op::Where, &[cond, a, b])
    }

    /// Whether a comparison holds, element by element.
    pub fn compare(&mut self, comparison: Comparison, a: ValueId, b: ValueId) -> Value {
        self.push(Op::Compare(comparison), &[a, b])
    }

    /// `value` where the mask holds, else x.
    pub fn masked_fill(&mut self, x: ValueId, mask: ValueId, value: f32) -> Value {
        self.push(Op::MaskedFill(value.into()), &[x, mask])
    }

    /// True where key j lies in the future of query i.
    pub fn causal_mask(&mut self, queries: usize, keys: usize) -> Value {
        self.push(Op::CausalMask(queries, keys), &[])
    }

    /// Softmax along an axis.
    pub fn softmax(&mut self, x: ValueId, axis: usize) -> Value {
        self.push(Op::Softmax(axis), &[x])
    }

    /// Logarithm of softmax along an axis.
    pub fn log_softmax(&mut self, x: ValueId, axis: usize) -> Value {
        self.push(Op::LogSoftmax(axis), &[x])
    }

    /// Layer norm over the last dimension; `eps` is finite and at least 0.
    pub fn layernorm(&mut self, x: ValueId, gamma: ValueId, beta: ValueId, eps: f32) -> Value {
        self.push(Op::LayerNorm(eps.into()), &[x, gamma, beta])
    }

    /// RMS norm over the last dimension; `eps` is finite and at least 0.
    pub fn rmsnorm(&mut self, x: ValueId, gamma: ValueId, eps: f32) -> Value {
        self.push(Op::RmsNorm(eps.into()), &[x, gamma])
    }

    /// Rows of a table.
    pub fn embedding(&mut self, table: ValueId, indices: ValueId) -> Value {
        self.push(Op::Embedding, &[table, indices])
    }

    /// A reduction over axes; reduced axes are dropped unless `keepdim`.
    pub fn reduce(&mut self, kind: Reduction, x: ValueId, axes: &[usize], keepdim: bool) -> Value {
        self.push(Op::Reduce { kind, axes: axes.to_vec(), keepdim }, &[x])
    }

    /// Sum over axes, which are dropped.
    pub fn sum(&mut self, x: ValueId, axes: &[usize]) -> Value {
        self.reduce(Reduction::Sum, x, axes, false)
    }

    /// Mean over axes, which are dropped.
    pub fn mean(&mut self, x: ValueId, axes: &[usize]) -> Value {
        self.reduce(Reduction::Mean, x, axes, false)
    }

    /// Largest over axes, which are dropped.
    pub fn max(&mut self, x: ValueId, axes: &[usize]) -> Value {
        self.reduce(Reduction::Max, x, axes, false)
    }

    /// Index of the largest along an axis; the first of equals.
    pub fn argmax(&mut self, x: ValueId, axis: usize) -> Value {
        self.push(Op::Arg(Extreme::Max, axis), &[x])
    }

    /// The same elements in another shape.
    pub fn reshape(&mut self, x: ValueId, shape: impl Into<Shape>) -> Value {
        self.push(Op::Reshape(shape.into()), &[x])
    }

    /// Dimensions in another order.
    pub fn permute(&mut self, x: ValueId, perm: &[usize]) -> Value {
        self.push(Op::Permute(perm.to_vec()), &[x])
    }

    /// `len` elements from `start` along an axis.
    pub fn slice(&mut self, x: ValueId, axis: usize, start: usize, len: usize) -> Value {
        self.push(Op::Slice { axis, start, len }, &[x])
    }

    /// All, at least one, one after the other along an axis.
    pub fn concat(&mut self, parts: &[ValueId], axis: usize) -> Value {
        self.push(Op::Concat(axis), parts)
    }

    /// Stretched to a shape.
    pub fn broadcast(&mut self, x: ValueId, shape: impl Into<Shape>) -> Value {
        self.push(Op::Broadcast(shape.into()), &[x])
    }

    /// Converted to another element type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Value {
        self.push(Op::Cast(dtype), &[x])
    }

    /// Attention over heads that lie side by side in the width; see [`Op::Attention`].
    #[allow(clippy::too_many_arguments, reason = "each is an operand of the op")]
    pub fn attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        heads: usize,
        scale: f32,
        causal: bool,
        mask: Option<ValueId>,
        lengths: Option<ValueId>,
    ) -> Value {
        let attrs = AttentionAttrs {
            heads,
            scale: Scalar::from(scale),
            causal,
            mask: mask.is_some(),
            lengths: lengths.is_some(),
            dropout: None,
        };
        let mut inputs = vec![q, k, v];
        inputs.extend(mask);
        inputs.extend(lengths);
        self.push(Op::Attention(attrs), &inputs)
    }

    /// Drops each element with probability p; `counter` is U32 (3), the seed's low and high word and the step. Each
    /// dropout of a graph has a site of its own.
    pub fn dropout(&mut self, x: ValueId, p: f32, site: u32, counter: ValueId) -> Value {
        self.push(Op::Dropout(DropoutAttrs { p: p.into(), site }), &[x, counter])
    }

    /// The cross entropy of each row of logits with its target class, not reduced; see [`CrossEntropyAttrs`].
    pub fn cross_entropy_rows(&mut self, logits: ValueId, targets: ValueId, attrs: CrossEntropyAttrs) -> Value {
        self.push(Op::CrossEntropy(attrs), &[logits, targets])
    }

    /// Row `position[b]` of each x (B, S, …).
    pub fn pick_row(&mut self, x: ValueId, position: ValueId) -> Value {
        self.push(Op::PickRow, &[x, position])
    }

    /// Any op, for those that have no call of their own; its first output, whose node has the others.
    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> Value {
        self.push(op, inputs)
    }

    /// Declares what a run gives back.
    pub fn output(&mut self, name: &str, value: ValueId) -> Result<(), GraphError> {
        self.graph.push_output(name, value, Disposition::Read)
    }

    /// Declares an output that stays on the device until it is asked for.
    pub fn output_kept(&mut self, name: &str, value: ValueId) -> Result<(), GraphError> {
        self.graph.push_output(name, value, Disposition::Keep)
    }

    /// The graph, verified.
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.graph.verify()?;
        Ok(self.graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::StorageId;

    #[test]
    fn values_of_another_graph_are_refused() {
        let f32s = TensorType::new(DType::F32, [2, 2]);
        let mut other = Builder::new();
        other.input("a", f32s.clone()).unwrap();
        let foreign = other.input("b", f32s.clone()).unwrap();
        let mut b = Builder::new();
        let x = b.input("x", f32s).unwrap();
        let refused = [
            (b.relu(foreign).unwrap_err(), "relu \"relu\""),
            (b.linear(x, foreign, None).unwrap_err(), "linear \"linear\""),
            (b.output("y", foreign).unwrap_err(), "output \"y\""),
            (b.update(foreign, x).unwrap_err(), "update \"state\""),
            (b.update(x, foreign).unwrap_err(), "update \"x\""),
        ];
        for (error, what) in refused {
            let expected = "%1 is no value of this graph; give it one that this graph's own calls returned";
            assert_eq!(error.to_string(), format!("{what}: {expected}"));
        }
        assert_eq!(
            b.op(Op::Parameter(StorageId(0)), &[]).unwrap_err().to_string(),
            "parameter \"parameter\": storage: expected one of the graph's layout, got 0"
        );
    }

    #[test]
    fn states_of_one_name_are_refused() {
        let f32s = TensorType::new(DType::F32, [2]);
        let mut b = Builder::new();
        let (s, w) = (b.state("w", f32s.clone()).unwrap(), b.parameter("w", f32s).unwrap());
        b.update(s, w).unwrap();
        b.update(w, s).unwrap();
        assert_eq!(b.finish().unwrap_err().to_string(), "state \"w\" is declared twice; names of states are unique");
    }
}
