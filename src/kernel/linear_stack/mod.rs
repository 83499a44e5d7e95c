//! In: a stack of linear layers of one width, forwards or backwards; out: launches of `linear_stack.wgsl` or
//! `linear_stack_units.wgsl`, which carry rows through all its layers. Knows no other kernel.

mod launch;
mod tile;

pub use launch::{Backward, Forward, Weights};
pub use tile::{takes_units, widest};

#[cfg(test)]
use super::KernelKey;
use super::chain_wgsl::{Printer, name};
use super::template::render;
use super::units::Units;
use super::{Access, Config, Numbers, ParamSpace, Problem, wgsl_type};
use crate::caps::{DeviceCaps, MatrixUnits};
use crate::graph::{Activation, Chain, DType};
use minijinja::context;
use serde::{Deserialize, Serialize};

const NAME: &str = "linear_stack";
const NAME_UNITS: &str = "linear_stack_units";

/// Steps along the inner dimension that the units sum up of split operands: what they cut off adds up from layer to layer.
const FOLD: usize = 4;

/// How a workgroup's work is dealt to its invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackTile {
    /// Rows that a workgroup carries.
    pub rows: usize,
    /// Parts of the inner dimension, 1, 2 or 4.
    pub split: usize,
    /// Groups of four inner elements whose weights are fetched together.
    pub unroll: usize,
}

/// How a workgroup's work is dealt to its subgroups on matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnitsTile {
    /// Rows that a workgroup carries.
    pub rows: usize,
    /// Subgroups, each with as many columns of all rows.
    pub subs: usize,
    /// Steps along the inner dimension whose weights are fetched ahead.
    pub ahead: usize,
    /// Steps whose weights are staged in workgroup memory, 1 or 2.
    pub stages: usize,
}

/// What makes the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Multiply-adds in f32.
    MultiplyAdds(StackTile),
    /// Matrix units.
    Units(Units, UnitsTile),
}

/// Which way a stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// From its input to its result.
    Forward {
        /// Layers have biases.
        bias: bool,
        /// What each layer reads is stored.
        keep: bool,
    },
    /// From the gradient of its result to that of its input.
    Backward,
}

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearStackKey {
    /// Stored type of everything.
    pub dtype: DType,
    /// Columns of a layer's input and result.
    pub width: usize,
    /// What stands between layers.
    pub activation: Activation,
    /// Which way.
    pub pass: Pass,
    /// What makes the products, and the workgroup.
    pub form: Form,
}

