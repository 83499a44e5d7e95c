//! In: what one cell of the matrix is; out: its id, and [`Record`]s, the lines of a run's file. Knows neither how cells are
//! run nor how they are shown.

use crate::line::Measured;
use crate::sizes::{Model, Phase, Scale};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What runs a model.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    Pytorch,
    Kiln,
    Burn,
    Meganeura,
}

/// How parameters are drawn.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    Default,
    He,
}

/// In what a program computes, as far as it can be compared with another.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    F32,
    Tf32,
    F16,
}

/// One cell.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cell {
    pub model: Model,
    pub scale: Scale,
    pub weights: Weights,
    pub phase: Phase,
    pub program: Program,
    /// A mode of kiln's, a variant of PyTorch's.
    pub variant: String,
    pub precision: String,
}

impl Cell {
    /// With whom it is compared: kiln's `high` with what PyTorch calls so, TF32.
    pub fn class(&self) -> Class {
        match self.precision.as_str() {
            "high" | "tf32" | "mixed" => Class::Tf32,
            "medium" | "f16" => Class::F16,
            _ => Class::F32,
        }
    }

    /// The variant of torch.compile that makes the same kernels, if it is one with `fullgraph`.
    pub fn without_fullgraph(&self) -> Option<Cell> {
        let variant = self.variant.strip_suffix("-fullgraph")?.to_owned();
        Some(Cell { variant, ..self.clone() })
    }

    /// Whether another differs from it in who computes alone.
    pub fn compares(&self, other: &Cell) -> bool {
        let of = |c: &Cell| (c.model, c.scale, c.weights, c.phase, c.class());
        of(self) == of(other)
    }

    /// Whether it is what a pattern asks for: parts like those of an id, of which later ones may be missing, each a `*` or
    /// some words between commas.
    pub fn matches(&self, pattern: &str) -> bool {
        let id = self.to_string();
        let parts: Vec<&str> = id.split('/').collect();
        let wanted: Vec<&str> = pattern.split('/').collect();
        let fits = |(part, wanted): (&&str, &&str)| *wanted == "*" || wanted.split(',').any(|w| w == *part);
        wanted.len() <= parts.len() && parts.iter().zip(&wanted).all(fits)
    }
}

/// `kiln/gptlite/full/he/infer/fused/highest`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { model, scale, weights, phase, program, variant, precision } = self;
        write!(f, "{program}/{model}/{scale}/{weights}/{phase}/{variant}/{precision}")
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(id: &str) -> Result<Cell, String> {
        let parts: Vec<&str> = id.split('/').collect();
        let &[program, model, scale, weights, phase, variant, precision] = parts.as_slice() else {
            return Err(format!("cell {id:?} has {} parts, expected 7", parts.len()));
        };
        fn of<T: ValueEnum>(id: &str, part: &str) -> Result<T, String> {
            T::from_str(part, false).map_err(|_| format!("cell {id:?}: {part:?} is unknown"))
        }
        Ok(Cell {
            program: of(id, program)?,
            model: of(id, model)?,
            scale: of(id, scale)?,
            weights: of(id, weights)?,
            phase: of(id, phase)?,
            variant: variant.to_owned(),
            precision: precision.to_owned(),
        })
    }
}

macro_rules! words {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.to_possible_value().as_ref().map_or("", |v| v.get_name()))
            }
        }
    };
}
words!(Program);
words!(Weights);

/// A line of a run's file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub enum Record {
    /// The runner was started, perhaps to go on.
    Run { run: String, date: String, command: String },
    /// What an adapter reaches.
    Peak { run: String, adapter: String, driver: String, cpu: bool, flops: f64, bytes: f64 },
    /// A cell.
    Cell(Measurement),
}

impl Record {
    /// The run that it is of.
    pub fn run(&self) -> &str {
        match self {
            Record::Run { run, .. } | Record::Peak { run, .. } => run,
            Record::Cell(m) => &m.run,
        }
    }
}

