//! Every op, and every function within an op, on values that are known.

use super::{Case, close};
use crate::graph::{
    Activation, AttentionAttrs, Binary, Chain, Comparison, DType, Extreme, Op, Reduction, Ref, Shape, Step, StorageId,
    Unary,
};
use DType::{Bool, F16, F32, I32, U32};
use std::collections::BTreeSet;

/// An op's number; a new op does not compile here until the table below has a row for it.
fn number(op: &Op) -> usize {
    match op {
        Op::Input => 0,
        Op::Parameter(_) => 1,
        Op::Constant(..) => 2,
        Op::Arange(_) => 3,
        Op::Matmul { .. } => 4,
        Op::Linear => 5,
        Op::Unary(_) => 6,
        Op::Binary(_) => 7,
        Op::Where => 8,
        Op::MaskedFill(_) => 9,
        Op::CausalMask(..) => 10,
        Op::Softmax(_) => 11,
        Op::LogSoftmax(_) => 12,
        Op::LayerNorm(_) => 13,
        Op::RmsNorm(_) => 14,
        Op::Embedding => 15,
        Op::Reduce { .. } => 16,
        Op::Arg(..) => 17,
        Op::Reshape(_) => 18,
        Op::Permute(_) => 19,
        Op::Slice { .. } => 20,
        Op::Concat(_) => 21,
        Op::Broadcast(_) => 22,
        Op::Cast(_) => 23,
        Op::Attention(_) => 24,
        Op::PickRow => 25,
        Op::Elementwise(_) => 26,
        Op::FusedMatmul { .. } => 27,
        Op::AddLayerNorm(_) => 28,
        Op::Compare(_) => 29,
        Op::Recompute(_) => 30,
        Op::LinearStack(_) => 31,
        Op::Magnitude => 32,
        // those of training stand in training.rs
        Op::Dropout(_)
        | Op::CrossEntropy(_)
        | Op::CrossEntropyGrad(_)
        | Op::SoftmaxGrad(_)
        | Op::LogSoftmaxGrad(_)
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::RmsNormGrad
        | Op::RmsNormParamGrad
        | Op::EmbeddingGrad(_)
        | Op::LinearGrad { .. }
        | Op::LinearStackGrad(_)
        | Op::LinearStackParamGrad
        | Op::AttentionGrad(_)
        | Op::Adam(_) => usize::MAX,
    }
}

type Input<'a> = (DType, &'a [usize], &'a [f64]);

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

