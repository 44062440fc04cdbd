//! The server that answers other nodes, and how many of their connections it takes.

use super::background_runtime::BackgroundRuntime;
use super::connection_limit::{max_connections, wanted_connections};
use crate::directory::Members;
use crate::http::{Handler, Metrics, Options, Server, WireError};
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Most open descriptors that this process may have.
fn max_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// The server, until it is stopped, and the threads that it runs on.
pub(super) struct Listener {
    server: Mutex<Option<Server>>,
    /// Whether it was logged that there are too few descriptors.
    is_limit_logged: AtomicBool,
    /// Runs the server.
    #[expect(dead_code, reason = "it lives as long as the server")]
    runtime: BackgroundRuntime,
}

impl Listener {
    /// Listens and answers by `handler` on `runtime`.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub(super) fn start(
        options: Options,
        handler: Arc<dyn Handler>,
        runtime: BackgroundRuntime,
    ) -> Result<Self, WireError> {
        let server = Server::start(options, handler, runtime.handle().cloned())?;
        Ok(Self { server: Mutex::new(Some(server)), is_limit_logged: AtomicBool::new(false), runtime })
    }

    /// Takes as many connections from now on as these members need.
    pub(super) fn admit(&self, view: &Members) {
        let nodes = view.iter().skip(1).filter(|(_, m)| m.standing.takes_part()).count();
        let (descriptors, wanted) = (max_descriptors(), wanted_connections(nodes));
        let limit = max_connections(nodes, descriptors);
        if limit < wanted && !self.is_limit_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(limit, wanted, descriptors, "open descriptors limit the connections of other nodes");
        }
        if let Some(server) = &*lock(&self.server) {
            server.admit(limit);
        }
    }

    /// Counts of what was answered; `None` once it is stopped.
    pub(super) fn metrics(&self) -> Option<Arc<Metrics>> {
        lock(&self.server).as_ref().map(|server| server.metrics().clone())
    }

    /// Ends the server and its connections.
    pub(super) fn stop(&self) {
        lock(&self.server).take();
    }
}
