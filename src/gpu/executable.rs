//! In: a recording; out: [`Executable`]: its buffers, pipelines and bind groups, made once.

use super::mapped::Mapped;
use super::{Counters, Gpu, GpuError};
use crate::kernel::{Access, KernelKey};
use crate::record::{BufferId, LEAST_BINDING, Recording};
use crate::trace::{Clock, HostSpan};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// How an executable is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutableOptions {
    /// All of naga's run-time checks are compiled in.
    pub checked: bool,
    /// Every byte that the program does not write itself is NaN at first, so that a read of it shows.
    pub poison: bool,
    /// Runs may be profiled with timestamps, where the adapter has them.
    pub timestamps: bool,
}

/// A recording with everything that its runs need.
pub struct Executable {
    pub(super) gpu: Gpu,
    pub(super) recording: Recording,
    pub(super) buffers: Vec<wgpu::Buffer>,
    pub(super) pipelines: Vec<wgpu::ComputePipeline>,
    pub(super) bind_groups: Vec<wgpu::BindGroup>,
    pub(super) staging: Mutex<Vec<wgpu::Buffer>>,
    /// A row of inputs for each run of a submission that has several.
    pub(super) rows: Mutex<Option<wgpu::Buffer>>,
    /// Held while a run, a write or a read is submitted: none comes between the parts of another.
    pub(super) order: Mutex<()>,
    pub(super) timestamps: bool,
    made: Vec<HostSpan>,
}

/// Repeated: a NaN as f32 and as two f16, -1 as i32.
const POISON: u8 = 0xff;

/// Bytes that are handed to the queue before it is flushed, so that staging memory stays small.
const UPLOAD: usize = 64 << 20;

impl Executable {
    /// Makes buffers, pipelines (in parallel) and bind groups.
    pub fn new(gpu: &Gpu, recording: Recording, options: ExecutableOptions) -> Result<Executable, GpuError> {
        gpu.check()?;
        let mut clock = Clock::start(true);
        let buffers = clock.time("buffers", || make_buffers(gpu, &recording))?;
        let params = make_params(gpu, &recording)?;
        let layouts: Vec<wgpu::BindGroupLayout> = recording.kernels.iter().map(|k| bind_group_layout(gpu, k)).collect();
        let zero = clock.ns();
        let (pipelines, each) =
            clock.time("pipelines", || make_pipelines(gpu, &recording, &layouts, options.checked))?;
        let bind_groups = recording.dispatches.iter().map(|d| {
            let mut entries =
                vec![wgpu::BindGroupEntry { binding: 0, resource: range(&params, d.params.0, d.params.1) }];
            entries.extend(d.bindings.iter().zip(1..).map(|(b, binding)| wgpu::BindGroupEntry {
                binding,
                resource: range(&buffers[b.buffer.0], b.offset, b.bytes),
            }));
            Counters::add(&gpu.counters().bind_groups, 1);
            let layout = &layouts[d.kernel];
            gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some(&d.name), layout, entries: &entries })
        });
        let bind_groups = clock
            .time("bind groups", || gpu.scoped(|| bind_groups.collect()))
            .map_err(|e| GpuError::Refused { reason: e.to_string() })?;
        let mut made = clock.spans();
        made.extend(each.into_iter().map(|s| s.later(zero)));
        let executable = Executable {
            gpu: gpu.clone(),
            recording,
            buffers,
            pipelines,
            bind_groups,
            staging: Mutex::default(),
            rows: Mutex::default(),
            order: Mutex::default(),
            timestamps: options.timestamps && gpu.caps().timestamps,
            made,
        };
        if options.poison {
            executable.poison()?;
        }
        Ok(executable)
    }

    /// What it runs.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// When its parts were made, from the begin of [`Executable::new`].
    pub fn made(&self) -> &[HostSpan] {
        &self.made
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Writes bytes into a buffer ahead of the next run.
    pub fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.gpu.check()?;
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let target = &self.buffers[buffer.0];
        for (i, piece) in bytes.chunks(UPLOAD).enumerate() {
            let at = offset + (i * UPLOAD) as u64;
            // copies are whole words; buffers are padded to them
            let whole = piece.len() / 4 * 4;
            self.gpu.queue.write_buffer(target, at, &piece[..whole]);
            if whole < piece.len() {
                let mut word = [0; 4];
                word[..piece.len() - whole].copy_from_slice(&piece[whole..]);
                self.gpu.queue.write_buffer(target, at + whole as u64, &word);
            }
            if piece.len() == UPLOAD {
                self.gpu.queue.submit([]);
                self.gpu.wait(None)?;
            }
        }
        self.gpu.check()
    }

    /// Reads bytes of a buffer as the last submitted run leaves them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self, buffer: BufferId, offset: u64, bytes: usize) -> Result<Vec<u8>, GpuError> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        read_buffer(&self.gpu, &self.buffers[buffer.0], offset, bytes)
    }

    fn poison(&self) -> Result<(), GpuError> {
        let states: Vec<BufferId> = self.recording.states.iter().map(|s| s.buffer).collect();
        for (i, spec) in self.recording.buffers.iter().enumerate() {
            let id = BufferId(i);
            if states.contains(&id) {
                continue;
            }
            let bytes = vec![POISON; (spec.bytes as usize).min(UPLOAD)];
            for offset in (0..spec.bytes).step_by(UPLOAD) {
                let len = bytes.len().min((spec.bytes - offset) as usize);
                self.write(id, offset, &bytes[..len])?;
            }
        }
        Ok(())
    }
}

