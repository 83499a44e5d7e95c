//! How contributions to one value are put together, which values are walked through, and what is refused.

use crate::differences::Check;
use crate::written::{Result, f32, linear, ops};
use kiln::grad::gradients;
use kiln::graph::{
    AdamAttrs, AttentionAttrs, Binary, Builder, Chain, CrossEntropyAttrs, DType, Graph, Op, Reduction, Ref, Step,
    TensorType, Unary, ValueId,
};

/// Ops of the backward pass of the sum of a value, by x.
fn backward(
    build: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId>,
) -> Result<std::collections::BTreeMap<&'static str, usize>> {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3, 12]))?;
    let y = build(&mut b, x)?;
    let loss = b.sum(y, &[0, 1, 2])?;
    b.output("loss", loss)?;
    let mut graph = b.finish()?;
    let before = graph.nodes().len();
    gradients(&mut graph, loss, &[x])?;
    graph.verify()?;
    let mut counts = std::collections::BTreeMap::new();
    for (_, node) in graph.nodes().skip(before) {
        *counts.entry(node.op.name()).or_insert(0) += 1;
    }
    Ok(counts)
}

#[test]
fn slices_that_cover_a_value_are_put_together_by_one_concat() -> Result {
    let parts = |order: [usize; 3]| {
        backward(move |b, x| {
            let mut product = None;
            for i in order {
                let part = b.slice(x, 2, 4 * i, 4)?;
                product = Some(match product {
                    None => part,
                    Some(p) => b.mul(p, part)?,
                });
            }
            Ok(product.ok_or("no part")?)
        })
    };
    for order in [[0, 1, 2], [2, 0, 1]] {
        let counts = parts(order)?;
        assert_eq!(counts.get("concat"), Some(&1), "{counts:?}");
        assert_eq!((counts.get("add"), counts.get("constant")), (None, Some(&1)), "{counts:?}");
    }
    Ok(())
}

#[test]
fn gaps_are_filled_with_zeros_and_overlaps_added() -> Result {
    let counts = backward(|b, x| {
        let (low, mid) = (b.slice(x, 2, 1, 4)?, b.slice(x, 2, 6, 4)?);
        let row = b.slice(x, 1, 0, 3)?;
        let row = b.slice(row, 2, 0, 4)?;
        let y = b.mul(low, mid)?;
        Ok(b.mul(y, row)?)
    })?;
    // low and mid between zeros; the row, within a slice of all, followed by zeros; their sum
    assert_eq!((counts.get("concat"), counts.get("add")), (Some(&2), Some(&1)), "{counts:?}");
    let mut c = Check::default();
    let x = c.x(&[3, 7]);
    let mut y = None;
    for (axis, start, len) in [(1, 0, 3), (1, 2, 3), (1, 4, 3), (1, 0, 3)] {
        let part = c.op(Op::Slice { axis, start, len }, &[x]);
        let part = c.op(Op::Unary(Unary::Exp), &[part]);
        y = Some(y.map_or(part, |y| c.op(Op::Binary(Binary::Mul), &[y, part])));
    }
    let whole = c.op(Op::Reduce { kind: Reduction::Mean, axes: vec![1], keepdim: true }, &[x]);
    let row = c.op(Op::Slice { axis: 0, start: 1, len: 1 }, &[x]);
    let row = c.op(Op::Slice { axis: 1, start: 1, len: 3 }, &[row]);
    let y = c.op(Op::Binary(Binary::Mul), &[y.unwrap(), whole]);
    let y = c.op(Op::Binary(Binary::Mul), &[y, row]);
    c.check("slices that overlap, along two axes, and a whole", y);
    Ok(())
}

