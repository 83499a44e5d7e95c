//! In: [`Selected`] launches and a [`MemoryPlan`]; out: [`Recording`], a flat, printable list of dispatches over buffer
//! ids that `gpu` turns into wgpu calls. Knows neither what ops mean nor wgpu.

mod barriers;

pub use barriers::{Barrier, Barriers};

use crate::caps::DeviceCaps;
use crate::kernel::{Access, Estimate, KernelKey, ParamSpace};
use crate::plan::MemoryPlan;
use crate::select::{Port, Selected, TensorId, TensorKind};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Index of a buffer in [`Recording::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// A buffer to make.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferSpec {
    /// Its label.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// A range of a buffer that a dispatch binds.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Read only or writable.
    pub access: Access,
}

/// A kernel and where it reads its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// All else that changes its text.
    pub key: KernelKey,
    /// The same for all of its dispatches.
    pub params: ParamSpace,
}

impl Kernel {
    /// The stem of its WGSL file.
    pub fn name(&self) -> &'static str {
        self.key.name()
    }

    /// Its WGSL.
    pub fn source(&self) -> String {
        self.key.source(self.params)
    }
}

/// The parameters of a dispatch, in its kernel's [`ParamSpace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Params {
    /// A range of the parameter buffer.
    Uniform {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A range of [`Recording::immediates`].
    Immediate(Range<usize>),
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The node's name.
    pub name: String,
    /// Index in [`Recording::kernels`].
    pub kernel: usize,
    /// Storage bindings, from binding 1 on.
    pub bindings: Vec<Binding>,
    /// Its parameters.
    pub params: Params,
    /// Workgroups.
    pub grid: [u32; 3],
    /// Its cost.
    pub estimate: Estimate,
}

/// A value that crosses the API, as bytes of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferPort {
    /// Name, type and bound.
    pub port: Port,
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
}

/// Everything that a run does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// All buffers.
    pub buffers: Vec<BufferSpec>,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// The dispatches in order.
    pub dispatches: Vec<Dispatch>,
    /// The first dispatch of each compute pass, in order. One pass holds all, but for dispatches that run side by side:
    /// they begin a pass, before which all of their buffers are waited for at once; see [`Barriers`].
    pub passes: Vec<usize>,
    /// Words of the parameter buffer.
    pub uniforms: Vec<u32>,
    /// Words that dispatches carry.
    pub immediates: Vec<u32>,
    /// What a run is given.
    pub inputs: Vec<BufferPort>,
    /// The buffer that holds all inputs, if there are any.
    pub input_buffer: Option<BufferId>,
    /// What stays on the device.
    pub states: Vec<BufferPort>,
    /// What a run gives back.
    pub outputs: Vec<BufferPort>,
    /// The buffer and first byte of each weight's tensor, in the order of [`Selected::weights`].
    pub weights: Vec<(BufferId, u64)>,
}

/// Every storage binding covers at least this many bytes, a vec4 of the widest element; buffers are multiples of it.
pub const LEAST_BINDING: u64 = 16;

/// Small weights share buffers of about this size: fewer buffers for wgpu to track, which it does for each dispatch
/// anew. A larger weight has one of its own.
const SHARED_WEIGHTS: u64 = 64 << 20;

