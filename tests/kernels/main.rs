//! In: small graphs of every op over odd shapes; out: a failure where an adapter's numbers are not the reference's.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod attention_grad;
mod attention_units;
mod dropout;
mod elementwise;
mod emulated;
mod gradients;
mod linear_grad;
mod losses;
mod matmul;
mod matmul_units;
mod memory;
mod movement;
mod optimiser;
mod reductions;
mod rows;
mod stacks;
mod stacks_units;
