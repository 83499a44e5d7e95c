//! In: the number of weights and how they are stepped; out: launches of adam.wgsl. Knows no other kernel.

use super::split::{self, Rows};
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{AdamAttrs, DType};
use minijinja::context;

pub(super) const NAME: &str = "adam";
pub(super) const PARAMS: &[&str] = &["groups", "quads", "beta1", "rest1", "beta2", "rest2", "eps", "decay"];

/// What changes adam.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdamKey {
    /// Type of the gradient: F32 or F16; all else is F32.
    pub gradient: DType,
    /// Decay acts on the weight, not through the gradient.
    pub decoupled: bool,
    /// Weights and moments are overwritten.
    pub in_place: bool,
    /// There are five scalars: the gradient has a factor, and the step may not count.
    pub limited: bool,
    /// The new weight is also stored in f16; only in place.
    pub narrow: bool,
    /// Invocations of a workgroup.
    pub size: u32,
}

/// What is read, in the order of positions.
const READ: [&str; 5] = ["w", "m", "v", "gradient", "scalars"];

impl AdamKey {
    /// Name, position and use of each operand.
    fn operands(&self) -> Vec<(&'static str, usize, Access)> {
        let new: &[&str] = match (self.in_place, self.narrow) {
            (false, _) => &["new_w", "new_m", "new_v"],
            (true, true) => &["narrow_w"],
            (true, false) => &[],
        };
        let written = |position: usize| position >= READ.len() || self.in_place && position < 3;
        let access = |position| if written(position) { Access::ReadWrite } else { Access::Read };
        READ.iter().chain(new).enumerate().map(|(position, name)| (*name, position, access(position))).collect()
    }

    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let bindings: Vec<(&str, &str, String)> = self
            .operands()
            .into_iter()
            .map(|(name, _, access)| {
                let access = if access == Access::Read { "read" } else { "read_write" };
                let ty = match name {
                    "scalars" => "f32".to_owned(),
                    "gradient" => format!("vec4<{}>", wgsl_type(self.gradient)),
                    "narrow_w" => "vec4<f16>".to_owned(),
                    _ => "vec4<f32>".to_owned(),
                };
                (name, access, ty)
            })
            .collect();
        let new = |name: &str| if self.in_place { name.to_owned() } else { format!("new_{name}") };
        let values = context! {
            f16 => self.gradient == DType::F16 || self.narrow, decoupled => self.decoupled, in_place => self.in_place,
            limited => self.limited, narrow => self.narrow, size => self.size, bindings, new_w => new("w"), new_m => new("m"), new_v => new("v"),
        };
        template::render(NAME, params, values)
    }

    /// w, m, v, gradient and scalars, then the new w, m and v, or in place the new w in f16 if that is stored.
    pub fn bindings(&self) -> Vec<Access> {
        self.operands().into_iter().map(|(.., access)| access).collect()
    }
}

/// One step over so many weights, with so many scalars. Operands: w, m, v, gradient, scalars, then the new w, m and v,
/// or `in_place` the new w in f16 if the attributes ask for it. Of weights that are not in place a launch of its own makes
/// that: they would take nine buffers.
pub fn launches(
    attrs: &AdamAttrs,
    gradient: DType,
    [weights, scalars]: [usize; 2],
    in_place: bool,
    caps: &DeviceCaps,
) -> Result<Vec<Launch<usize>>, KernelError> {
    split::float(NAME, gradient, caps)?;
    let quads = weights.div_ceil(4);
    let size = split::workgroup(NAME, quads, 0, caps)?;
    let narrow = attrs.narrow && in_place;
    if narrow {
        split::float(NAME, DType::F16, caps)?;
    }
    let key = AdamKey { gradient, decoupled: attrs.decoupled, in_place, limited: scalars == 5, narrow, size };
    let tensor = |(name, position, _): (&str, usize, Access)| match name {
        "scalars" => Rows::whole(position, 4 * scalars as u64),
        "gradient" => Rows::cut(position, quads, 4 * gradient.size() as u64),
        "narrow_w" => Rows::cut(position, quads, 4 * DType::F16.size() as u64),
        _ => Rows::cut(position, quads, 16),
    };
    let tensors: Vec<Rows> = key.operands().into_iter().map(tensor).collect();
    let mut launches = Vec::new();
    for rows in split::windows(NAME, quads, &tensors, caps)? {
        let groups = rows.len().div_ceil(size as usize);
        let mut params = vec![split::word(NAME, "groups", groups)?, split::word(NAME, "quads", rows.len())?];
        for beta in [attrs.beta1.get(), attrs.beta2.get()] {
            params.extend([beta.to_bits(), ((1.0 - f64::from(beta)) as f32).to_bits()]);
        }
        params.extend([attrs.eps.get().to_bits(), attrs.weight_decay.get().to_bits()]);
        let elements = 4.0 * rows.len() as f64;
        launches.push(Launch {
            key: KernelKey::Adam(key.clone()),
            params,
            groups: groups as u64,
            operands: tensors.iter().map(|t| t.window(&rows)).collect(),
            // three read, three written, two moments of three and four operations, the decay's two and the step's seven
            estimate: Estimate {
                flops: 16.0 * elements,
                bytes: elements * (24.0 + gradient.size() as f64 + if narrow { 2.0 } else { 0.0 }),
            },
        });
    }
    Ok(launches)
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    let mut keys = Vec::new();
    for gradient in [DType::F32, DType::F16] {
        for decoupled in [false, true] {
            for (in_place, narrow) in [(false, false), (true, false), (true, true)] {
                for (limited, size) in [(false, 64), (false, 256), (true, 64), (true, 256)] {
                    keys.push(KernelKey::Adam(AdamKey { gradient, decoupled, in_place, limited, narrow, size }));
                }
            }
        }
    }
    keys
}
