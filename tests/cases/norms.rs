//! Norms.

use crate::common::{BOTH, Case, EVERY, F32, Result, f16, full, random, repeats, tensor};
use kiln::graph::{Binary, DType, Op, TensorType, ValueId};

/// γ = 1 and β of this number.
fn affine(c: &mut Case, dtype: DType, width: usize, beta: f64) -> (ValueId, ValueId) {
    (c.parameter(full(dtype, &[width], 1.0)), c.parameter(full(dtype, &[width], beta)))
}

/// ε stands under the root, beside the variance.
#[test]
fn n01_epsilon_is_under_the_root() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[1, 4], &[0.0, 1e-3, 2e-3, 3e-3]));
    let (g, b) = affine(&mut c, DType::F32, 4, 0.0);
    let y = c.b.layernorm(x, g, b, 1e-5);
    c.output("y", y);
    c.expect(&BOTH, 1e-5, &[("y", &[-0.4472136, -0.1490712, 0.1490712, 0.4472136])]);
}

/// A row of one number alone is β, exactly.
#[test]
fn n03_a_constant_row_is_beta() {
    let mut c = Case::new();
    let beta = 0.3f32;
    let mut names = Vec::new();
    // one invocation a row, and a workgroup
    for (rows, width) in [(2, 768), (40, 768), (3, 7), (2, 301)] {
        let (g, b) = affine(&mut c, DType::F32, width, f64::from(beta));
        for value in [5.0, 0.1, -1234.567] {
            let x = c.input(full(DType::F32, &[rows, width], value));
            let y = c.b.layernorm(x, g, b, 1e-5);
            names.push((format!("{value} {rows} {width}"), vec![f64::from(beta); rows * width]));
            c.output(&names[names.len() - 1].0, y);
        }
    }
    let want: Vec<(&str, &[f64])> = names.iter().map(|(n, w)| (n.as_str(), w.as_slice())).collect();
    c.expect(&BOTH, 0.0, &want);
}

/// A variance that f16 cannot hold.
#[test]
fn n04_an_f16_row_of_large_variance() -> Result {
    if !f16() {
        return Ok(());
    }
    let mut c = Case::new();
    let x = c.input(tensor(DType::F16, &[1, 2], &[-300.0, 300.0]));
    let (g, b) = affine(&mut c, DType::F16, 2, 0.0);
    let y = c.b.layernorm(x, g, b, 1e-5);
    c.output("layernorm", y);
    let y = c.b.rmsnorm(x, g, 1e-5);
    c.output("rmsnorm", y);
    let zero = c.input(full(DType::F16, &[2], 0.0));
    let sum = c.b.add(x, zero)?;
    let y = c.b.layernorm(sum, g, b, 1e-5);
    c.output("sum", y);
    let want = [-1.0, 1.0];
    c.expect(&BOTH, 1e-3, &[("layernorm", &want), ("rmsnorm", &want), ("sum", &want)]);
    Ok(())
}

/// A constant row whose sum is past f32's largest number.
#[test]
fn n05_a_row_whose_sum_overflows_is_beta() {
    let mut c = Case::new();
    let mut want = Vec::new();
    for rows in [2, 40] {
        let x = c.input(full(DType::F32, &[rows, 768], 8.5071e37));
        let (g, b) = affine(&mut c, DType::F32, 768, 0.25);
        let y = c.b.layernorm(x, g, b, 1e-5);
        want.push((rows.to_string(), vec![0.25; rows * 768]));
        c.output(rows.to_string(), y);
    }
    let want: Vec<(&str, &[f64])> = want.iter().map(|(n, w)| (n.as_str(), w.as_slice())).collect();
    c.expect(&BOTH, 0.0, &want);
}

