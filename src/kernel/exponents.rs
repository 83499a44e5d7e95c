//! In: f32 operands of products as views; out: a launch of exponents.wgsl that finds the largest exponent of each of their
//! rows, and of a matrix's columns where they are wanted, by which a product on matrix units scales them. Knows no other
//! kernel.

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

/// Which rows of an operand.
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
    /// Each operand's form, one or two.
    pub operands: Vec<Form>,
}

/// How an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
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
        // the binding of what an operand's first way finds
        let mut found = 1 + self.operands.len();
        let operand = |form: &Form| {
            let (vec, batch_rank, ways) = (form.vec, form.batch_rank, form.rows.ways().to_vec());
            found += ways.len();
            context! { found => found - ways.len(), ways, vec, batch_rank }
        };
        let operands: Vec<_> = self.operands.iter().map(operand).collect();
        template::render(NAME, params, context! { operands, words => WORDS.to_vec() })
    }

    /// The operands, the exponents that each way of each finds.
    pub fn bindings(&self) -> Vec<Access> {
        let found = self.operands.iter().map(|form| form.rows.ways().len()).sum();
        [vec![Access::Read; self.operands.len()], vec![Access::ReadWrite; found]].concat()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let of = |(i, form): (usize, &Form)| {
            let mut names = vec![format!("entries{i}"), format!("x{i}_offset")];
            names.extend(form.rows.ways().iter().flat_map(|way| WORDS.map(|word| format!("{way}{i}_{word}"))));
            names.extend((0..form.batch_rank).flat_map(|d| [format!("batch{i}_{d}"), format!("x{i}_batch{d}")]));
            names
        };
        self.operands.iter().enumerate().flat_map(of).collect()
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
}

/// Whether one launch finds the exponents of the rows of x, and of those of its transpose, from one reading: of a matrix
/// whose rows are contiguous.
pub fn finds_both(x: &View, transpose: &View) -> bool {
    let (along, across) = (Way::of(x), Way::of(transpose));
    x.dims.len() == 2 && !along.across && across.across && along.vec == across.vec
}

/// The exponents of the rows of one or two operands, each one look (batch…, rows, k), or a look and its transpose where
/// [`finds_both`]. Operands of the launch: the looks' tensors, then the exponents, a dense tensor (parts, batch…, rows) of
/// u32 for each look, in order. With it, for each look, where its exponents are in theirs.
pub fn launch(wanted: &[&[View]], caps: &DeviceCaps) -> Result<(Launch<usize>, Vec<Vec<Exponents>>), KernelError> {
    let ways: Vec<Vec<Way>> = wanted.iter().map(|looks| looks.iter().map(Way::of).collect()).collect();
    let (mut forms, mut operands, mut words) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (looks, ways)) in wanted.iter().zip(&ways).enumerate() {
        let x = &looks[0];
        let Way { across, vec, batches, .. } = &ways[0];
        let rows = match (ways.len(), across) {
            (1, true) => Rows::Across,
            (1, false) => Rows::Along,
            _ => Rows::Both,
        };
        forms.push(Form { rows, vec: *vec, batch_rank: batches.len() });
        let unit = if *vec { 4 } else { 1 };
        let (operand, first) = window(NAME, i, "the operand", x.offset, x.end(), DType::F32.size(), caps)?;
        operands.push(operand);
        let entries = batches.iter().map(|(size, _)| size).product();
        words.extend([("batch entries", entries), ("offset", first / unit)]);
        words.extend(ways.iter().flat_map(|way| way.words));
        let strides =
            batches.iter().flat_map(|(size, stride)| [("batch size", *size), ("batch stride", stride / unit)]);
        words.extend(strides);
    }
    let mut found = 0;
    for way in ways.iter().flatten() {
        let end = way.found.parts * way.found.part;
        operands.push(window(NAME, operands.len(), "the exponents", 0, end, DType::U32.size(), caps)?.0);
        found += end;
    }
    let read: usize = wanted.iter().map(|looks| looks[0].elements()).sum();
    let launch = Launch {
        key: KernelKey::Exponents(ExponentsKey { operands: forms }),
        params: sizes(NAME, words)?,
        groups: ways.iter().flatten().map(|way| way.groups as u64).sum(),
        operands,
        estimate: Estimate { flops: 0.0, bytes: ((read + found) * DType::F32.size()) as f64 },
    };
    Ok((launch, ways.into_iter().map(|ways| ways.into_iter().map(|way| way.found).collect()).collect()))
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut forms = Vec::new();
    for vec in [false, true] {
        for rows in [Rows::Along, Rows::Across] {
            forms.extend((0..3).map(|batch_rank| Form { rows, vec, batch_rank }));
        }
        forms.push(Form { rows: Rows::Both, vec, batch_rank: 0 });
    }
    let alone = forms.iter().map(|form| vec![*form]);
    let pairs = forms.iter().zip(forms.iter().rev()).map(|(a, b)| vec![*a, *b]);
    alone.chain(pairs).map(|operands| KernelKey::Exponents(ExponentsKey { operands })).collect()
}
