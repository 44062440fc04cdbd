//! When a wait for the drain is over, and its progress. Pure: the time and the state of the output
//! roots are handed in.

use super::lines;
use crate::progress::Bar;
use crate::say::counted;
use monarch_core::agent::protocol::{OutputStatus, PendingState};
use std::time::Duration;

/// How long output roots that the PFS refuses, or whose files are only open, are waited for after
/// the last change.
const STUCK_PATIENCE: Duration = Duration::from_secs(10);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Nothing is pending, and no staged file is open.
    Drained,
    /// What was pending when the wait began is published.
    Flushed,
}

/// Whether a wait goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does.
    Wait,
    /// The goal is reached.
    Done,
    /// The time is over.
    Late,
    /// The PFS refuses what is left, or processes still have it open.
    Stuck,
}

/// A wait for the drain.
#[derive(Debug)]
pub(crate) struct Waiting {
    goal: Goal,
    limit: Option<Duration>,
    /// What changes when the drain gets on, and when it did so last.
    seen: Option<(Sums, Duration)>,
    /// Bytes that were published before the wait.
    before: Option<u64>,
}

/// Sums over output roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sums {
    pending: u64,
    pending_bytes: u64,
    open: u64,
    published_bytes: u64,
    copied: u64,
}

impl Sums {
    fn of(roots: &[OutputStatus]) -> Self {
        let sum = |of: fn(&OutputStatus) -> u64| roots.iter().map(of).fold(0, u64::saturating_add);
        Self {
            pending: sum(|s| s.pending),
            pending_bytes: sum(|s| s.pending_bytes),
            open: sum(|s| s.open),
            published_bytes: sum(|s| s.published_bytes),
            copied: sum(|s| {
                let is_partial = |state| matches!(state, PendingState::Copying | PendingState::Copied);
                s.entries.iter().filter(|e| is_partial(e.state)).map(|e| e.copied.min(e.bytes)).sum()
            }),
        }
    }
}

impl Waiting {
    /// Begins a wait that takes `limit` at most.
    pub(crate) const fn new(goal: Goal, limit: Option<Duration>) -> Self {
        Self { goal, limit, seen: None, before: None }
    }

    /// Looks at the output roots, `now` after the begin of the wait.
    pub(crate) fn look(&mut self, now: Duration, roots: &[OutputStatus]) -> Verdict {
        let sums = Sums::of(roots);
        self.before.get_or_insert(sums.published_bytes);
        let changed = match self.seen {
            Some((seen, at)) if seen == sums => at,
            _ => now,
        };
        self.seen = Some((sums, changed));
        if roots.iter().all(|root| self.is_reached(now, root)) {
            return Verdict::Done;
        }
        if self.limit.is_some_and(|limit| now >= limit) {
            return Verdict::Late;
        }
        let is_stuck = |s: &OutputStatus| !s.is_pending() || s.is_refused || s.pending == 0;
        if now.saturating_sub(changed) >= STUCK_PATIENCE && roots.iter().all(is_stuck) {
            return Verdict::Stuck;
        }
        Verdict::Wait
    }

    fn is_reached(&self, now: Duration, root: &OutputStatus) -> bool {
        match self.goal {
            Goal::Drained => !root.is_pending(),
            // What is younger than the wait was not there when it began.
            Goal::Flushed => root.pending == 0 || root.oldest_ms.is_some_and(|ms| Duration::from_millis(ms) < now),
        }
    }

    /// Shows how far it is.
    pub(crate) fn show(&self, bar: &Bar, roots: &[OutputStatus]) {
        let sums = Sums::of(roots);
        let done = sums.published_bytes.saturating_sub(self.before.unwrap_or(sums.published_bytes));
        let all = done.saturating_add(sums.pending_bytes);
        bar.at(done.saturating_add(sums.copied).min(all), all, &note(roots, sums));
    }
}

