//! The helper as `run` sees it: started when the first change asks for it, and again when it dies.

use crate::front::{Front, Performer};
use crate::packets;
use crate::perform::Directories;
use crate::request::Request;
use crate::scope::Scope;
use crate::shared::Shared;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a change is handed to a helper that dies.
const MAX_TRIES: u32 = 5;
/// How long a helper is not started again after a start.
const RESTART_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of an answer.
const ANSWER_LEN: usize = 8;

/// Starts a helper process whose standard input is this socket.
pub type Start = Box<dyn Fn(OwnedFd) -> io::Result<Child> + Send + Sync>;

/// A helper process.
#[derive(Debug)]
struct Process {
    child: Child,
    control: OwnedFd,
    started: Instant,
}

/// The connection to the helper.
pub(crate) struct Link {
    start: Start,
    scope: Scope,
    /// Duplicates, which each helper gets.
    listener: OwnedFd,
    shared: Shared,
    process: Mutex<Option<Process>>,
}

/// Supervises a filter from now on, on threads of this process, until it ends. Then the helper goes
/// on, for processes that the job leaves behind.
///
/// # Errors
/// No descriptors, threads or `/proc`: the filter is not supervised then.
pub fn supervise(listener: OwnedFd, scope: Scope, start: Start) -> io::Result<()> {
    let shared = Shared::new()?;
    let link = Link {
        start,
        scope: scope.clone(),
        listener: listener.try_clone()?,
        shared: Shared::of(shared.as_fd().try_clone_to_owned()?),
        process: Mutex::default(),
    };
    // (A job that makes no such change needs no helper; but only the helper outlives this process.)
    link.connect()?;
    let front = Arc::new(Front::new(listener, shared, scope, link)?);
    std::thread::Builder::new().name("raw-calls".to_owned()).spawn(move || front.run())?;
    Ok(())
}

/// Lets the kernel make every call from now on: the last resort of a filter that cannot be
/// supervised, as without a listener its calls would fail.
pub fn let_all_pass(listener: OwnedFd) {
    let pass = move || {
        while let Ok(n) = wait(&listener) {
            if let Some(n) = n {
                let _ = crate::sys::answer(listener.as_fd(), n.id, None);
            }
        }
    };
    // (Without a thread there is no way to keep the job from errors.)
    let _ = std::thread::Builder::new().name("raw-calls".to_owned()).spawn(pass);
}

fn wait(listener: &OwnedFd) -> io::Result<Option<crate::sys::Notification>> {
    use rustix::event::{PollFd, PollFlags};
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    if rustix::event::poll(&mut fds, None).is_ok() && !fds[0].revents().contains(PollFlags::IN) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(crate::sys::receive(listener.as_fd()).ok())
}

impl Link {
    /// Opens a channel to the helper, which is started if there is none.
    fn connect(&self) -> io::Result<OwnedFd> {
        let (own, other) = packets::pair()?;
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*process
            && packets::send(running.control.as_fd(), b"+", &[other.as_fd()]).is_ok()
        {
            return Ok(own);
        }
        if let Some(mut dead) = process.take() {
            std::thread::sleep(RESTART_INTERVAL.saturating_sub(dead.started.elapsed()));
            // Its end of the connection is closed, or does not work: a change that it may have made
            // is handed to the next one as such.
            let _ = dead.child.kill();
            let _ = dead.child.wait();
        }
        let (control, stdin) = packets::pair()?;
        let child = (self.start)(stdin)?;
        let started = Process { child, control, started: Instant::now() };
        let fds = [self.listener.as_fd(), self.shared.as_fd()];
        packets::send(started.control.as_fd(), &self.scope.to_bytes(), &fds)?;
        packets::send(started.control.as_fd(), b"+", &[other.as_fd()])?;
        *process = Some(started);
        Ok(own)
    }
}

/// Hands a request over and waits for its answer; `None` if the helper has died meanwhile.
fn exchange(channel: &OwnedFd, request: &Request, directories: &Directories) -> Option<i64> {
    let fds: Vec<_> = directories.iter().flatten().map(AsFd::as_fd).collect();
    packets::send(channel.as_fd(), &request.to_bytes(), &fds).ok()?;
    let mut answer = [0; ANSWER_LEN];
    let (len, _) = packets::receive(channel, &mut answer).ok()??;
    (len == ANSWER_LEN).then(|| i64::from_ne_bytes(answer))
}

impl Performer for Link {
    type Channel = Option<OwnedFd>;

    fn perform(&self, channel: &mut Self::Channel, request: &mut Request, directories: &Directories) -> Option<i64> {
        for _ in 0..MAX_TRIES {
            if channel.is_none() {
                *channel = self.connect().ok();
            }
            if let Some(result) = exchange(channel.as_ref()?, request, directories) {
                return Some(result);
            }
            *channel = None;
            request.is_retry = true;
        }
        None
    }
}
