//! Cross entropies and their gradients.

use crate::common::{BOTH, Case, EVERY, OTHERS, Result, each, floats, full, random, repeats, tensor};
use kiln::graph::{CrossEntropy, CrossEntropyAttrs, DType, Op, ValueId};
use kiln::tensor::Tensor;

fn attrs(axis: usize, ignore_index: Option<i32>, label_smoothing: f32) -> CrossEntropyAttrs {
    CrossEntropyAttrs { axis, ignore_index, label_smoothing: label_smoothing.into() }
}

/// Labels below `classes`; with `ignore`, every third is this number.
fn labels(dims: &[usize], classes: usize, ignore: Option<i32>) -> Tensor {
    let of = |i: usize| match ignore {
        Some(index) if i % 3 == 1 => f64::from(index),
        _ => ((i * 7 + 3) % classes) as f64,
    };
    let elements = dims.iter().product();
    tensor(DType::I32, dims, &(0..elements).map(of).collect::<Vec<_>>())
}

/// Losses, log-sum-exps and the gradient under given gradients of losses.
fn outputs(c: &mut Case, name: &str, logits: ValueId, labels: ValueId, a: CrossEntropyAttrs) -> Result {
    let loss = c.b.cross_entropy_rows(logits, labels, a)?;
    let sums = ValueId { node: loss.node, output: 1 };
    let dims = c.b.shape(labels).dims().to_vec();
    let dloss = c.input(random(DType::F32, &dims, 9));
    let grad = c.b.op(Op::CrossEntropyGrad(a), &[logits, labels, sums, dloss]);
    c.output(format!("{name}: loss"), Ok(loss));
    c.output(format!("{name}: log-sum-exp"), Ok(sums));
    c.output(format!("{name}: gradient"), grad);
    Ok(())
}

#[test]
fn cross_entropy_over_every_axis() -> Result {
    for (dtype, tolerance) in floats() {
        for (ignore, smoothing) in [(None, 0.0), (Some(-100), 0.0), (Some(0), 0.1), (None, 0.3)] {
            let mut c = Case::new();
            let shapes: [(&[usize], usize); 14] = [
                (&[3], 0),
                (&[1, 1], 1),
                (&[3, 31], 1),
                (&[2, 33], 1),
                (&[40, 65], 1),
                (&[3, 257], 1),
                (&[2, 1024], 1),
                (&[1, 5000], 1),
                (&[2, 65, 33], 1),
                (&[2, 9, 12], 1),
                (&[1, 300, 40], 1),
                (&[257, 5], 0),
                (&[3, 4, 5, 6], 2),
                (&[2, 3, 4, 8], 1),
            ];
            for (dims, axis) in shapes {
                let x = c.input(random(dtype, dims, 1));
                let x = c.b.scale(x, 5.0)?;
                let mut rows = dims.to_vec();
                rows.remove(axis);
                let t = c.input(labels(&rows, dims[axis], ignore));
                outputs(&mut c, &format!("{dims:?} {axis}"), x, t, attrs(axis, ignore, smoothing))?;
            }
            repeats(c, tolerance, &BOTH);
        }
    }
    Ok(())
}

/// Classes that lie side by side are read and written as they are, whatever the order of dimensions.
#[test]
fn logits_that_are_turned_are_not_copied() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let (x, w) = (c.input(random(dtype, &[2, 7, 16], 1)), c.parameter(random(dtype, &[33, 16], 2)));
        let logits = c.b.linear(x, w, None)?;
        let turned = c.b.permute(logits, &[0, 2, 1])?; // (B, C, S)
        let t = c.input(labels(&[2, 7], 33, Some(-1)));
        let a = attrs(1, Some(-1), 0.1);
        let loss = c.b.cross_entropy_rows(turned, t, a)?;
        c.output("loss", Ok(loss));
        let dloss = c.b.constant(0.1, kiln::graph::TensorType::new(DType::F32, [2, 7]))?;
        let sums = ValueId { node: loss.node, output: 1 };
        let grad = c.b.op(Op::CrossEntropyGrad(a), &[turned, t, sums, dloss])?;
        let back = c.b.permute(grad, &[0, 2, 1])?;
        let dx = c.b.matmul(back, w);
        c.output("dx", dx);
        let (graph, params, inputs) = c.finish();
        each(&graph, &params, &inputs, &EVERY, |setup, program, _| {
            let selected = &program.compiled().selected;
            let copied = |s: &&kiln::select::Step| s.name.starts_with("cross_entropy") && s.name.ends_with("(copy)");
            assert_eq!(selected.steps.iter().filter(copied).count(), 0, "{setup}\n{selected}");
            let grad = selected.steps.iter().find(|s| s.launch.key.name() == "cross_entropy_grad").unwrap();
            assert!(grad.in_place.is_some(), "{setup}\n{selected}");
        });
        crate::common::check(&graph, &params, &inputs, tolerance, &EVERY);
    }
    Ok(())
}

