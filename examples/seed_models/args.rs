//! In: the command line; out: which models run, and how.

use crate::models::Work;
use crate::sizes::{Model, Phase, Scale, Sizes};
use clap::{Parser, ValueEnum};
use kiln::MatmulPrecision;
use kiln::grad::Checkpoint;
use kiln::graph::DType;
use kiln::model::Init;
use kiln::session::Mode;
use kiln::train::TrainOptions;
use std::error::Error;
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Times and verifies the seed's models at full size")]
pub struct Args {
    /// Forward passes or training steps.
    #[arg(long, value_enum, default_value_t = Phase::Infer)]
    pub phase: Phase,
    /// Which models.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Gptlite, Model::Deep, Model::Wide])]
    pub model: Vec<Model>,
    /// Which modes.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ModeArg::Eager, ModeArg::Recorded, ModeArg::Fused])]
    pub mode: Vec<ModeArg>,
    /// How parameters are drawn.
    #[arg(long, value_enum, default_value_t = InitArg::He)]
    pub init: InitArg,
    /// In what is computed: all in f32, or with weights and activations in f16 (in training: activations).
    #[arg(long, value_enum, default_value_t = PrecisionArg::Highest)]
    pub precision: PrecisionArg,
    /// Timed runs, after a third as many in flight that warm up, at least 1 s of them; with 0 only the first run is timed.
    #[arg(long, default_value_t = 30)]
    pub runs: usize,
    /// The seed's sizes, or a fraction of them for a CPU.
    #[arg(long, value_enum, default_value_t = Scale::Full)]
    pub scale: Scale,
    /// Positions of GPTlite's sequence, or samples of a DNN, in place of the scale's.
    #[arg(long)]
    pub rows: Option<usize>,
    /// Compares with the f64 reference: the whole output; or in training, and then nothing is timed, the gradients of the
    /// first, middle and last layers at full depth for 64 positions, 8 or 4 samples, under both initialisations.
    #[arg(long)]
    pub verify: bool,
    /// In training: keep activations at every so many layers of the deep model only, and compute the others anew.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint: Option<u64>,
    /// Lets no launches run side by side.
    #[arg(long)]
    pub one_by_one: bool,
    /// Also runs the mode "tuned".
    #[arg(long)]
    pub tune: bool,
    /// Writes the time of each candidate of a tuning; with several models, of the last.
    #[arg(long)]
    pub tune_log: Option<PathBuf>,
    /// Prints the time of each kernel.
    #[arg(long)]
    pub kernels: bool,
    /// Prints what timestamps cost instead: runs without them, with few and with all by turns, `--runs` rounds.
    #[arg(long, conflicts_with_all = ["verify", "kernels", "json", "tune"])]
    pub profile_cost: bool,
    /// Writes the rows as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Prints lines of JSON in place of the table.
    #[arg(long)]
    pub lines: bool,
    /// Runs nothing: prints the adapter's measured peaks.
    #[arg(long)]
    pub peak: bool,
    /// Runs nothing: writes each model's parameters to this folder, as MODEL-INIT.safetensors.
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Part of the adapter's name, or its PCI address.
    #[arg(long)]
    pub adapter: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum ModeArg {
    Eager,
    Recorded,
    Fused,
    /// Fused, with the configurations of kernels that are the fastest on the device.
    Tuned,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Eager => Mode::Eager,
            ModeArg::Recorded => Mode::Recorded,
            ModeArg::Fused | ModeArg::Tuned => Mode::Fused,
        }
    }
}

impl ModeArg {
    /// What it is called in tables.
    pub fn words(self) -> String {
        if self == ModeArg::Tuned { "tuned".into() } else { Mode::from(self).to_string() }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum InitArg {
    Default,
    He,
}

impl From<InitArg> for Init {
    fn from(kind: InitArg) -> Init {
        match kind {
            InitArg::Default => Init::Default,
            InitArg::He => Init::He,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum PrecisionArg {
    Highest,
    /// Products of split operands on matrix units.
    High,
    /// Products of rounded operands on matrix units.
    Medium,
    F16,
}

impl From<PrecisionArg> for MatmulPrecision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::Highest | PrecisionArg::F16 => MatmulPrecision::Highest,
            PrecisionArg::High => MatmulPrecision::High,
            PrecisionArg::Medium => MatmulPrecision::Medium,
        }
    }
}

/// The largest errors that `--verify` accepts.
pub struct Tolerances {
    /// Of an output. Rounding grows with the square root of the depth: 2048 layers give about 2e-5 in f32. What matrix
    /// units cut off grows with the depth itself, 2e-7 a layer at high.
    pub output: f64,
    /// Of a gradient.
    pub gradient: f64,
    /// Largest value of a ReLU on the other side of 0 than in f64, in terms of the largest of its layer.
    pub side: f64,
}

impl PrecisionArg {
    pub fn tolerances(self) -> Tolerances {
        match self {
            PrecisionArg::Highest => Tolerances { output: 5e-5, gradient: 1e-4, side: 1e-4 },
            PrecisionArg::High => Tolerances { output: 1e-3, gradient: 2e-3, side: 2e-4 },
            PrecisionArg::Medium => Tolerances { output: 2e-2, gradient: 5e-2, side: 5e-2 },
            PrecisionArg::F16 => Tolerances { output: 1.5e-1, gradient: 3e-1, side: 1.5e-1 },
        }
    }
}

impl Args {
    pub fn sizes(&self, model: Model) -> Sizes {
        let sizes = Sizes::of(model, self.scale);
        self.rows.map_or(sizes, |rows| sizes.with_rows(rows))
    }

    pub fn work(&self, model: Model) -> Result<Work, Box<dyn Error>> {
        let dtype = if self.precision == PrecisionArg::F16 { DType::F16 } else { DType::F32 };
        match self.phase {
            Phase::Infer => self.sizes(model).infer(dtype),
            Phase::Train => self.sizes(model).train(),
        }
    }

    pub fn checkpoint(&self, model: Model) -> Checkpoint {
        match self.checkpoint {
            Some(every) if model == Model::Deep => Checkpoint::Every(every as usize),
            _ => TrainOptions::default().checkpoint,
        }
    }
}
