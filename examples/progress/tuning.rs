//! In: a graph compiled for a device; out: options with the configurations that are the fastest there. Shows how far the
//! tuning is, then what it found.

use indicatif::{ProgressBar, ProgressStyle};
use kiln::session::{CompileOptions, Compiled, Session};
use kiln::tune::TuneReport;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Tunes and prints the report, which it gives too.
pub fn tuned(
    session: &Session,
    compiled: &Compiled,
    options: CompileOptions,
    log: Option<&Path>,
) -> Result<(CompileOptions, TuneReport), Box<dyn Error>> {
    let style = ProgressStyle::with_template("tuning {bar:24} {pos}/{len}, {elapsed} {wide_msg}")?;
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    let tuning = session.tune(compiled, &options, &mut |p| {
        bar.set_length(p.total as u64);
        bar.set_position(p.done as u64);
        bar.set_message(p.problem.to_string());
    })?;
    bar.finish_and_clear();
    print!("{}", tuning.report);
    if let Some(path) = log {
        std::fs::write(path, times(&tuning.report)?).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok((CompileOptions { choices: tuning.choices, ..options }, tuning.report))
}

/// The time of each candidate, one a line: microseconds, how often it runs, the candidate and the problem.
fn times(report: &TuneReport) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for a in &report.answers {
        for (config, time) in &a.times {
            let mark = if *config == a.default { "*" } else { "" };
            writeln!(text, "{:.2}\t{}\t{config}{mark}\t{}", time.as_secs_f64() * 1e6, a.uses, a.problem)?;
        }
    }
    Ok(text)
}
