//! In: [`GptliteConfig`]; out: the graph of the seed's GPT, written as the seed writes it. Knows graph's builder only.

use super::layer::{Dropout, Linear, check_dtype, check_size, embedding, layernorm, relu};
use super::{Loss, ModelError};
use crate::graph::{Builder, DType, Graph, TensorType, ValueId};

/// PyTorch's default ε of `nn.LayerNorm`.
pub const LAYERNORM_EPS: f32 = 1e-5;

/// Sizes of a GPTlite.
#[derive(Clone, Debug, PartialEq)]
pub struct GptliteConfig {
    /// Tokens in the vocabulary, C.
    pub vocab_size: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Width, E.
    pub n_embd: usize,
    /// Heads, H; the head size D is E / H.
    pub n_head: usize,
    /// Positions, the longest sequence.
    pub block_size: usize,
    /// What attention's scores are multiplied with.
    pub attention_scale: f32,
    /// Probability of dropout in training, at least 0 and less than 1.
    pub dropout: f32,
}

impl GptliteConfig {
    /// With the seed's scale, `n_embd^-0.5`: its code takes the width where the textbook takes the head size. Without
    /// dropout.
    pub fn new(vocab_size: usize, n_layer: usize, n_embd: usize, n_head: usize, block_size: usize) -> Self {
        let attention_scale = (n_embd as f64).powf(-0.5) as f32;
        GptliteConfig { vocab_size, n_layer, n_embd, n_head, block_size, attention_scale, dropout: 0.0 }
    }

    /// The seed's: GPT-3 Small (12 layers of 768, 12 heads, 2048 positions) over 65 characters, dropout 0.1.
    pub fn small() -> Self {
        Self::new(65, 12, 768, 12, 2048).with_dropout(0.1)
    }

    /// The same sizes with another probability of dropout.
    pub fn with_dropout(self, dropout: f32) -> Self {
        GptliteConfig { dropout, ..self }
    }

    /// The same sizes with the textbook's scale, `head_size^-0.5`.
    pub fn with_head_scale(mut self) -> Self {
        self.attention_scale = (self.n_embd as f64 / self.n_head as f64).powf(-0.5) as f32;
        self
    }

    /// D, the width of a head.
    pub fn head_size(&self) -> usize {
        self.n_embd / self.n_head.max(1)
    }

    /// Whether a model can have these sizes; the error names the field.
    pub fn check(&self) -> Result<(), ModelError> {
        // the feed-forward layer is four times as wide
        let most = i32::MAX as usize / 4;
        check_size("vocab_size", self.vocab_size, 1, most)?;
        check_size("n_layer", self.n_layer, 0, 1 << 16)?;
        check_size("n_embd", self.n_embd, 1, most)?;
        check_size("n_head", self.n_head, 1, 1 << 16)?;
        check_size("block_size", self.block_size, 1, most)?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(ModelError::size(
                "n_embd",
                format_args!("a multiple of n_head = {}", self.n_head),
                self.n_embd,
            ));
        }
        if !self.attention_scale.is_finite() {
            return Err(ModelError::size("attention_scale", "a finite number", self.attention_scale));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(ModelError::size("dropout", "at least 0 and less than 1", self.dropout));
        }
        Ok(())
    }
}

/// The seed's GPT: separate heads, pre-norm residual blocks, ReLU feed-forward.
///
/// ```
/// use kiln::model::{Gptlite, GptliteConfig};
/// let model = Gptlite::new(GptliteConfig::new(65, 2, 64, 4, 64));
/// let graph = model.build(2, 48)?;
/// assert_eq!(graph.shape(graph.outputs()[0].value).dims(), [2, 65, 48]);
/// # Ok::<(), kiln::model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gptlite {
    /// Sizes.
    pub config: GptliteConfig,
    /// Element type of parameters and activations: F32 or F16.
    pub dtype: DType,
}

impl Gptlite {
    /// A model in f32.
    pub fn new(config: GptliteConfig) -> Self {
        Gptlite { config, dtype: DType::F32 }
    }

    /// The same model with parameters and activations in another type.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The seed's forward pass: input "tokens" i32 (B, S), output "logits" (B, C, S).
    pub fn build(&self, batch: usize, seq: usize) -> Result<Graph, ModelError> {
        check_size("batch", batch, 1, i32::MAX as usize)?;
        let mut b = Builder::new();
        let tokens = b.input("tokens", TensorType::new(DType::I32, [batch, seq]))?;
        let logits = self.forward(&mut b, tokens)?;
        let logits = b.permute(logits, &[0, 2, 1])?; // (B, C, S)
        b.output("logits", logits)?;
        Ok(b.finish()?)
    }

    /// The forward pass of training: inputs "tokens" and "targets" i32 (B, S), and with dropout "dropout.counter" u32
    /// (3); output "loss" f32 (). Dropouts lie where the seed has them: on each head's weights after softmax, after
    /// `proj` and after `ffwd.net.2`; their sites count up in the order in which a block writes them.
    pub fn build_training(&self, batch: usize, seq: usize, loss: Loss) -> Result<Graph, ModelError> {
        check_size("batch", batch, 1, i32::MAX as usize)?;
        self.config.check()?;
        let mut b = Builder::new();
        let tokens = b.input("tokens", TensorType::new(DType::I32, [batch, seq]))?;
        let targets = b.input("targets", TensorType::new(DType::I32, [batch, seq]))?;
        let mut dropout = Dropout::new(&mut b, self.config.dropout)?;
        let x = self.hidden_with(&mut b, tokens, &mut dropout)?;
        let logits = self.head(&mut b, x)?;
        let logits = b.permute(logits, &[0, 2, 1])?; // (B, C, S)
        let loss = loss.build(&mut b, logits, targets)?;
        b.output("loss", loss)?;
        Ok(b.finish()?)
    }

