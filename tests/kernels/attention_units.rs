//! Attention on matrix units, emulated: everything but the units themselves, against f64.

use crate::attention_grad::{Cases, Form, form};
use crate::common::{Named, difference, random, session, tensor};
use kiln::MatmulPrecision::{self, High, Highest, Medium};
use kiln::caps::{DeviceCaps, MatrixUnits};
use kiln::graph::DType;
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Outputs, Program, Session};
use kiln::tensor::Tensor;

/// What each precision may lose, as `‖out − ref‖ / ‖ref‖`.
const HIGH: f64 = 3e-6;
const MEDIUM: f64 = 2e-3;

/// An adapter with f16.
fn adapter() -> Option<&'static Session> {
    let session = session().filter(|s| s.caps().f16);
    if session.is_none() {
        println!("skipped: no adapter with f16");
    }
    session
}

fn options(session: &Session, side: u32, precision: MatmulPrecision) -> CompileOptions {
    let units = Some(MatrixUnits::Emulated { side });
    let limits = Some(DeviceCaps { cpu: false, units, ..session.caps().clone() });
    CompileOptions { precision, limits, poison: true, ..CompileOptions::default() }
}

fn run(program: &Program, inputs: &Named) -> Outputs {
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    program.run(&given).unwrap_or_else(|e| panic!("{e}"))
}

/// How many launches go to the units.
fn on_units(program: &Program) -> usize {
    let names = program.compiled().selected.steps.iter().map(|s| s.launch.key.name());
    names.filter(|n| ["attention_units", "attention_grad_units"].contains(n)).count()
}

/// Three launches an attention: itself, dk with dv, and dq.
fn check(cases: &Cases, attentions: usize, side: u32, precision: MatmulPrecision, tolerance: f64) {
    let Some(session) = adapter() else { return };
    let program = session
        .compile(&cases.graph, &Named::new(), &options(session, side, precision))
        .unwrap_or_else(|e| panic!("{e}\n{}", cases.graph));
    assert_eq!(on_units(&program), 3 * attentions);
    let want = evaluate(&cases.graph, &Named::new(), &cases.inputs).unwrap_or_else(|e| panic!("{e}"));
    let got = run(&program, &cases.inputs);
    let faults: Vec<String> = want
        .iter()
        .filter_map(|(name, want)| Some(format!("{name}: {}", difference(&got[name], want, tolerance).err()?)))
        .collect();
    assert!(faults.is_empty(), "{precision}:\n{}", faults.join("\n"));
}

fn check_form(form: Form, side: u32, precision: MatmulPrecision, tolerance: f64) {
    check(&Cases::of(&[form]), 1, side, precision, tolerance);
}

#[test]
fn high_is_as_exact_as_f32() {
    check(&Cases::of(&[form(2, 2, 8, 17, 35).causal(), form(1, 1, 8, 1, 15).causal()]), 2, 8, High, HIGH);
}

#[test]
fn head_sizes_that_are_no_multiple_of_a_matrix() {
    check_form(form(1, 2, 20, 15, 17), 8, High, HIGH);
    check_form(form(1, 3, 5, 9, 7), 8, High, HIGH);
}

#[test]
fn matrices_of_sixteen() {
    check_form(form(1, 2, 4, 33, 17), 16, High, HIGH);
}

#[test]
fn medium_rounds_to_f16() {
    check_form(form(1, 2, 8, 17, 15), 8, Medium, MEDIUM);
}

#[test]
fn what_is_stored_in_f16_goes_to_the_units_at_any_precision() {
    check_form(form(1, 2, 8, 17, 15).f16().causal(), 8, Highest, MEDIUM);
}

#[test]
fn masks_lengths_and_dropped_weights() {
    let all = form(2, 2, 8, 17, 20).mask(&[2, 1, 17, 20]).lengths(&[20, 13]).causal().dropout(0.25);
    check_form(all, 8, High, HIGH);
}

/// Rows of one attention, scaled: a row of each operand by another power of two, and all by one.
fn scaled(by: [f64; 4], spread: f64) -> Cases {
    let (queries, keys, width) = (9, 10, 8);
    let attrs = form(1, 1, 8, queries, keys).attrs();
    let mut cases = Cases::default();
    let mut operands = Vec::new();
    for (i, (rows, by)) in [queries, keys, keys, queries].into_iter().zip(by).enumerate() {
        let mut values = random(DType::F32, &[1, rows, width], i as u64).to_f64();
        for (i, x) in values.iter_mut().enumerate() {
            *x *= by * (spread * ((i / width * 7 % 5) as f64 - 2.0)).exp2();
        }
        operands.push(cases.input(tensor(DType::F32, &[1, rows, width], &values)));
    }
    let dout = operands.pop().expect("four");
    cases.over("scaled", attrs, operands, dout);
    cases
}

#[test]
fn no_magnitude_overflows_or_is_lost() {
    // scores stay small, values and their gradients do not
    check(&scaled([1e-10, 1e10, 1e18, 1e-20], 0.0), 1, 8, High, HIGH);
    check(&scaled([1.0, 0.1, 1.0, 1.0], 8.0), 1, 8, High, 1e-5);
}

#[test]
fn what_a_row_does_not_see_may_hold_anything() {
    let Some(session) = adapter() else { return };
    let (sq, sk, width) = (10, 12, 8);
    let mut cases = Cases::default();
    let q = cases.input(random(DType::F32, &[1, sq, width], 1));
    let broken = |seed, rows: usize, at: usize| {
        let mut values = random(DType::F32, &[1, rows, width], seed).to_f64();
        values[at * width] = f64::INFINITY;
        values[at * width + 3] = f64::NAN;
        tensor(DType::F32, &[1, rows, width], &values)
    };
    let [k, v] = [2, 3].map(|seed| cases.input(broken(seed, sk, 9)));
    let dout = cases.input(random(DType::F32, &[1, sq, width], 4));
    // causal from the bottom right: query i sees keys up to i + 2, so that 7, 8 and 9 see key 9
    cases.over("x", form(1, 1, width, sq, sk).causal().attrs(), vec![q, k, v], dout);
    for (precision, tolerance) in [(High, HIGH), (Medium, MEDIUM)] {
        let program = session
            .compile(&cases.graph, &Named::new(), &options(session, 8, precision))
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(on_units(&program), 3);
        let want = evaluate(&cases.graph, &Named::new(), &cases.inputs).unwrap_or_else(|e| panic!("{e}"));
        let got = run(&program, &cases.inputs);
        for (name, from) in [("x out", 7), ("x dq", 7)] {
            let (got, want) = (got[name].to_f64(), &want[name].data);
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                if i < from * width {
                    assert!((g - w).abs() <= tolerance * 10.0, "{precision}: {name} {i} is {g}, should be {w}");
                } else {
                    assert!(!g.is_finite(), "{precision}: {name} {i} is {g} beside {w}");
                }
            }
        }
    }
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
