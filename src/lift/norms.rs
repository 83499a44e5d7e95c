//! In: softmax and layernorm written out in reductions and element-wise ops; out: one op each. Knows nothing of where
//! they stand in a model.

use crate::graph::{Binary, Graph, GraphError, Node, Op, Reduction, Report, Rewriter, Scalar, Shape, Unary, ValueId};

/// Replaces `exp(x − max) / sum` and `(x − mean) / sqrt(var + ε) · γ + β`.
pub(super) fn norms(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        // what was broadcast on the way to more elements than x has is none
        let whole = |x: ValueId| graph.shape(x) == graph.shape(id.into());
        if let Some((x, axis)) = softmax(graph, id.into()).filter(|(x, _)| whole(*x)) {
            r.replace(id, Op::Softmax(axis), vec![x])?;
            report.add("softmax", format!("{}: exp(x − max) / sum → one softmax", node.name));
        } else if let Some((eps, inputs)) = layernorm(graph, id.into()).filter(|(_, inputs)| whole(inputs[0])) {
            r.replace(id, Op::LayerNorm(eps), inputs)?;
            report.add("layernorm", format!("{}: (x − mean) / sqrt(var + ε) · γ + β → one layernorm", node.name));
        } else {
            r.copy(id)?;
        }
    }
    r.finish()
}

fn unary(g: &Graph, value: ValueId, f: Unary) -> Option<ValueId> {
    let node = g.producer(value);
    (node.op == Op::Unary(f)).then(|| node.inputs[0])
}

fn binary(g: &Graph, value: ValueId, f: Binary) -> Option<(ValueId, ValueId)> {
    let node = g.producer(value);
    (node.op == Op::Binary(f)).then(|| (node.inputs[0], node.inputs[1]))
}

/// The operands of a commutative op in both orders.
fn either(g: &Graph, value: ValueId, f: Binary) -> impl Iterator<Item = (ValueId, ValueId)> {
    binary(g, value, f).into_iter().flat_map(|(a, b)| [(a, b), (b, a)])
}

/// What a reduction over one axis, kept with size 1 (at once or by a reshape) and perhaps stretched again, is over.
fn reduced(g: &Graph, mut value: ValueId, kind: Reduction) -> Option<(ValueId, usize)> {
    while let Op::Broadcast(_) = g.producer(value).op {
        value = g.producer(value).inputs[0];
    }
    let mut kept = None;
    if let Op::Reshape(shape) = &g.producer(value).op {
        (kept, value) = (Some(shape), g.producer(value).inputs[0]);
    }
    let node = g.producer(value);
    let Op::Reduce { kind: k, axes, keepdim } = &node.op else { return None };
    let [axis] = axes[..] else { return None };
    let mut dims = g.shape(node.inputs[0]).dims().to_vec();
    dims[axis] = 1;
    let is_kept = match kept {
        Some(shape) => *shape == Shape::from(dims),
        None => *keepdim,
    };
    (*k == kind && is_kept).then_some((node.inputs[0], axis))
}

/// `exp(x − max(x)) / sum(exp(x − max(x)))`: x and the axis.
fn softmax(g: &Graph, value: ValueId) -> Option<(ValueId, usize)> {
    let (e, sum) = binary(g, value, Binary::Div)?;
    let (x, max) = binary(g, unary(g, e, Unary::Exp)?, Binary::Sub)?;
    let (of, axis) = reduced(g, max, Reduction::Max)?;
    (of == x && reduced(g, sum, Reduction::Sum)? == (e, axis)).then_some((x, axis))
}

/// `x − mean(x)` over the last axis: x.
fn centred(g: &Graph, value: ValueId) -> Option<ValueId> {
    let (x, mean) = binary(g, value, Binary::Sub)?;
    let last = g.shape(x).rank().checked_sub(1)?;
    (reduced(g, mean, Reduction::Mean)? == (x, last)).then_some(x)
}

/// ε and x, γ, β of a layernorm.
fn layernorm(g: &Graph, value: ValueId) -> Option<(Scalar, Vec<ValueId>)> {
    let vector = |v: ValueId, x: ValueId| g.shape(v).dims() == [g.shape(x).last()];
    for (scaled, beta) in either(g, value, Binary::Add) {
        for (norm, gamma) in either(g, scaled, Binary::Mul) {
            if let Some((x, eps)) = normalised(g, norm)
                && vector(gamma, x)
                && vector(beta, x)
            {
                return Some((eps, vec![x, gamma, beta]));
            }
        }
    }
    None
}

/// `d · rsqrt(var + ε)` or `d / sqrt(var + ε)` with d = x − mean: x and ε.
fn normalised(g: &Graph, norm: ValueId) -> Option<(ValueId, Scalar)> {
    let quotient = binary(g, norm, Binary::Div).and_then(|(d, s)| Some((d, unary(g, s, Unary::Sqrt)?)));
    let products = either(g, norm, Binary::Mul).filter_map(|(d, s)| Some((d, unary(g, s, Unary::Rsqrt)?)));
    for (d, shifted) in quotient.into_iter().chain(products) {
        let Some(x) = centred(g, d) else { continue };
        for (var, eps) in either(g, shifted, Binary::Add) {
            let last = g.shape(x).rank() - 1;
            let Some(eps) = g.fill(eps).filter(|_| g.shape(var) == g.shape(shifted)).map(Scalar::from) else {
                continue;
            };
            if !eps.is_epsilon() {
                continue;
            }
            let Some((square, axis)) = reduced(g, var, Reduction::Mean) else { continue };
            if axis == last && squared(g, square).and_then(|d| centred(g, d)) == Some(x) {
                return Some((x, eps));
            }
        }
    }
    None
}

/// `d · d` or `d²`: d. Two spellings of the same difference count as one.
fn squared(g: &Graph, value: ValueId) -> Option<ValueId> {
    if let Some((a, b)) = binary(g, value, Binary::Mul) {
        let same = |a: &Node, b: &Node| a.op == b.op && a.inputs == b.inputs;
        return (a == b || same(g.producer(a), g.producer(b)) && a.output == b.output).then_some(a);
    }
    let (d, two) = binary(g, value, Binary::Pow)?;
    (g.fill(two) == Some(2.0) && g.shape(d) == g.shape(value)).then_some(d)
}
