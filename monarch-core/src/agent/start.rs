//! Starting an agent: locks, tiers, runtime directory, shared memory, state of an earlier agent.
//!
//! The tiers come first: an agent that is about to end holds their locks until its process is gone,
//! so that nothing of the runtime directory is touched by two.

use super::exit_status::{ENDING, TAKEN};
use super::names::Names;
use super::outputs::Outputs;
use super::parts::Parts;
use super::roots::Roots;
use super::runtime_dir;
use super::stop::Stop;
use crate::cluster::node::Node;
use crate::config::{Compression, Config, Persist, Spread, Tier, WorkingSets};
use crate::engine::{Engines, Limits};
use crate::held_dir::HeldDir;
use crate::metrics::Latencies;
use crate::sharing::{LocalNames, LocalOutputs, LocalStore};
use crate::shm::{self, ControlParams};
use crate::tier::{Codec, Copy, PackingOptions, TierDir, TierError};
use crate::tiering::{TieringEngine, TieringOptions, TieringParts};
use monarch_abi::control::ControlMap;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent with the same tiers is running.
    #[error("an agent for these tiers is already running ({0})")]
    Running(PathBuf),
    /// An agent in another mount namespace died, and its jobs still run: behind its roots' paths
    /// may lie something else here.
    #[error("jobs in another container or mount namespace use these tiers ({0}); give this one other directories")]
    Elsewhere(PathBuf),
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

impl StartError {
    /// Exit status of the agent's process: [`TAKEN`], [`ENDING`], or 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Tier(TierError::Locked { ending: true, .. }) => ENDING,
            Self::Running(_) | Self::Elsewhere(_) | Self::Tier(TierError::Locked { .. }) => TAKEN,
            _ => 1,
        }
    }
}

/// Files on their way from other nodes at a time: as many as from the PFS, within these bounds.
const MIN_REMOTE_COPIES: usize = 8;
const MAX_REMOTE_COPIES: usize = 64;

/// Rate that is assumed of the PFS before a large file was copied.
const INITIAL_RATE_BYTES_PER_S: u64 = 1 << 30;

/// Takes the locks, opens the tiers, makes or adopts the control block.
pub(super) fn parts(config: &Config, log: bool) -> Result<Parts, StartError> {
    let tiers = config.tiers.iter().map(|t| open_tier(config, t)).collect::<Result<Vec<_>, _>>()?;
    let (dir, lock) = runtime_dir(config)?;
    if log {
        log_to(&dir);
    }
    let (node, alone_because) = node(config).map_or_else(|why| (None, Some(why)), |node| (node, None));
    let seed = match &node {
        // The same on all nodes, and for the next job.
        Some(node) => take_over(node.seed(), &tiers),
        None => common_seed(&tiers),
    };
    let left = shm::open_control(&dir, runtime_dir::CONTROL).ok().filter(is_adoptable);
    let adopting = left.is_some();
    if left.is_some_and(|ctl| !same_mounts(&ctl)) {
        return Err(StartError::Elsewhere(dir.path().to_owned()));
    }
    let ctl = match left {
        Some(ctl) => ctl,
        None => shm::create_control(&dir, control_params()).map_err(StartError::Runtime)?,
    };
    set_parameters(&ctl, config);
    publish_tiers(&dir, &ctl, &tiers)
        .map_err(|source| StartError::Io { what: "cannot enter the tiers into shared memory", source })?;
    let stop = Stop::default();
    if !adopting {
        // Those of an agent before name other entries.
        let _ = dir.remove_tree(monarch_abi::hint::DIR);
    }
    let _ = dir.make_dir(monarch_abi::hint::DIR);
    let hints = dir.dir(monarch_abi::hint::DIR).ok();
    let tiering = Arc::new(tiering(config, ctl, tiers, hints, stop.flag().clone()));
    find_copies(&tiering);
    crate::sys::give_back_memory();
    ctl.ctl.inflight.iter().for_each(|i| i.file.store(0, Ordering::Relaxed));
    ctl.ctl.sleepers.store(0, Ordering::SeqCst);
    let roots = Arc::new(Roots::new(&dir, ctl, &tiering, seed, node.clone()));
    if let Some(node) = &node {
        node.adopts(adopting);
        let store: Arc<dyn LocalStore> = tiering.clone();
        tiering.shared.peers.join(node.connect(&store));
        node.serve(stop.flag()).map_err(|source| StartError::Io { what: "cannot talk to other nodes", source })?;
    }
    if adopting {
        roots.adopt(config);
    } else {
        roots.remove_leftovers();
    }
    if let Some(node) = &node {
        node.adopts(false);
    }
    let outputs = Arc::new(Outputs::new(&dir, ctl, &tiering, config, node.as_deref()));
    if let Some(node) = &node {
        let of_here: Arc<dyn LocalOutputs> = outputs.clone();
        node.connect_outputs(&of_here);
    }
    outputs.take_over();
    let names = Names::new(ctl, &tiering, node.clone(), config.index.max_memory);
    if let Some(node) = &node {
        let of_here: Arc<dyn LocalNames> = names.clone();
        node.names().set(&of_here);
    }
    Ok(Parts { dir, lock, ctl, tiering, roots, outputs, names, node, alone_because, stop })
}