#[test]
fn only_what_is_asked_for_is_walked() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3, 5]))?;
    let h = linear(&mut b, "first", x, 7, true)?;
    let h = b.relu(h)?;
    let y = linear(&mut b, "second", h, 3, true)?;
    let loss = b.sum(y, &[0, 1])?;
    b.output("loss", loss)?;
    let graph = b.finish()?;
    let of = |name: &str| graph.nodes().find(|(_, n)| n.name == name).map(|(id, _)| ValueId::from(id)).unwrap();
    let grown = |wrt: &[ValueId]| {
        let mut grown = graph.clone();
        let found = gradients(&mut grown, loss, wrt).unwrap();
        grown.verify().unwrap();
        let names: Vec<String> = grown.nodes().skip(graph.nodes().len()).map(|(_, n)| n.name.clone()).collect();
        (found, names, ops(&grown))
    };
    let (_, names, counts) = grown(&[of("second.bias")]);
    assert_eq!(names, ["grad.constant", "sum.grad.dx", "second.grad.db"]);
    assert_eq!(counts.get("linear_grad"), None);
    let (found, names, counts) = grown(&[h, of("second.weight")]);
    assert_eq!((counts["linear_grad"], counts["matmul"], counts.get("masked_fill")), (1, 1, None));
    assert_eq!(names[2..], ["second.grad.dw", "second.grad.dx"]);
    assert_eq!(found.len(), 2);
    // dW before dx, so that x is free when dx takes memory
    let (_, names, counts) = grown(&[of("first.weight"), of("first.bias")]);
    assert_eq!((counts["linear_grad"], counts["masked_fill"], counts["matmul"]), (1, 1, 1));
    assert_eq!(names.last().map(String::as_str), Some("first.grad.dw_db"));
    assert!(names.contains(&"relu.grad.dx".to_owned()), "{names:?}");
    Ok(())
}

#[test]
fn what_the_loss_does_not_depend_on_gets_zeros() -> Result {
    let mut c = Check::default();
    let (x, unread, later) = (c.x(&[3]), c.x(&[2, 5]), c.x(&[1]));
    let whole = c.op(Op::Cast(DType::I32), &[later]);
    let whole = c.op(Op::Cast(DType::F32), &[whole]);
    let y = c.op(Op::Binary(Binary::Mul), &[x, whole]);
    let loss = c.loss(y);
    c.op(Op::Binary(Binary::Add), &[loss, later]);
    let found = c.gradients(loss, &[0, 1, 2]);
    assert_eq!((found["x1"].data.as_slice(), found["x2"].data.as_slice()), (&[0.0; 10][..], &[0.0][..]));
    let mut graph = c.graph.clone();
    let before = graph.nodes().len();
    let found = gradients(&mut graph, loss, &[unread])?;
    assert_eq!(graph.nodes().len(), before + 1);
    assert_eq!(graph.producer(found[0]).name, "x1.grad");
    // the loss by itself
    let found = gradients(&mut graph, loss, &[loss])?;
    assert_eq!(graph.fill(found[0]), Some(1.0));
    Ok(())
}

/// The error of the gradient of the sum of one of an op's outputs by its input of this place.
fn refused(op: Op, inputs: &[TensorType], output: usize, by: usize) -> String {
    let mut graph = Graph::default();
    let inputs: Vec<ValueId> =
        inputs.iter().enumerate().map(|(i, ty)| graph.push_input(ty.clone(), format!("i{i}")).into()).collect();
    let node = graph.push(op, inputs.clone(), "here").unwrap();
    let value = ValueId { node, output };
    let axes = (0..graph.shape(value).rank()).collect();
    let loss = graph.push(Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, vec![value], "loss").unwrap();
    gradients(&mut graph, loss.into(), &[inputs[by]]).unwrap_err().to_string()
}

