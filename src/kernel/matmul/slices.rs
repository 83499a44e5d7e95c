//! In: two matrices and the units that multiply them; out: how long slices of K should be, by what products of each
//! length are predicted to take. Knows no key.

use super::units_tile::{self, Needs};
use super::{Matmul, Side, tile};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use crate::kernel::units::Units;
use crate::kernel::{Config, View, choices};
use std::iter;

/// Slices are multiples of the deepest stage.
const STEP: usize = 32;

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

/// What slices must take of the whole product's time at most: what they save must be worth the memory, and is less than by
/// itself where another launch runs beside the product, on the cores that its tiles leave idle.
pub(in crate::kernel) const SLICES_WORTH: f64 = 0.85;

impl Matmul<'_> {
    /// How long slices of K should be where a (M, K) · (K, N) is best cut: no binding covers all of an operand whose
    /// rows follow each other along K, or the tiles are too few for the device's cores.
    pub fn slice(a: &View, b: &View, dtype: DType, units: Option<Units>, caps: &DeviceCaps) -> Option<usize> {
        let sizes = [a.dims[0], b.dims[1], a.dims[1]];
        let best = if caps.cpu { None } else { best(sizes, time(a, b, dtype, units, caps), caps) };
        match longest_slice(a, b, dtype, caps) {
            Some(most) => Some(best.map_or(most, |best| best.min(most))),
            None => best,
        }
    }

    /// What [`Matmul::slice`] decides, for a table of choices: `sums` says whether A's rows are summed too.
    pub fn slice_problem(a: &View, b: &View, dtype: DType, units: Option<Units>, sums: bool) -> choices::Problem {
        let (m, k, n) = (a.dims[0], a.dims[1], b.dims[1]);
        let along = |k_stride: usize, outer| if k_stride == 1 { "k" } else { outer };
        let (a, b) = (along(a.strides[1], "m"), along(b.strides[0], "n"));
        let units = units.map(Units::words).unwrap_or_default();
        choices::Problem(format!("slices {dtype} {m}x{n}x{k} a:{a} b:{b}{}{units}", if sums { " sums" } else { "" }))
    }

    /// The lengths of slices that a device can run, [`Matmul::slice`]'s first, then those that the model finds good.
    pub fn slices(a: &View, b: &View, dtype: DType, units: Option<Units>, caps: &DeviceCaps) -> Vec<Config> {
        let sizes = [a.dims[0], b.dims[1], a.dims[1]];
        let most = longest_slice(a, b, dtype, caps);
        let fits = |slice: &usize| most.is_none_or(|most| (1..=most).contains(slice));
        let own = Matmul::slice(a, b, dtype, units, caps).unwrap_or(0);
        let all = if caps.cpu { Vec::new() } else { lengths(sizes, time(a, b, dtype, units, caps), caps) };
        let others = all.into_iter().filter(|slice| fits(slice) && *slice != own);
        iter::once(own).chain(others).map(Config::Slice).collect()
    }
}

/// The longest slice of K whose windows of A and B a binding covers; `None` where it covers all of both.
fn longest_slice(a: &View, b: &View, dtype: DType, caps: &DeviceCaps) -> Option<usize> {
    let (m, k, n) = (a.dims[0], a.dims[1], b.dims[1]);
    // a window starts at an aligned offset and is rounded up to 16 bytes
    let room = caps.max_binding_bytes.saturating_sub(caps.storage_align + 16) as usize / dtype.size();
    let most = |outer: usize, stride: usize, along_k: usize| {
        if along_k <= stride { k } else { room.saturating_sub((outer - 1) * stride + 1) / along_k + 1 }
    };
    let most = most(m, a.strides[0], a.strides[1]).min(most(n, b.strides[1], b.strides[0]));
    let whole = if most < STEP { most } else { most / STEP * STEP };
    (most < k).then_some(whole)
}

/// The predicted time of (M, k) · (k, N), so many of them at once, in multiply-adds in f32 of one core at the full rate.
fn time(
    a: &View,
    b: &View,
    dtype: DType,
    units: Option<Units>,
    caps: &DeviceCaps,
) -> impl Fn(usize, usize) -> Option<f64> {
    let (m, n) = (a.dims[0], b.dims[1]);
    let sides = [a.strides[1], b.strides[0]].map(|along_k| Side { along_k: along_k == 1, vec: true });
    let needs = Needs { sides, scaled: dtype == DType::F32 };
    move |k, batch| match units {
        Some(units) => units_tile::time([m, n, k, batch], needs, units, caps),
        None => tile::time(m, n, k, batch, caps),
    }
}

/// How long slices of K should be, where few tiles leave cores idle for so long that adding slices up afterwards costs
/// less. `time` is that of products of so long a K, and how many of them, in multiply-adds in f32 of one core.
fn best([m, n, k]: [usize; 3], time: impl Fn(usize, usize) -> Option<f64>, caps: &DeviceCaps) -> Option<usize> {
    let whole = time(k, 1)?;
    let (sliced, slice) = predicted([m, n, k], time, caps).min_by(|a, b| a.0.total_cmp(&b.0))?;
    (sliced < SLICES_WORTH * whole).then_some(slice)
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
fn lengths(sizes: [usize; 3], time: impl Fn(usize, usize) -> Option<f64>, caps: &DeviceCaps) -> Vec<usize> {
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
