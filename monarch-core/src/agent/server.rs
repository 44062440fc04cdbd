//! The agent's life: start, control socket, end.
//!
//! It holds two kinds of locks for as long as it lives: one in its runtime directory, by which the shim and `monarch run` tell
//! that it is alive, and one per tier. It ends a short while after the last job has gone, or when it is told to. Memory
//! tiers are emptied then; copies on disk stay for the next job, which finds them by their names.

use super::driver::{Driver, DriverOptions};
use super::place;
use super::protocol::{Reply, Request, Status, TierStatus};
use super::roots::Roots;
use super::upkeep;
use crate::config::{Config, Medium, Policy as PolicyName};
use crate::engine::{Limits, ThreadsEngine};
use crate::shm::{self, ControlParams};
use crate::tier::{TierDir, TierError};
use monarch_abi::control::{ControlMap, Counter};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

/// How long an agent without jobs waits for another one.
const LINGER: Duration = Duration::from_secs(3);

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent with the same tiers is running.
    #[error("an agent for these tiers is already running ({0})")]
    Running(PathBuf),
    /// A tier cannot be used.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// No runtime directory can be made.
    #[error("no runtime directory: {0}; set runtime_dir (MONARCH_RUNTIME_DIR) to a private local directory")]
    Runtime(io::Error),
    /// Something else failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    dir: PathBuf,
    control: PathBuf,
    ctl: ControlMap<'static>,
    config: Config,
    driver: Arc<Driver>,
    roots: Arc<Roots>,
    stop: Arc<AtomicBool>,
    jobs: AtomicUsize,
    changed: Notify,
    started: Instant,
    _lock: OwnedFd,
}

