//! In: the dispatches of a run, recorded ahead of it; out: the same for the run that comes next. Knows nothing of what is
//! in them. A browser's command buffers stay on their thread, and so that programs need not, none is kept there.

#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, PoisonError};

/// A command buffer and the number of its passes, until a run takes them.
#[derive(Default)]
pub(super) struct Ahead {
    #[cfg(not(target_arch = "wasm32"))]
    ready: Mutex<Option<(wgpu::CommandBuffer, u64)>>,
}

#[cfg(not(target_arch = "wasm32"))]
impl Ahead {
    /// Whether any is kept.
    pub const KEPT: bool = true;

    pub fn take(&self) -> Option<(wgpu::CommandBuffer, u64)> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn put(&self, commands: wgpu::CommandBuffer, passes: u64) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some((commands, passes));
    }
}

#[cfg(target_arch = "wasm32")]
impl Ahead {
    pub const KEPT: bool = false;

    pub fn take(&self) -> Option<(wgpu::CommandBuffer, u64)> {
        None
    }

    pub fn put(&self, _: wgpu::CommandBuffer, _: u64) {}
}
