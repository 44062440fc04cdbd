//! Probes of members: a ping, then pings by helpers, then the suspicion (SWIM, section 3.1).
//!
//! A probe begins every [`PERIOD_MS`]. A target that does not answer at once is pinged again, three
//! times, and each time [`HELPERS`] other members are asked to ping it. With 5 % of the datagrams
//! lost, one probe of 10^10 suspects a target that answers. A target may stand still for
//! [`SUSPECT_AFTER_MS`] without being suspected.

use super::record::{Incarnation, Record};
use std::net::SocketAddr;

/// Milliseconds between two probes.
pub(super) const PERIOD_MS: u64 = 200;
/// Members that are asked to ping a target that did not answer.
pub(super) const HELPERS: usize = 3;
/// Milliseconds after the first ping at which the target is pinged again. (Less than a multiple of
/// the tick, so that a tick that comes a moment early counts.)
const RETRY_AFTER_MS: [u64; 3] = [80, 280, 480];
/// Milliseconds after the first ping at which the target becomes suspect.
const SUSPECT_AFTER_MS: u64 = 580;
/// Most probes that begin at a time while probes fail.
const MAX_AT_ONCE: usize = 5;
/// Milliseconds after which a helper forgets whom it helped.
const RELAY_MS: u64 = 1_000;
/// Most requests of others to ping that a helper has under way.
const MAX_RELAYS: usize = 256;
/// Most doubts that are verified at a time.
const MAX_VERIFICATIONS: usize = 32;

/// A member that was pinged and has not answered.
struct Probe {
    target: u16,
    /// The target's incarnation when the probe began.
    incarnation: Incarnation,
    seq: u32,
    began: u64,
    retries: usize,
    /// What others believe of the target, for it to refute.
    doubt: Option<Record>,
}

/// A ping on behalf of another node.
struct Relay {
    seq: u32,
    /// Key and address of the node that asked.
    origin: (u64, SocketAddr),
    origin_seq: u32,
    until: u64,
}

/// What is to be done for a probe.
pub(super) enum Step {
    /// The target is pinged.
    Ping { target: u16, seq: u32, doubt: Option<Record> },
    /// Helpers are asked to ping the target.
    AskHelpers { target: u16, seq: u32 },
    /// The target has not answered.
    Suspect { target: u16, incarnation: Incarnation },
}

/// The probes under way.
#[derive(Default)]
pub(super) struct Probes {
    probes: Vec<Probe>,
    relays: Vec<Relay>,
    last_seq: u32,
    next_at: u64,
    /// Probes that failed, less those that were answered since.
    failing: usize,
}

impl Probes {
    /// How many probes are to begin now. Asking counts as beginning them.
    ///
    /// More begin while probes fail: a few nodes that are cut off from many find that out in
    /// seconds.
    pub(super) fn due(&mut self, now: u64) -> usize {
        if now < self.next_at {
            return 0;
        }
        // A tick that comes late delays one probe and not all that follow.
        let next = self.next_at + PERIOD_MS;
        self.next_at = if next > now { next } else { now + PERIOD_MS };
        MAX_AT_ONCE.min(1 + self.failing)
    }

    /// Whether so many probes failed that many members may be unreachable.
    pub(super) const fn are_failing(&self) -> bool {
        self.failing >= MAX_AT_ONCE
    }

    /// Begins a probe; `doubt` is what others believe of the target.
    pub(super) fn begin(
        &mut self,
        target: u16,
        incarnation: Incarnation,
        doubt: Option<Record>,
        now: u64,
    ) -> Option<Step> {
        let is_under_way = self.probes.iter().any(|probe| probe.target == target);
        if is_under_way || (doubt.is_some() && self.probes.len() >= MAX_VERIFICATIONS) {
            return None;
        }
        let seq = self.next_seq();
        self.probes.push(Probe { target, incarnation, seq, began: now, retries: 0, doubt: doubt.clone() });
        Some(Step::Ping { target, seq, doubt })
    }

    const fn next_seq(&mut self) -> u32 {
        self.last_seq = self.last_seq.wrapping_add(1);
        self.last_seq
    }

    /// What the probes under way need now.
    pub(super) fn steps(&mut self, now: u64) -> Vec<Step> {
        self.relays.retain(|relay| now < relay.until);
        let mut steps = Vec::new();
        self.probes.retain_mut(|probe| {
            let (waited, target, seq) = (now.saturating_sub(probe.began), probe.target, probe.seq);
            if waited >= SUSPECT_AFTER_MS {
                steps.push(Step::Suspect { target, incarnation: probe.incarnation });
                self.failing = MAX_AT_ONCE.min(self.failing + 1);
                return false;
            }
            if RETRY_AFTER_MS.get(probe.retries).is_some_and(|after| waited >= *after) {
                probe.retries += 1;
                steps.push(Step::Ping { target, seq, doubt: probe.doubt.clone() });
                steps.push(Step::AskHelpers { target, seq });
            }
            true
        });
        steps
    }

