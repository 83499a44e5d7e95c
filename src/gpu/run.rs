//! In: an executable and a run's inputs; out: [`Pending`], then the bytes that the run gives back and its times.

use super::executable::{make_buffer, read_buffer};
use super::mapped::Mapped;
use super::stamps::Stamps;
use super::{Counters, Executable, Gpu, GpuError};
use crate::record::BufferPort;
use crate::trace::{Clock, HostSpan, times};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// How a run is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submission {
    /// Most dispatches of a command buffer, each submitted without waiting for the one before; `None` puts all in one.
    pub split: Option<usize>,
    /// With timestamps.
    pub profile: bool,
    /// Whether outputs are given back: copied to the host, or kept where they are declared so.
    pub read: bool,
}

/// What a run gives back.
#[derive(Debug)]
pub struct Finished {
    /// The bytes of each output, in order; empty if the run does not read.
    pub outputs: Vec<Vec<u8>>,
    /// The times of each dispatch, if the run was profiled and the adapter has timestamps.
    pub times: Vec<Option<(u64, u64)>>,
    /// What the host did, if the run was profiled, from the begin of [`Executable::submit`].
    pub host: Vec<HostSpan>,
}

/// A run in flight. Its results are its own: later runs do not change them.
pub struct Pending<'a> {
    executable: &'a Executable,
    index: wgpu::SubmissionIndex,
    staging: Option<wgpu::Buffer>,
    /// First byte and bytes of each output in the staging buffer.
    ranges: Vec<(u64, u64)>,
    queries: Option<(u64, usize)>,
    /// The kept outputs, at their position.
    kept: Vec<Option<Kept>>,
    mapped: Arc<Mapped>,
    clock: Clock,
    /// Nanoseconds that the host took to encode and submit.
    pub encode_ns: u64,
    /// Command buffers.
    pub submits: u64,
    /// Compute passes.
    pub passes: u64,
}

/// An output that stayed on the device, in a buffer of its own. Clones share it.
#[derive(Clone)]
pub struct Kept {
    gpu: Gpu,
    buffer: wgpu::Buffer,
    bytes: usize,
}

impl Kept {
    /// Copies it to the host, waiting on this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<u8>, GpuError> {
        read_buffer(&self.gpu, &self.buffer, 0, self.bytes)
    }
}

