//! Changes by processes of another user. They cannot open the control block, and inform the agent
//! before they change something (see [`monarch_abi::foreign_changes`]).
//!
//! The socket lies in a directory that only the agent's user can list, under a name that cannot be
//! guessed: a client has it from the environment of the job. A message can only take files away
//! from Monarch: those are read from the PFS from then on. Only root's jobs have processes of other
//! users, so only root's agents listen. A thread of its own serves the socket, so that a connection
//! that is held up delays nothing else.

use super::roots::{Change, Roots};
use crate::held_dir::HeldDir;
pub use monarch_abi::foreign_changes::VARIABLE;
use monarch_abi::foreign_changes::{HEAD_LEN, HELLO, Head, PATH_MAX, REPLY_MAX};
use rustix::fs::{Mode, OFlags};
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// The file in the runtime directory that says where the socket is.
pub const PLACE: &str = "changes";
/// Connections that are served at a time; one takes less than a millisecond.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the thread looks whether the agent ends.
const POLL_PERIOD: Duration = Duration::from_secs(5);
/// Pause after a connection could not be taken.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Names that are tried for the directory of the socket.
const MAX_TRIES: usize = 16;

/// Listens, until `stop`.
///
/// # Errors
/// Why there is no socket. Without one, changes by other users are not seen.
pub(super) fn start(dir: &HeldDir, roots: &Arc<Roots>, stop: &Arc<AtomicBool>) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let listener = open(dir)?;
    // Made and dropped on its thread: in an asynchronous function, dropping a runtime is a panic.
    let runtime = move || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (roots, stop) = (roots.clone(), stop.clone());
    let work = move || -> io::Result<()> {
        let runtime = runtime()?;
        let _inside = runtime.enter();
        let listener = UnixListener::from_std(listener)?;
        runtime.block_on(serve(&listener, &roots, &stop));
        Ok(())
    };
    let work = move || {
        if let Err(e) = work() {
            tracing::warn!(error = %e, "no socket for changes by other users: what they change is not seen");
        }
    };
    std::thread::Builder::new().name("changes".to_owned()).spawn(work).map(drop)
}

/// Listens where the agent before listened, since the jobs know that place, or at a new one.
///
/// Agents that start at the same time may take either place for abandoned and remove it, so a
/// failure is tried again.
fn open(dir: &HeldDir) -> io::Result<std::os::unix::net::UnixListener> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..MAX_TRIES {
        let socket = match socket_of(dir).filter(|s| s.parent().is_some_and(make_again)) {
            Some(socket) => socket,
            None => new_place(dir)?,
        };
        match listen(&socket) {
            Ok(listener) => return Ok(listener),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Whether this is a directory of this user, made now if another agent has removed it.
fn make_again(place: &Path) -> bool {
    std::fs::DirBuilder::new().mode(0o700).create(place).is_ok() || is_ours(place)
}

fn is_ours(place: &Path) -> bool {
    std::fs::symlink_metadata(place).is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw())
}

/// Where the socket of the agent with this runtime directory is, if there is one.
#[must_use]
pub fn socket_of(dir: &HeldDir) -> Option<PathBuf> {
    let mut text = Vec::new();
    std::fs::File::from(dir.read_file(PLACE).ok()?).read_to_end(&mut text).ok()?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(text));
    (path.is_absolute() && path.as_os_str().len() <= PATH_MAX).then_some(path)
}

/// [`socket_of`] the agent with this control block.
#[must_use]
pub fn socket_of_control(control: &Path) -> Option<PathBuf> {
    socket_of(&HeldDir::at(control.parent()?).ok()?)
}

/// Removes the socket of an agent that has ended, before its runtime directory is wiped.
pub(super) fn remove(dir: &HeldDir) {
    if let Some(socket) = socket_of(dir) {
        let _ = std::fs::remove_file(&socket);
        if let Some(place) = socket.parent() {
            let _ = std::fs::remove_dir(place);
        }
    }
}

