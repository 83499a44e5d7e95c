//! In: calls of a [`Builder`]; out: a [`Graph`], a list of typed nodes in the order in which they can run.
//! Knows nothing else of the crate: no files, no devices, no kernels.
//!
//! Principal types: [`Shape`] and [`DType`] describe a value; [`Op`] says what a node computes and [`infer`]
//! says what comes out of it; [`Graph`] holds nodes, parameters' [`ParamLayout`] and outputs; [`Builder`] makes
//! one; [`Rewriter`] is how every pass turns one graph into the next. [`Chain`] is a fused element-wise
//! expression: made by `fuse`, evaluated by `reference`, printed as WGSL by `kernel`.

mod activation;
mod attrs;
mod bounds;
mod builder;
mod chain;
mod core;
mod dce;
mod error;
mod fill;
mod infer;
mod infer_stack;
mod infer_training;
mod layout;
mod losses;
mod op;
mod report;
mod rewrite;
mod states;
mod types;

pub use self::core::{Disposition, Graph, Node, NodeId, Output, ValueId};
pub use activation::Activation;
pub use attrs::{AdamAttrs, AttentionAttrs, CrossEntropyAttrs, DropoutAttrs};
pub use bounds::{IndexBound, Indexed};
pub use builder::Builder;
pub use chain::{Chain, Ref, Step};
pub use dce::dead_code;
pub use error::GraphError;
pub use infer::{MatmulDims, infer, matmul_dims};
pub use layout::{ParamLayout, Part, Storage, StorageId};
pub use losses::{CrossEntropy, DROPOUT_COUNTER, LossReduction};
pub use op::{Binary, Comparison, Extreme, Op, Reduction, Scalar, Unary};
pub use report::{Finding, Report};
pub use rewrite::Rewriter;
pub use states::{StateUses, readers_first};
pub use types::{DType, Shape, TensorType};
pub(crate) use types::{nearest_bf16, nearest_f16};
