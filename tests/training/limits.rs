//! Clipping, skipping, momentum, and texts of errors.

use super::trained::{Named, OnReference};
use super::{assert_near, batch, f32s, mlp, numbers, params, sgd};
use kiln::graph::{Builder, DType, Graph, LossReduction};
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
        "output \"loss\" is f32 (2), expected f32 (); reduce it with mean or sum"
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
        "learning_rate is NaN, expected a finite number, at least 0"
    );
    let half = Dnn::new(DnnConfig::square(4, 2)).with_dtype(DType::F16).build_training(3, Loss::CrossEntropy).unwrap();
    assert_eq!(
        error(&half, defaults()),
        "parameter \"layers.0.weight\" is f16, expected f32: training keeps weights in f32; freeze it or build the \
         model in f32"
    );
}
