//! In: what passes found, one finding each; out: [`Report`], the findings in words. Knows nothing else of the graph.

use std::fmt;

/// One thing that a pass did, or left as written and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The pass.
    pub pass: &'static str,
    /// What it did, in words, with the node's name in front.
    pub what: String,
}

/// What a stage's passes found, in the order in which they ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Appends another pass's findings.
    pub fn extend(&mut self, other: Report) {
        self.findings.extend(other.findings);
    }

    /// Adds a finding.
    pub fn add(&mut self, pass: &'static str, what: impl Into<String>) {
        self.findings.push(Finding { pass, what: what.into() });
    }
}

/// `attention: blocks.0.sa: 12 heads → one attention`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pass, self.what)
    }
}

/// One finding a line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}
