//! In: sizes, a config file or a checkpoint; out: the graphs of the two seed models and their parameters.
//! Knows graph's builder, tensors and file formats; neither kernels nor devices nor fusion.
//!
//! Principal types: [`Gptlite`] and [`Dnn`] write a model with a [`Builder`](crate::graph::Builder), op by op as the
//! seed writes it; [`init()`] draws fresh parameters and [`Checkpoint`] maps trained ones from a safetensors file,
//! both as a [`ParamSource`]; [`ModelConfig`] reads a model's sizes from JSON and [`Vocabulary`] turns text into
//! tokens and back.

mod checkpoint;
mod config;
mod dnn;
mod error;
mod gptlite;
mod header;
mod init;
mod layer;
mod layer_fusion;
mod loss;
mod save;
mod source;
mod vocabulary;

pub use checkpoint::{Checkpoint, Loaded};
pub use config::{ConfigError, DnnFile, GptliteFile, Greedy, ModelConfig};
pub use dnn::{Dnn, DnnConfig};
pub use error::{CheckpointError, HeaderFault, Misfit, ModelError};
pub use gptlite::{Gptlite, GptliteConfig, LAYERNORM_EPS};
pub use init::{Drawn, Init, init};
pub use layer_fusion::{Distance, LayerFusion, LayerPair};
pub use loss::Loss;
pub(crate) use save::Draft;
pub use save::save;
pub use source::ParamSource;
pub use vocabulary::{Vocabulary, VocabularyError};
