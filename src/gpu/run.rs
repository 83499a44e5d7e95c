//! In: an executable and the inputs of a run, or of several in a row; out: [`Pending`], then the bytes that they give
//! back and their times. Knows neither graphs nor what a run is for.

use super::ahead::Ahead;
use super::buffers::make_buffer;
use super::mapped::Mapped;
use super::stamps::{Profiling, Stamps};
use super::{Counters, Executable, GpuError, Resident};
use crate::record::{BufferPort, Params};
use crate::trace::{Clock, HostSpan, divide, group_ends, times};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How a run is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submission {
    /// Most dispatches of a command buffer, each submitted without waiting for the one before; `None` puts all in one.
    pub split: Option<usize>,
    /// With timestamps, and how.
    pub profile: Option<Profiling>,
    /// Whether outputs are given back: copied to the host, or kept where they are declared so.
    pub read: bool,
}

/// What a submission gives back.
#[derive(Debug, Default)]
pub struct Finished {
    /// For each run the bytes of each output, in order; empty if it does not read.
    pub outputs: Vec<Vec<Vec<u8>>>,
    /// The times of each dispatch, run after run, if it was profiled and the adapter has timestamps.
    pub times: Vec<Option<(u64, u64)>>,
    /// First and last of neighbours that were timed together; their times are parts of one.
    pub shared: Vec<(usize, usize)>,
    /// What the host did, if the run was profiled, from the begin of [`Executable::submit`].
    pub host: Vec<HostSpan>,
}

/// What it takes the host to start a run.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Nanoseconds to record dispatches and copies and to finish the command buffers; where the dispatches were recorded
    /// behind the run before, those of the next run in their place.
    pub encode_ns: u64,
    /// Nanoseconds beside those, to upload inputs, find memory for outputs and submit.
    pub submit_ns: u64,
    /// Command buffers.
    pub submits: u64,
    /// Compute passes in them.
    pub passes: u64,
    /// Whether measuring gave each group of dispatches that is timed as one a pass of its own.
    pub split_passes: bool,
}

/// A submission in flight. Its results are its own: later ones do not change them.
pub struct Pending<'a> {
    executable: &'a Executable,
    index: wgpu::SubmissionIndex,
    staging: Option<wgpu::Buffer>,
    /// For each run first byte and bytes of each output in the staging buffer.
    ranges: Vec<Vec<(u64, u64)>>,
    /// Where the stamps lie in it, at which of them each dispatch's group begins, and how many there are.
    queries: Option<(u64, Vec<usize>, usize)>,
    /// The last run's kept outputs, at their position.
    kept: Vec<Option<Resident>>,
    mapped: Arc<Mapped>,
    clock: Clock,
    /// What starting it took.
    pub host: Host,
}

