//! In: nothing; out: [`Op`], what a node computes. Knows only the types of values.

use super::{Activation, AdamAttrs, AttentionAttrs, Chain, CrossEntropyAttrs, DType, DropoutAttrs, Shape, StorageId};
use std::fmt;

/// An `f32` that can be compared and hashed by its bits, so that what holds it can be a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar(u32);

impl Scalar {
    /// The number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Whether a norm may have it as its ε: a negative one makes NaN of a row of small variance.
    pub(crate) fn is_epsilon(self) -> bool {
        (0.0..f32::INFINITY).contains(&self.get())
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Self {
        Scalar(value.to_bits())
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// An element-wise function of one float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `x * c`.
    Scale(Scalar),
    /// `max(x, 0)`, NaN stays NaN.
    Relu,
    /// `x/2 * (1 + erf(x / sqrt 2))`, PyTorch's default.
    GeluErf,
    /// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`, PyTorch's `approximate="tanh"`.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `e^x`.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / sqrt x`.
    Rsqrt,
    /// `-x`.
    Neg,
    /// `erfc(-x / sqrt 2) / 2`, the normal distribution function: GELU's derivative needs it.
    NormalCdf,
}

impl Unary {
    /// The function's name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Scale(_) => "scale",
            Unary::Relu => "relu",
            Unary::GeluErf => "gelu_erf",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Silu => "silu",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Neg => "neg",
            Unary::NormalCdf => "normal_cdf",
        }
    }
}

/// An element-wise function of two values, broadcast as NumPy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The smaller; NaN if either is NaN.
    Min,
    /// The larger; NaN if either is NaN.
    Max,
    /// `a^b`.
    Pow,
}

impl Binary {
    /// The function's name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Min => "min",
            Binary::Max => "max",
            Binary::Pow => "pow",
        }
    }
}

/// A comparison of two values, broadcast as NumPy does; false where either is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `a < b`.
    Less,
    /// `a <= b`.
    LessEqual,
    /// `a == b`.
    Equal,
}

impl Comparison {
    /// The comparison's name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::Less => "less",
            Comparison::LessEqual => "less_equal",
            Comparison::Equal => "equal",
        }
    }

    /// Whether it holds.
    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Comparison::Less => a < b,
            Comparison::LessEqual => a <= b,
            Comparison::Equal => a == b,
        }
    }
}

/// What a reduction keeps of the elements along its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum; 0 of none.
    Sum,
    /// Their mean.
    Mean,
    /// The largest; NaN if any is NaN.
    Max,
    /// The largest magnitude; NaN if any is NaN, 0 of none.
    AbsMax,
}

impl Reduction {
    /// The reduction's name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::AbsMax => "absmax",
        }
    }
}

/// Which index [`Op::Arg`] returns; the first of equals wins, and the first NaN before any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extreme {
    /// Of the largest element.
    Max,
}

