//! Every rule against central differences, on shapes that are small and odd.

use crate::attention;
use crate::differences::{Check, Seen};
use kiln::graph::{
    Activation, Binary, Comparison, CrossEntropyAttrs, DType, DropoutAttrs, Extreme, Op, Reduction, Shape, Unary,
    ValueId,
};
use std::collections::BTreeSet;

/// The number of an op's rule; a new op does not compile here until it has one or is known to have none.
fn rule(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Matmul { .. } => 0,
        Op::Linear => 1,
        Op::Unary(f) => 2 + unary_rule(*f),
        Op::Binary(f) => 15 + binary_rule(*f),
        Op::Where => 22,
        Op::MaskedFill(_) => 23,
        Op::Softmax(_) => 24,
        Op::LogSoftmax(_) => 25,
        Op::LayerNorm(_) => 26,
        Op::RmsNorm(_) => 27,
        Op::Embedding => 28,
        Op::Reduce { kind: Reduction::Sum, .. } => 29,
        Op::Reduce { kind: Reduction::Mean, .. } => 30,
        Op::Reduce { kind: Reduction::Max, .. } => 31,
        Op::Reshape(_) => 32,
        Op::Permute(_) => 33,
        Op::Slice { .. } => 34,
        Op::Concat(_) => 35,
        Op::Broadcast(_) => 36,
        Op::Cast(_) => 37,
        Op::Attention(_) => 38,
        Op::PickRow => 39,
        Op::Dropout(_) => 40,
        Op::CrossEntropy(_) => 41,
        Op::Recompute(_) => 42,
        Op::LinearStack(_) => 43,
        Op::Reduce { kind: Reduction::AbsMax, .. } => 44,
        // without inputs, or with a result that has no gradient
        Op::Input
        | Op::Parameter(_)
        | Op::Constant(..)
        | Op::Arange(_)
        | Op::Compare(_)
        | Op::CausalMask(..)
        | Op::Arg(..) => return None,
        // refused
        Op::CrossEntropyGrad(_)
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
        | Op::Adam(_)
        | Op::Magnitude
        | Op::Elementwise(_)
        | Op::FusedMatmul { .. }
        | Op::AddLayerNorm(_) => return None,
    })
}

fn unary_rule(f: Unary) -> usize {
    match f {
        Unary::Scale(_) => 0,
        Unary::Relu => 1,
        Unary::GeluErf => 2,
        Unary::GeluTanh => 3,
        Unary::Silu => 4,
        Unary::Tanh => 5,
        Unary::Sigmoid => 6,
        Unary::Exp => 7,
        Unary::Log => 8,
        Unary::Sqrt => 9,
        Unary::Rsqrt => 10,
        Unary::Neg => 11,
        Unary::NormalCdf => 12,
    }
}

fn binary_rule(f: Binary) -> usize {
    match f {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
        Binary::Div => 3,
        Binary::Min => 4,
        Binary::Max => 5,
        Binary::Pow => 6,
    }
}

/// Functions of any number.
const UNARY: [Unary; 9] = [
    Unary::Relu,
    Unary::GeluErf,
    Unary::GeluTanh,
    Unary::Silu,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Exp,
    Unary::Neg,
    Unary::NormalCdf,
];

const BINARY: [Binary; 7] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max, Binary::Pow];

/// Seed and step of dropouts.
pub const COUNTER: [f64; 3] = [11.0, 12.0, 13.0];

#[test]
fn every_rule_gives_central_differences() {
    let mut seen = Seen::default();
    unary(&mut seen);
    binary(&mut seen);
    conditions(&mut seen);
    movement(&mut seen);
    products(&mut seen);
    stacks(&mut seen);
    rows(&mut seen);
    reductions(&mut seen);
    losses(&mut seen);
    attention::forms(&mut seen);
    let rules: BTreeSet<usize> = seen.0.iter().filter_map(rule).collect();
    assert_eq!(rules, (0..45).collect(), "a rule without a check");
}

fn unary(seen: &mut Seen) {
    for f in UNARY {
        seen.check(f.name(), |c| {
            let x = c.x_of(&[3, 5], |v| 4.0 * v);
            c.op(Op::Unary(f), &[x])
        });
    }
    seen.check("scale", |c| {
        let x = c.x(&[7]);
        c.op(Op::Unary(Unary::Scale((-0.75).into())), &[x])
    });
    for f in [Unary::Log, Unary::Sqrt, Unary::Rsqrt] {
        seen.check(f.name(), |c| {
            let x = c.x_of(&[1, 7], |v| 1.5 + v);
            c.op(Op::Unary(f), &[x])
        });
    }
}

