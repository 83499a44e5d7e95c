//! In: what an adapter reports, filled by `gpu`; out: [`DeviceCaps`], plain data that select and plan decide by, and
//! [`MatmulPrecision`], what a caller asks of a device's products.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How exact products of f32 operands are, by the names of PyTorch's `set_float32_matmul_precision`. It does not change
/// what is stored, nor products of operands that are stored in f16: their elements are exact in f16, and a device's
/// matrix units take them as they are, with sums in f32. Products of fewer than 16 rows, columns or inner elements are made
/// by multiply-adds at every precision, but for those in attention. docs/precision.md holds the errors of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatmulPrecision {
    /// Multiply-adds in f32.
    #[default]
    Highest,
    /// Each operand is scaled by powers of two, a row of the left and a column of the right one, and split into two f16
    /// numbers, together 22 bits; the matrix units add up three products of them in f32 (Ootomo and Yokota, arXiv
    /// 2203.03341). About as exact as f32: an error of at most 2e-6 of a product's norm; over the layers of a
    /// stack, which all lean the same way, they add up.
    High,
    /// Operands are scaled in the same way and rounded to f16, 11 bits; products by the matrix units, sums in f32. An
    /// error of about 3e-4 of the result's norm.
    Medium,
}

/// `highest`, `high` or `medium`.
impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatmulPrecision::Highest => "highest",
            MatmulPrecision::High => "high",
            MatmulPrecision::Medium => "medium",
        })
    }
}

/// The inverse of its `Display`.
impl std::str::FromStr for MatmulPrecision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [MatmulPrecision::Highest, MatmulPrecision::High, MatmulPrecision::Medium];
        let found = all.into_iter().find(|p| p.to_string() == name);
        found.ok_or_else(|| format!("precision {name:?} does not exist; use highest, high or medium"))
    }
}

/// Units that multiply square f16 matrices and add the product to one of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatrixUnits {
    /// The device's own, by cooperative matrices.
    Device {
        /// Rows and columns of each matrix: 16 on NVIDIA and AMD, 8 on Metal.
        side: u32,
        /// Invocations of a subgroup, which hold a matrix together.
        lanes: u32,
    },
    /// The same kernels with each matrix an array of one invocation, in plain WGSL. It is slow: for tests of all but the
    /// units themselves. No adapter reports it; [`DeviceCaps::within`] allows it wherever there is f16.
    Emulated {
        /// Rows and columns of each matrix: 4, 8 or 16. CPUs take long to compile a kernel of large ones.
        side: u32,
    },
}

impl MatrixUnits {
    /// Rows and columns of each matrix.
    pub fn side(self) -> u32 {
        match self {
            MatrixUnits::Device { side, .. } | MatrixUnits::Emulated { side } => side,
        }
    }

    /// Invocations that hold a matrix together.
    pub fn lanes(self) -> u32 {
        match self {
            MatrixUnits::Device { lanes, .. } => lanes,
            MatrixUnits::Emulated { .. } => 1,
        }
    }
}

/// Limits and features of a device, in the units that WebGPU uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCaps {
    /// Largest range of a storage buffer that one binding may cover, bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer, bytes.
    pub max_buffer_bytes: u64,
    /// Storage buffers one dispatch may bind.
    pub max_storage_buffers: u32,
    /// Workgroups along one dimension of a dispatch.
    pub max_groups: u32,
    /// Workgroup memory, bytes.
    pub workgroup_bytes: u32,
    /// Invocations in a workgroup.
    pub max_invocations: u32,
    /// Offsets of storage bindings are multiples of this, bytes.
    pub storage_align: u64,
    /// Offsets of uniform bindings are multiples of this, bytes.
    pub uniform_align: u64,
    /// Bytes of parameters that a dispatch may carry in immediates, 0 without them.
    pub immediate_bytes: u32,
    /// Whether shaders compute with and store f16.
    pub f16: bool,
    /// Whether shaders compute with 64-bit integers.
    #[serde(default)]
    pub int64: bool,
    /// Whether GPU timestamps can be written inside a pass.
    pub timestamps: bool,
    /// Smallest and largest subgroup, `None` without subgroup operations.
    pub subgroup: Option<(u32, u32)>,
    /// Matrix units, `None` without.
    #[serde(default)]
    pub units: Option<MatrixUnits>,
    /// Whether this is a CPU that acts as a GPU: barriers are dear there and workgroup memory is plain memory.
    pub cpu: bool,
}

/// The most bytes that a kernel binds, all of which it counts in 32 bits.
pub(crate) const MOST_BOUND: u64 = (1 << 32) - 256;

