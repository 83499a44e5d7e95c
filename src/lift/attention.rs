//! In: heads written out as matmul, scale, mask, softmax, dropout, matmul and concat; out: one attention over all
//! heads. Knows nothing of how q, k and v came about.

use super::{scope, within};
use crate::graph::{
    AttentionAttrs, Binary, DropoutAttrs, Graph, GraphError, Node, NodeId, Op, Report, Rewriter, Shape, Unary, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

const PASS: &str = "attention";

/// The largest head that attention kernels take.
const MAX_HEAD: usize = 128;

#[derive(Clone, Copy)]
struct Head {
    q: ValueId, // (B, Sq, D)
    k: ValueId, // (B, Sk, D)
    v: ValueId, // (B, Sk, D)
    scale: f32,
    causal: bool,
    /// Of the weights, with its counter.
    dropout: Option<(DropoutAttrs, ValueId)>,
}

struct Matcher<'a> {
    graph: &'a Graph,
    uses: Vec<Vec<usize>>,
}

impl Matcher<'_> {
    fn used_once(&self, value: ValueId) -> bool {
        self.uses[value.node.0][value.output] == 1
    }

    /// The head whose weighted values are `out`.
    fn head(&self, out: ValueId) -> Option<Head> {
        let g = self.graph;
        let node = g.producer(out);
        let Op::Matmul { transpose_a: false, transpose_b: false } = node.op else { return None };
        let (mut weights, v) = (node.inputs[0], node.inputs[1]);
        let dropout = match g.producer(weights) {
            _ if !self.used_once(weights) => return None,
            Node { op: Op::Dropout(attrs), inputs, .. } => {
                weights = inputs[0];
                Some((*attrs, inputs[1]))
            }
            _ => None,
        };
        if g.producer(weights).op != Op::Softmax(2) || !self.used_once(weights) {
            return None;
        }
        let mut scores = g.producer(weights).inputs[0];
        let (mut scale, mut causal) = (None, false);
        let (q, k) = loop {
            let node = g.producer(scores);
            if !self.used_once(scores) {
                return None;
            }
            match node.op {
                Op::Matmul { transpose_a: false, transpose_b } => {
                    break (node.inputs[0], self.keys(node.inputs[1], transpose_b)?);
                }
                // a mask inside a factor stays −∞ only under a positive one
                Op::MaskedFill(fill) if !causal && fill.get() == f32::NEG_INFINITY && scale.is_none_or(|c| c > 0.0) => {
                    if !self.is_causal_mask(node.inputs[1], g.shape(scores)) {
                        return None;
                    }
                    (causal, scores) = (true, node.inputs[0]);
                }
                _ if scale.is_none() => {
                    let (factor, inner) = self.factor(scores)?;
                    (scale, scores) = (Some(factor), inner);
                }
                _ => return None,
            }
        };
        let (qs, ks, vs) = (g.shape(q).dims(), g.shape(k).dims(), g.shape(v).dims());
        let fits =
            qs.len() == 3 && ks.len() == 3 && ks == vs && qs[0] == ks[0] && qs[2] == ks[2] && ks[1] > 0 && ks[2] > 0;
        fits.then_some(Head { q, k, v, scale: scale.unwrap_or(1.0), causal, dropout })
    }

    /// The keys (B, Sk, D) behind the right operand of the scores.
    fn keys(&self, right: ValueId, transposed: bool) -> Option<ValueId> {
        let node = self.graph.producer(right);
        match &node.op {
            _ if transposed => Some(right),
            Op::Permute(perm) if perm[..] == [0, 2, 1] => Some(node.inputs[0]),
            _ => None,
        }
    }

    /// Whether the mask is causal over all the scores and leaves each query a key: a row without keys is NaN as
    /// written, but 0 in an attention.
    fn is_causal_mask(&self, mask: ValueId, scores: &Shape) -> bool {
        matches!(self.graph.producer(mask).op, Op::CausalMask(q, k) if q <= k && scores.rank() == 3 && scores.dims()[1..] == [q, k])
    }

    /// A product or quotient by a constant: the factor and what it is applied to.
    fn factor(&self, value: ValueId) -> Option<(f32, ValueId)> {
        let g = self.graph;
        let node = g.producer(value);
        let (factor, inner) = match (&node.op, &node.inputs[..]) {
            (Op::Unary(Unary::Scale(c)), [x]) => (c.get(), *x),
            (Op::Binary(Binary::Mul), [a, b]) => match (g.fill(*a), g.fill(*b)) {
                (_, Some(c)) => (c, *a),
                (Some(c), None) => (c, *b),
                (None, None) => return None,
            },
            (Op::Binary(Binary::Div), [a, b]) => (1.0 / g.fill(*b)?, *a),
            _ => return None,
        };
        (factor.is_finite() && g.shape(inner) == g.shape(value)).then_some((factor, inner))
    }

    /// Whether heads can be one attention: the same factor, mask and sizes.
    fn agree(&self, a: &Head, b: &Head) -> bool {
        let shapes = |h: &Head| [self.graph.shape(h.q), self.graph.shape(h.k)];
        a.scale.to_bits() == b.scale.to_bits() && a.causal == b.causal && shapes(a) == shapes(b)
    }
}

