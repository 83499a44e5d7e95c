//! In: sizes of a table and how many indices into it came with gradients; out: launches of scatter.wgsl. Knows no other
//! kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "scatter";
pub(super) const PARAMS: &[&str] = &["groups", "count", "width", "blocks", "first", "window", "window_rows"];

/// What changes scatter.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterKey {
    /// F32 or F16.
    pub dtype: DType,
    /// I32 or U32.
    pub index: DType,
    /// Columns are read four at a time.
    pub vec: bool,
    /// Columns (or fours) that lie side by side in a workgroup.
    pub columns: u32,
    /// Invocations that share a column.
    pub lines: u32,
}

impl ScatterKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let scalar = wgsl_type(self.dtype);
        let stored = if self.vec { format!("vec4<{scalar}>") } else { scalar.to_owned() };
        let values = context! {
            f16 => self.dtype == DType::F16, index => wgsl_type(self.index), vec => self.vec,
            columns => self.columns, lines => self.lines, stored,
        };
        template::render(NAME, params, values)
    }

    /// dy, indices, table.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::Read, Access::ReadWrite]
    }

    /// Invocations of a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        self.columns * self.lines
    }
}

/// Adds each row of dy to the table's row of its index; the table is 0 at first. Operands: dy (count, width), indices
/// (count), table (rows, width).
pub fn launches(
    dtype: DType,
    index: DType,
    rows: usize,
    width: usize,
    count: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if !matches!(index, DType::I32 | DType::U32) {
        return Err(KernelError::DType { kernel: NAME, expected: "an index of i32 or u32", got: index });
    }
    if rows == 0 || width == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let vec = width.is_multiple_of(4);
    let units = if vec { width / 4 } else { width };
    // a vec4 and a word an invocation in workgroup memory
    let size = split::workgroup(NAME, usize::MAX, 20, caps)?;
    let columns = (units.min(64) as u32).next_power_of_two().max(4);
    let key = ScatterKey { dtype, index, vec, columns, lines: size / columns };
    let blocks = units.div_ceil(columns as usize);

    let row_bytes = (width * dtype.size()) as u64;
    let table = Rows::cut(2, rows, row_bytes);
    let dy = Rows::cut(0, count, row_bytes);
    let indices = Rows::whole_if_fits(1, count, 4, caps);
    let mut launches = Vec::new();
    for some in split::windows(NAME, count, &[dy, indices], caps)? {
        for window in split::windows(NAME, rows, &[table], caps)? {
            let groups = some.len() * blocks;
            let params = split::sizes(
                NAME,
                [
                    ("groups", groups),
                    ("indices", some.len()),
                    ("width", units),
                    ("blocks", blocks),
                    ("first index", indices.first(&some)),
                    ("first row of the table", window.start),
                    ("rows of the table", window.len()),
                ],
            )?;
            launches.push(Launch {
                key: KernelKey::Scatter(key.clone()),
                params,
                groups: groups as u64,
                operands: vec![dy.window(&some), indices.window(&some), table.window(&window)],
                estimate: Estimate::default(),
            });
        }
    }
    // every row is added by one of the launches, whichever holds its place
    let (elements, share) = ((count * width) as f64, launches.len() as f64);
    for launch in &mut launches {
        let bytes = elements * dtype.size() as f64 + 4.0 * count as f64;
        launch.estimate = Estimate { flops: elements / share, bytes: bytes / share };
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for index in [DType::I32, DType::U32] {
            for vec in [false, true] {
                for (columns, lines) in [(64, 1), (64, 4), (4, 64), (4, 16)] {
                    keys.push(KernelKey::Scatter(ScatterKey { dtype, index, vec, columns, lines }));
                }
            }
        }
    }
    keys
}
