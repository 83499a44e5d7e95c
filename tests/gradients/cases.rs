//! Public reports of this field, by the ids that tests of every layer share.

use crate::differences::Check;
use crate::parameters::with_loss;
use crate::written::{self, Result, f32};
use kiln::fuse::{FuseLimits, fuse};
use kiln::grad::gradients;
use kiln::graph::{
    AdamAttrs, AttentionAttrs, Binary, Comparison, CrossEntropyAttrs, DType, Graph, Op, Reduction, Shape, Unary,
    ValueId,
};
use kiln::lift::lift;
use kiln::reference::{Value, evaluate_all};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;

fn sum(c: &mut Check, x: ValueId) -> ValueId {
    let axes = (0..c.graph.shape(x).rank()).collect();
    c.op(Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, &[x])
}

fn near(got: &[f64], want: &[f64], tolerance: f64) {
    let close = got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() <= tolerance);
    assert!(close, "{got:?}, not {want:?}");
}

#[test]
fn g01_a_bias_that_is_stretched_gets_the_sum_in_its_own_shape() {
    let mut c = Check::default();
    let (x, w, b) = (c.x(&[2, 3]), c.x(&[3, 1]), c.x(&[1, 1]));
    let y = c.op(Op::Matmul { transpose_a: false, transpose_b: false }, &[x, w]);
    let y = c.op(Op::Binary(Binary::Add), &[y, b]);
    let loss = sum(&mut c, y);
    let db = &c.gradients(loss, &[0, 1, 2])["x2"];
    assert_eq!((db.shape.dims(), &db.data[..]), (&[1, 1][..], &[2.0][..]));
}

#[test]
fn g02_equal_indices_are_summed_exactly() {
    for (indices, expected) in [(vec![0.0, 0.0, 1.0, 0.0], [3.0, 1.0, 0.0]), (vec![2.0; 4096], [0.0, 0.0, 4096.0])] {
        let mut c = Check::default();
        let table = c.x(&[3, 1]);
        let indices = c.given(DType::I32, &[indices.len()], &indices);
        let y = c.op(Op::Embedding, &[table, indices]);
        let loss = sum(&mut c, y);
        assert_eq!(c.gradients(loss, &[0])["x0"].data, expected);
    }
}

#[test]
fn g05_an_input_that_needs_no_gradient_does_not_shift_the_others() {
    let mut c = Check::default();
    let (left, x, right) = (c.noise(&[2, 3]), c.x(&[2, 1]), c.noise(&[2, 3]));
    let y = c.op(Op::Concat(1), &[left, x, right]);
    let weights: Vec<f64> = (0..14).map(f64::from).collect();
    let weights = c.given(DType::F32, &[2, 7], &weights);
    let y = c.op(Op::Binary(Binary::Mul), &[y, weights]);
    let loss = sum(&mut c, y);
    assert_eq!(c.gradients(loss, &[0])["x0"].data, [3.0, 10.0]);
}

#[test]
fn g06_a_tied_weight_gets_the_sum_of_both_uses() {
    let build = |tied: bool| {
        let mut c = Check::default();
        let table = c.x(&[5, 3]);
        let data = c.states["x0"].data.clone();
        let head = if tied { table } else { c.x_at(&[5, 3], &data) };
        let indices = c.given(DType::I32, &[4], &[4.0, 0.0, 0.0, 2.0]);
        let x = c.op(Op::Embedding, &[table, indices]);
        let x = c.op(Op::Unary(Unary::Tanh), &[x]);
        let logits = c.op(Op::Linear, &[x, head]);
        let square = c.op(Op::Binary(Binary::Mul), &[logits, logits]);
        let loss = sum(&mut c, square);
        c.gradients(loss, &(0..c.states.len()).collect::<Vec<_>>())
    };
    let (tied, apart) = (build(true), build(false));
    let both: Vec<f64> = apart["x0"].data.iter().zip(&apart["x1"].data).map(|(a, b)| a + b).collect();
    near(&tied["x0"].data, &both, 1e-12);
}

