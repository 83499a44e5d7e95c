//! In: sizes of a stack and a device's limits; out: how a workgroup's work is dealt to invocations in multiply-adds, and
//! to subgroups on matrix units, as their template sees it. Knows no operand.

use super::{NAME, StackTile, UnitsTile};
use crate::caps::{DeviceCaps, MatrixUnits};
use crate::graph::DType;
use crate::kernel::KernelError;
use crate::kernel::units::Units;
use minijinja::{Value, context};

impl StackTile {
    /// Tiles of rows in workgroup memory.
    pub(super) fn regions(self) -> usize {
        [1, 2, 3][self.split / 2]
    }

    pub(super) fn bytes(self, width: usize) -> usize {
        self.regions() * self.rows * width * DType::F32.size()
    }

    pub(super) fn threads(self, width: usize) -> usize {
        width / 4 * self.split
    }

    /// Whether layers of this width are dealt out without a rest.
    fn divides(self, width: usize) -> bool {
        self.rows.is_multiple_of(self.split) && (width / 4).is_multiple_of(self.split * self.unroll)
    }
}

/// How many rows a workgroup carries at most.
const ROWS: usize = 16;

/// Fewer rows of layers up to this width, whose workgroups have little to do, so that a core has several.
const NARROW: usize = 64;

/// The widest layers that are worth it: at 512 on an H200 a launch a layer is as fast.
const WIDEST: usize = 256;

/// Cores of the device that rows are dealt to: the adapter does not say how many it has.
const CORES: usize = 132;

/// The widest layers whose rows a workgroup of the device carries without a loss; 0 on a CPU that acts as a GPU, for
/// which workgroup memory is plain memory and a product a layer is faster.
pub fn widest(caps: &DeviceCaps) -> usize {
    if caps.cpu {
        return 0;
    }
    let fits = |width: &usize| tile(*width, usize::MAX, caps).is_ok_and(|t| t.rows >= ROWS / 2);
    (1..=WIDEST / 4).rev().map(|quads| 4 * quads).find(fits).unwrap_or(0)
}

/// As many rows as give every core a workgroup, up to [`ROWS`], then as many parts as fit.
pub(super) fn tile(width: usize, rows: usize, caps: &DeviceCaps) -> Result<StackTile, KernelError> {
    if width == 0 || !width.is_multiple_of(4) {
        let expected = "a multiple of 4".to_owned();
        return Err(KernelError::Size { kernel: NAME, what: "the width of a layer", expected, got: width });
    }
    tiles(width, rows, caps).next().ok_or(KernelError::Workgroup {
        kernel: NAME,
        what: "bytes of workgroup memory",
        wanted: StackTile { rows: 1, split: 1, unroll: 1 }.bytes(width) as u32,
        limit: caps.workgroup_bytes,
    })
}

/// The tiles that a device can run for so many rows, the preferred first.
pub(super) fn tiles(width: usize, rows: usize, caps: &DeviceCaps) -> impl Iterator<Item = StackTile> {
    let most = if width <= NARROW { ROWS / 2 } else { ROWS };
    let most = [4, 8].into_iter().find(|r| rows <= r * CORES).unwrap_or(ROWS).min(most);
    let of_rows = |rows| {
        let forms = [(4, 2), (4, 1), (2, 2), (2, 1), (1, 2), (1, 1)];
        forms.map(|(split, unroll)| StackTile { rows, split, unroll })
    };
    let (threads, bytes) = (caps.max_invocations.min(512) as usize, caps.workgroup_bytes as usize);
    let fits = move |t: &StackTile| t.threads(width) <= threads && t.bytes(width) <= bytes;
    let tiles = [16, 8, 4, 2, 1].into_iter().filter(move |r| *r <= most).flat_map(of_rows);
    tiles.filter(move |t| t.divides(width)).filter(fits)
}

/// The least rows that go to units: fewer would leave most of a matrix empty.
const LEAST_ROWS: usize = 16;

/// Rows, subgroups, steps fetched ahead and staged, the preferred first.
const FORMS: [(usize, usize, usize, usize); 5] =
    [(16, 8, 4, 2), (16, 4, 4, 2), (16, 8, 4, 1), (16, 4, 2, 1), (16, 4, 4, 1)];

impl UnitsTile {
    /// Bytes of workgroup memory: rows and columns of weights with eight numbers of padding, rows of sums of each subgroup
    /// with four, and the largest magnitudes of f32 rows.
    pub(super) fn bytes(self, width: usize, dtype: DType, units: Units) -> usize {
        let halves = if units.split { 2 } else { 1 };
        let side = units.units.side() as usize;
        let largest = if dtype == DType::F32 { self.rows * self.subs * 4 } else { 0 };
        let sums = self.subs * side * (side * beside(units) + 4) * 4;
        let staged = self.stages * halves * width * (side + 8) * 2;
        halves * self.rows * (width + 8) * 2 + staged + sums + largest
    }

    pub(super) fn threads(self, units: Units) -> usize {
        self.subs * units.units.lanes() as usize
    }

