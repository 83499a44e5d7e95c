//! In: sizes of logits (outer, n, inner) and what a cross entropy does with labels; out: launches of
//! cross_entropy_grad.wgsl. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{CrossEntropyAttrs, DType};
use minijinja::context;

pub(super) const NAME: &str = "cross_entropy_grad";
pub(super) const PARAMS: &[&str] = &["groups", "units", "n", "inner", "first", "ignore", "zero", "hot", "level"];

/// What an invocation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One element.
    Single,
    /// Four neighbours along n, where inner is 1.
    Classes,
    /// Four neighbours along inner.
    Columns,
}

/// What changes cross_entropy_grad.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyGradKey {
    /// F32 or F16 of logits and their gradient.
    pub dtype: DType,
    /// Whether a label may be ignored.
    pub ignore: bool,
    /// What an invocation makes.
    pub unit: Unit,
    /// The gradient overwrites the logits.
    pub in_place: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl CrossEntropyGradKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let scalar = wgsl_type(self.dtype);
        let stored = if self.unit == Unit::Single { scalar.to_owned() } else { format!("vec4<{scalar}>") };
        let of_rows = |of: &str| if self.unit == Unit::Columns { format!("vec4<{of}>") } else { of.to_owned() };
        let mut bindings = vec![
            ("labels", "read", of_rows("i32")),
            ("sums", "read", of_rows("f32")),
            ("dloss", "read", of_rows("f32")),
            ("dx", "read_write", stored.clone()),
        ];
        if !self.in_place {
            bindings.insert(0, ("x", "read", stored.clone()));
        }
        let form = match self.unit {
            Unit::Single => "single",
            Unit::Classes => "classes",
            Unit::Columns => "columns",
        };
        let values = context! {
            f16 => self.dtype == DType::F16, ignore => self.ignore, form, in_place => self.in_place,
            size => self.size, bindings, x => if self.in_place { "dx" } else { "x" }, stored,
        };
        template::render(NAME, params, values)
    }

    /// Logits unless they are in place, labels, log-sum-exps, gradients of losses, gradient.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; if self.in_place { 3 } else { 4 }];
        all.push(Access::ReadWrite);
        all
    }
}

/// The gradient along n. Operands: logits, labels I32 (outer, inner), log-sum-exps, gradients of losses, gradient;
/// the logits are not bound where the gradient takes their place.
pub fn launches(
    attrs: &CrossEntropyAttrs,
    dtype: DType,
    [outer, n, inner]: [usize; 3],
    in_place: bool,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if outer == 0 || inner == 0 {
        return Ok(Vec::new());
    }
    let unit = match (n.is_multiple_of(4), inner) {
        (_, i) if i.is_multiple_of(4) => Unit::Columns,
        (true, 1) => Unit::Classes,
        _ => Unit::Single,
    };
    let in_unit = if unit == Unit::Single { 1 } else { 4 };
    let in_row = if unit == Unit::Columns { 4 } else { 1 };
    let size = split::workgroup(NAME, outer.saturating_mul(n).saturating_mul(inner) / in_unit, 0, caps)?;
    let key = CrossEntropyGradKey { dtype, ignore: attrs.ignore_index.is_some(), unit, in_place, size };
    let row_bytes = n.saturating_mul(inner).saturating_mul(dtype.size()) as u64;
    let stat = |operand| Rows::whole_if_fits(operand, outer, 4 * inner as u64, caps);
    let mut tensors = vec![stat(1), stat(2), stat(3), Rows::cut(4, outer, row_bytes)];
    if !in_place {
        tensors.insert(0, Rows::cut(0, outer, row_bytes));
    }
    let smoothing = f64::from(attrs.label_smoothing.get());
    let mut launches = Vec::new();
    for rows in split::windows(NAME, outer, &tensors, caps)? {
        let units = rows.len() * n * inner / in_unit;
        let groups = units.div_ceil(size as usize);
        let mut params = split::sizes(
            NAME,
            [
                ("groups", groups),
                ("units", units),
                ("classes", n),
                ("inner", inner / in_row),
                ("first row", stat(1).first(&rows) * inner / in_row),
            ],
        )?;
        params.extend([attrs.ignore_index.unwrap_or(0) as u32, 0]);
        params.extend([1.0 - smoothing, smoothing / n as f64].map(|v| (v as f32).to_bits()));
        let elements = (units * in_unit) as f64;
        let of_rows = 12.0 * (rows.len() * inner) as f64;
        launches.push(Launch {
            key: KernelKey::CrossEntropyGrad(key.clone()),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(&rows)).collect(),
            // three differences, an exponential and a product
            estimate: Estimate { flops: 5.0 * elements, bytes: 2.0 * elements * dtype.size() as f64 + of_rows },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for unit in [Unit::Single, Unit::Classes, Unit::Columns] {
            for (ignore, in_place) in [(false, false), (false, true), (true, false), (true, true)] {
                for size in [64, 256] {
                    keys.push(KernelKey::CrossEntropyGrad(CrossEntropyGradKey { dtype, ignore, unit, in_place, size }));
                }
            }
        }
    }
    keys
}
