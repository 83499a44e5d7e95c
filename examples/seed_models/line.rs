//! In: what a program measured of one cell of the benchmark; out: [`Line`], JSON that it prints one a line and the runner
//! reads. Peers' programs and the PyTorch script print the same.
#![allow(dead_code, reason = "each example uses its own part")]

use serde::{Deserialize, Serialize};

/// A line on standard output.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    /// What the adapter reaches.
    Peak { adapter: String, driver: String, flops: f64, bytes: f64 },
    /// The first run ended, so many seconds after compilation began.
    First { seconds: f64 },
    /// All is measured.
    Measured(Box<Measured>),
}

/// What one cell took.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Measured {
    pub adapter: String,
    pub driver: String,
    /// The device's PCI address, of programs that know it.
    pub pci: Option<String>,
    /// Name and version of what ran.
    pub program: String,
    /// Timed runs, after those that warm up: a third as many in flight, at least 1 s of them.
    pub runs: usize,
    /// Median by the host's clock from the call that starts a run to its end, milliseconds.
    pub ms: f64,
    pub p95_ms: f64,
    pub min_ms: f64,
    /// Per run of several that do not wait for each other.
    pub in_flight_ms: Option<f64>,
    /// By the device's clock.
    pub device_ms: Option<f64>,
    pub first_run_s: f64,
    /// Until the first run's end at a later start, with what the first one kept; the runner's own.
    pub second_start_s: Option<f64>,
    /// kiln: what its plan says; PyTorch: `max_memory_allocated`.
    pub peak_mib: Option<f64>,
    pub submits: Option<u64>,
    pub dispatches: Option<u64>,
    /// Of the first training step.
    pub loss: Option<f64>,
    /// What is not as asked for.
    pub note: Option<String>,
}

impl Line {
    /// The line that a program printed, if it is one.
    pub fn parse(text: &str) -> Option<Line> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_other_programs_may_leave_out_what_they_do_not_measure() {
        let text = r#"{"line": "measured", "adapter": "a", "driver": "d", "program": "p 1", "runs": 30, "ms": 2.0,
            "p95_ms": 3.0, "min_ms": 1.0, "first_run_s": 0.5}"#;
        let Some(Line::Measured(m)) = Line::parse(text) else { panic!("not read") };
        assert_eq!((m.ms, m.peak_mib, m.note), (2.0, None, None));
        assert_eq!(Line::parse("model ms"), None);
        assert_eq!(Line::parse(r#"{"line": "first", "seconds": 1.5}"#), Some(Line::First { seconds: 1.5 }));
    }
}
