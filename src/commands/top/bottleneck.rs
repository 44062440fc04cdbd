//! What prefetch waits for, in a sentence.

use super::rates::Rates;
use crate::say;
use bytesize::ByteSize;
use monarch_core::agent::protocol::{Ahead, Status};

/// Tiers count as full from this share of their quotas, in percent.
const FULL_PERCENT: u64 = 95;
/// A limit counts as reached from this share of it.
const REACHED: f64 = 0.9;

/// Returns what prefetch waits for: trouble first, then what bounds it while it runs.
pub(super) fn of(s: &Status, rates: Option<&Rates>) -> String {
    if let Some(trouble) = s.prefetch.trouble() {
        return trouble;
    }
    if s.prefetch == Ahead::Idle && s.roots.iter().any(|r| r.state == "scanning") {
        return "waits for the scan of a root".to_owned();
    }
    let (taken, capacity) =
        s.tiers.iter().fold((0, 0), |(t, c), tier| (t + tier.used + tier.reserved, c + tier.capacity));
    let all: u64 = s.roots.iter().map(|r| r.bytes).sum();
    if all > capacity && u128::from(taken) * 100 >= u128::from(capacity) * u128::from(FULL_PERCENT) {
        return format!("the tiers are full: the roots have {}, the quotas {}", ByteSize(all), ByteSize(capacity));
    }
    if s.prefetch == Ahead::Idle {
        return s.prefetch.to_string();
    }
    limit(s, rates).unwrap_or_else(|| s.prefetch.to_string())
}

/// Returns the limit that prefetch has reached, if it has.
fn limit(s: &Status, rates: Option<&Rates>) -> Option<String> {
    let is_at = |rate: fn(&Rates) -> f64, limit: u64| rates.is_some_and(|r| rate(r) >= REACHED * limit as f64);
    if let Some(most) = s.load.bandwidth_limit.filter(|most| is_at(|r| r.asked_bytes, *most)) {
        return Some(format!("held to source.bandwidth_limit: {}/s", ByteSize(most)));
    }
    if let Some(most) = s.load.iops_limit.filter(|most| is_at(|r| r.pfs_calls, *most)) {
        return Some(format!("held to source.iops_limit: {} calls a second", say::count(most)));
    }
    let in_flight = s.load.running + s.load.remote;
    let demanded = in_flight.saturating_sub(s.load.ahead);
    if s.load.width > 0 && demanded >= s.load.width {
        return Some(format!("readers come first: {demanded} of {} slots are theirs", s.load.width));
    }
    let is_full = s.load.width > 0 && s.load.running >= s.load.width;
    is_full.then(|| format!("at the limit of the throttle: {} files at a time", s.load.width))
}
