//! In: rows and the limits of a device; out: how rows are dealt to bindings, workgroups and invocations. Knows no
//! kernel.

use super::{KernelError, Operand};
use crate::caps::{DeviceCaps, MOST_BOUND};
use crate::graph::DType;
use std::ops::Range;

/// Cuts rows so that each tensor's window (a range times its bytes a row) fits a binding and starts at an aligned
/// offset; a tensor of 0 bytes a row is bound whole and does not count. `None` if not even the fewest rows whose
/// windows are aligned fit. A window stays under 4 GiB whatever the device, so that kernels count in u32.
pub fn split_rows(rows: usize, row_bytes: &[u64], caps: &DeviceCaps) -> Option<Vec<Range<usize>>> {
    if rows == 0 {
        return Some(Vec::new());
    }
    let cut = || row_bytes.iter().copied().filter(|b| *b > 0);
    let fit = cut().map(|b| limit(caps) / b).min().unwrap_or(u64::MAX);
    if fit >= rows as u64 {
        return Some(std::iter::once(0..rows).collect());
    }
    let step = aligned_rows(row_bytes, caps);
    let chunk = usize::try_from(fit / step * step).ok().filter(|c| *c > 0)?;
    Some((0..rows).step_by(chunk).map(|start| start..rows.min(start + chunk)).collect())
}

/// The most bytes that a kernel binds: what it counts in 32 bits, whatever the device takes.
pub(super) fn limit(caps: &DeviceCaps) -> u64 {
    caps.max_binding_bytes.min(MOST_BOUND)
}

/// Of dimensions, each with its size, its stride in an operand that no binding covers and what it is, that along which the
/// operand's window reaches furthest, the first of equals; `None` if it is one element.
pub(super) fn furthest<T>(dims: impl DoubleEndedIterator<Item = (usize, usize, T)>) -> Option<(usize, T)> {
    let reach = dims.rev().map(|(size, stride, what)| (size.saturating_sub(1) * stride, (size, what)));
    reach.filter(|(reach, _)| *reach > 0).max_by_key(|(reach, _)| *reach).map(|(_, dim)| dim)
}

/// The fewest rows after which every tensor is at an aligned offset again.
fn aligned_rows(row_bytes: &[u64], caps: &DeviceCaps) -> u64 {
    let align = caps.storage_align.max(1);
    row_bytes.iter().filter(|b| **b > 0).map(|b| align / gcd(align, *b)).fold(1, |a, b| a / gcd(a, b) * b)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One tensor of a launch that is cut by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The operand's position.
    pub operand: usize,
    /// Bytes of the whole tensor.
    pub bytes: u64,
    /// Bytes of a row, 0 if the tensor is bound whole.
    pub row_bytes: u64,
}

impl Rows {
    /// A tensor that is bound whole.
    pub fn whole(operand: usize, bytes: u64) -> Self {
        Rows { operand, bytes, row_bytes: 0 }
    }

    /// A tensor of rows.
    pub fn cut(operand: usize, rows: usize, row_bytes: u64) -> Self {
        Rows { operand, bytes: (rows as u64).saturating_mul(row_bytes), row_bytes }
    }

    /// A tensor of rows that is bound whole where it fits, for short rows whose offsets would seldom be aligned.
    pub fn whole_if_fits(operand: usize, rows: usize, row_bytes: u64, caps: &DeviceCaps) -> Self {
        let cut = Rows::cut(operand, rows, row_bytes);
        if cut.bytes <= limit(caps) { Rows::whole(operand, cut.bytes) } else { cut }
    }

    /// What a launch over these rows binds.
    pub fn window(&self, rows: &Range<usize>) -> Operand<usize> {
        let (offset, bytes) = match self.row_bytes {
            0 => (0, self.bytes),
            row => (rows.start as u64 * row, rows.len() as u64 * row),
        };
        Operand { tensor: self.operand, offset, bytes }
    }

    /// The first of these rows, counted within the window.
    pub fn first(&self, rows: &Range<usize>) -> usize {
        if self.row_bytes == 0 { rows.start } else { 0 }
    }
}

