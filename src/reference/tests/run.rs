//! Products of odd sizes, states, packed parameters, stored types, and whole error texts.

use super::super::{assemble, evaluate, evaluate_all, evaluate_nodes};
use super::{Case, apply, close, noise};
use crate::graph::{AttentionAttrs, Binary, Chain, DType, Graph, Op, Ref, Shape, Step, TensorType, Unary, ValueId};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

fn named(tensors: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    tensors.iter().map(|(name, t)| (name.to_string(), t.clone())).collect()
}

fn f32(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn products_of_odd_sizes_with_transposes_and_batches() {
    for [m, k, n] in [[1, 1, 1], [3, 5, 7], [67, 300, 71], [1, 257, 33], [130, 2, 5]] {
        let (a, b) = (noise(6 * m * k, 1), noise(3 * k * n, 2));
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let a_dims = if transpose_a { [2, 3, k, m] } else { [2, 3, m, k] };
            let b_dims = if transpose_b { [3, n, k] } else { [3, k, n] };
            let mut expected = Vec::new();
            for (batch, i) in (0..6).flat_map(|batch| (0..m).map(move |i| (batch, i))) {
                let a = |kk: usize| a[batch * m * k + if transpose_a { kk * m + i } else { i * k + kk }];
                let b = |kk: usize, j: usize| b[batch % 3 * k * n + if transpose_b { j * k + kk } else { kk * n + j }];
                expected.extend((0..n).map(|j| (0..k).map(|kk| a(kk) * b(kk, j)).sum::<f64>()));
            }
            let op = Op::Matmul { transpose_a, transpose_b };
            close(&apply(op.clone(), &[(&a_dims, &a), (&b_dims, &b)]), &expected);
            // one right operand for all
            let shared = apply(op, &[(&a_dims, &a), (&b_dims[1..], &b[..k * n])]);
            close(&shared[..m * n], &expected[..m * n]);
            close(&shared[3 * m * n..4 * m * n], &expected[3 * m * n..4 * m * n]);
        }
    }
}

#[test]
fn a_fused_matmul_is_a_linear_and_its_epilogue() {
    let mut case = Case::default();
    let x = case.f32([2, 40, 96], &noise(2 * 40 * 96, 1));
    let w = case.f32([100, 96], &noise(9600, 2));
    let bias = case.f32([100], &noise(100, 3));
    let y = case.op(Op::Linear, &[x, w, bias]);
    let y = case.op(Op::Unary(Unary::GeluErf), &[y]);
    let add = Step::Binary(Binary::Add, Ref::Input(0), Ref::Input(1));
    let epilogue = Chain { arity: 2, steps: vec![add, Step::Unary(Unary::GeluErf, Ref::Step(0))] };
    let fused = case.op(Op::FusedMatmul { transpose_a: false, transpose_b: true, epilogue }, &[x, w, bias]);
    close(&case.get(fused), &case.get(y));
}

#[test]
fn f16_is_rounded_where_it_is_stored() {
    let mut case = Case::default();
    let x = case.input(DType::F16, [1, 2], &[1.0, 3.0]);
    let thin = case.op(Op::Unary(Unary::Scale((1.0 / 3.0).into())), &[x]);
    assert_eq!(case.get(thin), [0.333251953125, 1.0]);
    let gamma = case.input(DType::F16, [2], &[1.0, 1.0]);
    let beta = case.input(DType::F16, [2], &[0.0, 0.0]);
    // the sum (2047 + 1, 2048 + 1) is stored as (2048, 2048) before it is normalised
    let (a, b) = (case.input(DType::F16, [1, 2], &[2047.0, 2048.0]), case.input(DType::F16, [1], &[1.0]));
    let sum = case.op(Op::AddLayerNorm(1e-5.into()), &[a, b, gamma, beta]);
    assert_eq!(case.get(sum), [2048.0, 2048.0]);
    assert_eq!(case.get(ValueId { output: 1, ..sum }), [0.0, 0.0]);
    // statistics are f32, so not rounded
    let normed = case.op(Op::LayerNorm(0.1.into()), &[x, gamma, beta]);
    close(&case.get(ValueId { output: 2, ..normed }), &[1.1f64.sqrt().recip()]);
}

#[test]
fn states_are_read_as_of_the_start_and_kept_in_full_precision() {
    let mut graph = Graph::default();
    let state = graph.push_input(f32([1]), "count");
    let x = graph.push_input(f32([1]), "x");
    let next = graph.push(Op::Binary(Binary::Add), vec![state.into(), x.into()], "next").unwrap();
    graph.push_update(state, next.into()).unwrap();
    graph.push_output("before", state.into(), crate::graph::Disposition::Read).unwrap();
    let (none, inputs) = (BTreeMap::new(), named(&[("x", Tensor::f32([1], &[0.1]))]));

    let first = evaluate_all(&graph, &none, &inputs, &BTreeMap::new()).unwrap();
    assert_eq!(first.outputs["before"].data, [0.0]);
    let second = evaluate_all(&graph, &none, &inputs, &first.states).unwrap();
    assert_eq!(second.outputs["before"].data, [f64::from(0.1f32)]);
    assert_eq!(second.states["count"].data, [2.0 * f64::from(0.1f32)]);

    let given = named(&[("x", Tensor::f32([1], &[0.1])), ("count", Tensor::f32([1], &[7.0]))]);
    assert_eq!(evaluate(&graph, &none, &given).unwrap()["before"].data, [7.0]);

    let mut wrong = first.states;
    wrong.get_mut("count").unwrap().data.push(1.0);
    let error = evaluate_all(&graph, &none, &inputs, &wrong).unwrap_err();
    assert_eq!(error.to_string(), "state \"count\": expected f32 (1), got 2 elements of shape (1)");
}

