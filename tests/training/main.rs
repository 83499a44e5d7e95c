//! Training steps on the reference: PyTorch's ten steps, micro-batches, groups, limits, losses, f16, texts of errors.

#[path = "../trained/mod.rs"]
mod trained;

mod half;
mod limits;
mod losses;

use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, CrossEntropy, DType, Graph, LossReduction, Part, TensorType, ValueId};
use kiln::lift::lift;
use kiln::model::{Gptlite, GptliteConfig, Loss};
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;
use kiln::train::{Group, Names, Optimiser, Schedule, TrainOptions, training_step};
use kiln::trainer::compile_training;
use trained::{GOLDENS, Golden, Named, OnReference, golden_options};

#[test]
fn ten_steps_of_adam_are_pytorchs_lifted_and_as_written() {
    for name in GOLDENS {
        for (loss, lifted) in [(Loss::CrossEntropy, true), (Loss::CrossEntropy, false), (Loss::Seed, true)] {
            let golden = Golden::open(name, loss);
            let mut trainer = OnReference::new(&golden.forward, &golden.params, &golden_options(), lifted);
            for (step, expected) in golden.losses.iter().enumerate() {
                let got = trainer.loss(&golden.batch);
                assert!((got - expected).abs() <= 1e-6 * expected, "{name}, {loss}, step {step}: {got}, {expected}");
            }
            if loss == Loss::CrossEntropy {
                let (off, parameter) = golden.furthest(|name| trainer.parameter(name));
                println!("{name}: {parameter} is off by {off:.1e} of its way");
                assert!(off <= 1e-3, "{name}: {parameter} is off by {off} of its way");
            }
        }
    }
}

/// A small MLP with a loss, written out.
fn mlp(rows: usize, reduction: LossReduction) -> Graph {
    let mut b = Builder::new();
    let x = b.input("input", f32s(&[rows, 3])).unwrap();
    let targets = b.input("targets", TensorType::new(DType::I32, [rows])).unwrap();
    let y = linear(&mut b, "layers.0", x, 5);
    let y = b.relu(y).unwrap();
    let y = linear(&mut b, "layers.2", y, 4);
    let options = CrossEntropy { reduction, ignore_index: Some(-100), ..CrossEntropy::default() };
    let loss = b.cross_entropy(y, targets, options).unwrap();
    b.output("logits", y).unwrap();
    b.output("loss", loss).unwrap();
    b.finish().unwrap()
}

fn linear(b: &mut Builder, name: &str, x: ValueId, outputs: usize) -> ValueId {
    let inputs = b.shape(x).last();
    let weight = b.parameter(&format!("{name}.weight"), f32s(&[outputs, inputs])).unwrap();
    let bias = b.parameter(&format!("{name}.bias"), f32s(&[outputs])).unwrap();
    b.linear(x, weight, Some(bias)).unwrap()
}

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

/// Parameters of any graph, the same for the same name.
fn params(graph: &Graph) -> Named {
    let value = |name: &str, i: usize| (name.len() as f64 + 1.7 * i as f64).sin() / 2.0;
    let tensor = |s: &Part| {
        let values: Vec<f64> = (0..s.shape.elements()).map(|i| value(&s.name, i)).collect();
        (s.name.clone(), Tensor::from_f64(f32s(s.shape.dims()), &values))
    };
    graph.layout.iter().flat_map(|(_, s)| &s.parts).map(tensor).collect()
}

fn numbers(dims: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = (0..dims.iter().product()).map(f).collect();
    Tensor::from_f64(f32s(dims), &values)
}

fn batch(rows: usize) -> Named {
    let input = numbers(&[rows, 3], |i| (i as f64 * 0.9).cos());
    let targets: Vec<i32> = (0..rows as i32).map(|i| (i * 7 + 1) % 4).collect();
    Named::from([("input".into(), input), ("targets".into(), Tensor::i32([rows], &targets))])
}

