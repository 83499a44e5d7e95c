//! Every op of training on values that are known.

use super::{Case, close};
use crate::graph::{Activation, AdamAttrs, AttentionAttrs, CrossEntropyAttrs, DType, DropoutAttrs, Op, ValueId};
use DType::{F16, F32, I32, U32};
use std::collections::BTreeSet;

/// An op's number; `None` for those that stand in ops.rs, where a new op is missed.
fn number(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Dropout(_) => 0,
        Op::CrossEntropy(_) => 1,
        Op::CrossEntropyGrad(_) => 2,
        Op::SoftmaxGrad(_) => 3,
        Op::LogSoftmaxGrad(_) => 4,
        Op::LayerNormGrad => 5,
        Op::LayerNormParamGrad => 6,
        Op::RmsNormGrad => 7,
        Op::RmsNormParamGrad => 8,
        Op::EmbeddingGrad(_) => 9,
        Op::LinearGrad { .. } => 10,
        Op::AttentionGrad(_) => 11,
        Op::Adam(_) => 12,
        Op::LinearStackGrad(_) => 13,
        Op::LinearStackParamGrad => 14,
        _ => return None,
    })
}

type Input<'a> = (DType, &'a [usize], &'a [f64]);

fn cross_entropy(axis: usize, ignore_index: Option<i32>, label_smoothing: f32) -> CrossEntropyAttrs {
    CrossEntropyAttrs { axis, ignore_index, label_smoothing: label_smoothing.into() }
}

fn adam(beta2: f32, weight_decay: f32, decoupled: bool) -> Op {
    let (beta1, beta2, eps) = (0.9.into(), beta2.into(), 1e-8.into());
    Op::Adam(AdamAttrs { beta1, beta2, eps, weight_decay: weight_decay.into(), decoupled, narrow: false })
}