/// Opens a tier and takes its lock.
fn open_tier(config: &Config, t: &Tier) -> Result<TierDir, TierError> {
    let mut tier = TierDir::open(&t.name, &t.path, t.capacity, t.keep_free)?;
    tier.options.stays = t.persist == Persist::Node;
    tier.options.packing = packing(t);
    tier.options.for_decoded = for_passing(config, t);
    tier.check_format()?;
    Ok(tier)
}

/// How copies are packed in a tier.
fn packing(t: &Tier) -> Option<PackingOptions> {
    let codec = match t.compression {
        Compression::None => return None,
        Compression::Lz4 => Some(Codec::Lz4),
        Compression::Zstd => Some(Codec::Zstd),
        Compression::Auto => None,
    };
    Some(PackingOptions { codec, min_ratio: t.min_ratio })
}

/// This node among others. If it cannot share, it serves its job alone: that costs only what
/// sharing would have saved, and the error says why.
fn node(config: &Config) -> Result<Option<Arc<Node>>, String> {
    Node::start(config).map(|node| node.map(Arc::new)).map_err(|e| {
        tracing::error!(error = %e, "no sharing with other nodes");
        e.to_string()
    })
}

/// The part of a tier that copies of files of other nodes have in any case, if they take whatever
/// room is left.
fn elastic(config: &Config) -> Option<f64> {
    let compresses = config.tiers.iter().any(|t| t.compression != Compression::None);
    let is = !config.cluster.is_alone() && config.cluster.placement != Spread::Sharded && !compresses;
    is.then_some(config.cluster.transient_share)
}

/// Bytes of a tier for transient copies: decoded ones, and those of other nodes' files.
fn for_passing(config: &Config, tier: &Tier) -> u64 {
    if config.cluster.is_alone() {
        return tier.decompression_share;
    }
    if elastic(config).is_some() {
        return tier.capacity;
    }
    tier.decompression_share.max((tier.capacity as f64 * config.cluster.transient_share) as u64)
}

/// The seed of path hashes, and so of the names of copies: that of the last tier which has one and
/// whose copies stay for the next job, as most of them are there. The other tiers take it over.
fn common_seed(tiers: &[TierDir]) -> u64 {
    let last = |fits: fn(&&TierDir) -> bool| tiers.iter().rfind(fits);
    let of = last(|t| t.options.stays && !t.seed.is_new)
        .or_else(|| last(|t| !t.seed.is_new))
        .or_else(|| last(|t| t.options.stays));
    let seed = of.or(tiers.first()).map_or(0, |t| t.seed.value);
    take_over(seed, tiers)
}

fn take_over(seed: u64, tiers: &[TierDir]) -> u64 {
    tiers.iter().filter(|t| t.seed.value != seed).for_each(|t| t.keep_seed(seed));
    seed
}

/// Starts the threads of an agent: copiers and periodic work.
pub(super) fn run(parts: &Parts) {
    super::maintenance::pulse(parts.ctl, &parts.tiering, parts.stop.clone());
    super::maintenance::watch_site(parts.ctl, parts.stop.clone());
    parts.ctl.ctl.incarnation.fetch_add(1, Ordering::AcqRel);
    parts.tiering.run();
    super::maintenance::logs(&parts.tiering, parts.stop.clone());
    super::maintenance::promote(&parts.tiering, parts.stop.clone());
    super::mounts::watch(&parts.tiering, parts.stop.clone());
    super::maintenance::decode(&parts.tiering, parts.stop.clone());
    super::maintenance::readers(&parts.tiering, parts.stop.clone());
}

