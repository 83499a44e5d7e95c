//! The graphs of the two models against the goldens' parameters and configs; texts of config errors.

use kiln::graph::{Builder, DType, Graph, Op, TensorType};
use kiln::model::{Checkpoint, Dnn, DnnConfig, Gptlite, GptliteConfig, Loaded, ModelConfig, ModelError};
use std::path::{Path, PathBuf};

const GPTLITES: [&str; 3] = ["gptlite_tiny", "gptlite_odd", "gptlite_char"];
const DNNS: [&str; 3] = ["dnn_deep_small", "dnn_he", "dnn_wide_small"];

fn golden(name: &str, suffix: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens").join(format!("{name}.{suffix}"))
}

fn config(name: &str) -> ModelConfig {
    ModelConfig::open(golden(name, "json")).unwrap()
}

fn gptlite(name: &str) -> GptliteConfig {
    match config(name) {
        ModelConfig::Gptlite(file) => file.config,
        other => panic!("{name} is {other:?}"),
    }
}

/// The graph as its golden's config says.
fn graph(name: &str) -> Graph {
    match config(name) {
        ModelConfig::Gptlite(f) => Gptlite::new(f.config).build(f.batch.unwrap_or(1), f.seq.unwrap_or(16)).unwrap(),
        ModelConfig::Dnn(f) => Dnn::new(f.config).build(f.batch.unwrap_or(1)).unwrap(),
    }
}

fn count(graph: &Graph, op: &str) -> usize {
    graph.nodes().filter(|(_, n)| n.op.name() == op).count()
}

fn output(graph: &Graph, name: &str) -> TensorType {
    let output = graph.outputs().iter().find(|o| o.name == name).unwrap();
    graph.ty(output.value).clone()
}

#[test]
fn every_parameter_is_in_the_golden_and_none_is_left_over() {
    for name in GPTLITES.into_iter().chain(DNNS) {
        let graph = graph(name);
        let checkpoint = Checkpoint::open(golden(name, "weights.safetensors")).unwrap();
        let Loaded { unused, skipped, .. } = checkpoint.load(&graph.layout).unwrap();
        assert_eq!((unused.len(), skipped.len()), (0, 0), "{name}");
        let mut names: Vec<&str> = graph.layout.iter().map(|(_, s)| s.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, checkpoint.names().collect::<Vec<_>>(), "{name}");
        for (_, storage) in graph.layout.iter() {
            assert_eq!(checkpoint.shape(&storage.name), Some(&storage.shape), "{name} {}", storage.name);
        }
    }
}

#[test]
fn inputs_and_outputs_have_the_goldens_shapes() {
    for name in ["gptlite_tiny", "gptlite_odd", "dnn_deep_small", "dnn_he", "dnn_wide_small"] {
        let graph = graph(name);
        let expected = Checkpoint::open(golden(name, "expected.safetensors")).unwrap();
        let (_, input) = graph.inputs().next().unwrap();
        assert_eq!(Some(&input.outputs[0].shape), expected.shape("input"), "{name}");
        assert_eq!(Some(graph.shape(graph.outputs()[0].value)), expected.shape("output"), "{name}");
        let tensor = expected.tensor("input", input.outputs[0].dtype).unwrap();
        assert_eq!(tensor.ty(), &input.outputs[0], "{name}");
    }
}

#[test]
fn gptlite_is_written_as_the_seed_writes_it() {
    let graph = graph("gptlite_tiny");
    let per_head = |n: usize| 2 * 4 * n;
    assert_eq!(count(&graph, "linear"), per_head(3) + 2 * 3 + 1);
    assert_eq!(count(&graph, "matmul"), per_head(2));
    for op in ["scale", "masked_fill", "softmax"] {
        assert_eq!(count(&graph, op), per_head(1), "{op}");
    }
    assert_eq!((count(&graph, "layernorm"), count(&graph, "concat"), count(&graph, "relu")), (5, 2, 2));
    let linears: Vec<&str> = graph.nodes().filter(|(_, n)| n.op == Op::Linear).map(|(_, n)| n.name.as_str()).collect();
    assert_eq!(linears[..3], ["blocks.0.sa.heads.0.key", "blocks.0.sa.heads.0.query", "blocks.0.sa.heads.0.value"]);
    assert_eq!(linears[linears.len() - 2..], ["blocks.1.ffwd.net.2", "lm_head"]);
    assert!(graph.nodes().any(|(_, n)| n.name == "blocks.1.ffwd.net.1.relu"));
}

