//! In: a node and the values of its inputs; out: the values of its outputs. The one place where every [`Op`] is told
//! apart; knows nothing of order, lifetimes or where values come from.

use super::dropout::Dropper;
use super::{
    ReferenceError, Value, attention, elementwise, loss, matmul, movement, norm, optimiser, reduce, scalar, stack,
};
use crate::graph::{DType, Extreme, Graph, GraphError, Node, Op, Shape, matmul_dims};

/// Evaluates a node that is not a source. F16 outputs are rounded to f16, F32 ones are not rounded.
pub(super) fn compute(graph: &Graph, node: &Node, x: &[&Value]) -> Result<Vec<Value>, ReferenceError> {
    let shape = &node.outputs[0].shape;
    let data = match &node.op {
        // a source has its value from outside
        Op::Input | Op::Parameter(_) => Vec::new(),
        Op::Constant(c, dtype, _) => {
            vec![vec![scalar::convert(DType::F32, *dtype, f64::from(c.get())); shape.elements()]]
        }
        Op::Arange(n) => vec![(0..*n).map(|i| i as f64).collect()],
        Op::Matmul { transpose_a, transpose_b } => vec![product(node, x, *transpose_a, *transpose_b)?],
        Op::Linear => {
            let mut y = matmul::linear(x[0], x[1]);
            if let Some(bias) = x.get(2) {
                let bias = movement::stretch(bias, shape);
                y.iter_mut().zip(bias.iter()).for_each(|(y, b)| *y += b);
            }
            vec![y]
        }
        Op::LinearStack(activation) => stack::linear_stack(*activation, node.outputs[0].dtype, x),
        Op::FusedMatmul { transpose_a, transpose_b, epilogue } => {
            // as inference tells them apart
            let linear = *transpose_b && !transpose_a && x[1].shape.rank() == 2;
            let y = if linear { matmul::linear(x[0], x[1]) } else { product(node, x, *transpose_a, *transpose_b)? };
            vec![elementwise::epilogue(epilogue, y, &x[2..], shape)]
        }
        Op::Unary(f) => vec![x[0].data.iter().map(|v| scalar::unary(*f, *v)).collect()],
        Op::Binary(f) => vec![elementwise::binary(*f, node.outputs[0].dtype, x[0], x[1], shape)],
        Op::Compare(c) => vec![elementwise::compare(*c, x[0], x[1], shape)],
        Op::Where => vec![elementwise::select(x[0], x[1], x[2], shape)],
        Op::MaskedFill(fill) => vec![elementwise::masked_fill(x[0], x[1], f64::from(fill.get()))],
        Op::CausalMask(q, k) => {
            let row = |i: usize| (0..*k).map(move |j| f64::from(j + q > i + k));
            vec![(0..*q).flat_map(row).collect()]
        }
        Op::Softmax(axis) => vec![norm::softmax(x[0], *axis, false)],
        Op::LogSoftmax(axis) => vec![norm::softmax(x[0], *axis, true)],
        Op::LayerNorm(eps) => {
            let beta = Some(&x[2].data[..]);
            let n = norm::norm(&x[0].data, shape.rows(), &x[1].data, beta, f64::from(eps.get()));
            vec![n.y, n.mean, n.rstd]
        }
        Op::RmsNorm(eps) => {
            let n = norm::norm(&x[0].data, shape.rows(), &x[1].data, None, f64::from(eps.get()));
            vec![n.y, n.rstd]
        }
        Op::AddLayerNorm(eps) => {
            let b = movement::stretch(x[1], shape);
            let mut sum: Vec<f64> = x[0].data.iter().zip(b.iter()).map(|(a, b)| a + b).collect();
            // the norm reads the sum as it is stored
            store(node.outputs[0].dtype, &mut sum);
            let n = norm::norm(&sum, shape.rows(), &x[2].data, Some(&x[3].data), f64::from(eps.get()));
            vec![sum, n.y, n.mean, n.rstd]
        }
        Op::Embedding => vec![movement::embedding(x[0], x[1], node)?],
        Op::Reduce { kind, axes, .. } => vec![reduce::reduce(*kind, x[0], axes)],
        Op::Magnitude => vec![vec![reduce::magnitude(x)]],
        Op::Arg(Extreme::Max, axis) => vec![reduce::argmax(x[0], *axis)],
        Op::Reshape(_) | Op::Recompute(_) => vec![x[0].data.clone()],
        Op::Permute(perm) => vec![movement::permute(x[0], perm, shape)],
        Op::Slice { axis, start, .. } => vec![movement::slice(x[0], *axis, *start, shape)],
        Op::Concat(axis) => vec![movement::concat(x, *axis, shape)],
        Op::Broadcast(_) => vec![movement::stretch(x[0], shape).into_owned()],
        Op::Cast(to) => {
            let from = graph.ty(node.inputs[0]).dtype;
            vec![x[0].data.iter().map(|v| scalar::convert(from, *to, *v)).collect()]
        }
        Op::Attention(attrs) => attention::attention(attrs, x, node)?.into(),
        Op::PickRow => vec![movement::pick_row(x[0], x[1], node)?],
        Op::Dropout(d) => {
            let dropper = Dropper::new(d, x[1]);
            vec![x[0].data.iter().enumerate().map(|(i, v)| v * dropper.factor(i)).collect()]
        }
        Op::CrossEntropy(a) => loss::cross_entropy(a, x, node)?,
        Op::CrossEntropyGrad(a) => vec![loss::cross_entropy_grad(a, x, node)?],
        Op::SoftmaxGrad(axis) => vec![norm::softmax_grad(x[0], x[1], *axis, false)],
        Op::LogSoftmaxGrad(axis) => vec![norm::softmax_grad(x[0], x[1], *axis, true)],
        Op::LayerNormGrad => vec![added(node, norm::norm_grad(x[0], x[1], Some(x[2]), x[3], x[4]), x.get(5))],
        Op::LayerNormParamGrad => norm::norm_param_grad(x[0], Some(x[1]), x[2], x[3]).into(),
        Op::RmsNormGrad => vec![added(node, norm::norm_grad(x[0], x[1], None, x[2], x[3]), x.get(4))],
        Op::RmsNormParamGrad => norm::norm_param_grad(x[0], None, x[1], x[2]).into(),
        Op::EmbeddingGrad(rows) => vec![movement::embedding_grad(x[0], x[1], *rows, node)?],
        Op::LinearGrad { .. } => matmul::linear_grad(x[0], x[1]).into(),
        Op::LinearStackGrad(activation) => stack::linear_stack_grad(*activation, node.outputs[0].dtype, x),
        Op::LinearStackParamGrad => stack::linear_stack_param_grad(x[0], x[1]),
        Op::AttentionGrad(attrs) => attention::attention_grad(attrs, x, node)?,
        Op::Adam(a) => optimiser::adam(a, x),
        Op::Elementwise(chain) => vec![elementwise::elementwise(chain, x, shape)],
    };
    let outputs = data.into_iter().zip(&node.outputs).map(|(mut data, ty)| {
        store(ty.dtype, &mut data);
        Value { shape: ty.shape.clone(), data }
    });
    Ok(outputs.collect())
}

/// A gradient, or where there is another its sum with the one as that is stored.
fn added(node: &Node, mut own: Vec<f64>, other: Option<&&Value>) -> Vec<f64> {
    if let Some(other) = other {
        store(node.outputs[0].dtype, &mut own);
        own.iter_mut().zip(&other.data).for_each(|(own, other)| *own += other);
    }
    own
}

/// What storing in a type does to values.
pub(super) fn store(dtype: DType, data: &mut [f64]) {
    if dtype == DType::F16 {
        data.iter_mut().for_each(|v| *v = scalar::round_f16(*v));
    }
}

fn product(node: &Node, x: &[&Value], transpose_a: bool, transpose_b: bool) -> Result<Vec<f64>, ReferenceError> {
    let (a, b): (&Shape, &Shape) = (&x[0].shape, &x[1].shape);
    let dims = matmul_dims(a, b, transpose_a, transpose_b).map_err(|(what, dim)| GraphError::Shapes {
        op: node.op.name(),
        node: node.name.clone(),
        what,
        left: a.clone(),
        right: b.clone(),
        dim,
    })?;
    Ok(matmul::matmul(x[0], transpose_a, x[1], transpose_b, &dims))
}