impl Agent {
    /// Starts an agent for `config`: takes its locks, opens the tiers, makes or adopts the control block, starts the
    /// copiers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config) -> Result<Arc<Self>, StartError> {
        let (dir, lock) = runtime_dir(config)?;
        let mut tiers = Vec::new();
        for t in &config.tiers {
            tiers.push(TierDir::open(&t.name, &t.path, t.capacity, t.keep_free)?);
        }
        let seed = tiers.first().map_or(0, |t| t.seed);
        let control = dir.join(place::CONTROL);
        let (ctl, adopting) = match shm::open_control(&control) {
            Ok(ctl) => (ctl, true),
            Err(_) => {
                let made = shm::create_control(&control, control_params());
                (made.map_err(StartError::Runtime)?, false)
            }
        };
        set_parameters(&ctl, config);
        publish_tiers(&control, &ctl, &tiers)
            .map_err(|source| StartError::Io { what: "cannot enter the tiers into shared memory", source })?;
        let stop = Arc::new(AtomicBool::new(false));
        let limits = Arc::new(Limits::new(config.source.bandwidth_limit, config.source.iops_limit.map(|n| n as u64)));
        let engine = Box::new(ThreadsEngine::new(config.source.io_size, limits.clone(), stop.clone()));
        let policy: Box<dyn monarch_policies::Policy> = match config.placement.policy {
            PolicyName::FirstEpoch => Box::new(monarch_policies::FirstEpoch),
        };
        let options = DriverOptions {
            max_inflight: config.source.max_inflight,
            settle: config.dataset.settle,
            prefetch: config.prefetch.enabled,
            backoff: config.source.backoff,
        };
        let driver = Arc::new(Driver::new(ctl, tiers, engine, limits, policy, options, stop.clone()));
        find_copies(&driver);
        ctl.ctl.inflight.iter().for_each(|i| i.file.store(0, Ordering::Relaxed));
        ctl.ctl.sleepers.store(0, Ordering::SeqCst);
        let roots = Arc::new(Roots::new(control.clone(), ctl, driver.clone(), seed));
        if adopting {
            roots.adopt(config);
        }
        ctl.ctl.incarnation.fetch_add(1, Ordering::AcqRel);
        driver.run();
        Ok(Arc::new(Self {
            dir,
            control,
            ctl,
            config: config.clone(),
            driver,
            roots,
            stop,
            jobs: AtomicUsize::new(0),
            changed: Notify::new(),
            started: Instant::now(),
            _lock: lock,
        }))
    }

    /// Serves the socket until the agent is told to end or has had no job for a while.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub async fn serve(self: Arc<Self>) -> io::Result<()> {
        let path = self.dir.join(place::SOCKET);
        let _ = std::fs::remove_file(&path);
        let listener = bind(&path)?;
        let mut upkeep_at = tokio::time::interval(upkeep::PERIOD);
        upkeep_at.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let mut idle_since = Some(Instant::now());
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let me = self.clone();
                    tokio::spawn(async move { me.connection(stream).await });
                },
                _ = upkeep_at.tick() => {
                    let driver = self.driver.clone();
                    let _ = tokio::task::spawn_blocking(move || upkeep::round(&driver)).await;
                    if !self.control.exists() {
                        tracing::error!(dir = %self.dir.display(), "the runtime directory was wiped; ending, so that a new agent can start");
                        break;
                    }
                },
                _ = term.recv() => break,
                () = self.changed.notified() => {},
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            idle_since = match self.jobs.load(Ordering::Acquire) {
                0 => idle_since.or_else(|| Some(Instant::now())),
                _ => None,
            };
            if idle_since.is_some_and(|t| t.elapsed() > LINGER) {
                tracing::info!("no job left; ending");
                break;
            }
        }
        self.shut_down();
        Ok(())
    }

    /// One connection: requests until it closes. An attachment ends with it.
    async fn connection(self: Arc<Self>, stream: UnixStream) {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        let mut attached = false;
        while let Ok(Some(line)) = lines.next_line().await {
            let reply = match serde_json::from_str::<Request>(&line) {
                Ok(Request::Attach { config, pid }) => {
                    let reply = self.attach(&config, pid);
                    if matches!(reply, Reply::Attached { .. }) && !attached {
                        attached = true;
                        self.jobs.fetch_add(1, Ordering::AcqRel);
                    }
                    reply
                }
                Ok(Request::Status) => Reply::Status(Box::new(self.status())),
                Ok(Request::Stop) => {
                    self.stop.store(true, Ordering::Relaxed);
                    Reply::Stopping
                }
                Err(e) => Reply::Error { message: format!("not a request: {e}") },
            };
            let Ok(mut text) = serde_json::to_vec(&reply) else { break };
            text.push(b'\n');
            let sent = write.write_all(&text).await;
            self.changed.notify_one();
            if sent.is_err() {
                break;
            }
        }
        if attached {
            self.jobs.fetch_sub(1, Ordering::AcqRel);
        }
        self.changed.notify_one();
    }

    fn attach(&self, config: &Config, pid: u32) -> Reply {
        if let Some(message) = conflict(&self.config, config) {
            return Reply::Error { message };
        }
        match self.roots.attach(config) {
            Ok(()) => {
                tracing::info!(pid, roots = config.dataset.roots.len(), "job attached");
                Reply::Attached { control: self.control.clone() }
            }
            Err(e) => Reply::Error { message: format!("cannot serve the roots: {e}") },
        }
    }

    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let f = &self.driver.figures;
        let figures = [
            ("copied_on_demand", &f.demanded),
            ("copied_ahead", &f.prefetched),
            ("bytes_copied", &f.bytes),
            ("adopted", &f.adopted),
            ("refused", &f.refused),
            ("changed", &f.changed),
            ("source_errors", &f.source_errors),
            ("tier_errors", &f.tier_errors),
            ("evicted", &f.evicted),
        ];
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            incarnation: self.ctl.ctl.incarnation.load(Ordering::Relaxed),
            runtime_dir: self.dir.clone(),
            jobs: self.jobs.load(Ordering::Relaxed),
            engine: self.driver.engine().to_owned(),
            policy: self.driver.policy().to_owned(),
            roots: self.roots.status(),
            tiers: self.driver.tiers.iter().map(tier_status).collect(),
            counters: counters(&self.ctl),
            agent: figures.iter().map(|(n, v)| ((*n).to_owned(), v.load(Ordering::Relaxed))).collect(),
        }
    }

    /// Lets go of everything in an order that never shows readers something half-gone.
    fn shut_down(&self) {
        self.ctl.ctl.bypassed.store(1, Ordering::Release);
        self.ctl.ctl.dead.store(self.ctl.ctl.incarnation.load(Ordering::Relaxed), Ordering::Release);
        self.roots.stop();
        self.driver.stop();
        for (tier, config) in self.driver.tiers.iter().zip(&self.config.tiers) {
            if config.medium == Medium::Memory {
                tier.remove_all();
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
        tracing::info!("ended");
    }
}

fn tier_status(t: &TierDir) -> TierStatus {
    let u = t.ledger.usage();
    TierStatus {
        name: t.name.clone(),
        path: t.path.clone(),
        capacity: u.capacity,
        used: u.used,
        reserved: u.reserved,
        files: u.files,
        resting: t.resting(),
    }
}

/// All counters by name.
#[must_use]
pub fn counters(ctl: &ControlMap<'_>) -> std::collections::BTreeMap<String, u64> {
    use Counter as C;
    [
        ("hits", C::Hits),
        ("hit_bytes", C::HitBytes),
        ("waited", C::Waited),
        ("absent", C::Absent),
        ("refused", C::Refused),
        ("changed", C::Changed),
        ("deadline", C::Deadline),
        ("unknown", C::Unknown),
        ("flags", C::Flags),
        ("vanished", C::Vanished),
        ("stats", C::Stats),
        ("lists", C::Lists),
        ("meta_kernel", C::MetaKernel),
        ("miss_bytes", C::MissBytes),
        ("wait_us", C::WaitMicros),
        ("large", C::Large),
    ]
    .into_iter()
    .map(|(n, c)| (n.to_owned(), ctl.total(c)))
    .collect()
}

/// Lists what lies in the tiers already.
fn find_copies(driver: &Driver) {
    let mut unclaimed = driver.unclaimed.lock().unwrap_or_else(PoisonError::into_inner);
    for (at, tier) in driver.tiers.iter().enumerate() {
        match tier.recover() {
            Ok(copies) => {
                for c in copies {
                    if unclaimed.insert(c.name, at).is_some() {
                        // The same copy in two tiers: the slower one goes.
                        tier.evict(c.name);
                        unclaimed.insert(c.name, at - 1);
                    }
                }
            }
            Err(e) => {
                tracing::warn!(tier = tier.name, error = %e, "the tier cannot be read; it rests");
                tier.note_failure();
            }
        }
    }
}

/// Why a second job cannot share this agent.
fn conflict(ours: &Config, theirs: &Config) -> Option<String> {
    for (a, b) in ours.tiers.iter().zip(&theirs.tiers) {
        let capacity_differs = a.capacity != b.capacity && !(a.capacity_is_default && b.capacity_is_default);
        if a.path != b.path || capacity_differs || a.keep_free != b.keep_free {
            return Some(format!(
                "another job of yours uses these tiers with other settings: {} {} with capacity {} and keep_free {}, this job \
                 asks for {} {} with {} and {}; give both jobs the same tiers, or different directories",
                a.name,
                a.path.display(),
                bytesize::ByteSize(a.capacity),
                bytesize::ByteSize(a.keep_free),
                b.name,
                b.path.display(),
                bytesize::ByteSize(b.capacity),
                bytesize::ByteSize(b.keep_free),
            ));
        }
    }
    None
}

/// The first base in which a runtime directory can be made, with the lock of the living agent.
fn runtime_dir(config: &Config) -> Result<(PathBuf, OwnedFd), StartError> {
    let key = place::agent_key(config);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in place::bases(config) {
        let attempt = place::make(&base, &key).and_then(|dir| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = rustix::fs::open(dir.join(place::LOCK), flags, Mode::RUSR | Mode::WUSR)?;
            Ok((dir, lock))
        });
        match attempt {
            Ok((dir, lock)) => {
                if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                    return Err(StartError::Running(dir));
                }
                let need = monarch_abi::control::CONTROL_LEN as u64 * 2;
                let free = rustix::fs::statvfs(&dir).map_or(0, |v| v.f_bavail * v.f_frsize);
                if free >= need || dir.join(place::CONTROL).exists() {
                    return Ok((dir, lock));
                }
                let _ = std::fs::remove_dir_all(&dir);
                last = io::Error::new(io::ErrorKind::StorageFull, format!("{} is full", base.display()));
            }
            Err(e) => last = e,
        }
    }
    Err(StartError::Runtime(last))
}

