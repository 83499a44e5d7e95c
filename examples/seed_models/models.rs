//! In: which of the seed's models, and for how many rows; out: [`Work`], its graph to infer or to train, and numbers to
//! give it. Knows no devices.

use clap::ValueEnum;
use kiln::graph::{Builder, CrossEntropy, DType, Graph, TensorType};
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig, Loss};
use kiln::tensor::Tensor;
use std::error::Error;
use std::fmt;

/// One of the seed's models.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
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

/// A graph with its inputs.
pub struct Work {
    pub graph: Graph,
    /// What comes with each run.
    pub given: Vec<(&'static str, Tensor)>,
    /// What stays on the device, as PyTorch's samples do.
    pub resident: Vec<(&'static str, Tensor)>,
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

    fn dnn(self) -> DnnConfig {
        if self == Model::Deep { DnnConfig::deep() } else { DnnConfig::wide() }
    }

    /// The forward pass, with one output.
    pub fn infer(self, rows: usize) -> Result<Work, Box<dyn Error>> {
        if self == Model::Gptlite {
            let graph = Gptlite::new(GptliteConfig::small()).build(1, rows)?;
            return Ok(Work { graph, given: vec![("tokens", tokens(rows))], resident: Vec::new() });
        }
        let config = self.dnn();
        let x = samples(rows, config.in_size);
        let mut b = Builder::new();
        let input = b.state("input", x.ty().clone())?;
        let output = Dnn::new(config).forward(&mut b, input)?;
        b.output("output", output)?;
        b.update(input, input)?;
        Ok(Work { graph: b.finish()?, given: Vec::new(), resident: vec![("input", x)] })
    }

    /// The forward pass of training with the seed's loss and, in GPTlite, its dropout of 0.1.
    pub fn train(self, rows: usize) -> Result<Work, Box<dyn Error>> {
        if self == Model::Gptlite {
            let graph = Gptlite::new(GptliteConfig::small()).build_training(1, rows, Loss::Seed)?;
            let targets = Tensor::i32([1, rows], &classes(rows, GptliteConfig::small().vocab_size));
            return Ok(Work {
                graph,
                given: vec![("tokens", tokens(rows)), ("targets", targets)],
                resident: Vec::new(),
            });
        }
        let config = self.dnn();
        let x = samples(rows, config.in_size);
        let classes = Tensor::i32([rows], &classes(rows, config.out_size));
        let mut b = Builder::new();
        let input = b.state("input", x.ty().clone())?;
        let targets = b.input("targets", TensorType::new(DType::I32, [rows]))?;
        let output = Dnn::new(config).forward(&mut b, input)?;
        let loss = b.scope("loss", |b| b.seed_loss(output, targets, CrossEntropy::default()))?;
        b.output("loss", loss)?;
        b.update(input, input)?;
        Ok(Work { graph: b.finish()?, given: vec![("targets", classes)], resident: vec![("input", x)] })
    }

    /// Parameters of the first, the middle and the last layers.
    pub fn some_parameters(self) -> Vec<String> {
        if self == Model::Gptlite {
            let last = GptliteConfig::small().n_layer - 1;
            let of_block = |i: usize| {
                let names =
                    ["ln1.weight", "sa.heads.5.key.weight", "sa.proj.weight", "ffwd.net.0.weight", "ffwd.net.2.bias"];
                names.map(|name| format!("blocks.{i}.{name}"))
            };
            let ends = ["token_embedding_table.weight", "position_embedding_table.weight", "ln.bias", "lm_head.weight"];
            let blocks = [0, last / 2, last].into_iter().flat_map(of_block);
            return ends.map(str::to_owned).into_iter().chain(blocks).collect();
        }
        let last = self.dnn().depth - 1;
        let of_layer = |i: usize| ["weight", "bias"].map(|name| format!("layers.{}.{name}", 2 * i));
        [0, last / 2, last].into_iter().flat_map(of_layer).collect()
    }
}

fn tokens(rows: usize) -> Tensor {
    let vocab = GptliteConfig::small().vocab_size;
    let tokens: Vec<i32> = (0..rows).map(|i| (i * i * 31 + i * 17) as i32 % vocab as i32).collect();
    Tensor::i32([1, rows], &tokens)
}

fn classes(rows: usize, classes: usize) -> Vec<i32> {
    (0..rows).map(|i| (i * 7919 % classes) as i32).collect()
}

/// A fixed sequence with unit variance and no period.
fn samples(rows: usize, columns: usize) -> Tensor {
    let noise =
        |i: usize| (((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0) * 1.732;
    let values: Vec<f32> = (0..rows * columns).map(noise).collect();
    Tensor::f32([rows, columns], &values)
}
