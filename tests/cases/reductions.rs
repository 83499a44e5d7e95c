//! Reductions and index arithmetic.

use crate::common::{BOTH, Case, EVERY, Result, each, f16, floats, full, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, DType, Reduction, TensorType};
use kiln::session::{CompileOptions, compile};

/// A row as long as a subgroup is summed once, not twice.
#[test]
fn r01_a_row_of_32_is_summed_once() {
    for (dtype, _) in floats() {
        let mut c = Case::new();
        for n in [16, 32, 64] {
            let x = c.input(full(dtype, &[2, n], 1.0));
            let y = c.b.sum(x, &[1]);
            c.output(n.to_string(), y);
        }
        c.expect(&BOTH, 0.0, &[("16", &[16.0; 2]), ("32", &[32.0; 2]), ("64", &[64.0; 2])]);
    }
}

/// More rows than workgroups go along one dimension.
#[test]
fn r02_65536_rows() {
    let rows = 65_536;
    let x: Vec<f64> = (0..2 * rows).map(|i| f64::from(i % 1000)).collect();
    let want: Vec<f64> = x.chunks(2).map(|c| c[0] + c[1]).collect();
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[rows as usize, 2], &x));
    let y = c.b.sum(x, &[1]);
    c.output("short", y);
    // a workgroup a row
    let x = c.input(full(DType::F32, &[rows as usize, 36], 0.5));
    let y = c.b.sum(x, &[1]);
    c.output("long", y);
    c.expect(&BOTH, 0.0, &[("short", &want), ("long", &vec![18.0; rows as usize])]);
}

/// The mean of twenty million equal numbers is that number, over all axes and over either.
#[test]
fn r03_the_mean_of_a_large_matrix() {
    let n = 4500;
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[n, n], -1.0));
    for (name, axes) in [("all", &[0, 1][..]), ("columns", &[0]), ("rows", &[1])] {
        let y = c.b.mean(x, axes);
        c.output(name, y);
    }
    c.run(&BOTH, |setup, outputs| {
        for (name, y) in outputs {
            assert!(y.to_f64().iter().all(|v| *v == -1.0), "{name} ({setup}): {y:?}");
        }
    });
}

/// A mean whose size is no power of two.
#[test]
fn r05_the_mean_of_640_ones() {
    for (dtype, _) in floats() {
        let mut c = Case::new();
        for n in [640, 641, 3, 49] {
            let x = c.input(full(dtype, &[n], 1.0));
            let y = c.b.mean(x, &[0]);
            c.output(n.to_string(), y);
        }
        c.expect(&BOTH, 0.0, &["640", "641", "3", "49"].map(|n| (n, &[1.0][..])));
    }
}

/// Sums of narrow types go on past the number where one more is lost. bf16 is widened when a checkpoint is loaded.
#[test]
fn r06_narrow_types_are_summed_in_f32() -> Result {
    let n = 70_000;
    let mut b = Builder::new();
    let x = b.parameter("x", TensorType::new(DType::F32, [n]))?;
    let y = b.mean(x, &[0])?;
    b.output("mean", y)?;
    let graph = b.finish()?;
    let params = [("x".to_owned(), full(DType::BF16, &[n], 1.0))].into();
    each(&graph, &params, &[].into(), &BOTH, |setup, program, given| {
        let outputs = program.run(given).unwrap_or_else(|e| panic!("{setup}: {e}"));
        assert_eq!(outputs["mean"].to_f64(), [1.0], "{setup}");
    });
    if f16() {
        let mut c = Case::new();
        let x = c.input(full(DType::F16, &[20_000], 1.0));
        let y = c.b.sum(x, &[0]);
        c.output("sum", y);
        let y = c.b.mean(x, &[0]);
        c.output("mean", y);
        let columns = c.input(full(DType::F16, &[20_000, 3], 1.0));
        let y = c.b.sum(columns, &[0]);
        c.output("columns", y);
        c.expect(&BOTH, 0.0, &[("sum", &[20_000.0]), ("mean", &[1.0]), ("columns", &[20_000.0; 3])]);
    }
    Ok(())
}

/// The invocations of a workgroup add up all that they were given.
#[test]
fn r07_a_workgroup_s_sum() {
    let mut c = Case::new();
    let mut want = Vec::new();
    for n in [64, 63, 65, 100, 128, 255, 256, 257, 1000, 1024] {
        let values: Vec<f64> = (1..=n).map(f64::from).collect();
        let x = c.input(tensor(DType::F32, &[1, n as usize], &values));
        let y = c.b.sum(x, &[1]);
        c.output(n.to_string(), y);
        want.push((n.to_string(), [f64::from(n * (n + 1) / 2)]));
    }
    let want: Vec<(&str, &[f64])> = want.iter().map(|(n, w)| (n.as_str(), &w[..])).collect();
    assert_eq!(want[0].1, [2080.0]);
    c.expect(&BOTH, 0.0, &want);
}

