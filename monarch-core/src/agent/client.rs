//! The command line's end of the control socket: finding the agent, starting it, talking to it.

use super::protocol::{OutputStatus, Reply, Request, Spelling, Status, Tally};
use super::writable;
use super::{jobs_file, runtime_dir};
use crate::config::Config;
use crate::held_dir::HeldDir;
use rustix::fd::BorrowedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A connection to an agent.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    /// Its runtime directory.
    pub dir: PathBuf,
}

/// Why there is no agent to talk to.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The agent answered with an error.
    #[error("{0}")]
    Refused(String),
    /// It did not start.
    #[error("the agent did not start: {why}{log}")]
    Start {
        /// What happened.
        why: String,
        /// Last lines of its log.
        log: String,
    },
    /// The connection broke.
    #[error("the agent does not answer: {0}")]
    Io(#[from] io::Error),
}

/// Message about a reply of another kind than the request asked for.
const STRANGE: &str = "the agent gave an unexpected reply and may be of another version; stop it with `monarch stop`";

fn connect_path(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() < 100 {
        return UnixStream::connect(path);
    }
    let dir = std::fs::File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
    UnixStream::connect(format!("/proc/self/fd/{fd}/{}", runtime_dir::SOCKET))
}

impl Client {
    /// Connects to the agent in a runtime directory.
    ///
    /// # Errors
    /// When no agent listens.
    pub fn connect(dir: &Path) -> io::Result<Self> {
        let stream = connect_path(&dir.join(runtime_dir::SOCKET))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream: BufReader::new(stream), dir: dir.to_owned() })
    }

    /// How long a request may take from now on (30 s at first). One that takes longer is an error,
    /// and ends what this connection is good for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.stream.get_ref().set_write_timeout(Some(patience))
    }

    /// One request, one reply.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.ask_with(request, None)
    }

    /// [`Client::ask`] with a descriptor beside the request.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_with(&mut self, request: &Request, fd: Option<BorrowedFd<'_>>) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let sent = match fd {
            Some(fd) => send_with(self.stream.get_ref(), &line, fd)?,
            None => 0,
        };
        self.stream.get_mut().write_all(line.get(sent..).unwrap_or_default())?;
        let mut reply = String::new();
        if self.stream.read_line(&mut reply)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&reply)?)
    }

    /// How the agent is.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn status(&mut self) -> io::Result<Status> {
        match self.ask(&Request::Status)? {
            Reply::Status(s) => Ok(*s),
            other => Err(io::Error::other(format!("{STRANGE}: {other:?}"))),
        }
    }

    /// Attaches a job.
    ///
    /// # Errors
    /// The agent's reason, or that the connection broke.
    pub fn attach(&mut self, config: &Config, joining: Joining) -> Result<Attached, ClientError> {
        let pid = std::process::id();
        let request = Request::Attach {
            config: Box::new(config.clone()),
            spellings: spellings(config),
            pid,
            again: joining.again,
            writable: writable::of(joining.holder.unwrap_or(pid), config),
            counter_group: joining.counter_group,
        };
        match self.ask(&request)? {
            Reply::Attached { control, counter_group } => Ok(Attached { control, counter_group }),
            Reply::Stopping => Err(ClientError::Io(io::ErrorKind::ConnectionReset.into())),
            Reply::Error { message } => Err(ClientError::Refused(message)),
            Reply::Status(_)
            | Reply::Metrics { .. }
            | Reply::Tally(_)
            | Reply::Census(_)
            | Reply::Traced(_)
            | Reply::Outputs { .. }
            | Reply::Cluster(_) => Err(ClientError::Refused(STRANGE.to_owned())),
        }
    }

    /// Sends a request that is answered with a tally.
    ///
    /// # Errors
    /// The agent's reason, or that the connection broke.
    pub fn tally(&mut self, request: &Request) -> Result<Tally, ClientError> {
        match self.ask(request)? {
            Reply::Tally(t) => Ok(t),
            Reply::Error { message } => Err(ClientError::Refused(message)),
            _ => Err(ClientError::Refused(STRANGE.to_owned())),
        }
    }

    /// State of the output roots that are, hold or lie below one of these, by their real paths; of
    /// all if none is named.
    ///
    /// # Errors
    /// The agent's reason, or that the connection broke.
    pub fn outputs(&mut self, roots: &[PathBuf]) -> io::Result<Vec<OutputStatus>> {
        self.ask_outputs(&Request::Outputs { roots: roots.to_vec() })
    }

    /// Has the agent publish what is pending below these output roots, and snapshots of open files.
    /// Returns their state when that is begun.
    ///
    /// # Errors
    /// As [`Client::outputs`].
    pub fn flush(&mut self, roots: &[PathBuf], open: &[PathBuf]) -> io::Result<Vec<OutputStatus>> {
        self.ask_outputs(&Request::Flush { roots: roots.to_vec(), open: open.to_vec() })
    }

    fn ask_outputs(&mut self, request: &Request) -> io::Result<Vec<OutputStatus>> {
        match self.ask(request)? {
            Reply::Outputs { outputs } => Ok(outputs),
            Reply::Error { message } => Err(io::Error::other(message)),
            _ => Err(io::Error::other(STRANGE)),
        }
    }

    /// The connection's descriptor, to see it close.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        self.stream.get_ref()
    }
}

