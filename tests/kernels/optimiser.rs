//! Steps of an optimiser over parameters and states: what they give, and that they take no memory of their own.

use crate::common::{BOTH, Case, EVERY, F32, Result, difference, each, f16, full, random, tensor};
use kiln::graph::{AdamAttrs, DType, Graph, Op, Unary, ValueId};
use kiln::reference::evaluate_all;
use kiln::select::{Selected, TensorKind};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;

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

/// Learning rate and bias corrections of step t.
fn scalars(t: i32) -> Tensor {
    tensor(DType::F32, &[3], &[0.05, 1.0 - 0.9f64.powi(t), 1.0 - 0.999f64.powi(t)])
}

/// A step of w by a gradient: new w, m and v.
fn step(c: &mut Case, name: &str, a: AdamAttrs, [w, gradient, scalars]: [ValueId; 3]) -> Result<[[ValueId; 2]; 3]> {
    let dims = c.b.shape(w).dims().to_vec();
    let [m, v] = ["m", "v"].map(|moment| c.named(&format!("{name}.{moment}"), full(DType::F32, &dims, 0.0)));
    let node = c.b.op(Op::Adam(a), &[w, m, v, gradient, scalars])?.node;
    let new = |output| ValueId { node, output };
    Ok([[w, new(0)], [m, new(1)], [v, new(2)]])
}

fn update(c: &mut Case, pairs: [[ValueId; 2]; 3]) -> Result {
    for [state, value] in pairs {
        c.b.update(state, value)?;
    }
    Ok(())
}

/// Launches that only move a state's new value.
fn copies(selected: &Selected) -> usize {
    selected.steps.iter().filter(|s| s.name.ends_with("(copy)")).count()
}

fn states(graph: &Graph, selected: &Selected) -> u64 {
    let of_graph: usize = graph.updates().iter().map(|(s, _)| graph.node(*s).outputs[0].bytes()).sum();
    let of_tensors: u64 = selected.tensors.iter().filter(|t| t.kind == TensorKind::State).map(|t| t.bytes).sum();
    assert_eq!(of_tensors, of_graph as u64);
    of_tensors
}

#[test]
fn ten_steps_over_parameters_where_they_lie() -> Result {
    let mut c = Case::new();
    let s = c.named("scalars", scalars(1));
    for (i, (n, a)) in
        [(1, attrs(0.0, false)), (31, attrs(0.1, false)), (33, attrs(0.1, true)), (257, attrs(0.0, true))]
            .into_iter()
            .enumerate()
    {
        let w = c.parameter(random(DType::F32, &[n, 3], i as u64));
        let target = c.input(random(DType::F32, &[n, 3], 10 + i as u64));
        let apart = c.b.sub(w, target)?;
        let new = step(&mut c, &i.to_string(), a, [w, apart, s])?;
        update(&mut c, new)?;
    }
    let (graph, params, mut inputs) = c.finish();
    each(&graph, &params, &inputs.clone(), &EVERY, |setup, program, given| {
        let compiled = program.compiled();
        let adams: Vec<_> = compiled.selected.steps.iter().filter(|s| s.launch.key.name() == "adam").collect();
        assert_eq!(adams.iter().map(|s| s.launch.operands.len()).collect::<Vec<_>>(), [5; 4], "{setup}");
        assert_eq!(copies(&compiled.selected), 0, "{setup}");
        let bytes = states(&graph, &compiled.selected);
        let of_inputs = compiled.selected.tensors.iter().filter(|t| t.kind == TensorKind::Input);
        let of_inputs: u64 = of_inputs.map(|t| t.bytes.next_multiple_of(16)).sum();
        // 1, 31, 33 and 257 rows of three: the last word of each state is padded
        assert!(program.plan().resident - of_inputs - bytes < 12 * 16, "{setup}: {}", program.plan());
        let mut kept = BTreeMap::new();
        for t in 1..=10 {
            inputs.insert("scalars".into(), scalars(t));
            let mut given = given.to_vec();
            let now = scalars(t);
            *given.iter_mut().find(|(n, _)| *n == "scalars").unwrap() = ("scalars", &now);
            let run = program.submit(&given).unwrap();
            assert_eq!(run.submits() == 1, setup.mode != kiln::session::Mode::Eager, "{setup}");
            run.wait().unwrap();
            kept = evaluate_all(&graph, &params, &inputs, &kept).unwrap().states;
            for (name, want) in &kept {
                let got = program.read_state(name).unwrap();
                difference(&got, want, 1e-6).unwrap_or_else(|e| panic!("{name}, step {t} ({setup}): {e}"));
            }
        }
        // as a host that loads a checkpoint does
        let back = program.read_state("w1").unwrap();
        program.write_state("w1", &params["w1"]).unwrap();
        assert_eq!(program.read_state("w1").unwrap(), params["w1"], "{setup}");
        assert_ne!(back, params["w1"], "{setup}");
    });
    Ok(())
}

