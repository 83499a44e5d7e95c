//! In: graphs as written or lifted; out: what fuse makes of them, printed and evaluated.

mod folds;
#[path = "../written/mod.rs"]
mod written;

use kiln::Error;
use kiln::caps::DeviceCaps;
use kiln::fuse::{FuseLimits, fuse};
use kiln::graph::{
    Binary, Builder, Chain, Comparison, DType, Graph, Op, Reduction, Ref, Step, TensorType, Unary, ValueId,
};
use kiln::lift::lift;
use kiln::reference::evaluate;
use kiln::select::SelectError;
use kiln::session::{CompileOptions, Mode, compile};
use kiln::tensor::Tensor;
use written::{Result, Sizes, TINY, dnn, f32, gptlite, linear, ops, same_numbers};

/// Fuses with the usual limits, and checks that the numbers stay, in f16 bit for bit.
fn fused(graph: &Graph) -> Result<(Graph, String)> {
    fused_within(graph, &FuseLimits::default())
}

fn fused_within(graph: &Graph, limits: &FuseLimits) -> Result<(Graph, String)> {
    let (fused, report) = fuse(graph, limits)?;
    fused.verify()?;
    same_numbers(graph, &fused, 3, 0.0)?;
    for (_, node) in fused.nodes().filter(|(_, n)| matches!(n.op, Op::Elementwise(_) | Op::FusedMatmul { .. })) {
        assert!(node.inputs.len() <= limits.max_inputs, "{} reads {} values", node.name, node.inputs.len());
    }
    Ok((fused, report.to_string()))
}

