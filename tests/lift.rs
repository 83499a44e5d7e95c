//! In: graphs as written; out: what lift makes of them, printed and evaluated.

mod written;

use kiln::graph::{Binary, Builder, DType, Graph, GraphError, Op, Reduction, TensorType, Unary, ValueId};
use kiln::lift::{LiftLimits, lift, lift_within};
use written::{Result, TINY, f32, gptlite, linear, ops, same_numbers};

/// Lifts, and checks that the numbers stay.
fn lifted(graph: &Graph) -> Result<(Graph, String)> {
    let (lifted, report) = lift(graph)?;
    lifted.verify()?;
    same_numbers(graph, &lifted, 7, 1e-12)?;
    Ok((lifted, report.to_string()))
}

#[test]
fn the_seeds_block_has_one_qkv_linear_and_one_attention() -> Result {
    let (graph, report) = lifted(&gptlite(TINY)?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : i32 (2, 5)  # tokens
    %1 = parameter [] : f32 (7, 6)  # tok.weight
    %2 = embedding [%1, %0] : f32 (2, 5, 6)  # embedding
    %3 = parameter [] : f32 (8, 6)  # pos.weight
    %4 = slice(axis 0, 0..5) [%3] : f32 (5, 6)  # embedding
    %5 = add [%2, %4] : f32 (2, 5, 6)  # add
    %6 = parameter [] : f32 (6)  # blocks.0.ln1.weight
    %7 = parameter [] : f32 (6)  # blocks.0.ln1.bias
    %8 = layernorm(eps 0.00001) [%5, %6, %7] : f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # blocks.0.ln1.layernorm
    %9 = parameter [] : f32 (18, 6)  # blocks.0.sa.qkv.weight
    %10 = linear [%8, %9] : f32 (2, 5, 18)  # blocks.0.sa.qkv
    %11 = slice(axis 2, 0..6) [%10] : f32 (2, 5, 6)  # blocks.0.sa.q
    %12 = slice(axis 2, 6..12) [%10] : f32 (2, 5, 6)  # blocks.0.sa.k
    %13 = slice(axis 2, 12..18) [%10] : f32 (2, 5, 6)  # blocks.0.sa.v
    %14 = attention(3 heads, scale 0.4082483, causal) [%11, %12, %13] : f32 (2, 5, 6), f32 (2, 3, 5)  # blocks.0.sa.attention
    %15 = parameter [] : f32 (6, 6)  # blocks.0.sa.proj.weight
    %16 = parameter [] : f32 (6)  # blocks.0.sa.proj.bias
    %17 = linear [%14, %15, %16] : f32 (2, 5, 6)  # blocks.0.sa.proj
    %18 = add [%5, %17] : f32 (2, 5, 6)  # blocks.0.add
    %19 = parameter [] : f32 (6)  # blocks.0.ln2.weight
    %20 = parameter [] : f32 (6)  # blocks.0.ln2.bias
    %21 = layernorm(eps 0.00001) [%18, %19, %20] : f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # blocks.0.ln2.layernorm
    %22 = parameter [] : f32 (24, 6)  # blocks.0.ffwd.net.0.weight
    %23 = parameter [] : f32 (24)  # blocks.0.ffwd.net.0.bias
    %24 = linear [%21, %22, %23] : f32 (2, 5, 24)  # blocks.0.ffwd.net.0
    %25 = relu [%24] : f32 (2, 5, 24)  # blocks.0.relu
    %26 = parameter [] : f32 (6, 24)  # blocks.0.ffwd.net.2.weight
    %27 = parameter [] : f32 (6)  # blocks.0.ffwd.net.2.bias
    %28 = linear [%25, %26, %27] : f32 (2, 5, 6)  # blocks.0.ffwd.net.2
    %29 = add [%18, %28] : f32 (2, 5, 6)  # blocks.0.add
    %30 = parameter [] : f32 (6)  # ln.weight
    %31 = parameter [] : f32 (6)  # ln.bias
    %32 = layernorm(eps 0.00001) [%29, %30, %31] : f32 (2, 5, 6), f32 (2, 5), f32 (2, 5)  # ln.layernorm
    %33 = parameter [] : f32 (7, 6)  # lm_head.weight
    %34 = parameter [] : f32 (7)  # lm_head.bias
    %35 = linear [%32, %33, %34] : f32 (2, 5, 7)  # lm_head
    output logits = %35
    ");
    insta::assert_snapshot!(report, @r"
    attention: blocks.0.sa.attention: 3 heads → one causal attention
    linears: blocks.0.sa.qkv: 9 linears on one input → one
    slices: blocks.0.sa.q: concat of 3 parts → 1
    slices: blocks.0.sa.k: concat of 3 parts → 1
    slices: blocks.0.sa.v: concat of 3 parts → 1
    positions: embedding: rows in order → the table's first rows
    ");
    let packed = graph.layout.iter().find(|(_, s)| s.parts.len() > 1).map(|(_, s)| s);
    let parts: Vec<&str> = packed.map_or(vec![], |s| s.parts.iter().map(|p| p.name.as_str()).collect());
    let in_order: Vec<String> = ["query", "key", "value"]
        .iter()
        .flat_map(|kind| (0..3).map(move |h| format!("blocks.0.sa.heads.{h}.{kind}.weight")))
        .collect();
    assert_eq!(parts, in_order);
    Ok(())
}

/// What a head may do otherwise than the seed.
#[derive(Clone, Copy, Default)]
struct Variant {
    permuted_keys: bool,
    scale: Option<fn(&mut Builder, ValueId) -> Value>,
    scale_after_mask: bool,
    fill: Option<f32>,
    show: Option<Shown>,
}

#[derive(Clone, Copy, PartialEq)]
enum Shown {
    Scores,
    Weights,
}

type Value = std::result::Result<ValueId, GraphError>;

/// A head over inputs of its own, keys longer than queries.
fn head(b: &mut Builder, name: &str, size: usize, v: Variant) -> Value {
    let q = b.input(&format!("{name}.q"), f32(&[2, 3, size]))?;
    let k = b.input(&format!("{name}.k"), f32(&[2, 4, size]))?;
    let value = b.input(&format!("{name}.v"), f32(&[2, 4, size]))?;
    let mut x = if v.permuted_keys {
        let k = b.permute(k, &[0, 2, 1])?;
        b.matmul(q, k)?
    } else {
        b.matmul_transposed(q, false, k, true)?
    };
    if v.show == Some(Shown::Scores) {
        b.output("scores", x)?;
    }
    if let Some(scale) = v.scale.filter(|_| !v.scale_after_mask) {
        x = scale(b, x)?;
    }
    if let Some(fill) = v.fill {
        let mask = b.causal_mask(3, 4)?;
        x = b.masked_fill(x, mask, fill)?;
    }
    if let Some(scale) = v.scale.filter(|_| v.scale_after_mask) {
        x = scale(b, x)?;
    }
    let weights = b.softmax(x, 2)?;
    if v.show == Some(Shown::Weights) {
        b.output("weights", weights)?;
    }
    b.matmul(weights, value)
}

fn heads(sizes: &[usize], variants: &[Variant]) -> std::result::Result<Graph, GraphError> {
    let mut b = Builder::new();
    let mut heads = Vec::new();
    for (i, v) in variants.iter().enumerate() {
        heads.push(head(&mut b, &format!("h{i}"), sizes[i], *v)?);
    }
    let y = if heads.len() == 1 { heads[0] } else { b.concat(&heads, 2)? };
    b.output("y", y)?;
    b.finish()
}

const NEG_INF: Option<f32> = Some(f32::NEG_INFINITY);

#[test]
fn heads_may_be_written_in_several_ways() -> Result {
    let plain = Variant::default();
    let mul = |b: &mut Builder, x: ValueId| -> Value {
        let c = b.constant(0.25, f32(&[1, 1]))?;
        b.mul(c, x)
    };
    let div = |b: &mut Builder, x: ValueId| -> Value {
        let c = b.constant(4.0, f32(&[]))?;
        b.div(x, c)
    };
    let negative = |b: &mut Builder, x: ValueId| b.scale(x, -0.5);
    let positive = |b: &mut Builder, x: ValueId| b.scale(x, 0.5);
    let cases: [(&str, Variant, Option<&str>); 10] = [
        ("plain", plain, Some("attention(1 heads, scale 1)")),
        ("permuted keys", Variant { permuted_keys: true, ..plain }, Some("attention(1 heads, scale 1)")),
        ("times", Variant { scale: Some(mul), fill: NEG_INF, ..plain }, Some("attention(1 heads, scale 0.25, causal)")),
        ("over", Variant { scale: Some(div), ..plain }, Some("attention(1 heads, scale 0.25)")),
        (
            "negative before the mask",
            Variant { scale: Some(negative), fill: NEG_INF, ..plain },
            Some("attention(1 heads, scale -0.5, causal)"),
        ),
        (
            "positive after the mask",
            Variant { scale: Some(positive), scale_after_mask: true, fill: NEG_INF, ..plain },
            Some("attention(1 heads, scale 0.5, causal)"),
        ),
        (
            "negative after the mask",
            Variant { scale: Some(negative), scale_after_mask: true, fill: NEG_INF, ..plain },
            None,
        ),
        ("a finite fill", Variant { fill: Some(-1e4), ..plain }, None),
        ("scores shown", Variant { show: Some(Shown::Scores), ..plain }, None),
        ("weights shown", Variant { show: Some(Shown::Weights), ..plain }, None),
    ];
    for (what, variant, expected) in cases {
        let (graph, _) = lifted(&heads(&[2], &[variant])?)?;
        let found = graph.nodes().find(|(_, n)| matches!(n.op, Op::Attention(_))).map(|(_, n)| n.op.to_string());
        assert_eq!(found.as_deref(), expected, "{what}");
    }
    Ok(())
}

#[test]
fn heads_that_differ_or_are_too_large_stay_as_written() -> Result {
    let (plain, causal) = (Variant::default(), Variant { fill: NEG_INF, ..Variant::default() });
    let shown = Variant { show: Some(Shown::Weights), ..plain };
    let cases = [
        (
            heads(&[2, 2], &[plain, causal])?,
            "attention: concat: heads differ in scale, mask or size: left as written\n",
        ),
        (heads(&[2, 3], &[plain, plain])?, "attention: concat: heads differ in scale, mask or size: left as written\n"),
        (heads(&[2, 2, 2], &[plain, shown, plain])?, "attention: concat: 2 of 3 parts are heads: left as written\n"),
        (heads(&[129, 129], &[plain, plain])?, "attention: concat: head size 129 is over 128: left as written\n"),
        (heads(&[129], &[plain])?, "attention: matmul: head size 129 is over 128: left as written\n"),
    ];
    for (graph, expected) in cases {
        let (after, report) = lifted(&graph)?;
        assert_eq!(after, graph);
        assert_eq!(report, expected);
    }
    let (graph, report) = lifted(&heads(&[128, 128], &[causal, causal])?)?;
    assert_eq!(ops(&graph), [("attention", 1), ("concat", 3)].into());
    assert_eq!(report, "attention: attention: 2 heads → one causal attention\n");
    Ok(())
}

/// Heads whose weights are dropped with a probability, at a site, by one of two counters; 0 is no dropout.
fn dropping(heads: &[(f32, u32, usize)]) -> std::result::Result<Graph, GraphError> {
    let mut b = Builder::new();
    let counters = ["a", "b"].map(|name| b.input(name, TensorType::new(DType::U32, [3])));
    let [a, other] = counters;
    let counters = [a?, other?];
    let mut parts = Vec::new();
    for (i, (p, site, counter)) in heads.iter().enumerate() {
        let [q, k, v] = ["q", "k", "v"].map(|part| b.input(&format!("h{i}.{part}"), f32(&[2, 5, 3])));
        let scores = b.matmul_transposed(q?, false, k?, true)?;
        let mut weights = b.softmax(scores, 2)?;
        if *p > 0.0 {
            weights = b.dropout(weights, *p, *site, counters[*counter])?;
        }
        parts.push(b.matmul(weights, v?)?);
    }
    let y = if parts.len() == 1 { parts[0] } else { b.concat(&parts, 2)? };
    b.output("y", y)?;
    b.finish()
}

#[test]
fn heads_that_drop_at_sites_in_a_row_are_one_attention_that_drops() -> Result {
    let (graph, report) = lifted(&dropping(&[(0.5, 7, 0), (0.5, 8, 0), (0.5, 9, 0)])?)?;
    assert_eq!(ops(&graph), [("attention", 1), ("concat", 3)].into());
    assert!(graph.to_string().contains("attention(3 heads, scale 1, dropout 0.5 at site 7)"), "{graph}");
    assert_eq!(report, "attention: attention: 3 heads → one attention\n");
    let (graph, _) = lifted(&dropping(&[(0.25, u32::MAX, 1)])?)?;
    assert!(graph.to_string().contains("attention(1 heads, scale 1, dropout 0.25 at site 4294967295)"), "{graph}");
    Ok(())
}

#[test]
fn heads_that_drop_apart_stay_as_written() -> Result {
    let differ = "attention: concat: heads differ in dropout: left as written\n";
    let apart = "attention: concat: the heads' dropouts are not at sites in a row: left as written\n";
    for (heads, expected) in [
        ([(0.5, 7, 0), (0.25, 8, 0)], differ),
        ([(0.5, 7, 0), (0.5, 8, 1)], differ),
        ([(0.5, 7, 0), (0.0, 8, 0)], differ),
        ([(0.5, 7, 0), (0.5, 7, 0)], apart),
        ([(0.5, 7, 0), (0.5, 9, 0)], apart),
        ([(0.5, 8, 0), (0.5, 7, 0)], apart),
    ] {
        let graph = dropping(&heads)?;
        let (after, report) = lifted(&graph)?;
        assert_eq!(after, graph, "{heads:?}");
        assert_eq!(report, expected, "{heads:?}");
    }
    Ok(())
}

#[test]
fn a_mask_that_leaves_a_query_without_keys_stays_nan() -> Result {
    let mut b = Builder::new();
    let q = b.input("q", f32(&[1, 3, 2]))?;
    let k = b.input("k", f32(&[1, 2, 2]))?;
    let scores = b.matmul_transposed(q, false, k, true)?;
    let mask = b.causal_mask(3, 2)?;
    let scores = b.masked_fill(scores, mask, f32::NEG_INFINITY)?;
    let weights = b.softmax(scores, 2)?;
    let y = b.matmul(weights, k)?;
    b.output("y", y)?;
    let (graph, report) = lifted(&b.finish()?)?;
    assert_eq!((ops(&graph).get("attention"), report.as_str()), (None, ""));
    Ok(())
}

#[test]
fn parallel_linears_with_bias_are_packed_and_others_are_not() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3, 4]))?;
    let up = linear(&mut b, "mlp.up", x, 5, true)?;
    let gate = linear(&mut b, "mlp.gate", x, 2, true)?;
    linear(&mut b, "mlp.unread", x, 2, false)?;
    let alone = linear(&mut b, "mlp.alone", x, 4, false)?;
    // a weight that is read twice keeps its own storage
    let tied = b.parameter("tied.weight", f32(&[4, 4]))?;
    let once = b.linear(x, tied, None)?;
    let twice = b.linear(once, tied, None)?;
    for (name, value) in [("gate", gate), ("up", up), ("alone", alone), ("twice", twice)] {
        b.output(name, value)?;
    }
    let (graph, report) = lifted(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (3, 4)  # x
    %1 = parameter [] : f32 (7, 4)  # mlp.packed.weight
    %2 = parameter [] : f32 (7)  # mlp.packed.bias
    %3 = linear [%0, %1, %2] : f32 (3, 7)  # mlp.packed
    %4 = slice(axis 1, 0..5) [%3] : f32 (3, 5)  # mlp.up
    %5 = slice(axis 1, 5..7) [%3] : f32 (3, 2)  # mlp.gate
    %6 = parameter [] : f32 (4, 4)  # mlp.alone.weight
    %7 = linear [%0, %6] : f32 (3, 4)  # mlp.alone
    %8 = parameter [] : f32 (4, 4)  # tied.weight
    %9 = linear [%0, %8] : f32 (3, 4)  # tied
    %10 = linear [%9, %8] : f32 (3, 4)  # tied
    output gate = %5
    output up = %4
    output alone = %7
    output twice = %10
    ");
    insta::assert_snapshot!(report, @"linears: mlp.packed: 2 linears on one input → one");
    Ok(())
}

