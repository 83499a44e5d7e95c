//! In: an f32 operand of a product as a view; out: the launch of exponents.wgsl that finds the largest exponent of each of
//! its rows, by which a product on matrix units scales them. Knows no other kernel.

use super::split::sizes;
use super::units::Exponents;
use super::view::{coalesce, window};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, template};
use crate::caps::DeviceCaps;
use crate::graph::{DType, Shape};
use minijinja::context;

pub(super) const NAME: &str = "exponents";

/// Invocations in a workgroup.
pub(super) const SIZE: u32 = 256;

/// What changes exponents.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExponentsKey {
    /// Neighbouring rows are contiguous, else neighbours in a row.
    pub across: bool,
    /// Elements are read four at a time.
    pub vec: bool,
    /// Number of batch dimensions after merging.
    pub batch_rank: usize,
}

impl ExponentsKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let values = context! {
            across => self.across, vec => self.vec, batch_rank => self.batch_rank, step => if self.vec { 4 } else { 1 },
        };
        template::render(NAME, params, values)
    }

    /// The operand, the exponents.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::Read, Access::ReadWrite]
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let fixed = "groups rows k slice blocks entries x_offset x_row x_k y_part";
        let mut names: Vec<String> = fixed.split(' ').map(String::from).collect();
        names.extend((0..self.batch_rank).flat_map(|d| [format!("batch{d}"), format!("x_batch{d}")]));
        names
    }
}

/// Workgroups that keep a large device busy.
const GROUPS: usize = 264;

/// The least of a row's elements that a part should have.
const LEAST_PART: usize = 128;

/// The most parts: whoever reads the exponents goes through all of them.
const MOST_PARTS: usize = 8;

/// The exponents of the rows of x (batch…, rows, k): a launch over x and the exponents, and where those are, in a dense
/// tensor (parts, batch…, rows) of u32.
pub fn launch(x: &View, caps: &DeviceCaps) -> Result<(Launch<usize>, Exponents), KernelError> {
    let rank = x.dims.len();
    let (lead, k) = (&x.dims[..rank - 1], x.dims[rank - 1]);
    let (mut dims, mut strides) = coalesce(lead, &[&x.strides[..rank - 1]]);
    let x_row = strides[0].pop().unwrap_or(0);
    let rows = dims.pop().unwrap_or(1);
    let (batches, x_k) = (&strides[0], x.strides[rank - 1]);
    let across = x_k != 1 && (x_row == 1 || rows == 1);
    // of neighbours side by side: their number, and the strides of all else
    let four = |count: usize, other: usize| [count, other, x.offset].iter().chain(batches).all(|n| n.is_multiple_of(4));
    let vec = if across { four(rows, x_k) } else { x_k == 1 && four(k, x_row) };
    let unit = if vec { 4 } else { 1 };
    let entries: usize = dims.iter().product();
    let block = if across { 16 * unit } else { 8 };
    let blocks = rows.div_ceil(block);
    let parts = (GROUPS / (blocks * entries)).min(k / LEAST_PART).clamp(1, MOST_PARTS);
    let count = if vec && !across { k / 4 } else { k };
    let slice = count.div_ceil(parts);
    let parts = count.div_ceil(slice);
    let (operand, first) = window(NAME, 0, "the operand", x.offset, x.end(), DType::F32.size(), caps)?;
    let all = lead.iter().product::<usize>();
    let (exponents, _) = window(NAME, 1, "the exponents", 0, parts * all, DType::U32.size(), caps)?;
    let groups = blocks * entries * parts;
    // what is not along the contiguous dimension counts in vec4s of the array
    let mut words = vec![
        ("groups", groups),
        ("rows", rows),
        ("k", count),
        ("slice", slice),
        ("blocks", blocks),
        ("batch entries", entries),
        ("offset", first / unit),
        ("row stride", if vec && !across { x_row / 4 } else { x_row }),
        ("stride along k", if vec && across { x_k / 4 } else { x_k }),
        ("exponents of a part", all),
    ];
    for (d, stride) in dims.iter().zip(batches) {
        words.extend([("batch size", *d), ("batch stride", stride / unit)]);
    }
    let elements = (all * k) as f64;
    let launch = Launch {
        key: KernelKey::Exponents(ExponentsKey { across, vec, batch_rank: dims.len() }),
        params: sizes(NAME, words)?,
        groups: groups as u64,
        operands: vec![operand, exponents],
        estimate: Estimate { flops: 0.0, bytes: elements * 4.0 + (parts * all * 4) as f64 },
    };
    Ok((launch, Exponents { view: View::dense(&Shape::from(lead.to_vec())), parts, part: all }))
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for (across, vec) in [(false, false), (false, true), (true, false), (true, true)] {
        keys.extend((0..3).map(|batch_rank| KernelKey::Exponents(ExponentsKey { across, vec, batch_rank })));
    }
    keys
}
