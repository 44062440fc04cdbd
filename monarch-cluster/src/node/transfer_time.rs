//! [`TransferTime`]: how long a piece of a large file takes over the links of this job, and what
//! follows from it: how many pieces go over one link at a time, and when one is stuck.
//!
//! Transfers that share a link all end late. One at a time is enough where a piece takes much
//! longer than the next one needs to get going, as at 100 Mbit/s, where 4 MiB take a third of a
//! second. Where a piece takes a few milliseconds, several fill the gaps between them.

use super::request_limits::MAX_REQUEST_BYTES;
use std::time::Duration;

/// Pieces below this size take the time of a request, not that of their bytes.
const MIN_PACED_BYTES: u64 = 1 << 20;
/// Most transfers of a relay at a time: the nodes behind wait for the end of each.
pub(super) const MAX_AT_A_TIME: usize = 4;
/// Most large answers of a node at a time: its link may be faster than those of the askers.
const MAX_ANSWERS: usize = 16;
/// Time that the next transfer may need to get going: a receipt, a request, threads that wake.
const GAP: Duration = Duration::from_millis(30);
/// A transfer is stuck after this multiple of the usual time, within these bounds.
const STALL_FACTOR: u32 = 4;
pub(super) const MIN_STALL: Duration = Duration::from_millis(100);
pub(super) const MAX_STALL: Duration = Duration::from_secs(60);
/// The same before the first transfer has ended.
pub(super) const FIRST_STALL: Duration = Duration::from_secs(2);

/// The smoothed time of transfers of [`MAX_REQUEST_BYTES`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferTime {
    smoothed: Option<Duration>,
}

impl TransferTime {
    /// Notes the time of a transfer. One that was stuck counts as one that was about to be. A
    /// longer time counts at once, a shorter one by and by: to take a slow link for a quick one
    /// costs more than the reverse.
    pub(super) fn note(&mut self, took: Duration) {
        let took = took.min(self.stall());
        self.smoothed = Some(match self.smoothed {
            None => took,
            Some(old) if took > old => (old + took) / 2,
            Some(old) => (old * 7 + took) / 8,
        });
    }

    /// The same of a transfer of `bytes`.
    pub(super) fn note_bytes(&mut self, bytes: u64, took: Duration) {
        let pieces = MAX_REQUEST_BYTES as f64 / bytes.max(1) as f64;
        self.note(took.mul_f64(pieces.min(64.0)));
    }

    /// The usual time, once it is known.
    pub(super) const fn usual(&self) -> Option<Duration> {
        self.smoothed
    }

    /// Time after which a transfer is about to end, once the usual time is known.
    pub(super) fn ending(&self) -> Option<Duration> {
        self.smoothed.map(|time| time * 7 / 8)
    }

    /// Time after which a transfer is stuck.
    pub(super) fn stall(&self) -> Duration {
        self.smoothed.map_or(FIRST_STALL, |time| (time * STALL_FACTOR).clamp(MIN_STALL, MAX_STALL))
    }

    /// How many large answers a node sends at a time: one before the first has ended.
    pub(super) fn answers_at_a_time(&self) -> usize {
        self.at_a_time(MAX_ANSWERS)
    }

    fn at_a_time(&self, most: usize) -> usize {
        let Some(time) = self.smoothed else { return 1 };
        let gaps = GAP.as_micros() / time.as_micros().max(1);
        usize::try_from(gaps).unwrap_or(most).saturating_add(1).min(most)
    }

    /// How many pieces of `bytes` a relay sends at a time.
    pub(super) fn pieces_at_a_time(&self, bytes: u64) -> usize {
        if bytes < MIN_PACED_BYTES { MAX_AT_A_TIME } else { self.at_a_time(MAX_AT_A_TIME) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(times: &[u32]) -> TransferTime {
        let mut time = TransferTime::default();
        times.iter().for_each(|ms| time.note(MS * *ms));
        time
    }

    #[test]
    fn slow_links_carry_one_piece_at_a_time_and_quick_ones_several() {
        // 4 MiB at 100 Mbit/s, 1, 2.5, 10 Gbit/s.
        let pieces = |ms| of(&[ms]).pieces_at_a_time(4 << 20);
        assert_eq!([336, 34, 13, 4].map(pieces), [1, 1, 3, MAX_AT_A_TIME]);
        assert_eq!([336, 34, 4, 0].map(|ms| of(&[ms]).answers_at_a_time()), [1, 1, 8, MAX_ANSWERS]);
        assert_eq!(TransferTime::default().answers_at_a_time(), 1);
    }

    #[test]
    fn small_pieces_go_several_at_a_time_over_any_link() {
        let slow = of(&[336]);
        assert_eq!(
            [MIN_PACED_BYTES - 1, MIN_PACED_BYTES].map(|bytes| slow.pieces_at_a_time(bytes)),
            [MAX_AT_A_TIME, 1]
        );
    }

    #[test]
    fn a_transfer_is_stuck_after_a_few_times_the_usual_time() {
        assert_eq!(TransferTime::default().stall(), FIRST_STALL);
        assert_eq!([1, 100, 336].map(|ms| of(&[ms]).stall()), [MIN_STALL, MS * 400, MS * 1344]);
        assert!(of(&[1; 100]).stall() >= MIN_STALL && of(&[u32::MAX; 100]).stall() <= MAX_STALL);
    }

    #[test]
    fn a_longer_time_counts_at_once_and_a_stuck_transfer_does_not_count_whole() {
        assert_eq!(of(&[100, 200]).usual(), Some(MS * 150));
        assert_eq!(of(&[160, 80]).usual(), Some(MS * 150));
        assert_eq!(of(&[100, 60_000]).usual(), Some(MS * 250), "400 ms at most");
    }

    #[test]
    fn the_time_of_a_smaller_piece_is_that_of_a_whole_one() {
        let mut time = TransferTime::default();
        time.note_bytes(MAX_REQUEST_BYTES / 4, MS * 25);
        assert_eq!(time.usual(), Some(MS * 100));
    }
}
