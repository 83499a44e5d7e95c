//! In: the buffers of a recording and what they hold before the first run; out: them on a device, and writes and reads
//! of their bytes. Knows nothing of pipelines and runs.

use super::mapped::Mapped;
use super::{Gpu, GpuError};
use crate::record::{BufferId, LEAST_BINDING, Recording};

/// Bytes that a buffer holds before the first run.
#[derive(Clone, Debug)]
pub struct Content {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Repeated: a NaN as f32 and as two f16, -1 as i32.
const POISON: u8 = 0xff;

/// Bytes that are handed to the queue before it is flushed, so that staging memory stays small.
const UPLOAD: usize = 64 << 20;

pub(super) fn make_buffer(
    gpu: &Gpu,
    label: &str,
    bytes: u64,
    usage: wgpu::BufferUsages,
    total: u64,
) -> Result<wgpu::Buffer, GpuError> {
    let limit = gpu.caps().max_buffer_bytes;
    if bytes > limit {
        return Err(GpuError::Limit { buffer: label.to_owned(), bytes, limit, runs: 1 });
    }
    let descriptor = wgpu::BufferDescriptor { label: Some(label), size: bytes, usage, mapped_at_creation: false };
    gpu.scoped(|| gpu.device.create_buffer(&descriptor)).map_err(|e| unmade(gpu, label, bytes, total, e))
}

/// Why something was not made that takes so many bytes.
pub(super) fn unmade(gpu: &Gpu, label: &str, bytes: u64, total: u64, why: wgpu::Error) -> GpuError {
    match why {
        wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory { buffer: label.to_owned(), bytes, total },
        other => gpu.check().err().unwrap_or(GpuError::Refused { reason: other.to_string() }),
    }
}

/// The buffers, the first of which are there.
pub(super) fn make_buffers(
    gpu: &Gpu,
    recording: &Recording,
    shared: &[wgpu::Buffer],
) -> Result<Vec<wgpu::Buffer>, GpuError> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let total = recording.bytes();
    let made = recording.buffers.iter().skip(shared.len()).map(|b| make_buffer(gpu, &b.name, b.bytes, usage, total));
    shared.iter().cloned().map(Ok).chain(made).collect()
}

/// The buffer of the parameters that are in one.
pub(super) fn make_uniforms(gpu: &Gpu, recording: &Recording) -> Result<Option<wgpu::Buffer>, GpuError> {
    if recording.uniforms.is_empty() {
        return Ok(None);
    }
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let bytes = recording.uniforms.len() as u64 * 4;
    let uniforms = make_buffer(gpu, "parameters", bytes, usage, recording.bytes())?;
    gpu.queue.write_buffer(&uniforms, 0, bytemuck::cast_slice(&recording.uniforms));
    Ok(Some(uniforms))
}

/// Writes contents, then zeros into every buffer without any but the first `shared`. With `poison` all but those and
/// states is [`POISON`] first.
pub(super) fn fill<E: From<GpuError>>(
    gpu: &Gpu,
    recording: &Recording,
    buffers: &[wgpu::Buffer],
    shared: usize,
    poison: bool,
    contents: impl IntoIterator<Item = Result<Content, E>>,
) -> Result<(), E> {
    let mut filled = vec![false; buffers.len()];
    if poison {
        filled.fill(true);
        recording.states.iter().for_each(|s| filled[s.buffer.0] = false);
        for (buffer, _) in buffers.iter().zip(&filled).skip(shared).filter(|(_, filled)| **filled) {
            let bytes = vec![POISON; (buffer.size() as usize).min(UPLOAD)];
            for offset in (0..buffer.size()).step_by(UPLOAD) {
                let len = bytes.len().min((buffer.size() - offset) as usize);
                write_buffer(gpu, buffer, offset, &bytes[..len])?;
            }
        }
    }
    for content in contents {
        let Content { buffer, offset, mut bytes } = content?;
        if !poison {
            // all that is bound of it
            bytes.resize(bytes.len().next_multiple_of(LEAST_BINDING as usize), 0);
        }
        write_buffer(gpu, &buffers[buffer.0], offset, &bytes)?;
        filled[buffer.0] = true;
    }
    filled[..shared].fill(true);
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("zeros") });
    for (buffer, _) in buffers.iter().zip(&filled).filter(|(_, filled)| !**filled) {
        encoder.clear_buffer(buffer, 0, None);
    }
    gpu.queue.submit([encoder.finish()]);
    Ok(gpu.check()?)
}

/// Writes bytes into a buffer, ahead of what is submitted next.
pub(super) fn write_buffer(gpu: &Gpu, buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
    gpu.check()?;
    for (i, piece) in bytes.chunks(UPLOAD).enumerate() {
        let at = offset + (i * UPLOAD) as u64;
        // copies are whole words; buffers are padded to them
        let whole = piece.len() / 4 * 4;
        gpu.queue.write_buffer(buffer, at, &piece[..whole]);
        if whole < piece.len() {
            let mut word = [0; 4];
            word[..piece.len() - whole].copy_from_slice(&piece[whole..]);
            gpu.queue.write_buffer(buffer, at + whole as u64, &word);
        }
        if piece.len() == UPLOAD {
            gpu.queue.submit([]);
            gpu.wait(None)?;
        }
    }
    gpu.check()
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
