//! A private world for one test: data, a slow file system over it, a tier, a runtime directory, and
//! the built command.
//!
//! ```ignore
//! let w = World::plan().files(60).build();          // 60 files of 40 kB + special ones, behind slowfs
//! let job = w.python("epochs.py").arg("--verify").arg(w.root());
//! w.same(&job);                                      // bare and under `monarch run`: same status, output, errors
//! w.settle();                                        // a job in the background keeps the agent; all copies are there
//! w.same(&job);
//! ```
//! | what | where |
//! |---|---|
//! | making a world | [`World::plan`] gives a [`Plan`]: `files size args made_by fodder disk memory pfs tier_size tier_dir second_tier set`, then `build` |
//! | places | [`World::root`] (what jobs read), [`World::backing`] (behind slowfs), [`World::tier`], [`World::scratch`] |
//! | programs | [`World::program`] (tests/programs/*.c, built once by make), [`World::python`], [`World::tools`], [`Job::new`] |
//! | running | [`World::bare`], [`World::run`], [`World::same`]; in the background [`World::start`], [`World::start_bare`] -> [`Running`] |
//! | other commands | [`World::monarch`] (finds this world's agent only), [`World::words`] (its root, tiers and settings) |
//! | the agent | [`World::keep`], [`World::settle`], [`World::agent`] (its `Status`), [`World::until`] (polls, no sleeps) |
//! | the PFS | [`World::pfs`]: the `Slowfs`, with `counters() paths() fault() mutate()` |
//!
//! Everything lies in one temporary directory on disk and one in `/dev/shm`, and is taken down when
//! the world is dropped; only what the world started is killed. Variables `MONARCH_*` and
//! `LD_PRELOAD` of the caller never reach the jobs, nor does `LD_AUDIT`. Binaries come from
//! `target/release` beside this test's profile; `MONARCH_E2E_BIN` names another directory.
//! `MONARCH_E2E_SET` has settings for every world, separated by commas: with
//! `source.chunk_threshold=4KiB,source.chunk_size=4KiB` nearly all files are large.

use monarch_core::agent::protocol::Status;
use slowfs::Slowfs;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A job that runs longer than this is killed and its test fails.
const JOB_TIMEOUT: Duration = Duration::from_secs(150);
/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// `all` for `./test --all`, which sets `MONARCH_TESTS=all`; `daily` otherwise: how often a test
/// tries what happens now and then, or which of many cases that resemble each other it takes.
pub fn cases<T>(daily: T, all: T) -> T {
    if std::env::var_os("MONARCH_TESTS").is_some_and(|which| which == "all") { all } else { daily }
}

/// The directory `target`.
pub fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    exe.ancestors().nth(3).expect("target/PROFILE/deps/TEST").to_path_buf()
}

