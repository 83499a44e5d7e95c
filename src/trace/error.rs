//! In: what is wrong with a file; out: [`TraceError`], with what to do. Knows nothing else of the crate.

use thiserror::Error;

/// Why a text is no trace.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum TraceError {
    /// The text ends in the middle.
    #[error("the trace ends early, in line {line}: it was cut off; write or copy it again")]
    Truncated {
        /// Where.
        line: usize,
    },
    /// The text is not JSON, or not of a trace's form.
    #[error("not a kiln trace: {reason}; open a file that `--trace` wrote")]
    Malformed {
        /// What does not fit, and where.
        reason: String,
    },
    /// Another version of the format.
    #[error(
        "the trace has version {found}, this kiln reads versions {oldest} to {newest}; record it again, or use the kiln \
         that wrote it"
    )]
    Version {
        /// The file's.
        found: u64,
        /// [`super::OLDEST`].
        oldest: u32,
        /// [`super::VERSION`].
        newest: u32,
    },
    /// An index points past the end of its list.
    #[error("{place} names {what} {index} of {count}; the file is damaged, record it again")]
    Index {
        /// Where in the file.
        place: String,
        /// What it names.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A frame has not one time for each dispatch.
    #[error("frame {frame} has {found} times for {expected} dispatches; the file is damaged, record it again")]
    Count {
        /// Which frame.
        frame: usize,
        /// Its times.
        found: usize,
        /// Dispatches.
        expected: usize,
    },
    /// Dispatches that were timed together are no group of neighbours behind the group before.
    #[error(
        "frame {frame} times dispatches {first} to {last} together, where two or more from {least} on can be; the file \
         is damaged, record it again"
    )]
    Group {
        /// Which frame.
        frame: usize,
        /// The first of them.
        first: usize,
        /// The last.
        last: usize,
        /// One past the group before.
        least: usize,
    },
    /// Something ends before it begins.
    #[error("{place} ends at {end} before it begins at {begin}; the file is damaged, record it again")]
    Backwards {
        /// Where in the file.
        place: String,
        /// Its begin.
        begin: u64,
        /// Its end.
        end: u64,
    },
    /// Two spans of one thread that overlap, neither in the other.
    #[error("{place} ends at {end}, before \"{other}\" does that begins in it; the file is damaged, record it again")]
    Crossing {
        /// Which begins first.
        place: String,
        /// Its end.
        end: u64,
        /// Which goes on.
        other: String,
    },
    /// A number that no run can give.
    #[error("{place} is {value}, which no run gives (0 to {most:e}); the file is damaged, record it again")]
    Number {
        /// Where in the file.
        place: String,
        /// The number as text.
        value: String,
        /// The largest that is accepted.
        most: f64,
    },
}
