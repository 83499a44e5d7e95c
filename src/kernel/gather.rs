//! In: sizes of a table and how many of its rows are wanted; out: launches of gather.wgsl. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;
use std::ops::Range;

pub(super) const NAME: &str = "gather";
pub(super) const PARAMS: &[&str] =
    &["groups", "count", "width", "bound", "part", "first", "entry", "window", "window_rows"];

/// What changes gather.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatherKey {
    /// What is moved: U32 words, or F16 where a row is not a whole number of words.
    pub element: DType,
    /// I32 or U32.
    pub index: DType,
    /// Words are moved four at a time; not with F16.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl GatherKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let element = wgsl_type(self.element);
        let stored = if self.vec { format!("vec4<{element}>") } else { element.to_string() };
        let values =
            context! { elem => element, index => wgsl_type(self.index), vec => self.vec, size => self.size, stored };
        template::render(NAME, params, values)
    }

    /// table, indices, rows.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::Read, Access::ReadWrite]
    }
}

/// Sizes of one gather; a part is what an index counts in, the whole table where there is one part.
struct Gather {
    dtype: DType,
    index: DType,
    parts: usize,
    part_rows: usize,
    width: usize,
    count: usize,
}

impl Gather {
    fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        if !matches!(self.index, DType::I32 | DType::U32) {
            return Err(KernelError::DType { kernel: NAME, expected: "an index of i32 or u32", got: self.index });
        }
        if self.count == 0 || self.width == 0 {
            return Ok(Vec::new());
        }
        if self.part_rows == 0 {
            let expected = "at least 1, since rows of it are wanted".into();
            return Err(KernelError::Size { kernel: NAME, what: "rows of the table", expected, got: 0 });
        }
        let (element, words) = split::words(NAME, self.dtype, self.width, caps)?;
        let vec = element == DType::U32 && words.is_multiple_of(4);
        let width = if vec { words / 4 } else { words };
        let size = split::workgroup(NAME, self.count.saturating_mul(width), 0, caps)?;
        let key = GatherKey { element, index: self.index, vec, size };

        let row_bytes = (self.width * self.dtype.size()) as u64;
        let table = Rows::cut(0, self.parts * self.part_rows, row_bytes);
        let indices = Rows::whole_if_fits(1, self.count, 4, caps);
        let rows = Rows::cut(2, self.count, row_bytes);
        let mut launches = Vec::new();
        for some in split::windows(NAME, self.count, &[indices, rows], caps)? {
            for window in split::windows(NAME, self.parts * self.part_rows, &[table], caps)? {
                if !self.meets(&some, &window) {
                    continue;
                }
                let groups = (some.len() * width).div_ceil(size as usize);
                let part = if self.parts > 1 { self.part_rows } else { 0 };
                let params = split::sizes(
                    NAME,
                    [
                        ("groups", groups),
                        ("count", some.len()),
                        ("width", width),
                        ("rows of the table", self.part_rows),
                        ("rows of a batch", part),
                        ("first row", indices.first(&some)),
                        // the same, but where indices are a window too
                        ("first entry of the batch", some.start),
                        ("first row of the table", window.start),
                        ("rows of the table", window.len()),
                    ],
                )?;
                launches.push(Launch {
                    key: KernelKey::Gather(key.clone()),
                    params,
                    groups: groups as u64,
                    operands: vec![table.window(&window), indices.window(&some), rows.window(&some)],
                    estimate: Estimate::default(),
                });
            }
        }
        // every row is moved by one of the launches, whichever holds it
        let bytes = self.count as f64 * (4.0 + 2.0 * row_bytes as f64) / launches.len() as f64;
        for launch in &mut launches {
            launch.estimate.bytes = bytes;
        }
        Ok(launches)
    }

    /// Whether any of these results can come from this window of the table.
    fn meets(&self, some: &Range<usize>, window: &Range<usize>) -> bool {
        self.parts == 1 || (some.start * self.part_rows < window.end && window.start < some.end * self.part_rows)
    }
}

/// Rows of a table. An index outside it is moved to its nearest end. Operands: table (rows, width), indices (count),
/// result (count, width).
pub fn embedding(
    dtype: DType,
    index: DType,
    rows: usize,
    width: usize,
    count: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    Gather { dtype, index, parts: 1, part_rows: rows, width, count }.launches(caps)
}

/// One row of each batch. A position outside 0..seq is moved to the nearest end. Operands: x (batch, seq, rest),
/// position I32 (batch), result (batch, rest).
pub fn pick_row(
    dtype: DType,
    batch: usize,
    seq: usize,
    rest: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    Gather { dtype, index: DType::I32, parts: batch, part_rows: seq, width: rest, count: batch }.launches(caps)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for index in [DType::I32, DType::U32] {
        for (element, vec) in [(DType::U32, false), (DType::U32, true), (DType::F16, false)] {
            for size in [64, 256] {
                keys.push(KernelKey::Gather(GatherKey { element, index, vec, size }));
            }
        }
    }
    keys
}