    /// One step of generation: inputs "tokens" i32 (1, S), padded on the right with any token, and "position" i32 (1),
    /// the index of the last true token; outputs "logits" (1, C) after that token and "next" i32 (1), the likeliest
    /// token. Padding cannot be seen from the left of it, and one row alone goes through the head.
    pub fn build_next(&self, seq: usize) -> Result<Graph, ModelError> {
        let mut b = Builder::new();
        let tokens = b.input("tokens", TensorType::new(DType::I32, [1, seq]))?;
        let position = b.input("position", TensorType::new(DType::I32, [1]))?;
        let x = self.hidden(&mut b, tokens)?; // (1, S, E)
        let row = b.pick_row(x, position)?; // (1, E)
        let logits = self.head(&mut b, row)?; // (1, C)
        let next = b.argmax(logits, 1)?; // (1)
        b.output("logits", logits)?;
        b.output("next", next)?;
        Ok(b.finish()?)
    }

    /// Tokens (B, S) → logits (B, S, C), into a graph that is being built.
    pub fn forward(&self, b: &mut Builder, tokens: ValueId) -> Result<ValueId, ModelError> {
        let x = self.hidden(b, tokens)?;
        self.head(b, x)
    }

    /// Tokens (B, S) → what the last layer norm gives, (B, S, E).
    pub fn hidden(&self, b: &mut Builder, tokens: ValueId) -> Result<ValueId, ModelError> {
        self.hidden_with(b, tokens, &mut Dropout::none())
    }

    fn hidden_with(&self, b: &mut Builder, tokens: ValueId, dropout: &mut Dropout) -> Result<ValueId, ModelError> {
        let c = &self.config;
        c.check()?;
        check_dtype(self.dtype)?;
        let &[_, seq] = b.shape(tokens).dims() else {
            return Err(ModelError::Input { what: "tokens", expected: "(B, S)", got: b.shape(tokens).clone() });
        };
        if !(1..=c.block_size).contains(&seq) {
            return Err(ModelError::Sequence { seq, block_size: c.block_size });
        }
        let table = |rows| TensorType::new(self.dtype, [rows, c.n_embd]);
        let tok_emb = embedding(b, "token_embedding_table", table(c.vocab_size), tokens)?; // (B, S, E)
        let positions = b.arange(seq)?;
        let pos_emb = embedding(b, "position_embedding_table", table(c.block_size), positions)?; // (S, E)
        let mut x = b.add(tok_emb, pos_emb)?; // (B, S, E)
        // the seed's `tril` buffers are equal in every head of every block
        let mask = b.causal_mask(seq, seq)?; // (S, S)
        for i in 0..c.n_layer {
            x = b.scope(&format!("blocks.{i}"), |b| self.block(b, x, mask, dropout))?;
        }
        layernorm(b, "ln", x, LAYERNORM_EPS)
    }

    fn head(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ModelError> {
        self.linear(self.config.n_embd, self.config.vocab_size, false).build(b, "lm_head", x)
    }

    fn linear(&self, inputs: usize, outputs: usize, bias: bool) -> Linear {
        Linear { inputs, outputs, bias, dtype: self.dtype }
    }

    fn block(&self, b: &mut Builder, x: ValueId, mask: ValueId, dropout: &mut Dropout) -> Result<ValueId, ModelError> {
        let y = layernorm(b, "ln1", x, LAYERNORM_EPS)?;
        let y = b.scope("sa", |b| self.self_attention(b, y, mask, dropout))?;
        let x = b.add(x, y)?;
        let y = layernorm(b, "ln2", x, LAYERNORM_EPS)?;
        let y = b.scope("ffwd.net", |b| self.feed_forward(b, y, dropout))?;
        Ok(b.add(x, y)?)
    }

    fn self_attention(
        &self,
        b: &mut Builder,
        x: ValueId,
        mask: ValueId,
        dropout: &mut Dropout,
    ) -> Result<ValueId, ModelError> {
        let mut heads = Vec::with_capacity(self.config.n_head);
        for i in 0..self.config.n_head {
            heads.push(b.scope(&format!("heads.{i}"), |b| self.attention_head(b, x, mask, dropout))?);
        }
        let out = b.concat(&heads, 2)?; // (B, S, H·D)
        let out = self.linear(self.config.n_embd, self.config.n_embd, true).build(b, "proj", out)?;
        dropout.build(b, out)
    }

    fn attention_head(
        &self,
        b: &mut Builder,
        x: ValueId,
        mask: ValueId,
        dropout: &mut Dropout,
    ) -> Result<ValueId, ModelError> {
        let project = self.linear(self.config.n_embd, self.config.head_size(), false);
        let k = project.build(b, "key", x)?; // (B, S, D)
        let q = project.build(b, "query", x)?;
        let v = project.build(b, "value", x)?;
        let wei = b.matmul_transposed(q, false, k, true)?; // (B, S, S)
        let wei = b.scale(wei, self.config.attention_scale)?;
        let wei = b.masked_fill(wei, mask, f32::NEG_INFINITY)?;
        let wei = b.softmax(wei, 2)?;
        let wei = dropout.build(b, wei)?;
        Ok(b.matmul(wei, v)?) // (B, S, D)
    }

    fn feed_forward(&self, b: &mut Builder, x: ValueId, dropout: &mut Dropout) -> Result<ValueId, ModelError> {
        let wide = 4 * self.config.n_embd;
        let h = self.linear(self.config.n_embd, wide, true).build(b, "0", x)?; // (B, S, 4·E)
        let h = relu(b, "1", h)?;
        let h = self.linear(wide, self.config.n_embd, true).build(b, "2", h)?;
        dropout.build(b, h)
    }
}
