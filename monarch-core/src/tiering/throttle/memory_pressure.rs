//! [`MemoryPressure`]: narrows prefetch to one file at a time while tasks of the job wait for
//! memory.
//!
//! Copies that are made take page cache, and memory itself where a tier is in memory: the kernel
//! takes both from the job. Pressure begins above the limit of the configuration and ends below
//! half of it, so that prefetch does not come and go with each figure.

use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Pressure ends below the limit divided by this.
const END_DIVISOR: f64 = 2.0;
/// Files that are remembered for later: more than the queue takes for retries, so that it then
/// walks over all.
const MAX_LEFT_OUT: usize = (1 << 17) + 1;

/// Judges the memory pressure on the job.
#[derive(Debug)]
pub(super) struct MemoryPressure {
    /// Share of the time above which pressure is high; `None`: it never is.
    limit: Option<f64>,
    is_high: AtomicBool,
    /// The last share of the time, in percent.
    percent: AtomicU32,
    /// Files that prefetch has left for later.
    left_out: Mutex<Vec<u64>>,
}

impl MemoryPressure {
    pub(super) const fn new(limit: Option<f64>) -> Self {
        let (is_high, percent) = (AtomicBool::new(false), AtomicU32::new(0));
        Self { limit, is_high, percent, left_out: Mutex::new(Vec::new()) }
    }

    /// Notes the share of the time in which a task waits for memory, `None` where it is not
    /// measured. Returns whether pressure has begun or ended, if it has.
    pub(super) fn note(&self, share: Option<f64>) -> Option<bool> {
        let (share, was_high) = (share.unwrap_or(0.0), self.is_high());
        self.percent.store((share * 100.0).round() as u32, Ordering::Relaxed);
        let is_high = self.limit.is_some_and(|limit| share > if was_high { limit / END_DIVISOR } else { limit });
        self.is_high.store(is_high, Ordering::Relaxed);
        (is_high != was_high).then_some(is_high)
    }

    /// Whether pressure is high.
    pub(super) fn is_high(&self) -> bool {
        self.is_high.load(Ordering::Relaxed)
    }

    /// The last share of the time, in percent.
    pub(super) fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// Notes a file that prefetch leaves for later.
    pub(super) fn leave_out(&self, key: u64) {
        let mut left_out = lock(&self.left_out);
        if left_out.len() < MAX_LEFT_OUT {
            left_out.push(key);
        }
    }

    /// Takes the files that prefetch has left for later.
    pub(super) fn take_left_out(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_above_the_limit_and_ends_below_half_of_it() {
        let pressure = MemoryPressure::new(Some(0.3));
        let noted = [0.1, 0.3, 0.31, 0.5, 0.2, 0.16, 0.15, 0.3, 0.9].map(|share| pressure.note(Some(share)));
        assert_eq!(noted, [None, None, Some(true), None, None, None, Some(false), None, Some(true)]);
        assert_eq!((pressure.is_high(), pressure.percent()), (true, 90));
        assert_eq!(pressure.note(None), Some(false), "no longer measured");
        assert_eq!((pressure.is_high(), pressure.percent()), (false, 0));
    }

    #[test]
    fn without_a_limit_pressure_is_shown_only() {
        let pressure = MemoryPressure::new(None);
        assert_eq!((pressure.note(Some(1.0)), pressure.is_high(), pressure.percent()), (None, false, 100));
    }

    #[test]
    fn a_bounded_number_of_files_is_left_for_later() {
        let pressure = MemoryPressure::new(Some(0.3));
        (0..MAX_LEFT_OUT as u64 + 10).for_each(|key| pressure.leave_out(key));
        assert_eq!((pressure.take_left_out().len(), pressure.take_left_out().len()), (MAX_LEFT_OUT, 0));
    }
}
