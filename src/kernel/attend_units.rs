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
    /// Rows are scaled by powers of two to fit f16; those that are stored in f16 are not.
    pub scaled: bool,
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

    /// Neighbouring invocations that stage a row together: all of a row that is not scaled, so that they read and store
    /// side by side; else a power of two, so that few shuffles find the largest number.
    fn share(self, columns: usize) -> usize {
        let fours = self.width(columns) / 4;
        if !self.scaled {
            return fours;
        }
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

    /// Groups of four columns that an invocation has of a block, or of a round of it.
    fn held(self, columns: usize) -> usize {
        let fours = self.width(columns) / 4;
        match (self.scaled, self.form.ahead) {
            (true, _) => fours / self.share(columns),
            (false, true) => (self.form.block * fours).div_ceil(self.invocations()),
            (false, false) => 1,
        }
    }

    /// Bytes of workgroup memory that note which rows of a block are not as the others.
    fn noted(self) -> usize {
        16 + if self.scaled { 8 } else { 4 } * self.form.block
    }

    /// Bytes of workgroup memory of a row of scores and what is made of it, for so many of the other side.
    fn row(self, columns: usize) -> usize {
        self.halves() * (2 * columns + 16) + 4 * columns + 32
    }

    /// Bytes of workgroup memory of the attention.
    pub fn bytes(self, columns: usize) -> usize {
        self.staged(columns) + self.own() * self.row(self.form.step) + self.noted()
    }

    /// Bytes of workgroup memory of the gradients of k and v, where `keys`, or of q.
    pub fn grad_bytes(self, columns: usize, keys: bool) -> usize {
        let Form { rows, step, block, .. } = self.form;
        let (pair_rows, pair_columns) = if keys { (step, rows) } else { (rows, step) };
        let (queries, keys_held) = if keys { (block, self.own()) } else { (self.own(), block) };
        let pairs = self.form.subs * rows.max(pair_rows) * self.row(pair_columns);
        let of_queries = match (self.scaled, keys) {
            (true, _) => 16 * queries,
            (false, true) => 8 * queries,
            (false, false) => 0,
        };
        let of_keys = if self.scaled { 8 * keys_held } else { self.noted() };
        self.staged(columns) + pairs + of_queries + of_keys
    }

    /// What the templates read of it for heads of so many groups of four columns; `vec` where these are bound as one.
    pub fn context(self, columns: usize, vec: bool) -> Value {
        let Form { subs, rows, step, block, ahead } = self.form;
        let (share, width, scaled, threads) =
            (self.share(columns), self.width(columns), self.scaled, self.invocations());
        let shuffles: Vec<usize> = (0..share.ilog2()).map(|i| 1 << i).collect();
        let words = vec && !scaled;
        let s = context! { block, ahead, threads, share, shuffles, held => self.held(columns), columns, width, scaled, words };
        context! {
            u => self.units.context(), split => self.units.split, subs, rows, step, block, ahead, threads, width, words, s,
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
        fitting((self.units, self.scaled), forms, sizes, caps, bytes)
    }

    /// The first of them, for rows that are scaled or not; `None` where no form is good.
    pub fn choose(
        (units, scaled): (Units, bool),
        forms: &[Form],
        sizes: [usize; 2],
        caps: &DeviceCaps,
        bytes: impl Fn(Shares) -> usize,
    ) -> Option<Shares> {
        fitting((units, scaled), forms, sizes, caps, bytes).first().copied()
    }
}

fn fitting(
    (units, scaled): (Units, bool),
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
    let all = forms.iter().map(|form| Shares { units, form: *form, scaled });
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
    for (split, scaled) in [(false, false), (false, true), (true, true)] {
        let mut add = |units, form: &[Form], columns| {
            let caps = DeviceCaps { workgroup_bytes: 48 << 10, units: Some(units), ..DeviceCaps::PORTABLE };
            let of = |columns| {
                Shares::choose((Units { units, split }, scaled), form, [columns, 64], &caps, |s| bytes(s, columns))
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
