//! In: what a run reports; out: [`Trace`], timings as plain data that library, benches and viewer share. Knows nothing
//! else of the crate.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the file format, raised when a field changes its meaning.
pub const VERSION: u32 = 2;

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`VERSION`].
    pub version: u32,
    /// The adapter's name.
    pub adapter: String,
    /// Its driver and backend.
    pub driver: String,
    /// Eager, recorded or fused.
    pub mode: String,
    /// Command buffers submitted.
    pub submits: u64,
    /// Compute passes in them.
    pub passes: u64,
    /// Whether measuring changed the passes: without timestamps inside a pass each dispatch has its own.
    pub profiling_split_passes: bool,
    /// The dispatches in order.
    pub spans: Vec<Span>,
    /// Time that the host took to record dispatches and copies and to finish the command buffers, nanoseconds.
    pub encode_ns: u64,
    /// Time that the host took beside that, to upload inputs and submit, nanoseconds.
    pub submit_ns: u64,
    /// Time from the call of submit to results in host memory, nanoseconds.
    pub wall_ns: u64,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The node's name.
    pub name: String,
    /// The kernel's name.
    pub kernel: String,
    /// Workgroups.
    pub grid: [u32; 3],
    /// Floating-point operations that it cannot do without.
    pub flops: f64,
    /// Bytes that it cannot do without.
    pub bytes: f64,
    /// Begin and end on the device, nanoseconds from the first begin; `None` where the adapter gives no usable stamps.
    pub time: Option<(u64, u64)>,
}

/// Makes times of raw ticks. Zero stamps, and an end before its begin, are no times.
pub fn times(ticks: &[(u64, u64)], period_ns: f64) -> Vec<Option<(u64, u64)>> {
    let usable = |&(begin, end): &(u64, u64)| begin != 0 && end != 0 && end >= begin;
    let first = ticks.iter().filter(|t| usable(t)).map(|t| t.0).min().unwrap_or(0);
    let ns = |tick: u64| ((tick - first) as f64 * period_ns) as u64;
    ticks.iter().map(|t| usable(t).then(|| (ns(t.0), ns(t.1)))).collect()
}

impl Trace {
    /// From the first begin to the last end, nanoseconds.
    pub fn gpu_ns(&self) -> Option<u64> {
        let timed = || self.spans.iter().filter_map(|s| s.time);
        Some(timed().map(|t| t.1).max()? - timed().map(|t| t.0).min()?)
    }

    /// The sum of the dispatches' times, nanoseconds. [`Trace::gpu_ns`] less this is gaps.
    pub fn busy_ns(&self) -> Option<u64> {
        let mut timed = self.spans.iter().filter_map(|s| s.time).peekable();
        timed.peek()?;
        Some(timed.map(|(begin, end)| end - begin).sum())
    }
}

/// Dispatches that a trace's text names.
const SLOWEST: usize = 12;

/// The total, then per kernel its calls and time, then the slowest dispatches.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| ns.map_or("unavailable".into(), |ns| format!("{:.1} µs", ns as f64 / 1e3));
        writeln!(
            f,
            "{} on {} ({}): {} submits, {} dispatches",
            self.mode,
            self.adapter,
            self.driver,
            self.submits,
            self.spans.len()
        )?;
        let gaps = self.gpu_ns().zip(self.busy_ns()).map(|(g, b)| g.saturating_sub(b));
        writeln!(
            f,
            "GPU {}, kernels {}, gaps {}, encode {}, submit {}, wall {}",
            us(self.gpu_ns()),
            us(self.busy_ns()),
            us(gaps),
            us(Some(self.encode_ns)),
            us(Some(self.submit_ns)),
            us(Some(self.wall_ns))
        )?;
        let mut kernels: Vec<(&str, usize, Option<u64>, f64)> = Vec::new();
        for span in &self.spans {
            let ns = span.time.map(|(begin, end)| end - begin);
            let Some(k) = kernels.iter_mut().find(|k| k.0 == span.kernel) else {
                kernels.push((&span.kernel, 1, ns, span.flops));
                continue;
            };
            // a rate over those that have times alone would be wrong
            (k.1, k.2, k.3) = (k.1 + 1, k.2.zip(ns).map(|(a, b)| a + b), k.3 + span.flops);
        }
        kernels.sort_by_key(|k| std::cmp::Reverse(k.2));
        for (name, calls, ns, flops) in kernels {
            let rate =
                ns.filter(|ns| *ns > 0).map_or(String::new(), |ns| format!(", {:.1} GFLOP/s", flops / ns as f64));
            writeln!(f, "  {name}: {calls} calls, {}{rate}", us(ns))?;
        }
        let mut slowest: Vec<(u64, &Span)> =
            self.spans.iter().filter_map(|s| s.time.map(|(begin, end)| (end - begin, s))).collect();
        slowest.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        for (ns, span) in slowest.into_iter().take(SLOWEST) {
            let rate = span.flops / ns.max(1) as f64;
            writeln!(f, "  {:>9.1} µs {rate:>9.1} GFLOP/s  {} ({})", ns as f64 / 1e3, span.name, span.kernel)?;
        }
        Ok(())
    }
}
