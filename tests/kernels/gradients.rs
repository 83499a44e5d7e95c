//! Gradients of softmax, norms and embeddings.

use crate::common::{BOTH, Case, OTHERS, Result, difference, floats, full, random, repeats, session, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{CrossEntropyAttrs, DType, Op, ValueId};
use kiln::reference::evaluate;
use kiln::session::CompileOptions;

#[test]
fn softmax_gradients_over_every_axis() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let shapes: [&[usize]; 8] =
            [&[1, 1], &[3, 31], &[2, 33], &[40, 33], &[2, 257], &[3, 1024], &[2, 3, 5, 7], &[1, 5000]];
        for dims in shapes {
            let (x, dy) = (c.input(random(dtype, dims, 1)), c.input(random(dtype, dims, 2)));
            for axis in 0..dims.len() {
                let y = c.b.softmax(x, axis)?;
                let dx = c.b.op(Op::SoftmaxGrad(axis), &[y, dy]);
                c.output(format!("{dims:?} {axis}"), dx);
                let y = c.b.log_softmax(x, axis)?;
                let dx = c.b.op(Op::LogSoftmaxGrad(axis), &[y, dy]);
                c.output(format!("{dims:?} {axis}: log"), dx);
            }
        }
        repeats(c, tolerance, &BOTH);
    }
    Ok(())
}

fn norms(c: &mut Case, name: &str, x: ValueId, dy: ValueId, dtype: DType) -> Result {
    let width = c.b.shape(x).last();
    let (g, b) = (c.parameter(random(dtype, &[width], 3)), c.parameter(random(dtype, &[width], 4)));
    let y = c.b.layernorm(x, g, b, 1e-5)?;
    let [mean, rstd] = [1, 2].map(|output| ValueId { node: y.node, output });
    let dx = c.b.op(Op::LayerNormGrad, &[x, g, mean, rstd, dy]);
    c.output(format!("{name}: layernorm dx"), dx);
    let other = c.input(random(dtype, c.b.shape(x).clone().dims(), 5));
    let sum = c.b.op(Op::LayerNormGrad, &[x, g, mean, rstd, dy, other]);
    c.output(format!("{name}: layernorm dx and another"), sum);
    let dg = c.b.op(Op::LayerNormParamGrad, &[x, mean, rstd, dy])?;
    c.output(format!("{name}: layernorm dgamma"), Ok(dg));
    c.output(format!("{name}: layernorm dbeta"), Ok(ValueId { node: dg.node, output: 1 }));
    let y = c.b.rmsnorm(x, g, 1e-5)?;
    let rstd = ValueId { node: y.node, output: 1 };
    let dx = c.b.op(Op::RmsNormGrad, &[x, g, rstd, dy]);
    c.output(format!("{name}: rmsnorm dx"), dx);
    let sum = c.b.op(Op::RmsNormGrad, &[x, g, rstd, dy, other]);
    c.output(format!("{name}: rmsnorm dx and another"), sum);
    let dg = c.b.op(Op::RmsNormParamGrad, &[x, rstd, dy]);
    c.output(format!("{name}: rmsnorm dgamma"), dg);
    Ok(())
}

#[test]
fn norm_gradients_over_odd_sizes() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let shapes: [&[usize]; 11] = [
            &[7],
            &[3, 5],
            &[257, 4],
            &[3, 31],
            &[5, 33],
            &[2, 64],
            &[2, 257],
            &[40, 65],
            &[3, 11, 128],
            &[300, 96],
            &[1, 1500],
        ];
        for dims in shapes {
            let (x, dy) = (c.input(random(dtype, dims, 1)), c.input(random(dtype, dims, 2)));
            norms(&mut c, &format!("{dims:?}"), x, dy, dtype)?;
        }
        repeats(c, tolerance, &BOTH);
    }
    Ok(())
}

#[test]
fn norm_gradients_of_views_and_of_nothing() -> Result {
    let mut c = Case::new();
    let (x, dy) = (c.input(random(DType::F32, &[33, 5, 8], 1)), c.input(random(DType::F32, &[5, 8, 33], 2)));
    let x = c.b.permute(x, &[1, 2, 0])?;
    norms(&mut c, "turned", x, dy, DType::F32)?;
    let row = c.input(random(DType::F32, &[33], 5));
    let stretched = c.b.broadcast(row, [5, 8, 33])?;
    norms(&mut c, "stretched", x, stretched, DType::F32)?;
    let none = c.input(full(DType::F32, &[0, 33], 0.0));
    norms(&mut c, "nothing", none, none, DType::F32)?;
    c.check(1e-5, &[BOTH, OTHERS].concat());
    Ok(())
}

