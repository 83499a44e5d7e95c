//! In: bytes of the host, or a run's output; out: [`Resident`], bytes that stay on the device in a buffer of their own. Knows
//! nothing of runs.

use super::buffers::{make_buffer, read_buffer, write_buffer};
use super::{Gpu, GpuError};
use std::sync::Arc;

/// Bytes on the device, in a buffer that no run writes. Clones share it.
#[derive(Clone)]
pub struct Resident {
    gpu: Gpu,
    pub(super) buffer: wgpu::Buffer,
    bytes: usize,
}

impl Resident {
    /// Copies bytes to the device, ahead of what is submitted next.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(gpu: &Gpu, label: &str, bytes: &[u8]) -> Result<Resident, GpuError> {
        let resident = Resident::empty(gpu, label, bytes.len(), bytes.len() as u64)?;
        write_buffer(gpu, &resident.buffer, 0, bytes)?;
        Ok(resident)
    }

    /// Room for bytes, which belong to a program of so many in `total`.
    pub(super) fn empty(gpu: &Gpu, label: &str, bytes: usize, total: u64) -> Result<Resident, GpuError> {
        gpu.check()?;
        // copies are whole words
        let whole = (bytes as u64).next_multiple_of(4).max(4);
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        Ok(Resident { gpu: gpu.clone(), buffer: make_buffer(gpu, label, whole, usage, total)?, bytes })
    }

    /// Whether it lies on this device.
    pub fn is_on(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(&self.gpu.counters, &gpu.counters)
    }

    /// Copies it to the host, after all that was submitted before, waiting on this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<u8>, GpuError> {
        read_buffer(&self.gpu, &self.buffer, 0, self.bytes)
    }
}
