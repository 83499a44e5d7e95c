//! In: what an adapter reports, filled by `gpu`; out: [`DeviceCaps`], plain data that select and plan decide by.

use serde::{Deserialize, Serialize};

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
    /// Whether GPU timestamps can be written inside a pass.
    pub timestamps: bool,
    /// Smallest and largest subgroup, `None` without subgroup operations.
    pub subgroup: Option<(u32, u32)>,
    /// Whether this is a CPU that acts as a GPU: barriers are dear there and workgroup memory is plain memory.
    pub cpu: bool,
}

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
        timestamps: false,
        subgroup: None,
        cpu: false,
    };
}

impl DeviceCaps {
    /// These caps, tightened by others: what both allow.
    pub fn within(&self, tighter: &DeviceCaps) -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: self.max_binding_bytes.min(tighter.max_binding_bytes),
            max_buffer_bytes: self.max_buffer_bytes.min(tighter.max_buffer_bytes),
            max_storage_buffers: self.max_storage_buffers.min(tighter.max_storage_buffers),
            max_groups: self.max_groups.min(tighter.max_groups),
            workgroup_bytes: self.workgroup_bytes.min(tighter.workgroup_bytes),
            max_invocations: self.max_invocations.min(tighter.max_invocations),
            storage_align: self.storage_align.max(tighter.storage_align),
            uniform_align: self.uniform_align.max(tighter.uniform_align),
            immediate_bytes: self.immediate_bytes.min(tighter.immediate_bytes),
            f16: self.f16 && tighter.f16,
            timestamps: self.timestamps && tighter.timestamps,
            subgroup: self.subgroup.filter(|_| tighter.subgroup.is_some()),
            // which kernels run well, not what is allowed
            cpu: tighter.cpu,
        }
    }

    /// These caps with alignments that copies and uniform words can live with, whatever was asked for.
    pub fn aligned(&self) -> DeviceCaps {
        DeviceCaps {
            storage_align: self.storage_align.clamp(16, 1 << 20).next_power_of_two(),
            uniform_align: self.uniform_align.clamp(16, 1 << 20).next_power_of_two(),
            ..self.clone()
        }
    }
}
