//! In: dropout's attributes; out: the words that shared/philox.wgsl is given, and which of its forms a row needs. Knows
//! no kernel.

use super::view::window;
use super::{KernelError, Operand, split};
use crate::caps::DeviceCaps;
use crate::graph::DropoutAttrs;
use minijinja::{Value, context};

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

/// How a kernel draws the random words of four neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// How they lie.
    pub fours: Fours,
    /// Products of 64 bits are the device's own instead of put together from halves: the same words for a quarter of the
    /// instructions.
    pub int64: bool,
}

impl Draw {
    /// In rows of this many elements.
    pub fn of(row: usize, caps: &DeviceCaps) -> Draw {
        Draw { fours: Fours::of(row), int64: caps.int64 }
    }

    /// What shaders/shared/philox.wgsl and keys.wgsl know of it.
    pub(super) fn context(draw: Option<Draw>) -> Value {
        context! {
            dropout => draw.is_some(), whole => draw.is_some_and(|d| d.fours == Fours::Whole),
            int64 => draw.is_some_and(|d| d.int64),
        }
    }
}

/// One of each, for catalogues of keys.
#[cfg(test)]
pub(super) const WHOLE: Draw = Draw { fours: Fours::Whole, int64: true };
#[cfg(test)]
pub(super) const ACROSS: Draw = Draw { fours: Fours::Across, int64: false };

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
