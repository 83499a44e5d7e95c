//! Attention on matrix units, emulated: everything but the units themselves, against f64.

use crate::attention_grad::{Cases, form};
use crate::common::{Named, difference, random, tensor};
use crate::emulated::{adapter, options, run};
use kiln::MatmulPrecision::{self, High, Highest, Medium};
use kiln::graph::DType;
use kiln::reference::evaluate;
use kiln::session::Program;
use kiln::tensor::Tensor;

/// What each precision may lose, as `‖out − ref‖ / ‖ref‖`.
const HIGH: f64 = 3e-6;
const MEDIUM: f64 = 2e-3;

/// How many launches go to the units.
fn on_units(program: &Program) -> usize {
    let names = program.compiled().selected.steps.iter().map(|s| s.launch.key.name());
    names.filter(|n| ["attention_units", "attention_grad_units"].contains(n)).count()
}

/// Compiles a graph of so many attentions with their gradients, each three launches on the units, and compares its outputs
/// with the reference.
fn check(cases: &Cases, attentions: usize, precision: MatmulPrecision, tolerance: impl Fn(&str) -> f64) {
    let Some(session) = adapter() else { return };
    let program = session
        .compile(&cases.graph, &Named::new(), &options(session, 8, precision))
        .unwrap_or_else(|e| panic!("{e}\n{}", cases.graph));
    assert_eq!(on_units(&program), 3 * attentions);
    let inputs: Named = cases.inputs.iter().map(|(name, value)| (name.clone(), without_hidden(value))).collect();
    let want = evaluate(&cases.graph, &Named::new(), &inputs).unwrap_or_else(|e| panic!("{e}"));
    let got = run(&program, &cases.inputs);
    let faults: Vec<String> = want
        .iter()
        .filter(|(name, _)| !name.starts_with("broken"))
        .filter_map(|(name, want)| Some(format!("{name}: {}", difference(&got[name], want, tolerance(name)).err()?)))
        .collect();
    assert!(faults.is_empty(), "{precision}:\n{}", faults.join("\n"));
    for name in ["broken out", "broken dq"].into_iter().filter(|name| want.contains_key(*name)) {
        let (got, want) = (got[name].to_f64(), &want[name].data);
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let sees = i >= FIRST_TO_SEE * WIDTH;
            let good = if sees { !g.is_finite() } else { (g - w).abs() <= tolerance(name).max(1e-5) };
            assert!(good, "{precision}: {name} {i} is {g}, beside {w}");
        }
    }
}

/// What leaves a key out on a device, as -∞, which does so in the reference.
fn without_hidden(value: &Tensor) -> Tensor {
    if value.ty().dtype != DType::F32 {
        return value.clone();
    }
    let held = |x: f64| if x <= -2e38 { f64::NEG_INFINITY } else { x };
    Tensor::from_f64(value.ty().clone(), &value.to_f64().into_iter().map(held).collect::<Vec<_>>())
}

/// Columns of the one head of the rows below.
const WIDTH: usize = 8;
/// The first query of `broken` that sees the key whose rows hold no numbers.
const FIRST_TO_SEE: usize = 7;

/// Adds an attention whose rows are scaled: those of q, k, v and dout by one number each, and every row of the latter two by
/// a power of two of its own.
fn scaled(cases: &mut Cases, name: &str, by: [f64; 4], spread: f64) {
    let sizes = [9, 10, 10, 9].into_iter().zip(by).enumerate();
    let mut operands: Vec<_> = sizes
        .map(|(seed, (rows, by))| {
            let mut values = random(DType::F32, &[1, rows, WIDTH], seed as u64).to_f64();
            // scores that are spread would be as inexact in f32
            let spread = if seed < 2 { 0.0 } else { spread };
            for (i, x) in values.iter_mut().enumerate() {
                *x *= by * (spread * ((i / WIDTH * 7 % 5) as f64 - 2.0)).exp2();
            }
            cases.input(tensor(DType::F32, &[1, rows, WIDTH], &values))
        })
        .collect();
    let dout = operands.pop().expect("four");
    cases.over(name, form(1, 1, WIDTH, 9, 10).causal().attrs(), operands, dout);
}