fn binary(seen: &mut Seen) {
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[3, 5], &[3, 5]),
        (&[3, 5], &[5]),
        (&[1, 5], &[3, 1]),
        (&[], &[7]),
        (&[7, 1], &[]),
        (&[3, 1, 5], &[7, 1]),
        (&[1], &[1, 1, 3]),
    ];
    for f in BINARY {
        for (a, b) in shapes {
            seen.check(&format!("{} {a:?} {b:?}", f.name()), |c| {
                let (a, b) = (c.x_of(a, |v| 1.6 + v), c.x_of(b, |v| 1.6 - v));
                c.op(Op::Binary(f), &[a, b])
            });
        }
    }
    seen.check("x · x", |c| {
        let x = c.x(&[3]);
        c.op(Op::Binary(Binary::Mul), &[x, x])
    });
    seen.check("a negative base to a whole number", |c| {
        let x = c.x_of(&[5], |v| v - 1.5);
        let three = c.given(DType::F32, &[1], &[3.0]);
        c.op(Op::Binary(Binary::Pow), &[x, three])
    });
}

fn conditions(seen: &mut Seen) {
    for mask in [&[3, 5][..], &[5], &[3, 1], &[]] {
        seen.check(&format!("conditions {mask:?}"), |c| {
            let bits: Vec<f64> = (0..Shape::from(mask).elements()).map(|i| f64::from(i % 3 == 1)).collect();
            let cond = c.given(DType::Bool, mask, &bits);
            let (a, b) = (c.x(&[3, 5]), c.x(&[1, 5]));
            let y = c.op(Op::Where, &[cond, a, b]);
            c.op(Op::MaskedFill((-2.0).into()), &[y, cond])
        });
    }
    seen.check("a condition that stretches both sides", |c| {
        let (a, b) = (c.x(&[1, 3]), c.x(&[]));
        let cond = c.given(DType::Bool, &[5, 1], &[0.0, 1.0, 1.0, 0.0, 1.0]);
        c.op(Op::Where, &[cond, a, b])
    });
    seen.check("a clamp written with comparisons", |c| {
        let x = c.x_of(&[7], |v| 2.0 * v);
        let most = c.given(DType::F32, &[], &[0.5]);
        let above = c.op(Op::Compare(Comparison::Less), &[most, x]);
        c.op(Op::Where, &[above, most, x])
    });
    seen.check("cast", |c| {
        let x = c.x(&[3]);
        let y = c.op(Op::Cast(DType::F32), &[x]);
        // an integer on the way takes no gradient along
        let whole = c.op(Op::Cast(DType::I32), &[x]);
        let whole = c.op(Op::Cast(DType::F32), &[whole]);
        let y = c.op(Op::Binary(Binary::Mul), &[y, whole]);
        c.op(Op::Binary(Binary::Add), &[y, x])
    });
    seen.check("dropout", |c| {
        let x = c.x(&[3, 7]);
        let counter = c.given(DType::U32, &[3], &COUNTER);
        c.op(Op::Dropout(DropoutAttrs { p: 0.4.into(), site: 3 }), &[x, counter])
    });
}

fn movement(seen: &mut Seen) {
    let cube: &[usize] = &[3, 5, 7];
    let ops = [
        ("reshape", Op::Reshape([5, 21].into())),
        ("permute", Op::Permute(vec![2, 0, 1])),
        ("permute of one", Op::Permute(vec![0, 2, 1])),
        ("slice", Op::Slice { axis: 1, start: 1, len: 3 }),
        ("slice at an end", Op::Slice { axis: 2, start: 6, len: 1 }),
        ("slice of all", Op::Slice { axis: 0, start: 0, len: 3 }),
        ("slice of nothing", Op::Slice { axis: 0, start: 1, len: 0 }),
        ("recompute", Op::Recompute(0)),
    ];
    for (what, op) in ops {
        seen.check(what, |c| {
            let x = c.x(cube);
            c.op(op, &[x])
        });
    }
    for (from, to) in [(&[5][..], [3, 5]), (&[3, 1], [3, 5]), (&[], [3, 5]), (&[1, 1], [3, 5])] {
        seen.check(&format!("broadcast {from:?}"), |c| {
            let x = c.x(from);
            c.op(Op::Broadcast(to.into()), &[x])
        });
    }
    seen.check("concat", |c| {
        let (x, y) = (c.x(&[3, 1, 5]), c.x(&[3, 7, 5]));
        c.op(Op::Concat(1), &[x, y, x])
    });
    for rest in [&[][..], &[5], &[3, 1]] {
        seen.check(&format!("pick_row {rest:?}"), |c| {
            let x = c.x(&[&[3, 7], rest].concat());
            let position = c.given(DType::I32, &[3], &[6.0, 0.0, 2.0]);
            c.op(Op::PickRow, &[x, position])
        });
    }
}

