//! The agent's life: control socket, jobs, end.
//!
//! It holds two kinds of locks for as long as it lives: one in its runtime directory, by which the
//! shim and `monarch run` know that it is alive, and one per tier. It ends a short while after the
//! last job has gone, or on request. Tiers that hold copies for one job (`persist`) are
//! emptied then; in others they stay for the next one, which finds them by their names.
//!
//! A job that comes after all others have gone may find files that changed in between. It gets an
//! agent of its own: this one ends, the next one scans again and claims the copies whose files are
//! still the same.

use super::conflict::conflict;
use super::counter_groups::CounterGroup;
pub use super::ending::End;
use super::ending::{Ending, Jobs, received};
use super::memory_pressure::MemoryPressure;
use super::metrics_service::MetricsService;
use super::names::{self, Names};
use super::outputs::Outputs;
use super::parts::Parts;
use super::peer::{self, Stranger};
use super::protocol::{ClusterView, OutputStatus, Reply, Request, Spelling, Tally, Traced, Writable};
use super::report::Reporter;
use super::roots::{Attachment, Roots};
use super::socket::{LINE_MAX, Line, Lines, bind, send};
use super::start::{self, StartError};
use super::stop::Stop;
use super::{credentials, foreign_changes, maintenance, runtime_dir};
use crate::cluster::node::Node;
use crate::config::{Config, Distributed, MemoryWatch, Persist};
use crate::held_dir::HeldDir;
use crate::left_outputs;
use crate::tier::TierDir;
use crate::tiering::TieringEngine;
use monarch_abi::control::ControlMap;
use rustix::fd::OwnedFd;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// How long an agent without jobs waits for another one.
const LINGER: Duration = Duration::from_secs(3);
/// How often an agent with jobs looks whether it is to end.
const BUSY_PERIOD: Duration = Duration::from_secs(5);
/// How long an agent that got SIGTERM waits for its jobs to go: a system that ends a whole job
/// sends it to them too, and they ask for their figures before they go. Batch systems kill what is
/// left, commonly after 30 s.
const SIGTERM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the last replies to jobs.
const LAST_REPLY_TIME: Duration = Duration::from_millis(50);
/// How long copies are packed at the end that would otherwise be dropped.
const PACK_TIMEOUT: Duration = Duration::from_secs(5);

/// A running agent.
///
/// Fields: 14, because they are the parts that live as long as it does.
#[derive(Debug)]
pub struct Agent {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    config: Config,
    tiering: Arc<TieringEngine>,
    roots: Arc<Roots>,
    outputs: Arc<Outputs>,
    names: Arc<Names>,
    stop: Stop,
    /// Whether its process is nothing but an agent.
    own_process: bool,
    jobs: Jobs,
    ending: Ending,
    node: Option<Arc<Node>>,
    metrics: Arc<MetricsService>,
    lock: OwnedFd,
}