#[test]
fn every_op_gives_its_known_value() {
    let mut seen = BTreeSet::new();
    let mut check = |op: Op, inputs: &[Input], expected: &[&[f64]]| {
        seen.insert(number(&op));
        let mut case = Case::default();
        let inputs: Vec<_> = inputs.iter().map(|(dtype, shape, values)| case.input(*dtype, *shape, values)).collect();
        let mut value = case.op(op, &inputs);
        for (output, expected) in expected.iter().enumerate() {
            value.output = output;
            close(&case.get(value), expected);
        }
        assert_eq!(case.graph.producer(value).outputs.len(), expected.len());
    };
    let chain = |arity, steps: &[Step]| Chain { arity, steps: steps.to_vec() };
    let (i0, i1) = (Ref::Input(0), Ref::Input(1));
    let six: Input = (F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let e = 1f64.exp();

    check(Op::Constant(2.5.into(), F32, [2].into()), &[], &[&[2.5, 2.5]]);
    check(Op::Constant(2.5.into(), I32, Shape::default()), &[], &[&[2.0]]);
    check(Op::Arange(3), &[], &[&[0.0, 1.0, 2.0]]);
    // a·aᵀ and aᵀ·a of [[1,2,3],[4,5,6]]
    let gram: &[f64] = &[17.0, 22.0, 27.0, 22.0, 29.0, 36.0, 27.0, 36.0, 45.0];
    check(Op::Matmul { transpose_a: false, transpose_b: true }, &[six, six], &[&[14.0, 32.0, 32.0, 77.0]]);
    check(Op::Matmul { transpose_a: true, transpose_b: false }, &[six, six], &[gram]);
    check(Op::Linear, &[six, (F32, &[1, 3], &[1.0, 0.0, -1.0]), (F32, &[1], &[10.0])], &[&[8.0, 8.0]]);
    check(Op::Linear, &[(F32, &[3], &[1.0, 2.0, 3.0]), (F32, &[1, 3], &[1.0, 0.0, -1.0])], &[&[-2.0]]);
    // (1, 2) → relu(1 − 2 + 1, 1 + 2 − 1) = (0, 2) → relu(0, 4 − 5)
    let layers: Input = (F32, &[2, 2, 2], &[1.0, -1.0, 1.0, 1.0, 3.0, 0.0, 0.0, 2.0]);
    let biases: Input = (F32, &[2, 2], &[1.0, -1.0, 0.5, -5.0]);
    let row: Input = (F32, &[1, 2], &[1.0, 2.0]);
    check(Op::LinearStack(Activation::Relu), &[row, layers, biases], &[&[0.5, 0.0], &[1.0, 2.0, 0.0, 2.0]]);
    check(Op::LinearStack(Activation::Identity), &[row, layers], &[&[-3.0, 6.0], &[1.0, 2.0, -1.0, 3.0]]);
    check(
        Op::FusedMatmul {
            transpose_a: false,
            transpose_b: true,
            epilogue: chain(2, &[Step::Binary(Binary::Add, i0, i1), Step::Unary(Unary::Relu, Ref::Step(0))]),
        },
        &[six, (F32, &[2, 3], &[1.0, 0.0, -1.0, 1.0, 1.0, 1.0]), (F32, &[2], &[1.0, -7.0])],
        &[&[0.0, 0.0, 0.0, 8.0]],
    );
    check(Op::Compare(Comparison::Less), &[(F32, &[3], &[1.0, NAN, 3.0]), (F32, &[1], &[3.0])], &[&[1.0, 0.0, 0.0]]);
    check(Op::Where, &[(Bool, &[2, 1], &[1.0, 0.0]), six, (F32, &[], &[0.0])], &[&[1.0, 2.0, 3.0, 0.0, 0.0, 0.0]]);
    check(Op::Where, &[(Bool, &[], &[1.0]), (I32, &[1], &[-7.0]), (I32, &[1], &[3.0])], &[&[-7.0]]);
    check(Op::MaskedFill((-1.0).into()), &[six, (Bool, &[3], &[0.0, 1.0, 0.0])], &[&[1.0, -1.0, 3.0, 4.0, -1.0, 6.0]]);
    check(Op::CausalMask(2, 3), &[], &[&[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]);
    check(Op::CausalMask(3, 2), &[], &[&[1.0, 1.0, 0.0, 1.0, 0.0, 0.0]]);
    check(Op::Softmax(1), &[(F32, &[1, 2], &[-INF, -INF])], &[&[NAN, NAN]]);
    check(Op::Softmax(0), &[(F32, &[2, 2], &[0.0, NAN, 0.0, 1.0])], &[&[0.5, NAN, 0.5, NAN]]);
    check(Op::LogSoftmax(0), &[(F32, &[2], &[0.0, 0.0])], &[&[-2f64.ln(), -2f64.ln()]]);
    let (gamma, beta): (Input, Input) = ((F32, &[2], &[2.0, 1.0]), (F32, &[2], &[0.0, 1.0]));
    let pair: Input = (F32, &[1, 2], &[1.0, 3.0]);
    check(Op::LayerNorm(0.0.into()), &[pair, gamma, beta], &[&[-2.0, 2.0], &[2.0], &[1.0]]);
    check(Op::RmsNorm(0.0.into()), &[(F32, &[2], &[1.0, 7.0]), gamma], &[&[0.4, 1.4], &[0.2]]);
    check(
        Op::AddLayerNorm(0.0.into()),
        &[(F32, &[1, 2], &[0.0, 2.0]), (F32, &[1], &[1.0]), gamma, beta],
        &[&[1.0, 3.0], &[-2.0, 2.0], &[2.0], &[1.0]],
    );
    check(Op::Embedding, &[six, (U32, &[2], &[1.0, 0.0])], &[&[4.0, 5.0, 6.0, 1.0, 2.0, 3.0]]);
    let reduce = |kind, axes: &[usize], keepdim| Op::Reduce { kind, axes: axes.to_vec(), keepdim };
    check(reduce(Reduction::Sum, &[0], false), &[six], &[&[5.0, 7.0, 9.0]]);
    check(reduce(Reduction::Mean, &[0, 1], false), &[six], &[&[3.5]]);
    check(reduce(Reduction::Max, &[1], true), &[six], &[&[3.0, 6.0]]);
    check(reduce(Reduction::Max, &[0], false), &[(F32, &[3], &[1.0, NAN, 3.0])], &[&[NAN]]);
    check(reduce(Reduction::Sum, &[], false), &[pair], &[&[1.0, 3.0]]);
    check(reduce(Reduction::AbsMax, &[1], false), &[(F32, &[2, 2], &[1.0, -3.0, 0.5, 0.25])], &[&[3.0, 0.5]]);
    check(reduce(Reduction::AbsMax, &[0], false), &[(F32, &[2], &[-INF, NAN])], &[&[NAN]]);
    check(Op::Magnitude, &[six, (F16, &[2], &[-8.0, 7.5]), (F32, &[0], &[])], &[&[8.0]]);
    check(Op::Magnitude, &[(F32, &[2], &[-INF, NAN]), six], &[&[NAN]]);
    check(Op::Arg(Extreme::Max, 1), &[(F32, &[2, 3], &[1.0, 5.0, 5.0, INF, NAN, NAN])], &[&[1.0, 1.0]]);
    check(Op::Arg(Extreme::Max, 0), &[six], &[&[1.0, 1.0, 1.0]]);
    check(Op::Reshape([3, 2].into()), &[six], &[six_values()]);
    check(Op::Recompute(2), &[six], &[six_values()]);
    check(Op::Permute(vec![1, 0]), &[six], &[&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]);
    check(Op::Permute(vec![]), &[(F32, &[], &[3.0])], &[&[3.0]]);
    check(
        Op::Permute(vec![2, 0, 1]),
        &[(F32, &[1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        &[&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]],
    );
    check(Op::Slice { axis: 1, start: 1, len: 2 }, &[six], &[&[2.0, 3.0, 5.0, 6.0]]);
    check(Op::Slice { axis: 0, start: 2, len: 0 }, &[six], &[&[]]);
    check(Op::Concat(1), &[pair, (F32, &[1, 1], &[9.0]), pair], &[&[1.0, 3.0, 9.0, 1.0, 3.0]]);
    check(Op::Concat(0), &[pair, pair], &[&[1.0, 3.0, 1.0, 3.0]]);
    check(Op::Broadcast([2, 2].into()), &[(F32, &[2, 1], &[1.0, 2.0])], &[&[1.0, 1.0, 2.0, 2.0]]);
    check(Op::Cast(I32), &[(F32, &[4], &[-1.9, 1.9, 1e20, NAN])], &[&[-1.0, 1.0, 2147483647.0, 0.0]]);
    check(Op::Cast(U32), &[(I32, &[1], &[-1.0])], &[&[4294967295.0]]);
    check(Op::Cast(I32), &[(U32, &[1], &[4294967295.0])], &[&[-1.0]]);
    check(Op::Cast(Bool), &[(F32, &[3], &[0.0, -0.5, NAN])], &[&[0.0, 1.0, 1.0]]);
    check(Op::Cast(F16), &[(F32, &[3], &[2049.0, 1e5, 0.1])], &[&[2048.0, INF, 0.0999755859375]]);
    check(Op::Cast(F32), &[(Bool, &[2], &[0.0, 1.0])], &[&[0.0, 1.0]]);
    let attrs =
        AttentionAttrs { heads: 1, scale: 1.0.into(), causal: false, mask: false, lengths: false, dropout: None };
    let keys: Input = (F32, &[1, 2, 1], &[0.0, 1.0]);
    let values: Input = (F32, &[1, 2, 1], &[1.0, 2.0]);
    check(
        Op::Attention(attrs),
        &[(F32, &[1, 1, 1], &[1.0]), keys, values],
        &[&[(1.0 + 2.0 * e) / (1.0 + e)], &[(1.0 + e).ln()]],
    );
    check(Op::PickRow, &[(F32, &[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]), (I32, &[2], &[1.0, 0.0])], &[&[2.0, 3.0]]);
    check(
        Op::Elementwise(chain(
            3,
            &[
                Step::Const(2.0.into()),
                Step::Binary(Binary::Mul, i0, Ref::Step(0)),
                Step::Unary(Unary::Neg, Ref::Step(1)),
                Step::Select(Ref::Input(2), Ref::Step(2), i1),
                Step::RoundF16(Ref::Step(3)),
            ],
        )),
        &[(F32, &[2, 1], &[1.0, 2.0]), (F32, &[], &[2049.0]), (Bool, &[2], &[1.0, 0.0])],
        &[&[-2.0, 2048.0, -4.0, 2048.0]],
    );
    check(Op::Unary(Unary::Exp), &[(F32, &[1], &[1.0])], &[&[e]]);
    check(Op::Binary(Binary::Sub), &[six, (F32, &[3], &[1.0, 2.0, 3.0])], &[&[0.0, 0.0, 0.0, 3.0, 3.0, 3.0]]);

    // sources are evaluated in `run`
    seen.extend([number(&Op::Input), number(&Op::Parameter(StorageId(0)))]);
    assert_eq!(seen, (0..33).collect(), "an op without a row");
}

fn six_values() -> &'static [f64] {
    &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
}

#[test]
fn every_unary_function() {
    let e = 1f64.exp();
    let table: [(Unary, &[f64], &[f64]); 12] = [
        (Unary::Scale((-0.5).into()), &[2.0, NAN], &[-1.0, NAN]),
        (Unary::Relu, &[NAN, -1.0, 2.0], &[NAN, 0.0, 2.0]),
        (Unary::GeluErf, &[0.0, 3.0], &[0.0, 2.995950307]),
        (Unary::GeluTanh, &[0.0, 3.0], &[0.0, 2.9963627]),
        (Unary::Silu, &[1.0, -1000.0], &[1.0 / (1.0 + 1.0 / e), 0.0]),
        (Unary::Tanh, &[0.5, INF], &[0.46211715726, 1.0]),
        (Unary::Sigmoid, &[0.0, -1000.0, 1000.0], &[0.5, 0.0, 1.0]),
        (Unary::Exp, &[0.0, -INF], &[1.0, 0.0]),
        (Unary::Log, &[1.0, 0.0, -1.0], &[0.0, -INF, NAN]),
        (Unary::Sqrt, &[9.0, -1.0], &[3.0, NAN]),
        (Unary::Rsqrt, &[16.0, 0.0], &[0.25, INF]),
        (Unary::Neg, &[1.0], &[-1.0]),
    ];
    let names: BTreeSet<_> = table.iter().map(|t| t.0.name()).collect();
    assert_eq!(names.len(), 12);
    for (f, x, y) in table {
        close(&super::apply(Op::Unary(f), &[(&[x.len()], x)]), y);
    }
}

#[test]
fn every_binary_function_of_floats_and_integers() {
    let run = |f, dtype, a: f64, b: f64| {
        let mut case = Case::default();
        let (a, b) = (case.input(dtype, [1], &[a]), case.input(dtype, [1], &[b]));
        let out = case.op(Op::Binary(f), &[a, b]);
        case.get(out)[0]
    };
    let (min, max) = (f64::from(i32::MIN), f64::from(i32::MAX));
    for (f, dtype, a, b, expected) in [
        (Binary::Add, F32, 1.5, 2.0, 3.5),
        (Binary::Add, F16, 2048.0, 1.0, 2048.0),
        (Binary::Add, I32, max, 1.0, min),
        (Binary::Sub, F32, 1.5, 2.0, -0.5),
        (Binary::Sub, U32, 0.0, 1.0, 4294967295.0),
        (Binary::Mul, F32, 1.5, 2.0, 3.0),
        (Binary::Mul, I32, 65536.0, 65537.0, 65536.0),
        (Binary::Mul, U32, 4294967295.0, 4294967295.0, 1.0),
        (Binary::Div, F32, 1.0, 0.0, INF),
        (Binary::Div, I32, -7.0, 2.0, -3.0),
        (Binary::Div, I32, 7.0, 0.0, 7.0),
        (Binary::Div, I32, min, -1.0, min),
        (Binary::Div, U32, 4294967295.0, 2.0, 2147483647.0),
        (Binary::Min, F32, 1.0, NAN, NAN),
        (Binary::Min, F32, 1.0, -2.0, -2.0),
        (Binary::Min, I32, 1.0, -2.0, -2.0),
        (Binary::Max, F32, NAN, 1.0, NAN),
        (Binary::Max, F32, 1.0, -2.0, 1.0),
        (Binary::Max, U32, 1.0, 4294967295.0, 4294967295.0),
        (Binary::Pow, F32, 2.0, -0.5, 0.5f64.sqrt()),
        (Binary::Pow, I32, -3.0, 3.0, -27.0),
        (Binary::Pow, I32, -1.0, -3.0, -1.0),
        (Binary::Pow, I32, 2.0, -1.0, 0.0),
        (Binary::Pow, U32, 2.0, 32.0, 0.0),
    ] {
        close(&[run(f, dtype, a, b)], &[expected]);
    }
}
