//! In: q, k, v with an optional mask and lengths; out: attention's output and log-sum-exp. Knows no other op.

use super::movement::indices;
use super::parallel::{over_pieces, threads};
use super::{ReferenceError, Value};
use crate::graph::{AttentionAttrs, Node, Shape};

/// Out (B, Sq, H·D) and log-sum-exp (B, H, Sq). A key that a query does not see is not read, nor is its value.
pub(super) fn attention(
    attrs: &AttentionAttrs,
    inputs: &[&Value],
    node: &Node,
) -> Result<[Vec<f64>; 2], ReferenceError> {
    let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
    let [b, sq, width] = [0, 1, 2].map(|i| q.shape.dims()[i]);
    let (sk, heads) = (k.shape.dims()[1], attrs.heads);
    let d = width / heads;
    let scale = f64::from(attrs.scale.get());
    let mask = attrs.mask.then(|| {
        let strides = inputs[3].shape.broadcast_strides(&Shape::from([b, heads, sq, sk]));
        (&inputs[3].data, strides)
    });
    let lengths = match inputs.last() {
        Some(lengths) if attrs.lengths => Some(indices(lengths, sk + 1, "length", node)?),
        _ => None,
    };

    // a row (b, i) holds its outputs (H, D), then its log-sum-exps (H), so that threads can share the rows
    let mut rows = vec![0.0; b * sq * (width + heads)];
    let work = b.saturating_mul(sq).saturating_mul(sk).saturating_mul(4 * width);
    over_pieces(&mut rows, width + heads, threads(work), |row, out| {
        let (b, i) = (row / sq, row % sq);
        let valid = lengths.as_ref().map_or(sk, |l| l[b]);
        let offset = if attrs.lengths { valid.saturating_sub(sq) as i64 } else { sk as i64 - sq as i64 };
        let keys = if attrs.causal { valid.min((i as i64 + offset + 1).max(0) as usize) } else { valid };
        let (out, lse) = out.split_at_mut(width);
        for h in 0..heads {
            let of = |x: &'_ Value, at: usize| at * x.shape.dims()[2] + h * d;
            let query = &q.data[of(q, row)..][..d];
            let mut scores = Vec::with_capacity(keys);
            for j in 0..keys {
                let bias = mask.as_ref().map_or(0.0, |(m, s)| m[b * s[0] + h * s[1] + i * s[2] + j * s[3]]);
                if bias != f64::NEG_INFINITY {
                    let key = &k.data[of(k, b * sk + j)..][..d];
                    scores.push((b * sk + j, dot(query, key) * scale + bias));
                }
            }
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
                out.iter_mut().zip(&v.data[of(v, j)..]).for_each(|(o, v)| *o += weight * v);
            }
            out.iter_mut().for_each(|o| *o /= sum);
            lse[h] = max + sum.ln();
        }
    });

    let mut out = Vec::with_capacity(b * sq * width);
    let mut lse = vec![0.0; b * heads * sq];
    for (row, values) in rows.chunks_exact(width + heads).enumerate() {
        out.extend_from_slice(&values[..width]);
        for h in 0..heads {
            lse[(row / sq * heads + h) * sq + row % sq] = values[width + h];
        }
    }
    Ok([out, lse])
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
