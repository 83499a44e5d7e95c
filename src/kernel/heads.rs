//! In: q, k, v and what is shaped like them as views, with heads side by side in the width; out: the windows and words
//! of parameters by which kernels of attention read them. Knows no kernel.

use super::view::window;
use super::{KernelError, Operand, View};
use crate::caps::DeviceCaps;
use crate::graph::AttentionAttrs;
use std::ops::Range;

/// The rows of some batch entries, as one launch binds them.
pub(super) struct Heads<'a> {
    /// The kernel, for errors.
    pub kernel: &'static str,
    /// The device's limits.
    pub caps: &'a DeviceCaps,
    /// Which batch entries.
    pub entries: Range<usize>,
    /// Bytes of an element.
    pub size: usize,
    /// Rows are bound as arrays of vec4.
    pub vec: bool,
    /// Head size.
    pub d: usize,
}

/// Names of the words that [`Heads::rows`] appends.
pub(super) fn strides(name: &str) -> [String; 4] {
    ["offset", "batch", "row", "head"].map(|w| format!("{name}_{w}"))
}

/// Names of the words that [`Heads::mask`] appends.
pub(super) fn mask_strides() -> [String; 5] {
    ["m_offset", "m_batch", "m_row", "m_head", "m_col"].map(String::from)
}

/// Whether heads of this size in all of these views can be read as vec4s.
pub(super) fn vectors(d: usize, views: &[&View]) -> bool {
    let fours = |v: &View| v.offset.is_multiple_of(4) && v.strides[..2].iter().all(|s| s.is_multiple_of(4));
    d.is_multiple_of(4) && views.iter().all(|v| fours(v))
}

/// An error for the first view whose width is not contiguous; views come with their operands' positions.
pub(super) fn contiguous<const N: usize>(views: [(usize, &View); N]) -> Result<(), KernelError> {
    match views.into_iter().find(|(_, v)| v.strides[2] != 1 && v.dims[2] != 1) {
        Some((operand, _)) => Err(KernelError::Layout { operand }),
        None => Ok(()),
    }
}

/// (B, S, H·D) without gaps.
pub(super) fn dense(dims: &[usize]) -> View {
    View { offset: 0, dims: dims.to_vec(), strides: vec![dims[1] * dims[2], dims[2], 1] }
}

/// How many pairs of a query and a key one head has, where that is known beforehand.
pub(super) fn pairs(attrs: &AttentionAttrs, sq: usize, sk: usize) -> usize {
    if attrs.causal && !attrs.lengths {
        (0..sq).map(|i| (i + 1 + sk).saturating_sub(sq).min(sk)).sum()
    } else {
        sq * sk
    }
}

/// Launches over all batch entries at once, or one an entry where a window would exceed the device's binding limit.
pub(super) fn by_entries<T>(
    batch: usize,
    launch: impl Fn(Range<usize>) -> Result<T, KernelError>,
) -> Result<Vec<T>, KernelError> {
    match launch(0..batch) {
        Err(KernelError::Binding { .. }) if batch > 1 => (0..batch).map(|b| launch(b..b + 1)).collect(),
        other => other.map(|launch| vec![launch]),
    }
}

impl Heads<'_> {
    fn part(&self, view: &View) -> View {
        view.slice(0, self.entries.start, self.entries.len())
    }

    /// Binds rows (B, S, H·D) and appends their offset and strides.
    pub fn rows(
        &self,
        operand: usize,
        what: &str,
        view: &View,
        params: &mut Vec<u32>,
    ) -> Result<Operand<usize>, KernelError> {
        let v = self.part(view);
        let unit = if self.vec { 4 } else { 1 };
        let (operand, first) = window(self.kernel, operand, what, v.offset, v.end(), self.size, self.caps)?;
        params.extend([first / unit, v.strides[0] / unit, v.strides[1] / unit, self.d / unit].map(|x| x as u32));
        Ok(operand)
    }

    /// Binds rows of two views of one tensor at once and appends the offset and strides of each.
    pub fn rows_of_one(
        &self,
        operand: usize,
        what: &str,
        views: [&View; 2],
        params: &mut Vec<u32>,
    ) -> Result<Operand<usize>, KernelError> {
        let views = views.map(|v| self.part(v));
        let unit = if self.vec { 4 } else { 1 };
        let start = views[0].offset.min(views[1].offset);
        let end = views[0].end().max(views[1].end());
        let (operand, first) = window(self.kernel, operand, what, start, end, self.size, self.caps)?;
        for v in &views {
            let first = first + v.offset - start;
            params.extend([first / unit, v.strides[0] / unit, v.strides[1] / unit, self.d / unit].map(|x| x as u32));
        }
        Ok(operand)
    }

    /// Binds a mask that is stretched to (B, H, Sq, Sk) and appends its offset and strides.
    pub fn mask(&self, operand: usize, mask: &View, params: &mut Vec<u32>) -> Result<Operand<usize>, KernelError> {
        let m = self.part(mask);
        let (operand, first) = window(self.kernel, operand, "the mask", m.offset, m.end(), self.size, self.caps)?;
        params.extend([first, m.strides[0], m.strides[2], m.strides[1], m.strides[3]].map(|x| x as u32));
        Ok(operand)
    }

    /// Binds a dense tensor of so many elements a batch entry and appends where the first of them is.
    pub fn flat(
        &self,
        operand: usize,
        what: &str,
        entry: usize,
        element: usize,
        params: &mut Vec<u32>,
    ) -> Result<Operand<usize>, KernelError> {
        let (first, end) = (self.entries.start * entry, self.entries.end * entry);
        let (operand, first) = window(self.kernel, operand, what, first, end, element, self.caps)?;
        params.push(first as u32);
        Ok(operand)
    }
}

/// vec4s that `shared/rows.wgsl` takes for so many rows, a multiple of four, of so many groups of four columns.
pub(super) fn staged(rows: usize, columns: usize) -> usize {
    rows * columns + if columns.is_multiple_of(8) { 0 } else { rows / 4 }
}

/// Pairs of words that attention_stats.wgsl makes of a batch entry: (length, step), the seed, then (log-sum-exp, delta)
/// of each query of each head.
pub(super) fn stats_entry(heads: usize, sq: usize) -> usize {
    2 + heads * sq
}

/// Rows of a side that an invocation of a direct kernel has. Several share what is loaded of the other side, which a CPU
/// loads dearly; large heads leave registers for few.
pub(super) fn direct_rows(columns: usize, rows: usize) -> usize {
    match columns {
        _ if rows <= 8 => 1,
        ..=8 => 4,
        9..=16 => 2,
        _ => 1,
    }
}

/// The rows that an invocation of a direct kernel may have, those of [`direct_rows`] first.
pub(super) fn direct_candidates(columns: usize, rows: usize) -> Vec<usize> {
    let own = direct_rows(columns, rows);
    let others = [1, 2, 4].into_iter().filter(|other| *other != own && *other <= rows.div_ceil(8));
    std::iter::once(own).chain(others).collect()
}

/// Cuts the rows of each head and batch entry of a launch of so many groups anew: changes the words "blocks" and
/// "groups", and returns the latter.
pub(super) fn cut(params: &mut [u32], groups: u64, rows: u32, of_group: usize) -> u64 {
    let heads = groups / u64::from(params[5]);
    params[5] = rows.div_ceil(of_group as u32);
    params[0] = heads as u32 * params[5];
    u64::from(params[0])
}