#[test]
fn slices_put_together_again_are_one() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 6]))?;
    let parts: Vec<ValueId> = (0..3).map(|i| b.slice(x, 1, 2 * i, 2)).collect::<std::result::Result<_, _>>()?;
    let whole = b.concat(&parts, 1)?;
    let pair = b.concat(&parts[1..], 1)?;
    let swapped = b.concat(&[parts[1], parts[0]], 1)?;
    let mixed = b.concat(&[parts[0], parts[1], x], 1)?;
    for (name, value) in [("whole", whole), ("pair", pair), ("swapped", swapped), ("mixed", mixed)] {
        b.output(name, value)?;
    }
    let (graph, _) = lifted(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (2, 6)  # x
    %1 = slice(axis 1, 0..2) [%0] : f32 (2, 2)  # slice
    %2 = slice(axis 1, 2..4) [%0] : f32 (2, 2)  # slice
    %3 = slice(axis 1, 2..6) [%0] : f32 (2, 4)  # concat
    %4 = concat(axis 1) [%2, %1] : f32 (2, 4)  # concat
    %5 = slice(axis 1, 0..4) [%0] : f32 (2, 4)  # concat
    %6 = concat(axis 1) [%5, %0] : f32 (2, 10)  # concat
    output whole = %0
    output pair = %3
    output swapped = %4
    output mixed = %6
    ");
    Ok(())
}

