//! In: how many parts of one or two tensors a first stage has made; out: the launch of sum_parts.wgsl that adds them up.
//! Knows no other kernel.

use super::split::word;
use super::view::window;
use super::{Access, Estimate, KernelError, KernelKey, Launch, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "sum_parts";

const SIZE: u32 = 64;

/// What changes sum_parts.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SumPartsKey {
    /// Type of the sums: F32 or F16.
    pub to: DType,
    /// Four neighbours of the first tensor are one vec4.
    pub vec: bool,
    /// There is a second tensor.
    pub second: bool,
}

impl SumPartsKey {
    /// WGSL of this key.
    pub fn source(&self) -> String {
        let vector = |scalar: &str| if self.vec { format!("vec4<{scalar}>") } else { scalar.to_owned() };
        let scalar = wgsl_type(self.to);
        let values = context! {
            f16 => self.to == DType::F16, vec => self.vec, second => self.second, size => SIZE, scalar,
            wide => vector("f32"), stored => vector(scalar),
        };
        template::render(NAME, values)
    }

    /// Parts, then their sums, of each tensor.
    pub fn bindings(&self) -> Vec<Access> {
        [Access::Read, Access::ReadWrite].repeat(1 + usize::from(self.second))
    }

    /// Names of the uniform words.
    pub fn params(&self) -> Vec<String> {
        let second: &[&str] = if self.second { &["y_groups", "z_count", "z_first"] } else { &[] };
        ["groups", "parts", "y_count", "y_first"].iter().chain(second).map(|n| n.to_string()).collect()
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        SIZE
    }
}

/// Sums that lie side by side in a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// Sums of `parts` parts. Operands: the first tensor's parts (parts, count) in F32 and where its sums go, then the
/// second's.
pub fn launch(
    parts: usize,
    to: DType,
    y: Sums,
    z: Option<Sums>,
    caps: &DeviceCaps,
) -> Result<Launch<usize>, KernelError> {
    let vec = y.count.is_multiple_of(4) && y.first.is_multiple_of(4);
    let unit = if vec { 4 } else { 1 };
    let groups_of = |invocations: usize| invocations.div_ceil(SIZE as usize);
    let y_groups = groups_of(y.count / unit);
    let groups = y_groups + z.map_or(0, |z| groups_of(z.count));
    let (mut operands, mut firsts) = (Vec::new(), Vec::new());
    let f32 = DType::F32.size();
    for (i, sums) in [Some(y), z].into_iter().flatten().enumerate() {
        let end = parts.saturating_mul(sums.count);
        operands.push(window(NAME, 2 * i, "all parts", 0, end, f32, caps)?.0);
        let end = sums.first + sums.count;
        let (operand, first) = window(NAME, 2 * i + 1, "the sums", sums.first, end, to.size(), caps)?;
        operands.push(operand);
        firsts.push(first);
    }
    let mut words = vec![("groups", groups), ("parts", parts), ("count", y.count / unit), ("first", firsts[0] / unit)];
    words.extend(z.map(|z| [("groups", y_groups), ("count", z.count), ("first", firsts[1])]).into_iter().flatten());
    let params = words.into_iter().map(|(what, size)| word(NAME, what, size)).collect::<Result<_, _>>()?;
    let sums = (y.count + z.map_or(0, |z| z.count)) as f64;
    Ok(Launch {
        key: KernelKey::SumParts(SumPartsKey { to, vec, second: z.is_some() }),
        params,
        groups: groups as u64,
        operands,
        estimate: Estimate { flops: sums * parts as f64, bytes: sums * (parts * f32 + to.size()) as f64 },
    })
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let forms = [DType::F32, DType::F16].into_iter().flat_map(|to| (0..4).map(move |flags| (to, flags)));
    forms
        .map(|(to, flags)| KernelKey::SumParts(SumPartsKey { to, vec: flags & 1 > 0, second: flags & 2 > 0 }))
        .collect()
}
