//! In: a graph; out: [`Selected`]: the walk over its nodes and the match of ops to kernels.

use super::parts::Parts;
use super::reads::Reads;
use super::units::FoundExponents;
use super::{Located, Port, SelectError, Selected, TensorId, TensorKind, TensorSpec, Weight};
use crate::caps::{DeviceCaps, MatmulPrecision};
use crate::graph::{
    Chain, DType, Disposition, Extreme, Graph, IndexBound, Node, NodeId, Op, Output, Reduction, Ref, Shape, StateUses,
    TensorType, ValueId,
};
use crate::kernel::elementwise::Elementwise;
use crate::kernel::norm::NormKind;
use crate::kernel::reduce::ReduceKind;
use crate::kernel::{Choices, KernelError, Launch, Problem, View, fill, gather, norm, reduce, softmax};
use std::collections::{HashMap, HashSet};

/// Chooses kernels for a verified graph; `choices` go before the kernels' models.
pub fn select(
    graph: &Graph,
    caps: &DeviceCaps,
    precision: MatmulPrecision,
    choices: &Choices,
) -> Result<Selected, SelectError> {
    let states = StateUses::of(graph);
    let mut s = Selector {
        graph,
        caps,
        precision,
        choices,
        decided: HashMap::new(),
        out: Selected::default(),
        at: HashMap::new(),
        dense: HashMap::new(),
        uses: graph.use_counts(),
        consumers: graph.consumers(),
        bounds: graph.index_bounds(),
        transposed: HashMap::new(),
        exponents: HashMap::new(),
        weights_exponents: HashMap::new(),
        reads: Reads::of(graph, &states),
        parts: Parts::of(graph, &states, caps.max_binding_bytes),
        concats: HashMap::new(),
        states,
        in_place: HashMap::new(),
        placed: HashSet::new(),
    };
    s.report_units();
    for (id, node) in graph.nodes() {
        s.check(node)?;
        s.node(id, node).map_err(|e| s.name_tensor(node, e))?;
    }
    s.finish()?;
    Ok(s.out)
}

/// What [`select`] knows while it walks.
pub(super) struct Selector<'a> {
    pub graph: &'a Graph,
    pub caps: &'a DeviceCaps,
    pub precision: MatmulPrecision,
    pub choices: &'a Choices,
    /// Where each problem is in the decisions.
    pub decided: HashMap<Problem, usize>,
    pub out: Selected,
    pub at: HashMap<ValueId, Located>,
    /// Copies of values that are not dense where they are.
    pub dense: HashMap<ValueId, Located>,
    pub uses: Vec<Vec<usize>>,
    /// The nodes that read each node.
    pub consumers: Vec<Vec<NodeId>>,
    bounds: Vec<(NodeId, IndexBound)>,
    /// Parameters stored transposed: their tensors in order of columns.
    pub transposed: HashMap<NodeId, Vec<Weight>>,
    /// The exponents of the rows of looks at values, each where the value or a copy of it lies.
    pub exponents: HashMap<(ValueId, TensorId, View), FoundExponents>,
    /// Those of the columns of weights stored transposed.
    pub weights_exponents: HashMap<TensorId, TensorId>,
    /// Who reads values last.
    pub reads: Reads,
    /// Who reads states, and who makes their new values.
    pub states: StateUses,
    /// Whether each state's new value is written where it lies.
    pub in_place: HashMap<NodeId, bool>,
    /// Those new values that lie where their state does.
    pub placed: HashSet<ValueId>,
    /// Values that are written where a concat has them.
    pub parts: Parts,
    /// Where the concats of such values are, from the first that is written on.
    pub concats: HashMap<NodeId, Located>,
}

/// What can go wrong in a node: a kernel's refusal, or an error that is complete.
pub(super) enum Fault {
    Kernel(KernelError),
    Select(SelectError),
}

impl From<KernelError> for Fault {
    fn from(e: KernelError) -> Self {
        Fault::Kernel(e)
    }
}

impl From<SelectError> for Fault {
    fn from(e: SelectError) -> Self {
        Fault::Select(e)
    }
}

pub(super) type Done<T = ()> = Result<T, Fault>;

impl<'a> Selector<'a> {
    fn check(&self, node: &Node) -> Result<(), SelectError> {
        let rounds = match &node.op {
            Op::Elementwise(chain) | Op::FusedMatmul { epilogue: chain, .. } => chain.rounds_f16(),
            _ => false,
        };
        if !self.caps.f16 && (rounds || node.outputs.iter().any(|t| t.dtype == DType::F16)) {
            return Err(SelectError::NoF16 { op: node.op.name(), node: node.name.clone() });
        }
        if node.outputs.iter().any(|t| t.dtype == DType::BF16) {
            return Err(SelectError::Bf16 { op: node.op.name(), node: node.name.clone() });
        }
        Ok(())
    }

