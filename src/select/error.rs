//! In: a kernel's error and the node it was for; out: [`SelectError`], which names both and the tensor.

use crate::kernel::KernelError;
use thiserror::Error;

/// A node that this device cannot run.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SelectError {
    /// A kernel refuses.
    #[error("{op} \"{node}\"{}: {source}", tensor_name(.tensor))]
    Kernel {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// The tensor at fault, where one is.
        tensor: Option<String>,
        /// Why.
        source: KernelError,
    },
    /// A tensor is larger than any buffer.
    #[error(
        "{op} \"{node}\": tensor of {wanted} bytes, but this device's largest buffer is {limit} bytes; use a smaller size or another adapter"
    )]
    Buffer {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// Its bytes.
        wanted: u64,
        /// The device's limit.
        limit: u64,
    },
    /// A launch binds more buffers than the device allows.
    #[error(
        "{op} \"{node}\": binds {wanted} storage buffers, but this device allows {limit} a dispatch; switch fusion off or use another adapter"
    )]
    Bindings {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// How many it binds.
        wanted: usize,
        /// The device's limit.
        limit: u32,
    },
    /// A launch has more workgroups than a grid of the device holds.
    #[error(
        "{op} \"{node}\": takes {wanted} workgroups, but this device allows {limit} along each of three dimensions; use a smaller size or another adapter"
    )]
    Groups {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
        /// How many it takes.
        wanted: u64,
        /// The device's limit along one dimension.
        limit: u32,
    },
    /// The device lacks an element type.
    #[error("{op} \"{node}\": f16, but this adapter has no f16 shaders; build the model in f32 or use another adapter")]
    NoF16 {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
    },
    /// No device computes with the element type.
    #[error(
        "{op} \"{node}\": bf16, which no device computes with; build the model in f32 or f16, to which a checkpoint's bf16 is converted when it is loaded"
    )]
    Bf16 {
        /// Op's name.
        op: &'static str,
        /// Node's name.
        node: String,
    },
}

fn tensor_name(tensor: &Option<String>) -> String {
    tensor.as_ref().map_or(String::new(), |t| format!(" (tensor \"{t}\")"))
}
