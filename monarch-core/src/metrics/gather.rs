//! Reads the values of the agent into a page.

use super::defs as d;
use super::latencies::Latencies;
use super::page::Page;
use crate::cluster::http::{Metrics as Served, Refusal};
use crate::cluster::node::NodeStatus;
use crate::snapshot::{Ahead, Epoch, Load, NamesStatus, OutputStatus, RootStatus, Status, TierStatus};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of the agent at a moment.
#[derive(Default)]
pub(crate) struct Seen {
    /// What `monarch status` shows.
    pub(crate) status: Status,
    /// This node among the nodes of its job, without counts that require a walk over all files.
    pub(crate) node: Option<NodeStatus>,
    /// Counts of answers to other nodes.
    pub(crate) served: Option<Arc<Served>>,
}

/// Returns a page of metrics.
pub(crate) fn text(seen: &Seen, latencies: &Latencies) -> String {
    let page = Page::new();
    agent(&page, &seen.status);
    readers(&page, &Named(&seen.status.counters));
    copies(&page, &Named(&seen.status.agent));
    seen.status.roots.iter().for_each(|r| root(&page, r));
    seen.status.tiers.iter().for_each(|t| tier(&page, t));
    seen.status.outputs.iter().for_each(|s| output(&page, s));
    seen.status.names.iter().for_each(|n| names(&page, n));
    load(&page, &seen.status.load);
    if let Some(node) = &seen.node {
        peers(&page, node);
    }
    if let Some(served) = &seen.served {
        answers(&page, served);
    }
    page.text(&latencies.text())
}

/// Counters by the names that `monarch status` has for them.
struct Named<'a>(&'a BTreeMap<String, u64>);

impl Named<'_> {
    fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

const PREFETCH_STATES: [&str; 6] = ["idle", "running", "slowed", "pfs_fails", "tiers_rest", "memory_pressure"];

fn agent(page: &Page, s: &Status) {
    page.gauge(d::AGENT_INFO, [&s.version, &s.policy, &s.engine], 1.0);
    page.gauge(d::UPTIME, [], s.uptime_s);
    page.gauge(d::INCARNATION, [], f64::from(s.incarnation));
    page.gauge(d::JOBS, [], s.jobs as f64);
    let (is, divisor) = match &s.prefetch {
        Ahead::Idle => ("idle", 1),
        Ahead::Running => ("running", 1),
        Ahead::Slowed { divisor, .. } => ("slowed", *divisor),
        Ahead::PfsFails { .. } => ("pfs_fails", 1),
        Ahead::TiersRest => ("tiers_rest", 1),
        Ahead::MemoryPressure { .. } => ("memory_pressure", 1),
    };
    page.one_of(d::PREFETCH_STATE, |state| [state], &PREFETCH_STATES, is);
    page.gauge(d::PREFETCH_DIVISOR, [], divisor as f64);
    page.gauge(d::MEMORY_PRESSURE, [], f64::from(s.load.memory_pressure_percent) / 100.0);
}

/// Opens that went to the PFS, by the names of their counters.
const REASONS: [&str; 11] = [
    "absent",
    "refused",
    "no_room",
    "changed",
    "written",
    "deadline",
    "unknown",
    "flags",
    "vanished",
    "large",
    "other_mount",
];

fn readers(page: &Page, c: &Named<'_>) {
    for (served, name) in [("tier", "hits"), ("waited", "waited"), ("chunks", "chunked")] {
        page.counter(d::OPENS, [served], c.get(name));
    }
    for reason in REASONS {
        page.counter(d::PFS_OPENS, [reason], c.get(reason));
    }
    page.counter(d::HIT_BYTES, [], c.get("hit_bytes"));
    page.counter(d::MAPPED_BYTES, [], c.get("mapped_bytes"));
    page.counter(d::MISS_BYTES, [], c.get("miss_bytes"));
    page.seconds(d::READER_WAIT, [], c.get("wait_us") as f64 / 1e6);
    page.counter(d::METADATA, ["stat"], c.get("stats"));
    page.counter(d::METADATA, ["list"], c.get("lists"));
    page.counter(d::METADATA_KERNEL, [], c.get("meta_kernel"));
    page.counter(d::METADATA, ["absent"], c.get("absent_hits"));
    page.counter(d::CHECKS, [], c.get("checks"));
    page.counter(d::ABSENT_CHECKS, [], c.get("absent_checks"));
    page.counter(d::CHUNK_READS, ["copy"], c.get("chunk_reads"));
    page.counter(d::CHUNK_READS, ["pfs"], c.get("chunk_misses"));
    page.counter(d::CHUNK_READ_BYTES, ["copy"], c.get("chunk_bytes"));
    page.counter(d::CHUNK_READ_BYTES, ["pfs"], c.get("chunk_miss_bytes"));
}

