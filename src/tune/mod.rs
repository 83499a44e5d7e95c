//! In: a graph, a device, and what earlier tunings found; out: [`Choices`] that are the fastest on this device, and a
//! [`TuneReport`]. Reads from top to bottom: the questions that select has answered by a model, the candidates of each,
//! their times, the best, and the file that keeps it. Knows how to launch and time, not what a kernel does.
//!
//! A candidate is compared with the model's choice on the same random numbers before it is timed. One that does not
//! compile, or whose results differ, is left out with a warning.

mod measure;
mod report;
mod store;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use report::warn;
pub use report::{Answer, Progress, TuneReport};
pub use store::{Entry, Limits, TuningCache, TuningError, file_name};

use crate::cache::ADVICE;
use crate::caps::{DeviceCaps, MatmulPrecision};
use crate::gpu::{Gpu, GpuError};
use crate::graph::Graph;
use crate::kernel::{Choices, Config};
use crate::select::{Decision, SelectError, Selected, select};
use measure::Candidate;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;
use work::Work;

/// Whether configurations of kernels are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompileMode {
    /// Kernels choose by a model of the device.
    #[default]
    Default,
    /// What could be launched in several ways is timed on the device, once for each kernel and size; what was found is
    /// kept for later starts.
    MaxAutotune,
}

/// How long and how widely is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuneOptions {
    /// After so long the model decides what is left. It is looked at between problems and between rounds of one.
    pub budget: Duration,
    /// Most candidates of a problem, the model's own choice included; those it finds best.
    pub candidates: usize,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions { budget: Duration::from_secs(120), candidates: 12 }
    }
}

/// What tuning fails with. A candidate that fails is left out; this is for what the program would fail with as well.
#[derive(Debug, Error)]
pub enum TuneError {
    /// A node cannot run on this device.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The device fails, or the model's own choice does not run.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// The fastest configurations and how they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// For [`select`].
    pub choices: Choices,
    /// What was measured.
    pub report: TuneReport,
}

/// Where a graph is tuned.
pub struct Device<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// What it is to be used for.
    pub caps: &'a DeviceCaps,
    /// How exact products are.
    pub precision: MatmulPrecision,
    /// Kernels have naga's run-time checks.
    pub checked: bool,
}

