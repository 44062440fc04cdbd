//! The agent's metrics: what is asked for, and when.

use super::protocol::MetricsStatus;
use super::runtime_dir;
use super::server::Agent;
use crate::config::Config;
use crate::metrics::{Listening, Seen, Textfile, serve, text};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often it is looked whether something is to be done.
const TICK: Duration = Duration::from_millis(250);
/// How often durations are put into their buckets.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the end of the file may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where metrics go.
#[derive(Debug)]
pub(super) struct Metering {
    listen: Option<SocketAddr>,
    listening: Arc<Listening>,
    textfile: Option<Arc<Textfile>>,
    interval: Duration,
}

impl Metering {
    pub(super) fn new(config: &Config) -> Self {
        let key = runtime_dir::agent_key(config);
        Self {
            listen: config.metrics.listen,
            listening: Arc::default(),
            textfile: config.metrics.textfile.as_ref().map(|path| Arc::new(Textfile::new(path, &key))),
            interval: config.metrics.interval,
        }
    }

    pub(super) fn status(&self) -> MetricsStatus {
        let file = self.textfile.as_ref();
        MetricsStatus {
            url: self.listening.url(),
            textfile: file.map(|file| file.path().to_owned()),
            trouble: self.listening.trouble().or_else(|| file.and_then(|file| file.trouble())),
        }
    }
}

impl Agent {
    /// A page of metrics.
    fn metrics(&self) -> String {
        let seen = Seen {
            status: self.status(),
            load: self.tiering.load(),
            node: self.node.as_ref().map(|node| node.brief()),
            served: self.node.as_ref().and_then(|node| node.served()),
        };
        text(&seen, &self.tiering.cx.latencies)
    }

    /// Serves and writes them from now on, where that was asked for.
    pub(super) fn start_metrics(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let metering = &self.metering;
        if metering.listen.is_none() && metering.textfile.is_none() {
            return None;
        }
        let me = self.clone();
        // On a thread of its own: a disk that hangs must not hang the socket.
        let started = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || me.tend_metrics());
        if let Err(e) = started {
            tracing::warn!(error = %e, "no metrics: the system allows no more threads");
            return None;
        }
        let (address, me) = (metering.listen?, self.clone());
        Some(tokio::spawn(serve(address, metering.listening.clone(), Arc::new(move || me.metrics()))))
    }

    fn tend_metrics(&self) {
        let interval = self.metering.interval;
        let (mut settled, mut written) = (Instant::now(), None::<Instant>);
        while !self.stop.load(Ordering::Relaxed) {
            if settled.elapsed() >= SETTLE {
                self.tiering.cx.latencies.settle();
                settled = Instant::now();
            }
            if let Some(file) = &self.metering.textfile
                && written.is_none_or(|at| at.elapsed() >= interval)
            {
                written = Some(Instant::now());
                file.write(&self.metrics());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Ends both; the file goes.
    pub(super) async fn end_metrics(&self, served: Option<JoinHandle<()>>) {
        if let Some(served) = served {
            served.abort();
        }
        if let Some(file) = self.metering.textfile.clone() {
            let _ = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(move || file.end())).await;
        }
    }
}