fn copies(page: &Page, a: &Named<'_>) {
    page.counter(d::COPIES, ["demand"], a.get("copied_on_demand"));
    page.counter(d::COPIES, ["ahead"], a.get("copied_ahead"));
    for (of, name) in [
        (d::COPIED_BYTES, "bytes_copied"),
        (d::SOURCE_BYTES, "source_bytes"),
        (d::PFS_COPIES, "pfs_copies"),
        (d::WHOLE_LARGE_BYTES, "whole_large_bytes"),
        (d::LISTING_CHECKS, "listing_checks"),
        (d::JOBS_ATTACHED, "jobs_attached"),
        (d::COPIED_CHUNKS, "chunks_copied"),
        (d::ADOPTED, "adopted"),
        (d::VERIFIED, "verified"),
        (d::REFUSED, "refused"),
        (d::UNSETTLED, "unsettled"),
        (d::CHANGED, "changed"),
        (d::DAMAGED, "damaged"),
        (d::PACKED, "packed"),
        (d::HINTS, "hints"),
    ] {
        page.counter(of, [], a.get(name));
    }
    for (of, label, name) in [
        (d::ERRORS, "pfs", "source_errors"),
        (d::ERRORS, "tier", "tier_errors"),
        (d::DROPPED, "space", "evicted"),
        (d::DROPPED, "replaced", "replaced"),
        (d::MOVED, "slower", "demoted"),
        (d::MOVED, "faster", "promoted"),
        (d::DECODED, "ahead", "decoded_ahead"),
    ] {
        page.counter(of, [label], a.get(name));
    }
    page.counter(d::DECODED, ["demand"], a.get("decoded").saturating_sub(a.get("decoded_ahead")));
    page.seconds(d::PFS_COPY_SECONDS, [], a.get("pfs_copy_us") as f64 / 1e6);
    page.seconds(d::PRESSURE_SECONDS, [], a.get("memory_pressure_ms") as f64 / 1e3);
    page.gauge(d::FILLING, [], a.get("filling") as f64);
    page.gauge(d::FILLING_BYTES, [], a.get("filling_bytes") as f64);
}

fn root(page: &Page, r: &RootStatus) {
    let path = &*r.path.to_string_lossy();
    let is = r.state.split(':').next().unwrap_or_default();
    for state in ["scanning", "ready", "failed"] {
        page.gauge(d::ROOT_STATE, [path, state], f64::from(u8::from(state == is)));
    }
    for (of, value) in [
        (d::ROOT_ENTRIES, r.entries),
        (d::ROOT_FILES, r.files),
        (d::ROOT_BYTES, r.bytes),
        (d::ROOT_INDEX_BYTES, r.index_bytes),
        (d::ROOT_JOBS, r.jobs as u64),
        (d::ROOT_RELEASED, r.released),
        (d::ROOT_RELEASED_BYTES, r.released_bytes),
        (d::ROOT_NEAR_PURGE, r.near_purge.map_or(0, |near| near.files)),
    ] {
        page.gauge(of, [path], value as f64);
    }
    page.counter(d::ROOT_OPENS, [path], r.opens);
    let current = r.epochs.last().filter(|e| !e.complete);
    if let Some(e) = r.epochs.last() {
        page.gauge(d::EPOCH_NUMBER, [path], f64::from(e.number));
    }
    for (which, epoch) in [("current", current), ("last", r.epochs.iter().rfind(|e| e.complete))] {
        epoch.iter().for_each(|e| epoch_of(page, path, which, e));
    }
}

fn epoch_of(page: &Page, path: &str, which: &str, e: &Epoch) {
    for (served, opens) in [("tier", e.local), ("waited", e.waited), ("chunks", e.chunked), ("pfs", e.pfs)] {
        page.gauge(d::EPOCH_OPENS, [path, which, served], opens as f64);
    }
    for (of, value) in [
        (d::EPOCH_SECONDS, e.seconds),
        (d::EPOCH_BYTES, e.bytes as f64),
        (d::EPOCH_PFS_BYTES, e.pfs_bytes as f64),
        (d::EPOCH_WAIT, e.wait_s),
        (d::EPOCH_COPIED, e.copied as f64),
        (d::EPOCH_COPIED_BYTES, e.bytes_copied as f64),
    ] {
        page.gauge(of, [path, which], value);
    }
}

