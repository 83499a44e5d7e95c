//! In: sizes of a reduction over the middle of (outer, n, inner); out: launches of reduce.wgsl, in one stage or two.
//! Knows no other kernel.

use super::split::{self, Form, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;
use std::ops::Range;

pub(super) const NAME: &str = "reduce";
pub(super) const PARAMS: &[&str] = &["groups", "rows", "n", "inner", "slice", "parts", "first", "count"];

/// What is kept of the elements along n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest; NaN if any is NaN.
    Max,
    /// The largest magnitude; NaN if any is NaN.
    AbsMax,
    /// The index of the first NaN, else of the first of the largest, as I32.
    ArgMax,
}

impl ReduceKind {
    /// Whether it may read four elements at a time.
    fn reads_four(self) -> bool {
        !matches!(self, ReduceKind::Max | ReduceKind::ArgMax)
    }

    fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Mean => "mean",
            ReduceKind::Max => "max",
            ReduceKind::AbsMax => "absmax",
            ReduceKind::ArgMax => "argmax",
        }
    }
}

/// What changes reduce.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceKey {
    /// What is kept.
    pub kind: ReduceKind,
    /// Type of the elements: F32 or F16.
    pub from: DType,
    /// Type of the result: F32, F16, or I32 of [`ReduceKind::ArgMax`].
    pub to: DType,
    /// One invocation makes an output, else a workgroup.
    pub per_row: bool,
    /// Elements are read four at a time; see `ReduceKind::reads_four`, and not with `per_row`.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl ReduceKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let (from, to) = (wgsl_type(self.from), wgsl_type(self.to));
        let stored = if self.vec { format!("vec4<{from}>") } else { from.to_string() };
        let value = match self.kind {
            ReduceKind::Sum | ReduceKind::Max => format!("{to}(all)"),
            ReduceKind::Mean => format!("{to}(divide(all, p.count))"),
            ReduceKind::AbsMax => format!("{to}(bitcast<f32>(all))"),
            ReduceKind::ArgMax => format!("{to}(all.index)"),
        };
        let values = context! {
            kind => self.kind.name(), f16 => self.from == DType::F16 || self.to == DType::F16,
            per_row => self.per_row, vec => self.vec, size => self.size, side => split::side(self.size),
            stored, result => to, value,
        };
        template::render(NAME, params, values)
    }

    /// x, result.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadWrite]
    }
}

/// The middle of (outer, n, inner), cut into slices of n.
struct Stage {
    kind: ReduceKind,
    from: DType,
    to: DType,
    outer: usize,
    n: usize,
    inner: usize,
    /// Elements of a slice; n if it is not cut.
    slice: usize,
    /// What a mean divides by.
    count: usize,
    /// Positions of the operands.
    operands: [usize; 2],
    /// Where in the result its outputs begin.
    at: usize,
}

impl Stage {
    fn parts(&self) -> usize {
        self.n.div_ceil(self.slice)
    }

    fn row_bytes(&self) -> u64 {
        self.n.saturating_mul(self.inner).saturating_mul(self.from.size()) as u64
    }

    /// Launches over windows of outer.
    fn over_outer(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let outputs = self.parts() * self.inner; // of a row
        let x = Rows::cut(self.operands[0], self.outer, self.row_bytes());
        let y = match self.at {
            0 => Rows::whole_if_fits(self.operands[1], self.outer, (outputs * self.to.size()) as u64, caps),
            at => Rows::whole(self.operands[1], ((at + self.outer * outputs) * self.to.size()) as u64),
        };
        let windows = split::windows(NAME, self.outer, &[x, y], caps)?;
        windows.iter().map(|r| self.launch([x, y], r, r.len(), self.n, self.at + y.first(r) * outputs, caps)).collect()
    }

    /// Launches over windows of n, for a single outer row that no binding covers. Returns the slices they make in all.
    fn over_n(&self, caps: &DeviceCaps) -> Result<(Vec<Launch<usize>>, usize), KernelError> {
        let x = Rows::cut(self.operands[0], self.n, (self.inner * self.from.size()) as u64);
        let windows = split::windows(NAME, self.n, &[x], caps)?;
        let parts: Vec<usize> = windows.iter().map(|r| r.len().div_ceil(self.slice)).collect();
        let all: usize = parts.iter().sum();
        let y = Rows::whole(self.operands[1], (all * self.inner * self.to.size()) as u64);
        split::windows(NAME, 1, &[y], caps)?;
        let mut launches = Vec::with_capacity(windows.len());
        let mut before = 0;
        for (r, parts) in windows.iter().zip(parts) {
            launches.push(self.launch([x, y], r, 1, r.len(), before * self.inner, caps)?);
            before += parts;
        }
        Ok((launches, all))
    }

