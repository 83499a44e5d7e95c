//! Products of matrices and linears.

use crate::common::{BOTH, Case, EVERY, F16, F32, Result, close, each, f16, full, random, session, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, DType, TensorType, Unary};
use kiln::session::{CompileOptions, compile};
use kiln::tensor::Tensor;

/// i·step + start, rounded as f32 arithmetic rounds.
fn ramp(dims: [usize; 2], step: f64, start: f64) -> Tensor {
    let values: Vec<f64> = (0..dims[0] * dims[1]).map(|i| i as f64 * step + start).collect();
    tensor(DType::F32, &dims, &values)
}

/// Row counts that are and are not whole tiles, under sums of large numbers.
#[test]
fn m02_rows_that_are_no_whole_tiles() {
    let k = 1024;
    let mut c = Case::new();
    let w = c.input(ramp([k, k], 1e-4, -0.5));
    for m in [35, 64, 128, 256, 535, 1024] {
        let x = c.input(ramp([m, k], 1e-4, -0.3));
        let y = c.b.matmul(x, w);
        c.output(m.to_string(), y);
    }
    let (graph, params, inputs) = c.finish();
    let want = kiln::reference::evaluate(&graph, &params, &inputs).expect("inputs are given");
    each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
        let outputs = program.run(given).unwrap_or_else(|e| panic!("{setup}: {e}"));
        for (name, want) in &want {
            crate::common::difference(&outputs[name], want, F32).unwrap_or_else(|e| panic!("{name} ({setup}): {e}"));
        }
        for (name, row, column, number) in [
            ("535", 0, 0, -12_303.316),
            ("535", 534, 0, 2_892_528.86),
            ("535", 534, 1023, 2_898_230.97),
            ("35", 34, 0, 172_648.55),
            ("35", 34, 1023, 172_987.19),
        ] {
            let got = outputs[name].to_f64()[row * k + column];
            close(&format!("{name} [{row}, {column}] ({setup})"), &[got], &[number], 1e-5);
        }
    });
}

/// An odd number of rows in a batch of one: no row stays zero.
#[test]
fn m03_an_odd_number_of_rows() {
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[1, 257, 384], 1.0));
    let w = c.input(full(DType::F32, &[384, 1152], 1.0 / 384.0));
    let y = c.b.matmul(x, w);
    c.output("y", y);
    c.expect(&BOTH, 1e-5, &[("y", &vec![1.0; 257 * 1152])]);
}

/// A product of one column, then its sum with itself.
#[test]
fn m04_a_product_that_is_added_to_itself() -> Result {
    let mut c = Case::new();
    let h = c.input(tensor(DType::F32, &[4, 3], &[0.9, 0.8, -0.9, 0.1, 0.45, -0.6, -0.25, -0.41, 0.51, 0.6, 0.1, 0.0]));
    let v = c.input(tensor(DType::F32, &[3, 1], &[0.3, -0.2, 0.1]));
    let y = c.b.matmul(h, v)?;
    c.output("y", Ok(y));
    let twice = c.b.add(y, y);
    c.output("twice", twice);
    // where the product itself is not kept
    let y = c.b.matmul(h, v)?;
    let twice = c.b.add(y, y);
    c.output("alone", twice);
    let want = [0.02, -0.12, 0.058, 0.16];
    let twice = want.map(|v| 2.0 * v);
    c.expect(&EVERY, 1e-6, &[("y", &want), ("twice", &twice), ("alone", &twice)]);
    Ok(())
}

/// A classifier's linear on one image and on a batch.
#[test]
fn m06_a_linear_of_ten_outputs() {
    let mut c = Case::new();
    let (w, b) = (c.parameter(random(DType::F32, &[10, 784], 1)), c.parameter(random(DType::F32, &[10], 2)));
    for batch in [1, 32] {
        let x = c.input(random(DType::F32, &[batch, 784], 3));
        let y = c.b.linear(x, w, Some(b));
        c.output(batch.to_string(), y);
    }
    c.check(F32, &EVERY);
}