/// Sends the first bytes of a line together with a descriptor; how many.
pub(super) fn send_with(stream: &UnixStream, line: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let fds = [fd];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(stream, &[IoSlice::new(line)], &mut beside, SendFlags::NOSIGNAL)
    })?;
    Ok(sent)
}

/// All ways to write the roots, looked at now and by this process: links may have changed since the
/// configuration was read, and the agent may see other mounts.
fn spellings(config: &Config) -> Vec<Spelling> {
    let roots = &config.dataset.roots;
    let mut seen = std::collections::HashSet::new();
    let all = roots.iter().flat_map(|r| [&r.real_path, &r.path]).chain(roots.iter().flat_map(|r| &r.aliases));
    let new = all.filter(|p| seen.insert(*p));
    new.map(|p| Spelling { path: p.clone(), real: p.canonicalize().ok() }).collect()
}

/// A running agent for this configuration, if there is one.
#[must_use]
pub fn find(config: &Config) -> Option<Client> {
    runtime_dir::existing(config).iter().find_map(|d| Client::connect(d).ok())
}

/// How long an agent may take to open its socket. It answers before it scans, so this is generous.
const START: Duration = Duration::from_secs(20);
/// How long an agent that holds the locks and does not answer may take to come up or to go away.
const TAKEN: Duration = Duration::from_secs(3);

/// A job that attaches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Joining {
    /// Whether it was attached before, to an agent that has gone.
    pub again: bool,
    /// Process whose descriptors the job inherits; `None`: this one.
    pub holder: Option<u32>,
    /// [`Attached::counter_group`] at the agent that has gone; 0: none.
    pub counter_group: usize,
}

/// A job that an agent serves. Its processes find both in their environment.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Attached {
    /// The control block: `MONARCH_CTL`.
    pub control: PathBuf,
    /// Group of the job's counters in that block, 0 when it has none of its own: `MONARCH_JOB`.
    pub counter_group: usize,
}

/// A job's connection to its agent.
#[derive(Debug)]
pub struct Joined {
    /// The connection; the job is attached for as long as it lasts.
    pub client: Client,
    /// What the job's processes need.
    pub attached: Attached,
    /// How the agent was before it had the job's roots, if it said so. (It copies as soon as it has
    /// them.)
    pub before: Option<Status>,
}

/// An agent's process that was started.
pub trait Starting {
    /// Exit status, and what it said last, once it has ended.
    fn ended(&mut self) -> Option<(i32, String)>;
}

