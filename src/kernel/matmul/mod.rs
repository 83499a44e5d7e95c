//! In: two matrices, or batches of them, as views, and an epilogue; out: launches of `matmul.wgsl`, of
//! `matmul_units.wgsl` where matrix units make the product, or, on a CPU that acts as a GPU, `matmul_direct.wgsl`. Knows no
//! other kernel.
//!
//! Here stands the key; `source` makes its text, `launch` launches of a product, `tile` and `units_tile` pick sizes,
//! `slices` cuts K.

mod launch;
mod slices;
mod source;
#[cfg(test)]
mod tests;
mod tile;
mod units_tile;

pub use launch::{Matmul, OnUnits};
pub(super) use slices::SLICES_WORTH;

use super::Access;
use super::units::Units;
use crate::caps::DeviceCaps;
use crate::graph::{Chain, DType};
use crate::kernel::{Config, Numbers, Problem};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

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

/// Sizes of a workgroup's tile and of an invocation's share, or on matrix units a subgroup's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Rows of a tile.
    pub m: usize,
    /// Columns of a tile.
    pub n: usize,
    /// Depth of a stage in workgroup memory; 0 is the direct kernel.
    pub k: usize,
    /// Rows of an invocation, or of a subgroup.
    pub tm: usize,
    /// Columns of an invocation, or of a subgroup.
    pub tn: usize,
}

/// Names of the words of the parameters that every product has, in front of all others.
const FIXED: [&str; 13] = [
    "groups", "m", "n", "k", "zero", "tiles_m", "tiles_n", "a_offset", "a_stride", "b_offset", "b_stride", "c_offset",
    "c_stride",
];

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
    /// Whether each of them differs from row to row.
    pub by_row: Vec<bool>,
    /// The further input that C overwrites.
    pub in_place: Option<usize>,
    /// The only batch dimension counts slices of K; the last may be shorter.
    pub sliced: bool,
    /// The sum of each of A's rows is stored too; A lies along its rows then.
    pub sums: bool,
    /// The matrix units that make the product.
    pub units: Option<Units>,
    /// A and B are stored in f16 and bound as arrays of eight numbers; on units only.
    pub eights: bool,
}

