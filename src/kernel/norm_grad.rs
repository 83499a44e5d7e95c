//! In: sizes of a normalisation over rows; out: launches of norm_grad.wgsl, the gradient of the rows. Knows no other
//! kernel.

use super::split::{self, Form, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "norm_grad";
pub(super) const PARAMS: &[&str] = &["groups", "rows", "width", "first", "inverse_width"];

/// What changes norm_grad.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormGradKey {
    /// Of an RMS norm, else of a layer norm.
    pub rms: bool,
    /// It is added to another gradient.
    pub add: bool,
    /// F32 or F16; mean and rstd are F32.
    pub dtype: DType,
    /// One invocation does a row, else a workgroup.
    pub per_row: bool,
    /// Elements are read four at a time; not with `per_row`.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl NormGradKey {
    fn names(&self) -> Vec<&'static str> {
        let stats: &[&str] = if self.rms { &["rstds"] } else { &["means", "rstds"] };
        let other: &[&str] = if self.add { &["other"] } else { &[] };
        [&["x", "gamma"], stats, &["dy"], other, &["dx"]].concat()
    }

    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let wide = |of: &str| if self.vec { format!("vec4<{of}>") } else { of.to_string() };
        let stored = wide(wgsl_type(self.dtype));
        let binding = |name: &&'static str| {
            let access = if *name == "dx" { "read_write" } else { "read" };
            let single = matches!(*name, "means" | "rstds");
            (*name, access, if single { "f32".to_owned() } else { stored.clone() })
        };
        let bindings: Vec<(&str, &str, String)> = self.names().iter().map(binding).collect();
        let values = context! {
            f16 => self.dtype == DType::F16, rms => self.rms, add => self.add, per_row => self.per_row, vec => self.vec,
            size => self.size, side => split::side(self.size), bindings, stored, loaded => wide("f32"),
        };
        template::render(NAME, params, values)
    }

    /// x, γ, mean unless of an RMS norm, rstd, dy, what is added to if there is such, dx.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; self.names().len() - 1];
        all.push(Access::ReadWrite);
        all
    }
}

/// The gradient of a norm's rows. Operands: x, γ, mean unless `rms`, rstd, dy, with `add` what it is added to, dx.
pub fn launches(
    [rms, add]: [bool; 2],
    dtype: DType,
    rows: usize,
    width: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if rows == 0 || width == 0 {
        return Ok(Vec::new());
    }
    let Form { per_row, vec, size } = Form::choose(NAME, [rows, width, 1], true, 8, caps)?;
    let key = NormGradKey { rms, add, dtype, per_row, vec, size };
    let row_bytes = (width * dtype.size()) as u64;
    let tensor = |(position, name): (usize, &&str)| match *name {
        "gamma" => Rows::whole(position, row_bytes),
        "means" | "rstds" => Rows::whole_if_fits(position, rows, 4, caps),
        _ => Rows::cut(position, rows, row_bytes),
    };
    let tensors: Vec<Rows> = key.names().iter().enumerate().map(tensor).collect();
    let mut launches = Vec::new();
    for range in split::windows(NAME, rows, &tensors, caps)? {
        let count = range.len();
        let groups = if per_row { count.div_ceil(size as usize) } else { count };
        // the third operand is a statistic of either norm
        let first = tensors[2].first(&range);
        let mut params =
            split::sizes(NAME, [("groups", groups), ("rows", count), ("width", width), ("first row", first)])?;
        params.push((1.0 / width as f32).to_bits());
        let elements = count as f64 * width as f64;
        launches.push(Launch {
            key: KernelKey::NormGrad(key.clone()),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(&range)).collect(),
            // h and g twice, two products and sums, and what they are put together with
            estimate: Estimate {
                flops: if rms { 9.0 } else { 13.0 } * elements,
                bytes: if add { 4.0 } else { 3.0 } * elements * dtype.size() as f64
                    + (row_bytes + 8 * count as u64) as f64,
            },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (rms, add) in [(false, false), (false, true), (true, false), (true, true)] {
        for dtype in [DType::F32, DType::F16] {
            for (per_row, vec, size) in super::tests::FORMS {
                keys.push(KernelKey::NormGrad(NormGradKey { rms, add, dtype, per_row, vec, size }));
            }
        }
    }
    keys
}
