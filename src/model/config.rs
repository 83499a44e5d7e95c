//! In: a JSON file; out: [`ModelConfig`], a model's sizes, vocabulary and expected texts. Knows file formats and
//! models' sizes only.

use super::{DnnConfig, GptliteConfig, ModelError, Vocabulary, VocabularyError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What a config file describes.
///
/// The file is one JSON object. `"kind"` says which model; fields that are not listed here are ignored.
///
/// | kind | field | type | meaning |
/// | --- | --- | --- | --- |
/// | `"gptlite"` | `vocab_size`, `n_layer`, `n_embd`, `n_head`, `block_size` | integer | sizes, see [`GptliteConfig`]; `n_embd` is a multiple of `n_head` |
/// | | `attention_scale` | number | what scores are multiplied with |
/// | | `dropout` (optional) | number | its probability in training, 0 if left out |
/// | | `vocab` (optional) | list of strings of one character | the character of each token, `vocab_size` of them, none twice |
/// | | `batch`, `seq` (optional) | integer | sizes of the input that expected tensors were made with |
/// | | `greedy` (optional) | object by prompt of `{text, min_top2_gap}` | what greedy generation gives up to `block_size` tokens, prompt included, and the smallest gap between the two best logits on the way |
/// | `"dnn"` | `in_size`, `width`, `depth`, `out_size` | integer | sizes, see [`DnnConfig`] |
/// | | `batch` (optional) | integer | rows of the input that expected tensors were made with |
#[derive(Clone, Debug, PartialEq)]
pub enum ModelConfig {
    /// `"kind": "gptlite"`.
    Gptlite(GptliteFile),
    /// `"kind": "dnn"`.
    Dnn(DnnFile),
}

/// A GPTlite's config file; see [`ModelConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct GptliteFile {
    /// Sizes.
    pub config: GptliteConfig,
    /// The character of each token.
    pub vocabulary: Option<Vocabulary>,
    /// Batch of the expected tensors.
    pub batch: Option<usize>,
    /// Sequence length of the expected tensors.
    pub seq: Option<usize>,
    /// Expected continuations by prompt.
    pub greedy: BTreeMap<String, Greedy>,
}

/// What greedy generation gives for a prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Greedy {
    /// Prompt and continuation.
    pub text: String,
    /// The smallest gap on the way between the two best logits; rounding errors must stay well below it.
    pub min_top2_gap: f64,
}

/// A DNN's config file; see [`ModelConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct DnnFile {
    /// Sizes.
    pub config: DnnConfig,
    /// Batch of the expected tensors.
    pub batch: Option<usize>,
}

/// A config file that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a JSON object.
    #[error("{}: expected a JSON object: {what}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it is not.
        what: String,
    },
    /// A field is missing or of the wrong type.
    #[error("{}: field \"{field}\": {what}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field; a dot leads into it.
        field: String,
        /// What was expected and what came.
        what: String,
    },
    /// The sizes do not go together.
    #[error("{}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ModelError,
    },
    /// The vocabulary names a character twice.
    #[error("{}: field \"vocab\": {source}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VocabularyError,
    },
}

impl ModelConfig {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads a file's text; `path` is only named in errors.
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let object = serde_json::from_str::<Map<String, Value>>(text)
            .map_err(|e| ConfigError::Json { path: path.to_owned(), what: e.to_string() })?;
        let fields = Fields { path, object };
        match fields.required::<String>("kind")?.as_str() {
            "gptlite" => fields.gptlite().map(ModelConfig::Gptlite),
            "dnn" => fields.dnn().map(ModelConfig::Dnn),
            other => Err(fields.wrong("kind", format!("expected \"gptlite\" or \"dnn\", got {other:?}"))),
        }
    }
}

/// The file's object. Fields are taken one by one, since an error of serde's names no field inside a tagged enum.
struct Fields<'a> {
    path: &'a Path,
    object: Map<String, Value>,
}

impl Fields<'_> {
    fn gptlite(&self) -> Result<GptliteFile, ConfigError> {
        let config = GptliteConfig {
            vocab_size: self.required("vocab_size")?,
            n_layer: self.required("n_layer")?,
            n_embd: self.required("n_embd")?,
            n_head: self.required("n_head")?,
            block_size: self.required("block_size")?,
            attention_scale: self.required("attention_scale")?,
            dropout: self.optional("dropout")?.unwrap_or(0.0),
        };
        config.check().map_err(|source| ConfigError::Model { path: self.path.to_owned(), source })?;
        Ok(GptliteFile {
            vocabulary: self.vocabulary(config.vocab_size)?,
            batch: self.optional("batch")?,
            seq: self.optional("seq")?,
            greedy: self.greedy()?,
            config,
        })
    }

    fn dnn(&self) -> Result<DnnFile, ConfigError> {
        let config = DnnConfig {
            in_size: self.required("in_size")?,
            width: self.required("width")?,
            depth: self.required("depth")?,
            out_size: self.required("out_size")?,
        };
        config.check().map_err(|source| ConfigError::Model { path: self.path.to_owned(), source })?;
        Ok(DnnFile { config, batch: self.optional("batch")? })
    }

    fn vocabulary(&self, size: usize) -> Result<Option<Vocabulary>, ConfigError> {
        let Some(chars) = self.optional::<Vec<char>>("vocab")? else { return Ok(None) };
        if chars.len() != size {
            let what = format!("expected vocab_size = {size} characters, got {}", chars.len());
            return Err(self.wrong("vocab", what));
        }
        let vocabulary =
            Vocabulary::new(chars).map_err(|source| ConfigError::Vocabulary { path: self.path.to_owned(), source })?;
        Ok(Some(vocabulary))
    }

    fn greedy(&self) -> Result<BTreeMap<String, Greedy>, ConfigError> {
        let texts: BTreeMap<String, Value> = self.optional("greedy")?.unwrap_or_default();
        let entry = |(prompt, value)| match serde_json::from_value::<Greedy>(value) {
            Ok(greedy) => Ok((prompt, greedy)),
            Err(error) => Err(self.wrong(&format!("greedy.{prompt}"), error.to_string())),
        };
        texts.into_iter().map(entry).collect()
    }

    fn required<T: DeserializeOwned>(&self, field: &str) -> Result<T, ConfigError> {
        self.optional(field)?.ok_or_else(|| self.wrong(field, "missing".to_owned()))
    }

    fn optional<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.object.get(field) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|error| self.wrong(field, error.to_string()))
    }

    fn wrong(&self, field: &str, what: String) -> ConfigError {
        ConfigError::Field { path: self.path.to_owned(), field: field.to_owned(), what }
    }
}
