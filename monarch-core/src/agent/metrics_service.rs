//! The agent's metrics: the page that is served, and the file that is written.

use super::report::Reporter;
use super::runtime_dir;
use crate::cluster::node::Node;
use crate::config::Config;
use crate::metrics::{Listening, Seen, Textfile, serve, text};
use crate::snapshot::{MetricsStatus, Status};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often the thread looks whether something is to be done.
const POLL_PERIOD: Duration = Duration::from_millis(250);
/// How often durations are put into their buckets.
const SETTLE_PERIOD: Duration = Duration::from_secs(2);
/// How long removing the file may take.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes metrics, and puts them where the configuration says.
#[derive(Debug)]
pub(super) struct MetricsService {
    reporter: Arc<Reporter>,
    listen: Option<SocketAddr>,
    listening: Arc<Listening>,
    textfile: Option<Arc<Textfile>>,
    interval: Duration,
    stop: Arc<AtomicBool>,
}

impl MetricsService {
    /// Metrics of what `reporter` reports, until `stop` is set.
    pub(super) fn new(config: &Config, reporter: Arc<Reporter>, stop: Arc<AtomicBool>) -> Self {
        let key = runtime_dir::agent_key(config);
        Self {
            reporter,
            listen: config.metrics.listen,
            listening: Arc::default(),
            textfile: config.metrics.textfile.as_ref().map(|path| Arc::new(Textfile::new(path, &key))),
            interval: config.metrics.interval,
            stop,
        }
    }

    /// Counts a job that attached to no agent before.
    pub(super) fn note_job(&self) {
        self.reporter.tiering().shared.cx.stats.jobs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// State of the agent, with the places of its metrics.
    pub(super) fn agent_status(&self) -> Status {
        let file = self.textfile.as_ref();
        self.reporter.status(MetricsStatus {
            url: self.listening.url(),
            textfile: file.map(|file| file.path().to_owned()),
            trouble: self.listening.trouble().or_else(|| file.and_then(|file| file.trouble())),
        })
    }

    /// A page of metrics.
    fn page(&self) -> String {
        let (tiering, node) = (self.reporter.tiering(), self.reporter.node());
        let seen = Seen {
            status: self.agent_status(),
            load: tiering.load(),
            node: node.map(Node::brief_status),
            served: node.and_then(Node::server_metrics),
        };
        text(&seen, &tiering.shared.cx.latencies)
    }

    /// Serves and writes the metrics from now on, where the configuration asks for that.
    pub(super) fn start(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        if self.listen.is_none() && self.textfile.is_none() {
            return None;
        }
        let me = self.clone();
        // On a thread of its own: a disk that hangs must not hang the socket.
        let started = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || me.run());
        if let Err(e) = started {
            tracing::warn!(error = %e, "no metrics: the system allows no more threads");
            return None;
        }
        let (address, me) = (self.listen?, self.clone());
        Some(tokio::spawn(serve(address, self.listening.clone(), Arc::new(move || me.page()))))
    }

    fn run(&self) {
        let (mut settled, mut written) = (Instant::now(), None::<Instant>);
        while !self.stop.load(Ordering::Relaxed) {
            if settled.elapsed() >= SETTLE_PERIOD {
                self.reporter.tiering().shared.cx.latencies.settle();
                settled = Instant::now();
            }
            if let Some(file) = &self.textfile
                && written.is_none_or(|at| at.elapsed() >= self.interval)
            {
                written = Some(Instant::now());
                file.write(&self.page());
            }
            std::thread::sleep(POLL_PERIOD);
        }
    }

    /// Ends both, and removes the file.
    pub(super) async fn end(&self, served: Option<JoinHandle<()>>) {
        if let Some(served) = served {
            served.abort();
        }
        if let Some(file) = self.textfile.clone() {
            let _ = tokio::time::timeout(REMOVE_TIMEOUT, tokio::task::spawn_blocking(move || file.end())).await;
        }
    }
}
