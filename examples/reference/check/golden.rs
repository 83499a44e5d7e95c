//! In: a folder, or a NAME.json in it; out: the models there, or a [`Golden`], a model's sizes, weights and expected
//! numbers. Knows files alone.

use kiln::graph::DType;
use kiln::model::{Checkpoint, Loss, ModelConfig};
use kiln::tensor::Tensor;
use serde_json::{Map, Value};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Models in a folder: each NAME.json with weights and something to compare with.
pub fn find(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") && path.with_extension("weights.safetensors").is_file() {
            let has_texts = matches!(ModelConfig::open(&path)?, ModelConfig::Gptlite(g) if !g.greedy.is_empty());
            if has_texts || path.with_extension("expected.safetensors").is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A model with what must come out of it.
pub struct Golden {
    /// The file's name without extension.
    pub name: String,
    /// Sizes, and texts if it has any.
    pub model: ModelConfig,
    /// Parameters to begin with.
    pub weights: Checkpoint,
    config: PathBuf,
    json: Map<String, Value>,
    tensors: Option<Checkpoint>,
}

impl Golden {
    /// Of NAME.json, with the files beside it.
    pub fn open(config: &Path) -> Result<Golden, Box<dyn Error>> {
        let tensors = config.with_extension("expected.safetensors");
        let text = std::fs::read_to_string(config).map_err(|e| format!("{}: {e}", config.display()))?;
        Ok(Golden {
            name: config.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            model: ModelConfig::parse(&text, config)?,
            weights: Checkpoint::open(config.with_extension("weights.safetensors"))?,
            config: config.to_owned(),
            json: serde_json::from_str(&text).map_err(|e| format!("{}: {e}", config.display()))?,
            tensors: if tensors.is_file() { Some(Checkpoint::open(tensors)?) } else { None },
        })
    }

    /// Names of expected tensors that begin so, without that beginning.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        self.tensors.iter().flat_map(|t| t.names()).filter_map(|n| n.strip_prefix(prefix)).collect()
    }

    /// An expected tensor.
    pub fn tensor(&self, name: &str, dtype: DType) -> Result<Tensor, Box<dyn Error>> {
        let path = self.config.with_extension("expected.safetensors");
        let tensors = self.tensors.as_ref().ok_or_else(|| format!("{}: there is no such file", path.display()))?;
        Ok(tensors.tensor(name, dtype)?)
    }

    /// Whether the json has a field.
    pub fn has(&self, field: &str) -> bool {
        self.json.contains_key(field)
    }

    /// A number, or a list of numbers, of the json.
    pub fn numbers(&self, field: &str) -> Result<Vec<f64>, Box<dyn Error>> {
        let value = self.json.get(field).cloned().unwrap_or_default();
        let numbers = match value.as_array() {
            Some(list) => list.iter().map(Value::as_f64).collect(),
            None => value.as_f64().map(|number| vec![number]),
        };
        let wrong = || format!("{}: field {field:?}: expected numbers, got {value}", self.config.display());
        Ok(numbers.ok_or_else(wrong)?)
    }
}

/// What names and fields call a loss.
pub fn key(loss: Loss) -> &'static str {
    match loss {
        Loss::CrossEntropy => "ce",
        Loss::Seed => "seed",
    }
}