/// Why the dropouts of heads cannot be one: an attention has one probability and one counter, and head h drops by
/// the random numbers of site + h.
fn dropouts_apart(heads: &[Head]) -> Option<&'static str> {
    let drawn = |h: &Head| h.dropout.map(|(d, counter)| (d.p.get().to_bits(), counter));
    if heads.iter().any(|h| drawn(h) != drawn(&heads[0])) {
        return Some("heads differ in dropout");
    }
    let sites: Vec<u32> = heads.iter().filter_map(|h| h.dropout).map(|(d, _)| d.site).collect();
    let next = |w: &[u32]| w[1] == w[0].wrapping_add(1);
    (!sites.windows(2).all(next)).then_some("the heads' dropouts are not at sites in a row")
}

/// Replaces heads by attentions. Heads whose scores or weights are read elsewhere, or whose concat has other parts as
/// well, stay as written.
pub(super) fn attention(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let plan = plan(graph, report);
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        let Some(heads) = plan.get(&id) else {
            r.copy(id)?;
            continue;
        };
        let scope = scope(&node.name);
        let name = within(scope, "attention");
        let mut inputs = Vec::with_capacity(4);
        for (part, of) in [("q", (|h| h.q) as fn(&Head) -> ValueId), ("k", |h| h.k), ("v", |h| h.v)] {
            let parts: Vec<ValueId> = heads.iter().map(|h| r.get(of(h))).collect();
            inputs.push(match parts[..] {
                [one] => one,
                _ => r.new.push(Op::Concat(2), parts, within(scope, part))?.into(),
            });
        }
        let Head { scale, causal, dropout, .. } = heads[0];
        inputs.extend(dropout.map(|(_, counter)| r.get(counter)));
        let attrs = AttentionAttrs {
            heads: heads.len(),
            scale: scale.into(),
            causal,
            mask: false,
            lengths: false,
            dropout: dropout.map(|(attrs, _)| attrs),
        };
        let new = r.new.push(Op::Attention(attrs), inputs, name.clone())?;
        r.set(id.into(), new.into());
        let (count, causal) = (heads.len(), if causal { "causal " } else { "" });
        report.add(PASS, format!("{name}: {count} head{} → one {causal}attention", if count == 1 { "" } else { "s" }));
    }
    r.finish()
}

/// Which nodes become attentions: concats of heads, and heads that no concat joins.
fn plan(graph: &Graph, report: &mut Report) -> BTreeMap<NodeId, Vec<Head>> {
    let m = Matcher { graph, uses: graph.use_counts() };
    let (mut plan, mut joined) = (BTreeMap::new(), BTreeSet::new());
    let small = |h: &Head| graph.shape(h.q).dims()[2] <= MAX_HEAD;
    let too_large = |h: &Head| format!("head size {} is over {MAX_HEAD}: left as written", graph.shape(h.q).dims()[2]);
    for (id, node) in graph.nodes().filter(|(_, n)| n.op == Op::Concat(2)) {
        joined.extend(node.inputs.iter().map(|v| v.node));
        let heads: Vec<Head> = node.inputs.iter().filter(|v| m.used_once(**v)).filter_map(|v| m.head(*v)).collect();
        let Some(first) = heads.first() else { continue };
        if heads.len() < node.inputs.len() {
            let what =
                format!("{}: {} of {} parts are heads: left as written", node.name, heads.len(), node.inputs.len());
            report.add(PASS, what);
        } else if !heads.iter().all(|h| m.agree(first, h)) {
            report.add(PASS, format!("{}: heads differ in scale, mask or size: left as written", node.name));
        } else if let Some(why) = dropouts_apart(&heads) {
            report.add(PASS, format!("{}: {why}: left as written", node.name));
        } else if !small(first) {
            report.add(PASS, format!("{}: {}", node.name, too_large(first)));
        } else {
            plan.insert(id, heads);
        }
    }
    for (id, node) in graph.nodes().filter(|(id, _)| !joined.contains(id)) {
        match m.head(id.into()) {
            Some(head) if small(&head) => {
                plan.insert(id, vec![head]);
            }
            Some(head) => report.add(PASS, format!("{}: {}", node.name, too_large(&head))),
            None => {}
        }
    }
    plan
}