#[test]
fn every_op_of_training_gives_its_known_value() {
    let mut seen = BTreeSet::new();
    let mut check = |op: Op, inputs: &[Input], expected: &[&[f64]]| {
        seen.extend(number(&op));
        let mut case = Case::default();
        let inputs: Vec<_> = inputs.iter().map(|(dtype, shape, values)| case.input(*dtype, *shape, values)).collect();
        let mut value = case.op(op, &inputs);
        for (output, expected) in expected.iter().enumerate() {
            value.output = output;
            close(&case.get(value), expected);
        }
        assert_eq!(case.graph.producer(value).outputs.len(), expected.len());
    };
    let e = 1f64.exp();
    let (p0, p1, lse) = (1.0 / (1.0 + e), e / (1.0 + e), (1.0 + e).ln());

    // the first words of philox at zero: 6627e8d5 e169c58d bc57ac4c 9b00dbd8
    let (four, counter): (Input, Input) = ((F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), (U32, &[3], &[0.0; 3]));
    check(Op::Dropout(DropoutAttrs { p: 0.5.into(), site: 0 }), &[four, counter], &[&[0.0, 4.0, 6.0, 8.0]]);
    check(Op::Dropout(DropoutAttrs { p: 0.75.into(), site: 0 }), &[four, counter], &[&[0.0, 8.0, 0.0, 0.0]]);
    check(Op::Dropout(DropoutAttrs { p: 0.0.into(), site: 7 }), &[four, counter], &[&[1.0, 2.0, 3.0, 4.0]]);

    let (logits, target): (Input, Input) = ((F32, &[1, 2], &[0.0, 1.0]), (I32, &[1], &[1.0]));
    check(Op::CrossEntropy(cross_entropy(1, None, 0.0)), &[logits, target], &[&[lse - 1.0], &[lse]]);
    let ignored = cross_entropy(1, Some(1), 0.0);
    check(Op::CrossEntropy(ignored), &[logits, target], &[&[0.0], &[lse]]);
    // half of it for the target, half of it for the mean of both
    let smooth = cross_entropy(0, None, 0.5);
    let column: Input = (F32, &[2, 1], &[0.0, 1.0]);
    check(Op::CrossEntropy(smooth), &[column, target], &[&[0.5 * (lse - 1.0) + 0.5 * (lse - 0.5)], &[lse]]);
    let (sums, twice): (Input, Input) = ((F32, &[1], &[1.3132616875182228]), (F32, &[1], &[2.0]));
    check(Op::CrossEntropyGrad(smooth), &[column, target, sums, twice], &[&[2.0 * (p0 - 0.25), 2.0 * (p1 - 0.75)]]);
    check(Op::CrossEntropyGrad(ignored), &[logits, target, sums, twice], &[&[0.0, 0.0]]);

    let (quarters, first): (Input, Input) = ((F32, &[1, 2], &[0.25, 0.75]), (F32, &[1, 2], &[1.0, 0.0]));
    check(Op::SoftmaxGrad(1), &[quarters, first], &[&[0.1875, -0.1875]]);
    check(Op::SoftmaxGrad(0), &[quarters, first], &[&[0.1875, 0.0]]);
    let logs = [0.25f64.ln(), 0.75f64.ln()];
    check(Op::LogSoftmaxGrad(1), &[(F32, &[1, 2], &logs), first], &[&[0.75, -0.75]]);

    let (row, ones): (Input, Input) = ((F32, &[1, 3], &[-1.0, 0.0, 1.0]), (F32, &[3], &[1.0; 3]));
    let dy: Input = (F32, &[1, 3], &[1.0, 0.0, 0.0]);
    let (mean, rstd): (Input, Input) = ((F32, &[1], &[0.0]), (F32, &[1], &[2.0]));
    check(Op::LayerNormGrad, &[row, ones, mean, rstd, dy], &[&[-4.0 / 3.0, -2.0 / 3.0, 2.0]]);
    let rows: Input = (F32, &[2, 3], &[-1.0, 0.0, 1.0, 1.0, 1.0, 4.0]);
    let dys: Input = (F32, &[2, 3], &[1.0, 2.0, 3.0, 1.0, 1.0, 1.0]);
    let (means, rstds): (Input, Input) = ((F32, &[2], &[0.0, 2.0]), (F32, &[2], &[2.0, 1.0]));
    check(Op::LayerNormParamGrad, &[rows, means, rstds, dys], &[&[-3.0, -1.0, 8.0], &[2.0, 3.0, 4.0]]);
    let (pair, gamma, half): (Input, Input, Input) =
        ((F32, &[1, 2], &[1.0, 2.0]), (F32, &[2], &[1.0, 3.0]), (F32, &[1], &[0.5]));
    let dy: Input = (F32, &[1, 2], &[2.0, 1.0]);
    check(Op::RmsNormGrad, &[pair, gamma, half, dy], &[&[0.5, 0.5]]);
    check(Op::RmsNormParamGrad, &[pair, half, dy], &[&[1.0, 1.0]]);

    let indices: Input = (I32, &[2, 2], &[0.0, 0.0, 1.0, 0.0]);
    check(Op::EmbeddingGrad(4), &[(F32, &[2, 2, 1], &[1.0; 4]), indices], &[&[3.0, 1.0, 0.0, 0.0]]);
    let (x, dy): (Input, Input) = ((F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), (F32, &[2, 1], &[1.0, 10.0]));
    check(Op::LinearGrad { bias: true }, &[x, dy], &[&[31.0, 42.0], &[11.0]]);
    check(Op::LinearGrad { bias: false }, &[(F32, &[2], &[1.0, 2.0]), (F32, &[1], &[3.0])], &[&[3.0, 6.0]]);

    // dy = (1, 1): the second ReLU stops its second column, the first the first
    let layers: Input = (F32, &[2, 2, 2], &[1.0, -1.0, 1.0, 1.0, 3.0, 4.0, 0.0, 2.0]);
    let kept: Input = (F32, &[2, 1, 2], &[1.0, 2.0, 0.0, 2.0]);
    let (y, dy): (Input, Input) = ((F32, &[1, 2], &[0.5, 0.0]), (F32, &[1, 2], &[1.0, 1.0]));
    let dz = [0.0, 4.0, 1.0, 0.0];
    check(Op::LinearStackGrad(Activation::Relu), &[layers, kept, y, dy], &[&[4.0, 4.0], &dz]);
    check(
        Op::LinearStackParamGrad,
        &[kept, (F32, &[2, 1, 2], &dz)],
        &[&[0.0, 0.0, 4.0, 8.0, 0.0, 2.0, 0.0, 0.0], &[0.0, 4.0, 1.0, 0.0]],
    );

    let attrs =
        AttentionAttrs { heads: 1, scale: 1.0.into(), causal: false, mask: false, lengths: false, dropout: None };
    let (one, keys, values): (Input, Input, Input) =
        ((F32, &[1, 1, 1], &[1.0]), (F32, &[1, 2, 1], &[0.0, 1.0]), (F32, &[1, 2, 1], &[1.0, 2.0]));
    let out = [p0 + 2.0 * p1];
    let (out, lse): (Input, Input) = ((F32, &[1, 1, 1], &out), (F32, &[1, 1, 1], &[1.3132616875182228]));
    check(
        Op::AttentionGrad(attrs),
        &[one, keys, values, out, lse, one],
        &[&[p0 * p1], &[-p0 * p1, p0 * p1], &[p0, p1]],
    );

    let one: Input = (F32, &[1], &[1.0]);
    let zero: Input = (F32, &[1], &[0.0]);
    check(
        adam(0.5, 0.0, false),
        &[one, zero, zero, (F16, &[1], &[0.5]), (F32, &[3], &[0.25, 0.5, 0.5])],
        // m = 0.05, v = 0.125: 1 − 0.25 · 0.1 / 0.5
        &[&[0.95], &[0.05], &[0.125]],
    );
    // the same from twice a quarter; and a step that does not count, of whatever gradient
    for (gradient, limits, after) in [(0.25, [2.0, 1.0], [0.95, 0.05, 0.125]), (f64::NAN, [2.0, 0.0], [1.0, 0.0, 0.0])]
    {
        let scalars = [0.25, 0.5, 0.5, limits[0], limits[1]];
        let inputs: [Input; 5] = [one, zero, zero, (F32, &[1], &[gradient]), (F32, &[5], &scalars)];
        check(adam(0.5, 0.0, false), &inputs, &[&after[..1], &after[1..2], &after[2..]]);
    }
    assert_eq!(seen, (0..15).collect(), "an op without a row");
}

