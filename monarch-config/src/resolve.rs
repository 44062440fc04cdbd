//! Turns the configuration as written into the configuration as meant.
//!
//! One function for each section. Roots and tiers, whose rules ask the machine, have modules of
//! their own.

mod cluster;
mod drain;
mod metrics;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use super::checks::AbsentRule;
use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::given::{Count, Given, Kind, Rate, Size};
use super::key::Key;
use super::model::{
    self, Amount, Cluster, Config, Consistency, Dataset, Direct, Distributed, Engine, Extent, Follow, Index, Io, Log,
    LogLevel, Placement, Policy, Prefetch, Source, Trust, Wait, WorkingSets,
};
use super::paths;
use super::raw::{
    RawCluster, RawConfig, RawDataset, RawDrain, RawIndex, RawIo, RawMetrics, RawPrefetch, RawRun, RawSource, RawWait,
};
use super::units::{HOUR, KIB, MIB, TIB, about};
use super::{outputs, roots, tiers};

/// The default of [`Source::max_demands`]: readers of a node with 8 processes of 32 workers.
const MAX_DEMANDS: usize = 256;
const DAY: Duration = Duration::from_hours(24);
/// The longest [`Source::purge_age`].
const MAX_PURGE_AGE: Duration = Duration::from_hours(24 * 3650);

/// Resolves the whole.
pub(super) fn resolve(cx: &mut Context<'_>, raw: &RawConfig) -> Result<Config, ConfigError> {
    let source = source(cx, raw.source.as_ref().unwrap_or(&RawSource::default()))?;
    let io = io(cx, raw.io.as_ref().unwrap_or(&RawIo::default()))?;
    let wait = wait(cx, raw.wait.as_ref().unwrap_or(&RawWait::default()))?;
    let placement =
        cx.or("placement.policy", raw.placement.as_ref().and_then(|raw| raw.policy.as_ref()), Policy::FirstEpoch)?;
    let prefetch = prefetch(cx, raw.prefetch.as_ref().unwrap_or(&RawPrefetch::default()))?;
    let level = cx.or("log.level", raw.log.as_ref().and_then(|raw| raw.level.as_ref()), LogLevel::Info)?;
    let run = run::resolve(cx, raw.run.as_ref().unwrap_or(&RawRun::default()))?;
    let index = index(cx, raw.index.as_ref().unwrap_or(&RawIndex::default()))?;
    let cluster = cluster::resolve(cx, raw.cluster.as_ref().unwrap_or(&RawCluster::default()))?;
    let metrics = metrics::resolve(cx, raw.metrics.as_ref().unwrap_or(&RawMetrics::default()))?;
    let runtime_dir = runtime_dir(cx, raw)?;
    let dataset = dataset(cx, raw.dataset.as_ref().unwrap_or(&RawDataset::default()))?;
    let places = outputs::places(cx, raw.outputs.as_deref().unwrap_or_default())?;
    if dataset.roots.is_empty() && places.is_empty() {
        return Err(roots::missing(cx));
    }
    let tiers = tiers::resolve(cx, raw.tiers.as_deref().unwrap_or_default(), &dataset.roots)?;
    let outputs = outputs::resolve(cx, places, &tiers)?;
    Ok(Config {
        dataset,
        source,
        io,
        tiers,
        outputs,
        drain: drain::resolve(cx, raw.drain.as_ref().unwrap_or(&RawDrain::default()))?,
        placement: Placement { policy: placement },
        prefetch,
        index,
        wait,
        metrics,
        runtime_dir,
        cluster,
        log: Log { level },
        run,
    })
}

fn prefetch(cx: &Context<'_>, raw: &RawPrefetch) -> Result<Prefetch, ConfigError> {
    Ok(Prefetch {
        enabled: cx.or("prefetch.enabled", raw.enabled.as_ref(), true)?,
        ahead: cx.or("prefetch.ahead", raw.ahead.as_ref(), Extent::default())?,
        working_set: cx.or("prefetch.working_set", raw.working_set.as_ref(), WorkingSets::default())?,
        max_memory_pressure: cx.or(
            "prefetch.max_memory_pressure",
            raw.max_memory_pressure.as_ref(),
            model::max_memory_pressure(),
        )?,
    })
}

/// Nodes that share copies.
pub(super) fn cluster(cx: &mut Context<'_>, raw: &RawCluster) -> Result<Cluster, ConfigError> {
    cluster::resolve(cx, raw)
}

/// Whether a job that cannot be served is not started.
pub(super) fn strict(cx: &Context<'_>, raw: &RawConfig) -> Result<bool, ConfigError> {
    run::strict(cx, raw.run.as_ref().unwrap_or(&RawRun::default()))
}