#[test]
fn build_next_sends_one_row_through_the_head() {
    let model = Gptlite::new(gptlite("gptlite_char"));
    let graph = model.build_next(128).unwrap();
    let inputs: Vec<String> = graph.inputs().map(|(_, n)| format!("{} {}", n.name, n.outputs[0])).collect();
    assert_eq!(inputs, ["tokens i32 (1, 128)", "position i32 (1)"]);
    assert_eq!(output(&graph, "logits").to_string(), "f32 (1, 85)");
    assert_eq!(output(&graph, "next").to_string(), "i32 (1)");
    let bounds: Vec<usize> = graph.index_bounds().iter().map(|b| b.1.count).collect();
    assert_eq!(bounds, [85, 128]);
    assert_eq!(graph.layout, model.build(1, 128).unwrap().layout);
}

#[test]
fn f16_models_hold_parameters_and_activations_in_f16() {
    let gpt = Gptlite::new(gptlite("gptlite_tiny")).with_dtype(DType::F16).build(1, 16).unwrap();
    let dnn = Dnn::new(DnnConfig::square(16, 3)).with_dtype(DType::F16).build(2).unwrap();
    for graph in [&gpt, &dnn] {
        assert!(graph.layout.iter().all(|(_, s)| s.dtype == DType::F16));
        assert_eq!(graph.ty(graph.outputs()[0].value).dtype, DType::F16);
        assert!(graph.nodes().filter(|(_, n)| n.op == Op::Softmax(2)).all(|(_, n)| n.outputs[0].dtype == DType::F16));
    }
    let refused = Dnn::new(DnnConfig::square(16, 3)).with_dtype(DType::BF16).build(2).unwrap_err();
    assert_eq!(refused.to_string(), "parameters are bf16, expected f32 or f16");
}

#[test]
fn the_seeds_sizes() {
    let elements = |graph: &Graph| graph.layout.iter().map(|(_, s)| s.shape.elements()).sum::<usize>();
    let small = GptliteConfig::small();
    assert_eq!((small.attention_scale, small.head_size()), (1.0 / 768f32.sqrt(), 64));
    assert_eq!(small.clone().with_head_scale().attention_scale, 0.125);
    let block = 12 * 768 * 768 + 10 * 768;
    assert_eq!(elements(&Gptlite::new(small).build(1, 2048).unwrap()), 12 * block + (2 * 65 + 2048 + 2) * 768);
    let deep = Dnn::new(DnnConfig::deep()).build(1).unwrap();
    assert_eq!((count(&deep, "linear"), count(&deep, "relu"), elements(&deep)), (2048, 2048, 2048 * (256 * 256 + 256)));
    let wide = Dnn::new(DnnConfig::wide()).build(1).unwrap();
    assert_eq!((count(&wide, "linear"), elements(&wide)), (3, 3 * (8192 * 8192 + 8192)));
}

#[test]
fn what_does_not_fit_is_named() {
    let text = |result: Result<Graph, ModelError>| result.unwrap_err().to_string();
    let tiny = GptliteConfig::new(65, 2, 64, 4, 64);
    assert_eq!(
        text(Gptlite::new(tiny.clone()).build(1, 65)),
        "sequence length is 65, expected 1 to block_size = 64; crop the context to its last tokens"
    );
    assert_eq!(
        text(Gptlite::new(tiny.clone()).build_next(0)),
        "sequence length is 0, expected 1 to block_size = 64; crop the context to its last tokens"
    );
    assert_eq!(
        text(Gptlite::new(GptliteConfig::new(65, 2, 64, 5, 64)).build(1, 8)),
        "n_embd is 64, expected a multiple of n_head = 5"
    );
    assert_eq!(
        text(Gptlite::new(GptliteConfig::new(65, 2, 64, 0, 64)).build(1, 8)),
        "n_head is 0, expected 1 to 65536"
    );
    assert_eq!(text(Dnn::new(DnnConfig::square(8, 1)).build(1)), "depth is 1, expected 2 to 65536");
    let mut b = Builder::new();
    let flat = b.input("tokens", TensorType::new(DType::I32, [8])).unwrap();
    let refused = Gptlite::new(tiny).forward(&mut b, flat).unwrap_err();
    assert_eq!(refused.to_string(), "tokens is (8), expected (B, S)");
}