/// The same values in other shapes.
fn reshaped(batch: &Named, lead: &[usize]) -> Named {
    let reshape = |(name, t): (&String, &Tensor)| {
        let dims = [lead, &t.shape().dims()[1..]].concat();
        (name.clone(), Tensor::from_bytes(TensorType::new(t.dtype(), dims), t.bytes().to_vec()))
    };
    batch.iter().map(reshape).collect()
}

fn sgd(rate: f64) -> TrainOptions {
    TrainOptions { optimiser: Optimiser::sgd(), learning_rate: Schedule::constant(rate), ..TrainOptions::default() }
}

fn assert_near(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let near = got.iter().zip(expected).all(|(g, e)| (g - e).abs() <= tolerance);
    assert!(near, "{what}: {got:?}, expected {expected:?}");
}

#[test]
fn g18_two_micro_batches_are_one_batch() {
    let whole = mlp(8, LossReduction::Mean);
    let half = mlp(4, LossReduction::Mean);
    let options = TrainOptions { learning_rate: Schedule::constant(1e-2), ..TrainOptions::default() };
    let mut one = OnReference::new(&whole, &params(&whole), &options, true);
    let two_of_them = TrainOptions { micro_batches: 2, ..options };
    let mut two = OnReference::new(&half, &params(&half), &two_of_them, true);
    for step in 0..3 {
        let (a, b) = (one.step(&batch(8)), two.step(&reshaped(&batch(8), &[2, 4])));
        assert_near(&format!("loss of step {step}"), &b["loss"].data, &a["loss"].data, 1e-12);
        assert_eq!(b["logits"].shape.dims(), [2, 4, 4]);
        assert_near("logits", &b["logits"].data, &a["logits"].data, 1e-12);
    }
    for name in params(&whole).keys() {
        assert_near(name, &two.parameter(name), &one.parameter(name), 1e-12);
    }
}

#[test]
fn each_micro_batch_s_backward_pass_follows_its_forward_pass() {
    let options = TrainOptions { micro_batches: 3, ..TrainOptions::default() };
    let graph = training_step(&mlp(4, LossReduction::Mean), &options).unwrap();
    let at = |part: &str| graph.nodes().filter(|(_, n)| n.name.contains(part)).map(|(id, _)| id.0).collect::<Vec<_>>();
    for micro in 0..2 {
        let (this, next) = (at(&format!("micro.{micro}.")), at(&format!("micro.{}.", micro + 1)));
        assert!(this.iter().max() < next.iter().min(), "{graph}");
    }
    // one sum at a time: each is made before the gradient of the layer before it
    assert_eq!(at("grad.sum").len(), 2 * 4);
    let first_sum = at("grad.sum")[0];
    let last_of_second = at("micro.1.layers.0").into_iter().max().unwrap();
    assert!(first_sum < last_of_second, "{graph}");
}

#[test]
fn a_state_of_the_forward_graph_goes_from_micro_batch_to_micro_batch() {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[2])).unwrap();
    let seen = b.state("seen", f32s(&[])).unwrap();
    let w = b.parameter("w", f32s(&[2])).unwrap();
    let y = b.mul(x, w).unwrap();
    let sum = b.sum(y, &[0]).unwrap();
    let next = b.add(seen, sum).unwrap();
    b.update(seen, next).unwrap();
    b.output("loss", sum).unwrap();
    b.output("seen before", seen).unwrap();
    let graph = b.finish().unwrap();
    let w = Named::from([("w".to_owned(), numbers(&[2], |_| 1.0))]);
    let mut trainer = OnReference::new(&graph, &w, &TrainOptions { micro_batches: 2, ..sgd(0.0) }, true);
    let batch = Named::from([("x".to_owned(), numbers(&[2, 2], |i| i as f64))]);
    assert_eq!(trainer.step(&batch)["seen before"].data, [0.0, 1.0]);
    assert_eq!(trainer.states["seen"].data, [6.0]);
    assert_eq!(trainer.step(&batch)["seen before"].data, [6.0, 7.0]);
}

