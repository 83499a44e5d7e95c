//! States, outputs of every provenance, and tensors of odd or no bytes.

use crate::common::{BOTH, Case, EVERY, F32, OTHERS, Result, each, f16, full, random, tensor};
use kiln::graph::{DType, Unary};
use kiln::session::Mode;

#[test]
fn states_swap_and_are_read_before_they_are_written() -> Result {
    let mut c = Case::new();
    let [a, b] = ["a", "b"].map(|n| c.named(n, random(DType::F32, &[33], n.as_bytes()[0].into())));
    c.b.update(a, b)?;
    c.b.update(b, a)?;
    let sum = c.b.add(a, b);
    c.output("sum", sum);
    c.output("a before", Ok(a));
    c.check(F32, &EVERY);
    Ok(())
}

#[test]
fn updates_of_every_kind() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[3, 5], 1));
    let w = c.parameter(random(DType::F32, &[3, 5], 2));
    // read after its new value is made
    let s = c.named("counter", full(DType::F32, &[3, 5], 1.0));
    let next = c.b.add(s, x)?;
    c.b.update(s, next)?;
    let late = c.b.mul(s, next)?;
    c.output("late", Ok(late));
    // its new value does not depend on it and is read afterwards
    let s = c.named("made", full(DType::F32, &[3, 5], 2.0));
    let fresh = c.b.unary(Unary::Exp, x)?;
    c.b.update(s, fresh)?;
    let y = c.b.relu(fresh)?;
    let y = c.b.add(y, s);
    c.output("made before", y);
    // from an input, a parameter, a view, a view of another state, a value that is an output too
    for (name, value) in [("input", x), ("parameter", w), ("output", late)] {
        let s = c.named(name, full(DType::F32, &[3, 5], 3.0));
        c.b.update(s, value)?;
        let y = c.b.scale(s, 2.0);
        c.output(format!("{name} before"), y);
    }
    let turned = c.named("turned", random(DType::F32, &[5, 3], 4));
    let view = c.b.permute(fresh, &[1, 0])?;
    c.b.update(turned, view)?;
    let back = c.named("back", random(DType::F32, &[3, 5], 5));
    let view = c.b.permute(turned, &[1, 0])?;
    c.b.update(back, view)?;
    // one value in two states
    let both = c.b.unary(Unary::Neg, x)?;
    for name in ["one", "other"] {
        let s = c.named(name, full(DType::F32, &[3, 5], 6.0));
        c.b.update(s, both)?;
        let y = c.b.add(s, x);
        c.output(format!("{name} before"), y);
    }
    // unchanged, and written without being read
    let s = c.named("kept", random(DType::F32, &[7], 7));
    c.b.update(s, s)?;
    let s = c.named("unread", random(DType::F32, &[3, 5], 8));
    let value = c.b.scale(w, 0.5)?;
    c.b.update(s, value)?;
    c.check(F32, &EVERY);
    Ok(())
}

#[test]
fn a_state_grows_in_a_cache() -> Result {
    // row `step` of the cache is replaced, then the whole is read
    let mut c = Case::new();
    let cache = c.named("cache", full(DType::F32, &[4, 3], 0.0));
    let step = c.named("step", tensor(DType::I32, &[1], &[0.0]));
    let x = c.input(random(DType::F32, &[1, 3], 1));
    let one = c.input(tensor(DType::I32, &[1], &[1.0]));
    let rows = c.b.arange(4)?;
    let rows = c.b.reshape(rows, [4, 1])?;
    let distance = c.b.sub(rows, step)?;
    let differs = c.b.cast(distance, DType::Bool)?;
    let next = c.b.select(differs, cache, x)?;
    c.b.update(cache, next)?;
    let later = c.b.add(step, one)?;
    c.b.update(step, later)?;
    let sum = c.b.sum(next, &[0]);
    c.output("sum", sum);
    c.check(F32, &EVERY);
    Ok(())
}

#[test]
fn outputs_that_nothing_computes() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[5, 3], 1));
    let w = c.parameter(random(DType::F32, &[5, 3], 2));
    let read = c.parameter(random(DType::F32, &[4, 3], 3));
    c.output("input", Ok(x));
    c.output("input again", Ok(x));
    c.output("parameter", Ok(w));
    c.output("a parameter that a linear reads", Ok(read));
    let y = c.b.linear(x, read, None)?;
    c.output("y", Ok(y));
    c.output("y again", Ok(y));
    let flat = c.b.reshape(y, [20]);
    c.output("y flat", flat);
    let view = c.b.permute(w, &[1, 0]);
    c.output("a view of a parameter", view);
    let constant = c.b.constant(0.3, kiln::graph::TensorType::new(DType::F32, [7]));
    c.output("constant", constant);
    c.check(F32, &EVERY);
    Ok(())
}