fn tiering(
    config: &Config,
    ctl: ControlMap<'static>,
    tiers: Vec<TierDir>,
    hint_dir: Option<HeldDir>,
    stop: Arc<AtomicBool>,
) -> TieringEngine {
    let limits = Arc::new(Limits::new(config.source.bandwidth_limit, config.source.iops_limit.map(|n| n as u64)));
    let engines = Engines::choose(config, &limits, &stop);
    let seed = tiers.first().map_or(0, |t| t.seed.value);
    let policy = monarch_policies::by_name(config.placement.policy.name(), seed)
        .unwrap_or_else(|| Box::new(monarch_policies::FirstEpoch));
    let options = TieringOptions {
        max_inflight: config.source.max_inflight,
        max_demands: config.source.max_demands.max(config.source.max_inflight),
        min_file_age: config.dataset.min_file_age,
        prefetch: config.prefetch.enabled,
        ahead: config.prefetch.ahead,
        working_sets: config.prefetch.working_set == WorkingSets::Auto,
        backoff: config.source.backoff,
        max_memory_pressure: config.prefetch.max_memory_pressure,
        direct: config.io.direct,
        elastic: elastic(config),
        remote: if config.cluster.is_alone() {
            0
        } else {
            config.source.max_inflight.clamp(MIN_REMOTE_COPIES, MAX_REMOTE_COPIES)
        },
    };
    let latencies = if config.metrics.is_on() { Latencies::on() } else { Latencies::off() };
    let purge_age = config.source.purge_age;
    TieringEngine::new(TieringParts {
        ctl,
        tiers,
        engines,
        limits,
        policy,
        latencies,
        hint_dir,
        purge_age,
        options,
        stop,
    })
}

/// Lists the copies that are in the tiers already. Those beyond this job's capacity are dropped.
fn find_copies(tiering: &TieringEngine) {
    let mut unclaimed = tiering.orphans();
    for (at, tier) in tiering.shared.cx.tiers.iter().enumerate() {
        let found = |c: Copy| {
            // The same copy in two tiers: the slower one goes.
            if !unclaimed.add(at, &c) {
                if c.packed {
                    let _ = tier.packed.evict(c.name, c.size);
                } else {
                    tier.trash.evict(c.name, c.size);
                }
            }
        };
        match tier.recover(found) {
            Ok(()) => {
                let u = tier.space.ledger.usage();
                let (dropped, bytes) =
                    unclaimed.make_room(at, u.used.saturating_sub(u.capacity), &tiering.shared.cx.tiers);
                if dropped > 0 {
                    tracing::info!(
                        tier = tier.name,
                        dropped,
                        bytes,
                        "copies dropped: the capacity is smaller than before"
                    );
                }
            }
            Err(e) => {
                tracing::error!(tier = tier.name, error = %e, "the tier cannot be read and is not used");
                tier.space.give_up();
            }
        }
    }
}

/// Whether the control block of an earlier agent can be taken over: not if that agent could read
/// other files than this one (the processes of the job compare themselves with what is written
/// there), and not if it was about to end, because what jobs have changed since then was not marked
/// anywhere.
fn is_adoptable(ctl: &ControlMap<'static>) -> bool {
    ctl.ctl.bypassed.load(Ordering::Acquire) == 0 && shm::is_of_our_rights(ctl)
}

/// Whether the agent that made a control block sees the mounts that this process sees.
pub(crate) fn same_mounts(ctl: &ControlMap<'_>) -> bool {
    let (c, here) = (ctl.ctl, control_params());
    (c.mnt_ns, c.slash_dev, c.slash_ino) == (here.mnt_ns, here.slash.0, here.slash.1)
}

