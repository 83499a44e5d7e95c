//! Products of matrices and what follows them.

use crate::common::{BOTH, Case, F16, F32, Named, OTHERS, Result, f16, full, random};
use kiln::caps::DeviceCaps;
use kiln::graph::{Chain, Comparison, DType, Disposition, Graph, Op, Ref, Step, Unary, ValueId};
use kiln::kernel::KernelKey;
use kiln::session::CompileOptions;

/// A product of stored operands, transposed as asked.
fn product(c: &mut Case, dtype: DType, [m, k, n]: [usize; 3], ta: bool, tb: bool) {
    let a = if ta { [k, m] } else { [m, k] };
    let b = if tb { [n, k] } else { [k, n] };
    let (a, b) = (c.input(random(dtype, &a, 1)), c.input(random(dtype, &b, 2)));
    let y = c.b.matmul_transposed(a, ta, b, tb);
    c.output(format!("({m}, {k}){} ({k}, {n}){}", if ta { "T" } else { "" }, if tb { "T" } else { "" }), y);
}

// A product is a kernel of its own for each way its operands lie, and kernels take long to compile on a CPU: f16 and the
// modes beside BOTH see a few of the forms.

#[test]
fn odd_sizes() {
    let sizes =
        [[1, 1, 1], [1, 33, 31], [31, 257, 33], [33, 31, 257], [257, 33, 1], [3, 1, 5], [5, 4, 8], [64, 32, 64]];
    let mut c = Case::new();
    for size in sizes {
        product(&mut c, DType::F32, size, false, false);
    }
    c.check(F32, &BOTH);
    let mut c = Case::new();
    product(&mut c, DType::F32, [33, 31, 17], false, false);
    c.check(F32, &OTHERS);
}

#[test]
fn odd_sizes_in_f16() {
    if !f16() {
        return;
    }
    let mut c = Case::new();
    for size in [[31, 257, 33], [5, 4, 8]] {
        product(&mut c, DType::F16, size, false, false);
    }
    product(&mut c, DType::F16, [33, 31, 7], true, true);
    c.check(F16, &BOTH);
}

#[test]
fn transposed_operands() {
    let mut c = Case::new();
    for size in [[33, 31, 57], [8, 12, 16]] {
        product(&mut c, DType::F32, size, true, false);
        product(&mut c, DType::F32, size, false, true);
        product(&mut c, DType::F32, size, true, true);
    }
    product(&mut c, DType::F32, [257, 5, 1], false, true);
    product(&mut c, DType::F32, [1, 33, 31], true, false);
    c.check(F32, &BOTH);
}

/// A product of stored operands whose epilogue is relu's gradient: 0 where a further input of its shape is not positive.
fn masked_product(graph: &mut Graph, inputs: &mut Named, dtype: DType, [m, k, n]: [usize; 3], [ta, tb]: [bool; 2]) {
    let i = inputs.len();
    let mut input = |dims: [usize; 2], name: &str| {
        let (name, value) = (format!("{name}{i}"), random(dtype, &dims, (i + inputs.len()) as u64));
        let id = graph.push_input(value.ty().clone(), &name);
        inputs.insert(name, value);
        ValueId::from(id)
    };
    let a = input(if ta { [k, m] } else { [m, k] }, "a");
    let b = input(if tb { [n, k] } else { [k, n] }, "b");
    let h = input([m, n], "h");
    let zero = Step::Const(0.0.into());
    let off = Step::Compare(Comparison::LessEqual, Ref::Input(1), Ref::Step(0));
    let pick = Step::Select(Ref::Step(1), Ref::Step(0), Ref::Input(0));
    let epilogue = Chain { arity: 2, steps: vec![zero, off, pick] };
    let op = Op::FusedMatmul { transpose_a: ta, transpose_b: tb, epilogue };
    let y = graph.push(op, vec![a, b, h], format!("product {i}")).unwrap();
    graph.push_output(format!("({m}, {k}, {n}) {ta} {tb}"), y.into(), Disposition::Read).unwrap();
}

#[test]
fn every_layout_at_odd_sizes_with_an_epilogue_and_without_copies() {
    for (dtype, tolerance) in crate::common::floats() {
        let sizes: &[[usize; 3]] = match dtype {
            DType::F32 => &[[65, 257, 31], [33, 1, 31], [1, 65, 33], [32, 64, 68]],
            _ => &[[33, 65, 31]],
        };
        let (mut graph, mut inputs) = (Graph::default(), Named::new());
        for layout in [[false, false], [false, true], [true, false], [true, true]] {
            for size in sizes {
                masked_product(&mut graph, &mut inputs, dtype, *size, layout);
            }
        }
        crate::common::check(&graph, &Named::new(), &inputs, tolerance, &BOTH);
        crate::common::each(&graph, &Named::new(), &inputs, &BOTH, |setup, program, _| {
            assert_eq!(program.dispatches(), 4 * sizes.len(), "{setup}");
        });
    }
}

