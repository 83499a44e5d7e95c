//! Reductions and argmax.

use crate::common::{BOTH, Case, F32, floats, full, random, tensor};
use kiln::graph::{DType, Op, Reduction};

const KINDS: [Reduction; 4] = [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::AbsMax];

#[test]
fn over_every_set_of_axes() {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let x = c.input(random(dtype, &[3, 5, 7, 2], 1));
        for set in 0..16 {
            let axes: Vec<usize> = (0..4).filter(|a| set >> a & 1 == 1).collect();
            for kind in KINDS {
                let y = c.b.reduce(kind, x, &axes, set % 3 == 0);
                c.output(format!("{} {axes:?}", kind.name()), y);
            }
        }
        c.check(tolerance, &BOTH);
    }
}

#[test]
fn odd_and_long_sizes() {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let shapes: [&[usize]; 9] =
            [&[1, 1], &[33, 31], &[31, 33], &[2, 257], &[257, 2], &[3, 1000], &[1500, 3], &[2, 70_000], &[70_001, 2]];
        for dims in shapes {
            // none cancels, or f16 would be measured by what is left
            let x = random(dtype, dims, 1).to_f64();
            let x = c.input(tensor(dtype, dims, &x.iter().map(|v| v * 0.5 + 0.5).collect::<Vec<_>>()));
            for axis in 0..2 {
                for kind in KINDS {
                    let y = c.b.reduce(kind, x, &[axis], false);
                    c.output(format!("{} {dims:?} {axis}", kind.name()), y);
                }
                let y = c.b.argmax(x, axis);
                c.output(format!("argmax {dims:?} {axis}"), y);
            }
        }
        c.check(tolerance, &BOTH);
    }
}

/// Of more tensors than one launch binds, of both types, with what is left of four and of a workgroup's share.
#[test]
fn the_largest_magnitude_of_many() -> crate::common::Result {
    let types: Vec<DType> = floats().into_iter().map(|(dtype, _)| dtype).collect();
    let sizes = [1, 2, 3, 4, 5, 31, 257, 1024, 20_001, 70_003];
    let mut c = Case::new();
    let mut all = Vec::new();
    for (i, n) in sizes.into_iter().cycle().take(3 * sizes.len()).enumerate() {
        let dtype = types[i % types.len()];
        let x = random(dtype, &[n], i as u64).to_f64();
        // the largest is the last, in the rest of four, and negative
        let values: Vec<f64> =
            x.iter().enumerate().map(|(j, v)| if j == n - 1 { -2.0 - i as f64 } else { *v }).collect();
        let x = c.input(tensor(dtype, &[n], &values));
        let one = c.b.op(Op::Magnitude, &[x]);
        c.output(format!("{i}: {n}"), one);
        all.push(x);
    }
    let empty = c.input(full(DType::F32, &[0, 3], 0.0));
    let none = c.b.op(Op::Magnitude, &[empty]);
    c.output("none", none);
    let wide = c.input(random(DType::F32, &[300, 301], 5));
    let turned = c.b.permute(wide, &[1, 0])?;
    let cut = c.b.slice(turned, 0, 7, 211)?;
    for (name, more) in [("all", vec![]), ("with a view", vec![cut, empty])] {
        let found = c.b.op(Op::Magnitude, &[&all[..], &more].concat());
        c.output(name, found);
    }
    for (name, value) in [("nan", f64::NAN), ("infinity", f64::NEG_INFINITY)] {
        let bad = c.input(tensor(DType::F32, &[6], &[1.0, 2.0, 3.0, 4.0, 5.0, value]));
        let found = c.b.op(Op::Magnitude, &[&all[..], &[bad]].concat());
        c.output(name, found);
    }
    c.check(0.0, &BOTH);
    Ok(())
}

#[test]
fn of_views() -> crate::common::Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[6, 40, 10], 1));
    let turned = c.b.permute(x, &[2, 0, 1])?;
    let cut = c.b.slice(x, 1, 3, 35)?;
    let row = c.b.slice(x, 0, 5, 1)?;
    let stretched = c.b.broadcast(row, [4, 40, 10])?;
    for (name, v) in [("turned", turned), ("cut", cut), ("stretched", stretched)] {
        for axes in [&[2][..], &[0, 2], &[1], &[0, 1, 2]] {
            let y = c.b.reduce(Reduction::Sum, v, axes, false);
            c.output(format!("{name} {axes:?}"), y);
        }
        let y = c.b.argmax(v, 1);
        c.output(format!("{name}: argmax"), y);
    }
    c.check(F32, &BOTH);
    Ok(())
}

#[test]
fn argmax_takes_the_first_of_equals_and_nan_before_all() {
    for (dtype, _) in floats() {
        let mut c = Case::new();
        // short and long rows: one invocation a row, and a workgroup
        for n in [5, 300] {
            let row = |at: &[(usize, f64)]| {
                let mut row = vec![0.0; n];
                at.iter().for_each(|(i, v)| row[*i] = *v);
                row
            };
            let (nan, inf) = (f64::NAN, f64::INFINITY);
            let rows = [
                row(&[]),
                row(&[(1, 2.0), (3, 2.0)]),
                row(&[(0, 9.0), (2, nan), (4, nan)]),
                row(&[(2, inf), (3, nan)]),
                row(&[(n - 1, nan)]),
                row(&[(1, inf), (n - 1, inf)]),
                vec![-inf; n],
                vec![nan; n],
            ];
            let x = c.input(tensor(dtype, &[8, n], &rows.concat()));
            let y = c.b.argmax(x, 1);
            c.output(format!("along {n}"), y);
            let turned = c.b.permute(x, &[1, 0]).expect("two dimensions");
            let y = c.b.argmax(turned, 0);
            c.output(format!("along {n} of the other axis"), y);
            let y = c.b.max(x, &[1]);
            c.output(format!("largest of {n}"), y);
            let y = c.b.max(turned, &[0]);
            c.output(format!("largest of {n} of the other axis"), y);
        }
        c.check(0.0, &BOTH);
    }
}

#[test]
fn of_nothing() {
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[2, 0, 3], 0.0));
    for kind in KINDS {
        for (axes, keepdim) in [(&[1][..], false), (&[1], true), (&[0], false), (&[0, 1, 2], false)] {
            let y = c.b.reduce(kind, x, axes, keepdim);
            c.output(format!("{} {axes:?} {keepdim}", kind.name()), y);
        }
    }
    c.check(0.0, &BOTH);
}