    /// One launch over (outer, n, inner) in a window of rows; its outputs follow each other from `first` on.
    fn launch(
        &self,
        tensors: [Rows; 2],
        rows: &Range<usize>,
        outer: usize,
        n: usize,
        first: usize,
        caps: &DeviceCaps,
    ) -> Result<Launch<usize>, KernelError> {
        let parts = n.div_ceil(self.slice);
        let outputs = outer * parts * self.inner;
        let slice = self.slice.min(n);
        let Form { per_row, vec, size } =
            Form::choose(NAME, [outputs, slice, self.inner], self.kind.reads_four() && n.is_multiple_of(4), 8, caps)?;
        let groups = if per_row { outputs.div_ceil(size as usize) } else { outputs };
        let mut params = split::sizes(
            NAME,
            [
                ("groups", groups),
                ("outputs", outputs),
                ("n", n),
                ("inner", self.inner),
                ("slice", slice),
                ("slices", parts),
                ("first output", first),
            ],
        )?;
        params.push((self.count as f32).to_bits());
        let elements = outer as f64 * n as f64 * self.inner as f64;
        let bytes = elements * self.from.size() as f64 + outputs as f64 * self.to.size() as f64;
        Ok(Launch {
            key: KernelKey::Reduce(ReduceKey { kind: self.kind, from: self.from, to: self.to, per_row, vec, size }),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(rows)).collect(),
            estimate: Estimate { flops: elements, bytes },
        })
    }
}

/// The length of a slice where a first stage should cut n, so that a few outputs still fill a device.
fn slice_of(outputs: usize, n: usize, inner: usize, caps: &DeviceCaps) -> Option<usize> {
    if inner > 1 && !caps.cpu && n >= 512 && outputs < 16_384 {
        // invocations walk along n alone in both stages: about as far in the one as in the other
        return Some(n.isqrt().max(64));
    }
    (n >= 65_536 && outputs < 1024).then(|| n.div_ceil(1024).max(4096).next_multiple_of(4))
}

/// A reduction of (outer, n, inner) along n, whose outputs lie in the result from `at` on. Operands: x, result, and where
/// there are two stages a workspace of the bytes that come second.
pub fn launches(
    kind: ReduceKind,
    dtype: DType,
    [outer, n, inner]: [usize; 3],
    at: usize,
    caps: &DeviceCaps,
) -> Result<(Vec<Launch<usize>>, Option<usize>), KernelError> {
    split::float(NAME, dtype, caps)?;
    if outer == 0 || inner == 0 {
        return Ok((Vec::new(), None));
    }
    if n == 0 {
        return Err(KernelError::Size {
            kernel: NAME,
            what: "the reduced size",
            expected: "at least 1".into(),
            got: 0,
        });
    }
    let to = if kind == ReduceKind::ArgMax { DType::I32 } else { dtype };
    let one = Stage { kind, from: dtype, to, outer, n, inner, slice: n, count: n, operands: [0, 1], at };
    let too_wide = outer == 1 && one.row_bytes() > split::limit(caps);
    let slice = slice_of(outer * inner, n, inner, caps);
    if kind == ReduceKind::ArgMax || (slice.is_none() && !too_wide) {
        return Ok((one.over_outer(caps)?, None));
    }

    let slice = slice.unwrap_or(n.min(4096));
    let partial = if kind == ReduceKind::Mean { ReduceKind::Sum } else { kind };
    let stage = Stage { kind: partial, to: DType::F32, slice, operands: [0, 2], at: 0, ..one };
    let (mut launches, parts) = if too_wide { stage.over_n(caps)? } else { (stage.over_outer(caps)?, stage.parts()) };
    let last = Stage { kind, from: DType::F32, n: parts, slice: parts, operands: [2, 1], ..one };
    launches.extend(last.over_outer(caps)?);
    Ok((launches, Some(outer * parts * inner * DType::F32.size())))
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use ReduceKind::{AbsMax, ArgMax, Max, Mean, Sum};
    let mut keys = Vec::new();
    for kind in [Sum, Mean, Max, AbsMax, ArgMax] {
        for (from, to) in
            [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F16, DType::F32), (DType::F32, DType::F16)]
        {
            let to = if kind == ArgMax { DType::I32 } else { to };
            for (per_row, vec, size) in super::tests::FORMS {
                let key = KernelKey::Reduce(ReduceKey { kind, from, to, per_row, vec, size });
                if (!vec || kind.reads_four()) && !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
    }
    keys
}