#[test]
fn sizes_that_take_each_tile() {
    // large results of small inner sizes
    let mut c = Case::new();
    for size in [[1536, 16, 1152], [1536, 20, 1152], [768, 16, 1536], [768, 32, 1500], [512, 16, 520], [256, 32, 520]] {
        product(&mut c, DType::F32, size, false, true);
    }
    for size in [[260, 16, 260], [16, 20, 2000], [32, 16, 64], [128, 32, 1152]] {
        product(&mut c, DType::F32, size, true, false);
    }
    c.check(F32, &BOTH);
}

#[test]
fn batches_broadcast() {
    let pairs: [(&[usize], &[usize]); 8] = [
        (&[2, 5, 7], &[2, 7, 3]),
        (&[5, 7], &[3, 7, 4]),
        (&[3, 5, 7], &[7, 4]),
        (&[2, 1, 5, 7], &[3, 7, 4]),
        (&[4, 1, 1, 7], &[3, 7, 5]),
        (&[3, 1, 8], &[3, 8, 4]),
        (&[2, 3, 1, 4], &[2, 1, 4, 1]),
        (&[1, 4, 8], &[5, 8, 12]),
    ];
    let mut c = Case::new();
    for (a, b) in pairs {
        let (x, y) = (c.input(random(DType::F32, a, 3)), c.input(random(DType::F32, b, 4)));
        let z = c.b.matmul(x, y);
        c.output(format!("{a:?} {b:?}"), z);
    }
    c.check(F32, &BOTH);
}

#[test]
fn operands_that_are_views() -> Result {
    for (dtype, tolerance, setups) in [(DType::F32, F32, &BOTH[..]), (DType::F16, F16, &BOTH[..1])] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        let x = c.input(random(dtype, &[3, 6, 10], 1));
        let y = c.input(random(dtype, &[3, 10, 12], 2));
        let row = c.input(random(dtype, &[10], 3));
        let column = c.input(random(dtype, &[10, 1], 4));
        let left: Vec<(&str, ValueId)> = vec![
            ("sliced", c.b.slice(x, 0, 1, 2)?),
            ("rows", c.b.slice(x, 1, 1, 3)?),
            ("permuted", c.b.permute(x, &[1, 0, 2])?),
            ("stretched", c.b.broadcast(row, [3, 5, 10])?),
        ];
        let cut = c.b.slice(y, 2, 3, 5)?;
        let first = c.b.slice(y, 0, 2, 1)?;
        let flat = c.b.reshape(first, [10, 12])?;
        for (name, a) in left {
            let z = c.b.matmul(a, flat);
            c.output(format!("{name} · rows from an offset"), z);
        }
        // the inner dimension is neither operand's innermost
        let swapped = c.b.permute(x, &[1, 2, 0])?; // (6, 10, 3)
        let strided = c.b.slice(swapped, 2, 0, 2)?;
        let right = c.input(random(dtype, &[2, 7], 5));
        let z = c.b.matmul(strided, right);
        c.output("strided inner", z);
        let z = c.b.matmul(x, cut);
        c.output("columns from an offset", z);
        let wide = c.b.broadcast(column, [10, 7])?;
        let z = c.b.matmul(x, wide);
        c.output("stretched columns", z);
        let turned = c.b.permute(y, &[0, 2, 1])?; // (3, 12, 10)
        let z = c.b.matmul_transposed(x, false, turned, true);
        c.output("turned twice", z);
        let z = c.b.matmul_transposed(turned, false, x, true);
        c.output("turned once", z);
        let self_product = c.b.matmul_transposed(x, true, x, false);
        c.output("with itself", self_product);
        c.check(tolerance, setups);
    }
    Ok(())
}