/// [`split_rows`] for a kernel's tensors, or what is too large.
pub(super) fn windows(
    kernel: &'static str,
    rows: usize,
    tensors: &[Rows],
    caps: &DeviceCaps,
) -> Result<Vec<Range<usize>>, KernelError> {
    let limit = limit(caps);
    let error =
        |t: &Rows, what: String, wanted| KernelError::Binding { kernel, operand: t.operand, what, wanted, limit };
    if let Some(t) = tensors.iter().find(|t| t.row_bytes == 0 && t.bytes > limit) {
        return Err(error(t, "a tensor that is not split".into(), t.bytes));
    }
    let row_bytes: Vec<u64> = tensors.iter().map(|t| t.row_bytes).collect();
    split_rows(rows, &row_bytes, caps).ok_or_else(|| {
        let t = tensors.iter().rev().max_by_key(|t| t.row_bytes).expect("only rows with bytes do not fit");
        if t.row_bytes > limit {
            return error(t, "one row".into(), t.row_bytes);
        }
        let step = aligned_rows(&row_bytes, caps);
        error(t, format!("the least aligned window, {step} rows of {} bytes,", t.row_bytes), step * t.row_bytes)
    })
}

/// A size as a word of the parameters.
pub(super) fn word(kernel: &'static str, what: &'static str, size: usize) -> Result<u32, KernelError> {
    u32::try_from(size).map_err(|_| KernelError::Size { kernel, what, expected: "less than 2^32".into(), got: size })
}

/// Sizes as parameters of a kernel, in order.
pub(super) fn sizes(
    kernel: &'static str,
    sizes: impl IntoIterator<Item = (&'static str, usize)>,
) -> Result<Vec<u32>, KernelError> {
    sizes.into_iter().map(|(what, size)| word(kernel, what, size)).collect()
}

/// F32, or F16 on a device that has it.
pub(super) fn float(kernel: &'static str, dtype: DType, caps: &DeviceCaps) -> Result<(), KernelError> {
    match dtype {
        DType::F32 => Ok(()),
        DType::F16 if caps.f16 => Ok(()),
        DType::F16 => Err(KernelError::DType { kernel, expected: "f32: the device has no f16", got: dtype }),
        _ => Err(KernelError::DType { kernel, expected: "f32 or f16", got: dtype }),
    }
}

/// What copies elements without looking at them: U32 words and how many, or F16 where a row is half a word too long.
pub(super) fn words(
    kernel: &'static str,
    dtype: DType,
    elements: usize,
    caps: &DeviceCaps,
) -> Result<(DType, usize), KernelError> {
    match dtype {
        DType::F16 if elements.is_multiple_of(2) => Ok((DType::U32, elements / 2)),
        DType::F16 => float(kernel, dtype, caps).map(|()| (dtype, elements)),
        DType::BF16 => Err(KernelError::DType { kernel, expected: "a type that devices compute with", got: dtype }),
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => Ok((DType::U32, elements)),
    }
}

/// How a kernel over rows goes along them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// One invocation does a whole row, else a workgroup does.
    pub per_row: bool,
    /// Elements are read four at a time; not with `per_row`.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl Form {
    /// For rows of n elements that lie `inner` apart. `quads` allows four elements at a time where n is whole ones of
    /// them; a workgroup that does a row takes `lane_bytes` of workgroup memory an invocation.
    ///
    /// One invocation does a row where neighbours lie side by side across rows (inner > 1), where rows are too short for
    /// a workgroup, and where barriers are dear.
    pub fn choose(
        kernel: &'static str,
        [rows, n, inner]: [usize; 3],
        quads: bool,
        lane_bytes: u32,
        caps: &DeviceCaps,
    ) -> Result<Form, KernelError> {
        let per_row = inner > 1 || n <= 32 || (caps.cpu && rows >= 32);
        let vec = !per_row && quads && n.is_multiple_of(4);
        let size = match (per_row, vec) {
            (true, _) => workgroup(kernel, 0, 0, caps)?,
            (false, true) => workgroup(kernel, n / 4, lane_bytes, caps)?,
            (false, false) => workgroup(kernel, n, lane_bytes, caps)?,
        };
        Ok(Form { per_row, vec, size })
    }
}

/// Invocations of a workgroup that has `work` items for them: 64 where few do, else 256.
pub(super) fn workgroup(
    kernel: &'static str,
    work: usize,
    lane_bytes: u32,
    caps: &DeviceCaps,
) -> Result<u32, KernelError> {
    let size = if work <= 256 || caps.cpu || caps.max_invocations < 256 { 64 } else { 256 };
    let memory = (size + side(size)) * lane_bytes;
    let limits =
        [("invocations", size, caps.max_invocations), ("bytes of workgroup memory", memory, caps.workgroup_bytes)];
    match limits.into_iter().find(|(_, wanted, limit)| wanted > limit) {
        Some((what, wanted, limit)) => Err(KernelError::Workgroup { kernel, what, wanted, limit }),
        None => Ok(size),
    }
}

/// Lines into which shared/merge.wgsl gathers the lanes of a workgroup: the root of its size.
pub(super) fn side(size: u32) -> u32 {
    size.isqrt()
}
