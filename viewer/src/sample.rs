//! In: nothing; out: small made traces of one decoder block, fused and eager, and large ones of any size: what is shown
//! before a file is open, and what tests and benches run on. Knows traces alone.

use crate::model::document::Document;
use kiln::trace::{
    Device, Dispatch, Finding, Frame, Graphs, HostSpan, Kernel, Memory, Node, Options, Peaks, Tensor, TensorKind, Trace,
};

/// Name, kernel, MFLOP, kB, µs.
type Row = (&'static str, &'static str, f64, f64, u64);

const FUSED: [Row; 7] = [
    ("emb", "gather", 0.0, 66.0, 4),
    ("blocks.0.sa.qkv", "matmul", 12.6, 328.0, 46),
    ("blocks.0.sa.attention", "attention", 8.4, 262.0, 61),
    ("blocks.0.sa.proj", "matmul", 4.3, 262.0, 19),
    ("blocks.0.ffwd.0", "matmul", 16.8, 460.0, 64),
    ("ln", "norm", 0.26, 132.0, 6),
    ("head", "matmul", 2.8, 174.0, 14),
];

const EAGER: [Row; 12] = [
    ("emb", "gather", 0.0, 66.0, 4),
    ("blocks.0.sa.query", "matmul", 4.2, 197.0, 18),
    ("blocks.0.sa.key", "matmul", 4.2, 197.0, 19),
    ("blocks.0.sa.value", "matmul", 4.2, 197.0, 18),
    ("blocks.0.sa.scores", "matmul", 4.2, 394.0, 31),
    ("blocks.0.sa.softmax", "softmax", 0.3, 524.0, 22),
    ("blocks.0.sa.mix", "matmul", 4.2, 394.0, 33),
    ("blocks.0.sa.proj", "matmul", 4.3, 262.0, 20),
    ("blocks.0.ffwd.0", "matmul", 16.8, 460.0, 63),
    ("blocks.0.ffwd.1", "elementwise", 0.1, 524.0, 12),
    ("ln", "norm", 0.26, 132.0, 6),
    ("head", "matmul", 2.8, 174.0, 14),
];

/// For each op as written, which dispatch of the fused program computes it.
const BECOMES: [usize; 12] = [0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6];

fn wgsl(kernel: &str) -> String {
    format!(
        "// {kernel}: a sample, not kiln's kernel\n@group(0) @binding(1) var<storage, read> x: array<f32>;\n\
         @group(0) @binding(2) var<storage, read_write> y: array<f32>;\n\n@compute @workgroup_size(64)\nfn main(\
         @builtin(global_invocation_id) id: vec3<u32>) {{\n    if (id.x < arrayLength(&y)) {{\n        y[id.x] = \
         x[id.x] * 2.0;\n    }}\n}}\n"
    )
}

/// Nodes that each read the one before, after an input.
fn nodes(rows: &[Row], becomes: impl Fn(usize) -> Option<usize>) -> Vec<Node> {
    let node = |(i, row): (usize, &Row)| Node {
        name: row.0.into(),
        op: row.1.into(),
        ty: "f32 (1, 128, 128)".into(),
        inputs: if i == 0 { Vec::new() } else { vec![i - 1] },
        becomes: becomes(i),
    };
    rows.iter().enumerate().map(node).collect()
}

fn make(rows: &[Row], mode: &str, becomes: impl Fn(usize) -> Option<usize>, findings: &[(&str, &str)]) -> Trace {
    let mut kernels: Vec<Kernel> = Vec::new();
    let dispatches = rows.iter().enumerate().map(|(i, row)| {
        let kernel = kernels.iter().position(|k| k.name == row.1).unwrap_or_else(|| {
            kernels.push(Kernel { name: row.1.into(), key: format!("Sample({:?})", row.1), wgsl: wgsl(row.1) });
            kernels.len() - 1
        });
        let grid = [32, 4, 1];
        Dispatch { name: row.0.into(), kernel, node: i, grid, flops: row.2 * 1e6, bytes: row.3 * 1e3 }
    });
    let dispatches: Vec<Dispatch> = dispatches.collect();
    let span = |name: &str, thread, begin, end| HostSpan { name: name.into(), thread, begin, end };
    let compile = vec![
        span("lift", 0, 20_000, 90_000),
        span("fuse", 0, 90_000, 150_000),
        span("select", 0, 150_000, 210_000),
        span("plan", 0, 210_000, 230_000),
        span("pipelines", 0, 260_000, 900_000),
        span("matmul", 1, 270_000, 600_000),
        span("norm", 1, 600_000, 880_000),
        span("weights", 0, 900_000, 1_000_000),
    ];
    let split = mode == "eager";
    let frames = (0..3u64).map(|f| frame(rows, 1_200_000 + f * 700_000, f, split));
    let last = rows.len();
    let tensor = |name: &str, kind, bytes, slot, alive| Tensor { name: name.into(), kind, bytes, slot, alive };
    let mut tensors = vec![
        tensor("tokens", TensorKind::Input, 512, None, Some((0, 0))),
        tensor("weights", TensorKind::Weight, 1 << 21, None, Some((0, last - 1))),
    ];
    tensors.extend(rows.iter().enumerate().map(|(i, row)| {
        let alive = if i + 1 == last { (i, last) } else { (i, i + 1) };
        tensor(row.0, TensorKind::Temp, 40_000 + 20_000 * (i as u64 % 3), Some(i % 3), Some(alive))
    }));
    let slots = vec![40_000, 60_000, 80_000];
    let naive = tensors.iter().map(|t| t.bytes).sum();
    let findings = findings.iter().map(|(pass, what)| Finding { pass: (*pass).into(), what: (*what).into() });
    Trace {
        title: "one decoder block, a sample".into(),
        device: Device {
            adapter: "sample device".into(),
            kind: "CPU".into(),
            backend: "vulkan".into(),
            driver: "none".into(),
            timestamps: true,
            peaks: Some(Peaks { flops: 4e11, bytes: 3e10 }),
        },
        options: Options {
            mode: mode.into(),
            lift: !split,
            fuse: !split,
            precision: "highest".into(),
            alias: true,
            checked: false,
            dispatches_per_submit: split.then_some(1),
        },
        kernels,
        memory: Memory { resident: (1 << 21) + 512, naive, slots, tensors },
        graph: Graphs { before: nodes(&EAGER, becomes), after: nodes(rows, |_| None), findings: findings.collect() },
        dispatches,
        compile,
        frames: frames.collect(),
        ..Trace::default()
    }
}

