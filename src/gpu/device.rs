//! In: a chosen adapter; out: [`Gpu`], an open device that remembers its loss and counts what it does.

use super::adapter::{caps, choose, features};
use super::{AdapterChoice, AdapterInfo, GpuError};
use crate::caps::DeviceCaps;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a device has done since it was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Command buffers submitted by runs.
    pub submits: AtomicU64,
    /// Compute passes in them.
    pub passes: AtomicU64,
    /// Dispatches in them.
    pub dispatches: AtomicU64,
    /// Bind groups made.
    pub bind_groups: AtomicU64,
    /// Pipelines made.
    pub pipelines: AtomicU64,
    /// Uploads of inputs.
    pub uploads: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// What went wrong outside an error scope.
#[derive(Default)]
struct Faults {
    lost: Option<String>,
    refused: Option<String>,
    /// Memory for a copy or for timestamps; that of this once, and of the call that asks next.
    exhausted: Option<String>,
}

/// An open device. Clones share it.
#[derive(Clone)]
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    info: AdapterInfo,
    caps: DeviceCaps,
    pub(super) counters: Arc<Counters>,
    faults: Arc<Mutex<Faults>>,
    pipeline_cache: Arc<OnceLock<Option<wgpu::PipelineCache>>>,
}

impl Gpu {
    /// Opens an adapter with all the limits that it has.
    pub async fn open(choice: &AdapterChoice) -> Result<Gpu, GpuError> {
        let (adapter, info) = choose(choice).await?;
        let required_features = features(&adapter);
        let experimental_features = if required_features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
            // SAFETY: what wgpu may get wrong here is cooperative matrices. Kernels use them in uniform control flow
            // alone, in the one size that the adapter reports, and never load or store past the end of an array.
            unsafe { wgpu::ExperimentalFeatures::enabled() }
        } else {
            wgpu::ExperimentalFeatures::disabled()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("kiln"),
            required_features,
            required_limits: adapter.limits(),
            experimental_features,
            ..Default::default()
        };
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|e| GpuError::NoDevice { adapter: info.name.clone(), reason: e.to_string() })?;
        let faults = Arc::new(Mutex::new(Faults::default()));
        let seen = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let mut faults = lock(&seen);
            let kind = match e {
                wgpu::Error::OutOfMemory { .. } => &mut faults.exhausted,
                _ => &mut faults.refused,
            };
            kind.get_or_insert(e.to_string());
        }));
        let seen = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, words| {
            lock(&seen).lost.get_or_insert(format!("{reason:?} {words}").trim().to_owned());
        });
        Ok(Gpu {
            device,
            queue,
            info,
            caps: caps(&adapter),
            counters: Arc::default(),
            faults,
            pipeline_cache: Arc::default(),
        })
    }

    /// The adapter in words.
    pub fn info(&self) -> &AdapterInfo {
        &self.info
    }

    /// Its limits and features.
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether the backend keeps compiled pipelines as bytes: Vulkan alone does.
    pub fn keeps_pipelines(&self) -> bool {
        self.device.features().contains(wgpu::Features::PIPELINE_CACHE)
    }

    /// Gives the driver what [`Gpu::compiled_pipelines`] gave, on this adapter and driver, or nothing to begin with. Only
    /// the first call on a device counts, and only for pipelines that are made afterwards. What another device or driver
    /// has made is left out by its header; the caller has seen to it that the bytes are as they were given.
    pub(crate) fn give_pipelines(&self, bytes: Option<&[u8]>) {
        self.pipeline_cache.get_or_init(|| {
            let descriptor = wgpu::PipelineCacheDescriptor { label: Some("kiln"), data: bytes, fallback: true };
            // SAFETY: the bytes come from `get_data`, of which a checksum was kept and compared; wgpu compares adapter
            // and driver with the header and begins an empty cache where they differ.
            self.keeps_pipelines().then(|| unsafe { self.device.create_pipeline_cache(&descriptor) })
        });
    }

    /// All pipelines that were made since `give_pipelines`, and what it was given, as the driver's bytes.
    pub fn compiled_pipelines(&self) -> Option<Vec<u8>> {
        self.pipeline_cache().and_then(|cache| cache.get_data())
    }

    pub(super) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.pipeline_cache.get().and_then(Option::as_ref)
    }

    /// Bytes that buffers take on the device now; `None` where the backend does not say.
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|r| r.total_allocated_bytes)
    }

    /// Destroys the device, as a driver's reset would: every later call fails with [`GpuError::Lost`].
    pub fn destroy(&self) {
        self.device.destroy();
        lock(&self.faults).lost.get_or_insert("the device was destroyed".into());
    }

    /// Fails if the device is lost or has refused something.
    pub(super) fn check(&self) -> Result<(), GpuError> {
        let mut faults = lock(&self.faults);
        if let Some(reason) = &faults.lost {
            return Err(GpuError::Lost { reason: reason.clone() });
        }
        if let Some(reason) = faults.exhausted.take() {
            return Err(GpuError::Exhausted { reason });
        }
        match &faults.refused {
            Some(reason) => Err(GpuError::Refused { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Waits for a submission, or for all.
    pub(super) fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        let result = self.device.poll(wgpu::PollType::Wait { submission_index: submission, timeout: None });
        self.check()?;
        result.map(|_| ()).map_err(|e| GpuError::Refused { reason: e.to_string() })
    }

    /// Runs `f` and returns the first error that wgpu raised in it on this thread.
    pub(super) fn scoped<T>(&self, f: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let value = f();
        let errors = [
            pollster::block_on(internal.pop()),
            pollster::block_on(memory.pop()),
            pollster::block_on(validation.pop()),
        ];
        // an exhausted memory explains what follows from it
        match errors.into_iter().flatten().max_by_key(|e| matches!(e, wgpu::Error::OutOfMemory { .. })) {
            Some(error) => Err(error),
            None => Ok(value),
        }
    }
}

fn lock(faults: &Mutex<Faults>) -> std::sync::MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}
