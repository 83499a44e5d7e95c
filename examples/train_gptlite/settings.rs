//! In: flags, or the config.json of a training that goes on; out: [`Settings`], all that decides what is computed, and
//! back into a config.json. Knows files and models' sizes.

use clap::{Args, ValueEnum};
use kiln::model::{GptliteConfig, Vocabulary};
use kiln::train::{Group, LossScaling, Optimiser, Precision, Schedule, TrainOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// The flags that a training that goes on has in its config.json.
#[derive(Args)]
pub struct Flags {
    /// Text to train on; the project's own sources and docs if not given.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Steps in all [default: 1500].
    #[arg(long)]
    steps: Option<u64>,
    /// Blocks of the model [default: 3].
    #[arg(long)]
    layers: Option<usize>,
    /// Width of the model, a multiple of the heads [default: 96].
    #[arg(long)]
    width: Option<usize>,
    /// Heads of attention [default: 4].
    #[arg(long)]
    heads: Option<usize>,
    /// Characters that the model sees at once [default: 64].
    #[arg(long)]
    block: Option<usize>,
    /// Windows of the text in a step [default: 8].
    #[arg(long)]
    batch: Option<usize>,
    /// Probability of dropout [default: 0].
    #[arg(long, value_name = "P")]
    dropout: Option<f32>,
    /// In what forward and backward passes compute; f16 where the adapter can, with weights in f32 [default: f32].
    #[arg(long, value_enum)]
    precision: Option<PrecisionArg>,
    /// Highest learning rate; it rises over the first twentieth and falls along a cosine to a tenth [default: 0.64 / width].
    #[arg(long)]
    rate: Option<f64>,
    /// Seed of parameters, batches and dropout [default: 0].
    #[arg(long)]
    seed: Option<u64>,
}

/// In what forward and backward passes compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionArg {
    F32,
    F16,
}

/// All that decides what is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `None` is the project's own text.
    pub text: Option<PathBuf>,
    /// Of the text that it began with.
    pub fingerprint: String,
    pub steps: u64,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub block: usize,
    pub batch: usize,
    pub dropout: f32,
    pub precision: PrecisionArg,
    pub rate: f64,
    pub seed: u64,
}

impl Settings {
    /// Of a training that begins.
    pub fn new(flags: &Flags) -> Result<Settings, Box<dyn Error>> {
        let width = flags.width.unwrap_or(96);
        Ok(Settings {
            text: absolute(flags.text.as_deref())?,
            fingerprint: String::new(),
            steps: flags.steps.unwrap_or(1500),
            layers: flags.layers.unwrap_or(3),
            width,
            heads: flags.heads.unwrap_or(4),
            block: flags.block.unwrap_or(64),
            batch: flags.batch.unwrap_or(8),
            dropout: flags.dropout.unwrap_or(0.0),
            precision: flags.precision.unwrap_or(PrecisionArg::F32),
            rate: flags.rate.unwrap_or(0.64 / width.max(1) as f64),
            seed: flags.seed.unwrap_or(0),
        })
    }

    /// Of a training that goes on, by its config.json. The number of steps may change; any other flag that is given must
    /// be what it was.
    pub fn resume(config: &Path, flags: &Flags) -> Result<Settings, Box<dyn Error>> {
        let file = config.display();
        let text = std::fs::read_to_string(config)
            .map_err(|e| format!("{file}: {e}; --resume needs the --out of a training that was saved"))?;
        let json: Value = serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
        let settings = Settings::deserialize(&json["training"])
            .map_err(|e| format!("{file}: field \"training\": {e}; this example did not write it"))?;
        if flags.text.is_some() {
            same("text", Some(&absolute(flags.text.as_deref())?), &settings.text)?;
        }
        same("layers", flags.layers.as_ref(), &settings.layers)?;
        same("width", flags.width.as_ref(), &settings.width)?;
        same("heads", flags.heads.as_ref(), &settings.heads)?;
        same("block", flags.block.as_ref(), &settings.block)?;
        same("batch", flags.batch.as_ref(), &settings.batch)?;
        same("dropout", flags.dropout.as_ref(), &settings.dropout)?;
        same("precision", flags.precision.as_ref(), &settings.precision)?;
        same("rate", flags.rate.as_ref(), &settings.rate)?;
        same("seed", flags.seed.as_ref(), &settings.seed)?;
        Ok(Settings { steps: flags.steps.unwrap_or(settings.steps), ..settings })
    }

