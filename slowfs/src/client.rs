//! A mount owned by a Rust test or benchmark: started as a child process, controlled through its
//! socket, gone when dropped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::protocol::{self, Command};
use crate::server::unmount;
use crate::units::{Rate, Time};
use crate::{CacheMode, Counters, FaultSpec, FaultStatus, MutateSpec, MutationKind, PathCounts, Settings, When};

/// How long a control command may take; mutations of large files are the slowest.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the server may take to end cleanly.
const END_TIMEOUT: Duration = Duration::from_secs(4);

/// How to mount. Everything is optional; see the options of the command `slowfs` for the defaults.
#[derive(Clone, Debug)]
pub struct Builder {
    program: Option<PathBuf>,
    source: PathBuf,
    mountpoint: PathBuf,
    args: Vec<OsString>,
}

impl Builder {
    /// The last value given counts.
    fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        if let Some(at) = self.args.iter().position(|a| a == name) {
            self.args.drain(at..at + 2);
        }
        self.args.extend([name.into(), value.into()]);
        self
    }

    fn flag(mut self, name: &str) -> Self {
        self.args.push(name.into());
        self
    }

    /// The `slowfs` binary to start, instead of `SLOWFS_BIN` or the one near this executable.
    #[must_use]
    pub fn program(self, path: impl Into<PathBuf>) -> Self {
        Self { program: Some(path.into()), ..self }
    }

    /// Latency of each metadata call.
    #[must_use]
    pub fn meta_latency(self, latency: Duration) -> Self {
        self.option("--meta-latency", Time(latency).to_string())
    }

    /// Latency of each read and write.
    #[must_use]
    pub fn data_latency(self, latency: Duration) -> Self {
        self.option("--data-latency", Time(latency).to_string())
    }

    /// Bandwidth in bytes per second, shared by all reads and writes.
    #[must_use]
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.option("--bandwidth", Rate(bytes_per_second).to_string())
    }

    /// What the kernel caches.
    #[must_use]
    pub fn cache(self, mode: CacheMode) -> Self {
        self.option("--cache", mode.to_string())
    }

    /// How long the kernel believes attributes (and names, unless [`entry_ttl`](Self::entry_ttl) is
    /// set).
    #[must_use]
    pub fn attr_ttl(self, ttl: Duration) -> Self {
        self.option("--attr-ttl", Time(ttl).to_string())
    }

    /// How long the kernel believes names.
    #[must_use]
    pub fn entry_ttl(self, ttl: Duration) -> Self {
        self.option("--entry-ttl", Time(ttl).to_string())
    }

    /// Listings without attributes.
    #[must_use]
    pub fn no_readdirplus(self) -> Self {
        self.flag("--no-readdirplus")
    }

    /// Each close sends a FLUSH, which costs a metadata latency.
    #[must_use]
    pub fn flush_latency(self) -> Self {
        self.flag("--flush-latency")
    }

    /// Number of server threads.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        self.option("--threads", threads.to_string())
    }

    /// How many descriptors are kept for files that the kernel knows.
    #[must_use]
    pub fn node_descriptors(self, descriptors: usize) -> Self {
        self.option("--node-descriptors", descriptors.to_string())
    }

    /// Let other users in.
    #[must_use]
    pub fn allow_other(self) -> Self {
        self.flag("--allow-other")
    }

    /// Mounts and returns when the mount is ready.
    ///
    /// # Errors
    /// The binary was not found, or it could not mount (its own message is on standard error).
    pub fn spawn(self) -> io::Result<Slowfs> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let name = format!("slowfs-{}-{}.sock", std::process::id(), SERIAL.fetch_add(1, Relaxed));
        let socket = std::env::temp_dir().join(name);
        let mut child = Process::new(self.program.map_or_else(binary, Ok)?)
            .args([&self.source, &self.mountpoint])
            .args(&self.args)
            .arg("--until-stdin-closes")
            .arg("--control")
            .arg(&socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take();
        // From here on dropping cleans up.
        let mount = Slowfs { child, socket, mountpoint: self.mountpoint };
        let mut line = String::new();
        if let Some(out) = out {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.starts_with("mounted ") { Ok(mount) } else { Err(io::Error::other("slowfs did not mount")) }
    }
}

/// The `slowfs` binary: `SLOWFS_BIN`, else beside this executable or one directory above (where
/// cargo puts test programs).
fn binary() -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("SLOWFS_BIN") {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let found = exe.ancestors().skip(1).take(2).map(|dir| dir.join("slowfs")).find(|path| path.is_file());
    found.ok_or_else(|| {
        let hint = "no slowfs binary near this program: run `cargo build -p slowfs` (same profile), or set SLOWFS_BIN";
        io::Error::new(io::ErrorKind::NotFound, hint)
    })
}