/// A graph that trains all parameters of another by Adam on its output "loss".
fn training_step(graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    let loss = graph.outputs().iter().find(|o| o.name == "loss").ok_or("no loss")?.value;
    let of = |(id, node): (_, &kiln::graph::Node)| matches!(node.op, Op::Parameter(_)).then_some(ValueId::from(id));
    let parameters: Vec<ValueId> = graph.nodes().filter_map(of).collect();
    let gradients = gradients(&mut graph, loss, &parameters)?;
    let scalars = graph.push_input(f32(&[3]), "scalars");
    let [beta1, beta2, eps, weight_decay] = [0.9, 0.99, 1e-8, 0.01].map(|v: f32| v.into());
    let adam = Op::Adam(AdamAttrs { beta1, beta2, eps, weight_decay, decoupled: true, narrow: false });
    for (w, dw) in parameters.into_iter().zip(gradients) {
        let (name, ty) = (graph.producer(w).name.clone(), graph.ty(w).clone());
        let [m, v] = ["m", "v"].map(|moment| graph.push_input(ty.clone(), format!("{name}.{moment}")));
        let step = graph.push(adam.clone(), vec![w, m.into(), v.into(), dw, scalars.into()], format!("{name}.adam"))?;
        for (output, state) in [w.node, m, v].into_iter().enumerate() {
            graph.push_update(state, ValueId { node: step, output })?;
        }
    }
    graph.verify()?;
    Ok(graph)
}

#[test]
fn g16_three_fused_training_steps_are_three_as_written() -> Result {
    let graph = with_loss(&written::dnn(5, &[4, 7, 3])?)?;
    let step = training_step(&graph)?;
    let (params, mut inputs) = written::values(&graph, 5);
    inputs.insert("scalars".into(), Tensor::f32([3], &[0.01, 0.1, 0.01]));
    let mut runs = Vec::new();
    let lifted = training_step(&lift(&graph)?.0)?;
    for step in [&step, &fuse(&step, &FuseLimits::default())?.0, &fuse(&lifted, &FuseLimits::default())?.0] {
        let mut states: BTreeMap<String, Value> = BTreeMap::new();
        let mut losses = Vec::new();
        for _ in 0..3 {
            let run = evaluate_all(step, &params, &inputs, &states)?;
            states = run.states;
            losses.push(run.outputs["loss"].data[0]);
        }
        assert!(losses[2] < losses[0], "{losses:?}");
        runs.push(states);
    }
    for fused in &runs[1..] {
        assert!(fused.keys().eq(runs[0].keys()));
        runs[0].iter().for_each(|(name, want)| near(&fused[name].data, &want.data, 1e-12));
    }
    Ok(())
}

/// Rows' losses, and their sum over the number of targets that are not ignored, at least 1.
fn mean_over_targets(c: &mut Check, logits: ValueId, targets: ValueId, ignored: i32) -> (ValueId, ValueId) {
    let attrs = CrossEntropyAttrs { axis: 1, ignore_index: Some(ignored), label_smoothing: 0.0.into() };
    let rows = c.op(Op::CrossEntropy(attrs), &[logits, targets]);
    let constant = |c: &mut Check, number: f32, dtype| c.op(Op::Constant(number.into(), dtype, Shape::default()), &[]);
    let index = constant(c, ignored as f32, DType::I32);
    let is_ignored = c.op(Op::Compare(Comparison::Equal), &[targets, index]);
    let (zero, one) = (constant(c, 0.0, DType::F32), constant(c, 1.0, DType::F32));
    let counted = c.op(Op::Where, &[is_ignored, zero, one]);
    let counted = sum(c, counted);
    let counted = c.op(Op::Binary(Binary::Max), &[counted, one]);
    let total = sum(c, rows);
    (rows, c.op(Op::Binary(Binary::Div), &[total, counted]))
}

const LOGITS: [f64; 6] = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0];

#[test]
fn s15_an_ignored_target_counts_for_nothing() {
    let mut c = Check::default();
    let logits = c.x_at(&[3, 2], &LOGITS);
    let targets = c.given(DType::I32, &[3], &[1.0, 0.0, -100.0]);
    let (rows, loss) = mean_over_targets(&mut c, logits, targets, -100);
    near(&c.value(rows), &[0.31326169, 0.31326169, 0.0], 1e-8);
    near(&c.value(loss), &[0.31326169], 1e-8);
    let dlogits = &c.gradients(loss, &[0])["x0"].data;
    let off = 0.2689414213699951 / 2.0;
    near(dlogits, &[off, -off, -off, off, 0.0, 0.0], 1e-8);
}