/// Steps of Adam from w = 1 with rate 0.1 and betas 0.9 and 0.999, one a gradient; each gives w, m, v.
fn steps(weight_decay: f32, decoupled: bool, gradients: &[f64]) -> Vec<[f64; 3]> {
    let mut state = [1.0, 0.0, 0.0];
    let mut all = Vec::new();
    for (t, g) in gradients.iter().enumerate() {
        let correct = |beta: f32| 1.0 - f64::from(beta).powi(t as i32 + 1);
        let mut case = Case::default();
        let [w, m, v, g] = [state[0], state[1], state[2], *g].map(|x| case.f32([1], &[x]));
        let scalars = case.f32([3], &[0.1, correct(0.9), correct(0.999)]);
        let node = case.op(adam(0.999, weight_decay, decoupled), &[w, m, v, g, scalars]).node;
        state = [0, 1, 2].map(|output| case.get(ValueId { node, output })[0]);
        all.push(state);
    }
    all
}

#[test]
fn g07_adam_corrects_its_first_moments() {
    close(&steps(0.0, false, &[0.5])[0], &[0.900000002, 0.05, 0.00025]);
}

#[test]
fn g09_adamw_decays_the_weight_itself() {
    let steps = steps(0.1, true, &[0.5, -0.25]);
    close(&[steps[0][0], steps[1][0]], &[0.890000002, 0.8544662987]);
}

#[test]
fn g10_adam_decays_through_the_gradient() {
    let steps = steps(0.1, false, &[0.5, -0.25]);
    close(&steps[0], &[0.9000000017, 0.06, 0.00036]);
    close(&steps[1], &[0.8544413675, 0.038, 0.00038524]);
}

#[test]
fn g11_no_gradient_is_no_step_and_a_small_one_is_finite() {
    assert_eq!(steps(0.0, false, &[0.0]), [[1.0, 0.0, 0.0]]);
    // its square and ε would be 0 in f16
    assert!((steps(0.0, false, &[0.0001875])[0][0] - 0.9).abs() < 1e-4);
}