#[test]
fn softmax_written_out_is_one_op() -> Result {
    for axis in 0..3 {
        let mut b = Builder::new();
        let x = b.input("x", f32(&[3, 4, 5]))?;
        let max = b.reduce(Reduction::Max, x, &[axis], true)?;
        let shifted = b.sub(x, max)?;
        let e = b.unary(Unary::Exp, shifted)?;
        let mut kept = [3, 4, 5];
        kept[axis] = 1;
        let sum = b.sum(e, &[axis])?;
        let sum = b.reshape(sum, kept)?;
        let sum = b.broadcast(sum, [3, 4, 5])?;
        let y = b.div(e, sum)?;
        b.output("y", y)?;
        let (graph, report) = lifted(&b.finish()?)?;
        assert_eq!(ops(&graph), [("softmax", 1)].into(), "axis {axis}");
        assert_eq!(report, "softmax: div: exp(x − max) / sum → one softmax\n");
    }
    Ok(())
}

#[test]
fn what_is_stretched_on_the_way_is_no_softmax() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[1, 4]))?;
    let max = b.reduce(Reduction::Max, x, &[1], true)?;
    let max = b.broadcast(max, [5, 1])?;
    let shifted = b.sub(x, max)?;
    let e = b.unary(Unary::Exp, shifted)?;
    let sum = b.reduce(Reduction::Sum, e, &[1], true)?;
    let y = b.div(e, sum)?;
    b.output("y", y)?;
    let graph = b.finish()?;
    assert_eq!(lifted(&graph)?.0, graph);
    Ok(())
}

