//! The agent as a job sees it: attaches to it, watches it, and starts it again when it dies.

use crate::job::{libraries, output, shim, spawn};
use crate::say;
use anyhow::Result;
use monarch_core::agent::client::{self, Attached, Client, ClientError, Joined, Joining};
use monarch_core::agent::foreign_changes;
use monarch_core::agent::protocol::{Reply, Request, Status};
use monarch_core::agent::runtime_dir;
use monarch_core::config::{Config, Libraries};
use monarch_core::shown::ShowPath;
use rustix::net::RecvFlags;
use std::ffi::OsString;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Time between two attempts to start the agent again.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// How long the file of a trace may take to open; the job waits for it.
const TRACE_OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the agent may take to answer a request at the end of a job.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the agent may take to empty its memory tiers: hundreds of gigabytes take a while.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// The agent's counter of jobs, in its status.
const JOBS_ATTACHED: &str = "jobs_attached";

/// The agent of a job. Fields: 13, because they describe one agent from its start to its end.
pub(crate) struct Service {
    config: Config,
    client: Client,
    attached: Attached,
    shim: PathBuf,
    /// The agent's status when the job started, with its counters of just before.
    pub(crate) before: Status,
    /// A restart in progress, on a thread of its own: signals and the job's end do not wait for it.
    restart: Option<Receiver<Result<Client, ClientError>>>,
    next_try: Instant,
    /// Whether the agent has announced that it ends.
    stopped: bool,
    /// Whether the agent did not answer in time: its next reply would answer an earlier request.
    silent: bool,
    /// Number of agents that have served the job.
    generation: u32,
    trace: Option<Trace>,
    /// The process whose descriptors the job's processes inherit, if it is not this one.
    holder: Option<u32>,
    /// Lock that shows the agent that a job exists.
    lock: Option<rustix::fd::OwnedFd>,
}

/// Environment variables: names and values.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// Returns the variables that the processes of a job need: the preload library, behind libraries
/// that are preloaded already; where it is of use the audit library, before others (which then see
/// the names that it gives libraries); the path of the control block, where in it they count, and
/// the path of the socket for other users.
pub(crate) fn environment(shim: &Path, audit: Option<&Path>, attached: &Attached) -> Variables {
    let control = &attached.control;
    let mut all = vec![
        ("LD_PRELOAD", among_others("LD_PRELOAD", shim, true)),
        ("MONARCH_CTL", control.as_os_str().to_owned()),
        ("MONARCH_JOB", attached.counter_group.to_string().into()),
    ];
    all.extend(audit.map(|audit| ("LD_AUDIT", among_others("LD_AUDIT", audit, false))));
    // Processes of other users report their changes through this socket.
    all.extend(
        foreign_changes::socket_of_control(control).map(|socket| (foreign_changes::VARIABLE, socket.into_os_string())),
    );
    all
}

/// Returns the value of a variable that lists libraries, with this one at its end or its begin.
fn among_others(variable: &str, library: &Path, end: bool) -> OsString {
    let list = std::env::var_os(variable).unwrap_or_default();
    let library = library.as_os_str();
    if list.as_bytes().split(|&c| c == b':' || c == b' ').any(|l| l == library.as_bytes()) {
        return list;
    }
    if list.is_empty() {
        return library.to_owned();
    }
    let (mut first, second) = if end { (list, library.to_owned()) } else { (library.to_owned(), list) };
    first.push(":");
    first.push(second);
    first
}

/// The state of the agent's end of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    There,
    Gone,
    /// It has announced, without a request, that it ends after `monarch stop` or a signal.
    Stopping,
}

/// A trace that the job is to leave.
#[derive(Debug)]
struct Trace {
    path: PathBuf,
    /// The agent that writes it, by [`Service::generation`]; 0: none yet.
    generation: u32,
    /// Number of the file: each agent begins a new file.
    part: u32,
}

impl Trace {
    /// The file of the present part: `FILE`, then `FILE.2`.
    fn file(&self) -> PathBuf {
        if self.part == 1 {
            return self.path.clone();
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}", self.part));
        name.into()
    }
}

impl Service {
    /// Finds or starts the agent and attaches this job.
    pub(crate) fn start(config: Config) -> Result<Self> {
        Self::start_for(config, None)
    }