#[test]
fn embedding_gradients_over_odd_sizes() -> Result {
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        for (rows, width, count) in
            [(1, 1, 1), (5, 3, 31), (5, 4, 33), (65, 96, 257), (3, 33, 1000), (300, 8, 40), (7, 260, 64), (2, 5, 9000)]
        {
            for index in [DType::I32, DType::U32] {
                let dy = c.input(random(dtype, &[count, width], 1));
                let values: Vec<f64> = (0..count).map(|i| ((i * i + i / 3) % rows.min(count)) as f64).collect();
                let t = c.input(tensor(index, &[count], &values));
                let y = c.b.op(Op::EmbeddingGrad(rows), &[dy, t]);
                c.output(format!("{rows} {width} {count} by {index}"), y);
            }
        }
        repeats(c, tolerance, &BOTH);
    }
    Ok(())
}

#[test]
fn embedding_gradients_of_views_of_an_order_and_of_nothing() -> Result {
    let mut c = Case::new();
    let dy = c.input(random(DType::F32, &[8, 7, 3], 1));
    let t = c.input(random(DType::I32, &[3, 7], 2));
    let turned_dy = c.b.permute(dy, &[2, 1, 0])?; // (3, 7, 8)
    let y = c.b.op(Op::EmbeddingGrad(5), &[turned_dy, t]);
    c.output("turned gradient", y);
    let turned = c.b.permute(t, &[1, 0])?;
    let dy = c.input(random(DType::F32, &[7, 3, 6], 3));
    let y = c.b.op(Op::EmbeddingGrad(5), &[dy, turned]);
    c.output("turned indices", y);
    // each row once, as positions are
    let dy = c.input(random(DType::F32, &[70, 12], 4));
    let order = c.b.arange(70)?;
    let y = c.b.op(Op::EmbeddingGrad(70), &[dy, order]);
    c.output("in order", y);
    let y = c.b.op(Op::EmbeddingGrad(100), &[dy, order]);
    c.output("with rows to spare", y);
    let none = c.input(full(DType::F32, &[0, 12], 0.0));
    let no_index = c.input(full(DType::I32, &[0], 0.0));
    let y = c.b.op(Op::EmbeddingGrad(3), &[none, no_index]);
    c.output("nothing", y);
    c.check(1e-6, &[BOTH, OTHERS].concat());
    Ok(())
}

/// Indices that the graph computes may be anything: those outside the table add nothing.
#[test]
fn indices_outside_the_table_add_nothing() -> Result {
    for index in [DType::I32, DType::U32] {
        let mut c = Case::new();
        let dy = c.input(full(DType::F32, &[5, 4], 1.0));
        let first = if index == DType::I32 { -3.0 } else { 4_294_967_295.0 };
        let t = c.input(tensor(index, &[5], &[first, 1.0, 2.0, 0.0, 1.0]));
        let two = c.input(tensor(index, &[], &[2.0]));
        let far = c.b.mul(t, two)?;
        let y = c.b.op(Op::EmbeddingGrad(3), &[dy, far]);
        c.output("y", y);
        c.run(&BOTH, |setup, outputs| {
            let want = [[1.0; 4], [0.0; 4], [2.0; 4]].concat();
            assert_eq!(outputs["y"].to_f64(), want, "{setup}");
        });
    }
    Ok(())
}

/// Tensors that no binding covers are cut by rows, of which each window holds some.
#[test]
fn gradients_over_several_bindings() -> Result {
    let Some(session) = session() else { return Ok(()) };
    for (dtype, tolerance) in floats() {
        let mut c = Case::new();
        let (x, dy) = (c.input(random(dtype, &[700, 64], 1)), c.input(random(dtype, &[700, 64], 2)));
        norms(&mut c, "norms", x, dy, dtype)?;
        let y = c.b.softmax(x, 1)?;
        let dx = c.b.op(Op::SoftmaxGrad(1), &[y, dy]);
        c.output("softmax", dx);
        let values: Vec<f64> = (0..700).map(|i| f64::from(i * i % 901)).collect();
        let t = c.input(tensor(DType::I32, &[700], &values));
        let y = c.b.op(Op::EmbeddingGrad(901), &[dy, t]);
        c.output("embedding", y);
        let t = c.input(tensor(DType::I32, &[700], &values.iter().map(|v| v % 64.0).collect::<Vec<_>>()));
        let a = CrossEntropyAttrs { axis: 1, ignore_index: Some(3), label_smoothing: 0.1.into() };
        let loss = c.b.cross_entropy_rows(x, t, a)?;
        let sums = ValueId { node: loss.node, output: 1 };
        let dx = c.b.op(Op::CrossEntropyGrad(a), &[x, t, sums, loss]);
        c.output("loss", Ok(loss));
        c.output("cross entropy", dx);
        let (graph, params, inputs) = c.finish();
        let want = evaluate(&graph, &params, &inputs)?;
        for cpu in [false, true] {
            let limits = DeviceCaps { max_binding_bytes: 32 << 10, cpu, ..session.caps().clone() };
            let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
            let program = session.compile(&graph, &params, &options)?;
            let given: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            for (name, got) in program.run(&given)? {
                difference(&got, &want[&name], tolerance).unwrap_or_else(|e| panic!("{name} {dtype} {cpu}: {e}"));
            }
        }
    }
    Ok(())
}
