//! In: [`Selected`] tensors and launches; out: [`MemoryPlan`], which buffer each tensor lives in. Knows neither kernel
//! sources nor wgpu.
//!
//! Temporaries share slots by lifetime, from the launch that first touches them to the last, those first that need most
//! room. A slot is a buffer of its
//! own: wgpu rejects one buffer bound both read-only and writable in a dispatch, so tensors that one launch touches
//! never share, unless the launch writes in place. [`audit`] derives all this again on its own.

mod audit;

pub use audit::{PlanError, audit};

use crate::select::{Selected, TensorId, TensorKind};
use std::fmt;

/// Index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub usize);

/// First and last launch that touch a tensor or run beside one that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The launch that writes it first, or the first of those that run beside it.
    pub first: usize,
    /// The last launch that touches it or runs beside one that does; one past the end of the schedule for an output.
    pub last: usize,
}

/// Where each tensor lives.
#[derive(Clone, Debug, Default, PartialEq)]
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

/// When each tensor is alive, by the order of launches: as long as any launch that runs beside one that touches it.
pub fn lifetimes(selected: &Selected) -> Vec<Option<Lifetime>> {
    let mut all: Vec<Option<Lifetime>> = vec![None; selected.tensors.len()];
    let groups = selected.groups();
    let mut touch = |t: TensorId, at: usize| {
        let (first, last) = groups.get(at).copied().unwrap_or((at, at));
        let life = all[t.0].get_or_insert(Lifetime { first, last });
        life.last = life.last.max(last);
    };
    for (at, step) in selected.steps.iter().enumerate() {
        step.launch.operands.iter().for_each(|o| touch(o.tensor, at));
        step.in_place.iter().for_each(|t| touch(*t, at));
    }
    selected.outputs.iter().for_each(|o| touch(o.tensor, selected.steps.len()));
    all
}

/// Tensors that share memory because each is written over the one before it, from the first launch that touches one to
/// the last.
struct Group {
    tensors: Vec<usize>,
    life: Lifetime,
    bytes: u64,
}

/// Plans memory. Without `alias` every temporary has a slot of its own and nothing is overwritten in place but what a
/// kernel's text demands.
///
/// The largest come first, each into the smallest slot that is free for as long as it lives (Pisarchyk and Lee,
/// "Efficient memory management for deep neural net inference", arXiv 2001.03288): so no small tensor takes a place
/// that a large one needs.
pub fn plan(selected: &Selected, alias: bool) -> MemoryPlan {
    let lifetimes = lifetimes(selected);
    let mut groups = groups(selected, &lifetimes);
    groups.sort_by_key(|g| (std::cmp::Reverse(g.bytes), g.life.first));
    let mut slots: Vec<Option<SlotId>> = vec![None; selected.tensors.len()];
    let mut slot_bytes: Vec<u64> = Vec::new();
    // when each slot is taken, in order
    let mut taken: Vec<Vec<Lifetime>> = Vec::new();
    for group in groups {
        // slots were made the largest first
        let free = (0..taken.len()).rev().find_map(|slot| Some((slot, gap(&taken[slot], group.life)?)));
        let (slot, at) = free.filter(|_| alias).unwrap_or_else(|| {
            slot_bytes.push(group.bytes);
            taken.push(Vec::new());
            (taken.len() - 1, 0)
        });
        taken[slot].insert(at, group.life);
        group.tensors.iter().for_each(|t| slots[*t] = Some(SlotId(slot)));
    }
    let bytes = |t: &crate::select::TensorSpec| t.bytes.next_multiple_of(16);
    let resident = selected.tensors.iter().filter(|t| t.kind != TensorKind::Temp).map(bytes).sum();
    let naive = selected.tensors.iter().map(bytes).sum();
    MemoryPlan { slots, slot_bytes, lifetimes, resident, naive }
}

/// Temporaries that are touched, with those that a launch in place writes over them.
fn groups(selected: &Selected, lifetimes: &[Option<Lifetime>]) -> Vec<Group> {
    let is_temp = |t: TensorId| selected.tensors[t.0].kind == TensorKind::Temp;
    let mut over: Vec<Option<TensorId>> = vec![None; selected.tensors.len()];
    for step in &selected.steps {
        if let (Some(from), Some(to)) = (step.in_place, step.launch.operands.last()) {
            over[to.tensor.0] = Some(from).filter(|from| is_temp(*from));
        }
    }
    let mut order: Vec<(usize, Lifetime)> =
        lifetimes.iter().enumerate().filter_map(|(t, l)| Some((t, (*l)?))).collect();
    order.retain(|(t, _)| is_temp(TensorId(*t)));
    // what is written over was there before
    order.sort_by_key(|(t, life)| (life.first, over[*t].is_some(), *t));
    let mut group_of: Vec<Option<usize>> = vec![None; selected.tensors.len()];
    let mut groups: Vec<Group> = Vec::new();
    for (t, life) in order {
        let bytes = selected.tensors[t].bytes.max(1).next_multiple_of(16);
        match over[t].and_then(|from| group_of[from.0]) {
            Some(at) => {
                let group = &mut groups[at];
                group.tensors.push(t);
                group.life.last = group.life.last.max(life.last);
                group.bytes = group.bytes.max(bytes);
                group_of[t] = Some(at);
            }
            None => {
                group_of[t] = Some(groups.len());
                groups.push(Group { tensors: vec![t], life, bytes });
            }
        }
    }
    groups
}

/// Where in a slot's list a lifetime goes, if no launch touches another at the same time.
fn gap(taken: &[Lifetime], life: Lifetime) -> Option<usize> {
    let at = taken.partition_point(|t| t.first < life.first);
    let before = at.checked_sub(1).is_none_or(|i| taken[i].last < life.first);
    let after = taken.get(at).is_none_or(|t| life.last < t.first);
    (before && after).then_some(at)
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
