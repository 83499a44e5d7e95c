//! In: an open session; out: [`Peak`], the rates that the device reaches: the yardstick of every share of a peak.

use crate::error::Error;
use crate::gpu::{Content, Executable, ExecutableOptions, Gpu, GpuError, Submission};
use crate::graph::{Builder, DType, NodeId, TensorType};
use crate::kernel::probe::{ProbeKey, launch};
use crate::plan::plan;
use crate::record::lower;
use crate::select::{Port, Selected, Step, TensorId, TensorKind, TensorSpec};
use crate::session::{CompileOptions, Session};
use crate::tensor::Tensor;
use crate::trace::Peaks;
use std::collections::BTreeMap;
use std::iter;
use std::time::Instant;

/// What a device reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// f32 FLOP/s of fused multiply-adds in registers.
    pub flops: f64,
    /// Bytes/s of a copy, bytes read and written both counted.
    pub bytes: f64,
}

impl From<Peak> for Peaks {
    fn from(Peak { flops, bytes }: Peak) -> Peaks {
        Peaks { flops, bytes }
    }
}

/// Measures both rates; takes well under a second on a GPU, a few on a CPU.
///
/// # Errors
/// If the device fails.
pub fn peak(session: &Session) -> Result<Peak, Error> {
    let cpu = session.caps().cpu;
    // enough work for tens of milliseconds
    let (groups, rounds) = if cpu { (64, 2_000) } else { (8_192, 4_000) };
    let flops = fma_rate(session.gpu(), ProbeKey { rounds, size: if cpu { 8 } else { 256 } }, groups)?;
    let most = if cpu { 1 << 22 } else { 1 << 28 };
    let mut elements = (session.caps().max_buffer_bytes / 4).min(most) as usize;
    // a small card holds less than a large one's caches ask for
    loop {
        match copy_rate(session, elements) {
            Err(Error::Gpu(GpuError::OutOfMemory { .. })) if elements > LEAST_COPIED => elements /= 2,
            bytes => return Ok(Peak { flops, bytes: bytes? }),
        }
    }
}

/// Elements of the smallest copy whose rate says something.
const LEAST_COPIED: usize = 1 << 22;

fn fma_rate(gpu: &Gpu, key: ProbeKey, groups: u32) -> Result<f64, Error> {
    let (launch, bytes) = launch(key, groups);
    let flops = launch.estimate.flops;
    let tensor = TensorId(0);
    let step =
        Step { node: NodeId(0), name: "probe".into(), launch: launch.map(|_| tensor), in_place: None, beside: false };
    let ty = TensorType::new(DType::F32, [bytes as usize / 4]);
    let selected = Selected {
        tensors: vec![TensorSpec { name: "probe".into(), bytes, kind: TensorKind::Temp }],
        steps: vec![step],
        outputs: vec![Port { name: "probe".into(), ty, tensor, offset: 0, bounds: Vec::new(), keep: false }],
        ..Selected::default()
    };
    let recording = lower(&selected, &plan(&selected, true), gpu.caps());
    let executable =
        Executable::new(gpu, recording, ExecutableOptions::default(), iter::empty::<Result<Content, Error>>())?;
    let seconds = best(|| Ok(executable.submit(&[Vec::new()], Submission::default())?.wait().map(|_| ())?))?;
    Ok(flops / seconds)
}

fn copy_rate(session: &Session, elements: usize) -> Result<f64, Error> {
    let mut b = Builder::new();
    let x = b.state("x", TensorType::new(DType::F32, [elements]))?;
    let y = b.scale(x, 0.5)?;
    b.output("y", y)?;
    b.update(x, y)?;
    let graph = b.finish()?;
    let params: BTreeMap<String, Tensor> = BTreeMap::new();
    let program = session.compile(&graph, &params, &CompileOptions::default())?;
    let bytes = program.compiled().recording.estimate().bytes;
    let seconds = best(|| program.submit_unread(&[])?.wait().map(|_| ()))?;
    Ok(bytes / seconds)
}

/// The shortest of several runs, after one that warms up.
fn best(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    run()?;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        run()?;
        least = least.min(begin.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// The vendor's figure for f32 FLOP/s, where it is known by the adapter's name. Other cards of a series have other figures.
pub fn theoretical_flops(adapter: &str) -> Option<f64> {
    // vendors' data sheets: dense f32 without matrix units
    const KNOWN: [(&str, f64); 10] = [
        ("NVIDIA H200", 66.9e12),
        ("NVIDIA H100 80GB HBM3", 66.9e12),
        ("NVIDIA H100 PCIe", 51.2e12),
        ("NVIDIA A100-SXM4-40GB", 19.5e12),
        ("NVIDIA A100-SXM4-80GB", 19.5e12),
        ("NVIDIA A100-PCIE-40GB", 19.5e12),
        ("NVIDIA A100 80GB PCIe", 19.5e12),
        ("NVIDIA GeForce RTX 4090", 82.6e12),
        ("NVIDIA GeForce RTX 3090", 35.6e12),
        ("AMD Radeon RX 7900 XTX", 61.4e12),
    ];
    // drivers say more in brackets
    let name = adapter.split(" (").next().unwrap_or(adapter);
    KNOWN.iter().find(|(known, _)| *known == name).map(|(_, flops)| *flops)
}

#[cfg(test)]
mod tests {
    use super::theoretical_flops;

    #[test]
    fn figures_are_of_the_very_card() {
        assert_eq!(theoretical_flops("NVIDIA GeForce RTX 4090"), Some(82.6e12));
        assert_eq!(theoretical_flops("AMD Radeon RX 7900 XTX (RADV NAVI31)"), Some(61.4e12));
        for other in
            ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti", ""]
        {
            assert_eq!(theoretical_flops(other), None, "{other}");
        }
    }
}
