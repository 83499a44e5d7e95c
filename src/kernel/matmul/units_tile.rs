//! In: sizes of a product and a device's matrix units and limits; out: the tile of a workgroup on the units. Knows no
//! operand.

use super::tile::{CORES, is_full, rounds};
use super::{Side, Tile};
use crate::caps::{DeviceCaps, MatrixUnits};
use crate::kernel::units::Units;

/// Rows, columns and depth of a tile, rows and columns of a subgroup's share, and the share of the best tile's rate that
/// it reaches where enough of them are there: of operands in f32 that are split, that are rounded, and of those in f16.
/// Fitted to rates on an H200 at 4096³, of kernels alone, and at the shapes of GPTlite Small's products and their gradients,
/// as MaxAutotune times them; to its width 96 columns are a whole number of tiles for 132 cores. docs/performance.md has
/// them.
const TILES: [(Tile, [f64; 3]); 20] = [
    (Tile { m: 128, n: 256, k: 32, tm: 64, tn: 64 }, [0.4, 1.0, 0.87]),
    (Tile { m: 128, n: 192, k: 32, tm: 64, tn: 48 }, [0.3, 0.87, 0.86]),
    (Tile { m: 128, n: 128, k: 32, tm: 64, tn: 64 }, [0.6, 0.83, 1.0]),
    (Tile { m: 128, n: 128, k: 32, tm: 64, tn: 32 }, [1.0, 0.6, 0.62]),
    (Tile { m: 128, n: 128, k: 16, tm: 64, tn: 32 }, [0.78, 0.5, 0.5]),
    (Tile { m: 128, n: 96, k: 64, tm: 64, tn: 48 }, [0.3, 0.4, 0.78]),
    (Tile { m: 128, n: 96, k: 64, tm: 32, tn: 48 }, [0.5, 0.72, 0.87]),
    (Tile { m: 128, n: 96, k: 64, tm: 32, tn: 32 }, [0.5, 0.75, 0.83]),
    (Tile { m: 128, n: 96, k: 32, tm: 64, tn: 48 }, [0.5, 0.79, 0.88]),
    (Tile { m: 128, n: 96, k: 32, tm: 32, tn: 48 }, [0.94, 0.6, 0.5]),
    (Tile { m: 96, n: 96, k: 32, tm: 48, tn: 48 }, [0.65, 0.8, 0.84]),
    (Tile { m: 96, n: 96, k: 32, tm: 32, tn: 48 }, [0.77, 0.6, 0.5]),
    (Tile { m: 64, n: 128, k: 32, tm: 32, tn: 64 }, [0.68, 0.71, 0.75]),
    (Tile { m: 128, n: 64, k: 32, tm: 32, tn: 32 }, [0.8, 0.66, 0.63]),
    (Tile { m: 128, n: 64, k: 16, tm: 64, tn: 32 }, [0.87, 0.45, 0.5]),
    (Tile { m: 64, n: 96, k: 32, tm: 32, tn: 48 }, [0.55, 0.7, 0.68]),
    (Tile { m: 64, n: 96, k: 16, tm: 32, tn: 48 }, [0.78, 0.45, 0.45]),
    (Tile { m: 64, n: 64, k: 32, tm: 32, tn: 32 }, [0.7, 0.6, 0.59]),
    (Tile { m: 64, n: 64, k: 16, tm: 32, tn: 32 }, [0.7, 0.4, 0.45]),
    (Tile { m: 32, n: 64, k: 32, tm: 32, tn: 16 }, [0.5, 0.38, 0.4]),
];

/// The deepest stage where A lies along its rows: deeper ones are slower there, as in a weight's gradient.
const DEEPEST_ALONG_ROWS: usize = 32;

/// For emulated units, by their side: several shares in a tile, several matrices in most shares, one tile whose rows are
/// not dealt evenly to those who fetch them.
const EMULATED: [(u32, Tile); 3] = [
    (4, Tile { m: 24, n: 16, k: 8, tm: 12, tn: 4 }),
    (8, Tile { m: 32, n: 32, k: 8, tm: 16, tn: 8 }),
    (16, Tile { m: 32, n: 64, k: 16, tm: 16, tn: 16 }),
];

/// The share of its rate that a tile keeps where bounds are checked.
const GUARDED: f64 = 0.7;

/// Invocations on a core that hide each other's waits for memory.
const HIDING: usize = 256;

/// Bytes of workgroup memory that a core has for all of its workgroups: two of 24 KiB fit, of 28 KiB one.
const CORE_BYTES: usize = 52 << 10;

