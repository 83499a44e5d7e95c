//! In: sizes of a normalisation over rows; out: launches of norm_param_grad.wgsl, the gradient of γ and β in two
//! stages. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "norm_param_grad";
pub(super) const PARAMS: &[&str] = &["groups", "rows", "width", "blocks", "chunk", "first", "first_chunk"];

/// What changes norm_param_grad.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormParamGradKey {
    /// Of an RMS norm, which has no β, else of a layer norm.
    pub rms: bool,
    /// The second stage: sums of the first are summed.
    pub last: bool,
    /// F32 or F16; sums of the first stage are F32.
    pub dtype: DType,
    /// Columns are read four at a time.
    pub vec: bool,
    /// Columns (or fours) that lie side by side in a workgroup.
    pub columns: u32,
    /// Invocations that share a column; a power of two.
    pub lines: u32,
}

impl NormParamGradKey {
    fn names(&self) -> &'static [&'static str] {
        match (self.last, self.rms) {
            (false, false) => &["x", "means", "rstds", "dy", "partials"],
            (false, true) => &["x", "rstds", "dy", "partials"],
            (true, false) => &["partials", "dgamma", "dbeta"],
            (true, true) => &["partials", "dgamma"],
        }
    }

    fn access(&self, name: &str) -> Access {
        let written = matches!(name, "dgamma" | "dbeta") || name == "partials" && !self.last;
        if written { Access::ReadWrite } else { Access::Read }
    }

    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let wide = |of: &str| if self.vec { format!("vec4<{of}>") } else { of.to_string() };
        let stored = wide(wgsl_type(self.dtype));
        let binding = |name: &&'static str| {
            let access = if self.access(name) == Access::Read { "read" } else { "read_write" };
            let ty = match *name {
                "means" | "rstds" => "f32".to_owned(),
                "partials" => wide("f32"),
                _ => stored.clone(),
            };
            (*name, access, ty)
        };
        let bindings: Vec<(&str, &str, String)> = self.names().iter().map(binding).collect();
        let values = context! {
            f16 => self.dtype == DType::F16, rms => self.rms, last => self.last, vec => self.vec,
            beta => !self.rms && !self.last, columns => self.columns, lines => self.lines, bindings, stored,
        };
        template::render(NAME, params, values)
    }

    /// x, mean unless of an RMS norm, rstd, dy, sums; in the second stage sums, dγ, dβ unless of an RMS norm.
    pub fn bindings(&self) -> Vec<Access> {
        self.names().iter().map(|name| self.access(name)).collect()
    }

    /// Invocations of a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        self.columns * self.lines
    }
}

/// How a workgroup is dealt out to columns and lines; one line, and so no barriers, where barriers are dear.
fn shape(width: usize, rows: usize, caps: &DeviceCaps) -> Result<(u32, u32), KernelError> {
    // two vec4s an invocation in workgroup memory
    let size = split::workgroup(NAME, usize::MAX, if caps.cpu { 0 } else { 32 }, caps)?;
    if caps.cpu {
        return Ok((size, 1));
    }
    let columns = (width.min(64) as u32).next_power_of_two().max(4);
    let lines = (size / columns).min((rows.max(1) as u32).next_power_of_two());
    Ok((columns, lines))
}

/// The gradient of a norm's parameters. Operands: x, mean unless `rms`, rstd, dy, dγ, dβ unless `rms`, and a workspace
/// of the bytes that come second.
pub fn launches(
    rms: bool,
    dtype: DType,
    rows: usize,
    width: usize,
    caps: &DeviceCaps,
) -> Result<(Vec<Launch<usize>>, usize), KernelError> {
    split::float(NAME, dtype, caps)?;
    if rows == 0 || width == 0 {
        return Ok((Vec::new(), 0));
    }
    let vec = width.is_multiple_of(4);
    let unit = if vec { 4 } else { 1 };
    let units = width / unit;
    let planes = if rms { 1 } else { 2 };
    let (inputs, outputs) = if rms { (3, 1) } else { (4, 2) };
    let workspace = inputs + outputs;

    let row_bytes = (width * dtype.size()) as u64;
    let tensor = |position: usize| match position {
        0 => Rows::cut(0, rows, row_bytes),
        p if p + 1 == inputs => Rows::cut(p, rows, row_bytes),
        p => Rows::whole_if_fits(p, rows, 4, caps),
    };
    let tensors: Vec<Rows> = (0..inputs).map(tensor).collect();
    let (columns, lines) = shape(units, rows, caps)?;
    let blocks = units.div_ceil(columns as usize);
    // chunks enough to fill a device, of rows enough for the second stage to be short
    let chunk = rows.div_ceil(64).clamp(16, 128).max(rows.div_ceil(512)).max(4 * lines as usize);
    let windows = split::windows(NAME, rows, &tensors, caps)?;
    let chunks: usize = windows.iter().map(|r| r.len().div_ceil(chunk)).sum();
    let partials = Rows::whole(workspace, (chunks * planes * width * 4) as u64);
    let outs = (inputs..workspace).map(|p| Rows::whole(p, row_bytes));

    let mut launches = Vec::new();
    let mut launch = |last: bool, shape: (u32, u32), sizes: [usize; 7], operands, estimate| {
        let params = split::sizes(NAME, PARAMS.iter().copied().zip(sizes))?;
        let key = NormParamGradKey { rms, last, dtype, vec, columns: shape.0, lines: shape.1 };
        let groups = sizes[0] as u64;
        launches.push(Launch { key: KernelKey::NormParamGrad(key), params, groups, operands, estimate });
        Ok::<(), KernelError>(())
    };
    split::windows(NAME, 1, &[partials], caps)?;
    let mut before = 0;
    for range in &windows {
        let parts = range.len().div_ceil(chunk);
        let elements = range.len() as f64 * width as f64;
        let bytes = 2.0 * elements * dtype.size() as f64 + (parts * planes * width * 4) as f64;
        // difference, two products and two sums
        let estimate = Estimate { flops: if rms { 3.0 } else { 5.0 } * elements, bytes };
        let mut operands: Vec<_> = tensors.iter().map(|t| t.window(range)).collect();
        operands.push(partials.window(range));
        let sizes = [parts * blocks, range.len(), units, blocks, chunk, tensors[1].first(range), before];
        launch(false, (columns, lines), sizes, operands, estimate)?;
        before += parts;
    }
    let (wide, whole) = (planes * units, 0..chunks);
    let (columns, lines) = shape(wide, chunks, caps)?;
    let blocks = wide.div_ceil(columns as usize);
    let elements = (chunks * planes * width) as f64;
    let estimate = Estimate { flops: elements, bytes: 4.0 * elements + (planes as u64 * row_bytes) as f64 };
    let operands = std::iter::once(partials).chain(outs).map(|t| t.window(&whole)).collect();
    launch(true, (columns, lines), [blocks, chunks, wide, blocks, chunks, 0, 0], operands, estimate)?;
    Ok((launches, partials.bytes as usize))
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (rms, last) in [(false, false), (false, true), (true, false), (true, true)] {
        for dtype in [DType::F32, DType::F16] {
            for vec in [false, true] {
                for (columns, lines) in [(64, 1), (4, 64), (64, 4), (16, 2)] {
                    let key = NormParamGradKey { rms, last, dtype, vec, columns, lines };
                    keys.push(KernelKey::NormParamGrad(key));
                }
            }
        }
    }
    keys
}