#[test]
fn linears_and_what_follows_them() -> Result {
    for (dtype, tolerance, forms) in [(DType::F32, F32, 2), (DType::F16, F16, 1)] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        for (i, dims) in [&[2, 3, 33][..], &[32]].into_iter().enumerate().take(forms) {
            let k = dims[dims.len() - 1];
            let x = c.input(random(dtype, dims, 1));
            let n = [31, 8][i % 2];
            let (w, bias) = (c.parameter(random(dtype, &[n, k], 2)), c.parameter(random(dtype, &[n], 3)));
            let plain = c.b.linear(x, w, None);
            c.output(format!("plain {i}"), plain);
            let biased = c.b.linear(x, w, Some(bias))?;
            let y = c.b.unary(Unary::GeluErf, biased)?;
            let y = c.b.scale(y, 0.5);
            c.output(format!("gelu {i}"), y);
            // a residual that the result may overwrite
            let mut residual = dims.to_vec();
            residual[dims.len() - 1] = n;
            let r = c.input(random(dtype, &residual, 4));
            let r = c.b.unary(Unary::Tanh, r)?;
            let again = c.b.linear(x, w, Some(bias))?;
            let again = c.b.relu(again)?;
            let y = c.b.add(r, again);
            c.output(format!("residual {i}"), y);
        }
        c.check(tolerance, &BOTH);
    }
    Ok(())
}

#[test]
fn epilogues_read_masks_rows_and_columns() -> Result {
    let mut c = Case::new();
    for (i, (m, n)) in [(7, 5), (8, 12)].into_iter().enumerate() {
        let (a, b) = (c.input(random(DType::F32, &[2, m, 6], 1)), c.input(random(DType::F32, &[2, 6, n], 2)));
        let mask = c.input(random(DType::Bool, &[m, n], 3));
        let column = c.input(random(DType::F32, &[m, 1], 4));
        let turned = c.input(random(DType::F32, &[n, m], 5));
        let turned = c.b.permute(turned, &[1, 0])?;
        let y = c.b.matmul(a, b)?;
        let y = c.b.masked_fill(y, mask, -2.0)?;
        let y = c.b.mul(y, column)?;
        let y = c.b.add(y, turned);
        c.output(format!("y {i}"), y);
    }
    c.check(F32, &[BOTH, OTHERS].concat());
    Ok(())
}

#[test]
fn a_table_over_the_binding_limit_is_read_in_pieces() -> Result {
    let Some(session) = crate::common::session() else { return Ok(()) };
    // as a tied head: the table is looked up in and multiplied by
    let mut c = Case::new();
    let tokens = c.input(random(DType::I32, &[2, 3], 1));
    let table = c.parameter(random(DType::F32, &[701, 64], 2));
    let x = c.b.embedding(table, tokens)?;
    let y = c.b.linear(x, table, None);
    c.output("logits", y);
    let right = c.parameter(random(DType::F32, &[64, 701], 3));
    let y = c.b.matmul(x, right);
    c.output("stored the other way", y);
    let (graph, params, inputs) = c.finish();
    let given: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let want = kiln::reference::evaluate(&graph, &params, &inputs)?;
    for setup in BOTH {
        let mut options = setup.options(session);
        let limits = options.limits.as_mut().expect("setups set limits");
        limits.max_binding_bytes = 64 << 10;
        let outputs = session.compile(&graph, &params, &options)?.run(&given)?;
        for (name, want) in &want {
            crate::common::difference(&outputs[name], want, F32).map_err(|e| format!("{name} ({setup}): {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_product_without_inner_elements_is_its_epilogue_of_zero() -> Result {
    let mut c = Case::new();
    let (a, b) = (c.input(full(DType::F32, &[3, 0], 0.0)), c.input(full(DType::F32, &[0, 5], 0.0)));
    let y = c.b.matmul(a, b)?;
    c.output("zero", Ok(y));
    let w = c.parameter(full(DType::F32, &[4, 0], 0.0));
    let bias = c.parameter(random(DType::F32, &[4], 1));
    let y = c.b.linear(a, w, Some(bias))?;
    let y = c.b.relu(y);
    c.output("bias", y);
    let none = c.input(full(DType::F32, &[0, 7], 0.0));
    let w = c.parameter(random(DType::F32, &[4, 7], 1));
    let y = c.b.linear(none, w, Some(bias));
    c.output("no rows", y);
    c.check(F32, &[BOTH, OTHERS].concat());
    Ok(())
}

#[test]
fn a_weight_that_runs_update_is_read_as_it_is_stored() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[6, 20], 1));
    let (w, fixed) = (c.parameter(random(DType::F32, &[12, 20], 2)), c.parameter(random(DType::F32, &[12, 20], 3)));
    let y = c.b.linear(x, w, None);
    c.output("y", y);
    let y = c.b.linear(x, fixed, None);
    c.output("fixed", y);
    let smaller = c.b.scale(w, 0.5)?;
    c.b.update(w, smaller)?;
    let (graph, ..) = c.finish();
    for cpu in [false, true] {
        let caps = DeviceCaps { cpu, ..DeviceCaps::PORTABLE };
        let compiled = kiln::session::compile(&graph, &caps, &CompileOptions::default())?;
        let along_k: Vec<bool> = (compiled.recording.dispatches.iter())
            .filter_map(|d| match &compiled.recording.kernels[d.kernel].key {
                KernelKey::Matmul(key) => Some(key.b.along_k),
                _ => None,
            })
            .collect();
        assert_eq!(along_k, [true, false]);
        let transposed = compiled.selected.weights.iter().filter(|w| w.columns.is_some()).count();
        assert_eq!(transposed, 1);
    }
    Ok(())
}

#[test]
fn a_trained_weight_over_the_binding_limit_is_read_in_pieces_both_ways() -> Result {
    let Some(session) = crate::common::session() else { return Ok(()) };
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[3, 64], 1));
    let w = c.parameter(random(DType::F32, &[701, 64], 2));
    let bias = c.parameter(random(DType::F32, &[701], 3));
    let y = c.b.linear(x, w, Some(bias))?; // (3, 701)
    c.output("y", Ok(y));
    let dx = c.b.matmul(y, w)?; // (3, 64)
    let dx = c.b.relu(dx);
    c.output("dx", dx);
    let smaller = c.b.scale(w, 0.5)?;
    c.b.update(w, smaller)?;
    let (graph, params, inputs) = c.finish();
    let given: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let first = kiln::reference::evaluate_all(&graph, &params, &inputs, &Default::default())?;
    let second = kiln::reference::evaluate_all(&graph, &params, &inputs, &first.states)?;
    for setup in BOTH {
        let mut options = setup.options(session);
        options.limits.as_mut().expect("setups set limits").max_binding_bytes = 64 << 10;
        let program = session.compile(&graph, &params, &options)?;
        for want in [&first, &second] {
            let outputs = program.run(&given)?;
            for (name, want) in &want.outputs {
                crate::common::difference(&outputs[name], want, F32).map_err(|e| format!("{name} ({setup}): {e}"))?;
            }
        }
    }
    Ok(())
}

