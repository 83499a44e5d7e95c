//! In: sizes of a softmax over the middle of (outer, n, inner); out: launches of softmax.wgsl. Knows no other kernel.

use super::split::{self, Form, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "softmax";
pub(super) const PARAMS: &[&str] = &["groups", "rows", "n", "inner"];

/// What changes softmax.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxKey {
    /// F32 or F16.
    pub dtype: DType,
    /// Whether the logarithm is stored.
    pub log: bool,
    /// One invocation does a column, else a workgroup a row.
    pub per_row: bool,
    /// Elements are read four at a time; not with `per_row`.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl SoftmaxKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let scalar = wgsl_type(self.dtype);
        let wide = |of: &str| if self.vec { format!("vec4<{of}>") } else { of.to_string() };
        let values = context! {
            f16 => self.dtype == DType::F16, log => self.log, per_row => self.per_row, vec => self.vec,
            size => self.size, side => split::side(self.size),
            scalar, stored => wide(scalar), loaded => wide("f32"),
        };
        template::render(NAME, params, values)
    }

    /// x, y.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadWrite]
    }
}

/// Softmax, or its logarithm, along n. Operands: x, y.
pub fn launches(
    dtype: DType,
    log: bool,
    outer: usize,
    n: usize,
    inner: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if n == 0 || inner == 0 {
        return Ok(Vec::new());
    }
    let Form { per_row, vec, size } = Form::choose(NAME, [outer, n, inner], true, 8, caps)?;
    let key = SoftmaxKey { dtype, log, per_row, vec, size };
    let row_bytes = n.saturating_mul(inner).saturating_mul(dtype.size()) as u64;
    let tensors = [0, 1].map(|operand| Rows::cut(operand, outer, row_bytes));
    let mut launches = Vec::new();
    for rows in split::windows(NAME, outer, &tensors, caps)? {
        let columns = rows.len() * inner;
        let groups = if per_row { columns.div_ceil(size as usize) } else { columns };
        let params = split::sizes(NAME, [("groups", groups), ("columns", columns), ("n", n), ("inner", inner)])?;
        let elements = columns as f64 * n as f64;
        launches.push(Launch {
            key: KernelKey::Softmax(key.clone()),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(&rows)).collect(),
            // maximum, difference, exponential, sum and scale
            estimate: Estimate { flops: 5.0 * elements, bytes: 2.0 * elements * dtype.size() as f64 },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for log in [false, true] {
            for (per_row, vec, size) in super::tests::FORMS {
                keys.push(KernelKey::Softmax(SoftmaxKey { dtype, log, per_row, vec, size }));
            }
        }
    }
    keys
}