#[test]
fn errors_name_op_and_node_and_what_to_do() -> Result {
    let row = f32(&[2, 4]);
    let vector = || f32(&[4]);
    let add = Chain::of(2, Step::Binary(Binary::Add, Ref::Input(0), Ref::Input(1)));
    assert_eq!(
        refused(Op::Elementwise(add), &[row.clone(), row.clone()], 0, 1),
        "elementwise \"here\": a fused op has no gradient; differentiate the graph before it is fused"
    );
    assert_eq!(
        refused(Op::AddLayerNorm(0.1.into()), &[row.clone(), row.clone(), vector(), vector()], 1, 0),
        "add_layernorm \"here\": a fused op has no gradient; differentiate the graph before it is fused"
    );
    let matmul = Op::FusedMatmul { transpose_a: false, transpose_b: true, epilogue: Chain::identity() };
    assert_eq!(
        refused(matmul, &[row.clone(), row.clone()], 0, 0),
        "fused_matmul \"here\": a fused op has no gradient; differentiate the graph before it is fused"
    );
    assert_eq!(
        refused(Op::SoftmaxGrad(1), &[row.clone(), row.clone()], 0, 1),
        "softmax_grad \"here\": a gradient has no gradient of its own; differentiate once, from a loss of forward values"
    );
    let [beta1, beta2, eps, weight_decay] = [0.9, 0.9, 0.1, 0.0].map(|v: f32| v.into());
    let adam = AdamAttrs { beta1, beta2, eps, weight_decay, decoupled: false, narrow: false };
    assert_eq!(
        refused(Op::Adam(adam), &[vector(), vector(), vector(), vector(), f32(&[3])], 0, 3),
        "adam \"here\": an optimiser's step has no gradient; take the loss from values before it"
    );
    assert_eq!(
        refused(Op::Magnitude, &[vector(), row.clone()], 0, 0),
        "magnitude \"here\": it is for looking at gradients; in a loss use absmax of each value"
    );
    for (op, inputs) in [
        (Op::LayerNorm(0.1.into()), vec![row.clone(), vector(), vector()]),
        (Op::RmsNorm(0.1.into()), vec![row.clone(), vector()]),
    ] {
        let name = op.name();
        assert_eq!(
            refused(op, &inputs, 1, 0),
            format!(
                "{name} \"here\": its row statistics carry no gradient; compute them with mean over the last axis \
                 where a loss needs them"
            )
        );
    }
    let lse = "its log-sum-exp carries no gradient; compute it with exp, sum and log where a loss needs it";
    let attrs = CrossEntropyAttrs { axis: 1, ignore_index: None, label_smoothing: 0.0.into() };
    let targets = TensorType::new(DType::I32, [2]);
    assert_eq!(
        refused(Op::CrossEntropy(attrs), &[row.clone(), targets], 1, 0),
        format!("cross_entropy \"here\": {lse}")
    );
    let cube = f32(&[1, 3, 4]);
    let attrs =
        AttentionAttrs { heads: 2, scale: 1.0.into(), causal: false, mask: true, lengths: false, dropout: None };
    let inputs = [cube.clone(), cube.clone(), cube.clone(), f32(&[3, 3])];
    assert_eq!(refused(Op::Attention(attrs), &inputs, 1, 0), format!("attention \"here\": {lse}"));
    assert_eq!(
        refused(Op::Attention(attrs), &inputs, 0, 3),
        "attention \"here\": its additive mask has no gradient; ask for none of what the mask is computed from, or \
         write the attention out with matmul and softmax"
    );

    let mut b = Builder::new();
    let x = b.input("x", f32(&[2]))?;
    let index = b.input("index", TensorType::new(DType::I32, [2]))?;
    let y = b.scope("head", |b| b.relu(x))?;
    let loss = b.sum(y, &[0])?;
    let mut graph = b.finish()?;
    assert_eq!(
        gradients(&mut graph, y, &[x]).unwrap_err().to_string(),
        "loss \"head.relu\" is f32 (2), expected f32 (); reduce it with sum or mean over all its axes"
    );
    assert_eq!(
        gradients(&mut graph, loss, &[x, index]).unwrap_err().to_string(),
        "\"index\" is i32 (2), but only f32 and f16 values have gradients; ask for those it is computed from"
    );
    Ok(())
}
