//! Element-wise ops and casts.

use crate::common::{BOTH, Case, F16, F32, OTHERS, Result, each, f16, floats, random, tensor};
use kiln::graph::{Binary, Chain, Comparison, DType, Op, Ref, Step, Unary};
use kiln::reference::evaluate;

const UNARY: [Unary; 10] = [
    Unary::Relu,
    Unary::GeluErf,
    Unary::GeluTanh,
    Unary::Silu,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Exp,
    Unary::Neg,
    Unary::NormalCdf,
    Unary::Sqrt,
];
const FLOAT: [Binary; 7] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max, Binary::Pow];

/// Scaled to −8..8.
fn wide(dtype: DType, dims: &[usize], seed: u64) -> kiln::tensor::Tensor {
    let x = random(dtype, dims, seed);
    tensor(dtype, dims, &x.to_f64().iter().map(|v| v * 8.0).collect::<Vec<_>>())
}

#[test]
fn functions_of_one_over_odd_sizes() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        for n in [1, 31, 33, 256, 257] {
            let x = c.input(wide(dtype, &[n], n as u64));
            for f in UNARY {
                let y = c.b.unary(f, x);
                c.output(format!("{} {n}", f.name()), y);
            }
            let scaled = c.b.scale(x, -0.3);
            c.output(format!("scale {n}"), scaled);
            // of positive numbers
            let square = c.b.mul(x, x)?;
            let shift = c.input(tensor(dtype, &[], &[0.01]));
            let positive = c.b.add(square, shift)?;
            for f in [Unary::Log, Unary::Rsqrt] {
                let y = c.b.unary(f, positive);
                c.output(format!("{} {n}", f.name()), y);
            }
        }
        c.check(tolerance, &BOTH);
    }
    Ok(())
}

#[test]
fn functions_of_one_where_numbers_run_out() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (dtype, tolerance) in floats() {
        // four at a time, and one
        for extra in [0, 1] {
            let mut values = vec![nan, inf, -inf, 0.0, 1.0, -1.0, 60_000.0, -60_000.0];
            values.extend(vec![0.5; extra]);
            let mut c = Case::new();
            let x = c.input(tensor(dtype, &[values.len()], &values));
            for f in UNARY.into_iter().chain([Unary::Log, Unary::Rsqrt, Unary::Scale(2.0.into())]) {
                let y = c.b.unary(f, x);
                c.output(f.name(), y);
            }
            c.check(tolerance, &BOTH);
        }
    }
}

#[test]
fn functions_of_two_broadcast() -> Result {
    let pairs: [(&[usize], &[usize]); 7] = [
        (&[257], &[257]),
        (&[5, 1, 33], &[3, 1]),
        (&[4, 64], &[64]),
        (&[4, 64], &[4, 1]),
        (&[], &[31]),
        (&[2, 3, 4, 8], &[3, 1, 8]),
        (&[1, 1], &[1]),
    ];
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        for (i, (a, b)) in pairs.into_iter().enumerate() {
            let (x, y) = (c.input(random(dtype, a, 7)), c.input(random(dtype, b, 8)));
            // a power of a negative number is NaN: magnitudes, none small
            let half = c.b.constant(0.5, kiln::graph::TensorType::new(dtype, []))?;
            let base = c.b.mul(x, x)?;
            let base = c.b.add(base, half)?;
            for f in FLOAT {
                let z = match f {
                    Binary::Pow | Binary::Div => c.b.binary(f, y, base),
                    _ => c.b.binary(f, x, y),
                };
                let z = if f == Binary::Pow { c.b.binary(f, base, y) } else { z };
                c.output(format!("{} {i}", f.name()), z);
            }
        }
        c.check(tolerance, if dtype == DType::F32 { &BOTH } else { &BOTH[1..] });
    }
    Ok(())
}

#[test]
fn functions_of_two_where_numbers_run_out() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let a =
        [nan, 1.0, nan, inf, -inf, 0.0, 0.0, -2.0, -2.0, -2.0, 0.0, 1.0, inf, 3.0, -8.0, -inf, -inf, -inf, -1.0, -1.0];
    let b = [1.0, nan, nan, -inf, 2.0, 0.0, -1.0, 3.0, 0.5, 2.0, 2.0, inf, inf, -inf, -3.0, 0.5, -0.5, -3.0, inf, -inf];
    let mut c = Case::new();
    let (x, y) = (c.input(tensor(DType::F32, &[20], &a)), c.input(tensor(DType::F32, &[20], &b)));
    for f in FLOAT {
        let z = c.b.binary(f, x, y);
        c.output(f.name(), z);
    }
    c.check(F32, &BOTH);
}

