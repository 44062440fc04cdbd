//! The helper process. It has the preload library and the job's control block, and makes changes
//! for `run`. It holds the filter's listener, too: when `run` has ended, it takes over, for as long
//! as a process of the job is left.

use crate::front::{Front, Performer};
use crate::packets;
use crate::perform::{Directories, perform};
use crate::request::Request;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The variable of the environment by which the preload library knows a helper.
pub use monarch_abi::outputs::plain_calls::HELPER_VARIABLE as VARIABLE;

/// Most bytes of a message.
const MAX_MESSAGE: usize = 1 << 18;
/// Notifications before and after the last known one that `run` may have received and not answered.
const MAX_UNANSWERED: u64 = 4096;

/// What the threads of the helper share.
struct Helper {
    listener: OwnedFd,
    work: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    /// Channels of `run`'s workers.
    channels: usize,
    /// Notifications that are being answered.
    busy: HashSet<u64>,
}

/// Runs the helper. `control` is its connection to `run`.
///
/// # Errors
/// `run` has not said what is to be done.
pub fn main(control: &OwnedFd) -> io::Result<()> {
    sys::block_signals();
    let mut buffer = vec![0; MAX_MESSAGE];
    let first = packets::receive(control, &mut buffer)?;
    let (len, fds) = first.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Ok([listener, shared]) = <[OwnedFd; 2]>::try_from(fds) else { return Err(io::ErrorKind::InvalidData.into()) };
    let scope = Scope::from_bytes(&buffer[..len]);
    let helper = Arc::new(Helper { listener: listener.try_clone()?, work: Mutex::default() });
    while let Ok(Some((_, fds))) = packets::receive(control, &mut buffer) {
        for channel in fds {
            let shared = helper.clone();
            helper.work().channels += 1;
            let started = std::thread::Builder::new().name("raw-call".to_owned()).spawn(move || shared.serve(&channel));
            if started.is_err() {
                helper.work().channels -= 1;
            }
        }
    }
    helper.take_over(listener, Shared::of(shared), scope)
}

impl Helper {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the changes that come by a channel.
    fn serve(&self, channel: &OwnedFd) {
        let has_umask = sys::unshare_directories();
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut last = None;
        while let Ok(Some((len, fds))) = packets::receive(channel, &mut buffer) {
            let Some(request) = Request::from_bytes(&buffer[..len]).filter(|_| has_umask) else { break };
            let Some(directories) = directories(&request, fds) else { break };
            self.work().busy.insert(request.id);
            let result = perform(&request, &directories);
            last = Some((request.id, result));
            let sent = packets::send(channel.as_fd(), &result.to_ne_bytes(), &[]);
            self.work().busy.remove(&request.id);
            if sent.is_err() {
                break;
            }
        }
        // `run` may have died before it has passed the result on. (An error: it has.)
        if let Some((id, result)) = last {
            let _ = sys::answer(self.listener.as_fd(), id, Some(result));
        }
        self.work().channels -= 1;
    }

    /// Answers in the place of `run`, which has ended.
    fn take_over(&self, listener: OwnedFd, shared: Shared, scope: Scope) -> io::Result<()> {
        // What `run` has handed over is made, each channel's last change, or is being made.
        let busy = loop {
            let work = self.work();
            if work.busy.len() == work.channels {
                break work.busy.clone();
            }
            drop(work);
            std::thread::sleep(Duration::from_millis(1));
        };
        // What it has received, and not handed over, nobody has made. (An error: none such.)
        if let Some(last) = shared.last() {
            let around = (0..2 * MAX_UNANSWERED).map(|n| last.wrapping_sub(MAX_UNANSWERED).wrapping_add(n));
            around.filter(|id| !busy.contains(id)).for_each(|id| drop(sys::answer(listener.as_fd(), id, None)));
        }
        Arc::new(Front::new(listener, shared, scope, Local)?).run();
        // (Threads that still make changes hold nothing that outlives the process.)
        Ok(())
    }
}

/// The directories of a request, in their places.
fn directories(request: &Request, fds: Vec<OwnedFd>) -> Option<Directories> {
    let mut fds = fds.into_iter();
    let mut next = |is_relative: bool| if is_relative { fds.next().map(Some) } else { Some(None) };
    Some([next(request.first.is_relative)?, next(request.second.is_relative)?])
}

/// Changes are made in this process.
struct Local;

impl Performer for Local {
    type Channel = ();

    fn perform(&self, (): &mut (), request: &mut Request, directories: &Directories) -> Option<i64> {
        Some(perform(request, directories))
    }
}
