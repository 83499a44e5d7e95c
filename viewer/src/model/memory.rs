//! In: a trace's memory plan; out: rectangles of tensors in slots over dispatches, and how many bytes are live when.
//! Knows neither egui nor files.

use kiln::trace::{TensorKind, Trace};
use std::collections::BTreeSet;

/// A tensor in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Index in the trace's list of tensors.
    pub tensor: usize,
    /// Which slot.
    pub slot: usize,
    /// First dispatch.
    pub first: usize,
    /// One past the last dispatch.
    pub end: usize,
}

/// What the memory panel shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// In the order of tensors.
    pub tenants: Vec<Tenant>,
    /// Where each slot begins and ends, from 0 to 1, the largest first.
    pub places: Vec<(f32, f32)>,
    /// Bytes of temporaries that are live at each dispatch.
    pub live: Vec<u64>,
    /// The dispatch with most live bytes.
    pub peak: Option<usize>,
    /// Bytes of slots.
    pub slots: u64,
    /// Bytes of weights, states and inputs.
    pub resident: [u64; 3],
}

/// Lays the plan out. A slot gets height by its bytes, but at least a part of `least`, so that each can be seen.
pub fn layout(trace: &Trace, least: f32) -> Layout {
    let memory = &trace.memory;
    let steps = trace.dispatches.len();
    let mut tenants = Vec::new();
    let mut resident = [0u64; 3];
    for (i, tensor) in memory.tensors.iter().enumerate() {
        match tensor.kind {
            TensorKind::Weight => resident[0] = resident[0].saturating_add(tensor.bytes),
            TensorKind::State => resident[1] = resident[1].saturating_add(tensor.bytes),
            TensorKind::Input => resident[2] = resident[2].saturating_add(tensor.bytes),
            TensorKind::Temp => {
                let (Some(slot), Some((first, last))) = (tensor.slot, tensor.alive) else { continue };
                let (first, end) = (first.min(steps), (last + 1).min(steps));
                tenants.push(Tenant { tensor: i, slot, first, end: end.max(first) });
            }
        }
    }
    // one that hands its slot on to the dispatch that reads it last ends there
    let mut later: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); memory.slots.len()];
    for Tenant { slot, first, end, .. } in tenants.iter_mut().rev() {
        if let Some(next) = later[*slot].range(*first + 1..).next() {
            *end = (*end).min(*next);
        }
        later[*slot].insert(*first);
    }
    // changes of the live bytes
    let mut changes = vec![0i128; steps + 1];
    for Tenant { tensor, first, end, .. } in &tenants {
        let bytes = i128::from(memory.tensors[*tensor].bytes);
        changes[*first] += bytes;
        changes[*end] -= bytes;
    }
    let mut now = 0i128;
    let live: Vec<u64> = changes[..steps]
        .iter()
        .map(|change| {
            now += change;
            now.clamp(0, i128::from(u64::MAX)) as u64
        })
        .collect();
    let most = live.iter().copied().max().filter(|m| *m > 0);
    let peak = most.and_then(|m| live.iter().position(|l| *l == m));
    Layout {
        tenants,
        places: places(&memory.slots, least),
        live,
        peak,
        slots: memory.total() - memory.resident,
        resident,
    }
}

fn places(slots: &[u64], least: f32) -> Vec<(f32, f32)> {
    let most = slots.iter().copied().max().unwrap_or(0).max(1) as f32;
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(slots[*i]), *i));
    let heights: Vec<f32> = slots.iter().map(|b| (*b as f32 / most).max(least)).collect();
    let all: f32 = heights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
    let mut places = vec![(0.0, 0.0); slots.len()];
    let mut top = 0.0;
    for i in order {
        let height = heights[i] / all;
        places[i] = (top, top + height);
        top += height;
    }
    places
}

/// The tensor whose rectangle holds a point: a dispatch and a height from 0 to 1.
pub fn tenant_at(layout: &Layout, dispatch: usize, height: f32) -> Option<Tenant> {
    let holds = |t: &&Tenant| {
        let (top, bottom) = layout.places[t.slot];
        t.first <= dispatch && dispatch < t.end && top <= height && height < bottom
    };
    // where one hands its slot on, the newer is shown
    layout.tenants.iter().rev().find(holds).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use kiln::trace::Tensor;

    #[test]
    fn a_slot_that_is_handed_on_lives_once() {
        let mut trace = sample::trace();
        let temp = |name: &str, alive| Tensor {
            name: name.into(),
            bytes: 64,
            kind: TensorKind::Temp,
            slot: Some(0),
            alive: Some(alive),
        };
        // the relu of dispatch 1 overwrites what the linear of dispatch 0 made
        trace.memory.tensors = vec![temp("linear", (0, 1)), temp("relu", (1, 2))];
        trace.memory.slots = vec![64];
        let layout = layout(&trace, 0.1);
        assert_eq!(layout.live[..4], [64, 64, 64, 0]);
        assert_eq!(layout.peak, Some(0));
    }

    #[test]
    fn slots_fill_the_height_and_the_peak_is_where_most_lives() {
        let trace = sample::trace();
        let layout = layout(&trace, 0.1);
        assert_eq!(layout.places.len(), trace.memory.slots.len());
        let all: f32 = layout.places.iter().map(|(a, b)| b - a).sum();
        assert!((all - 1.0).abs() < 1e-5);
        let most = *layout.live.iter().max().unwrap();
        assert_eq!(layout.live[layout.peak.unwrap()], most);
        assert!(most <= layout.slots, "what lives at once has a slot each");
        assert_eq!(layout.live.len(), 7);
        let t = layout.tenants[0];
        let (top, bottom) = layout.places[t.slot];
        assert_eq!(tenant_at(&layout, t.first, (top + bottom) / 2.0).map(|t| t.slot), Some(t.slot));
        assert_eq!(tenant_at(&layout, 99, 0.5), None);
    }

    #[test]
    fn nothing_has_no_peak() {
        let layout = layout(&Trace::default(), 0.1);
        assert_eq!((layout.peak, layout.live.len(), layout.places.len()), (None, 0, 0));
    }
}