/// Makes a directory for the socket and notes its path.
fn new_place(dir: &HeldDir) -> io::Result<PathBuf> {
    let tmp = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let bases = [PathBuf::from("/dev/shm"), tmp];
    bases.iter().for_each(|base| remove_abandoned(base));
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in bases.iter().cycle().take(MAX_TRIES) {
        let place = base.join(format!("monarch-changes-{}", random_hex(8)?));
        match std::fs::DirBuilder::new().mode(0o700).create(&place) {
            Ok(()) => {
                let socket = place.join(random_hex(16)?);
                let file =
                    dir.open_file(PLACE, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC, Mode::RUSR | Mode::WUSR)?;
                std::fs::File::from(file).write_all(socket.as_os_str().as_bytes())?;
                return Ok(socket);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Removes sockets of this user's agents that were killed: no agent listens there any more.
fn remove_abandoned(base: &Path) {
    let names = std::fs::read_dir(base).into_iter().flatten().flatten();
    for place in names.filter(|e| e.file_name().as_bytes().starts_with(b"monarch-changes-")).map(|e| e.path()) {
        let ours = is_ours(&place);
        let sockets = std::fs::read_dir(&place).into_iter().flatten().flatten().map(|e| e.path());
        for socket in sockets.filter(|_| ours) {
            let refused = std::os::unix::net::UnixStream::connect(&socket);
            if refused.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = std::fs::remove_file(&socket);
                // (One without a socket may be that of an agent that is just coming up.)
                let _ = std::fs::remove_dir(&place);
            }
        }
    }
}

fn random_hex(bytes: usize) -> io::Result<String> {
    let mut buffer = [0; 16];
    let part = &mut buffer[..bytes.min(16)];
    rustix::rand::getrandom(&mut *part, rustix::rand::GetRandomFlags::empty())?;
    Ok(data_encoding::HEXLOWER.encode(part))
}

/// The kernel shows everybody the path to which a socket was bound, so that is another one.
fn listen(socket: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let place = socket.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let bound = place.join("s");
    let _ = std::fs::remove_file(&bound);
    let listener = std::os::unix::net::UnixListener::bind(&bound)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&bound, Permissions::from_mode(0o666))?;
    std::fs::rename(&bound, socket)?;
    // To be entered, not to be listed.
    std::fs::set_permissions(place, Permissions::from_mode(0o711))?;
    Ok(listener)
}

async fn serve(listener: &UnixListener, roots: &Arc<Roots>, stop: &AtomicBool) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while !stop.load(Ordering::Relaxed) {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match tokio::time::timeout(POLL_PERIOD, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let roots = roots.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, talk(stream, &roots)).await;
                    drop(permit);
                });
            }
            // Too many open files, perhaps.
            Ok(Err(_)) => tokio::time::sleep(RETRY_PAUSE).await,
            Err(_) => {}
        }
    }
}

/// One message and its reply.
async fn talk(mut stream: UnixStream, roots: &Roots) -> io::Result<()> {
    let mut bytes = [0; HEAD_LEN];
    stream.read_exact(&mut bytes).await?;
    let (head, len) = Head::of(&bytes);
    let mut name = vec![0; len];
    stream.read_exact(&mut name).await?;
    if head.kind != HELLO {
        roots.untracked().enter_change(&Change { head, name });
    }
    stream.write_all(&reply(roots)).await
}

fn reply(roots: &Roots) -> Vec<u8> {
    // In the order of the roots, to which new ones are added: readers of the list never miss one
    // that was there before.
    let mut devices: Vec<u64> = Vec::new();
    for dev in roots.control().roots().iter().map(|r| r.dev.load(Ordering::Relaxed)) {
        if !devices.contains(&dev) {
            devices.push(dev);
        }
    }
    let mut out = Vec::with_capacity(REPLY_MAX);
    out.push(devices.len() as u8);
    devices.iter().for_each(|dev| out.extend_from_slice(&dev.to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_reached_by_its_path_which_is_shown_nowhere() {
        let top = tempfile::tempdir().unwrap();
        let dir = HeldDir::at(top.path()).unwrap();
        assert_eq!(socket_of(&dir), None);
        let socket = new_place(&dir).unwrap();
        assert_eq!(socket_of(&dir), Some(socket.clone()));
        let _listener = listen(&socket).unwrap();
        std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let shown = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!shown.contains(socket.file_name().unwrap().to_str().unwrap()));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o711, 0o666));
        remove(&dir);
        assert!(!socket.parent().unwrap().exists());
    }

    #[test]
    fn a_place_that_another_agent_removed_is_made_again() {
        let top = tempfile::tempdir().unwrap();
        let dir = HeldDir::at(top.path()).unwrap();
        let before = open(&dir).unwrap();
        let socket = socket_of(&dir).unwrap();
        drop(before);
        remove_abandoned(socket.parent().unwrap().parent().unwrap());
        assert!(!socket.parent().unwrap().exists());
        let _listener = open(&dir).unwrap();
        assert_eq!(socket_of(&dir), Some(socket.clone()));
        std::os::unix::net::UnixStream::connect(&socket).unwrap();
        remove(&dir);
    }

    #[test]
    fn a_place_that_cannot_be_had_is_another_one() {
        let top = tempfile::tempdir().unwrap();
        let dir = HeldDir::at(top.path()).unwrap();
        let _before = open(&dir).unwrap();
        let first = socket_of(&dir).unwrap();
        std::fs::remove_file(&first).unwrap();
        std::fs::remove_dir(first.parent().unwrap()).unwrap();
        std::fs::write(first.parent().unwrap(), "").unwrap();
        let _listener = open(&dir).unwrap();
        let second = socket_of(&dir).unwrap();
        assert_ne!(first, second);
        std::os::unix::net::UnixStream::connect(&second).unwrap();
        std::fs::remove_file(first.parent().unwrap()).unwrap();
        remove(&dir);
    }
}