fn tier(page: &Page, t: &TierStatus) {
    for (of, value) in [
        (d::TIER_CAPACITY, t.capacity),
        (d::TIER_USED, t.used),
        (d::TIER_RESERVED, t.reserved),
        (d::TIER_COPIES, t.files),
        (d::TIER_PACKED, t.packed.files),
        (d::TIER_PACKED_BYTES, t.packed.bytes),
        (d::TIER_PACKED_STORED, t.packed.stored),
        (d::TIER_RESTING, u64::from(t.resting)),
    ] {
        page.gauge(of, [&t.name], value as f64);
    }
}

fn output(page: &Page, s: &OutputStatus) {
    let root = &s.path.to_string_lossy();
    for (of, value) in [
        (d::OUTPUT_PENDING, s.pending),
        (d::OUTPUT_PENDING_BYTES, s.pending_bytes),
        (d::OUTPUT_OPEN, s.open),
        (d::OUTPUT_HELD, u64::from(s.held.is_some())),
        (d::OUTPUT_REFUSED, u64::from(s.is_refused)),
        (d::OUTPUT_CLEAN, s.clean_bytes),
    ] {
        page.gauge(of, [root], value as f64);
    }
    page.gauge(d::OUTPUT_OLDEST, [root], s.oldest_ms.unwrap_or_default() as f64 / 1e3);
    for (of, value) in [
        (d::OUTPUT_PUBLISHED, s.published),
        (d::OUTPUT_PUBLISHED_BYTES, s.published_bytes),
        (d::OUTPUT_NO_SPACE, s.no_space),
    ] {
        page.counter(of, [root], value);
    }
    page.seconds(d::OUTPUT_WAITED, [root], s.waited_ms as f64 / 1e3);
}

fn load(page: &Page, l: &Load) {
    for (line, files) in [("demand", l.demands), ("node", l.remote_demands), ("retry", l.retries), ("paused", l.paused)]
    {
        page.gauge(d::QUEUE, [line], files as f64);
    }
    for (way, files) in [("pfs", l.running), ("node", l.remote), ("ahead", l.ahead)] {
        page.gauge(d::INFLIGHT, [way], files as f64);
    }
    page.gauge(d::PREFETCH_WIDTH, [], l.width as f64);
    page.counter(d::PFS_CALLS, ["copies"], l.pfs_calls);
    page.counter(d::PFS_CALLS, ["scans"], l.scan_calls);
    page.counter(d::PFS_READ_BYTES, [], l.pfs_bytes);
    if let Some((recent, best)) = l.opens_us {
        page.gauge(d::PFS_OPEN_RECENT, [], recent as f64 / 1e6);
        page.gauge(d::PFS_OPEN_BEST, [], best as f64 / 1e6);
    }
}

fn names(page: &Page, n: &NamesStatus) {
    page.gauge(d::NAMES_DIRECTORIES, ["own"], n.held as f64);
    page.gauge(d::NAMES_DIRECTORIES, ["others"], n.cached as f64);
    page.gauge(d::NAMES_BYTES, ["own"], n.held_bytes as f64);
    page.gauge(d::NAMES_BYTES, ["others"], n.cached_bytes as f64);
    page.gauge(d::NAMES_CLOSED, [], f64::from(u8::from(n.closed)));
    page.counter(d::NAMES_READ, [], n.read);
    page.counter(d::NAMES_ASKED, [], n.asked);
    page.counter(d::NAMES_ANSWERED, [], n.answered);
}

fn peers(page: &Page, node: &NodeStatus) {
    for state in ["expected", "up", "suspect", "left", "gone"] {
        page.gauge(d::PEERS, [state], node.peers.iter().filter(|p| p.state == state).count() as f64);
    }
    page.counter(d::PEER_DAMAGED, [], node.damaged);
    page.counter(d::PEER_RELAYED_BYTES, [], node.relayed_bytes);
    page.counter(d::PEER_BATCHES, [], node.batches);
    page.counter(d::PEER_BATCHED_FILES, [], node.batched_files);
    for p in &node.peers {
        for (of, value) in [
            (d::PEER_RECEIVED, p.traffic.received),
            (d::PEER_RECEIVED_BYTES, p.traffic.received_bytes),
            (d::PEER_SENT, p.traffic.sent),
            (d::PEER_SENT_BYTES, p.traffic.sent_bytes),
            (d::PEER_FAILED, p.traffic.failed),
        ] {
            page.counter(of, [&p.name], value);
        }
    }
}

