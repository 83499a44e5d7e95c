//! Stacks of linears and their gradients: every activation, widths, depths and batches that fill no workgroup.

use crate::common::{BOTH, Case, EVERY, F16, F32, Named, OTHERS, Result, Setup, f16, random, session, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{Activation, DType, Disposition, Graph, Op, ValueId};
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;

/// A stack's sizes.
#[derive(Clone, Copy)]
pub struct Form {
    pub rows: usize,
    pub width: usize,
    pub layers: usize,
    pub bias: bool,
}

pub const fn form(rows: usize, width: usize, layers: usize, bias: bool) -> Form {
    Form { rows, width, layers, bias }
}

/// Random weights that keep the size of what passes through them.
pub fn weights(dtype: DType, f: Form, seed: u64) -> Tensor {
    let dims = [f.layers, f.width, f.width];
    let scale = (6.0 / f.width as f64).sqrt();
    let values: Vec<f64> = random(dtype, &dims, seed).to_f64().iter().map(|v| v * scale).collect();
    tensor(dtype, &dims, &values)
}

/// What a stack makes and, with `kept`, what its layers read.
pub fn forward(c: &mut Case, dtype: DType, f: Form, activation: Activation, kept: bool) {
    let x = c.input(random(dtype, &[f.rows, f.width], 1));
    let w = c.parameter(weights(dtype, f, 2));
    let b = f.bias.then(|| c.parameter(random(dtype, &[f.layers, f.width], 3)));
    let y = c.b.linear_stack(x, w, b, activation);
    let name = format!("{} rows, {} layers of {}, {activation}", f.rows, f.layers, f.width);
    if kept {
        let node = y.as_ref().unwrap().node;
        c.output(format!("{name}: read"), Ok(ValueId { node, output: 1 }));
    }
    c.output(name, y);
}

/// The gradients of a stack whose forward values are given.
fn backward(dtype: DType, f: Form, activation: Activation) -> (Graph, Named) {
    let (mut graph, inputs, [kept, dz]) = backward_rows(dtype, f, activation);
    let sums = graph.push(Op::LinearStackParamGrad, vec![kept, dz], "parameters").unwrap();
    for (name, output) in [("dw", 0), ("db", 1)] {
        graph.push_output(name, ValueId { node: sums, output }, Disposition::Read).unwrap();
    }
    (graph, inputs)
}

/// Those of its input and of each layer's sums, with what the layers read and the latter.
pub fn backward_rows(dtype: DType, f: Form, activation: Activation) -> (Graph, Named, [ValueId; 2]) {
    let (mut graph, mut inputs) = (Graph::default(), Named::new());
    let rows = [f.rows, f.width];
    let stacked = [f.layers, f.rows, f.width];
    let given = [
        ("w", weights(dtype, f, 4)),
        ("kept", random(dtype, &stacked, 5)),
        ("y", random(dtype, &rows, 6)),
        ("dy", random(dtype, &rows, 7)),
    ];
    let mut read = Vec::new();
    for (name, value) in given {
        read.push(ValueId::from(graph.push_input(value.ty().clone(), name)));
        inputs.insert(name.to_owned(), value);
    }
    let kept = read[1];
    let node = graph.push(Op::LinearStackGrad(activation), read, "back").unwrap();
    let dz = ValueId { node, output: 1 };
    for (name, output) in [("dx", 0), ("dz", 1)] {
        graph.push_output(name, ValueId { node, output }, Disposition::Read).unwrap();
    }
    (graph, inputs, [kept, dz])
}

fn check_backward(dtype: DType, f: Form, activation: Activation, tolerance: f64, setups: &[Setup]) {
    let (graph, inputs) = backward(dtype, f, activation);
    crate::common::check(&graph, &Named::new(), &inputs, tolerance, setups);
}

const FORMS: [Form; 6] = [
    form(1, 64, 4, true),
    form(7, 100, 5, true),
    form(33, 64, 70, true),
    form(33, 256, 3, false),
    form(17, 8, 9, true),
    form(5, 4, 1, false),
];

#[test]
fn forwards_over_odd_sizes() {
    let mut c = Case::new();
    for (i, f) in FORMS.into_iter().enumerate() {
        forward(&mut c, DType::F32, f, Activation::ALL[(i + 1) % 4], i % 2 == 0);
    }
    c.check(F32, &BOTH);
    let mut c = Case::new();
    forward(&mut c, DType::F32, form(33, 64, 4, true), Activation::Relu, true);
    c.check(F32, &OTHERS);
}

#[test]
fn backwards_over_odd_sizes() {
    for (i, f) in FORMS.into_iter().enumerate() {
        check_backward(DType::F32, f, Activation::ALL[(i + 1) % 4], F32, &BOTH);
    }
}

#[test]
fn every_activation_both_ways() {
    let mut c = Case::new();
    for activation in Activation::ALL {
        forward(&mut c, DType::F32, form(9, 16, 5, true), activation, true);
        check_backward(DType::F32, form(9, 16, 5, true), activation, F32, &BOTH[1..]);
    }
    c.check(F32, &EVERY);
}

#[test]
fn stored_as_f16() {
    if !f16() {
        return;
    }
    let f = form(33, 64, 6, true);
    let mut c = Case::new();
    forward(&mut c, DType::F16, f, Activation::Relu, true);
    c.check(F16, &BOTH);
    check_backward(DType::F16, f, Activation::Relu, F16, &BOTH);
}

/// However many rows a workgroup carries and however its sums are dealt to invocations.
#[test]
fn within_small_limits() {
    let Some(session) = session() else { return };
    let f = form(40, 64, 3, true);
    let mut c = Case::new();
    forward(&mut c, DType::F32, f, Activation::Tanh, true);
    let (graph, params, inputs) = c.finish();
    let (back, given) = backward(DType::F32, f, Activation::Tanh);
    for (workgroup_bytes, max_invocations) in [(32 << 10, 256), (8 << 10, 256), (4 << 10, 16), (1 << 10, 32), (256, 16)]
    {
        let limits = DeviceCaps { workgroup_bytes, max_invocations, cpu: false, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        for (graph, params, inputs) in [(&graph, &params, &inputs), (&back, &Named::new(), &given)] {
            let expected = kiln::reference::evaluate(graph, params, inputs).unwrap();
            let program = match session.compile(graph, params, &options) {
                Ok(program) => program,
                // products of the parameters' gradients need more
                Err(error) => {
                    assert!(max_invocations < 64, "{error}");
                    continue;
                }
            };
            let refs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let outputs = program.run(&refs).unwrap();
            for (name, want) in &expected {
                let found = crate::common::difference(&outputs[name], want, F32);
                assert!(found.is_ok(), "{name} within {workgroup_bytes} bytes: {found:?}");
            }
        }
    }
}

#[test]
fn operands_that_are_views_or_states() -> Result {
    let mut c = Case::new();
    let f = form(6, 16, 4, true);
    let wide = c.input(random(DType::F32, &[6, 40], 1));
    let x = c.b.slice(wide, 1, 3, 16)?; // neither dense nor at a whole vec4
    let both = c.parameter(weights(DType::F32, Form { layers: 6, ..f }, 2));
    let w = c.b.slice(both, 0, 1, 4)?;
    let turned = c.b.permute(w, &[0, 2, 1])?;
    let y = c.b.linear_stack(x, w, None, Activation::Sigmoid);
    c.output("slices", y);
    let rows = c.b.reshape(wide, [15, 16])?;
    let late = c.b.slice(rows, 0, 2, 6)?; // dense, but not from the first element
    let y = c.b.linear_stack(late, turned, None, Activation::Tanh);
    c.output("turned", y);
    let state = c.named("s", weights(DType::F32, f, 5));
    let next = c.b.scale(state, 0.5)?;
    c.b.update(state, next)?;
    let y = c.b.linear_stack(x, state, None, Activation::Tanh);
    c.output("state", y);
    c.check(F32, &BOTH);
    Ok(())
}

#[test]
fn without_rows() {
    let mut c = Case::new();
    forward(&mut c, DType::F32, form(0, 8, 4, true), Activation::Relu, true);
    c.check(F32, &BOTH);
    check_backward(DType::F32, form(0, 8, 4, true), Activation::Relu, F32, &BOTH);
}

#[test]
fn a_width_that_is_no_multiple_of_four_is_refused() {
    let Some(session) = session() else { return };
    let mut c = Case::new();
    forward(&mut c, DType::F32, form(2, 6, 4, false), Activation::Relu, false);
    let (graph, params, _) = c.finish();
    let Err(error) = session.compile(&graph, &params, &CompileOptions::default()) else { panic!("it compiles") };
    assert_eq!(
        error.to_string(),
        "linear_stack \"linear_stack\": linear_stack: the width of a layer is 6, expected a multiple of 4"
    );
}