fn products(seen: &mut Seen) {
    let batches: [(&[usize], &[usize]); 6] =
        [(&[], &[]), (&[3], &[]), (&[], &[3]), (&[3], &[3]), (&[2, 1], &[3]), (&[1, 3], &[2, 1])];
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (left, right) in batches {
            seen.check(&format!("matmul {transpose_a} {transpose_b} {left:?} {right:?}"), |c| {
                let matrix = |rows, columns, turned| if turned { [columns, rows] } else { [rows, columns] };
                let a = c.x(&[left, &matrix(3, 5, transpose_a)].concat());
                let b = c.x(&[right, &matrix(5, 7, transpose_b)].concat());
                c.op(Op::Matmul { transpose_a, transpose_b }, &[a, b])
            });
        }
    }
    for lead in [&[][..], &[1], &[3], &[2, 3]] {
        for bias in [false, true] {
            seen.check(&format!("linear {lead:?} {bias}"), |c| {
                let mut inputs = vec![c.x(&[lead, &[5]].concat()), c.x(&[7, 5])];
                if bias {
                    inputs.push(c.x(&[7]));
                }
                c.op(Op::Linear, &inputs)
            });
        }
    }
}

fn stacks(seen: &mut Seen) {
    for activation in Activation::ALL {
        for (lead, bias) in [(&[3][..], true), (&[1], false), (&[2, 3], true)] {
            seen.check(&format!("stack of {activation} {lead:?} {bias}"), |c| {
                let mut inputs = vec![c.x(&[lead, &[5]].concat()), c.x(&[3, 5, 5])];
                if bias {
                    inputs.push(c.x(&[3, 5]));
                }
                let y = c.op(Op::LinearStack(activation), &inputs);
                // the first stores its result as what the second reads
                let w = c.x(&[2, 5, 5]);
                c.op(Op::LinearStack(activation), &[y, w])
            });
        }
    }
}

fn rows(seen: &mut Seen) {
    for shape in [&[3, 5, 7][..], &[1, 3], &[5]] {
        for axis in 0..shape.len() {
            for op in [Op::Softmax(axis), Op::LogSoftmax(axis)] {
                seen.check(&format!("{op} {shape:?}"), |c| {
                    let x = c.x_of(shape, |v| 3.0 * v);
                    c.op(op, &[x])
                });
            }
        }
    }
    for shape in [&[2, 3, 5][..], &[3, 7], &[5], &[3, 1]] {
        seen.check(&format!("layernorm {shape:?}"), |c| {
            let (x, gamma, beta) = (c.x(shape), c.x(&shape[shape.len() - 1..]), c.x(&shape[shape.len() - 1..]));
            c.op(Op::LayerNorm(1e-3.into()), &[x, gamma, beta])
        });
        seen.check(&format!("rmsnorm {shape:?}"), |c| {
            let (x, gamma) = (c.x(shape), c.x(&shape[shape.len() - 1..]));
            c.op(Op::RmsNorm(1e-3.into()), &[x, gamma])
        });
    }
    for dtype in [DType::I32, DType::U32] {
        seen.check("embedding", |c| {
            let table = c.x(&[5, 3]);
            let indices = c.given(dtype, &[2, 3], &[0.0, 4.0, 0.0, 2.0, 0.0, 2.0]);
            c.op(Op::Embedding, &[table, indices])
        });
    }
    // an index has no gradient, so neither has what it is computed from
    seen.check("argmax", |c| {
        let (x, table) = (c.x(&[3, 5]), c.x(&[5, 7]));
        let best = c.op(Op::Arg(Extreme::Max, 1), &[x]);
        let rows = c.op(Op::Embedding, &[table, best]);
        let sums = c.op(Op::Reduce { kind: Reduction::Sum, axes: vec![1], keepdim: true }, &[x]);
        c.op(Op::Binary(Binary::Mul), &[rows, sums])
    });
}

fn reductions(seen: &mut Seen) {
    for kind in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::AbsMax] {
        for axes in [&[][..], &[0], &[1], &[2], &[0, 2], &[0, 1, 2]] {
            for keepdim in [false, true] {
                seen.check(&format!("{} {axes:?}", kind.name()), |c| {
                    let x = c.x(&[3, 5, 7]);
                    c.op(Op::Reduce { kind, axes: axes.to_vec(), keepdim }, &[x])
                });
            }
        }
    }
}

fn losses(seen: &mut Seen) {
    for (axis, shape, rows) in
        [(1, &[3, 5][..], &[3][..]), (1, &[2, 5, 3], &[2, 3]), (0, &[7], &[]), (2, &[1, 3, 5], &[1, 3])]
    {
        for (ignore_index, label_smoothing) in [(None, 0.0), (Some(0), 0.0), (None, 0.3), (Some(2), 0.1)] {
            seen.check(&format!("cross_entropy {shape:?} {ignore_index:?} {label_smoothing}"), |c| {
                let logits = c.x_of(shape, |v| 3.0 * v);
                let targets: Vec<f64> = (0..Shape::from(rows).elements()).map(|i| (i * 2 % 5) as f64).collect();
                let targets = c.given(DType::I32, rows, &targets);
                let label_smoothing = label_smoothing.into();
                c.op(Op::CrossEntropy(CrossEntropyAttrs { axis, ignore_index, label_smoothing }), &[logits, targets])
            });
        }
    }
}

