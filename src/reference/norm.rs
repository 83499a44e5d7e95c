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