/// What a node computes. Shapes: B batch, S sequence, E width, H heads, D head size, V vocabulary; a matmul is
/// (M, K) by (K, N).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A value given at each run. Integer inputs that index something are checked before a run.
    Input,
    /// A parameter (or several packed in one storage), resident on the device.
    Parameter(StorageId),
    /// Every element has this value; converted to the node's type.
    Constant(Scalar, DType, Shape),
    /// `0, 1, … n-1` as I32.
    Arange(usize),
    /// (…, M, K) × (…, K, N) → (…, M, N); batch dimensions broadcast; a transposed operand is stored the other way.
    Matmul {
        /// The left operand is stored (…, K, M).
        transpose_a: bool,
        /// The right operand is stored (…, N, K).
        transpose_b: bool,
    },
    /// x (…, K), weight (N, K), optional bias (N) → (…, N): `x · weightᵀ + bias`.
    Linear,
    /// Several linears of one width in a row, each followed by an activation: x (…, N), weights (L, N, N) and maybe biases
    /// (L, N) → y (…, N) and what each layer reads (L, …, N). Layer l makes `activation(x · weights[l]ᵀ + biases[l])`.
    LinearStack(Activation),
    /// An element-wise function.
    Unary(Unary),
    /// An element-wise function of two, broadcast.
    Binary(Binary),
    /// a, b of one numeric type, broadcast → Bool.
    Compare(Comparison),
    /// cond Bool, a, b, all broadcast: a where cond holds, else b.
    Where,
    /// x, mask Bool (broadcast to x): the value where the mask holds, else x.
    MaskedFill(Scalar),
    /// Bool (Sq, Sk): true, masked out, where j > i + Sk − Sq.
    CausalMask(usize, usize),
    /// Softmax along an axis; the running maximum is subtracted.
    Softmax(usize),
    /// Logarithm of softmax along an axis, computed from the logits.
    LogSoftmax(usize),
    /// x (…, E), γ (E), β (E) → y, mean (…), rstd (…): `(x − mean) · rstd · γ + β`, rstd = 1/sqrt(var + ε), ε ≥ 0
    /// and finite.
    LayerNorm(Scalar),
    /// x (…, E), γ (E) → y, rstd (…): `x · rstd · γ`, rstd = 1/sqrt(mean(x²) + ε), ε ≥ 0 and finite.
    RmsNorm(Scalar),
    /// table (V, E), indices (…) → (…, E).
    Embedding,
    /// A reduction over axes (sorted, without repeats); reduced axes are kept with size 1 or dropped.
    Reduce {
        /// What is kept.
        kind: Reduction,
        /// Over which axes.
        axes: Vec<usize>,
        /// Whether reduced axes stay with size 1.
        keepdim: bool,
    },
    /// The index along an axis, which is dropped, as I32.
    Arg(Extreme, usize),
    /// The same elements in another shape.
    Reshape(Shape),
    /// Dimension i of the result is dimension `perm[i]` of the input.
    Permute(Vec<usize>),
    /// `len` elements from `start` along an axis.
    Slice {
        /// Along which axis.
        axis: usize,
        /// From where.
        start: usize,
        /// How many.
        len: usize,
    },
    /// All inputs, one after the other along an axis.
    Concat(usize),
    /// Stretched to a shape as NumPy broadcasts.
    Broadcast(Shape),
    /// Floats of any types and shapes → the largest magnitude of all their elements, f32 (); NaN if any is NaN, 0 of
    /// none.
    Magnitude,
    /// Converted to another type; to Bool: not zero.
    Cast(DType),
    /// q (B, Sq, H·D), k and v (B, Sk, H·D), optional mask, optional lengths → out (B, Sq, H·D), log-sum-exp
    /// (B, H, Sq) f32. A query that sees no key gives 0 and log-sum-exp −∞.
    Attention(AttentionAttrs),
    /// x (B, S, …), position I32 (B) → (B, …): row `position[b]` of each.
    PickRow,
    /// x, counter U32 (3) → x with each element dropped (0) or kept (times 1 / (1 − p)). Its own gradient: dy under
    /// the same counter. See [`DropoutAttrs`].
    Dropout(DropoutAttrs),
    /// logits (…, C, …) with C at the axis, targets I32 (…, …) → loss f32 and log-sum-exp f32, both of the targets'
    /// shape. See [`CrossEntropyAttrs`].
    CrossEntropy(CrossEntropyAttrs),
    /// Gradient of [`Op::CrossEntropy`]: logits, targets, log-sum-exp, dloss f32 → dlogits.
    CrossEntropyGrad(CrossEntropyAttrs),
    /// Gradient of [`Op::Softmax`]: y, dy → dx = y · (dy − Σ dy · y), sums along the axis.
    SoftmaxGrad(usize),
    /// Gradient of [`Op::LogSoftmax`]: y, dy → dx = dy − exp(y) · Σ dy, the sum along the axis.
    LogSoftmaxGrad(usize),
    /// Gradient of [`Op::LayerNorm`]: x (…, E), γ (E), mean (…), rstd (…), dy (…, E) → dx; with one more input of x's
    /// type, the sum of that and of dx as it is stored.
    LayerNormGrad,
    /// Gradient of [`Op::LayerNorm`]'s parameters: x (…, E), mean (…), rstd (…), dy (…, E) → dγ (E), dβ (E).
    LayerNormParamGrad,
    /// Gradient of [`Op::RmsNorm`]: x (…, E), γ (E), rstd (…), dy (…, E) → dx; with one more input of x's type, the
    /// sum of that and of dx as it is stored.
    RmsNormGrad,
    /// Gradient of [`Op::RmsNorm`]'s parameter: x (…, E), rstd (…), dy (…, E) → dγ (E).
    RmsNormParamGrad,
    /// Gradient of [`Op::Embedding`]'s table of so many rows: dy (…, E), indices (…) → (V, E). The rows of one index
    /// are summed in their order.
    EmbeddingGrad(usize),
    /// Gradient of [`Op::Linear`]'s parameters: x (…, K), dy (…, N) → dW (N, K) and, with a bias, db (N).
    LinearGrad {
        /// Whether there is a bias.
        bias: bool,
    },
    /// Gradient of [`Op::LinearStack`]: weights, what each layer read, y, dy → dx (…, N) and dz (L, …, N), the gradients of
    /// what the layers' activations read.
    LinearStackGrad(Activation),
    /// Gradient of [`Op::LinearStack`]'s parameters: what each layer read (L, …, N), dz (L, …, N) → dW (L, N, N), db (L, N).
    LinearStackParamGrad,
    /// Gradient of [`Op::Attention`]: its inputs, then out, log-sum-exp and dout → dq, dk, dv.
    AttentionGrad(AttentionAttrs),
    /// One step of Adam or AdamW: w, m, v f32 of one shape, gradient f32 or f16 of that shape, scalars f32 (3) or (5) →
    /// new w, m, v, and the new w in f16 if that is asked for. See [`AdamAttrs`].
    Adam(AdamAttrs),
    /// x → x, as nodes of this segment read it that the backward pass computes anew. Since such nodes read nothing that
    /// the first ones read, no pass takes them for copies.
    Recompute(usize),
    /// Made by `fuse`: a chain over broadcast inputs.
    Elementwise(Chain),
    /// Made by `fuse`: [`Op::Linear`]'s or [`Op::Matmul`]'s product, then a chain whose input 0 is the product and
    /// whose others are broadcast to the result.
    FusedMatmul {
        /// As in [`Op::Matmul`].
        transpose_a: bool,
        /// As in [`Op::Matmul`]; a fused linear has it set.
        transpose_b: bool,
        /// What is done with each element of the product.
        epilogue: Chain,
    },
    /// Made by `fuse`: a, b, γ, β → sum = a + b, layernorm(sum), mean, rstd. b is one number or has a's last dimensions.
    AddLayerNorm(Scalar),
}