/// A built binary or library.
pub fn built(name: &str) -> PathBuf {
    let dir = std::env::var_os("MONARCH_E2E_BIN").map_or_else(|| target().join("release"), PathBuf::from);
    let path = dir.join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build --release --workspace` first", path.display());
    path
}

/// `tests/programs`.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// The directory of the test programs, which the first test that needs them builds.
fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = target().join("programs");
        fs::create_dir_all(&dir).expect("target/programs");
        let lock = fs::File::create(dir.join(".lock")).expect("lock of target/programs");
        lock.lock().expect("lock of target/programs");
        let mut out = OsString::from("OUT=");
        out.push(&dir);
        let made = Command::new("make").arg("-s").arg("-C").arg(sources()).arg(out).output().expect("make");
        assert!(made.status.success(), "make of tests/programs: {}", String::from_utf8_lossy(&made.stderr));
        dir
    })
}

/// Whether a test program was built (those of foreign toolchains may be missing).
pub fn has_program(name: &str) -> bool {
    programs().join(name).is_file()
}

/// Whether a command is on the path.
pub fn has_command(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(name).is_file()))
}

/// A command of a job.
#[derive(Clone, Debug)]
pub struct Job {
    words: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    options: Vec<OsString>,
}

impl Job {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { words: vec![program.as_ref().to_owned()], env: vec![], dir: None, options: vec![] }
    }
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }
    pub fn args<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
    /// The same job, which first writes `ready` and waits for a line.
    pub fn announced(&self) -> Self {
        let words = ["sh", "-c", "echo ready; read -r line; exec \"$@\"", "sh"].iter().map(OsString::from);
        Self { words: words.chain(self.words.iter().cloned()).collect(), ..self.clone() }
    }
    /// The command and its arguments.
    pub fn words(&self) -> &[OsString] {
        &self.words
    }
    /// A further option of `monarch run`.
    pub fn option(mut self, word: impl AsRef<OsStr>) -> Self {
        self.options.push(word.as_ref().to_owned());
        self
    }
}

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl Ended {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }
    /// Panics unless it ended well.
    #[track_caller]
    pub fn good(self) -> Self {
        assert!(self.status.success(), "{}\n{}{}", self.status, tail(&self.text()), tail(&self.errors()));
        self
    }
}

/// The end of a long text, with every line that reports a failure.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(30);
    let bad = lines[..from].iter().filter(|l| l.starts_with("FAIL") || l.starts_with("DIFF"));
    bad.take(40).chain(&lines[from..]).map(|l| format!("{}\n", l.chars().take(400).collect::<String>())).collect()
}

/// A job in the background. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

fn drain(from: impl Read + Send + 'static, to: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let (mut from, to) = (from, to.clone());
    std::thread::spawn(move || {
        let mut buf = [0; 65536];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buf[..n]);
        }
    })
}

impl Running {
    pub fn new(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", command.get_program()));
        let (out, err) = (Arc::default(), Arc::default());
        let readers =
            vec![drain(child.stdout.take().expect("piped"), &out), drain(child.stderr.take().expect("piped"), &err)];
        Self { stdin: child.stdin.take(), child, out, err, readers }
    }

    /// The process: `monarch run`, or the program itself when run bare.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.out.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
    pub fn write(&mut self, bytes: &[u8]) {
        // A job that does not read its input may have closed it.
        let _ = self.stdin.as_mut().expect("not ended").write_all(bytes);
    }
    /// Lets an announced job begin.
    #[track_caller]
    pub fn begin(&mut self) {
        self.until_written("ready");
        self.write(b"\n");
    }
    /// Waits until the job has written a text.
    #[track_caller]
    pub fn until_written(&mut self, text: &str) {
        let deadline = Instant::now() + JOB_TIMEOUT;
        while !self.written().contains(text) {
            let ended = self.child.try_wait().expect("wait");
            assert!(ended.is_none() && Instant::now() < deadline, "no {text:?}: {ended:?} {}", tail(&self.written()));
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    pub fn signal(&self, signal: i32) {
        // SAFETY: a process that this test started and did not wait for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
    /// Ends the input and waits.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        drop(self.stdin.take());
        let deadline = Instant::now() + JOB_TIMEOUT;
        let status = loop {
            if let Some(s) = self.child.try_wait().expect("wait") {
                break s;
            }
            if Instant::now() > deadline {
                let so_far = tail(&self.written());
                self.kill();
                panic!("took longer than {JOB_TIMEOUT:?}; so far:\n{so_far}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        for r in self.readers.drain(..) {
            let _ = r.join();
        }
        let take = |v: &Mutex<Vec<u8>>| std::mem::take(&mut *v.lock().unwrap_or_else(PoisonError::into_inner));
        Ended { status, out: take(&self.out), err: take(&self.err) }
    }
    fn kill(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SAFETY: the group that this test made, whose leader was not waited for.
            unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let err = self.err.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("the job's standard error:\n{}", tail(&String::from_utf8_lossy(&err)));
        }
        self.kill();
    }
}

type Shape = Box<dyn FnOnce(slowfs::Builder) -> slowfs::Builder>;

/// A description of a world.
pub struct Plan {
    data: Vec<OsString>,
    maker: Option<Job>,
    files: usize,
    size: usize,
    fodder: bool,
    memory: bool,
    pfs: Option<Shape>,
    tier_size: String,
    tier_dir: Option<PathBuf>,
    second_tier: Option<String>,
    second_dir: Option<PathBuf>,
    set: Vec<String>,
}

impl Plan {
    /// Number of files in `data/` and their mean size.
    pub fn files(self, files: usize) -> Self {
        Self { files, ..self }
    }
    pub fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }
    /// Further options of `mkdata.py`: `--plain --exact --git --fifo --seed N --dirs N`.
    pub fn args(mut self, words: &[&str]) -> Self {
        self.data.extend(words.iter().map(OsString::from));
        self
    }
    /// The data are made by this program, which gets the directory as its last word, instead of
    /// `mkdata.py`.
    pub fn made_by(self, maker: Job) -> Self {
        Self { maker: Some(maker), ..self }
    }
    /// With files that the changer programs use up.
    pub fn fodder(self) -> Self {
        Self { fodder: true, ..self }
    }
    /// No slow file system: the root is the directory itself.
    pub fn disk(self) -> Self {
        Self { pfs: None, ..self }
    }
    /// The same on a tmpfs.
    pub fn memory(self) -> Self {
        Self { memory: true, pfs: None, ..self }
    }
    /// Options of the slow file system, over those of the harness (no latency, attributes believed
    /// for 600 s).
    pub fn pfs(self, shape: impl FnOnce(slowfs::Builder) -> slowfs::Builder + 'static) -> Self {
        Self { pfs: Some(Box::new(shape)), ..self }
    }
    pub fn tier_size(self, size: &str) -> Self {
        Self { tier_size: size.to_owned(), ..self }
    }
    /// Another directory for the tier (default: one in `/dev/shm`).
    pub fn tier_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { tier_dir: Some(dir.into()), ..self }
    }
    /// A second tier of this size, on disk.
    pub fn second_tier(self, size: &str) -> Self {
        Self { second_tier: Some(size.to_owned()), ..self }
    }
    /// Another directory for it.
    pub fn second_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { second_dir: Some(dir.into()), ..self }
    }
    /// A setting of Monarch, `KEY=VALUE`.
    pub fn set(mut self, setting: &str) -> Self {
        self.set.push(setting.to_owned());
        self
    }

    /// Timeouts that a busy machine does not reach: every reader waits for its copy, for tests that
    /// count calls exactly.
    pub fn patient(self) -> Self {
        self.set("wait.pickup=10s").set("wait.stall=20s")
    }

    pub fn build(self) -> World {
        let disk = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().expect("temporary directory");
        let shm = tempfile::Builder::new().prefix("monarch-e2e-").tempdir_in("/dev/shm").expect("/dev/shm");
        let real = fs::canonicalize(disk.path()).expect("own directory");
        let backing = if self.memory { shm.path().join("data") } else { real.join("data") };
        let scratch = real.join("scratch");
        let runtime = shm.path().join("run");
        for dir in [&scratch, &runtime] {
            fs::create_dir(dir).expect("own directory");
        }
        let mut world = World {
            keeper: None,
            pfs: None,
            root: backing.clone(),
            backing,
            scratch,
            tier: self.tier_dir.unwrap_or_else(|| shm.path().join("tier")),
            tier_size: self.tier_size,
            second: self.second_tier.map(|size| (self.second_dir.unwrap_or_else(|| real.join("second")), size)),
            runtime,
            set: self.set,
            _dirs: [disk, shm],
        };
        let maker = self.maker.unwrap_or_else(|| {
            let (files, size) = (self.files.to_string(), self.size.to_string());
            world.python("mkdata.py").args(["--files", &files, "--size", &size]).args(self.data)
        });
        world.bare(&maker.arg(&world.backing)).good();
        if self.fodder {
            world.bare(&world.program("changer").arg("prepare").arg(&world.backing)).good();
            world.bare(&world.python("changer.py").arg("prepare").arg(&world.backing)).good();
        }
        if let Some(shape) = self.pfs {
            let mount = real.join("pfs");
            fs::create_dir(&mount).expect("own directory");
            let b = Slowfs::builder(&world.backing, &mount).program(built("slowfs")).attr_ttl(Duration::from_secs(600));
            let b = shape(b.meta_latency(Duration::ZERO).data_latency(Duration::ZERO).allow_other());
            world.pfs = Some(b.spawn().expect("slowfs"));
            world.root = mount;
        }
        world
    }
}

/// A private world for one test.
pub struct World {
    keeper: Option<Running>,
    pfs: Option<Slowfs>,
    root: PathBuf,
    backing: PathBuf,
    scratch: PathBuf,
    tier: PathBuf,
    tier_size: String,
    second: Option<(PathBuf, String)>,
    runtime: PathBuf,
    set: Vec<String>,
    _dirs: [TempDir; 2],
}

impl World {
    pub fn plan() -> Plan {
        Plan {
            data: vec![],
            maker: None,
            files: 60,
            size: 40_000,
            fodder: false,
            memory: false,
            pfs: Some(Box::new(|b| b)),
            tier_size: "256MiB".to_owned(),
            tier_dir: None,
            second_tier: None,
            second_dir: None,
            set: std::env::var("MONARCH_E2E_SET")
                .map_or_else(|_| vec![], |s| s.split(',').map(str::to_owned).collect()),
        }
    }

    /// What jobs read: the mount of the slow file system, or the directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The directory behind the slow file system.
    pub fn backing(&self) -> &Path {
        &self.backing
    }
    /// An empty directory on disk; also `TMPDIR` of the jobs.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }
    pub fn tier(&self) -> &Path {
        &self.tier
    }
    /// The second tier.
    pub fn second(&self) -> &Path {
        self.second.as_ref().map(|(dir, _)| dir.as_path()).expect("a world with two tiers")
    }
    /// Another capacity for the next agent.
    pub fn resize_tier(&mut self, size: &str) {
        size.clone_into(&mut self.tier_size);
    }
    /// A setting of the next agent, `KEY=VALUE`; it replaces one of that key.
    pub fn set(&mut self, setting: &str) {
        let key = setting.split('=').next();
        self.set.retain(|s| s.split('=').next() != key);
        self.set.push(setting.to_owned());
    }
    /// Base of the runtime directories.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }
    /// The slow file system.
    pub fn pfs(&self) -> &Slowfs {
        self.pfs.as_ref().expect("a world with a slow file system")
    }

    /// A program of tests/programs.
    pub fn program(&self, name: &str) -> Job {
        Job::new(programs().join(name))
    }
    pub fn python(&self, script: &str) -> Job {
        Job::new("python3").arg(sources().join(script))
    }
    /// Sections of `tools.sh` over the root.
    pub fn tools(&self, sections: &[&str]) -> Job {
        Job::new(sources().join("tools.sh")).arg(&self.root).args(sections)
    }

    fn command(&self, program: impl AsRef<OsStr>, job: &Job) -> Command {
        let mut c = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MONARCH") || name == "LD_PRELOAD" || name == "LD_AUDIT" {
                c.env_remove(name);
            }
        }
        c.env("TMPDIR", &self.scratch).envs(job.env.iter().map(|(k, v)| (k, v)));
        c.current_dir(job.dir.as_deref().unwrap_or(&self.scratch));
        c
    }

    /// The words by which a command of Monarch finds this world's root, tiers and settings.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--root".into(), self.root.clone().into()];
        let first = Some((&self.tier, &self.tier_size));
        for (dir, size) in first.into_iter().chain(self.second.as_ref().map(|(dir, size)| (dir, size))) {
            let mut tier = dir.clone().into_os_string();
            tier.push(":");
            tier.push(size);
            words.extend(["--tier".into(), tier]);
        }
        let mut runtime = OsString::from("runtime_dir=");
        runtime.push(&self.runtime);
        words.extend(["--set".into(), runtime, "--set".into(), "dataset.min_file_age=0s".into()]);
        // Most tests are about copies, not about which of them are made: all are. `never_slower`
        // and `working_set` set `auto`, the default.
        if !self.set.iter().any(|s| s.starts_with("prefetch.ahead=")) {
            words.extend(["--set".into(), "prefetch.ahead=all".into()]);
        }
        words.extend(self.set.iter().flat_map(|s| ["--set".into(), s.into()]));
        words
    }

    /// A command of Monarch, with more words behind it.
    pub fn monarch(&self, command: &str) -> Command {
        let mut c = self.command(built("monarch"), &Job::new("").env("MONARCH_RUNTIME_DIR", &self.runtime));
        c.arg(command);
        c
    }

    /// `monarch run` with the job behind it.
    pub fn monarch_run(&self, job: &Job) -> Command {
        let mut c = self.command(built("monarch"), job);
        c.arg("run").arg("--quiet").args(self.words());
        c.args(&job.options).arg("--").args(&job.words);
        c
    }

    /// Runs a job without Monarch.
    #[track_caller]
    pub fn bare(&self, job: &Job) -> Ended {
        self.start_bare(job).end()
    }

    /// Starts a job without Monarch.
    pub fn start_bare(&self, job: &Job) -> Running {
        let mut c = self.command(&job.words[0], job);
        c.args(&job.words[1..]);
        Running::new(c)
    }

    /// Starts a job under `monarch run`.
    pub fn start(&self, job: &Job) -> Running {
        Running::new(self.monarch_run(job))
    }

    /// Starts a job that begins when the index is ready: files opened before are read from the PFS.
    /// Its output has a line `ready` in front.
    #[track_caller]
    pub fn start_indexed(&self, job: &Job) -> Running {
        let mut running = self.start(&job.announced());
        running.until_written("ready");
        self.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
        running.begin();
        running
    }

    /// Runs a job under `monarch run`.
    #[track_caller]
    pub fn run(&self, job: &Job) -> Ended {
        self.start(job).end()
    }

    /// Runs a job bare and under `monarch run`: status, output and errors must be the same.
    #[track_caller]
    pub fn same(&self, job: &Job) -> Ended {
        let (bare, ours) = (self.bare(job), self.run(job));
        assert_same(&bare, &ours);
        ours
    }

    /// Starts a job that does nothing, so that the agent stays.
    pub fn keep(&mut self) {
        if self.keeper.is_none() {
            let mut keeper = self.start(&Job::new("sh").args(["-c", "echo kept; cat"]));
            keeper.until_written("kept");
            self.keeper = Some(keeper);
        }
    }

    /// Ends that job.
    pub fn release(&mut self) {
        drop(self.keeper.take().map(Running::end));
    }

    /// Waits until every file has a copy. The agent is kept from now on.
    #[track_caller]
    pub fn settle(&mut self) {
        self.settle_but(0);
    }

    /// [`World::settle`] when a job has changed, or tried to change, up to `changed` files: they
    /// have no copies.
    #[track_caller]
    pub fn settle_but(&mut self, changed: u64) {
        self.keep();
        let want = inodes(&self.backing) - changed;
        self.until("all copies", |s| s.tiers.iter().map(|t| t.files).sum::<u64>() >= want);
    }

    /// Where the copies lie.
    pub fn copies(&self) -> PathBuf {
        let status = self.agent().expect("an agent");
        status.tiers[0].path.join("copies")
    }

    /// Polls the agent's status until `done` says so.
    #[track_caller]
    pub fn until(&self, what: &str, done: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + JOB_TIMEOUT;
        loop {
            let status = self.agent();
            if status.as_ref().is_some_and(&done) {
                return;
            }
            assert!(Instant::now() < deadline, "still waiting for {what}: {status:#?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The status of this world's agent, if it lives.
    pub fn agent(&self) -> Option<Status> {
        // An agent that lives and does not answer in time, on a busy machine, is asked again.
        for _ in 0..3 {
            let out = self.monarch("status").arg("--json").output().expect("monarch status");
            let all: Vec<Status> = serde_json::from_slice(&out.stdout).unwrap_or_default();
            let found = all.into_iter().find(|s| s.runtime_dir.starts_with(&self.runtime));
            if found.is_some() || !String::from_utf8_lossy(&out.stderr).contains("does not answer") {
                return found;
            }
        }
        None
    }

    /// A counter of the jobs, by its name in `monarch status`.
    pub fn counter(&self, name: &str) -> u64 {
        self.agent().and_then(|s| s.counters.get(name).copied()).unwrap_or(0)
    }

    /// The log of the agent.
    pub fn log(&self) -> String {
        let mut text = String::new();
        for private in fs::read_dir(&self.runtime).into_iter().flatten().flatten() {
            for dir in fs::read_dir(private.path()).into_iter().flatten().flatten() {
                text += &fs::read_to_string(dir.path().join("agent.log")).unwrap_or_default();
            }
        }
        text
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("agent's log:\n{}", tail(&self.log()));
        }
        let agent = self.agent().map(|s| s.pid as i32);
        self.keeper = None;
        if let Some(pid) = agent {
            end_process(pid);
        }
        self.pfs = None;
    }
}

/// Ends an agent, which is no child of this process: by SIGTERM, then by SIGKILL.
fn end_process(pid: i32) {
    // SAFETY: an agent of this world, which answered a moment ago.
    let signal = |s| unsafe { libc::kill(pid, s) == 0 };
    let deadline = Instant::now() + Duration::from_secs(5);
    signal(libc::SIGTERM);
    while signal(0) && !is_zombie(pid) {
        if Instant::now() > deadline {
            signal(libc::SIGKILL);
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|s| s.rsplit(')').next().is_some_and(|r| r.starts_with(" Z")))
}

/// Asserts the same status, output and errors.
#[track_caller]
pub fn assert_same(bare: &Ended, ours: &Ended) {
    let end = |e: &Ended| (e.status.code(), e.status.signal());
    assert!(
        end(bare) == end(ours),
        "{}, not {}\n{}{}",
        ours.status,
        bare.status,
        tail(&ours.text()),
        tail(&ours.errors())
    );
    for (what, a, b) in [("output", &bare.out, &ours.out), ("errors", &bare.err, &ours.err)] {
        if a != b {
            panic!("another {what}:\n{}", difference(a, b));
        }
    }
}

/// The first lines that differ.
fn difference(a: &[u8], b: &[u8]) -> String {
    let (a, b) = (String::from_utf8_lossy(a).into_owned(), String::from_utf8_lossy(b).into_owned());
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let mut text = format!("{} lines bare, {} lines ours\n", a.len(), b.len());
    let none = "(nothing)";
    let differ = (0..a.len().max(b.len())).filter(|&i| a.get(i) != b.get(i));
    for i in differ.take(20) {
        // The heading of the line: some programs print one.
        let of = a.get(..i).and_then(|before| before.iter().rfind(|line| line.starts_with("## "))).unwrap_or(&"");
        text += &format!("{of}\n- {}\n+ {}\n", a.get(i).unwrap_or(&none), b.get(i).unwrap_or(&none));
    }
    text
}

/// Regular files below a directory, each inode once.
pub fn inodes(dir: &Path) -> u64 {
    fn walk(dir: &Path, seen: &mut HashSet<u64>) {
        for e in fs::read_dir(dir).expect("own directory").flatten() {
            let m = e.metadata().expect("own file");
            if m.is_dir() {
                walk(&e.path(), seen);
            } else if m.is_file() {
                seen.insert(m.ino());
            }
        }
    }
    let mut seen = HashSet::new();
    walk(dir, &mut seen);
    seen.len() as u64
}