/// A cell that was run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Measurement {
    pub id: String,
    pub run: String,
    /// The one that kiln names so, also where another program names it otherwise.
    pub adapter: String,
    pub driver: String,
    /// Of its end, in UTC.
    pub date: String,
    pub command: String,
    pub outcome: Outcome,
}

/// What came of a cell.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured(Box<Measured>),
    /// It was ended.
    NotWithin {
        seconds: u64,
        what: String,
    },
    /// The last lines of what it said.
    Failed(String),
}

/// The records of a run's file; a line that is none, as a run that was killed may leave at the end, is passed over and
/// counted.
pub fn read(path: &Path) -> Result<(Vec<Record>, usize), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines: Vec<Option<Record>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    let broken = lines.iter().filter(|l| l.is_none()).count();
    Ok((lines.into_iter().flatten().collect(), broken))
}

/// Whether a run has this cell on this adapter: then it need not be run again, unless it failed and such are retried.
pub fn has(records: &[Record], adapter: &str, cell: &Cell, retry_failed: bool) -> bool {
    let id = cell.to_string();
    let last = records.iter().rev().find_map(|r| match r {
        Record::Cell(m) if m.id == id && m.adapter == adapter => Some(&m.outcome),
        _ => None,
    });
    last.is_some_and(|outcome| !(retry_failed && matches!(outcome, Outcome::Failed(_))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, measurement};

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = "pytorch/wide/small/default/train/sdpa-graph/tf32";
        let cell: Cell = id.parse().unwrap();
        assert_eq!(cell.to_string(), id);
        assert_eq!(cell.class(), Class::Tf32);
        assert_eq!("kiln/gptlite".parse::<Cell>(), Err("cell \"kiln/gptlite\" has 2 parts, expected 7".into()));
        let unknown = "kiln/gptlite/full/xavier/infer/fused/highest".parse::<Cell>();
        assert!(unknown.unwrap_err().ends_with("\"xavier\" is unknown"));
    }

    #[test]
    fn patterns_pick_cells_by_their_parts() {
        let cell = cell("kiln/deep/full/he/infer/fused/highest");
        for fits in ["kiln", "kiln/*/full", "*/deep,wide/*/*/infer", "kiln/deep/full/he/infer/recorded,fused/highest"] {
            assert!(cell.matches(fits), "{fits}");
        }
        for other in ["burn", "kiln/dee", "*/*/*/*/train", "kiln/deep/full/he/infer/fused/highest/x"] {
            assert!(!cell.matches(other), "{other}");
        }
    }

    #[test]
    fn what_a_file_has_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let ran = measurement("kiln/deep/full/he/infer/fused/highest", "one", 2.0);
        let line = serde_json::to_string(&Record::Cell(ran)).unwrap();
        // the second line was being written when the run ended
        std::fs::write(&path, format!("{line}\n{}", &line[..40])).unwrap();
        let (records, broken) = read(&path).unwrap();
        assert_eq!((records.len(), broken), (1, 1));
        assert!(has(&records, "adapter", &cell("kiln/deep/full/he/infer/fused/highest"), true));
        assert!(!has(&records, "another", &cell("kiln/deep/full/he/infer/fused/highest"), true));
        assert!(!has(&records, "adapter", &cell("kiln/deep/full/he/train/fused/highest"), true));
    }

    #[test]
    fn a_failed_cell_is_run_again_where_that_is_asked_for() {
        let id = "kiln/deep/full/he/infer/fused/highest";
        let ran = |outcome| Record::Cell(Measurement { outcome, ..measurement(id, "one", 2.0) });
        let slow = ran(Outcome::NotWithin { seconds: 120, what: "first run".into() });
        let failed = ran(Outcome::Failed("killed".into()));
        let measured = Record::Cell(measurement(id, "one", 2.0));
        let again = |records: &[Record], retry| !has(records, "adapter", &cell(id), retry);
        assert!(again(std::slice::from_ref(&failed), true) && !again(std::slice::from_ref(&failed), false));
        // that it took too long is what was measured
        assert!(!again(&[slow], true));
        // the last attempt counts
        assert!(!again(&[failed.clone(), measured.clone()], true) && again(&[measured, failed], true));
    }
}