#[test]
fn a_division_by_another_sum_is_no_softmax() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[4, 4]))?;
    let max = b.reduce(Reduction::Max, x, &[1], true)?;
    let shifted = b.sub(x, max)?;
    let e = b.unary(Unary::Exp, shifted)?;
    let sum = b.reduce(Reduction::Sum, e, &[0], true)?;
    let y = b.div(e, sum)?;
    b.output("y", y)?;
    let graph = b.finish()?;
    assert_eq!(lifted(&graph)?.0, graph);
    Ok(())
}

#[test]
fn layernorm_written_out_is_one_op() -> Result {
    // how the deviation divides, how a difference is squared, and an ε that an op may have
    for (root, pow, eps) in [
        (Unary::Rsqrt, false, 0.125),
        (Unary::Sqrt, false, 0.125),
        (Unary::Sqrt, true, 0.125),
        (Unary::Sqrt, true, -0.125),
        (Unary::Sqrt, true, f32::NAN),
        (Unary::Sqrt, true, f32::INFINITY),
    ] {
        let mut b = Builder::new();
        let x = b.input("x", f32(&[3, 5]))?;
        let gamma = b.parameter("gamma", f32(&[5]))?;
        let beta = b.parameter("beta", f32(&[5]))?;
        let mean = b.reduce(Reduction::Mean, x, &[1], true)?;
        let d = b.sub(x, mean)?;
        let squares = if pow {
            let two = b.constant(2.0, f32(&[]))?;
            b.binary(Binary::Pow, d, two)?
        } else {
            let again = b.sub(x, mean)?;
            b.mul(d, again)?
        };
        let var = b.reduce(Reduction::Mean, squares, &[1], true)?;
        let shift = b.constant(eps, f32(&[]))?;
        let shifted = b.add(shift, var)?;
        let root_of = b.unary(root, shifted)?;
        let norm = if root == Unary::Sqrt { b.div(d, root_of)? } else { b.mul(root_of, d)? };
        let scaled = b.mul(gamma, norm)?;
        let y = b.add(scaled, beta)?;
        b.output("y", y)?;
        let (graph, _) = lifted(&b.finish()?)?;
        if eps != 0.125 {
            assert!(!ops(&graph).contains_key("layernorm"), "{eps}");
            continue;
        }
        assert_eq!(ops(&graph), [("layernorm", 1)].into(), "{root:?}");
        assert!(graph.to_string().contains("layernorm(eps 0.125) [%0, %1, %2]"), "{graph}");
    }
    Ok(())
}

