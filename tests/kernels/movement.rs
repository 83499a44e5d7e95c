//! Ops that only move elements, and element-wise ops that read what they made.

use crate::common::{BOTH, Case, EVERY, F32, OTHERS, Result, check, each, f16, random};
use kiln::graph::DType;

fn types() -> impl Iterator<Item = DType> {
    [DType::F32, DType::F16, DType::I32, DType::Bool].into_iter().filter(|d| *d != DType::F16 || f16())
}

#[test]
fn views_as_outputs() -> Result {
    for dtype in types() {
        let mut c = Case::new();
        for dims in [[3, 5, 7], [2, 4, 8], [1, 33, 1]] {
            let x = c.input(random(dtype, &dims, 1));
            for perm in [[0, 2, 1], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
                let y = c.b.permute(x, &perm);
                c.output(format!("{dims:?} {perm:?}"), y);
            }
            for axis in 0..3 {
                let len = dims[axis].div_ceil(2);
                let y = c.b.slice(x, axis, dims[axis] - len, len);
                c.output(format!("{dims:?} cut at {axis}"), y);
            }
            let turned = c.b.permute(x, &[2, 0, 1])?;
            let flat = c.b.reshape(turned, [dims.iter().product::<usize>()]);
            c.output(format!("{dims:?} turned and flat"), flat);
            let row = c.b.slice(x, 0, 0, 1)?;
            let y = c.b.broadcast(row, [4, dims[1], dims[2]]);
            c.output(format!("{dims:?} stretched"), y);
            let y = c.b.slice(turned, 2, 1, dims[1] - 1)?;
            let y = c.b.slice(y, 1, 0, 1)?;
            let y = c.b.reshape(y, [dims[2], 1, dims[1] - 1]);
            c.output(format!("{dims:?} a view of a view"), y);
        }
        c.check(0.0, &BOTH);
    }
    Ok(())
}

/// Products and element-wise ops that only a concat reads are written where it has them.
#[test]
fn concat_of_what_is_made_for_it() -> Result {
    let mut c = Case::new();
    let w = c.input(random(DType::F32, &[12, 8], 2));
    let bias = c.input(random(DType::F32, &[12], 3));
    let other = c.input(random(DType::F32, &[2, 5, 12], 4));
    for axis in 0..3 {
        // of each axis's own, so that nothing is made once for several
        let x = c.input(random(DType::F32, &[2, 5, 8], 10 + axis as u64));
        let linear = c.b.linear(x, w, Some(bias))?;
        let linear = c.b.relu(linear)?;
        let sum = c.b.scale(other, axis as f32 + 0.5)?;
        let turned = c.b.permute(w, &[1, 0])?;
        let product = c.b.matmul(x, turned)?;
        let all = c.b.concat(&[linear, other, sum, product], axis);
        c.output(format!("along {axis}"), all);
    }
    // what another reads too is copied, as is a view
    let sum = c.b.add(other, bias)?;
    let cut = c.b.slice(other, 1, 1, 3)?;
    let all = c.b.concat(&[sum, cut], 1);
    c.output("read twice", all);
    let relu = c.b.relu(sum);
    c.output("the other reader", relu);
    // a result that is no row of vec4s
    let (x, w) = (c.input(random(DType::F32, &[3, 7], 5)), c.input(random(DType::F32, &[7, 5], 6)));
    let (product, double) = (c.b.matmul(x, w)?, c.b.scale(x, 2.0)?);
    let all = c.b.concat(&[double, product, x], 1);
    c.output("odd widths", all);
    let (graph, params, inputs) = c.finish();
    check(&graph, &params, &inputs, F32, &BOTH);
    each(&graph, &params, &inputs, &BOTH, |setup, program, _| {
        let copies = program.compiled().selected.steps.iter().filter(|s| s.name.ends_with("(copy)")).count();
        assert_eq!(copies, 3 + 2 + 1, "{setup}:\n{}", program.compiled().selected);
    });
    Ok(())
}

#[test]
fn concat_along_every_axis() -> Result {
    for dtype in types() {
        let mut c = Case::new();
        for axis in 0..3 {
            let mut parts = Vec::new();
            for (i, size) in [1, 4, 3].into_iter().enumerate() {
                let mut dims = vec![2, 3, 5];
                dims[axis] = size;
                parts.push(c.input(random(dtype, &dims, i as u64)));
            }
            let y = c.b.concat(&parts, axis);
            c.output(format!("along {axis}"), y);
            let y = c.b.concat(&[parts[1], parts[1]], axis);
            c.output(format!("the same twice along {axis}"), y);
            let y = c.b.concat(&parts[..1], axis);
            c.output(format!("one along {axis}"), y);
        }
        let x = c.input(random(dtype, &[3, 5], 7));
        let turned = c.b.permute(x, &[1, 0])?;
        let cut = c.b.slice(turned, 0, 1, 2)?;
        let y = c.b.concat(&[turned, cut], 0);
        c.output("of views", y);
        c.check(0.0, &BOTH);
    }
    Ok(())
}

#[test]
fn element_wise_ops_read_views() -> Result {
    let mut c = Case::new();
    for dims in [[5, 7, 3], [4, 8, 4]] {
        let x = c.input(random(DType::F32, &dims, 1));
        let turned = c.b.permute(x, &[2, 1, 0])?;
        let y = c.input(random(DType::F32, &[dims[2], dims[1], dims[0]], 2));
        let sum = c.b.add(turned, y);
        c.output(format!("{dims:?} turned"), sum);
        let cut = c.b.slice(x, 2, 1, 2)?;
        let other = c.b.slice(x, 2, 0, 2)?;
        let product = c.b.mul(cut, other);
        c.output(format!("{dims:?} cut"), product);
        let row = c.b.slice(x, 1, 2, 1)?;
        let wide = c.b.broadcast(row, dims)?;
        let difference = c.b.sub(x, wide)?;
        c.output(format!("{dims:?} stretched"), Ok(difference));
        // a view of a value that is still read elsewhere is not overwritten
        let made = c.b.relu(difference)?;
        let flat = c.b.reshape(made, [dims[0] * dims[1] * dims[2]])?;
        let turned = c.b.permute(made, &[1, 0, 2])?;
        let a = c.b.scale(flat, 2.0);
        c.output(format!("{dims:?} flat"), a);
        let b = c.b.gelu_tanh(turned);
        c.output(format!("{dims:?} turned again"), b);
    }
    c.check(1e-6, &EVERY);
    Ok(())
}

#[test]
fn counting_and_masks() {
    let mut c = Case::new();
    for n in [1, 31, 33, 257] {
        let y = c.b.arange(n);
        c.output(format!("arange {n}"), y);
    }
    for (q, k) in [(1, 1), (3, 5), (5, 3), (33, 31), (1, 64), (64, 1)] {
        let y = c.b.causal_mask(q, k);
        c.output(format!("mask {q} {k}"), y);
    }
    c.check(0.0, &[BOTH, OTHERS].concat());
}
