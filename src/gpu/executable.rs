//! In: a recording; out: [`Executable`]: its buffers, pipelines and bind groups, made once.

use super::ahead::Ahead;
use super::buffers::{Content, fill, make_buffers, make_uniforms, read_buffer, write_buffer};
use super::{Counters, Gpu, GpuError, Resident};
use crate::kernel::{Access, ParamSpace};
use crate::record::{BufferId, Kernel, LEAST_BINDING, Params, Recording};
use crate::trace::{Clock, HostSpan};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

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
    /// The next run's dispatches.
    pub(super) ahead: Ahead,
    /// A row of inputs for each run of a submission that has several.
    pub(super) rows: Mutex<Option<wgpu::Buffer>>,
    /// Held while a run, a write or a read is submitted: none comes between the parts of another.
    pub(super) order: Mutex<()>,
    pub(super) timestamps: bool,
    /// What each dispatch took in the first run in which all were timed, in nanoseconds.
    pub(super) took: OnceLock<Vec<u64>>,
    made: Vec<HostSpan>,
}

impl Executable {
    /// Makes pipelines (in parallel, and beside the weights), buffers with their contents (zeros where none are given),
    /// then bind groups.
    ///
    /// # Errors
    /// Those of `contents`; if the device fails.
    pub fn new<E: From<GpuError>>(
        gpu: &Gpu,
        recording: Recording,
        options: ExecutableOptions,
        contents: impl IntoIterator<Item = Result<Content, E>>,
    ) -> Result<Executable, E> {
        Executable::over(gpu, recording, &[], options, contents)
    }

    /// Another recording whose first `shared` buffers are this one's, with what is in them; the others are zero.
    ///
    /// # Errors
    /// If the device fails, or those buffers are not of the same sizes.
    pub fn beside(
        &self,
        recording: Recording,
        shared: usize,
        options: ExecutableOptions,
    ) -> Result<Executable, GpuError> {
        let sizes = |r: &Recording| r.buffers.iter().take(shared).map(|b| b.bytes).collect::<Vec<_>>();
        if self.buffers.len() < shared || sizes(&recording) != sizes(&self.recording) {
            return Err(GpuError::Refused { reason: "the buffers to share are of other sizes".into() });
        }
        let contents = std::iter::empty::<Result<Content, GpuError>>();
        Executable::over(&self.gpu, recording, &self.buffers[..shared], options, contents)
    }

    fn over<E: From<GpuError>>(
        gpu: &Gpu,
        recording: Recording,
        shared: &[wgpu::Buffer],
        options: ExecutableOptions,
        contents: impl IntoIterator<Item = Result<Content, E>>,
    ) -> Result<Executable, E> {
        gpu.check()?;
        let mut clock = Clock::start(true);
        let buffers = clock.time("buffers", || make_buffers(gpu, &recording, shared))?;
        let uniforms = make_uniforms(gpu, &recording)?;
        let layouts = make_layouts(gpu, &recording);
        let (zero, begun) = (clock.ns(), clock.zero());
        // bind groups come last: of what is filled when they are made, wgpu need not ask at each dispatch whether it is
        let mut weights = (0, 0);
        let made = clock.time("pipelines", || {
            let make = || make_pipelines(gpu, &recording, &layouts, options.checked);
            let write = || {
                let begin = begun.elapsed();
                let filled = fill(gpu, &recording, &buffers, shared.len(), options.poison, contents);
                weights = (begin.as_nanos() as u64, begun.elapsed().as_nanos() as u64);
                filled
            };
            match threads() {
                1 => make().map_err(E::from).and_then(|made| write().map(|()| made)),
                _ => std::thread::scope(|scope| {
                    let pipelines = scope.spawn(make);
                    let filled = write();
                    let made = pipelines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    filled.and_then(|()| made.map_err(E::from))
                }),
            }
        });
        let (pipelines, each) = made?;
        let bind_groups = recording.dispatches.iter().map(|d| {
            let mut entries = Vec::new();
            if let (Params::Uniform { offset, bytes }, Some(uniforms)) = (&d.params, &uniforms) {
                entries.push(wgpu::BindGroupEntry { binding: 0, resource: range(uniforms, *offset, *bytes) });
            }
            entries.extend(d.bindings.iter().zip(1..).map(|(b, binding)| wgpu::BindGroupEntry {
                binding,
                resource: range(&buffers[b.buffer.0], b.offset, b.bytes),
            }));
            Counters::add(&gpu.counters().bind_groups, 1);
            let layout = &layouts[d.kernel].group;
            gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some(&d.name), layout, entries: &entries })
        });
        let bind_groups = clock
            .time("bind groups", || gpu.scoped(|| bind_groups.collect()))
            .map_err(|e| GpuError::Refused { reason: e.to_string() })?;
        let mut made = clock.spans();
        made.push(HostSpan { name: "weights".into(), thread: 0, begin: weights.0, end: weights.1 });
        made.extend(each.into_iter().map(|s| s.later(zero)));
        Ok(Executable {
            gpu: gpu.clone(),
            recording,
            buffers,
            pipelines,
            bind_groups,
            staging: Mutex::default(),
            ahead: Ahead::default(),
            rows: Mutex::default(),
            order: Mutex::default(),
            timestamps: options.timestamps && gpu.caps().timestamps,
            took: OnceLock::new(),
            made,
        })
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
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        write_buffer(&self.gpu, &self.buffers[buffer.0], offset, bytes)
    }

    /// Writes all ahead of the next run.
    ///
    /// # Errors
    /// The first of the contents' own; if the device fails.
    pub fn write_all<E: From<GpuError>>(&self, contents: impl Iterator<Item = Result<Content, E>>) -> Result<(), E> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        for content in contents {
            let Content { buffer, offset, bytes } = content?;
            write_buffer(&self.gpu, &self.buffers[buffer.0], offset, &bytes)?;
        }
        Ok(())
    }

    /// Copies what lies on this device into a buffer ahead of the next run, whole words of it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy(&self, buffer: BufferId, offset: u64, from: &Resident) -> Result<(), GpuError> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.gpu.check()?;
        let mut encoder =
            self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("copy") });
        encoder.copy_buffer_to_buffer(&from.buffer, 0, &self.buffers[buffer.0], offset, from.buffer.size());
        self.gpu.queue.submit([encoder.finish()]);
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
}