/// dy is 1 everywhere.
fn slopes(op: Op, inputs: &[&[f64]]) -> Vec<Vec<f64>> {
    let mut c = Check::default();
    let inputs: Vec<ValueId> = inputs.iter().map(|x| c.x_at(&[x.len()], x)).collect();
    let y = c.op(op, &inputs);
    let loss = c.op(Op::Reduce { kind: Reduction::Sum, axes: vec![0], keepdim: false }, &[y]);
    let all: Vec<usize> = (0..inputs.len()).collect();
    c.gradients(loss, &all).into_values().map(|v| v.data).collect()
}

#[test]
fn ties_and_edges_are_those_of_pytorch() {
    const NAN: f64 = f64::NAN;
    let close = |got: &[f64], want: &[f64]| {
        let same = |g: &f64, w: &f64| (g - w).abs() < 1e-6 || g == w || g.is_nan() && w.is_nan();
        assert!(got.len() == want.len() && got.iter().zip(want).all(|(g, w)| same(g, w)), "{got:?}, not {want:?}");
    };
    close(&slopes(Op::Unary(Unary::Relu), &[&[0.0, -1.0, 2.0, NAN]])[0], &[0.0, 0.0, 1.0, 1.0]);
    for f in [Binary::Min, Binary::Max] {
        let both = slopes(Op::Binary(f), &[&[1.0, 1.0, NAN], &[1.0, 3.0, 1.0]]);
        let taken = f64::from(f == Binary::Min);
        close(&both[0], &[0.5, taken, 1.0]);
        close(&both[1], &[0.5, 1.0 - taken, 1.0]);
    }
    let power = slopes(Op::Binary(Binary::Pow), &[&[0.0, 0.0, 0.0, 2.0, -2.0], &[2.0, 1.0, 0.0, 0.0, 2.0]]);
    close(&power[0], &[0.0, 1.0, 0.0, 0.0, -4.0]);
    close(&power[1], &[0.0, 0.0, 0.0, 2f64.ln(), NAN]);
    let most = Op::Reduce { kind: Reduction::Max, axes: vec![0], keepdim: true };
    close(&slopes(most.clone(), &[&[3.0, 1.0, 3.0, 3.0]])[0], &[1.0 / 3.0, 0.0, 1.0 / 3.0, 1.0 / 3.0]);
    let far = Op::Reduce { kind: Reduction::AbsMax, axes: vec![0], keepdim: true };
    close(&slopes(far.clone(), &[&[3.0, 1.0, -3.0]])[0], &[0.5, 0.0, -0.5]);
    close(&slopes(far.clone(), &[&[0.0, -0.0]])[0], &[0.0, 0.0]);
    for op in [most, far] {
        assert!(slopes(op, &[&[3.0, NAN]])[0].iter().all(|v| v.is_nan()), "a NaN must stay visible");
    }
}

#[test]
fn slopes_of_far_values_are_flat_and_finite() {
    let far = [-3e38, -1e20, -1e4, -50.0, 50.0, 1e4, 1e20, 3e38];
    let step = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
    for (f, expected) in [
        (Unary::Relu, step),
        (Unary::GeluErf, step),
        (Unary::GeluTanh, step),
        (Unary::Silu, step),
        (Unary::Tanh, [0.0; 8]),
        (Unary::Sigmoid, [0.0; 8]),
        (Unary::NormalCdf, [0.0; 8]),
    ] {
        for (x, (got, want)) in far.iter().zip(slopes(Op::Unary(f), &[&far])[0].iter().zip(expected)) {
            assert!((got - want).abs() < 1e-12, "{} at {x}: {got}", f.name());
        }
    }
}

#[test]
fn a_cast_takes_the_gradient_back_to_its_type() {
    let mut c = Check::default();
    let x = c.x_at(&[2], &[0.5, 2.0]);
    let half = c.op(Op::Cast(DType::F16), &[x]);
    let y = c.op(Op::Unary(Unary::Scale(0.1.into())), &[half]);
    let y = c.op(Op::Cast(DType::F32), &[y]);
    let loss = c.op(Op::Reduce { kind: Reduction::Sum, axes: vec![0], keepdim: false }, &[y]);
    // 0.1 as an f16
    assert_eq!(c.gradients(loss, &[0])["x0"].data, [0.0999755859375; 2]);
}