fn answers(page: &Page, served: &Served) {
    page.counter(d::PEER_REQUESTS, [], served.requests.load(Ordering::Relaxed));
    page.gauge(d::PEER_CONNECTIONS, [], served.connections.load(Ordering::Relaxed) as f64);
    for refusal in Refusal::ALL {
        page.counter(d::PEER_REFUSED, [refusal.label()], served.refused(refusal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::report;
    use crate::cluster::node::{PeerStatus, Traffic};
    use crate::snapshot::NearPurge;
    use crate::tier::PackedUsage;
    use crate::tiering::Stats;
    use std::collections::BTreeSet;

    /// Distinct numbers.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 += 1_000_003;
            self.0
        }
    }

    fn seen(n: &mut Numbers) -> Seen {
        let named =
            |names: Vec<&'static str>, n: &mut Numbers| names.into_iter().map(|k| (k.to_owned(), n.next())).collect();
        let epoch = |complete, n: &mut Numbers| Epoch {
            number: u32::from(complete) + 7,
            complete,
            seconds: n.next() as f64,
            opens: 0,
            bytes: n.next(),
            local: n.next(),
            waited: n.next(),
            chunked: n.next(),
            pfs: n.next(),
            pfs_bytes: n.next(),
            wait_s: n.next() as f64,
            copied: n.next(),
            bytes_copied: n.next(),
            ..Epoch::default()
        };
        let root = RootStatus {
            path: "/data".into(),
            state: "failed: no such directory".to_owned(),
            jobs: n.next() as usize,
            entries: n.next(),
            files: n.next(),
            bytes: n.next(),
            index_bytes: n.next(),
            opens: n.next(),
            epochs: vec![epoch(true, n), epoch(false, n)],
            released: n.next(),
            released_bytes: n.next(),
            near_purge: Some(NearPurge { files: n.next(), oldest_days: 1, purge_days: 2 }),
            ..RootStatus::default()
        };
        let tier = TierStatus {
            name: "nvme".to_owned(),
            capacity: n.next(),
            used: n.next(),
            reserved: n.next(),
            files: n.next(),
            packed: PackedUsage { files: n.next(), bytes: n.next(), stored: n.next() },
            resting: true,
            ..TierStatus::default()
        };
        let output = OutputStatus {
            path: "/data/run".into(),
            pending: n.next(),
            pending_bytes: n.next(),
            open: n.next(),
            oldest_ms: Some(n.next() * 1000),
            published: n.next(),
            published_bytes: n.next(),
            waited_ms: n.next() * 1000,
            no_space: n.next(),
            clean_bytes: n.next(),
            held: Some("model.pt: Disk quota exceeded".to_owned()),
            ..OutputStatus::default()
        };
        let status = Status {
            outputs: vec![output],
            jobs: n.next() as usize,
            counters: named(report::COUNTERS.iter().map(|(name, _)| *name).collect(), n),
            agent: named(report::figures(&Stats::default()).iter().map(|(name, _)| *name).collect(), n),
            roots: vec![root],
            tiers: vec![tier],
            ..Status::default()
        };
        let load = Load {
            demands: n.next() as usize,
            remote_demands: n.next() as usize,
            retries: n.next() as usize,
            paused: n.next() as usize,
            running: n.next() as usize,
            remote: n.next() as usize,
            ahead: n.next() as usize,
            width: n.next() as usize,
            pfs_calls: n.next(),
            pfs_bytes: n.next(),
            scan_calls: n.next(),
            memory_pressure_percent: 45,
            opens_us: Some((n.next() * 1_000_000, n.next() * 1_000_000)),
            // Settings are no metrics.
            bandwidth_limit: None,
            iops_limit: None,
        };
        let traffic = Traffic {
            received: n.next(),
            received_bytes: n.next(),
            sent: n.next(),
            sent_bytes: n.next(),
            failed: n.next(),
        };
        let peer = PeerStatus { name: "n2".to_owned(), address: None, state: "up".to_owned(), seen: true, traffic };
        let (damaged, relayed_bytes) = (n.next(), n.next());
        let (batches, batched_files, peers) = (n.next(), n.next(), vec![peer]);
        let node = NodeStatus { damaged, relayed_bytes, batches, batched_files, peers, ..NodeStatus::default() };
        let served = Served::default();
        served.requests.store(n.next(), Ordering::Relaxed);
        served.connections.store(n.next(), Ordering::Relaxed);
        let names = NamesStatus {
            held: n.next(),
            held_bytes: n.next(),
            cached: n.next(),
            cached_bytes: n.next(),
            read: n.next(),
            asked: n.next(),
            answered: n.next(),
            closed: true,
        };
        let status = Status { load, names: Some(names), ..status };
        Seen { status, node: Some(node), served: Some(Arc::new(served)) }
    }

    #[test]
    fn every_figure_of_the_status_is_on_the_page_and_every_declared_metric_has_a_value() {
        let mut numbers = Numbers(0);
        let mut seen = seen(&mut numbers);
        // Those that are shown as something else.
        seen.status.counters.insert("wait_us".to_owned(), 1_500_000);
        seen.status.agent.insert("memory_pressure_ms".to_owned(), 2500);
        seen.status.agent.insert("pfs_copy_us".to_owned(), 3_500_000);
        seen.status.agent.insert("decoded".to_owned(), 20);
        seen.status.agent.insert("decoded_ahead".to_owned(), 15);
        let latencies = Latencies::on();
        latencies.settle();
        let text = text(&seen, &latencies);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let values: BTreeSet<String> = series.iter().filter_map(|s| s.rsplit(' ').next()).map(str::to_owned).collect();
        let all = seen.status.counters.iter().chain(&seen.status.agent);
        for (name, value) in all
            .filter(|(name, _)| !["wait_us", "decoded", "memory_pressure_ms", "pfs_copy_us"].contains(&name.as_str()))
        {
            assert!(values.contains(&value.to_string()), "{name} is not on the page:\n{text}");
        }
        for line in [
            "monarch_reader_wait_seconds_total 1.5",
            "monarch_prefetch_memory_pressure_seconds_total 2.5",
            "monarch_pfs_copying_seconds_total 3.5",
            "monarch_memory_pressure_ratio 0.45",
            "monarch_copies_decoded_total{asked=\"demand\"} 5",
            "monarch_copies_decoded_total{asked=\"ahead\"} 15",
            "monarch_root_state{root=\"/data\",state=\"failed\"} 1",
            "monarch_root_state{root=\"/data\",state=\"ready\"} 0",
            "monarch_epoch_number{root=\"/data\"} 7",
            "monarch_peers{state=\"up\"} 1",
            "monarch_tier_resting{tier=\"nvme\"} 1",
            "monarch_prefetch_state{state=\"idle\"} 1",
            "monarch_names_closed 1",
            "monarch_outputs_held{root=\"/data/run\"} 1",
            "monarch_outputs_refused{root=\"/data/run\"} 0",
        ] {
            assert!(series.contains(&line), "no {line} in:\n{text}");
        }
        // A series for each number that was handed in; histograms and flags aside.
        let distinct = (1..=numbers.0 / 1_000_003).map(|n| n * 1_000_003);
        let missing: Vec<u64> = distinct.filter(|n| !values.contains(&n.to_string())).collect();
        assert!(
            missing.len() <= 5,
            "wait_us, memory_pressure_ms, pfs_copy_us, decoded and decoded_ahead only: {missing:?}"
        );
        for of in d::ALL {
            let has = |line: &&&str| line.strip_prefix(of.name).is_some_and(|rest| rest.starts_with([' ', '{', '_']));
            assert!(series.iter().any(|line| has(&line)), "{} has no value", of.name);
            assert_eq!(text.matches(&format!("# TYPE {} {}\n", of.name, of.kind.name())).count(), 1, "{}", of.name);
        }
    }

    #[test]
    fn what_has_gone_leaves_no_series() {
        let mut seen = seen(&mut Numbers(0));
        assert!(text(&seen, &Latencies::off()).contains("root=\"/data\""));
        seen.status.roots.clear();
        seen.node = None;
        let text = text(&seen, &Latencies::off());
        assert!(!text.contains("root=\"/data\"") && !text.contains("peer="), "{text}");
    }
}
