//! Softmax, norms and gathers.

use crate::common::{BOTH, Case, F32, Named, OTHERS, Result, floats, random, session, tensor};
use kiln::graph::{Builder, DType, TensorType, ValueId};
use kiln::tensor::Tensor;

#[test]
fn softmax_over_every_axis() {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let shapes: [&[usize]; 8] =
            [&[1, 1], &[3, 31], &[2, 33], &[40, 33], &[2, 257], &[3, 1024], &[2, 3, 5, 7], &[1, 5000]];
        for dims in shapes {
            let x = c.input(random(dtype, dims, 1));
            for axis in 0..dims.len() {
                let y = c.b.softmax(x, axis);
                c.output(format!("{dims:?} {axis}"), y);
                let y = c.b.log_softmax(x, axis);
                c.output(format!("{dims:?} {axis}: log"), y);
            }
        }
        c.check(tolerance, &BOTH);
    }
}

#[test]
fn softmax_of_views() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[6, 40, 10], 1));
    let turned = c.b.permute(x, &[2, 0, 1])?;
    let cut = c.b.slice(x, 1, 3, 35)?;
    let flat = c.b.reshape(cut, [6, 350])?;
    let row = c.b.slice(x, 0, 5, 1)?;
    let stretched = c.b.broadcast(row, [4, 40, 10])?;
    for (name, v) in [("turned", turned), ("cut", cut), ("flat", flat), ("row", row), ("stretched", stretched)] {
        let y = c.b.softmax(v, c.b.shape(v).rank() - 1);
        c.output(name, y);
    }
    c.check(F32, &[BOTH, OTHERS].concat());
    Ok(())
}

/// Output and statistics of a norm.
fn outputs(c: &mut Case, name: &str, y: ValueId, count: usize) {
    for output in 0..count {
        c.output(format!("{name}.{output}"), Ok(ValueId { node: y.node, output }));
    }
}

#[test]
fn norms_and_their_statistics() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        for (rows, width) in [(1, 1), (3, 31), (5, 33), (2, 64), (2, 257), (40, 65), (33, 128), (1, 1500)] {
            let x = c.input(random(dtype, &[rows, width], 1));
            let (g, b) = (c.parameter(random(dtype, &[width], 2)), c.parameter(random(dtype, &[width], 3)));
            let y = c.b.layernorm(x, g, b, 1e-5);
            c.output(format!("layernorm {width}"), y);
            let y = c.b.layernorm(x, g, b, 1e-3)?;
            outputs(&mut c, &format!("layernorm with statistics {width}"), y, 3);
            let y = c.b.rmsnorm(x, g, 1e-5);
            c.output(format!("rmsnorm {width}"), y);
            let y = c.b.rmsnorm(x, g, 1e-3)?;
            outputs(&mut c, &format!("rmsnorm with statistics {width}"), y, 2);
        }
        c.check(tolerance, &BOTH);
    }
    Ok(())
}

#[test]
fn a_sum_that_is_normed_is_one_kernel() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        for (i, (a, b)) in [
            (&[2, 3, 33][..], &[2, 3, 33][..]),
            (&[2, 3, 64], &[3, 64]),
            (&[4, 33], &[33]),
            (&[40, 64], &[]),
            (&[3, 33], &[1]),
            (&[2, 3, 8], &[2, 1, 8]),
        ]
        .into_iter()
        .enumerate()
        {
            let width = a[a.len() - 1];
            let (x, y) = (c.input(random(dtype, a, 1)), c.input(random(dtype, b, 2)));
            let (g, beta) = (c.parameter(random(dtype, &[width], 3)), c.parameter(random(dtype, &[width], 4)));
            let sum = c.b.add(x, y)?;
            let y = c.b.layernorm(sum, g, beta, 1e-5)?;
            outputs(&mut c, &i.to_string(), y, if i % 2 == 0 { 3 } else { 1 });
            let out = c.b.relu(sum);
            c.output(format!("sum {i}"), out);
        }
        c.check(tolerance, &[BOTH, OTHERS].concat());
    }
    Ok(())
}

