//! [`DemandReserve`]: reserves PFS concurrency for demand reads. Prefetch gets the rest, or one
//! slot after every [`DEMANDS_PER_PREFETCH`] demands when none is left.
//!
//! Readers compute between two files. A demand that has ended is counted for as long again as it
//! took, as a prefetch that starts before the reader asks for its next file takes half of the link
//! from that. A reader that does not ask for so much time needs less than half of what the PFS
//! gives.

use crate::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Demands after which one prefetch may run although no slot is left: prefetch makes progress, and
/// a job that needs most of a link has it.
const DEMANDS_PER_PREFETCH: usize = 8;
/// A demand that has not ended for this long hangs, perhaps on a server that is down. Prefetch no
/// longer waits for it.
const HUNG_AFTER: Duration = Duration::from_secs(1);
/// Bound on how long a demand is counted after its end.
const MAX_COUNTED_AFTER: Duration = Duration::from_millis(250);
const MAX_RECORDS: usize = 16;
/// Shortest time that a worker waits for the reserve to run out.
const MIN_SLEEP: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Ended {
    /// Demands that ended recently: how many were in flight then, that one included, and until when
    /// they are counted.
    lately: Vec<(usize, Instant)>,
    at: Option<Instant>,
    /// Demands that have ended since the last prefetch.
    count: usize,
}

#[derive(Debug, Default)]
pub(super) struct DemandReserve(Mutex<Ended>);

impl DemandReserve {
    /// Notes that a demand ended after `took`, when `of` were in flight.
    pub(super) fn ended(&self, of: usize, took: Duration, now: Instant) {
        let mut ended = lock(&self.0);
        let until = now + took.min(MAX_COUNTED_AFTER);
        // Records that expire no later than this one, and were no more, add nothing.
        ended.lately.retain(|e| e.1 > now && (e.0 > of || e.1 > until));
        ended.lately.push((of, until));
        if ended.lately.len() > MAX_RECORDS
            && let Some(least) = (0..ended.lately.len()).min_by_key(|&i| ended.lately[i].0)
        {
            ended.lately.swap_remove(least);
        }
        (ended.at, ended.count) = (Some(now), ended.count + 1);
    }

    /// Notes that a prefetch from the PFS has ended.
    pub(super) fn had_its_turn(&self) {
        lock(&self.0).count = 0;
    }

    /// Number of demands to reserve for, when `running` are in flight.
    pub(super) fn demands(&self, running: usize, now: Instant) -> usize {
        lock(&self.0).lately.iter().filter(|e| e.1 > now).fold(running, |most, e| most.max(e.0))
    }

    /// Time until only demands in flight are counted; `None` if that was so at `since` already.
    pub(super) fn over_in(&self, since: Instant, now: Instant) -> Option<Duration> {
        let last = lock(&self.0).lately.iter().map(|e| e.1).max().filter(|&last| last > since)?;
        Some(last.saturating_duration_since(now).max(MIN_SLEEP))
    }

    /// Whether a prefetch may run although demands leave it no slot. Before the first demand has
    /// ended, time counts from the first question.
    pub(super) fn is_its_turn(&self, now: Instant) -> bool {
        let mut ended = lock(&self.0);
        let since = *ended.at.get_or_insert(now);
        ended.count >= DEMANDS_PER_PREFETCH || now.saturating_duration_since(since) >= HUNG_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn readers_who_ask_again_at_once_do_not_seem_to_have_gone() {
        let (reserve, now) = (DemandReserve::default(), Instant::now());
        reserve.ended(3, 50 * MS, now);
        assert_eq!([0, 2, 4].map(|running| reserve.demands(running, now)), [3, 3, 4]);
        reserve.ended(2, 100 * MS, now);
        reserve.ended(1, 100 * MS, now);
        let seen = [(0, 49), (0, 50), (1, 99), (0, 100)].map(|(running, ms)| reserve.demands(running, now + ms * MS));
        assert_eq!(seen, [3, 2, 2, 0]);
        let over_in = |since, at| reserve.over_in(now + since * MS, now + at * MS);
        let seen = [over_in(0, 0), over_in(60, 60), over_in(99, 101), over_in(100, 101)];
        assert_eq!(seen, [Some(100 * MS), Some(40 * MS), Some(MIN_SLEEP), None]);
    }

    /// Found by a job that needed 78 % of a link: while its two readers decoded what they had read,
    /// two large files were begun, and the next ones took twice their time.
    #[test]
    fn two_readers_who_compute_in_between_are_two() {
        let (reserve, mut now) = (DemandReserve::default(), Instant::now());
        for i in 0..100 {
            now += 60 * MS;
            reserve.ended(1 + i % 2, 120 * MS, now);
            assert!(i == 0 || reserve.demands(0, now + 30 * MS) == 2, "{i}");
        }
        assert_eq!(reserve.demands(0, now + 200 * MS), 0);
    }

    #[test]
    fn many_quick_demands_are_not_listed_for_ever() {
        let (reserve, now) = (DemandReserve::default(), Instant::now());
        for i in 0..100_u32 {
            reserve.ended(100 - i as usize, (100 + i) * MS, now);
        }
        let listed = lock(&reserve.0).lately.len();
        assert_eq!((listed, reserve.demands(0, now)), (MAX_RECORDS, 100));
    }

    #[test]
    fn beside_demands_that_leave_nothing_one_in_so_many_is_a_prefetch() {
        let (reserve, now) = (DemandReserve::default(), Instant::now());
        let turns = (0..10 * DEMANDS_PER_PREFETCH).filter(|_| {
            reserve.ended(2, MS, now);
            let its = reserve.is_its_turn(now);
            if its {
                reserve.had_its_turn();
            }
            its
        });
        assert_eq!(turns.count(), 10);
    }

    #[test]
    fn demands_that_hang_keep_no_prefetch_waiting() {
        let (reserve, start) = (DemandReserve::default(), Instant::now());
        // The first demands of a job have ended no less than later ones.
        assert_eq!(
            [Duration::ZERO, HUNG_AFTER / 2, HUNG_AFTER].map(|t| reserve.is_its_turn(start + t)),
            [false, false, true]
        );
        reserve.ended(2, MS, start);
        assert_eq!([HUNG_AFTER / 2, HUNG_AFTER].map(|later| reserve.is_its_turn(start + later)), [false, true]);
    }
}
