//! In: calls and raw ticks; out: spans and times in nanoseconds. Knows nothing else of the crate.

use super::HostSpan;
use std::time::Instant;

/// Notes when calls on one thread begin and end. One that is off costs a branch a call.
#[derive(Clone, Debug)]
pub struct Clock {
    zero: Instant,
    on: bool,
    spans: Vec<HostSpan>,
}

impl Clock {
    /// Starts now.
    pub fn start(on: bool) -> Clock {
        Clock { zero: Instant::now(), on, spans: Vec::new() }
    }

    /// When it was started.
    pub fn zero(&self) -> Instant {
        self.zero
    }

    /// Calls `f` and notes it.
    pub fn time<T>(&mut self, name: &str, f: impl FnOnce() -> T) -> T {
        if !self.on {
            return f();
        }
        let begin = self.ns();
        let value = f();
        let end = self.ns();
        self.spans.push(HostSpan { name: name.into(), thread: 0, begin, end });
        value
    }

    /// Since it was started.
    pub fn ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// What it noted, in the order in which the calls ended.
    pub fn spans(self) -> Vec<HostSpan> {
        self.spans
    }
}

/// Makes times of raw ticks. Zero stamps, and an end before its begin, are no times.
pub fn times(ticks: &[(u64, u64)], period_ns: f64) -> Vec<Option<(u64, u64)>> {
    let usable = |&(begin, end): &(u64, u64)| begin != 0 && end != 0 && end >= begin;
    let first = ticks.iter().filter(|t| usable(t)).map(|t| t.0).min().unwrap_or(0);
    let ns = |tick: u64| ((tick - first) as f64 * period_ns) as u64;
    ticks.iter().map(|t| usable(t).then(|| (ns(t.0), ns(t.1)))).collect()
}