#[test]
fn the_seeds_block_is_lifted_and_fused() -> Result {
    let graph = gptlite(TINY)?;
    let (lifted, _) = lift(&graph)?;
    let (fused, report) = fused(&lifted)?;
    same_numbers(&graph, &fused, 5, 1e-12)?;
    insta::assert_snapshot!(fused, @r"
    %0 = input [] : i32 (2, 5)  # tokens
    %1 = parameter [] : f32 (7, 6)  # tok.weight
    %2 = embedding [%1, %0] : f32 (2, 5, 6)  # embedding
    %3 = parameter [] : f32 (8, 6)  # pos.weight
    %4 = slice(axis 0, 0..5) [%3] : f32 (5, 6)  # embedding
    %5 = parameter [] : f32 (6)  # blocks.0.ln1.weight
    %6 = parameter [] : f32 (6)  # blocks.0.ln1.bias
    %7 = add_layernorm(eps 0.00001) [%2, %4, %5, %6] : f32 (2, 5, 6), f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # blocks.0.ln1.layernorm
    %8 = parameter [] : f32 (18, 6)  # blocks.0.sa.qkv.weight
    %9 = linear [%7.1, %8] : f32 (2, 5, 18)  # blocks.0.sa.qkv
    %10 = slice(axis 2, 0..6) [%9] : f32 (2, 5, 6)  # blocks.0.sa.q
    %11 = slice(axis 2, 6..12) [%9] : f32 (2, 5, 6)  # blocks.0.sa.k
    %12 = slice(axis 2, 12..18) [%9] : f32 (2, 5, 6)  # blocks.0.sa.v
    %13 = attention(3 heads, scale 0.4082483, causal) [%10, %11, %12] : f32 (2, 5, 6), f32 (2, 3, 5)  # blocks.0.sa.attention
    %14 = parameter [] : f32 (6, 6)  # blocks.0.sa.proj.weight
    %15 = parameter [] : f32 (6)  # blocks.0.sa.proj.bias
    %16 = fused_matmul(a, bᵀ; t0 = add(i0, i1); t1 = add(i2, t0)) [%13, %14, %15, %7] : f32 (2, 5, 6)  # blocks.0.sa.proj
    %17 = parameter [] : f32 (6)  # blocks.0.ln2.weight
    %18 = parameter [] : f32 (6)  # blocks.0.ln2.bias
    %19 = layernorm(eps 0.00001) [%16, %17, %18] : f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # blocks.0.ln2.layernorm
    %20 = parameter [] : f32 (24, 6)  # blocks.0.ffwd.net.0.weight
    %21 = parameter [] : f32 (24)  # blocks.0.ffwd.net.0.bias
    %22 = fused_matmul(a, bᵀ; t0 = add(i0, i1); t1 = relu(t0)) [%19, %20, %21] : f32 (2, 5, 24)  # blocks.0.ffwd.net.0
    %23 = parameter [] : f32 (6, 24)  # blocks.0.ffwd.net.2.weight
    %24 = parameter [] : f32 (6)  # blocks.0.ffwd.net.2.bias
    %25 = fused_matmul(a, bᵀ; t0 = add(i0, i1); t1 = add(i2, t0)) [%22, %23, %24, %16] : f32 (2, 5, 6)  # blocks.0.ffwd.net.2
    %26 = parameter [] : f32 (6)  # ln.weight
    %27 = parameter [] : f32 (6)  # ln.bias
    %28 = layernorm(eps 0.00001) [%25, %26, %27] : f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # ln.layernorm
    %29 = parameter [] : f32 (7, 6)  # lm_head.weight
    %30 = parameter [] : f32 (7)  # lm_head.bias
    %31 = fused_matmul(a, bᵀ; t0 = add(i0, i1)) [%28, %29, %30] : f32 (2, 5, 7)  # lm_head
    output logits = %31
    ");
    insta::assert_snapshot!(report, @r"
    epilogues: blocks.0.sa.proj: matmul + bias + residual in one kernel
    epilogues: blocks.0.ffwd.net.0: matmul + bias + relu in one kernel
    epilogues: blocks.0.ffwd.net.2: matmul + bias + residual in one kernel
    epilogues: lm_head: matmul + bias in one kernel
    add_layernorm: blocks.0.ln1.layernorm: residual + layernorm in one kernel
    ");
    let expected = [
        ("add_layernorm", 1), // block 0's first, on the sum of the embeddings
        ("attention", 1),
        ("embedding", 1),
        ("fused_matmul", 4), // proj, two of ffwd, lm_head
        ("layernorm", 2),
        ("linear", 1), // qkv
        ("slice", 4),  // q, k, v and the positions
    ];
    assert_eq!(ops(&fused), expected.into());
    Ok(())
}

#[test]
fn the_seeds_block_in_f16_rounds_where_it_stored() -> Result {
    let graph = gptlite(Sizes { dtype: DType::F16, blocks: 2, ..TINY })?;
    fused(&graph)?;
    fused(&lift(&graph)?.0)?;
    Ok(())
}

#[test]
fn a_dnn_layer_is_one_op() -> Result {
    let (graph, report) = fused(&dnn(3, &[4, 5, 2])?)?;
    assert_eq!(ops(&graph), [("fused_matmul", 2)].into());
    assert_eq!(
        report,
        "epilogues: layers.0: matmul + bias + relu in one kernel\n\
         epilogues: layers.1: matmul + bias + relu in one kernel\n"
    );
    Ok(())
}

#[test]
fn equal_masks_are_computed_once_and_inputs_are_never_merged() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[4, 4]))?;
    let y = b.input("y", f32(&[4, 4]))?;
    for (name, value) in [("x", x), ("y", y)] {
        let mask = b.causal_mask(4, 4)?;
        let masked = b.masked_fill(value, mask, -1.0)?;
        b.output(name, masked)?;
    }
    let (graph, report) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("causal_mask", 1), ("masked_fill", 2)].into());
    assert_eq!(graph.inputs().count(), 2);
    assert_eq!(report, "cse: causal_mask: 2 equal nodes → one\n");
    Ok(())
}