impl Executable {
    /// Encodes and submits runs that follow each other on the device: one command buffer for all, unless it is split.
    /// Each is given the bytes of each input, in order, of the right length. States go from one to the next; each one's
    /// outputs are given back, those that are kept of the last alone.
    ///
    /// A single run's dispatches are recorded once more behind its submit, while the device is at work: the next run finds
    /// them ready.
    pub fn submit(&self, runs: &[Vec<&[u8]>], how: Submission) -> Result<Pending<'_>, GpuError> {
        self.gpu.check()?;
        self.started(runs, how).map_err(|e| match e {
            GpuError::Limit { buffer, bytes, limit, .. } => GpuError::Limit { buffer, bytes, limit, runs: runs.len() },
            other => other,
        })
    }

    fn started(&self, runs: &[Vec<&[u8]>], how: Submission) -> Result<Pending<'_>, GpuError> {
        let begin = Instant::now();
        let mut clock = Clock::start(how.profile.is_some());
        // between its upload and its last submit no other run may write the inputs
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = clock.time("upload", || self.upload(runs))?;
        let dispatches = self.recording.dispatches.len();
        let (most, total) = (how.split.unwrap_or(usize::MAX).max(1), dispatches * runs.len());
        let timed = how.profile.filter(|_| self.timestamps && total > 0);
        let stamps = timed.map(|how| {
            let ends = self.took.get().filter(|_| how == Profiling::Light).map(|took| group_ends(took).into());
            Stamps::new(self, total, runs.len() + total.div_ceil(most), ends)
        });
        let mut stamps = stamps.transpose()?;
        let (ranges, mut staging_bytes) = self.staging_ranges(runs.len(), how.read);
        let stamps_at = staging_bytes;
        staging_bytes += stamps.as_ref().map_or(0, Stamps::bytes);
        let staging = match staging_bytes {
            0 => None,
            bytes => Some(self.staging_buffer(bytes)?),
        };
        let kept = self.kept_buffers(how.read && !runs.is_empty())?;
        let encode_begin = Instant::now();
        let mut between = Duration::ZERO;
        let (mut passes, mut submits, mut room) = (0, 1, most);
        let encoder = || self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("run") });
        let mut current = encoder();
        let alone = Ahead::KEPT && runs.len() == 1 && how.split.is_none() && stamps.is_none();
        let ready = if alone { self.ahead.take() } else { None };
        let (mut commands, mut begun) = (Vec::new(), 0);
        if let Some((ready, of_ready)) = ready {
            (passes, begun) = (of_ready, dispatches);
            commands.push(ready);
        }
        for (run, places) in ranges.iter().enumerate() {
            if let (Some(rows), Some(inputs)) = (&rows, self.recording.input_buffer) {
                let inputs = &self.buffers[inputs.0];
                current.copy_buffer_to_buffer(rows, run as u64 * inputs.size(), inputs, 0, inputs.size());
            }
            let mut next = begun;
            while next < dispatches {
                if room == 0 {
                    let commands = clock.time("finish", || std::mem::replace(&mut current, encoder()).finish());
                    let submit_begin = Instant::now();
                    clock.time("submit", || self.gpu.queue.submit([commands]));
                    between += submit_begin.elapsed();
                    (submits, room) = (submits + 1, most);
                }
                let end = dispatches.min(next.saturating_add(room));
                passes += clock.time("encode", || self.encode(&mut current, next..end, stamps.as_mut()));
                (next, room) = (end, room - (end - next));
            }
            let last = run + 1 == runs.len();
            for (i, output) in self.recording.outputs.iter().enumerate() {
                let from = &self.buffers[output.buffer.0];
                if let (Some(kept), true) = (&kept[i], last) {
                    current.copy_buffer_to_buffer(from, output.offset, &kept.buffer, 0, kept.buffer.size());
                }
                if let (Some(staging), (at, bytes @ 1..)) = (&staging, places[i]) {
                    current.copy_buffer_to_buffer(from, output.offset, staging, at, bytes);
                }
            }
        }
        if let (Some(staging), Some(stamps)) = (&staging, &stamps) {
            stamps.resolve(&mut current, staging, stamps_at);
        }
        let split_passes = stamps.as_ref().is_some_and(|s| !s.inside);
        let queries = stamps.map(|s| {
            let (begins, count) = s.places();
            (stamps_at, begins, count)
        });
        commands.push(clock.time("finish", || current.finish()));
        let submit_begin = Instant::now();
        let index = clock.time("submit", || self.gpu.queue.submit(commands));
        between += submit_begin.elapsed();
        drop(order);
        if alone {
            let mut next = encoder();
            let passes = self.encode(&mut next, 0..dispatches, None);
            self.ahead.put(next.finish(), passes);
        }
        let encode_ns = (encode_begin.elapsed() - between).as_nanos() as u64;
        let counters = self.gpu.counters();
        Counters::add(&counters.submits, submits);
        Counters::add(&counters.passes, passes);
        Counters::add(&counters.dispatches, (dispatches * runs.len()) as u64);
        let submit_ns = begin.elapsed().as_nanos() as u64 - encode_ns;
        let mapped = staging.as_ref().map_or_else(Arc::default, Mapped::of);
        self.gpu.check()?;
        let (executable, host) = (self, Host { encode_ns, submit_ns, submits, passes, split_passes });
        Ok(Pending { executable, index, staging, ranges, queries, kept, mapped, clock, host })
    }

    /// All inputs of all runs in one upload: those of a single run where it reads them, else a row a run in the buffer
    /// that is returned.
    fn upload(&self, runs: &[Vec<&[u8]>]) -> Result<Option<wgpu::Buffer>, GpuError> {
        let Some(buffer) = self.recording.input_buffer else { return Ok(None) };
        let inputs = &self.buffers[buffer.0];
        let ports = &self.recording.inputs;
        let used = |run: &Vec<&[u8]>| ports.iter().zip(run).map(|(p, b)| p.offset as usize + b.len()).max();
        let end = runs.last().and_then(used).unwrap_or(0) as u64;
        let (target, bytes) = match runs.len() {
            0 | 1 => (inputs.clone(), end.next_multiple_of(4)),
            count => {
                (self.rows(count as u64 * inputs.size())?, (count as u64 - 1) * inputs.size() + end.next_multiple_of(4))
            }
        };
        let Some(bytes) = wgpu::BufferSize::new(bytes) else { return Ok(None) };
        let Some(mut view) = self.gpu.queue.write_buffer_with(&target, 0, bytes) else {
            let refused = GpuError::Refused { reason: "no staging memory for inputs".into() };
            return Err(self.gpu.check().err().unwrap_or(refused));
        };
        for (row, run) in runs.iter().enumerate() {
            for (port, bytes) in ports.iter().zip(run) {
                let at = row * inputs.size() as usize + port.offset as usize;
                view.slice(at..at + bytes.len()).copy_from_slice(bytes);
            }
        }
        Counters::add(&self.gpu.counters().uploads, 1);
        Ok((runs.len() > 1).then_some(target))
    }

    /// The buffer that holds a row of inputs for each of several runs, at least this large. The queue writes it after
    /// all that was submitted before.
    fn rows(&self, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = rows.as_ref().filter(|b| b.size() >= bytes) {
            return Ok(buffer.clone());
        }
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = make_buffer(&self.gpu, "rows of inputs", bytes, usage, self.recording.bytes() + bytes)?;
        *rows = Some(buffer.clone());
        Ok(buffer)
    }

    /// Where each run's outputs lie in the staging buffer, and its size.
    fn staging_ranges(&self, runs: usize, read: bool) -> (Vec<Vec<(u64, u64)>>, u64) {
        let mut end = 0;
        let mut range = |o: &BufferPort| {
            let at = end;
            // copies are whole words
            let bytes = if read && !o.port.keep { (o.port.ty.bytes() as u64).next_multiple_of(4) } else { 0 };
            end += bytes.next_multiple_of(8);
            (at, bytes)
        };
        let ranges = (0..runs).map(|_| self.recording.outputs.iter().map(&mut range).collect()).collect();
        (ranges, end)
    }

    /// Buffers of the run's own for kept outputs.
    fn kept_buffers(&self, read: bool) -> Result<Vec<Option<Resident>>, GpuError> {
        let keep = |output: &BufferPort| {
            if !read || !output.port.keep {
                return Ok(None);
            }
            let (name, bytes) = (&output.port.name, output.port.ty.bytes());
            Resident::empty(&self.gpu, name, bytes, self.recording.bytes()).map(Some)
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

    /// Encodes some dispatches and returns in how many passes: those of the recording, or one a group that is timed as one
    /// where stamps can only be written around passes.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, dispatches: Range<usize>, stamps: Option<&mut Stamps>) -> u64 {
        let (mut around, mut inside) = match stamps {
            Some(stamps) if stamps.inside => (None, Some(stamps)),
            other => (other, None),
        };
        let mut passes = 0;
        let begin = dispatches.start;
        let mut rest = dispatches;
        while !rest.is_empty() {
            let mut end = self.recording.pass_end(rest.start).min(rest.end);
            end = around.as_ref().map_or(end, |s| s.end(rest.start).min(end));
            let timestamp_writes = around.as_mut().map(|s| s.around(end - rest.start));
            let mut pass =
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some("kiln"), timestamp_writes });
            passes += 1;
            if begin == rest.start {
                inside.iter_mut().for_each(|s| s.write(&mut pass));
            }
            let mut current = None;
            for i in rest.start..end {
                let dispatch = &self.recording.dispatches[i];
                if current != Some(dispatch.kernel) {
                    pass.set_pipeline(&self.pipelines[dispatch.kernel]);
                    current = Some(dispatch.kernel);
                }
                pass.set_bind_group(0, &self.bind_groups[i], &[]);
                if let Params::Immediate(words) = &dispatch.params {
                    pass.set_immediates(0, bytemuck::cast_slice(&self.recording.immediates[words.clone()]));
                }
                inside.iter_mut().for_each(|s| s.begin());
                let [x, y, z] = dispatch.grid;
                pass.dispatch_workgroups(x, y, z);
                let last = i + 1;
                inside.iter_mut().filter(|s| last == s.end(i) || last == rest.end).for_each(|s| s.write(&mut pass));
            }
            rest.start = end;
        }
        passes
    }
}

