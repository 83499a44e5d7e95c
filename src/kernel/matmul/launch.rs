//! In: two matrices, or batches of them, as views, and an epilogue; out: launches over windows that bindings cover, with
//! how each operand is read. Knows no kernel's text.

use super::tile::{self, direct_tile, tile};
use super::units_tile::{self, Needs};
use super::{Columns, MatmulKey, Side};
use crate::caps::DeviceCaps;
use crate::graph::{Chain, DType};
use crate::kernel::split::furthest;
use crate::kernel::units::{Exponents, Units};
use crate::kernel::view::{coalesce, window};
use crate::kernel::{Estimate, KernelError, KernelKey, Launch, View};

/// That a product goes to matrix units.
#[derive(Clone, Copy, Debug)]
pub struct OnUnits<'a> {
    /// The units.
    pub units: Units,
    /// Of f32 operands: the exponents of A's rows and of B's columns.
    pub exponents: Option<[&'a Exponents; 2]>,
}

/// C = epilogue(A · B), and the sums of A's rows. Operands: A, B, the epilogue's further inputs, C, the sums, then on matrix
/// units the exponents of A and of B.
pub struct Matmul<'a> {
    /// Stored type of A and B.
    pub dtype: DType,
    /// Stored type of C and the sums.
    pub out: DType,
    /// (batch…, M, K).
    pub a: &'a View,
    /// (batch…, K, N), as many dimensions as A; stride 0 where it is stretched.
    pub b: &'a View,
    /// (batch…, M, N), or (slices, M, N) where K is cut; neighbouring columns contiguous.
    pub c: &'a View,
    /// The product is input 0.
    pub epilogue: &'a Chain,
    /// Type and view of the epilogue's further inputs, stretched to C's sizes.
    pub extras: &'a [(DType, View)],
    /// The further input that C overwrites.
    pub in_place: Option<usize>,
    /// Cuts the K of two matrices into slices of so many elements, each with a product of its own.
    pub slice: Option<usize>,
    /// Takes the sum of each of A's rows over K: C's dimensions but N, dense.
    pub sums: Option<&'a View>,
    /// Made by matrix units; in multiply-adds without, and where [`Matmul::takes_units`] says no.
    pub units: Option<OnUnits<'a>>,
}

/// One product after merging: strides as lists over (batch…, M), then those along K and N. A slice of K is an entry of
/// the batch.
#[derive(Clone)]
struct Problem {
    /// Batch sizes, then M.
    lead: Vec<usize>,
    /// Of a slice where K is cut.
    k: usize,
    /// K of the last slice where K is cut.
    tail: Option<usize>,
    n: usize,
    /// Of A, B, extras, C and, where they are wanted, the sums.
    operands: Vec<Strides>,
    /// Of the exponents of A and B, on units that scale them.
    exponents: Vec<Strides>,
}

#[derive(Clone)]
struct Strides {
    offset: usize,
    /// Along each of `lead`.
    lead: Vec<usize>,
    k: usize,
    n: usize,
    size: usize,
}

impl Problem {
    /// A number that 2ⁱ divides if it divides K of every slice.
    fn inner_bits(&self) -> usize {
        self.k | self.tail.unwrap_or(0)
    }

    /// All of K, slices taken together.
    fn inner(&self) -> usize {
        self.tail.map_or(self.k, |tail| (self.lead[0] - 1) * self.k + tail)
    }
}

impl Strides {
    /// Whether four neighbours are one vec4 wherever they are read: `contiguous` is the size along which they lie side
    /// by side, `other` the stride along the matrix's other dimension.
    fn fours(&self, contiguous: usize, other: usize) -> bool {
        self.whole(4, contiguous, other)
    }

    /// [`Strides::fours`] for so many neighbours.
    fn whole(&self, count: usize, contiguous: usize, other: usize) -> bool {
        let batch = &self.lead[..self.lead.len() - 1];
        [contiguous, other, self.offset].iter().chain(batch).all(|v| v.is_multiple_of(count))
    }

