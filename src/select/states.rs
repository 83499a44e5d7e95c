//! In: states, which stay on the device between runs; out: their tensors, and how each takes its new value: written
//! where it lies by the node that makes it, or copied there at the end.

use super::selector::{Done, Selector};
use super::{Located, Port, SelectError, Step, TensorId, TensorKind};
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::{Access, View};
use std::collections::HashMap;

/// Who reads a value last, a view of it included.
pub(super) struct Reads {
    /// The value that a chain of views looks at.
    root: HashMap<ValueId, ValueId>,
    /// By root, the last node; one past the end where an output or a state takes the value.
    last: HashMap<ValueId, NodeId>,
}

impl Reads {
    pub fn of(graph: &Graph) -> Reads {
        let mut reads = Reads { root: HashMap::new(), last: HashMap::new() };
        for (id, node) in graph.nodes() {
            for value in &node.inputs {
                reads.last.insert(reads.root(*value), id);
            }
            if node.op.is_view() {
                reads.root.insert(id.into(), reads.root(node.inputs[0]));
            }
        }
        let end = NodeId(graph.nodes().len());
        for value in graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1)) {
            reads.last.insert(reads.root(value), end);
        }
        reads
    }

    /// What a view looks at, the value itself where it is none.
    pub fn root(&self, value: ValueId) -> ValueId {
        self.root.get(&value).copied().unwrap_or(value)
    }

    /// Whether no node after this one, no output and no state reads a value or a view of it.
    pub fn ends_at(&self, id: NodeId, value: ValueId) -> bool {
        self.last.get(&self.root(value)) == Some(&id)
    }
}

impl Selector<'_> {
    /// The tensor of an input or a parameter that stays on the device.
    pub(super) fn state(&mut self, id: NodeId) -> Done<TensorId> {
        let node = self.graph.node(id);
        let ty = node.outputs[0].clone();
        let tensor = self.tensor(node, &ty, TensorKind::State)?;
        self.set(id.into(), Located { tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: false });
        self.out.states.push(Port { name: node.name.clone(), ty, tensor, offset: 0, bounds: Vec::new(), keep: false });
        Ok(tensor)
    }

    /// Whether a node may write this output where this input lies: a state whose new value the output is. Nothing but
    /// the update reads the output, nothing reads the state later, and the node reads it once.
    pub(super) fn takes_state(&self, id: NodeId, output: usize, input: ValueId) -> bool {
        let value = ValueId { node: id, output };
        input == ValueId::from(input.node)
            && self.graph.updates().contains(&(input.node, value))
            && self.uses[id.0][output] == 1
            && self.reads.ends_at(id, input)
            && self.reads_once(id, self.at[&input].tensor)
    }

    /// Whether a node may overwrite this input, which lies alone in this tensor: nothing reads it later, and the node
    /// reads it once.
    pub(super) fn may_overwrite_last(&self, id: NodeId, input: ValueId, tensor: TensorId) -> bool {
        let root = &self.at[&self.reads.root(input)];
        root.own
            && root.tensor == tensor
            && self.out.tensors[tensor.0].kind == TensorKind::Temp
            && self.reads.ends_at(id, input)
            && self.reads_once(id, tensor)
    }

    fn reads_once(&self, id: NodeId, tensor: TensorId) -> bool {
        self.graph.node(id).inputs.iter().filter(|v| self.at[v].tensor == tensor).count() == 1
    }

    /// Puts an output where a state lies; see [`Selector::takes_state`].
    pub(super) fn overwrite_state(&mut self, id: NodeId, output: usize, state: ValueId) -> Located {
        let located = self.locate(state);
        self.set(ValueId { node: id, output }, located.clone());
        self.placed.insert(state.node);
        located
    }

    /// A state is read as of the start of a run. Its new value is copied into it after everything has read it; where
    /// the launch that makes the value comes after all readers, it writes the state itself.
    pub(super) fn updates(&mut self) -> Result<(), SelectError> {
        let mut pending = Vec::new();
        // before any state is written: a value may be read from a state
        for (state, value) in self.graph.updates() {
            if *value == ValueId::from(*state) || self.placed.contains(state) {
                // it keeps its value, or has its new one
                continue;
            }
            let node = self.graph.producer(*value);
            let to = self.at[&ValueId::from(*state)].clone();
            let mut from = self.dense(value.node, *value).map_err(|e| self.name_tensor(node, e))?;
            if self.out.tensors[from.tensor.0].kind == TensorKind::State {
                from = self.copy(value.node, &from).map_err(|e| self.name_tensor(node, e))?;
            }
            pending.push((*state, from, to));
        }
        let sources: Vec<TensorId> = pending.iter().map(|(_, from, _)| from.tensor).collect();
        pending.retain(|(_, from, to)| {
            let once = sources.iter().filter(|t| **t == from.tensor).count() == 1;
            !(once && self.write_state_directly(from, to))
        });
        for (state, from, to) in pending {
            let node = self.graph.node(state);
            self.copy_into(state, &from, &to).map_err(|e| self.name_tensor(node, e))?;
        }
        Ok(())
    }

    /// Lets the launches that make a state's new value write the state's own memory, if nothing reads that value or,
    /// from the first of them on, the state.
    fn write_state_directly(&mut self, from: &Located, to: &Located) -> bool {
        let (made, state) = (from.tensor, to.tensor);
        let touches = |s: &Step, t: TensorId| s.launch.operands.iter().any(|o| o.tensor == t);
        let Some(first_write) = self.out.steps.iter().position(|s| touches(s, made)) else { return false };
        let state_read_later = self.out.steps[first_write..].iter().any(|s| touches(s, state));
        let value_read = self.out.outputs.iter().any(|p| p.tensor == made)
            || self.out.steps.iter().any(|s| {
                let access = s.launch.key.bindings();
                let read = s.launch.operands.iter().zip(access).any(|(o, a)| o.tensor == made && a == Access::Read);
                read || s.in_place.is_some() && (s.in_place == Some(made) || touches(s, made))
            });
        let (made_spec, state_spec) = (&self.out.tensors[made.0], &self.out.tensors[state.0]);
        let fits = made_spec.kind == TensorKind::Temp && made_spec.bytes == state_spec.bytes;
        if state_read_later || value_read || !fits {
            return false;
        }
        for operand in self.out.steps.iter_mut().flat_map(|s| &mut s.launch.operands) {
            if operand.tensor == made {
                operand.tensor = state;
            }
        }
        true
    }
}
