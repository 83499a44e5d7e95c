//! PyTorch's reference data on the adapter: every model fused and as written, under forced small limits, and a look
//! that the comparison itself fails where it should.

#[path = "../examples/reference/check/mod.rs"]
mod check;
mod device;

use check::{Golden, Row, Selection, Verdict, check as compare, find, judge};
use device::{on_units, poisoned, session};
use kiln::Error;
use kiln::caps::{DeviceCaps, MatmulPrecision};
use kiln::graph::DType;
use kiln::model::{Checkpoint, Gptlite, ModelConfig};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Session};
use kiln::tensor::Tensor;
use std::fs;
use std::path::{Path, PathBuf};

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens")
}

fn char_model() -> PathBuf {
    goldens().join("gptlite_char.json")
}

fn run(session: &Session, config: &Path, what: &Selection) -> Vec<Row> {
    let rows = compare(session, config, what).unwrap_or_else(|e| panic!("{}: {e}", config.display()));
    assert!(rows.iter().all(|r| Some(r.name.as_ref()) == config.file_stem()), "{rows:?}");
    rows
}

#[test]
fn every_golden_is_reproduced_fused_and_as_written() {
    let Some(session) = session() else { return };
    let configs = find(&goldens()).unwrap();
    let names: Vec<_> = configs.iter().map(|c| c.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["dnn_deep_small", "dnn_he", "dnn_wide_small", "gptlite_char", "gptlite_odd", "gptlite_tiny"]);
    for config in configs.iter().filter(|c| c.with_extension("expected.safetensors").is_file()) {
        let rows = run(session, config, &Selection::default());
        let bad: Vec<&Row> = rows.iter().filter(|r| !r.verdict.passes() || r.cost.0 != 1).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        let (written, fused) = rows.split_at(rows.len() / 2);
        for (rows, mode) in [(written, Mode::Recorded), (fused, Mode::Fused)] {
            assert_eq!(rows.iter().map(|r| r.quantity.as_str()).collect::<Vec<_>>(), QUANTITIES);
            assert!(rows.iter().all(|r| r.mode == mode));
        }
        for (written, fused) in written.iter().zip(fused) {
            assert!(fused.cost.1 < written.cost.1, "fused takes fewer dispatches: {fused:?}, {written:?}");
        }
    }
}

/// What every golden with tensors has numbers for.
const QUANTITIES: [&str; 8] =
    ["output", "loss_ce", "grad_ce", "adam10_losses_ce", "adam10", "loss_seed", "grad_seed", "adam10_losses_seed"];

#[test]
fn gptlite_char_continues_a_prompt_to_the_character() {
    let Some(session) = session() else { return };
    let what = Selection { modes: vec![Mode::Fused], prompts: 1, ..Selection::default() };
    let rows = run(session, &char_model(), &what);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].cost.0, &rows[0].verdict), (1, &Verdict::Text(None)));
}

#[test]
fn the_bundled_model_writes_what_the_reference_writes() {
    let Some(session) = session() else { return };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
    let ModelConfig::Gptlite(file) = ModelConfig::open(data.join("gptlite_kiln.json")).unwrap() else {
        panic!("the bundled model is a GPTlite")
    };
    let vocabulary = file.vocabulary.unwrap();
    let block = file.config.block_size;
    let graph = Gptlite::new(file.config).build_next(block).unwrap();
    let weights = Checkpoint::open(data.join("gptlite_kiln.weights.safetensors")).unwrap();
    let loaded = weights.load(&graph.layout).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    let (params, program) = (loaded.tensors(), session.compile(&graph, &loaded, &CompileOptions::default()).unwrap());
    let mut tokens = vocabulary.encode("pub fn ").unwrap();
    let mut gap = f64::INFINITY;
    for _ in 0..24 {
        let mut padded = tokens.clone();
        padded.resize(block, 0);
        let position = tokens.len() as i32 - 1;
        let inputs =
            device::named([("tokens", Tensor::i32([1, block], &padded)), ("position", Tensor::i32([1], &[position]))]);
        let exact = evaluate(&graph, &params, &inputs).unwrap();
        let got = program.run(&device::refs(&inputs)).unwrap();
        let written = vocabulary.decode(&tokens).unwrap();
        assert_eq!(got["next"].to_f64(), exact["next"].data, "after {written:?}");
        let mut logits = exact["logits"].data.clone();
        logits.sort_by(|a, b| b.total_cmp(a));
        gap = gap.min(logits[0] - logits[1]);
        tokens.push(exact["next"].data[0] as i32);
    }
    println!("{:?}, least gap {gap:.2e}", vocabulary.decode(&tokens).unwrap());
    assert!(gap > 1e-3, "no more than {gap} between the two best, which f32 need not tell apart: take another prompt");
}

