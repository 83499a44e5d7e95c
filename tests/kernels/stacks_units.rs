//! Stacks of linears on matrix units, emulated: everything but the units themselves, against f64.

use crate::common::{Case, F16, Named, Result, difference, random, tensor};
use crate::emulated::{adapter, kernels, options, run};
use crate::stacks::{Form, backward_rows, form, forward, weights};
use kiln::MatmulPrecision::{High, Highest, Medium};
use kiln::graph::{Activation, DType, Graph};
use kiln::reference::evaluate;
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;

/// What each precision may lose over a few layers, as `‖out − ref‖ / ‖ref‖`.
const HIGH: f64 = 2e-6;
const MEDIUM: f64 = 2e-3;

/// Compiles a graph of so many stacks, all of which go to the units, and compares its outputs with the reference.
fn check((graph, params, inputs): (Graph, Named, Named), stacks: usize, options: &CompileOptions, tolerance: f64) {
    let Some(session) = adapter() else { return };
    let program = session.compile(&graph, &params, options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let names = kernels(&program);
    let count = |name: &str| names.iter().filter(|k| **k == name).count();
    assert_eq!((count("linear_stack_units"), count("pack_weights")), (stacks, stacks), "{names:?}");
    let want = evaluate(&graph, &params, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let got = run(&program, &inputs);
    let faults: Vec<String> = want
        .iter()
        .filter_map(|(name, want)| Some(format!("{name}: {}", difference(&got[name], want, tolerance).err()?)))
        .collect();
    assert!(faults.is_empty(), "{:?}:\n{}", options.precision, faults.join("\n"));
}

fn backward(dtype: DType, f: Form, activation: Activation) -> (Graph, Named, Named) {
    let (graph, inputs, _) = backward_rows(dtype, f, activation);
    (graph, Named::new(), inputs)
}

/// Scaled weights and rows.
fn times(value: &Tensor, by: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = value.to_f64().iter().enumerate().map(|(i, v)| v * by(i)).collect();
    tensor(value.dtype(), value.shape().dims(), &values)
}

// Kernels take long to compile on a CPU: each test has one or two.

#[test]
fn high_is_as_exact_as_f32_at_every_magnitude_of_rows_and_weights() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let f = form(19, 24, 3, true);
    let mut c = Case::new();
    forward(&mut c, DType::F32, f, Activation::Relu, true);
    let (x, w) = (random(DType::F32, &[f.rows, f.width], 4), weights(DType::F32, f, 5));
    for (i, [of_x, of_w]) in [[1e30, 1e-10], [1e-30, 1e20], [1.0, 1e-12]].into_iter().enumerate() {
        let x = c.input(times(&x, |_| of_x));
        // columns of very different size
        let w = c.parameter(times(&w, |at| of_w * ((at / f.width % 7) as f64 * 4.0 - 12.0).exp2()));
        let b = c.parameter(times(&random(DType::F32, &[f.layers, f.width], 6), |_| 0.0));
        let y = c.b.linear_stack(x, w, Some(b), Activation::Relu)?;
        c.output(format!("{of_x} {of_w} {i}"), Ok(y));
    }
    // small rows beside large ones
    let x = c.input(times(&x, |at| if at / f.width == 5 { 1e-20 } else { 1e10 }));
    let (w, b) = (c.parameter(w), c.parameter(times(&random(DType::F32, &[f.layers, f.width], 6), |_| 1e-21)));
    let y = c.b.linear_stack(x, w, Some(b), Activation::Relu)?;
    let small = c.b.slice(y, 0, 5, 1);
    c.output("a small row", small);
    c.output("all rows", Ok(y));
    check(c.finish(), 5, &options(session, 4, High), HIGH);
    Ok(())
}

#[test]
fn high_goes_backwards_in_multiply_adds_and_says_so() {
    let Some(session) = adapter() else { return };
    let (graph, params, _) = backward(DType::F32, form(19, 24, 3, true), Activation::Sigmoid);
    let program = session.compile(&graph, &params, &options(session, 4, High)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(kernels(&program), ["linear_stack"]);
    let report = program.compiled().report.to_string();
    let line = "back: precision high asked for, but three products a number are no faster backwards than multiply-adds: \
                highest used";
    assert!(report.contains(line), "{report}");
}

#[test]
fn medium_both_ways_without_biases() {
    let Some(session) = adapter() else { return };
    let (f, options) = (form(17, 16, 4, false), options(session, 8, Medium));
    let mut c = Case::new();
    forward(&mut c, DType::F32, f, Activation::Tanh, false);
    check(c.finish(), 1, &options, MEDIUM);
    check(backward(DType::F32, f, Activation::Relu), 1, &options, MEDIUM);
}

#[test]
fn what_is_stored_in_f16_goes_to_the_units_at_any_precision() {
    let Some(session) = adapter() else { return };
    let (f, options) = (form(33, 16, 4, true), options(session, 4, Highest));
    let mut c = Case::new();
    forward(&mut c, DType::F16, f, Activation::Relu, true);
    check(c.finish(), 1, &options, F16);
    check(backward(DType::F16, f, Activation::Identity), 1, &options, F16);
}

#[test]
fn a_row_that_is_not_finite_becomes_nan_and_leaves_others_alone() -> Result {
    let Some(session) = adapter() else { return Ok(()) };
    let f = form(18, 16, 2, false);
    for bad in [f64::INFINITY, f64::NAN] {
        let mut c = Case::new();
        let values = random(DType::F32, &[f.rows, f.width], 1).to_f64();
        let broken: Vec<f64> =
            values.iter().enumerate().map(|(i, v)| if i == 7 * f.width + 3 { bad } else { *v }).collect();
        let x = c.input(tensor(DType::F32, &[f.rows, f.width], &broken));
        let w = c.parameter(weights(DType::F32, f, 2));
        let y = c.b.linear_stack(x, w, None, Activation::Identity);
        c.output("y", y);
        let (graph, params, inputs) = c.finish();
        let program = session.compile(&graph, &params, &options(session, 4, Medium))?;
        let want = evaluate(&graph, &params, &inputs)?;
        for (i, (got, want)) in run(&program, &inputs)["y"].to_f64().iter().zip(&want["y"].data).enumerate() {
            let good = if i / f.width == 7 { got.is_nan() } else { (got - want).abs() < 0.01 };
            assert!(good, "{bad}: element {i} is {got}, beside {want}");
        }
    }
    Ok(())
}

#[test]
fn rows_that_would_leave_most_of_a_matrix_empty_are_reported() {
    let Some(session) = adapter() else { return };
    let mut c = Case::new();
    forward(&mut c, DType::F32, form(15, 16, 4, false), Activation::Relu, false);
    let (graph, params, _) = c.finish();
    let program = session.compile(&graph, &params, &options(session, 4, High)).unwrap_or_else(|e| panic!("{e}"));
    assert!(kernels(&program).contains(&"linear_stack"), "{:?}", kernels(&program));
    let report = program.compiled().report.to_string();
    let line = "linear_stack: precision high asked for, but matrix units do not carry 15 rows of 16: highest used";
    assert!(report.contains(line), "{report}");
}