/// Twenty million ones: a sum in turn would stick at 2^24.
#[test]
fn r08_the_mean_of_twenty_million_ones() {
    let n = 20_000_000;
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[n], 1.0));
    let y = c.b.mean(x, &[0]);
    c.output("mean", y);
    let y = c.b.sum(x, &[0]);
    c.output("sum", y);
    c.run(&BOTH, |setup, outputs| {
        assert_eq!(outputs["mean"].to_f64(), [1.0], "{setup}");
        assert_eq!(outputs["sum"].to_f64(), [2e7], "{setup}");
    });
}

/// Whole numbers are divided as such, and places in a tensor are found without floats.
#[test]
fn r10_index_arithmetic_is_integer() -> Result {
    let mut c = Case::new();
    let a: Vec<f64> = (0..500).map(f64::from).collect();
    let b: Vec<f64> = (1..=64).map(f64::from).collect();
    let want: Vec<f64> = (0..500).flat_map(|a| (1..=64).map(move |b| f64::from(a / b))).collect();
    assert_eq!((want[165 * 64 + 14], want[21 * 64 + 6]), (11.0, 3.0));
    for dtype in [DType::I32, DType::U32] {
        let (x, y) = (c.input(tensor(dtype, &[500, 1], &a)), c.input(tensor(dtype, &[64], &b)));
        let z = c.b.div(x, y);
        c.output(dtype.to_string(), z);
    }
    // sizes whose quotients floats would round the wrong way
    let iota: Vec<f64> = (0..165 * 21).map(f64::from).collect();
    let x = c.input(tensor(DType::I32, &[11, 15, 3, 7], &iota));
    let turned = c.b.permute(x, &[3, 1, 0, 2]);
    c.output("turned", turned);
    let place = |i: i32| {
        let (k, h, j, g) = (i % 3, i / 3 % 11, i / 33 % 15, i / 495);
        f64::from(((h * 15 + j) * 3 + k) * 7 + g)
    };
    let turned: Vec<f64> = (0..165 * 21).map(place).collect();
    c.expect(&BOTH, 0.0, &[("i32", &want), ("u32", &want), ("turned", &turned)]);
    Ok(())
}

/// Tensors without elements: their sum is 0, shapes stay, and concat passes over them.
#[test]
fn r11_tensors_without_elements() -> Result {
    let mut c = Case::new();
    let none = c.input(full(DType::F32, &[2, 0, 3], 0.0));
    let some = c.input(tensor(DType::F32, &[2, 1, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let y = c.b.sum(none, &[1]);
    c.output("sum", y);
    let y = c.b.reduce(Reduction::Sum, none, &[1], true)?;
    assert_eq!(c.b.shape(y).dims(), [2, 1, 3]);
    c.output("kept", Ok(y));
    let y = c.b.sum(none, &[0, 1, 2]);
    c.output("all", y);
    let y = c.b.mean(none, &[1]);
    c.output("mean", y);
    let y = c.b.max(none, &[1]);
    c.output("max", y);
    let y = c.b.concat(&[none, some, none], 1);
    c.output("concat", y);
    let y = c.b.sum(none, &[2])?;
    assert_eq!(c.b.shape(y).dims(), [2, 0]);
    c.output("empty", Ok(y));
    let error = c.b.argmax(none, 1).expect_err("the index of none").to_string();
    assert_eq!(error, "argmax \"argmax\": axis size: expected at least 1, got 0");
    c.expect(
        &EVERY,
        0.0,
        &[
            ("sum", &[0.0; 6]),
            ("kept", &[0.0; 6]),
            ("all", &[0.0]),
            ("mean", &[f64::NAN; 6]),
            ("max", &[f64::NEG_INFINITY; 6]),
            ("concat", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            ("empty", &[]),
        ],
    );
    Ok(())
}

/// Reductions are the same whatever the device says of its subgroups.
#[test]
fn r12_reductions_do_not_know_subgroups() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [3, 1000]))?;
    for kind in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::AbsMax] {
        for axis in [0, 1] {
            let y = b.reduce(kind, x, &[axis], false)?;
            b.output(&format!("{} {axis}", kind.name()), y)?;
        }
    }
    let y = b.argmax(x, 1)?;
    b.output("argmax", y)?;
    let graph = b.finish()?;
    let record = |subgroup| -> Result<_> {
        let caps = DeviceCaps { subgroup, ..DeviceCaps::PORTABLE };
        Ok(compile(&graph, &caps, &CompileOptions::default())?.recording)
    };
    let without = record(None)?;
    for size in [(4, 4), (8, 8), (32, 32), (64, 64), (4, 128)] {
        assert_eq!(record(Some(size))?, without, "{size:?}");
    }
    assert!(without.kernels.iter().all(|k| !k.source().contains("subgroup")));
    Ok(())
}
