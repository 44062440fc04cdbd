//! What can go wrong between two agents, as the one that asks sees it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why there is no answer from a peer, or no server.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// No process takes connections there.
    #[error(
        "no connection to the agent at {addr}: {source}; check that it runs, that no firewall is between the nodes, and that both have the same secret and list of nodes, from which the port is derived"
    )]
    Unreachable {
        /// Where the peer should be.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// It takes no more connections now.
    #[error("the agent at {addr} has all its connections taken; ask another node, or later")]
    Full {
        /// Where the peer is.
        addr: SocketAddr,
    },
    /// It did not say anything, or not enough, within this time.
    #[error("the agent at {addr} was given up after {} ms: {what}", after.as_millis())]
    Timeout {
        /// Where the peer is.
        addr: SocketAddr,
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// One of the two does not know the job's secret, or not the other's name.
    #[error(
        "{who} did not prove to know this job's secret (peer {addr}): give all nodes the same secrets (cluster.secret_file, cluster.job_secret) and member list"
    )]
    Unauthenticated {
        /// Where the peer is.
        addr: SocketAddr,
        /// Which of the two was refused.
        who: &'static str,
    },
    /// This node is not in the other's list.
    #[error(
        "the agent at {addr} has no node of this name in its list: give all nodes the same list of nodes (cluster.nodes, or the scheduler's)"
    )]
    NoMember {
        /// Where the peer is.
        addr: SocketAddr,
    },
    /// One of the two encrypts and the other does not.
    #[error(
        "the agent at {addr} has cluster.encryption: {its}, and this node has {mine}: set it alike on all nodes of the job"
    )]
    Encryption {
        /// Where the peer is.
        addr: SocketAddr,
        /// This node's setting.
        mine: &'static str,
        /// The peer's.
        its: &'static str,
    },
    /// The keys of the job are of no use.
    #[error("cannot encrypt what nodes send to each other: {source}; set cluster.encryption: none to do without")]
    Encrypt {
        /// What the library said.
        source: rustls::Error,
    },
    /// It said something that makes no sense.
    #[error(
        "what listens at {addr} is no agent of this version: {what}; check cluster.port and the versions on both nodes"
    )]
    Protocol {
        /// Where the peer is.
        addr: SocketAddr,
        /// What makes no sense.
        what: String,
    },
    /// What came is not what it sent.
    #[error(
        "what came from the agent at {addr} was changed on its way, or sent before: the connection was closed; if this goes on, an attacker on the network rewrites packets between the nodes"
    )]
    Forged {
        /// Where the peer is.
        addr: SocketAddr,
    },
    /// It closed the connection before the end of its answer.
    #[error("the agent at {addr} closed the connection: {source}")]
    Closed {
        /// Where the peer is.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// This node was to ask for something that cannot be asked.
    #[error("request cannot be sent: {what}")]
    Request {
        /// What is wrong with it.
        what: String,
    },
    /// This node cannot take connections.
    #[error(
        "cannot listen for other agents at {addr}: {source}; set cluster.listen to an address of this node, cluster.port to a free port"
    )]
    Listen {
        /// Where it was to listen.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refuses something that a client or server cannot do without.
    #[error("cannot {what}: {source}")]
    System {
        /// What for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl WireError {
    /// Whether the peer as such is in doubt, so that asking it for something else now is of no use
    /// either.
    #[must_use]
    pub fn peer_is_in_doubt(&self) -> bool {
        use WireError::{Closed, Encryption, Timeout, Unreachable};
        matches!(self, Unreachable { .. } | Timeout { .. } | Closed { .. } | Encryption { .. })
    }

    /// The kind of I/O error that says the same to a reader.
    pub(super) fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Timeout { .. } => io::ErrorKind::TimedOut,
            Self::Closed { source, .. } => source.kind(),
            Self::Protocol { .. } | Self::Forged { .. } => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}