#[test]
fn rows_of_a_table() -> Result {
    for (dtype, _) in floats() {
        let mut c = Case::new();
        for width in [1, 3, 8, 33] {
            let table = c.parameter(random(dtype, &[5, width], 1));
            for (i, index) in [DType::I32, DType::U32].into_iter().enumerate() {
                let tokens = c.input(random(index, &[3, 7], 2 + i as u64));
                let y = c.b.embedding(table, tokens);
                c.output(format!("{width} by {index}"), y);
                let turned = c.b.permute(tokens, &[1, 0])?;
                let y = c.b.embedding(table, turned);
                c.output(format!("{width} by turned {index}"), y);
            }
            let rows = c.b.arange(4)?;
            let y = c.b.embedding(table, rows);
            c.output(format!("{width} in order"), y);
            let x = c.input(random(dtype, &[3, 5, width], 4));
            let position = c.input(tensor(DType::I32, &[3], &[4.0, 0.0, 2.0]));
            let y = c.b.pick_row(x, position);
            c.output(format!("{width} picked"), y);
            let flat = c.b.reshape(x, [3, 5 * width])?;
            let position = c.input(tensor(DType::I32, &[3], &[4.0, 0.0, 2.0]));
            let y = c.b.pick_row(flat, position);
            c.output(format!("{width} picked element"), y);
        }
        c.check(0.0, &BOTH);
    }
    Ok(())
}

#[test]
fn positions_over_the_binding_limit_are_of_their_own_batch_entries() -> Result {
    let Some(session) = session() else { return Ok(()) };
    // positions, entries and results of 80 KB each, then entries of 160
    for seq in [1, 2] {
        let batch = 20_000;
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(DType::F32, [batch, seq, 1]))?;
        let position = b.input("position", TensorType::new(DType::I32, [batch]))?;
        let y = b.pick_row(x, position)?;
        b.output("y", y)?;
        let graph = b.finish()?;
        let x: Vec<f32> = (0..batch * seq).map(|i| i as f32).collect();
        let position: Vec<i32> = (0..batch).map(|i| (i * 7 % 3 % seq) as i32).collect();
        let inputs = [("x", &Tensor::f32([batch, seq, 1], &x)), ("position", &Tensor::i32([batch], &position))];
        for setup in BOTH {
            let mut options = setup.options(session);
            options.limits.as_mut().expect("setups set limits").max_binding_bytes = 64 << 10;
            let program = session.compile(&graph, &Named::new(), &options)?;
            assert!(program.dispatches() > 1, "{setup}");
            let want: Vec<f32> = position.iter().enumerate().map(|(i, p)| (i * seq) as f32 + *p as f32).collect();
            let got = program.run(&inputs)?["y"].to_f32();
            let wrong = (0..batch).find(|i| got[*i] != want[*i]);
            assert_eq!(wrong, None, "{setup}, {seq}");
        }
    }
    Ok(())
}

#[test]
fn indices_made_on_the_device_are_moved_to_the_nearest_row() -> Result {
    let mut c = Case::new();
    let table = c.parameter(tensor(DType::F32, &[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]));
    let x = c.input(tensor(DType::I32, &[4], &[-3.0, 1.0, 2.0, 4.0]));
    let two = c.input(tensor(DType::I32, &[], &[2.0]));
    let far = c.b.mul(x, two)?;
    let y = c.b.embedding(table, far);
    c.output("y", y);
    // the reference refuses what the device clamps
    c.run(&BOTH, |setup, outputs| {
        assert_eq!(outputs["y"].to_f64(), [0.0, 1.0, 20.0, 21.0, 20.0, 21.0, 20.0, 21.0], "{setup}");
    });
    Ok(())
}

#[test]
fn statistics_of_rows_without_elements_are_nan() -> Result {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[2, 0], &[]));
    let none = c.parameter(tensor(DType::F32, &[0], &[]));
    let y = c.b.layernorm(x, none, none, 1e-5)?;
    c.output("mean", Ok(ValueId { output: 1, ..y }));
    c.output("rstd", Ok(ValueId { output: 2, ..y }));
    let y = c.b.rmsnorm(x, none, 1e-5)?;
    c.output("of rms norm", Ok(ValueId { output: 1, ..y }));
    c.check(F32, &[BOTH, OTHERS].concat());
    Ok(())
}
