//! In: a forward graph with a scalar output "loss" and [`TrainOptions`]; out: one graph that is a whole training step,
//! from the inputs to the new weights. Knows graphs and their gradients; neither models nor devices.
//!
//! [`training_step`] appends to the forward pass the gradients of all trained parameters and the [`Optimiser`], whose
//! moments are states, and makes every trained parameter a state that takes its new value at the end of a run. Each
//! update stands directly after its gradient and the last reader of the old weight, so that gradients die early.
//! [`Schedule`] says how fast a step learns.

mod copies;
mod error;
mod half;
mod inline;
mod limit;
mod optimiser;
mod options;
mod order;
mod pieces;
mod scale;
mod schedule;
mod step;
mod trained;

pub use error::TrainError;
pub use optimiser::{Optimiser, SCALARS};
pub use options::{Group, Names, Precision, TrainOptions};
pub use scale::LossScaling;
pub use schedule::{Cosine, Schedule};
pub use step::training_step;
pub(crate) use step::{COUNTERS, is_counter};
pub(crate) use trained::freeze_others;
