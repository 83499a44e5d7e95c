//! In: sizes of one of the seed's models; out: [`Work`], its graph to infer or to train, and batches to give it. Knows no
//! devices.

use crate::sizes::{Model, Sizes};
use kiln::graph::{Builder, CrossEntropy, DType, Graph, TensorType};
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};
use kiln::tensor::Tensor;
use std::error::Error;

/// A graph with batches for it.
pub struct Work {
    pub graph: Graph,
    /// Random ones that take turns, at least one.
    pub batches: Vec<Batch>,
}

/// What a run is about.
pub struct Batch {
    /// What comes with each run.
    pub given: Vec<(&'static str, Tensor)>,
    /// States that update themselves: what stays on the device, as PyTorch's samples do.
    pub resident: Vec<(&'static str, Tensor)>,
}

/// Batches that take turns.
const BATCHES: usize = 3;

impl Sizes {
    fn gptlite(&self) -> Gptlite {
        let config = GptliteConfig::new(self.vocab, self.depth, self.width, self.heads, self.block);
        Gptlite::new(config.with_dropout(0.1))
    }

    fn dnn(&self) -> Dnn {
        Dnn::new(DnnConfig::square(self.width, self.depth))
    }

    /// The forward pass in f32 or f16, with one output.
    pub fn infer(&self, dtype: DType) -> Result<Work, Box<dyn Error>> {
        if self.model == Model::Gptlite {
            let graph = self.gptlite().with_dtype(dtype).build(1, self.rows)?;
            let batch = |i| Batch { given: vec![("tokens", self.tokens(i))], resident: Vec::new() };
            return Ok(Work { graph, batches: (0..BATCHES).map(batch).collect() });
        }
        let mut b = Builder::new();
        let input = b.state("input", TensorType::new(dtype, [self.rows, self.width]))?;
        let output = self.dnn().with_dtype(dtype).forward(&mut b, input)?;
        b.output("output", output)?;
        b.update(input, input)?;
        let batch = |i| Batch { given: Vec::new(), resident: vec![("input", self.samples_of(i).cast(dtype))] };
        Ok(Work { graph: b.finish()?, batches: (0..BATCHES).map(batch).collect() })
    }

    /// The forward pass of training with the seed's loss and, in GPTlite, its dropout of 0.1.
    pub fn train(&self) -> Result<Work, Box<dyn Error>> {
        if self.model == Model::Gptlite {
            let graph = self.gptlite().build_training(1, self.rows, Loss::Seed)?;
            let batch = |i| {
                let targets = Tensor::i32([1, self.rows], &classes(self.rows, self.vocab, i));
                Batch { given: vec![("tokens", self.tokens(i)), ("targets", targets)], resident: Vec::new() }
            };
            return Ok(Work { graph, batches: (0..BATCHES).map(batch).collect() });
        }
        let mut b = Builder::new();
        let input = b.state("input", TensorType::new(DType::F32, [self.rows, self.width]))?;
        let targets = b.input("targets", TensorType::new(DType::I32, [self.rows]))?;
        let output = self.dnn().forward(&mut b, input)?;
        let loss = b.scope("loss", |b| b.seed_loss(output, targets, CrossEntropy::default()))?;
        b.output("loss", loss)?;
        b.update(input, input)?;
        let batch = |i| {
            let targets = Tensor::i32([self.rows], &classes(self.rows, self.width, i));
            Batch { given: vec![("targets", targets)], resident: vec![("input", self.samples_of(i))] }
        };
        Ok(Work { graph: b.finish()?, batches: (0..BATCHES).map(batch).collect() })
    }

    /// Parameters of the first, the middle and the last layers.
    pub fn some_parameters(&self) -> Vec<String> {
        let last = self.depth - 1;
        if self.model == Model::Gptlite {
            let of_block = |i: usize| {
                let names =
                    ["ln1.weight", "sa.heads.5.key.weight", "sa.proj.weight", "ffwd.net.0.weight", "ffwd.net.2.bias"];
                names.map(|name| format!("blocks.{i}.{name}"))
            };
            let ends = ["token_embedding_table.weight", "position_embedding_table.weight", "ln.bias", "lm_head.weight"];
            let blocks = [0, last / 2, last].into_iter().flat_map(of_block);
            return ends.map(str::to_owned).into_iter().chain(blocks).collect();
        }
        let of_layer = |i: usize| ["weight", "bias"].map(|name| format!("layers.{}.{name}", 2 * i));
        [0, last / 2, last].into_iter().flat_map(of_layer).collect()
    }

    fn tokens(&self, batch: usize) -> Tensor {
        Tensor::i32([1, self.rows], &classes(self.rows, self.vocab, BATCHES + batch))
    }

    /// (rows, width) of unit variance.
    fn samples_of(&self, batch: usize) -> Tensor {
        let noise = |i: usize| (2.0 * fraction(i, batch) - 1.0) * 1.732;
        let values: Vec<f32> = (0..self.rows * self.width).map(noise).collect();
        Tensor::f32([self.rows, self.width], &values)
    }
}

impl Model {
    /// As many positions of GPTlite's one sequence, or samples of a DNN, as the reference computes in reasonable time.
    pub fn few_rows(self) -> usize {
        match self {
            Model::Gptlite => 64,
            Model::Deep => 8,
            Model::Wide => 4,
        }
    }
}

fn classes(rows: usize, classes: usize, stream: usize) -> Vec<i32> {
    (0..rows).map(|i| (fraction(i, stream) * classes as f32) as i32).collect()
}

/// The i-th random number of a stream, in [0, 1) with 24 bits (SplitMix64, Steele and others 2014).
fn fraction(i: usize, stream: usize) -> f32 {
    let mut z = (((stream as u64) << 40) + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}