#[test]
fn e08_a_sum_of_a_softmax_is_no_constant() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let p = b.softmax(x, 1)?;
    let y = b.sum(p, &[1])?;
    b.output("y", y)?;
    let (graph, _) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("softmax", 1), ("sum", 1)].into());
    let x = Tensor::f32([2, 3], &[1.0, f32::NAN, 2.0, 3.0, 1.0, 2.0]);
    let y = &evaluate(&graph, &Default::default(), &[("x".to_owned(), x)].into())?["y"];
    assert!(y.data[0].is_nan() && (y.data[1] - 1.0).abs() < 1e-6);
    Ok(())
}

#[test]
fn e12_twelve_inputs_are_split_in_two() -> Result {
    let mut b = Builder::new();
    let inputs: Vec<ValueId> =
        (0..12).map(|i| b.input(&format!("x{i}"), f32(&[2, 3]))).collect::<std::result::Result<_, _>>()?;
    let mut sum = inputs[0];
    for x in &inputs[1..] {
        sum = b.add(sum, *x)?;
    }
    b.output("sum", sum)?;
    let graph = b.finish()?;
    assert_eq!(ops(&fused(&graph)?.0), [("elementwise", 2)].into());
    assert_eq!(ops(&fused_within(&graph, &FuseLimits { max_inputs: 12 })?.0), [("elementwise", 1)].into());
    assert_eq!(ops(&fused_within(&graph, &FuseLimits { max_inputs: 2 })?.0), [("add", 11)].into());
    Ok(())
}

#[test]
fn an_epilogue_keeps_to_the_operands_of_a_dispatch() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let mut y = linear(&mut b, "l", x, 4, true)?;
    for i in 0..7 {
        let other = b.input(&format!("r{i}"), f32(&[2, 4]))?;
        y = b.add(y, other)?;
    }
    b.output("y", y)?;
    let graph = b.finish()?;
    let (after, report) = fused(&graph)?;
    assert_eq!(ops(&after), [("elementwise", 1), ("fused_matmul", 1)].into());
    let residuals = " + residual".repeat(4);
    assert!(report.contains(&format!("l: matmul + bias{residuals} in one kernel")), "{report}");
    assert_eq!(ops(&fused_within(&graph, &FuseLimits { max_inputs: 2 })?.0)["linear"], 1);
    Ok(())
}

#[test]
fn of_two_products_the_later_absorbs_their_sum() -> Result {
    let mut b = Builder::new();
    let p = b.input("p", f32(&[4, 3]))?;
    let q = b.input("q", f32(&[3, 2]))?;
    let r = b.input("r", f32(&[5, 4]))?;
    let s = b.input("s", f32(&[2, 5]))?;
    let first = b.matmul(p, q)?; // (4, 2)
    let first = b.relu(first)?;
    let second = b.scope("second", |b| b.matmul_transposed(r, true, s, true))?; // (4, 2)
    let sum = b.add(first, second)?;
    b.output("sum", sum)?;
    let (graph, report) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("fused_matmul", 2)].into());
    assert_eq!(
        report,
        "epilogues: matmul: matmul + relu in one kernel\n\
         epilogues: second.matmul: matmul + residual in one kernel\n"
    );
    Ok(())
}

#[test]
fn a_product_that_is_read_twice_or_given_back_keeps_its_own_op() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let given = linear(&mut b, "given", x, 3, false)?;
    let y = b.relu(given)?;
    let twice = linear(&mut b, "twice", y, 3, false)?;
    let gate = b.unary(Unary::Sigmoid, twice)?;
    let y = b.mul(twice, gate)?;
    // stretched by the add, so the sum is no epilogue
    let row = linear(&mut b, "row", x, 3, false)?;
    let row = b.reshape(row, [2, 1, 3])?;
    let wide = b.add(row, y)?;
    b.output("given", given)?;
    b.output("y", wide)?;
    let (graph, _) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("add", 1), ("elementwise", 1), ("linear", 3), ("relu", 1), ("reshape", 1)].into());
    Ok(())
}