/// A left operand without the right one's batch is used for each of it, and the other way round.
#[test]
fn m08_ranks_that_differ() {
    let mut c = Case::new();
    let a = c.input(random(DType::F32, &[5, 7], 1));
    let b = c.input(random(DType::F32, &[3, 7, 6], 2));
    let y = c.b.matmul(a, b);
    c.output("left", y);
    let d = c.input(random(DType::F32, &[6, 5], 3));
    let y = c.b.matmul(b, d);
    c.output("right", y);
    let y = c.b.matmul(d, b).map(|_| ()).expect_err("inner sizes differ").to_string();
    assert_eq!(y, "matmul \"matmul\": inner sizes differ: left (6, 5), right (3, 7, 6) (dimension 1)");
    c.check(F32, &BOTH);
}

/// A batch of one against a batch of many.
#[test]
fn m09_a_batch_of_one_is_stretched() {
    let mut c = Case::new();
    let a = c.input(full(DType::F32, &[1, 32, 32], 1.0));
    let b = c.input(full(DType::F32, &[32, 32, 32], 1.0));
    let y = c.b.matmul(a, b);
    c.output("y", y);
    let y = c.b.matmul(b, a);
    c.output("turned", y);
    let want = vec![32.0; 32 * 32 * 32];
    c.expect(&BOTH, 0.0, &[("y", &want), ("turned", &want)]);
}

/// More matrices than a device allows workgroups along one dimension.
#[test]
fn m10_a_batch_of_65536() {
    let batch = 65_536;
    let mut c = Case::new();
    let a = c.input(full(DType::F32, &[batch, 1, 4], 1.0));
    let b = c.input(full(DType::F32, &[batch, 4, 1], 1.0));
    let y = c.b.matmul(a, b);
    c.output("y", y);
    let small = c.input(full(DType::F32, &[batch, 3, 1], 2.0));
    let y = c.b.matmul(small, a);
    c.output("outer", y);
    c.expect(&BOTH, 0.0, &[("y", &vec![4.0; batch]), ("outer", &vec![2.0; batch * 12])]);
}

/// Few rows and columns, as a matrix unit's tile would have them.
#[test]
fn m11_products_of_few_rows_and_columns() {
    let mut c = Case::new();
    for n in [8, 16] {
        let a = c.input(random(DType::F32, &[16, 256], 1));
        let b = c.input(random(DType::F32, &[256, n], 2));
        let y = c.b.matmul(a, b);
        c.output(n.to_string(), y);
    }
    c.check(F32, &BOTH);
}

/// No size is a whole number of tiles.
#[test]
fn m12_no_size_is_a_whole_tile() {
    let mut c = Case::new();
    let (a, b) = (c.input(random(DType::F32, &[65, 33], 1)), c.input(random(DType::F32, &[33, 67], 2)));
    let y = c.b.matmul(a, b);
    c.output("y", y);
    let (w, bias) = (c.parameter(random(DType::F32, &[67, 33], 3)), c.parameter(random(DType::F32, &[67], 4)));
    let y = c.b.linear(a, w, Some(bias));
    c.output("linear", y);
    c.check(F32, &BOTH);
}

