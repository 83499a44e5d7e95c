//! In: cells and what they may take; out: [`Measurement`]s. Knows neither files nor what is run next.

use crate::cell::{Cell, Measurement, Outcome, Program, Record};
use crate::line::Line;
use crate::process::{self, End, Limits, Running};
use crate::programs::{Adapter, Programs, Start, typed};
use kiln::tune::TuneOptions;
use std::time::{Duration, SystemTime};

/// What all cells of a run on an adapter share.
pub struct Setting<'a> {
    pub programs: &'a Programs,
    pub adapter: &'a Adapter,
    pub run: &'a str,
    pub limits: Limits,
    /// Timed runs of a cell.
    pub runs: usize,
    /// Whether kiln's cells are started once more.
    pub second_start: bool,
    /// Whether variants with fullgraph find what the same without it compiled.
    pub warm_fullgraph: bool,
}

/// Now, in UTC.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Cells that begin at once: up to `together` of PyTorch's that follow each other, one of others.
pub fn groups(cells: &[Cell], together: usize) -> impl Iterator<Item = &[Cell]> {
    let shares = |a: &Cell, b: &Cell| a.program == Program::Pytorch && b.program == Program::Pytorch;
    cells.chunk_by(shares).flat_map(move |alike| alike.chunks(together))
}

