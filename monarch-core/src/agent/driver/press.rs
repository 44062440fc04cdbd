//! Whether demands leave prefetches anything of what the PFS gives: where they alone are as many as it needs, one prefetch runs for every
//! few of them.

use super::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// After a prefetch so many demands: what nobody asks for is to come along, but a job that needs most of a link is to have it.
const TURN: usize = 8;
/// Demands of which none has ended for so long hang: a server may be away that nothing else needs.
const HUNG: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Ended {
    /// Demands under way when the last one ended, with that one: its reader's next one comes at once.
    of: usize,
    at: Option<Instant>,
    /// So many ended since the last prefetch, however long that took.
    count: usize,
}

#[derive(Debug, Default)]
pub(super) struct Press(Mutex<Ended>);

impl Press {
    /// A demand ended, one of so many.
    pub(super) fn ended(&self, of: usize, now: Instant) {
        let mut ended = lock(&self.0);
        *ended = Ended { of, at: Some(now), count: ended.count + 1 };
    }

    /// A prefetch from the PFS is over.
    pub(super) fn had_its_turn(&self) {
        lock(&self.0).count = 0;
    }

    /// How many demands there are to be reckoned with, where so many are under way.
    pub(super) fn demands(&self, running: usize) -> usize {
        if running == 0 { 0 } else { running.max(lock(&self.0).of) }
    }

    /// Whether a prefetch may run beside demands that leave it nothing.
    pub(super) fn is_its_turn(&self, now: Instant) -> bool {
        let ended = lock(&self.0);
        ended.count >= TURN || ended.at.is_none_or(|at| now.saturating_duration_since(at) >= HUNG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_who_ask_again_at_once_do_not_seem_to_have_gone() {
        let (press, now) = (Press::default(), Instant::now());
        press.ended(3, now);
        assert_eq!([2, 4].map(|running| press.demands(running)), [3, 4]);
        press.ended(2, now);
        press.ended(1, now);
        assert_eq!([0, 1].map(|running| press.demands(running)), [0, 1]);
    }

    #[test]
    fn beside_demands_that_leave_nothing_one_in_so_many_is_a_prefetch() {
        let (press, now) = (Press::default(), Instant::now());
        let turns = (0..10 * TURN).filter(|_| {
            press.ended(2, now);
            let its = press.is_its_turn(now);
            if its {
                press.had_its_turn();
            }
            its
        });
        assert_eq!(turns.count(), 10);
    }

    #[test]
    fn demands_that_hang_keep_no_prefetch_waiting() {
        let (press, start) = (Press::default(), Instant::now());
        assert!(press.is_its_turn(start));
        press.ended(2, start);
        assert_eq!([HUNG / 2, HUNG].map(|later| press.is_its_turn(start + later)), [false, true]);
    }
}