#[test]
fn chains_hold_numbers_masks_and_shared_parts() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 4]))?;
    let row = b.input("row", f32(&[4]))?;
    let half = b.constant(0.5, f32(&[]))?;
    let mask = b.causal_mask(2, 4)?;
    // stays apart: stretched over the rows of x
    let bent = b.unary(Unary::Tanh, row)?;
    let bent = b.unary(Unary::Exp, bent)?;
    let y = b.add(x, bent)?;
    let gate = b.unary(Unary::Sigmoid, y)?;
    let y = b.mul(y, gate)?;
    let y = b.binary(Binary::Max, half, y)?;
    let y = b.masked_fill(y, mask, -2.0)?;
    b.output("y", y)?;
    let (graph, report) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (2, 4)  # x
    %1 = input [] : f32 (4)  # row
    %2 = causal_mask [] : bool (2, 4)  # causal_mask
    %3 = elementwise(t0 = tanh(i0); t1 = exp(t0)) [%1] : f32 (4)  # exp
    %4 = elementwise(t0 = add(i0, i1); t1 = sigmoid(t0); t2 = mul(t0, t1); t3 = 0.5; t4 = max(t3, t2); t5 = -2; t6 = select(i2, t5, t4)) [%0, %3, %2] : f32 (2, 4)  # masked_fill
    output y = %4
    ");
    insta::assert_snapshot!(report, @r"
    chains: exp: tanh + exp in one kernel
    chains: masked_fill: add + sigmoid + mul + max + masked_fill in one kernel
    ");
    Ok(())
}

#[test]
fn numbers_that_make_up_a_shape_stay_inputs() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3]))?;
    let mask = b.causal_mask(2, 3)?;
    let ones = b.constant(1.0, f32(&[2, 3]))?;
    let zeros = b.constant(0.0, TensorType::new(DType::F16, [2, 3]))?;
    let halves = b.constant(0.5, TensorType::new(DType::F16, [2, 3]))?;
    let wide = b.add(x, ones)?;
    let wide = b.relu(wide)?;
    let picked = b.select(mask, zeros, halves)?;
    let picked = b.unary(Unary::Exp, picked)?;
    b.output("wide", wide)?;
    b.output("picked", picked)?;
    let (graph, _) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("causal_mask", 1), ("constant", 3), ("elementwise", 2)].into());
    Ok(())
}

#[test]
fn chains_in_f16_round_where_a_value_was_stored() -> Result {
    let f16 = |dims: &[usize]| TensorType::new(DType::F16, dims);
    let mut b = Builder::new();
    let x = b.input("x", f16(&[3, 4]))?;
    let w = b.input("w", f32(&[3, 4]))?;
    let third = b.constant(1.0 / 3.0, f16(&[]))?;
    let y = b.mul(x, third)?;
    let y = b.relu(y)?;
    let y = b.scale(y, 0.1)?;
    let y = b.cast(y, DType::F32)?;
    let y = b.mul(y, w)?;
    b.output("wide", y)?;
    let back = b.cast(w, DType::F16)?;
    let back = b.add(back, x)?;
    let back = b.unary(Unary::Exp, back)?;
    b.output("narrow", back)?;
    let (graph, _) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f16 (3, 4)  # x
    %1 = input [] : f32 (3, 4)  # w
    %2 = elementwise(t0 = 0.33325195; t1 = mul(i1, t0); t2 = f16(t1); t3 = relu(t2); t4 = scale(t3, 0.1); t5 = f16(t4); t6 = mul(t5, i0)) [%1, %0] : f32 (3, 4)  # mul
    %3 = elementwise(t0 = f16(i1); t1 = add(t0, i0); t2 = f16(t1); t3 = exp(t2)) [%0, %1] : f16 (3, 4)  # exp
    output wide = %2
    output narrow = %3
    ");
    Ok(())
}

#[test]
fn integers_are_not_fused() -> Result {
    let mut b = Builder::new();
    let i = b.input("i", TensorType::new(DType::I32, [3]))?;
    let j = b.add(i, i)?;
    let j = b.mul(j, i)?;
    b.output("j", j)?;
    let graph = b.finish()?;
    assert_eq!(fused(&graph)?.0, graph);
    Ok(())
}

