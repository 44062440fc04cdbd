//! What processes change that cannot open the control block: those of another user, and those in
//! another root directory. They tell it before they do it (see [`monarch_abi::outside`]).
//!
//! Anybody on the node can connect to the socket. The agent believes its own user, and processes
//! that descend from one of its jobs; the kernel says who it is (`SO_PEERCRED`). What they tell can
//! only take files away from Monarch: those are read from the PFS from then on.

use super::roots::{Change, Roots};
use monarch_abi::outside::{FILE, HELLO, MESSAGE_MAX, MOVED, NAME, PATIENCE_MS, REPLY_MAX, socket_name};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Connections that are served at a time; one takes less than a millisecond.
const MOST: usize = 32;
/// How long the agent waits before it tries again to take the name of its socket, which the agent before it may still have.
const AGAIN: Duration = Duration::from_millis(250);
/// Processes on the way up to a job's; more only if some come and go meanwhile.
const MOST_ANCESTORS: usize = 4096;

/// The processes that have attached jobs, each as often as it has.
#[derive(Debug, Default)]
pub(super) struct Jobs(Mutex<Vec<u32>>);

impl Jobs {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, process: u32) {
        self.list().push(process);
    }

    pub(super) fn remove(&self, process: u32) {
        let mut list = self.list();
        if let Some(at) = list.iter().position(|&p| p == process) {
            list.swap_remove(at);
        }
    }

    /// Whether a process is one of them or descends from one.
    fn has(&self, process: u32) -> bool {
        let jobs = self.list().clone();
        let mut up = std::iter::successors(Some(process), |&p| parent(p).filter(|&p| p > 0)).take(MOST_ANCESTORS);
        up.any(|p| jobs.contains(&p))
    }
}

/// The parent of a process.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name may hold anything, parentheses and blanks included.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Serves the socket of the control block at this path, until dropped.
pub(super) async fn serve(control: &Path, roots: &Arc<Roots>, jobs: &Arc<Jobs>) {
    let name = socket_name(control.as_os_str().as_bytes());
    let mut told = false;
    let listener = loop {
        match listen(&name) {
            Ok(listener) => break listener,
            Err(why) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::debug!(%why, "the socket for changes by other users has no name yet");
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    };
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, perhaps.
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let (Ok(stream), Ok(permit)) = (stream.into_std(), room.clone().acquire_owned().await) else { continue };
        let (roots, jobs) = (roots.clone(), jobs.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(why) = talk(stream, &roots, &jobs) {
                tracing::debug!(%why, "a message about a change was not taken");
            }
            drop(permit);
        });
    }
}

fn listen(name: &[u8]) -> io::Result<tokio::net::UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// One message and its reply.
fn talk(mut stream: UnixStream, roots: &Roots, jobs: &Jobs) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    let process = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    if peer.uid != rustix::process::geteuid() && !jobs.has(process) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it comes from no process of a job"));
    }
    stream.set_nonblocking(false)?;
    let patience = Some(Duration::from_millis(PATIENCE_MS));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)?;
    let (message, fd) = receive(&stream)?;
    match (message.as_slice(), fd) {
        ([HELLO, ..], _) => {}
        ([kind @ (FILE | NAME | MOVED), _, name @ ..], Some(fd)) => {
            let change = look(&fd, (*kind != FILE).then_some(name), *kind == MOVED)?;
            tracing::debug!(path = %crate::shown::bytes(&change.path), uid = peer.uid.as_raw(), "a process outside changes this");
            roots.enter_change(&change);
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    stream.write_all(&reply(roots))
}

/// A message, which ends where it says, and the descriptor that came with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut message, mut fd) = (Vec::with_capacity(MESSAGE_MAX), None);
    loop {
        let mut bytes = [0; MESSAGE_MAX];
        let whole = message.get(1).map_or(2, |&len: &u8| 2 + usize::from(len));
        if message.len() >= whole {
            return Ok((message, fd));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let room = &mut [IoSliceMut::new(&mut bytes[..whole - message.len()])];
        let got = match recvmsg(stream, room, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        };
        for part in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                fd = fds.last().or(fd);
            }
        }
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        message.extend_from_slice(&bytes[..got]);
    }
}

/// What a descriptor stands for, or a name in the directory that it stands for. Does not ask the PFS.
fn look(fd: &OwnedFd, name: Option<&[u8]>, moved: bool) -> io::Result<Change> {
    // (The number of the mount: Linux 5.8.)
    let mount_id = StatxFlags::from_bits_retain(0x1000);
    let wanted = StatxFlags::INO | StatxFlags::NLINK | mount_id;
    let st = statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(Change {
        path: path.into_os_string().into_vec(),
        name: name.map(<[u8]>::to_vec),
        moved,
        dev: rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
        ino: st.stx_ino,
        links: st.stx_nlink.into(),
        mount: (st.stx_mask & mount_id.bits() != 0).then_some(st.stx_mnt_id),
    })
}

fn reply(roots: &Roots) -> Vec<u8> {
    let mut devices: Vec<u64> = roots.control().roots().iter().map(|r| r.dev.load(Ordering::Relaxed)).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut out = Vec::with_capacity(REPLY_MAX);
    out.push(devices.len() as u8);
    devices.iter().for_each(|dev| out.extend_from_slice(&dev.to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_descends_from_its_parents() {
        let jobs = Jobs::default();
        let me = std::process::id();
        assert!(!jobs.has(me));
        jobs.add(parent(me).unwrap());
        assert!(jobs.has(me));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(jobs.has(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!jobs.has(1));
        jobs.remove(parent(me).unwrap());
        assert!(!jobs.has(me));
    }

    #[test]
    fn a_message_may_come_in_parts_and_ends_where_it_says() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for part in [b"n".as_slice(), b"\x03a", b"\nc"] {
                theirs.write_all(part).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            theirs
        });
        let (message, fd) = receive(&ours).unwrap();
        assert_eq!((message.as_slice(), fd.is_some()), (b"n\x03a\nc".as_slice(), false));
        let mut theirs = writer.join().unwrap();
        theirs.write_all(b"n\x05ab").unwrap();
        drop(theirs);
        assert_eq!(receive(&ours).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
