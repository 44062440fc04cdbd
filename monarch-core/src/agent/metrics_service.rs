//! The agent's metrics: the page that is served, and the file that is written.

use super::client::Client;
use super::protocol::{Reply, Request};
use super::report::Reporter;
use super::runtime_dir;
use super::stop::Stop;
use crate::cluster::node::Node;
use crate::config::Config;
use crate::metrics::{FindSharer, Listening, Seen, Textfile, labelled, merged, serve, text};
use crate::snapshot::{MetricsStatus, Status};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often the thread looks whether something is to be done.
const POLL_PERIOD: Duration = Duration::from_millis(250);
/// How often durations are put into their buckets.
const SETTLE_PERIOD: Duration = Duration::from_secs(2);
/// How long other agents may take for their pages, and for their status.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Most agents whose metrics one page has.
const MAX_AGENTS: usize = 64;
/// How long removing the file may take.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes metrics, and puts them where the configuration says.
#[derive(Debug)]
pub(super) struct MetricsService {
    reporter: Arc<Reporter>,
    /// The agent's name on the page: user and key.
    agent: String,
    /// Its runtime directory, and where those of other agents of the user may be.
    dir: PathBuf,
    bases: Vec<PathBuf>,
    listen: Option<SocketAddr>,
    listening: Arc<Listening>,
    textfile: Option<Arc<Textfile>>,
    interval: Duration,
    stop: Stop,
}

impl MetricsService {
    /// Metrics of what `reporter` reports, until `stop` is set.
    pub(super) fn new(config: &Config, reporter: Arc<Reporter>, dir: &Path, stop: Stop) -> Self {
        let key = runtime_dir::agent_key(config);
        Self {
            reporter,
            agent: format!("{}-{key}", rustix::process::geteuid().as_raw()),
            dir: dir.to_owned(),
            bases: runtime_dir::bases(config),
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

    /// Why this node shares with none of the others that its job names.
    pub(super) fn alone_because(&self) -> Option<String> {
        self.reporter.alone_because().map(str::to_owned)
    }

    /// State of the agent, with the places of its metrics.
    pub(super) fn agent_status(&self) -> Status {
        let file = self.textfile.as_ref();
        self.reporter.status(MetricsStatus {
            url: self.listening.url(),
            shared: self.listening.is_shared(),
            textfile: file.map(|file| file.path().to_owned()),
            trouble: self.listening.trouble().or_else(|| file.and_then(|file| file.trouble())),
        })
    }

    /// State of the agent for a job that counts in this group, if it has one.
    pub(super) fn status_of_job(&self, counter_group: Option<usize>) -> Status {
        let job_counters = counter_group.map(|group| self.reporter.job_counters(group));
        Status { job_counters, ..self.agent_status() }
    }

    /// A page of metrics.
    fn page(&self) -> String {
        let (tiering, node) = (self.reporter.tiering(), self.reporter.node());
        let seen = Seen {
            status: self.agent_status(),
            node: node.map(Node::brief_status),
            served: node.and_then(Node::server_metrics),
        };
        labelled(&text(&seen, &tiering.shared.cx.latencies), &self.agent)
    }

    /// A page of metrics for the agent that has this port, if this agent's are to be served there.
    pub(super) fn page_for(&self, port: u16) -> Option<String> {
        self.listen.is_some_and(|at| at.port() == port).then(|| self.page())
    }

    /// The page with the metrics of all agents of this user that are to be served on the port.
    fn shared_page(&self) -> String {
        let own = self.page();
        // Port 0 gives each agent a port of its own.
        let Some(port) = self.listen.map(|at| at.port()).filter(|port| *port != 0) else { return own };
        let ask = move |mut client: Client| match client.ask(&Request::Metrics { port }).ok()? {
            Reply::Metrics { page } => page,
            _ => None,
        };
        let pages: Vec<String> = [own].into_iter().chain(self.ask_others(ask)).collect();
        merged(&pages)
    }

    /// The page of an agent of this user that listens on the port.
    fn sharer(&self, port: u16) -> Option<String> {
        let ask = move |mut client: Client| {
            let metrics = client.status().ok()?.metrics;
            let at_port = |url: &String| url.ends_with(&format!(":{port}/metrics"));
            metrics.url.filter(at_port).filter(|_| !metrics.shared)
        };
        self.ask_others(ask).into_iter().next()
    }

    /// Asks all other agents of this user at the same time. One that does not answer delays the
    /// others by [`OTHERS_TIMEOUT`] at most.
    fn ask_others<T: Send + 'static>(&self, question: impl Fn(Client) -> Option<T> + Clone + Send + 'static) -> Vec<T> {
        let (send, receive) = std::sync::mpsc::channel();
        let dirs = runtime_dir::all(&self.bases).into_iter().filter(|dir| *dir != self.dir);
        for dir in dirs.take(MAX_AGENTS) {
            let (send, question) = (send.clone(), question.clone());
            // A connect may hang as well.
            let work = move || {
                let client = Client::connect(&dir).ok()?;
                client.set_patience(OTHERS_TIMEOUT).ok()?;
                send.send(question(client)?).ok()
            };
            let _ = std::thread::Builder::new().name("metrics".to_owned()).stack_size(256 * 1024).spawn(work);
        }
        drop(send);
        let deadline = Instant::now() + OTHERS_TIMEOUT;
        let next = || receive.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).collect()
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
        let (address, me, other) = (self.listen?, self.clone(), self.clone());
        let find: FindSharer = Arc::new(move |port| other.sharer(port));
        Some(tokio::spawn(serve(address, self.listening.clone(), Arc::new(move || me.shared_page()), find)))
    }

    fn run(&self) {
        let (mut settled, mut written) = (Instant::now(), None::<Instant>);
        while !self.stop.is_set() {
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
            if self.stop.sleep(POLL_PERIOD) {
                break;
            }
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