#[test]
fn integers_wrap_and_divide_as_promised() {
    let signed = [(7, 2), (-7, 2), (7, -2), (5, 0), (i32::MIN, -1), (i32::MAX, 1), (3, 21), (-1, -3), (2, -1), (0, 0)];
    for extra in [2, 3] {
        let values = signed.into_iter().chain((0..extra).map(|i| (i, 31)));
        let (a, b): (Vec<i32>, Vec<i32>) = values.unzip();
        for dtype in [DType::I32, DType::U32] {
            let bits = |v: &[i32]| match dtype {
                DType::I32 => v.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(),
                _ => v.iter().map(|x| f64::from(*x as u32)).collect(),
            };
            let mut c = Case::new();
            let x = c.input(tensor(dtype, &[a.len()], &bits(&a)));
            let y = c.input(tensor(dtype, &[b.len()], &bits(&b)));
            for f in FLOAT {
                let z = c.b.binary(f, x, y);
                c.output(f.name(), z);
            }
            c.check(0.0, &BOTH);
        }
    }
}

#[test]
fn where_and_masked_fill_pick_by_a_broadcast_mask() -> Result {
    for dtype in [DType::F32, DType::F16, DType::I32, DType::U32] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        for (i, (mask, a, b)) in [
            (&[33][..], &[33][..], &[33][..]),
            (&[5, 1], &[5, 7], &[7]),
            (&[4, 1, 1], &[1, 3, 8], &[4, 1, 8]),
            (&[8], &[4, 8], &[]),
            (&[], &[31], &[1]),
        ]
        .into_iter()
        .enumerate()
        {
            let m = c.input(random(DType::Bool, mask, 3));
            let (x, y) = (c.input(random(dtype, a, 4)), c.input(random(dtype, b, 5)));
            let z = c.b.select(m, x, y);
            c.output(format!("where {i}"), z);
            if dtype.is_float() && mask.len() <= a.len() && i != 2 {
                let z = c.b.masked_fill(x, m, f32::NEG_INFINITY);
                c.output(format!("fill {i}"), z);
            }
        }
        c.check(0.0, &BOTH);
    }
    Ok(())
}

const COMPARISONS: [Comparison; 3] = [Comparison::Less, Comparison::LessEqual, Comparison::Equal];

#[test]
fn comparisons_broadcast() -> Result {
    let pairs: [(&[usize], &[usize]); 6] =
        [(&[257], &[257]), (&[5, 1, 33], &[3, 1]), (&[4, 64], &[64]), (&[4, 64], &[4, 1]), (&[], &[31]), (&[8], &[])];
    for dtype in [DType::F32, DType::F16, DType::I32, DType::U32] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        for (i, (a, b)) in pairs.into_iter().enumerate() {
            // eighths, so that some are equal
            let eighths = |dims: &[usize], seed| {
                let x = random(dtype, dims, seed);
                let scale = if dtype.is_float() { 8.0 } else { 1.0 };
                tensor(dtype, dims, &x.to_f64().iter().map(|v| (v * scale).round() / scale).collect::<Vec<_>>())
            };
            let (x, y) = (c.input(eighths(a, 7)), c.input(eighths(b, 8)));
            for comparison in COMPARISONS {
                let holds = c.b.compare(comparison, x, y)?;
                c.output(format!("{} {i}", comparison.name()), Ok(holds));
                let picked = c.b.select(holds, x, y);
                c.output(format!("{} {i}: picked", comparison.name()), picked);
            }
        }
        c.check(0.0, &BOTH);
    }
    Ok(())
}

#[test]
fn a_comparison_with_nan_is_false() -> Result {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (dtype, _) in floats() {
        for extra in [0, 1] {
            let mut a = vec![nan, 1.0, nan, inf, -inf, 0.0, inf, -0.0];
            let mut b = vec![1.0, nan, nan, -inf, inf, -0.0, inf, 1.0];
            a.extend(vec![2.0; extra]);
            b.extend(vec![1.0; extra]);
            let mut c = Case::new();
            let n = a.len();
            let (x, y) = (c.input(tensor(dtype, &[n], &a)), c.input(tensor(dtype, &[n], &b)));
            for comparison in COMPARISONS {
                let holds = c.b.compare(comparison, x, y);
                c.output(comparison.name(), holds);
                // within a chain: the larger by the comparison, with a step on either side
                let steps = vec![
                    Step::Unary(Unary::Neg, Ref::Input(0)),
                    Step::Compare(comparison, Ref::Input(0), Ref::Input(1)),
                    Step::Select(Ref::Step(1), Ref::Step(0), Ref::Input(1)),
                    Step::Unary(Unary::Scale(2.0.into()), Ref::Step(2)),
                ];
                let chain = c.b.op(Op::Elementwise(Chain { arity: 2, steps }), &[x, y]);
                c.output(format!("{}: chain", comparison.name()), chain);
            }
            c.check(0.0, &[BOTH, OTHERS].concat());
        }
    }
    Ok(())
}

