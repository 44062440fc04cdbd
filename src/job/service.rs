//! The agent, as a job sees it: attached to, watched, started again when it dies.

use crate::job::{output, shim, spawn};
use crate::say;
use anyhow::Result;
use monarch_core::agent::client::{self, Client, ClientError, Joining};
use monarch_core::agent::foreign_changes;
use monarch_core::agent::protocol::{Reply, Request, Status};
use monarch_core::agent::runtime_dir;
use monarch_core::config::Config;
use monarch_core::shown::ShowPath;
use rustix::net::RecvFlags;
use std::ffi::OsString;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// A restart that failed is tried again after this.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the file of a trace may take to open: the job waits for it.
const OPENING: Duration = Duration::from_secs(5);
/// How long the agent may take, at the end of a job, for everything that is asked of it then.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the agent may take to empty its memory tiers: hundreds of gigabytes take a while.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Service {
    config: Config,
    client: Client,
    control: PathBuf,
    shim: PathBuf,
    /// How things were when the job started.
    pub(crate) before: Status,
    /// A restart under way: on a thread of its own, so that signals and the job's end are not kept
    /// waiting.
    restart: Option<Receiver<Result<Client, ClientError>>>,
    next_try: Instant,
    stopped: bool,
    /// Whether it did not answer in time. What it says after that belongs to a question of before.
    silent: bool,
    /// How many agents have served the job.
    generation: u32,
    trace: Option<Trace>,
    holder: Option<u32>,
    /// Marks a job of the agent.
    lock: Option<rustix::fd::OwnedFd>,
}

/// Names and values.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// What the processes of a job need, beside what this process has: the preload library behind those
/// that are there already.
pub(crate) fn environment(shim: &Path, control: &Path) -> Variables {
    let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let shim = shim.as_os_str();
    let there = preload.as_bytes().split(|&c| c == b':' || c == b' ').any(|l| l == shim.as_bytes());
    if !there {
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(shim);
    }
    let mut all = vec![("LD_PRELOAD", preload), ("MONARCH_CTL", control.as_os_str().to_owned())];
    // By this, processes of other users tell what they change.
    all.extend(
        foreign_changes::socket_of_control(control).map(|socket| (foreign_changes::VARIABLE, socket.into_os_string())),
    );
    all
}

/// What is known of the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    There,
    Gone,
    /// It said, unasked, that it ends: it was told to.
    Stopping,
}