#[test]
fn positions_are_rows_of_the_table() -> Result {
    for (rows, expected) in [(4, None), (6, Some("slice(axis 0, 0..4)"))] {
        let mut b = Builder::new();
        let table = b.parameter("pos.weight", f32(&[rows, 3]))?;
        let indices = b.arange(4)?;
        let y = b.embedding(table, indices)?;
        b.output("y", y)?;
        let (graph, _) = lifted(&b.finish()?)?;
        let found = graph.nodes().find(|(_, n)| !n.op.is_source()).map(|(_, n)| n.op.to_string());
        assert_eq!(found.as_deref(), expected);
    }
    Ok(())
}

/// Layers of one width, with an activation after each but the last.
fn chain(layers: usize, width: usize, f: Unary, bias: bool) -> Result<Graph> {
    let mut b = Builder::new();
    let mut y = b.input("x", f32(&[3, width]))?;
    for i in 0..layers {
        y = linear(&mut b, &format!("layers.{}", 2 * i), y, width, bias)?;
        y = b.unary(f, y)?;
    }
    b.output("y", y)?;
    Ok(b.finish()?)
}

#[test]
fn a_chain_of_layers_becomes_stacks() -> Result {
    let (graph, report) = lifted(&chain(70, 64, Unary::Relu, true)?)?;
    assert_eq!(report, "stacks: layers.0-138: 70 layers of 64 → 2 of 35, each in one kernel\n");
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (3, 64)  # x
    %1 = parameter [] : f32 (35, 64, 64)  # layers.0-68.weight
    %2 = parameter [] : f32 (35, 64)  # layers.0-68.bias
    %3 = linear_stack(relu) [%0, %1, %2] : f32 (3, 64), f32 (35, 3, 64)  # layers.0-68
    %4 = parameter [] : f32 (35, 64, 64)  # layers.70-138.weight
    %5 = parameter [] : f32 (35, 64)  # layers.70-138.bias
    %6 = linear_stack(relu) [%3, %4, %5] : f32 (3, 64), f32 (35, 3, 64)  # layers.70-138
    output y = %6
    ");
    let stacked = graph.layout.iter().find(|(_, s)| s.name == "layers.70-138.weight").map(|(_, s)| s.clone()).unwrap();
    assert_eq!((stacked.parts[3].name.as_str(), stacked.parts[3].offset), ("layers.76.weight", 3 * 64 * 64));
    assert_eq!(stacked.parts[3].shape.dims(), [64, 64]);
    let (graph, report) = lifted(&chain(5, 64, Unary::Sigmoid, false)?)?;
    assert_eq!(report, "stacks: layers.0-8: 5 layers of 64 → 1 of 5, each in one kernel\n");
    assert_eq!(ops(&graph).into_iter().collect::<Vec<_>>(), [("linear_stack", 1)]);
    Ok(())
}

