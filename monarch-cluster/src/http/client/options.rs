//! Which agent, and how to deal with it.

use super::super::auth::Key;
use super::super::tls::Tls;
use super::senders::Senders;
use std::net::SocketAddr;
use std::time::Duration;

/// Which agent, and how to deal with it.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Where it listens.
    pub addr: SocketAddr,
    /// This node's name.
    pub my_name: String,
    /// The peer's, as it knows itself.
    pub its_name: String,
    /// What they prove to each other.
    pub key: Key,
    /// What encrypts the connections; `None`: nothing does.
    pub encryption: Option<Tls>,
    /// How long a peer that does not answer is waited for; those that usually answer quickly are
    /// given up sooner.
    pub peer_timeout: Duration,
    /// Idle connections that are kept.
    pub idle: usize,
    /// The peers that share this node's link.
    pub senders: Senders,
}
