//! The trainer on the adapter: against the reference and PyTorch, one submit a step or for many, checkpoints, limits,
//! memory, and texts of errors.

mod device;
mod trained;

use device::{Counts, own_session, refs, session};
use kiln::graph::{Builder, DType, Graph, TensorType, Unary, ValueId};
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use kiln::train::{Group, Names, Optimiser, Schedule, TrainOptions};
use kiln::trainer::{StepReport, Trainer};
use std::collections::BTreeMap;
use trained::{Named, OnReference};

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

fn linear(b: &mut Builder, name: &str, x: ValueId, outputs: usize) -> ValueId {
    let inputs = b.shape(x).last();
    let weight = b.parameter(&format!("{name}.weight"), f32s(&[outputs, inputs])).unwrap();
    let bias = b.parameter(&format!("{name}.bias"), f32s(&[outputs])).unwrap();
    b.linear(x, weight, Some(bias)).unwrap()
}

/// A small network of tanh with squared errors.
fn network(rows: usize) -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[rows, 5])).unwrap();
    let wanted = b.input("wanted", f32s(&[rows, 3])).unwrap();
    let y = linear(&mut b, "layers.0", x, 33);
    let y = b.unary(Unary::Tanh, y).unwrap();
    let y = linear(&mut b, "layers.1", y, 3);
    let loss = b.mse(y, wanted).unwrap();
    b.output("loss", loss).unwrap();
    b.finish().unwrap()
}

fn numbers(dims: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = (0..dims.iter().product()).map(f).collect();
    Tensor::from_f64(f32s(dims), &values)
}

fn params(graph: &Graph) -> Named {
    let value = |seed: usize, i: usize| ((seed * 31 + i * 7) as f64).sin() * 0.4;
    let parts = graph.layout.iter().flat_map(|(_, s)| &s.parts).enumerate();
    parts.map(|(seed, p)| (p.name.clone(), numbers(p.shape.dims(), |i| value(seed, i)))).collect()
}

/// The batch of a step.
fn batch(rows: usize, step: usize) -> Named {
    let x = numbers(&[rows, 5], |i| ((i + 11 * step) as f64 * 0.37).sin());
    let wanted = numbers(&[rows, 3], |i| ((i + step) as f64 * 0.61).cos());
    Named::from([("x".into(), x), ("wanted".into(), wanted)])
}

fn options() -> TrainOptions {
    let learning_rate = Schedule::constant(1e-2).warm_up(3).cosine(12, 1e-3);
    TrainOptions { learning_rate, ..TrainOptions::default() }
}

fn trainer(session: &Session, graph: &Graph, options: &TrainOptions) -> Trainer {
    session.trainer(graph, &params(graph), options, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn losses(reports: &[StepReport]) -> Vec<u32> {
    reports.iter().map(|r| r.loss.to_bits()).collect()
}

/// As bits, so that NaN is itself.
fn bytes(parameters: &Named) -> BTreeMap<&str, &[u8]> {
    parameters.iter().map(|(name, t)| (name.as_str(), t.bytes())).collect()
}

fn assert_parameters(what: &str, trainer: &Trainer, reference: &OnReference, tolerance: f64) {
    for (name, got) in trainer.parameters().unwrap() {
        device::assert_numbers(&format!("{what}: {name}"), &got.to_f64(), &reference.parameter(&name), tolerance);
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
fn every_optimiser_steps_as_on_the_reference_in_every_mode() {
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
                device::assert_numbers(&format!("{optimiser}, {mode}"), &[f64::from(report.loss)], &[*expected], 1e-5);
            }
            assert_parameters(&format!("{optimiser}, {mode}"), &trainer, &reference, 1e-5);
        }
    }
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
fn accumulated_micro_batches_are_one_batch_in_one_submit() {
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
        device::assert_numbers(&name, &b[&name].to_f64(), &a.to_f64(), 1e-6);
    }
}

#[test]
fn training_goes_on_from_a_checkpoint_to_the_bit() {
    let Some(session) = session() else { return };
    let graph = network(4);
    for optimiser in [Optimiser::adam(), Optimiser::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }] {
        let groups = vec![Group::frozen(Names::exactly(["layers.0.bias"]))];
        let options = TrainOptions { optimiser, groups, seed: 7, ..options() };
        let run = |trainer: &Trainer, steps: std::ops::Range<usize>| {
            let batches: Vec<Named> = steps.map(|step| batch(4, step)).collect();
            trainer.run_steps(&batches.iter().map(refs).collect::<Vec<_>>()).unwrap()
        };
        let straight = trainer(session, &graph, &options);
        run(&straight, 0..5);
        let expected = run(&straight, 5..10);
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let first = trainer(session, &graph, &options);
        run(&first, 0..5);
        first.save(&folder).unwrap();
        // saving changes nothing, and what is there is replaced
        run(&first, 5..6);
        first.save(&folder).unwrap();
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        // other weights and another seed at first
        let zeros = params(&graph).into_iter().map(|(n, t)| (n, Tensor::zeros(t.ty().clone()))).collect::<Named>();
        let other = TrainOptions { seed: 8, ..options.clone() };
        let second = session.trainer(&graph, &zeros, &other, &CompileOptions::default()).unwrap();
        second.load(&folder).unwrap();
        assert_eq!(second.steps(), 6);
        assert_eq!(run(&second, 6..10), expected[1..]);
        assert_eq!(bytes(&second.parameters().unwrap()), bytes(&straight.parameters().unwrap()));
        assert_eq!(second.parameters().unwrap()["layers.0.bias"], params(&graph)["layers.0.bias"]);
    }
}
