//! In: a [`crate::record::Recording`]; out: its runs on a device. The only folder that names wgpu; knows neither
//! graphs nor ops nor models.
//!
//! [`Gpu`] is an opened adapter, [`Executable`] a recording with buffers, pipelines and bind groups made once, and
//! [`Pending`] a run in flight.

mod adapter;
mod ahead;
mod buffers;
mod device;
mod error;
mod executable;
mod mapped;
mod resident;
mod run;
mod stamps;

pub use adapter::{AdapterChoice, AdapterInfo, adapters};
pub use buffers::Content;
pub use device::{Counters, Gpu};
pub use error::GpuError;
pub use executable::{Executable, ExecutableOptions};
pub use resident::Resident;
pub use run::{Finished, Host, Pending, Submission};
pub use stamps::Profiling;
