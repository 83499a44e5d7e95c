//! The losses that a builder writes, and a model's dropouts.

use super::trained::{Named, OnReference};
use super::{assert_near, f32s, sgd};
use kiln::graph::{Builder, CrossEntropy, DType, Op, TensorType};
use kiln::model::{Gptlite, GptliteConfig, Loss};
use kiln::tensor::Tensor;

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