    /// Notes that a ping goes out on behalf of another node. Returns its number, unless too many
    /// are under way.
    pub(super) fn relay(&mut self, origin: (u64, SocketAddr), origin_seq: u32, now: u64) -> Option<u32> {
        if self.relays.len() >= MAX_RELAYS {
            return None;
        }
        let seq = self.next_seq();
        self.relays.push(Relay { seq, origin, origin_seq, until: now + RELAY_MS });
        Some(seq)
    }

    /// A ping was answered: ends its probe, or returns the node that is to know, and its number.
    pub(super) fn answered(&mut self, seq: u32) -> Option<((u64, SocketAddr), u32)> {
        let before = self.probes.len();
        self.probes.retain(|probe| probe.seq != seq);
        if self.probes.len() < before {
            self.failing = self.failing.saturating_sub(1);
        }
        let at = self.relays.iter().position(|relay| relay.seq == seq)?;
        let relay = self.relays.swap_remove(at);
        Some((relay.origin, relay.origin_seq))
    }

    /// This node stood still for `gap` milliseconds, and may not have read the answers yet.
    pub(super) fn excuse(&mut self, gap: u64) {
        self.probes.iter_mut().for_each(|probe| probe.began += gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: Incarnation = Incarnation { life: 5, refutations: 0 };

    #[test]
    fn a_target_that_does_not_answer_is_pinged_again_and_then_suspect() {
        let mut probes = Probes::default();
        assert!(probes.begin(3, V, None, 0).is_some() && probes.begin(3, V, None, 0).is_none());
        let kinds = |probes: &mut Probes, now| {
            let steps = probes.steps(now);
            steps
                .iter()
                .map(|s| match s {
                    Step::Ping { .. } => 'p',
                    Step::AskHelpers { .. } => 'h',
                    Step::Suspect { .. } => 's',
                })
                .collect::<String>()
        };
        let seen: Vec<String> = (1..=8).map(|tick| kinds(&mut probes, 100 * tick)).collect();
        assert_eq!(seen, ["ph", "", "ph", "", "ph", "s", "", ""]);
    }

    #[test]
    fn an_answer_ends_a_probe_and_is_passed_on_where_a_helper_pinged() {
        let (mut probes, origin) = (Probes::default(), (9, SocketAddr::from(([10, 0, 0, 1], 5))));
        let Some(Step::Ping { seq, .. }) = probes.begin(3, V, None, 0) else { panic!("no ping") };
        assert_eq!(probes.answered(seq), None);
        assert!(probes.steps(1_000).is_empty());
        let seq = probes.relay(origin, 77, 0).unwrap();
        assert_eq!((probes.answered(seq), probes.answered(seq)), (Some((origin, 77)), None));
    }

    #[test]
    fn probes_begin_at_an_even_rate_and_do_not_pile_up_after_a_pause() {
        let mut probes = Probes::default();
        let due: usize = (0..=10).map(|tick| probes.due(100 * tick)).sum();
        assert_eq!(due, 6);
        assert_eq!((probes.due(90_000), probes.due(90_100)), (1, 0));
    }

    #[test]
    fn more_probes_begin_while_probes_fail_and_one_again_when_they_are_answered() {
        let mut probes = Probes::default();
        (0..9).for_each(|target| drop(probes.begin(target, V, None, 0)));
        assert_eq!(probes.steps(700).len(), 9);
        assert_eq!(probes.due(800), MAX_AT_ONCE);
        for target in 0..9 {
            let Some(Step::Ping { seq, .. }) = probes.begin(target, V, None, 900) else { panic!("no ping") };
            probes.answered(seq);
        }
        assert_eq!(probes.due(1_000), 1);
    }

    #[test]
    fn a_prober_that_stood_still_waits_for_the_answer_as_long_as_any() {
        let mut probes = Probes::default();
        probes.begin(3, V, None, 0);
        probes.excuse(5_000);
        assert!(!probes.steps(5_400).iter().any(|step| matches!(step, Step::Suspect { .. })));
        assert!(probes.steps(5_700).iter().any(|step| matches!(step, Step::Suspect { .. })));
    }

    #[test]
    fn helpers_and_verifications_are_bounded() {
        let (mut probes, origin) = (Probes::default(), (9, SocketAddr::from(([10, 0, 0, 1], 5))));
        let relays = (0..1_000).filter(|seq| probes.relay(origin, *seq, 0).is_some()).count();
        assert_eq!(relays, MAX_RELAYS);
        let doubt =
            Record { key: 1, incarnation: V, status: super::super::record::Status::Silent, age_s: 9, contact: None };
        let begun = (0..1_000).filter(|target| probes.begin(*target, V, Some(doubt.clone()), 0).is_some()).count();
        assert_eq!(begun, MAX_VERIFICATIONS);
        assert!(probes.begin(2_000, V, None, 0).is_some(), "the next in the rotation is always probed");
    }
}
