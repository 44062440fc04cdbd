//! [`PrefetchStatus`]: how prefetch goes: for `monarch status` at any time, for the log when it
//! changes.

use crate::snapshot::Ahead;
use crate::sync::lock;
use crate::tiering::access::Access;
use crate::tiering::access::prefetch_evidence::PrefetchEvidence;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::queue::Queue;
use crate::tiering::queue::retry_backoff::RetryBackoff;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::throttle::PrefetchThrottle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shortest time between two lines in the log.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// What the last line said, and when.
#[derive(Debug, Default)]
pub(crate) struct LastLogged {
    last: Option<Kind>,
    at: Option<Instant>,
}

/// What two states differ in, for the log; `None` where nothing holds prefetch up.
type Kind = (&'static str, usize);

fn kind(is: &Ahead) -> Option<Kind> {
    match is {
        Ahead::Idle | Ahead::Running => None,
        Ahead::Slowed { divisor, .. } => Some(("slowed", *divisor)),
        Ahead::PfsFails { .. } => Some(("pfs", 0)),
        Ahead::TiersRest => Some(("tiers", 0)),
        Ahead::MemoryPressure { stopped, .. } => Some(("memory", usize::from(*stopped))),
    }
}

impl LastLogged {
    /// Whether to log a line: the state differs from the last line, which is old enough. A change
    /// that comes too early is logged later, if it lasts.
    fn should_log(&mut self, is: &Ahead, now: Instant) -> bool {
        let kind = kind(is);
        if kind == self.last || self.at.is_some_and(|at| now.saturating_duration_since(at) < LOG_PAUSE) {
            return false;
        }
        (self.last, self.at) = (kind, Some(now));
        true
    }
}

/// Whether prefetch runs, and what holds it up.
pub(crate) struct PrefetchStatus {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    throttle: Arc<PrefetchThrottle>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    retry_backoff: Arc<Mutex<RetryBackoff>>,
    queue: Arc<WorkQueue>,
    evidence: Arc<PrefetchEvidence>,
    last_logged: Mutex<LastLogged>,
    some_ahead: AtomicBool,
}

impl PrefetchStatus {
    pub(crate) fn new(shared: &Shared, queue: &Queue, access: &Access, fetching: &Fetching) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            throttle: queue.throttle.clone(),
            fetch_lines: fetching.fetch_lines.clone(),
            retry_backoff: queue.retry_backoff.clone(),
            queue: queue.work.clone(),
            evidence: access.evidence.clone(),
            last_logged: Mutex::default(),
            some_ahead: AtomicBool::new(true),
        }
    }

    /// Whether files are left to prefetch, as of the last round of maintenance.
    pub(crate) fn some_ahead(&self) -> bool {
        self.some_ahead.load(Ordering::Relaxed)
    }

    /// The state of prefetch.
    #[must_use]
    pub(crate) fn ahead(&self) -> Ahead {
        let entries = |number| self.segments.segment(number).map_or(0, |live| live.segment.index.len() as u32);
        let in_line = self.queue.lines().has_more(entries) || self.evidence.has_more();
        let under_way = in_line || lock(&self.fetch_lines).has_rest() || self.throttle.prefetching() > 0;
        // A file that failed, or found no space, is tried again.
        let comes_back = self.cx.options.prefetch && !lock(&self.retry_backoff).is_empty();
        if !under_way && !comes_back {
            return Ahead::Idle;
        }
        if self.cx.tiers.iter().all(|t| t.space.suspended()) {
            return Ahead::TiersRest;
        }
        if let Some(wait) = self.throttle.next_probe() {
            return Ahead::PfsFails { next_try_s: wait.as_millis().div_ceil(1000) as u64 };
        }
        if under_way && self.throttle.is_under_memory_pressure() {
            let stopped = self.cx.tiers.iter().all(|t| t.space.closed_to_prefetch());
            return Ahead::MemoryPressure { percent: self.throttle.memory_pressure_percent(), stopped };
        }
        match (under_way, self.throttle.divisor()) {
            (false, _) => Ahead::Idle,
            (true, divisor @ 2..) => {
                let (opens_us, best_us) = self.throttle.open_us();
                Ahead::Slowed { divisor, opens_us, best_us }
            }
            _ => Ahead::Running,
        }
    }

    /// Logs when something begins or ceases to hold prefetch up.
    pub(crate) fn log_changes(&self) {
        let is = self.ahead();
        self.some_ahead.store(!matches!(is, Ahead::Idle), Ordering::Relaxed);
        if !lock(&self.last_logged).should_log(&is, Instant::now()) {
            return;
        }
        match is {
            Ahead::PfsFails { .. } | Ahead::TiersRest | Ahead::MemoryPressure { .. } => tracing::warn!("{is}"),
            _ => tracing::info!("{is}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_said_once_and_not_too_often() {
        let (mut last_logged, start) = (LastLogged::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        let slowed = |divisor| Ahead::Slowed { divisor, opens_us: 500_000 * divisor as u64, best_us: 1000 };
        assert!(
            !last_logged.should_log(&Ahead::Running, at(0)) && !last_logged.should_log(&Ahead::Idle, at(1)),
            "nothing to tell"
        );
        assert!(last_logged.should_log(&slowed(2), at(1)));
        assert!(!last_logged.should_log(&slowed(2), at(30)), "the same with other figures");
        assert!(last_logged.should_log(&slowed(4), at(30)));
        assert!(
            !last_logged.should_log(&slowed(8), at(31)) && !last_logged.should_log(&Ahead::Running, at(39)),
            "too early"
        );
        assert!(last_logged.should_log(&Ahead::Running, at(40)), "its recovery");
        assert!(!last_logged.should_log(&Ahead::Idle, at(60)));
        assert!(last_logged.should_log(&Ahead::PfsFails { next_try_s: 1 }, at(60)));
        assert!(last_logged.should_log(&Ahead::TiersRest, at(70)) && last_logged.should_log(&Ahead::Idle, at(80)));
        let pressure = |percent| Ahead::MemoryPressure { percent, stopped: false };
        assert!(last_logged.should_log(&pressure(40), at(90)) && !last_logged.should_log(&pressure(60), at(120)));
    }
}
