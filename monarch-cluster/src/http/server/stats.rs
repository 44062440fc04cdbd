//! What a server counts, and what it says about those it turns down.

use crate::http::refusal::Refusal;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the same refusal of the same address is logged.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// Pairs of refusal and address that are kept apart in a minute; further ones are counted and not
/// logged.
const MAX_PAIRS: usize = 1024;

/// What a server has done since it was started.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Requests answered, whatever the status.
    pub requests: AtomicU64,
    /// Bytes of bodies sent.
    pub bytes_sent: AtomicU64,
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections that authenticated.
    pub handshakes: AtomicU64,
    refusals: [AtomicU64; Refusal::ALL.len()],
}

impl Metrics {
    /// How many were turned down for this reason.
    #[must_use]
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refusals[refusal as usize].load(Ordering::Relaxed)
    }
}

/// Counts refusals and logs them: the first of a kind and an address at once, further ones once a
/// minute with their number.
#[derive(Debug)]
pub(super) struct Refusals {
    metrics: Arc<Metrics>,
    seen: Mutex<HashMap<(Refusal, IpAddr), Seen>>,
}

#[derive(Debug)]
struct Seen {
    logged: Instant,
    since: u64,
}

impl Refusals {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, seen: Mutex::default() }
    }

    pub(super) fn note(&self, refusal: Refusal, from: IpAddr) {
        self.metrics.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(before) = self.to_log(refusal, from, Instant::now()) {
            let (label, reason) = (refusal.label(), refusal.reason());
            tracing::warn!(%from, kind = label, not_logged_before = before, "request of another node refused: {reason}");
        }
    }

    /// Whether it is to be logged now, with how many that were not.
    fn to_log(&self, refusal: Refusal, from: IpAddr, now: Instant) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get_mut(&(refusal, from)) {
            if now.saturating_duration_since(known.logged) < LOG_PERIOD {
                known.since += 1;
                return None;
            }
            known.logged = now;
            return Some(std::mem::take(&mut known.since));
        }
        if seen.len() >= MAX_PAIRS {
            seen.retain(|_, known| now.saturating_duration_since(known.logged) < LOG_PERIOD);
        }
        if seen.len() >= MAX_PAIRS {
            return None;
        }
        seen.insert((refusal, from), Seen { logged: now, since: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn one_line_a_minute_for_a_kind_and_an_address() {
        let refusals = Refusals::new(Arc::default());
        let (at, start) = (IpAddr::V4(Ipv4Addr::LOCALHOST), Instant::now());
        assert_eq!(refusals.to_log(Refusal::Path, at, start), Some(0));
        assert_eq!(refusals.to_log(Refusal::Path, at, start), None);
        assert_eq!(refusals.to_log(Refusal::Slow, at, start), Some(0));
        assert_eq!(refusals.to_log(Refusal::Path, at, start + LOG_PERIOD / 2), None);
        assert_eq!(refusals.to_log(Refusal::Path, at, start + LOG_PERIOD), Some(2));
        assert_eq!(refusals.to_log(Refusal::Path, at, start + LOG_PERIOD), None);
    }

    #[test]
    fn many_addresses_take_no_memory() {
        let (refusals, start) = (Refusals::new(Arc::default()), Instant::now());
        let logged =
            (0..5000u32).filter(|at| refusals.to_log(Refusal::Path, Ipv4Addr::from(*at).into(), start).is_some());
        assert_eq!(logged.count(), MAX_PAIRS);
        assert_eq!(refusals.to_log(Refusal::Path, Ipv4Addr::from(9999).into(), start + LOG_PERIOD), Some(0));
        assert_eq!(refusals.seen.lock().unwrap().len(), 1);
    }
}
