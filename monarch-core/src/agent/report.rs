//! What the agent tells about itself.

use super::protocol::{Status, TierStatus};
use super::server::Agent;
use crate::tier::TierDir;
use monarch_abi::control::{ControlMap, Counter};
use std::sync::atomic::Ordering;

impl Agent {
    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let (f, (engine, why)) = (&self.driver.figures, self.driver.engine());
        let (filling, filling_bytes) = self.driver.filling();
        let figures = [
            ("copied_on_demand", &f.demanded),
            ("copied_ahead", &f.prefetched),
            ("bytes_copied", &f.bytes),
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
            ("damaged", &f.damaged),
        ];
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            incarnation: self.ctl.ctl.incarnation.load(Ordering::Relaxed),
            runtime_dir: self.dir.clone(),
            jobs: self.jobs.load(Ordering::Relaxed),
            engine: engine.to_owned(),
            engine_why: why.to_owned(),
            policy: self.driver.policy().to_owned(),
            prefetch: self.driver.ahead(),
            roots: self.roots.status(),
            tiers: self.driver.tiers.iter().map(tier_status).collect(),
            counters: counters(&self.ctl),
            agent: figures
                .iter()
                .map(|(n, v)| (*n, v.load(Ordering::Relaxed)))
                .chain([("filling", filling), ("filling_bytes", filling_bytes)])
                .map(|(n, v)| (n.to_owned(), v))
                .collect(),
        }
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
        packed: t.packed(),
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
        ("chunked", C::Chunked),
        ("chunk_reads", C::ChunkReads),
        ("chunk_bytes", C::ChunkBytes),
        ("chunk_misses", C::ChunkMisses),
        ("chunk_miss_bytes", C::ChunkMissBytes),
        ("checks", C::Checks),
    ]
    .into_iter()
    .map(|(n, c)| (n.to_owned(), ctl.total(c)))
    .collect()
}