#[test]
fn s16_a_target_that_is_no_class_is_an_error() {
    for (target, shown) in [(5.0, "5"), (-1.0, "-1")] {
        let mut c = Check::default();
        let logits = c.x_at(&[3, 2], &LOGITS);
        let targets = c.given(DType::I32, &[3], &[1.0, target, -100.0]);
        let (_, loss) = mean_over_targets(&mut c, logits, targets, -100);
        let error = c.try_value(loss).unwrap_err().to_string();
        assert_eq!(error, format!("cross_entropy \"t\": target {shown} (element 1) is not within 0..2"));
    }
}

#[test]
fn s17_if_all_targets_are_ignored_loss_and_gradient_are_0() {
    let mut c = Check::default();
    let logits = c.x_at(&[3, 2], &LOGITS);
    let targets = c.given(DType::I32, &[3], &[-100.0; 3]);
    let (_, loss) = mean_over_targets(&mut c, logits, targets, -100);
    assert_eq!(c.value(loss), [0.0]);
    assert_eq!(c.gradients(loss, &[0])["x0"].data, [0.0; 6]);
}

#[test]
fn s21_the_loss_of_a_gpt_that_knows_nothing() {
    const V: usize = 50257;
    let mut c = Check::default();
    let logits = c.x_at(&[1, 8, V], &vec![0.0; 8 * V]);
    let targets: Vec<f64> = (0..8).map(|i| f64::from(i * 7000)).collect();
    let targets = c.given(DType::I32, &[1, 8], &targets);
    let attrs = CrossEntropyAttrs { axis: 2, ignore_index: None, label_smoothing: 0.0.into() };
    let rows = c.op(Op::CrossEntropy(attrs), &[logits, targets]);
    let loss = c.op(Op::Reduce { kind: Reduction::Mean, axes: vec![0, 1], keepdim: false }, &[rows]);
    near(&c.value(loss), &[10.824905], 1e-6);
    let dlogits = &c.gradients(loss, &[0])["x0"].data;
    near(&dlogits[..2], &[1.9897726e-5 / 8.0 - 0.125, 1.9897726e-5 / 8.0], 1e-12);
    near(&dlogits[8 * V - 1..], &[1.9897726e-5 / 8.0], 1e-12);
}

#[test]
fn t17_causal_attention_has_the_gradient_of_finite_differences() {
    let mut c = Check::default();
    let [q, k, v] = [0; 3].map(|_| c.x(&[1, 5, 8]));
    let attrs =
        AttentionAttrs { heads: 2, scale: 0.5.into(), causal: true, mask: false, lengths: false, dropout: None };
    let y = c.op(Op::Attention(attrs), &[q, k, v]);
    c.check("attention", y);
}

#[test]
fn n07_a_norm_s_gradient_does_not_depend_on_how_rows_are_counted() {
    let by_rows = |dims: &[usize]| {
        let mut c = Check::default();
        let (x, gamma, beta) = (c.x(dims), c.x(&[4]), c.x(&[4]));
        let y = c.op(Op::LayerNorm(1e-5.into()), &[x, gamma, beta]);
        let loss = c.loss(y);
        c.gradients(loss, &[0, 1, 2]).into_values().map(|v| v.data).collect::<Vec<_>>()
    };
    assert_eq!(by_rows(&[2, 3, 4]), by_rows(&[6, 4]));
}

#[test]
fn n08_the_sum_of_a_norm_does_not_change() {
    let mut c = Check::default();
    let (x, gamma, beta) = (c.x(&[3, 768]), c.x_at(&[768], &[1.0; 768]), c.x_at(&[768], &[0.0; 768]));
    let y = c.op(Op::LayerNorm(1e-5.into()), &[x, gamma, beta]);
    let loss = sum(&mut c, y);
    assert!(c.gradients(loss, &[0])["x0"].data.iter().all(|v| v.abs() < 1e-5));
}

#[test]
fn n09_an_rms_norm_within_a_network_lets_gradients_through() {
    let build = || {
        let mut c = Check::default();
        let (x, w, gamma) = (c.x(&[3, 5]), c.x(&[7, 5]), c.x(&[7]));
        let y = c.op(Op::Linear, &[x, w]);
        let y = c.op(Op::RmsNorm(1e-5.into()), &[y, gamma]);
        let y = c.op(Op::Unary(Unary::GeluErf), &[y]);
        (c, y)
    };
    let (mut c, y) = build();
    let loss = c.loss(y);
    for (name, dx) in c.gradients(loss, &[0, 1, 2]) {
        assert!(dx.data.iter().all(|v| v.abs() > 1e-6), "{name}: {dx:?}");
    }
    let (c, y) = build();
    c.check("rmsnorm", y);
}