/// Each under 64 KiB a binding with the most dispatches that it takes.
#[test]
fn what_no_binding_covers_is_cut_where_its_window_reaches_furthest() -> Result {
    let Some(session) = crate::common::session() else { return Ok(()) };
    type Build = fn(&mut Case) -> Result<kiln::graph::ValueId>;
    let cases: [(&str, usize, Build); 6] = [
        ("a row to each of four", 2, |c| {
            let (x, b) = (c.input(random(DType::F32, &[4, 8000], 1)), c.parameter(random(DType::F32, &[8000], 2)));
            Ok(c.b.add(x, b)?)
        }),
        ("rows of a transposed input", 24, |c| {
            let x = c.input(random(DType::F32, &[64, 1000], 1));
            let turned = c.b.permute(x, &[1, 0])?;
            Ok(c.b.softmax(turned, 1)?)
        }),
        ("a transposed left operand", 20, |c| {
            let (a, b) = (c.input(random(DType::F32, &[400, 100], 1)), c.input(random(DType::F32, &[400, 8], 2)));
            Ok(c.b.matmul_transposed(a, true, b, false)?)
        }),
        ("a batch of right operands", 4, |c| {
            let (a, b) = (c.input(random(DType::F32, &[8, 16, 32], 1)), c.input(random(DType::F32, &[8, 128, 32], 2)));
            Ok(c.b.matmul_transposed(a, false, b, true)?)
        }),
        ("a batch that is used twice", 4, |c| {
            let a = c.input(random(DType::F32, &[2, 8, 16, 32], 1));
            let b = c.parameter(random(DType::F32, &[8, 32, 128], 2));
            Ok(c.b.matmul(a, b)?)
        }),
        ("a mask to each of three", 8, |c| {
            let (x, mask) = (c.input(random(DType::F32, &[3, 96, 96], 1)), c.input(random(DType::F32, &[96, 96], 2)));
            Ok(c.b.mul(x, mask)?)
        }),
    ];
    for (name, most, build) in cases {
        let mut c = Case::new();
        let y = build(&mut c)?;
        c.output("y", Ok(y));
        let (graph, params, inputs) = c.finish();
        let given: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let want = &kiln::reference::evaluate(&graph, &params, &inputs)?["y"];
        for setup in BOTH {
            let mut options = setup.options(session);
            options.limits.as_mut().expect("setups set limits").max_binding_bytes = 64 << 10;
            let program = session.compile(&graph, &params, &options).map_err(|e| format!("{name} ({setup}): {e}"))?;
            let dispatches = program.dispatches();
            assert!(dispatches <= most, "{name} ({setup}): {dispatches} dispatches");
            let outputs = program.run(&given)?;
            crate::common::difference(&outputs["y"], want, F32).map_err(|e| format!("{name} ({setup}): {e}"))?;
        }
    }
    Ok(())
}
