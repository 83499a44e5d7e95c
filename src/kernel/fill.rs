//! In: the number of elements and what they hold; out: launches of fill.wgsl. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use half::f16;
use minijinja::context;

pub(super) const NAME: &str = "fill";
pub(super) const PARAMS: &[&str] = &["groups", "count", "value", "width", "diagonal"];

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillKind {
    /// The same bits everywhere.
    Constant,
    /// Integers that count up.
    Arange,
    /// Truth values above a diagonal.
    CausalMask,
}

/// What changes fill.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FillKey {
    /// What is written.
    pub kind: FillKind,
    /// U32 words, or F16 where the elements are not a whole number of words.
    pub element: DType,
    /// Words are written four at a time; only constants.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl FillKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let element = wgsl_type(self.element);
        let stored = if self.vec { format!("vec4<{element}>") } else { element.to_string() };
        let kind = match self.kind {
            FillKind::Constant => "constant",
            FillKind::Arange => "arange",
            FillKind::CausalMask => "causal_mask",
        };
        let values = context! { kind, elem => element, vec => self.vec, size => self.size, stored };
        template::render(NAME, params, values)
    }

    /// The result.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::ReadWrite]
    }
}

/// Every element is `value`, converted to the type: to Bool, whether it is not zero. Operands: result.
pub fn constant(
    dtype: DType,
    value: f32,
    elements: usize,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    let (element, words) = split::words(NAME, dtype, elements, caps)?;
    let bits = match dtype {
        DType::F32 => value.to_bits(),
        DType::F16 if element == DType::U32 => u32::from(f16::from_f32(value).to_bits()) * 0x1_0001,
        DType::F16 | DType::BF16 => f16::from_f32(value).to_f32().to_bits(),
        DType::I32 => (value as i32) as u32,
        DType::U32 => value as u32,
        DType::Bool => u32::from(value != 0.0),
    };
    let vec = element == DType::U32 && words.is_multiple_of(4);
    let units = if vec { words / 4 } else { words };
    let unit_bytes = if vec { 16 } else { element.size() };
    launches(FillKind::Constant, element, vec, [units, 1, unit_bytes], |_| Ok([bits, 1, 0]), caps)
}

/// `0, 1, … n-1` as I32. Operands: result.
pub fn arange(n: usize, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
    let first = |start| Ok([split::word(NAME, "first element", start)?, 1, 0]);
    launches(FillKind::Arange, DType::U32, false, [n, 1, 4], first, caps)
}

/// Bool (q, k): true where j > i + k − q. Operands: result.
pub fn causal_mask(q: usize, k: usize, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
    let diagonal = |start: usize| {
        let diagonal = start as i64 + k as i64 - q as i64;
        let diagonal = i32::try_from(diagonal).map_err(|_| KernelError::Size {
            kernel: NAME,
            what: "a side of the mask",
            expected: "less than 2^31".into(),
            got: q.max(k),
        })?;
        Ok([0, split::word(NAME, "keys", k)?, diagonal as u32])
    };
    launches(FillKind::CausalMask, DType::U32, false, [q, k, 4], diagonal, caps)
}

/// Launches over rows × width units of some bytes; `rest` gives the words after `count` from a window's first row.
fn launches(
    kind: FillKind,
    element: DType,
    vec: bool,
    [rows, width, unit_bytes]: [usize; 3],
    rest: impl Fn(usize) -> Result<[u32; 3], KernelError>,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    if width == 0 {
        return Ok(Vec::new());
    }
    let size = split::workgroup(NAME, rows.saturating_mul(width), 0, caps)?;
    let key = FillKey { kind, element, vec, size };
    let y = Rows::cut(0, rows, (width * unit_bytes) as u64);
    let mut launches = Vec::new();
    for range in split::windows(NAME, rows, &[y], caps)? {
        let count = range.len() * width;
        let groups = count.div_ceil(size as usize);
        let mut params = vec![split::word(NAME, "groups", groups)?, split::word(NAME, "count", count)?];
        params.extend(rest(range.start)?);
        let operand = y.window(&range);
        launches.push(Launch {
            key: KernelKey::Fill(key.clone()),
            params,
            groups: groups as u64,
            estimate: Estimate { flops: 0.0, bytes: operand.bytes as f64 },
            operands: vec![operand],
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (kind, element, vec) in [
        (FillKind::Constant, DType::U32, false),
        (FillKind::Constant, DType::U32, true),
        (FillKind::Constant, DType::F16, false),
        (FillKind::Arange, DType::U32, false),
        (FillKind::CausalMask, DType::U32, false),
    ] {
        for size in [64, 256] {
            keys.push(KernelKey::Fill(FillKey { kind, element, vec, size }));
        }
    }
    keys
}