/// A copy of a model in a folder of its own.
fn copy(config: &Path) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for extension in ["json", "weights.safetensors", "expected.safetensors"] {
        let from = config.with_extension(extension);
        if from.exists() {
            fs::copy(&from, dir.path().join(from.file_name().unwrap())).unwrap();
        }
    }
    let config = dir.path().join(config.file_name().unwrap());
    (dir, config)
}

/// Adds to one f32 of a tensor in a safetensors file.
fn perturb(file: &Path, tensor: &str, by: f32) {
    let mut bytes = fs::read(file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let at = 8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let value = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(value + by).to_le_bytes());
    fs::write(file, bytes).unwrap();
}

/// Changes a number of a JSON file, or the last of a list, by a share of it.
fn perturb_json(file: &Path, field: &str, share: f64) {
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let number = match &mut json[field] {
        serde_json::Value::Array(list) => list.last_mut().unwrap(),
        number => number,
    };
    *number = (number.as_f64().unwrap() * (1.0 + share)).into();
    fs::write(file, json.to_string()).unwrap();
}

/// Outputs alone, fused.
fn outputs_fused() -> Selection {
    Selection { modes: vec![Mode::Fused], training: false, ..Selection::default() }
}

#[test]
fn one_wrong_weight_is_seen() {
    let Some(session) = session() else { return };
    for (model, tensor) in [("dnn_he", "layers.46.bias"), ("gptlite_tiny", "blocks.0.ffwd.net.2.weight")] {
        let (_dir, config) = copy(&goldens().join(model).with_extension("json"));
        assert!(run(session, &config, &outputs_fused()).iter().all(|r| r.verdict.passes()));
        perturb(&config.with_extension("weights.safetensors"), tensor, 0.05);
        let rows = run(session, &config, &outputs_fused());
        assert!(!rows.is_empty() && rows.iter().all(|r| !r.verdict.passes()), "{rows:?}");
    }
}

#[test]
fn one_wrong_expected_number_is_seen_in_its_own_row_alone() {
    let Some(session) = session() else { return };
    for (model, parameter) in [("dnn_he", "layers.24.weight"), ("gptlite_tiny", "blocks.1.sa.heads.2.key.weight")] {
        let original = goldens().join(model).with_extension("json");
        let golden = Golden::open(&original).unwrap();
        let what = Selection { modes: vec![Mode::Fused], ..Selection::default() };
        let measured = check::run(session, &golden, &what).unwrap();
        let failed = |config: &Path| -> Vec<String> {
            let golden = Golden::open(config).unwrap();
            let rows = measured.iter().map(|m| judge(&golden, m, MatmulPrecision::Highest).unwrap());
            rows.filter(|(_, verdict)| !verdict.passes()).map(|(quantity, _)| quantity).collect()
        };
        assert!(failed(&original).is_empty());
        let read = |name: &str| golden.tensor(name, DType::F32).unwrap().to_f64();
        let norm = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        // three times what passes, in one element
        let start = golden.weights.tensor(parameter, DType::F32).unwrap().to_f64();
        let zero = vec![0.0; start.len()];
        for (kind, from, share) in [("grad_ce", &zero, 3e-4), ("grad_seed", &zero, 3e-4), ("adam10", &start, 3e-3)] {
            let tensor = format!("{kind}.{parameter}");
            let size = norm(&read(&tensor), from);
            assert!(size > 0.0, "{model}: {tensor} tells nothing");
            for by in [(share * size) as f32, f32::NAN] {
                let (_dir, config) = copy(&original);
                perturb(&config.with_extension("expected.safetensors"), &tensor, by);
                assert_eq!(failed(&config), [kind], "{model}: {tensor} by {by}");
            }
        }
        for by in [0.1, f32::NAN] {
            let (_dir, config) = copy(&original);
            perturb(&config.with_extension("expected.safetensors"), "output", by);
            assert_eq!(failed(&config), ["output"]);
        }
        for field in ["loss_ce", "loss_seed", "adam10_losses_ce", "adam10_losses_seed"] {
            let (_dir, config) = copy(&original);
            perturb_json(&config, field, 3e-6);
            assert_eq!(failed(&config), [field], "{model}");
        }
    }
}

