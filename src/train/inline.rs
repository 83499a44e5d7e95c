//! In: a forward graph and the values that stand for its sources; out: its nodes appended to another graph. Knows
//! nothing of what they compute.

use super::TrainError;
use super::limit::keep_unless;
use crate::graph::{Graph, NodeId, Op, StorageId, TensorType, ValueId};
use std::collections::BTreeMap;

/// The sources that all copies of a forward graph share.
pub(super) struct Sources {
    /// The node of each storage.
    pub parameters: BTreeMap<StorageId, NodeId>,
    /// What is given at each run; with several micro-batches it has a leading dimension for them.
    inputs: BTreeMap<NodeId, ValueId>,
    /// The states of the forward graph, and what the next copy reads of them.
    states: BTreeMap<NodeId, (NodeId, ValueId)>,
    micro_batches: usize,
}

impl Sources {
    /// Appends inputs, states and parameters.
    pub fn append(new: &mut Graph, forward: &Graph, micro_batches: usize) -> Result<Sources, TrainError> {
        let mut sources =
            Sources { parameters: BTreeMap::new(), inputs: BTreeMap::new(), states: BTreeMap::new(), micro_batches };
        for (id, node) in forward.nodes() {
            match node.op {
                Op::Parameter(_) if forward.is_state(id) => {
                    return Err(TrainError::Updated { name: node.name.clone() });
                }
                Op::Parameter(storage) => {
                    sources.parameters.insert(storage, new.push_parameter(storage));
                }
                Op::Input if forward.is_state(id) => {
                    let state = new.push_input(node.outputs[0].clone(), node.name.clone());
                    sources.states.insert(id, (state, state.into()));
                }
                Op::Input => {
                    let TensorType { dtype, shape } = node.outputs[0].clone();
                    let dims = match micro_batches {
                        1 => shape.dims().to_vec(),
                        n => [&[n], shape.dims()].concat(),
                    };
                    let input = new.push_input(TensorType::new(dtype, dims), node.name.clone());
                    sources.inputs.insert(id, input.into());
                }
                _ => {}
            }
        }
        Ok(sources)
    }

    /// Appends the forward graph's nodes for one micro-batch and returns the values of its outputs, in order. States
    /// go from each micro-batch to the next.
    pub fn inline(&mut self, new: &mut Graph, forward: &Graph, micro: usize) -> Result<Vec<ValueId>, TrainError> {
        let prefix = if self.micro_batches > 1 { format!("micro.{micro}.") } else { String::new() };
        let mut map: Vec<Vec<ValueId>> = Vec::with_capacity(forward.nodes().len());
        for (id, node) in forward.nodes() {
            let name = format!("{prefix}{}", node.name);
            let value = match node.op {
                Op::Parameter(storage) => self.parameters[&storage].into(),
                Op::Input => match self.states.get(&id) {
                    Some((_, value)) => *value,
                    None => self.slice(new, id, &node.outputs[0], micro, &name)?,
                },
                _ => {
                    let inputs = node.inputs.iter().map(|v| map[v.node.0][v.output]).collect();
                    new.push(node.op.clone(), inputs, name)?.into()
                }
            };
            map.push((0..node.outputs.len()).map(|output| ValueId { output, ..value }).collect());
        }
        for (state, value) in forward.updates() {
            if let Some((_, next)) = self.states.get_mut(state) {
                let mut given = map[value.node.0][value.output];
                // a parameter itself would have its gradient through the state
                if micro + 1 < self.micro_batches && matches!(new.producer(given).op, Op::Parameter(_)) {
                    let shape = new.ty(given).shape.clone();
                    given = new.push(Op::Reshape(shape), vec![given], "state")?.into();
                }
                *next = given;
            }
        }
        Ok(forward.outputs().iter().map(|o| map[o.value.node.0][o.value.output]).collect())
    }

    /// A micro-batch's part of an input.
    fn slice(
        &self,
        new: &mut Graph,
        input: NodeId,
        ty: &TensorType,
        micro: usize,
        name: &str,
    ) -> Result<ValueId, TrainError> {
        let all = self.inputs[&input];
        if self.micro_batches == 1 {
            return Ok(all);
        }
        let one = new.push(Op::Slice { axis: 0, start: micro, len: 1 }, vec![all], name)?;
        Ok(new.push(Op::Reshape(ty.shape.clone()), vec![one.into()], name)?.into())
    }

    /// Lets the forward graph's states take what the last micro-batch left, in a step that counts.
    pub fn update(self, new: &mut Graph, counts: Option<ValueId>) -> Result<(), TrainError> {
        for (state, mut value) in self.states.into_values() {
            // one that takes itself stays as it is
            if let Some(counts) = counts.filter(|_| value != state.into()) {
                let name = format!("skip.{}", new.node(state).name);
                value = keep_unless(new, counts, value, state.into(), &name)?;
            }
            new.push_update(state, value)?;
        }
        Ok(())
    }
}