    /// The `s` of shared/stack_rows.wgsl and shared/stack_weights.wgsl, which say what is in it, for layers of this width.
    pub(super) fn context(self, width: usize, units: Units) -> Value {
        let (side, lanes) = (units.units.side() as usize, units.units.lanes() as usize);
        let (beside, halves) = (beside(units), if units.split { 2 } else { 1 });
        let (blocks, matrix) = (width / side, side * side / 4);
        let (down, over) = (self.rows / side, blocks / self.subs);
        let fours = beside * side / 4;
        // lanes side by side have a row of sums, or each lane has whole ones
        let (at_once, each) = if lanes >= fours { (lanes / fours, 1) } else { (1, fours) };
        let mine = side / at_once;
        let columns: Vec<usize> = (0..over / beside * each).map(|c| c / each * fours + c % each).collect();
        let row = |(t, r): (usize, usize)| {
            let (of, row) = (format!("{t}_{r}"), t * side + r * at_once);
            let four = |(c, column): (usize, &usize)| context! { of => format!("{of}_{c}"), row, column };
            let held: Vec<Value> = columns.iter().enumerate().map(four).collect();
            context! { of, row, held }
        };
        let pairs = |n: usize, m: usize| (0..n).flat_map(move |i| (0..m).map(move |j| (i, j)));
        let lane_rows: Vec<Value> = pairs(down, mine).map(row).collect();
        let matrices: Vec<String> = pairs(down, over).map(|(t, o)| format!("{t}_{o}")).collect();
        let UnitsTile { subs, ahead, stages, .. } = self;
        let (at_row, at_sum, at_column) = (width / 4 + 2, fours + 1, side / 4 + 2);
        let (eights, step) = (over * halves * matrix / 2, blocks * halves * matrix / 2);
        let region = over * halves * side * at_column;
        context! {
            subs, quads => width / 4, down, over, matrices, beside, fours, at_once, mine, each, columns, lane_rows,
            at_row, at_sum, ahead, stages, blocks, halves, matrix, part => side.div_ceil(8), eights, step, at_column, region,
        }
    }

    /// Whether layers of this width are dealt out without a rest, a step's weights to lanes eight by eight.
    fn divides(self, width: usize, units: Units) -> bool {
        let side = units.units.side() as usize;
        let (blocks, halves) = (width / side, if units.split { 2 } else { 1 });
        let eights = halves * blocks / self.subs * side * side / 8;
        width.is_multiple_of(side)
            && self.rows.is_multiple_of(side)
            && blocks.is_multiple_of(self.subs * beside(units))
            && eights.is_multiple_of(units.units.lanes() as usize)
            && (self.ahead == 0 || blocks.is_multiple_of(self.ahead))
    }
}

/// Matrices of sums that give each lane of a subgroup four numbers at least.
fn beside(units: Units) -> usize {
    let fours = (units.units.side() * units.units.side() / 4) as usize;
    (units.units.lanes() as usize).div_ceil(fours)
}

/// The tiles on units that a device can run for so many rows, the preferred first; none where multiply-adds are better.
pub(super) fn units_tiles(width: usize, rows: usize, dtype: DType, units: Units, caps: &DeviceCaps) -> Vec<UnitsTile> {
    let side = units.units.side() as usize;
    let blocks = width / side;
    if caps.cpu || rows < LEAST_ROWS {
        return Vec::new();
    }
    let mut all: Vec<UnitsTile> = Vec::new();
    let device = |(rows, subs, ahead, stages): (usize, usize, usize, usize)| {
        let divisor = |most: usize| (1..=most.min(blocks)).rev().find(|d| blocks.is_multiple_of(*d)).unwrap_or(1);
        UnitsTile { rows, subs: divisor(subs), ahead: divisor(ahead), stages }
    };
    match units.units {
        // loops stay loops, for a CPU takes long to compile them unrolled
        MatrixUnits::Emulated { .. } => {
            let of = |over: usize| UnitsTile { rows: 2 * side, subs: (blocks / over).max(1), ahead: 0, stages: 1 };
            all.extend([of(2), of(1)]);
        }
        MatrixUnits::Device { .. } => all.extend(FORMS.map(device)),
    }
    let fits = |t: &UnitsTile| {
        t.divides(width, units)
            && t.threads(units) <= caps.max_invocations as usize
            && t.bytes(width, dtype, units) <= caps.workgroup_bytes as usize
    };
    let mut tiles: Vec<UnitsTile> = Vec::new();
    for tile in all.into_iter().filter(fits) {
        if !tiles.contains(&tile) {
            tiles.push(tile);
        }
    }
    tiles
}

/// Whether a stack is better made on these units than in multiply-adds.
pub fn takes_units(width: usize, rows: usize, dtype: DType, units: Units, caps: &DeviceCaps) -> bool {
    !units_tiles(width, rows, dtype, units, caps).is_empty()
}

/// Each form of units with a tile for a width, split and not, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<(usize, Units, UnitsTile)> {
    let devices = [16, 8].map(|side| MatrixUnits::Device { side, lanes: 32 });
    let emulated = [4, 8, 16].map(|side| MatrixUnits::Emulated { side });
    let mut widths = [96, 64, 128].into_iter().cycle();
    let mut all = Vec::new();
    for units in devices.into_iter().chain(emulated) {
        for split in [true, false, false] {
            let caps = DeviceCaps { workgroup_bytes: 48 << 10, max_invocations: 1024, ..DeviceCaps::PORTABLE };
            let (units, width) = (Units { units, split }, widths.next().expect("a cycle"));
            all.extend(units_tiles(width, 64, DType::F32, units, &caps).first().map(|tile| (width, units, *tile)));
        }
    }
    all
}
