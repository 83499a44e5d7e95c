//! In: a parameter's name; out: its values, from wherever they are kept. Knows only tensors and their types.

use crate::graph::TensorType;
use crate::tensor::Tensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Where a program gets its parameters from.
pub trait ParamSource: Sync {
    /// The parameter of this name; a float is converted to the storage's type by whoever asks, if it is not of it already.
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>>;

    /// The type of what [`ParamSource::get`] gives; a source that converts, draws or copies answers without doing so.
    fn ty(&self, name: &str) -> Option<TensorType> {
        self.get(name).map(|tensor| tensor.ty().clone())
    }

    /// The names that it has, sorted, for the error about one that it lacks; none if it cannot list them.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

impl ParamSource for BTreeMap<String, Tensor> {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        BTreeMap::get(self, name).map(Cow::Borrowed)
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}
