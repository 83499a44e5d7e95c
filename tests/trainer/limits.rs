//! Steps that are clipped, skipped or refused, memory over many steps, and texts of errors.

use super::device::{assert_numbers, own_session, refs, session};
use super::trained::{Golden, Named, OnReference, golden_options};
use super::{assert_parameters, batch, bytes, f32s, network, numbers, options, params, trainer};
use kiln::graph::{Builder, DType, Graph, TensorType};
use kiln::model::Loss;
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;
use kiln::train::{Optimiser, Schedule, TrainOptions};

#[test]
fn g13_a_step_with_a_gradient_that_is_not_finite_is_skipped_to_the_bit() {
    let Some(session) = session() else { return };
    let graph = network(4);
    for optimiser in [Optimiser::adam(), Optimiser::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 }] {
        for clip_norm in [None, Some(0.1)] {
            let skipping = TrainOptions { optimiser, clip_norm, skip_non_finite: true, ..options() };
            let trainer = trainer(session, &graph, &skipping);
            let mut reference = OnReference::new(&graph, &params(&graph), &skipping, true);
            for (input, bad) in [("x", f64::NAN), ("wanted", f64::INFINITY), ("wanted", f64::NAN)] {
                let report = trainer.step(&refs(&batch(4, 0))).unwrap();
                let expected = reference.step(&batch(4, 0));
                assert!(!report.skipped && report.grad_norm.is_some() == clip_norm.is_some());
                assert_numbers("loss", &[f64::from(report.loss)], &expected["loss"].data, 1e-5);
                let before = trainer.parameters().unwrap();
                let states: Vec<String> = trainer.program().states().map(String::from).collect();
                let kept = |name: &&String| *name != "skipped";
                let read = || -> Vec<Tensor> {
                    states.iter().filter(kept).map(|s| trainer.program().read_state(s).unwrap()).collect()
                };
                let moments = read();
                let mut broken = batch(4, 1);
                let dims = broken[input].shape().dims().to_vec();
                broken.insert(input.into(), numbers(&dims, |i| if i == 3 { bad } else { 0.5 }));
                let report = trainer.step(&refs(&broken)).unwrap();
                reference.step(&broken);
                assert!(report.skipped && !report.loss.is_finite());
                assert_eq!(bytes(&trainer.parameters().unwrap()), bytes(&before));
                assert_eq!(read(), moments);
            }
            let count = trainer.program().read_state("skipped").unwrap();
            assert_eq!(count.bytes(), 3u32.to_le_bytes());
            let report = trainer.step(&refs(&batch(4, 2))).unwrap();
            reference.step(&batch(4, 2));
            assert!(!report.skipped);
            assert_parameters(&optimiser.to_string(), &trainer, &reference, 1e-5);
        }
    }
}

/// A loss whose gradients are `scale` in size: the sum of w · x · scale.
fn steep(scale: f32) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[300])).unwrap();
    let w = b.parameter("w", f32s(&[300])).unwrap();
    let y = b.mul(w, x).unwrap();
    let y = b.scale(y, scale).unwrap();
    let loss = b.sum(y, &[0]).unwrap();
    b.output("loss", loss).unwrap();
    b.finish().unwrap()
}

