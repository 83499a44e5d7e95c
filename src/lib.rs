//! kiln fires a whole neural network in one command buffer.
pub mod caps;
pub mod fuse;
pub mod graph;
pub mod lift;
pub mod reference;
pub mod tensor;