#[test]
fn a_sum_that_others_read_before_its_norm_comes_out_of_the_norm() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3, 4]))?;
    let rows = b.input("rows", f32(&[3, 4]))?;
    let sum = b.add(rows, x)?;
    let top = b.max(sum, &[2])?;
    let normed = written::layernorm(&mut b, "ln", sum)?;
    let again = written::layernorm(&mut b, "other", sum)?;
    // stretched in the middle: no residual
    let column = b.input("column", f32(&[3, 1]))?;
    let stretched = b.add(x, column)?;
    let apart = written::layernorm(&mut b, "apart", stretched)?;
    for (name, value) in [("sum", sum), ("top", top), ("normed", normed), ("again", again), ("apart", apart)] {
        b.output(name, value)?;
    }
    let graph = b.finish()?;
    let (after, report) = fused(&graph)?;
    assert_eq!(ops(&after), [("add", 1), ("add_layernorm", 1), ("layernorm", 2), ("max", 1)].into());
    assert_eq!(report, "add_layernorm: ln.layernorm: residual + layernorm in one kernel\n");
    // four operands and four results are eight buffers
    let (after, _) = fused_within(&graph, &FuseLimits { max_inputs: 6 })?;
    assert_eq!(ops(&after).get("add_layernorm"), None);
    Ok(())
}

#[test]
fn the_gradient_of_a_norm_in_a_residual_adds_the_other_s() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3, 4]))?;
    let normed = written::layernorm(&mut b, "ln", x)?;
    let rows = b.relu(normed)?;
    let sum = b.add(x, rows)?;
    let squares = b.mul(sum, sum)?;
    let loss = b.sum(squares, &[0, 1])?;
    b.output("loss", loss)?;
    let graph = kiln::lift::lift(&b.finish()?)?.0;
    let loss = graph.outputs()[0].value;
    let mut graph = graph;
    let dx = kiln::gradients(&mut graph, loss, &[ValueId::from(kiln::graph::NodeId(0))])?[0];
    graph.push_output("dx", dx, Default::default())?;
    let gradient = |graph: &Graph| {
        let is = |n: &kiln::graph::Node| n.op == Op::LayerNormGrad;
        graph.nodes().filter(|(_, n)| is(n)).map(|(_, n)| n.inputs.len()).collect::<Vec<_>>()
    };
    assert_eq!(gradient(&graph), [5]);
    let (after, report) = fused(&graph)?;
    assert_eq!(gradient(&after), [6]);
    assert!(report.contains("add_norm_grad: ln.layernorm.grad.dx: gradient + residual in one kernel\n"), "{report}");
    // six operands and the result are seven buffers
    let (after, _) = fused_within(&graph, &FuseLimits { max_inputs: 5 })?;
    assert_eq!(gradient(&after), [5]);
    Ok(())
}

#[test]
fn fused_ops_that_kernels_do_not_know_are_refused() {
    let refused = |op: Op, types: &[TensorType]| {
        let mut b = Builder::new();
        let inputs: Vec<ValueId> =
            types.iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), ty.clone()).unwrap()).collect();
        b.op(op, &inputs).unwrap_err().to_string()
    };
    let vector = || f32(&[4]);
    for (a, b) in [(&[4, 4][..], &[4, 1][..]), (&[2, 3, 4], &[2, 1, 4])] {
        let error = refused(Op::AddLayerNorm(1e-5.into()), &[f32(a), f32(b), vector(), vector()]);
        assert!(error.contains("the second is one number or has the last dimensions of the first"), "{error}");
    }
    let (one, i0) = (Ref::Step(0), Ref::Input(0));
    let none = Chain { arity: 0, steps: vec![Step::Const(1.0.into())] };
    let chosen = Chain { arity: 1, steps: vec![Step::Const(1.0.into()), Step::Select(i0, one, one)] };
    for (epilogue, types) in [(none, &[f32(&[2, 4])][..]), (chosen, &[f32(&[2, 4]), f32(&[2, 4])])] {
        let error = refused(Op::FusedMatmul { transpose_a: false, transpose_b: true, epilogue }, types);
        assert!(error.contains("expected the product as its first input, a number"), "{error}");
    }
    // a condition is no number
    let steps = vec![Step::Const(1.0.into()), Step::Select(i0, one, one), Step::Binary(Binary::Mul, Ref::Step(1), i0)];
    let error = refused(Op::Elementwise(Chain { arity: 1, steps }), &[TensorType::new(DType::Bool, [3])]);
    assert!(error.contains("expected inputs and comparisons as conditions, and these nowhere else"), "{error}");
}