impl Setting<'_> {
    /// What the adapter reaches.
    pub fn peak(&self) -> Result<Record, String> {
        let limits = Limits { first: Duration::from_secs(120), rest: Duration::from_secs(120) };
        let (lines, end) = process::run(self.programs.peak(self.adapter)?, limits)?;
        let found = lines.into_iter().find_map(|line| match line {
            Line::Peak { flops, bytes, .. } => {
                let Adapter { name, driver, cpu, .. } = self.adapter.clone();
                Some(Record::Peak { run: self.run.to_owned(), adapter: name, driver, cpu, flops, bytes })
            }
            _ => None,
        });
        found.ok_or_else(|| format!("the peaks of {} were not measured: {end:?}", self.adapter.name))
    }

    /// Runs cells whose programs begin at once; each is held after its first run until all have had theirs, and then they
    /// are timed one after the other. Gives each measurement as it comes.
    pub fn group(
        &self,
        cells: &[Cell],
        mut done: impl FnMut(&Cell, Measurement) -> Result<(), String>,
    ) -> Result<(), String> {
        let others = cells.len() - 1;
        // before any of them begins, as those that begin at once find nothing of each other
        let warm: Vec<Option<Cell>> = cells.iter().map(|cell| self.compiled_before(cell)).collect();
        let mut begun: Vec<(&Cell, String, String, Result<Running, String>)> = Vec::new();
        for (cell, warm) in cells.iter().zip(&warm) {
            let start = Start { runs: self.runs, others, keeps: warm.as_ref().unwrap_or(cell) };
            let command = self.programs.cell(cell, self.adapter, start);
            let words = command.as_ref().map_or(String::new(), typed);
            let running = self.save(cell).and_then(|()| process::begin(command?, self.limits(cell)));
            begun.push((cell, words, first_run(others, warm.as_ref()), running));
        }
        for (.., running) in &mut begun {
            if let Ok(one) = running {
                one.first()?;
            }
        }
        for (cell, command, first, running) in begun {
            let mut outcome = running.and_then(Running::rest).map(|end| self.outcome(end, first));
            if let Ok(Outcome::Measured(measured)) = &mut outcome
                && cell.program == Program::Kiln
                && self.second_start
            {
                match self.start_again(cell) {
                    Ok(seconds) => measured.second_start_s = Some(seconds),
                    // what was measured stays
                    Err(why) => {
                        let second = format!("second start: {why}");
                        measured.note = Some(measured.note.take().map_or(second.clone(), |note| note + "; " + &second));
                    }
                }
            }
            let measurement = Measurement {
                id: cell.to_string(),
                run: self.run.to_owned(),
                adapter: self.adapter.name.clone(),
                driver: self.adapter.driver.clone(),
                date: now(),
                command,
                outcome: outcome.unwrap_or_else(Outcome::Failed),
            };
            done(cell, measurement)?;
        }
        Ok(())
    }

    /// How long a cell may take: what is tuned first may take as long as that in addition.
    fn limits(&self, cell: &Cell) -> Limits {
        match (cell.program, cell.variant.as_str()) {
            (Program::Kiln, "tuned") => {
                Limits { first: self.limits.first + TuneOptions::default().budget, ..self.limits }
            }
            _ => self.limits,
        }
    }

    /// Seconds from the begin of compilation to the first run's end, with what an earlier start kept.
    fn start_again(&self, cell: &Cell) -> Result<f64, String> {
        let start = Start { runs: 0, others: 0, keeps: cell };
        let (lines, end) = process::run(self.programs.cell(cell, self.adapter, start)?, self.limits(cell))?;
        let first = lines.iter().find_map(|line| match line {
            Line::First { seconds } => Some(*seconds),
            _ => None,
        });
        match (first, end) {
            (Some(seconds), End::Success) => Ok(seconds),
            (None, End::Success) => Err("it ended without a first run".into()),
            (_, end) => Err(in_words(&self.outcome((lines, end), FIRST.into()))),
        }
    }

    /// The cell that compiled the same kernels before, where what it kept is to be found.
    fn compiled_before(&self, cell: &Cell) -> Option<Cell> {
        let plain = cell.without_fullgraph().filter(|_| self.warm_fullgraph)?;
        self.programs.kept(&plain, self.adapter).is_dir().then_some(plain)
    }

    /// Writes the parameters that a cell reads, if they are not there.
    fn save(&self, cell: &Cell) -> Result<(), String> {
        let Some(save) = self.programs.save(cell)? else { return Ok(()) };
        match process::run(save, self.limits)? {
            (_, End::Success) => Ok(()),
            (_, end) => Err(format!("the parameters were not written: {end:?}")),
        }
    }

    /// What a program's lines and its end come to, and of what kind its first run was.
    fn outcome(&self, (lines, end): (Vec<Line>, End), first: String) -> Outcome {
        match end {
            End::FirstNotWithin(limit) => Outcome::NotWithin { seconds: limit.as_secs(), what: first },
            End::RestNotWithin(limit) => Outcome::NotWithin { seconds: limit.as_secs(), what: "timed runs".into() },
            End::Failure(said) => Outcome::Failed(said),
            End::Success => {
                let measured = lines.into_iter().rev().find_map(|line| match line {
                    Line::Measured(measured) => Some(measured),
                    _ => None,
                });
                let Some(mut measured) = measured else {
                    return Outcome::Failed("it ended without a measurement".into());
                };
                if let (Some(wanted), Some(used)) = (&self.adapter.pci, &measured.pci)
                    && wanted != used
                {
                    return Outcome::Failed(format!("it ran on the device at {used}, expected that at {wanted}"));
                }
                measured.note = measured.note.or((first != FIRST).then_some(first));
                Outcome::Measured(measured)
            }
        }
    }
}

/// A first run that begins with nothing and alone.
const FIRST: &str = "first run";

/// What a first run is that begins beside others, or with what another cell's program compiled.
fn first_run(others: usize, warm: Option<&Cell>) -> String {
    let mut words = FIRST.to_owned();
    if others > 0 {
        words += &format!(" beside {others} more");
    }
    if let Some(warm) = warm {
        words += &format!(" with what {} compiled", warm.variant);
    }
    words
}

/// An outcome for the terminal.
pub fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Measured(m) => format!("{:.3} ms (95 %: {:.3}), first run {:.2} s", m.ms, m.p95_ms, m.first_run_s),
        Outcome::NotWithin { seconds, what } => format!("{what} not within {seconds} s"),
        Outcome::Failed(why) => format!("failed: {}", why.replace('\n', " / ")),
    }
}
