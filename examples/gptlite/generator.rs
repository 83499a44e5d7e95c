//! In: a GPTlite with its parameters and vocabulary; out: [`Generator`], which gives one token after the other. Knows
//! nothing of how tokens are picked.

use kiln::graph::Graph;
use kiln::model::{Gptlite, GptliteConfig, ParamSource, Vocabulary};
use kiln::session::{CompileOptions, Program, Run, Session};
use kiln::tensor::Tensor;
use std::error::Error;

/// A model compiled for one step of generation at a time.
pub struct Generator {
    /// Of one step.
    pub program: Program,
    /// What tokens stand for.
    pub vocabulary: Vocabulary,
    block: usize,
}

/// The graph of a step over a whole block.
pub fn graph(config: &GptliteConfig) -> Result<Graph, Box<dyn Error>> {
    Ok(Gptlite::new(config.clone()).build_next(config.block_size)?)
}

impl Generator {
    /// Compiles a model.
    pub fn new(
        session: &Session,
        config: &GptliteConfig,
        vocabulary: &Vocabulary,
        params: &dyn ParamSource,
        options: &CompileOptions,
    ) -> Result<Generator, Box<dyn Error>> {
        let program = session.compile(&graph(config)?, params, options)?;
        Ok(Generator { program, vocabulary: vocabulary.clone(), block: config.block_size })
    }

    /// What a step is given: the last block of tokens, padded on the right, and the last one's position.
    pub fn inputs(&self, tokens: &[i32]) -> (Tensor, Tensor) {
        let window = &tokens[tokens.len().saturating_sub(self.block)..];
        let mut padded = window.to_vec();
        padded.resize(self.block, 0);
        (Tensor::i32([1, self.block], &padded), Tensor::i32([1], &[window.len() as i32 - 1]))
    }

    /// Starts the step after these tokens, of which there is at least one; it gives "logits" and "next".
    pub fn submit(&self, tokens: &[i32]) -> Result<Run<'_>, Box<dyn Error>> {
        let (window, position) = self.inputs(tokens);
        Ok(self.program.submit(&[("tokens", &window), ("position", &position)])?)
    }
}
