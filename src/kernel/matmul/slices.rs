//! In: sizes of a product and how long it would take in one piece or several; out: how long slices of K should be. Knows
//! no operand and no tile.

use crate::caps::DeviceCaps;

/// Slices are multiples of the deepest stage.
pub(super) const STEP: usize = 32;

/// The shortest slice: its sums are written and read once more, which many slices of little work do not pay for.
const LEAST: usize = 128;

/// The most slices: one invocation adds up all of an element's.
const MOST: usize = 64;

/// Bytes of all slices' sums. They stay in a large device's cache, and memory plans count them.
const MOST_SUMS: usize = 64 << 20;

/// What a second launch costs, in multiply-adds in f32 of one core: 2 µs at the full rate.
const LAUNCH: f64 = 3e5;

/// What a byte of sums costs, written or read, in multiply-adds in f32 of one core: memory at 3 TB/s.
const BYTE: f64 = 0.05;

/// How long slices of K should be, where few tiles leave cores idle for so long that adding slices up afterwards costs
/// less. `time` is that of products of so long a K, and how many of them, in multiply-adds in f32 of one core.
pub(super) fn best(
    [m, n, k]: [usize; 3],
    time: impl Fn(usize, usize) -> Option<f64>,
    caps: &DeviceCaps,
) -> Option<usize> {
    let whole = time(k, 1)?;
    let (sliced, slice) = predicted([m, n, k], time, caps).min_by(|a, b| a.0.total_cmp(&b.0))?;
    // what is saved must be worth the memory
    (sliced < 0.85 * whole).then_some(slice)
}

/// The predicted time of slices with their sums, and their length.
fn predicted(
    [m, n, k]: [usize; 3],
    time: impl Fn(usize, usize) -> Option<f64>,
    caps: &DeviceCaps,
) -> impl Iterator<Item = (f64, usize)> {
    let most = (MOST_SUMS as u64).min(caps.max_binding_bytes) as usize;
    (2..=MOST.min(k / LEAST)).filter_map(move |slices| {
        let slice = k.div_ceil(slices).next_multiple_of(STEP);
        let slices = k.div_ceil(slice);
        let sums = slices * m * n * 4;
        let time = time(slice, slices)?;
        (slices > 1 && sums <= most).then_some((time + LAUNCH + BYTE * 2.0 * sums as f64, slice))
    })
}

/// Lengths of slices, each once, that of the least predicted time first; 0 is K as a whole.
pub(super) fn lengths(
    sizes: [usize; 3],
    time: impl Fn(usize, usize) -> Option<f64>,
    caps: &DeviceCaps,
) -> Vec<usize> {
    let whole = time(sizes[2], 1).map(|time| (time, 0));
    let mut all: Vec<(f64, usize)> = whole.into_iter().chain(predicted(sizes, time, caps)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lengths: Vec<usize> = Vec::new();
    for (_, slice) in all {
        if !lengths.contains(&slice) {
            lengths.push(slice);
        }
    }
    lengths
}