impl Op {
    /// The op's name in prints and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input => "input",
            Op::Parameter(_) => "parameter",
            Op::Constant(..) => "constant",
            Op::Arange(_) => "arange",
            Op::Matmul { .. } => "matmul",
            Op::Linear => "linear",
            Op::LinearStack(_) => "linear_stack",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Compare(c) => c.name(),
            Op::Where => "where",
            Op::MaskedFill(_) => "masked_fill",
            Op::CausalMask(..) => "causal_mask",
            Op::Softmax(_) => "softmax",
            Op::LogSoftmax(_) => "log_softmax",
            Op::LayerNorm(_) => "layernorm",
            Op::RmsNorm(_) => "rmsnorm",
            Op::Embedding => "embedding",
            Op::Reduce { kind, .. } => kind.name(),
            Op::Arg(Extreme::Max, _) => "argmax",
            Op::Reshape(_) => "reshape",
            Op::Permute(_) => "permute",
            Op::Slice { .. } => "slice",
            Op::Concat(_) => "concat",
            Op::Broadcast(_) => "broadcast",
            Op::Magnitude => "magnitude",
            Op::Cast(_) => "cast",
            Op::Attention(_) => "attention",
            Op::PickRow => "pick_row",
            Op::Dropout(_) => "dropout",
            Op::CrossEntropy(_) => "cross_entropy",
            Op::CrossEntropyGrad(_) => "cross_entropy_grad",
            Op::SoftmaxGrad(_) => "softmax_grad",
            Op::LogSoftmaxGrad(_) => "log_softmax_grad",
            Op::LayerNormGrad => "layernorm_grad",
            Op::LayerNormParamGrad => "layernorm_param_grad",
            Op::RmsNormGrad => "rmsnorm_grad",
            Op::RmsNormParamGrad => "rmsnorm_param_grad",
            Op::EmbeddingGrad(_) => "embedding_grad",
            Op::LinearGrad { .. } => "linear_grad",
            Op::LinearStackGrad(_) => "linear_stack_grad",
            Op::LinearStackParamGrad => "linear_stack_param_grad",
            Op::AttentionGrad(_) => "attention_grad",
            Op::Adam(_) => "adam",
            Op::Recompute(_) => "recompute",
            Op::Elementwise(_) => "elementwise",
            Op::FusedMatmul { .. } => "fused_matmul",
            Op::AddLayerNorm(_) => "add_layernorm",
        }
    }

    /// Whether the node has its input's elements, at most in other places: it looks at the same memory.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) | Op::Recompute(_))
    }

    /// Whether the node computes nothing at run time: it stands for data that is there.
    pub fn is_source(&self) -> bool {
        matches!(self, Op::Input | Op::Parameter(_))
    }
}