/// The norm of a permuted view is that of its dense copy.
#[test]
fn n11_the_norm_of_a_view() -> Result {
    let mut c = Case::new();
    let iota: Vec<f64> = (0..64).map(f64::from).collect();
    let x = c.input(tensor(DType::F32, &[4, 4, 4], &iota));
    let turned: Vec<f64> = (0..64).map(|i| iota[i / 16 * 16 + i % 4 * 4 + i / 4 % 4]).collect();
    let dense = c.input(tensor(DType::F32, &[4, 4, 4], &turned));
    let (g, b) = affine(&mut c, DType::F32, 4, 0.5);
    let view = c.b.permute(x, &[0, 2, 1])?;
    for (name, v) in [("view", view), ("dense", dense)] {
        let y = c.b.layernorm(v, g, b, 1e-5)?;
        c.output(name, Ok(y));
        let y = c.b.rmsnorm(v, g, 1e-5);
        c.output(format!("{name}: rms"), y);
    }
    // mean and spread of i, i + 4, i + 8, i + 12
    let row: Vec<f64> = (0..4).map(|j| (4.0 * f64::from(j) - 6.0) / (20.0f64 + 1e-5).sqrt() + 0.5).collect();
    let want = row.repeat(16);
    c.expect(&BOTH, 1e-5, &[("view", &want), ("dense", &want)]);
    Ok(())
}

/// A norm whose result goes on into other ops gives the same in one kernel and in several.
#[test]
fn n12_a_norm_with_what_follows_it() -> Result {
    let mut c = Case::new();
    for width in [33, 64] {
        let x = c.input(random(DType::F32, &[5, width], 1));
        let (g, b) = (c.parameter(random(DType::F32, &[width], 2)), c.parameter(full(DType::F32, &[width], 3.0)));
        let one = c.b.constant(1.0, TensorType::new(DType::F32, []))?;
        let y = c.b.layernorm(x, g, b, 1e-5)?;
        let y = c.b.div(one, y);
        c.output(format!("reciprocal {width}"), y);
        let y = c.b.rmsnorm(x, g, 1e-5)?;
        let y = c.b.gelu_tanh(y)?;
        let y = c.b.binary(Binary::Mul, y, x);
        c.output(format!("gelu {width}"), y);
    }
    c.check(F32, &EVERY);
    Ok(())
}

/// Widths around those of workgroups; of width 1 nothing but β is left.
#[test]
fn n14_widths_that_are_no_whole_workgroups() -> Result {
    let mut c = Case::new();
    for width in [1, 2, 3, 63, 64, 65, 255, 257, 768, 1025] {
        for rows in [3, 40] {
            let x = c.input(random(DType::F32, &[rows, width], 1));
            let (g, b) = (c.parameter(random(DType::F32, &[width], 2)), c.parameter(random(DType::F32, &[width], 3)));
            let y = c.b.layernorm(x, g, b, 1e-5)?;
            c.output(format!("{rows} {width}"), Ok(y));
            if width == 1 {
                let apart = c.b.sub(y, b)?;
                let apart = c.b.max(apart, &[0, 1]);
                c.output(format!("{rows}: beyond beta"), apart);
            }
        }
    }
    c.check(F32, &BOTH);
    Ok(())
}

/// The gradients of a layer norm: of its rows, of γ and of β.
fn gradients(c: &mut Case, x: ValueId, dy: ValueId, [g, b]: [ValueId; 2]) -> Result<[ValueId; 3]> {
    let y = c.b.layernorm(x, g, b, 1e-5)?;
    let [mean, rstd] = [1, 2].map(|output| ValueId { node: y.node, output });
    let dx = c.b.op(Op::LayerNormGrad, &[x, g, mean, rstd, dy])?;
    let dg = c.b.op(Op::LayerNormParamGrad, &[x, mean, rstd, dy])?;
    Ok([dx, dg, ValueId { node: dg.node, output: 1 }])
}

