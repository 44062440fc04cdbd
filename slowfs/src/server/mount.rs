//! A mount from start to end: set-up, the line that says "ready", and the ways in which it ends.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit};

use super::fs::Shell;
use super::{Server, control};
use crate::options::Settings;
use crate::sys;

/// How long the session may take to end cleanly before the process ends, which aborts the rest.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What a mount is made from.
pub(crate) struct MountArgs {
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    pub(crate) control: Option<PathBuf>,
    pub(crate) settings: Settings,
    pub(crate) threads: usize,
    pub(crate) node_descriptors: Option<usize>,
    pub(crate) readdirplus: bool,
    pub(crate) allow_other: bool,
    pub(crate) until_stdin_closes: bool,
}

/// Why the mount ends.
enum End {
    Asked,
    /// Another process unmounted it, or the session failed.
    Session(io::Result<()>),
}

/// Mounts, prints one line when ready, serves until asked to stop or unmounted.
pub(crate) fn run(args: &MountArgs) -> io::Result<()> {
    sys::block_stop_signals();
    // Open files and directories need some too.
    let descriptors = args.node_descriptors.unwrap_or(raise_file_limit() / 4 * 3);
    let socket = args
        .control
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("slowfs-{}.sock", std::process::id())));
    let listener = bind(&socket)?;
    // The kernel has applied the caller's umask already.
    rustix::process::umask(Mode::empty());
    let result = mount(args, &socket, listener, descriptors);
    let _ = fs::remove_file(&socket);
    result
}

fn mount(args: &MountArgs, socket: &Path, listener: UnixListener, descriptors: usize) -> io::Result<()> {
    let server = Server::new(&args.source, &args.settings, descriptors).map_err(|e| naming(&args.source, &e))?;
    let server = Arc::new(server);
    let mountpoint = args.mountpoint.canonicalize().map_err(|e| naming(&args.mountpoint, &e))?;
    let shell = Shell { server: Arc::clone(&server), readdirplus: args.readdirplus };
    let session = Session::new(shell, &mountpoint, &session_config(args))?;
    let _ = server.backing.notifier.set(session.notifier());

    let (ends, end) = mpsc::channel();
    let ended = ends.clone();
    thread::Builder::new().name("slowfs-session".into()).spawn(move || {
        let _ = ended.send(End::Session(session.run()));
    })?;
    watch_stop_requests(&ends, args.until_stdin_closes)?;
    control::serve(listener, Arc::clone(&server), move || {
        let _ = ends.send(End::Asked);
    })?;
    announce(&mountpoint, socket)?;

    if let Ok(End::Session(result)) = end.recv() {
        return result;
    }
    server.stop();
    unmount(&mountpoint)?;
    // Processes with files open keep the session alive after a lazy unmount; they lose it now.
    let _ = end.recv_timeout(END_TIMEOUT);
    Ok(())
}

/// An error that says which path it is about.
fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn session_config(args: &MountArgs) -> Config {
    let mut config = Config::default();
    config.n_threads = Some(args.threads.max(2));
    config.clone_fd = true;
    // Not `MountOption::Subtype`, which the library tells fusermount only: the mount table shall
    // say
    // `fuse.slowfs`.
    let subtype = MountOption::CUSTOM("subtype=slowfs".into());
    config.mount_options = vec![MountOption::FSName(args.source.display().to_string()), subtype];
    if args.allow_other {
        config.acl = SessionACL::All;
        // This process may do more than its clients: the kernel has to check.
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config
}

fn announce(mountpoint: &Path, socket: &Path) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "mounted {} control {}", mountpoint.display(), socket.display())?;
    out.flush()
}

fn watch_stop_requests(ends: &Sender<End>, stdin: bool) -> io::Result<()> {
    let signal = ends.clone();
    thread::Builder::new().name("slowfs-signal".into()).spawn(move || {
        sys::wait_stop_signal();
        let _ = signal.send(End::Asked);
    })?;
    if stdin {
        let closed = ends.clone();
        thread::Builder::new().name("slowfs-stdin".into()).spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            let _ = closed.send(End::Asked);
        })?;
    }
    Ok(())
}

/// Raises the limit of open files as far as possible and returns it: every node that the kernel
/// knows wants a descriptor.
fn raise_file_limit() -> usize {
    let current = rustix::process::getrlimit(Resource::Nofile);
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    for limit in [most, current.maximum].into_iter().flatten() {
        let wanted = Rlimit { current: Some(limit), maximum: Some(limit) };
        if rustix::process::setrlimit(Resource::Nofile, wanted).is_ok() {
            return usize::try_from(limit).unwrap_or(usize::MAX);
        }
    }
    current.current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(1024)
}

/// Binds the control socket for this user only, in place of one that a dead server left behind.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(socket).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        fs::remove_file(socket)?;
    }
    let old = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(socket);
    rustix::process::umask(old);
    listener.map_err(|e| io::Error::new(e.kind(), format!("control socket {}: {e}", socket.display())))
}

/// Unmounts, lazily when busy; without the right to do so, by `fusermount3`.
pub(crate) fn unmount(mountpoint: &Path) -> io::Result<()> {
    let result = match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
        other => other,
    };
    match result {
        // Not mounted any more.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => fusermount(mountpoint),
        Err(error) => Err(error.into()),
    }
}

fn fusermount(mountpoint: &Path) -> io::Result<()> {
    let status = Command::new("fusermount3").args(["-u", "-q", "-z", "--"]).arg(mountpoint).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3 -u failed: {status}"))) }
}