#[test]
fn no_gradient_goes_through_a_state_to_the_micro_batch_before() {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[])).unwrap();
    let s = b.state("s", f32s(&[])).unwrap();
    let w = b.parameter("w", f32s(&[])).unwrap();
    let next = b.mul(w, x).unwrap();
    b.update(s, next).unwrap();
    let loss = b.mul(w, s).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let w = Named::from([("w".to_owned(), numbers(&[], |_| 1.0))]);
    let mut trainer = OnReference::new(&graph, &w, &TrainOptions { micro_batches: 2, ..sgd(1.0) }, true);
    let batch = Named::from([("x".to_owned(), numbers(&[2], |i| [3.0, 5.0][i]))]);
    // s is 0 and then 3, as it would be in two steps
    assert_eq!(trainer.loss(&batch), 1.5);
    assert_eq!(trainer.parameter("w"), [-0.5]);
    // a state that takes the parameter itself
    let mut b = Builder::new();
    let s = b.state("s", f32s(&[])).unwrap();
    let (x, w) = (b.input("x", f32s(&[])).unwrap(), b.parameter("w", f32s(&[])).unwrap());
    b.update(s, w).unwrap();
    let y = b.mul(x, w).unwrap();
    let loss = b.mul(y, s).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let w = Named::from([("w".to_owned(), numbers(&[], |_| 2.0))]);
    let mut trainer = OnReference::new(&graph, &w, &TrainOptions { micro_batches: 2, ..sgd(1.0) }, true);
    // 0 and 5 · s with s = 2
    trainer.step(&batch);
    assert_eq!(trainer.parameter("w"), [2.0 - 5.0]);
}

#[test]
fn a_parameter_without_numbers_is_trained() {
    let mut b = Builder::new();
    let x = b.input("x", f32s(&[2, 0])).unwrap();
    let (w, bias) = (b.parameter("w", f32s(&[4, 0])).unwrap(), b.parameter("b", f32s(&[4])).unwrap());
    let y = b.linear(x, w, Some(bias)).unwrap();
    let loss = b.mean(y, &[0, 1]).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.finish().unwrap();
    let w = Named::from([("w".to_owned(), numbers(&[4, 0], |_| 1.0)), ("b".to_owned(), numbers(&[4], |_| 1.0))]);
    let mut trainer = OnReference::new(&graph, &w, &sgd(1.0), true);
    assert_eq!(trainer.loss(&Named::from([("x".to_owned(), numbers(&[2, 0], |_| 1.0))])), 1.0);
    assert_eq!(trainer.parameter("b"), [0.75; 4]);
}

#[test]
fn updates_come_directly_after_the_last_reader_of_the_weight() {
    let golden = Golden::open("dnn_deep_small", Loss::CrossEntropy);
    let graph = training_step(&golden.forward, &golden_options()).unwrap();
    let at = |name: &str| graph.nodes().filter(|(_, n)| n.name.starts_with(name)).map(|(id, _)| id.0).max().unwrap();
    for layer in 1..12 {
        let update = at(&format!("adam.layers.{}.weight", 2 * layer));
        let next = at(&format!("layers.{}.grad", 2 * (layer - 1)));
        assert!(update < next, "layer {layer} is updated at {update}, the one before ends at {next}\n{graph}");
        assert!(at(&format!("layers.{}.grad.dx", 2 * layer)) < update);
    }
}