/// How many threads make pipelines at most.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn range(buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(bytes) })
}

/// What a kernel's pipeline and its bind groups agree on. Clones share it.
#[derive(Clone)]
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// The layout of each kernel. Those alike share one, also if one has more immediates than another: each change of the
/// layout within a pass costs wgpu a write of zeros to all immediates.
fn make_layouts(gpu: &Gpu, recording: &Recording) -> Vec<Layout> {
    let words = |kernel: &Kernel| kernel.key.params().len();
    let immediate = |kernel: &&Kernel| kernel.params == ParamSpace::Immediate;
    let most_immediates = recording.kernels.iter().filter(immediate).map(words).max().unwrap_or(0);
    let mut made: HashMap<(Vec<Access>, ParamSpace, usize), Layout> = HashMap::new();
    let layout = |kernel: &Kernel| {
        let words = if immediate(&kernel) { most_immediates } else { words(kernel) };
        let alike = (kernel.key.bindings(), kernel.params, words);
        made.entry(alike)
            .or_insert_with_key(|(bindings, params, words)| make_layout(gpu, bindings, *params, *words))
            .clone()
    };
    recording.kernels.iter().map(layout).collect()
}

fn make_layout(gpu: &Gpu, bindings: &[Access], params: ParamSpace, words: usize) -> Layout {
    // sizes that are known here need no check at each dispatch
    let buffer = |binding: u32, ty: wgpu::BufferBindingType, least: u64| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: wgpu::BufferSize::new(least) },
        count: None,
    };
    let bytes = words as u32 * 4;
    let (mut entries, immediate_size) = match params {
        ParamSpace::Uniform => (vec![buffer(0, wgpu::BufferBindingType::Uniform, u64::from(bytes))], 0),
        ParamSpace::Immediate => (Vec::new(), bytes),
    };
    entries.extend(bindings.iter().zip(1..).map(|(access, binding)| {
        buffer(binding, wgpu::BufferBindingType::Storage { read_only: *access == Access::Read }, LEAST_BINDING)
    }));
    let label = Some("kiln");
    let group = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&group)],
        immediate_size,
    });
    Layout { group, pipeline }
}

/// Threads take kernels from a shared counter until none is left or one fails. Also gives when each was made.
fn make_pipelines(
    gpu: &Gpu,
    recording: &Recording,
    layouts: &[Layout],
    checked: bool,
) -> Result<(Vec<wgpu::ComputePipeline>, Vec<HostSpan>), GpuError> {
    let count = recording.kernels.len();
    let next = AtomicUsize::new(0);
    let clock = Clock::start(true);
    let threads = threads().min(count.max(1));
    let work = |thread: u32| {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return Ok(made);
            }
            let begin = clock.ns();
            match make_pipeline(gpu, recording, i, &layouts[i].pipeline, checked) {
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
    layout: &wgpu::PipelineLayout,
    checked: bool,
) -> Result<wgpu::ComputePipeline, GpuError> {
    let kernel = &recording.kernels[index];
    let source = kernel.source();
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(kernel.name()),
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
        gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name()),
            layout: Some(layout),
            module: &module,
            entry_point: Some("main"),
            // kernels write workgroup memory before they read it
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: checked,
                ..Default::default()
            },
            cache: gpu.pipeline_cache(),
        })
    });
    Counters::add(&gpu.counters().pipelines, 1);
    made.map_err(|e| {
        let node = recording.dispatches.iter().find(|d| d.kernel == index).map_or(String::new(), |d| d.name.clone());
        let lines: Vec<String> = source.lines().take(60).enumerate().map(|(i, l)| format!("{:4} {l}", i + 1)).collect();
        gpu.check().err().unwrap_or(GpuError::Kernel {
            kernel: kernel.name().into(),
            node,
            reason: e.to_string(),
            excerpt: lines.join("\n"),
        })
    })
}
