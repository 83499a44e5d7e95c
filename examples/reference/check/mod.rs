//! In: a folder of reference data; out: how far kiln's results are from it, fused and as written.
//!
//! [`run`] computes what a [`Golden`] has numbers for, [`judge`] compares; [`check`] does both.

mod golden;
mod judge;
mod run;

pub use golden::{Golden, find};
pub use judge::{Verdict, judge};
pub use run::{Selection, run};

use kiln::session::{Mode, Session};
use std::error::Error;
use std::path::Path;

/// One quantity of one model in one mode.
#[derive(Debug)]
pub struct Row {
    /// The model's name.
    pub name: String,
    /// How it was run.
    pub mode: Mode,
    /// Submits and dispatches of a run; ten training steps are one.
    pub cost: (u64, usize),
    /// What is compared.
    pub quantity: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// Runs one model and compares.
pub fn check(session: &Session, config: &Path, what: &Selection) -> Result<Vec<Row>, Box<dyn Error>> {
    let golden = Golden::open(config)?;
    let row = |measured| {
        let (quantity, verdict) = judge(&golden, &measured, what.options.precision)?;
        Ok(Row { name: golden.name.clone(), mode: measured.mode, cost: measured.cost, quantity, verdict })
    };
    run(session, &golden, what)?.into_iter().map(row).collect()
}
