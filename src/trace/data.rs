//! In: figures; out: the parts of a [`Trace`]. Knows nothing else of the crate.
//!
//! Times are nanoseconds. What does not change from run to run stands once; a [`Frame`] is one run.

use serde::{Deserialize, Serialize};

/// What a file says of itself.
pub const FORMAT: &str = "kiln-trace";

/// Version of the file format, raised when a field changes its meaning.
pub const VERSION: u32 = 3;

/// The oldest that is read. Version 2 has no [`Frame::shared`]: each dispatch was timed by itself.
pub const OLDEST: u32 = 2;

/// A program and some of its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// What was run, in its user's words; may be empty.
    pub title: String,
    /// Where it ran.
    pub device: Device,
    /// How it was compiled.
    pub options: Options,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// The dispatches in order.
    pub dispatches: Vec<Dispatch>,
    /// What the host did to compile it.
    pub compile: Vec<HostSpan>,
    /// Where tensors live.
    pub memory: Memory,
    /// What was compiled.
    pub graph: Graphs,
    /// The runs.
    pub frames: Vec<Frame>,
}

/// An adapter in words, with what it reaches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub adapter: String,
    /// Discrete, integrated, virtual, CPU or other.
    pub kind: String,
    /// Vulkan, Metal or DX12.
    pub backend: String,
    /// Its driver and version.
    pub driver: String,
    /// Whether it gives timestamps.
    pub timestamps: bool,
    /// What it reaches, where that was measured.
    pub peaks: Option<Peaks>,
}

/// Measured limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    /// f32 FLOP/s of fused multiply-adds.
    pub flops: f64,
    /// Bytes/s of a copy, bytes read and written both counted.
    pub bytes: f64,
}

/// How a program was compiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Eager, recorded or fused.
    pub mode: String,
    /// Whether composite ops were looked for.
    pub lift: bool,
    /// Whether ops were fused.
    pub fuse: bool,
    /// The precision of products that was asked for: highest, high or medium.
    #[serde(default)]
    pub precision: String,
    /// Whether temporaries share memory.
    pub alias: bool,
    /// Whether run-time checks were compiled into kernels.
    pub checked: bool,
    /// Most dispatches of a command buffer; `None` puts all in one.
    pub dispatches_per_submit: Option<u64>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name, equal for all its forms.
    pub name: String,
    /// All that changes its text, in words.
    pub key: String,
    /// Its source.
    pub wgsl: String,
}

/// One dispatch of every run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The name of the node that it computes, with what is done where that is not the node's own op.
    pub name: String,
    /// Index in [`Trace::kernels`].
    pub kernel: usize,
    /// Index in [`Graphs::after`].
    pub node: usize,
    /// Workgroups.
    pub grid: [u32; 3],
    /// Floating-point operations that it cannot do without.
    pub flops: f64,
    /// Bytes that it cannot do without.
    pub bytes: f64,
}

/// Something that the host did. Spans of one thread nest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostSpan {
    /// What.
    pub name: String,
    /// By which thread; 0 is the caller's.
    pub thread: u32,
    /// From the begin of the compilation, or of the frame.
    pub begin: u64,
    /// Likewise.
    pub end: u64,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// From the begin of the compilation.
    pub begin: u64,
    /// What the host did, from the begin of the frame.
    pub host: Vec<HostSpan>,
    /// Where the device's zero lies, from the begin of the frame: an estimate, the first submit. The two clocks are not
    /// compared.
    pub gpu_at: u64,
    /// Begin and end of each dispatch on the device, from the first begin; `None` where there are no usable stamps.
    pub times: Vec<Option<(u64, u64)>>,
    /// First and last of neighbours that were timed together, in order. Their begins and ends divide the time of all of
    /// them in the ratio of what each took in an earlier run: the sum is measured, the parts are not.
    #[serde(default)]
    pub shared: Vec<(usize, usize)>,
    /// Command buffers submitted.
    pub submits: u64,
    /// Compute passes in them.
    pub passes: u64,
    /// Whether measuring changed the passes: without timestamps inside a pass each dispatch has its own, or each group
    /// that is timed together.
    pub profiling_split_passes: bool,
    /// Time that the host took to encode; upload and submit are spans of their own in `host`.
    pub encode_ns: u64,
    /// Time from the call of submit to results in host memory.
    pub wall_ns: u64,
}