    /// The last of `lead`: between rows.
    fn row(&self) -> usize {
        self.lead[self.lead.len() - 1]
    }
}

impl Matmul<'_> {
    /// The launches: one, or several where a window would exceed the device's binding limit. `KernelError::Layout`
    /// names an operand that must be made dense first.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let problem = self.problem();
        let mut launches = Vec::new();
        self.split(&problem, caps, &mut launches)?;
        Ok(launches)
    }

    /// How many rows one matrix of a (…, M, K) · b (…, K, N) = c has: those of all batch entries where b has no batch and
    /// a, c and what the epilogue reads lie as if there were none.
    pub fn rows<'a>(a: &'a View, b: &View, c: &'a View, extras: impl Iterator<Item = &'a View>) -> usize {
        let last = c.dims.len() - 1;
        if b.dims.len() > 2 {
            return c.dims[last - 1];
        }
        let lists: Vec<&[usize]> = [a, c].into_iter().chain(extras).map(|view| &view.strides[..last]).collect();
        coalesce(&c.dims[..last], &lists).0.last().copied().unwrap_or(1)
    }

    /// Whether matrix units make a product of (batch, M, K) and (batch, K, N), stored in this type, on a device: not where
    /// it is so small that most of a matrix would be empty, or no tile fits.
    pub fn takes_units([m, n, k]: [usize; 3], dtype: DType, units: Units, caps: &DeviceCaps) -> bool {
        // the sides that take the most memory
        let sides = [Side { along_k: true, vec: false }; 2];
        let needs = Needs { sides, scaled: dtype == DType::F32 };
        units_tile::tile([m, n, k, 1], needs, units, caps).is_some()
    }

    fn problem(&self) -> Problem {
        let rank = self.c.dims.len();
        let (a, b) = (self.a, self.b);
        let (a_k, b_k, b_n) = (a.strides[a.dims.len() - 1], b.strides[b.dims.len() - 2], b.strides[b.dims.len() - 1]);
        let (k, n) = (a.dims[a.dims.len() - 1], self.c.dims[rank - 1]);
        let mut a_lead = a.strides[..a.dims.len() - 1].to_vec();
        let mut b_lead = b.strides[..b.dims.len() - 2].to_vec();
        b_lead.push(0);
        if let Some(slice) = self.slice {
            a_lead.insert(0, slice * a_k);
            b_lead.insert(0, slice * b_k);
        }
        let mut lists: Vec<&[usize]> = vec![&a_lead, &b_lead];
        lists.extend(self.extras.iter().map(|(_, v)| &v.strides[..rank - 1]));
        lists.push(&self.c.strides[..rank - 1]);
        lists.extend(self.sums.map(|s| s.strides.as_slice()));
        // of A's rows, whatever the column, and of B's columns, whatever the row
        let exponents = self.units.and_then(|u| u.exponents);
        let mut exponent_lead = Vec::new();
        for (i, e) in exponents.iter().flatten().enumerate() {
            let mut lead = e.view.strides.clone();
            if i == 1 {
                lead.pop();
                lead.push(0);
            }
            lead.splice(0..0, self.slice.map(|_| 0));
            exponent_lead.push(lead);
        }
        lists.extend(exponent_lead.iter().map(Vec::as_slice));
        // slices stay the dimension that they are, whatever is stretched over them
        let slices = usize::from(self.slice.is_some());
        let others: Vec<&[usize]> = lists.iter().map(|list| &list[slices..]).collect();
        let (mut lead, mut strides) = coalesce(&self.c.dims[slices..rank - 1], &others);
        if strides[1].last() != Some(&0) {
            // a single row was merged away: the last dimension left is a batch
            lead.push(1);
            strides.iter_mut().for_each(|s| s.push(0));
        }
        lead.splice(0..0, self.c.dims[..slices].iter().copied());
        strides.iter_mut().zip(&lists).for_each(|(s, list)| drop(s.splice(0..0, list[..slices].iter().copied())));
        let along = |i: usize| -> (usize, usize, usize, usize) {
            let e = self.extras.len();
            match (i, self.sums) {
                (0, _) => (a.offset, a_k, 0, self.dtype.size()),
                (1, _) => (b.offset, b_k, b_n, self.dtype.size()),
                (i, _) if i < 2 + e => {
                    let (dtype, view) = &self.extras[i - 2];
                    (view.offset, 0, view.strides[rank - 1], dtype.size())
                }
                (i, Some(sums)) if i > 2 + e => (sums.offset, 0, 0, self.out.size()),
                _ => (self.c.offset, 0, self.c.strides[rank - 1], self.out.size()),
            }
        };
        let of_exponents = strides.split_off(strides.len() - exponent_lead.len());
        let operands = strides.into_iter().enumerate().map(|(i, lead)| {
            let (offset, k, n, size) = along(i);
            Strides { offset, lead, k, n, size }
        });
        let operands = operands.collect();
        let of_exponents = of_exponents.into_iter().zip(exponents.iter().flatten()).enumerate();
        let exponents = of_exponents.map(|(i, (lead, e))| {
            let n = if i == 1 { e.view.strides.last().copied().unwrap_or(0) } else { 0 };
            Strides { offset: e.view.offset, lead, k: 0, n, size: DType::U32.size() }
        });
        let exponents = exponents.collect();
        let tail = self.slice.map(|slice| k - (self.c.dims[0] - 1) * slice);
        Problem { lead, k: self.slice.unwrap_or(k), tail, n, operands, exponents }
    }

    fn split(&self, q: &Problem, caps: &DeviceCaps, launches: &mut Vec<Launch<usize>>) -> Result<(), KernelError> {
        let error = match self.launch(q, caps) {
            Ok(launch) => {
                launches.push(launch);
                return Ok(());
            }
            Err(error) => error,
        };
        let KernelError::Binding { operand, .. } = error else { return Err(error) };
        // exponents, which are no operands here, are smaller than what they are of
        let Some(o) = q.operands.get(operand) else { return Err(error) };
        // batch entries and rows, and B's columns where those lie apart
        let lead = (0..q.lead.len()).map(|d| (q.lead[d], o.lead[d], Some(d)));
        let columns = (operand == 1 && o.n != 1 && q.n > 4).then_some((q.n, o.n, None));
        let Some((size, dim)) = furthest(lead.chain(columns)) else { return Err(error) };
        let half = if size >= 8 { size / 2 / 4 * 4 } else { size / 2 };
        for (start, len) in [(0, half), (half, size - half)] {
            let mut part = q.clone();
            match dim {
                Some(d) => part.lead[d] = len,
                None => part.n = len,
            }
            if dim.is_none() && start > 0 {
                // the rows are summed once
                part.operands.truncate(3 + self.extras.len());
            }
            if dim == Some(0) && start == 0 {
                part.tail = q.tail.map(|_| q.k);
            }
            for o in part.operands.iter_mut().chain(&mut part.exponents) {
                o.offset += start * dim.map_or(o.n, |d| o.lead[d]);
            }
            self.split(&part, caps, launches)?;
        }
        Ok(())
    }

    /// How A and B are read.
    fn sides(&self, q: &Problem, sums: bool, caps: &DeviceCaps) -> Result<(Side, Side), KernelError> {
        let side = |operand: usize, outer: usize, stride: usize, outer_first: bool| {
            let o = &q.operands[operand];
            let along_k = Side { along_k: true, vec: o.k == 1 && o.fours(q.inner_bits(), stride) };
            let along_outer = Side { along_k: false, vec: stride == 1 && o.fours(outer, o.k) };
            match (o.k == 1 || q.k == 1, stride == 1 || outer == 1) {
                (_, true) if outer_first => Ok(along_outer),
                (true, _) => Ok(along_k),
                (_, true) => Ok(along_outer),
                _ => Err(KernelError::Layout { operand }),
            }
        };
        // rows are summed as they are staged, four side by side
        let a = side(0, q.lead[q.lead.len() - 1], q.operands[0].row(), sums)?;
        if sums && a.along_k {
            return Err(KernelError::Layout { operand: 0 });
        }
        Ok((a, side(1, q.n, q.operands[1].n, caps.cpu)?))
    }

    /// How the epilogue's further inputs are read.
    fn columns(&self, q: &Problem) -> Result<Vec<(DType, Columns)>, KernelError> {
        let one = |(i, (dtype, _)): (usize, &(DType, View))| {
            let o = &q.operands[2 + i];
            let columns = match o.n {
                0 => Columns::Splat,
                1 if o.fours(q.n, o.row()) => Columns::Vec,
                1 => Columns::Four,
                _ if q.n == 1 => Columns::Splat,
                _ => return Err(KernelError::Layout { operand: 2 + i }),
            };
            Ok((*dtype, columns))
        };
        self.extras.iter().enumerate().map(one).collect()
    }

    fn launch(&self, q: &Problem, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        let rows = q.lead.len() - 1;
        let (m, batch) = (q.lead[rows], q.lead[..rows].iter().product::<usize>());
        let c_at = 2 + self.extras.len();
        let (a, b, c) = (&q.operands[0], &q.operands[1], &q.operands[c_at]);
        let sums = q.operands.len() > c_at + 1;
        let (a_side, b_side) = self.sides(q, sums, caps)?;
        let extras = self.columns(q)?;
        let out_vec = c.n == 1 && c.fours(q.n, c.row());
        let needs = Needs { sides: [a_side, b_side], scaled: self.dtype == DType::F32 };
        let on_units =
            self.units.and_then(|u| Some((u, units_tile::tile([m, q.n, q.k, batch], needs, u.units, caps)?)));
        let tile = match on_units {
            Some((_, tile)) => tile,
            None if caps.cpu => direct_tile(m, q.n, q.k, batch),
            None => tile(m, q.n, q.k, batch, a_side.along_k, caps),
        };
        let (tiles_m, tiles_n) = (m.div_ceil(tile.m), q.n.div_ceil(tile.n));
        let (mut operands, mut firsts) = (Vec::new(), Vec::new());
        for (i, o) in q.operands.iter().enumerate() {
            let reach = o.lead.iter().zip(&q.lead).map(|(s, d)| s * (d - 1)).sum::<usize>();
            let end = o.offset + reach + o.k * (q.tail.unwrap_or(q.k) - 1) + o.n * (q.n - 1) + 1;
            let what = match i {
                0 => "the left operand".to_owned(),
                1 => "the right operand".to_owned(),
                i if i < c_at => format!("the epilogue's input {}", i - 1),
                i if i > c_at => "the sums".to_owned(),
                _ => "the result".to_owned(),
            };
            let (operand, first) = window("matmul", i, &what, o.offset, end, o.size, caps)?;
            if self.in_place.is_none_or(|p| p + 2 != i) {
                operands.push(operand);
            }
            firsts.push(first);
        }
        let of_exponents = on_units.and_then(|(u, _)| u.exponents);
        let mut exponent_params = Vec::new();
        for (i, (e, o)) in of_exponents.iter().flatten().zip(&q.exponents).enumerate() {
            let reach = o.lead.iter().zip(&q.lead).map(|(s, d)| s * (d - 1)).sum::<usize>();
            let end = o.offset + reach + o.n * (q.n - 1) + (e.parts - 1) * e.part + 1;
            let what = format!("the exponents of the {} operand", ["left", "right"][i]);
            let at = c_at + 1 + usize::from(self.sums.is_some()) + i;
            let (operand, first) = window("matmul", at, &what, o.offset, end, o.size, caps)?;
            // in front of C, which is the last to be bound where it overwrites one
            operands.insert(c_at - usize::from(self.in_place.is_some()) + i, operand);
            exponent_params.extend([first, e.parts, e.part]);
            exponent_params.extend_from_slice(&o.lead[..rows]);
        }
        let m_or_k = |side: Side, outer: usize| if side.along_k { q.inner_bits() } else { outer };
        let eights = on_units.is_some()
            && self.dtype == DType::F16
            && (a_side.vec && b_side.vec)
            && a.whole(8, m_or_k(a_side, m), if a_side.along_k { a.row() } else { a.k })
            && b.whole(8, m_or_k(b_side, q.n), if b_side.along_k { b.n } else { b.k });
        let unit = |i: usize| {
            if eights && i < 2 {
                return 8;
            }
            let vec = match i {
                0 => a_side.vec,
                1 => b_side.vec,
                i if i < c_at => extras[i - 2].1 == Columns::Vec,
                i => i == c_at && out_vec,
            };
            if vec { 4 } else { 1 }
        };
        let groups = (tiles_m * tiles_n * batch) as u64;
        let a_stride = if a_side.along_k { a.row() } else { a.k };
        let b_stride = if b_side.along_k { b.n } else { b.k };
        let mut params: Vec<usize> = vec![groups as usize, m, q.n, q.k, 0, tiles_m, tiles_n];
        params.extend([firsts[0] / unit(0), a_stride / unit(0), firsts[1] / unit(1), b_stride / unit(1)]);
        params.extend([firsts[c_at] / unit(c_at), c.row() / unit(c_at)]);
        params.extend(q.tail);
        params.extend(firsts.get(c_at + 1));
        for d in 0..rows {
            params.push(q.lead[d]);
            let ends = [0, 1].into_iter().chain(c_at..q.operands.len());
            params.extend(ends.map(|i| q.operands[i].lead[d] / unit(i)));
        }
        for (i, (o, first)) in q.operands.iter().zip(&firsts).enumerate().take(c_at).skip(2) {
            params.extend([first / unit(i), o.row() / unit(i)]);
            params.extend((0..rows).map(|d| o.lead[d] / unit(i)));
        }
        params.extend(exponent_params);
        let key = MatmulKey {
            dtype: self.dtype,
            out: self.out,
            a: a_side,
            b: b_side,
            out_vec,
            tile,
            full: tile::is_full(tile, m, q.n, q.inner_bits()),
            batch_rank: rows,
            epilogue: self.epilogue.clone(),
            by_row: (2..c_at).map(|i| q.operands[i].row() > 0).collect(),
            extras,
            in_place: self.in_place,
            sliced: q.tail.is_some(),
            sums,
            units: on_units.map(|(u, _)| u.units),
            eights,
        };
        let estimate = self.estimate(q);
        let params = params.into_iter().map(|p| p as u32).collect();
        Ok(Launch { key: KernelKey::Matmul(key), params, groups, operands, estimate })
    }

    fn estimate(&self, q: &Problem) -> Estimate {
        let (k, n) = (q.inner() as f64, q.n as f64);
        let batches: f64 = q.lead.iter().product::<usize>() as f64;
        // a slice has rows of its own in C, but not in A and B
        let slices = if q.tail.is_some() { q.lead[0] as f64 } else { 1.0 };
        let distinct = |o: &Strides| -> f64 {
            let lead: usize = o.lead.iter().zip(&q.lead).filter(|(s, _)| **s > 0).map(|(_, d)| *d).product();
            (lead * o.size) as f64
        };
        let bytes = q.operands.iter().enumerate().map(|(i, o)| match i {
            0 => distinct(o) / slices * k,
            1 => distinct(o) / slices * k * n,
            _ => distinct(o) * if o.n > 0 || i == 2 + self.extras.len() { n } else { 1.0 },
        });
        let epilogue = self.epilogue.steps.len() as f64;
        Estimate { flops: batches * n * (2.0 * k / slices + epilogue), bytes: bytes.sum() }
    }
}