#[test]
fn a_step_whose_states_are_read_elsewhere_is_made_apart() -> Result {
    let mut c = Case::new();
    let s = c.named("scalars", scalars(3));
    let g = c.input(random(DType::F32, &[5, 7], 1));
    // nothing is a state
    let w = c.parameter(random(DType::F32, &[5, 7], 2));
    for (i, [_, new]) in step(&mut c, "free", attrs(0.1, true), [w, g, s])?.into_iter().enumerate() {
        c.output(format!("free {i}"), Ok(new));
    }
    // read before the step, which stays in place
    let w = c.parameter(random(DType::F32, &[5, 7], 3));
    let early = c.b.scale(w, 2.0);
    c.output("early", early);
    let new = step(&mut c, "early", attrs(0.0, false), [w, g, s])?;
    update(&mut c, new)?;
    // read after it, through a view
    let w = c.parameter(random(DType::F32, &[5, 7], 4));
    let view = c.b.permute(w, &[1, 0])?;
    let new = step(&mut c, "late", attrs(0.0, false), [w, g, s])?;
    update(&mut c, new)?;
    let late = c.b.unary(Unary::Exp, view);
    c.output("late", late);
    // an output itself, and so is its new value
    let w = c.parameter(random(DType::F32, &[5, 7], 5));
    let new = step(&mut c, "output", attrs(0.1, false), [w, g, s])?;
    update(&mut c, new)?;
    c.output("output before", Ok(w));
    let w = c.parameter(random(DType::F32, &[5, 7], 6));
    let new = step(&mut c, "new", attrs(0.1, false), [w, g, s])?;
    update(&mut c, new)?;
    c.output("output after", Ok(new[0][1]));
    // its own gradient
    let w = c.parameter(random(DType::F32, &[5, 7], 7));
    let new = step(&mut c, "own", attrs(0.1, false), [w, w, s])?;
    update(&mut c, new)?;
    // only its moments are kept
    let w = c.parameter(random(DType::F32, &[5, 7], 8));
    let [_, m, v] = step(&mut c, "moments", attrs(0.0, true), [w, g, s])?;
    for [state, value] in [m, v] {
        c.b.update(state, value)?;
    }
    c.check(2e-6, &EVERY);
    Ok(())
}

/// A factor of the gradient, and steps that do not count, whatever their gradient: in place, of pieces, and apart.
#[test]
fn limited_steps() -> Result {
    let mut c = Case::new();
    for (i, (factor, counts)) in [(0.25, 1.0), (f64::INFINITY, 0.0), (1.0, 1.0)].into_iter().enumerate() {
        let at = [0.05, 1.0 - 0.9f64.powi(3), 1.0 - 0.999f64.powi(3), factor, counts];
        let s = c.named(&format!("scalars{i}"), tensor(DType::F32, &[5], &at));
        for (j, dims) in [[1, 1], [31, 3], [33, 8]].into_iter().enumerate() {
            let w = c.parameter(random(DType::F32, &dims, 1 + i as u64));
            let gradient = random(DType::F32, &dims, 10 + j as u64);
            let g = c.input(if counts == 0.0 { full(DType::F32, &dims, f64::NAN) } else { gradient });
            let new = step(&mut c, &format!("{i} {j}"), attrs(0.1, j % 2 == 0), [w, g, s])?;
            if j == 1 {
                for [old, new] in new {
                    let apart = c.b.sub(new, old)?;
                    c.output(format!("{i} {}", old.node.0), Ok(apart));
                }
            } else {
                update(&mut c, new)?;
            }
        }
    }
    c.check(1e-6, &BOTH);
    Ok(())
}