    /// [`Service::start`] for a job that inherits the descriptors of another process, `holder`.
    pub(crate) fn start_for(config: Config, holder: Option<u32>) -> Result<Self> {
        let shim = shim::find()?;
        let lock = client::job_lock(&config);
        let joining = Joining { holder, ..Joining::default() };
        let (client, attached, before) = attach(&config, joining).or_else(|e| match e {
            // The agent died after the job had attached. A second agent may not.
            ClientError::Io(e) if matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) => {
                attach(&config, joining)
            }
            e => Err(e),
        })?;
        let (restart, next_try) = (None, Instant::now());
        Ok(Self {
            config,
            client,
            attached,
            shim,
            before,
            restart,
            next_try,
            stopped: false,
            silent: false,
            generation: 1,
            trace: None,
            holder,
            lock,
        })
    }

    /// Returns the variables that the job's processes need.
    pub(crate) fn environment(&self, choice: Libraries, command: &[OsString]) -> Variables {
        let known = (&self.config.dataset, self.knows_libraries());
        let audit = libraries::audit(choice, known, command, &self.shim);
        environment(&self.shim, audit.as_deref(), &self.attached)
    }

    /// Whether the agent knew of shared libraries below a root when the job started.
    pub(crate) fn knows_libraries(&self) -> bool {
        self.before.roots.iter().any(|root| root.libraries > 0)
    }

    /// Returns where the job's processes find the agent.
    pub(crate) const fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Returns what the supervisor of raw calls needs: the configuration of the job, and the path
    /// of the preload library.
    pub(crate) fn for_raw_calls(&self) -> (&Config, &Path) {
        (&self.config, &self.shim)
    }

    /// Returns the roots of the job, as they were given.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        self.config.dataset.roots.iter().map(|root| root.path.clone()).collect()
    }

    /// Returns the real paths of the roots of the job.
    pub(crate) fn real_roots(&self) -> Vec<PathBuf> {
        self.config.dataset.roots.iter().map(|root| root.real_path.clone()).collect()
    }

    /// Returns the real paths of the output roots of the job.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.config.outputs.iter().map(|output| output.real_path.clone()).collect()
    }

    /// Returns the path of the job's control block.
    pub(crate) fn control(&self) -> &Path {
        &self.attached.control
    }

    /// Returns the number of agents that have served the job. A new agent has none of the job's
    /// earlier requests.
    pub(crate) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the agent did not answer in time.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Asks the agent. Returns `None` while there is no agent. Starts an agent that has died again.
    pub(crate) fn ask(&mut self, request: &Request) -> Option<Reply> {
        self.keep_alive();
        match self.peer() {
            Peer::There if self.silent => None,
            Peer::There => {
                let asked = self.client.ask(request);
                self.silent = asked.as_ref().is_err_and(is_silence);
                asked.ok()
            }
            Peer::Stopping => Some(Reply::Stopping),
            Peer::Gone => None,
        }
    }

    /// Has the agent write a trace of the opens to this file.
    pub(crate) fn trace(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.trace = Some(Trace { path, generation: 0, part: 1 });
        self.keep_trace();
    }

    /// Begins the trace. A new agent begins a new file.
    fn keep_trace(&mut self) {
        let generation = self.generation;
        let Some(trace) = self.trace.as_mut().filter(|t| t.generation != generation) else { return };
        if trace.generation > 0 {
            trace.part += 1;
        }
        trace.generation = generation;
        let file = trace.file();
        // Bytes of the path that are not UTF-8 are replaced in messages.
        let shown = PathBuf::from(file.to_string_lossy().into_owned());
        let begun = output::open_in_time(&file, TRACE_OPEN_TIMEOUT)
            .and_then(|fd| self.client.ask_with(&Request::Trace { path: Some(shown) }, Some(fd.as_fd())));
        let why = match begun {
            Ok(Reply::Traced(_)) => return,
            Ok(Reply::Error { message }) => message,
            Ok(_) => say::UNEXPECTED_REPLY.to_owned(),
            Err(e) => format!("{}: {e}", file.shown()),
        };
        say::warn(format_args!("no trace is written: {why}"));
        self.trace = None;
    }

    /// Ends the trace, and prints its size.
    pub(crate) fn end_trace(&mut self, quiet: bool) {
        let Some(trace) = self.trace.take() else { return };
        let file = trace.file();
        let traced = match self.ask(&Request::Trace { path: None }) {
            Some(Reply::Traced(traced)) => traced,
            _ => return say::warn(format_args!("the trace {} ends where the agent did", file.shown())),
        };
        if let Some(why) = traced.failed {
            say::warn(format_args!("the trace {} ends early: {why}", file.shown()));
        } else if !quiet {
            let lost =
                if traced.lost > 0 { format!(", {} more were too many at a time", traced.lost) } else { String::new() };
            say::err(format_args!(
                "monarch: trace {}: {}{lost}, {}; see `monarch trace stats {0}`\n",
                file.shown(),
                say::counted(traced.opens, "open"),
                bytesize::ByteSize(traced.bytes)
            ));
        }
    }

    /// Starts the agent again when it has died without being asked to end.
    pub(crate) fn keep_alive(&mut self) {
        spawn::reap();
        if self.stopped || self.is_restarting() {
            return;
        }
        match self.peer() {
            Peer::There => {}
            Peer::Stopping => self.stopped = true,
            Peer::Gone if Instant::now() < self.next_try => {}
            Peer::Gone => {
                let (config, joining, (send, receive)) = (self.config.clone(), self.joining_again(), channel());
                let work = move || {
                    let made = client::attach_or_start(&config, joining, || spawn::agent(&config));
                    let _ = send.send(made.map(|joined| joined.client));
                };
                if std::thread::Builder::new().spawn(work).is_ok() {
                    self.restart = Some(receive);
                }
                self.next_try = Instant::now() + RESTART_INTERVAL;
            }
        }
    }

    /// How this job attaches to an agent that is not its first.
    const fn joining_again(&self) -> Joining {
        Joining { again: true, holder: self.holder, counter_group: self.attached.counter_group }
    }

    /// Whether a restart is in progress. Takes over the result of a restart that is done.
    fn is_restarting(&mut self) -> bool {
        match self.restart.as_ref().map(Receiver::try_recv) {
            None => return false,
            Some(Err(TryRecvError::Empty)) => return true,
            Some(Ok(Ok(client))) => {
                self.client = client;
                self.silent = false;
                self.generation += 1;
                self.next_try = Instant::now();
                self.keep_trace();
            }
            Some(_) => {}
        }
        self.restart = None;
        false
    }

    /// Looks at the connection without reading from it.
    fn peer(&self) -> Peer {
        let mut byte = [0u8; 1];
        match rustix::net::recv(self.client.stream(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Peer::Gone,
            Ok(_) => Peer::Stopping,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Peer::There,
            Err(_) => Peer::Gone,
        }
    }

    /// The job has ended: from here on, requests time out after [`END_TIMEOUT`], and after the
    /// first that does so the agent is not asked again.
    pub(crate) fn hurry(&mut self) {
        let _ = self.is_restarting();
        let _ = self.client.set_patience(END_TIMEOUT);
    }

    /// Returns the agent's status at the end of the job, if the agent answers.
    pub(crate) fn end(&mut self) -> Option<Status> {
        let _ = self.is_restarting();
        let after = self.look();
        if after.is_some() || self.stopped || !is_last_of_its_job() {
            return after;
        }
        self.revive();
        self.look()
    }

    fn look(&mut self) -> Option<Status> {
        if self.silent || self.peer() != Peer::There {
            return None;
        }
        let asked = self.client.status();
        self.silent = asked.as_ref().is_err_and(is_silence);
        asked.ok()
    }

    /// Starts an agent for the end of the job when the former agent ended with the job that had
    /// started it. The new agent has the figures, and removes what the former agent left in memory.
    fn revive(&mut self) {
        if self.silent {
            return;
        }
        let restarted = self.restart.take().and_then(|r| r.recv_timeout(LEAVE_TIMEOUT).ok()?.ok());
        if let Some(client) = restarted {
            self.client = client;
        } else if self.peer() == Peer::Gone
            && let Ok(joined) =
                client::attach_or_start(&self.config, self.joining_again(), || spawn::agent(&self.config))
        {
            self.client = joined.client;
        }
    }

    /// Detaches from the agent. With `wait`, and where a batch system kills all processes after the
    /// end of this process, waits until the agent has released the memory that it holds: an agent
    /// that is killed before that leaves its files in memory.
    pub(crate) fn leave(mut self, wait: bool) {
        if self.silent || !(wait || is_last_of_its_job()) || self.peer() != Peer::There {
            return;
        }
        // The agent removes the lock's file once no job holds it.
        self.lock = None;
        if self.client.ask(&Request::Leave).is_err() {
            return;
        }
        let (dir, start) = (self.client.dir.clone(), Instant::now());
        drop(self);
        let ask = |mut client: Client| client.set_patience(END_TIMEOUT).and_then(|()| client.status());
        let mut silences = 0;
        while dir.exists() && !has_died(&dir) && start.elapsed() < LEAVE_TIMEOUT {
            match Client::connect(&dir).and_then(ask) {
                Ok(s) if s.jobs > 0 => return,
                // An agent that is ending no longer answers, and removes its socket.
                Err(e) if is_silence(&e) && silences > 0 => return,
                Err(e) => silences += usize::from(is_silence(&e)),
                Ok(_) => {}
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Attaches a job that is about to start. Returns the connection, where its processes find
/// the agent, and the agent's status.
fn attach(config: &Config, joining: Joining) -> Result<(Client, Attached, Status), ClientError> {
    let Joined { mut client, attached, before } = client::attach_or_start(config, joining, || spawn::agent(config))?;
    let now = client.status()?;
    let Some(before) = before else { return Ok((client, attached, now)) };
    // What the agent has copied since it has the roots counts for this job. (The job itself is one
    // of those that are there at the begin.)
    let mut agent = before.agent;
    agent.extend(now.agent.get_key_value(JOBS_ATTACHED).map(|(name, jobs)| (name.clone(), *jobs)));
    let (jobs, counters, pfs_opens) = (now.jobs.max(before.jobs + 1), before.counters, before.pfs_opens);
    Ok((client, attached, Status { jobs, counters, agent, pfs_opens, ..now }))
}

/// Whether the kernel or a batch system may kill the remaining processes when this process ends:
/// when it is process 1 of a container, or belongs to a batch job (whether it is the last process
/// of that job is not known).
fn is_last_of_its_job() -> bool {
    let batch = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];
    std::process::id() == 1 || batch.iter().any(|name| std::env::var_os(name).is_some())
}

/// Whether an error means that no answer came in time.
fn is_silence(e: &std::io::Error) -> bool {
    matches!(e.kind(), WouldBlock | TimedOut)
}

/// Whether an agent has ended without removing its runtime directory.
fn has_died(dir: &Path) -> bool {
    dir.join(runtime_dir::LOCK).exists() && !client::agent_alive(dir)
}
