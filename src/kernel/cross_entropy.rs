//! In: sizes of logits (outer, n, inner) and what a cross entropy does with labels; out: launches of
//! cross_entropy.wgsl. Knows no other kernel.

use super::split::{self, Form, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{CrossEntropyAttrs, DType};
use minijinja::context;

pub(super) const NAME: &str = "cross_entropy";
pub(super) const PARAMS: &[&str] = &["groups", "columns", "n", "inner", "first", "ignore", "zero", "smoothing"];

/// What changes cross_entropy.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyKey {
    /// F32 or F16 of the logits.
    pub dtype: DType,
    /// Whether a label may be ignored.
    pub ignore: bool,
    /// Whether the loss is smoothed.
    pub smoothing: bool,
    /// Invocations that share a column, neighbours along inner side by side; 0 is a workgroup a row.
    pub lines: u32,
    /// Elements are read four at a time; only with a workgroup a row.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl CrossEntropyKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let wide = |of: &str| if self.vec { format!("vec4<{of}>") } else { of.to_string() };
        let values = context! {
            f16 => self.dtype == DType::F16, ignore => self.ignore, smoothing => self.smoothing,
            columns => self.lines > 0, lines => self.lines, vec => self.vec, size => self.size,
            side => split::side(self.size), stored => wide(wgsl_type(self.dtype)), loaded => wide("f32"),
        };
        template::render(NAME, params, values)
    }

    /// Logits, labels, losses, log-sum-exps.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite]
    }
}

/// Invocations that share a column where n is long and columns lie side by side.
const LINES: u32 = 8;

/// Losses and log-sum-exps along n. Operands: logits, labels I32 (outer, inner), losses, log-sum-exps.
pub fn launches(
    attrs: &CrossEntropyAttrs,
    dtype: DType,
    [outer, n, inner]: [usize; 3],
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if outer == 0 || inner == 0 {
        return Ok(Vec::new());
    }
    // three words, and a fourth that pads them
    let Form { per_row, vec, size } = Form::choose(NAME, [outer, n, inner], true, 16, caps)?;
    let lines = match per_row {
        true if n >= 256 && !caps.cpu => LINES,
        true => 1,
        false => 0,
    };
    let smoothing = attrs.label_smoothing.get();
    let ignore = attrs.ignore_index;
    let key = CrossEntropyKey { dtype, ignore: ignore.is_some(), smoothing: smoothing != 0.0, lines, vec, size };
    let logits = Rows::cut(0, outer, n.saturating_mul(inner).saturating_mul(dtype.size()) as u64);
    let [labels, losses, sums] = [1, 2, 3].map(|i| Rows::whole_if_fits(i, outer, 4 * inner as u64, caps));
    let tensors = [logits, labels, losses, sums];
    let mut launches = Vec::new();
    for rows in split::windows(NAME, outer, &tensors, caps)? {
        let columns = rows.len() * inner;
        let groups = if per_row { columns.div_ceil((size / lines) as usize) } else { columns };
        let mut params = split::sizes(
            NAME,
            [
                ("groups", groups),
                ("columns", columns),
                ("classes", n),
                ("inner", inner),
                ("first row", labels.first(&rows) * inner),
            ],
        )?;
        params.extend([ignore.unwrap_or(0) as u32, 0, smoothing.to_bits()]);
        let elements = columns as f64 * n as f64;
        launches.push(Launch {
            key: KernelKey::CrossEntropy(key.clone()),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(&rows)).collect(),
            // maximum, difference, exponential and sum
            estimate: Estimate { flops: 4.0 * elements, bytes: elements * dtype.size() as f64 + 12.0 * columns as f64 },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (ignore, smoothing) in [(false, false), (false, true), (true, false), (true, true)] {
            for (lines, vec, size) in
                [(1, false, 64), (8, false, 64), (0, false, 64), (0, false, 256), (0, true, 64), (0, true, 256)]
            {
                keys.push(KernelKey::CrossEntropy(CrossEntropyKey { dtype, ignore, smoothing, lines, vec, size }));
            }
        }
    }
    keys
}