#[test]
fn logits_and_labels_that_are_views() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[6, 40, 10], 1));
    let t = c.input(labels(&[10, 40], 6, None));
    let turned = c.b.permute(t, &[1, 0])?;
    outputs(&mut c, "turned labels", x, turned, attrs(0, None, 0.0))?;
    let cut = c.b.slice(x, 1, 3, 35)?;
    let labels_cut = c.b.slice(turned, 0, 5, 35)?;
    outputs(&mut c, "cut", cut, labels_cut, attrs(0, None, 0.2))?;
    let row = c.b.slice(x, 0, 5, 1)?;
    let stretched = c.b.broadcast(row, [6, 40, 10])?;
    outputs(&mut c, "stretched", stretched, turned, attrs(0, None, 0.0))?;
    let none = c.input(full(DType::F32, &[0, 5], 0.0));
    let t = c.input(full(DType::I32, &[0], 0.0));
    outputs(&mut c, "no rows", none, t, attrs(1, None, 0.0))?;
    c.check(1e-5, &[BOTH, OTHERS].concat());
    Ok(())
}

/// A label that the graph computes may be anything: one outside the classes makes its row NaN, and no other.
#[test]
fn labels_outside_the_classes_make_their_rows_nan() -> Result {
    for classes in [3, 4, 40, 300] {
        let mut c = Case::new();
        let x = c.input(random(DType::F32, &[4, classes], 1));
        let t = c.input(tensor(DType::I32, &[4], &[0.0, -1.0, classes as f64 / 2.0 + 1.0, 1.0]));
        let two = c.input(tensor(DType::I32, &[], &[2.0]));
        let doubled = c.b.mul(t, two)?;
        outputs(&mut c, "y", x, doubled, attrs(1, Some(2), 0.0))?;
        c.run(&BOTH, |setup, outputs| {
            let loss = outputs["y: loss"].to_f64();
            let nan: Vec<bool> = loss.iter().map(|l| l.is_nan()).collect();
            assert_eq!(nan, [false, true, true, false], "{classes}, {setup}: {loss:?}");
            // 2 is ignored
            assert_eq!(loss[3], 0.0);
            let rows = outputs["y: gradient"].to_f64();
            for (row, (gradient, nan)) in rows.chunks(classes).zip(nan).enumerate() {
                assert!(gradient.iter().all(|g| g.is_nan() == nan), "row {row} of {classes}, {setup}");
            }
            assert!(rows[3 * classes..].iter().all(|g| *g == 0.0));
        });
    }
    Ok(())
}

/// An ignored row is left out, not multiplied by 0; and what docs/semantics.md says of rows of infinities.
#[test]
fn rows_where_numbers_run_out() -> Result {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let mut c = Case::new();
    for n in [3, 300, 301] {
        for (i, (fill, first)) in
            [(0.0, inf), (0.0, nan), (-inf, -inf), (0.0, -inf), (-inf, 0.0), (1.0, 1.0)].into_iter().enumerate()
        {
            let mut row = vec![fill; n];
            row[1] = first;
            let rows = [row.clone(), row.clone(), row].concat();
            let x = c.input(tensor(DType::F32, &[3, n], &rows));
            let t = c.input(tensor(DType::I32, &[3], &[0.0, 1.0, -100.0]));
            let dloss = c.input(tensor(DType::F32, &[3], &[0.5, 2.0, if i % 2 == 0 { nan } else { inf }]));
            for smoothing in [0.0, 0.1] {
                let a = attrs(1, Some(-100), smoothing);
                let loss = c.b.cross_entropy_rows(x, t, a)?;
                let sums = ValueId { node: loss.node, output: 1 };
                c.output(format!("{n} {i} {smoothing}: loss"), Ok(loss));
                c.output(format!("{n} {i} {smoothing}: log-sum-exp"), Ok(sums));
                let grad = c.b.op(Op::CrossEntropyGrad(a), &[x, t, sums, dloss]);
                c.output(format!("{n} {i} {smoothing}: gradient"), grad);
            }
        }
    }
    c.check(1e-5, &BOTH);
    Ok(())
}

#[test]
fn the_mean_loss_of_no_targets_is_0() -> Result {
    let mut c = Case::new();
    let (x, t) = (c.input(full(DType::F32, &[0, 3], 0.0)), c.input(Tensor::i32([0], &[])));
    for ignore_index in [None, Some(-100)] {
        let loss = c.b.cross_entropy(x, t, CrossEntropy { ignore_index, ..CrossEntropy::default() });
        c.output(format!("{ignore_index:?}"), loss);
    }
    let (graph, params, inputs) = c.finish();
    assert!(kiln::reference::evaluate(&graph, &params, &inputs)?.values().all(|loss| loss.data == [0.0]));
    crate::common::check(&graph, &params, &inputs, 0.0, &BOTH);
    Ok(())
}
