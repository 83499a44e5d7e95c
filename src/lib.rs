//! kiln fires a whole neural network in one command buffer.
pub mod caps;
pub mod graph;
pub mod kernel;
pub mod tensor;
