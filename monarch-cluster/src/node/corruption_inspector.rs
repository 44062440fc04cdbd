//! The thread that sends reports of damaged copies, and looks into those of other nodes.

use super::corruption_reports::{CorruptionReport, CorruptionReports, MAX_REPORTS, Verdict, encode};
use super::local_copy::{Bytes, LocalCopies};
use super::peer_pool::PeerPool;
use super::traffic_stats::TrafficStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the thread looks whether there is something to do.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// After a look at a copy, nothing is read for this many times as long as the look took.
const REST_FACTOR: u32 = 9;

/// Judges copies of this node.
pub(super) struct CorruptionInspector {
    reports: Arc<CorruptionReports>,
    pool: Arc<PeerPool>,
    copies: Arc<LocalCopies>,
    traffic: Arc<TrafficStats>,
}

impl CorruptionInspector {
    /// Sends `reports` through `pool`, and judges `copies`.
    pub(super) const fn new(
        reports: Arc<CorruptionReports>,
        pool: Arc<PeerPool>,
        copies: Arc<LocalCopies>,
        traffic: Arc<TrafficStats>,
    ) -> Self {
        Self { reports, pool, copies, traffic }
    }

    /// Works until the agent ends; with long rests between looks: what readers and other nodes wait
    /// for goes first.
    pub(super) fn run(&self, stop: &AtomicBool) {
        let mut rest = POLL_PERIOD;
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(rest.min(POLL_PERIOD));
            self.send();
            rest = rest.saturating_sub(POLL_PERIOD);
            if !rest.is_zero() {
                continue;
            }
            rest = POLL_PERIOD;
            let Some((from, report)) = self.reports.next(Instant::now()) else { continue };
            let start = Instant::now();
            let verdict = self.judge(&report);
            self.reports.judged((from, &report), verdict, Instant::now());
            self.traffic.complaints.fetch_add(1, Ordering::Relaxed);
            rest = start.elapsed() * REST_FACTOR;
        }
    }

    fn send(&self) {
        let by_node = self.reports.take_unsent();
        let nodes: Vec<u16> = by_node.keys().copied().collect();
        PeerPool::each(&nodes, |node| {
            for some in by_node.get(&node).into_iter().flat_map(|all| all.chunks(MAX_REPORTS)) {
                self.pool.post(node, "/v1/damaged", &encode(some));
            }
        });
    }

    /// Reads the bytes of a report, and drops the copy if it is damaged.
    fn judge(&self, report: &CorruptionReport) -> Verdict {
        let Some(here) = self.copies.find(report.index, report.id) else { return Verdict::None };
        let word = here.entry().word();
        let Some(Bytes::Copy(copy)) = self.copies.copy(&here).filter(|_| report.range.end <= here.size()) else {
            return Verdict::None;
        };
        match self.copies.is_sound(&here, &report.range, &copy) {
            None => Verdict::None,
            Some(true) => Verdict::Sound,
            Some(false) if self.copies.drop_damaged(&here, word) => Verdict::Damaged,
            Some(false) => Verdict::None,
        }
    }
}