/// Relative to the value, also where it is small; the exponential's argument is x²/2, and so grows its rounding.
#[test]
fn the_normal_distribution_function_and_its_tail() {
    for extra in [0, 1] {
        let mut values: Vec<f64> = (-64..=64).map(|i| f64::from(i) / 8.0).collect();
        values.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        values.extend(vec![0.1; extra]);
        let mut c = Case::new();
        let x = c.input(tensor(DType::F32, &[values.len()], &values));
        let y = c.b.unary(Unary::NormalCdf, x);
        c.output("y", y);
        let (graph, params, inputs) = c.finish();
        let want = &evaluate(&graph, &params, &inputs).unwrap()["y"].data;
        each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
            let got = program.run(given).unwrap()["y"].to_f64();
            for ((x, got), want) in values.iter().zip(got).zip(want) {
                let near = (got - want).abs() <= 1e-6 * (1.0 + x * x / 8.0) * want;
                let same = got == *want || got.is_nan() && want.is_nan() || near;
                assert!(same, "{x} ({setup}): {got:e}, should be {want:e}");
            }
        });
    }
}

#[test]
fn casts_between_all_types() -> Result {
    let all = [DType::F32, DType::F16, DType::I32, DType::U32, DType::Bool];
    let types: Vec<DType> = all.into_iter().filter(|d| *d != DType::F16 || f16()).collect();
    for len in [8, 9] {
        let mut c = Case::new();
        for from in types.iter().copied() {
            let mut values: Vec<f64> = match from {
                DType::F32 => vec![0.0, -1.5, 2.75, 1e20, -1e20, 70_000.0, -0.25, 3.0e9],
                DType::F16 => vec![0.0, -1.5, 2.75, 65_504.0, -65_504.0, 6e-8, -0.25, 1000.0],
                DType::I32 => vec![0.0, -1.0, 2147483647.0, -2147483648.0, 70_000.0, 16_777_217.0, 1.0, 5.0],
                DType::U32 => vec![0.0, 1.0, 2147483647.0, 4294967295.0, 70_000.0, 16_777_216.0, 1.0, 5.0],
                _ => vec![0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
            };
            values.resize(len, 1.0);
            let x = c.input(tensor(from, &[len], &values));
            for to in types.iter().copied() {
                let y = c.b.cast(x, to);
                c.output(format!("{from} to {to}"), y);
            }
        }
        c.check(1e-7, &BOTH);
    }
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[3], &[f64::NAN, f64::INFINITY, -0.0]));
    let y = c.b.cast(x, DType::Bool)?;
    let y = c.b.cast(y, DType::F32);
    c.output("NaN is not zero", y);
    c.check(0.0, &BOTH);
    Ok(())
}

#[test]
fn chains_are_computed_in_place_in_every_mode() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let (x, y) = (c.input(random(dtype, &[3, 33], 1)), c.input(random(dtype, &[33], 2)));
        let mut z = c.b.add(x, y)?;
        let kept = c.b.mul(z, z)?;
        for f in [Unary::Tanh, Unary::Exp, Unary::Scale(0.5.into()), Unary::Sqrt] {
            z = c.b.unary(f, z)?;
        }
        z = c.b.add(z, kept)?;
        z = c.b.sub(z, z)?;
        z = c.b.add(z, kept)?;
        c.output("z", Ok(z));
        // what an output holds is not overwritten
        let w = c.b.relu(kept)?;
        c.output("kept", Ok(kept));
        let w = c.b.unary(Unary::Neg, w);
        c.output("w", w);
        c.check(tolerance, &[BOTH, OTHERS].concat());
    }
    Ok(())
}

#[test]
fn numbers_without_a_literal_are_made_at_run_time() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[2, 5], 1));
    for (i, v) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX, -0.0].into_iter().enumerate() {
        let k = c.b.constant(v, x_type(&[5]))?;
        let y = c.b.binary(Binary::Max, x, k);
        c.output(format!("max {i}"), y);
        let y = c.b.scale(x, v);
        c.output(format!("scale {i}"), y);
        c.output(format!("constant {i}"), Ok(k));
    }
    // a subnormal may be flushed to zero
    c.check(F32, &BOTH);
    if f16() {
        let mut c = Case::new();
        for (i, v) in [f32::NAN, f32::INFINITY, 65_504.0, 1e6, 0.1].into_iter().enumerate() {
            for n in [3, 4, 8] {
                let k = c.b.constant(v, kiln::graph::TensorType::new(DType::F16, [n]));
                c.output(format!("{i} of {n}"), k);
            }
        }
        c.check(F16, &BOTH);
    }
    Ok(())
}

fn x_type(dims: &[usize]) -> kiln::graph::TensorType {
    kiln::graph::TensorType::new(DType::F32, dims)
}