/// Copies bytes of a buffer to the host, after all that was submitted before.
pub(super) fn read_buffer(gpu: &Gpu, buffer: &wgpu::Buffer, offset: u64, bytes: usize) -> Result<Vec<u8>, GpuError> {
    gpu.check()?;
    let whole = (bytes as u64).next_multiple_of(4);
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let staging = make_buffer(gpu, "staging", whole.max(4), usage, whole)?;
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("read") });
    encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, whole);
    let index = gpu.queue.submit([encoder.finish()]);
    let mapped = Mapped::of(&staging);
    gpu.wait(Some(index))?;
    mapped.take(gpu)?;
    let view = staging.get_mapped_range(..).map_err(|e| GpuError::Refused { reason: e.to_string() })?;
    Ok(view[..bytes].to_vec())
}

fn range(buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(bytes) })
}

pub(super) fn make_buffer(
    gpu: &Gpu,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
    total: u64,
) -> Result<wgpu::Buffer, GpuError> {
    let limit = gpu.caps().max_buffer_bytes;
    if bytes > limit {
        return Err(GpuError::Limit { buffer: label.to_owned(), bytes, limit });
    }
    let descriptor = wgpu::BufferDescriptor { label: Some(label), size: bytes, usage, mapped_at_creation: false };
    gpu.scoped(|| gpu.device.create_buffer(&descriptor)).map_err(|e| match e {
        wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory { buffer: label.to_owned(), bytes, total },
        other => gpu.check().err().unwrap_or(GpuError::Refused { reason: other.to_string() }),
    })
}

fn make_buffers(gpu: &Gpu, recording: &Recording) -> Result<Vec<wgpu::Buffer>, GpuError> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let total = recording.bytes();
    recording.buffers.iter().map(|b| make_buffer(gpu, &b.name, b.bytes, usage, total)).collect()
}

fn make_params(gpu: &Gpu, recording: &Recording) -> Result<wgpu::Buffer, GpuError> {
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let bytes = (recording.params.len() as u64 * 4).max(16);
    let params = make_buffer(gpu, "parameters", bytes, usage, recording.bytes())?;
    gpu.queue.write_buffer(&params, 0, bytemuck::cast_slice(&recording.params));
    Ok(params)
}