    pub fn name_tensor(&self, node: &Node, fault: Fault) -> SelectError {
        match fault {
            Fault::Select(e) => e,
            Fault::Kernel(source) => {
                let tensor = match &source {
                    KernelError::Binding { operand, .. } => {
                        let input = node.inputs.get(*operand).map(|v| self.graph.producer(*v).name.clone());
                        Some(input.unwrap_or_else(|| node.name.clone()))
                    }
                    _ => None,
                };
                SelectError::Kernel { op: node.op.name(), node: node.name.clone(), tensor, source }
            }
        }
    }

    /// A new tensor for a dense value of this type.
    pub fn tensor(&mut self, node: &Node, ty: &TensorType, kind: TensorKind) -> Done<TensorId> {
        self.raw_tensor(node, ty.bytes() as u64, kind)
    }

    pub fn raw_tensor(&mut self, node: &Node, bytes: u64, kind: TensorKind) -> Done<TensorId> {
        let limit = self.caps.max_buffer_bytes;
        if bytes > limit {
            return Err(
                SelectError::Buffer { op: node.op.name(), node: node.name.clone(), wanted: bytes, limit }.into()
            );
        }
        self.out.tensors.push(TensorSpec { name: node.name.clone(), bytes, kind });
        Ok(TensorId(self.out.tensors.len() - 1))
    }

    /// Where a value is.
    pub fn locate(&self, value: ValueId) -> Located {
        self.at[&value].clone()
    }

    pub fn set(&mut self, value: ValueId, located: Located) {
        self.at.insert(value, located);
    }

    /// A new temporary for one output of a node, which becomes its place.
    pub fn output(&mut self, id: NodeId, output: usize) -> Done<Located> {
        let node = self.graph.node(id);
        let ty = &node.outputs[output];
        let tensor = self.tensor(node, ty, TensorKind::Temp)?;
        let located = Located { tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: true };
        self.set(ValueId { node: id, output }, located.clone());
        Ok(located)
    }

    /// A place for one output of a node whose kernel can leave gaps between what it writes: the part of a concat that
    /// nothing else reads it for, or a new temporary.
    pub fn output_or_part(&mut self, id: NodeId, output: usize) -> Done<Located> {
        let value = ValueId { node: id, output };
        let Some((concat, axis, start)) = self.parts.place(value) else { return self.output(id, output) };
        let whole = self.concat_place(concat)?;
        let len = self.graph.shape(value).dims()[axis];
        let part = Located { view: whole.view.slice(axis, start, len), own: false, ..whole };
        self.set(value, part.clone());
        Ok(part)
    }

    /// Where a concat is or will be.
    pub fn concat_place(&mut self, concat: NodeId) -> Done<Located> {
        if let Some(place) = self.concats.get(&concat) {
            return Ok(place.clone());
        }
        let place = self.output(concat, 0)?;
        self.concats.insert(concat, place.clone());
        Ok(place)
    }

    /// Whether a node may overwrite this input: nothing else reads it, and its memory holds nothing else.
    pub fn may_overwrite(&self, value: ValueId) -> bool {
        let located = &self.at[&value];
        located.own
            && self.out.tensors[located.tensor.0].kind == TensorKind::Temp
            && self.uses[value.node.0][value.output] == 1
    }

    pub fn is_used(&self, id: NodeId, output: usize) -> bool {
        self.uses[id.0][output] > 0
    }