impl Executable {
    /// Encodes and submits a run. `inputs` are the bytes of each input, in order, of the right length.
    pub fn submit(&self, inputs: &[&[u8]], how: Submission) -> Result<Pending<'_>, GpuError> {
        self.gpu.check()?;
        let begin = Instant::now();
        let mut clock = Clock::start(how.profile);
        // between its upload and its last submit no other run may write the inputs
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        clock.time("upload", || self.upload(inputs))?;
        let stamps =
            (how.profile && self.timestamps && !self.recording.dispatches.is_empty()).then(|| Stamps::new(self));
        let (ranges, mut staging_bytes) = self.staging_ranges(how.read);
        let queries = stamps.as_ref().map(|s| {
            let at = staging_bytes;
            staging_bytes += s.count as u64 * 8;
            (at, s.count)
        });
        let staging = match staging_bytes {
            0 => None,
            bytes => Some(self.staging_buffer(bytes)?),
        };
        let count = self.recording.dispatches.len();
        let most = how.split.unwrap_or(count).max(1);
        let kept = self.kept_buffers(how.read)?;
        let (mut passes, mut submits, mut next) = (0, 0, 0);
        let index = loop {
            let mut encoder =
                self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("run") });
            let end = count.min(next + most);
            passes += clock.time("encode", || self.encode(&mut encoder, next..end, stamps.as_ref()));
            submits += 1;
            if end < count {
                clock.time("submit", || self.gpu.queue.submit([encoder.finish()]));
                next = end;
                continue;
            }
            for (output, kept) in self.recording.outputs.iter().zip(&kept) {
                if let Some(kept) = kept {
                    let from = &self.buffers[output.buffer.0];
                    encoder.copy_buffer_to_buffer(from, output.offset, &kept.buffer, 0, kept.buffer.size());
                }
            }
            if let Some(staging) = &staging {
                for (output, (at, bytes)) in self.recording.outputs.iter().zip(&ranges) {
                    if *bytes > 0 {
                        let from = &self.buffers[output.buffer.0];
                        encoder.copy_buffer_to_buffer(from, output.offset, staging, *at, *bytes);
                    }
                }
                if let (Some(stamps), Some((at, _))) = (&stamps, queries) {
                    stamps.resolve(&mut encoder, staging, at);
                }
            }
            break clock.time("submit", || self.gpu.queue.submit([encoder.finish()]));
        };
        drop(order);
        let counters = self.gpu.counters();
        Counters::add(&counters.submits, submits);
        Counters::add(&counters.passes, passes);
        Counters::add(&counters.dispatches, count as u64);
        let encode_ns = begin.elapsed().as_nanos() as u64;
        let mapped = staging.as_ref().map_or_else(Arc::default, Mapped::of);
        self.gpu.check()?;
        let executable = self;
        Ok(Pending { executable, index, staging, ranges, queries, kept, mapped, clock, encode_ns, submits, passes })
    }

    /// All inputs in one upload.
    fn upload(&self, inputs: &[&[u8]]) -> Result<(), GpuError> {
        let Some(buffer) = self.recording.input_buffer else { return Ok(()) };
        let ports = &self.recording.inputs;
        let end = ports.iter().zip(inputs).map(|(p, b)| p.offset as usize + b.len()).max().unwrap_or(0);
        let mut view = match wgpu::BufferSize::new((end as u64).next_multiple_of(4)) {
            Some(bytes) => match self.gpu.queue.write_buffer_with(&self.buffers[buffer.0], 0, bytes) {
                Some(view) => view,
                None => {
                    return Err(self
                        .gpu
                        .check()
                        .err()
                        .unwrap_or(GpuError::Refused { reason: "no staging memory for inputs".into() }));
                }
            },
            None => return Ok(()),
        };
        for (port, bytes) in ports.iter().zip(inputs) {
            let at = port.offset as usize;
            view.slice(at..at + bytes.len()).copy_from_slice(bytes);
        }
        Counters::add(&self.gpu.counters().uploads, 1);
        Ok(())
    }

    /// Where each output lies in the staging buffer, and its size.
    fn staging_ranges(&self, read: bool) -> (Vec<(u64, u64)>, u64) {
        let mut end = 0;
        let ranges = self.recording.outputs.iter().map(|o| {
            let at = end;
            // copies are whole words
            let bytes = if read && !o.port.keep { (o.port.ty.bytes() as u64).next_multiple_of(4) } else { 0 };
            end += bytes.next_multiple_of(8);
            (at, bytes)
        });
        (ranges.collect(), end)
    }

    /// Buffers of the run's own for kept outputs.
    fn kept_buffers(&self, read: bool) -> Result<Vec<Option<Kept>>, GpuError> {
        let keep = |output: &BufferPort| {
            if !read || !output.port.keep {
                return Ok(None);
            }
            let bytes = output.port.ty.bytes();
            let whole = (bytes as u64).next_multiple_of(4).max(4);
            let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            let buffer = make_buffer(&self.gpu, &output.port.name, whole, usage, self.recording.bytes())?;
            Ok(Some(Kept { gpu: self.gpu.clone(), buffer, bytes }))
        };
        self.recording.outputs.iter().map(keep).collect()
    }

    /// A staging buffer of at least this size, from the pool if one fits.
    fn staging_buffer(&self, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        let mut pool = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = pool.iter().position(|b| b.size() >= bytes) {
            return Ok(pool.swap_remove(i));
        }
        drop(pool);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        make_buffer(&self.gpu, "staging", bytes, usage, self.recording.bytes())
    }

    /// Encodes some dispatches and returns in how many passes: one, unless stamps can only be written around passes.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, dispatches: Range<usize>, stamps: Option<&Stamps>) -> u64 {
        let split = stamps.is_some_and(|s| !s.inside);
        let mut passes = 0;
        let mut rest = dispatches;
        while !rest.is_empty() {
            let end = if split { rest.start + 1 } else { rest.end };
            let timestamp_writes = stamps.filter(|_| split).map(|s| s.around(rest.start));
            let mut pass =
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some("kiln"), timestamp_writes });
            passes += 1;
            let mut current = None;
            for i in rest.start..end {
                let dispatch = &self.recording.dispatches[i];
                if current != Some(dispatch.kernel) {
                    pass.set_pipeline(&self.pipelines[dispatch.kernel]);
                    current = Some(dispatch.kernel);
                }
                pass.set_bind_group(0, &self.bind_groups[i], &[]);
                let inside = stamps.filter(|_| !split);
                inside.inspect(|s| s.write(&mut pass, 2 * i));
                let [x, y, z] = dispatch.grid;
                pass.dispatch_workgroups(x, y, z);
                inside.inspect(|s| s.write(&mut pass, 2 * i + 1));
            }
            rest.start = end;
        }
        passes
    }
}

