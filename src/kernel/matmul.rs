//! In: two matrices, or batches of them, as views, and an epilogue; out: launches of `matmul.wgsl` or, on a CPU that
//! acts as a GPU, `matmul_direct.wgsl`. Knows no other kernel.

use super::chain_wgsl::{Printer, is_condition, name};
use super::template::render;
use super::view::{coalesce, window};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{Chain, DType};
use minijinja::{Value, context};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    /// Neighbours along k are contiguous; else neighbours along the outer dimension (m of A, n of B).
    pub along_k: bool,
    /// It is bound as an array of vec4.
    pub vec: bool,
}

/// How an epilogue's operand is read at four neighbouring columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Columns {
    /// One element serves all columns.
    Splat,
    /// One vec4.
    Vec,
    /// Four elements.
    Four,
}

/// Sizes of a workgroup's tile and of an invocation's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of a tile.
    pub m: usize,
    /// Columns of a tile.
    pub n: usize,
    /// Depth of a stage in workgroup memory; 0 is the direct kernel.
    pub k: usize,
    /// Rows of an invocation.
    pub tm: usize,
    /// Columns of an invocation.
    pub tn: usize,
}

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatmulKey {
    /// Stored type of A and B.
    pub dtype: DType,
    /// Stored type of C.
    pub out: DType,
    /// The left operand.
    pub a: Side,
    /// The right operand.
    pub b: Side,
    /// C is bound as an array of vec4.
    pub out_vec: bool,
    /// The tile.
    pub tile: Tile,
    /// M, N and K are whole multiples of the tile: no bounds are checked.
    pub full: bool,
    /// Number of batch dimensions after merging.
    pub batch_rank: usize,
    /// What is done with the product, its input 0.
    pub epilogue: Chain,
    /// Type and access of the epilogue's further inputs.
    pub extras: Vec<(DType, Columns)>,
    /// The further input that C overwrites.
    pub in_place: Option<usize>,
}

impl MatmulKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        if self.tile.k == 0 { "matmul_direct" } else { "matmul" }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let stored = |d: DType, vec: bool| super::chain_wgsl::vector(wgsl_type(d), if vec { 4 } else { 1 });
        let side = |name: &str, s: Side| context! { name, along_k => s.along_k, vec => s.vec, storage => stored(self.dtype, s.vec) };
        let printer = Printer { compute: DType::F32, width: 4, zero: "p.zero" };
        let extras: Vec<Value> = (0..self.extras.len()).map(|i| self.extra(i)).collect();
        let t = self.tile;
        let all = [self.dtype, self.out].into_iter().chain(self.extras.iter().map(|e| e.0));
        render(
            self.name(),
            params,
            context! {
                f16 => all.into_iter().any(|d| d == DType::F16) || self.epilogue.rounds_f16(),
                a => side("a", self.a), b => side("b", self.b), extras, batch_rank => self.batch_rank,
                guarded => !self.full, out_binding => self.bindings().len(), T => "vec4<f32>",
                out_storage => stored(self.out, self.out_vec), out_scalar => wgsl_type(self.out), out_vec => self.out_vec,
                steps => printer.steps(&self.epilogue), result => name(self.epilogue.result()),
                bm => t.m, bn => t.n, bk => t.k, tm => t.tm, tn => t.tn, threads => self.workgroup_size(),
            },
        )
    }

    /// The epilogue's input `i + 1` as the template sees it.
    fn extra(&self, i: usize) -> Value {
        let (dtype, columns) = self.extras[i];
        let index = i + 1;
        let in_place = self.in_place == Some(i);
        let array = if in_place { "c".to_owned() } else { format!("e{index}") };
        let condition = is_condition(&self.epilogue, index);
        let (scalar, convert) = if condition { ("u32", "u32") } else { (wgsl_type(dtype), "f32") };
        let value = match columns {
            Columns::Splat => format!("vec4<{convert}>({convert}({array}[at{index}]))"),
            Columns::Vec => format!("vec4<{convert}>({array}[at{index} + col / 4u])"),
            Columns::Four => {
                let at = |j: usize| format!("{convert}({array}[at{index} + min(col + {j}u, p.n - 1u)])");
                format!("vec4<{convert}>({}, {}, {}, {})", at(0), at(1), at(2), at(3))
            }
        };
        let load = if condition { format!("({value} != vec4<u32>(0u))") } else { value };
        let storage = super::chain_wgsl::vector(scalar, if columns == Columns::Vec { 4 } else { 1 });
        let binding = 3 + (0..i).filter(|j| self.in_place != Some(*j)).count();
        context! { index, in_place, binding, storage, load }
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 2 + self.extras.len() - usize::from(self.in_place.is_some())];
        all.push(Access::ReadWrite);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let fixed = "groups m n k zero tiles_m tiles_n a_offset a_stride b_offset b_stride c_offset c_stride";
        let mut names: Vec<String> = fixed.split(' ').map(String::from).collect();
        for d in 0..self.batch_rank {
            names.extend(["batch", "a_batch", "b_batch", "c_batch"].map(|n| format!("{n}{d}")));
        }
        for i in 1..=self.extras.len() {
            names.extend([format!("e{i}_offset"), format!("e{i}_row")]);
            names.extend((0..self.batch_rank).map(|d| format!("e{i}_batch{d}")));
        }
        names
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        stage_bytes(self.tile.m, self.tile.n, self.tile.k)
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        let t = self.tile;
        if t.k == 0 { (t.n / t.tn) as u32 } else { (t.m / t.tm * (t.n / t.tn)) as u32 }
    }
}