    fn node(&mut self, id: NodeId, node: &'a Node) -> Done {
        let input = |i: usize| node.inputs[i];
        match &node.op {
            Op::Input => {
                if self.graph.is_state(id) {
                    return self.state(id).map(|_| ());
                }
                let ty = node.outputs[0].clone();
                let tensor = self.tensor(node, &ty, TensorKind::Input)?;
                self.set(id.into(), Located { tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: false });
                let of_input = self.bounds.iter().filter(|(n, _)| *n == id);
                let mut bounds: Vec<IndexBound> = of_input.map(|(_, bound)| bound.clone()).collect();
                bounds.sort_by_key(|b| b.count);
                self.out.inputs.push(Port { name: node.name.clone(), ty, tensor, offset: 0, bounds, keep: false });
                Ok(())
            }
            Op::Parameter(storage) => self.parameter(id, *storage),
            Op::Constant(value, dtype, shape) => {
                let launches = fill::constant(*dtype, value.get(), shape.elements(), self.caps)?;
                self.generate(id, launches)
            }
            Op::Arange(n) => {
                let launches = fill::arange(*n, self.caps)?;
                self.generate(id, launches)
            }
            Op::CausalMask(q, k) => {
                let launches = fill::causal_mask(*q, *k, self.caps)?;
                self.generate(id, launches)
            }
            Op::Matmul { transpose_a, transpose_b } => {
                self.product(id, *transpose_a, *transpose_b, &Chain::identity(), &[])
            }
            Op::Linear => {
                let bias: Vec<ValueId> = node.inputs[2..].to_vec();
                let epilogue = if bias.is_empty() { Chain::identity() } else { Chain::add() };
                self.product(id, false, true, &epilogue, &bias)
            }
            Op::LinearStack(activation) => self.linear_stack(id, *activation),
            Op::LinearStackGrad(activation) => self.linear_stack_grad(id, *activation),
            Op::LinearStackParamGrad => self.linear_stack_param_grad(id),
            Op::FusedMatmul { transpose_a, transpose_b, epilogue } => {
                self.product(id, *transpose_a, *transpose_b, epilogue, &node.inputs[2..])
            }
            Op::Unary(u) => self.chain(id, &Chain::of(1, crate::graph::Step::Unary(*u, Ref::Input(0)))),
            Op::Binary(o) => {
                self.chain(id, &Chain::of(2, crate::graph::Step::Binary(*o, Ref::Input(0), Ref::Input(1))))
            }
            Op::Where => {
                self.chain(id, &Chain::of(3, crate::graph::Step::Select(Ref::Input(0), Ref::Input(1), Ref::Input(2))))
            }
            Op::MaskedFill(value) => {
                let fill = crate::graph::Step::Const(*value);
                let pick = crate::graph::Step::Select(Ref::Input(1), Ref::Step(0), Ref::Input(0));
                self.chain(id, &Chain { arity: 2, steps: vec![fill, pick] })
            }
            Op::Elementwise(chain) => self.chain(id, chain),
            Op::Cast(_) => self.chain(id, &Chain { arity: 1, steps: Vec::new() }),
            Op::Softmax(axis) | Op::LogSoftmax(axis) => {
                let log = matches!(node.op, Op::LogSoftmax(_));
                let (outer, n, inner) = around(self.graph.shape(input(0)), *axis, 1);
                self.rowwise(id, &[0], |dtype, caps| softmax::launches(dtype, log, outer, n, inner, caps))
            }
            Op::LayerNorm(eps) | Op::RmsNorm(eps) | Op::AddLayerNorm(eps) => {
                let x = self.graph.shape(input(0));
                let (kind, stats, all) = match node.op {
                    Op::LayerNorm(_) => (NormKind::Layer, 1, vec![0, 1, 2]),
                    Op::RmsNorm(_) => (NormKind::Rms, 1, vec![0, 1]),
                    _ => (NormKind::AddLayer, 2, vec![0, 1, 2, 3]),
                };
                let stats = (stats..node.outputs.len()).any(|o| self.is_used(id, o));
                let b_elements = if kind == NormKind::AddLayer { self.graph.shape(input(1)).elements() } else { 0 };
                let (rows, width, eps) = (x.rows(), x.last(), eps.get());
                self.rowwise_outputs(id, &all, stats, |dtype, caps| {
                    norm::launches(kind, dtype, rows, width, eps, b_elements, stats, caps)
                })
            }
            Op::Embedding => {
                let (table, index) = (self.graph.shape(input(0)), self.graph.ty(input(1)).clone());
                let (rows, width, count) = (table.dims()[0], table.dims()[1], index.shape.elements());
                self.rowwise(id, &[0, 1], |dtype, caps| gather::embedding(dtype, index.dtype, rows, width, count, caps))
            }
            Op::PickRow => {
                let x = self.graph.shape(input(0)).dims();
                let (batch, seq, rest) = (x[0], x[1], x[2..].iter().product());
                self.rowwise(id, &[0, 1], |dtype, caps| gather::pick_row(dtype, batch, seq, rest, caps))
            }
            Op::Reduce { kind, axes, .. } => {
                let kind = match kind {
                    Reduction::Sum => ReduceKind::Sum,
                    Reduction::Mean => ReduceKind::Mean,
                    Reduction::Max => ReduceKind::Max,
                    Reduction::AbsMax => ReduceKind::AbsMax,
                };
                self.reduce(id, kind, axes)
            }
            Op::Arg(Extreme::Max, axis) => self.reduce(id, ReduceKind::ArgMax, &[*axis]),
            Op::Magnitude => self.magnitude(id),
            Op::Compare(c) => {
                self.chain(id, &Chain::of(2, crate::graph::Step::Compare(*c, Ref::Input(0), Ref::Input(1))))
            }
            Op::Dropout(attrs) => self.dropout(id, attrs),
            Op::CrossEntropy(attrs) => self.cross_entropy(id, attrs),
            Op::CrossEntropyGrad(attrs) => self.cross_entropy_grad(id, attrs),
            Op::SoftmaxGrad(axis) => self.softmax_grad(id, *axis, false),
            Op::LogSoftmaxGrad(axis) => self.softmax_grad(id, *axis, true),
            Op::LayerNormGrad | Op::RmsNormGrad => self.norm_grad(id),
            Op::LayerNormParamGrad | Op::RmsNormParamGrad => self.norm_param_grad(id),
            Op::EmbeddingGrad(rows) => self.embedding_grad(id, *rows),
            Op::LinearGrad { bias } => self.linear_grad(id, *bias),
            Op::AttentionGrad(attrs) => self.attention_grad(id, attrs),
            Op::Adam(attrs) => self.adam(id, attrs),
            Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) | Op::Recompute(_) => {
                self.view(id, node)
            }
            Op::Concat(_) if self.states.is_parts(self.graph, id.into()) => Ok(()),
            Op::Concat(axis) => self.concat(id, *axis),
            Op::Attention(attrs) => self.attention(id, attrs),
        }
    }

    /// A node without inputs.
    fn generate(&mut self, id: NodeId, launches: Vec<Launch<usize>>) -> Done {
        let out = self.output(id, 0)?;
        self.emit(id, "", launches, &[out.tensor], None)
    }

    /// A kernel over dense inputs with one output.
    pub fn rowwise(
        &mut self,
        id: NodeId,
        inputs: &[usize],
        launches: impl FnOnce(DType, &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError>,
    ) -> Done {
        self.rowwise_outputs(id, inputs, false, launches)
    }

    /// A kernel over dense inputs that writes the node's outputs; those that are row statistics only if `stats`.
    fn rowwise_outputs(
        &mut self,
        id: NodeId,
        inputs: &[usize],
        stats: bool,
        launches: impl FnOnce(DType, &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError>,
    ) -> Done {
        let node = self.graph.node(id);
        let mut tensors = Vec::new();
        for i in inputs {
            tensors.push(self.dense(id, node.inputs[*i])?.tensor);
        }
        let dtype = node.outputs[0].dtype;
        let mut found = Vec::new();
        for (output, ty) in node.outputs.iter().enumerate() {
            let is_stat = node.outputs.len() > 1 && ty.shape.rank() < node.outputs[0].shape.rank();
            if !is_stat || stats {
                tensors.push(self.output(id, output)?.tensor);
            }
            if is_stat && stats {
                found.push((ty.clone(), tensors[tensors.len() - 1]));
            }
        }
        if node.outputs[0].shape.elements() == 0 {
            // the mean of none is NaN
            for (ty, tensor) in found {
                let fill = fill::constant(ty.dtype, f32::NAN, ty.shape.elements(), self.caps)?;
                self.emit(id, "", fill, &[tensor], None)?;
            }
            return Ok(());
        }
        let launches = launches(dtype, self.caps)?;
        self.emit(id, "", launches, &tensors, None)
    }

    /// A chain over the node's inputs, stretched to its output.
    fn chain(&mut self, id: NodeId, chain: &Chain) -> Done {
        let node = self.graph.node(id);
        let ty = &node.outputs[0];
        let located: Vec<Located> = node.inputs.iter().map(|v| self.locate(*v)).collect();
        let dims = ty.shape.dims();
        let inputs: Vec<(DType, View)> = located.iter().map(|l| (l.dtype, l.view.broadcast(dims))).collect();
        let state = (0..inputs.len()).find(|i| self.takes_state(id, 0, node.inputs[*i]));
        let part = self.parts.place(id.into()).is_some();
        let in_place = state.or_else(|| {
            (0..inputs.len()).find(|i| {
                !part
                    && located[*i].dtype == ty.dtype
                    && ty.dtype != DType::Bool
                    && self.graph.shape(node.inputs[*i]) == &ty.shape
                    && self.may_overwrite(node.inputs[*i])
            })
        });
        let out = match state {
            Some(i) => self.overwrite_state(id, 0, node.inputs[i]),
            None => self.output_or_part(id, 0)?,
        };
        if ty.shape.elements() == 0 {
            return Ok(());
        }
        let float = node.inputs.iter().map(|v| self.graph.ty(*v).dtype).find(|d| *d != DType::Bool).unwrap_or(ty.dtype);
        // a cast computes in the float side of it
        let compute = if ty.dtype.is_float() { DType::F32 } else { compute_type(float) };
        let elementwise = Elementwise { chain, inputs: &inputs, out: (out.dtype, &out.view), compute, in_place };
        let launches = elementwise.launches(self.caps)?;
        let mut tensors: Vec<TensorId> = located.iter().map(|l| l.tensor).collect();
        tensors.push(out.tensor);
        // a state's memory is its own
        let handed_on = in_place.filter(|_| state.is_none()).map(|i| located[i].tensor);
        self.emit(id, "", launches, &tensors, handed_on)
    }

    fn reduce(&mut self, id: NodeId, kind: ReduceKind, axes: &[usize]) -> Done {
        let node = self.graph.node(id);
        let value = node.inputs[0];
        let shape = self.graph.shape(value).clone();
        let contiguous = axes.windows(2).all(|w| w[1] == w[0] + 1);
        let (input, (outer, n, inner)) = if axes.is_empty() {
            (self.dense(id, value)?, (shape.elements(), 1, 1))
        } else if contiguous {
            (self.dense(id, value)?, around(&shape, axes[0], axes.len()))
        } else {
            // the reduced axes go last
            let mut perm: Vec<usize> = (0..shape.rank()).filter(|d| !axes.contains(d)).collect();
            perm.extend(axes);
            let mut located = self.locate(value);
            located.view = located.view.permute(&perm);
            let n = axes.iter().map(|a| shape.dims()[*a]).product();
            let outer = perm[..shape.rank() - axes.len()].iter().map(|d| shape.dims()[*d]).product();
            (self.copy(id, &located)?, (outer, n, 1))
        };
        let out = self.output_or_part(id, 0)?;
        let elements = node.outputs[0].shape.elements();
        if elements == 0 {
            return Ok(());
        }
        if n == 0 {
            // of none: the sum and the largest magnitude are 0, the mean NaN, the maximum -inf
            let value = match kind {
                ReduceKind::Sum | ReduceKind::AbsMax => 0.0,
                ReduceKind::Mean => f32::NAN,
                ReduceKind::Max | ReduceKind::ArgMax => f32::NEG_INFINITY,
            };
            let launches = fill::constant(out.dtype, value, elements, self.caps)?;
            return self.emit(id, "", launches, &[out.tensor], None);
        }
        let (launches, workspace) = reduce::launches(kind, input.dtype, [outer, n, inner], out.view.offset, self.caps)?;
        let mut tensors = vec![input.tensor, out.tensor];
        if let Some(bytes) = workspace {
            tensors.push(self.raw_tensor(node, bytes as u64, TensorKind::Temp)?);
        }
        self.emit(id, "", launches, &tensors, None)
    }

    /// Outputs become dense temporaries; states take their new values.
    fn finish(&mut self) -> Result<(), SelectError> {
        for output in self.graph.outputs() {
            let node = self.graph.producer(output.value);
            let port = self.output_port(output).map_err(|e| self.name_tensor(node, e))?;
            self.out.outputs.push(port);
        }
        self.updates()
    }

    fn output_port(&mut self, output: &Output) -> Done<Port> {
        let value = output.value;
        let located = self.dense(value.node, value)?;
        let located = match self.out.tensors[located.tensor.0].kind {
            TensorKind::Temp => located,
            // what the host or the next run may write is copied as it is now
            _ => self.copy(value.node, &located)?,
        };
        Ok(Port {
            name: output.name.clone(),
            ty: self.graph.ty(value).clone(),
            tensor: located.tensor,
            offset: 0,
            bounds: Vec::new(),
            keep: output.disposition == Disposition::Keep,
        })
    }
}

/// The type that elements of this stored type are computed in.
pub(super) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        DType::I32 => DType::I32,
        DType::U32 | DType::Bool => DType::U32,
    }
}

/// Sizes before, of and after `count` axes from `axis`.
pub(super) fn around(shape: &Shape, axis: usize, count: usize) -> (usize, usize, usize) {
    let d = shape.dims();
    (d[..axis].iter().product(), d[axis..axis + count].iter().product(), d[axis + count..].iter().product())
}