/// The new weight in f16 as well: beside a step in place, of pieces, and after one that is made apart.
#[test]
fn weights_are_also_stored_in_f16() -> Result {
    if !f16() {
        return Ok(());
    }
    let narrow = |decoupled| AdamAttrs { narrow: true, ..attrs(0.1, decoupled) };
    let mut c = Case::new();
    for (i, counts) in [1.0, 0.0].into_iter().enumerate() {
        let s = c.named(&format!("scalars{i}"), tensor(DType::F32, &[5], &[0.05, 0.19, 0.002, 0.5, counts]));
        for (j, dims) in [[1, 1], [31, 3], [33, 8], [1, 257]].into_iter().enumerate() {
            let name = format!("{i} {j}");
            let w = c.parameter(random(DType::F32, &dims, j as u64));
            let g = c.input(random(DType::F32, &dims, 10 + j as u64));
            // what it holds before is not looked at
            let copy = c.named(&format!("{name}.copy"), full(DType::F16, &dims, f64::NAN));
            let new = step(&mut c, &name, narrow(j % 2 == 0), [w, g, s])?;
            let new_copy = ValueId { node: new[0][1].node, output: 3 };
            if j == 1 {
                let apart = c.b.sub(new[0][1], w);
                c.output(&name, apart);
                c.output(format!("{name} in f16"), Ok(new_copy));
            } else {
                update(&mut c, new)?;
                c.b.update(copy, new_copy)?;
            }
        }
    }
    let (graph, params, inputs) = c.finish();
    each(&graph, &params, &inputs, &EVERY, |setup, program, _| {
        let adams = program.compiled().selected.steps.iter().filter(|s| s.launch.key.name() == "adam");
        let mut operands: Vec<usize> = adams.map(|s| s.launch.operands.len()).collect();
        operands.sort_unstable();
        assert_eq!(operands, [6, 6, 6, 6, 6, 6, 8, 8], "{setup}");
        assert_eq!(copies(&program.compiled().selected), 2, "{setup}: a cast of each that is made apart");
    });
    crate::common::check(&graph, &params, &inputs, 1e-3, &EVERY);
    Ok(())
}

#[test]
fn gradients_of_f16_and_their_views() -> Result {
    if !f16() {
        return Ok(());
    }
    let mut c = Case::new();
    let s = c.named("scalars", scalars(2));
    let limited = c.named("limited", tensor(DType::F32, &[5], &[0.05, 0.19, 0.002, 0.125, 1.0]));
    for (i, dims) in [[1, 1], [31, 3], [33, 8], [1, 257]].into_iter().enumerate() {
        let w = c.parameter(random(DType::F32, &dims, i as u64));
        let g = c.input(random(DType::F16, &[dims[1], dims[0]], 10 + i as u64));
        let turned = c.b.permute(g, &[1, 0])?;
        let s = if i % 2 == 0 { s } else { limited };
        let new = step(&mut c, &i.to_string(), attrs(0.1, i < 2), [w, turned, s])?;
        update(&mut c, new)?;
    }
    c.check(1e-6, &BOTH);
    Ok(())
}

#[test]
fn sgd_and_momentum() -> Result {
    let mut c = Case::new();
    for n in [1, 33, 256] {
        let target = c.input(random(DType::F32, &[n], 1));
        let w = c.parameter(random(DType::F32, &[n], 2));
        let g = c.b.sub(w, target)?;
        let change = c.b.scale(g, 0.1)?;
        let next = c.b.sub(w, change)?;
        c.b.update(w, next)?;
    }
    let (graph, params, inputs) = c.finish();
    each(&graph, &params, &inputs, &EVERY, |setup, program, _| {
        let selected = &program.compiled().selected;
        assert_eq!(copies(selected), 0, "{setup}");
        states(&graph, selected);
    });
    crate::common::check(&graph, &params, &inputs, F32, &EVERY);

    let mut c = Case::new();
    for n in [1, 33, 256] {
        let target = c.input(random(DType::F32, &[n], 1));
        let w = c.parameter(random(DType::F32, &[n], 2));
        let m = c.named(&format!("m{n}"), full(DType::F32, &[n], 0.0));
        let g = c.b.sub(w, target)?;
        let slower = c.b.scale(m, 0.9)?;
        let faster = c.b.add(slower, g)?;
        let change = c.b.scale(faster, 0.1)?;
        let next = c.b.sub(w, change)?;
        c.b.update(w, next)?;
        c.b.update(m, faster)?;
    }
    c.check(F32, &EVERY);
    Ok(())
}
