//! In: wgpu's failures; out: [`GpuError`], with what to do.

use super::AdapterInfo;
use thiserror::Error;

/// What can go wrong on a device.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GpuError {
    /// No adapter fits.
    #[error("no adapter{}; {}", whose_name(.wanted), list(.found))]
    NoAdapter {
        /// Part of a name that was asked for.
        wanted: Option<String>,
        /// What there is.
        found: Vec<AdapterInfo>,
    },
    /// The adapter gives no device.
    #[error("adapter \"{adapter}\" gives no device: {reason}")]
    NoDevice {
        /// The adapter.
        adapter: String,
        /// wgpu's reason.
        reason: String,
    },
    /// The device has no memory left.
    #[error(
        "out of device memory: buffer \"{buffer}\" of {bytes} bytes (the program takes {total} in all); use a smaller size or free other programs"
    )]
    OutOfMemory {
        /// The buffer that could not be made.
        buffer: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the whole program.
        total: u64,
    },
    /// The device had no memory left for what wgpu keeps itself; told once, by the next call.
    #[error(
        "out of device memory ({reason}); what was given last may be incomplete: give it anew, with a smaller size or after freeing other programs"
    )]
    Exhausted {
        /// wgpu's words.
        reason: String,
    },
    /// A buffer is larger than the device allows.
    #[error(
        "buffer \"{buffer}\" of {bytes} bytes, but this device's largest buffer is {limit} bytes; {}use a smaller size or another adapter",
        if *.runs > 1 { "submit fewer runs at once, or " } else { "" }
    )]
    Limit {
        /// The buffer.
        buffer: String,
        /// Its bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
        /// Runs of the one submit that it was for.
        runs: usize,
    },
    /// A kernel does not compile.
    #[error("kernel {kernel} of \"{node}\" does not compile: {reason}\n{excerpt}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// The first node that uses it.
        node: String,
        /// The compiler's words.
        reason: String,
        /// The source's lines, numbered, up to a screenful.
        excerpt: String,
    },
    /// The device was lost; every later call fails with this.
    #[error("device lost: {reason}; open a new session")]
    Lost {
        /// The driver's words.
        reason: String,
    },
    /// wgpu refused a call: a fault in kiln.
    #[error("the device refused a call, which is a fault in kiln: {reason}")]
    Refused {
        /// wgpu's words.
        reason: String,
    },
}

fn whose_name(wanted: &Option<String>) -> String {
    wanted.as_ref().map_or(String::new(), |w| format!(" whose name contains \"{w}\""))
}

fn list(found: &[AdapterInfo]) -> String {
    if found.is_empty() {
        return "none was found over Vulkan, Metal or DX12: install a driver (on Debian and Ubuntu, mesa-vulkan-drivers and libvulkan1 run on any CPU)".into();
    }
    let names: Vec<String> = found.iter().map(|a| a.to_string()).collect();
    format!("found: {}", names.join("; "))
}
