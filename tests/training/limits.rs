//! Clipping, skipping, momentum, and texts of errors.

use super::trained::{Named, OnReference};
use super::{assert_near, batch, f32s, mlp, numbers, params, sgd};
use kiln::graph::{Builder, Comparison, DType, Graph, LossReduction, TensorType};
use kiln::model::{Dnn, DnnConfig, Loss};
use kiln::tensor::Tensor;
use kiln::train::{Group, Names, Optimiser, Schedule, TrainOptions, training_step};
use std::collections::BTreeMap;

/// The gradients of the MLP's parameters, by plain descent at rate 1.
fn gradients_of(graph: &Graph, start: &Named, batch: &Named) -> BTreeMap<String, Vec<f64>> {
    let mut trainer = OnReference::new(graph, start, &sgd(1.0), true);
    trainer.loss(batch);
    let of = |(name, old): (&String, &Tensor)| {
        (name.clone(), old.to_f64().iter().zip(trainer.parameter(name)).map(|(old, new)| old - new).collect())
    };
    start.iter().map(of).collect()
}

#[test]
fn clipping_scales_all_gradients_to_the_norm() {
    let graph = mlp(6, LossReduction::Sum);
    let start = params(&graph);
    let gradients = gradients_of(&graph, &start, &batch(6));
    let norm = gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
    assert!(norm > 1.0);
    for most in [0.5, 1e6] {
        let options = TrainOptions { clip_norm: Some(most), ..sgd(1.0) };
        let mut trainer = OnReference::new(&graph, &start, &options, true);
        let outputs = trainer.step(&batch(6));
        assert_near("norm", &outputs["grad_norm"].data, &[norm], 1e-9 * norm);
        let factor = (f64::from(most) / (norm + f64::from(1e-6f32))).min(1.0);
        for (name, gradient) in &gradients {
            let expected: Vec<f64> = start[name].to_f64().iter().zip(gradient).map(|(w, g)| w - factor * g).collect();
            assert_near(name, &trainer.parameter(name), &expected, 1e-9);
        }
        // Adam takes the factor by itself: its first moments are 0.1 of what comes of the gradients
        let options = TrainOptions { clip_norm: Some(most), skip_non_finite: true, ..TrainOptions::default() };
        let mut trainer = OnReference::new(&graph, &start, &options, true);
        trainer.step(&batch(6));
        for (name, gradient) in &gradients {
            let expected: Vec<f64> = gradient.iter().map(|g| f64::from(1.0 - 0.9f32) * factor * g).collect();
            assert_near(name, &trainer.states[&format!("adam.m.{name}")].data, &expected, 1e-7);
        }
    }
}

#[test]
fn g13_a_step_that_is_not_finite_is_skipped_and_counted() {
    let graph = mlp(6, LossReduction::Mean);
    let start = params(&graph);
    let options = TrainOptions { skip_non_finite: true, ..TrainOptions::default() };
    let mut trainer = OnReference::new(&graph, &start, &options, true);
    let good = batch(6);
    for bad in [f64::NAN, f64::INFINITY] {
        trainer.step(&good);
        let before = trainer.states.clone();
        let mut broken = good.clone();
        broken.insert("input".into(), numbers(&[6, 3], |i| if i == 7 { bad } else { 1.0 }));
        let outputs = trainer.step(&broken);
        assert_eq!(outputs["skipped"].data, [1.0]);
        for (name, state) in &before {
            if name != "skipped" {
                assert_eq!(trainer.states[name], *state, "{name}");
            }
        }
    }
    assert_eq!(trainer.step(&good)["skipped"].data, [0.0]);
    assert_eq!(trainer.states["skipped"].data, [2.0]);
}

#[test]
fn a_skipped_step_leaves_the_forward_graph_s_states_as_they_are() {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[2])).unwrap();
    let seen = b.state("seen", f32s(&[])).unwrap();
    let above = b.state("above", TensorType::new(DType::Bool, [])).unwrap();
    let w = b.parameter("w", f32s(&[2])).unwrap();
    let y = b.mul(x, w).unwrap();
    let sum = b.sum(y, &[0]).unwrap();
    let next = b.add(seen, sum).unwrap();
    b.update(seen, next).unwrap();
    let zero = b.constant(0.0, f32s(&[])).unwrap();
    let positive = b.compare(Comparison::Less, zero, sum).unwrap();
    b.update(above, positive).unwrap();
    b.output("loss", sum).unwrap();
    let graph = b.finish().unwrap();
    let start = Named::from([("w".to_owned(), numbers(&[2], |_| 1.0))]);
    for micro_batches in [1, 2] {
        let options = TrainOptions { skip_non_finite: true, micro_batches, ..sgd(0.0) };
        let mut trainer = OnReference::new(&graph, &start, &options, true);
        let dims = if micro_batches == 1 { vec![2] } else { vec![2, 2] };
        let mut step = |values: [f64; 2]| {
            let x = numbers(&dims, |i| values[i % 2]);
            let skipped = trainer.step(&Named::from([("x".to_owned(), x)]))["skipped"].data[0];
            (skipped, trainer.states["seen"].data[0], trainer.states["above"].data[0])
        };
        let n = micro_batches as f64;
        assert_eq!(step([1.0, 2.0]), (0.0, 3.0 * n, 1.0));
        assert_eq!(step([f64::NAN, 1.0]), (1.0, 3.0 * n, 1.0));
        assert_eq!(step([f64::NEG_INFINITY, 1.0]), (1.0, 3.0 * n, 1.0));
        assert_eq!(step([-5.0, 1.0]), (0.0, -n, 0.0));
    }
}