/// Gradients do not depend on how rows are grouped.
#[test]
fn n07_the_gradients_of_three_dimensions_are_those_of_two() -> Result {
    let mut c = Case::new();
    let (x, dy) = (c.input(random(DType::F32, &[2, 3, 4], 1)), c.input(random(DType::F32, &[2, 3, 4], 2)));
    let affine = [c.parameter(random(DType::F32, &[4], 3)), c.parameter(random(DType::F32, &[4], 4))];
    let three = gradients(&mut c, x, dy, affine)?;
    let (x, dy) = (c.b.reshape(x, [6, 4])?, c.b.reshape(dy, [6, 4])?);
    let two = gradients(&mut c, x, dy, affine)?;
    for (i, name) in ["dx", "dgamma", "dbeta"].into_iter().enumerate() {
        c.output(name, Ok(three[i]));
        c.output(format!("{name} of two"), Ok(two[i]));
    }
    c.run(&BOTH, |setup, outputs| {
        for name in ["dx", "dgamma", "dbeta"] {
            let of_two = &outputs[&format!("{name} of two")];
            assert_eq!(outputs[name].bytes(), of_two.bytes(), "{name} ({setup})");
            assert!(of_two.to_f64().iter().any(|v| *v != 0.0), "{name} ({setup})");
        }
    });
    Ok(())
}

/// A sum of what is normed does not depend on what it was before.
#[test]
fn n08_the_gradient_of_a_sum_of_a_norm_is_nothing() -> Result {
    let mut c = Case::new();
    for width in [4, 33, 768] {
        let x = c.input(random(DType::F32, &[5, width], 1));
        let ones = c.input(full(DType::F32, &[5, width], 1.0));
        let (g, b) = affine(&mut c, DType::F32, width, 0.0);
        let [dx, ..] = gradients(&mut c, x, ones, [g, b])?;
        c.output(width.to_string(), Ok(dx));
    }
    c.expect(&BOTH, 1e-5, &[("4", &[0.0; 20]), ("33", &[0.0; 5 * 33]), ("768", &[0.0; 5 * 768])]);
    Ok(())
}

/// An RMS norm has gradients too, in its short form and in its long.
#[test]
fn n09_the_gradients_of_an_rms_norm_are_not_nothing() -> Result {
    let mut c = Case::new();
    for width in [4, 257] {
        let (x, dy) = (c.input(random(DType::F32, &[5, width], 1)), c.input(random(DType::F32, &[5, width], 2)));
        let g = c.parameter(random(DType::F32, &[width], 3));
        let y = c.b.rmsnorm(x, g, 1e-5)?;
        let rstd = ValueId { node: y.node, output: 1 };
        let dx = c.b.op(Op::RmsNormGrad, &[x, g, rstd, dy]);
        c.output(format!("dx {width}"), dx);
        let dg = c.b.op(Op::RmsNormParamGrad, &[x, rstd, dy]);
        c.output(format!("dgamma {width}"), dg);
    }
    c.run(&BOTH, |setup, outputs| {
        for (name, gradient) in outputs {
            assert!(gradient.to_f64().iter().any(|v| v.abs() > 1e-3), "{name} ({setup})");
        }
    });
    Ok(())
}

/// Sums over many rows stay exact enough, and are the same in two runs.
#[test]
fn n13_the_gradients_of_many_rows() -> Result {
    for (rows, width) in [(8192, 768), (60, 8192), (20_000, 4)] {
        let mut c = Case::new();
        let (x, dy) = (c.input(random(DType::F32, &[rows, width], 1)), c.input(random(DType::F32, &[rows, width], 2)));
        let affine = [c.parameter(random(DType::F32, &[width], 3)), c.parameter(random(DType::F32, &[width], 4))];
        for (i, value) in gradients(&mut c, x, dy, affine)?.into_iter().enumerate() {
            c.output(["dx", "dgamma", "dbeta"][i], Ok(value));
        }
        repeats(c, 1e-5, &BOTH);
    }
    Ok(())
}
