//! In: sizes of a product and a device's limits; out: the tile of a workgroup. Knows no operand.

use super::Tile;
use crate::caps::DeviceCaps;

/// Multiply-adds of a product from which on a CPU's largest share of an invocation gains more than it takes to compile.
const MUCH: usize = 1 << 24;

/// Rows are uniform over a workgroup of eight invocations; fewer where M or N are small. A load costs such a CPU far
/// more than a multiply-add, so an invocation's share is as large as its registers and its stack in cache allow. In a
/// product of little work it is half of that: a quarter slower at most, and Mesa compiles it three times as fast, for what
/// it keeps alive.
pub(super) fn direct_tile(m: usize, n: usize, k: usize, batch: usize) -> Tile {
    let tm = match m {
        1 => 1,
        2..=4 => 4,
        5..=8 => 8,
        _ => 16,
    };
    let tn = match n {
        ..=32 => 4,
        33..=64 => 8,
        _ if m * n * k * batch < MUCH => 8,
        _ => 16,
    };
    Tile { m: tm, n: 8 * tn, k: 0, tm, tn }
}

/// Sizes that a workgroup may have.
struct Candidate {
    tile: Tile,
    /// The share of the best tile's rate that it reaches where enough of them are there, as measured on an H200.
    share: f64,
    /// Workgroups on a core that hide each other's waits: fewer are slower.
    together: usize,
}

const fn candidate([m, n, k]: [usize; 3], [tm, tn]: [usize; 2], share: f64, together: usize) -> Candidate {
    Candidate { tile: Tile { m, n, k, tm, tn }, share, together }
}

const TILES: [Candidate; 9] = [
    candidate([128, 128, 16], [8, 8], 1.0, 1),
    candidate([128, 96, 16], [8, 12], 0.92, 2),
    candidate([128, 96, 16], [4, 12], 0.92, 1),
    candidate([128, 64, 16], [8, 8], 0.95, 2),
    candidate([64, 96, 32], [4, 12], 0.93, 2),
    candidate([64, 64, 16], [4, 8], 0.87, 2),
    candidate([32, 64, 32], [4, 4], 0.7, 3),
    candidate([32, 32, 32], [4, 4], 0.65, 6),
    candidate([16, 64, 32], [4, 4], 0.57, 6),
];

/// For limits that no other tile fits.
const SMALLEST: Tile = Tile { m: 16, n: 16, k: 8, tm: 4, tn: 4 };

/// Cores of the device that the choice is made for: the adapter does not say how many it has, and a large one loses most
/// by a wrong choice.
pub(super) const CORES: usize = 132;

/// The share of its rate that a tile keeps where bounds are checked.
const GUARDED: f64 = 0.75;

/// How long a core takes for its tiles, in units of one tile at the full rate: as many at once as hide each other's
/// waits, then the rest, which hide less.
pub(super) fn rounds(tiles: usize, together: usize) -> f64 {
    let rest = tiles % together;
    let hidden = (rest as f64 / together as f64).sqrt();
    (tiles - rest) as f64 + if rest > 0 { rest as f64 / hidden } else { 0.0 }
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

/// The deepest stage of a tile of more than 64 × 64: where A lies along its rows, as in a weight's gradient, deeper ones
/// take the registers of other workgroups (25 TFLOP/s instead of 41).
const DEEPEST_ALONG_ROWS: usize = 16;

/// The tile with the least predicted time.
pub(super) fn tile(m: usize, n: usize, k: usize, batch: usize, along_k: bool, caps: &DeviceCaps) -> Tile {
    best(m, n, k, batch, along_k, caps).map_or(SMALLEST, |c| c.1)
}

/// Whether sizes are whole multiples of a tile; `k_bits` is a number that 2ⁱ divides if it divides every K.
pub(super) fn is_full(tile: Tile, m: usize, n: usize, k_bits: usize) -> bool {
    (tile.k == 0 || k_bits.is_multiple_of(tile.k)) && m.is_multiple_of(tile.m) && n.is_multiple_of(tile.n)
}

/// The least predicted time of one step along k on the busiest core, and its tile.
fn best(m: usize, n: usize, k: usize, batch: usize, along_k: bool, caps: &DeviceCaps) -> Option<(f64, Tile)> {
    let deep = |t: &Tile| !along_k && t.k > DEEPEST_ALONG_ROWS && t.m * t.n > 64 * 64;
    predicted(m, n, k, batch, caps).filter(|c| !deep(&c.1)).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// The predicted time of one step along k on the busiest core, in multiply-adds at the full rate, of every tile that the
/// device can run: rounds of workgroups times the work of one over its share of the rate. The preferred depth of those
/// that differ in it alone comes first.
fn predicted(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> impl Iterator<Item = (f64, Tile)> {
    let (memory, most) = (caps.workgroup_bytes as usize, caps.max_invocations as usize);
    TILES.iter().flat_map(move |c| {
        let tiles = (m.div_ceil(c.tile.m) * n.div_ceil(c.tile.n) * batch).div_ceil(CORES);
        let guarded = if is_full(c.tile, m, n, k) { 1.0 } else { GUARDED };
        let cost = rounds(tiles, c.together) * (c.tile.m * c.tile.n) as f64 / (c.share * guarded);
        let fits = move |t: &Tile| bytes(*t) <= memory && invocations(*t) <= most && t.k <= k.next_multiple_of(8);
        depths(c.tile).filter(fits).map(move |tile| (cost, tile))
    })
}

/// The tiles that the device can run, that of the least predicted time first.
pub(super) fn candidates(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> Vec<Tile> {
    if caps.cpu {
        return direct_candidates(m, n, k, batch);
    }
    let mut all: Vec<(usize, f64, Tile)> = Vec::new();
    for (cost, tile) in predicted(m, n, k, batch, caps) {
        // all tiles at their preferred depth before any at another
        let depth = all.iter().filter(|(.., t)| Tile { k: 0, ..*t } == Tile { k: 0, ..tile }).count();
        all.push((depth, cost, tile));
    }
    all.sort_by(|a, b| (a.0.cmp(&b.0)).then(a.1.total_cmp(&b.1)));
    if all.is_empty() { vec![SMALLEST] } else { all.into_iter().map(|(.., tile)| tile).collect() }
}

/// The direct kernel's tiles, the preferred first; rows beyond M would repeat the last one.
fn direct_candidates(m: usize, n: usize, k: usize, batch: usize) -> Vec<Tile> {
    let own = direct_tile(m, n, k, batch);
    let shares = [16, 8, 4].into_iter().flat_map(|tm| [16, 8, 4].map(|tn| (tm, tn)));
    let others = shares.filter(|&(tm, tn)| tm <= own.tm && 8 * tn < 2 * n.max(32) && (tm, tn) != (own.tm, own.tn));
    let tile = |(tm, tn)| Tile { m: tm, n: 8 * tn, k: 0, tm, tn };
    std::iter::once(own).chain(others.map(tile)).collect()
}

/// The predicted time of a product in multiply-adds of one core at the full rate.
pub(super) fn time(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> Option<f64> {
    best(m, n, k, batch, false, caps).map(|(step, _)| step * k as f64)
}

/// Every tile, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = Tile> {
    let tiles = TILES.iter().flat_map(|c| depths(c.tile));
    let direct = [(16, 128), (1, 64), (8, 32)].into_iter().flat_map(|(m, n)| direct_candidates(m, n, MUCH, 1));
    let mut all: Vec<Tile> = tiles.chain(direct).chain([SMALLEST]).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|tile| seen.insert(*tile));
    all.into_iter()
}
