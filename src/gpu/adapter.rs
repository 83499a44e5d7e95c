//! In: what the machine has; out: a list of adapters, one of them chosen, and its [`DeviceCaps`].

use super::GpuError;
use crate::caps::{DeviceCaps, MatrixUnits};
use std::fmt;

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AdapterChoice {
    /// Discrete before integrated before virtual before CPU.
    #[default]
    Best,
    /// The first whose name contains this, whatever its case, or that has this PCI address.
    Named(String),
}

/// An adapter in words.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Its driver and version.
    pub driver: String,
    /// Vulkan, Metal or DX12.
    pub backend: String,
    /// Discrete, integrated, virtual, CPU or other.
    pub kind: String,
    /// Its PCI address, `0000:61:00.0`, where the driver tells it: two cards of one name differ in it.
    pub pci: Option<String>,
}

impl AdapterInfo {
    /// Whether its name contains a text, whatever its case, or the text is its PCI address.
    pub fn is_named(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.name.to_lowercase().contains(&text) || self.pci.as_ref() == Some(&text)
    }
}

/// `llvmpipe (LLVM 15.0.6, 256 bits) [CPU, Vulkan, llvmpipe Mesa 22.3.6]`.
impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}, {}, {}", self.name, self.kind, self.backend, self.driver)?;
        match &self.pci {
            Some(pci) => write!(f, ", {pci}]"),
            None => write!(f, "]"),
        }
    }
}

fn describe(info: &wgpu::AdapterInfo) -> AdapterInfo {
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete GPU",
        wgpu::DeviceType::IntegratedGpu => "integrated GPU",
        wgpu::DeviceType::VirtualGpu => "virtual GPU",
        wgpu::DeviceType::Cpu => "CPU",
        wgpu::DeviceType::Other => "other",
    };
    AdapterInfo {
        name: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        backend: info.backend.to_string(),
        kind: kind.to_owned(),
        pci: (!info.device_pci_bus_id.is_empty()).then(|| info.device_pci_bus_id.clone()),
    }
}

fn rank(kind: wgpu::DeviceType) -> u8 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// Every adapter, the one that [`AdapterChoice::Best`] takes first.
async fn enumerate() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::PRIMARY;
    if wgpu::Instance::enabled_backend_features().is_empty() {
        return Vec::new();
    }
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    adapters.sort_by_key(|a| rank(a.get_info().device_type));
    adapters
}

/// Every adapter in words, the one that [`AdapterChoice::Best`] takes first.
pub async fn adapters() -> Vec<AdapterInfo> {
    enumerate().await.iter().map(|a| describe(&a.get_info())).collect()
}

/// The adapter that a choice names.
pub(super) async fn choose(choice: &AdapterChoice) -> Result<(wgpu::Adapter, AdapterInfo), GpuError> {
    let mut adapters = enumerate().await;
    let found: Vec<AdapterInfo> = adapters.iter().map(|a| describe(&a.get_info())).collect();
    let (wanted, index) = match choice {
        AdapterChoice::Best => (None, (!found.is_empty()).then_some(0)),
        AdapterChoice::Named(name) => {
            // a name may be the begin of another's
            let whole = found.iter().position(|a| a.name == *name);
            (Some(name.clone()), whole.or_else(|| found.iter().position(|a| a.is_named(name))))
        }
    };
    let Some(index) = index else { return Err(GpuError::NoAdapter { wanted, found }) };
    let info = found[index].clone();
    Ok((adapters.swap_remove(index), info))
}

/// The features that kiln uses where an adapter has them.
pub(super) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    use wgpu::Features as F;
    let units = if units(adapter).is_some() { OF_UNITS } else { F::empty() };
    adapter.features()
        & (units
            | F::SHADER_F16
            | F::SHADER_INT64
            | F::SUBGROUP
            | F::IMMEDIATES
            | F::PIPELINE_CACHE
            | F::TIMESTAMP_QUERY
            | F::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | F::TIMESTAMP_QUERY_INSIDE_PASSES)
}

/// What kernels on matrix units use beside f16 and subgroups.
const OF_UNITS: wgpu::Features =
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SUBGROUP_BARRIER);

/// Units of f16 matrices with sums in f32, of the largest side, where all subgroups are of one size.
fn units(adapter: &wgpu::Adapter) -> Option<MatrixUnits> {
    use wgpu::{CooperativeScalarType as Scalar, Features as F};
    let info = adapter.get_info();
    let wanted = OF_UNITS.union(F::SHADER_F16).union(F::SUBGROUP);
    if !adapter.features().contains(wanted) || info.subgroup_min_size != info.subgroup_max_size {
        return None;
    }
    let all = adapter.cooperative_matrix_properties();
    let side = [16, 8].into_iter().find(|side| {
        all.iter().any(|p| {
            [p.m_size, p.n_size, p.k_size] == [*side; 3] && p.ab_type == Scalar::F16 && p.cr_type == Scalar::F32
        })
    });
    side.map(|side| MatrixUnits::Device { side, lanes: info.subgroup_min_size })
}

/// An adapter's limits and features as plain data.
pub(super) fn caps(adapter: &wgpu::Adapter) -> DeviceCaps {
    let (limits, features, info) = (adapter.limits(), features(adapter), adapter.get_info());
    DeviceCaps {
        // both limits hold for a binding; whole words of the largest alignment
        max_binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) / 256 * 256,
        max_buffer_bytes: limits.max_buffer_size / 256 * 256,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage.min(8),
        max_groups: limits.max_compute_workgroups_per_dimension.min(65_535),
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        max_invocations: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
        storage_align: u64::from(limits.min_storage_buffer_offset_alignment),
        uniform_align: u64::from(limits.min_uniform_buffer_offset_alignment),
        // wgpu keeps track of 64 words
        immediate_bytes: if features.contains(wgpu::Features::IMMEDIATES) {
            limits.max_immediate_size.min(256)
        } else {
            0
        },
        f16: features.contains(wgpu::Features::SHADER_F16),
        int64: features.contains(wgpu::Features::SHADER_INT64),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        subgroup: features
            .contains(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        units: units(adapter),
        cpu: info.device_type == wgpu::DeviceType::Cpu,
    }
}
