//! Activations, and NaN on its way through a graph.

use crate::common::{BOTH, Case, EVERY, Result, f16, full, tensor};
use kiln::graph::{Binary, DType, TensorType, Unary};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// One function of one list of numbers, whole (where four go at a time if the length allows) and without the last.
fn function(f: Unary, dtype: DType, x: &[f64], want: &[f64], tolerance: f64) {
    for len in [x.len(), x.len() - 1] {
        let mut c = Case::new();
        let x = c.input(tensor(dtype, &[len], &x[..len]));
        let y = c.b.unary(f, x);
        c.output("y", y);
        c.expect(&BOTH, tolerance, &[("y", &want[..len])]);
    }
}

/// Tanh of large numbers is one, not zero and not NaN, on either side.
#[test]
fn a01_tanh_saturates() {
    let large = [43.0, 43.67, 44.0, 44.36, 44.5, 50.0, 88.0, 89.0, 100.0, 1000.0];
    let x: Vec<f64> = large.iter().flat_map(|x| [*x, -x]).collect();
    let want: Vec<f64> = x.iter().map(|x| x.signum()).collect();
    function(Unary::Tanh, DType::F32, &x, &want, 1e-6);
}

/// Tanh where e^2x leaves f32, and where it leaves f16.
#[test]
fn a02_tanh_where_its_exponential_overflows() {
    let x = [-1000.0, -100.0, -45.5, 0.0, 45.5, 100.0, 1000.0, 20.0];
    function(Unary::Tanh, DType::F32, &x, &[-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0], 1e-6);
    if f16() {
        let x = [11.5, -11.5, 60_000.0, -60_000.0];
        function(Unary::Tanh, DType::F16, &x, &[1.0, -1.0, 1.0, -1.0], 1e-3);
    }
}

/// The tanh form of gelu far below zero is as good as zero.
#[test]
fn a04_gelu_tanh_of_large_negative_numbers() {
    let x = [-13.0, -13.24, -20.0, -100.0];
    function(Unary::GeluTanh, DType::F32, &x, &[0.0; 4], 1e-30);
    // the error function's form and silu, whose exponentials run as far
    function(Unary::GeluErf, DType::F32, &x, &[0.0; 4], 1e-30);
    function(Unary::Silu, DType::F32, &[-100.0, -200.0, -1e4, -1e30], &[0.0; 4], 1e-8);
}

/// The tanh form of gelu far above zero is its argument.
#[test]
fn a05_gelu_tanh_of_large_positive_numbers() {
    let x = [9.9, 10.0, 10.5, 13.5, 20.625, 100.0, 1e10, 11.0];
    for f in [Unary::GeluTanh, Unary::GeluErf] {
        function(f, DType::F32, &x, &x, 1e-6);
    }
    function(Unary::Silu, DType::F32, &[100.0, 1e4, 1e10, 1e30], &[100.0, 1e4, 1e10, 1e30], 1e-6);
}

/// The two forms of gelu are two functions.
#[test]
fn a07_the_forms_of_gelu_differ() {
    function(Unary::GeluTanh, DType::F32, &[1.0, -1.0], &[0.84119199, -0.15880801], 1e-6);
    function(Unary::GeluErf, DType::F32, &[1.0, -1.0], &[0.84134475, -0.15865525], 1e-6);
}

/// As docs/semantics.md says: a NaN passes through relu, and through a clamp made of min and max.
#[test]
fn a08_relu_and_clamp_keep_nan() -> Result {
    function(Unary::Relu, DType::F32, &[NAN, -1.0, 2.0, -0.5], &[NAN, 0.0, 2.0, 0.0], 0.0);
    if f16() {
        function(Unary::Relu, DType::F16, &[NAN, -1.0, 2.0, -0.5], &[NAN, 0.0, 2.0, 0.0], 0.0);
    }
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[4], &[NAN, -1.0, 2.0, 0.5]));
    let [zero, one] = [0.0, 1.0].map(|v| c.b.constant(v, TensorType::new(DType::F32, [])));
    let y = c.b.binary(Binary::Max, x, zero?)?;
    let y = c.b.binary(Binary::Min, y, one?);
    c.output("clamp", y);
    // and through a relu that a product ends with
    let rows = c.b.reshape(x, [4, 1])?;
    let w = c.parameter(full(DType::F32, &[3, 1], 1.0));
    let y = c.b.linear(rows, w, None)?;
    let y = c.b.relu(y);
    c.output("product", y);
    let product = [[NAN; 3], [0.0; 3], [2.0; 3], [0.5; 3]].concat();
    c.expect(&EVERY, 0.0, &[("clamp", &[NAN, 0.0, 1.0, 0.5]), ("product", &product)]);
    Ok(())
}

