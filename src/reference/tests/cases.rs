//! Public reports of this field, by the ids that tests of every layer share.

use super::{Case, apply, close, noise};
use crate::graph::{AttentionAttrs, Binary, Chain, DType, Op, Reduction, Ref, Step, Unary, ValueId};

#[test]
fn a01_tanh_saturates() {
    let x = [43.0, 43.67, 44.0, 44.36, 44.5, 50.0, 88.0, 89.0, 100.0, 1000.0];
    close(&apply(Op::Unary(Unary::Tanh), &[(&[10], &x)]), &[1.0; 10]);
    close(&apply(Op::Unary(Unary::Tanh), &[(&[10], &x.map(|v| -v))]), &[-1.0; 10]);
}

#[test]
fn a04_gelu_tanh_of_far_negatives_vanishes() {
    let y = apply(Op::Unary(Unary::GeluTanh), &[(&[4], &[-13.0, -13.24, -20.0, -100.0])]);
    assert!(y.iter().all(|v| v.abs() < 1e-30), "{y:?}");
}

#[test]
fn a05_gelu_tanh_of_large_is_the_identity() {
    let x = [9.5, 10.0, 10.5, 13.5, 20.625, 100.0];
    close(&apply(Op::Unary(Unary::GeluTanh), &[(&[6], &x)]), &x);
}

#[test]
fn a07_the_two_gelus_differ() {
    let x: (&[usize], &[f64]) = (&[2], &[1.0, -1.0]);
    close(&apply(Op::Unary(Unary::GeluTanh), &[x]), &[0.84119199, -0.15880801]);
    close(&apply(Op::Unary(Unary::GeluErf), &[x]), &[0.84134475, -0.15865525]);
}

#[test]
fn s01_s02_s08_softmax() {
    close(&apply(Op::Softmax(0), &[(&[3], &[1000.0, 1001.0, 1002.0])]), &[0.09003057, 0.24472847, 0.66524096]);
    close(&apply(Op::Softmax(0), &[(&[2], &[-1000.0, -1000.0])]), &[0.5, 0.5]);
    close(&apply(Op::Softmax(0), &[(&[2, 2], &[0.0, 1.0, 0.0, 1.0])]), &[0.5; 4]);
}

#[test]
fn s11_log_softmax_of_large_logits() {
    let x = [-1e7, -1e7 + 1.0, -1e7 + 2.0];
    close(&apply(Op::LogSoftmax(0), &[(&[3], &x)]), &[-2.4076060, -1.4076060, -0.4076060]);
}

struct Attention {
    case: Case,
    out: ValueId,
    lse: ValueId,
}

/// One head of size 1 with q = 0, so that a row is the mean of the values that it sees.
fn uniform(causal: bool, sq: usize, values: &[&[f64]], mask: Option<&[f64]>, lengths: Option<&[f64]>) -> Attention {
    let mut case = Case::default();
    let (b, sk) = (values.len(), values[0].len());
    let q = case.f32([b, sq, 1], &vec![0.0; b * sq]);
    let kv = case.f32([b, sk, 1], &values.concat());
    let mut inputs = vec![q, kv, kv];
    inputs.extend(mask.map(|m| case.f32([sq, sk], m)));
    inputs.extend(lengths.map(|l| case.input(DType::I32, [b], l)));
    let (mask, lengths) = (mask.is_some(), lengths.is_some());
    let attrs = AttentionAttrs { heads: 1, scale: 1.0.into(), causal, mask, lengths, dropout: None };
    let out = case.op(Op::Attention(attrs), &inputs);
    Attention { case, out, lse: ValueId { output: 1, ..out } }
}

#[test]
fn t01_a_row_without_a_visible_key_is_zero() {
    let hidden = f64::NEG_INFINITY;
    let a = uniform(false, 2, &[&[1.0, f64::NAN]], Some(&[hidden, hidden, 0.0, hidden]), None);
    close(&a.case.get(a.out), &[0.0, 1.0]);
    close(&a.case.get(a.lse), &[hidden, 0.0]);
}

#[test]
fn t03_causal_is_aligned_at_the_bottom_right() {
    let a = uniform(true, 2, &[&[1.0, 2.0, 3.0, 4.0, 5.0]], None, None);
    close(&a.case.get(a.out), &[2.5, 3.0]);
}

#[test]
fn t04_more_queries_than_keys() {
    let a = uniform(true, 5, &[&[1.0, 2.0]], None, None);
    close(&a.case.get(a.out), &[0.0, 0.0, 0.0, 1.0, 1.5]);
    close(&a.case.get(a.lse), &[f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0, 2f64.ln()]);
}

#[test]
fn t05_what_lies_past_the_length_is_never_read() {
    let row = |valid: usize| (0..8).map(|i| if i < valid { i as f64 + 1.0 } else { f64::NAN }).collect::<Vec<_>>();
    for causal in [false, true] {
        let a = uniform(causal, 1, &[&row(1), &row(3)], None, Some(&[1.0, 3.0]));
        close(&a.case.get(a.out), &[1.0, 2.0]);
    }
}

#[test]
fn t08_lengths_with_padding_on_the_right() {
    let values: &[f64] = &[1.0, 2.0, 3.0];
    let out = uniform(true, 3, &[values, values], None, Some(&[1.0, 3.0]));
    let out = out.case.get(out.out);
    close(&out[..1], &[1.0]);
    close(&out[3..], &[1.0, 1.5, 2.0]);
}

