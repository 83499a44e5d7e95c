//! In: the environment variable `KILN_DEBUG`, 0 to 4; out: each stage's value on standard error, at a level each.
//!
//! 1 shows the graph as it is run and what was fused; 2 also the schedule and the memory plan; 3 also every kernel's
//! WGSL; 4 also the timings of each run, which are then measured.

use std::fmt::Display;
use std::sync::OnceLock;

/// The level that the environment asks for.
pub fn level() -> u8 {
    static LEVEL: OnceLock<u8> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("KILN_DEBUG") {
        Err(_) => 0,
        Ok(text) => match text.trim().parse() {
            Ok(level @ 0..=4) => level,
            _ => {
                eprintln!("KILN_DEBUG must be 0 to 4, got {text:?}; nothing is shown");
                0
            }
        },
    })
}

/// Shows a value under a heading from a level on.
pub(crate) fn show(from: u8, heading: impl Display, value: impl FnOnce() -> Box<dyn Display>) {
    if level() >= from {
        eprintln!("== {heading}\n{}", value());
    }
}