/// The least M, N and K that go to units: smaller ones would leave most of a matrix empty.
const LEAST: usize = 16;

/// What else a tile is chosen for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// How A and B are read.
    pub sides: [Side; 2],
    /// Their stored type is f32.
    pub scaled: bool,
}

/// Bytes of workgroup memory: stages with eight numbers of padding a row, a matrix of sums for each subgroup, and exponents
/// of scales where no padding takes them.
pub(super) fn bytes(tile: Tile, sides: [Side; 2], units: Units, scaled: bool) -> usize {
    let stage = |side: Side, outer: usize| {
        let (row, rows) = if side.along_k { (tile.k, outer) } else { (outer, tile.k) };
        let numbers = 2 * (row + 8) * rows * if units.split { 2 } else { 1 };
        numbers + if scaled && !side.along_k { 4 * outer } else { 0 }
    };
    let shares = tile.m / tile.tm * (tile.n / tile.tn);
    let side = units.units.side() as usize;
    stage(sides[0], tile.m) + stage(sides[1], tile.n) + shares * side * side * 4
}

/// The tile with the least predicted time; `None` where multiply-adds in f32 do as well or no tile fits.
pub(super) fn tile([m, n, k, batch]: [usize; 4], needs: Needs, units: Units, caps: &DeviceCaps) -> Option<Tile> {
    if m.min(n).min(k) < LEAST || caps.cpu {
        return None;
    }
    candidates([m, n, k, batch], needs, units, caps).first().copied()
}

/// The tiles that the device can run, that of the least predicted time first.
pub(super) fn candidates(sizes: [usize; 4], needs: Needs, units: Units, caps: &DeviceCaps) -> Vec<Tile> {
    let mut all: Vec<(f64, Tile)> = predicted(sizes, needs, units, caps).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.into_iter().map(|(_, tile)| tile).collect()
}

/// The rate of the best tile to that of multiply-adds in f32, for each kind of operand.
const RATES: [f64; 3] = [2.1, 4.9, 6.2];

/// What the begin and the end of a tile cost, in steps along k.
const ENDS: usize = 64;

/// The predicted time of a product in multiply-adds in f32 of one core at the full rate; `None` where no tile fits.
pub(super) fn time(sizes: [usize; 4], needs: Needs, units: Units, caps: &DeviceCaps) -> Option<f64> {
    let step = predicted(sizes, needs, units, caps).map(|(step, _)| step).min_by(f64::total_cmp)?;
    Some(step * (sizes[2] + ENDS) as f64 / RATES[kind(units, needs.scaled)])
}

/// The predicted time of one step along k on the busiest core of every tile that the device can run.
fn predicted(
    [m, n, k, batch]: [usize; 4],
    needs: Needs,
    units: Units,
    caps: &DeviceCaps,
) -> impl Iterator<Item = (f64, Tile)> {
    let fits = move |t: Tile| {
        let threads = t.m / t.tm * (t.n / t.tn) * units.units.lanes() as usize;
        bytes(t, needs.sides, units, needs.scaled) <= caps.workgroup_bytes as usize
            && threads <= caps.max_invocations as usize
            && (needs.sides[0].along_k || t.k <= DEEPEST_ALONG_ROWS)
    };
    let cost = move |(t, share): (Tile, f64)| {
        let threads = t.m / t.tm * (t.n / t.tn) * units.units.lanes() as usize;
        let fit = CORE_BYTES / bytes(t, needs.sides, units, needs.scaled).next_multiple_of(1 << 10);
        let tiles = (m.div_ceil(t.m) * n.div_ceil(t.n) * batch).div_ceil(CORES);
        let share = if is_full(t, m, n, k) { share } else { GUARDED * share };
        (rounds(tiles, (HIDING / threads).min(fit).max(1)) * (t.m * t.n) as f64 / share, t)
    };
    tiles(units, needs.scaled).into_iter().filter(move |(t, _)| fits(*t)).map(cost)
}

/// Where the shares of these operands are in the tables.
fn kind(units: Units, scaled: bool) -> usize {
    if units.split { 0 } else { usize::from(!scaled) + 1 }
}

/// The tiles of these units, with the share of the best rate that each reaches.
fn tiles(units: Units, scaled: bool) -> Vec<(Tile, f64)> {
    match units.units {
        MatrixUnits::Device { .. } => TILES.iter().map(|(tile, shares)| (*tile, shares[kind(units, scaled)])).collect(),
        MatrixUnits::Emulated { side } => {
            EMULATED.iter().filter(|(of, _)| *of == side).map(|(_, tile)| (*tile, 1.0)).collect()
        }
    }
}

