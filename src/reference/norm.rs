//! In: rows or lines of a value; out: the same, normalised: softmax, layer norm, RMS norm. Knows no other op.

use super::Value;
use super::reduce::lines;

/// Softmax along an axis, or its logarithm. A line without a finite maximum is NaN, as IEEE arithmetic gives.
pub(super) fn softmax(x: &Value, axis: usize, log: bool) -> Vec<f64> {
    let mut out = x.data.clone();
    let (starts, len, step) = lines(&x.shape, axis);
    for start in starts {
        let line = || (0..len).map(|i| start + i * step);
        let max = line().map(|i| x.data[i]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line().map(|i| (x.data[i] - max).exp()).sum();
        for i in line() {
            let shifted = x.data[i] - max;
            out[i] = if log { shifted - sum.ln() } else { shifted.exp() / sum };
        }
    }
    out
}

/// Gradient of [`softmax`] from its result y.
pub(super) fn softmax_grad(y: &Value, dy: &Value, axis: usize, log: bool) -> Vec<f64> {
    let mut out = vec![0.0; y.data.len()];
    let (starts, len, step) = lines(&y.shape, axis);
    for start in starts {
        let line = || (0..len).map(|i| start + i * step);
        let sum: f64 = line().map(|i| if log { dy.data[i] } else { dy.data[i] * y.data[i] }).sum();
        for i in line() {
            out[i] = if log { dy.data[i] - y.data[i].exp() * sum } else { y.data[i] * (dy.data[i] - sum) };
        }
    }
    out
}

/// What a norm gives: y, then per row mean and rstd.
pub(super) struct Normed {
    pub(super) y: Vec<f64>,
    pub(super) mean: Vec<f64>,
    pub(super) rstd: Vec<f64>,
}

/// `(x − mean) · rstd · γ + β` over rows of γ's length; without β the mean is taken as 0 (RMS norm).
pub(super) fn norm(x: &[f64], rows: usize, gamma: &[f64], beta: Option<&[f64]>, eps: f64) -> Normed {
    let width = gamma.len();
    let mut out = Normed { y: Vec::with_capacity(x.len()), mean: Vec::new(), rstd: Vec::new() };
    for row in 0..rows {
        let x = &x[row * width..(row + 1) * width];
        let mean = if beta.is_some() { x.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let square = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / width as f64;
        let rstd = (square + eps).sqrt().recip();
        let shift = |i: usize| beta.map_or(0.0, |b| b[i]);
        out.y.extend(x.iter().zip(gamma).enumerate().map(|(i, (v, g))| (v - mean) * rstd * g + shift(i)));
        out.mean.push(mean);
        out.rstd.push(rstd);
    }
    out
}

/// Row r's centred and scaled x; without a mean it is taken as 0 (RMS norm).
fn normed<'a>(x: &'a Value, mean: Option<&'a Value>, rstd: &'a Value, r: usize) -> impl Fn(usize) -> f64 + 'a {
    let width = x.shape.last();
    move |i| (x.data[r * width + i] - mean.map_or(0.0, |m| m.data[r])) * rstd.data[r]
}

/// dx of a norm: rstd · (g − x̂ · mean(g · x̂) − mean(g)) with g = dy · γ, the last term for layer norm alone.
pub(super) fn norm_grad(x: &Value, gamma: &Value, mean: Option<&Value>, rstd: &Value, dy: &Value) -> Vec<f64> {
    let width = x.shape.last();
    let mut out = Vec::with_capacity(x.data.len());
    for r in 0..x.shape.rows() {
        let hat = normed(x, mean, rstd, r);
        let g = |i: usize| dy.data[r * width + i] * gamma.data[i];
        let along = (0..width).map(|i| g(i) * hat(i)).sum::<f64>() / width as f64;
        let level = if mean.is_some() { (0..width).map(g).sum::<f64>() / width as f64 } else { 0.0 };
        out.extend((0..width).map(|i| rstd.data[r] * (g(i) - hat(i) * along - level)));
    }
    out
}

/// dγ and dβ of a norm.
pub(super) fn norm_param_grad(x: &Value, mean: Option<&Value>, rstd: &Value, dy: &Value) -> [Vec<f64>; 2] {
    let width = x.shape.last();
    let (mut dgamma, mut dbeta) = (vec![0.0; width], vec![0.0; width]);
    for r in 0..x.shape.rows() {
        let hat = normed(x, mean, rstd, r);
        for i in 0..width {
            dgamma[i] += dy.data[r * width + i] * hat(i);
            dbeta[i] += dy.data[r * width + i];
        }
    }
    [dgamma, dbeta]
}
