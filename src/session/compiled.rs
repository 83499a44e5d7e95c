//! In: a graph and a device's caps; out: [`Compiled`], everything that is decided about it without the device. Reads top
//! to bottom as the way of the data: lift, fuse, select, plan, record.

use super::{CompileOptions, Mode};
use crate::caps::DeviceCaps;
use crate::debug::show;
use crate::error::Error;
use crate::fuse::{FuseLimits, FuseReport, fuse};
use crate::graph::{Graph, readers_first};
use crate::kernel::linear_stack::widest;
use crate::lift::{LiftLimits, lift_within};
use crate::plan::{MemoryPlan, audit, plan};
use crate::record::{Recording, lower};
use crate::select::{Overlap, Selected, overlap, select};
use crate::trace::{Clock, HostSpan};
use crate::tune::TuneReport;
use std::time::Instant;

/// Everything that is decided about a graph without a device.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The graph as it is run.
    pub graph: Graph,
    /// What was lifted and fused.
    pub report: FuseReport,
    /// Kernels and tensors.
    pub selected: Selected,
    /// Where tensors live.
    pub plan: MemoryPlan,
    /// What is done.
    pub recording: Recording,
    /// The graph as written.
    pub written: Graph,
    /// What was measured, if something was.
    pub(super) tuning: Option<TuneReport>,
    /// When the compilation began.
    pub zero: Instant,
    /// When each stage ran, from the begin of the compilation.
    pub stages: Vec<HostSpan>,
}

impl Compiled {
    /// What `KILN_DEBUG` asks for.
    pub(super) fn show(&self) {
        show(1, "graph as it is run", || Box::new(self.graph.clone()));
        show(1, "fused", || Box::new(self.report.clone()));
        show(2, "schedule", || Box::new(self.selected.clone()));
        show(2, "memory", || Box::new(self.plan.clone()));
        show(2, "barriers", || Box::new(self.recording.barriers()));
        for kernel in &self.recording.kernels {
            show(3, kernel.name(), || Box::new(kernel.source()));
        }
    }
}

/// Lifts, fuses, selects, plans and records for a device of these caps.
///
/// # Errors
/// If an option cannot be so or a node cannot run within the caps.
pub fn compile(graph: &Graph, caps: &DeviceCaps, options: &CompileOptions) -> Result<Compiled, Error> {
    if options.max_dispatches_per_submit == Some(0) {
        let (option, expected) = ("max_dispatches_per_submit", "at least 1, or None for one submit of all");
        return Err(Error::Option { option, expected, got: "0".into() });
    }
    graph.verify()?;
    let caps = &caps.usable();
    let mut clock = Clock::start(true);
    let mut report = FuseReport::default();
    let written = graph.as_written();
    let mut graph = written.clone();
    if options.mode == Mode::Fused && options.lift {
        let (lifted, found) = clock.time("lift", || lift_within(&graph, &lift_limits(caps)))?;
        (graph, report) = (lifted, found);
    }
    if options.mode == Mode::Fused && options.fuse {
        let limits = FuseLimits { max_inputs: (caps.max_storage_buffers as usize).saturating_sub(1) };
        let (fused, found) = clock.time("fuse", || fuse(&graph, &limits))?;
        graph = fused;
        report.extend(found);
    }
    graph = readers_first(&graph)?;
    let undecided = Compiled {
        graph,
        report,
        selected: Selected::default(),
        plan: MemoryPlan::default(),
        recording: Recording::default(),
        written,
        tuning: None,
        zero: clock.zero(),
        stages: clock.spans(),
    };
    undecided.with(caps, options)
}

/// What one lifted op may hold on a device of these caps.
pub(crate) fn lift_limits(caps: &DeviceCaps) -> LiftLimits {
    let [linear_bytes, bound_bytes] =
        [caps.max_buffer_bytes, caps.max_binding_bytes].map(|b| usize::try_from(b).unwrap_or(usize::MAX));
    LiftLimits { stack_width: widest(caps), linear_bytes, bound_bytes, ..LiftLimits::default() }
}

impl Compiled {
    /// The same graph with kernels, memory and a recording that these caps and choices give.
    pub(super) fn with(self, caps: &DeviceCaps, options: &CompileOptions) -> Result<Compiled, Error> {
        let caps = &caps.usable();
        let mut clock = Clock::start(true);
        let selected = clock.time("select", || select(&self.graph, caps, options.precision, &options.choices))?;
        for d in &selected.decisions {
            if let Some(unfit) = d.unfit {
                tracing::warn!(problem = %d.problem, given = %unfit, taken = %d.config, "the device cannot run what was chosen");
            }
        }
        let which = match options.overlap {
            _ if options.mode != Mode::Fused => Overlap::Never,
            Overlap::Long if caps.cpu => Overlap::Never,
            which => which,
        };
        let (selected, plan) = clock.time("plan", || planned(selected, which, options.alias));
        clock.time("audit", || audit(&selected, &plan))?;
        let recording = clock.time("record", || lower(&selected, &plan, caps));
        let later = clock.zero().saturating_duration_since(self.zero).as_nanos() as u64;
        let decided = ["select", "plan", "audit", "record"];
        let before = self.stages.into_iter().filter(|s| !decided.contains(&s.name.as_str()));
        let stages = before.chain(clock.spans().into_iter().map(|s| s.later(later))).collect();
        let mut report = self.report;
        report.findings.retain(|f| f.pass != "select");
        report.extend(selected.report.clone());
        Ok(Compiled { report, selected, plan, recording, stages, ..self })
    }
}

/// Launches that run side by side keep more alive at once: where that takes over a two-hundredth more memory, each
/// waits for the one before.
fn planned(selected: Selected, which: Overlap, alias: bool) -> (Selected, MemoryPlan) {
    let one_by_one = plan(&selected, alias);
    if which == Overlap::Never {
        return (selected, one_by_one);
    }
    let beside = overlap(selected.clone(), which);
    let planned = plan(&beside, alias);
    if which == Overlap::Long && planned.total() > one_by_one.total() / 200 * 201 {
        tracing::debug!(one_by_one = one_by_one.total(), beside = planned.total(), "no launches side by side: memory");
        return (selected, one_by_one);
    }
    (beside, planned)
}