#[test]
fn linears_become_one_as_far_as_a_buffer_holds_them() -> Result {
    // each result is 128 MiB
    let mut b = Builder::new();
    let x = b.input("x", f32(&[65_536, 16]))?;
    for name in ["a.weight", "b.weight", "c.weight", "d.weight", "e.weight"] {
        let w = b.parameter(name, f32(&[512, 16]))?;
        let y = b.linear(x, w, None)?;
        let y = b.sum(y, &[0, 1])?;
        b.output(name, y)?;
    }
    let graph = b.finish()?;
    let parts = |most: usize| {
        format!(
            "linears: a: 5 linears on one input in 3 parts: a buffer holds {most} bytes\n\
             linears: packed: 2 linears on one input → one\nlinears: packed_2: 2 linears on one input → one\n"
        )
    };
    let reported = |limits: LiftLimits| Ok::<_, GraphError>(lift_within(&graph, &limits)?.1.to_string());
    assert_eq!(reported(LiftLimits::default())?, parts(256 << 20));
    let weights = LiftLimits { linear_bytes: usize::MAX, packed_bytes: 2 * 512 * 16 * 4, ..LiftLimits::default() };
    assert_eq!(reported(weights)?, parts(2 * 512 * 16 * 4));
    let large = LiftLimits { linear_bytes: 1 << 30, ..LiftLimits::default() };
    let one = "linears: packed: 5 linears on one input → one\n";
    assert_eq!(reported(large)?, one);
    Ok(())
}

