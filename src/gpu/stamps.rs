//! In: an executable and which dispatches are timed together; out: the query sets that take the begins and ends of such
//! groups, and their ticks. Knows nothing of what is dispatched.
//!
//! A stamp inside a pass waits for all before it, some microseconds on a large device. So there is one between two
//! groups, the end of the one and the begin of the other, and one more around each part that is encoded at once.

use super::buffers::{make_buffer, unmade};
use super::{Executable, GpuError};
use std::sync::Arc;

/// How a run is timed on the device. A stamp between two dispatches lets the device run dry, so it costs time itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profiling {
    /// Each dispatch by itself in the first run that is timed, and then neighbours together, so that stamps are 0.8 ms
    /// apart and cost less than 5 % of a run on a large device. Each one's part of their time is in the ratio of what
    /// they took before, and [`Frame::shared`](crate::trace::Frame::shared) names them.
    #[default]
    Light,
    /// Each dispatch by itself in every run.
    Exact,
}

/// wgpu's limit on queries of a set.
const QUERIES: usize = 4096;

/// Query sets with room for all stamps of a submission.
pub(super) struct Stamps {
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    /// One past the last of each dispatch's group, or none where each is one by itself.
    ends: Option<Arc<[usize]>>,
    /// The stamp at which each dispatch's group begins, in order; it ends at the next.
    begins: Vec<usize>,
    written: usize,
    room: usize,
    /// Whether they can be written inside a pass; else each group has a pass of its own.
    pub inside: bool,
}

impl Stamps {
    /// For so many dispatches in such groups, encoded in at most so many parts.
    pub fn new(
        executable: &Executable,
        dispatches: usize,
        parts: usize,
        ends: Option<Arc<[usize]>>,
    ) -> Result<Stamps, GpuError> {
        let (gpu, total) = (&executable.gpu, executable.recording.bytes());
        let device = &gpu.device;
        let inside = device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        let room = if inside { dispatches + parts.min(dispatches) } else { 2 * dispatches };
        let set = |first: usize| {
            let count = (room - first).min(QUERIES) as u32;
            let ty = wgpu::QueryType::Timestamp;
            let descriptor = wgpu::QuerySetDescriptor { label: Some("stamps"), ty, count };
            let made = gpu.scoped(|| device.create_query_set(&descriptor));
            made.map_err(|e| unmade(gpu, "stamps", u64::from(count) * 8, total, e))
        };
        let bytes = (room as u64 * 8).next_multiple_of(wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT);
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = make_buffer(gpu, "stamps", bytes, usage, total)?;
        let sets = (0..room).step_by(QUERIES).map(set).collect::<Result<_, _>>()?;
        Ok(Stamps { sets, resolved, ends, begins: Vec::with_capacity(dispatches), written: 0, room, inside })
    }

    /// Bytes for all stamps.
    pub fn bytes(&self) -> u64 {
        self.room as u64 * 8
    }

    /// Writes the next stamp inside a pass.
    pub fn write(&mut self, pass: &mut wgpu::ComputePass<'_>) {
        let query = self.written;
        pass.write_timestamp(&self.sets[query / QUERIES], (query % QUERIES) as u32);
        self.written += 1;
    }

    /// One past the last of a dispatch's group.
    pub fn end(&self, dispatch: usize) -> usize {
        self.ends.as_ref().map_or(dispatch + 1, |ends| ends[dispatch])
    }

    /// The next dispatch's group begins at the stamp that was written last.
    pub fn begin(&mut self) {
        self.begins.push(self.written - 1);
    }

    /// Two stamps around the pass of the next dispatches, a group.
    pub fn around(&mut self, dispatches: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        // pairs never lie across two sets
        let query = self.written;
        self.begins.resize(self.begins.len() + dispatches, query);
        self.written += 2;
        wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[query / QUERIES],
            beginning_of_pass_write_index: Some((query % QUERIES) as u32),
            end_of_pass_write_index: Some((query % QUERIES) as u32 + 1),
        }
    }

    /// Copies what was written to a staging buffer.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder, staging: &wgpu::Buffer, at: u64) {
        for (i, set) in self.sets.iter().enumerate() {
            let first = i * QUERIES;
            let count = self.written.saturating_sub(first).min(QUERIES) as u32;
            if count > 0 {
                encoder.resolve_query_set(set, 0..count, &self.resolved, first as u64 * 8);
            }
        }
        encoder.copy_buffer_to_buffer(&self.resolved, 0, staging, at, self.written as u64 * 8);
    }

    /// The stamps at which dispatches' groups begin, each of which ends at the next, and how many there are.
    pub fn places(self) -> (Vec<usize>, usize) {
        (self.begins, self.written)
    }
}