#[test]
fn a_norm_whose_squares_overflow_or_vanish_is_right() {
    let Some(session) = session() else { return };
    for scale in [1e30, 1e-30, 1.0, 0.0] {
        let graph = steep(scale);
        let zero = Named::from([("w".to_owned(), numbers(&[300], |_| 0.0))]);
        let x = Named::from([("x".to_owned(), numbers(&[300], |i| (i as f64 * 0.7).sin()))]);
        let clipped = TrainOptions {
            optimiser: Optimiser::sgd(),
            learning_rate: Schedule::constant(1.0),
            clip_norm: Some(2.0),
            ..TrainOptions::default()
        };
        let trainer = session.trainer(&graph, &zero, &clipped, &CompileOptions::default()).unwrap();
        let report = trainer.step(&refs(&x)).unwrap();
        let expected = x["x"].to_f64().iter().map(|v| v * v).sum::<f64>().sqrt() * f64::from(scale);
        let got = f64::from(report.grad_norm.unwrap());
        assert!((got - expected).abs() <= 1e-6 * expected, "{scale}: {got}, {expected}");
        let moved: f64 = trainer.parameters().unwrap()["w"].to_f64().iter().map(|v| v * v).sum::<f64>().sqrt();
        let factor = (2.0 / (expected + 1e-6)).min(1.0);
        assert!((moved - expected * factor).abs() <= 1e-5 * (expected * factor), "{scale}: {moved}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_that_names_the_step() {
    let Some(session) = session() else { return };
    let trainer = trainer(session, &network(4), &options());
    let mut broken = batch(4, 1);
    broken.insert("x".into(), numbers(&[4, 5], |_| f64::NAN));
    let good = batch(4, 0);
    let error = trainer.run_steps(&[refs(&good), refs(&broken), refs(&good)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "step 1: the loss is NaN at learning rate 6.666666666666667e-3; lower the rate, clip gradients with clip_norm, \
         or leave such steps out with skip_non_finite"
    );
    assert_eq!(trainer.steps(), 3);
}

#[test]
fn inputs_are_checked_before_a_step() {
    let Some(session) = session() else { return };
    let simple = trainer(session, &network(4), &options());
    let good = batch(4, 0);
    let scalars = Tensor::f32([3], &[0.0; 3]);
    let error = simple.step(&[refs(&good), vec![("optimiser.scalars", &scalars)]].concat()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input \"optimiser.scalars\" is the trainer's own to give; the program's inputs are: x f32 (4, 5), wanted f32 (4, 3)"
    );
    let error = simple.step(&refs(&good)[1..]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input \"wanted\" is missing; the program's inputs are: x f32 (4, 5), wanted f32 (4, 3)"
    );
    let error = simple.profile(&refs(&good)[1..]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input \"wanted\" is missing; the program's inputs are: x f32 (4, 5), wanted f32 (4, 3)"
    );
    let error = simple.step(&[refs(&good), refs(&good)].concat()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input \"wanted\" is given twice; the program's inputs are: x f32 (4, 5), wanted f32 (4, 3)"
    );
    assert_eq!(simple.steps(), 0, "a step that is refused does not count");
    let micro = TrainOptions { micro_batches: 2, ..options() };
    let error = trainer(session, &network(4), &micro).step(&refs(&good)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input \"x\": a step of 2 micro-batches takes f32 (2, 4, 5), got f32 (4, 5); put 2 batches of (4, 5) one after the \
         other along a leading dimension"
    );
    // targets are indices, also through micro-batches
    let golden = Golden::open("gptlite_tiny", Loss::CrossEntropy);
    let micro = TrainOptions { micro_batches: 2, ..golden_options() };
    let trainer = session.trainer(&golden.forward, &golden.params, &micro, &CompileOptions::default()).unwrap();
    for (input, reader) in [("targets", "micro.1.loss.cross_entropy"), ("tokens", "micro.1.token_embedding_table")] {
        let double = |(name, t): (&String, &Tensor)| {
            let dims = [&[2], t.shape().dims()].concat();
            let mut bytes = [t.bytes(), t.bytes()].concat();
            if name == input {
                let last = bytes.len() - 4;
                bytes[last..].copy_from_slice(&65i32.to_le_bytes());
            }
            (name.clone(), Tensor::from_bytes(TensorType::new(DType::I32, dims), bytes))
        };
        let batch: Named = golden.batch.iter().map(double).collect();
        let error = trainer.step(&refs(&batch)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("input \"{input}\": element 191 is 65, but \"")), "{error}");
        assert!(error.contains(&reader[8..]) && error.contains("0 to 64"), "{error}");
    }
}

#[test]
fn a_thousand_steps_take_no_more_memory() {
    let Some(session) = own_session() else { return };
    let trainer = trainer(&session, &network(4), &options());
    let batches: Vec<Named> = (0..5).map(|step| batch(4, step)).collect();
    let all: Vec<_> = batches.iter().map(refs).collect();
    let some = |steps: usize| {
        for _ in 0..steps / 10 {
            trainer.run_steps(&all).unwrap();
            all.iter().for_each(|b| drop(trainer.step(b).unwrap()));
        }
        session.gpu().allocated_bytes()
    };
    let after_100 = some(100);
    let after_1000 = some(900);
    assert_eq!(trainer.steps(), 1000);
    assert_eq!(after_1000, after_100);
}
