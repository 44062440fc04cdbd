//! [`Rates`]: figures of an agent a second, between two of its states.

use monarch_core::agent::protocol::{FromCopies, RootStatus, Savings, Status};
use monarch_core::cluster::node::PeerStatus;

/// Figures a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Bytes that the PFS sent: for copies, and to readers that got no copy.
    pub(super) pfs_bytes: f64,
    /// Opens at the PFS, by jobs and by the agent.
    pub(super) pfs_opens: f64,
    /// Calls of the agent to the PFS, those of scans included.
    pub(super) pfs_calls: f64,
    /// Bytes that these calls asked for.
    pub(super) asked_bytes: f64,
    /// Bytes that readers got from copies.
    pub(super) tier_bytes: f64,
    /// Opens that copies served.
    pub(super) tier_opens: f64,
    /// Answers of peers with bytes, and these bytes.
    pub(super) received: f64,
    pub(super) received_bytes: f64,
    /// Answers to peers with bytes, and these bytes.
    pub(super) sent: f64,
    pub(super) sent_bytes: f64,
    /// Opens that waited for a copy.
    pub(super) waits: f64,
    /// Seconds that readers waited: the mean number of readers that were waiting.
    pub(super) waiting: f64,
}

/// A state of an agent, and the one of `seconds` before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    before: &'a Status,
    now: &'a Status,
    seconds: f64,
}

impl<'a> Step<'a> {
    /// A step between two states of one agent. `None`: the counters began again between them, or no
    /// time has passed.
    pub(super) fn new(before: &'a Status, now: &'a Status, seconds: f64) -> Option<Self> {
        let is_same =
            (before.pid, &before.runtime_dir, before.incarnation) == (now.pid, &now.runtime_dir, now.incarnation);
        (is_same && before.uptime_s <= now.uptime_s && seconds > 0.0).then_some(Self { before, now, seconds })
    }

    /// The rate of a counter. One that fell has no growth.
    fn rate(&self, of: impl Fn(&Status) -> u64) -> f64 {
        of(self.now).saturating_sub(of(self.before)) as f64 / self.seconds
    }

    /// The rates of the agent.
    pub(super) fn rates(&self) -> Rates {
        let savings = |s: &Status| Savings::of(&s.counters, &s.agent, &s.pfs_opens);
        let peers = |of: fn(&PeerStatus) -> u64| self.rate(|s| s.peers.iter().map(of).sum());
        Rates {
            pfs_bytes: self.rate(|s| savings(s).sent_bytes),
            pfs_opens: self.rate(|s| savings(s).pfs_opens),
            pfs_calls: self.rate(|s| s.load.pfs_calls + s.load.scan_calls),
            asked_bytes: self.rate(|s| s.load.pfs_bytes),
            tier_bytes: self.rate(|s| FromCopies::of(&s.counters).bytes),
            tier_opens: self.rate(|s| FromCopies::of(&s.counters).opens),
            received: peers(|p| p.traffic.received),
            received_bytes: peers(|p| p.traffic.received_bytes),
            sent: peers(|p| p.traffic.sent),
            sent_bytes: peers(|p| p.traffic.sent_bytes),
            waits: self.rate(|s| s.counters.get("waited").copied().unwrap_or(0)),
            waiting: (savings(self.now).wait_s - savings(self.before).wait_s).max(0.0) / self.seconds,
        }
    }

    /// Opens a second below a root, of all its epochs. `None`: the root was not there before.
    pub(super) fn root_opens(&self, root: &RootStatus) -> Option<f64> {
        let opens = |r: &RootStatus| r.epochs.iter().map(|e| e.opens).sum::<u64>();
        let before = self.before.roots.iter().find(|r| r.path == root.path)?;
        Some(opens(root).saturating_sub(opens(before)) as f64 / self.seconds)
    }

    /// Bytes a second from a peer, and to it. `None`: the peer was not known before.
    pub(super) fn peer(&self, peer: &PeerStatus) -> Option<(f64, f64)> {
        let before = self.before.peers.iter().find(|p| p.name == peer.name)?;
        let rate = |of: fn(&PeerStatus) -> u64| of(peer).saturating_sub(of(before)) as f64 / self.seconds;
        Some((rate(|p| p.traffic.received_bytes), rate(|p| p.traffic.sent_bytes)))
    }
}
