//! In: a memory plan and what it was made for; out: whether it holds, derived again without the planner's lifetimes.

use super::{MemoryPlan, SlotId};
use crate::kernel::Access;
use crate::select::{Selected, Step, TensorId, TensorKind};
use std::collections::HashMap;
use thiserror::Error;

/// A plan that would give wrong results or be refused by wgpu.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PlanError {
    /// A launch reads a tensor whose slot another tensor has overwritten, or that nothing wrote.
    #[error("launch {at} \"{name}\" reads \"{tensor}\", but its slot holds {holds}")]
    Overwritten {
        /// The launch.
        at: usize,
        /// Its name.
        name: String,
        /// The tensor it reads.
        tensor: String,
        /// What its slot holds.
        holds: String,
    },
    /// A launch binds one slot both to read and to write.
    #[error("launch {at} \"{name}\" reads and writes slot {}", slot.0)]
    ReadWrite {
        /// The launch.
        at: usize,
        /// Its name.
        name: String,
        /// The slot.
        slot: SlotId,
    },
    /// Of two launches that run side by side one writes what the other touches.
    #[error("launch {at} \"{name}\" runs beside \"{other}\", and both use {place}, which one of them writes")]
    Beside {
        /// The launch.
        at: usize,
        /// Its name.
        name: String,
        /// The other's name.
        other: String,
        /// The slot or the state.
        place: String,
    },
    /// A tensor does not fit its slot.
    #[error("tensor \"{tensor}\" of {bytes} bytes is in a slot of {slot_bytes}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        bytes: u64,
        /// The slot's bytes.
        slot_bytes: u64,
    },
    /// A state is read after it took its new value.
    #[error("launch {at} \"{name}\" reads state \"{tensor}\" after it was updated")]
    State {
        /// The launch.
        at: usize,
        /// Its name.
        name: String,
        /// The state.
        tensor: String,
    },
}

/// Replays the schedule over the slots: each slot holds one tensor at a time; a read must find its own.
pub fn audit(selected: &Selected, plan: &MemoryPlan) -> Result<(), PlanError> {
    let mut holds: Vec<Option<TensorId>> = vec![None; plan.slot_bytes.len()];
    let mut updated = vec![false; selected.tensors.len()];
    let tensor_name = |t: TensorId| selected.tensors[t.0].name.clone();
    for (t, slot) in plan.slots.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let (bytes, slot_bytes) = (selected.tensors[t].bytes, plan.slot_bytes[slot.0]);
        if bytes > slot_bytes {
            return Err(PlanError::Size { tensor: tensor_name(TensorId(t)), bytes, slot_bytes });
        }
    }
    let find = |at: usize, name: &str, t: TensorId, holds: &[Option<TensorId>]| match plan.slots[t.0] {
        // nobody writes a tensor without bytes
        Some(slot) if holds[slot.0] != Some(t) && selected.tensors[t.0].bytes > 0 => Err(PlanError::Overwritten {
            at,
            name: name.to_owned(),
            tensor: tensor_name(t),
            holds: holds[slot.0].map_or("nothing".into(), |h| format!("\"{}\"", tensor_name(h))),
        }),
        _ => Ok(()),
    };
    let mut used = Used::default();
    for (at, step) in selected.steps.iter().enumerate() {
        if !step.beside {
            used = Used::default();
        }
        if let Some((other, place)) = used.meets(plan, at, step) {
            let (name, other) = (step.name.clone(), selected.steps[other].name.clone());
            return Err(PlanError::Beside { at, name, other, place });
        }
        let access = step.launch.key.bindings();
        let operands = || step.launch.operands.iter().zip(&access);
        for (o, access) in operands() {
            let state = selected.tensors[o.tensor.0].kind == TensorKind::State;
            if *access == Access::Read {
                find(at, &step.name, o.tensor, &holds)?;
                if state && updated[o.tensor.0] {
                    return Err(PlanError::State { at, name: step.name.clone(), tensor: tensor_name(o.tensor) });
                }
            }
        }
        if let Some(from) = step.in_place {
            // what is overwritten is there, or was handed on by an earlier launch of the same node
            let target = step.launch.operands.last().map(|o| o.tensor);
            let holder = plan.slots[from.0].and_then(|s| holds[s.0]);
            if holder != target {
                find(at, &step.name, from, &holds)?;
            }
        }
        for (o, access) in operands().filter(|(_, a)| **a == Access::ReadWrite) {
            let Some(slot) = plan.slots[o.tensor.0] else {
                updated[o.tensor.0] = true;
                continue;
            };
            let also_read = operands().any(|(r, a)| a != access && plan.slots[r.tensor.0] == Some(slot));
            let twice = operands().filter(|(r, _)| plan.slots[r.tensor.0] == Some(slot)).count() > 1;
            if also_read || twice {
                return Err(PlanError::ReadWrite { at, name: step.name.clone(), slot });
            }
            holds[slot.0] = Some(o.tensor);
        }
    }
    // an output without elements has nothing that could be lost
    for output in selected.outputs.iter().filter(|o| selected.tensors[o.tensor.0].bytes > 0) {
        find(selected.steps.len(), "read back", output.tensor, &holds)?;
    }
    Ok(())
}

/// Slots, and tensors in no slot, that launches which run side by side use: the last that does, and whether it writes.
#[derive(Default)]
struct Used(HashMap<(Option<SlotId>, Option<TensorId>), (usize, bool)>);

impl Used {
    /// Adds a launch; if an earlier one uses a place that either writes, which one and where.
    fn meets(&mut self, plan: &MemoryPlan, at: usize, step: &Step) -> Option<(usize, String)> {
        let mut met = None;
        for (o, access) in step.launch.operands.iter().zip(step.launch.key.bindings()) {
            let slot = plan.slots[o.tensor.0];
            let writes = access == Access::ReadWrite;
            let place = (slot, slot.is_none().then_some(o.tensor));
            let (other, written) =
                *self.0.entry(place).and_modify(|u| u.1 |= writes && u.0 == at).or_insert((at, writes));
            if other != at && (written || writes) {
                met = Some((other, slot.map_or_else(|| format!("tensor {}", o.tensor.0), |s| format!("slot {}", s.0))));
            }
        }
        met
    }
}
