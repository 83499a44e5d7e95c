//! In: values that broadcast; out: one function of their elements. Knows [`Chain`]s, but not what precedes one.

use super::movement::stretch;
use super::parallel::{over_pieces, threads};
use super::{Value, scalar};
use crate::graph::{Binary, Chain, Comparison, DType, Shape};
use std::borrow::Cow;

/// Rough cost of one step of a chain, to decide on threads.
const STEP_COST: usize = 16;
/// Elements that a thread takes at once.
const PIECE: usize = 4096;

pub(super) fn binary(f: Binary, dtype: DType, a: &Value, b: &Value, shape: &Shape) -> Vec<f64> {
    let (a, b) = (stretch(a, shape), stretch(b, shape));
    let pairs = a.iter().zip(b.iter());
    if dtype.is_integer() {
        pairs.map(|(a, b)| scalar::integer(f, dtype, *a, *b)).collect()
    } else {
        pairs.map(|(a, b)| scalar::binary(f, *a, *b)).collect()
    }
}

/// 1 where the comparison holds, else 0.
pub(super) fn compare(c: Comparison, a: &Value, b: &Value, shape: &Shape) -> Vec<f64> {
    let (a, b) = (stretch(a, shape), stretch(b, shape));
    a.iter().zip(b.iter()).map(|(a, b)| f64::from(c.holds(a, b))).collect()
}

/// a where the condition holds, else b.
pub(super) fn select(cond: &Value, a: &Value, b: &Value, shape: &Shape) -> Vec<f64> {
    let (cond, a, b) = (stretch(cond, shape), stretch(a, shape), stretch(b, shape));
    cond.iter().zip(a.iter().zip(b.iter())).map(|(c, (a, b))| if *c != 0.0 { *a } else { *b }).collect()
}

/// `fill` where the mask holds, else x.
pub(super) fn masked_fill(x: &Value, mask: &Value, fill: f64) -> Vec<f64> {
    let mask = stretch(mask, &x.shape);
    x.data.iter().zip(mask.iter()).map(|(x, m)| if *m != 0.0 { fill } else { *x }).collect()
}

/// A chain over inputs, broadcast.
pub(super) fn elementwise(c: &Chain, inputs: &[&Value], shape: &Shape) -> Vec<f64> {
    chain(c, inputs.iter().map(|x| stretch(x, shape)).collect(), shape.elements())
}

/// A chain over a product as its input 0 and `extras`, broadcast to it.
pub(super) fn epilogue(c: &Chain, product: Vec<f64>, extras: &[&Value], shape: &Shape) -> Vec<f64> {
    let mut inputs = vec![Cow::Owned(product)];
    inputs.extend(extras.iter().map(|x| stretch(x, shape)));
    chain(c, inputs, shape.elements())
}

fn chain(chain: &Chain, inputs: Vec<Cow<'_, [f64]>>, elements: usize) -> Vec<f64> {
    let mut out = vec![0.0; elements];
    let work = elements.saturating_mul(chain.steps.len() * STEP_COST);
    over_pieces(&mut out, PIECE, threads(work), |piece, out| {
        let mut element = vec![0.0; inputs.len()];
        for (i, out) in out.iter_mut().enumerate() {
            for (slot, input) in element.iter_mut().zip(&inputs) {
                *slot = input[piece * PIECE + i];
            }
            *out = chain.eval(&element, scalar::round_f16, scalar::unary, scalar::binary);
        }
    });
    out
}