fn note(roots: &[OutputStatus], sums: Sums) -> String {
    let open = if sums.open > 0 { format!(", {} open", sums.open) } else { String::new() };
    let oldest = roots.iter().filter_map(|s| s.oldest_ms).max();
    let oldest = oldest.map_or_else(String::new, |ms| format!(", oldest {}", lines::age(ms)));
    let held = roots.iter().find_map(|s| s.held.as_ref()).map_or_else(String::new, |held| format!(" ({held})"));
    format!("{} to publish{open}{oldest}{held}", counted(sums.pending, "entry"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const SECOND: Duration = Duration::from_secs(1);

    fn pending(pending: u64, oldest_ms: u64) -> OutputStatus {
        OutputStatus { pending, pending_bytes: 100 * pending, oldest_ms: Some(oldest_ms), ..OutputStatus::default() }
    }

    #[test]
    fn a_wait_for_the_drain_ends_when_nothing_is_pending_or_open() {
        let mut wait = Waiting::new(Goal::Drained, None);
        assert_eq!(wait.look(Duration::ZERO, &[pending(2, 5)]), Verdict::Wait);
        let open = OutputStatus { open: 1, ..OutputStatus::default() };
        assert_eq!(wait.look(SECOND, &[open]), Verdict::Wait);
        assert_eq!(wait.look(2 * SECOND, &[OutputStatus::default()]), Verdict::Done);
        assert_eq!(Waiting::new(Goal::Drained, None).look(Duration::ZERO, &[]), Verdict::Done);
    }

    #[test]
    fn a_flush_does_not_wait_for_what_came_later() {
        let mut wait = Waiting::new(Goal::Flushed, None);
        assert_eq!(wait.look(SECOND, &[pending(2, 5000)]), Verdict::Wait);
        // The oldest came when the wait had begun.
        assert_eq!(wait.look(6 * SECOND, &[pending(9, 5999)]), Verdict::Done);
        let unknown = OutputStatus { oldest_ms: None, ..pending(1, 0) };
        assert_eq!(wait.look(7 * SECOND, &[unknown]), Verdict::Wait);
        let open = OutputStatus { open: 1, ..OutputStatus::default() };
        assert_eq!(wait.look(8 * SECOND, &[open]), Verdict::Done);
    }

    #[test]
    fn a_stalled_file_system_is_waited_for_without_end_and_one_that_refuses_is_not() {
        let stalled = OutputStatus { held: Some("model.pt: Input/output error".into()), ..pending(1, 0) };
        let mut wait = Waiting::new(Goal::Drained, None);
        assert_eq!(wait.look(Duration::ZERO, from_ref(&stalled)), Verdict::Wait);
        assert_eq!(wait.look(100_000 * SECOND, from_ref(&stalled)), Verdict::Wait);
        let refused = OutputStatus { is_refused: true, ..stalled };
        let mut wait = Waiting::new(Goal::Drained, None);
        assert_eq!(wait.look(Duration::ZERO, from_ref(&refused)), Verdict::Wait);
        assert_eq!(wait.look(9 * SECOND, from_ref(&refused)), Verdict::Wait);
        assert_eq!(wait.look(10 * SECOND, from_ref(&refused)), Verdict::Stuck);
        // Another root gets on meanwhile.
        let mut wait = Waiting::new(Goal::Drained, None);
        for at in 0..30 {
            let other = OutputStatus { published_bytes: u64::from(at), ..pending(1, 0) };
            assert_eq!(wait.look(at * SECOND, &[refused.clone(), other]), Verdict::Wait);
        }
    }

    #[test]
    fn files_that_only_stay_open_are_not_waited_for_long() {
        let open = OutputStatus { open: 1, ..OutputStatus::default() };
        let mut wait = Waiting::new(Goal::Drained, None);
        assert_eq!(wait.look(Duration::ZERO, from_ref(&open)), Verdict::Wait);
        assert_eq!(wait.look(11 * SECOND, &[open]), Verdict::Stuck);
    }

    #[test]
    fn a_limit_ends_every_wait_that_is_not_done() {
        let mut wait = Waiting::new(Goal::Drained, Some(3 * SECOND));
        assert_eq!(wait.look(2 * SECOND, &[pending(1, 0)]), Verdict::Wait);
        assert_eq!(wait.look(3 * SECOND, &[pending(1, 0)]), Verdict::Late);
        assert_eq!(wait.look(4 * SECOND, &[]), Verdict::Done);
        assert_eq!(
            Waiting::new(Goal::Drained, Some(Duration::ZERO)).look(Duration::ZERO, &[pending(1, 0)]),
            Verdict::Late
        );
    }

    #[test]
    fn the_note_counts_what_is_left() {
        let roots = [pending(2, 3500), OutputStatus { open: 1, held: Some("x: no space".into()), ..pending(1, 10) }];
        assert_eq!(note(&roots, Sums::of(&roots)), "3 entries to publish, 1 open, oldest 3s (x: no space)");
    }
}