#[test]
fn a_run_s_results_are_its_own() -> Result {
    let mut c = Case::new();
    let s = c.named("s", tensor(DType::F32, &[2], &[1.0, 2.0]));
    let y = c.b.scale(s, 2.0)?;
    c.b.update(s, y)?;
    c.output("s", Ok(s));
    c.output("y", Ok(y));
    let (graph, params, inputs) = c.finish();
    each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
        let runs: Vec<_> = (0..4).map(|_| program.submit(given).unwrap()).collect();
        for (i, run) in runs.into_iter().enumerate() {
            let outputs = run.wait().unwrap();
            let factor = f64::from(1 << i);
            assert_eq!(outputs["s"].to_f64(), [factor, 2.0 * factor], "run {i} ({setup})");
            assert_eq!(outputs["y"].to_f64(), [2.0 * factor, 4.0 * factor], "run {i} ({setup})");
        }
    });
    Ok(())
}

#[test]
fn tensors_without_elements() -> Result {
    let mut c = Case::new();
    let none = c.input(full(DType::F32, &[0, 3], 0.0));
    let some = c.input(random(DType::F32, &[2, 3], 1));
    let w = c.parameter(random(DType::F32, &[4, 3], 2));
    let row = c.parameter(random(DType::F32, &[3], 3));
    let y = c.b.relu(none);
    c.output("relu", y);
    let y = c.b.add(none, row);
    c.output("add", y);
    let y = c.b.concat(&[none, some, none], 0);
    c.output("concat", y);
    let y = c.b.concat(&[none, none], 0);
    c.output("concat of nothing", y);
    let y = c.b.linear(none, w, None);
    c.output("linear", y);
    let y = c.b.softmax(none, 1);
    c.output("softmax", y);
    let y = c.b.layernorm(none, row, row, 1e-5);
    c.output("layernorm", y);
    let y = c.b.permute(none, &[1, 0]);
    c.output("permute", y);
    let cut = c.b.slice(some, 0, 1, 0)?;
    let y = c.b.unary(Unary::Exp, cut);
    c.output("cut away", y);
    let y = c.b.sum(cut, &[0]);
    c.output("sum of what is cut away", y);
    let tokens = c.input(full(DType::I32, &[0], 0.0));
    let y = c.b.embedding(w, tokens);
    c.output("embedding", y);
    let y = c.b.cast(none, DType::Bool);
    c.output("cast", y);
    let y = c.b.arange(0);
    c.output("arange", y);
    let y = c.b.causal_mask(0, 3);
    c.output("mask", y);
    c.output("input", Ok(none));
    let s = c.named("state", full(DType::F32, &[0, 3], 0.0));
    let y = c.b.relu(s)?;
    c.b.update(s, y)?;
    c.check(F32, &EVERY);

    // a program that has nothing to give
    let mut c = Case::new();
    let none = c.input(full(DType::F32, &[0, 3], 0.0));
    let y = c.b.relu(none);
    c.output("y", y);
    c.check(F32, &EVERY);
    Ok(())
}

#[test]
fn e14_tensors_of_odd_bytes_go_up_and_come_back_exactly() -> Result {
    let mut c = Case::new();
    let n = 25;
    let ramp: Vec<f64> = (0..n).map(|i| f64::from(i) - 7.0).collect();
    if f16() {
        // 2, 6 and 50 bytes
        for n in [1, 3, 25] {
            let x = c.input(tensor(DType::F16, &[n], &ramp[..n]));
            c.output(format!("f16 {n}"), Ok(x));
            let w = c.parameter(tensor(DType::F16, &[n], &ramp[..n]));
            let y = c.b.scale(w, -1.0);
            c.output(format!("f16 weight {n}"), y);
            let s = c.named(&format!("state {n}"), tensor(DType::F16, &[n], &ramp[..n]));
            let next = c.b.add(s, x)?;
            c.b.update(s, next)?;
            let cut = c.b.slice(x, 0, n - 1, 1)?;
            let y = c.b.concat(&[cut, x], 0);
            c.output(format!("f16 from an odd byte {n}"), y);
        }
    }
    for n in [1, 3, 25] {
        let x = c.input(tensor(DType::Bool, &[n], &ramp[..n]));
        let y = c.b.cast(x, DType::I32);
        c.output(format!("bool {n}"), y);
        let x = c.input(tensor(DType::F32, &[n], &ramp[..n]));
        c.output(format!("f32 {n}"), Ok(x));
    }
    c.check(0.0, &[BOTH, OTHERS].concat());
    Ok(())
}

#[test]
fn the_three_modes_submit_as_they_say() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[33], 1));
    let y = c.b.relu(x)?;
    let y = c.b.add(y, x)?;
    let y = c.b.unary(Unary::Tanh, y);
    c.output("y", y);
    let (graph, params, inputs) = c.finish();
    each(&graph, &params, &inputs, &EVERY, |setup, program, given| {
        let run = program.submit(given).unwrap();
        let want = if setup.mode == Mode::Eager { program.dispatches() as u64 } else { 1 };
        assert_eq!(run.submits(), want, "{setup}");
        run.wait().unwrap();
    });
    Ok(())
}