/// A result of more than 2^30 elements is refused by name where a device has no such buffer; no index wraps.
#[test]
fn m13_a_result_of_more_than_2_30_elements() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [104, 8]))?;
    let y = b.input("y", TensorType::new(DType::F32, [8, 10_342_400]))?;
    let z = b.matmul(x, y)?;
    b.output("z", z)?;
    let graph = b.finish()?;
    let portable = DeviceCaps { max_binding_bytes: 1 << 30, max_buffer_bytes: 1 << 30, ..DeviceCaps::PORTABLE };
    let error = compile(&graph, &portable, &CompileOptions::default()).expect_err("4 GiB in a buffer of 1 GiB");
    assert_eq!(
        error.to_string(),
        "matmul \"matmul\": tensor of 4302438400 bytes, but this device's largest buffer is 1073741824 bytes; \
         use a smaller size or another adapter"
    );
    // with buffers without end, no launch's window is one that u32 cannot count
    for cpu in [false, true] {
        let endless = DeviceCaps { max_buffer_bytes: u64::MAX, max_binding_bytes: (1 << 31) - 256, cpu, ..portable };
        let compiled = compile(&graph, &endless, &CompileOptions::default())?;
        let dispatches = &compiled.recording.dispatches;
        assert!(dispatches.len() > 1, "one dispatch binds at most {} bytes", endless.max_binding_bytes);
        assert!(dispatches.iter().flat_map(|d| &d.bindings).all(|b| b.bytes <= endless.max_binding_bytes));
    }
    // a weight of 4 GiB where the device binds as much, and kernels do not
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [3, 1 << 15]))?;
    let w = b.parameter("w", TensorType::new(DType::F32, [1 << 15, 1 << 15]))?;
    let y = b.linear(x, w, None)?;
    b.output("y", y)?;
    let graph = b.finish()?;
    for cpu in [false, true] {
        let huge = DeviceCaps { max_buffer_bytes: 8 << 30, max_binding_bytes: 8 << 30, cpu, ..portable };
        let compiled = compile(&graph, &huge, &CompileOptions::default())?;
        let dispatches = &compiled.recording.dispatches;
        assert!(dispatches.len() >= 2 && compiled.plan.total() < 5 << 30, "{}: {}", dispatches.len(), compiled.plan);
    }
    Ok(())
}

/// The same product again and again is the same to the bit.
#[test]
fn m14_a_linear_repeats_to_the_bit() {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[1500, 384], 1));
    let w = c.parameter(random(DType::F32, &[384, 384], 2));
    let y = c.b.linear(x, w, None);
    c.output("y", y);
    let (graph, params, inputs) = c.finish();
    each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
        let run = || program.run(given).unwrap_or_else(|e| panic!("{setup}: {e}"));
        let first = run();
        // tiles are slow on a CPU
        let runs = if setup.tiled && session().is_some_and(|s| s.caps().cpu) { 5 } else { 20 };
        for i in 1..runs {
            assert!(run()["y"].bytes() == first["y"].bytes(), "run {i} ({setup})");
        }
    });
}

/// A factor on a product with its bias is one on the bias too.
#[test]
fn m15_a_factor_scales_the_bias_too() -> Result {
    let mut c = Case::new();
    let a = c.input(full(DType::F32, &[32, 15], 1.0));
    let b = c.input(full(DType::F32, &[15, 15], 1.0));
    let bias = c.input(full(DType::F32, &[15], 1.0));
    let y = c.b.matmul(a, b)?;
    let y = c.b.add(y, bias)?;
    let y = c.b.scale(y, 0.1);
    c.output("matmul", y);
    let (w, bias) = (c.parameter(full(DType::F32, &[15, 15], 1.0)), c.parameter(full(DType::F32, &[15], 1.0)));
    let y = c.b.linear(a, w, Some(bias))?;
    let y = c.b.scale(y, 0.1);
    c.output("linear", y);
    let want = [1.6; 32 * 15];
    c.expect(&EVERY, 1e-6, &[("matmul", &want), ("linear", &want)]);
    Ok(())
}

/// Sums of f16 products are f32 and overflow at the store alone: a bias that brings them back is added before it, an op
/// of its own comes after it, in every mode.
#[test]
fn m20_f16_overflows_at_the_store() -> Result {
    if !f16() {
        return Ok(());
    }
    let k = 4096;
    let mut c = Case::new();
    let x = c.input(full(DType::F16, &[3, k], 4.0));
    let w = c.parameter(full(DType::F16, &[5, k], 4.0));
    let bias = c.parameter(full(DType::F16, &[5], -100.0));
    let y = c.b.linear(x, w, None);
    c.output("product", y);
    let y = c.b.linear(x, w, Some(bias));
    c.output("with a bias", y);
    let y = c.b.linear(x, w, None)?;
    let y = c.b.add(y, bias);
    c.output("then a sum", y);
    let inf = [f64::INFINITY; 15];
    c.expect(&EVERY, 0.0, &[("product", &inf), ("with a bias", &[65_440.0; 15]), ("then a sum", &inf)]);
    Ok(())
}

