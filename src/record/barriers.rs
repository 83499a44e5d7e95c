//! In: a recording; out: [`Barriers`], which dispatches wait for those before them, and for which buffers. Follows wgpu's
//! rules without knowing wgpu.
//!
//! wgpu waits for all that runs whenever a buffer changes its use, and before each use of one that is written: only reads
//! follow reads freely. It looks at whole buffers, and a buffer that a pass has not touched before is waited for ahead of
//! the pass, whichever of its dispatches binds it.

use super::{BufferId, Dispatch, Recording};
use crate::kernel::Access;
use std::collections::BTreeMap;
use std::fmt;

/// What one dispatch waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The node's name.
    pub name: String,
    /// The kernel's.
    pub kernel: &'static str,
    /// Buffers that dispatches before it write, or that it writes; before the first of a pass those of the whole pass.
    pub buffers: Vec<BufferId>,
}

/// What all dispatches of a recording wait for, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barriers {
    /// One a dispatch.
    pub each: Vec<Barrier>,
    /// The first dispatch of each pass.
    pub passes: Vec<usize>,
}

/// How a dispatch uses each buffer that it binds: whether it writes it.
fn uses(dispatch: &Dispatch) -> BTreeMap<BufferId, bool> {
    let mut uses = BTreeMap::new();
    for binding in &dispatch.bindings {
        *uses.entry(binding.buffer).or_insert(false) |= binding.access == Access::ReadWrite;
    }
    uses
}

impl Barriers {
    /// Of a recording, which begins with all buffers unused.
    pub fn of(recording: &Recording) -> Barriers {
        let all: Vec<BTreeMap<BufferId, bool>> = recording.dispatches.iter().map(uses).collect();
        let mut before: BTreeMap<BufferId, bool> = BTreeMap::new();
        let mut waits: Vec<Vec<BufferId>> = vec![Vec::new(); all.len()];
        for first in &recording.passes {
            let mut pass: BTreeMap<BufferId, bool> = BTreeMap::new();
            for at in *first..recording.pass_end(*first) {
                for (buffer, writes) in &all[at] {
                    let (waiting, last) = match (pass.get(buffer), before.get(buffer)) {
                        (Some(last), _) => (at, Some(last)),
                        (None, last) => (*first, last),
                    };
                    if last.is_some_and(|last| *last || *writes) {
                        waits[waiting].push(*buffer);
                    }
                    pass.insert(*buffer, *writes);
                }
            }
            before.extend(pass);
        }
        let barrier = |(dispatch, buffers): (&Dispatch, Vec<BufferId>)| Barrier {
            name: dispatch.name.clone(),
            kernel: recording.kernels[dispatch.kernel].name(),
            buffers,
        };
        let each = recording.dispatches.iter().zip(waits).map(barrier).collect();
        Barriers { each, passes: recording.passes.clone() }
    }

    /// How many dispatches wait for nothing.
    pub fn free(&self) -> usize {
        self.each.iter().filter(|b| b.buffers.is_empty()).count()
    }
}

/// `589 dispatches in 61 passes, 74 of them wait for nothing`, then a dispatch a line: `blocks.0.sa.proj: matmul waits for
/// b3 b7`.
impl fmt::Display for Barriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, passes) = (self.each.len(), self.passes.len());
        writeln!(f, "{all} dispatches in {passes} passes, {} of them wait for nothing", self.free())?;
        for (at, barrier) in self.each.iter().enumerate() {
            if self.passes.len() > 1 && self.passes.binary_search(&at).is_ok() {
                writeln!(f, "pass:")?;
            }
            write!(f, "{}: {}", barrier.name, barrier.kernel)?;
            let buffers: Vec<String> = barrier.buffers.iter().map(|b| format!("b{}", b.0)).collect();
            match buffers.is_empty() {
                true => writeln!(f, " waits for nothing")?,
                false => writeln!(f, " waits for {}", buffers.join(" "))?,
            }
        }
        Ok(())
    }
}
