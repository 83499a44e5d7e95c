//! In: the number of elements and dropout's attributes; out: launches of dropout.wgsl. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, chain_wgsl, philox, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{DType, DropoutAttrs};
use minijinja::context;

pub(super) const NAME: &str = "dropout";

/// What changes dropout.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DropoutKey {
    /// F32 or F16.
    pub dtype: DType,
    /// The elements are whole groups of four.
    pub vec: bool,
    /// x is overwritten by the result.
    pub in_place: bool,
    /// See [`Draw::int64`](super::Draw::int64).
    pub int64: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl DropoutKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let scalar = wgsl_type(self.dtype);
        let stored = chain_wgsl::vector(scalar, if self.vec { 4 } else { 1 });
        let f16 = self.dtype == DType::F16;
        let values = context! {
            f16, scalar, stored, vec => self.vec, in_place => self.in_place, int64 => self.int64, size => self.size,
        };
        template::render(NAME, params, values)
    }

    /// x unless it is overwritten, the counter, y.
    pub fn bindings(&self) -> Vec<Access> {
        let reads = if self.in_place { 1 } else { 2 };
        [vec![Access::Read; reads], vec![Access::ReadWrite]].concat()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        ["groups", "count", "first"].into_iter().chain(philox::PARAMS).map(String::from).collect()
    }
}

/// Drops elements of x. Operands: x, counter U32 (3), y; in place x is not bound and y holds it.
pub fn launches(
    dtype: DType,
    attrs: &DropoutAttrs,
    elements: usize,
    in_place: bool,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    let groups_of_four = elements.div_ceil(4);
    let size = split::workgroup(NAME, groups_of_four, 0, caps)?;
    let key = DropoutKey { dtype, vec: elements.is_multiple_of(4), in_place, int64: caps.int64, size };
    let bytes = 4 * dtype.size() as u64;
    let (x, y) = (Rows::cut(0, groups_of_four, bytes), Rows::cut(2, groups_of_four, bytes));
    let counter = Rows::whole(1, 12);
    let mut launches = Vec::new();
    for range in split::windows(NAME, groups_of_four, &[x, counter, y], caps)? {
        let count = (elements - range.start * 4).min(range.len() * 4);
        let groups = range.len().div_ceil(size as usize);
        let mut params = split::sizes(NAME, [("groups", groups), ("count", count), ("first group", range.start)])?;
        params.extend(philox::words(attrs));
        let mut operands = vec![counter.window(&range), y.window(&range)];
        if !in_place {
            operands.insert(0, x.window(&range));
        }
        launches.push(Launch {
            key: KernelKey::Dropout(key.clone()),
            params,
            groups: groups as u64,
            operands,
            estimate: Estimate { flops: count as f64, bytes: 2.0 * count as f64 * dtype.size() as f64 },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (vec, in_place) in [(false, false), (true, false), (false, true), (true, true)] {
            for (int64, size) in [(false, 64), (true, 256)] {
                keys.push(KernelKey::Dropout(DropoutKey { dtype, vec, in_place, int64, size }));
            }
        }
    }
    keys
}
