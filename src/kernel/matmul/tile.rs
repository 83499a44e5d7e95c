//! In: sizes of a product and a device's limits; out: the tile of a workgroup, and how long slices of K should be. Knows
//! no operand.

use super::Tile;
use crate::caps::DeviceCaps;

/// Rows are uniform over a workgroup of eight invocations; fewer where M or N are small. A load costs such a CPU far
/// more than a multiply-add, so an invocation's share is as large as its registers and its stack in cache allow.
pub(super) fn direct_tile(m: usize, n: usize) -> Tile {
    let tm = match m {
        1 => 1,
        2..=4 => 4,
        5..=8 => 8,
        _ => 16,
    };
    let tn = match n {
        ..=32 => 4,
        33..=64 => 8,
        _ => 16,
    };
    Tile { m: tm, n: 8 * tn, k: 0, tm, tn }
}

/// Sizes that a workgroup may have.
struct Candidate {
    tile: Tile,
    /// The share of the best tile's rate that it reaches where enough of them are there, as measured on an H200.
    share: f64,
    /// Workgroups that a core works on at once, which hide each other's waits: fewer are slower, and the device gives a
    /// core that has ended such a set the next, so that a few last ones crowd on some cores.
    together: usize,
}

const fn candidate([m, n, k]: [usize; 3], [tm, tn]: [usize; 2], share: f64, together: usize) -> Candidate {
    Candidate { tile: Tile { m, n, k, tm, tn }, share, together }
}

const TILES: [Candidate; 8] = [
    candidate([128, 128, 16], [8, 8], 1.0, 1),
    candidate([128, 96, 16], [8, 12], 0.97, 2),
    candidate([128, 96, 16], [4, 12], 0.91, 1),
    candidate([128, 64, 16], [8, 8], 0.94, 1),
    candidate([64, 96, 32], [4, 12], 0.91, 2),
    candidate([64, 64, 16], [4, 8], 0.84, 1),
    candidate([32, 32, 32], [4, 4], 0.5, 8),
    candidate([16, 64, 32], [4, 4], 0.25, 8),
];

/// For limits that no other tile fits.
const SMALLEST: Tile = Tile { m: 16, n: 16, k: 8, tm: 4, tn: 4 };

/// Cores of the device that the choice is made for: the adapter does not say how many it has, and a large one loses most
/// by a wrong choice.
const CORES: usize = 132;

/// How long the busiest core takes for its tiles, in units of one tile at the full rate of as many as it works on at once.
fn rounds(tiles: usize, together: usize) -> f64 {
    let per_core = tiles.div_ceil(CORES);
    if per_core < together {
        return per_core as f64 / (per_core as f64 / together as f64).sqrt();
    }
    (tiles.div_ceil(CORES * together) * together) as f64
}

/// Invocations of a workgroup.
pub(super) fn invocations(tile: Tile) -> usize {
    if tile.k == 0 { tile.n / tile.tn } else { tile.m / tile.tm * (tile.n / tile.tn) }
}

/// Stages in workgroup memory. A workgroup that takes so many registers that a core holds no other has nobody to work
/// while it waits: it stages ahead.
pub(super) fn stages(tile: Tile) -> usize {
    if invocations(tile) >= 256 { 2 } else { 1 }
}

/// vec4s of padding after each four k of an operand in workgroup memory.
pub(super) fn padding(along_k: bool, depth: usize) -> usize {
    if along_k && depth > 0 { 32 / depth } else { 0 }
}

/// Bytes of all stages of both operands, each with padding of at most eight vec4s.
pub(super) fn bytes(tile: Tile) -> usize {
    if tile.k == 0 { 0 } else { (tile.k * (tile.m + tile.n) / 4 + 2 * 8) * 16 * stages(tile) }
}

/// A tile as it is, then with less deep stages, for less workgroup memory or a shorter K.
fn depths(tile: Tile) -> impl Iterator<Item = Tile> {
    [32, 16, 8].into_iter().filter(move |k| *k <= tile.k).map(move |k| Tile { k, ..tile })
}

/// The tile with the least predicted time.
pub(super) fn tile(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> Tile {
    best(m, n, k, batch, caps).map_or(SMALLEST, |c| c.1)
}

/// The least predicted time of one step along k on the busiest core, in multiply-adds at the full rate, and its tile:
/// rounds of workgroups times the work of one over its share of the rate.
fn best(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> Option<(f64, Tile)> {
    let candidates = TILES.iter().filter_map(|c| {
        let fits = |t: &Tile| bytes(*t) <= caps.workgroup_bytes as usize && t.k <= k.next_multiple_of(8);
        let tile = depths(c.tile).find(fits)?;
        let tiles = m.div_ceil(tile.m) * n.div_ceil(tile.n) * batch;
        let cost = rounds(tiles, c.together) * (tile.m * tile.n) as f64 / c.share;
        (invocations(tile) <= caps.max_invocations as usize).then_some((cost, tile))
    });
    candidates.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Slices are multiples of the deepest stage.
pub(super) const SLICE_STEP: usize = 32;

/// The shortest slice: its sums are written and read once more, which many slices of little work do not pay for.
const LEAST_SLICE: usize = 128;

/// The most slices: one invocation adds up all of an element's.
const MOST_SLICES: usize = 64;

/// Bytes of all slices' sums. They stay in a large device's cache, and memory plans count them.
const MOST_SUMS: usize = 64 << 20;

/// What a second launch costs, in multiply-adds of one core: 2 µs at the full rate.
const LAUNCH: f64 = 3e5;

/// What a byte of sums costs, written or read, in multiply-adds of one core: memory at 3 TB/s.
const BYTE: f64 = 0.05;

/// How long slices of K should be, where few tiles leave cores idle for so long that adding slices up afterwards costs
/// less.
pub(super) fn slice(m: usize, n: usize, k: usize, caps: &DeviceCaps) -> Option<usize> {
    if caps.cpu {
        return None;
    }
    let whole = best(m, n, k, 1, caps)?.0 * k as f64;
    let most = (MOST_SUMS as u64).min(caps.max_binding_bytes) as usize;
    let sliced = (2..=MOST_SLICES.min(k / LEAST_SLICE)).filter_map(|slices| {
        let slice = k.div_ceil(slices).next_multiple_of(SLICE_STEP);
        let slices = k.div_ceil(slice);
        let sums = slices * m * n * 4;
        let step = best(m, n, slice, slices, caps)?.0;
        (slices > 1 && sums <= most).then_some((step * slice as f64 + LAUNCH + BYTE * 2.0 * sums as f64, slice))
    });
    let (time, slice) = sliced.min_by(|a, b| a.0.total_cmp(&b.0))?;
    // what is saved must be worth the memory
    (time < 0.85 * whole).then_some(slice)
}

/// Every tile, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = Tile> {
    let tiles = TILES.iter().flat_map(|c| depths(c.tile));
    tiles.chain([direct_tile(1, 64), direct_tile(8, 32), direct_tile(16, 128), SMALLEST])
}