#[test]
fn one_wrong_character_is_seen() {
    let Some(session) = session() else { return };
    let (_dir, config) = copy(&char_model());
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    let (prompt, greedy) = json["greedy"].as_object().unwrap().iter().next().unwrap();
    let (prompt, text) = (prompt.clone(), greedy["text"].as_str().unwrap().to_owned());
    let first = prompt.chars().count();
    // the prompt and three characters, as they are and with the second of them changed
    let right: Vec<char> = text.chars().take(first + 3).collect();
    let mut wrong = right.clone();
    wrong[first + 1] = if right[first + 1] == 'e' { 'a' } else { 'e' };
    for (text, verdict) in [(right, Verdict::Text(None)), (wrong, Verdict::Text(Some(first + 1)))] {
        let text: String = text.into_iter().collect();
        json["greedy"] = serde_json::json!({ prompt.clone(): { "text": text, "min_top2_gap": 0.0 } });
        fs::write(&config, json.to_string()).unwrap();
        let rows = run(session, &config, &outputs_fused());
        assert_eq!(rows.iter().map(|r| &r.verdict).collect::<Vec<_>>(), [&verdict]);
    }
}

#[test]
fn a_folder_without_models_holds_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(find(dir.path()).unwrap().is_empty());
    fs::copy(goldens().join("dnn_he.json"), dir.path().join("dnn_he.json")).unwrap();
    assert!(find(dir.path()).unwrap().is_empty(), "a config alone is no model");
    assert!(find(&dir.path().join("nowhere")).is_err());
}

#[test]
fn every_precision_is_within_its_tolerance_on_emulated_units() {
    let Some(session) = session().filter(|s| s.caps().f16) else { return };
    for (model, training) in [("gptlite_tiny", false), ("dnn_wide_small", true)] {
        for precision in [MatmulPrecision::High, MatmulPrecision::Medium] {
            let options = on_units(session, CompileOptions { precision, ..poisoned(Mode::Fused) });
            let what = Selection { modes: vec![Mode::Fused], prompts: 0, training, options };
            let rows = run(session, &goldens().join(model).with_extension("json"), &what);
            assert!(!rows.is_empty());
            for row in rows {
                println!("{model} {precision} {}: {}", row.quantity, row.verdict);
                assert!(row.verdict.passes(), "{model} {precision} {}: {}", row.quantity, row.verdict);
            }
        }
    }
}

/// Limits that are smaller than any device's, each tight in its own way, and whether the models run under them.
fn small_limits() -> Vec<(&'static str, DeviceCaps)> {
    let gpu = DeviceCaps { cpu: false, ..DeviceCaps::PORTABLE };
    vec![
        ("portable", gpu.clone()),
        ("cpu", DeviceCaps { cpu: true, ..gpu.clone() }),
        ("64 KiB a binding", DeviceCaps { max_binding_bytes: 64 << 10, ..gpu.clone() }),
        ("64 KiB a binding, cpu", DeviceCaps { max_binding_bytes: 64 << 10, cpu: true, ..gpu.clone() }),
        ("16 KiB a binding", DeviceCaps { max_binding_bytes: 16 << 10, ..gpu.clone() }),
        ("4 KiB a binding", DeviceCaps { max_binding_bytes: 4 << 10, ..gpu.clone() }),
        ("7 groups", DeviceCaps { max_groups: 7, ..gpu.clone() }),
        ("4 buffers", DeviceCaps { max_storage_buffers: 4, ..gpu.clone() }),
        ("4 KiB of workgroup memory", DeviceCaps { workgroup_bytes: 4 << 10, ..gpu.clone() }),
        ("64 invocations", DeviceCaps { max_invocations: 64, ..gpu.clone() }),
        (
            "all at once",
            DeviceCaps {
                max_binding_bytes: 64 << 10,
                max_storage_buffers: 4,
                max_groups: 20,
                workgroup_bytes: 4 << 10,
                max_invocations: 64,
                ..gpu
            },
        ),
    ]
}

#[test]
fn under_small_limits_the_numbers_are_right_or_the_error_names_the_limit() {
    let Some(session) = session() else { return };
    let mut refused = Vec::new();
    for model in ["gptlite_tiny", "dnn_wide_small"] {
        let config = goldens().join(model).with_extension("json");
        for (name, limits) in small_limits() {
            for mode in MODES {
                let options =
                    CompileOptions { limits: Some(limits.clone()), poison: true, ..CompileOptions::default() };
                let what = Selection { modes: vec![mode], prompts: 0, training: false, options };
                match compare(session, &config, &what) {
                    Ok(rows) => assert!(rows.iter().all(|r| r.verdict.passes()), "{name}, {mode}: {rows:?}"),
                    Err(error) => {
                        let Some(Error::Select(error)) = error.downcast_ref() else {
                            panic!("{name}, {mode}: {error}")
                        };
                        let words = error.to_string();
                        assert!(words.contains("limit is ") || words.contains("this device"), "{words}");
                        println!("{model}, {name}, {mode}: {words}");
                        refused.push(name);
                    }
                }
            }
        }
    }
    assert_eq!(refused, ["4 KiB a binding"], "a norm's second operand is larger than that and is not split");
}
