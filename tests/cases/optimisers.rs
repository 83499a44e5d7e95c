//! Optimisers.

use crate::common::{BOTH, Case, Result, close, each, f16, full, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{AdamAttrs, DType, Op, ValueId};
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;

fn attrs(weight_decay: f32, decoupled: bool) -> AdamAttrs {
    AdamAttrs {
        beta1: 0.9.into(),
        beta2: 0.999.into(),
        eps: 1e-8.into(),
        weight_decay: weight_decay.into(),
        decoupled,
        narrow: false,
    }
}

/// The corrections are of the decays as f32 holds them, so that a first step is by the rate.
fn scalars(rate: f64, t: i32) -> Tensor {
    let [c1, c2] = [0.9f32, 0.999].map(|beta| 1.0 - f64::from(beta).powi(t));
    tensor(DType::F32, &[3], &[rate, c1, c2])
}

/// w, a parameter, under Adam with a gradient that is given.
fn trained(w: Tensor, gradient: Tensor, a: AdamAttrs) -> Result<Case> {
    let mut c = Case::new();
    let dims = w.shape().dims().to_vec();
    let states =
        [c.parameter(w), c.named("m", full(DType::F32, &dims, 0.0)), c.named("v", full(DType::F32, &dims, 0.0))];
    let gradient = c.named("gradient", gradient);
    let s = c.named("scalars", scalars(0.1, 1));
    let [w, m, v] = states;
    let node = c.b.op(Op::Adam(a), &[w, m, v, gradient, s])?.node;
    for (output, state) in states.into_iter().enumerate() {
        c.b.update(state, ValueId { node, output })?;
    }
    Ok(c)
}

/// Two steps of w = 1: gradient, then the values after it of w, m and v.
fn two_steps(a: AdamAttrs, steps: [(f64, [Option<f64>; 3]); 2]) -> Result {
    let (graph, params, inputs) = trained(full(DType::F32, &[1], 1.0), full(DType::F32, &[1], 0.5), a)?.finish();
    each(&graph, &params, &inputs, &BOTH, |setup, program, _| {
        for (t, (gradient, want)) in (1..).zip(steps) {
            program
                .run(&[("gradient", &full(DType::F32, &[1], gradient)), ("scalars", &scalars(0.1, t))])
                .unwrap_or_else(|e| panic!("{e}"));
            for (name, want) in ["w0", "m", "v"].into_iter().zip(want) {
                if let Some(want) = want {
                    let got = program.read_state(name).unwrap().to_f64()[0];
                    assert!(
                        (got - want).abs() < 3e-7 * want.abs().max(0.1),
                        "{name}, step {t} ({setup}): {got}, not {want}"
                    );
                }
            }
        }
    });
    Ok(())
}

/// The first moments are corrected for their start at 0.
#[test]
fn g07_the_first_step_of_adam() -> Result {
    let first = [Some(0.900000002), Some(0.05), Some(0.00025)];
    two_steps(attrs(0.0, false), [(0.5, first), (-0.25, [Some(0.8733662987), Some(0.02), Some(0.00031225)])])
}

/// AdamW: decay acts on the weight alone.
#[test]
fn g09_two_steps_of_adam_with_decoupled_decay() -> Result {
    let first = [Some(0.890000002), Some(0.05), Some(0.00025)];
    two_steps(attrs(0.1, true), [(0.5, first), (-0.25, [Some(0.8544662987), Some(0.02), Some(0.00031225)])])
}

/// Decay as part of the gradient, which the moments see.
#[test]
fn g10_two_steps_of_adam_with_decay_in_the_gradient() -> Result {
    let first = [Some(0.9000000017), Some(0.06), Some(0.00036)];
    two_steps(attrs(0.1, false), [(0.5, first), (-0.25, [Some(0.8544413675), Some(0.038), Some(0.00038524)])])
}

/// A gradient of 0 changes nothing, and one whose square f16 cannot hold moves the weight by the rate.
#[test]
fn g11_small_gradients_are_no_nan() -> Result {
    let w = [0.579, -0.729, 0.5493];
    let (graph, params, inputs) =
        trained(tensor(DType::F32, &[3], &w), full(DType::F32, &[3], 0.0), attrs(0.0, false))?.finish();
    each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
        program.run(given).unwrap();
        assert_eq!(program.read_state("w0").unwrap(), params["w0"], "{setup}");
    });
    let gradient = [-0.001497, 0.0001875, -0.013176];
    for dtype in [DType::F32, DType::F16] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let (graph, params, inputs) =
            trained(tensor(DType::F32, &[3], &w), tensor(dtype, &[3], &gradient), attrs(0.0, false))?.finish();
        each(&graph, &params, &inputs, &BOTH, |setup, program, given| {
            program.run(given).unwrap();
            // the first step is the rate against the gradient's sign, but for ε
            let want: Vec<f64> = w.iter().zip(gradient).map(|(w, g)| w - 0.1 * g.signum()).collect();
            close(&format!("w ({setup})"), &program.read_state("w0").unwrap().to_f64(), &want, 1e-5);
        });
    }
    Ok(())
}

/// More weights than workgroups go along one dimension, or than one binding covers: the last is stepped too.
#[test]
fn g15_the_last_of_many_weights_is_stepped() -> Result {
    let n = 100_003;
    let c = trained(full(DType::F32, &[n], 1.0), full(DType::F32, &[n], 0.5), attrs(0.0, false))?;
    let (graph, params, inputs) = c.finish();
    let Some(session) = crate::common::session() else { return Ok(()) };
    for (max_groups, max_binding_bytes) in [(8, 128 << 20), (7, 64 << 10)] {
        let limits = DeviceCaps { max_groups, max_binding_bytes, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        let program = session.compile(&graph, &params, &options).unwrap_or_else(|e| panic!("{e}"));
        let folded = program.compiled().recording.dispatches.iter().any(|d| d.grid[1] > 1);
        assert!(folded, "{}", program.compiled().recording);
        program.run(&[("gradient", &inputs["gradient"]), ("scalars", &inputs["scalars"])]).unwrap();
        let w = program.read_state("w0").unwrap().to_f64();
        assert!(w.iter().all(|w| (w - 0.9).abs() < 1e-6), "{:?}", w.iter().position(|w| (w - 0.9).abs() >= 1e-6));
    }
    Ok(())
}