#[test]
fn a_model_can_be_part_of_another() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [2, 8])).unwrap();
    let dnn = Dnn::new(DnnConfig::square(8, 2));
    let left = b.scope("left", |b| dnn.forward(b, x)).unwrap();
    let right = b.scope("right", |b| dnn.forward(b, x)).unwrap();
    let sum = b.add(left, right).unwrap();
    b.output("sum", sum).unwrap();
    let names: Vec<String> = b.finish().unwrap().layout.iter().map(|(_, s)| s.name.clone()).collect();
    assert_eq!(names[0], "left.layers.0.weight");
    assert_eq!(names[7], "right.layers.2.bias");
}

#[test]
fn goldens_configs_are_read() {
    let ModelConfig::Gptlite(file) = config("gptlite_char") else { panic!("gptlite_char is a GPTlite") };
    assert_eq!(file.config, GptliteConfig::new(85, 4, 128, 4, 128));
    let vocabulary = file.vocabulary.unwrap();
    assert_eq!((vocabulary.size(), file.greedy.len()), (85, 3));
    for (prompt, greedy) in &file.greedy {
        assert!(greedy.text.starts_with(prompt) && greedy.min_top2_gap > 0.03);
        let tokens = vocabulary.encode(&greedy.text).unwrap();
        assert_eq!(tokens.len(), file.config.block_size);
        assert_eq!(vocabulary.decode(&tokens).unwrap(), greedy.text);
    }
    assert_eq!(gptlite("gptlite_odd"), GptliteConfig::new(37, 2, 60, 5, 50).with_head_scale());
    let ModelConfig::Dnn(file) = config("dnn_wide_small") else { panic!("dnn_wide_small is a DNN") };
    assert_eq!(file.config, DnnConfig { in_size: 96, width: 320, depth: 3, out_size: 128 });
    assert_eq!(file.batch, Some(17));
}

#[test]
fn a_wrong_config_names_file_and_field() {
    let sizes = r#""kind": "gptlite", "vocab_size": 2, "n_layer": 1, "n_head": 2, "block_size": 4"#;
    let gptlite = |more: &str| format!(r#"{{{sizes}, "attention_scale": 0.5, {more}}}"#);
    let cases = [
        ("[1]".to_owned(), "expected a JSON object: invalid type: sequence, expected a map at line 1 column 0"),
        ("{".to_owned(), "expected a JSON object: EOF while parsing an object at line 1 column 1"),
        ("{}".to_owned(), r#"field "kind": missing"#),
        (r#"{"kind": "cnn"}"#.to_owned(), r#"field "kind": expected "gptlite" or "dnn", got "cnn""#),
        (r#"{"kind": "dnn", "in_size": 2}"#.to_owned(), r#"field "width": missing"#),
        (
            r#"{"kind": "dnn", "in_size": "2"}"#.to_owned(),
            r#"field "in_size": invalid type: string "2", expected usize"#,
        ),
        (
            r#"{"kind": "dnn", "in_size": -2}"#.to_owned(),
            r#"field "in_size": invalid value: integer `-2`, expected usize"#,
        ),
        (
            r#"{"kind": "dnn", "in_size": 2, "width": 0, "depth": 3, "out_size": 1}"#.to_owned(),
            "width is 0, expected 1 to 2147483647",
        ),
        (format!(r#"{{{sizes}, "n_embd": 4}}"#), r#"field "attention_scale": missing"#),
        (gptlite(r#""n_embd": 5"#), "n_embd is 5, expected a multiple of n_head = 2"),
        (gptlite(r#""n_embd": 4, "vocab": ["a"]"#), r#"field "vocab": expected vocab_size = 2 characters, got 1"#),
        (
            gptlite(r#""n_embd": 4, "vocab": ["a", "a"]"#),
            r#"field "vocab": the vocabulary has 'a' twice, as tokens 0 and 1"#,
        ),
        (
            gptlite(r#""n_embd": 4, "vocab": ["a", "bc"]"#),
            r#"field "vocab": invalid value: string "bc", expected a character"#,
        ),
        (
            gptlite(r#""n_embd": 4, "greedy": {"To be": {"text": "To be"}}"#),
            r#"field "greedy.To be": missing field `min_top2_gap`"#,
        ),
    ];
    for (json, text) in cases {
        let error = ModelConfig::parse(&json, "model.json").unwrap_err();
        assert_eq!(error.to_string(), format!("model.json: {text}"), "{json}");
    }
    let missing = ModelConfig::open("no/such.json").unwrap_err().to_string();
    assert!(missing.starts_with("no/such.json: "), "{missing}");
}
