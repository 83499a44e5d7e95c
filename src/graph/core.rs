//! In: nodes in the order in which they can run; out: [`Graph`] with its invariants checked and printed.

use super::{DType, GraphError, Op, ParamLayout, Shape, StorageId, TensorType, infer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs.
    pub output: usize,
}

/// An op with its inputs, the types of its outputs and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Of what.
    pub inputs: Vec<ValueId>,
    /// What comes out.
    pub outputs: Vec<TensorType>,
    /// The node's name in labels, traces and errors.
    pub name: String,
}

/// Where a run leaves an output. One that is to feed the next run is state: see [`Graph::updates`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disposition {
    /// Copied to the host.
    #[default]
    Read,
    /// Stays on the device in memory of the run's own, until it is asked for.
    Keep,
}

/// A value that a run gives back.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// Where it goes.
    pub disposition: Disposition,
}

/// Nodes in an order in which they can run; edges point backwards only.
///
/// State: an input or parameter listed in [`Graph::updates`] stays on the device between runs. It is read as of the
/// start of a run; its new value takes effect at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<Output>,
    updates: Vec<(NodeId, ValueId)>,
    /// The nodes that `updates` lists.
    states: BTreeSet<NodeId>,
    /// The node that reads each storage.
    parameters: BTreeMap<StorageId, NodeId>,
    /// Where parameters live.
    pub layout: ParamLayout,
    pub(super) origins: Origins,
}

/// Where the nodes of a graph went in the passes since [`Graph::as_written`], by their index; empty before the first.
/// Two graphs are equal whatever they came from.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(pub Vec<Option<NodeId>>);

impl PartialEq for Origins {
    fn eq(&self, _: &Origins) -> bool {
        true
    }
}

