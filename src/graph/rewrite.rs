//! In: a graph; out: the next one, node by node, with old values mapped to new ones. Every pass is written with it.

use super::{Graph, GraphError, Node, NodeId, Op, ValueId};

/// Copies a graph while a pass replaces some of its nodes.
pub struct Rewriter<'a> {
    old: &'a Graph,
    /// The graph being made.
    pub new: Graph,
    map: Vec<Vec<Option<ValueId>>>,
}

impl<'a> Rewriter<'a> {
    /// Starts with an empty graph that has the old one's layout.
    pub fn new(old: &'a Graph) -> Self {
        let mut new = Graph::default();
        new.layout = old.layout.clone();
        let map = old.nodes().map(|(_, n)| vec![None; n.outputs.len()]).collect();
        Rewriter { old, new, map }
    }

    /// The new value that stands for an old one; its node was copied or replaced before.
    pub fn get(&self, old: ValueId) -> ValueId {
        self.map[old.node.0][old.output].expect("a node's inputs are rewritten before it")
    }

    /// The new values of several.
    pub fn all(&self, old: &[ValueId]) -> Vec<ValueId> {
        old.iter().map(|v| self.get(*v)).collect()
    }

    /// Lets a new value stand for an old one.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        self.map[old.node.0][old.output] = Some(new);
    }

    /// Copies a node as it is.
    pub fn copy(&mut self, id: NodeId) -> Result<NodeId, GraphError> {
        let node = self.old.node(id);
        self.replace(id, node.op.clone(), node.inputs.clone())
    }

    /// Puts an op over old inputs in a node's place; outputs correspond by position.
    pub fn replace(&mut self, id: NodeId, op: Op, inputs: Vec<ValueId>) -> Result<NodeId, GraphError> {
        let Node { name, outputs, .. } = self.old.node(id);
        let new = match op {
            Op::Input => self.new.push_input(outputs[0].clone(), name.clone()),
            Op::Parameter(storage) => self.new.push_parameter(storage),
            op => self.new.push(op, self.all(&inputs), name.clone())?,
        };
        for output in 0..outputs.len() {
            self.set(ValueId { node: id, output }, ValueId { node: new, output });
        }
        Ok(new)
    }

    /// Carries outputs, updates and origins over and returns the new graph.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        let new = |old: &Option<NodeId>| self.map[(*old)?.0].iter().flatten().next().map(|v| v.node);
        self.new.origins.0 = self.old.origins().iter().map(new).collect();
        for output in self.old.outputs() {
            let value = self.get(output.value);
            self.new.push_output(output.name.clone(), value, output.disposition)?;
        }
        for (state, value) in self.old.updates() {
            let (state, value) = (self.get((*state).into()), self.get(*value));
            self.new.push_update(state.node, value)?;
        }
        Ok(self.new)
    }
}