impl Executable {
    /// Gives dispatches that were timed together their parts, and says which those are. What each took in the first run
    /// in which all have a time of their own is kept for that.
    fn divided(&self, times: &mut [Option<(u64, u64)>], begins: &[usize]) -> Vec<(usize, usize)> {
        if let Some(took) = self.took.get() {
            return divide(times, begins, took);
        }
        let of_first = times.iter().take(self.recording.dispatches.len());
        if let Some(took) = of_first.map(|t| t.map(|(begin, end)| end - begin)).collect::<Option<Vec<u64>>>() {
            // of two runs that end at once either will do
            self.took.set(took).unwrap_or(());
        }
        Vec::new()
    }
}

impl Pending<'_> {
    /// A kept output by its position; `None` if it is read or nothing is given back.
    pub fn kept(&self, output: usize) -> Option<Resident> {
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
        let mut finished = clock.time("readback", || self.collect_parts())?;
        finished.host = clock.spans();
        Ok(finished)
    }

    /// Outputs of each run, and times.
    fn collect_parts(&mut self) -> Result<Finished, GpuError> {
        let gpu = &self.executable.gpu;
        gpu.check()?;
        let Some(staging) = self.staging.take() else {
            let none = |run: &Vec<(u64, u64)>| vec![Vec::new(); run.len()];
            return Ok(Finished { outputs: self.ranges.iter().map(none).collect(), ..Finished::default() });
        };
        self.mapped.take(gpu)?;
        let refused = |reason: String| gpu.check().err().unwrap_or(GpuError::Refused { reason });
        let view = staging.get_mapped_range(..).map_err(|e| refused(e.to_string()))?;
        let ports = &self.executable.recording.outputs;
        let output = |(port, (at, bytes)): (&BufferPort, &(u64, u64))| {
            let len = if *bytes > 0 { port.port.ty.bytes() } else { 0 };
            view[*at as usize..*at as usize + len].to_vec()
        };
        let outputs = self.ranges.iter().map(|run| ports.iter().zip(run).map(output).collect()).collect();
        let (mut all, mut shared) = (Vec::new(), Vec::new());
        if let Some((at, begins, count)) = self.queries.take() {
            let raw = &view[at as usize..at as usize + count * 8];
            let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(raw);
            let pairs: Vec<(u64, u64)> = begins.iter().map(|i| (ticks[*i], ticks[*i + 1])).collect();
            all = times(&pairs, f64::from(gpu.queue.get_timestamp_period()));
            shared = self.executable.divided(&mut all, &begins);
        }
        drop(view);
        staging.unmap();
        self.executable.staging.lock().unwrap_or_else(PoisonError::into_inner).push(staging);
        Ok(Finished { outputs, times: all, shared, host: Vec::new() })
    }
}
