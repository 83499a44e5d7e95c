//! In: what a program is and what its runs report; out: [`Trace`], plain data that library, benches and viewer share,
//! its file format and its exports. Knows nothing else of the crate.
//!
//! [`Trace::to_json`] and [`Trace::from_json`] are the file format of docs/trace-format.md, [`Trace::to_chrome`] is
//! what Perfetto opens, [`Trace::to_csv`] a table. A time that the adapter does not give is `None` everywhere, never 0.

mod chrome;
mod clock;
mod csv;
mod data;
mod error;
mod file;
mod groups;
mod layers;
mod rows;
mod stats;
mod text;

pub use clock::{Clock, times};
pub use data::{
    Device, Dispatch, FORMAT, Finding, Frame, Graphs, HostSpan, Kernel, Memory, Node, OLDEST, Options, Peaks, Tensor,
    TensorKind, Trace, VERSION,
};
pub use error::TraceError;
pub use groups::{divide, group_ends};
pub use layers::{Layer, layer_of, layers};
pub use rows::Rows;
pub use stats::{Stats, stats};
