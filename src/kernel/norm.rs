//! In: sizes of a normalisation over rows; out: launches of norm.wgsl. Knows no other kernel.

use super::split::{self, Form, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "norm";
pub(super) const PARAMS: &[&str] =
    &["groups", "rows", "width", "first", "b_row", "b_rows", "b_step", "inverse_width", "eps"];

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// x, γ, β → y, mean, rstd.
    Layer,
    /// x, γ → y, rstd.
    Rms,
    /// a, b, γ, β → sum, y, mean, rstd.
    AddLayer,
}

/// What changes norm.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NormKey {
    /// Which normalisation.
    pub kind: NormKind,
    /// F32 or F16; mean and rstd are F32.
    pub dtype: DType,
    /// Whether mean and rstd are stored.
    pub stats: bool,
    /// One invocation does a row, else a workgroup.
    pub per_row: bool,
    /// Elements are read four at a time; not with `per_row`.
    pub vec: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl NormKey {
    /// The names in norm.wgsl, whether each is written, and whether it holds single f32 numbers.
    fn tensors(&self) -> Vec<(&'static str, Access, bool)> {
        let read = |name| (name, Access::Read, false);
        let write = |name| (name, Access::ReadWrite, false);
        let mut tensors = match self.kind {
            NormKind::Layer => vec![read("x"), read("gamma"), read("beta"), write("y")],
            NormKind::Rms => vec![read("x"), read("gamma"), write("y")],
            NormKind::AddLayer => vec![read("a"), read("b"), read("gamma"), read("beta"), write("sum"), write("y")],
        };
        if self.stats {
            if self.kind != NormKind::Rms {
                tensors.push(("means", Access::ReadWrite, true));
            }
            tensors.push(("rstds", Access::ReadWrite, true));
        }
        tensors
    }

    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let wide = |of: &str| if self.vec { format!("vec4<{of}>") } else { of.to_string() };
        let stored = wide(wgsl_type(self.dtype));
        let bindings: Vec<(&str, &str, String)> = self
            .tensors()
            .into_iter()
            .map(|(name, access, single)| {
                let access = if access == Access::Read { "read" } else { "read_write" };
                (name, access, if single { "f32".to_string() } else { stored.clone() })
            })
            .collect();
        let add = self.kind == NormKind::AddLayer;
        let values = context! {
            f16 => self.dtype == DType::F16, rms => self.kind == NormKind::Rms, add, stats => self.stats,
            per_row => self.per_row, vec => self.vec, size => self.size, side => split::side(self.size),
            bindings, x => if add { "sum" } else { "x" }, stored, loaded => wide("f32"),
        };
        template::render(NAME, params, values)
    }

    /// As [`NormKind`] lists them, mean and rstd only with `stats`.
    pub fn bindings(&self) -> Vec<Access> {
        self.tensors().into_iter().map(|(_, access, _)| access).collect()
    }
}

/// How the rows of b repeat.
struct Repeat {
    rows: usize,
    step: u32,
}

impl Repeat {
    fn new(b_elements: usize, width: usize) -> Result<Self, KernelError> {
        match b_elements {
            1 => Ok(Repeat { rows: 1, step: u32::from(width == 1) }),
            e if e > 0 && e.is_multiple_of(width) => Ok(Repeat { rows: e / width, step: 1 }),
            got => Err(KernelError::Size {
                kernel: NAME,
                what: "elements of the second summand",
                expected: format!("1 or a multiple of the width {width}"),
                got,
            }),
        }
    }
}

/// A normalisation of rows. `b_elements` are those of [`NormKind::AddLayer`]'s b, which repeats from the left (1 for
/// the others). Operands: see [`NormKind`]; mean and rstd are bound only with `stats`, and no other position changes.
#[allow(clippy::too_many_arguments)]
pub fn launches(
    kind: NormKind,
    dtype: DType,
    rows: usize,
    width: usize,
    eps: f32,
    b_elements: usize,
    stats: bool,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, dtype, caps)?;
    if rows == 0 || width == 0 {
        return Ok(Vec::new());
    }
    let add = kind == NormKind::AddLayer;
    let b = if add { Repeat::new(b_elements, width)? } else { Repeat { rows: 1, step: 0 } };
    let Form { per_row, vec, size } = Form::choose(NAME, [rows, width, 1], !(add && b.step == 0), 8, caps)?;
    let key = NormKey { kind, dtype, stats, per_row, vec, size };

    let row_bytes = (width * dtype.size()) as u64;
    let row = |operand| Rows::cut(operand, rows, row_bytes);
    let vector = |operand| Rows::whole(operand, row_bytes);
    let stat = |operand| Rows::whole_if_fits(operand, rows, 4, caps);
    let mut tensors = match kind {
        NormKind::Layer => vec![row(0), vector(1), vector(2), row(3)],
        NormKind::Rms => vec![row(0), vector(1), row(2)],
        NormKind::AddLayer => {
            let second = if b.rows == rows && b.step == 1 {
                row(1)
            } else {
                Rows::whole(1, b_elements as u64 * dtype.size() as u64)
            };
            vec![row(0), second, vector(2), vector(3), row(4), row(5)]
        }
    };
    let main = tensors.len();
    if stats {
        let count = if kind == NormKind::Rms { 1 } else { 2 };
        tensors.extend((main..main + count).map(stat));
    }

    let mut launches = Vec::new();
    for range in split::windows(NAME, rows, &tensors, caps)? {
        let count = range.len();
        let groups = if per_row { count.div_ceil(size as usize) } else { count };
        let first = if stats { tensors[main].first(&range) } else { 0 };
        let b_row = if add { tensors[1].first(&range) % b.rows } else { 0 };
        let mut params = split::sizes(
            NAME,
            [
                ("groups", groups),
                ("rows", count),
                ("width", width),
                ("first row", first),
                ("first row of the second summand", b_row),
                ("rows of the second summand", b.rows),
            ],
        )?;
        params.extend([b.step, (1.0 / width as f32).to_bits(), eps.to_bits()]);
        let operands: Vec<_> = tensors.iter().map(|t| t.window(&range)).collect();
        let bytes =
            operands[..main].iter().map(|o| o.bytes).sum::<u64>() + 4 * (count * (operands.len() - main)) as u64;
        // difference, pivot, second difference, square, two sums, two products and a sum; with the first addition
        let per_element = match kind {
            NormKind::Layer => 9.0,
            NormKind::Rms => 4.0,
            NormKind::AddLayer => 10.0,
        };
        launches.push(Launch {
            key: KernelKey::Norm(key.clone()),
            params,
            groups: groups as u64,
            estimate: Estimate { flops: per_element * count as f64 * width as f64, bytes: bytes as f64 },
            operands,
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for kind in [NormKind::Layer, NormKind::Rms, NormKind::AddLayer] {
        for dtype in [DType::F32, DType::F16] {
            for stats in [false, true] {
                for (per_row, vec, size) in super::tests::FORMS {
                    keys.push(KernelKey::Norm(NormKey { kind, dtype, stats, per_row, vec, size }));
                }
            }
        }
    }
    keys
}
