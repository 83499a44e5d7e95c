//! Attention's gradients against central differences, with masks, lengths, dropout and queries that see no key.

use crate::differences::{Check, Seen};
use crate::rules::COUNTER;
use kiln::graph::{AttentionAttrs, DType, DropoutAttrs, Op, Shape, ValueId};

/// Queries, keys and what an attention has beside them.
#[derive(Clone, Copy, Debug)]
struct Form {
    queries: usize,
    keys: usize,
    causal: bool,
    mask: Option<&'static [usize]>,
    lengths: bool,
    dropout: bool,
}

fn forward(c: &mut Check, f: Form, q: ValueId, k: ValueId, v: ValueId) -> ValueId {
    let mut inputs = vec![q, k, v];
    if let Some(dims) = f.mask {
        let n = Shape::from(dims).elements();
        let hidden = |i| if i % 4 == 1 { f64::NEG_INFINITY } else { 0.3 * i as f64 / n as f64 };
        let values: Vec<f64> = (0..n).map(hidden).collect();
        inputs.push(c.given(DType::F32, dims, &values));
    }
    if f.lengths {
        inputs.push(c.given(DType::I32, &[2], &[f.keys as f64, 1.0]));
    }
    if f.dropout {
        inputs.push(c.given(DType::U32, &[3], &COUNTER));
    }
    let dropout = f.dropout.then_some(DropoutAttrs { p: 0.3.into(), site: 5 });
    let (mask, lengths) = (f.mask.is_some(), f.lengths);
    let attrs = AttentionAttrs { heads: 3, scale: 0.6.into(), causal: f.causal, mask, lengths, dropout };
    c.op(Op::Attention(attrs), &inputs)
}

/// Every form against differences.
pub fn forms(seen: &mut Seen) {
    let plain = Form { queries: 3, keys: 5, causal: false, mask: None, lengths: false, dropout: false };
    let forms = [
        plain,
        Form { causal: true, ..plain },
        Form { causal: true, keys: 3, ..plain },
        // the first queries see no key
        Form { causal: true, queries: 5, keys: 3, ..plain },
        Form { queries: 1, keys: 1, ..plain },
        Form { mask: Some(&[3, 5]), ..plain },
        Form { mask: Some(&[2, 3, 1, 5]), causal: true, ..plain },
        Form { lengths: true, ..plain },
        Form { lengths: true, causal: true, ..plain },
        Form { dropout: true, ..plain },
        Form { dropout: true, causal: true, lengths: true, mask: Some(&[1, 5]), ..plain },
    ];
    for f in forms {
        seen.check(&format!("{f:?}"), |c| {
            let (q, k, v) = (c.x(&[2, f.queries, 6]), c.x(&[2, f.keys, 6]), c.x(&[2, f.keys, 6]));
            forward(c, f, q, k, v)
        });
    }
    seen.check("self-attention over one value", |c| {
        let x = c.x(&[2, 3, 6]);
        forward(c, Form { causal: true, keys: 3, ..plain }, x, x, x)
    });
    seen.check("q, k and v packed", |c| {
        let packed = c.x(&[2, 3, 18]);
        let [q, k, v] = [0, 6, 12].map(|start| c.op(Op::Slice { axis: 2, start, len: 6 }, &[packed]));
        forward(c, Form { causal: true, keys: 3, ..plain }, q, k, v)
    });
}
