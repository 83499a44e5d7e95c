//! In: what a model took in a mode; out: a line of the table, or one of JSON for the runner.

use crate::line::Measured;
use crate::sizes::Phase;
use serde::Serialize;
use std::error::Error;
use std::path::Path;

/// One line of the table.
#[derive(Serialize)]
pub struct Row {
    pub phase: String,
    pub rows: usize,
    pub model: String,
    pub mode: String,
    pub precision: String,
    pub init: String,
    pub adapter: String,
    pub driver: String,
    pub pci: Option<String>,
    pub runs: usize,
    /// Median of submit to done, milliseconds; then the time that 95 % of runs keep, and the least.
    pub wall_ms: f64,
    pub p95_ms: f64,
    pub min_ms: f64,
    /// Per run of several in flight, milliseconds.
    pub pipelined_ms: f64,
    /// First kernel's begin to last kernel's end of one run, milliseconds.
    pub gpu_ms: Option<f64>,
    pub submits: u64,
    pub dispatches: usize,
    pub host_us: f64,
    pub planned_mib: f64,
    pub naive_mib: f64,
    pub tflops: f64,
    pub share_of_measured_peak: Option<f64>,
    pub first_run_s: f64,
    /// What it took to tune, ahead of the first run.
    pub tuning_s: Option<f64>,
    /// How many times as long as the chosen ones the launches take that kernels' models choose, where both were timed.
    pub tuning_ratio: Option<f64>,
    /// Where the program is not what was asked for.
    pub findings: Vec<String>,
    /// Of the output.
    pub relative_error: Option<f64>,
    /// Of the first training step.
    pub loss: Option<f32>,
    /// Layers from one kept activation to the next.
    pub checkpoint: Option<u64>,
}

/// How many findings a note holds.
const MOST_FINDINGS: usize = 4;

/// What a reader of the cell must know.
fn note(findings: &[String], tuning_s: Option<f64>, tuning_ratio: Option<f64>) -> Option<String> {
    let tuned = tuning_s.map(|seconds| {
        let ratio = tuning_ratio.map_or(String::new(), |ratio| {
            format!("; one by one the default's launches take {ratio:.2} times as long as these")
        });
        format!("tuned in {seconds:.1} s ahead of the first run{ratio}")
    });
    // a deep model may have thousands
    let more = findings.len().checked_sub(MOST_FINDINGS).filter(|more| *more > 0);
    let more = more.map(|more| format!("{more} more such findings"));
    let words: Vec<String> = findings.iter().take(MOST_FINDINGS).cloned().chain(more).chain(tuned).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// A row for the runner.
pub fn measured(r: &Row) -> Measured {
    Measured {
        adapter: r.adapter.clone(),
        driver: r.driver.clone(),
        pci: r.pci.clone(),
        program: format!("kiln {}", env!("CARGO_PKG_VERSION")),
        runs: r.runs,
        ms: r.wall_ms,
        p95_ms: r.p95_ms,
        min_ms: r.min_ms,
        in_flight_ms: Some(r.pipelined_ms),
        device_ms: r.gpu_ms,
        first_run_s: r.first_run_s,
        second_start_s: None,
        peak_mib: Some(r.planned_mib),
        submits: Some(r.submits),
        dispatches: Some(r.dispatches as u64),
        loss: r.loss.map(f64::from),
        note: note(&r.findings, r.tuning_s, r.tuning_ratio),
    }
}

pub fn print_head(phase: Phase) {
    println!(
        "{:<8} {:<9} {:>9} {:>9} {:>9} {:>7} {:>6} {:>9} {:>8} {:>9} {:>7} {:>6} {:>8} {:>9}",
        "model",
        "mode",
        "wall ms",
        "piped ms",
        "GPU ms",
        "submits",
        "disp.",
        "host µs",
        "MiB",
        "naive MiB",
        "TFLOP/s",
        "peak",
        "first s",
        if phase == Phase::Infer { "error" } else { "loss" }
    );
}

pub fn print(r: &Row) {
    let gpu = r.gpu_ms.map_or("-".into(), |ms| format!("{ms:.3}"));
    let last = match (r.relative_error, r.loss) {
        (Some(error), _) => format!("{error:.2e}"),
        (None, Some(loss)) => format!("{loss:.5}"),
        (None, None) => "-".into(),
    };
    println!(
        "{:<8} {:<9} {:>9.3} {:>9.3} {gpu:>9} {:>7} {:>6} {:>9.0} {:>8.1} {:>9.1} {:>7.2} {:>5.1}% {:>8.2} {last:>9}",
        r.model,
        r.mode,
        r.wall_ms,
        r.pipelined_ms,
        r.submits,
        r.dispatches,
        r.host_us,
        r.planned_mib,
        r.naive_mib,
        r.tflops,
        100.0 * r.share_of_measured_peak.unwrap_or(f64::NAN),
        r.first_run_s
    );
    r.findings.iter().for_each(|what| println!("  {what}"));
}

/// Writes rows of whatever kind as JSON, if a file is named.
pub fn write_json(path: Option<&Path>, rows: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, serde_json::to_string_pretty(rows)?).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_where_a_program_is_not_what_was_asked_for() {
        let found = |many: usize| (0..many).map(|i| format!("y{i}: highest used")).collect::<Vec<_>>();
        assert_eq!(note(&[], None, None), None);
        assert_eq!(note(&found(1), None, None).unwrap(), "y0: highest used");
        assert_eq!(
            note(&found(1), Some(2.0), Some(1.5)).unwrap(),
            "y0: highest used; tuned in 2.0 s ahead of the first run; one by one the default's launches take 1.50 times as \
             long as these"
        );
        let many = note(&found(7), None, None).unwrap();
        assert!(many.ends_with("y3: highest used; 3 more such findings"), "{many}");
    }
}