/// C = epilogue(A · B). Operands: A, B, the epilogue's further inputs, C.
pub struct Matmul<'a> {
    /// Stored type of A and B.
    pub dtype: DType,
    /// Stored type of C.
    pub out: DType,
    /// (batch…, M, K).
    pub a: &'a View,
    /// (batch…, K, N), as many dimensions as A; stride 0 where it is stretched.
    pub b: &'a View,
    /// (batch…, M, N), neighbouring columns contiguous.
    pub c: &'a View,
    /// The product is input 0.
    pub epilogue: &'a Chain,
    /// Type and view of the epilogue's further inputs, stretched to C's sizes.
    pub extras: &'a [(DType, View)],
    /// The further input that C overwrites.
    pub in_place: Option<usize>,
}

/// One product after merging: strides as lists over (batch…, M), then those along K and N.
#[derive(Clone)]
struct Problem {
    /// Batch sizes, then M.
    lead: Vec<usize>,
    k: usize,
    n: usize,
    /// Of A, B, extras, C.
    operands: Vec<Strides>,
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

impl Matmul<'_> {
    /// The launches: one, or several where a window would exceed the device's binding limit. `KernelError::Layout`
    /// names an operand that must be made dense first.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let problem = self.problem();
        let mut launches = Vec::new();
        self.split(&problem, caps, &mut launches)?;
        Ok(launches)
    }

    fn problem(&self) -> Problem {
        let rank = self.c.dims.len();
        let (k, n) = (self.a.dims[rank - 1], self.c.dims[rank - 1]);
        let lead_dims = &self.c.dims[..rank - 1];
        let mut b_lead = self.b.strides[..rank - 2].to_vec();
        b_lead.push(0);
        let mut lists: Vec<&[usize]> = vec![&self.a.strides[..rank - 1], &b_lead];
        lists.extend(self.extras.iter().map(|(_, v)| &v.strides[..rank - 1]));
        lists.push(&self.c.strides[..rank - 1]);
        let (mut lead, mut strides) = coalesce(lead_dims, &lists);
        if strides[1].last() != Some(&0) {
            // a single row was merged away: the last dimension left is a batch
            lead.push(1);
            strides.iter_mut().for_each(|s| s.push(0));
        }
        let along = |i: usize| -> (usize, usize, usize, usize) {
            let e = self.extras.len();
            match i {
                0 => (self.a.offset, self.a.strides[rank - 1], 0, self.dtype.size()),
                1 => (self.b.offset, self.b.strides[rank - 2], self.b.strides[rank - 1], self.dtype.size()),
                i if i < 2 + e => (
                    self.extras[i - 2].1.offset,
                    0,
                    self.extras[i - 2].1.strides[rank - 1],
                    self.extras[i - 2].0.size(),
                ),
                _ => (self.c.offset, 0, self.c.strides[rank - 1], self.out.size()),
            }
        };
        let operands = strides.into_iter().enumerate().map(|(i, lead)| {
            let (offset, k, n, size) = along(i);
            Strides { offset, lead, k, n, size }
        });
        Problem { lead, k, n, operands: operands.collect() }
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
        // B shrinks with its columns where those lie apart, all else with batch entries and rows
        let at = q.lead.iter().position(|d| *d > 1);
        let columns = operand == 1 && q.operands[1].n != 1 && q.n > 4;
        let (size, dim) = match at {
            _ if columns => (q.n, None),
            Some(d) if q.operands[operand].lead[d] > 0 => (q.lead[d], Some(d)),
            _ => return Err(error),
        };
        let half = if size >= 8 { size / 2 / 4 * 4 } else { size / 2 };
        for (start, len) in [(0, half), (half, size - half)] {
            let mut part = q.clone();
            match dim {
                Some(d) => part.lead[d] = len,
                None => part.n = len,
            }
            for o in &mut part.operands {
                o.offset += start * dim.map_or(o.n, |d| o.lead[d]);
            }
            self.split(&part, caps, launches)?;
        }
        Ok(())
    }

    fn launch(&self, q: &Problem, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        let rows = q.lead.len() - 1;
        let (m, batch) = (q.lead[rows], q.lead[..rows].iter().product::<usize>());
        let (a, b, c) = (&q.operands[0], &q.operands[1], &q.operands[q.operands.len() - 1]);
        let fours = |o: &Strides, contiguous: usize, other: usize| {
            contiguous.is_multiple_of(4)
                && other.is_multiple_of(4)
                && o.offset.is_multiple_of(4)
                && o.lead[..rows].iter().all(|s| s.is_multiple_of(4))
        };
        let side = |operand: usize, o: &Strides, outer: usize, outer_stride: usize| {
            if o.k == 1 || q.k == 1 {
                Ok(Side { along_k: true, vec: o.k == 1 && fours(o, q.k, outer_stride) })
            } else if outer_stride == 1 || outer == 1 {
                Ok(Side { along_k: false, vec: outer_stride == 1 && fours(o, outer, o.k) })
            } else {
                Err(KernelError::Layout { operand })
            }
        };
        let a_side = side(0, a, m, a.lead[rows])?;
        let b_side = side(1, b, q.n, b.n)?;
        let direct = caps.cpu;
        // the direct kernel reads B in rows of neighbouring columns
        let b_side = match b_side {
            Side { along_k: true, .. } if direct && (b.n == 1 || q.n == 1) => {
                Side { along_k: false, vec: b.n == 1 && fours(b, q.n, b.k) }
            }
            Side { along_k: true, .. } if direct => return Err(KernelError::Layout { operand: 1 }),
            other => other,
        };
        let tile = if direct { direct_tile(m, q.n) } else { tile(m, q.n, q.k, batch, caps) };
        let (tiles_m, tiles_n) = (m.div_ceil(tile.m), q.n.div_ceil(tile.n));
        let whole_k = if direct { true } else { q.k.is_multiple_of(tile.k) };
        let out_vec = c.n == 1 && fours(c, q.n, c.lead[rows]);
        let mut extras = Vec::new();
        for (i, (dtype, _)) in self.extras.iter().enumerate() {
            let o = &q.operands[2 + i];
            extras.push((
                *dtype,
                match o.n {
                    0 => Columns::Splat,
                    1 if fours(o, q.n, o.lead[rows]) => Columns::Vec,
                    1 => Columns::Four,
                    _ if q.n == 1 => Columns::Splat,
                    _ => return Err(KernelError::Layout { operand: 2 + i }),
                },
            ));
        }
        let vec = |i: usize| match i {
            0 => a_side.vec,
            1 => b_side.vec,
            i if i < q.operands.len() - 1 => extras[i - 2].1 == Columns::Vec,
            _ => out_vec,
        };
        let (mut operands, mut firsts) = (Vec::new(), Vec::new());
        for (i, o) in q.operands.iter().enumerate() {
            let reach = o.lead.iter().zip(&q.lead).map(|(s, d)| s * (d - 1)).sum::<usize>();
            let end = o.offset + reach + o.k * (q.k - 1) + o.n * (q.n - 1) + 1;
            let what = match i {
                0 => "the left operand".to_owned(),
                1 => "the right operand".to_owned(),
                i if i < q.operands.len() - 1 => format!("the epilogue's input {}", i - 1),
                _ => "the result".to_owned(),
            };
            let (operand, first) = window("matmul", i, &what, o.offset, end, o.size, caps)?;
            if self.in_place.is_none_or(|p| p + 2 != i) {
                operands.push(operand);
            }
            firsts.push(first);
        }
        let unit = |i: usize| if vec(i) { 4 } else { 1 };
        let groups = (tiles_m * tiles_n * batch) as u64;
        let a_stride = if a_side.along_k { a.lead[rows] } else { a.k };
        let b_stride = if b_side.along_k { b.n } else { b.k };
        let last = q.operands.len() - 1;
        let mut params: Vec<usize> = vec![groups as usize, m, q.n, q.k, 0, tiles_m, tiles_n];
        params.extend([firsts[0] / unit(0), a_stride / unit(0), firsts[1] / unit(1), b_stride / unit(1)]);
        params.extend([firsts[last] / unit(last), c.lead[rows] / unit(last)]);
        for d in 0..rows {
            params.push(q.lead[d]);
            params.extend([0, 1, last].map(|i| q.operands[i].lead[d] / unit(i)));
        }
        for (i, (o, first)) in q.operands.iter().zip(&firsts).enumerate().take(last).skip(2) {
            params.extend([first / unit(i), o.lead[rows] / unit(i)]);
            params.extend((0..rows).map(|d| o.lead[d] / unit(i)));
        }
        let key = MatmulKey {
            dtype: self.dtype,
            out: self.out,
            a: a_side,
            b: b_side,
            out_vec,
            tile,
            full: whole_k && m.is_multiple_of(tile.m) && q.n.is_multiple_of(tile.n),
            batch_rank: rows,
            epilogue: self.epilogue.clone(),
            extras,
            in_place: self.in_place,
        };
        let outputs = (batch * m * q.n) as f64;
        let distinct = |o: &Strides, kn: usize| -> f64 {
            let lead: usize = o.lead.iter().zip(&q.lead).filter(|(s, _)| **s > 0).map(|(_, d)| *d).product();
            (lead * kn * o.size) as f64
        };
        let mut bytes = distinct(a, q.k) + distinct(b, q.k * q.n) + outputs * self.out.size() as f64;
        bytes += q.operands[2..last].iter().map(|o| distinct(o, if o.n > 0 { q.n } else { 1 })).sum::<f64>();
        let estimate = Estimate { flops: outputs * (2 * q.k + self.epilogue.steps.len()) as f64, bytes };
        let params = params.into_iter().map(|p| p as u32).collect();
        Ok(Launch { key: KernelKey::Matmul(key), params, groups, operands, estimate })
    }
}

