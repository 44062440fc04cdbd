//! Helpers of the failure tests: small file systems, views of processes and directories, jobs that
//! read all the time.

use crate::harness::{Ended, Job, Running, World, built};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// A small tmpfs.
pub struct Tmpfs(TempDir);

impl Tmpfs {
    /// Mounts one with these options; `None`, with a line about it, where that is not allowed.
    pub fn mount(options: &str) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().expect("temporary directory");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "monarch-e2e"]).arg(dir.path()).status();
        if done.is_ok_and(|s| s.success()) {
            return Some(Self(dir));
        }
        println!("skipped: cannot mount a tmpfs");
        None
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let v = vfs(self.path());
        (v.f_blocks - v.f_bfree) * v.f_frsize
    }
    /// Bytes left.
    pub fn free(&self) -> u64 {
        let v = vfs(self.path());
        v.f_bavail * v.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn vfs(path: &Path) -> libc::statvfs {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("path");
    // SAFETY: a path that ends with a NUL, and a buffer of this function.
    unsafe {
        let mut v = std::mem::zeroed();
        assert_eq!(libc::statvfs(name.as_ptr(), &raw mut v), 0, "{}", path.display());
        v
    }
}

/// Watches a number until it is dropped: its least and its greatest value.
pub struct Watch {
    over: Arc<AtomicBool>,
    seen: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn new(figure: impl Fn() -> u64 + Send + 'static) -> Self {
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new([AtomicU64::new(u64::MAX), AtomicU64::new(0)]));
        let (o, s) = (over.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            while !o.load(Ordering::Relaxed) {
                let now = figure();
                s[0].fetch_min(now, Ordering::Relaxed);
                s[1].fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { over, seen, thread: Some(thread) }
    }
    /// Ends watching; returns the least and the greatest value.
    pub fn end(mut self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        (self.seen[0].load(Ordering::Relaxed), self.seen[1].load(Ordering::Relaxed))
    }
}

/// All files and directories below a directory, itself included.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut at = 0;
    while at < all.len() {
        if all[at].symlink_metadata().is_ok_and(|m| m.is_dir()) {
            let more: Vec<PathBuf> = fs::read_dir(&all[at]).into_iter().flatten().flatten().map(|e| e.path()).collect();
            all.extend(more);
        }
        at += 1;
    }
    all
}

/// Bytes as `du` counts them.
pub fn du(dir: &Path) -> u64 {
    below(dir).iter().filter_map(|p| p.symlink_metadata().ok()).map(|m| m.blocks() * 512).sum()
}

/// Asserts that the ledger of a tier agrees with `du` on its directory: never less, and less than a
/// mebibyte more. Both are read while nothing is copied.
#[track_caller]
pub fn charged(w: &World, tier: usize, dir: &Path) {
    let charge = || {
        let tier = &w.agent().expect("an agent").tiers[tier];
        (tier.used, tier.reserved, tier.files)
    };
    let (mut used, mut on_disk) = (0, 0);
    wait_for("a moment without copies", || {
        let before = charge();
        used = before.0;
        // The configured directory itself is not the agent's.
        on_disk = du(dir) - dir.symlink_metadata().map_or(0, |m| m.blocks() * 512);
        before == charge()
    });
    assert!(used >= on_disk && used < on_disk + MIB, "{used} charged, {on_disk} on disk");
}

/// Regular files below a directory.
pub fn regular(dir: &Path) -> Vec<PathBuf> {
    below(dir).into_iter().filter(|p| p.symlink_metadata().is_ok_and(|m| m.is_file())).collect()
}

/// Copies in the tier of a world.
pub fn copies(w: &World) -> Vec<PathBuf> {
    regular(w.tier()).into_iter().filter(|p| p.to_string_lossy().contains("/copies/")).collect()
}

pub fn agent_pid(w: &World) -> i32 {
    w.agent().expect("an agent").pid as i32
}

pub fn kill(pid: i32, signal: i32) -> bool {
    // SAFETY: an agent or job that this test started.
    unsafe { libc::kill(pid, signal) == 0 }
}

/// Polls until `done`, for a minute at most; returns the time that it took.
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// `reads.py`: every byte is checked, an error or a wrong byte fails the job.
pub fn reads(w: &World) -> Job {
    w.python("reads.py").arg(w.root())
}

/// `reads.py` in the background until it is ended.
pub struct Loop {
    running: Running,
    until: PathBuf,
}

impl Loop {
    /// Starts it and waits for its first round.
    pub fn start(w: &World, options: &[&str]) -> Self {
        let mut me = Self::begin(w, options);
        me.running.until_written("round 1");
        me
    }
    pub fn begin(w: &World, options: &[&str]) -> Self {
        let until = w.scratch().join("over");
        let _ = fs::remove_file(&until);
        Self { running: w.start(&reads(w).arg("--until").arg(&until).args(options)), until }
    }
    /// Rounds so far.
    pub fn rounds(&self) -> usize {
        self.running.written().lines().filter(|l| l.starts_with("round")).count()
    }
    /// Waits for some more rounds.
    #[track_caller]
    pub fn more(&self, n: usize) {
        let want = self.rounds() + n;
        wait_for("more rounds", || self.rounds() >= want);
    }
    pub fn pid(&self) -> i32 {
        self.running.pid() as i32
    }
    /// Ends it; panics unless it ended well.
    #[track_caller]
    pub fn end(self) -> Ended {
        fs::write(&self.until, "").expect("own file");
        self.running.end().good()
    }
}

/// The slowest read of a `reads.py`, in milliseconds.
pub fn slowest(ended: &Ended) -> u64 {
    let text = ended.text();
    let all = text.lines().filter_map(|l| l.rsplit_once("slowest ")?.1.parse().ok());
    all.max().expect("a summary line")
}

/// A command around `monarch run`, with its environment and directory.
pub fn around(words: &[&str], run: &Command) -> Command {
    let mut c = Command::new(words[0]);
    c.args(&words[1..]).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(v) => c.env(name, v),
            None => c.env_remove(name),
        };
    }
    if let Some(dir) = run.get_current_dir() {
        c.current_dir(dir);
    }
    c
}

/// A job with the preload library and a control block of the test's choice.
pub fn with_control(job: Job, control: &Path) -> Job {
    job.env("LD_PRELOAD", built("libmonarch_shim.so")).env("MONARCH_CTL", control)
}

/// Lets other users into the directories above a path.
pub fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for dir in path.ancestors().filter(|d| d.to_string_lossy().contains("monarch-e2e-")) {
        let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
    }
}

/// The control block of a world's agent.
pub fn control(w: &World) -> PathBuf {
    w.agent().expect("an agent").runtime_dir.join("control")
}

/// A subcommand of the command line that finds this world's agent only.
pub fn monarch(w: &World, words: &[&str]) -> std::process::Output {
    let (command, rest) = words.split_first().expect("a command");
    w.monarch(command).args(rest).output().expect("monarch")
}