impl Graph {
    /// All nodes in order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i), n))
    }

    /// The same graph, from which [`Graph::origins`] counts.
    pub fn as_written(&self) -> Graph {
        let origins = (0..self.nodes.len()).map(|i| Some(NodeId(i))).collect();
        Graph { origins: Origins(origins), ..self.clone() }
    }

    /// For each node of the graph as written the node that stands for it now; `None` where passes dropped it or took it
    /// into another's op.
    pub fn origins(&self) -> &[Option<NodeId>] {
        &self.origins.0
    }

    /// A node by its index.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The node that makes a value.
    pub fn producer(&self, value: ValueId) -> &Node {
        &self.nodes[value.node.0]
    }

    /// A value's type.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.nodes[value.node.0].outputs[value.output]
    }

    /// A value's shape.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.ty(value).shape
    }

    /// What a run gives back.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// State inputs and the values that they get at the end of a run.
    pub fn updates(&self) -> &[(NodeId, ValueId)] {
        &self.updates
    }

    /// The storages that are read, in order, and the node of each.
    pub fn parameters(&self) -> impl Iterator<Item = (StorageId, NodeId)> {
        self.parameters.iter().map(|(storage, node)| (*storage, *node))
    }

    /// The inputs that a run is given: those that are not state.
    pub fn inputs(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes().filter(|(id, n)| n.op == Op::Input && !self.is_state(*id))
    }

    /// Whether an input stays on the device between runs.
    pub fn is_state(&self, id: NodeId) -> bool {
        self.states.contains(&id)
    }

    /// How often each value is read by nodes, outputs and updates, indexed by node and output.
    pub fn use_counts(&self) -> Vec<Vec<usize>> {
        let mut counts: Vec<Vec<usize>> = self.nodes.iter().map(|n| vec![0; n.outputs.len()]).collect();
        let ends = self.outputs.iter().map(|o| o.value).chain(self.updates.iter().map(|u| u.1));
        for v in self.nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain(ends) {
            counts[v.node.0][v.output] += 1;
        }
        counts
    }

    /// The nodes that read each node's outputs, in order, each once.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); self.nodes.len()];
        for (id, node) in self.nodes() {
            for v in &node.inputs {
                let list = &mut consumers[v.node.0];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        consumers
    }

    /// Whether a value is one of this graph's.
    pub fn has(&self, value: ValueId) -> bool {
        self.nodes.get(value.node.0).is_some_and(|n| value.output < n.outputs.len())
    }

    /// Fails if one of the values is not this graph's, and so of another graph.
    fn check(&self, op: &'static str, node: &str, values: &[ValueId]) -> Result<(), GraphError> {
        match values.iter().find(|v| !self.has(**v)) {
            Some(value) => Err(GraphError::Value { op, node: node.into(), value: *value }),
            None => Ok(()),
        }
    }

    /// Appends a node whose output types follow from its inputs'; see [`Graph::push_parameter`] for a parameter.
    pub fn push(&mut self, op: Op, inputs: Vec<ValueId>, name: impl Into<String>) -> Result<NodeId, GraphError> {
        let name = name.into();
        self.check(op.name(), &name, &inputs)?;
        let types: Vec<&TensorType> = inputs.iter().map(|v| self.ty(*v)).collect();
        let outputs = infer(&op, &name, &types, &self.layout)?;
        Ok(match op {
            Op::Parameter(storage) => self.push_parameter(storage),
            _ => self.push_typed(op, inputs, outputs, name),
        })
    }

    /// Appends an input of a given type.
    pub fn push_input(&mut self, ty: TensorType, name: impl Into<String>) -> NodeId {
        self.push_typed(Op::Input, Vec::new(), vec![ty], name.into())
    }

    /// The node that reads a storage, appended if there is none: a storage has one value, and so one node.
    pub fn push_parameter(&mut self, id: StorageId) -> NodeId {
        if let Some(node) = self.parameters.get(&id) {
            return *node;
        }
        let storage = self.layout.get(id);
        let (name, ty) = (storage.name.clone(), TensorType::new(storage.dtype, storage.shape.clone()));
        let node = self.push_typed(Op::Parameter(id), Vec::new(), vec![ty], name);
        self.parameters.insert(id, node);
        node
    }

    fn push_typed(&mut self, op: Op, inputs: Vec<ValueId>, outputs: Vec<TensorType>, name: String) -> NodeId {
        self.nodes.push(Node { op, inputs, outputs, name });
        NodeId(self.nodes.len() - 1)
    }

    /// Declares an output; names are unique.
    pub fn push_output(
        &mut self,
        name: impl Into<String>,
        value: ValueId,
        disposition: Disposition,
    ) -> Result<(), GraphError> {
        let name = name.into();
        if self.outputs.iter().any(|o| o.name == name) {
            return Err(GraphError::Duplicate { kind: "output", name });
        }
        self.check("output", &name, &[value])?;
        self.outputs.push(Output { name, value, disposition });
        Ok(())
    }

    /// Makes an input or a parameter state: at the end of a run it takes this value.
    pub fn push_update(&mut self, state: NodeId, value: ValueId) -> Result<(), GraphError> {
        self.check("update", "state", &[state.into()])?;
        let node = self.node(state);
        let fail = |what: String| GraphError::Invalid { op: node.op.name(), node: node.name.clone(), what };
        self.check("update", &node.name, &[value])?;
        if !node.op.is_source() {
            return Err(fail("only an input or a parameter can be updated".into()));
        }
        if node.outputs[0] != *self.ty(value) {
            return Err(fail(format!("state is {}, its update {}", node.outputs[0], self.ty(value))));
        }
        if self.is_state(state) {
            return Err(GraphError::Duplicate { kind: "update", name: node.name.clone() });
        }
        self.updates.push((state, value));
        self.states.insert(state);
        Ok(())
    }

    /// Checks every invariant: edges point backwards, types are what inference gives, names are unique.
    pub fn verify(&self) -> Result<(), GraphError> {
        let mut names = BTreeSet::new();
        for (id, node) in self.nodes() {
            let fail = |what: String| GraphError::Invalid { op: node.op.name(), node: node.name.clone(), what };
            for v in &node.inputs {
                if v.node >= id || self.producer(*v).outputs.len() <= v.output {
                    return Err(fail(format!("input {v} does not exist before it")));
                }
            }
            match &node.op {
                Op::Input => {
                    if !names.insert(&node.name) {
                        return Err(GraphError::Duplicate { kind: "input", name: node.name.clone() });
                    }
                }
                op => {
                    let types: Vec<&TensorType> = node.inputs.iter().map(|v| self.ty(*v)).collect();
                    let inferred = infer(op, &node.name, &types, &self.layout)?;
                    if inferred != node.outputs {
                        return Err(fail(format!("outputs are {:?}, inference gives {inferred:?}", node.outputs)));
                    }
                }
            }
        }
        let mut states = BTreeSet::new();
        match self.updates.iter().map(|(state, _)| &self.node(*state).name).find(|name| !states.insert(*name)) {
            Some(name) => Err(GraphError::Duplicate { kind: "state", name: name.clone() }),
            None => Ok(()),
        }
    }
}

/// `%3`, or `%3.1` for a further output.
impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.output {
            0 => write!(f, "%{}", self.node.0),
            n => write!(f, "%{}.{n}", self.node.0),
        }
    }
}

/// One node a line: `%3 = linear(%1, %2) : f32 (2, 64)  # blocks.0.sa.proj`.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes() {
            write!(f, "%{} = {}", id.0, node.op)?;
            let inputs: Vec<String> = node.inputs.iter().map(|v| v.to_string()).collect();
            let types: Vec<String> = node.outputs.iter().map(|t| t.to_string()).collect();
            writeln!(f, " [{}] : {}  # {}", inputs.join(", "), types.join(", "), node.name)?;
        }
        for (state, value) in &self.updates {
            writeln!(f, "update {} = {value}", self.node(*state).name)?;
        }
        for output in &self.outputs {
            let kept = if output.disposition == Disposition::Keep { ", kept" } else { "" };
            writeln!(f, "output {} = {}{kept}", output.name, output.value)?;
        }
        Ok(())
    }
}

impl From<NodeId> for ValueId {
    fn from(node: NodeId) -> Self {
        ValueId { node, output: 0 }
    }
}

/// Whether integers of this type can index rows.
pub(super) fn indexes(dtype: DType) -> bool {
    dtype.is_integer()
}
