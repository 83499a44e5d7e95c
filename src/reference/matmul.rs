//! In: two values; out: their product in f64. Knows nothing of bias or epilogue.
//!
//! A block of the right operand is packed into panels of `NR` columns and a block of the left one into tiles of `MR`
//! rows, so that the innermost loop reads both in order and keeps an `MR` × `NR` block of the result in registers.

use super::Value;
use super::movement::offsets;
use super::parallel::{over_pieces, threads};
use crate::graph::{MatmulDims, Shape};

/// Rows and columns of the block of the result that lies in registers: 8 of the 16 vectors that any x86-64 has.
const MR: usize = 4;
const NR: usize = 4;
/// Inner size of a block: a panel (KC, NR) stays in the first-level cache.
const KC: usize = 256;
/// Most rows of a block: (MC, KC) stays in the second-level cache.
const MC: usize = 64;

/// A matrix anywhere in memory.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    data: &'a [f64],
    row: usize,
    col: usize,
}

impl<'a> Matrix<'a> {
    /// A dense matrix (rows, cols), or the transpose of a dense (cols, rows).
    fn new(data: &'a [f64], rows: usize, cols: usize, transposed: bool) -> Self {
        let (row, col) = if transposed { (1, rows) } else { (cols, 1) };
        Matrix { data, row, col }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.row + col * self.col]
    }
}

/// x (…, K) · weightᵀ, weight (N, K).
pub(super) fn linear(x: &Value, weight: &Value) -> Vec<f64> {
    let (m, n, k) = (x.shape.rows(), weight.shape.dims()[0], weight.shape.dims()[1]);
    let mut out = vec![0.0; m * n];
    let b = Matrix::new(&weight.data, k, n, true);
    product(Matrix::new(&x.data, m, k, false), b, [m, k, n], &mut out, threads(work(m, k, n)));
    out
}

/// dW (N, K) = dyᵀ · x and db (N) of a linear.
pub(super) fn linear_grad(x: &Value, dy: &Value) -> [Vec<f64>; 2] {
    let (m, n, k) = (x.shape.rows(), dy.shape.last(), x.shape.last());
    let mut dw = vec![0.0; n * k];
    let (a, b) = (Matrix::new(&dy.data, n, m, true), Matrix::new(&x.data, m, k, false));
    product(a, b, [n, m, k], &mut dw, threads(work(n, m, k)));
    let mut db = vec![0.0; n];
    for row in dy.data.chunks_exact(n.max(1)) {
        db.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
    }
    [dw, db]
}

/// A product over broadcast batch dimensions, whose sizes inference has found.
pub(super) fn matmul(a: &Value, transpose_a: bool, b: &Value, transpose_b: bool, dims: &MatmulDims) -> Vec<f64> {
    let MatmulDims { batch, m, k, n } = dims;
    let (mut m, k, n) = (*m, *k, *n);
    let mut starts = [batch_starts(a, batch, m * k), batch_starts(b, batch, k * n)];
    if b.shape.rank() == 2 && !transpose_a {
        // one right operand for all: the batch is but more rows
        m *= batch.elements();
        starts = [vec![0], vec![0]];
    }
    let mut out = vec![0.0; starts[0].len() * m * n];
    let one = |i: usize, out: &mut [f64], threads| {
        let a = Matrix::new(&a.data[starts[0][i]..], m, k, transpose_a);
        let b = Matrix::new(&b.data[starts[1][i]..], k, n, transpose_b);
        product(a, b, [m, k, n], out, threads);
    };
    let all = threads(work(m, k, n).saturating_mul(starts[0].len()));
    if starts[0].len() >= 2 * all {
        over_pieces(&mut out, m * n, all, |i, out| one(i, out, 1));
    } else {
        over_pieces(&mut out, m * n, 1, |i, out| one(i, out, threads(work(m, k, n))));
    }
    out
}

fn work(m: usize, k: usize, n: usize) -> usize {
    m.saturating_mul(k).saturating_mul(n).saturating_mul(2)
}

/// The first element of each matrix of a batch.
fn batch_starts(x: &Value, batch: &Shape, matrix: usize) -> Vec<usize> {
    let own = Shape::from(&x.shape.dims()[..x.shape.rank() - 2]);
    let strides = own.broadcast_strides(batch);
    offsets(batch.dims(), &strides).map(|o| o * matrix).collect()
}

/// out (M, N), zero before, = a (M, K) · b (K, N).
fn product(a: Matrix, b: Matrix, [m, k, n]: [usize; 3], out: &mut [f64], threads: usize) {
    let mc = m.div_ceil(threads).next_multiple_of(MR).min(MC);
    let mut panels = Vec::new();
    for k0 in (0..k).step_by(KC) {
        let kc = KC.min(k - k0);
        pack::<NR>(&mut panels, n, kc, |kk, j| b.at(k0 + kk, j));
        over_pieces(out, mc * n, threads, |block, out| {
            let (i0, rows) = (block * mc, out.len() / n);
            let mut tiles = Vec::new();
            pack::<MR>(&mut tiles, rows, kc, |kk, i| a.at(i0 + i, k0 + kk));
            for (p, panel) in panels.chunks_exact(kc * NR).enumerate() {
                for (t, tile) in tiles.chunks_exact(kc * MR).enumerate() {
                    let columns = p * NR..n.min((p + 1) * NR);
                    let sums = multiply(tile, panel);
                    for (i, sums) in (t * MR..rows.min((t + 1) * MR)).zip(&sums) {
                        let out = &mut out[i * n..][columns.clone()];
                        out.iter_mut().zip(sums).for_each(|(o, s)| *o += s);
                    }
                }
            }
        });
    }
}

/// Packs `count` lines of `kc` elements into groups of `W` lines, element k of all lines of a group side by side; the
/// last group is filled up with zeros.
fn pack<const W: usize>(to: &mut Vec<f64>, count: usize, kc: usize, at: impl Fn(usize, usize) -> f64) {
    to.clear();
    to.resize(count.div_ceil(W) * W * kc, 0.0);
    for (group, to) in to.chunks_exact_mut(kc * W).enumerate() {
        let first = group * W;
        let lines = W.min(count - first);
        for (kk, to) in to.chunks_exact_mut(W).enumerate() {
            for (line, to) in to[..lines].iter_mut().enumerate() {
                *to = at(kk, first + line);
            }
        }
    }
}

/// A packed tile times a packed panel.
fn multiply(tile: &[f64], panel: &[f64]) -> [[f64; NR]; MR] {
    let mut sums = [[0.0; NR]; MR];
    for (a, b) in tile.as_chunks::<MR>().0.iter().zip(panel.as_chunks::<NR>().0) {
        for i in 0..MR {
            for j in 0..NR {
                sums[i][j] += a[i] * b[j];
            }
        }
    }
    sums
}
