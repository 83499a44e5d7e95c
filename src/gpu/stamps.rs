//! In: an executable and a number of dispatches; out: the query sets that take a begin and an end of each, and their
//! ticks. Knows nothing of what is dispatched.

use super::Executable;

/// wgpu's limit on queries of a set.
const QUERIES: usize = 4096;

/// Query sets for two stamps a dispatch.
pub(super) struct Stamps {
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    /// Stamps in all.
    pub count: usize,
    /// Whether they can be written inside a pass; else each dispatch has a pass of its own.
    pub inside: bool,
}

impl Stamps {
    pub fn new(executable: &Executable, dispatches: usize) -> Stamps {
        let device = &executable.gpu.device;
        let count = 2 * dispatches;
        let set = |first: usize| {
            let count = (count - first).min(QUERIES) as u32;
            device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("stamps"),
                ty: wgpu::QueryType::Timestamp,
                count,
            })
        };
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("stamps"),
            size: (count as u64 * 8).next_multiple_of(wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let inside = device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        Stamps { sets: (0..count).step_by(QUERIES).map(set).collect(), resolved, count, inside }
    }

    pub fn write(&self, pass: &mut wgpu::ComputePass<'_>, query: usize) {
        pass.write_timestamp(&self.sets[query / QUERIES], (query % QUERIES) as u32);
    }

    pub fn around(&self, dispatch: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let query = 2 * dispatch;
        wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[query / QUERIES],
            beginning_of_pass_write_index: Some((query % QUERIES) as u32),
            end_of_pass_write_index: Some((query % QUERIES) as u32 + 1),
        }
    }

    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder, staging: &wgpu::Buffer, at: u64) {
        for (i, set) in self.sets.iter().enumerate() {
            let first = i * QUERIES;
            let count = (self.count - first).min(QUERIES) as u32;
            encoder.resolve_query_set(set, 0..count, &self.resolved, first as u64 * 8);
        }
        encoder.copy_buffer_to_buffer(&self.resolved, 0, staging, at, self.count as u64 * 8);
    }
}
