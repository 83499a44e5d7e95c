//! In: the key of a product; out: its text, and what the templates see of operands and of what is fetched of them. Knows
//! no launch.

use super::{Columns, MatmulKey, tile};
use crate::graph::DType;
use crate::kernel::chain_wgsl::{Printer, name, vector};
use crate::kernel::rectangle::across;
use crate::kernel::template::render;
use crate::kernel::units::Units;
use crate::kernel::{ParamSpace, wgsl_type};
use minijinja::{Value, context};

/// Elements of K after which sums on matrix units, which cut off what a sum does not hold, are added up in f32.
const FOLD: usize = 256;

impl MatmulKey {
    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let (a, b) = (self.side("a"), self.side("b"));
        let rounds = if self.units.is_some() { Vec::new() } else { self.rounds([&a, &b]) };
        let printer = Printer { compute: DType::F32, width: 4, zero: "p.zero" };
        let extras: Vec<Value> = (0..self.extras.len()).map(|i| self.extra(i)).collect();
        let t = self.tile;
        let all = [self.dtype, self.out].into_iter().chain(self.extras.iter().map(|e| e.0));
        let split = self.units.is_some_and(|u| u.split);
        let f16 = self.units.is_some() || all.into_iter().any(|d| d == DType::F16) || self.epilogue.rounds_f16();
        let (eights, scaled, guarded, sums, stages) =
            (self.eights, self.scaled(), !self.full, self.sums, tile::stages(t));
        let (threads, step) = (self.workgroup_size(), self.step());
        let staged = if self.units.is_some() { wgsl_type(self.dtype) } else { "f32" };
        let k_end = if self.sliced { "s.k" } else { "p.k" };
        let of_stages = context! { k => t.k, k_end, threads, step, stages, staged, eights, scaled, guarded, sums };
        render(
            self.name(),
            params,
            context! {
                f16, u => self.units.map(Units::context), split, eights, scaled, fold => if split { FOLD } else { 0 }, staged,
                a, b, t => of_stages, rounds, extras, batch_rank => self.batch_rank, guarded, T => "vec4<f32>",
                out_binding => self.bindings().len() - usize::from(self.sums),
                sliced => self.sliced, sums, k_end,
                out_storage => vector(wgsl_type(self.out), if self.out_vec { 4 } else { 1 }), out_scalar => wgsl_type(self.out), out_vec => self.out_vec,
                steps => printer.steps(&self.epilogue), result => name(self.epilogue.result()),
                bm => t.m, bn => t.n, bk => t.k, tm => t.tm, tn => t.tn, threads, stages, across => across(t.n / t.tn, t.m / t.tm),
            },
        )
    }

    /// An operand as the templates see it. A tile has `outer` of its `limit` rows or columns, from `first` on; a stage of
    /// them lies in `rows` rows of `row` numbers and takes `fetches` rounds of an invocation on units, or lies in `fours`
    /// vec4s where multiply-adds are made.
    fn side(&self, name: &str) -> Value {
        let t = self.tile;
        let (s, outer, first, limit) =
            if name == "a" { (self.a, t.m, "row0", "p.m") } else { (self.b, t.n, "col0", "p.n") };
        let (row, rows) = if s.along_k { (t.k, outer) } else { (outer, t.k) };
        let stored = vector(wgsl_type(self.dtype), if s.vec { 4 } else { 1 });
        let storage = if self.eights { "vec4<u32>".to_owned() } else { stored };
        let pad = tile::padding(s.along_k, t.k);
        let fetches = (row * rows / self.step()).div_ceil(self.workgroup_size() as usize);
        context! {
            name, along_k => s.along_k, vec => s.vec, storage, outer, first, limit, row, rows, fetches,
            period => self.period(outer), pad, fours => t.k / 4 * (outer + pad),
        }
    }

    /// How many numbers an invocation on units reads at once.
    fn step(&self) -> usize {
        if self.eights { 8 } else { 4 }
    }

    /// After how many fetches an invocation on units is back at the same numbers of an operand's outer dimension, where the
    /// operand lies along it.
    fn period(&self, outer: usize) -> usize {
        let width = outer / self.step();
        let threads = self.workgroup_size() as usize;
        (1..width).find(|fetches| (fetches * threads).is_multiple_of(width)).unwrap_or(width)
    }

    /// What an invocation fetches of a stage, for the template: in each round one block of four by four, of A or of B
    /// by where it stands in the workgroup.
    fn rounds(&self, sides: [&Value; 2]) -> Vec<Vec<Value>> {
        let t = self.tile;
        let threads = self.workgroup_size() as usize;
        let outer = [t.m, t.n];
        let blocks = outer.map(|o| o * t.k / 16);
        let all = blocks[0] + blocks[1];
        let round = |start: usize| {
            let end = start + threads;
            // blocks of A, then those of B, that lie in this round
            let ranges = [(0, blocks[0]), (blocks[0], all)];
            let inside = (0..2).filter(|&i| ranges[i].0 < end && ranges[i].1 > start);
            let part = |(nth, i): (usize, usize)| {
                let (first, last) = ranges[i];
                let condition = match (nth, last < end) {
                    (0, false) => String::new(),
                    (0, true) => format!("if lane < {}u", last - start),
                    (_, true) => format!("else if lane < {}u", last - start),
                    (_, false) => "else".to_owned(),
                };
                let id = if first > start {
                    format!("lane - {}u", first - start)
                } else {
                    format!("lane + {}u", start - first)
                };
                context! { side => sides[i], condition, id }
            };
            inside.enumerate().map(part).collect()
        };
        (0..all).step_by(threads.max(1)).map(round).collect()
    }

    /// The epilogue's input `i + 1` as the template sees it.
    fn extra(&self, i: usize) -> Value {
        let (dtype, columns) = self.extras[i];
        let index = i + 1;
        let in_place = self.in_place == Some(i);
        let array = if in_place { "c".to_owned() } else { format!("e{index}") };
        let condition = self.epilogue.is_condition(index);
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
        let storage = vector(scalar, if columns == Columns::Vec { 4 } else { 1 });
        let binding = 3 + (0..i).filter(|j| self.in_place != Some(*j)).count();
        let loaded = if condition { "vec4<bool>" } else { "vec4<f32>" };
        let by_row = self.by_row[i];
        context! { index, in_place, binding, storage, load, loaded, by_row }
    }
}