/// Every form of units with each of its tiles, for tests.
#[cfg(test)]
pub(super) fn all() -> Vec<(Units, Tile)> {
    let mut all = Vec::new();
    for split in [false, true] {
        let devices = [8, 16].map(|side| MatrixUnits::Device { side, lanes: 32 });
        let emulated = EMULATED.map(|(side, _)| MatrixUnits::Emulated { side });
        for units in devices.into_iter().chain(emulated) {
            let units = Units { units, split };
            all.extend(tiles(units, false).into_iter().map(|(tile, _)| (units, tile)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Needs, TILES, tile};
    use crate::caps::{DeviceCaps, MatrixUnits};
    use crate::kernel::matmul::Side;
    use crate::kernel::units::Units;

    /// How A and B are read: as a layer's input and its weight, as a gradient and the weight, and as those two in a
    /// weight's gradient.
    const FORWARD: [bool; 2] = [true, true];
    const BACK: [bool; 2] = [true, false];
    const WEIGHT: [bool; 2] = [false, false];

    /// The tile on the device that the table was measured on.
    fn chosen(size: [usize; 4], along_k: [bool; 2], split: bool, scaled: bool) -> [usize; 5] {
        let units = MatrixUnits::Device { side: 16, lanes: 32 };
        let caps =
            DeviceCaps { workgroup_bytes: 48 << 10, max_invocations: 1024, units: Some(units), ..DeviceCaps::PORTABLE };
        let sides = along_k.map(|along_k| Side { along_k, vec: true });
        let t = tile(size, Needs { sides, scaled }, Units { units, split }, &caps).unwrap();
        [t.m, t.n, t.k, t.tm, t.tn]
    }

    #[test]
    fn tiles_are_those_that_were_the_fastest_or_close() {
        let high = |[m, n, k]: [usize; 3], sides| chosen([m, n, k, 1], sides, true, true);
        let medium = |[m, n, k]: [usize; 3], sides| chosen([m, n, k, 1], sides, false, true);
        let half = |[m, n, k]: [usize; 3], sides| chosen([m, n, k, 1], sides, false, false);
        let [cube, wide] = [[4096; 3], [2048, 8192, 8192]];
        for (size, sides) in [(cube, BACK), (wide, FORWARD), (wide, BACK), ([8192, 8192, 2048], WEIGHT)] {
            assert_eq!(high(size, sides), [128, 128, 32, 64, 32]);
            assert_eq!(medium(size, sides), [128, 256, 32, 64, 64]);
            assert_eq!(half(size, sides), [128, 128, 32, 64, 64]);
        }
        // GPTlite Small's
        for size in [[2048, 768, 768], [2048, 768, 3072], [2048, 2304, 768]] {
            for sides in [FORWARD, BACK] {
                assert_eq!(high(size, sides), [128, 96, 32, 32, 48]);
                assert_eq!(medium(size, sides), [128, 96, 64, 32, 32]);
                assert_eq!(half(size, sides), [128, 96, 64, 32, 48]);
            }
        }
        for sides in [FORWARD, BACK] {
            assert_eq!(high([2048, 3072, 768], sides), [128, 128, 32, 64, 32]);
            assert_eq!(medium([2048, 3072, 768], sides), [128, 192, 32, 64, 48]);
            assert_eq!(half([2048, 3072, 768], sides), [128, 96, 32, 64, 48]);
        }
        for size in [[3072, 768, 2048], [768, 3072, 2048]] {
            assert_eq!(high(size, WEIGHT), [96, 96, 32, 32, 48]);
            assert_eq!(medium(size, WEIGHT), [96, 96, 32, 48, 48]);
            assert_eq!(half(size, WEIGHT), [96, 96, 32, 48, 48]);
        }
        assert_eq!(high([2304, 768, 2048], WEIGHT), [128, 128, 32, 64, 32]);
        assert_eq!(half([2304, 768, 2048], WEIGHT), [64, 128, 32, 32, 64]);
        // a stack's weights
        assert_eq!(chosen([256, 256, 2048, 32], WEIGHT, false, false), [64, 128, 32, 32, 64]);
    }

    #[test]
    fn each_four_rows_of_a_tile_have_an_invocation_that_adds_up_their_sums() {
        for (tile, _) in TILES {
            assert!(tile.m / tile.tm * (tile.n / tile.tn) * 32 >= tile.m / 4, "{tile:?}");
        }
    }
}
