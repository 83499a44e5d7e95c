//! In: a graph and a device's caps; out: [`Selected`], tensors and the launches over them in order. Knows neither
//! buffers nor wgpu.
//!
//! Every op goes to a kernel in one exhaustive match. Where a kernel could be launched in several ways, a table of
//! [`Choices`](crate::kernel::Choices) decides, and the kernel's own model of the device where the table says nothing. Ops that only move elements (reshape, permute, slice,
//! broadcast) become [`View`]s of their input; what reads a view in a way that its kernel cannot makes a dense copy
//! first. Physical layouts are explicit: a weight that only products read and no run updates is stored
//! transposed, (in, out), and cut into tensors that one binding covers; see [`Weight`].

mod attention;
mod emit;
mod error;
mod linear_grad;
mod movement;
mod overlap;
mod parts;
mod products;
mod reads;
mod selector;
mod stack;
mod states;
mod training;
mod units;

pub use error::SelectError;
pub use overlap::{Overlap, overlap};

use crate::graph::{DType, IndexBound, NodeId, Report, StorageId, TensorType};
use crate::kernel::{Config, Launch, Problem, View};
use std::fmt;
use std::ops::Range;

/// Index of a tensor in [`Selected::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// What a tensor is for, which decides where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// Written by the host before each run.
    Input,
    /// Stays on the device between runs.
    State,
    /// Written once when the program is made.
    Weight,
    /// Made and used within a run.
    Temp,
}

/// A dense piece of memory that launches read and write.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// The name of the node that makes it.
    pub name: String,
    /// Bytes of its elements.
    pub bytes: u64,
    /// What it is for.
    pub kind: TensorKind,
}

/// How a weight's tensor is filled from its storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The tensor.
    pub tensor: TensorId,
    /// The storage, (N, K) or a stack (L, N, K) of such where `columns` is given.
    pub storage: StorageId,
    /// Rows of each matrix that become columns of a transposed (K, columns) one; `None` is the storage as it is.
    pub columns: Option<Range<usize>>,
    /// The tensor holds not the elements but, for each of the columns, the largest biased exponent of its f32 elements, as
    /// u32: what exponents.wgsl makes of operands that change from run to run.
    pub exponents: bool,
}

/// A value that crosses the API.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it lies.
    pub tensor: TensorId,
    /// First byte in the tensor.
    pub offset: u64,
    /// For an integer input that indexes something: what it may hold, the tightest first.
    pub bounds: Vec<IndexBound>,
    /// For an output: it stays on the device.
    pub keep: bool,
}

/// One launch with what it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The node it computes, whole or in part.
    pub node: NodeId,
    /// The node's name, with what is done where that is not the node's own op.
    pub name: String,
    /// What is launched.
    pub launch: Launch<TensorId>,
    /// The tensor whose memory the launch's last operand takes over.
    pub in_place: Option<TensorId>,
    /// It runs beside the step before it: neither writes what the other touches.
    pub beside: bool,
}

/// A choice that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What it depends on.
    pub problem: Problem,
    /// The first node that it was made for.
    pub node: NodeId,
    /// How many times it was made.
    pub uses: usize,
    /// What was chosen.
    pub config: Config,
    /// All that the device can run, those that the kernel's model finds good first.
    pub configs: Vec<Config>,
    /// What the table of choices holds although the device cannot run it; the model's choice was taken instead.
    pub unfit: Option<Config>,
}

/// A graph with kernels chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selected {
    /// All tensors.
    pub tensors: Vec<TensorSpec>,
    /// All launches in order.
    pub steps: Vec<Step>,
    /// Weights and how they are filled.
    pub weights: Vec<Weight>,
    /// What a run is given.
    pub inputs: Vec<Port>,
    /// What stays on the device.
    pub states: Vec<Port>,
    /// What a run gives back.
    pub outputs: Vec<Port>,
    /// What was not done as it was asked for.
    pub report: Report,
    /// What could have been chosen otherwise, each problem once; of a node's choices the one that others depend on comes
    /// first.
    pub decisions: Vec<Decision>,
}

/// Where a value is.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    tensor: TensorId,
    view: View,
    dtype: DType,
    /// The tensor holds this value alone, dense, made by the value's own node.
    own: bool,
}

/// One launch a line: `blocks.0.ffwd.net.0: matmul ×384 reads t3 t4 t5 writes t6`.
impl fmt::Display for Selected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.tensors.iter().enumerate() {
            writeln!(f, "t{i}: {:?} {} bytes  # {}", t.kind, t.bytes, t.name)?;
        }
        for step in &self.steps {
            let operands: Vec<String> = step.launch.operands.iter().map(|o| format!("t{}", o.tensor.0)).collect();
            write!(f, "{}: {} ×{} [{}]", step.name, step.launch.key.name(), step.launch.groups, operands.join(", "))?;
            if let Some(t) = step.in_place {
                write!(f, " in place of t{}", t.0)?;
            }
            writeln!(f, "{}", if step.beside { " beside the one before" } else { "" })?;
        }
        Ok(())
    }
}

pub use selector::select;
