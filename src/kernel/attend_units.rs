//! In: heads and rows of an attention and a device's matrix units and limits; out: how subgroups share its pairs of
//! queries and keys, for `attention_units.wgsl` and `attention_grad_units.wgsl`. Knows no kernel.

use super::units::Units;
use crate::caps::{DeviceCaps, MatrixUnits};
use minijinja::{Value, context};

/// How a workgroup's subgroups share pairs of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    /// The units.
    pub units: Units,
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

/// Columns of a head beyond which sums do not fit into registers.
const MOST_COLUMNS: usize = 32;

impl Shares {
    /// Rows that a workgroup has.
    pub fn own(self) -> usize {
        self.subs * self.rows
    }

    fn side(self) -> usize {
        self.units.units.side() as usize
    }

    fn lanes(self) -> usize {
        self.units.units.lanes() as usize
    }

    /// Invocations of a workgroup.
    pub fn invocations(self) -> usize {
        self.subs * self.lanes()
    }

    /// Columns of a head with those that fill its last matrix.
    fn width(self, columns: usize) -> usize {
        (4 * columns).next_multiple_of(self.side())
    }

    /// Neighbouring invocations that stage a row together.
    fn share(self, columns: usize) -> usize {
        let fours = self.width(columns) / 4;
        let most = (self.invocations() / self.block).min(self.lanes()).max(1);
        (0..).map(|i| 1 << i).take_while(|s| *s <= most && fours.is_multiple_of(*s)).last().unwrap_or(1)
    }

    /// f16 numbers of an element.
    fn halves(self) -> usize {
        if self.units.split { 2 } else { 1 }
    }

    /// Bytes of two operands' staged rows.
    fn staged(self, columns: usize) -> usize {
        2 * self.halves() * self.block * (2 * self.width(columns) + 16)
    }

    /// Bytes of workgroup memory of the attention.
    pub fn bytes(self, columns: usize) -> usize {
        let weights = self.halves() * (2 * self.step + 16);
        self.staged(columns) + self.own() * (weights + 4 * self.step + 16) + 8 * self.block
    }

    /// Bytes of workgroup memory of the gradients of k and v, where `keys`, or of q.
    pub fn grad_bytes(self, columns: usize, keys: bool) -> usize {
        let (pair_rows, pair_columns) = if keys { (self.step, self.rows) } else { (self.rows, self.step) };
        let (tile_rows, results) = (self.rows.max(pair_rows), if keys { 2 } else { 1 });
        let (queries, keys) = if keys { (self.block, self.own()) } else { (self.own(), self.block) };
        let weights = results * self.halves() * tile_rows * (2 * pair_columns + 16);
        let products = (tile_rows + pair_rows) * (4 * pair_columns + 16);
        self.staged(columns) + self.subs * (weights + products) + 16 * queries + 8 * keys
    }

    /// What the templates read of it for heads of so many groups of four columns.
    pub fn context(self, columns: usize) -> Value {
        let share = self.share(columns);
        let shuffles: Vec<usize> = (0..share.ilog2()).map(|i| 1 << i).collect();
        context! {
            u => self.units.context(), split => self.units.split, subs => self.subs, rows => self.rows,
            step => self.step, block => self.block, ahead => self.ahead, threads => self.invocations(),
            width => self.width(columns), share, shuffles, held => self.width(columns) / 4 / share,
        }
    }

    /// The first of these (subgroups, rows, step, block, ahead) whose workgroup memory the device has, and that is not
    /// mostly padding for so many own rows; `None` where no form is good.
    pub fn choose(
        units: Units,
        forms: &[(usize, usize, usize, usize, bool)],
        [columns, own]: [usize; 2],
        caps: &DeviceCaps,
        bytes: impl Fn(Shares) -> usize,
    ) -> Option<Shares> {
        let side = units.units.side() as usize;
        let emulated = [(2, 2 * side, side, 2 * side, false), (2, side, side, side, false)];
        let forms = match units.units {
            MatrixUnits::Emulated { .. } => &emulated,
            MatrixUnits::Device { lanes: 32, .. } => forms,
            // forms for other subgroups are not measured
            MatrixUnits::Device { .. } => return None,
        };
        if columns > MOST_COLUMNS {
            return None;
        }
        let all =
            forms.iter().map(|&(subs, rows, step, block, ahead)| Shares { units, subs, rows, step, block, ahead });
        let fits =
            |s: &Shares| bytes(*s) <= caps.workgroup_bytes as usize && s.invocations() <= caps.max_invocations as usize;
        let mut fitting: Vec<Shares> = all.filter(fits).collect();
        let least = fitting.iter().map(|s| s.own()).min()?;
        fitting.retain(|s| s.own() == least || s.own() < 2 * own);
        fitting.first().copied()
    }
}

/// Each of these forms and an emulated one, on units of both sides, whole and split, for some head sizes that fit 48 KiB.
#[cfg(test)]
pub(super) fn catalogue(
    forms: &[&[(usize, usize, usize, usize, bool)]; 2],
    bytes: impl Fn(Shares, usize) -> usize,
) -> impl Iterator<Item = (Shares, usize)> {
    let mut all = Vec::new();
    for (split, columns) in [(false, 16), (true, 16), (true, 3), (false, 32), (true, 1)] {
        let caps = |units| DeviceCaps { workgroup_bytes: 48 << 10, units: Some(units), ..DeviceCaps::PORTABLE };
        for units in [MatrixUnits::Device { side: 16, lanes: 32 }, MatrixUnits::Device { side: 8, lanes: 32 }] {
            for form in forms[usize::from(split)] {
                let units = Units { units, split };
                all.extend(
                    Shares::choose(units, &[*form], [columns, 64], &caps(units.units), |s| bytes(s, columns))
                        .map(|s| (s, columns)),
                );
            }
        }
        for side in [8, 16] {
            let units = Units { units: MatrixUnits::Emulated { side }, split };
            all.extend(
                Shares::choose(units, &[], [columns, 64], &caps(units.units), |s| bytes(s, columns))
                    .map(|s| (s, columns)),
            );
        }
    }
    all.into_iter()
}