/// Rows are uniform over a workgroup of eight invocations; fewer where M or N are small. A load costs such a CPU far
/// more than a multiply-add, so an invocation's share is as large as its registers and its stack in cache allow.
fn direct_tile(m: usize, n: usize) -> Tile {
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

/// Tiles with the share of the best tile's rate that each reaches where enough of them are there, as measured on an H200.
const TILES: [(usize, usize, usize, usize, f64); 6] = [
    (128, 128, 8, 8, 1.0),
    (128, 96, 8, 8, 0.95),
    (128, 64, 8, 4, 0.9),
    (64, 64, 4, 4, 0.6),
    (32, 32, 4, 4, 0.62),
    (16, 64, 4, 4, 0.3),
];

/// For limits that no other tile fits.
const SMALLEST: Tile = Tile { m: 16, n: 16, k: 8, tm: 4, tn: 4 };

/// Cores of the device that the choice is made for: the adapter does not say how many it has, and a large one loses most
/// by a wrong choice.
const CORES: usize = 132;

/// Invocations on a core that hide each other's waits for memory.
const HIDING: usize = 512;

/// How long a core takes for its tiles, in units of one tile at the full rate: as many at once as hide each other's
/// waits, then the rest, which hide less.
fn rounds(tiles: usize, threads: usize) -> f64 {
    let at_once = (HIDING / threads).max(1);
    let rest = tiles % at_once;
    let hidden = ((rest * threads) as f64 / HIDING as f64).sqrt();
    (tiles - rest) as f64 + if rest > 0 { rest as f64 / hidden } else { 0.0 }
}

/// Bytes of a stage of both operands, one vec4 of padding a row each.
fn stage_bytes(m: usize, n: usize, k: usize) -> usize {
    k * (m / 4 + n / 4 + 2) * 16
}

/// Depths of a stage, the preferred first: a small tile waits for memory rather than computes, so its stages are deep.
fn depths(m: usize, n: usize) -> &'static [usize] {
    if m * n <= 64 * 64 { &[32, 16, 8] } else { &[16, 8] }
}

