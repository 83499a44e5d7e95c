//! In: what public bug reports of this field tripped over, in small; out: a failure where kiln does too. A test's name
//! begins with the number of its report; right values are stated, and hold for direct and for tiled kernels.

#[path = "../common/mod.rs"]
mod common;

mod activations;
mod embeddings;
mod losses;
mod norms;
mod optimisers;
mod products;
mod reductions;
mod softmax;
