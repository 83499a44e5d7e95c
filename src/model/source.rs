//! In: a parameter's name; out: its values, from wherever they are kept. Knows only tensors.

use crate::tensor::Tensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Where a program gets its parameters from.
pub trait ParamSource: Sync {
    /// The parameter of this name; converted to the storage's type by whoever asks, if it is not of it already.
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>>;
}

impl ParamSource for BTreeMap<String, Tensor> {
    fn get(&self, name: &str) -> Option<Cow<'_, Tensor>> {
        BTreeMap::get(self, name).map(Cow::Borrowed)
    }
}