/// A running mount. Dropping it unmounts, by force if need be.
///
/// ```no_run
/// use std::time::Duration;
/// let pfs = slowfs::Slowfs::builder("/data", "/mnt/pfs").meta_latency(Duration::from_millis(1)).spawn()?;
/// std::fs::read("/mnt/pfs/file")?;
/// assert_eq!(pfs.counters()?.open, 1);
/// # std::io::Result::Ok(())
/// ```
///
/// # Promises of the mount
///
/// * **Inode numbers** are those of the backing directory; hard links share one. A node is an
///   `O_PATH` descriptor, so it survives renames and its number cannot be reused while the kernel
///   knows it. Beyond three quarters of the limit of open files, nodes not used lately are found
///   again by path and checked.
/// * **Close-to-open consistency.** Attributes and names may be stale for their TTL, as on a PFS
///   client. An `open` is always answered from the present: an inode that was removed or replaced
///   behind the mount's back answers `ESTALE`, which makes the kernel look the name up again, and
///   changed attributes are invalidated in the kernel before the open returns. `statx` with
///   `AT_STATX_FORCE_SYNC` reaches the server too.
/// * **Descriptors keep the inode they opened**: a file that is replaced or deleted stays readable
///   for its readers, as on Lustre or GPFS. (For NFS, install a fault `estale`.)
/// * **Latency is slept concurrently.** Server threads do the work at once; the answer waits in a
///   timer heap.
#[derive(Debug)]
pub struct Slowfs {
    child: Child,
    socket: PathBuf,
    mountpoint: PathBuf,
}

impl Slowfs {
    /// Describes a mount of the directory `source` at `mountpoint`.
    pub fn builder(source: impl Into<PathBuf>, mountpoint: impl Into<PathBuf>) -> Builder {
        Builder { program: None, source: source.into(), mountpoint: mountpoint.into(), args: Vec::new() }
    }

    /// Where the mount is.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The control socket, for [`protocol::call`] or `slowfs ctl`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls and bytes since the mount or the last reset.
    ///
    /// # Errors
    /// The server is gone or does not answer (so for all methods that talk to it).
    pub fn counters(&self) -> io::Result<Counters> {
        self.ask(&Command::Counters, "counters")
    }

    /// Counts by path relative to the root of the mount.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn paths(&self) -> io::Result<BTreeMap<String, PathCounts>> {
        self.ask(&Command::Paths, "paths")
    }

    /// Sets all counts to zero.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn reset(&self) -> io::Result<()> {
        self.tell(&Command::Reset)
    }

    /// Changes options; returns all that are in force.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn set(&self, settings: Settings) -> io::Result<Settings> {
        self.ask(&Command::Set(settings), "options")
    }

    /// Appends a fault rule.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn fault(&self, spec: FaultSpec) -> io::Result<()> {
        self.tell(&Command::Fault(spec))
    }

    /// The fault rules and how often each hit.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn faults(&self) -> io::Result<Vec<FaultStatus>> {
        self.ask(&Command::Faults, "faults")
    }

    /// Removes all rules and waiting mutations and answers stalled calls.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters).
    pub fn clear(&self) -> io::Result<()> {
        self.tell(&Command::Clear)
    }

    /// Changes a file behind the mount's back, now or at a moment of a reader's life.
    ///
    /// # Errors
    /// As for [`counters`](Self::counters); for `When::Now` also the error of the change itself.
    pub fn mutate(&self, path: impl Into<String>, kind: MutationKind, when: When) -> io::Result<()> {
        self.tell(&Command::Mutate(MutateSpec { path: path.into(), kind, when }))
    }

    /// Unmounts and waits for the server's end, as dropping does.
    ///
    /// # Errors
    /// The server had to be killed, or the mount is still there.
    pub fn unmount(mut self) -> io::Result<()> {
        self.end()
    }

    fn tell(&self, command: &Command) -> io::Result<()> {
        protocol::call(&self.socket, command, CONTROL_TIMEOUT).map(drop)
    }

    fn ask<T: DeserializeOwned>(&self, command: &Command, field: &str) -> io::Result<T> {
        let mut answer = protocol::call(&self.socket, command, CONTROL_TIMEOUT)?;
        Ok(serde_json::from_value(answer.get_mut(field).map_or(Value::Null, Value::take))?)
    }

    fn end(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_none() {
            let _ = protocol::call(&self.socket, &Command::Unmount, Duration::from_secs(1));
            drop(self.child.stdin.take());
        }
        let killed = if self.wait(END_TIMEOUT)? {
            false
        } else {
            // Its end aborts the connection: every process that waits for an answer gets an error.
            self.child.kill()?;
            self.child.wait()?;
            true
        };
        let _ = fs::remove_file(&self.socket);
        if is_mounted(&self.mountpoint)? {
            unmount(&self.mountpoint)?;
        }
        if killed { Err(io::Error::other("slowfs had to be killed")) } else { Ok(()) }
    }

    fn wait(&mut self, time: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + time;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(true)
    }
}

impl Drop for Slowfs {
    fn drop(&mut self) {
        // Errors have nowhere to go; what can be cleaned up is.
        let _ = self.end();
    }
}

/// Whether a slowfs is mounted there: read from the mount table, since touching a dead mount may
/// hang.
fn is_mounted(mountpoint: &Path) -> io::Result<bool> {
    let parent = mountpoint.parent().map(Path::canonicalize).transpose()?;
    let real = match (parent, mountpoint.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => mountpoint.to_path_buf(),
    };
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let escaped = real.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040");
    let ours = |line: &&str| line.contains(" - fuse.slowfs ");
    Ok(table.lines().filter(ours).any(|line| line.split(' ').nth(4) == Some(&escaped)))
}