#[test]
fn a_state_that_keeps_its_value_costs_nothing_where_steps_are_skipped() {
    let mut b = Builder::new();
    let x = b.state("x", f32s(&[2])).unwrap();
    b.update(x, x).unwrap();
    let w = b.parameter("w", f32s(&[2])).unwrap();
    let y = b.mul(x, w).unwrap();
    let loss = b.sum(y, &[0]).unwrap();
    b.output("loss", loss).unwrap();
    let step = training_step(&b.finish().unwrap(), &TrainOptions { skip_non_finite: true, ..sgd(0.0) }).unwrap();
    let (state, value) = step.updates().iter().find(|(state, _)| step.node(*state).name == "x").unwrap();
    assert_eq!(*value, (*state).into());
}

#[test]
fn an_infinite_gradient_makes_the_others_0_where_norms_are_clipped() {
    // as torch.nn.utils.clip_grad_norm_: the norm is infinite, and the factor 0
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[2])).unwrap();
    let [w, v] = ["w", "v"].map(|name| b.parameter(name, f32s(&[2])).unwrap());
    let y = b.mul(x, w).unwrap();
    let y = b.add(y, v).unwrap();
    let loss = b.sum(y, &[0]).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let start = ["w", "v"].map(|name| (name.to_owned(), numbers(&[2], |_| 0.5)));
    let options = TrainOptions { clip_norm: Some(1.0), ..sgd(1.0) };
    let mut trainer = OnReference::new(&graph, &Named::from(start), &options, true);
    let x = numbers(&[2], |i| [f64::INFINITY, 3.0][i]);
    assert_eq!(trainer.step(&Named::from([("x".to_owned(), x)]))["grad_norm"].data, [f64::INFINITY]);
    assert_eq!(trainer.parameter("v"), [0.5; 2]);
    let w = trainer.parameter("w");
    assert!(w[0].is_nan() && w[1] == 0.5, "{w:?}");
}

#[test]
fn momentum_and_nesterov_are_pytorchs() {
    // the loss is 3·w, so that every gradient is 3
    let mut b = Builder::new();
    let w = b.parameter("w", f32s(&[1])).unwrap();
    let scaled = b.scale(w, 3.0).unwrap();
    let loss = b.sum(scaled, &[0]).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let start = Named::from([("w".to_owned(), numbers(&[1], |_| 1.0))]);
    // torch.optim.SGD(lr=0.1, momentum=0.5, weight_decay=0.25) in f64
    for (nesterov, expected) in [(false, [0.675, 0.195_625]), (true, [0.5125, -0.037_968_75])] {
        let optimiser = Optimiser::Sgd { momentum: 0.5, nesterov, weight_decay: 0.25 };
        let mut trainer = OnReference::new(&graph, &start, &TrainOptions { optimiser, ..sgd(0.1) }, true);
        for expected in expected {
            trainer.step(&Named::new());
            assert_near("w", &trainer.parameter("w"), &[expected], 1e-7);
        }
    }
}

