//! In: a compiled program and what a run reports; out: [`Trace`] and [`Frame`]. Knows the stages' values, but decides
//! nothing.

use super::{Mode, Program, RunTimes};
use crate::gpu::Finished;
use crate::graph::{Graph, NodeId, Op};
use crate::select::TensorKind;
use crate::trace::{
    Device, Dispatch, Finding, Frame, Graphs, HostSpan, Kernel, Memory, Node, Options, Tensor, TensorKind as Kind,
    Trace,
};
use std::collections::BTreeMap;
use std::time::Instant;

impl Program {
    /// All that is known before a run: a trace without frames. Renders every kernel's source, so call it once.
    pub fn describe(&self) -> Trace {
        let info = self.executable.gpu().info();
        let recording = self.executable.recording();
        let kernel =
            |k: &crate::record::Kernel| Kernel { name: k.name().into(), key: format!("{:?}", k.key), wgsl: k.source() };
        let dispatches = recording.dispatches.iter().zip(&self.compiled.selected.steps).map(|(d, step)| Dispatch {
            name: d.name.clone(),
            kernel: d.kernel,
            node: step.node.0,
            grid: d.grid,
            flops: d.estimate.flops,
            bytes: d.estimate.bytes,
        });
        let fused = self.mode == Mode::Fused;
        Trace {
            device: Device {
                adapter: info.name.clone(),
                kind: info.kind.clone(),
                backend: info.backend.clone(),
                driver: info.driver.clone(),
                timestamps: self.executable.gpu().caps().timestamps,
                peaks: None,
            },
            options: Options {
                mode: self.mode.to_string(),
                lift: fused && self.options.lift,
                fuse: fused && self.options.fuse,
                precision: self.options.precision.to_string(),
                alias: self.options.alias,
                checked: self.options.checked,
                dispatches_per_submit: self.split.map(|n| n as u64),
            },
            kernels: recording.kernels.iter().map(kernel).collect(),
            dispatches: dispatches.collect(),
            compile: self.spans.clone(),
            memory: self.memory(),
            graph: self.graphs(),
            ..Trace::default()
        }
    }

    fn memory(&self) -> Memory {
        let plan = &self.compiled.plan;
        let tensors = self.compiled.selected.tensors.iter().enumerate().map(|(i, t)| Tensor {
            name: t.name.clone(),
            kind: match t.kind {
                TensorKind::Input => Kind::Input,
                TensorKind::State => Kind::State,
                TensorKind::Weight => Kind::Weight,
                TensorKind::Temp => Kind::Temp,
            },
            bytes: t.bytes,
            slot: plan.slots[i].map(|s| s.0),
            alive: plan.lifetimes[i].map(|l| (l.first, l.last)),
        });
        Memory {
            resident: plan.resident,
            naive: plan.naive,
            slots: plan.slot_bytes.clone(),
            tensors: tensors.collect(),
        }
    }

    fn graphs(&self) -> Graphs {
        let (before, after) = (&self.compiled.written, &self.compiled.graph);
        let findings =
            self.report().findings.iter().map(|f| Finding { pass: f.pass.into(), what: f.what.clone() }).collect();
        Graphs { before: nodes(before, &becomes(before, after)), after: nodes(after, &[]), findings }
    }

    /// A frame for each run that was submitted together. What the host did stands in the first; the runs' times have
    /// one zero.
    pub(super) fn frames_of(&self, finished: &Finished, times: &RunTimes) -> Vec<Frame> {
        let ns = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as u64;
        let offset = ns(times.begin, times.zero);
        let mut host = vec![HostSpan { name: "check inputs".into(), thread: 0, begin: 0, end: offset }];
        host.extend(finished.host.iter().map(|s| s.clone().later(offset)));
        let gpu_at = host.iter().find(|s| s.name == "submit").map_or(0, |s| s.begin);
        let stamps = |run: usize| {
            let times = finished.times.iter().skip(run * self.dispatches()).copied();
            times.chain(std::iter::repeat(None)).take(self.dispatches()).collect()
        };
        let shared = |run: usize| {
            let from = run * self.dispatches();
            let here = finished.shared.iter().filter(|(first, _)| (from..from + self.dispatches()).contains(first));
            here.map(|(first, last)| (first - from, last - from)).collect()
        };
        let frame = |run: usize| Frame {
            begin: ns(self.zero, times.begin),
            gpu_at,
            host: if run == 0 { std::mem::take(&mut host) } else { Vec::new() },
            times: stamps(run),
            shared: shared(run),
            submits: times.host.submits,
            passes: times.host.passes,
            profiling_split_passes: times.host.split_passes,
            encode_ns: times.host.encode_ns,
            wall_ns: times.begin.elapsed().as_nanos() as u64,
        };
        (0..finished.outputs.len()).map(frame).collect()
    }
}

fn nodes(graph: &Graph, becomes: &[Option<usize>]) -> Vec<Node> {
    let node = |(id, n): (NodeId, &crate::graph::Node)| Node {
        name: n.name.clone(),
        op: n.op.to_string(),
        ty: n.outputs.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", "),
        inputs: n.inputs.iter().map(|v| v.node.0).collect(),
        becomes: becomes.get(id.0).copied().flatten(),
    };
    graph.nodes().map(node).collect()
}

/// Where each node as written is computed now. A node that reads a parameter went where that parameter is read, if that
/// is in one place; another to the node that stands for it; one that stands nowhere was taken in by its reader.
fn becomes(before: &Graph, after: &Graph) -> Vec<Option<usize>> {
    let readers = parameter_readers(after);
    let consumers = before.consumers();
    let mut to = vec![None; before.nodes().len()];
    for (id, node) in before.nodes().rev() {
        let by_parameter = || {
            let storages = node.inputs.iter().filter_map(|v| match before.producer(*v).op {
                Op::Parameter(storage) => before.layout.get(storage).parts.first(),
                _ => None,
            });
            storages.filter_map(|part| readers.get(part.name.as_str())).find_map(|readers| match readers[..] {
                [one] => Some(one),
                _ => None,
            })
        };
        let stands = || before_origin(after, id);
        let reader = || consumers[id.0].iter().find_map(|reader| to[reader.0]);
        to[id.0] = match node.op {
            Op::Parameter(_) | Op::Input => stands().or_else(reader),
            _ => by_parameter().or_else(stands).or_else(reader),
        };
    }
    to
}

fn before_origin(after: &Graph, id: NodeId) -> Option<usize> {
    after.origins().get(id.0).copied().flatten().map(|n| n.0)
}

/// By a parameter's name, the nodes that read the storage it lies in.
fn parameter_readers(graph: &Graph) -> BTreeMap<&str, Vec<usize>> {
    let consumers = graph.consumers();
    let mut readers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (id, node) in graph.nodes() {
        let Op::Parameter(storage) = node.op else { continue };
        for part in &graph.layout.get(storage).parts {
            readers.entry(part.name.as_str()).or_default().extend(consumers[id.0].iter().map(|n| n.0));
        }
    }
    readers
}