/// As docs/semantics.md says: the largest of numbers and a NaN is NaN, wherever it stands, and for rows of any length.
#[test]
fn a09_max_keeps_nan() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[2, 3], &[1.0, NAN, 3.0, 1.0, 2.0, 3.0]));
    let y = c.b.max(x, &[1]);
    c.output("rows", y);
    let y = c.b.max(x, &[0]);
    c.output("columns", y);
    let mut want = vec![("rows", vec![NAN, 3.0]), ("columns", vec![1.0, NAN, 3.0])];
    for (name, n) in [("300", 300), ("100000", 100_000)] {
        let mut values = vec![0.0; 3 * n];
        values[n / 2] = NAN;
        values[2 * n - 1] = NAN;
        let x = c.input(tensor(DType::F32, &[3, n], &values));
        let y = c.b.max(x, &[1]);
        c.output(name, y);
        want.push((name, vec![NAN, NAN, 0.0]));
    }
    let want: Vec<(&str, &[f64])> = want.iter().map(|(n, w)| (*n, w.as_slice())).collect();
    c.expect(&BOTH, 0.0, &want);
}

/// NaN and infinities as constants of a graph: WGSL has no literal for them.
#[test]
fn a10_constants_that_wgsl_cannot_write() -> Result {
    for dtype in [DType::F32, DType::F16] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        let x = c.input(tensor(dtype, &[2, 3], &[1.0, 2.0, 3.0, 1.0, 1.0, 5.0]));
        let mask = c.input(tensor(DType::Bool, &[2, 3], &[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]));
        let hidden = c.b.masked_fill(x, mask, f32::NEG_INFINITY)?;
        let y = c.b.softmax(hidden, 1);
        c.output("masked", y);
        let nan = c.b.constant(f32::NAN, TensorType::new(dtype, [3]))?;
        let y = c.b.add(x, nan);
        c.output("nan", y);
        let inf = c.b.constant(f32::INFINITY, TensorType::new(dtype, []))?;
        let y = c.b.select(mask, inf, x);
        c.output("inf", y);
        let y = c.b.scale(x, f32::NEG_INFINITY);
        c.output("scaled", y);
        let weights = [0.26894142, 0.73105858, 0.0, 0.5, 0.5, 0.0];
        let tolerance = if dtype == DType::F16 { 1e-3 } else { 1e-6 };
        c.expect(
            &EVERY,
            tolerance,
            &[
                ("masked", &weights),
                ("nan", &[NAN; 6]),
                ("inf", &[1.0, 2.0, INF, 1.0, 1.0, INF]),
                ("scaled", &[-INF; 6]),
            ],
        );
    }
    Ok(())
}

/// A NaN that goes through max(x, 1e-20), through min, and into a sum is still there to be found.
#[test]
fn a11_min_and_max_launder_no_nan() -> Result {
    // four at a time, and one
    for n in [4, 5] {
        let mut values = vec![1.0; n];
        values[1] = NAN;
        let mut c = Case::new();
        let x = c.input(tensor(DType::F32, &[n], &values));
        let tiny = c.b.constant(1e-20, TensorType::new(DType::F32, []))?;
        for (name, f) in [("max", Binary::Max), ("min", Binary::Min)] {
            let y = c.b.binary(f, x, tiny)?;
            let sum = c.b.sum(y, &[0]);
            c.output(name, sum);
            let y = c.b.binary(f, tiny, x)?;
            let y = c.b.unary(Unary::Log, y)?;
            let mean = c.b.mean(y, &[0]);
            c.output(format!("{name} the other way"), mean);
        }
        let names = ["max", "max the other way", "min", "min the other way"];
        c.expect(&BOTH, 0.0, &names.map(|n| (n, &[NAN][..])));
    }
    Ok(())
}