impl Agent {
    /// Starts an agent for `config`: takes its locks, opens the tiers, makes or adopts the control
    /// block, starts the copiers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config) -> Result<Arc<Self>, StartError> {
        Self::begin(config, false)
    }

    /// [`Agent::start`] for a process that is nothing but an agent: its standard error becomes a
    /// log in the runtime directory, and SIGTERM ends it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_logging(config: &Config) -> Result<Arc<Self>, StartError> {
        Self::begin(config, true)
    }

    fn begin(config: &Config, own_process: bool) -> Result<Arc<Self>, StartError> {
        let parts = start::parts(config, own_process)?;
        start::run(&parts);
        Ok(Arc::new(Self::new(config, parts, own_process)))
    }

    fn new(config: &Config, parts: Parts, own_process: bool) -> Self {
        let attached = Arc::<AtomicUsize>::default();
        let reporter = Arc::new(Reporter::new(&parts, attached.clone()));
        let metrics = MetricsService::new(config, reporter, parts.dir.path(), parts.stop.clone());
        Self {
            dir: parts.dir,
            ctl: parts.ctl,
            config: config.clone(),
            tiering: parts.tiering,
            roots: parts.roots,
            outputs: parts.outputs,
            names: parts.names,
            stop: parts.stop,
            own_process,
            jobs: Jobs::new(attached),
            ending: Ending::default(),
            node: parts.node,
            metrics: Arc::new(metrics),
            lock: parts.lock,
        }
    }

    /// Serves the socket until the agent is to end or has had no job for a while.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub async fn serve(self: Arc<Self>) -> io::Result<End> {
        let _ = self.dir.unlink(runtime_dir::SOCKET);
        let listener = bind(&self.dir, runtime_dir::SOCKET)?;
        let credentials = credentials::listen(&self.dir);
        self.clone().start_upkeep()?;
        let metrics = self.metrics.start();
        if let Err(e) = foreign_changes::start(&self.dir, &self.roots, self.stop.flag()) {
            tracing::warn!(error = %e, "no socket for changes by other users: what they change is not seen");
        }
        let asked = self.config.index.distributed == Distributed::Auto;
        if asked && let Err(e) = names::start(&self.dir, &self.names, self.stop.flag()) {
            tracing::warn!(error = %e, "directories that the index does not hold are read from the PFS");
        }
        // Of a process that is something else we touch no signals.
        let mut term = self.own_process.then(|| signal(SignalKind::terminate())).transpose()?;
        let mut idle_since = Some(Instant::now());
        let mut told_at: Option<Instant> = None;
        let end = loop {
            // What jobs do wakes this thread.
            let pause = if self.jobs.attached() > 0 && told_at.is_none() { BUSY_PERIOD } else { maintenance::PERIOD };
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(tokio::spawn(self.clone().connection(stream))),
                    // Too many open files, perhaps.
                    Err(_) => tokio::time::sleep(LAST_REPLY_TIME).await,
                },
                asked = credentials::accept(credentials.as_ref()) => match asked {
                    Ok(stream) => credentials::answer(&stream),
                    Err(_) => tokio::time::sleep(LAST_REPLY_TIME).await,
                },
                () = tokio::time::sleep(pause) => {},
                () = received(&mut term) => told_at = told_at.or_else(|| Some(Instant::now())),
                () = self.ending.changed.notified() => {},
            }
            if let Some(end) = self.ending.end() {
                break end;
            }
            idle_since = match self.jobs.attached() {
                // (A system that ends a whole job gives no time for what is pending.)
                0 if told_at.is_some() || !self.outputs.is_draining() => idle_since.or_else(|| Some(Instant::now())),
                _ => None,
            };
            let linger =
                if told_at.is_some() || self.jobs.hurry.load(Ordering::Acquire) { Duration::ZERO } else { LINGER };
            if idle_since.is_some_and(|t| t.elapsed() >= linger) {
                tracing::info!("no job left; ending");
                break End::Quit;
            }
            if told_at.is_some_and(|t| t.elapsed() > SIGTERM_TIMEOUT) {
                tracing::info!("ending: SIGTERM");
                break End::Quit;
            }
        };
        self.stop.set();
        let _ = self.dir.unlink(runtime_dir::SOCKET);
        self.metrics.end(metrics).await;
        if end == End::Quit {
            self.ending.quitting.notify_waiters();
            tokio::time::sleep(LAST_REPLY_TIME).await;
        }
        self.shut_down(end);
        if self.outputs.is_waiting() {
            self.tiering.shared.cx.tiers.iter().for_each(TierDir::release);
            let _ = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
        }
        Ok(end)
    }

    /// Ends an agent whose process continues with other work, or ends: for good when only the job
    /// that hosts it is left, otherwise so that another one takes over.
    pub fn resign(&self) {
        self.ending.end_as(if self.jobs.attached() > 1 { End::Yield } else { End::Quit });
    }

    /// Periodic work, on a thread of its own: a disk that hangs must not hang the socket.
    fn start_upkeep(self: Arc<Self>) -> io::Result<()> {
        let work = move || {
            let mut watch = MemoryWatch::default();
            let mut pressure = MemoryPressure::default();
            pressure.round(&self.tiering);
            while !self.stop.sleep(maintenance::PERIOD) {
                maintenance::round(&self.tiering, &mut watch);
                pressure.round(&self.tiering);
                self.roots.retry();
                self.roots.warn_of_purges();
                if !self.dir.has(runtime_dir::CONTROL) || !self.dir.is_in_place() {
                    tracing::error!(dir = %self.dir.path().display(), "the runtime directory was wiped; ending for a new agent");
                    self.ending.end_as(End::Renew);
                } else if let Some(t) = self.tiering.shared.cx.tiers.iter().find(|t| !t.in_place()) {
                    tracing::error!(tier = t.name, path = %t.path.display(), "the tier was removed; ending for a new agent");
                    self.ending.end_as(End::Yield);
                }
            }
        };
        std::thread::Builder::new().name("upkeep".to_owned()).spawn(work).map(drop)
    }

    /// One connection: requests until it closes. An attachment ends with it.
    async fn connection(self: Arc<Self>, stream: UnixStream) {
        // Away from the thread that serves the socket: the root of another view may not answer.
        let (stream, stranger) = match tokio::task::spawn_blocking(move || (peer::look(&stream), stream)).await {
            Ok((stranger, stream)) => (stream, stranger),
            Err(_) => return,
        };
        let (read, mut write) = stream.into_split();
        let mut lines = Lines::new(read);
        let mut job = None;
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                // Said once more without being asked, so that `run` does not start another agent.
                () = self.ending.quitting.notified() => {
                    let _ = send(&mut write, &Reply::Stopping).await;
                    break;
                }
            };
            let line = match line {
                Ok(Some(line)) => line,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    let message = format!("a request has at most {} MiB", LINE_MAX >> 20);
                    let _ = send(&mut write, &Reply::Error { message }).await;
                    break;
                }
                _ => break,
            };
            let Some(reply) = self.answer(line, stranger, &mut job).await else { break };
            let sent = send(&mut write, &reply).await;
            self.ending.changed.notify_one();
            if sent.is_err() {
                break;
            }
        }
        if let Some(trace) = job.as_mut().and_then(|job| job.trace.take()) {
            let _ = self.ended_trace(trace).await;
        }
        drop(job);
        self.ending.changed.notify_one();
    }

    /// The reply to a request; `None` closes the connection.
    async fn answer(self: &Arc<Self>, line: Line, stranger: Option<Stranger>, job: &mut Option<Job>) -> Option<Reply> {
        let request = serde_json::from_slice::<Request>(&line.text);
        if let (Some(why), false) = (
            stranger,
            matches!(
                request,
                Ok(Request::Status | Request::Outputs { .. } | Request::Cluster { check: false }) | Err(_)
            ),
        ) {
            tracing::warn!(%why, "a request was refused");
            return Some(Reply::Error { message: why.to_string() });
        }
        Some(match request {
            Ok(Request::Attach { config, spellings, pid, again, writable, counter_group }) => {
                let former = Former { again, counter_group };
                return self.attach_job(job, config, (spellings, writable), pid, former).await;
            }
            Ok(Request::Leave) => {
                if let Some(trace) = job.as_mut().and_then(|job| job.trace.take()) {
                    let _ = self.ended_trace(trace).await;
                }
                *job = None;
                self.jobs.hurry.store(true, Ordering::Release);
                Reply::Stopping
            }
            Ok(Request::Metrics { port }) => {
                let metrics = self.metrics.clone();
                let page = tokio::task::spawn_blocking(move || metrics.page_for(port)).await;
                Reply::Metrics { page: page.ok().flatten() }
            }
            Ok(Request::Status) => {
                let group = job.as_ref().and_then(|job| job.counter_group.as_ref()).map(|group| group.number);
                Reply::Status(Box::new(self.metrics.status_of_job(group)))
            }
            Ok(Request::Prefetch { ranges }) => {
                self.reply(move |tiering| Reply::Tally(tiering.queue.work.prefetch_ranges(&ranges))).await
            }
            Ok(Request::Census { ranges, plan, list }) => {
                self.reply(move |tiering| Reply::Census(Box::new(tiering.reports.residency.census(&ranges, plan, list)))).await
            }
            Ok(Request::Evict { ranges, unclaimed, copies }) => {
                self.reply(move |tiering| {
                    tiering.access.working_sets.forget_evicted(&ranges, unclaimed);
                    Reply::Tally(tiering.placement.reclaim.evict_ranges(&ranges, unclaimed, &copies))
                })
                .await
            }
            Ok(Request::Refresh { .. }) if self.node.is_some() => Reply::Error {
                message: "the nodes of a job share one index, which a scan on one of them would change for that one only; the next job \
                          sees the new state"
                    .to_owned(),
            },
            Ok(Request::Refresh { roots }) => {
                let all = self.roots.clone();
                match tokio::task::spawn_blocking(move || all.refresh(&roots)).await {
                    Ok(Ok(files)) => Reply::Tally(Tally { files, bytes: 0 }),
                    Ok(Err(e)) => Reply::Error { message: e.to_string() },
                    Err(e) => Reply::Error { message: e.to_string() },
                }
            }
            Ok(Request::Outputs { roots }) => self.outputs(move |outputs| Ok(outputs.status_now(&roots))).await,
            Ok(Request::Flush { roots, open }) => self.outputs(move |outputs| outputs.flush(&roots, &open)).await,
            Ok(Request::Cluster { check }) => self.cluster(check).await,
            Ok(Request::Trace { path }) => self.trace(path, line.fd, job).await,
            Ok(Request::Stop) => {
                self.ending.end_as(End::Quit);
                Reply::Stopping
            }
            Err(e) => Reply::Error { message: format!("not a request: {e}") },
        })
    }

    /// Attaches a job to this connection; `None` if another agent is to serve it.
    async fn attach_job(
        self: &Arc<Self>,
        job: &mut Option<Job>,
        config: Box<Config>,
        (spellings, writable): (Vec<Spelling>, Vec<Writable>),
        pid: u32,
        Former { again, counter_group }: Former,
    ) -> Option<Reply> {
        if !again && self.is_stale() {
            tracing::info!(pid, "a new job after all others have gone; ending for a new agent");
            self.ending.end_as(End::Renew);
            return None;
        }
        // Counted from now on, so that the agent does not end meanwhile.
        let mut new = Job::new(self);
        Some(match self.clone().attach(config, (spellings, writable), pid, again).await {
            Ok(roots) => {
                self.jobs.had_any.store(true, Ordering::Release);
                if !again {
                    self.metrics.note_job();
                }
                self.jobs.hurry.store(false, Ordering::Release);
                new.roots = Some(roots);
                new.counter_group = self.jobs.counter_groups.take(counter_group);
                let counter_group = new.counter_group.as_ref().map_or(0, |group| group.number);
                *job = Some(new);
                Reply::Attached { control: self.dir.path().join(runtime_dir::CONTROL), counter_group }
            }
            Err(message) => Reply::Error { message },
        })
    }

    /// Asks the output roots, away from the thread that serves the socket.
    async fn outputs(&self, ask: impl FnOnce(&Outputs) -> io::Result<Vec<OutputStatus>> + Send + 'static) -> Reply {
        let outputs = self.outputs.clone();
        match tokio::task::spawn_blocking(move || ask(&outputs)).await {
            Ok(Ok(outputs)) => Reply::Outputs { outputs },
            Ok(Err(e)) => Reply::Error { message: e.to_string() },
            Err(e) => Reply::Error { message: e.to_string() },
        }
    }

    /// Asks the nodes that share copies for their accounts.
    async fn cluster(&self, check: bool) -> Reply {
        let Some(node) = self.node.clone() else {
            let why = self.metrics.alone_because();
            return Reply::Cluster(Box::new(ClusterView::Alone { why }));
        };
        let ask = move || if check { ClusterView::Links(node.checks()) } else { ClusterView::Nodes(node.statuses()) };
        match tokio::task::spawn_blocking(ask).await {
            Ok(view) => Reply::Cluster(Box::new(view)),
            Err(e) => Reply::Error { message: e.to_string() },
        }
    }

    /// Begins the trace of a job, or ends it.
    async fn trace(&self, path: Option<PathBuf>, file: Option<OwnedFd>, job: &mut Option<Job>) -> Reply {
        let Some(job) = job else { return Reply::Error { message: "a trace belongs to a job".to_owned() } };
        if let Some(trace) = job.trace.take() {
            let ended = self.ended_trace(trace).await;
            if path.is_none() {
                return ended;
            }
        }
        let Some(path) = path else { return Reply::Traced(Traced::default()) };
        let Some(file) = file.map(std::fs::File::from) else {
            return Reply::Error { message: "the file of the trace did not come with the request".to_owned() };
        };
        let tiering = self.tiering.clone();
        let begin = move || tiering.access.tracker.begin_trace(&path, file).map_err(|e| e.to_string());
        let begun = tokio::task::spawn_blocking(begin).await;
        match begun.unwrap_or_else(|e| Err(e.to_string())) {
            Ok(trace) => {
                job.trace = Some(trace);
                Reply::Traced(Traced::default())
            }
            Err(message) => Reply::Error { message },
        }
    }

    async fn ended_trace(&self, trace: u64) -> Reply {
        self.reply(move |tiering| Reply::Traced(tiering.access.tracker.end_trace(trace).unwrap_or_default())).await
    }

    /// Work that goes over many files, away from the thread that serves the socket.
    async fn reply(&self, work: impl FnOnce(&TieringEngine) -> Reply + Send + 'static) -> Reply {
        let tiering = self.tiering.clone();
        let done = tokio::task::spawn_blocking(move || work(&tiering)).await;
        done.unwrap_or_else(|e| Reply::Error { message: e.to_string() })
    }

    /// Whether the index may be out of date: the jobs that it was made for have gone.
    fn is_stale(&self) -> bool {
        self.ending.end().is_some() || self.jobs.had_any.load(Ordering::Acquire) && self.jobs.attached() == 0
    }

    /// Attaches a job, away from the thread that serves the socket: the PFS is asked, and may hang.
    async fn attach(
        self: Arc<Self>,
        config: Box<Config>,
        (spellings, writable): (Vec<Spelling>, Vec<Writable>),
        pid: u32,
        again: bool,
    ) -> Result<Attachment, String> {
        if let Some(message) = conflict(&self.config, &config) {
            return Err(message);
        }
        let work = move || {
            let config: Arc<Config> = Arc::from(config);
            let attached = self.roots.attach(&config, &spellings, again)?;
            self.outputs.attach(&config.outputs);
            self.roots.untracked().enter_writable(&writable, again);
            Ok(attached)
        };
        let attached = tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)));
        let roots = attached.map_err(|e| format!("cannot serve the roots: {e}"))?;
        tracing::info!(pid, again, "job attached");
        Ok(roots)
    }

    /// Lets go of everything in an order that never shows readers something half-gone.
    fn shut_down(&self, end: End) {
        if let Some(node) = &self.node {
            node.stop();
        }
        let c = self.ctl.ctl;
        c.dead.store(c.incarnation.load(Ordering::Relaxed), Ordering::Release);
        if end != End::Yield {
            c.bypassed.store(1, Ordering::Release);
            self.tiering.shared.cx.tiers.iter().for_each(TierDir::mark_ending);
        }
        if end == End::Quit {
            self.tiering.compression.compressor.compress_rest(PACK_TIMEOUT);
        }
        // They hold the tiers' locks for as long as they run.
        self.outputs.stop();
        self.roots.stop();
        self.tiering.stop();
        if end == End::Yield {
            tracing::info!("ended; the next agent takes over");
            return;
        }
        let passing = |at: usize| self.config.tiers.get(at).is_some_and(|t| t.persist == Persist::Job);
        if end == End::Quit {
            for (_, tier) in self.tiering.shared.cx.tiers.iter().enumerate().filter(|(at, _)| passing(*at)) {
                // (What stays is found by the next agent.)
                let _ = left_outputs::remove_published(&tier.path);
                let _ = tier.remove_all();
            }
        }
        tracing::info!(?end, "ended");
        keep_log(&self.dir, &self.tiering.shared.cx.tiers);
        // The directory last: a job that waits for the end looks at it.
        super::jobs_file::remove(&self.dir);
        foreign_changes::remove(&self.dir);
        self.dir.wipe();
    }
}

/// Keeps the end of the log in a runtime directory in the first tier whose copies stay.
fn keep_log(dir: &HeldDir, tiers: &[TierDir]) {
    let Some(tier) = tiers.iter().find(|t| t.options.stays) else { return };
    if let Ok(log) = runtime_dir::log_tail(dir) {
        tier.keep_log(&log);
    }
}

/// A job, counted for as long as this lives.
struct Job {
    agent: Arc<Agent>,
    roots: Option<Attachment>,
    /// The trace that it asked for.
    trace: Option<u64>,
    /// Where its processes count; `None` when there are too many jobs.
    counter_group: Option<CounterGroup>,
}

/// What an attaching job has had before.
struct Former {
    /// Whether it was attached to an agent that has gone.
    again: bool,
    /// Group of its counters there; 0: none.
    counter_group: usize,
}

impl Job {
    fn new(agent: &Arc<Agent>) -> Self {
        agent.jobs.attached.fetch_add(1, Ordering::AcqRel);
        Self { agent: agent.clone(), roots: None, trace: None, counter_group: None }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.agent.jobs.attached.fetch_sub(1, Ordering::AcqRel);
    }
}
