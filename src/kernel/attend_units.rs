//! In: heads and rows of an attention and a device's matrix units and limits; out: how subgroups share its pairs of
//! queries and keys, for `attention_units.wgsl` and `attention_grad_units.wgsl`. Knows no kernel.

use super::units::Units;
use crate::caps::{DeviceCaps, MatrixUnits};
use minijinja::{Value, context};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a workgroup's subgroups share pairs of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Form {
    /// Subgroups of a workgroup.
    pub subs: usize,
    /// Rows that a subgroup has.
    pub rows: usize,
    /// Rows of the other side that a subgroup takes at once.
    pub step: usize,
    /// Rows of the other side that a workgroup stages at once.
    pub block: usize,
    /// The next block is fetched into registers while one is used.
    pub ahead: bool,
}

/// `8 subgroups of 16, 32 at once of 64, fetched ahead`.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} subgroups of {}, {} at once of {}", self.subs, self.rows, self.step, self.block)?;
        f.write_str(if self.ahead { ", fetched ahead" } else { "" })
    }
}

/// A form on some units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    /// The units.
    pub units: Units,
    /// How subgroups share.
    pub form: Form,
}

/// Columns of a head beyond which sums do not fit into registers.
const MOST_COLUMNS: usize = 32;

impl Shares {
    /// Rows that a workgroup has.
    pub fn own(self) -> usize {
        self.form.subs * self.form.rows
    }

    fn side(self) -> usize {
        self.units.units.side() as usize
    }

    fn lanes(self) -> usize {
        self.units.units.lanes() as usize
    }

    /// Invocations of a workgroup.
    pub fn invocations(self) -> usize {
        self.form.subs * self.lanes()
    }

    /// Columns of a head with those that fill its last matrix.
    fn width(self, columns: usize) -> usize {
        (4 * columns).next_multiple_of(self.side())
    }

    /// Neighbouring invocations that stage a row together.
    fn share(self, columns: usize) -> usize {
        let fours = self.width(columns) / 4;
        let most = (self.invocations() / self.form.block).min(self.lanes()).max(1);
        (0..).map(|i| 1 << i).take_while(|s| *s <= most && fours.is_multiple_of(*s)).last().unwrap_or(1)
    }

    /// f16 numbers of an element.
    fn halves(self) -> usize {
        if self.units.split { 2 } else { 1 }
    }

    /// Bytes of two operands' staged rows.
    fn staged(self, columns: usize) -> usize {
        2 * self.halves() * self.form.block * (2 * self.width(columns) + 16)
    }

    /// Bytes of workgroup memory of the attention.
    pub fn bytes(self, columns: usize) -> usize {
        let weights = self.halves() * (2 * self.form.step + 16);
        self.staged(columns) + self.own() * (weights + 4 * self.form.step + 16) + 8 * self.form.block
    }

    /// Bytes of workgroup memory of the gradients of k and v, where `keys`, or of q.
    pub fn grad_bytes(self, columns: usize, keys: bool) -> usize {
        let (pair_rows, pair_columns) =
            if keys { (self.form.step, self.form.rows) } else { (self.form.rows, self.form.step) };
        let (tile_rows, results) = (self.form.rows.max(pair_rows), if keys { 2 } else { 1 });
        let (queries, keys) = if keys { (self.form.block, self.own()) } else { (self.own(), self.form.block) };
        let weights = results * self.halves() * tile_rows * (2 * pair_columns + 16);
        let products = (tile_rows + pair_rows) * (4 * pair_columns + 16);
        self.staged(columns) + self.form.subs * (weights + products) + 16 * queries + 8 * keys
    }

    /// What the templates read of it for heads of so many groups of four columns.
    pub fn context(self, columns: usize) -> Value {
        let share = self.share(columns);
        let shuffles: Vec<usize> = (0..share.ilog2()).map(|i| 1 << i).collect();
        context! {
            u => self.units.context(), split => self.units.split, subs => self.form.subs, rows => self.form.rows,
            step => self.form.step, block => self.form.block, ahead => self.form.ahead, threads => self.invocations(),
            width => self.width(columns), share, shuffles, held => self.width(columns) / 4 / share,
        }
    }

    /// What tells its problems from those in multiply-adds.
    pub fn words(self) -> String {
        self.units.words()
    }

    /// The same units with another form.
    pub fn with(self, form: Form) -> Shares {
        Shares { form, ..self }
    }

    /// Those of these forms whose workgroup memory the device has, and that are not mostly padding for so many own rows.
    pub fn candidates(
        self,
        forms: &[Form],
        sizes: [usize; 2],
        caps: &DeviceCaps,
        bytes: impl Fn(Shares) -> usize,
    ) -> Vec<Shares> {
        fitting(self.units, forms, sizes, caps, bytes)
    }

    /// The first of them; `None` where no form is good.
    pub fn choose(
        units: Units,
        forms: &[Form],
        sizes: [usize; 2],
        caps: &DeviceCaps,
        bytes: impl Fn(Shares) -> usize,
    ) -> Option<Shares> {
        fitting(units, forms, sizes, caps, bytes).first().copied()
    }
}

fn fitting(
    units: Units,
    forms: &[Form],
    [columns, own]: [usize; 2],
    caps: &DeviceCaps,
    bytes: impl Fn(Shares) -> usize,
) -> Vec<Shares> {
    let side = units.units.side() as usize;
    // one matrix of each kind: a CPU takes long to compile more of them
    let emulated = [Form { subs: 2, rows: side, step: side, block: 2 * side, ahead: false }];
    let forms = match units.units {
        MatrixUnits::Emulated { .. } => &emulated,
        MatrixUnits::Device { lanes: 32, .. } => forms,
        // forms for other subgroups are not measured
        MatrixUnits::Device { .. } => &[],
    };
    if columns > MOST_COLUMNS {
        return Vec::new();
    }
    let all = forms.iter().map(|form| Shares { units, form: *form });
    let fits =
        |s: &Shares| bytes(*s) <= caps.workgroup_bytes as usize && s.invocations() <= caps.max_invocations as usize;
    let mut all: Vec<Shares> = all.filter(fits).collect();
    let least = all.iter().map(|s| s.own()).min();
    all.retain(|s| Some(s.own()) == least || s.own() < 2 * own);
    all
}

/// Each of these forms and an emulated one, on units of both sides, whole and split, each for some head size that fits
/// 48 KiB.
#[cfg(test)]
pub(super) fn catalogue(
    forms: &[&[Form]; 2],
    bytes: impl Fn(Shares, usize) -> usize,
) -> impl Iterator<Item = (Shares, usize)> {
    let mut all = Vec::new();
    let mut sizes = [16, 3, 8, 1, 32].into_iter().cycle();
    for split in [false, true] {
        let mut add = |units, form: &[Form], columns| {
            let caps = DeviceCaps { workgroup_bytes: 48 << 10, units: Some(units), ..DeviceCaps::PORTABLE };
            let of = |columns| {
                Shares::choose(Units { units, split }, form, [columns, 64], &caps, |s| bytes(s, columns))
                    .map(|s| (s, columns))
            };
            all.extend(of(columns).or_else(|| of(4)));
        };
        for form in forms[usize::from(split)] {
            for side in [8, 16] {
                add(MatrixUnits::Device { side, lanes: 32 }, &[*form], sizes.next().expect("a cycle"));
            }
        }
        add(MatrixUnits::Emulated { side: 8 }, &[], 3);
        add(MatrixUnits::Emulated { side: 16 }, &[], 2);
    }
    all.into_iter()
}
