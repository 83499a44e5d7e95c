//! In: f32 operands of products as views; out: launches of exponents.wgsl that find the largest exponent of each of their
//! rows, or of a matrix's rows and columns in one, by which a product on matrix units scales them. Knows no other kernel.

use super::split::sizes;
use super::units::Exponents;
use super::view::{coalesce, window};
use super::{Access, Estimate, KernelError, KernelKey, Launch, Operand, ParamSpace, View, template};
use crate::caps::DeviceCaps;
use crate::graph::{DType, Shape};
use minijinja::context;

pub(super) const NAME: &str = "exponents";

/// Invocations in a workgroup.
pub(super) const SIZE: u32 = 256;

/// Which rows of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Neighbours in a row are contiguous, or nothing is.
    Along,
    /// Neighbouring rows are contiguous.
    Across,
    /// A matrix's rows, whose elements are contiguous, and its columns.
    Both,
}

impl Rows {
    /// The functions of exponents.wgsl that find them.
    fn ways(self) -> &'static [&'static str] {
        match self {
            Rows::Along => &["along"],
            Rows::Across => &["across"],
            Rows::Both => &["along", "across"],
        }
    }
}

/// What changes exponents.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExponentsKey {
    /// Of what.
    pub rows: Rows,
    /// Elements are read four at a time.
    pub vec: bool,
    /// Number of batch dimensions after merging.
    pub batch_rank: usize,
}

/// The words of the parameters that each way has.
const WORDS: [&str; 8] = ["groups", "rows", "k", "slice", "blocks", "x_row", "x_k", "y_part"];

impl ExponentsKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let step = if self.vec { 4 } else { 1 };
        let values = context! { ways => self.rows.ways().to_vec(), words => WORDS.to_vec(), vec => self.vec, step, batch_rank => self.batch_rank };
        template::render(NAME, params, values)
    }

    /// The operand, the exponents that each way finds.
    pub fn bindings(&self) -> Vec<Access> {
        [vec![Access::Read], vec![Access::ReadWrite; self.rows.ways().len()]].concat()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names = vec!["entries".to_owned(), "x_offset".to_owned()];
        names.extend(self.rows.ways().iter().flat_map(|way| WORDS.map(|word| format!("{way}_{word}"))));
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

/// How the rows of a view are gone through.
struct Way {
    across: bool,
    vec: bool,
    /// Batch dimensions and their strides.
    batches: Vec<(usize, usize)>,
    groups: usize,
    /// The values of [`WORDS`], with names for errors.
    words: [(&'static str, usize); 8],
    found: Exponents,
}

impl Way {
    fn of(x: &View) -> Way {
        let rank = x.dims.len();
        let (lead, k) = (&x.dims[..rank - 1], x.dims[rank - 1]);
        let (mut dims, mut strides) = coalesce(lead, &[&x.strides[..rank - 1]]);
        let x_row = strides[0].pop().unwrap_or(0);
        let rows = dims.pop().unwrap_or(1);
        let x_k = x.strides[rank - 1];
        let across = x_k != 1 && (x_row == 1 || rows == 1);
        // of neighbours side by side: their number, and the strides of all else
        let four = |count: usize, other: usize| {
            [count, other, x.offset].iter().chain(&strides[0]).all(|n| n.is_multiple_of(4))
        };
        let vec = if across { four(rows, x_k) } else { x_k == 1 && four(k, x_row) };
        let entries: usize = dims.iter().product();
        let block = if !across {
            8
        } else if vec {
            64
        } else {
            16
        };
        let blocks = rows.div_ceil(block);
        let parts = (GROUPS / (blocks * entries)).min(k / LEAST_PART).clamp(1, MOST_PARTS);
        let count = if vec && !across { k / 4 } else { k };
        let slice = count.div_ceil(parts);
        let parts = count.div_ceil(slice);
        let all = lead.iter().product::<usize>();
        let groups = blocks * entries * parts;
        // what is not along the contiguous dimension counts in vec4s of the array
        let words = [
            ("groups", groups),
            ("rows", rows),
            ("k", count),
            ("slice", slice),
            ("blocks", blocks),
            ("row stride", if vec && !across { x_row / 4 } else { x_row }),
            ("stride along k", if vec && across { x_k / 4 } else { x_k }),
            ("exponents of a part", all),
        ];
        let found = Exponents { view: View::dense(&Shape::from(lead.to_vec())), parts, part: all };
        Way { across, vec, batches: dims.into_iter().zip(strides.remove(0)).collect(), groups, words, found }
    }

    /// Where the exponents are as an operand, in a dense tensor (parts, batch…, rows) of u32.
    fn window(&self, operand: usize, caps: &DeviceCaps) -> Result<Operand<usize>, KernelError> {
        let end = self.found.parts * self.found.part;
        Ok(window(NAME, operand, "the exponents", 0, end, DType::U32.size(), caps)?.0)
    }
}

/// The exponents of the rows of x (batch…, rows, k): a launch over x and the exponents, and where those are, in a dense
/// tensor (parts, batch…, rows) of u32.
pub fn launch(x: &View, caps: &DeviceCaps) -> Result<(Launch<usize>, Exponents), KernelError> {
    let way = Way::of(x);
    let rows = if way.across { Rows::Across } else { Rows::Along };
    Ok((of_ways(x, rows, &[&way], caps)?, way.found))
}

/// The exponents of the rows and of the columns of a matrix whose rows are contiguous: a launch over x and both, and where
/// those are, each as [`launch`] has them. `None` of another view.
pub fn launch_both(x: &View, caps: &DeviceCaps) -> Result<Option<(Launch<usize>, [Exponents; 2])>, KernelError> {
    if x.dims.len() != 2 {
        return Ok(None);
    }
    let (along, across) = (Way::of(x), Way::of(&x.permute(&[1, 0])));
    if along.across || !across.across || along.vec != across.vec {
        return Ok(None);
    }
    let launch = of_ways(x, Rows::Both, &[&along, &across], caps)?;
    Ok(Some((launch, [along.found, across.found])))
}

fn of_ways(x: &View, rows: Rows, ways: &[&Way], caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
    let Way { vec, batches, .. } = ways[0];
    let unit = if *vec { 4 } else { 1 };
    let (operand, first) = window(NAME, 0, "the operand", x.offset, x.end(), DType::F32.size(), caps)?;
    let mut operands = vec![operand];
    for (i, way) in ways.iter().enumerate() {
        operands.push(way.window(1 + i, caps)?);
    }
    let entries = batches.iter().map(|(size, _)| size).product();
    let mut words = vec![("batch entries", entries), ("offset", first / unit)];
    words.extend(ways.iter().flat_map(|way| way.words));
    words.extend(batches.iter().flat_map(|(size, stride)| [("batch size", *size), ("batch stride", stride / unit)]));
    let found: usize = ways.iter().map(|way| way.found.parts * way.found.part).sum();
    Ok(Launch {
        key: KernelKey::Exponents(ExponentsKey { rows, vec: *vec, batch_rank: batches.len() }),
        params: sizes(NAME, words)?,
        groups: ways.iter().map(|way| way.groups as u64).sum(),
        operands,
        estimate: Estimate { flops: 0.0, bytes: ((x.elements() + found) * 4) as f64 },
    })
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for vec in [false, true] {
        for rows in [Rows::Along, Rows::Across] {
            keys.extend((0..3).map(|batch_rank| KernelKey::Exponents(ExponentsKey { rows, vec, batch_rank })));
        }
        keys.push(KernelKey::Exponents(ExponentsKey { rows: Rows::Both, vec, batch_rank: 0 }));
    }
    keys
}