#[test]
fn groups_freeze_scale_and_do_not_decay_also_within_a_packed_storage() {
    let golden = Golden::open("gptlite_tiny", Loss::CrossEntropy);
    let frozen = "blocks.1.sa.heads.2.query.weight";
    let scaled = "blocks.0.sa.heads.0.key.weight";
    let options = TrainOptions {
        optimiser: Optimiser::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.1 },
        groups: vec![
            Group::no_decay(),
            Group::frozen(Names::exactly([frozen])),
            Group::scaled(Names::exactly([scaled]), 0.25),
            Group::frozen(Names::within("lm_head")),
        ],
        ..sgd(1.0)
    };
    let plain = TrainOptions { groups: Vec::new(), optimiser: Optimiser::sgd(), ..sgd(1.0) };
    let train = |options: &TrainOptions, lifted| {
        let mut trainer = OnReference::new(&golden.forward, &golden.params, options, lifted);
        trainer.loss(&golden.batch);
        trainer
    };
    let (lifted, written, plain) = (train(&options, true), train(&options, false), train(&plain, true));
    assert!(lifted.graph.layout.iter().any(|(_, s)| s.parts.iter().any(|p| p.name == frozen) && s.parts.len() > 1));
    for (name, start) in &golden.params {
        let start = start.to_f64();
        assert_near(name, &lifted.parameter(name), &written.parameter(name), 1e-12);
        let expected: Vec<f64> = plain
            .parameter(name)
            .iter()
            .zip(&start)
            .map(|(new, old)| {
                let gradient = old - new;
                let vector = golden.params[name].shape().rank() < 2;
                match name.as_str() {
                    n if n == frozen || n == "lm_head.weight" => *old,
                    n if n == scaled => old - 0.25 * (gradient + f64::from(0.1f32) * old),
                    _ if vector => *new,
                    _ => old - (gradient + f64::from(0.1f32) * old),
                }
            })
            .collect();
        assert_near(name, &lifted.parameter(name), &expected, 1e-12);
    }
    assert!(lifted.states.contains_key("blocks.1.sa.qkv.weight") && !lifted.states.contains_key("lm_head.weight"));
}

#[test]
fn g06_tied_weights_get_the_sum_of_both_gradients() {
    let model = |tied: bool| {
        let mut b = Builder::new();
        let tokens = b.input("tokens", TensorType::new(DType::I32, [4])).unwrap();
        let table = b.parameter("wte", f32s(&[5, 3])).unwrap();
        let head = if tied { table } else { b.parameter("hea", f32s(&[5, 3])).unwrap() };
        let x = b.embedding(table, tokens).unwrap();
        let logits = b.linear(x, head, None).unwrap();
        let loss = b.cross_entropy(logits, tokens, CrossEntropy::default()).unwrap();
        b.output("loss", loss).unwrap();
        b.finish().unwrap()
    };
    let batch = Named::from([("tokens".to_owned(), Tensor::i32([4], &[0, 3, 3, 1]))]);
    let gradient = |graph: &Graph| {
        let start = params(graph);
        let mut trainer = OnReference::new(graph, &start, &sgd(1.0), true);
        trainer.loss(&batch);
        let of = |name: &str| -> Vec<f64> {
            start[name].to_f64().iter().zip(trainer.parameter(name)).map(|(old, new)| old - new).collect()
        };
        start.keys().map(|name| of(name)).collect::<Vec<_>>()
    };
    let (tied, untied) = (gradient(&model(true)), gradient(&model(false)));
    let sum: Vec<f64> = untied[0].iter().zip(&untied[1]).map(|(a, b)| a + b).collect();
    assert!(untied.iter().all(|g| g.iter().any(|v| *v != 0.0)));
    assert_near("tied", &tied[0], &sum, 1e-12);
}

#[test]
fn a_graph_that_was_lifted_before_is_trained_as_one_that_was_not() {
    // storages that were packed stay in its layout, read by nothing
    let forward = Gptlite::new(GptliteConfig::new(11, 2, 16, 2, 8)).build_training(2, 8, Loss::CrossEntropy).unwrap();
    let (lifted, _) = lift(&forward).unwrap();
    let trained = |graph: &Graph| {
        let (options, caps) = (CompileOptions::default(), DeviceCaps::PORTABLE);
        let compiled = compile_training(graph, &TrainOptions::default(), &caps, &options).unwrap();
        compiled.graph.parameters().filter(|(_, node)| compiled.graph.is_state(*node)).count()
    };
    assert_eq!(trained(&lifted), trained(&forward));
}