#[test]
fn attention_is_matmul_softmax_matmul_per_head() {
    let (b, s, t, heads, d) = (2, 70, 90, 3, 11);
    let mut case = Case::default();
    let width = heads * d;
    let q = case.f32([b, s, width], &noise(b * s * width, 1));
    let k = case.f32([b, t, width], &noise(b * t * width, 2));
    let v = case.f32([b, t, width], &noise(b * t * width, 3));
    let attrs = AttentionAttrs { heads, scale: 0.5.into(), causal: true, mask: true, lengths: false, dropout: None };
    let mask = case.f32([heads, 1, t], &noise(heads * t, 4));
    let fused = case.op(Op::Attention(attrs), &[q, k, v, mask]);

    let mut split = |x: ValueId, len: usize| {
        let x = case.op(Op::Reshape([b, len, heads, d].into()), &[x]);
        case.op(Op::Permute(vec![0, 2, 1, 3]), &[x])
    };
    let (q, k, v) = (split(q, s), split(k, t), split(v, t));
    let scores = case.op(Op::Matmul { transpose_a: false, transpose_b: true }, &[q, k]);
    let scores = case.op(Op::Unary(Unary::Scale(0.5.into())), &[scores]);
    let scores = case.op(Op::Binary(Binary::Add), &[scores, mask]);
    let future = case.op(Op::CausalMask(s, t), &[]);
    let scores = case.op(Op::MaskedFill(f32::NEG_INFINITY.into()), &[scores, future]);
    let weights = case.op(Op::Softmax(3), &[scores]);
    let out = case.op(Op::Matmul { transpose_a: false, transpose_b: false }, &[weights, v]);
    let out = case.op(Op::Permute(vec![0, 2, 1, 3]), &[out]);
    let out = case.op(Op::Reshape([b, s, width].into()), &[out]);
    close(&case.get(fused), &case.get(out));
}

#[test]
fn m04_a_result_used_twice() {
    let mut case = Case::default();
    let h = case.f32([4, 3], &[0.9, 0.8, -0.9, 0.1, 0.45, -0.6, -0.25, -0.41, 0.51, 0.6, 0.1, 0.0]);
    let v = case.f32([3, 1], &[0.3, -0.2, 0.1]);
    let out = case.op(Op::Matmul { transpose_a: false, transpose_b: false }, &[h, v]);
    let twice = case.op(Op::Binary(Binary::Add), &[out, out]);
    close(&case.get(out), &[0.02, -0.12, 0.058, 0.16]);
    close(&case.get(twice), &[0.04, -0.24, 0.116, 0.32]);
}

#[test]
fn m15_the_bias_is_scaled_too() {
    let add = Step::Binary(Binary::Add, Ref::Input(0), Ref::Input(1));
    let scale = Step::Unary(Unary::Scale(0.1.into()), Ref::Step(0));
    let epilogue = Chain { arity: 2, steps: vec![add, scale] };
    let op = Op::FusedMatmul { transpose_a: false, transpose_b: false, epilogue };
    let out = apply(op, &[(&[32, 15], &[1.0; 480]), (&[15, 15], &[1.0; 225]), (&[15], &[1.0; 15])]);
    close(&out, &[1.6; 480]);
}

#[test]
fn n01_epsilon_is_within_the_root() {
    let x = [0.0, 1e-3, 2e-3, 3e-3];
    let out = apply(Op::LayerNorm(1e-5.into()), &[(&[4], &x), (&[4], &[1.0; 4]), (&[4], &[0.0; 4])]);
    let expected = [-0.4472136, -0.1490712, 0.1490712, 0.4472136];
    assert!(out.iter().zip(expected).all(|(o, e)| (o - e).abs() < 1e-7), "{out:?}");
}

#[test]
fn n03_a_constant_row_gives_beta() {
    let beta = noise(768, 5);
    let out = apply(Op::LayerNorm(1e-5.into()), &[(&[768], &[5.0; 768]), (&[768], &noise(768, 6)), (&[768], &beta)]);
    assert_eq!(out, beta);
}

#[test]
fn r08_a_mean_of_many_ones() {
    let op = Op::Reduce { kind: Reduction::Mean, axes: vec![0], keepdim: false };
    assert_eq!(apply(op, &[(&[200_000], &vec![1.0; 200_000])]), [1.0]);
}

#[test]
fn r11_nothing_to_reduce_or_join() {
    let reduce = |kind, axis| {
        let op = Op::Reduce { kind, axes: vec![axis], keepdim: false };
        apply(op, &[(&[2, 0], &[])])
    };
    close(&reduce(Reduction::Sum, 1), &[0.0, 0.0]);
    close(&reduce(Reduction::Mean, 1), &[f64::NAN, f64::NAN]);
    close(&reduce(Reduction::Max, 1), &[f64::NEG_INFINITY, f64::NEG_INFINITY]);
    close(&reduce(Reduction::Sum, 0), &[]);
    close(&apply(Op::Concat(0), &[(&[0, 2], &[]), (&[1, 2], &[1.0, 2.0])]), &[1.0, 2.0]);
    close(&apply(Op::Softmax(1), &[(&[2, 0], &[])]), &[]);
    let product = Op::Matmul { transpose_a: false, transpose_b: false };
    close(&apply(product.clone(), &[(&[2, 0], &[]), (&[0, 1], &[])]), &[0.0, 0.0]);
    close(&apply(product, &[(&[0, 2, 3], &[]), (&[3, 1], &[1.0; 3])]), &[]);
}
