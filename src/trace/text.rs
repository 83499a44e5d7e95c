//! In: a [`Trace`]; out: its text: the total, then per kernel its calls and time, then the slowest dispatches. Knows
//! nothing else of the crate. Of several runs it shows medians.

use super::{Frame, Trace, stats};
use std::fmt;

/// Dispatches that a trace's text names.
const SLOWEST: usize = 12;

fn us(ns: Option<f64>) -> String {
    ns.map_or("unavailable".into(), |ns| format!("{:.1} µs", ns / 1e3))
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
        let mut kernels: Vec<(&str, usize, Option<f64>, f64)> = Vec::new();
        for (dispatch, ns) in self.dispatches.iter().zip(&times) {
            let name = self.kernel_of(dispatch);
            let Some(k) = kernels.iter_mut().find(|k| k.0 == name) else {
                kernels.push((name, 1, *ns, dispatch.flops));
                continue;
            };
            // a rate over those that have times alone would be wrong
            (k.1, k.2, k.3) = (k.1 + 1, k.2.zip(*ns).map(|(a, b)| a + b), k.3 + dispatch.flops);
        }
        kernels.sort_by(|a, b| b.2.unwrap_or(-1.0).total_cmp(&a.2.unwrap_or(-1.0)));
        for (name, calls, ns, flops) in kernels {
            let rate = ns.filter(|ns| *ns > 0.0).map_or(String::new(), |ns| format!(", {:.1} GFLOP/s", flops / ns));
            writeln!(f, "  {name}: {calls} calls, {}{rate}", us(ns))?;
        }
        let mut slowest: Vec<(f64, usize)> =
            times.iter().enumerate().filter_map(|(i, ns)| ns.map(|ns| (ns, i))).collect();
        slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (ns, i) in slowest.into_iter().take(SLOWEST) {
            let dispatch = &self.dispatches[i];
            let (rate, kernel) = (dispatch.flops / ns.max(1.0), self.kernel_of(dispatch));
            writeln!(f, "  {:>9.1} µs {rate:>9.1} GFLOP/s  {} ({kernel})", ns / 1e3, dispatch.name)?;
        }
        Ok(())
    }
}
