//! In: a builder and sizes; out: PyTorch's layers with parameters under PyTorch's names. Knows graph's builder only.

use super::ModelError;
use crate::graph::{Builder, DType, TensorType, ValueId};

/// `nn.Linear(inputs, outputs)` over the last dimension of x.
pub(super) struct Linear {
    pub inputs: usize,
    pub outputs: usize,
    pub bias: bool,
    pub dtype: DType,
}

impl Linear {
    pub fn build(&self, b: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, ModelError> {
        b.scope(name, |b| {
            let weight = b.parameter("weight", TensorType::new(self.dtype, [self.outputs, self.inputs]))?;
            let bias = match self.bias {
                true => Some(b.parameter("bias", TensorType::new(self.dtype, [self.outputs]))?),
                false => None,
            };
            Ok(b.linear(x, weight, bias)?)
        })
    }
}

/// `nn.LayerNorm(width)`.
pub(super) fn layernorm(b: &mut Builder, name: &str, x: ValueId, eps: f32) -> Result<ValueId, ModelError> {
    let row = TensorType::new(b.ty(x).dtype, [b.shape(x).last()]);
    b.scope(name, |b| {
        let weight = b.parameter("weight", row.clone())?;
        let bias = b.parameter("bias", row)?;
        Ok(b.layernorm(x, weight, bias, eps)?)
    })
}

/// `nn.Embedding(rows, width)`.
pub(super) fn embedding(
    b: &mut Builder,
    name: &str,
    table: TensorType,
    indices: ValueId,
) -> Result<ValueId, ModelError> {
    b.scope(name, |b| {
        let weight = b.parameter("weight", table)?;
        Ok(b.embedding(weight, indices)?)
    })
}

/// `nn.ReLU()`.
pub(super) fn relu(b: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, ModelError> {
    b.scope(name, |b| Ok(b.relu(x)?))
}

/// `nn.Dropout(p)` wherever a model has one: each has the next site. Without p there is none, and no counter.
pub(super) struct Dropout {
    p: f32,
    counter: Option<ValueId>,
    site: u32,
}

impl Dropout {
    /// For inference.
    pub fn none() -> Self {
        Dropout { p: 0.0, counter: None, site: 0 }
    }

    /// For training; declares the counter if p is not 0.
    pub fn new(b: &mut Builder, p: f32) -> Result<Self, ModelError> {
        let counter = if p == 0.0 { None } else { Some(b.dropout_counter()?) };
        Ok(Dropout { p, counter, site: 0 })
    }

    pub fn build(&mut self, b: &mut Builder, x: ValueId) -> Result<ValueId, ModelError> {
        let Some(counter) = self.counter else { return Ok(x) };
        self.site += 1;
        Ok(b.dropout(x, self.p, self.site - 1, counter)?)
    }
}

/// Models compute in f32 or f16.
pub(super) fn check_dtype(dtype: DType) -> Result<(), ModelError> {
    match dtype {
        DType::F32 | DType::F16 => Ok(()),
        got => Err(ModelError::DType { got }),
    }
}

/// Sizes are counted and indexed in i32 on a device.
pub(super) fn check_size(field: &'static str, got: usize, least: usize, most: usize) -> Result<(), ModelError> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    Err(ModelError::size(field, format_args!("{least} to {most}"), got))
}
