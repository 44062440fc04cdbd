//! Settings of a node in the gossip, and its errors and counts.

use super::datagram_auth::Dropped;
use std::net::SocketAddr;
use std::time::Duration;

/// What a node needs to know to take part.
#[derive(Clone, Debug)]
pub struct Options {
    /// This node's name, as the other nodes have it in their `members`.
    pub me: String,
    /// Where datagrams to this node go. Never all addresses: the other nodes get this very one.
    pub listen: SocketAddr,
    /// Where this node serves files.
    pub files: SocketAddr,
    /// The nodes that are expected, this one included or not, and where their datagrams go, if that
    /// is known ([`super::Membership::locate`]). A node that the others do not expect names one
    /// of them here.
    pub members: Vec<(String, Option<SocketAddr>)>,
    /// Whether `members` are all nodes of the job, so that no other one is heard.
    pub is_closed: bool,
    /// Key that all nodes of the job know and no other process.
    pub key: [u8; 32],
    /// How long a node that is expected and was never seen counts as an owner.
    pub join_timeout: Duration,
    /// How often a node looks what it has to send. 100 ms is right; the protocol's times are its
    /// own.
    pub interval: Duration,
    /// Whether datagrams are encrypted. All nodes of a job must agree.
    pub encrypt: bool,
}

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The address cannot be listened at.
    #[error(
        "cannot listen for gossip at {listen}/UDP ({source}): set cluster.listen to an address of this node, or cluster.port to a free one"
    )]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address is no address of one node.
    #[error(
        "cannot gossip at {0}: other nodes must reach this one there; set cluster.listen to one address of this node"
    )]
    Unspecified(SocketAddr),
    /// A name that does not travel.
    #[error("node name {0:?} is empty or longer than 255 bytes: give the node a shorter one")]
    Name(String),
    /// Too many nodes.
    #[error(transparent)]
    TooMany(#[from] crate::directory::members::TooMany),
}

/// Another node, as it presented itself or was presented in the answer to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Which of its lives this is.
    pub incarnation: u64,
    /// Where its datagrams go.
    pub gossip: Option<SocketAddr>,
    /// Where it serves files.
    pub files: Option<SocketAddr>,
}

/// Datagrams that were dropped since the start, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Not of this protocol.
    pub foreign: u64,
    /// With a wrong MAC.
    pub forged: u64,
    /// Of nodes of this job that run an earlier version.
    pub version: u64,
    /// Of nodes of this job that encrypt where this node does not, or the reverse.
    pub encryption: u64,
    /// From a clock that is more than 30 s off.
    pub skewed: u64,
    /// By how many milliseconds the last of those was ahead, or behind.
    pub last_skew: i64,
    /// That came before.
    pub replayed: u64,
    /// For other reasons: more senders than a job can have, a malformed payload.
    pub other: u64,
}

impl Drops {
    pub(super) fn count(&mut self, why: Dropped) {
        match why {
            Dropped::Foreign => self.foreign += 1,
            Dropped::Forged => self.forged += 1,
            Dropped::OtherVersion => self.version += 1,
            Dropped::OtherEncryption => self.encryption += 1,
            Dropped::Replayed => self.replayed += 1,
            Dropped::Crowded | Dropped::Malformed => self.other += 1,
            Dropped::Skewed(by) => {
                self.skewed += 1;
                self.last_skew = by;
            }
        }
    }

    /// Logs what was dropped; `before` is what was logged before.
    pub(super) fn log_since(&self, before: &Self) {
        let Self { foreign, forged, replayed, other, .. } = *self;
        let is_new =
            (foreign, forged, replayed, other) != (before.foreign, before.forged, before.replayed, before.other);
        if is_new {
            tracing::warn!(foreign, forged, replayed, other, "gossip was dropped");
        }
        if self.version != before.version {
            tracing::warn!(
                datagrams = self.version,
                "nodes of this job with an earlier version of Monarch are not heard: run the same version on all nodes"
            );
        }
        if self.encryption != before.encryption {
            tracing::warn!(
                datagrams = self.encryption,
                "nodes of this job with another cluster.encryption are not heard: give all nodes the same setting"
            );
        }
        if self.skewed != before.skewed {
            tracing::warn!(
                datagrams = self.skewed,
                seconds = self.last_skew / 1000,
                "nodes are not heard because their clocks differ from this one by more than 30 s: set the clocks (NTP)"
            );
        }
    }
}