/// Lays out buffers and parameters. Inputs lie in one buffer, so that a run uploads once; weights, which are only read,
/// share some.
pub fn lower(selected: &Selected, plan: &MemoryPlan, caps: &DeviceCaps) -> Recording {
    let mut buffers: Vec<BufferSpec> = (plan.slot_bytes.iter().enumerate())
        .map(|(i, b)| BufferSpec { name: format!("slot {i}"), bytes: *b })
        .collect();
    let mut place: HashMap<TensorId, (BufferId, u64)> = HashMap::new();
    let mut input_bytes = 0;
    let mut inputs = Vec::new();
    let mut shared: Option<BufferId> = None;
    for (i, spec) in selected.tensors.iter().enumerate() {
        let id = TensorId(i);
        match (spec.kind, plan.slots[i]) {
            (TensorKind::Input, _) => {
                inputs.push((id, input_bytes));
                input_bytes += spec.bytes.max(1).next_multiple_of(caps.storage_align.max(16));
            }
            (TensorKind::Temp, Some(slot)) => {
                place.insert(id, (BufferId(slot.0), 0));
            }
            (TensorKind::Temp, None) => {}
            (TensorKind::State, _) => {
                buffers.push(BufferSpec { name: spec.name.clone(), bytes: spec.bytes.max(1).next_multiple_of(16) });
                place.insert(id, (BufferId(buffers.len() - 1), 0));
            }
            (TensorKind::Weight, _) => {
                let bytes = spec.bytes.max(1).next_multiple_of(caps.storage_align.max(16));
                let most = SHARED_WEIGHTS.min(caps.max_buffer_bytes);
                let buffer = match shared.filter(|b| buffers[b.0].bytes + bytes <= most) {
                    Some(buffer) => buffer,
                    None => {
                        buffers.push(BufferSpec { name: format!("weights from {}", spec.name), bytes: 0 });
                        BufferId(buffers.len() - 1)
                    }
                };
                place.insert(id, (buffer, buffers[buffer.0].bytes));
                buffers[buffer.0].bytes += bytes;
                shared = Some(buffer);
            }
        }
    }
    let input_buffer = (input_bytes > 0).then(|| {
        buffers.push(BufferSpec { name: "inputs".into(), bytes: input_bytes });
        BufferId(buffers.len() - 1)
    });
    for (id, offset) in inputs {
        place.insert(id, (input_buffer.expect("every input takes at least a byte"), offset));
    }
    let mut recording = Recording {
        buffers,
        kernels: Vec::new(),
        dispatches: Vec::new(),
        passes: (0..selected.steps.len().min(1)).collect(),
        uniforms: Vec::new(),
        immediates: Vec::new(),
        inputs: ports(&selected.inputs, &place),
        input_buffer,
        states: ports(&selected.states, &place),
        outputs: ports(&selected.outputs, &place),
        weights: selected.weights.iter().map(|w| place[&w.tensor]).collect(),
    };
    let mut kernels: HashMap<KernelKey, usize> = HashMap::new();
    for (at, step) in selected.steps.iter().enumerate() {
        // the first of a group is the one before its second
        if let Some(first) =
            at.checked_sub(1).filter(|first| step.beside && !selected.steps[*first].beside && *first > 0)
        {
            recording.passes.push(first);
        }
        let launch = &step.launch;
        let kernel = *kernels.entry(launch.key.clone()).or_insert_with(|| {
            recording.kernels.push(Kernel { key: launch.key.clone(), params: launch.key.param_space(caps) });
            recording.kernels.len() - 1
        });
        let bindings = launch.operands.iter().zip(launch.key.bindings()).map(|(o, access)| {
            let (buffer, base) = place[&o.tensor];
            let left = recording.buffers[buffer.0].bytes - base - o.offset;
            Binding {
                buffer,
                offset: base + o.offset,
                bytes: o.bytes.next_multiple_of(LEAST_BINDING).min(left),
                access,
            }
        });
        let bindings = bindings.collect();
        let params = match recording.kernels[kernel].params {
            ParamSpace::Uniform => {
                let offset = recording.uniforms.len() as u64 * 4;
                let bytes = (launch.params.len() as u64 * 4).next_multiple_of(16);
                recording.uniforms.extend(&launch.params);
                let padded = (offset + bytes).next_multiple_of(caps.uniform_align) / 4;
                recording.uniforms.resize(padded as usize, 0);
                Params::Uniform { offset, bytes }
            }
            ParamSpace::Immediate => {
                let first = recording.immediates.len();
                recording.immediates.extend(&launch.params);
                Params::Immediate(first..recording.immediates.len())
            }
        };
        recording.dispatches.push(Dispatch {
            name: step.name.clone(),
            kernel,
            bindings,
            params,
            grid: fold(launch.groups, caps.max_groups),
            estimate: launch.estimate,
        });
    }
    recording
}

fn ports(ports: &[Port], place: &HashMap<TensorId, (BufferId, u64)>) -> Vec<BufferPort> {
    let lay = |port: &Port| {
        let (buffer, base) = place[&port.tensor];
        BufferPort { port: port.clone(), buffer, offset: base + port.offset }
    };
    ports.iter().map(lay).collect()
}

/// Workgroups as a grid of at most `limit` along each dimension; kernels read a linear index and skip what is past
/// the end. Select has refused more than `limit`³ groups.
pub fn fold(groups: u64, limit: u32) -> [u32; 3] {
    let limit = u64::from(limit);
    if groups <= limit {
        return [groups as u32, 1, 1];
    }
    let layers = groups.div_ceil(limit * limit);
    let rows = groups.div_ceil(layers).div_ceil(limit);
    [groups.div_ceil(layers * rows) as u32, rows as u32, layers as u32]
}

impl Recording {
    /// Device bytes of all buffers, that of parameters included.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|b| b.bytes).sum::<u64>() + self.uniforms.len() as u64 * 4
    }

    /// One past the last dispatch of the pass that a dispatch is in.
    pub fn pass_end(&self, dispatch: usize) -> usize {
        let next = self.passes.partition_point(|first| *first <= dispatch);
        self.passes.get(next).copied().unwrap_or(self.dispatches.len())
    }

    /// What each dispatch waits for.
    pub fn barriers(&self) -> Barriers {
        Barriers::of(self)
    }

    /// FLOPs and bytes of all dispatches.
    pub fn estimate(&self) -> Estimate {
        self.dispatches.iter().fold(Estimate::default(), |a, d| Estimate {
            flops: a.flops + d.estimate.flops,
            bytes: a.bytes + d.estimate.bytes,
        })
    }
}

/// One dispatch a line, with its grid, what it binds and where its parameters are.
impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.buffers.iter().enumerate() {
            writeln!(f, "b{i}: {} bytes  # {}", b.bytes, b.name)?;
        }
        for (i, d) in self.dispatches.iter().enumerate() {
            if self.passes.len() > 1 && self.passes.binary_search(&i).is_ok() {
                writeln!(f, "pass:")?;
            }
            write!(f, "{}: {} {:?}", d.name, self.kernels[d.kernel].name(), d.grid)?;
            for b in &d.bindings {
                let mark = if b.access == Access::Read { "" } else { "=" };
                write!(f, " {mark}b{}[{}..{}]", b.buffer.0, b.offset, b.offset + b.bytes)?;
            }
            match &d.params {
                Params::Uniform { offset, bytes } => writeln!(f, " uniform[{offset}..{}]", offset + bytes)?,
                Params::Immediate(words) => writeln!(f, " immediate[{}..{}]", words.start * 4, words.end * 4)?,
            }
        }
        Ok(())
    }
}