impl Pending<'_> {
    /// A kept output by its position; `None` if it is read or nothing is given back.
    pub fn kept(&self, output: usize) -> Option<Kept> {
        self.kept.get(output).cloned().flatten()
    }

    /// Waits on this thread.
    pub fn wait(mut self) -> Result<Finished, GpuError> {
        let gpu = &self.executable.gpu;
        self.clock.time("wait", || gpu.wait(Some(self.index.clone())))?;
        self.collect()
    }

    /// The zero of [`Finished::host`].
    pub fn zero(&self) -> Instant {
        self.clock.zero()
    }

    /// Waits without blocking the caller's thread: one of the library's own waits for the device.
    pub async fn finish(self) -> Result<Finished, GpuError> {
        let mapped = Arc::clone(&self.mapped);
        #[cfg(not(target_arch = "wasm32"))]
        {
            let (gpu, index, reads) = (self.executable.gpu.clone(), self.index.clone(), self.staging.is_some());
            std::thread::spawn(move || match gpu.wait(Some(index)) {
                Err(error) => mapped.set(Err(error.to_string())),
                Ok(()) if !reads => mapped.set(Ok(())),
                Ok(()) => {}
            });
        }
        // a browser polls by itself
        #[cfg(target_arch = "wasm32")]
        if self.staging.is_none() {
            self.executable.gpu.queue.on_submitted_work_done(move || mapped.set(Ok(())));
        }
        self.mapped.done().await;
        self.collect()
    }

    fn collect(mut self) -> Result<Finished, GpuError> {
        let mut clock = self.clock.clone();
        let (outputs, times) = clock.time("readback", || self.collect_parts())?;
        Ok(Finished { outputs, times, host: clock.spans() })
    }

    /// Outputs and times.
    fn collect_parts(&mut self) -> Result<(Vec<Vec<u8>>, Vec<Option<(u64, u64)>>), GpuError> {
        let gpu = &self.executable.gpu;
        gpu.check()?;
        let Some(staging) = self.staging.take() else {
            return Ok((vec![Vec::new(); self.ranges.len()], Vec::new()));
        };
        self.mapped.take(gpu)?;
        let refused = |reason: String| gpu.check().err().unwrap_or(GpuError::Refused { reason });
        let view = staging.get_mapped_range(..).map_err(|e| refused(e.to_string()))?;
        let ports = &self.executable.recording.outputs;
        let outputs = ports.iter().zip(&self.ranges).map(|(port, (at, bytes))| {
            let len = if *bytes > 0 { port.port.ty.bytes() } else { 0 };
            view[*at as usize..*at as usize + len].to_vec()
        });
        let outputs = outputs.collect();
        let times = self.queries.map_or(Vec::new(), |(at, count)| {
            let raw = &view[at as usize..at as usize + count * 8];
            let ticks: Vec<u64> =
                raw.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect();
            let pairs: Vec<(u64, u64)> = ticks.chunks_exact(2).map(|p| (p[0], p[1])).collect();
            times(&pairs, f64::from(gpu.queue.get_timestamp_period()))
        });
        drop(view);
        staging.unmap();
        self.executable.staging.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
        Ok((outputs, times))
    }
}