/// Where the agents' sockets, locks and shared memory are.
pub(super) fn runtime_dir(cx: &Context<'_>, raw: &RawConfig) -> Result<Option<PathBuf>, ConfigError> {
    let key = Key::new("runtime_dir");
    let Some(path) = cx.get(&key, raw.runtime_dir.as_ref())? else { return Ok(None) };
    let path = paths::clean(cx, ErrorKind::WrongType, &key, &path)?;
    match cx.probe.exposed(&path) {
        Some(exposed) => {
            let message = format!("{} is not safe from other users: {exposed}", path.display());
            Err(cx.error(ErrorKind::Exposed, &key, message, exposed.remedy()))
        }
        None => Ok(Some(path)),
    }
}

fn dataset(cx: &mut Context<'_>, raw: &RawDataset) -> Result<Dataset, ConfigError> {
    let revalidate =
        cx.within("dataset.revalidate", raw.revalidate.as_ref(), model::revalidate(), Duration::ZERO..=HOUR)?;
    let consistency = cx.or("dataset.consistency", raw.consistency.as_ref(), Consistency::Immutable)?;
    let mut absent = cx.or("dataset.absent", raw.absent.as_ref(), AbsentRule::Auto)?;
    let compares_names = matches!(absent, AbsentRule::Auto | AbsentRule::Checked);
    if consistency == Consistency::Immutable && !compares_names && revalidate != model::revalidate() {
        let why = "is of no use while dataset.consistency is immutable and dataset.absent compares nothing";
        cx.warn(&Key::new("dataset.revalidate"), why);
    }
    if consistency == Consistency::CloseToOpen && absent == AbsentRule::Index {
        cx.warn(
            &Key::new("dataset.absent"),
            "index would hide new files from a job with close-to-open: taken for checked",
        );
        absent = AbsentRule::Checked;
    }
    let verify_on_open = cx.or("dataset.verify_on_open", raw.verify_on_open.as_ref(), false)?;
    Ok(Dataset {
        consistency,
        revalidate,
        verify_on_open,
        min_file_age: cx.within(
            "dataset.min_file_age",
            raw.min_file_age.as_ref(),
            Duration::from_secs(10),
            Duration::ZERO..=HOUR,
        )?,
        follow: cx.or("dataset.follow", raw.follow.as_ref(), Follow::Auto)?,
        absent,
        roots: roots::resolve(cx, raw.roots.as_deref().unwrap_or_default())?,
    })
}

/// How the PFS is read.
pub(super) fn source(cx: &mut Context<'_>, raw: &RawSource) -> Result<Source, ConfigError> {
    let pages = |key: &'static str, raw: Option<&Given<Size>>| -> Result<u64, ConfigError> {
        let size = cx.within(key, raw, 4 * MIB, 4 * KIB..=64 * MIB)?;
        if size.is_multiple_of(4 * KIB) {
            return Ok(size);
        }
        let message = format!("{size} bytes are not a multiple of 4KiB, which unbuffered reads require");
        let remedy = "write a binary unit, such as 4MiB instead of 4MB";
        Err(cx.error(ErrorKind::OutOfBounds, &Key::new(key), message, remedy))
    };
    let io_size = pages("source.io_size", raw.io_size.as_ref())?;
    let chunk_size = pages("source.chunk_size", raw.chunk_size.as_ref())?;
    let keys = ["source.max_inflight", "source.bandwidth_limit", "source.iops_limit"];
    let max_inflight = cx.within(keys[0], raw.max_inflight.as_ref(), 64, 1..=1024)?;
    let bandwidth_limit = cx.limit(keys[1], raw.bandwidth_limit.as_ref(), MIB..=TIB)?;
    let iops_limit = cx.limit(keys[2], raw.iops_limit.as_ref(), 1..=1_000_000)?;
    let (caps, keys) = (cx.caps.clone(), keys.map(Key::new));
    let max_inflight = cx.capped(&keys[0], max_inflight, caps.max_inflight.as_ref(), Count::show);
    // (A bound that a user or a site has set holds for demands, too.)
    let is_bounded = raw.max_inflight.is_some() || caps.max_inflight.is_some();
    let default = if is_bounded { max_inflight } else { MAX_DEMANDS.max(max_inflight) };
    let max_demands = cx.within("source.max_demands", raw.max_demands.as_ref(), default, max_inflight..=1024)?;
    Ok(Source {
        io_size,
        max_inflight,
        max_demands: cx.capped(&Key::new("source.max_demands"), max_demands, caps.max_inflight.as_ref(), Count::show),
        bandwidth_limit: cx.capped_limit(&keys[1], bandwidth_limit, caps.bandwidth_limit.as_ref(), Rate::show),
        iops_limit: cx.capped_limit(&keys[2], iops_limit, caps.iops_limit.as_ref(), Count::show),
        backoff: cx.or("source.backoff", raw.backoff.as_ref(), true)?,
        chunk_threshold: cx.within("source.chunk_threshold", raw.chunk_threshold.as_ref(), 16 * MIB, 4 * KIB..=TIB)?,
        chunk_size,
        purge_age: cx.limit("source.purge_age", raw.purge_age.as_ref(), DAY..=MAX_PURGE_AGE)?,
    })
}

