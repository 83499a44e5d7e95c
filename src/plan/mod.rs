//! In: [`Selected`] tensors and launches; out: [`MemoryPlan`], which buffer each tensor lives in. Knows neither kernel
//! sources nor wgpu.
//!
//! Temporaries share slots by lifetime, from the launch that first touches them to the last. A slot is a buffer of its
//! own: wgpu rejects one buffer bound both read-only and writable in a dispatch, so tensors that one launch touches
//! never share, unless the launch writes in place. [`audit`] derives all this again on its own.

mod audit;

pub use audit::{PlanError, audit};

use crate::select::{Selected, TensorId, TensorKind};
use std::fmt;

/// Index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub usize);

/// First and last launch that touch a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The launch that writes it first.
    pub first: usize,
    /// The last launch that touches it; one past the end of the schedule for an output.
    pub last: usize,
}

/// Where each tensor lives.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// The slot of each tensor that is temporary and touched.
    pub slots: Vec<Option<SlotId>>,
    /// Bytes of each slot.
    pub slot_bytes: Vec<u64>,
    /// When each tensor is alive.
    pub lifetimes: Vec<Option<Lifetime>>,
    /// Bytes of weights, states and inputs.
    pub resident: u64,
    /// Bytes of every tensor in a place of its own.
    pub naive: u64,
}

impl MemoryPlan {
    /// Device bytes in all.
    pub fn total(&self) -> u64 {
        self.resident + self.slot_bytes.iter().sum::<u64>()
    }
}

/// When each tensor is alive, by the order of launches.
pub fn lifetimes(selected: &Selected) -> Vec<Option<Lifetime>> {
    let mut all: Vec<Option<Lifetime>> = vec![None; selected.tensors.len()];
    let mut touch = |t: TensorId, at: usize| {
        let life = all[t.0].get_or_insert(Lifetime { first: at, last: at });
        life.last = life.last.max(at);
    };
    for (at, step) in selected.steps.iter().enumerate() {
        step.launch.operands.iter().for_each(|o| touch(o.tensor, at));
        step.in_place.iter().for_each(|t| touch(*t, at));
    }
    selected.outputs.iter().for_each(|o| touch(o.tensor, selected.steps.len()));
    all
}

/// Plans memory. Without `alias` every temporary has a slot of its own and nothing is overwritten in place but what a
/// kernel's text demands.
pub fn plan(selected: &Selected, alias: bool) -> MemoryPlan {
    let lifetimes = lifetimes(selected);
    let mut slots: Vec<Option<SlotId>> = vec![None; selected.tensors.len()];
    let mut slot_bytes: Vec<u64> = Vec::new();
    let mut free: Vec<SlotId> = Vec::new();
    // a launch in place hands its slot on
    let mut inherits = vec![None; selected.tensors.len()];
    let mut heirs: Vec<Vec<usize>> = vec![Vec::new(); selected.tensors.len()];
    for step in &selected.steps {
        if let (Some(from), Some(to)) = (step.in_place, step.launch.operands.last()) {
            inherits[to.tensor.0] = Some(from);
            heirs[from.0].push(to.tensor.0);
        }
    }
    let temp = |t: usize| selected.tensors[t].kind == TensorKind::Temp;
    let mut starts: Vec<Vec<usize>> = vec![Vec::new(); selected.steps.len() + 1];
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); selected.steps.len() + 1];
    for (t, life) in lifetimes.iter().enumerate().filter(|(t, _)| temp(*t)) {
        if let Some(life) = life {
            starts[life.first].push(t);
            ends[life.last].push(t);
        }
    }
    for at in 0..starts.len() {
        for &t in &starts[at] {
            let bytes = selected.tensors[t].bytes.max(1).next_multiple_of(16);
            let slot = match inherits[t] {
                Some(from) if temp(from.0) => slots[from.0].expect("its tensor was written before"),
                _ => take(&mut free, &mut slot_bytes, bytes, alias),
            };
            slots[t] = Some(slot);
        }
        for &t in &ends[at] {
            let handed_on = heirs[t].iter().any(|n| inherits[*n] == Some(TensorId(t)) && slots[*n] == slots[t]);
            if !handed_on {
                free.extend(slots[t]);
            }
        }
    }
    let bytes = |t: &crate::select::TensorSpec| t.bytes.next_multiple_of(16);
    let resident = selected.tensors.iter().filter(|t| t.kind != TensorKind::Temp).map(bytes).sum();
    let naive = selected.tensors.iter().map(bytes).sum();
    MemoryPlan { slots, slot_bytes, lifetimes, resident, naive }
}

/// The smallest free slot that is large enough; else the largest free one grows; else a new one.
fn take(free: &mut Vec<SlotId>, slot_bytes: &mut Vec<u64>, bytes: u64, alias: bool) -> SlotId {
    let fitting = (0..free.len()).filter(|i| slot_bytes[free[*i].0] >= bytes).min_by_key(|i| slot_bytes[free[*i].0]);
    let best = fitting.or_else(|| (0..free.len()).max_by_key(|i| slot_bytes[free[*i].0]));
    match best.filter(|_| alias) {
        Some(i) => {
            let slot = free.swap_remove(i);
            slot_bytes[slot.0] = slot_bytes[slot.0].max(bytes);
            slot
        }
        None => {
            slot_bytes.push(bytes);
            SlotId(slot_bytes.len() - 1)
        }
    }
}

/// `planned 381.2 MiB (weights, inputs and states 331.0 MiB, 5 slots 50.2 MiB); each tensor on its own 1,204.1 MiB`.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |b: u64| b as f64 / f64::from(1 << 20);
        write!(
            f,
            "planned {:.1} MiB (weights, inputs and states {:.1} MiB, {} slots {:.1} MiB); each tensor on its own {:.1} MiB",
            mib(self.total()),
            mib(self.resident),
            self.slot_bytes.len(),
            mib(self.slot_bytes.iter().sum()),
            mib(self.naive)
        )
    }
}
