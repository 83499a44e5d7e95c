//! kiln fires a whole neural network in one command buffer, on any adapter that Vulkan, Metal or DX12 reaches.
//!
//! # The way of the data
//!
//! Each stage is a module that takes a plain value and gives the next one. Every value can be printed, and only the
//! last steps need a device.
//!
//! 1. [`graph`]: a [`Builder`] takes one call an op, infers every type at once and gives a [`Graph`], a list of nodes in
//!    an order in which they can run. [`model`] writes GPTlite and DNNs this way and reads PyTorch's checkpoints.
//! 2. [`lift`] finds in a graph as written the ops that have kernels of their own: attention out of heads, linears side
//!    by side, layernorm, softmax.
//! 3. [`grad`] appends, where a model is trained, the backward pass to the graph by a table of rules.
//! 4. [`fuse`] makes fewer, larger ops of the rest: it folds, drops repeats, and merges products with what follows them,
//!    residuals with their layernorm, and element-wise chains.
//! 5. [`select`] gives each node its launches out of [`kernel`], the catalogue of WGSL kernels, within the limits that
//!    [`caps`] holds; copies, workspaces and stored forms of weights become tensors like others.
//! 6. [`plan`] says which tensors share memory, and audits itself.
//! 7. [`record`] lowers launches and plan to a flat list of dispatches over buffers.
//! 8. [`gpu`] makes buffers, pipelines and bind groups once, and submits the list as often as it is asked to.
//! 9. [`trace`] is what a run took, as data.
//!
//! Where a kernel could be launched in several ways, a model of the device chooses; with [`CompileMode::MaxAutotune`]
//! [`tune`] times them and [`cache`] keeps what it finds, as it keeps pipelines.
//!
//! [`session`] calls them in this order: [`Session::compile`] makes a [`Program`], [`Program::submit`] a [`Run`].
//! [`Mode`] says how: as written with a submit for each dispatch, as written in one submit, or lifted, fused and in one
//! submit, which is the default. Beside the way lie [`reference`](mod@reference), which computes any graph in f64 on the
//! CPU and is what tests compare with, [`measure`], a device's reachable rates, and [`debug`], which prints the stages
//! where the environment variable `KILN_DEBUG` asks for it.
//!
//! # Example
//!
//! ```
//! use kiln::{AdapterChoice, Builder, CompileOptions, DType, Error, Session, Tensor, TensorType};
//! use std::collections::BTreeMap;
//!
//! fn main() -> Result<(), Error> {
//!     let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
//!     let mut b = Builder::new();
//!     let x = b.input("x", f32s(&[2, 3]))?;
//!     let weight = b.parameter("weight", f32s(&[4, 3]))?;
//!     let bias = b.parameter("bias", f32s(&[4]))?;
//!     let y = b.linear(x, weight, Some(bias))?; // x · weightᵀ + bias
//!     let y = b.relu(y)?;
//!     b.output("y", y)?;
//!     let graph = b.finish()?;
//!     print!("{graph}");
//!
//!     let session = match Session::open_blocking(&AdapterChoice::Best) {
//!         Ok(session) => session,
//!         Err(error) => return Ok(println!("skipped: {error}")),
//!     };
//!     println!("adapter: {}", session.adapter());
//!     let weight = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, -1.0, -1.0, -1.0];
//!     let params = BTreeMap::from([
//!         ("weight".to_owned(), Tensor::f32([4, 3], &weight)),
//!         ("bias".to_owned(), Tensor::f32([4], &[0.5; 4])),
//!     ]);
//!     let program = session.compile(&graph, &params, &CompileOptions::default())?;
//!     print!("{}", program.report());
//!     let outputs = program.run(&[("x", &Tensor::f32([2, 3], &[1.0, 2.0, 3.0, -1.0, -2.0, -3.0]))])?;
//!     println!("{:?}", outputs["y"].to_f32());
//!     assert_eq!(outputs["y"].to_f32(), [1.5, 2.5, 3.5, 0.0, 0.0, 0.0, 0.0, 6.5]);
//!     Ok(())
//! }
//! ```

pub mod cache;
pub mod caps;
pub mod debug;
mod error;
pub mod fuse;
pub mod gpu;
pub mod grad;
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
pub mod train;
pub mod trainer;
pub mod tune;

pub use caps::MatmulPrecision;
pub use error::Error;
pub use gpu::AdapterChoice;
pub use grad::{GradError, Parameters, differentiate, gradients};
pub use graph::{Builder, DType, Graph, Shape, TensorType};
pub use session::{CompileOptions, Mode, Program, Run, Session};
pub use tensor::Tensor;
pub use trace::Trace;
pub use train::TrainOptions;
pub use trainer::Trainer;
pub use tune::CompileMode;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
mod training {}