/// The first base in which a runtime directory can be made, with the lock of the living agent.
fn runtime_dir(config: &Config) -> Result<(Arc<HeldDir>, OwnedFd), StartError> {
    let key = runtime_dir::agent_key(config);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in runtime_dir::bases(config) {
        let attempt = runtime_dir::make(&base, &key).and_then(|dir| {
            let lock = dir.open_file(runtime_dir::LOCK, OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR)?;
            Ok((Arc::new(dir), lock))
        });
        let (dir, lock) = match attempt {
            Ok(made) => made,
            Err(e) => {
                last = io::Error::new(e.kind(), format!("{}: {e}", base.display()));
                continue;
            }
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(StartError::Running(dir.path().to_owned()));
        }
        let need = monarch_abi::control::CONTROL_LEN as u64 * 2;
        let free = rustix::fs::fstatvfs(dir.fd()).map_or(0, |v| v.f_bavail * v.f_frsize);
        if free >= need || dir.has(runtime_dir::CONTROL) {
            return Ok((dir, lock));
        }
        dir.wipe();
        last = io::Error::new(io::ErrorKind::StorageFull, format!("{} is full", base.display()));
    }
    Err(StartError::Runtime(last))
}

/// Sends the log to a file in the runtime directory from here on; before, it goes to the process
/// that started the agent.
fn log_to(dir: &HeldDir) {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    match dir.open_file(runtime_dir::LOG, flags, Mode::RUSR | Mode::WUSR) {
        Ok(log) => drop(rustix::stdio::dup2_stderr(&log)),
        Err(e) => {
            tracing::warn!(dir = %dir.path().display(), error = %e, "the log cannot be written; the agent runs without one");
        }
    }
}

fn control_params() -> ControlParams {
    let ino = |p: &str| std::fs::metadata(p).map_or(0, |m| m.ino());
    let slash = std::fs::metadata("/").map_or((0, 0), |m| (m.dev(), m.ino()));
    let [mnt_ns, user_ns, pid_ns] = ["mnt", "user", "pid"].map(|kind| ino(&format!("/proc/self/ns/{kind}")));
    ControlParams { mnt_ns, slash, user_ns, pid_ns }
}

/// Clocks and bounds that the shim needs.
fn set_parameters(ctl: &ControlMap<'_>, config: &Config) {
    let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    let c = ctl.ctl;
    c.pickup_ms.store(ms(config.wait.pickup), Ordering::Relaxed);
    c.stall_ms.store(ms(config.wait.stall), Ordering::Relaxed);
    c.max_wait_ms.store(ms(config.wait.max_wait), Ordering::Relaxed);
    c.complete_ms.store(ms(config.wait.complete), Ordering::Relaxed);
    c.map_ms.store(ms(config.wait.map), Ordering::Relaxed);
    if c.rate.load(Ordering::Relaxed) == 0 {
        c.rate.store(INITIAL_RATE_BYTES_PER_S, Ordering::Relaxed);
    }
}

/// Enters the tiers, unless an earlier agent did.
fn publish_tiers(dir: &HeldDir, ctl: &ControlMap<'_>, tiers: &[TierDir]) -> io::Result<()> {
    let known = ctl.tiers().len();
    for (at, tier) in tiers.iter().enumerate() {
        let Some(slot) = ctl.ctl.tiers.get(at) else {
            return Err(io::Error::other(format!("at most {} tiers", monarch_abi::control::MAX_TIERS)));
        };
        slot.dev.store(tier.id().0, Ordering::Relaxed);
        slot.ino.store(tier.id().1, Ordering::Relaxed);
        let text = crate::tier::bytes(&tier.path);
        if at >= known || ctl.str(&slot.path) != text {
            shm::put_str(dir, ctl, &slot.path, text)?;
        }
        ctl.ctl.tiers_len.store(at as u32 + 1, Ordering::Release);
    }
    let noexec = tiers.iter().filter(|tier| is_noexec(tier)).count();
    ctl.ctl.libraries_off.store(u32::from(noexec == tiers.len()), Ordering::Relaxed);
    Ok(())
}

/// Whether the loader cannot map shared libraries from a tier.
fn is_noexec(tier: &TierDir) -> bool {
    let flags = rustix::fs::statvfs(&tier.path).map(|v| v.f_flag);
    let is = flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    if is {
        tracing::warn!(tier = tier.name, "the tier is mounted noexec: shared libraries are left to the PFS");
    }
    is
}