/// Adds an attention of which one key and its value hold an infinity and a NaN; queries see keys up to their own number
/// and two more.
fn broken(cases: &mut Cases, dtype: DType) {
    let (sq, sk) = (10, 12);
    let q = cases.input(random(dtype, &[1, sq, WIDTH], 1));
    let [k, v] = [2, 3].map(|seed| {
        let mut values = random(dtype, &[1, sk, WIDTH], seed).to_f64();
        let row = (FIRST_TO_SEE + sk - sq) * WIDTH;
        (values[row], values[row + 3]) = (f64::INFINITY, f64::NAN);
        cases.input(tensor(dtype, &[1, sk, WIDTH], &values))
    });
    let dout = cases.input(random(dtype, &[1, sq, WIDTH], 4));
    cases.over("broken", form(1, 1, WIDTH, sq, sk).causal().attrs(), vec![q, k, v], dout);
}

// Each of these tests compiles three kernels once, which takes a CPU most of the time.

#[test]
fn high_is_as_exact_as_f32_at_every_magnitude_and_rows_see_only_what_they_see() {
    let mut cases = Cases::of(&[
        form(2, 2, WIDTH, 17, 35).causal(),
        form(1, 1, WIDTH, 1, 15).causal(),
        form(1, 1, WIDTH, 15, 1).causal(),
    ]);
    // scores stay small, values and their gradients do not
    scaled(&mut cases, "scaled", [1e-10, 1e10, 1e18, 1e-20], 0.0);
    scaled(&mut cases, "spread", [1.0, 0.1, 1.0, 1.0], 8.0);
    broken(&mut cases, DType::F32);
    check(&cases, 6, High, |name| if name.starts_with("spread") { 1e-5 } else { HIGH });
}

#[test]
fn masks_lengths_and_dropped_weights() {
    let all = form(2, 2, WIDTH, 17, 20).mask(&[2, 1, 17, 20]).lengths(&[20, 13]).causal().dropout(0.25);
    check(&Cases::of(&[all]), 1, Medium, |_| MEDIUM);
}

#[test]
fn a_query_whose_mask_is_far_below_zero_gives_finite_gradients() {
    for (attentions, precision) in [(0, Highest), (1, High)] {
        let mut cases = Cases::default();
        let (sq, sk) = (10, 12);
        // what the last four queries give is the mean of what they see, which takes no part in the loss
        let masks = [-1e9, -1e20, -1.9e38, -2.5e38];
        let operand = |rows, seed, others: bool| {
            let mut values = random(DType::F32, &[1, rows, WIDTH], seed).to_f64();
            if others {
                values[(sq - masks.len()) * WIDTH..].fill(0.0);
            }
            tensor(DType::F32, &[1, rows, WIDTH], &values)
        };
        let [q, k, v, dout] = [(sq, 1, true), (sk, 2, false), (sk, 3, false), (sq, 4, true)]
            .map(|(rows, seed, others)| cases.input(operand(rows, seed, others)));
        let mut mask = random(DType::F32, &[sq, sk], 5).to_f64();
        for (i, far) in masks.into_iter().enumerate() {
            mask[(sq - masks.len() + i) * sk..][..sk].fill(far);
        }
        let mask = cases.input(tensor(DType::F32, &[sq, sk], &mask));
        let attrs = form(1, 1, WIDTH, sq, sk).mask(&[sq, sk]).attrs();
        cases.over("far", attrs, vec![q, k, v, mask], dout);
        check(&cases, attentions, precision, |_| HIGH);
    }
}

#[test]
fn medium_rounds_heads_of_any_size_to_f16() {
    check(&Cases::of(&[form(1, 3, 5, 17, 15)]), 1, Medium, |_| MEDIUM);
}

#[test]
fn what_is_stored_in_f16_goes_to_the_units_at_any_precision() {
    let mut cases = Cases::of(&[form(1, 2, WIDTH, 17, 15).f16().causal()]);
    broken(&mut cases, DType::F16);
    check(&cases, 2, Highest, |_| MEDIUM);
}

#[test]
fn a_head_that_is_too_large_is_reported() {
    let Some(session) = adapter() else { return };
    let cases = Cases::of(&[form(1, 1, 132, 9, 9)]);
    let program =
        session.compile(&cases.graph, &Named::new(), &options(session, 8, High)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(on_units(&program), 0);
    let report = program.compiled().report.to_string();
    let line = "attention: precision high asked for, but no form for the units fits its head size";
    assert!(report.contains(line), "{report}");
}
