//! In: a [`Trace`]; out: its text: the total, then per kernel its calls and time, then the slowest dispatches. Knows
//! nothing else of the crate. Of several runs it shows medians. A time in which some are parts of what several dispatches
//! took together has a `~` in front.

use super::{Frame, Trace, stats};
use std::fmt;

/// Dispatches that a trace's text names.
const SLOWEST: usize = 12;

fn us(ns: Option<f64>) -> String {
    ns.map_or("unavailable".into(), |ns| format!("{:.1} µs", ns / 1e3))
}

/// All dispatches of a kernel.
struct Kernel<'a> {
    name: &'a str,
    calls: usize,
    ns: Option<f64>,
    flops: f64,
    /// Whether one has a part of what several took together.
    part: bool,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median =
            |pick: &dyn Fn(&Frame) -> Option<u64>| stats(self.frames.iter().filter_map(pick)).map(|s| s.median);
        let device = &self.device;
        write!(f, "{} on {} ({}, {}): ", self.options.mode, device.adapter, device.backend, device.driver)?;
        match self.frames.len() {
            0 => return writeln!(f, "{} dispatches, no run yet", self.dispatches.len()),
            1 => {}
            n => write!(f, "medians of {n} runs, ")?,
        }
        writeln!(f, "{} submits, {} dispatches", self.frames[0].submits, self.dispatches.len())?;
        writeln!(
            f,
            "GPU {}, kernels {}, gaps {}, encode {}, wall {}",
            us(median(&|f| f.gpu_ns())),
            us(median(&|f| f.busy_ns())),
            us(median(&|f| f.gaps_ns())),
            us(median(&|f| Some(f.encode_ns))),
            us(median(&|f| Some(f.wall_ns)))
        )?;
        let times: Vec<Option<f64>> =
            (0..self.dispatches.len()).map(|i| self.dispatch_stats(i).map(|s| s.median)).collect();
        let part = |i: usize| self.frames.iter().any(|f| f.timed_with(i).is_some());
        let mark = |part: bool| if part { "~" } else { "" };
        let mut kernels: Vec<Kernel<'_>> = Vec::new();
        for (i, (dispatch, ns)) in self.dispatches.iter().zip(&times).enumerate() {
            let name = self.kernel_of(dispatch);
            let Some(k) = kernels.iter_mut().find(|k| k.name == name) else {
                kernels.push(Kernel { name, calls: 1, ns: *ns, flops: dispatch.flops, part: part(i) });
                continue;
            };
            k.calls += 1;
            // a rate over those that have times alone would be wrong
            k.ns = k.ns.zip(*ns).map(|(a, b)| a + b);
            k.flops += dispatch.flops;
            k.part |= part(i);
        }
        kernels.sort_by(|a, b| b.ns.unwrap_or(-1.0).total_cmp(&a.ns.unwrap_or(-1.0)));
        for Kernel { name, calls, ns, flops, part } in kernels {
            let rate = ns.filter(|ns| *ns > 0.0).map_or(String::new(), |ns| format!(", {:.1} GFLOP/s", flops / ns));
            writeln!(f, "  {name}: {calls} calls, {}{}{rate}", mark(part), us(ns))?;
        }
        let mut slowest: Vec<(f64, usize)> =
            times.iter().enumerate().filter_map(|(i, ns)| ns.map(|ns| (ns, i))).collect();
        slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (ns, i) in slowest.into_iter().take(SLOWEST) {
            let dispatch = &self.dispatches[i];
            let (rate, kernel) = (dispatch.flops / ns.max(1.0), self.kernel_of(dispatch));
            let time = format!("{}{:.1}", mark(part(i)), ns / 1e3);
            writeln!(f, "  {time:>9} µs {rate:>9.1} GFLOP/s  {} ({kernel})", dispatch.name)?;
        }
        Ok(())
    }
}
