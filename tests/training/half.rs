//! Training in f16, and the loss scale.

use super::trained::{Golden, Named, OnReference, golden_options};
use super::{f32s, numbers};
use kiln::graph::{Builder, DType, Node, Op, TensorType};
use kiln::model::Loss;
use kiln::tensor::Tensor;
use kiln::train::{LossScaling, Precision, TrainOptions};

#[test]
fn in_f16_weights_stay_f32_and_losses_follow_those_of_f32() {
    for name in ["gptlite_tiny", "dnn_he"] {
        for lifted in [true, false] {
            let golden = Golden::open(name, Loss::Seed);
            let half = TrainOptions { precision: Precision::F16(LossScaling::default()), ..golden_options() };
            let mut trainer = OnReference::new(&golden.forward, &golden.params, &half, lifted);
            let narrow = |n: &Node| n.outputs[0].dtype == DType::F16;
            let is_product = |n: &Node| matches!(n.op, Op::Linear | Op::Matmul { .. } | Op::LinearGrad { .. });
            let is_stack = |n: &Node| matches!(n.op, Op::LinearStack(_) | Op::LinearStackGrad(_));
            let all = || trainer.graph.nodes().map(|(_, n)| n);
            // a stack holds many products
            let stacks = all().filter(|n| is_stack(n)).count();
            assert!(stacks > 0 || all().filter(|n| is_product(n)).count() > 10, "{name}");
            assert!(all().filter(|n| is_product(n) || is_stack(n)).all(narrow), "{name}");
            assert!(!trainer.graph.nodes().any(|(_, n)| matches!(n.op, Op::CrossEntropy(_)) && narrow(n)));
            for expected in &golden.losses {
                let outputs = trainer.step(&golden.batch);
                let got = outputs["loss"].data[0];
                assert!((got - expected).abs() <= 2e-3 * expected, "{name}: {got}, {expected}");
                assert_eq!((outputs["skipped"].data[0], outputs["loss_scale"].data[0]), (0.0, 65536.0));
            }
            // a step of 2e-4 is less than f16 tells apart near 1
            let moved = golden.params.keys().filter(|n| trainer.parameter(n) != golden.params[*n].to_f64()).count();
            assert!(moved * 10 > golden.params.len() * 9, "{name}: {moved} of {}", golden.params.len());
            // each weight has a copy that is what it holds, rounded; no moment has one
            for (name, copy) in trainer.states.iter().filter_map(|(n, s)| Some((n.strip_suffix(".f16")?, s))) {
                let weight = &trainer.states[name].data;
                let rounded = Tensor::from_f64(TensorType::new(DType::F16, [weight.len()]), weight).to_f64();
                assert!(copy.data == rounded, "{name}: the copy is not the weight, rounded");
            }
            let copies = trainer.states.keys().filter(|s| s.ends_with(".f16")).count();
            let moments = trainer.states.keys().filter(|s| s.starts_with("adam.m.")).count();
            // a part of gptlite_tiny's positions is read, and that is cast
            assert!(copies + usize::from(name == "gptlite_tiny") >= moments, "{name}: {copies} of {moments}");
            assert!(!trainer.graph.nodes().any(|(_, n)| {
                n.op == Op::Cast(DType::F16) && matches!(trainer.graph.producer(n.inputs[0]).op, Op::Parameter(_))
            }));
        }
    }
}

#[test]
fn a_number_that_f16_does_not_hold_widens_what_it_is_in() {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[1, 2, 4])).unwrap();
    let mask = b.input("mask", TensorType::new(DType::Bool, [1, 2, 2])).unwrap();
    let w = b.parameter("w", f32s(&[4, 4])).unwrap();
    let q = b.linear(x, w, None).unwrap();
    let scores = b.matmul_transposed(q, false, q, true).unwrap();
    // a row of which all is masked is uniform, not NaN
    let scores = b.masked_fill(scores, mask, -1e9).unwrap();
    let weights = b.softmax(scores, 2).unwrap();
    let mixed = b.matmul(weights, q).unwrap();
    let large = b.scale(mixed, 1e5).unwrap();
    let back = b.scale(large, 1e-5).unwrap();
    let loss = b.sum(back, &[0, 1, 2]).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let params = Named::from([("w".to_owned(), numbers(&[4, 4], |i| (i as f64).sin()))]);
    let masks = Tensor::from_f64(TensorType::new(DType::Bool, [1, 2, 2]), &[0.0, 1.0, 1.0, 1.0]);
    let batch = Named::from([("x".to_owned(), numbers(&[1, 2, 4], |i| 1.0 + i as f64)), ("mask".to_owned(), masks)]);
    let losses = [Precision::F32, Precision::F16(LossScaling::default())].map(|precision| {
        let options = TrainOptions { precision, ..TrainOptions::default() };
        OnReference::new(&graph, &params, &options, false).loss(&batch)
    });
    assert!((losses[0] - losses[1]).abs() < 2e-2 * losses[0].abs(), "{losses:?}");
}

#[test]
fn the_loss_scale_halves_at_each_overflow_and_doubles_after_good_steps() {
    let golden = Golden::open("dnn_deep_small", Loss::CrossEntropy);
    let scaling = LossScaling { initial: 16_777_216.0, growth_steps: 2 };
    let half = TrainOptions { precision: Precision::F16(scaling), clip_norm: Some(1e6), ..golden_options() };
    let mut trainer = OnReference::new(&golden.forward, &golden.params, &half, true);
    let (mut scale, mut good, mut skips, mut growths) = (16_777_216.0, 0, 0, 0);
    let mut norms = Vec::new();
    for _ in 0..20 {
        let before = trainer.parameter("layers.0.weight");
        let outputs = trainer.step(&golden.batch);
        assert_eq!(outputs["loss_scale"].data, [scale]);
        let skipped = outputs["skipped"].data[0] == 1.0;
        if skipped {
            (scale, good, skips) = (scale / 2.0, 0, skips + 1);
            assert_eq!(before, trainer.parameter("layers.0.weight"));
        } else {
            norms.push(outputs["grad_norm"].data[0]);
            good += 1;
            if good == 2 {
                (scale, good, growths) = (scale * 2.0, 0, growths + 1);
            }
        }
    }
    assert!(skips > 1 && growths > 1, "{skips} skips, {growths} growths");
    assert_eq!(trainer.states["skipped"].data, [f64::from(skips)]);
    // the norm is of gradients without the scale
    let (least, most) = norms.iter().fold((f64::MAX, 0.0), |(a, b): (f64, f64), n| (a.min(*n), b.max(*n)));
    assert!(most < 2.0 * least && most < 100.0, "{norms:?}");
}
