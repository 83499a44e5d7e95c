//! In: states, which stay on the device between runs; out: their tensors, and how each takes its new value: written
//! where it lies by the node that makes it, or copied there at the end. Knows neither kernels nor buffers.
//!
//! A new value may be a concat along dimension 0: then it is no tensor of its own, and each part goes to its rows; see
//! [`StateUses`](crate::graph::StateUses).

use super::selector::{Done, Selector};
use super::{Located, Port, SelectError, Selected, TensorId, TensorKind, TensorSpec};
use crate::graph::{DType, NodeId, Op, ValueId};
use crate::kernel::{Access, View};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

impl Selector<'_> {
    /// The tensor of an input or a parameter that stays on the device. A copy of another parameter is no state by itself
    /// to anyone else: who sets that one sets the copy.
    pub(super) fn state(&mut self, id: NodeId) -> Done<TensorId> {
        let node = self.graph.node(id);
        let ty = node.outputs[0].clone();
        let tensor = self.tensor(node, &ty, TensorKind::State)?;
        self.set(id.into(), Located { tensor, view: View::dense(&ty.shape), dtype: ty.dtype, own: false });
        if !matches!(node.op, Op::Parameter(storage) if self.graph.layout.get(storage).copy_of.is_some()) {
            let name = node.name.clone();
            self.out.states.push(Port { name, ty, tensor, offset: 0, bounds: Vec::new(), keep: false });
        }
        Ok(tensor)
    }

    /// Whether a node writes this output where this input lies: the elements of a state whose new value the output is. All
    /// parts of a state's new value are written so, or none.
    pub(super) fn takes_state(&mut self, id: NodeId, output: usize, input: ValueId) -> bool {
        let Some((state, elements)) = self.states.target(ValueId { node: id, output }) else { return false };
        let (located, place) = (&self.at[&input], &self.at[&ValueId::from(state)]);
        let looks = located.view.offset..located.view.offset + located.view.elements();
        let same = located.tensor == place.tensor && located.view.is_dense() && looks == *elements;
        same && self.is_in_place(state)
    }

    fn is_in_place(&mut self, state: NodeId) -> bool {
        if let Some(known) = self.in_place.get(&state) {
            return *known;
        }
        let ty = self.graph.ty(state.into());
        let bytes = |elements: usize| (elements * ty.dtype.size()) as u64;
        let fits = |op: &Op, elements: &Range<usize>| match op {
            // bound by itself and written four elements at a time
            Op::Adam(_) => {
                bytes(elements.start).is_multiple_of(self.caps.storage_align)
                    && (elements.end.is_multiple_of(4) || elements.end == ty.shape.elements())
            }
            Op::Unary(_) | Op::Binary(_) | Op::Where | Op::MaskedFill(_) | Op::Elementwise(_) => {
                ty.dtype != DType::Bool
            }
            _ => false,
        };
        let in_place = self.states.in_place(self.graph, state, fits);
        self.in_place.insert(state, in_place);
        in_place
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

    /// Puts an output where an input lies; see [`Selector::takes_state`].
    pub(super) fn overwrite_state(&mut self, id: NodeId, output: usize, input: ValueId) -> Located {
        let located = self.locate(input);
        let value = ValueId { node: id, output };
        // a look at the state may have other dimensions than what is made of it
        let view = View { offset: located.view.offset, ..View::dense(self.graph.shape(value)) };
        let located = Located { view, ..located };
        self.set(value, located.clone());
        self.placed.insert(value);
        located
    }

    /// A state is read as of the start of a run. Its new value is copied into it as soon as everything has read the old
    /// one; where the launch that makes the value comes after all readers, it writes the state itself.
    pub(super) fn updates(&mut self) -> Result<(), SelectError> {
        let mut pending = Vec::new();
        // before any state is written: a value may be read from a state
        for (state, _) in self.graph.updates() {
            let place = self.locate((*state).into());
            for (part, elements) in self.states.parts(*state).to_vec() {
                let part = &part;
                if self.placed.contains(part) || self.states.stays(*state, *part, &elements) {
                    continue;
                }
                let view = View { offset: elements.start, ..View::dense(self.graph.shape(*part)) };
                let node = self.graph.producer(*part);
                let mut from = self.dense(part.node, *part).map_err(|e| self.name_tensor(node, e))?;
                if self.out.tensors[from.tensor.0].kind == TensorKind::State {
                    from = self.copy(part.node, &from).map_err(|e| self.name_tensor(node, e))?;
                }
                pending.push((*state, from, Located { view, ..place.clone() }));
            }
        }
        let mut sources: HashMap<TensorId, usize> = HashMap::new();
        pending.iter().for_each(|(_, from, _)| *sources.entry(from.tensor).or_insert(0) += 1);
        let mut uses = Uses::new(&self.out);
        pending.retain(|(_, from, to)| !(sources[&from.tensor] == 1 && self.write_state_directly(from, to, &mut uses)));
        let end = self.out.steps.len();
        let mut copies: Vec<(usize, Range<usize>)> = Vec::new();
        for (state, from, to) in pending {
            let (node, first) = (self.graph.node(state), self.out.steps.len());
            self.copy_into(state, &from, &to).map_err(|e| self.name_tensor(node, e))?;
            let after = [from.tensor, to.tensor].iter().filter_map(|t| uses.last(t)).max().map_or(0, |at| at + 1);
            copies.push((after, first..self.out.steps.len()));
        }
        self.move_back(end, copies);
        Ok(())
    }

    /// Moves launches from behind `end` to before the ones at other places.
    fn move_back(&mut self, end: usize, mut moved: Vec<(usize, Range<usize>)>) {
        moved.sort_by_key(|(to, steps)| (*to, steps.start));
        let behind = self.out.steps.split_off(end);
        let steps = std::mem::take(&mut self.out.steps);
        let mut moved = moved.into_iter().peekable();
        for (at, step) in steps.into_iter().enumerate() {
            while let Some((_, range)) = moved.next_if(|(to, _)| *to == at) {
                self.out.steps.extend_from_slice(&behind[range.start - end..range.end - end]);
            }
            self.out.steps.push(step);
        }
        for (_, range) in moved {
            self.out.steps.extend_from_slice(&behind[range.start - end..range.end - end]);
        }
    }

    /// Lets the launches that make a state's new value write the state's own memory, if they make nothing else, nothing
    /// reads that value or, from the first of them on, the state.
    fn write_state_directly(&mut self, from: &Located, to: &Located, uses: &mut Uses) -> bool {
        let (made, state) = (from.tensor, to.tensor);
        let Some(&first_write) = uses.steps.get(&made).and_then(|steps| steps.first()) else { return false };
        let state_read_later = uses.last(&state).is_some_and(|last| last >= first_write);
        let (made_spec, state_spec) = (&self.out.tensors[made.0], &self.out.tensors[state.0]);
        // a part of either may lie in a tensor of the same size
        let whole = |l: &Located, spec: &TensorSpec| {
            l.view.offset == 0 && (l.view.elements() * l.dtype.size()) as u64 == spec.bytes
        };
        let fits = made_spec.kind == TensorKind::Temp && whole(from, made_spec) && whole(to, state_spec);
        if state_read_later || uses.read.contains(&made) || !fits {
            return false;
        }
        let writes = uses.steps.remove(&made).unwrap_or_default();
        for at in &writes {
            let operands = self.out.steps[*at].launch.operands.iter_mut();
            operands.filter(|o| o.tensor == made).for_each(|o| o.tensor = state);
        }
        uses.steps.entry(state).or_default().extend(writes);
        true
    }
}

/// Where tensors are used, found once: there are thousands of states and launches.
struct Uses {
    /// The launches that a tensor is an operand of, in order.
    steps: HashMap<TensorId, Vec<usize>>,
    /// Tensors whose values are read, given out, or lie in memory that a launch takes over.
    read: HashSet<TensorId>,
}

impl Uses {
    fn new(out: &Selected) -> Uses {
        let mut steps: HashMap<TensorId, Vec<usize>> = HashMap::new();
        let mut read: HashSet<TensorId> = out.outputs.iter().map(|p| p.tensor).collect();
        for (at, step) in out.steps.iter().enumerate() {
            read.extend(step.in_place);
            for (operand, access) in step.launch.operands.iter().zip(step.launch.key.bindings()) {
                if access == Access::Read || step.in_place.is_some() {
                    read.insert(operand.tensor);
                }
                let uses = steps.entry(operand.tensor).or_default();
                if uses.last() != Some(&at) {
                    uses.push(at);
                }
            }
        }
        Uses { steps, read }
    }

    /// The last launch that a tensor is an operand of.
    fn last(&self, tensor: &TensorId) -> Option<usize> {
        self.steps.get(tensor)?.last().copied()
    }
}