fn bind_group_layout(gpu: &Gpu, key: &KernelKey) -> wgpu::BindGroupLayout {
    // sizes that are known here need no check at each dispatch
    let buffer = |binding: u32, ty: wgpu::BufferBindingType, least: u64| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: wgpu::BufferSize::new(least) },
        count: None,
    };
    let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform, key.params().len() as u64 * 4)];
    entries.extend(key.bindings().iter().zip(1..).map(|(access, binding)| {
        buffer(binding, wgpu::BufferBindingType::Storage { read_only: *access == Access::Read }, LEAST_BINDING)
    }));
    gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(key.name()), entries: &entries })
}

/// Threads take kernels from a shared counter until none is left or one fails. Also gives when each was made.
fn make_pipelines(
    gpu: &Gpu,
    recording: &Recording,
    layouts: &[wgpu::BindGroupLayout],
    checked: bool,
) -> Result<(Vec<wgpu::ComputePipeline>, Vec<HostSpan>), GpuError> {
    let count = recording.kernels.len();
    let next = AtomicUsize::new(0);
    let clock = Clock::start(true);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(count.max(1));
    let work = |thread: u32| {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return Ok(made);
            }
            let begin = clock.ns();
            match make_pipeline(gpu, recording, i, &layouts[i], checked) {
                Ok(pipeline) => {
                    let name = recording.kernels[i].name().to_owned();
                    made.push((i, pipeline, HostSpan { name, thread, begin, end: clock.ns() }));
                }
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let results: Vec<Result<Vec<_>, GpuError>> = if threads == 1 {
        vec![work(1)]
    } else {
        std::thread::scope(|scope| {
            let work = &work;
            let handles: Vec<_> = (1..=threads as u32).map(|thread| scope.spawn(move || work(thread))).collect();
            let join = |h: std::thread::ScopedJoinHandle<'_, Result<Vec<_>, GpuError>>| {
                h.join().unwrap_or_else(|_| {
                    Err(GpuError::Refused { reason: "a thread that compiled shaders panicked".into() })
                })
            };
            handles.into_iter().map(join).collect()
        })
    };
    let mut all = Vec::new();
    for result in results {
        all.extend(result?);
    }
    all.sort_by_key(|(i, ..)| *i);
    Ok(all.into_iter().map(|(_, pipeline, span)| (pipeline, span)).unzip())
}

fn make_pipeline(
    gpu: &Gpu,
    recording: &Recording,
    index: usize,
    layout: &wgpu::BindGroupLayout,
    checked: bool,
) -> Result<wgpu::ComputePipeline, GpuError> {
    let key = &recording.kernels[index];
    let source = key.source();
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(key.name()),
        source: wgpu::ShaderSource::Wgsl(source.as_str().into()),
    };
    let made = gpu.scoped(|| {
        let module = if checked {
            gpu.device.create_shader_module(descriptor)
        } else {
            // SAFETY: select derives every size, stride and window from shapes that were checked when the graph was
            // built; kernels clamp or guard every index that depends on data, all their loops are bounded by those
            // sizes, and no kernel divides by a number that can be zero.
            unsafe { gpu.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
        };
        let layouts = [Some(layout)];
        let pipeline_layout = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(key.name()),
            bind_group_layouts: &layouts,
            immediate_size: 0,
        });
        gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(key.name()),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            // kernels write workgroup memory before they read it
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: checked,
                ..Default::default()
            },
            cache: None,
        })
    });
    Counters::add(&gpu.counters().pipelines, 1);
    made.map_err(|e| {
        let node = recording.dispatches.iter().find(|d| d.kernel == index).map_or(String::new(), |d| d.name.clone());
        let lines: Vec<String> = source.lines().take(60).enumerate().map(|(i, l)| format!("{:4} {l}", i + 1)).collect();
        gpu.check().err().unwrap_or(GpuError::Kernel {
            kernel: key.name().into(),
            node,
            reason: e.to_string(),
            excerpt: lines.join("\n"),
        })
    })
}
