//! PyTorch's gradients of every reference model under both losses, as written, lifted and fused.

use crate::written::Result;
use kiln::fuse::{FuseLimits, fuse};
use kiln::grad::{Checkpoint as Kept, Parameters, differentiate};
use kiln::graph::{Builder, CrossEntropyAttrs, DType, Graph, TensorType};
use kiln::lift::lift;
use kiln::model::{Checkpoint, Dnn, Gptlite, ModelConfig};
use kiln::reference::{Value, evaluate};
use kiln::tensor::Tensor;
use std::path::Path;

/// Largest `‖got − expected‖ / ‖expected‖` of a tensor.
const TOLERANCE: f64 = 1e-5;

const MODELS: [&str; 5] = ["gptlite_tiny", "gptlite_odd", "dnn_he", "dnn_deep_small", "dnn_wide_small"];

/// The model with its mean loss; `seed` applies softmax before the cross entropy, as the seed does.
fn model(config: &ModelConfig, input: &Tensor, target: &Tensor, seed: bool) -> Result<Graph> {
    let mut b = Builder::new();
    let x = b.input("input", input.ty().clone())?;
    let targets = b.input("target", target.ty().clone())?;
    let mut logits = match config {
        ModelConfig::Gptlite(file) => {
            let logits = Gptlite::new(file.config.clone()).forward(&mut b, x)?;
            b.permute(logits, &[0, 2, 1])? // (B, C, S)
        }
        ModelConfig::Dnn(file) => Dnn::new(file.config.clone()).forward(&mut b, x)?,
    };
    if seed {
        logits = b.softmax(logits, 1)?;
    }
    let attrs = CrossEntropyAttrs { axis: 1, ignore_index: None, label_smoothing: 0.0.into() };
    let rows = b.cross_entropy_rows(logits, targets, attrs)?;
    let axes: Vec<usize> = (0..target.shape().rank()).collect();
    let loss = b.mean(rows, &axes)?;
    b.output("loss", loss)?;
    Ok(b.finish()?)
}

fn error(got: &Value, expected: &Tensor) -> f64 {
    assert_eq!(&got.shape, expected.shape());
    let expected = expected.to_f64();
    let apart: f64 = got.data.iter().zip(&expected).map(|(g, e)| (g - e) * (g - e)).sum();
    let size: f64 = expected.iter().map(|e| e * e).sum();
    if size == 0.0 { apart } else { (apart / size).sqrt() }
}

#[test]
fn every_golden_gradient_is_reproduced() -> Result {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    for name in MODELS {
        let file = |extension: &str| folder.join(name).with_extension(extension);
        let config = ModelConfig::open(file("json"))?;
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file("json"))?)?;
        let expected = Checkpoint::open(file("expected.safetensors"))?;
        let weights = Checkpoint::open(file("weights.safetensors"))?;
        let input = match config {
            ModelConfig::Gptlite(_) => expected.tensor("input", DType::I32)?,
            ModelConfig::Dnn(_) => expected.tensor("input", DType::F32)?,
        };
        let target = expected.tensor("target", DType::I32)?;
        for loss in ["ce", "seed"] {
            let graph = model(&config, &input, &target, loss == "seed")?;
            let params = weights.load(&graph.layout)?.tensors();
            let inputs = [("input".to_owned(), input.clone()), ("target".to_owned(), target.clone())].into();
            let all = |graph: &Graph, kept| differentiate(graph, "loss", Parameters::All, kept);
            let lifted = lift(&graph)?.0;
            let every = Kept::Every(1);
            let fused = fuse(&all(&lifted, every)?, &FuseLimits::default())?.0;
            for (form, graph) in
                [("as written", all(&graph, Kept::None)?), ("lifted", all(&lifted, Kept::None)?), ("fused", fused)]
            {
                let outputs = evaluate(&graph, &params, &inputs)?;
                let want = json[format!("loss_{loss}")].as_f64().ok_or("no loss")?;
                let got = outputs["loss"].data[0];
                assert!((got - want).abs() <= 1e-6 * want, "{name}, {form}: loss {got}, not {want}");
                for parameter in params.keys() {
                    let want = expected.tensor(&format!("grad_{loss}.{parameter}"), DType::F32)?;
                    let error = error(&outputs[&format!("grad.{parameter}")], &want);
                    assert!(error <= TOLERANCE, "{name}, {form}, {loss}: {parameter} is off by {error:.2e}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_wrong_gradient_is_seen() {
    let expected = Tensor::from_f64(TensorType::new(DType::F32, [3]), &[1.0, 2.0, 3.0]);
    let got = |last| Value { shape: [3].into(), data: vec![1.0, 2.0, last] };
    assert!(error(&got(3.0), &expected) <= TOLERANCE);
    assert!(error(&got(3.001), &expected) > TOLERANCE);
    assert!(error(&got(f64::NAN), &expected).is_nan());
}
