//! In: dropout's attributes; out: the words that shared/philox.wgsl is given, and which of its forms a row needs. Knows
//! no kernel.

use super::view::window;
use super::{KernelError, Operand, split};
use crate::caps::DeviceCaps;
use crate::graph::DropoutAttrs;

/// How four neighbours that are dropped at once lie among the groups of four that share a call of Philox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fours {
    /// They are a group: rows are whole groups.
    Whole,
    /// They may lie across two.
    Across,
}

impl Fours {
    /// For rows of this many elements.
    pub fn of(row: usize) -> Fours {
        if row.is_multiple_of(4) { Fours::Whole } else { Fours::Across }
    }
}

/// Names of [`words`].
pub(super) const PARAMS: [&str; 3] = ["site", "threshold", "keep"];

/// The site, the threshold below which words drop, and what a kept element is multiplied with.
pub(super) fn words(attrs: &DropoutAttrs) -> [u32; 3] {
    [attrs.site, attrs.threshold(), attrs.keep_scale().to_bits()]
}

/// The binding of a counter, U32 (3).
pub(super) fn counter(kernel: &'static str, operand: usize, caps: &DeviceCaps) -> Result<Operand<usize>, KernelError> {
    window(kernel, operand, "the counter", 0, 3, 4, caps).map(|(operand, _)| operand)
}

/// An error where kernels cannot count so many elements.
pub(super) fn within(kernel: &'static str, what: &'static str, elements: usize) -> Result<(), KernelError> {
    split::word(kernel, what, elements).map(|_| ())
}