impl LinearStackKey {
    /// The stem of its WGSL file.
    pub fn name(&self) -> &'static str {
        match self.form {
            Form::MultiplyAdds(_) => NAME,
            Form::Units(..) => NAME_UNITS,
        }
    }

    /// The units that it is written for.
    pub fn units(&self) -> Option<MatrixUnits> {
        match self.form {
            Form::MultiplyAdds(_) => None,
            Form::Units(units, _) => Some(units.units),
        }
    }

    /// Rows and weights are scaled, so that f16 holds them.
    fn scaled(&self) -> bool {
        matches!(self.form, Form::Units(..)) && self.dtype == DType::F32
    }

    /// Name and use of each operand.
    fn operands(&self) -> Vec<(&'static str, Access)> {
        let (read, written) = (Access::Read, Access::ReadWrite);
        let first = [("x", read, true), ("w", read, true), ("factors", read, self.scaled())];
        let more = match self.pass {
            Pass::Forward { bias, keep } => vec![("b", read, bias), ("y", written, true), ("kept", written, keep)],
            Pass::Backward => {
                vec![("kept", read, true), ("y", read, true), ("dx", written, true), ("dz", written, true)]
            }
        };
        first.into_iter().chain(more).filter(|o| o.2).map(|(name, access, _)| (name, access)).collect()
    }

    /// What a tile is chosen for.
    pub(super) fn problem(&self, params: &[u32]) -> Problem {
        let (rows, layers) = (params[1], params[2]);
        let pass = match self.pass {
            Pass::Forward { bias, keep } => {
                ["forward", if bias { " bias" } else { "" }, if keep { " keep" } else { "" }].concat()
            }
            Pass::Backward => "backward".to_owned(),
        };
        let units = match self.form {
            Form::MultiplyAdds(_) => String::new(),
            Form::Units(units, _) => units.words(),
        };
        let (dtype, width, activation) = (self.dtype, self.width, self.activation);
        Problem(format!("{NAME} {dtype} {rows}x{width} layers:{layers} {activation:?} {pass}{units}"))
    }

    /// What it was made with.
    pub(super) fn config(&self) -> Config {
        match self.form {
            Form::MultiplyAdds(tile) => Config::Stack(tile),
            Form::Units(_, tile) => Config::StackUnits(tile),
        }
    }

    /// The tiles that a device can run.
    pub(super) fn configs(&self, params: &[u32], caps: &DeviceCaps) -> Vec<Config> {
        let rows = params[1] as usize;
        match self.form {
            Form::MultiplyAdds(_) => tile::tiles(self.width, rows, caps).map(Config::Stack).collect(),
            Form::Units(units, _) => {
                let tiles = tile::units_tiles(self.width, rows, self.dtype, units, caps);
                tiles.into_iter().map(Config::StackUnits).collect()
            }
        }
    }

    /// Takes another tile of the same form, changes what depends on it, and returns the number of workgroups.
    pub(super) fn configure(&mut self, params: &mut [u32], config: Config) -> u64 {
        match (&mut self.form, config) {
            (Form::MultiplyAdds(tile), Config::Stack(other)) => *tile = other,
            (Form::Units(_, tile), Config::StackUnits(other)) => *tile = other,
            _ => {}
        }
        params[0] = params[1].div_ceil(self.rows() as u32);
        u64::from(params[0])
    }

    /// Rows that a workgroup carries.
    fn rows(&self) -> usize {
        match self.form {
            Form::MultiplyAdds(tile) => tile.rows,
            Form::Units(_, tile) => tile.rows,
        }
    }

    /// What suits each binding: of such a size that numbers neither grow nor shrink from layer to layer.
    pub(super) fn operand_numbers(&self) -> Vec<Numbers> {
        let weights = (6.0 / self.width as f32).sqrt();
        let of = |(name, _)| match name {
            // scaled weights are of about the same size
            "w" if self.scaled() => Numbers::Any(DType::F16, 1.0),
            "w" | "factors" => Numbers::Any(self.dtype, weights),
            _ => Numbers::Any(self.dtype, 1.0),
        };
        self.operands().into_iter().map(of).collect()
    }

    fn chain(&self) -> Chain {
        match self.pass {
            Pass::Forward { bias, .. } => self.activation.forward(bias),
            Pass::Backward => self.activation.backward(),
        }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let access = |a| if a == Access::Read { "read" } else { "read_write" };
        let bindings: Vec<(&str, &str)> = self.operands().into_iter().map(|(n, a)| (n, access(a))).collect();
        let printer = Printer { compute: DType::F32, width: 4, zero: "p.zero" };
        let chain = self.chain();
        let (bias, keep) = match self.pass {
            Pass::Forward { bias, keep } => (bias, keep),
            Pass::Backward => (false, false),
        };
        let values = context! {
            scalar => wgsl_type(self.dtype), width => self.width, rows => self.rows(),
            threads => self.workgroup_size(),
            backward => self.pass == Pass::Backward, bias, keep, bindings,
            T => "vec4<f32>", steps => printer.steps(&chain), result => name(chain.result()),
        };
        let more = match self.form {
            Form::MultiplyAdds(tile) => {
                context! { split => tile.split, unroll => tile.unroll, regions => tile.regions() }
            }
            Form::Units(units, tile) => context! {
                u => units.context(), s => tile.context(self.width, units), split => units.split, scaled => self.scaled(),
                fold => FOLD,
            },
        };
        render(self.name(), params, context! { ..values, ..more })
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        self.operands().into_iter().map(|(_, access)| access).collect()
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<&str> = "groups rows layers zero x_offset".split(' ').collect();
        names.extend(matches!(self.form, Form::MultiplyAdds(_)).then_some("w_offset"));
        match self.pass {
            Pass::Forward { bias, .. } => names.extend(bias.then_some("b_offset")),
            Pass::Backward => names.extend(["kept_offset", "y_offset"]),
        }
        names.into_iter().map(String::from).collect()
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        match self.form {
            Form::MultiplyAdds(tile) => tile.bytes(self.width),
            Form::Units(units, tile) => tile.bytes(self.width, self.dtype, units),
        }
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        match self.form {
            Form::MultiplyAdds(tile) => tile.threads(self.width) as u32,
            Form::Units(units, tile) => tile.threads(units) as u32,
        }
    }
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    let passes = [(false, false), (true, false), (true, true)].map(|(bias, keep)| Pass::Forward { bias, keep });
    let tiles = [(16, 1, 2), (4, 2, 1), (16, 4, 1), (8, 4, 2)];
    let tiles = tiles.map(|(rows, split, unroll)| StackTile { rows, split, unroll });
    let mut of_units = tile::catalogue().into_iter().cycle();
    for (i, activation) in Activation::ALL.into_iter().enumerate() {
        for pass in passes.into_iter().chain([Pass::Backward]) {
            let dtype = if i % 2 == 0 { DType::F32 } else { DType::F16 };
            let mut add = |width, form| {
                keys.push(KernelKey::LinearStack(LinearStackKey { dtype, width, activation, pass, form }));
            };
            for (width, tile) in [64, 96, 80, 256].into_iter().zip(tiles) {
                add(width, Form::MultiplyAdds(tile));
            }
            let (width, units, tile) = of_units.next().expect("a cycle");
            // what is stored in f16 is not split
            let units = Units { split: units.split && dtype == DType::F32, ..units };
            add(width, Form::Units(units, tile));
        }
    }
    keys
}
