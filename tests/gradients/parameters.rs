//! Gradients of a graph's parameters as outputs: packed ones under their own names, as written and lifted.

use crate::written::{self, Result, TINY, f32, gptlite, linear, ops};
use kiln::fuse::{FuseLimits, fuse};
use kiln::grad::{Checkpoint, GradError, Parameters, differentiate};
use kiln::graph::{Builder, DType, Graph, GraphError, TensorType, ValueId};
use kiln::lift::lift;
use kiln::reference::evaluate;

/// A graph with the loss Σ out² over its first output.
pub fn with_loss(graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    let value = graph.outputs()[0].value;
    let square = graph.push(kiln::graph::Op::Binary(kiln::graph::Binary::Mul), vec![value, value], "square")?;
    let axes = (0..graph.shape(value).rank()).collect();
    let sum = kiln::graph::Op::Reduce { kind: kiln::graph::Reduction::Sum, axes, keepdim: false };
    let loss = graph.push(sum, vec![square.into()], "loss")?;
    graph.push_output("loss", loss.into(), Default::default())?;
    Ok(graph)
}

fn all(graph: &Graph) -> std::result::Result<Graph, GradError> {
    differentiate(graph, "loss", Parameters::All, Checkpoint::None)
}

#[test]
fn lifted_and_fused_gradients_are_those_of_the_graph_as_written() -> Result {
    for graph in [gptlite(written::Sizes { blocks: 2, ..TINY })?, written::dnn(3, &[4, 5, 2])?] {
        let graph = with_loss(&graph)?;
        let written = all(&graph)?;
        let lifted = all(&lift(&graph)?.0)?;
        let (fused, report) = fuse(&lifted, &FuseLimits::default())?;
        let (params, inputs) = written::values(&graph, 3);
        let expected = evaluate(&written, &params, &inputs)?;
        let parameters = graph.layout.iter().count();
        assert_eq!(expected.keys().filter(|n| n.starts_with("grad.")).count(), parameters);
        for graph in [&lifted, &fused] {
            let got = evaluate(graph, &params, &inputs)?;
            assert!(got.keys().eq(expected.keys()));
            for (name, want) in &expected {
                let got = &got[name];
                assert_eq!(got.shape, want.shape, "{name}");
                let largest = want.data.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
                let far = got.data.iter().zip(&want.data).find(|(g, w)| (*g - *w).abs() > 1e-7 * largest);
                assert!(far.is_none(), "{name}: {far:?}\n{report}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_backward_pass_of_a_layer_is_fused() -> Result {
    let graph = with_loss(&written::dnn(3, &[4, 5, 2])?)?;
    let (graph, report) = fuse(&all(&graph)?, &FuseLimits::default())?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (3, 4)  # x
    %1 = parameter [] : f32 (5, 4)  # layers.0.weight
    %2 = parameter [] : f32 (5)  # layers.0.bias
    %3 = fused_matmul(a, bᵀ; t0 = add(i0, i1); t1 = relu(t0)) [%0, %1, %2] : f32 (3, 5)  # layers.0
    %4 = parameter [] : f32 (2, 5)  # layers.1.weight
    %5 = parameter [] : f32 (2)  # layers.1.bias
    %6 = fused_matmul(a, bᵀ; t0 = add(i0, i1); t1 = relu(t0)) [%3, %4, %5] : f32 (3, 2)  # layers.1
    %7 = mul [%6, %6] : f32 (3, 2)  # square
    %8 = sum(axes [0, 1]) [%7] : f32 ()  # loss
    %9 = elementwise(t0 = add(i0, i0); t1 = 0; t2 = less_equal(i0, t1); t3 = 0; t4 = select(t2, t3, t0)) [%6] : f32 (3, 2)  # relu.grad.dx
    %10 = linear_grad [%3, %9] : f32 (2, 5), f32 (2)  # layers.1.grad.dw_db
    %11 = fused_matmul(a, b; t0 = 0; t1 = less_equal(i1, t0); t2 = 0; t3 = select(t1, t2, i0)) [%9, %4, %3] : f32 (3, 5)  # layers.1.grad.dx
    %12 = linear_grad [%0, %11] : f32 (5, 4), f32 (5)  # layers.0.grad.dw_db
    output y = %6
    output loss = %8
    output grad.layers.0.weight = %12
    output grad.layers.0.bias = %12.1
    output grad.layers.1.weight = %10
    output grad.layers.1.bias = %10.1
    ");
    let fused = |line: &&str| line.starts_with("epilogues") || line.starts_with("chains");
    assert_eq!(
        report.to_string().lines().filter(fused).collect::<Vec<_>>(),
        [
            "epilogues: layers.0: matmul + bias + relu in one kernel",
            "epilogues: layers.1: matmul + bias + relu in one kernel",
            "epilogues: layers.1.grad.dx: matmul + masked_fill in one kernel",
            "chains: relu.grad.dx: add + less_equal + masked_fill in one kernel",
        ]
    );
    Ok(())
}

#[test]
fn the_backward_pass_of_a_block_is_few_ops() -> Result {
    let lifted = lift(&with_loss(&gptlite(TINY)?)?)?.0;
    let graph = fuse(&all(&lifted)?, &FuseLimits::default())?.0;
    let expected = [
        ("add", 1), // the loss's two factors; where a residual parts the norm's gradient adds the other
        ("add_layernorm", 1),
        ("attention", 1),
        ("attention_grad", 1),
        ("concat", 2), // dq, dk and dv of one linear; the positions that were not read
        ("constant", 1),
        ("embedding", 1),
        ("embedding_grad", 1),
        ("fused_matmul", 5), // proj, two of ffwd, lm_head; relu's gradient behind dx of ffwd
        ("layernorm", 2),
        ("layernorm_grad", 3),
        ("layernorm_param_grad", 3),
        ("linear", 1),
        ("linear_grad", 5),
        ("matmul", 4), // dx of qkv, proj, ffwd and lm_head
        ("mul", 1),
        ("slice", 13), // q, k, v, the positions, and nine weights of their packed gradient
        ("sum", 2),    // the loss, and the positions' gradient over the batch
    ];
    assert_eq!(ops(&graph), expected.into(), "{graph}");
    Ok(())
}

#[test]
fn a_packed_storage_s_gradient_is_taken_apart() -> Result {
    let lifted = lift(&with_loss(&gptlite(TINY)?)?)?.0;
    let names = ["blocks.0.sa.heads.1.value.weight", "lm_head.bias"];
    let graph = differentiate(&lifted, "loss", Parameters::Named(&names), Checkpoint::None)?;
    let outputs: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_str()).collect();
    assert_eq!(outputs, ["logits", "loss", "grad.lm_head.bias", "grad.blocks.0.sa.heads.1.value.weight"]);
    let own = graph.outputs()[3].value;
    assert_eq!(graph.shape(own).dims(), [2, 6]);
    assert_eq!(graph.producer(own).name, "blocks.0.sa.heads.1.value.weight.grad");
    Ok(())
}

#[test]
fn a_storage_that_two_nodes_read_has_the_sum() -> Result {
    let mut b = Builder::new();
    let w = b.parameter("w", f32(&[3]))?;
    let y = b.mul(w, w)?;
    let loss = b.sum(y, &[0])?;
    b.output("loss", loss)?;
    let mut graph = b.finish()?;
    let storage = graph.layout.iter().next().ok_or("no storage")?.0;
    let again = graph.push_parameter(storage);
    let sum = |graph: &mut Graph, a: ValueId, b: ValueId| {
        graph.push(kiln::graph::Op::Binary(kiln::graph::Binary::Mul), vec![a, b], "more")
    };
    let more = sum(&mut graph, w, again.into())?;
    let axes = kiln::graph::Op::Reduce { kind: kiln::graph::Reduction::Sum, axes: vec![0], keepdim: false };
    let more = graph.push(axes, vec![more.into()], "more")?;
    graph.push_output("more", more.into(), Default::default())?;
    let graph = differentiate(&graph, "more", Parameters::All, Checkpoint::None)?;
    let params = [("w".to_owned(), kiln::Tensor::f32([3], &[1.0, -2.0, 3.0]))].into();
    assert_eq!(evaluate(&graph, &params, &Default::default())?["grad.w"].data, [2.0, -4.0, 6.0]);
    Ok(())
}

#[test]
fn unknown_names_are_refused() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2]))?;
    b.parameter("unread", f32(&[2]))?;
    let y = linear(&mut b, "l", x, 1, true)?;
    let loss = b.sum(y, &[0])?;
    b.output("loss", loss)?;
    b.output("grad.l.bias", y)?;
    let index = b.parameter("index", TensorType::new(DType::I32, [2]))?;
    b.output("index", index)?;
    let graph = b.finish()?;
    let error = |loss: &str, parameters: Parameters| {
        differentiate(&graph, loss, parameters, Checkpoint::None).unwrap_err().to_string()
    };
    assert_eq!(
        error("lose", Parameters::All),
        "output \"lose\" is not in the graph; its outputs are: loss, grad.l.bias, index"
    );
    assert_eq!(
        error("loss", Parameters::Named(&["l.weight", "l.wait"])),
        "parameter \"l.wait\" is not in the graph; its parameters are: unread, l.weight, l.bias, index"
    );
    assert_eq!(
        error("loss", Parameters::All),
        GraphError::Duplicate { kind: "output", name: "grad.l.bias".into() }.to_string()
    );
    assert_eq!(
        error("loss", Parameters::Named(&["index"])),
        "\"index\" is i32 (2), but only f32 and f16 values have gradients; ask for those it is computed from"
    );
    Ok(())
}
