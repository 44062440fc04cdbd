//! Answers processes that ask what the agent knows them by ([`monarch_abi::credentials`]).
//!
//! The socket lies in the runtime directory, which only the agent's user can enter. A process
//! learns what the kernel knows of that process, and nothing else: so one in a sandbox, which
//! [`peer`] keeps from everything else, is answered, too.

use super::peer;
use super::socket;
use crate::held_dir::HeldDir;
use monarch_abi::credentials::{Credentials, IdRange, MAX_RANGES, SAME, SOCKET, WHOLE};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::process::Gid;
use std::collections::BTreeSet;
use std::io;
use tokio::net::{UnixListener, UnixStream};
use zerocopy::IntoBytes;

/// What the kernel gives a group of its own that the reader's namespace has no number for.
const NO_ID: u32 = u32::MAX;

/// Listens. `None`, after a warning: processes in other namespaces are served as far as they know
/// themselves.
pub(super) fn listen(dir: &HeldDir) -> Option<UnixListener> {
    let _ = dir.unlink(SOCKET);
    socket::bind(dir, SOCKET)
        .inspect_err(
            |e| tracing::warn!(error = %e, "no socket for credentials: some processes in user namespaces read the PFS"),
        )
        .ok()
}

/// The next process that asks; never, if nothing listens.
pub(super) async fn accept(listener: Option<&UnixListener>) -> io::Result<UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Answers a process. No disk is asked, and the answer fits into the socket.
pub(super) fn answer(to: &UnixStream) {
    let answer = of(to.as_fd());
    let _ = to.try_write(answer.as_bytes());
}

/// The credentials of the process that has connected.
fn of(socket: BorrowedFd<'_>) -> Credentials {
    let Some(process) = peer::credentials(socket) else { return Credentials::default() };
    let pid = u32::try_from(process.pid).unwrap_or(0);
    let is_same = process.uid == rustix::process::geteuid().as_raw()
        && process.gid == rustix::process::getegid().as_raw()
        && groups_of(socket)
            .zip(own_groups())
            .is_some_and(|(theirs, ours)| all_of(process.gid, theirs) == all_of(process.gid, ours));
    let mut answer = Credentials { pid, flags: if is_same { SAME } else { 0 }, ..Credentials::default() };
    let handle = peer::handle_of(socket);
    let map = |kind: &str| std::fs::read_to_string(format!("/proc/{pid}/{kind}")).ok().and_then(|text| ranges(&text));
    if let (Some(users), Some(groups)) = (map("uid_map"), map("gid_map"))
        && handle.is_none_or(|handle| !peer::has_ended(handle.as_fd()))
    {
        (answer.users, answer.groups) = (users, groups);
        answer.flags |= WHOLE;
    }
    answer
}

/// All groups by which files are open to a process: one of its supplementary groups may be its own.
fn all_of(own: u32, supplementary: Vec<u32>) -> BTreeSet<u32> {
    supplementary.into_iter().chain([own]).collect()
}

fn own_groups() -> Option<Vec<u32>> {
    Some(rustix::process::getgroups().ok()?.into_iter().map(Gid::as_raw).collect())
}

/// The supplementary groups of the process that has connected.
fn groups_of(socket: BorrowedFd<'_>) -> Option<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = libc::socklen_t::try_from(size_of_val(groups.as_slice())).ok()?;
        // SAFETY: the buffer is ours and as long as said.
        let got = unsafe {
            let to = groups.as_mut_ptr().cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &raw mut len)
        };
        let needed = len as usize / size_of::<u32>();
        if got == 0 {
            groups.truncate(needed);
            return Some(groups);
        }
        // Too short: the kernel says how long it has to be.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || needed <= groups.len() {
            return None;
        }
        groups.resize(needed, 0);
    }
}

/// The ranges of a `uid_map` or `gid_map` that have numbers here; `None` if they are too many, or
/// the map is not written yet.
fn ranges(text: &str) -> Option<[IdRange; MAX_RANGES]> {
    let mut ranges = [IdRange::default(); MAX_RANGES];
    let mut to = ranges.iter_mut();
    for line in text.lines() {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let range = IdRange { inside: next()?, outside: next()?, len: next()? };
        if range.outside != NO_ID {
            *to.next()? = range;
        }
    }
    Some(ranges).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::credentials::inside;

    #[test]
    fn a_process_is_told_its_number_and_that_it_is_the_agents_user() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let told = of(one.as_fd());
        assert_eq!((told.pid, told.flags), (std::process::id(), SAME | WHOLE));
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!((inside(told.users, user), inside(told.groups, group)), (user, group));
    }

    #[test]
    fn maps_are_read() {
        let text =
            "         0       1500          1\n         1     100000      65536\n      4000 4294967295          1\n";
        let read = ranges(text).unwrap();
        assert_eq!(read[0], IdRange { inside: 0, outside: 1500, len: 1 });
        assert_eq!(read[1], IdRange { inside: 1, outside: 100_000, len: 65_536 });
        assert_eq!(read[2], IdRange::default());
        assert_eq!(ranges(""), None, "not written yet");
        assert_eq!(ranges("0 1\n"), None);
        assert_eq!(ranges(&"7 7 1\n".repeat(MAX_RANGES + 1)), None);
    }
}