/// A trace that the job is to leave.
#[derive(Debug)]
struct Trace {
    path: PathBuf,
    /// Of the agent that was asked for it last; 0: none.
    generation: u32,
    /// Which file: each agent begins one.
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
        let joining = Joining { again: false, holder };
        let (client, control, before) = attach(&config, joining).or_else(|e| match e {
            // It died meanwhile. Another one need not.
            ClientError::Io(e) if matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) => {
                attach(&config, joining)
            }
            e => Err(e),
        })?;
        let (restart, next_try) = (None, Instant::now());
        Ok(Self {
            config,
            client,
            control,
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

    /// What the job's processes need.
    pub(crate) fn environment(&self) -> Variables {
        environment(&self.shim, &self.control)
    }

    /// The control block of the job.
    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    /// How many agents have served the job: another one knows nothing of what was asked for.
    pub(crate) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the agent did not answer in time.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Asks the agent something; `None` while there is none. One that has gone is started again.
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

    /// Has the agent write which files are opened to this file.
    pub(crate) fn trace(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.trace = Some(Trace { path, generation: 0, part: 1 });
        self.keep_trace();
    }

    /// Begins the trace, anew where another agent has come: into a file of its own.
    fn keep_trace(&mut self) {
        let generation = self.generation;
        let Some(trace) = self.trace.as_mut().filter(|t| t.generation != generation) else { return };
        if trace.generation > 0 {
            trace.part += 1;
        }
        trace.generation = generation;
        let file = trace.file();
        // A path that is no text is told as well as it can be.
        let shown = PathBuf::from(file.to_string_lossy().into_owned());
        let begun = output::open_in_time(&file, OPENING)
            .and_then(|fd| self.client.ask_with(&Request::Trace { path: Some(shown) }, Some(fd.as_fd())));
        let why = match begun {
            Ok(Reply::Traced(_)) => return,
            Ok(Reply::Error { message }) => message,
            Ok(_) => "a strange answer from the agent".to_owned(),
            Err(e) => format!("{}: {e}", file.shown()),
        };
        say::warn(format_args!("no trace is written: {why}"));
        self.trace = None;
    }

    /// Ends the trace, and says what it came to.
    pub(crate) fn end_trace(&mut self, quiet: bool) {
        let Some(trace) = self.trace.take() else { return };
        let file = trace.file();
        let told = match self.ask(&Request::Trace { path: None }) {
            Some(Reply::Traced(told)) => told,
            _ => return say::warn(format_args!("the trace {} ends where the agent did", file.shown())),
        };
        if let Some(why) = told.failed {
            say::warn(format_args!("the trace {} ends early: {why}", file.shown()));
        } else if !quiet {
            let lost =
                if told.lost > 0 { format!(", {} more were too many at a time", told.lost) } else { String::new() };
            say::err(format_args!(
                "monarch: trace {}: {} opens{lost}, {}; see `monarch trace stats {0}`\n",
                file.shown(),
                told.opens,
                bytesize::ByteSize(told.bytes)
            ));
        }
    }

    /// Starts the agent again when it has gone without having been told to.
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
                    let _ = send.send(made.map(|(client, _)| client));
                };
                if std::thread::Builder::new().spawn(work).is_ok() {
                    self.restart = Some(receive);
                }
                self.next_try = Instant::now() + PAUSE;
            }
        }
    }

    /// This job, for an agent that comes after the first one.
    const fn joining_again(&self) -> Joining {
        Joining { again: true, holder: self.holder }
    }

    /// Whether a restart is under way; takes over its result.
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

    /// Looks at the connection without taking anything from it.
    fn peer(&self) -> Peer {
        let mut byte = [0u8; 1];
        match rustix::net::recv(self.client.stream(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Peer::Gone,
            Ok(_) => Peer::Stopping,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Peer::There,
            Err(_) => Peer::Gone,
        }
    }

    /// The job has ended: from here on the agent is asked with little patience, and not again once
    /// it was silent.
    pub(crate) fn hurry(&mut self) {
        let _ = self.is_restarting();
        let _ = self.client.set_patience(FAREWELL);
    }

    /// How things are when the job has ended, if the agent can still say so.
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

    /// An agent for the end of the job, when that of before went with another job that had started
    /// it: it knows the figures, and removes what the other has left.
    fn revive(&mut self) {
        if self.silent {
            return;
        }
        let restarted = self.restart.take().and_then(|r| r.recv_timeout(PATIENCE).ok()?.ok());
        if let Some(client) = restarted {
            self.client = client;
        } else if self.peer() == Peer::Gone
            && let Ok((client, _)) =
                client::attach_or_start(&self.config, self.joining_again(), || spawn::agent(&self.config))
        {
            self.client = client;
        }
    }

    /// Lets go of the agent. Where the end of this process takes all others along, or if told to,
    /// it waits until the agent has given back what it holds in memory: killed before that, it
    /// would leave it there.
    pub(crate) fn leave(mut self, wait: bool) {
        if self.silent || !(wait || is_last_of_its_job()) || self.peer() != Peer::There {
            return;
        }
        // The agent removes it, once it is no job's.
        self.lock = None;
        if self.client.ask(&Request::Leave).is_err() {
            return;
        }
        let (dir, start) = (self.client.dir.clone(), Instant::now());
        drop(self);
        let ask = |mut client: Client| client.set_patience(FAREWELL).and_then(|()| client.status());
        let mut silences = 0;
        while dir.exists() && !has_died(&dir) && start.elapsed() < PATIENCE {
            match Client::connect(&dir).and_then(ask) {
                Ok(s) if s.jobs > 0 => return,
                // One that begins to end answers no more, and takes away its socket: then there is
                // nothing to connect to.
                Err(e) if is_silence(&e) && silences > 0 => return,
                Err(e) => silences += usize::from(is_silence(&e)),
                Ok(_) => {}
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Attaches a job that is about to start: the agent, the control block, how things are.
fn attach(config: &Config, joining: Joining) -> Result<(Client, PathBuf, Status), ClientError> {
    let (mut client, control) = client::attach_or_start(config, joining, || spawn::agent(config))?;
    let before = client.status()?;
    Ok((client, control, before))
}

/// Whether the kernel or a batch system kills what is left when this process has ended: as process
/// 1 of a container, and when it was the last of a batch job, which it cannot know.
fn is_last_of_its_job() -> bool {
    let batch = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];
    std::process::id() == 1 || batch.iter().any(|name| std::env::var_os(name).is_some())
}

/// Whether an error is that no answer came in time.
fn is_silence(e: &std::io::Error) -> bool {
    matches!(e.kind(), WouldBlock | TimedOut)
}

/// Whether an agent has ended without removing its runtime directory.
fn has_died(dir: &Path) -> bool {
    dir.join(runtime_dir::LOCK).exists() && !client::agent_alive(dir)
}
