//! In: the weights of a stack of layers of one width as a view; out: the launch of pack_weights.wgsl, which lays them out
//! as the matrices that linear_stack_units.wgsl loads. Knows no other kernel.

use super::split::sizes;
use super::units::Units;
use super::view::window;
use super::{Access, Estimate, KernelError, KernelKey, Launch, ParamSpace, View, template, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::DType;
use minijinja::context;

pub(super) const NAME: &str = "pack_weights";

/// Invocations in a workgroup.
pub(super) const SIZE: u32 = 256;

/// What changes pack_weights.wgsl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackWeightsKey {
    /// Stored type of the weights.
    pub dtype: DType,
    /// Columns of a layer's input and result.
    pub width: usize,
    /// The units that load the matrices.
    pub units: Units,
}

impl PackWeightsKey {
    /// WGSL of this key.
    pub fn source(&self, params: ParamSpace) -> String {
        let values = context! {
            scalar => wgsl_type(self.dtype), width => self.width, u => self.units.context(), split => self.units.split,
            scaled => self.dtype == DType::F32, threads => SIZE,
        };
        template::render(NAME, params, values)
    }

    /// The weights, the matrices, and what undoes the scales of f32 ones.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read, Access::ReadWrite];
        all.extend((self.dtype == DType::F32).then_some(Access::ReadWrite));
        all
    }
}

pub(super) const PARAMS: &[&str] = &["groups", "w_offset", "w_layer", "w_outer", "w_inner"];

/// Bytes of the matrices of so many layers, and of what undoes their columns' scales, which those of f16 have not.
pub fn packed_bytes(layers: usize, width: usize, dtype: DType, units: Units) -> [usize; 2] {
    let halves = if units.split { 2 } else { 1 };
    let factors = if dtype == DType::F32 { layers * width * DType::F32.size() } else { 0 };
    [layers * width * width * halves * DType::F16.size(), factors]
}

/// Operands: weights (L, outer, inner) of any strides, matrices, factors.
pub fn launch(w: &View, dtype: DType, units: Units, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
    let (layers, width) = (w.dims[0], w.dims[1]);
    let groups = layers * (width / units.units.side() as usize);
    let (weights, first) = window(NAME, 0, "the weights", w.offset, w.end(), dtype.size(), caps)?;
    let packed = packed_bytes(layers, width, dtype, units);
    let mut operands = vec![weights];
    for (operand, bytes) in (1..).zip(packed).filter(|(_, bytes)| *bytes > 0) {
        operands.push(window(NAME, operand, "packed weights", 0, bytes, 1, caps)?.0);
    }
    let words = [
        ("groups", groups),
        ("offset", first),
        ("layer stride", w.strides[0]),
        ("outer stride", w.strides[1]),
        ("inner stride", w.strides[2]),
    ];
    let bytes = w.elements() * dtype.size() + packed[0] + packed[1];
    Ok(Launch {
        key: KernelKey::PackWeights(PackWeightsKey { dtype, width, units }),
        params: sizes(NAME, words)?,
        groups: groups as u64,
        operands,
        estimate: Estimate { flops: 0.0, bytes: bytes as f64 },
    })
}

#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use crate::caps::MatrixUnits;
    let devices = [8, 16].map(|side| MatrixUnits::Device { side, lanes: 32 });
    let emulated = [4, 8, 16].map(|side| MatrixUnits::Emulated { side });
    let mut keys = Vec::new();
    for units in devices.into_iter().chain(emulated) {
        for (dtype, split, width) in [(DType::F32, false, 256), (DType::F32, true, 96), (DType::F16, false, 64)] {
            let units = Units { units, split };
            keys.push(KernelKey::PackWeights(PackWeightsKey { dtype, width, units }));
        }
    }
    keys
}