fn control_params() -> ControlParams {
    let ino = |p: &str| std::fs::metadata(p).map_or(0, |m| m.ino());
    let slash = std::fs::metadata("/").map_or((0, 0), |m| (m.dev(), m.ino()));
    ControlParams { mnt_ns: ino("/proc/self/ns/mnt"), slash }
}

/// Clocks and bounds that the shim needs.
fn set_parameters(ctl: &ControlMap<'_>, config: &Config) {
    let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    let c = ctl.ctl;
    c.pickup_ms.store(ms(config.wait.pickup), Ordering::Relaxed);
    c.stall_ms.store(ms(config.wait.stall), Ordering::Relaxed);
    c.max_wait_ms.store(ms(config.wait.max_wait), Ordering::Relaxed);
    c.large.store(config.source.chunk_threshold, Ordering::Relaxed);
    c.bypassed.store(0, Ordering::Release);
}

/// Enters the tiers, unless an earlier agent did.
fn publish_tiers(control: &Path, ctl: &ControlMap<'_>, tiers: &[TierDir]) -> io::Result<()> {
    let known = ctl.tiers().len();
    for (at, tier) in tiers.iter().enumerate() {
        let Some(slot) = ctl.ctl.tiers.get(at) else {
            return Err(io::Error::other(format!("at most {} tiers", monarch_abi::control::MAX_TIERS)));
        };
        slot.dev.store(tier.dev, Ordering::Relaxed);
        slot.ino.store(tier.ino, Ordering::Relaxed);
        let text = crate::tier::bytes(&tier.path);
        if at >= known || ctl.str(&slot.path) != text {
            shm::put_str(control, ctl, &slot.path, text)?;
        }
        ctl.ctl.tiers_len.store(at as u32 + 1, Ordering::Release);
    }
    Ok(())
}

/// Binds the socket; paths longer than `sun_path` go through the directory's descriptor.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if path.as_os_str().len() < 100 {
        return UnixListener::bind(path);
    }
    let dir = std::fs::File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
    UnixListener::bind(format!("/proc/self/fd/{fd}/{}", place::SOCKET))
}