/// The tile with the least predicted time: rounds of workgroups times the work of one over its share of the rate.
fn tile(m: usize, n: usize, k: usize, batch: usize, caps: &DeviceCaps) -> Tile {
    let fits = |m, n, k| stage_bytes(m, n, k) <= caps.workgroup_bytes as usize;
    let candidates = TILES.iter().filter_map(|&(bm, bn, tm, tn, share)| {
        let threads = bm / tm * (bn / tn);
        let k = depths(bm, bn).iter().copied().find(|d| fits(bm, bn, *d) && *d <= k.next_multiple_of(8))?;
        let tiles = (m.div_ceil(bm) * n.div_ceil(bn) * batch).div_ceil(CORES);
        let cost = rounds(tiles, threads) * (bm * bn) as f64 / share;
        (threads <= caps.max_invocations as usize).then_some((cost, Tile { m: bm, n: bn, k, tm, tn }))
    });
    candidates.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(SMALLEST, |c| c.1)
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use crate::graph::{Binary, Ref, Step, Unary};
    let add = |a, b| Step::Binary(Binary::Add, a, b);
    let relu_residual = vec![
        add(Ref::Input(0), Ref::Input(1)),
        Step::RoundF16(Ref::Step(0)),
        Step::Unary(Unary::Relu, Ref::Step(1)),
        Step::Select(Ref::Input(3), Ref::Step(2), Ref::Input(2)),
    ];
    let deepest = |m, n| depths(m, n).iter().copied();
    let tiles = TILES.iter().flat_map(|&(m, n, tm, tn, _)| deepest(m, n).map(move |k| Tile { m, n, k, tm, tn }));
    let mut keys = Vec::new();
    for tile in tiles.chain([direct_tile(1, 64), direct_tile(8, 32), direct_tile(16, 128), SMALLEST]) {
        for flags in 0..32 {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let (full, vec) = (on(0), on(1));
            let along_k = |bit| Side { along_k: on(bit), vec };
            let b = if tile.k == 0 { Side { along_k: false, vec } } else { along_k(3) };
            let columns = if vec { Columns::Vec } else { Columns::Four };
            let (dtype, epilogue, extras) = if on(4) {
                let extras = vec![(DType::F16, Columns::Splat), (DType::F16, columns), (DType::Bool, columns)];
                (DType::F16, Chain { arity: 4, steps: relu_residual.clone() }, extras)
            } else {
                (DType::F32, Chain::identity(), Vec::new())
            };
            let in_place = on(4).then_some(1);
            let key = MatmulKey {
                dtype,
                out: dtype,
                a: along_k(2),
                b,
                out_vec: vec,
                tile,
                full,
                batch_rank: flags % 3,
                epilogue,
                extras,
                in_place,
            };
            keys.push(KernelKey::Matmul(key));
        }
    }
    keys
}
