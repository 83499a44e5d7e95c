//! Steps one by one and many in a submit, in every mode, with every optimiser, over micro-batches.

use super::device::{Counts, assert_numbers, own_session, refs, session};
use super::trained::{Named, OnReference};
use super::{assert_parameters, batch, bytes, f32s, linear, losses, network, options, params, trainer};
use kiln::graph::Builder;
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;
use kiln::train::{Group, Optimiser, TrainOptions};
use kiln::trainer::StepReport;

#[test]
fn g19_steps_of_every_optimiser_overwrite_gradients_as_on_the_reference() {
    let Some(session) = session() else { return };
    let graph = network(7);
    let optimisers = [
        Optimiser::sgd(),
        Optimiser::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 },
        Optimiser::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 },
        Optimiser::adam(),
        Optimiser::adamw(0.1),
    ];
    for optimiser in optimisers {
        let options = TrainOptions { optimiser, groups: vec![Group::no_decay()], ..options() };
        let mut reference = OnReference::new(&graph, &params(&graph), &options, false);
        let expected: Vec<f64> = (0..3).map(|step| reference.loss(&batch(7, step))).collect();
        for mode in [Mode::Eager, Mode::Recorded, Mode::Fused] {
            let compile = CompileOptions { poison: true, ..CompileOptions::mode(mode) };
            let trainer = session.trainer(&graph, &params(&graph), &options, &compile).unwrap();
            for (step, expected) in expected.iter().enumerate() {
                let report = trainer.step(&refs(&batch(7, step))).unwrap();
                assert_eq!((report.step, report.learning_rate), (step as u64, options.learning_rate.at(step as u64)));
                assert_numbers(&format!("{optimiser}, {mode}"), &[f64::from(report.loss)], &[*expected], 1e-5);
            }
            assert_parameters(&format!("{optimiser}, {mode}"), &trainer, &reference, 1e-5);
        }
    }
}

#[test]
fn a_loss_that_is_declared_kept_is_read_all_the_same() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[2, 5])).unwrap();
    let wanted = b.input("wanted", f32s(&[2, 3])).unwrap();
    let y = linear(&mut b, "layer", x, 3);
    let loss = b.mse(y, wanted).unwrap();
    b.output_kept("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    assert!(trainer(session, &graph, &options()).step(&refs(&batch(2, 0))).unwrap().loss.is_finite());
}

#[test]
fn many_steps_are_one_submit_and_give_the_same_bits() {
    let Some(session) = own_session() else { return };
    let graph = network(4);
    let batches: Vec<Named> = (0..6).map(|step| batch(4, step)).collect();
    let single = trainer(&session, &graph, &options());
    let before = Counts::of(&session);
    let one_by_one: Vec<StepReport> = batches.iter().map(|b| single.step(&refs(b)).unwrap()).collect();
    let did = Counts::of(&session).since(before);
    assert_eq!((did.submits, did.uploads, did.passes), (6, 6, 6), "one of each a step");
    let together = trainer(&session, &graph, &options());
    let before = Counts::of(&session);
    let all = together.run_steps(&batches.iter().map(refs).collect::<Vec<_>>()).unwrap();
    let did_all = Counts::of(&session).since(before);
    assert_eq!((did_all.submits, did_all.uploads), (1, 1));
    assert_eq!((did_all.dispatches, did_all.bind_groups), (did.dispatches, 0));
    assert_eq!(losses(&all), losses(&one_by_one));
    assert_eq!(all, one_by_one);
    assert_eq!(bytes(&together.parameters().unwrap()), bytes(&single.parameters().unwrap()));
    assert_eq!((together.steps(), single.steps()), (6, 6));
    // several in flight, waited for in any order, in either form
    let first = together.submit_all(&[refs(&batches[0])]).unwrap();
    let second = together.submit_all(&[refs(&batches[1])]).unwrap();
    let second = pollster::block_on(second.finish()).unwrap();
    let first = first.wait().unwrap();
    assert_eq!((first[0].step, second[0].step), (6, 7));
    assert_eq!(first[0].loss.to_bits(), single.step(&refs(&batches[0])).unwrap().loss.to_bits());
    assert_eq!(together.run_steps(&[] as &[Vec<(&str, &Tensor)>]).unwrap(), []);
}

#[test]
fn a_split_submission_gives_the_same_bits() {
    let Some(session) = own_session() else { return };
    let graph = network(4);
    let batches: Vec<Named> = (0..3).map(|step| batch(4, step)).collect();
    let whole = trainer(&session, &graph, &options());
    let split = CompileOptions { max_dispatches_per_submit: Some(7), ..CompileOptions::default() };
    let split = session.trainer(&graph, &params(&graph), &options(), &split).unwrap();
    let all: Vec<_> = batches.iter().map(refs).collect();
    let expected = whole.run_steps(&all).unwrap();
    let before = Counts::of(&session);
    assert_eq!(split.run_steps(&all).unwrap(), expected);
    let did = Counts::of(&session).since(before);
    assert_eq!(did.submits, did.dispatches.div_ceil(7));
    assert_eq!(bytes(&split.parameters().unwrap()), bytes(&whole.parameters().unwrap()));
}

#[test]
fn g18_accumulated_micro_batches_are_one_batch_in_one_submit() {
    let Some(session) = own_session() else { return };
    let (whole, half) = (network(8), network(4));
    let one = trainer(&session, &whole, &options());
    let two = trainer(&session, &half, &TrainOptions { micro_batches: 2, ..options() });
    for step in 0..3 {
        let batch = batch(8, step);
        let halves: Named = batch
            .iter()
            .map(|(name, t)| {
                let dims = [&[2, 4], &t.shape().dims()[1..]].concat();
                (name.clone(), Tensor::from_bytes(f32s(&dims), t.bytes().to_vec()))
            })
            .collect();
        let expected = one.step(&refs(&batch)).unwrap();
        let before = Counts::of(&session);
        let got = two.step(&refs(&halves)).unwrap();
        let did = Counts::of(&session).since(before);
        assert_eq!((did.submits, did.passes, did.uploads), (1, 1, 1));
        assert!((got.loss - expected.loss).abs() <= 1e-6, "{} and {}", got.loss, expected.loss);
    }
    let (a, b) = (one.parameters().unwrap(), two.parameters().unwrap());
    for (name, a) in a {
        assert_numbers(&name, &b[&name].to_f64(), &a.to_f64(), 1e-6);
    }
}