#[test]
fn limits_say_how_long_and_how_wide_stacks_are() -> Result {
    let graph = chain(12, 64, Unary::Tanh, true)?;
    let reported = |limits: LiftLimits| Ok::<_, GraphError>(lift_within(&graph, &limits)?.1.to_string());
    // a layer's rows are 3 · 64 · 4 bytes
    let bytes = LiftLimits { stack_bytes: 5 * 768, ..LiftLimits::default() };
    assert_eq!(reported(bytes)?, "stacks: layers.0-22: 12 layers of 64 → 3 of 4, each in one kernel\n");
    let few = LiftLimits { stack_bytes: 3 * 768, ..LiftLimits::default() };
    let expected =
        "stacks: layers.0-22: 12 layers of 64 left as written: at 768 bytes a layer's rows, stacks would be short\n";
    assert_eq!(reported(few)?, expected);
    let narrow = LiftLimits { bound_bytes: 767, ..LiftLimits::default() };
    let expected =
        "stacks: layers.0-22: 12 layers of 64 left as written: rows of 768 bytes, where a binding holds 767\n";
    assert_eq!(reported(narrow)?, expected);
    for (stack_width, why) in [
        (0, "on this device a kernel a layer is as fast"),
        (32, "this device carries rows of at most 32 through a stack"),
    ] {
        let narrow = LiftLimits { stack_width, ..LiftLimits::default() };
        assert_eq!(reported(narrow)?, format!("stacks: layers.0-22: 12 layers of 64 left as written: {why}\n"));
    }
    Ok(())
}

#[test]
fn layers_that_are_no_stack_stay() -> Result {
    let unchanged = |graph: Graph| -> Result<String> {
        let (same, report) = lifted(&graph)?;
        assert_eq!(ops(&same), ops(&graph));
        Ok(report)
    };
    let report = unchanged(chain(6, 64, Unary::GeluErf, true)?)?;
    let expected =
        "stacks: layers.0-10: 6 layers of 64 left as written: gelu_erf's slope does not follow from its value\n";
    assert_eq!(report, expected);
    // too few, too narrow, no multiple of 32
    for (layers, width) in [(3, 64), (8, 32), (8, 80)] {
        assert_eq!(unchanged(chain(layers, width, Unary::Relu, true)?)?, "");
    }
    // a weight that two layers share, a value that another reads
    for kind in 0..2 {
        let mut b = Builder::new();
        let mut y = b.input("x", f32(&[3, 64]))?;
        let shared = b.parameter("shared", f32(&[64, 64]))?;
        for i in 0..6 {
            y = match kind {
                0 if i % 3 == 2 => b.linear(y, shared, None)?,
                _ => linear(&mut b, &format!("layers.{i}"), y, 64, false)?,
            };
            y = b.relu(y)?;
            if kind == 1 && i == 2 {
                b.output("middle", y)?;
            }
        }
        b.output("y", y)?;
        assert_eq!(unchanged(b.finish()?)?, "");
    }
    Ok(())
}