/// The op with its attributes: `slice(axis 2, 0..64)`.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Op::Constant(v, dtype, _) => write!(f, "{name}({v}{dtype})"),
            Op::Matmul { transpose_a, transpose_b } => {
                let t = |on: &bool| if *on { "ᵀ" } else { "" };
                write!(f, "{name}(a{}, b{})", t(transpose_a), t(transpose_b))
            }
            Op::FusedMatmul { transpose_a, transpose_b, epilogue } => {
                let t = |on: &bool| if *on { "ᵀ" } else { "" };
                write!(f, "{name}(a{}, b{}; {epilogue})", t(transpose_a), t(transpose_b))
            }
            Op::Unary(Unary::Scale(c)) => write!(f, "{name}({c})"),
            Op::MaskedFill(v) => write!(f, "{name}({v})"),
            Op::Softmax(axis)
            | Op::LogSoftmax(axis)
            | Op::SoftmaxGrad(axis)
            | Op::LogSoftmaxGrad(axis)
            | Op::Concat(axis)
            | Op::Arg(_, axis) => write!(f, "{name}(axis {axis})"),
            Op::LayerNorm(eps) | Op::RmsNorm(eps) | Op::AddLayerNorm(eps) => write!(f, "{name}(eps {eps})"),
            Op::Reduce { axes, .. } => write!(f, "{name}(axes {axes:?})"),
            Op::Permute(perm) => write!(f, "{name}({perm:?})"),
            Op::Slice { axis, start, len } => write!(f, "{name}(axis {axis}, {start}..{})", start + len),
            Op::LinearStack(a) | Op::LinearStackGrad(a) => write!(f, "{name}({a})"),
            Op::Attention(a) | Op::AttentionGrad(a) => write!(f, "{name}({a})"),
            Op::Dropout(d) => write!(f, "{name}({d})"),
            Op::CrossEntropy(c) | Op::CrossEntropyGrad(c) => write!(f, "{name}({c})"),
            Op::EmbeddingGrad(rows) => write!(f, "{name}({rows} rows)"),
            Op::Adam(a) => write!(f, "{name}({a})"),
            Op::Recompute(segment) => write!(f, "{name}(segment {segment})"),
            Op::Elementwise(chain) => write!(f, "{name}({chain})"),
            _ => f.write_str(name),
        }
    }
}
