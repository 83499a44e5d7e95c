//! In: graphs with a loss; out: a failure where the gradients that kiln appends are not those of the f64 reference's own
//! differences, of known values or of PyTorch. Needs no adapter; knows the public API alone.

#[path = "../written/mod.rs"]
mod written;

mod attention;
mod cases;
mod checkpoints;
mod differences;
mod goldens;
mod parameters;
mod rules;
mod sums;
