//! Training steps on the reference: PyTorch's ten steps, micro-batches, groups, limits, and texts of errors.

mod trained;

use kiln::graph::{Builder, CrossEntropy, DType, Graph, LossReduction, Node, Op, Part, TensorType, ValueId};
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};
use kiln::tensor::Tensor;
use kiln::train::{Group, LossScaling, Names, Optimiser, Precision, Schedule, TrainOptions, training_step};
use std::collections::BTreeMap;
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

#[test]
fn a_mean_counts_the_targets_that_are_not_ignored() {
    let loss = |targets: &[i32], smoothing: f32| {
        let mut b = Builder::new();
        let w = b.parameter("logits", f32s(&[3, 2])).unwrap();
        let t = b.input("targets", TensorType::new(DType::I32, [3])).unwrap();
        let options = CrossEntropy { ignore_index: Some(-100), label_smoothing: smoothing, ..CrossEntropy::default() };
        let loss = b.cross_entropy(w, t, options).unwrap();
        b.output("loss", loss).unwrap();
        let start = Named::from([("logits".to_owned(), Tensor::f32([3, 2], &[0.0, 1.0, 1.0, 0.0, 0.0, 1.0]))]);
        let mut trainer = OnReference::new(&b.finish().unwrap(), &start, &sgd(1.0), true);
        let batch = Named::from([("targets".to_owned(), Tensor::i32([3], targets))]);
        let value = trainer.loss(&batch);
        let change = start["logits"].to_f64().iter().zip(trainer.parameter("logits")).map(|(a, b)| a - b).collect();
        (value, change)
    };
    let (value, gradient): (f64, Vec<f64>) = loss(&[1, 0, -100], 0.0);
    assert_near("loss", &[value], &[0.313_261_69], 1e-8);
    assert_near("gradient", &gradient[4..], &[0.0, 0.0], 0.0);
    assert_near("gradient", &gradient[..1], &[0.268_941_42 / 2.0], 1e-8);
    // of none: 0, where PyTorch gives NaN
    assert_eq!(loss(&[-100; 3], 0.1), (0.0, vec![0.0; 6]));
    // one of two classes, smoothed: 0.9 · 0.3133 + 0.05 · (0.3133 + 1.3133) + …, as PyTorch's
    let (value, _) = loss(&[1, 0, -100], 0.2);
    assert_near("smoothed", &[value], &[0.8 * 0.313_261_69 + 0.1 * (0.313_261_69 + 1.313_261_69)], 1e-7);
}

#[test]
fn mean_squared_error_is_the_mean_of_squares() {
    let mut b = Builder::new();
    let w = b.parameter("w", f32s(&[2, 2])).unwrap();
    let x = b.input("x", f32s(&[2, 2])).unwrap();
    let loss = b.mse(w, x).unwrap();
    b.output("loss", loss).unwrap();
    let start = Named::from([("w".to_owned(), Tensor::f32([2, 2], &[1.0, 2.0, 3.0, 4.0]))]);
    let mut trainer = OnReference::new(&b.finish().unwrap(), &start, &sgd(1.0), true);
    let batch = Named::from([("x".to_owned(), Tensor::f32([2, 2], &[1.0, 0.0, 0.0, 0.0]))]);
    assert_eq!(trainer.loss(&batch), (4.0 + 9.0 + 16.0) / 4.0);
    assert_eq!(trainer.parameter("w"), [1.0, 1.0, 1.5, 2.0]);
}

#[test]
fn dropout_has_the_seed_s_places_and_sites_that_count_up() {
    let config = GptliteConfig::new(7, 2, 6, 3, 5).with_dropout(0.25);
    let model = Gptlite::new(config);
    let graph = model.build_training(2, 5, Loss::CrossEntropy).unwrap();
    let dropouts: Vec<(String, u32)> = graph
        .nodes()
        .filter_map(|(_, n)| match &n.op {
            Op::Dropout(d) => Some((n.name.clone(), d.site)),
            _ => None,
        })
        .collect();
    let places = ["sa.heads.0", "sa.heads.1", "sa.heads.2", "sa", "ffwd.net"];
    let expected: Vec<(String, u32)> =
        (0..10u32).map(|site| (format!("blocks.{}.{}.dropout", site / 5, places[site as usize % 5]), site)).collect();
    assert_eq!(dropouts, expected);
    let inputs: Vec<&str> = graph.inputs().map(|(_, n)| n.name.as_str()).collect();
    assert_eq!(inputs, ["tokens", "targets", "dropout.counter"]);
    // inference has none
    let inference = model.build(2, 5).unwrap();
    assert!(!inference.nodes().any(|(_, n)| matches!(n.op, Op::Dropout(_))));
    assert_eq!(inference.inputs().count(), 1);
    let without = Gptlite::new(GptliteConfig::new(7, 2, 6, 3, 5)).build_training(2, 5, Loss::Seed).unwrap();
    assert_eq!(without.inputs().count(), 2);
    let error = Gptlite::new(GptliteConfig::new(7, 2, 6, 3, 5).with_dropout(1.0)).build_training(2, 5, Loss::Seed);
    assert_eq!(error.unwrap_err().to_string(), "dropout is 1, expected at least 0 and less than 1");
}

#[test]
fn in_f16_weights_stay_f32_and_losses_follow_those_of_f32() {
    for name in ["gptlite_tiny", "dnn_he"] {
        for lifted in [true, false] {
            let golden = Golden::open(name, Loss::Seed);
            let half = TrainOptions { precision: Precision::F16(LossScaling::default()), ..golden_options() };
            let mut trainer = OnReference::new(&golden.forward, &golden.params, &half, lifted);
            let narrow = |n: &Node| n.outputs[0].dtype == DType::F16;
            let products: Vec<bool> = trainer
                .graph
                .nodes()
                .filter(|(_, n)| matches!(n.op, Op::Linear | Op::Matmul { .. } | Op::LinearGrad { .. }))
                .map(|(_, n)| narrow(n))
                .collect();
            assert!(products.len() > 10 && products.iter().all(|p| *p), "{name}");
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
            assert!(trainer.states.keys().all(|s| !s.contains("f16")));
        }
    }
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