fn io(cx: &Context<'_>, raw: &RawIo) -> Result<Io, ConfigError> {
    Ok(Io {
        engine: cx.or("io.engine", raw.engine.as_ref(), Engine::Auto)?,
        direct: cx.or("io.direct", raw.direct.as_ref(), Direct::Auto)?,
    })
}

fn wait(cx: &Context<'_>, raw: &RawWait) -> Result<Wait, ConfigError> {
    let least = Duration::from_millis(1);
    let wait = Wait {
        pickup: cx.within("wait.pickup", raw.pickup.as_ref(), Duration::from_millis(50), least..=HOUR)?,
        stall: cx.within("wait.stall", raw.stall.as_ref(), Duration::from_secs(2), least..=HOUR)?,
        max_wait: cx.within("wait.max_wait", raw.max_wait.as_ref(), Duration::from_secs(120), least..=HOUR)?,
        complete: cx.within("wait.complete", raw.complete.as_ref(), Duration::from_secs(2), Duration::ZERO..=HOUR)?,
        map: cx.within("wait.map", raw.map.as_ref(), Duration::from_secs(30), Duration::ZERO..=HOUR)?,
    };
    let (key, low, high) = if wait.pickup >= wait.stall {
        ("wait.pickup", "pickup", "stall")
    } else if wait.stall > wait.max_wait {
        ("wait.stall", "stall", "max_wait")
    } else {
        return Ok(wait);
    };
    let shown = [wait.pickup, wait.stall, wait.max_wait].map(|time| humantime::format_duration(time).to_string());
    let message = format!("{low} is not below {high}: pickup {}, stall {}, max_wait {}", shown[0], shown[1], shown[2]);
    let remedy =
        format!("lower {low} or raise {high}, so that pickup < stall <= max_wait; the defaults are 50ms, 2s, 120s");
    Err(cx.error(ErrorKind::OutOfBounds, &written(cx, key, &format!("wait.{high}")), message, remedy))
}

/// Of two values that contradict each other, the one that a layer sets.
fn written(cx: &Context<'_>, first: &str, second: &str) -> Key {
    let (first, second) = (Key::new(first), Key::new(second));
    if *cx.layers.origins.get(&first) == super::origin::Origin::Default { second } else { first }
}

fn index(cx: &mut Context<'_>, raw: &RawIndex) -> Result<Index, ConfigError> {
    Ok(Index {
        max_memory: index_memory(cx, raw)?,
        trust: cx.or("index.trust", raw.trust.as_ref(), Trust::Verify)?,
        file: index_file(cx, raw)?,
        scan_threads: cx.within("index.scan_threads", raw.scan_threads.as_ref(), 16, 1..=256)?,
        distributed: cx.or("index.distributed", raw.distributed.as_ref(), Distributed::default())?,
        shared_scan: cx.or("index.shared_scan", raw.shared_scan.as_ref(), false)?,
    })
}

fn index_memory(cx: &mut Context<'_>, raw: &RawIndex) -> Result<u64, ConfigError> {
    let key = Key::new("index.max_memory");
    let memory = cx.probe.memory();
    let whole = memory.whole();
    let given = cx.get(&key, raw.max_memory.as_ref())?;
    let amount = given.unwrap_or(Amount::Share(0.05));
    if given.is_none() {
        let of = if memory.limit.is_some() { "the memory limit" } else { "the node's memory" };
        cx.derived(&key, format!("5% of {of}, {}", about(whole)));
    }
    let bytes = match amount {
        Amount::Bytes(bytes) => bytes,
        share @ Amount::Share(_) => (share.of(whole) / MIB).max(1) * MIB,
    };
    if bytes > whole {
        let message = format!("{} is more than the job's memory, {}", about(bytes), about(whole));
        return Err(cx.error(ErrorKind::TooBig, &key, message, "write less, or a share such as 5%"));
    }
    if bytes < MIB {
        let message = format!("{} cannot hold an index", about(bytes));
        return Err(cx.error(
            ErrorKind::OutOfBounds,
            &key,
            message,
            "write 1MiB or more: about 150 bytes for each file; the default is 5%",
        ));
    }
    let cap = cx.caps.index_memory.clone();
    Ok(cx.capped(&key, bytes, cap.as_ref(), Size::show))
}

fn index_file(cx: &Context<'_>, raw: &RawIndex) -> Result<Option<std::path::PathBuf>, ConfigError> {
    let key = Key::new("index.file");
    let Some(path) = cx.get(&key, raw.file.as_ref())? else {
        return Ok(None);
    };
    let path = paths::clean(cx, ErrorKind::WrongType, &key, &path)?;
    let remedy = format!(
        "make it with `monarch index build -o {}`, or leave the line out: the data set is then scanned",
        path.display()
    );
    match cx.probe.meta(&path) {
        Ok(meta) if meta.is_dir => Err(cx.error(
            ErrorKind::Missing,
            &key,
            format!("{} is a directory, not a saved index", path.display()),
            remedy,
        )),
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(cx.error(
            ErrorKind::Missing,
            &key,
            format!("there is no saved index {}: {error}", path.display()),
            remedy,
        )),
    }
}
