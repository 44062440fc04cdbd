//! Whether the process at the other end of a connection sees what the agent sees.
//!
//! The runtime directory lets in processes of the same user alone. But one of them may be shut into
//! a sandbox (another mount namespace, another root directory, another user namespace) that shares
//! the runtime directory with the node, as a job in a container does: what it asks for would be
//! opened, copied, traced and listed with the agent's wider view. So its view is compared,
//! and where it differs only `status` is answered. Reading goes on there: what the preload library
//! may ask, [`super::credentials`] answers.
//!
//! The kernel tells the process that connected (SO_PEERCRED). From Linux 6.5 on it also gives a
//! handle of it (SO_PEERPIDFD), by which its number is known not to be another process's by now.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fmt;
use std::io;

/// In no header of libc yet.
const SO_PEERPIDFD: i32 = 77;

/// Device and inode.
type Id = (u32, u32, u64);

/// Namespaces and root directory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    mounts: Id,
    users: Id,
    root: Id,
}

/// Why a process is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// Its view is another one.
    Sees(&'static str),
    /// Its view cannot be found out.
    Unknown,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::Sees(what) => format!("this process has another {what} than the agent"),
            Self::Unknown => {
                "the agent may not look at this process (it runs with another group, or outside of the agent's namespace of processes)"
                    .to_owned()
            }
        };
        write!(
            f,
            "{what}, and gets nothing by the agent's view but `status`; start a job of its own there, with tiers and a runtime \
             directory of its own (docs/CONTAINERS.md)"
        )
    }
}

impl View {
    /// The view of a process: `self`, or its number.
    fn of(process: &str) -> io::Result<Self> {
        let id = |name: &str| -> io::Result<Id> {
            // Its root directory may lie on a file system that does not answer.
            let flags = AtFlags::STATX_DONT_SYNC;
            let st = rustix::fs::statx(CWD, format!("/proc/{process}/{name}"), flags, StatxFlags::INO)?;
            Ok((st.stx_dev_major, st.stx_dev_minor, st.stx_ino))
        };
        Ok(Self { mounts: id("ns/mnt")?, users: id("ns/user")?, root: id("root")? })
    }

    fn differs(&self, other: &Self) -> Option<&'static str> {
        match () {
            () if self.mounts != other.mounts => Some("mount namespace"),
            () if self.users != other.users => Some("user namespace"),
            () if self.root != other.root => Some("root directory"),
            () => None,
        }
    }
}

/// Why the process that connected this socket is not served, if it is not.
pub(super) fn look(socket: &impl AsFd) -> Option<Stranger> {
    let socket = socket.as_fd();
    // Without /proc the agent knows no view, not even its own.
    let ours = View::of("self").ok()?;
    let handle = handle_of(socket);
    let pid = credentials(socket).map(|process| process.pid).filter(|&pid| pid != 0);
    let Some(theirs) = pid.and_then(|pid| View::of(&pid.to_string()).ok()) else { return Some(Stranger::Unknown) };
    if handle.is_some_and(|h| has_ended(h.as_fd())) {
        return Some(Stranger::Unknown);
    }
    ours.differs(&theirs).map(Stranger::Sees)
}

/// Number, user and group of the process that connected, as it was then. The number is 0 for one
/// that has none in the agent's PID namespace.
pub(super) fn credentials(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut process = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is ours and as long as said.
    let got = unsafe {
        let to = (&raw mut process).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len)
    };
    (got == 0).then_some(process)
}

/// A handle of the process that connected; `None` before Linux 6.5.
pub(super) fn handle_of(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let (mut fd, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the buffer is ours and as long as said; what comes is a new descriptor that nothing
    // else owns.
    unsafe {
        let got =
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len);
        (got == 0 && fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Whether a process has ended, by its handle.
pub(super) fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut list = [rustix::event::PollFd::from_borrowed_fd(process, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(rustix::event::poll(&mut list, Some(&now)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_process_of_the_same_view_is_no_stranger() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(look(&one), None);
    }

    #[test]
    fn each_part_of_a_view_counts() {
        let ours = View::of("self").unwrap();
        assert_eq!(ours.differs(&ours), None);
        let other = (0, 0, 0);
        assert_eq!(ours.differs(&View { mounts: other, ..ours }), Some("mount namespace"));
        assert_eq!(ours.differs(&View { users: other, ..ours }), Some("user namespace"));
        assert_eq!(ours.differs(&View { root: other, ..ours }), Some("root directory"));
    }
}