impl DeviceCaps {
    /// WebGPU's default limits without any optional feature: what every adapter offers.
    pub const PORTABLE: DeviceCaps = DeviceCaps {
        max_binding_bytes: 128 << 20,
        max_buffer_bytes: 256 << 20,
        max_storage_buffers: 8,
        max_groups: 65_535,
        workgroup_bytes: 16 << 10,
        max_invocations: 256,
        storage_align: 256,
        uniform_align: 256,
        immediate_bytes: 0,
        f16: false,
        int64: false,
        timestamps: false,
        subgroup: None,
        units: None,
        cpu: false,
    };
}

impl DeviceCaps {
    /// These caps, tightened by others: what both allow.
    pub fn within(&self, tighter: &DeviceCaps) -> DeviceCaps {
        let max_invocations = self.max_invocations.min(tighter.max_invocations);
        let units = match tighter.units {
            // what goes with a product on them takes as many
            _ if max_invocations < 256 => None,
            Some(MatrixUnits::Emulated { .. }) if !(self.f16 && tighter.f16) => None,
            Some(MatrixUnits::Emulated { side }) => {
                [4, 8, 16].contains(&side).then_some(MatrixUnits::Emulated { side })
            }
            units => self.units.filter(|own| self.f16 && tighter.f16 && Some(*own) == units),
        };
        DeviceCaps {
            max_binding_bytes: self.max_binding_bytes.min(tighter.max_binding_bytes),
            max_buffer_bytes: self.max_buffer_bytes.min(tighter.max_buffer_bytes),
            max_storage_buffers: self.max_storage_buffers.min(tighter.max_storage_buffers),
            max_groups: self.max_groups.min(tighter.max_groups),
            workgroup_bytes: self.workgroup_bytes.min(tighter.workgroup_bytes),
            max_invocations,
            storage_align: self.storage_align.max(tighter.storage_align),
            uniform_align: self.uniform_align.max(tighter.uniform_align),
            immediate_bytes: self.immediate_bytes.min(tighter.immediate_bytes),
            f16: self.f16 && tighter.f16,
            int64: self.int64 && tighter.int64,
            timestamps: self.timestamps && tighter.timestamps,
            subgroup: self.subgroup.filter(|_| tighter.subgroup.is_some()),
            units,
            // which kernels run well, not what is allowed
            cpu: tighter.cpu,
        }
    }

    /// These caps with alignments that copies and uniform words can live with, and bindings that kernels count in 32 bits,
    /// whatever was asked for.
    pub fn usable(&self) -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: self.max_binding_bytes.min(MOST_BOUND),
            storage_align: self.storage_align.clamp(16, 1 << 20).next_power_of_two(),
            uniform_align: self.uniform_align.clamp(16, 1 << 20).next_power_of_two(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceCaps, MatmulPrecision, MatrixUnits};

    #[test]
    fn units_stay_where_both_have_them_and_are_emulated_where_that_is_asked_for() {
        let device = Some(MatrixUnits::Device { side: 16, lanes: 32 });
        let emulated = Some(MatrixUnits::Emulated { side: 8 });
        let caps = |units, f16| DeviceCaps { units, f16, ..DeviceCaps::PORTABLE };
        let within = |own, f16, tighter| caps(own, f16).within(&caps(tighter, true)).units;
        assert_eq!(within(device, true, device), device);
        assert_eq!(within(device, true, None), None);
        assert_eq!(within(None, true, device), None);
        assert_eq!(within(device, true, Some(MatrixUnits::Device { side: 8, lanes: 32 })), None);
        assert_eq!(within(None, true, emulated), emulated);
        assert_eq!(within(device, true, emulated), emulated);
        assert_eq!(within(None, false, emulated), None);
        assert_eq!(within(None, true, Some(MatrixUnits::Emulated { side: 12 })), None);
        assert_eq!(caps(device, true).within(&caps(device, false)).units, None);
        let few = DeviceCaps { max_invocations: 128, ..caps(device, true) };
        assert_eq!(caps(device, true).within(&few).units, None);
    }

    #[test]
    fn precisions_are_named_as_pytorch_names_them() {
        for (name, precision) in [
            ("highest", MatmulPrecision::Highest),
            ("high", MatmulPrecision::High),
            ("medium", MatmulPrecision::Medium),
        ] {
            assert_eq!((name.parse(), precision.to_string()), (Ok(precision), name.to_owned()));
        }
        let error = "tf32".parse::<MatmulPrecision>().unwrap_err();
        assert_eq!(error, "precision \"tf32\" does not exist; use highest, high or medium");
    }
}