#[test]
fn errors_say_what_was_expected_what_came_and_what_to_do() {
    let graph = mlp(4, LossReduction::Mean);
    let error = |graph: &Graph, options: TrainOptions| training_step(graph, &options).unwrap_err().to_string();
    let defaults = TrainOptions::default;
    assert_eq!(
        error(&Dnn::new(DnnConfig::square(4, 2)).build(3).unwrap(), defaults()),
        "the graph has no output \"loss\" to train on; its outputs are: output; build it with build_training, or name \
         the scalar so"
    );
    let mut b = Builder::new();
    let w = b.parameter("w", f32s(&[2])).unwrap();
    b.output("loss", w).unwrap();
    assert_eq!(
        error(&b.finish().unwrap(), defaults()),
        "output \"loss\" is f32 (2), expected f32 (); reduce it with sum or mean over all its axes"
    );
    let mut b = Builder::new();
    let w = b.parameter("w", TensorType::new(DType::F16, [])).unwrap();
    b.output("loss", w).unwrap();
    assert_eq!(error(&b.finish().unwrap(), defaults()), "output \"loss\" is f16 (), expected f32 (); cast it to f32");
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[])).unwrap();
    b.output("loss", x).unwrap();
    assert_eq!(
        error(&b.finish().unwrap(), defaults()),
        "no parameter is trained: the loss is made of none; build it with b.parameter(…) for what is to be trained"
    );
    let named = |output: &str, state: &str| {
        let mut b = Builder::new();
        let w = b.parameter("w", f32s(&[2])).unwrap();
        let s = b.state(state, f32s(&[2])).unwrap();
        let (loss, next) = (b.sum(w, &[0]).unwrap(), b.add(s, w).unwrap());
        b.output("loss", loss).unwrap();
        b.output(output, s).unwrap();
        b.update(s, next).unwrap();
        b.finish().unwrap()
    };
    assert!(training_step(&named("sum", "s"), &defaults()).is_ok());
    let advice = "give it another in the forward graph";
    assert_eq!(
        error(&named("skipped", "s"), defaults()),
        format!("output \"skipped\" has the name of a training step's own output; {advice}")
    );
    assert_eq!(
        error(&named("sum", "good_steps"), defaults()),
        format!("input \"good_steps\" has the name of a training step's own state; {advice}")
    );
    let mut b = Builder::new();
    let scale = b.parameter("loss_scale", f32s(&[])).unwrap();
    b.output("loss", scale).unwrap();
    assert_eq!(
        error(&b.finish().unwrap(), defaults()),
        format!("parameter \"loss_scale\" has the name of a training step's own state; {advice}")
    );
    assert_eq!(
        error(&named("sum", "w"), defaults()),
        format!("input \"w\" has the name of a training step's own state, a parameter's; {advice}")
    );
    let groups = vec![Group::frozen(Names::exactly(["layers.0.wieght"]))];
    assert_eq!(
        error(&graph, TrainOptions { groups, ..defaults() }),
        "a group names parameters that the graph does not have: layers.0.wieght; it has: layers.0.bias, \
         layers.0.weight, layers.2.bias, layers.2.weight"
    );
    let groups = vec![Group::frozen(Names::within("blocks"))];
    assert_eq!(
        error(&graph, TrainOptions { groups, ..defaults() }),
        "a group names parameters that the graph does not have: within blocks; it has: layers.0.bias, \
         layers.0.weight, layers.2.bias, layers.2.weight"
    );
    let groups = vec![Group::frozen(Names::All)];
    assert_eq!(
        error(&graph, TrainOptions { groups, ..defaults() }),
        "no parameter is trained: 4 parameters, all frozen; leave one out of the frozen groups"
    );
    assert_eq!(
        error(&graph, TrainOptions { micro_batches: 0, ..defaults() }),
        "micro_batches is 0, expected at least 1"
    );
    assert_eq!(
        error(&graph, TrainOptions { clip_norm: Some(0.0), ..defaults() }),
        "clip_norm is 0, expected a finite number above 0, or None"
    );
    let optimiser = Optimiser::Adam { beta1: 0.9, beta2: 1.0, eps: 1e-8, weight_decay: 0.0 };
    assert_eq!(
        error(&graph, TrainOptions { optimiser, ..defaults() }),
        "beta2 is 1, expected at least 0 and less than 1"
    );
    let optimiser = Optimiser::Sgd { momentum: 0.0, nesterov: true, weight_decay: 0.0 };
    assert_eq!(
        error(&graph, TrainOptions { optimiser, ..defaults() }),
        "nesterov is true, expected false where momentum is 0"
    );
    let learning_rate = Schedule::constant(f64::NAN);
    assert_eq!(
        error(&graph, TrainOptions { learning_rate, ..defaults() }),
        "learning_rate is NaN, expected a number that f32 holds, at least 0"
    );
    assert_eq!(
        error(&graph, TrainOptions { learning_rate: Schedule::constant(1e39), ..defaults() }),
        format!("learning_rate is {}, expected a number that f32 holds, at least 0", 1e39)
    );
    let groups = vec![Group { rate_scale: Some(1e38), ..Group::of(Names::All) }];
    assert_eq!(
        error(&graph, TrainOptions { learning_rate: Schedule::constant(10.0), groups, ..defaults() }),
        format!("rate_scale is {}, expected a number, at least 0, whose product with the rate f32 holds", 1e38f32)
    );
    let half = Dnn::new(DnnConfig::square(4, 2)).with_dtype(DType::F16).build_training(3, Loss::CrossEntropy).unwrap();
    assert_eq!(
        error(&half, defaults()),
        "parameter \"layers.0.weight\" is f16, expected f32: training keeps weights in f32; freeze it or build the \
         model in f32"
    );
}
