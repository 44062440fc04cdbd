//! A runtime that does not wait for its work when it is dropped.

use tokio::runtime::{Handle, Runtime};

/// A runtime whose last owner may be a task of another runtime, which must not block.
pub(super) struct BackgroundRuntime(Option<Runtime>);

impl BackgroundRuntime {
    /// Wraps a runtime.
    pub(super) const fn new(runtime: Runtime) -> Self {
        Self(Some(runtime))
    }

    /// Spawns onto the runtime; `None` only while it is dropped.
    pub(super) fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().map(Runtime::handle)
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_dropped_by_a_task() {
        let make = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let inner = BackgroundRuntime::new(make());
        assert!(inner.handle().is_some());
        make().block_on(async move { drop(inner) });
    }
}