/// Finds the fastest configurations for a graph as it is run. `given` are settled; `preloaded` and the file at `path`
/// are asked before anything is timed, and the file is told what was found.
///
/// # Errors
/// If the graph cannot run on the device, or the device fails. A file that cannot be used is a warning.
pub fn tune(
    device: &Device,
    graph: &Graph,
    given: &Choices,
    preloaded: Option<&TuningCache>,
    path: Option<&Path>,
    options: &TuneOptions,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Tuning, TuneError> {
    let begin = Instant::now();
    // a budget without end has no deadline
    let deadline = begin.checked_add(options.budget);
    let header = TuningCache::empty(device.gpu.info());
    let limits = Limits::of(device.caps, device.checked);
    let mut report = TuneReport { adapter: device.gpu.info().to_string(), ..TuneReport::default() };
    let known = known(&header, preloaded, path, &mut report);
    let mut choices = given.clone();
    let mut found = header;
    let mut unkept = None;
    let mut done = 0;
    loop {
        let selected = select(graph, device.caps, device.precision, &choices)?;
        // what is given is settled where the device can run it
        let fits = |d: &Decision| d.unfit.is_none() && given.get(&d.problem).is_some();
        let settled = |d: &Decision| fits(d) || report.answers.iter().any(|a| a.problem == d.problem);
        let mut open = questions(&selected, settled);
        if open.is_empty() {
            break;
        }
        // what is known needs no time
        open.retain(|question| {
            let Some(entry) = known.get(&limits, &question.problem) else { return true };
            if !question.configs.contains(&entry.config) {
                report.warn(format!(
                    "{}: the device cannot run {}, which was kept for it; timed anew",
                    question.problem, entry.config
                ));
                return true;
            }
            choices.insert(question.problem.clone(), entry.config);
            report.answers.push(Answer::kept(question, graph, entry));
            false
        });
        if open.is_empty() {
            continue;
        }
        let works = works(device, graph, &choices, &open, options.candidates)?;
        let total = done + open.len();
        for (question, candidates) in open.iter().zip(works) {
            progress(&Progress {
                done,
                total,
                problem: &question.problem,
                elapsed: begin.elapsed(),
                budget: options.budget,
            });
            done += 1;
            let answer = match deadline.is_none_or(|deadline| Instant::now() < deadline) {
                false => {
                    report.over_budget = true;
                    Answer::untimed(question, graph)
                }
                true => {
                    let outcome = measure::measure(device, candidates, deadline)?;
                    let answer = Answer::of(question, graph, outcome, &mut report.warnings);
                    found.extend(answer.entry(&limits));
                    // at once: whatever ends the rest, this was measured
                    unkept = path.filter(|_| !found.is_empty()).and_then(|path| found.add_to(path).err());
                    answer
                }
            };
            choices.insert(answer.problem.clone(), answer.best);
            report.answers.push(answer);
        }
    }
    report.seconds = begin.elapsed().as_secs_f64();
    if let (Some(path), Some(error)) = (path, unkept) {
        report.warn(format!("{}: what was found is not kept: {error}; {ADVICE}", path.display()));
    }
    Ok(Tuning { choices, report })
}

/// What was found before for this device and these kernels.
fn known(
    header: &TuningCache,
    preloaded: Option<&TuningCache>,
    path: Option<&Path>,
    report: &mut TuneReport,
) -> TuningCache {
    let mut known = header.clone();
    if let Some(path) = path {
        match TuningCache::load(path).and_then(|kept| kept.map(|kept| kept.fits(header).map(|()| kept)).transpose()) {
            Ok(kept) => known.extend(kept.into_iter().flat_map(TuningCache::into_entries)),
            Err(error) => report.warn(format!("{}: ignored: {error}", path.display())),
        }
    }
    known.extend(preloaded.cloned().into_iter().flat_map(TuningCache::into_entries));
    known
}

/// Decisions that are not settled and depend on no other that is not, those first that most time depends on.
fn questions(selected: &Selected, settled: impl Fn(&Decision) -> bool) -> Vec<Decision> {
    let mut open: Vec<Decision> = Vec::new();
    for decision in selected.decisions.iter().filter(|d| d.configs.len() > 1 && !settled(d)) {
        if open.iter().all(|o| o.node != decision.node) {
            open.push(decision.clone());
        }
    }
    let mut flops = vec![0.0; selected.steps.iter().map(|s| s.node.0 + 1).max().unwrap_or(0)];
    selected.steps.iter().for_each(|s| flops[s.node.0] += s.launch.estimate.flops);
    let share = |d: &Decision| flops.get(d.node.0).copied().unwrap_or(0.0) * d.uses as f64;
    open.sort_by(|a, b| share(b).total_cmp(&share(a)));
    open
}

/// What each candidate of each question runs. The questions are of different nodes, so that one walk over the graph
/// makes a candidate of each.
fn works(
    device: &Device,
    graph: &Graph,
    choices: &Choices,
    open: &[Decision],
    most: usize,
) -> Result<Vec<Vec<Candidate>>, SelectError> {
    let candidates = |d: &Decision| -> Vec<Config> {
        let others = d.configs.iter().copied().filter(|c| *c != d.config);
        std::iter::once(d.config).chain(others).take(most.max(1)).collect()
    };
    let configs: Vec<Vec<Config>> = open.iter().map(candidates).collect();
    let rounds = configs.iter().map(Vec::len).max().unwrap_or(0);
    let mut works: Vec<Vec<Candidate>> = open.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let mut with = choices.clone();
        let now = open.iter().zip(&configs).filter_map(|(d, c)| Some((d.problem.clone(), *c.get(round)?)));
        with.extend(now);
        let selected = select(graph, device.caps, device.precision, &with)?;
        for ((question, configs), works) in open.iter().zip(&configs).zip(&mut works) {
            if let Some(config) = configs.get(round) {
                works.push(Candidate { config: *config, work: Work::of(&selected, question) });
            }
        }
    }
    Ok(works)
}