    /// Sizes of the model, as they are trained.
    pub fn model(&self, vocabulary: &Vocabulary) -> GptliteConfig {
        GptliteConfig::new(vocabulary.size(), self.layers, self.width, self.heads, self.block)
            .with_dropout(self.dropout)
    }

    /// AdamW with a decay of 0.1 on all but biases and norms.
    pub fn options(&self) -> TrainOptions {
        TrainOptions {
            optimiser: Optimiser::adamw(0.1),
            learning_rate: Schedule::constant(self.rate).warm_up(self.steps / 20).cosine(self.steps, self.rate / 10.0),
            groups: vec![Group::no_decay()],
            precision: match self.precision {
                PrecisionArg::F32 => Precision::F32,
                PrecisionArg::F16 => Precision::F16(LossScaling::default()),
            },
            seed: self.seed,
            ..TrainOptions::default()
        }
    }

    /// Writes config.json: the model for whoever runs it, and these settings for a training that goes on.
    pub fn write(&self, config: &Path, vocabulary: &Vocabulary) -> Result<(), Box<dyn Error>> {
        let model = self.model(vocabulary);
        let every: Vec<i32> = (0..vocabulary.size() as i32).collect();
        let characters: Vec<char> = vocabulary.decode(&every)?.chars().collect();
        let json = json!({
            "kind": "gptlite",
            "vocab_size": model.vocab_size,
            "n_layer": model.n_layer,
            "n_embd": model.n_embd,
            "n_head": model.n_head,
            "block_size": model.block_size,
            "attention_scale": model.attention_scale,
            "dropout": model.dropout,
            "vocab": characters,
            "training": self,
        });
        let draft = config.with_extension("json.draft");
        let written = std::fs::write(&draft, serde_json::to_string_pretty(&json)? + "\n");
        written.and_then(|()| std::fs::rename(&draft, config)).map_err(|e| format!("{}: {e}", config.display()))?;
        Ok(())
    }
}

fn absolute(path: Option<&Path>) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?))
}

fn same<T: PartialEq + Debug>(flag: &str, given: Option<&T>, was: &T) -> Result<(), String> {
    match given {
        Some(given) if given != was => Err(format!(
            "--{flag} is {given:?}, but the training that --resume goes on with has {was:?}; leave the flag out, or \
             begin another training with another --out"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kiln::model::ModelConfig;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(line: &str) -> Flags {
        Only::parse_from(std::iter::once("train_gptlite").chain(line.split_whitespace())).flags
    }

    #[test]
    fn what_is_written_is_read_by_who_runs_it_and_by_who_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.json");
        let vocabulary = Vocabulary::new(vec!['\n', 'a', '−']).unwrap();
        let settings = Settings::new(&flags("--layers 1 --width 8 --heads 2 --dropout 0.25")).unwrap();
        assert_eq!((settings.rate, settings.text.clone()), (0.08, None));
        settings.write(&config, &vocabulary).unwrap();
        let ModelConfig::Gptlite(file) = ModelConfig::open(&config).unwrap() else { panic!("a GPTlite was written") };
        assert_eq!((file.config, file.vocabulary), (settings.model(&vocabulary), Some(vocabulary)));

        assert_eq!(Settings::resume(&config, &flags("")).unwrap(), settings);
        let longer = Settings::resume(&config, &flags("--width 8 --steps 9000")).unwrap();
        assert_eq!(longer, Settings { steps: 9000, ..settings });
        assert_eq!(
            Settings::resume(&config, &flags("--heads 4")).unwrap_err().to_string(),
            "--heads is 4, but the training that --resume goes on with has 2; leave the flag out, or begin another \
             training with another --out"
        );
        let none = Settings::resume(&dir.path().join("none.json"), &flags("")).unwrap_err().to_string();
        assert!(none.ends_with("--resume needs the --out of a training that was saved"), "{none}");
    }
}