#[test]
fn a_chain_that_rounds_to_f16_needs_a_device_that_has_it() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[4]))?;
    let half = b.cast(x, DType::F16)?;
    let y = b.cast(half, DType::F32)?;
    b.output("y", y)?;
    let graph = b.finish()?;
    for mode in [Mode::Eager, Mode::Fused] {
        let error = compile(&graph, &DeviceCaps::PORTABLE, &CompileOptions::mode(mode)).err();
        assert!(matches!(error, Some(Error::Select(SelectError::NoF16 { .. }))), "{mode}: {error:?}");
    }
    Ok(())
}

#[test]
fn reductions_are_left_alone() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let mean = b.reduce(Reduction::Mean, x, &[1], true)?;
    let y = b.sub(x, mean)?;
    b.output("y", y)?;
    let graph = b.finish()?;
    assert_eq!(fused(&graph)?.0, graph);
    Ok(())
}

#[test]
fn comparisons_are_fused_as_conditions() -> Result {
    let mut b = Builder::new();
    let y = b.input("y", f32(&[2, 4]))?;
    let dy = b.input("dy", f32(&[2, 4]))?;
    let zero = b.constant(0.0, f32(&[]))?;
    let flat = b.compare(Comparison::LessEqual, y, zero)?;
    let dx = b.masked_fill(dy, flat, 0.0)?;
    let more = b.compare(Comparison::Less, dx, y)?;
    let dx = b.select(more, y, dx)?;
    b.output("dx", dx)?;
    let (graph, report) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (2, 4)  # y
    %1 = input [] : f32 (2, 4)  # dy
    %2 = elementwise(t0 = 0; t1 = less_equal(i0, t0); t2 = 0; t3 = select(t1, t2, i1); t4 = less(t3, i0); t5 = select(t4, i0, t3)) [%0, %1] : f32 (2, 4)  # where
    output dx = %2
    ");
    assert_eq!(report, "chains: where: less_equal + masked_fill + less + where in one kernel\n");
    Ok(())
}