fn frame(rows: &[Row], begin: u64, nth: u64, split: bool) -> Frame {
    let mut now = 0;
    let times = rows.iter().map(|row| {
        let from = now + 2_000;
        now = from + row.4 * 1_000 + nth * 150;
        Some((from - 2_000, now - 2_000))
    });
    let times: Vec<Option<(u64, u64)>> = times.collect();
    let span = |name: &str, begin, end| HostSpan { name: name.into(), thread: 0, begin, end };
    let host = vec![
        span("check inputs", 0, 3_000),
        span("upload", 3_000, 9_000),
        span("encode", 9_000, 60_000),
        span("submit", 60_000, 72_000),
        span("wait", 72_000, 80_000 + now),
        span("readback", 80_000 + now, 90_000 + now),
    ];
    Frame {
        begin,
        host,
        gpu_at: 66_000,
        times,
        shared: Vec::new(),
        submits: if split { rows.len() as u64 } else { 1 },
        passes: if split { rows.len() as u64 } else { 1 },
        profiling_split_passes: false,
        encode_ns: 72_000,
        wall_ns: 92_000 + now,
    }
}

/// Lifted and fused.
pub fn trace() -> Trace {
    let findings = [
        ("attention", "blocks.0.sa.attention: 1 head → one causal attention"),
        ("linears", "blocks.0.sa.qkv: 3 linears on one input → one"),
        ("epilogues", "blocks.0.ffwd.0: matmul + relu in one kernel"),
    ];
    make(&FUSED, "fused", |i| Some(BECOMES[i]), &findings)
}

/// The same as written.
pub fn eager() -> Trace {
    make(&EAGER, "eager", Some, &[])
}

/// [`trace`] as a document.
pub fn document() -> Document {
    Document::new("sample", trace())
}

/// As many dispatches over as many frames, in blocks of eight, each with a node and a tensor.
pub fn large(dispatches: usize, frames: usize) -> Trace {
    let mut trace = trace();
    let kernels = trace.kernels.len();
    trace.dispatches = (0..dispatches)
        .map(|i| Dispatch {
            name: format!("blocks.{}.part.{}", i / 8, i % 8),
            kernel: i % kernels,
            node: i,
            grid: [64, 1, 1],
            flops: 1e6 + i as f64,
            bytes: 1e5,
        })
        .collect();
    let node = |i: usize| Node {
        name: format!("blocks.{}.part.{}", i / 8, i % 8),
        op: "matmul".into(),
        ty: "f32 (64, 64)".into(),
        inputs: i.checked_sub(1).into_iter().collect(),
        becomes: Some(i),
    };
    trace.graph.before = (0..dispatches).map(node).collect();
    trace.graph.after = trace.graph.before.iter().map(|n| Node { becomes: None, ..n.clone() }).collect();
    let tensor = |i: usize| Tensor {
        name: format!("blocks.{}.part.{}", i / 8, i % 8),
        kind: TensorKind::Temp,
        bytes: 16_384,
        slot: Some(i % 3),
        alive: Some((i, i + 1)),
    };
    trace.memory = Memory {
        resident: 1 << 20,
        naive: 16_384 * dispatches as u64,
        slots: vec![16_384; 3],
        tensors: (0..dispatches).map(tensor).collect(),
    };
    trace.frames = (0..frames as u64)
        .map(|f| Frame {
            begin: 1_200_000 + f * (dispatches as u64 * 1_000 + 100_000),
            times: (0..dispatches as u64).map(|i| Some((i * 1_000, i * 1_000 + 900 - i % 7))).collect(),
            submits: 1,
            passes: 1,
            wall_ns: dispatches as u64 * 1_000 + 50_000,
            ..Frame::default()
        })
        .collect();
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_traces() {
        for trace in [trace(), eager(), large(100, 2)] {
            assert_eq!(trace.check(), Ok(()));
        }
    }
}
