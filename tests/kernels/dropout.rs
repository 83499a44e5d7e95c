//! Dropout.

use crate::common::{BOTH, Case, EVERY, F16, Result, Setup, each, f16, full, random, session, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::DType;
use kiln::reference::evaluate;
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;

const SIZES: [usize; 8] = [1, 3, 4, 31, 33, 256, 257, 4099];

fn counter(seed: u64, step: u32) -> Tensor {
    tensor(DType::U32, &[3], &[f64::from(seed as u32), f64::from((seed >> 32) as u32), f64::from(step)])
}

/// The elements that are 0 are the reference's, the others within the type's rounding.
fn check(c: Case, dtype: DType, setups: &[Setup]) {
    let (graph, params, inputs) = c.finish();
    let want = evaluate(&graph, &params, &inputs).unwrap_or_else(|e| panic!("{e}"));
    each(&graph, &params, &inputs, setups, |setup, program, given| {
        let got = program.run(given).unwrap_or_else(|e| panic!("{e} ({setup})"));
        for (name, want) in &want {
            for (i, (g, w)) in got[name].to_f64().iter().zip(&want.data).enumerate() {
                let near = (g - w).abs() <= w.abs() * if dtype == DType::F16 { F16 } else { 1e-6 };
                assert!(near && (*g == 0.0) == (*w == 0.0), "{name}[{i}] is {g}, should be {w} ({setup})");
            }
        }
    });
}

#[test]
fn drops_the_references_elements_at_all_seeds_steps_and_sites() -> Result {
    for dtype in [DType::F32, DType::F16] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        let counters = [(0, 0), (1, 7), (u64::MAX, u32::MAX), (0x0123_4567_89ab_cdef, 1000)];
        let counters = counters.map(|(seed, step)| c.input(counter(seed, step)));
        for (i, size) in SIZES.into_iter().enumerate() {
            let x = c.input(full(dtype, &[size], 3.0));
            for (p, site) in [(0.1, 0), (0.5, 1), (0.9, u32::MAX)] {
                let y = c.b.dropout(x, p, site, counters[i % 4]);
                c.output(format!("{size} at {p}"), y);
            }
        }
        check(c, dtype, &BOTH);
    }
    Ok(())
}

#[test]
fn overwrites_what_nothing_else_reads() -> Result {
    let mut c = Case::new();
    let counter = c.input(counter(11, 3));
    for size in SIZES {
        let x = c.input(random(DType::F32, &[size], 5));
        let x = c.b.scale(x, 2.0)?;
        let y = c.b.dropout(x, 0.3, size as u32, counter);
        c.output(format!("{size}"), y);
    }
    check(c, DType::F32, &EVERY);
    Ok(())
}

#[test]
fn keeps_everything_at_0() -> Result {
    let mut c = Case::new();
    let counter = c.input(counter(3, 3));
    let values: Vec<f64> = (0..37).map(|i| f64::from(i) - 18.0).collect();
    let x = c.input(tensor(DType::F32, &[37], &values));
    let y = c.b.dropout(x, 0.0, 4, counter);
    c.output("y", y);
    c.expect(&BOTH, 0.0, &[("y", &values)]);
    Ok(())
}

/// The first group's words at seed, step and site 0, of Random123's known answers for philox4x32 with ten rounds, to the
/// 24 bits of a probability: each word is at or above one probability and below the next.
#[test]
fn known_answers() -> Result {
    let mut c = Case::new();
    let counter = c.input(counter(0, 0));
    let x = c.input(full(DType::F32, &[4], 1.0));
    let mut want = Vec::new();
    for (i, word) in [0x6627_e8d5u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8].into_iter().enumerate() {
        let exact = f64::from(word) / 4_294_967_296.0;
        let near = exact as f32;
        let (low, high) = if f64::from(near) <= exact { (near, near.next_up()) } else { (near.next_down(), near) };
        assert!(f64::from(low) <= exact && exact < f64::from(high));
        for (p, kept) in [(low, 1.0), (high, 0.0)] {
            let y = c.b.dropout(x, p, 0, counter)?;
            let y = c.b.slice(y, 0, i, 1)?;
            let y = c.b.scale(y, 1.0 - p);
            let name = format!("word {i}, {p}");
            c.output(&name, y);
            want.push((name, [kept]));
        }
    }
    let want: Vec<(&str, &[f64])> = want.iter().map(|(name, v)| (name.as_str(), &v[..])).collect();
    c.expect(&BOTH, 1e-6, &want);
    Ok(())
}

#[test]
fn folds_its_grid_and_cuts_what_one_binding_does_not_cover() -> Result {
    let Some(session) = session() else { return Ok(()) };
    let mut c = Case::new();
    let counter = c.input(counter(5, 6));
    let x = c.input(full(DType::F32, &[5001], 1.0));
    let y = c.b.dropout(x, 0.4, 2, counter);
    c.output("y", y);
    let (graph, params, inputs) = c.finish();
    let want = evaluate(&graph, &params, &inputs)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for (max_groups, max_binding_bytes, dispatches) in [(3, 1 << 20, 1), (65_535, 4096, 5)] {
        let limits = DeviceCaps { max_groups, max_binding_bytes, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        let program = session.compile(&graph, &params, &options)?;
        assert_eq!(program.dispatches(), dispatches);
        let got = program.run(&given)?;
        let dropped = |v: &[f64]| v.iter().map(|x| *x == 0.0).collect::<Vec<_>>();
        assert_eq!(dropped(&got["y"].to_f64()), dropped(&want["y"].data));
    }
    Ok(())
}
