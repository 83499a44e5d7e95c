//! In: q, k, v with an optional mask, lengths and dropout; out: attention's output and log-sum-exp, or its gradients.
//! Knows no other op.

use super::dropout::Dropper;
use super::movement::indices;
use super::parallel::{over_pieces, threads};
use super::{ReferenceError, Value};
use crate::graph::{AttentionAttrs, Node, Shape};

/// An attention's operands and sizes.
struct Operands<'a> {
    q: &'a Value,
    k: &'a Value,
    v: &'a Value,
    mask: Option<(&'a [f64], Vec<usize>)>,
    lengths: Option<Vec<usize>>,
    counter: Option<&'a Value>,
    attrs: &'a AttentionAttrs,
    batch: usize,
    sq: usize,
    sk: usize,
    d: usize,
}

impl<'a> Operands<'a> {
    fn new(attrs: &'a AttentionAttrs, inputs: &[&'a Value], node: &Node) -> Result<Self, ReferenceError> {
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        let [batch, sq, width] = [0, 1, 2].map(|i| q.shape.dims()[i]);
        let (sk, heads) = (k.shape.dims()[1], attrs.heads);
        let mask = attrs
            .mask
            .then(|| (&inputs[3].data[..], inputs[3].shape.broadcast_strides(&Shape::from([batch, heads, sq, sk]))));
        let lengths = match attrs.lengths {
            true => Some(indices(inputs[3 + usize::from(attrs.mask)], sk + 1, "length", node)?),
            false => None,
        };
        let counter = attrs.dropout.map(|_| inputs[attrs.inputs() - 1]);
        Ok(Operands { q, k, v, mask, lengths, counter, attrs, batch, sq, sk, d: width / heads })
    }

    /// Elements of head h in row `row` of (B, S, H·D).
    fn head<'v>(&self, of: &'v Value, row: usize, h: usize) -> &'v [f64] {
        &of.data[row * of.shape.dims()[2] + h * self.d..][..self.d]
    }

    /// The keys that query i of head h sees, with their scores.
    fn scores(&self, b: usize, h: usize, i: usize) -> Vec<(usize, f64)> {
        let valid = self.lengths.as_ref().map_or(self.sk, |l| l[b]);
        let offset =
            if self.attrs.lengths { valid.saturating_sub(self.sq) as i64 } else { self.sk as i64 - self.sq as i64 };
        let keys = if self.attrs.causal { valid.min((i as i64 + offset + 1).max(0) as usize) } else { valid };
        let query = self.head(self.q, b * self.sq + i, h);
        let scale = f64::from(self.attrs.scale.get());
        let mut scores = Vec::with_capacity(keys);
        for j in 0..keys {
            let bias = self.mask.as_ref().map_or(0.0, |(m, s)| m[b * s[0] + h * s[1] + i * s[2] + j * s[3]]);
            if bias != f64::NEG_INFINITY {
                scores.push((j, dot(query, self.head(self.k, b * self.sk + j, h)) * scale + bias));
            }
        }
        scores
    }

    /// What dropout multiplies the weight of key j with.
    fn kept(&self, b: usize, h: usize) -> impl Fn(usize, usize) -> f64 + use<> {
        let (sq, sk) = (self.sq, self.sk);
        let dropper = match (self.attrs.dropout, self.counter) {
            (Some(mut dropout), Some(counter)) => {
                dropout.site = dropout.site.wrapping_add(h as u32);
                Some(Dropper::new(&dropout, counter))
            }
            _ => None,
        };
        move |i, j| dropper.as_ref().map_or(1.0, |d| d.factor((b * sq + i) * sk + j))
    }

    fn threads(&self) -> usize {
        threads(
            self.batch.saturating_mul(self.sq).saturating_mul(self.sk).saturating_mul(4 * self.d * self.attrs.heads),
        )
    }
}