/// A linear that is fused with what follows gives what it gives alone.
#[test]
fn m21_fused_linears_are_unfused_ones() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[2, 9, 16], 1));
    let (w, bias) = (c.parameter(random(DType::F32, &[13, 16], 2)), c.parameter(random(DType::F32, &[13], 3)));
    for f in [Unary::Relu, Unary::GeluErf, Unary::GeluTanh, Unary::Silu] {
        let y = c.b.linear(x, w, Some(bias))?;
        let y = c.b.unary(f, y);
        c.output(f.name(), y);
    }
    let mut outputs = Vec::new();
    c.run(&EVERY, |setup, made| outputs.push((setup, made)));
    for pair in outputs.windows(2) {
        for (name, y) in &pair[0].1 {
            let what = format!("{name}, {} and {}", pair[0].0, pair[1].0);
            close(&what, &pair[1].1[name].to_f64(), &y.to_f64(), 1e-6);
        }
    }
    Ok(())
}

/// No kernel depends on how many invocations a subgroup has: whatever a device says of it, the same is recorded.
#[test]
fn m22_subgroups_change_nothing() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [65, 300]))?;
    let w = b.parameter("w", TensorType::new(DType::F32, [70, 300]))?;
    let y = b.linear(x, w, None)?;
    b.output("product", y)?;
    let y = b.sum(x, &[1])?;
    b.output("sum", y)?;
    let y = b.softmax(x, 1)?;
    b.output("softmax", y)?;
    let graph = b.finish()?;
    for cpu in [false, true] {
        let record = |subgroup| -> Result<String> {
            let caps = DeviceCaps { subgroup, cpu, ..DeviceCaps::PORTABLE };
            let compiled = compile(&graph, &caps, &CompileOptions::default())?;
            let sources: Vec<String> = compiled.recording.kernels.iter().map(|k| k.source()).collect();
            Ok(format!("{}\n{}", compiled.recording, sources.join("\n")))
        };
        let without = record(None)?;
        assert!(!without.contains("subgroup"), "{without}");
        for size in [4, 8, 16, 32, 64] {
            assert_eq!(record(Some((size, size)))?, without, "subgroups of {size}");
        }
    }
    Ok(())
}

/// GPT-2's head: an odd number of columns and a table that tokens are looked up in too, larger than a binding may be.
#[test]
fn m23_a_tied_head_of_50257_tokens() -> Result {
    let Some(session) = session() else { return Ok(()) };
    let (vocab, width) = (50_257, 768);
    let bytes = (vocab * width * 4) as u64;
    // the direct kernel wants the table the other way round, in pieces
    if session.caps().max_buffer_bytes < bytes {
        println!("skipped: the table takes {bytes} bytes, a buffer at most {}", session.caps().max_buffer_bytes);
        return Ok(());
    }
    let mut c = Case::new();
    let table = c.parameter(random(DType::F32, &[vocab, width], 1));
    let tokens = c.input(tensor(DType::I32, &[8], &[0.0, 1.0, 50_256.0, 3.0, 262.0, 11.0, 40_000.0, 50_255.0]));
    let x = c.b.embedding(table, tokens)?;
    let logits = c.b.linear(x, table, None);
    c.output("logits", logits);
    c.check(1e-5, &BOTH);
    Ok(())
}

/// What f16 may lose in a long product.
#[test]
fn m20_f16_sums_in_f32() {
    if !f16() {
        return;
    }
    let mut c = Case::new();
    let (a, b) = (c.input(random(DType::F16, &[3, 4096], 1)), c.input(random(DType::F16, &[4096, 5], 2)));
    let y = c.b.matmul(a, b);
    c.output("y", y);
    c.check(F16, &BOTH);
}
