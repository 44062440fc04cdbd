//! The agent's account of itself.

use super::names::Names;
use super::outputs::Outputs;
use super::parts::Parts;
use super::roots::Roots;
use crate::cluster::node::Node;
use crate::held_dir::HeldDir;
use crate::snapshot::{JobCounters, MetricsStatus, Savings, Status, TierStatus};
use crate::tier::TierDir;
use crate::tiering::{Stats, TieringEngine};
use monarch_abi::control::{ControlMap, Counter};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Takes snapshots of an agent.
#[derive(Debug)]
pub(super) struct Reporter {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    roots: Arc<Roots>,
    outputs: Arc<Outputs>,
    names: Arc<Names>,
    node: Option<Arc<Node>>,
    alone_because: Option<String>,
    started: Instant,
    /// Jobs that are attached now.
    jobs: Arc<AtomicUsize>,
}

impl Reporter {
    /// Reports on an agent that starts now, and counts its `jobs`.
    pub(super) fn new(parts: &Parts, jobs: Arc<AtomicUsize>) -> Self {
        Self {
            dir: parts.dir.clone(),
            ctl: parts.ctl,
            tiering: parts.tiering.clone(),
            roots: parts.roots.clone(),
            outputs: parts.outputs.clone(),
            names: parts.names.clone(),
            node: parts.node.clone(),
            alone_because: parts.alone_because.clone(),
            started: Instant::now(),
            jobs,
        }
    }

    /// The tiering engine that is reported on.
    pub(super) fn tiering(&self) -> &TieringEngine {
        &self.tiering
    }

    /// This node among others, if there are any.
    pub(super) fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Why this node shares with none of the others that its job names.
    pub(super) fn alone_because(&self) -> Option<&str> {
        self.alone_because.as_deref()
    }

    /// State of the agent, whose metrics are at `metrics`.
    pub(super) fn status(&self, metrics: MetricsStatus) -> Status {
        // Opens until now count: the report of a job that ends has its last epoch.
        self.tiering.access.tracker.drain_accesses();
        let (engine, why) = self.tiering.queue.lanes.engine();
        let (filling, filling_bytes) = self.tiering.fetching.fetches.partial_copies();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            incarnation: self.ctl.ctl.incarnation.load(Ordering::Relaxed),
            runtime_dir: self.dir.path().to_owned(),
            jobs: self.jobs.load(Ordering::Relaxed),
            engine: engine.to_owned(),
            engine_why: why.to_owned(),
            policy: self.tiering.policy.name().to_owned(),
            nodes: 1 + self.node.as_ref().map_or(0, |node| node.sharers()),
            alone_because: self.alone_because.clone(),
            prefetch: self.tiering.reports.prefetch.ahead(),
            load: self.tiering.load(),
            peers: self.node().map_or_else(Vec::new, |node| node.brief_status().peers),
            metrics,
            pfs_opens: self.tiering.shared.cx.latencies.opens(),
            roots: self.roots.status(),
            tiers: self.tiering.shared.cx.tiers.iter().map(tier_status).collect(),
            outputs: self.outputs.status(&[]),
            names: self.names.status(),
            counters: counters(&self.ctl),
            job_counters: None,
            agent: figures(&self.tiering.shared.cx.stats)
                .iter()
                .map(|(n, v)| (*n, v.load(Ordering::Relaxed)))
                .chain([("filling", filling), ("filling_bytes", filling_bytes)])
                .map(|(n, v)| (n.to_owned(), v))
                .collect(),
        }
    }

    /// Counters of the job that counts in this group.
    pub(super) fn job_counters(&self, group: usize) -> JobCounters {
        let of = |group| COUNTERS.map(|(name, counter)| (name.to_owned(), self.ctl.total_of(group, counter)));
        JobCounters { own: BTreeMap::from(of(group)), unassigned_opens: Savings::opens_of(&BTreeMap::from(of(0))) }
    }
}

fn tier_status(t: &TierDir) -> TierStatus {
    let u = t.usage();
    TierStatus {
        name: t.name.clone(),
        path: t.path.clone(),
        capacity: u.capacity,
        used: u.used,
        reserved: u.reserved,
        files: u.files,
        packed: t.packed.usage(),
        resting: t.space.suspended(),
    }
}

/// Counters of the tiering engine by name.
pub(crate) const fn figures(f: &Stats) -> [(&'static str, &AtomicU64); 27] {
    [
        ("copied_on_demand", &f.demanded),
        ("copied_ahead", &f.prefetched),
        ("bytes_copied", &f.bytes),
        ("source_bytes", &f.source_bytes),
        ("pfs_copies", &f.pfs_copies),
        ("pfs_copy_us", &f.pfs_copy_us),
        ("jobs_attached", &f.jobs),
        ("whole_large_bytes", &f.whole_large_bytes),
        ("listing_checks", &f.listing_checks),
        ("chunks_copied", &f.chunks),
        ("adopted", &f.adopted),
        ("verified", &f.verified),
        ("refused", &f.refused),
        ("unsettled", &f.unsettled),
        ("changed", &f.changed),
        ("source_errors", &f.source_errors),
        ("tier_errors", &f.tier_errors),
        ("evicted", &f.evicted),
        ("replaced", &f.replaced),
        ("hints", &f.hints),
        ("demoted", &f.demoted),
        ("promoted", &f.promoted),
        ("packed", &f.packed),
        ("decoded", &f.decoded),
        ("decoded_ahead", &f.decoded_ahead),
        ("memory_pressure_ms", &f.memory_pressure_ms),
        ("damaged", &f.damaged),
    ]
}

/// Counters of the jobs' processes by name.
pub(crate) const COUNTERS: [(&str, Counter); monarch_abi::control::COUNTERS] = [
    ("hits", Counter::Hits),
    ("hit_bytes", Counter::HitBytes),
    ("waited", Counter::Waited),
    ("absent", Counter::Absent),
    ("refused", Counter::Refused),
    ("changed", Counter::Changed),
    ("deadline", Counter::Deadline),
    ("unknown", Counter::Unknown),
    ("flags", Counter::Flags),
    ("vanished", Counter::Vanished),
    ("stats", Counter::Stats),
    ("lists", Counter::Lists),
    ("meta_kernel", Counter::MetaKernel),
    ("miss_bytes", Counter::MissBytes),
    ("wait_us", Counter::WaitMicros),
    ("large", Counter::Large),
    ("chunked", Counter::Chunked),
    ("chunk_reads", Counter::ChunkReads),
    ("chunk_bytes", Counter::ChunkBytes),
    ("chunk_misses", Counter::ChunkMisses),
    ("chunk_miss_bytes", Counter::ChunkMissBytes),
    ("checks", Counter::Checks),
    ("other_mount", Counter::OtherMount),
    ("no_room", Counter::NoRoom),
    ("written", Counter::Written),
    ("mapped_bytes", Counter::MappedBytes),
    ("absent_hits", Counter::AbsentHits),
    ("absent_checks", Counter::AbsentChecks),
];

/// All counters by name.
#[must_use]
pub fn counters(ctl: &ControlMap<'_>) -> BTreeMap<String, u64> {
    COUNTERS.into_iter().map(|(n, c)| (n.to_owned(), ctl.total(c))).collect()
}