/// Out (B, Sq, H·D) and log-sum-exp (B, H, Sq). A key that a query does not see is not read, nor is its value.
pub(super) fn attention(
    attrs: &AttentionAttrs,
    inputs: &[&Value],
    node: &Node,
) -> Result<[Vec<f64>; 2], ReferenceError> {
    let o = Operands::new(attrs, inputs, node)?;
    let (heads, d, sq) = (attrs.heads, o.d, o.sq);
    let width = heads * d;

    // a row (b, i) holds its outputs (H, D), then its log-sum-exps (H), so that threads can share the rows
    let mut rows = vec![0.0; o.batch * sq * (width + heads)];
    over_pieces(&mut rows, width + heads, o.threads(), |row, out| {
        let (b, i) = (row / sq, row % sq);
        let (out, lse) = out.split_at_mut(width);
        for h in 0..heads {
            let (scores, kept) = (o.scores(b, h, i), o.kept(b, h));
            let out = &mut out[h * d..(h + 1) * d];
            lse[h] = f64::NEG_INFINITY;
            if scores.is_empty() {
                continue;
            }
            let max = scores.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
            let mut sum = 0.0;
            for (j, score) in scores {
                let weight = (score - max).exp();
                sum += weight;
                let weight = weight * kept(i, j);
                out.iter_mut().zip(o.head(o.v, b * o.sk + j, h)).for_each(|(o, v)| *o += weight * v);
            }
            out.iter_mut().for_each(|o| *o /= sum);
            lse[h] = max + sum.ln();
        }
    });

    let mut out = Vec::with_capacity(o.batch * sq * width);
    let mut lse = vec![0.0; o.batch * heads * sq];
    for (row, values) in rows.chunks_exact(width + heads).enumerate() {
        out.extend_from_slice(&values[..width]);
        for h in 0..heads {
            lse[(row / sq * heads + h) * sq + row % sq] = values[width + h];
        }
    }
    Ok([out, lse])
}

/// dq, dk, dv from the inputs of an attention, then its out, log-sum-exp and dout (Dao, arXiv 2307.08691, section
/// 2.3.2): with p the weights, z dropout's factors and δ = Σ dout · out: dv = (p·z)ᵀ dout, dp = z · (dout vᵀ),
/// ds = p · (dp − δ), dq = scale · ds k, dk = scale · dsᵀ q.
pub(super) fn attention_grad(
    attrs: &AttentionAttrs,
    inputs: &[&Value],
    node: &Node,
) -> Result<Vec<Vec<f64>>, ReferenceError> {
    let n = attrs.inputs();
    let o = Operands::new(attrs, &inputs[..n], node)?;
    let (out, lse, dout) = (inputs[n], inputs[n + 1], inputs[n + 2]);
    let (d, sq, sk, heads) = (o.d, o.sq, o.sk, attrs.heads);
    let scale = f64::from(attrs.scale.get());

    // a head (b, h) holds its dq (Sq, D), dk and dv (Sk, D), so that threads can share the heads
    let piece = (sq + 2 * sk) * d;
    let mut all = vec![0.0; o.batch * heads * piece];
    over_pieces(&mut all, piece.max(1), o.threads(), |at, piece| {
        let (b, h) = (at / heads, at % heads);
        let kept = o.kept(b, h);
        let (dq, rest) = piece.split_at_mut(sq * d);
        let (dk, dv) = rest.split_at_mut(sk * d);
        for i in 0..sq {
            let (dout, query) = (o.head(dout, b * sq + i, h), o.head(o.q, b * sq + i, h));
            let delta = dot(dout, o.head(out, b * sq + i, h));
            let lse = lse.data[(b * heads + h) * sq + i];
            for (j, score) in o.scores(b, h, i) {
                let (key, value) = (o.head(o.k, b * sk + j, h), o.head(o.v, b * sk + j, h));
                let (p, z) = ((score - lse).exp(), kept(i, j));
                let ds = p * (z * dot(dout, value) - delta) * scale;
                for c in 0..d {
                    dv[j * d + c] += p * z * dout[c];
                    dq[i * d + c] += ds * key[c];
                    dk[j * d + c] += ds * query[c];
                }
            }
        }
    });

    // (B, H, S, D) pieces to (B, S, H·D)
    let spread = |start: usize, rows: usize| {
        let mut to = vec![0.0; o.batch * rows * heads * d];
        for (at, piece) in all.chunks_exact(piece.max(1)).enumerate() {
            let (b, h) = (at / heads, at % heads);
            for r in 0..rows {
                let place = ((b * rows + r) * heads + h) * d;
                to[place..place + d].copy_from_slice(&piece[start + r * d..][..d]);
            }
        }
        to
    };
    Ok(vec![spread(0, sq), spread(sq * d, sk), spread((sq + sk) * d, sk)])
}

/// A dot product in eight partial sums, which vectorise.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}