/// Where tensors live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of weights, states and inputs.
    pub resident: u64,
    /// Bytes of every tensor in a place of its own.
    pub naive: u64,
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// All tensors.
    pub tensors: Vec<Tensor>,
}

/// A tensor in device memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// The name of the node that makes it.
    pub name: String,
    /// What it is for.
    pub kind: TensorKind,
    /// Its bytes.
    pub bytes: u64,
    /// Index in [`Memory::slots`], for a temporary that is touched.
    pub slot: Option<usize>,
    /// First and last dispatch that touch it or run beside one that does; the last is the number of dispatches for an
    /// output.
    pub alive: Option<(usize, usize)>,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// Written by the host before each run.
    Input,
    /// Stays on the device between runs.
    State,
    /// Written once.
    Weight,
    /// Made and used within a run.
    Temp,
}

/// What was compiled, before and after.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graphs {
    /// As written.
    pub before: Vec<Node>,
    /// As it is run.
    pub after: Vec<Node>,
    /// What was lifted and fused, or left as written and why.
    pub findings: Vec<Finding>,
}

/// An op of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it computes, in words.
    pub op: String,
    /// What it gives.
    pub ty: String,
    /// Indices of the nodes that it reads.
    pub inputs: Vec<usize>,
    /// For a node as written: the index in [`Graphs::after`] of the node that computes it now; `None` where nothing
    /// needs it any more.
    pub becomes: Option<usize>,
}

/// One thing that a pass did, or left as written and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finding {
    /// The pass.
    pub pass: String,
    /// What it did, in words, with the node's name in front.
    pub what: String,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace {
            format: FORMAT.into(),
            version: VERSION,
            title: String::new(),
            device: Device::default(),
            options: Options::default(),
            kernels: Vec::new(),
            dispatches: Vec::new(),
            compile: Vec::new(),
            memory: Memory::default(),
            graph: Graphs::default(),
            frames: Vec::new(),
        }
    }
}

impl Trace {
    /// The name of a dispatch's kernel.
    pub fn kernel_of(&self, dispatch: &Dispatch) -> &str {
        self.kernels.get(dispatch.kernel).map_or("unknown", |k| &k.name)
    }
}

impl Memory {
    /// Device bytes in all.
    pub fn total(&self) -> u64 {
        self.slots.iter().fold(self.resident, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl HostSpan {
    /// The same with another zero.
    pub fn later(self, by: u64) -> HostSpan {
        HostSpan { begin: self.begin.saturating_add(by), end: self.end.saturating_add(by), ..self }
    }
}

impl Frame {
    /// From the first begin to the last end on the device.
    pub fn gpu_ns(&self) -> Option<u64> {
        let timed = || self.times.iter().flatten();
        Some(timed().map(|t| t.1).max()? - timed().map(|t| t.0).min()?)
    }

    /// First and last of the dispatches that were timed together with one, if it was not timed by itself.
    pub fn timed_with(&self, dispatch: usize) -> Option<(usize, usize)> {
        let group = *self.shared.get(self.shared.partition_point(|(_, last)| *last < dispatch))?;
        (group.0 <= dispatch).then_some(group)
    }

    /// The sum of the dispatches' times. Where dispatches overlap it is more than the time in which any ran.
    pub fn busy_ns(&self) -> Option<u64> {
        let mut timed = self.times.iter().flatten().peekable();
        timed.peek()?;
        Some(timed.fold(0, |sum: u64, (begin, end)| sum.saturating_add(end.saturating_sub(*begin))))
    }

    /// Time between the first begin and the last end in which no dispatch ran.
    pub fn gaps_ns(&self) -> Option<u64> {
        let mut timed: Vec<(u64, u64)> = self.times.iter().flatten().copied().collect();
        timed.sort_unstable();
        let mut reached = timed.first()?.0;
        let mut gaps = 0u64;
        for (begin, end) in timed {
            gaps = gaps.saturating_add(begin.saturating_sub(reached));
            reached = reached.max(end);
        }
        Some(gaps)
    }
}
