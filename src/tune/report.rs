//! In: what became of candidates; out: [`TuneReport`], a table. Decides which is the best.

use super::measure::Outcome;
use super::store::{Entry, Limits};
use crate::graph::Graph;
use crate::kernel::{Config, Problem};
use crate::select::Decision;
use std::fmt;
use std::time::Duration;

/// How far a tuning is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Problems that are done.
    pub done: usize,
    /// Problems that are known of; an answer may raise others.
    pub total: usize,
    /// What is measured next.
    pub problem: &'a Problem,
    /// Since the tuning began.
    pub elapsed: Duration,
    /// What it may take.
    pub budget: Duration,
}

/// What was found for a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The problem.
    pub problem: Problem,
    /// The first node that has it.
    pub node: String,
    /// How many launches of the program have it.
    pub uses: usize,
    /// What the model chooses.
    pub default: Config,
    /// What is chosen: the fastest of those that save enough to be taken, or else the model's choice.
    pub best: Config,
    /// Least times of the candidates, the model's choice first; of an answer that was kept those of both choices alone.
    pub times: Vec<(Config, Duration)>,
    /// Candidates that were left out, and why.
    pub dropped: Vec<(Config, String)>,
    /// It was known from an earlier tuning.
    pub kept: bool,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuneReport {
    /// The adapter in words.
    pub adapter: String,
    /// Problem by problem, those first that took part first.
    pub answers: Vec<Answer>,
    /// What went wrong without ending the tuning.
    pub warnings: Vec<String>,
    /// The time was over before every problem was measured; the model decided the rest.
    pub over_budget: bool,
    /// What the tuning took.
    pub seconds: f64,
}

impl Answer {
    fn new(decision: &Decision, graph: &Graph) -> Answer {
        Answer {
            problem: decision.problem.clone(),
            node: graph.node(decision.node).name.clone(),
            uses: decision.uses,
            default: decision.config,
            best: decision.config,
            times: Vec::new(),
            dropped: Vec::new(),
            kept: false,
        }
    }

    /// What was found before.
    pub(super) fn kept(decision: &Decision, graph: &Graph, entry: &Entry) -> Answer {
        let mut times = vec![(decision.config, entry.default_time())];
        if entry.config != decision.config {
            times.push((entry.config, entry.best_time()));
        }
        Answer { best: entry.config, times, kept: true, ..Answer::new(decision, graph) }
    }

    /// The model's choice, since there is no time.
    pub(super) fn untimed(decision: &Decision, graph: &Graph) -> Answer {
        Answer::new(decision, graph)
    }

    /// The fastest candidate that is worth it. What was left out is warned of.
    pub(super) fn of(decision: &Decision, graph: &Graph, outcome: Outcome, warnings: &mut Vec<String>) -> Answer {
        let mut answer = Answer { times: outcome.times, dropped: outcome.dropped, ..Answer::new(decision, graph) };
        for (config, reason) in &answer.dropped {
            warn(warnings, format!("{}: {config} is left out: {reason}", answer.problem));
        }
        if let Some(default) = answer.default_time() {
            let most = |config: &Config| default.mul_f64(config.worth(answer.default));
            let worth = answer.times.iter().filter(|(config, time)| *time < most(config));
            answer.best = worth.min_by_key(|(_, time)| *time).map_or(answer.default, |(config, _)| *config);
        }
        answer
    }

    /// What a file keeps of it; nothing where nothing was timed.
    pub(super) fn entry(&self, limits: &Limits) -> Option<Entry> {
        let (default, best) = (self.default_time()?, self.best_time()?);
        Some(Entry {
            limits: limits.clone(),
            problem: self.problem.clone(),
            config: self.best,
            default_ns: default.as_nanos() as u64,
            best_ns: best.as_nanos() as u64,
        })
    }

    /// Whether nothing was timed.
    pub fn is_untimed(&self) -> bool {
        self.times.is_empty()
    }

    /// The time of the model's choice.
    pub fn default_time(&self) -> Option<Duration> {
        self.time_of(self.default)
    }

    /// The time of what is chosen.
    pub fn best_time(&self) -> Option<Duration> {
        self.time_of(self.best)
    }

    fn time_of(&self, config: Config) -> Option<Duration> {
        self.times.iter().find(|(c, _)| *c == config).map(|(_, time)| *time)
    }
}

impl TuneReport {
    /// Notes what went wrong, and tells whoever listens.
    pub(super) fn warn(&mut self, words: String) {
        warn(&mut self.warnings, words);
    }

    /// Times of all launches that were tuned, with the model's choices and with the best.
    pub fn totals(&self) -> (Duration, Duration) {
        let sum = |of: fn(&Answer) -> Option<Duration>| {
            self.answers.iter().map(|a| of(a).unwrap_or_default() * a.uses as u32).sum()
        };
        (sum(Answer::default_time), sum(Answer::best_time))
    }
}

/// Notes what went wrong without ending anything, and tells whoever listens.
pub(crate) fn warn(warnings: &mut Vec<String>, words: String) {
    tracing::warn!("{words}");
    warnings.push(words);
}

/// One problem a line, those that take most time first.
impl fmt::Display for TuneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<Duration>| time.map_or("-".into(), |t| format!("{:.4}", t.as_secs_f64() * 1e3));
        writeln!(f, "tuned on {} in {:.1} s", self.adapter, self.seconds)?;
        writeln!(f, "{:>5} {:>9} {:>9} {:>6}  {:<42} problem", "uses", "model ms", "best ms", "ratio", "best")?;
        let total = |a: &Answer| a.default_time().unwrap_or_default() * a.uses as u32;
        let mut answers: Vec<&Answer> = self.answers.iter().collect();
        answers.sort_by_key(|a| std::cmp::Reverse(total(a)));
        for a in answers {
            let (default, best) = (a.default_time(), a.best_time());
            let ratio = default.zip(best).map(|(d, b)| d.as_secs_f64() / b.as_secs_f64());
            let ratio = ratio.map_or("-".into(), |r| format!("{r:.3}"));
            let mut choice = a.best.to_string();
            if a.best == a.default {
                choice.push_str(", the model's");
            }
            write!(f, "{:>5} {:>9} {:>9} {ratio:>6}  {choice:<42} {}", a.uses, ms(default), ms(best), a.problem)?;
            let note = if a.kept {
                "  (kept)"
            } else if a.is_untimed() {
                "  (not timed)"
            } else {
                ""
            };
            writeln!(f, "{note}  # {}", a.node)?;
        }
        let (default, best) = self.totals();
        let ratio = default.as_secs_f64() / best.as_secs_f64().max(1e-12);
        writeln!(f, "all: {} ms, tuned {} ms, ratio {ratio:.3}", ms(Some(default)), ms(Some(best)))?;
        if self.over_budget {
            writeln!(f, "the time was over before all were measured: the model decided those that are not timed")?;
        }
        self.warnings.iter().try_for_each(|w| writeln!(f, "warning: {w}"))
    }
}
