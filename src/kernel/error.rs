//! In: what a kernel cannot do for a node; out: [`KernelError`]. Knows no node's name: select adds it.

use crate::graph::DType;

/// Why a node has no launches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A tensor cannot be cut into windows that a binding covers.
    #[error(
        "{kernel}: operand {operand}: {what} wants a binding of {wanted} bytes, but the device's limit is {limit}; \
         use a smaller size or another adapter"
    )]
    Binding {
        /// The kernel.
        kernel: &'static str,
        /// The operand's position: inputs first, then outputs.
        operand: usize,
        /// What cannot be cut further.
        what: String,
        /// Its bytes.
        wanted: u64,
        /// Bytes that one binding covers.
        limit: u64,
    },
    /// A workgroup is too large for the device.
    #[error("{kernel}: a workgroup takes {wanted} {what}, but the device's limit is {limit}; use another adapter")]
    Workgroup {
        /// The kernel.
        kernel: &'static str,
        /// The unit: `invocations` or `bytes of workgroup memory`.
        what: &'static str,
        /// How many of them.
        wanted: u32,
        /// How many the device allows.
        limit: u32,
    },
    /// A size that the kernel does not take.
    #[error("{kernel}: {what} is {got}, expected {expected}")]
    Size {
        /// The kernel.
        kernel: &'static str,
        /// Which size.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: usize,
    },
    /// An element type that the kernel or the device does not take.
    #[error("{kernel}: element type {got}, expected {expected}")]
    DType {
        /// The kernel.
        kernel: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What came.
        got: DType,
    },
    /// An operand lies in memory in a way that the kernel cannot read: whoever asks makes a dense copy and asks again.
    #[error("operand {operand} must be dense")]
    Layout {
        /// The operand's position.
        operand: usize,
    },
}