/// Attaches to the agent for `config`, starting one with `spawn` when there is none.
///
/// # Errors
/// [`ClientError::Start`] when none came up, [`ClientError::Refused`] when it cannot serve this
/// job.
pub fn attach_or_start<S: Starting>(
    config: &Config,
    joining: Joining,
    mut spawn: impl FnMut() -> io::Result<S>,
) -> Result<Joined, ClientError> {
    let start = Instant::now();
    loop {
        let mut client = find_or_start(config, start, &mut spawn)?;
        let before = client.status().ok();
        match client.attach(config, joining) {
            Ok(attached) => return Ok(Joined { client, attached, before }),
            // It was about to end.
            Err(ClientError::Io(_)) if start.elapsed() < START => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e),
        }
    }
}

fn find_or_start<S: Starting>(
    config: &Config,
    start: Instant,
    spawn: &mut impl FnMut() -> io::Result<S>,
) -> Result<Client, ClientError> {
    let fail = |why: String| ClientError::Start { why, log: log_tail(config) };
    let mut pause = Duration::from_micros(500);
    let mut agent = None;
    loop {
        if let Some(c) = find(config) {
            return Ok(c);
        }
        if start.elapsed() > START {
            return Err(fail(format!("no answer within {} s", START.as_secs())));
        }
        match agent.as_mut().map(Starting::ended) {
            None => agent = Some(spawn().map_err(|e| fail(e.to_string()))?),
            // Another agent is coming up, or has not quite gone.
            Some(Some((code, why))) if may_pass(code, start) => {
                agent = None;
                pause = pause.max(Duration::from_millis(5));
                tracing::debug!(why, "trying again");
            }
            Some(Some((_, why))) => return find(config).ok_or_else(|| fail(why)),
            Some(None) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Whether it is worth trying again after an agent ended with this status.
fn may_pass(code: i32, start: Instant) -> bool {
    code == i32::from(super::exit_status::ENDING)
        || code == i32::from(super::exit_status::TAKEN) && start.elapsed() < TAKEN
}

/// Marks this process as a job of the agent for as long as the result lives, and wipes what a dead
/// agent without jobs left: its index may be out of date by now.
#[must_use]
pub fn job_lock(config: &Config) -> Option<rustix::fd::OwnedFd> {
    let key = runtime_dir::agent_key(config);
    let private = runtime_dir::bases(config).iter().find_map(|b| runtime_dir::private(b).ok())?;
    let name = jobs_file::name(&key);
    loop {
        let lock = private.open_file(name.as_str(), OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR).ok()?;
        let alone = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if alone && find(config).is_none() {
            for dir in runtime_dir::held(config).iter().filter(|dir| !is_alive(dir)) {
                super::foreign_changes::remove(dir);
                runtime_dir::wipe_but_log(dir);
            }
        }
        rustix::fs::flock(&lock, FlockOperation::LockShared).ok()?;
        // An agent that ends removes the file.
        let (ours, named) = (rustix::fs::fstat(&lock).ok()?, private.stat(name.as_str()));
        if named.is_ok_and(|st| (st.st_dev, st.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Some(lock);
        }
    }
}

/// Whether an agent holds the lock of a runtime directory.
#[must_use]
pub fn agent_alive(dir: &Path) -> bool {
    HeldDir::at(dir).is_ok_and(|dir| is_alive(&dir))
}

fn is_alive(dir: &HeldDir) -> bool {
    let Ok(lock) = dir.open_file(runtime_dir::LOCK, OFlags::RDWR, Mode::empty()) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// The last lines of the log, indented, or nothing.
fn log_tail(config: &Config) -> String {
    let log = runtime_dir::held(config).first().and_then(|dir| dir.read_file(runtime_dir::LOG).ok());
    let Some(text) = log.and_then(|log| std::io::read_to_string(std::fs::File::from(log)).ok()) else {
        return String::new();
    };
    let mut lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.reverse();
    lines.iter().fold(String::from("\n  last lines of its log:"), |s, l| s + "\n    " + l)
}
