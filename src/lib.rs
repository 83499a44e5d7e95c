//! kiln fires a whole neural network in one command buffer.
pub mod caps;
pub mod debug;
mod error;
pub mod fuse;
pub mod gpu;
pub mod graph;
pub mod kernel;
pub mod lift;
pub mod measure;
pub mod model;
pub mod plan;
pub mod record;
pub mod reference;
pub mod select;
pub mod session;
pub mod tensor;
pub mod trace;

pub use error::Error;
