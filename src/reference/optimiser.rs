//! In: a weight, its moments and its gradient; out: all but the gradient after a step. Knows no other op.

use super::Value;
use crate::graph::AdamAttrs;

/// New w, m and v, and w once more if it is wanted in f16; see [`AdamAttrs`].
pub(super) fn adam(a: &AdamAttrs, x: &[&Value]) -> Vec<Vec<f64>> {
    let [beta1, beta2, eps, decay] = [a.beta1, a.beta2, a.eps, a.weight_decay].map(|s| f64::from(s.get()));
    let (lr, correct1, correct2) = (x[4].data[0], x[4].data[1], x[4].data[2]);
    let (factor, counts) = x[4].data.get(3..5).map_or((1.0, true), |s| (s[0], s[1] != 0.0));
    let (mut w, mut m, mut v) = (x[0].data.clone(), x[1].data.clone(), x[2].data.clone());
    for i in (0..w.len()).filter(|_| counts) {
        let g = x[3].data[i] * factor + if a.decoupled { 0.0 } else { decay * w[i] };
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let kept = if a.decoupled { w[i] * (1.0 - lr * decay) } else { w[i] };
        w[i] = kept - lr * (m[i] / correct1) / ((v[i] / correct2).sqrt() + eps);
    }
    let narrow = a.narrow.then(|| w.clone());
    [w, m, v].into_iter().chain(narrow).collect()
}
