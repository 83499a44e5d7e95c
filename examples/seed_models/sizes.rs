//! In: which of the seed's models, at what scale; out: [`Sizes`] and what they cost at least. Knows numbers alone, so that
//! runners and tables share it.
#![allow(dead_code, reason = "each example uses its own part")]

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One of the seed's models.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    Gptlite,
    Deep,
    Wide,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Gptlite => "gptlite",
            Model::Deep => "deep",
            Model::Wide => "wide",
        })
    }
}

/// Forward passes or whole training steps.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Infer,
    Train,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Infer => "infer",
            Phase::Train => "train",
        })
    }
}

/// The seed's sizes, or a fraction of them that a CPU runs in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    Full,
    Small,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scale::Full => "full",
            Scale::Small => "small",
        })
    }
}

/// The sizes of a model and of what it is run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    pub model: Model,
    /// Positions of GPTlite's one sequence, or samples of a DNN's batch.
    pub rows: usize,
    pub width: usize,
    /// Blocks of GPTlite, or linear layers of a DNN.
    pub depth: usize,
    /// GPTlite's; 1 in a DNN, as are the next two.
    pub heads: usize,
    pub vocab: usize,
    /// Positions that the model knows.
    pub block: usize,
}

impl Sizes {
    pub fn of(model: Model, scale: Scale) -> Sizes {
        let gptlite = |rows, width, depth, heads| Sizes { model, rows, width, depth, heads, vocab: 65, block: rows };
        let dnn = |rows, width, depth| Sizes { model, rows, width, depth, heads: 1, vocab: 1, block: 1 };
        match (model, scale) {
            (Model::Gptlite, Scale::Full) => gptlite(2048, 768, 12, 12),
            (Model::Gptlite, Scale::Small) => gptlite(128, 192, 3, 6),
            (Model::Deep, Scale::Full) => dnn(2048, 256, 2048),
            (Model::Deep, Scale::Small) => dnn(64, 64, 128),
            (Model::Wide, Scale::Full) => dnn(2048, 8192, 3),
            (Model::Wide, Scale::Small) => dnn(128, 512, 3),
        }
    }

    /// The same for fewer rows.
    pub fn with_rows(self, rows: usize) -> Sizes {
        Sizes { rows, ..self }
    }

    /// What the seed counts as samples of a run: sequences of GPTlite, rows of a DNN.
    pub fn samples(&self) -> usize {
        if self.model == Model::Gptlite { 1 } else { self.rows }
    }

    /// Numbers in all parameters.
    pub fn parameters(&self) -> usize {
        let (e, l) = (self.width, self.depth);
        match self.model {
            // per block Q, K, V, proj with bias, 2 · 4·E² with biases, two norms; then the last norm, head and tables
            Model::Gptlite => l * (12 * e * e + 10 * e) + 2 * e + e * (2 * self.vocab + self.block),
            _ => l * (e * e + e),
        }
    }

    /// FLOPs of a run's matrix products, a multiply-add counted as two: only what lies under the causal mask, and
    /// nothing computed twice. A step has two more products for each one, but for the first layer's input gradient;
    /// element-wise work is not counted.
    pub fn flops(&self, phase: Phase) -> f64 {
        let [s, e, l, v] = [self.rows, self.width, self.depth, self.vocab].map(|n| n as f64);
        match (self.model, phase) {
            (Model::Gptlite, _) => {
                let linears = l * 24.0 * s * e * e + 2.0 * s * e * v;
                // q·kᵀ and weights·v over (S + 1) / 2 positions on average
                let attention = l * 2.0 * s * (s + 1.0) * e;
                match phase {
                    Phase::Infer => linears + attention,
                    Phase::Train => 3.0 * (linears + attention),
                }
            }
            (_, Phase::Infer) => 2.0 * s * e * e * l,
            (_, Phase::Train) => 2.0 * s * e * e * (3.0 * l - 1.0),
        }
    }

    /// Bytes that a run moves at least: it reads every parameter once, and a step reads and writes it and both of Adam's
    /// moments, which are f32 in any precision.
    pub fn bytes(&self, phase: Phase, size: usize) -> f64 {
        let parameters = self.parameters() as f64;
        match phase {
            Phase::Infer => parameters * size as f64,
            Phase::Train => parameters * 4.0 * 6.0,
        }
    }
}
