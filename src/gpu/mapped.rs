//! In: a buffer that a submitted run writes; out: [`Mapped`], which tells any thread or task when the run is
//! done. Knows nothing of what is in the buffer.

use super::{Gpu, GpuError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The end of a run. Whichever thread polls the device first sets it, which need not be the one that waits.
#[derive(Default)]
pub(super) struct Mapped {
    state: Mutex<State>,
    set: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<(), String>>,
    waker: Option<Waker>,
}

/// How long a wait sleeps before it looks whether the device is lost.
const LOOK: Duration = Duration::from_millis(50);

impl Mapped {
    /// Asks for a buffer's bytes once what was submitted is done.
    pub fn of(buffer: &wgpu::Buffer) -> Arc<Mapped> {
        let mapped = Arc::<Mapped>::default();
        let done = Arc::clone(&mapped);
        buffer.map_async(wgpu::MapMode::Read, .., move |result| done.set(result.map_err(|e| e.to_string())));
        mapped
    }

    /// Ends the run, unless it has ended.
    pub fn set(&self, result: Result<(), String>) {
        let mut state = self.lock();
        state.result.get_or_insert(result);
        self.set.notify_all();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Resolves at the end of the run.
    pub async fn done(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.result.is_some() {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// How the run ended. The device has been waited for, so that a thread is about to say it if none has.
    pub fn take(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let mut state = self.lock();
        loop {
            gpu.check()?;
            match state.result.take() {
                Some(Ok(())) => return Ok(()),
                Some(Err(reason)) => return Err(GpuError::Refused { reason }),
                None => {}
            }
            state = self.set.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