#[test]
fn packed_storages_are_assembled_by_their_parts_names() {
    let mut graph = Graph::default();
    let members = [("q", [1, 2]), ("k", [2, 2])].map(|(n, s)| graph.layout.add(n, DType::F16, s.into()));
    let packed = graph.layout.pack("qk", &members);
    let node = graph.push_parameter(packed);
    graph.push_output("w", node.into(), crate::graph::Disposition::Read).unwrap();
    // F32 in the checkpoint, rounded to the storage's F16
    let mut params = named(&[("q", Tensor::f32([1, 2], &[0.1, 2.0])), ("k", Tensor::f32([2, 2], &[3., 4., 5., 6.]))]);
    let w = &evaluate(&graph, &params, &BTreeMap::new()).unwrap()["w"];
    assert_eq!((w.shape.dims(), &w.data[..]), (&[3, 2][..], &[0.0999755859375, 2.0, 3.0, 4.0, 5.0, 6.0][..]));
    assert_eq!(assemble(&graph.layout, packed, &params).unwrap(), *w);

    params.insert("k".into(), Tensor::f32([1, 2], &[3.0, 4.0]));
    let error = evaluate(&graph, &params, &BTreeMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "parameter \"k\": expected f16 (2, 2), got f32 (1, 2)");
    params.remove("q");
    let error = evaluate(&graph, &params, &BTreeMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "parameter \"q\" is missing; expected f16 (1, 2)");
}

#[test]
fn evaluate_frees_what_evaluate_nodes_keeps() {
    let mut graph = Graph::default();
    let x = graph.push_input(f32([2, 3]), "x");
    let sum = graph.push(Op::Binary(Binary::Add), vec![x.into(), x.into()], "sum").unwrap();
    let product =
        graph.push(Op::Matmul { transpose_a: false, transpose_b: true }, vec![sum.into(), x.into()], "mm").unwrap();
    let unused = graph.push(Op::Unary(Unary::Exp), vec![x.into()], "unused").unwrap();
    graph.push_output("a", product.into(), crate::graph::Disposition::Read).unwrap();
    graph.push_output("b", product.into(), crate::graph::Disposition::Read).unwrap();
    let (none, inputs) = (BTreeMap::new(), named(&[("x", Tensor::f32([2, 3], &[1., 2., 3., 4., 5., 6.]))]));
    let nodes = evaluate_nodes(&graph, &none, &inputs).unwrap();
    let outputs = evaluate(&graph, &none, &inputs).unwrap();
    assert_eq!(outputs["a"], nodes[product.0][0]);
    assert_eq!(outputs["b"], nodes[product.0][0]);
    assert_eq!(nodes[sum.0][0].data, [2., 4., 6., 8., 10., 12.]);
    assert_eq!(nodes[unused.0][0].data.len(), 6);
}

#[test]
fn inputs_are_checked_by_name_and_type() {
    let mut graph = Graph::default();
    graph.push_input(TensorType::new(DType::I32, [2]), "tokens");
    let none = BTreeMap::new();
    let error = |inputs: &[(&str, Tensor)]| evaluate(&graph, &none, &named(inputs)).unwrap_err().to_string();
    assert_eq!(error(&[]), "input \"tokens\" is missing; expected i32 (2)");
    let wrong = Tensor::f32([2], &[0.0; 2]);
    assert_eq!(error(&[("tokens", wrong)]), "input \"tokens\": expected i32 (2), got f32 (2)");
    let wrong = Tensor::i32([1, 2], &[0; 2]);
    assert_eq!(error(&[("tokens", wrong)]), "input \"tokens\": expected i32 (2), got i32 (1, 2)");
}

#[test]
fn indices_out_of_range_are_named() {
    let error = |op: Op, x: &[usize], index: &[f64], more: usize| {
        let mut case = Case::default();
        let x = case.f32(x, &vec![0.0; x.iter().product()]);
        let index = case.input(DType::I32, [index.len()], index);
        let mut inputs = vec![x; more];
        inputs.push(index);
        case.op(op, &inputs);
        case.error()
    };
    assert_eq!(
        error(Op::Embedding, &[5, 1], &[4.0, 5.0], 1),
        "embedding \"t\": index 5 (element 1) is not within 0..5"
    );
    assert_eq!(error(Op::Embedding, &[5, 1], &[-1.0], 1), "embedding \"t\": index -1 (element 0) is not within 0..5");
    assert_eq!(error(Op::PickRow, &[1, 3], &[3.0], 1), "pick_row \"t\": position 3 (element 0) is not within 0..3");
    let attrs = AttentionAttrs { heads: 1, scale: 1.0.into(), causal: true, mask: false, lengths: true, dropout: None };
    assert_eq!(
        error(Op::Attention(attrs), &[1, 3, 1], &[4.0], 3),
        "attention \"t\": length 4 (element 0) is not within 0..4"
    );
}