#[test]
fn a_product_s_epilogue_compares_for_itself() -> Result {
    let mut b = Builder::new();
    let dy = b.input("dy", f32(&[3, 2]))?;
    let w = b.input("w", f32(&[2, 4]))?;
    let y = b.input("y", f32(&[3, 4]))?;
    let row = b.input("row", f32(&[4]))?;
    let v = b.input("v", f32(&[2, 4]))?;
    let flat = b.compare(Comparison::LessEqual, y, row)?;
    let dx = b.matmul(dy, w)?;
    let dx = b.masked_fill(dx, flat, 0.0)?;
    let small = b.compare(Comparison::Less, y, row)?;
    let other = b.scope("other", |b| b.matmul(dy, v))?;
    let other = b.select(small, row, other)?;
    b.output("dx", dx)?;
    b.output("other", other)?;
    b.output("small", small)?;
    let (graph, report) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (3, 2)  # dy
    %1 = input [] : f32 (2, 4)  # w
    %2 = input [] : f32 (3, 4)  # y
    %3 = input [] : f32 (4)  # row
    %4 = input [] : f32 (2, 4)  # v
    %5 = fused_matmul(a, b; t0 = less_equal(i1, i2); t1 = 0; t2 = select(t0, t1, i0)) [%0, %1, %2, %3] : f32 (3, 4)  # matmul
    %6 = less [%2, %3] : bool (3, 4)  # less
    %7 = fused_matmul(a, b; t0 = select(i1, i2, i0)) [%0, %4, %6, %3] : f32 (3, 4)  # other.matmul
    output dx = %5
    output other = %7
    output small = %6
    ");
    insta::assert_snapshot!(report, @r"
    epilogues: matmul: matmul + masked_fill in one kernel
    epilogues: other.matmul: matmul + where in one kernel
    ");
    Ok(())
}

#[test]
fn comparisons_that_a_chain_cannot_hold_stay() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 4]))?;
    let row = b.input("row", f32(&[4]))?;
    let index = b.input("index", TensorType::new(DType::I32, [2, 4]))?;
    // read twice by two that are not one chain, given back, of integers, and stretched
    let twice = b.compare(Comparison::Less, x, row)?;
    let (a, c) = (b.select(twice, x, row)?, b.select(twice, row, x)?);
    let given = b.compare(Comparison::Equal, x, row)?;
    let d = b.select(given, x, row)?;
    let whole = b.compare(Comparison::LessEqual, index, index)?;
    let e = b.select(whole, x, row)?;
    let narrow = b.compare(Comparison::Less, row, row)?;
    let f = b.masked_fill(x, narrow, 1.0)?;
    for (name, value) in [("a", a), ("c", c), ("d", d), ("given", given), ("e", e), ("f", f)] {
        b.output(name, value)?;
    }
    let (graph, _) = fused(&b.finish()?)?;
    assert_eq!(ops(&graph), [("equal", 1), ("less", 2), ("less_equal", 1), ("masked_fill", 1), ("where", 4)].into());
    Ok(())
}

#[test]
fn comparisons_in_f16_see_what_was_stored() -> Result {
    let f16 = |dims: &[usize]| TensorType::new(DType::F16, dims);
    let mut b = Builder::new();
    let x = b.input("x", f16(&[3, 4]))?;
    let y = b.unary(Unary::Tanh, x)?;
    let third = b.constant(1.0 / 3.0, f16(&[]))?;
    let above = b.compare(Comparison::Less, third, y)?;
    let y = b.select(above, x, y)?;
    b.output("y", y)?;
    let (graph, _) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f16 (3, 4)  # x
    %1 = elementwise(t0 = tanh(i0); t1 = f16(t0); t2 = 0.33325195; t3 = less(t2, t1); t4 = select(t3, i0, t1)) [%0] : f16 (3, 4)  # where
    output y = %1
    ");
    Ok(())
}

#[test]
fn a_comparison_in_a_chain_is_a_condition_and_nothing_else() {
    let (i0, i1) = (Ref::Input(0), Ref::Input(1));
    let compare = Step::Compare(Comparison::Less, i0, i1);
    let refused = |steps: &[Step]| {
        let mut graph = Graph::default();
        let inputs: Vec<ValueId> = ["a", "b"].map(|name| graph.push_input(f32(&[2]), name).into()).to_vec();
        let chain = Chain { arity: 2, steps: steps.to_vec() };
        graph.push(Op::Elementwise(chain), inputs, "here").err().map(|e| e.to_string())
    };
    let add = Step::Binary(Binary::Add, i0, Ref::Step(0));
    let select = |cond, a| Step::Select(cond, a, i1);
    assert_eq!(refused(&[compare, select(Ref::Step(0), i0)]), None);
    for steps in [
        &[compare][..],
        &[compare, add],
        &[compare, select(Ref::Step(0), Ref::Step(0))],
        &[add_inputs(), select(Ref::Step(0), i0)],
    ] {
        let error = refused(steps).unwrap_or_default();
        assert!(
            error.starts_with(
                "elementwise \"here\": chain: expected inputs and comparisons as conditions, and these nowhere \
                 else, got t0 = "
            ),
            "{error}"
        );
    }
}

fn add_inputs() -> Step {
    Step::Binary(Binary::Add, Ref::Input(0), Ref::Input(1))
}
