//! In: nothing; out: [`Op`], what a node computes. Knows only the types of values.

use super::{Chain, DType, Shape, StorageId};
use std::fmt;

/// An `f32` that can be compared and hashed by its bits, so that what holds it can be a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar(u32);

impl Scalar {
    /// The number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
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

/// What a reduction keeps of the elements along its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum; 0 of none.
    Sum,
    /// Their mean.
    Mean,
    /// The largest; NaN if any is NaN.
    Max,
}

impl Reduction {
    /// The reduction's name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
        }
    }
}

/// Which index [`Op::Arg`] returns; the first of equals wins, and the first NaN before any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extreme {
    /// Of the largest element.
    Max,
}

/// Attributes of [`Op::Attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionAttrs {
    /// Number of heads H; the width of q, k and v is H times the head size D.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: Scalar,
    /// Query i sees only keys j ≤ i + offset, with offset = Sk − Sq, which may be negative: aligned at the bottom
    /// right. [`AttentionAttrs::lengths`] has an offset of its own.
    pub causal: bool,
    /// An additive mask is the fourth input, broadcast to (B, H, Sq, Sk); −∞ hides a key. What a hidden key and its
    /// value hold is never read.
    pub mask: bool,
    /// `lengths: i32[B]`, each in 0..=Sk, is the last input: query i of batch row b sees key j only if
    /// j < `length[b]`, whatever lies past it. With it, causal's offset is max(`length[b]` − Sq, 0): the queries are the
    /// last Sq of a longer sequence (a cache), or its first Sq positions, padded on the right.
    pub lengths: bool,
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
    /// An element-wise function.
    Unary(Unary),
    /// An element-wise function of two, broadcast.
    Binary(Binary),
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
    /// x (…, E), γ (E), β (E) → y, mean (…), rstd (…): `(x − mean) · rstd · γ + β`, rstd = 1/sqrt(var + ε).
    LayerNorm(Scalar),
    /// x (…, E), γ (E) → y, rstd (…): `x · rstd · γ`, rstd = 1/sqrt(mean(x²) + ε).
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
    /// Converted to another type; to Bool: not zero.
    Cast(DType),
    /// q (B, Sq, H·D), k and v (B, Sk, H·D), optional mask, optional lengths → out (B, Sq, H·D), log-sum-exp
    /// (B, H, Sq) f32. A query that sees no key gives 0 and log-sum-exp −∞.
    Attention(AttentionAttrs),
    /// x (B, S, …), position I32 (B) → (B, …): row `position[b]` of each.
    PickRow,
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
    /// Made by `fuse`: a, b, γ, β → sum = a + b (broadcast to a), layernorm(sum), mean, rstd.
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
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
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
            Op::Cast(_) => "cast",
            Op::Attention(_) => "attention",
            Op::PickRow => "pick_row",
            Op::Elementwise(_) => "elementwise",
            Op::FusedMatmul { .. } => "fused_matmul",
            Op::AddLayerNorm(_) => "add_layernorm",
        }
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
            Op::Softmax(axis) | Op::LogSoftmax(axis) | Op::Concat(axis) | Op::Arg(_, axis) => {
                write!(f, "{name}(axis {axis})")
            }
            Op::LayerNorm(eps) | Op::RmsNorm(eps) | Op::AddLayerNorm(eps) => write!(f, "{name}(eps {eps})"),
            Op::Reduce { axes, .. } => write!(f, "{name}(axes {axes:?})"),
            Op::Permute(perm) => write!(f, "{name}({perm:?})"),
            Op::Slice { axis, start, len } => write!(f, "{name}(axis {axis}, {start}..{})", start + len),
            Op::Attention(a) => write!(
                f,
                "{name}({} heads, scale {}{}{}{})",
                a.heads,
                a.scale,
                if a.causal { ", causal" } else { "" },
                if a.mask { ", mask" } else { "" },
                if a.lengths { ", lengths" } else { "" }
            ),
            Op::Elementwise(chain) => write!(f, "{name}({chain})"),
            _ => f.write_str(name),
        }
    }
}
