//! In: [`DnnConfig`]; out: the graph of the seed's deep or wide network. Knows graph's builder only.

use super::layer::{Linear, check_dtype, check_size, relu};
use super::{Loss, ModelError};
use crate::graph::{Builder, DType, Graph, TensorType, ValueId};

/// Sizes of a DNN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnnConfig {
    /// Columns of the input.
    pub in_size: usize,
    /// Columns between layers, W.
    pub width: usize,
    /// Linear layers, L, at least 2.
    pub depth: usize,
    /// Columns of the output.
    pub out_size: usize,
}

impl DnnConfig {
    /// `depth` layers of `width`, input and output as wide.
    pub fn square(width: usize, depth: usize) -> Self {
        DnnConfig { in_size: width, width, depth, out_size: width }
    }

    /// The seed's deep network: 2048 layers of 256.
    pub fn deep() -> Self {
        Self::square(256, 2048)
    }

    /// The seed's wide network: 3 layers of 8192.
    pub fn wide() -> Self {
        Self::square(8192, 3)
    }

    /// Whether a model can have these sizes; the error names the field.
    pub fn check(&self) -> Result<(), ModelError> {
        check_size("in_size", self.in_size, 1, i32::MAX as usize)?;
        check_size("width", self.width, 1, i32::MAX as usize)?;
        check_size("depth", self.depth, 2, 1 << 16)?;
        check_size("out_size", self.out_size, 1, i32::MAX as usize)
    }
}

/// The seed's benchmark network: a ReLU after every linear layer, the last too.
///
/// ```
/// use kiln::model::{Dnn, DnnConfig};
/// let graph = Dnn::new(DnnConfig { in_size: 48, width: 64, depth: 12, out_size: 32 }).build(33)?;
/// assert_eq!(graph.shape(graph.outputs()[0].value).dims(), [33, 32]);
/// # Ok::<(), kiln::model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dnn {
    /// Sizes.
    pub config: DnnConfig,
    /// Element type of parameters and activations: F32 or F16.
    pub dtype: DType,
}

impl Dnn {
    /// A model in f32.
    pub fn new(config: DnnConfig) -> Self {
        Dnn { config, dtype: DType::F32 }
    }

    /// The same model with parameters and activations in another type.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The seed's forward pass: input "input" (B, in_size), output "output" (B, out_size), both of the model's type.
    pub fn build(&self, batch: usize) -> Result<Graph, ModelError> {
        check_size("batch", batch, 1, i32::MAX as usize)?;
        let mut b = Builder::new();
        let x = b.input("input", TensorType::new(self.dtype, [batch, self.config.in_size]))?;
        let y = self.forward(&mut b, x)?;
        b.output("output", y)?;
        Ok(b.finish()?)
    }

    /// The forward pass of training: inputs "input" (B, in_size) and "targets" i32 (B), the class of each row among the
    /// out_size columns; output "loss" f32 ().
    pub fn build_training(&self, batch: usize, loss: Loss) -> Result<Graph, ModelError> {
        check_size("batch", batch, 1, i32::MAX as usize)?;
        let mut b = Builder::new();
        let x = b.input("input", TensorType::new(self.dtype, [batch, self.config.in_size]))?;
        let targets = b.input("targets", TensorType::new(DType::I32, [batch]))?;
        let y = self.forward(&mut b, x)?;
        let loss = loss.build(&mut b, y, targets)?;
        b.output("loss", loss)?;
        Ok(b.finish()?)
    }

    /// x (B, in_size) → (B, out_size), into a graph that is being built.
    pub fn forward(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, ModelError> {
        let c = &self.config;
        c.check()?;
        check_dtype(self.dtype)?;
        let last = c.depth - 1;
        let mut y = x;
        for i in 0..c.depth {
            let inputs = if i == 0 { c.in_size } else { c.width };
            let outputs = if i == last { c.out_size } else { c.width };
            let linear = Linear { inputs, outputs, bias: true, dtype: self.dtype };
            y = linear.build(b, &format!("layers.{}", 2 * i), y)?;
            y = relu(b, &format!("layers.{}", 2 * i + 1), y)?;
        }
        Ok(y)
    }
}