impl MatmulKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        match self.units {
            Some(_) => "matmul_units",
            None if self.tile.k == 0 => "matmul_direct",
            None => "matmul",
        }
    }

    /// Whether operands are scaled by the exponents of their rows and columns, which are bound too.
    fn scaled(&self) -> bool {
        self.units.is_some() && self.dtype == DType::F32
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 2 + self.extras.len() - usize::from(self.in_place.is_some())];
        all.extend([Access::Read; 2].into_iter().filter(|_| self.scaled()));
        all.push(Access::ReadWrite);
        all.extend(self.sums.then_some(Access::ReadWrite));
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = FIXED.map(String::from).into();
        names.extend(self.sliced.then(|| "tail".to_owned()));
        names.extend(self.sums.then(|| "sums_offset".to_owned()));
        for d in 0..self.batch_rank {
            names.extend(["batch", "a_batch", "b_batch", "c_batch"].map(|n| format!("{n}{d}")));
            names.extend(self.sums.then(|| format!("sums_batch{d}")));
        }
        for i in 1..=self.extras.len() {
            names.extend([format!("e{i}_offset"), format!("e{i}_row")]);
            names.extend((0..self.batch_rank).map(|d| format!("e{i}_batch{d}")));
        }
        for side in ["a", "b"].into_iter().filter(|_| self.scaled()) {
            names.extend(["offset", "parts", "part"].map(|n| format!("exp_{side}_{n}")));
            names.extend((0..self.batch_rank).map(|d| format!("exp_{side}_batch{d}")));
        }
        names
    }

    /// Number of batch entries, M, N and K of a launch with these parameters.
    fn sizes(&self, params: &[u32]) -> [usize; 4] {
        // after the fixed words, a slice's tail and the sums' offset comes each batch dimension
        let first = FIXED.len() + usize::from(self.sliced) + usize::from(self.sums);
        let step = 4 + usize::from(self.sums);
        let batch = (0..self.batch_rank).map(|d| params[first + d * step] as usize).product();
        [batch, params[1] as usize, params[2] as usize, params[3] as usize]
    }

    /// What a tile is chosen for.
    pub(in crate::kernel) fn problem(&self, params: &[u32]) -> Problem {
        let [batch, m, n, k] = self.sizes(params);
        let side = |s: Side, outer| format!("{}{}", if s.along_k { "k" } else { outer }, if s.vec { "x4" } else { "" });
        let (a, b) = (side(self.a, "m"), side(self.b, "n"));
        let mut words = format!("matmul {} {batch}x{m}x{n}x{k} a:{a} b:{b} c:{}", self.dtype, self.out);
        words.push_str(if self.out_vec { "x4" } else { "" });
        for (dtype, columns) in &self.extras {
            let _ = write!(words, " {dtype}:{columns:?}");
        }
        if !self.epilogue.steps.is_empty() {
            let _ = write!(words, " steps:{}", self.epilogue.steps.len());
        }
        if let Some(units) = self.units {
            let eights = if self.eights { " x8" } else { "" };
            let _ = write!(words, " {:?} {}{eights}", units.units, if units.split { "split" } else { "rounded" });
        }
        for (word, on) in [(" in place", self.in_place.is_some()), (" sliced", self.sliced), (" sums", self.sums)] {
            words.push_str(if on { word } else { "" });
        }
        Problem(words)
    }

    /// The tiles that a device can run.
    pub(in crate::kernel) fn configs(&self, params: &[u32], caps: &DeviceCaps) -> Vec<Config> {
        let [batch, m, n, k] = self.sizes(params);
        let Some(units) = self.units else {
            return tile::candidates(m, n, k, batch, caps).into_iter().map(Config::Tile).collect();
        };
        let needs = units_tile::Needs { sides: [self.a, self.b], scaled: self.scaled() };
        units_tile::candidates([m, n, k, batch], needs, units, caps).into_iter().map(Config::Tile).collect()
    }

    /// Takes another tile, changes what depends on it, and returns the number of workgroups.
    pub(in crate::kernel) fn configure(&mut self, params: &mut [u32], tile: Tile) -> u64 {
        let [batch, m, n, k] = self.sizes(params);
        let last = if self.sliced { params[FIXED.len()] as usize } else { k };
        let (tiles_m, tiles_n) = (m.div_ceil(tile.m), n.div_ceil(tile.n));
        let groups = tiles_m * tiles_n * batch;
        self.full = tile::is_full(tile, m, n, k | last);
        self.tile = tile;
        (params[0], params[5], params[6]) = (groups as u32, tiles_m as u32, tiles_n as u32);
        groups as u64
    }

    /// What suits each binding.
    pub(in crate::kernel) fn operand_numbers(&self) -> Vec<Numbers> {
        let of = |dtype| Numbers::Any(dtype, 1.0);
        let extras = self.extras.iter().enumerate().filter(|(i, _)| self.in_place != Some(*i)).map(|(_, e)| of(e.0));
        let mut all = vec![of(self.dtype); 2];
        all.extend(extras);
        all.extend([Numbers::Exponents; 2].into_iter().filter(|_| self.scaled()));
        all.push(of(self.out));
        all.extend(self.sums.then_some(of(self.out)));
        all
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        match self.units {
            Some(units) => units_tile::bytes(self.tile, [self.a, self.b], units, self.scaled()),
            None => tile::bytes(self.tile),
        }
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        let t = self.tile;
        match self.units {
            Some(units) => (t.m / t.tm * (t.n / t.tn)) as u32 * units.units.lanes(),
            None => tile::invocations(t) as u32,
        }
    }
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<super::KernelKey> {
    use crate::graph::{Binary, Comparison, Ref, Step, Unary};
    let add = |a, b| Step::Binary(Binary::Add, a, b);
    let relu_residual = vec![
        add(Ref::Input(0), Ref::Input(1)),
        Step::RoundF16(Ref::Step(0)),
        Step::Unary(Unary::Relu, Ref::Step(1)),
        Step::Const(0.0.into()),
        Step::Compare(Comparison::LessEqual, Ref::Input(2), Ref::Step(3)),
        Step::Select(Ref::Step(4), Ref::Step(3), Ref::Step(2)),
        Step::Select(Ref::Input(3), Ref::Step(5), Ref::Input(2)),
    ];
    let mut keys = Vec::new();
    // a pass over all flags that stands for every tile of the units
    let tiles_for_units = Tile { m: 0, n: 0, k: 0, tm: 0, tn: 0 };
    for tile in tile::all().chain([tiles_for_units]) {
        for flags in 0..40 {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let (full, vec) = (on(0), on(1));
            let along_k = |bit| Side { along_k: on(bit), vec };
            let columns = if vec { Columns::Vec } else { Columns::Four };
            let (dtype, epilogue, extras) = if on(4) {
                let extras = vec![(DType::F16, Columns::Splat), (DType::F16, columns), (DType::Bool, columns)];
                (DType::F16, Chain { arity: 4, steps: relu_residual.clone() }, extras)
            } else {
                (DType::F32, Chain::identity(), Vec::new())
            };
            let key = MatmulKey {
                dtype,
                out: dtype,
                a: along_k(2),
                b: along_k(3),
                out_vec: vec,
                tile,
                full,
                batch_rank: flags % 3,
                epilogue,
                by_row: (0..extras.len()).map(|i| i != 1 || on(2)).collect(),
                extras,
                in_place: on(4).then_some(1),
                sliced: false,
                sums: false,
                units: None,
                eights: false,
            };
            // 0..32 are the plain forms; the rest sum A's rows, in one stage and in slices
            let gradient = MatmulKey {
                dtype: if vec { DType::F16 } else { DType::F32 },
                out: if vec && !on(2) { DType::F16 } else { DType::F32 },
                a: Side { along_k: false, vec },
                b: Side { along_k: false, vec },
                batch_rank: usize::from(on(2)),
                sliced: on(2),
                sums: true,
                ..key.clone()
            };
            let key = if on(5) { gradient } else { key };
            if tile != tiles_for_units {
                keys.push(super::KernelKey::Matmul(key));
                continue;
            }
            // each sees every fourth of the flags, for the time that it takes
            for (i, (units, tile)) in units_tile::all().into_iter().enumerate() {
                if (flags + i) % 4 == 0 && !(units.split && key.dtype == DType::F16) {
                    let eights = key.dtype == DType::F16 && vec;
                    let key = MatmulKey { tile, units: Some(units), eights, ..key.clone() };
                    keys.push(super::KernelKey::Matmul(key));
                }
            }
        }
    }
    keys
}
