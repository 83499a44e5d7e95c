//! In: a slice to fill in pieces; out: the slice, filled by as many threads as pay. Knows only std.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Operations below which starting threads costs more than it saves.
const WORTH_THREADS: usize = 1_000_000;

/// The number of threads that a piece of work of so many operations deserves.
pub(super) fn threads(work: usize) -> usize {
    if work < WORTH_THREADS { 1 } else { thread::available_parallelism().map_or(1, usize::from) }
}

/// Calls `fill(i, piece)` once for each piece of `len` elements (the last may be shorter) on so many threads. A
/// thread that is done takes the next piece, so pieces may cost unequally.
pub(super) fn over_pieces(out: &mut [f64], len: usize, threads: usize, fill: impl Fn(usize, &mut [f64]) + Sync) {
    if out.is_empty() {
        return;
    }
    let threads = threads.min(out.len().div_ceil(len));
    let pieces = out.chunks_mut(len).enumerate();
    if threads <= 1 {
        return pieces.for_each(|(i, piece)| fill(i, piece));
    }
    let pieces = Mutex::new(pieces);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((i, piece)) = next else { break };
                    fill(i, piece);
                }
            });
        }
    });
}
